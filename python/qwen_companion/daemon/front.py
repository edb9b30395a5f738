# SPDX-License-Identifier: GPL-3.0-or-later
"""Connect Emacs to the daemon's client, whose modules are imported by the first call about a daemon."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from importlib import import_module

import anyio
from anyio.abc import TaskGroup

from qwen_companion.base.errors import MessageError
from qwen_companion.base.threads import in_thread
from qwen_companion.doors.layers import SettingsLayers
from qwen_companion.wire.bridge import Bridge
from qwen_companion.wire.journal_front import JournalFront
from qwen_companion.wire.messages import DaemonCall
from qwen_companion.wire.spool import Spool


class DaemonFront:
    """Carries out the calls about the daemon."""

    def __init__(
        self,
        bridge: Bridge,
        spool: Spool,
        services: TaskGroup,
        journal: JournalFront,
        layers: SettingsLayers,
        stop_s: float,
    ) -> None:
        """Serve in `services`.

        `journal` is sent the activity of chats, and supplies texts for their models.  The client may take `stop_s`
        seconds to stop.
        """
        self._spool = spool
        self._services = services
        self._stop_s = stop_s
        self._scope: anyio.CancelScope | None = None
        self._calls, self._calls_left = anyio.create_memory_object_stream[DaemonCall](math.inf)
        self._bridge = bridge
        # As a `Host`.
        self.send = bridge.call
        self.prepare = layers.install_for_daemons
        self.worked = journal.take_chat
        self.news = journal.journal.news_for_chat

    def handle(self, call: DaemonCall) -> None:
        """Schedule `call`; the first one starts serving."""
        if self._scope is None:
            self._scope = anyio.CancelScope()
            self._services.start_soon(self._serve, self._scope)
        self._calls.send_nowait(call)

    def stop(self) -> None:
        """Disconnect from the daemon; its sessions continue."""
        if self._scope is not None:
            self._scope.cancel()

    def close(self) -> None:
        """Drop the remaining calls."""
        self._calls.close()
        self._calls_left.close()

    async def _serve(self, scope: anyio.CancelScope) -> None:
        """Carry out the calls about the daemon, until `scope` is cancelled.

        Import the client only now: most users never need it.
        """
        with scope:
            try:
                await in_thread(import_module, "qwen_companion.daemon.dispatcher")
            except ImportError as error:
                await self._refuse(
                    f"The client of qwen serve cannot be loaded ({error.name}): M-x qwen-companion-install-backend, "
                    "and then turn qwen-companion-mode off and on."
                )
                return
            from qwen_companion.daemon.dispatcher import CallDispatcher

            dispatcher = CallDispatcher(self, self._spool, os.environ)
            async with anyio.create_task_group() as group:
                group.start_soon(dispatcher.run, self._stop_s)
                async for call in self._calls_left:
                    dispatcher.handle(call)

    async def _refuse(self, text: str) -> None:
        """Answer each call about the daemon with `text`, until cancelled."""
        # These modules import no package that could be missing.
        from qwen_companion.daemon.messages import DaemonState, Reply, request_of

        async for call in self._calls_left:
            # Emacs forgets the state when it asks for another daemon.
            self._bridge.notify(DaemonState("refused", text=text))
            with suppress(MessageError):
                if (request := request_of(call)) is not None:
                    self._bridge.notify(Reply(request, text, "refused"))
