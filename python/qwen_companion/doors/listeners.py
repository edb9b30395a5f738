# SPDX-License-Identifier: GPL-3.0-or-later
"""The interface by which other parts of the backend receive the events that hooks report."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from qwen_companion.domain import Peer
from qwen_companion.doors.events import Event


@dataclass(frozen=True)
class Subscription:
    """Events named `event`, of tools whose whole name matches the regular expression `tools` (None: all tools).

    The CLI waits for the listener at most `hold_s` seconds.  A PermissionRequest never waits for a listener.
    """

    event: str
    tools: str | None = None
    hold_s: float = 0.0


@dataclass(frozen=True)
class Block:
    """Withholds a prompt from the model, which ends the turn; the user reads the `reason`."""

    reason: str


@dataclass(frozen=True)
class Failure:
    """The turn of the CLI, which seems cancelled, has failed for `reason`."""

    reason: str


Fitting = Callable[[int], str | None]
"""Returns a text of at most the given number of UTF-16 units; called once, when the model will certainly get it."""

Words = str | Fitting | Block | Failure


@dataclass(frozen=True)
class Report:
    """An `event` that the CLI in the process of `peer` reported at `time`, in ms since the epoch.

    `cli` is its name and version for display, or "".  `session` is the id of its MCP session, None before it has
    connected to the IDE server; `event.session_id` is the CLI's own id of the conversation.  The CLI stops waiting for
    the listener at `waits_until`, a time of the event loop.
    """

    event: Event
    peer: Peer
    cli: str
    session: str | None
    time: int
    waits_until: float = math.inf


class Listener(Protocol):
    """Receives events.  All methods are called on the event loop."""

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """Return the subscriptions; always the same."""
        ...

    def holds(self, event: Event) -> bool:
        """Return whether the CLI has to wait, for up to the `hold_s` of the subscription, until `hear` returns."""
        ...

    async def hear(self, report: Report) -> Words | None:
        """Handle `report`; return the text for the model, or None.

        A `Block` counts for UserPromptSubmit only, a `Failure` for Notification.  The reports of one process come one
        at a time, in order.  After `hold_s` the call is not cancelled, but its result is dropped.  A CLI adds a text to
        SessionStart, UserPromptSubmit, PostToolUse and PostToolBatch only, and cuts it at 10,000 characters.  Never log
        a report.
        """
        ...

    def ended(self, peer: Peer) -> None:
        """Handle the end of a process that has reported events."""
        ...
