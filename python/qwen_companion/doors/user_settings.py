# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of settings that Qwen Code reads beside ours, and what they say of our hooks and of tokens.

All functions block on disk I/O.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, cast

from qwen_companion.base.errors import CompanionError
from qwen_companion.base.json_objects import as_object

VARIABLE = "QWEN_CODE_SYSTEM_DEFAULTS_PATH"
"""The variable that names our settings layer to a CLI."""

SYSTEM_VARIABLE = "QWEN_CODE_SYSTEM_SETTINGS_PATH"
_SYSTEM_DIRECTORY = "/Library/Application Support/QwenCode" if sys.platform == "darwin" else "/etc/qwen-code"

_MAX_BYTES = 4 * 1024 * 1024

_STRING_OR_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\r\n]*|/\*.*?\*/', re.DOTALL)

_ALL_HOOKS_SINCE = (0, 24, 2)
"""The first version of Qwen Code that calls the hooks of all its files of settings.

Earlier ones call those of the user's file or the project's.  Only if one of the two has no hooks, they call all others
in its place, but never in place of those of an untrusted project.
"""

JsonObject = dict[str, Any]


class LayerError(CompanionError):
    """A file of settings cannot be read, or ours cannot be written; the message names the file and the reason."""


def system_settings_file(environ: Mapping[str, str]) -> str:
    """Return the administrator's file of settings above the user's."""
    return environ.get(SYSTEM_VARIABLE) or os.path.join(_SYSTEM_DIRECTORY, "settings.json")


def replaced_file(environ: Mapping[str, str]) -> str:
    """Return the file of settings that our layer replaces."""
    beside = os.path.dirname(system_settings_file(environ))
    return environ.get(VARIABLE) or os.path.join(beside, "system-defaults.json")


def user_settings_file(environ: Mapping[str, str]) -> str:
    """Return the user's own file of settings."""
    home = environ.get("QWEN_HOME") or os.path.join(environ.get("HOME") or "~", ".qwen")
    return os.path.join(os.path.expanduser(home), "settings.json")


def read_settings(path: str) -> JsonObject:
    """Return the settings in the file `path`, {} without a file.

    Like the CLI, accept comments and a byte order mark.

    :raises LayerError: if the CLI would not start with it
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise LayerError(f"{path} cannot be read: {error.strerror}") from None
    return parse_settings(path, data)


def parse_settings(path: str, data: bytes) -> JsonObject:
    """Return the settings in `data`, the content of the file `path`, as `read_settings` does.

    :raises LayerError: if the CLI would not start with it
    """
    if len(data) > _MAX_BYTES:
        raise LayerError(f"{path} is larger than {_MAX_BYTES} bytes")
    try:
        # Like the CLI, replace invalid UTF-8 by U+FFFD.
        text = data.decode("utf-8", "replace").removeprefix("\ufeff")
        settings: object = json.loads(_STRING_OR_COMMENT.sub(lambda match: match.group(1) or " ", text))
    except (ValueError, RecursionError):
        raise LayerError(f"{path} is not valid JSON") from None
    if not isinstance(settings, dict):
        raise LayerError(f"{path} is not a JSON object")
    return cast("JsonObject", settings)


def why_hooks_are_off(directory: str, environ: Mapping[str, str], version: str) -> str | None:
    """Return, in words, the setting by which a CLI of `version` in `directory` does not call our hooks, or None.

    An unknown `version` is "".
    """
    hooks: list[str] = []
    user, project = user_settings_file(environ), _project_settings_file(directory)
    try:
        is_distrusted = _is_distrusted(directory, environ)
        found = _settings(directory, environ, is_distrusted)
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


def session_token_limit(directory: str, environ: Mapping[str, str]) -> float:
    """Return the number of tokens of a request after which a CLI in `directory` sends no other; `math.inf` if none."""
    try:
        found = _settings(directory, environ, _is_distrusted(directory, environ))
    except LayerError:
        return math.inf
    limits = [_value(settings, "model", "sessionTokenLimit") for _, settings in found]
    limit = next((value for value in reversed(limits) if value is not None), None)
    return limit if isinstance(limit, int | float) and limit > 0 else math.inf


def _settings(directory: str, environ: Mapping[str, str], is_distrusted: bool) -> list[tuple[str, JsonObject]]:
    """Return the files of settings of a CLI in `directory`, each with its contents; a later one overrides.

    :raises LayerError: if one of them cannot be read
    """
    # The file of an untrusted project is not read.
    project = () if is_distrusted else (_project_settings_file(directory),)
    files = (replaced_file(environ), user_settings_file(environ), *project, system_settings_file(environ))
    return [(path, read_settings(path)) for path in files]


def _is_distrusted(directory: str, environ: Mapping[str, str]) -> bool:
    """Return whether the user has told the CLI not to trust `directory`.

    :raises LayerError: if the CLI's file cannot be read
    """
    files = (system_settings_file(environ), user_settings_file(environ), replaced_file(environ))
    enabled = (_value(read_settings(path), "security", "folderTrust", "enabled") for path in files)
    if next((value for value in enabled if value is not None), None) is not True:
        return False
    beside = os.path.join(os.path.dirname(user_settings_file(environ)), "trustedFolders.json")
    rules = read_settings(environ.get("QWEN_CODE_TRUSTED_FOLDERS_PATH") or beside)
    places = [(os.path.dirname(path) if level == "TRUST_PARENT" else path, level) for path, level in rules.items()]
    matching = [(len(path), level) for path, level in places if _is_in(directory, path)]
    # The innermost directory counts.
    return max(((length, level == "DO_NOT_TRUST") for length, level in matching), default=(0, False))[1]


def _is_in(directory: str, above: str) -> bool:
    """Return whether `directory` is `above` or below it, by its name or its true name."""
    pairs = ((directory, above), (os.path.realpath(directory), os.path.realpath(above)))
    return directory == above or all(f"{inner}/".startswith(f"{outer.rstrip('/')}/") for inner, outer in pairs)


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers of `version`, or fewer if it has fewer."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _project_settings_file(directory: str) -> str:
    return os.path.join(directory, ".qwen", "settings.json")


def _value(settings: JsonObject, *keys: str) -> object:
    value: Any = settings
    for key in keys:
        value = as_object(value).get(key)
    return value


def _items(settings: JsonObject, *keys: str) -> list[str]:
    """Return the strings at `keys`; a single string counts as a list of one."""
    value = _value(settings, *keys)
    values = cast("list[object]", value if isinstance(value, list) else [value])
    return [item for item in values if isinstance(item, str)]
