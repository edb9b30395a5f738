# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings layer: a file of settings below the user's own, which Qwen Code reads when it starts.

The variable that names it replaces the administrator's file, or one that the user had named.  So our file contains
their settings too.  No CLI starts with an invalid file.  So it is written under another name, checked and renamed, and
terminals get the variable only afterwards.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from qwen_companion.base.errors import CompanionError

VARIABLE = "QWEN_CODE_SYSTEM_DEFAULTS_PATH"
"""The variable that names the layer to a CLI."""

FILE_NAME = "qwen-settings.json"

DAEMON_FILE_NAME = "qwen-serve-settings.json"
"""The layer of a daemon that Emacs starts."""

FORMAT_VERSION = 4
"""Version of the format of our settings.  A CLI writes it into a file that lacks it."""

SYSTEM_VARIABLE = "QWEN_CODE_SYSTEM_SETTINGS_PATH"
_SYSTEM_DIRECTORY = "/Library/Application Support/QwenCode" if sys.platform == "darwin" else "/etc/qwen-code"

_MAX_BYTES = 4 * 1024 * 1024

_LOOPBACK = ("127.0.0.1", "localhost")
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")
_NO_PROXY_VARIABLES = ("NO_PROXY", "no_proxy")

JsonObject = dict[str, Any]


class LayerError(CompanionError):
    """A file of settings cannot be read, or ours cannot be written; the message names the file and the reason."""


@dataclass(frozen=True)
class Installed:
    """The result of installing: the `environment` for terminals, and `warnings` for the user."""

    environment: dict[str, str] = field(default_factory=dict[str, str])
    warnings: tuple[str, ...] = ()


class Layer:
    """A layer file of one Emacs.  Its methods block on disk I/O; never call them on the event loop."""

    def __init__(self, directory: str, environ: Mapping[str, str], name: str = FILE_NAME) -> None:
        """Keep the file `name` in the private `directory`; `environ` is the environment of a CLI without a layer."""
        self.path = os.path.join(directory, name)
        self._environ = environ

    def install(self, ours: JsonObject) -> Installed:
        """Write the file: `ours` over the settings that a CLI would read without it.

        If it cannot be written, the environment is empty, and CLIs work without it.
        """
        data, warnings = self._content(ours)
        try:
            self._write(data)
        except (OSError, LayerError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self.remove()
            warnings.append(f"the settings layer {self.path} is not written: {reason}; CLIs work without it")
            return Installed(warnings=tuple(warnings))
        return Installed({VARIABLE: self.path, **_without_proxy(self._environ)}, tuple(warnings))

    def is_current(self, ours: JsonObject) -> bool:
        """Return whether the file is as `install` would write it."""
        try:
            with open(self.path, "rb", opener=_open_no_other) as file:
                return file.read() == self._content(ours)[0]
        except OSError:
            return False

    def _content(self, ours: JsonObject) -> tuple[bytes, list[str]]:
        """Return the content of the file, and warnings."""
        warnings: list[str] = []
        try:
            theirs = read_settings(replaced_file(self._environ))
        except LayerError as error:
            # With that file, and without our layer, no CLI would start.
            warnings.append(f"{error}; CLIs in terminals of this Emacs start without it")
            theirs = {}
        # As ASCII: theirs may contain half a surrogate pair, which UTF-8 cannot encode.
        return json.dumps(merge(theirs, ours), indent=1).encode("ascii"), warnings

    def remove(self) -> None:
        """Remove the file.  A CLI whose variable names it starts without it."""
        with suppress(OSError):
            os.unlink(self.path)

    def _write(self, data: bytes) -> None:
        """Put `data` at the path in one step.

        :raises OSError: if it cannot be written
        :raises LayerError: if the file then has other contents
        """
        temporary = f"{self.path}.{secrets.token_hex(4)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(temporary, flags, 0o600), "w+b") as file:
                file.write(data)
                file.flush()
                file.seek(0)
                if file.read() != data:
                    raise LayerError("it does not hold what was written")
            os.rename(temporary, self.path)
        except (OSError, LayerError):
            with suppress(OSError):
                os.unlink(temporary)
            raise


def _open_no_other(path: str, flags: int) -> int:
    """Open the file `path` without following a link or blocking on a pipe.

    :raises OSError: if it cannot be opened
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def system_settings_file(environ: Mapping[str, str]) -> str:
    """Return the administrator's file of settings above the user's."""
    return environ.get(SYSTEM_VARIABLE) or os.path.join(_SYSTEM_DIRECTORY, "settings.json")


def replaced_file(environ: Mapping[str, str]) -> str:
    """Return the file of settings that our layer replaces."""
    beside = os.path.dirname(system_settings_file(environ))
    return environ.get(VARIABLE) or os.path.join(beside, "system-defaults.json")


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
        settings: object = json.loads(_strip_comments(data.decode("utf-8", "replace").removeprefix("\ufeff")))
    except (ValueError, RecursionError):
        raise LayerError(f"{path} is not valid JSON") from None
    if not isinstance(settings, dict):
        raise LayerError(f"{path} is not a JSON object")
    return cast("JsonObject", settings)


def merge(theirs: JsonObject, ours: JsonObject) -> JsonObject:
    """Return `theirs` and `ours` combined, with the version of their format."""
    merged = combine(theirs, ours)
    version = theirs.get("$version")
    if version is not None:
        merged["$version"] = version
    elif all(isinstance(value, dict) for value in theirs.values()):
        merged["$version"] = FORMAT_VERSION
    # Without a version theirs have the first format, which had no objects; the CLI must see that it is missing.
    return merged


def combine(first: JsonObject, second: JsonObject) -> JsonObject:
    """Return `first` and `second` combined: lists joined without repetitions, objects merged, else `second`."""
    result = dict(first)
    for key, value in second.items():
        there = result.get(key)
        if isinstance(there, dict) and isinstance(value, dict):
            result[key] = combine(cast("JsonObject", there), cast("JsonObject", value))
        elif isinstance(there, list) and isinstance(value, list):
            known = cast("list[Any]", there)
            result[key] = [*known, *(item for item in cast("list[Any]", value) if item not in known)]
        else:
            result[key] = value
    return result


_STRING_OR_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\r\n]*|/\*.*?\*/', re.DOTALL)


def _strip_comments(text: str) -> str:
    return _STRING_OR_COMMENT.sub(lambda match: match.group(1) or " ", text)


def _without_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a CLI with `environ` reaches this machine without a proxy."""
    proxied = any(environ.get(name) or environ.get(name.upper()) for name in _PROXY_VARIABLES)
    if not proxied:
        return {}
    present = {name: environ[name] for name in _NO_PROXY_VARIABLES if environ.get(name)}
    variables: dict[str, str] = {}
    for name, value in (present or dict.fromkeys(_NO_PROXY_VARIABLES, "")).items():
        hosts = [host.strip() for host in value.split(",") if host.strip()]
        missing = [host for host in _LOOPBACK if host not in hosts]
        if missing and "*" not in hosts:
            variables[name] = ",".join([*hosts, *missing])
    return variables
