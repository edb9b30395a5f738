# SPDX-License-Identifier: GPL-3.0-or-later
"""The calls of hooks, and the replies to them, between the HTTP server and the handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

import anyio

from qwen_companion.base.sockets import Connection
from qwen_companion.domain import Peer
from qwen_companion.doors.events import NO_DECISION, Answer
from qwen_companion.doors.files import Files
from qwen_companion.ide.peers import Caller


@dataclass(eq=False)
class HookCall:
    """One call of a hook, with the report `data`.

    `shortened`: long texts of the report are missing.  `before_edit`: the edit must not be made without an answer.
    `gone` is set when the caller no longer waits for the reply.
    """

    data: bytes
    shortened: bool
    connection: Connection
    before_edit: bool = False
    gone: anyio.Event = field(default_factory=anyio.Event)


@dataclass(frozen=True)
class Reply:
    """The reply to a call: the `answer`, and what to do `after` it has been sent."""

    answer: Answer = field(default_factory=NO_DECISION.copy)
    after: Callable[[], None] | None = None


class RemotePlaces(Protocol):
    """Remote CLIs, as the hooks need them."""

    def caller(self, connection: Connection, /) -> Caller | None:
        """Return the CLI whose `connection` a relay carries, or None.  Callable in any thread."""
        ...

    def files(self, peer: Peer, /) -> Files | None:
        """Return the files of the remote CLI in the process `peer`; None where its place is not served."""
        ...

    def name_of(self, peer: Peer, path: str, /) -> str:
        """Return Emacs's name of the file that the CLI in the process `peer`, local or remote, calls `path`."""
        ...

    async def lay_plan(self, place: str, text: str) -> str:
        """Write the plan `text` to a temporary file at `place`; return its name there.

        :raises CompanionError: if it cannot be written
        """
        ...


PendingReply = Callable[[], Awaitable[Reply]]
"""Waits for the reply to a call; to be called once."""


async def no_decision() -> Reply:
    """Return the reply after which the CLI continues as without hooks: a `PendingReply`."""
    return Reply()


async def run_while_wanted(work: Callable[[], Awaitable[None]], limit_s: float, gone: anyio.Event) -> None:
    """Run `work` until it has ended, `limit_s` seconds have passed, or `gone` is set."""

    async def watch() -> None:
        await gone.wait()
        tasks.cancel_scope.cancel()

    with anyio.move_on_after(limit_s):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            await work()
            tasks.cancel_scope.cancel()
