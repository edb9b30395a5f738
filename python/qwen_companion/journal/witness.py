# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of several agents at work has changed a file, as far as their processes tell when the change is heard of.

A process that has not run since before the change has not made it, and one that has the file open for writing has.
Where neither decides, all of them stay suspects.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from qwen_companion.journal.activity import Activity, Probe, may_have_acted, written_files


class Suspect(Protocol):
    """Somebody who may be writing."""

    @property
    def session(self) -> str:
        """Return the id of the conversation."""
        ...

    @property
    def probe(self) -> Probe | None:
        """Return the process to look at, None for an unknown one."""
        ...

    @property
    def runs_tool(self) -> bool:
        """Return whether a tool of it is known to run."""
        ...


S = TypeVar("S", bound=Suspect)


class Witness(Generic[S]):
    """Remembers of each file that has changed below one root who may have done it.  For the event loop."""

    def __init__(self, activity: Activity) -> None:
        """Look at processes by `activity`."""
        self._activity = activity
        self._heard = -math.inf
        self._pending: dict[bytes, float] = {}
        """Changed files, each with a time before its change: that of the read of events before it."""
        self._found: dict[bytes, tuple[float, dict[str, S]]] = {}

    def hear(self, paths: Collection[bytes], suspects: Sequence[S]) -> None:
        """Note that `paths` have changed; `suspects` may be writing now."""
        for path in paths:
            self._pending.setdefault(path, self._heard)
        self._heard = time.monotonic()
        if not self._activity.is_tired():
            self.conclude(suspects)

    def conclude(self, suspects: Sequence[S]) -> None:
        """Look who of `suspects` may have made the changes heard of since the last time."""
        pending, self._pending = self._pending, {}
        if not pending or not any(suspect.runs_tool for suspect in suspects):
            return
        active: dict[float, Sequence[S]] = dict.fromkeys(pending.values(), suspects)
        holders: Mapping[bytes, Collection[str]] = {}
        if len({suspect.session for suspect in suspects}) > 1:
            active = self._active(active, suspects)
            if any(len(each) > 1 for each in active.values()):
                holders = self._holders(suspects)
        for path, since in pending.items():
            holding = holders.get(path, ())
            found = [suspect for suspect in active[since] if suspect.session in holding] or active[since]
            if found:
                known = self._found[path][1] if path in self._found else {}
                new: dict[str, S] = {}
                for suspect in found:
                    new.setdefault(suspect.session, suspect)
                # Two at once seldom write the same file: it is rather one that each piece of news allows.
                both = {session: suspect for session, suspect in known.items() if session in new}
                self._found[path] = self._heard, both or {**known, **new}

    def _active(self, times: Collection[float], suspects: Sequence[S]) -> dict[float, Sequence[S]]:
        """Return for each of `times` those of `suspects` who may have done something since; without any, all tools."""
        tools = [suspect for suspect in suspects if suspect.runs_tool]
        before = {since: self._activity.before(since, 0) for since in times}
        now = self._activity.look(suspect.probe for suspect in suspects)
        return {
            since: [suspect for suspect in suspects if may_have_acted(suspect.probe, before[since], now)] or tools
            for since in times
        }

    def _holders(self, suspects: Sequence[S]) -> dict[bytes, set[str]]:
        """Return the sessions whose processes have files open for writing, by file."""
        found: dict[bytes, set[str]] = {}
        for suspect in suspects:
            if suspect.probe is not None:
                for pid in self._activity.processes(suspect.probe):
                    for path in written_files(pid):
                        found.setdefault(path, set()).add(suspect.session)
        return found

    def take(self, path: bytes) -> Sequence[S]:
        """Return the agents that may have changed `path`, or else its directory, and forget it."""
        found = self._found.pop(path, None)
        while found is None and path != os.path.dirname(path):
            path = os.path.dirname(path)
            found = self._found.get(path)
        return () if found is None else list(found[1].values())

    def forget(self, before: float = math.inf) -> None:
        """Forget what was heard before that monotonic time."""
        self._found = {path: found for path, found in self._found.items() if found[0] >= before}
