# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the arguments of a tool call; errors tell the model what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qwen_companion.base.errors import CompanionError
from qwen_companion.domain import ToolArgument, ToolDefinition

LIMIT = "limit"
OFFSET = "offset"
DEFAULT_LIMIT = 50
MAX_LIMIT = 200

PATH = "path"
"""The kind of an argument that names a file."""

LINE = "line"

_PAGE = (
    ToolArgument(LIMIT, "integer", f"How many results to show: {DEFAULT_LIMIT} by default, at most {MAX_LIMIT}."),
    ToolArgument(OFFSET, "integer", "How many results to skip, to see those after them."),
)

_JSON_TYPES = {"string": "string", PATH: "string", "integer": "integer", LINE: "integer", "boolean": "boolean"}

Value = str | int | bool


class ToolError(CompanionError):
    """A tool cannot be called in that way, or has no answer; the message tells the model what to do."""


def arguments_of(tool: ToolDefinition) -> tuple[ToolArgument, ...]:
    """Return all arguments of `tool`."""
    return (*tool.arguments, *_PAGE) if tool.paged else tool.arguments


def input_schema(tool: ToolDefinition) -> dict[str, Any]:
    """Return the JSON schema of the arguments of `tool`."""
    properties: dict[str, Any] = {}
    for argument in arguments_of(tool):
        schema: dict[str, Any] = {"type": _JSON_TYPES.get(argument.kind, "string"), "description": argument.description}
        if argument.choices:
            schema["enum"] = list(argument.choices)
        properties[argument.name] = schema
    required = [argument.name for argument in tool.arguments if argument.required]
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def check_arguments(tool: ToolDefinition, given: Mapping[str, object]) -> dict[str, Value]:
    """Return the arguments `given` to `tool`, each converted to its kind.

    :raises ToolError: if one has another kind, is unknown, or is missing
    """
    known = {argument.name: argument for argument in arguments_of(tool)}
    unknown = [name for name in given if name not in known]
    if unknown:
        hint = "; the name of a file is called `path`" if "path" in known and "path" not in given else ""
        names = ", ".join(f"`{name}`" for name in known) or "no arguments"
        raise ToolError(f"{tool.name} has no argument `{unknown[0]}`. It takes {names}{hint}.")
    values = {name: _checked(known[name], value) for name, value in given.items() if value is not None}
    missing = [argument for argument in tool.arguments if argument.required and argument.name not in values]
    if missing:
        raise ToolError(f"{tool.name} needs `{missing[0].name}`: {missing[0].description}")
    return values


def _checked(argument: ToolArgument, value: object) -> Value:
    name = argument.name
    if argument.kind == "boolean":
        found = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else value
        if not isinstance(found, bool):
            raise ToolError(f"`{name}` must be true or false.")
        return found
    if argument.kind in ("integer", LINE):
        return _number(argument, value)
    if not isinstance(value, str):
        raise ToolError(f"`{name}` must be a string.")
    if argument.choices and value not in argument.choices:
        raise ToolError(f"`{name}` must be one of {', '.join(argument.choices)}, not {value!r}.")
    return value


def _number(argument: ToolArgument, value: object) -> int:
    # Small models write numbers as strings, and some as 3.0.
    if isinstance(value, str) and value.strip().lstrip("-").isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ToolError(f"`{argument.name}` must be a whole number.")
    if argument.kind == LINE and value < 1:
        raise ToolError(f"`{argument.name}` counts from 1, so {value} is none. The first one is 1.")
    if value < 0:
        raise ToolError(f"`{argument.name}` must not be negative.")
    if value > 1_000_000_000:
        raise ToolError(f"`{argument.name}` is too large.")
    return value
