# SPDX-License-Identifier: GPL-3.0-or-later
"""The contents of the settings layers of one Emacs: the hooks and the tools."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from qwen_companion.domain import Settings, ToolDefinition
from qwen_companion.doors.hook_settings import CommandHook, hook_secret, hook_settings
from qwen_companion.doors.layer import DAEMON_FILE_NAME, Installed, JsonObject, Layer, combine
from qwen_companion.doors.listeners import Listener
from qwen_companion.doors.tool_settings import tool_secret, tool_settings
from qwen_companion.programs import find_program

_HEADER_FILE = "qwen-hook-header"


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
        self.hook_secret = hook_secret(token)
        self._tool_secret = tool_secret(token)
        self._port = port
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

    def content(self, port: int, hook_secret: str, tool_secret: str, command: CommandHook | None) -> JsonObject | None:
        """Return the layer of CLIs that reach the hooks and the tools at `port` by the secrets; None for no layer.

        They run `command` before edits, or call an HTTP hook if that is None.
        """
        if not self.settings.layer:
            return None
        # If edits are not reviewed, they need not wait for Emacs either.
        command = command if self.settings.reviewed else None
        hooks = hook_settings(port, hook_secret, command, self._subscriptions)
        return combine(hooks, tool_settings(port, tool_secret, self.tools))

    def _of_terminals(self) -> JsonObject | None:
        return self.content(self._port, self.hook_secret, self._tool_secret, self._command)

    def _of_daemons(self) -> JsonObject:
        """Return a daemon's layer.  It has no hooks: the edits of a chat are reviewed in the chat."""
        wanted = self._serves_daemon and self.settings.layer
        return tool_settings(self._port, self._tool_secret, self.tools) if wanted else {}

    def install(self) -> Installed:
        """Write the layers, or remove them if the user wants none."""
        self._install_for_daemons()
        ours = self._of_terminals()
        if ours is None:
            self._remove_from_terminals()
            return Installed()
        if self._command is not None:
            self._command.install(self.hook_secret)
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
