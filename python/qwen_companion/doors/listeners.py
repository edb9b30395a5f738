# SPDX-License-Identifier: GPL-3.0-or-later
"""The interface for other parts of the backend to hear of the events that hooks report.

Importing this module does not import pydantic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from qwen_companion.domain import Peer

if TYPE_CHECKING:
    from qwen_companion.doors.events import Event


@dataclass(frozen=True)
class Subscription:
    """Which events a listener hears of: those named `event`, of the tools whose names match `tools`.

    `tools` is a regular expression for the whole name; with None all match.  `hold_s` is how long the CLI waits for
    the listener at most, in seconds, before it goes on; with 0 it does not wait.  A PermissionRequest never waits for
    a listener.
    """

    event: str
    tools: str | None = None
    hold_s: float = 0.0


@dataclass(frozen=True)
class Block:
    """Keeps a prompt from the model, and so ends the turn; the user reads the `reason`."""

    reason: str


Fitting = Callable[[int], "str | None"]
"""Returns a text of at most so many UTF-16 units; called once, when it is certain that the model gets it."""

Words = str | Fitting | Block


@dataclass(frozen=True)
class Report:
    """An event that the `cli` in the process of `peer` has reported at `time`, in ms since the epoch.

    `cli` is name and version for a person, may be empty.  `session` is the id of its MCP session, None while it is not
    connected to the IDE server; `event.session_id` is the CLI's own id of the conversation.  The CLI goes on without
    the listener at `waits_until`, a time of the event loop.
    """

    event: Event
    peer: Peer
    cli: str
    session: str | None
    time: int
    waits_until: float = math.inf


class Listener(Protocol):
    """Hears of events.  All methods are called on the event loop."""

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """Return the subscriptions; always the same."""
        ...

    def holds(self, event: Event) -> bool:
        """Return whether the CLI has to wait while `hear` handles this `event`; without a `hold_s` it never waits."""
        ...

    async def hear(self, report: Report) -> Words | None:
        """Take `report`; return what the model is to read with it, or None.

        A `Block` counts for UserPromptSubmit only.  The reports of one process come one after the other, in order.  It
        is not cancelled when `hold_s` has passed, but its words are dropped then.  A CLI adds a text to SessionStart,
        UserPromptSubmit, PostToolUse and PostToolBatch only, and cuts it at 10,000 characters.  Nothing of a report may
        be logged.
        """
        ...

    def ended(self, peer: Peer) -> None:
        """Handle the end of a process that has reported events."""
        ...
