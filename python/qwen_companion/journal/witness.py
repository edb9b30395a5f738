# SPDX-License-Identifier: GPL-3.0-or-later
"""When files have changed by the events of the disk, and which of several agents cannot have changed them.

A process that has not run since before the change has not made it.  While one has the file open for writing, no other
has made it.  If neither rule decides, nobody is excluded.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from qwen_companion.journal.activity import Activity, Probe, written_files


class Suspect(Protocol):
    """Somebody who may be writing."""

    @property
    def session(self) -> str:
        """Return the id of the conversation."""
        ...

    @property
    def probe(self) -> Probe | None:
        """Return the process to sample, None for an unknown one."""
        ...

    @property
    def runs_tool(self) -> bool:
        """Return whether a tool of it is known to run."""
        ...


@dataclass
class DiskEvent:
    """The knowledge about the last change of a file: the times between which its event came, in s since the epoch.

    `suspected` are the sessions that worked then, and `likely` those of them that may have made it.
    """

    begin: float
    end: float
    suspected: set[str] = field(default_factory=set[str])
    likely: set[str] = field(default_factory=set[str])

    @property
    def cleared(self) -> set[str]:
        """Return the sessions that have not made the change."""
        return self.suspected - self.likely


class Witness:
    """Stores what is known of each changed file below one root.  Call its methods on the event loop."""

    def __init__(self, activity: Activity) -> None:
        """Sample processes by `activity`."""
        self._activity = activity
        self._heard = -math.inf
        self._pending: dict[bytes, float] = {}
        """Changed files, each with a time before its change: that of the previous read of events."""
        self._known: dict[bytes, DiskEvent] = {}

    def hear(self, paths: Collection[bytes], suspects: Sequence[Suspect]) -> None:
        """Note that `paths` have changed; `suspects` may be writing now."""
        now = time.time()
        for path in paths:
            # A file that was deleted with its directory may be missing since the first event.
            self._known.setdefault(path, DiskEvent(self._heard, now)).end = now
            self._pending.setdefault(path, self._heard)
        self._heard = now
        if not self._activity.is_tired():
            self.conclude(suspects)

    def conclude(self, suspects: Sequence[Suspect]) -> None:
        """Decide which of `suspects` may have made the changes since the last call."""
        pending, self._pending = self._pending, {}
        sessions = {suspect.session for suspect in suspects}
        if not pending or len(sessions) < 2 or not any(suspect.runs_tool for suspect in suspects):
            return
        self._activity.look(suspect.probe for suspect in suspects)
        active = {since: self._active(since, suspects) for since in set(pending.values())}
        holders: Mapping[bytes, set[str]] = {}
        if any(len(each) > 1 for each in active.values()):
            holders = self._holders(suspects)
        for path, since in pending.items():
            known = self._known.get(path)
            if known is not None:
                likely = active[since] & holders.get(path, set()) or active[since]
                # Two at once seldom write the same file: those are likely that each event allows.
                known.likely = known.likely & likely or known.likely | likely
                known.suspected |= sessions

    def _active(self, since: float, suspects: Sequence[Suspect]) -> set[str]:
        """Return the sessions that may have been active since `since`; if there are none, those whose tools run."""
        now = time.time()
        active = {each.session for each in suspects if self._activity.may_have_acted(each.probe, since, now)}
        return active or {each.session for each in suspects if each.runs_tool}

    def _holders(self, suspects: Sequence[Suspect]) -> dict[bytes, set[str]]:
        """Return the sessions whose processes have files open for writing, by file."""
        found: dict[bytes, set[str]] = {}
        for suspect in suspects:
            if suspect.probe is not None:
                for pid in self._activity.processes(suspect.probe):
                    for path in written_files(pid):
                        found.setdefault(path, set()).add(suspect.session)
        return found

    def take(self, path: bytes) -> DiskEvent | None:
        """Return and forget what is known of the change of `path`, or else of its directory."""
        found = self._known.pop(path, None)
        while found is None and path != os.path.dirname(path):
            path = os.path.dirname(path)
            found = self._known.get(path)
        return found

    def forget(self, before: float = math.inf) -> None:
        """Forget the changes before that time, in seconds since the epoch."""
        self._known = {path: known for path, known in self._known.items() if known.end >= before}
