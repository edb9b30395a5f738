# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings layer: a file of settings below the user's own, which Qwen Code reads where a variable names it.

The variable takes the place of the administrator's file, or of one that the user named before.  So ours holds all of
theirs as well.  A file that is no JSON keeps every CLI from starting; hence it is written once, checked, and then
renamed to its name, and the variable is given to terminals only afterwards.

A CLI reads the file once, when it starts.
"""

from __future__ import annotations

import copy
import json
import os
import re
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from qwen_companion.errors import CompanionError

VARIABLE = "QWEN_CODE_SYSTEM_DEFAULTS_PATH"
"""Names the layer to a CLI."""

FILE_NAME = "qwen-settings.json"

DAEMON_FILE_NAME = "qwen-serve-settings.json"
"""The layer of a daemon that Emacs starts."""

FORMAT_VERSION = 4
"""Version of the settings format that ours are written in.  Where it is missing, a CLI writes it into the file."""

_VERSION_KEY = "$version"

SYSTEM_VARIABLE = "QWEN_CODE_SYSTEM_SETTINGS_PATH"
_SYSTEM_DIRECTORY = "/Library/Application Support/QwenCode" if sys.platform == "darwin" else "/etc/qwen-code"

_MAX_BYTES = 4 * 1024 * 1024

_LOOPBACK = ("127.0.0.1", "localhost")
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")
_NO_PROXY_VARIABLES = ("NO_PROXY", "no_proxy")

JsonObject = dict[str, Any]


class LayerError(CompanionError):
    """A file of settings cannot be read, or ours cannot be written; the text says which and why."""


@dataclass(frozen=True)
class Installed:
    """The result of installing: the `environment` for terminals, and `warnings` for the user."""

    environment: dict[str, str] = field(default_factory=dict[str, str])
    warnings: tuple[str, ...] = ()


class Layer:
    """A layer file of one Emacs.  Its methods wait for the disk: not for the event loop."""

    def __init__(self, directory: str, environ: Mapping[str, str], name: str = FILE_NAME) -> None:
        """Keep the file `name` in `directory`, which is private.

        `environ` is the environment of a CLI that has no layer.
        """
        self.path = os.path.join(directory, name)
        self._environ = environ

    def install(self, ours: JsonObject) -> Installed:
        """Write the file with `ours` over the settings that would be read without it.

        Where it cannot be written, the environment is empty and the CLIs work without it.
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
        """Return whether the file is there as `install` would write it."""
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
            # Without our layer no CLI would start at all.
            warnings.append(f"{error}; CLIs in terminals of this Emacs start without it")
            theirs = {}
        # As ASCII: theirs may hold half a surrogate pair, which UTF-8 cannot.
        return json.dumps(merge(theirs, ours), indent=1).encode("ascii"), warnings

    def remove(self) -> None:
        """Remove the file if it is there.  Where a variable still names it, a CLI starts without it."""
        with suppress(OSError):
            os.unlink(self.path)

    def _write(self, data: bytes) -> None:
        """Put `data` at the path in one step.

        :raises OSError: when it cannot be written
        :raises LayerError: when the file then holds something else
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
    """Open the file `path`; follow no link, and wait for no writer of a pipe.

    :raises OSError: when it cannot be opened
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def system_settings_file(environ: Mapping[str, str]) -> str:
    """Return the administrator's file of settings above the user's."""
    return environ.get(SYSTEM_VARIABLE) or os.path.join(_SYSTEM_DIRECTORY, "settings.json")


def replaced_file(environ: Mapping[str, str]) -> str:
    """Return the file of settings that a CLI would read in the place of our layer."""
    beside = os.path.dirname(system_settings_file(environ))
    return environ.get(VARIABLE) or os.path.join(beside, "system-defaults.json")


def read_settings(path: str) -> JsonObject:
    """Return the settings in the file `path`, {} where there is none.

    As the CLI does, take comments and a byte order mark.

    :raises LayerError: where the CLI would not start
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

    :raises LayerError: where the CLI would not start
    """
    if len(data) > _MAX_BYTES:
        raise LayerError(f"{path} is larger than {_MAX_BYTES} bytes")
    try:
        # The CLI reads bytes that are no UTF-8 as U+FFFD.
        settings: object = json.loads(_strip_comments(data.decode("utf-8", "replace").removeprefix("\ufeff")))
    except (ValueError, RecursionError):
        raise LayerError(f"{path} is not valid JSON") from None
    if not isinstance(settings, dict):
        raise LayerError(f"{path} is not a JSON object")
    return cast("JsonObject", settings)


def merge(theirs: JsonObject, ours: JsonObject) -> JsonObject:
    """Return `theirs` and `ours` as one, as `combine` does, with the version of the format that they are in."""
    merged = combine(theirs, ours)
    version = theirs.get(_VERSION_KEY)
    if version is not None:
        merged[_VERSION_KEY] = version
    elif all(isinstance(value, dict) for value in theirs.values()):
        merged[_VERSION_KEY] = FORMAT_VERSION
    # Else theirs are of the first format, which had no objects, and the CLI has to find that out.
    return merged


def combine(first: JsonObject, second: JsonObject) -> JsonObject:
    """Return `first` and `second` as one: lists one after the other, objects merged, else `second`."""
    return cast("JsonObject", _merged(first, second))


def _merged(theirs: object, ours: object) -> object:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        result = copy.copy(cast("JsonObject", theirs))
        for key, value in cast("JsonObject", ours).items():
            result[key] = _merged(result[key], value) if key in result else value
        return result
    if isinstance(theirs, list) and isinstance(ours, list):
        both = [*cast("list[Any]", theirs), *cast("list[Any]", ours)]
        return [item for index, item in enumerate(both) if item not in both[:index]]
    return ours


_STRING_OR_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\r\n]*|/\*.*?\*/', re.DOTALL)


def _strip_comments(text: str) -> str:
    return _STRING_OR_COMMENT.sub(lambda match: match.group(1) or " ", text)


def _without_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that let a CLI with the variables of `environ` reach this machine without a proxy."""
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
