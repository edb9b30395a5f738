# SPDX-License-Identifier: GPL-3.0-or-later
"""May an edit be permitted without a question?  Only where the CLI in its mode `auto` would not have asked by itself.

Nothing here is for the event loop: it asks the disk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, cast

from qwen_companion.doors.layer import JsonObject, LayerError, read_settings, replaced_file, system_settings_file

_UNASKED_TOOLS = ("edit", "write_file")
"""The third, notebook_edit, goes to the classifier of `auto`."""

_PROTECTED = tuple(
    re.compile(pattern)
    for pattern in (
        # What makes the machine run something.
        r"/\.git(/|$)",
        r"/\.husky/",
        r"/package\.json$",
        r"/\.npmrc$",
        r"/(gnu)?makefile$",
        r"/\.?justfile$",
        r"/taskfile\.ya?ml$",
        r"/\.github/workflows/",
        # What instructs the CLI.
        r"/\.qwen/",
        r"/(qwen|agents|qwen\.local)\.md$",
        r"/\.mcp\.json$",
    )
)
"""Paths, in lower case, that `auto` asks its classifier about."""

_ALL_HOOKS_SINCE = (0, 24, 2)
"""The first version of Qwen Code that calls the hooks of all its settings.

Those before call the hooks of the user's file and of the project's; all together in place of one that has none.
"""

_OTHER_TOOLS = re.compile(
    r"(bash|shell|run_shell_command|monitor|read|read_file|webfetch|web_fetch|agent|skill)\b|mcp__", re.IGNORECASE
)
"""Beginnings of rules that concern no edit by the tools that edit."""


def is_inside(path: str, directory: str) -> bool:
    """Return whether `path` lies in `directory`, by its name and really."""
    if not os.path.isabs(path) or not os.path.isabs(directory):
        return False
    pairs = (
        (os.path.normpath(path), os.path.normpath(directory)),
        (os.path.realpath(path), os.path.realpath(directory)),
    )
    return all(inner.startswith(outer.rstrip("/") + "/") for inner, outer in pairs)


def may_pass(tool: str, path: str, directory: str, environ: Mapping[str, str]) -> bool:
    """Return whether `auto` would have `tool` write `path`, in the project `directory`, without a question.

    `environ` is the environment that the CLI finds its settings by.  Where that cannot be found out, it is no.
    """
    if tool not in _UNASKED_TOOLS:
        return False
    try:
        settings = [read_settings(path) for path in _settings_files(directory, environ)]
    except LayerError:
        return False
    if any(_concerns_edits(rule) for one in settings for rule in _items(one, "permissions", "ask")):
        return False
    names = [
        name.strip("/").lower() for one in settings for name in _items(one, "context", "fileName") if name.strip("/")
    ]
    for candidate in (os.path.normpath(path).lower(), os.path.realpath(path).lower()):
        if any(pattern.search(candidate) for pattern in _PROTECTED):
            return False
        if any(candidate.endswith("/" + name) for name in names):
            return False
    home = environ.get("QWEN_HOME")
    return not (home and is_inside(path, os.path.abspath(os.path.expanduser(home))))


def why_hooks_are_off(directory: str, environ: Mapping[str, str], version: str) -> str | None:
    """Return which setting keeps a CLI in `directory` from calling our hooks, in words; None where none is seen.

    `version` is that of the CLI, "" for an unknown one.
    """
    hooks: list[str] = []
    for path in _settings_files(directory, environ):
        try:
            settings = read_settings(path)
        except LayerError as error:
            return str(error)
        if settings.get("disableAllHooks") is True:
            return f"disableAllHooks in {path}"
        if _items(settings, "security", "allowedHttpHookUrls"):
            return f"security.allowedHttpHookUrls in {path}"
        if settings.get("hooks") is not None:
            hooks.append(path)
    user, project = user_settings_file(environ), _project_settings_file(directory)
    if () < version_numbers(version) < _ALL_HOOKS_SINCE and user in hooks and project in hooks:
        way_out = "move them into one of the files, or update Qwen Code"
        return f"hooks in {user} and in {project} switch off all others: {way_out}"
    return None


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers of `version`, fewer where it has not as many."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def user_settings_file(environ: Mapping[str, str]) -> str:
    """Return the user's own file of settings."""
    home = environ.get("QWEN_HOME") or os.path.join(environ.get("HOME") or "~", ".qwen")
    return os.path.join(os.path.expanduser(home), "settings.json")


def _project_settings_file(directory: str) -> str:
    return os.path.join(directory, ".qwen", "settings.json")


def _settings_files(directory: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """All files of settings but our layer: the user's, the project's and the administrator's."""
    return (
        user_settings_file(environ),
        _project_settings_file(directory),
        system_settings_file(environ),
        replaced_file(environ),
    )


def _items(settings: JsonObject, *keys: str) -> list[str]:
    """The strings at `keys`, which may be one."""
    value: Any = settings
    for key in keys:
        value = cast("JsonObject", value).get(key) if isinstance(value, dict) else None
    values = cast("list[object]", value if isinstance(value, list) else [value])
    return [item for item in values if isinstance(item, str)]


def _concerns_edits(rule: str) -> bool:
    return _OTHER_TOOLS.match(rule.strip()) is None
