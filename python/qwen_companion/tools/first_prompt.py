# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold the first prompt of a CLI until it knows our tools.

A CLI looks for the tools of servers in the background when it starts, and takes those it has found by then for the
first request to the model.  It puts them together after the hook of the prompt has been answered (0.24.4): a prompt
that is typed at once waits for the tools there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from qwen_companion.doors.listeners import Report, Subscription

if TYPE_CHECKING:
    from qwen_companion.domain import Peer
    from qwen_companion.doors.events import Event
    from qwen_companion.tools.calls import Tools

WAIT_S = 2.0
"""How long a prompt waits for the tools, once in the life of a CLI."""

_MARGIN_S = 0.5
"""How much longer the CLI waits, so that it is answered."""


class FirstPrompt:
    """Listens to hooks.  All methods are for the event loop."""

    def __init__(self, tools: Tools) -> None:
        """`tools` are those that a CLI lists."""
        self._tools = tools
        self._listed: dict[tuple[int, str], anyio.Event] = {}
        """Of each CLI that began with this process: set once it has listed the tools, or has waited for them."""

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """The hooks that it subscribes to."""
        return (
            Subscription("SessionStart"),
            Subscription("UserPromptSubmit", None, WAIT_S + _MARGIN_S),
        )

    def holds(self, event: Event) -> bool:
        """Return whether some CLI that has begun does not know the tools yet."""
        waiting = any(not listed.is_set() for listed in self._listed.values())
        return event.name == "UserPromptSubmit" and waiting and bool(self._tools.definitions)

    async def hear(self, report: Report) -> None:
        """Handle `report`: let the first prompt of its CLI wait."""
        if report.event.name == "SessionStart":
            self._of(report.peer)
        elif (listed := self._listed.get(_key(report.peer))) and self._tools.definitions:
            with anyio.move_on_after(WAIT_S):
                await listed.wait()
            # It may have been told not to use them.
            listed.set()

    def listed(self, peer: Peer) -> None:
        """Note that the CLI in the process of `peer` has been told the tools."""
        self._of(peer).set()

    def ended(self, peer: Peer) -> None:
        """Forget the process of `peer`."""
        self._listed.pop(_key(peer), None)

    def _of(self, peer: Peer) -> anyio.Event:
        return self._listed.setdefault(_key(peer), anyio.Event())


def _key(peer: Peer) -> tuple[int, str]:
    return peer.pid, peer.started
