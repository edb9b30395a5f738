# SPDX-License-Identifier: GPL-3.0-or-later
"""The registered CLIs, for Emacs: which there are, and prompts to them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

import anyio
from anyio.abc import TaskGroup

from qwen_companion.domain import RegisteredCli
from qwen_companion.emacs.messages import (
    Notification,
    RegisteredClis,
    RegistryCall,
    RegistryEnd,
    RegistryLook,
)
from qwen_companion.registry.controller import grant_state
from qwen_companion.registry.registry import Registry
from qwen_companion.tasks import contained
from qwen_companion.threads import in_thread


class RegistryFront:
    """See the top of this file.  All methods are for the event loop."""

    def __init__(
        self, environ: Mapping[str, str], own_port: int, directory: str, tell: Callable[[Notification], None]
    ) -> None:
        """`own_port` is that of our server, `directory` a private one; `tell` sends a message to Emacs."""
        self._environ = environ
        self._tell = tell
        self._registry = Registry(environ, own_port, self._changed, self._controllers_changed)
        self._controller = ""
        self._tasks: TaskGroup | None = None

    async def run(self) -> None:
        """Tell of the CLIs and carry out calls until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            self._controller = await in_thread(grant_state, self._environ)
            await self._registry.run()

    def take(self, call: RegistryCall) -> None:
        """Carry out `call` soon."""
        if self._tasks is not None:
            self._tasks.start_soon(contained, self._carry_out, call)

    async def _carry_out(self, call: RegistryCall) -> None:
        if isinstance(call, RegistryLook):
            await self._registry.look()
        elif isinstance(call, RegistryEnd):
            record = await self._registry.record(call.cli)
            if record is not None and record.started:
                with suppress(OSError):
                    os.kill(record.cli.pid, signal.SIGTERM)

    def _changed(self, clis: Collection[RegisteredCli], gone: Collection[str]) -> None:
        self._tell(RegisteredClis(tuple(clis), tuple(gone), self._controller))

    def _controllers_changed(self) -> None:
        if self._tasks is not None:
            self._tasks.start_soon(contained, self._look_at_controllers)

    async def _look_at_controllers(self) -> None:
        before, self._controller = self._controller, await in_thread(grant_state, self._environ)
        if self._controller != before:
            self._changed((), ())
