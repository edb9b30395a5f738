# SPDX-License-Identifier: GPL-3.0-or-later
"""A call of a hook on its way from the server to what answers it, and the reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from qwen_companion.sockets import Connection

if TYPE_CHECKING:
    from qwen_companion.domain import Peer
    from qwen_companion.doors.files import Files
    from qwen_companion.ide.peers import Caller

PERMISSION_REQUEST = "PermissionRequest"
PRE_TOOL_USE = "PreToolUse"
"""The events that are answered with a decision of the user."""


def ask(reason: str) -> dict[str, Any]:
    """Return the answer that the terminal asks whether the tool may run, and shows `reason`.

    Where there is nobody to ask, the tool does not run, and the model reads it.
    """
    return _before_tool("ask", reason)


def refuse(reason: str) -> dict[str, Any]:
    """Return the answer that the tool does not run; the model reads `reason`."""
    return _before_tool("deny", reason)


def refuses(answer: Mapping[str, Any]) -> bool:
    """Return whether `answer` is one by which the tool does not run."""
    return answer.get("hookSpecificOutput", {}).get("permissionDecision") == "deny"


def _before_tool(decision: str, reason: str) -> dict[str, Any]:
    output = {"hookEventName": PRE_TOOL_USE, "permissionDecision": decision, "permissionDecisionReason": reason}
    return {"hookSpecificOutput": output}


@dataclass(eq=False)
class HookCall:
    """One call of a hook, with the report `data`.

    `shortened`: long texts of the report are missing.  `before_edit`: without an answer, the edit is not to be made.
    `gone` is set when nobody waits for the reply.
    """

    data: bytes
    shortened: bool
    connection: Connection
    before_edit: bool = False
    gone: anyio.Event = field(default_factory=anyio.Event)


@dataclass(frozen=True)
class Reply:
    """The reply to a call: the `answer`, and what to do `after` it has been sent."""

    answer: dict[str, Any] = field(default_factory=dict[str, Any])
    after: Callable[[], None] | None = None


class Elsewhere(Protocol):
    """The CLIs of other places."""

    def caller(self, connection: Connection, /) -> Caller | None:
        """Return the CLI whose `connection` a relay carries, None for another.  It may be called in any thread."""
        ...

    def files(self, peer: Peer, /) -> Files | None:
        """Return the files of the CLI in the process `peer`, one elsewhere; None where its place is not served."""
        ...

    def name_of(self, peer: Peer, path: str, /) -> str:
        """Return the name in Emacs of what the CLI in the process `peer`, here or elsewhere, calls `path`."""
        ...

    async def lay_plan(self, place: str, text: str) -> str:
        """Lay down the plan `text` at `place`, as long as that is served; return the file's name there.

        :raises CompanionError: when it cannot be written
        """
        ...


PendingReply = Callable[[], Awaitable[Reply]]
"""Waits for the reply to a call; to be called once."""


async def no_decision() -> Reply:
    """Return the reply with which the CLI goes on as if it had not asked: a `PendingReply`."""
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
