# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages of a client by the schema of the protocol, whole or with damaged parts.

The schema is that of the MCP library's own models, so a new version of it brings its new requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from hypothesis import strategies as st
from mcp import types
from pydantic import TypeAdapter

Json = st.SearchStrategy[Any]

TEXT = st.text(max_size=20)
ANYTHING: Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
_MANY: dict[str, Callable[[dict[str, Any]], Json]] = {
    "null": lambda _: st.none(),
    "boolean": lambda _: st.booleans(),
    "integer": lambda _: st.integers(),
    "number": lambda _: st.integers() | st.floats(allow_nan=False),
    "string": lambda _: TEXT,
}


class _Schema:
    """The values of a JSON schema; for some properties those in `known`, which are of more interest."""

    def __init__(self, whole: dict[str, Any], known: dict[str, Json]) -> None:
        self._definitions: dict[str, Any] = whole.get("$defs", {})
        self._known = known
        self._named: dict[str, Json] = {}

    def values(self, schema: dict[str, Any]) -> Json:
        """Return a strategy for the values that are valid by `schema`."""
        if "$ref" in schema:
            name = str(schema["$ref"]).rpartition("/")[2]
            if name not in self._named:
                # It may be in itself.
                self._named[name] = st.deferred(lambda: self.values(self._definitions[name]))
            return self._named[name]
        if "const" in schema:
            return st.just(schema["const"])
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return st.one_of([self.values(part) for part in schema[key]])
        kind = schema.get("type")
        if kind == "object":
            return self._objects(schema)
        if kind == "array":
            return st.lists(self.values(schema.get("items", {})), max_size=3)
        return _MANY[kind](schema) if kind in _MANY else ANYTHING

    def _objects(self, schema: dict[str, Any]) -> Json:
        properties: dict[str, Any] = schema.get("properties", {})
        # What can only be one thing has a default, and is sent.
        required = {*schema.get("required", ()), *(name for name, part in properties.items() if "const" in part)}
        values = {
            name: self._known[name] if name in self._known else self.values(part) for name, part in properties.items()
        }
        fixed = st.fixed_dictionaries(
            {name: value for name, value in values.items() if name in required},
            optional={name: value for name, value in values.items() if name not in required},
        )
        more = schema.get("additionalProperties")
        if properties and not more:
            return fixed
        others = self.values(cast("dict[str, Any]", more)) if isinstance(more, dict) else ANYTHING
        return st.builds(_merged, fixed, st.dictionaries(TEXT, others, max_size=2))


def _merged(first: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    return {**rest, **first}


@st.composite
def _damaged(draw: st.DrawFn, messages: Json) -> Any:
    """Return a message, or one in which parts are left out or are something else."""
    message = draw(messages)
    for _ in range(draw(st.sampled_from((0, 0, 1, 2)))):
        place: Any = message
        while place and isinstance(place, (dict, list)):
            inner = cast("dict[Any, Any]", place)
            # Without its method a message is soon refused.
            keys: list[Any] = sorted({*inner} - {"method"}) if isinstance(place, dict) else list(range(len(inner)))
            if not keys:
                break
            key = "params" if inner is message and "params" in inner else draw(st.sampled_from(keys))
            part: Any = inner[key]
            if not part or not isinstance(part, (dict, list)) or draw(st.integers(0, 3)) == 0:
                if draw(st.booleans()):
                    del inner[key]
                else:
                    inner[key] = draw(ANYTHING)
                break
            place = cast("Any", part)
    return message


def client_messages(directory: str) -> Json:
    """Return a strategy for messages of a client, right and damaged ones; proposals name files in `directory`."""
    path = st.sampled_from([f"{directory}/a.txt", f"{directory}/../b.txt", "a.txt", "/etc/passwd", ""])
    known: dict[str, Json] = {
        "name": st.sampled_from(["openDiff", "closeDiff"]) | TEXT,
        "arguments": st.fixed_dictionaries({"filePath": path | ANYTHING}, optional={"newContent": TEXT | ANYTHING})
        | ANYTHING,
        "_meta": st.fixed_dictionaries({}, optional={"progressToken": TEXT | st.integers(), "more": ANYTHING}),
    }
    identifiers = st.fixed_dictionaries(
        {"jsonrpc": st.just("2.0"), "id": st.integers(0, 2**31) | st.text("abc", min_size=1, max_size=5)}
    )
    kinds: list[Json] = []
    for model, head in ((types.ClientRequest, identifiers), (types.ClientNotification, st.just({"jsonrpc": "2.0"}))):
        whole = TypeAdapter[Any](cast("Any", model)).json_schema(by_alias=True)
        schema = _Schema(whole, known)
        for name in (part["$ref"] for part in whole["anyOf"]):
            body = schema.values({"$ref": name})
            # What does most here.
            many = 8 if "CallTool" in name else 1
            kinds += [st.builds(_merged, head, body)] * many
    return _damaged(st.one_of(kinds))
