# SPDX-License-Identifier: GPL-3.0-or-later
"""May a tool run without a question?  Only where the CLI in its mode `auto` would not have asked by itself.

Nothing here is for the event loop: it asks the disk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, cast

from qwen_companion.doors.disk import Disk
from qwen_companion.doors.layer import JsonObject, LayerError, read_settings, replaced_file, system_settings_file
from qwen_companion.json_objects import as_object

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

Those before call the hooks of the user's file and of the project's; all together in place of one that has none, but not
in place of those of a project that is not trusted.
"""

_OTHER_TOOLS = re.compile(
    r"(bash|shell|run_shell_command|monitor|read|read_file|webfetch|web_fetch|agent|skill)\b|mcp__", re.IGNORECASE
)
"""Beginnings of rules that concern no edit by the tools that edit."""


def is_inside(path: str, directory: str, disk: Disk) -> bool:
    """Return whether `path` lies in `directory` of `disk`, by its name and really."""
    if not os.path.isabs(path) or not os.path.isabs(directory):
        return False
    pairs = (
        (os.path.normpath(path), os.path.normpath(directory)),
        (disk.real(path), disk.real(directory)),
    )
    return all(inner.startswith(outer.rstrip("/") + "/") for inner, outer in pairs)


def may_pass(tool: str, path: str, directory: str, disk: Disk) -> bool:
    """Return whether `auto` would have `tool` write `path`, in the project `directory` of `disk`, without a question.

    Where that cannot be found out, it is no.
    """
    if tool not in _UNASKED_TOOLS:
        return False
    try:
        settings = _settings_files(directory, disk.environ)
        disk.expect([path, *map(os.path.dirname, settings)], settings)
        rules = _Rules(directory, disk)
        return not any(_concerns_edits(rule) for rule in rules.ask) and not rules.protect(path)
    except (LayerError, OSError):
        return False


class _Rules:
    """The user's rules and protected files in the project `directory` of `disk`."""

    def __init__(self, directory: str, disk: Disk) -> None:
        """Read all settings.

        :raises LayerError: when one of them cannot be read
        """
        self._disk, environ = disk, disk.environ
        settings = [disk.settings(path) for path in _settings_files(directory, environ)]
        self.ask = [rule for one in settings for rule in _items(one, "permissions", "ask")]
        names = (name for one in settings for name in _items(one, "context", "fileName"))
        self._names = tuple("/" + name.strip("/").lower() for name in names if name.strip("/"))
        home = environ.get("QWEN_HOME")
        self._home = os.path.abspath(os.path.expanduser(home)) if home else None

    def protect(self, path: str) -> bool:
        """Return whether `auto` asks its classifier about writing `path`, or about what is below it."""
        for candidate in (os.path.normpath(path).lower(), self._disk.real(path).lower()):
            if any(pattern.search(name) for pattern in _PROTECTED for name in (candidate, candidate + "/")):
                return True
            if candidate.endswith(self._names):
                return True
        return self._home is not None and (path == self._home or is_inside(path, self._home, self._disk))


def why_hooks_are_off(directory: str, environ: Mapping[str, str], version: str) -> str | None:
    """Return which setting keeps a CLI in `directory` from calling our hooks, in words; None where none is seen.

    `version` is that of the CLI, "" for an unknown one.
    """
    hooks: list[str] = []
    user, project = user_settings_file(environ), _project_settings_file(directory)
    try:
        is_distrusted = _is_distrusted(directory, environ)
        # Those of a project that is not trusted are not read.
        files = [path for path in _settings_files(directory, environ) if not (is_distrusted and path == project)]
        found = [(path, read_settings(path)) for path in files]
    except LayerError as error:
        return str(error)
    for path, settings in found:
        if settings.get("disableAllHooks") is True:
            return f"disableAllHooks in {path}"
        if _items(settings, "security", "allowedHttpHookUrls"):
            return f"security.allowedHttpHookUrls in {path}"
        if settings.get("hooks") is not None:
            hooks.append(path)
    if not () < version_numbers(version) < _ALL_HOOKS_SINCE or user not in hooks:
        return None
    if is_distrusted:
        way_out = "trust it, or update Qwen Code"
        return f"hooks in {user} switch off all others in a folder that is not trusted: {way_out}"
    if project in hooks:
        way_out = "move them into one of the files, or update Qwen Code"
        return f"hooks in {user} and in {project} switch off all others: {way_out}"
    return None


def _is_distrusted(directory: str, environ: Mapping[str, str]) -> bool:
    """Return whether the user has told the CLI not to trust `directory`.  LayerError."""
    files = (system_settings_file(environ), user_settings_file(environ), replaced_file(environ))
    enabled = (_value(read_settings(path), "security", "folderTrust", "enabled") for path in files)
    if next((value for value in enabled if value is not None), None) is not True:
        return False
    beside = os.path.join(os.path.dirname(user_settings_file(environ)), "trustedFolders.json")
    rules = read_settings(environ.get("QWEN_CODE_TRUSTED_FOLDERS_PATH") or beside)
    places = [(os.path.dirname(path) if level == "TRUST_PARENT" else path, level) for path, level in rules.items()]
    matching = [
        (len(path), level) for path, level in places if path == directory or is_inside(directory, path, Disk(environ))
    ]
    # The innermost counts.
    return max(((length, level == "DO_NOT_TRUST") for length, level in matching), default=(0, False))[1]


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
    """Return all files of settings but our layer: the user's, the project's and the administrator's."""
    return (
        user_settings_file(environ),
        _project_settings_file(directory),
        system_settings_file(environ),
        replaced_file(environ),
    )


def _value(settings: JsonObject, *keys: str) -> object:
    value: Any = settings
    for key in keys:
        value = as_object(value).get(key)
    return value


def _items(settings: JsonObject, *keys: str) -> list[str]:
    """Return the strings at `keys`, where a single one may stand."""
    value = _value(settings, *keys)
    values = cast("list[object]", value if isinstance(value, list) else [value])
    return [item for item in values if isinstance(item, str)]


def _concerns_edits(rule: str) -> bool:
    return _OTHER_TOOLS.match(rule.strip()) is None
