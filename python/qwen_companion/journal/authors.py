# SPDX-License-Identifier: GPL-3.0-or-later
"""The agents that may have made a change, from the facts about it alone.

Nothing here has a clock, reads the disk or waits, and the order in which facts were reported does not matter.  So
`attribution` can ask again when a later fact arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from qwen_companion.files.stamps import TICK_S
from qwen_companion.journal.activity import Probe
from qwen_companion.journal.root import Worker
from qwen_companion.journal.store import CHAT
from qwen_companion.journal.witness import DiskEvent

GRACE_S = 0.5
"""Seconds before or after a change within which a CLI is active itself if its child process has made the change."""


@dataclass(frozen=True)
class Changed:
    """The file `path` has changed at `time`, in seconds since the epoch, as far as its site knows.

    Unless it `is_exact`, the time may be another one.
    """

    path: bytes
    time: float
    is_exact: bool


@dataclass(frozen=True)
class Scan:
    """A scan after the one at `since`, requested at `asked`, and done `now`, all in seconds since the epoch."""

    since: float
    asked: float
    now: float


class Samples(Protocol):
    """What is known of the activity of processes."""

    def may_have_acted(self, probe: Probe | None, begin: float, end: float, grace: float = 0) -> bool:
        """Return whether the subject of `probe` may have been active from `begin` to `end`."""
        ...


def authors_of(
    changed: Changed, event: DiskEvent | None, scan: Scan, workers: Sequence[Worker], samples: Samples
) -> Sequence[Worker]:
    """Return those of `workers` that may have made the change that `scan` found, the likeliest first.

    `event` is the last event of the disk about the file, None without one.
    """
    # A file that has moved with its directory keeps its time, and the disk may have another clock.
    is_likely = scan.since - TICK_S <= changed.time <= scan.now
    if is_exact := changed.is_exact and is_likely:
        begin, end = changed.time, changed.time + TICK_S
    else:
        begin, end = (scan.since, scan.asked) if event is None else (event.begin, event.end)
    # A tool may have begun within the tick; nobody writes that soon after a prompt.
    there = [
        each
        for each in workers
        if begin <= each.end
        and each.begin < end
        and (each.begin <= changed.time or each.runs_tool or not (is_exact or (is_likely and each.cli)))
    ]
    if any(each.running is not None and each.running.row.source == CHAT for each in there):
        there = [each for each in there if not each.serves_chats]
    if event is not None:
        there = [each for each in there if each.session not in event.cleared] or there
    known = [each for each in there if each.cli is None or each.cli.seen <= begin]
    heard = end if event is None else event.end
    return next(
        (found for each in (known, there) if (found := _likely(each, begin, end, heard, scan.now, samples))), ()
    )


def _likely(
    workers: Sequence[Worker], begin: float, end: float, heard: float, now: float, samples: Samples
) -> Sequence[Worker]:
    """Return those of `workers` that may have written between `begin` and `end`, the likeliest first.

    Those that were active between `heard` and `now` are likelier.
    """
    acts = samples.may_have_acted
    if tools := [each for each in workers if each.runs_tool]:
        workers = [each for each in workers if each.writes_by_itself]
    later = min(end + GRACE_S, now)
    acted = [
        each
        for each in workers
        if each.probe is None
        or (
            # A chat reports the other work of its agent.
            acts(each.probe, begin, end)
            if each.probe.below or each.serves_chats
            else acts(each.probe, begin, later, GRACE_S)
        )
    ]
    if tools:
        return acted or tools
    # Nothing reports the tools of a lost chat.
    goes_on = [each for each in acted if acts(each.probe, heard, now) and not (each.is_lost and each.probe is None)]
    if goes_on:
        acted = [*goes_on, *(each for each in acted if each.is_lost and each not in goes_on)]
    return [each for each in acted if each.writes_by_itself] or acted
