# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings layers of one Emacs: files of settings below the user's own, which Qwen Code reads when it starts.

The variable that names a layer replaces the administrator's file, or one that the user had named.  So our file contains
their settings too.  No CLI starts with an invalid file.  So it is written under another name, checked and renamed, and
terminals get the variable only afterwards.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from qwen_companion.base.programs import find_program
from qwen_companion.domain import Settings, ToolDefinition
from qwen_companion.doors.door_settings import CommandHook, hook_settings, secrets_of, tool_settings
from qwen_companion.doors.listeners import Listener
from qwen_companion.doors.user_settings import VARIABLE, JsonObject, LayerError, read_settings, replaced_file
from qwen_companion.ide.guard import Keys

FILE_NAME = "qwen-settings.json"

DAEMON_FILE_NAME = "qwen-serve-settings.json"
"""The layer of a daemon that Emacs starts."""

FORMAT_VERSION = 4
"""Version of the format of our settings.  A CLI writes it into a file that lacks it."""

_LOOPBACK = ("127.0.0.1", "localhost")
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")
_NO_PROXY_VARIABLES = ("NO_PROXY", "no_proxy")

_HEADER_FILE = "qwen-hook-header"


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


class SettingsLayers:
    """The layers of CLIs in terminals, at other places, and of daemons.

    Its methods that write, remove or compare files block on disk I/O.
    """

    def __init__(
        self, port: int, token: str, directory: str, environ: Mapping[str, str], listeners: Sequence[Listener]
    ) -> None:
        """Keep the files in `directory`, which is private; `environ` is the environment of a CLI without a layer.

        `port` is that of the server that `token` opens.  `listeners` subscribe to further hooks.
        """
        self.settings = Settings()
        self.tools: tuple[ToolDefinition, ...] = ()
        self.directory = directory
        self.environ = environ
        self.keys = Keys(port, token, secrets_of(token))
        self.terminals = Layer(directory, environ)
        self._daemons = Layer(directory, environ, DAEMON_FILE_NAME)
        self._serves_daemon = False
        curl = find_program("curl", environ)
        self._command = CommandHook(curl, os.path.join(directory, _HEADER_FILE)) if curl else None
        self._subscriptions = [item for listener in listeners for item in listener.subscriptions]

    @property
    def guards(self) -> bool:
        """Whether CLIs ask before edits while this process does not answer."""
        return self._command is not None

    def set_settings(self, settings: Settings) -> bool:
        """Set the user's `settings`; return whether `install` has to be called."""
        before = self._of_terminals()
        self.settings = settings
        return self._of_terminals() != before

    def content(self, keys: Keys, command: CommandHook | None) -> JsonObject | None:
        """Return the layer of CLIs that reach the hooks and the tools by `keys`; None for no layer.

        They run `command` before edits, or call an HTTP hook if that is None.
        """
        if not self.settings.layer:
            return None
        # If edits are not reviewed, they need not wait for Emacs either.
        command = command if self.settings.reviewed else None
        return combine(hook_settings(keys, command, self._subscriptions), tool_settings(keys, self.tools))

    def _of_terminals(self) -> JsonObject | None:
        return self.content(self.keys, self._command)

    def _of_daemons(self) -> JsonObject:
        """Return a daemon's layer.  It has no hooks: the edits of a chat are reviewed in the chat."""
        wanted = self._serves_daemon and self.settings.layer
        return tool_settings(self.keys, self.tools) if wanted else {}

    def install(self) -> Installed:
        """Write the layers, or remove them if the user wants none."""
        self._install_for_daemons()
        ours = self._of_terminals()
        if ours is None:
            self._remove_from_terminals()
            return Installed()
        if self._command is not None:
            self._command.install(self.keys)
        return self.terminals.install(ours)

    def is_current(self) -> bool:
        """Return whether the disk has what `install` would write.

        A cleaner of temporary files may have removed a file, or the administrator's file have changed.
        """
        both = (self.terminals, self._of_terminals()), (self._daemons, self._of_daemons())
        has_header = self._command is None or os.path.exists(self._command.header)
        return has_header and all(not ours or layer.is_current(ours) for layer, ours in both)

    def install_for_daemons(self) -> Mapping[str, str]:
        """Write the layer of daemons that Emacs starts; from now on `install` writes it too.

        Return the variables that name it to a daemon, none without a layer.
        """
        self._serves_daemon = True
        return self._install_for_daemons()

    def _install_for_daemons(self) -> Mapping[str, str]:
        ours = self._of_daemons()
        if not ours:
            self._daemons.remove()
            return {}
        # Its warnings are those of the layer of terminals.
        return self._daemons.install(ours).environment

    def remove(self) -> None:
        """Remove the files."""
        self._remove_from_terminals()
        self._daemons.remove()

    def _remove_from_terminals(self) -> None:
        self.terminals.remove()
        if self._command is not None:
            self._command.remove()


def _open_no_other(path: str, flags: int) -> int:
    """Open the file `path` without following a link or blocking on a pipe.

    :raises OSError: if it cannot be opened
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


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
