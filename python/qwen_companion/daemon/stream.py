# SPDX-License-Identifier: GPL-3.0-or-later
"""The events of one session, in order, none twice and none missing."""

from __future__ import annotations

from dataclasses import dataclass

from qwen_companion.daemon.errors import DaemonError
from qwen_companion.daemon.models import Envelope


@dataclass(frozen=True)
class Connected:
    """The daemon answers.  Until `ReplayDone` come events that were missed; EPOCH is that of the ids."""

    epoch: str


@dataclass(frozen=True)
class Frame:
    """An event; REPLAYED is true for one that was missed and may be long past."""

    envelope: Envelope
    replayed: bool


@dataclass(frozen=True)
class ReplayDone:
    """What follows happens now."""


@dataclass(frozen=True)
class Disconnected:
    """No connection, because of REASON, a text for the user; the next try comes in RETRY_IN_S seconds."""

    reason: str
    retry_in_s: float


@dataclass(frozen=True)
class Resync:
    """Events are lost for good; the last item.  Load the session and open a new stream at the cursor of the answer.

    REASON is the daemon's word (`ring_evicted`, `epoch_reset`) or one of ours (`no_cursor`, `frame_too_large`).
    """

    reason: str


@dataclass(frozen=True)
class Ended:
    """Trying again is of no use, because of ERROR; the last item.

    After a NotFoundError the session can be loaded again; the others need the user.
    """

    error: DaemonError


StreamItem = Connected | Frame | ReplayDone | Disconnected | Resync | Ended
