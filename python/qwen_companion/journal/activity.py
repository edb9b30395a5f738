# SPDX-License-Identifier: GPL-3.0-or-later
"""The activity of processes, from the system: whether they run, what they write, and when the user typed to one."""

from __future__ import annotations

import math
import os
import stat
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from qwen_companion.base.processes import parent_of

SAMPLE_S = 1.0
"""Seconds between two samples of the output of processes."""

_SAMPLES = 1000
"""Samples that are kept of each probe."""

_REST_S = 0.02
"""Seconds between two examinations of processes, at least."""

_SHARE = 0.05
"""Largest part of the time that is spent on examining processes."""

_KNOWN_S = 5.0
"""Seconds for which a process number is assumed to be the same process."""

_HAS_PROC = os.path.exists("/proc/self/schedstat")


@dataclass(frozen=True)
class Probe:
    """The bytes that process `pid` writes, or with `below`, whether its descendants run."""

    pid: int
    below: bool = False


@dataclass(frozen=True)
class Work:
    """The values of `written_by` and `last_input` of a process."""

    written: int | None
    typed: int | None


class Activity:
    """Samples of the activity of certain processes, taken every `SAMPLE_S` and at each event of the disk."""

    def __init__(self) -> None:
        """Begin with no process."""
        self._samples: dict[Probe, deque[tuple[float, int | None]]] = {}
        self._started = Started()
        self._rests_until = -math.inf

    def sample(self, probes: Iterable[Probe]) -> None:
        """Sample `probes` now, and drop all others."""
        self._samples = {probe: self._samples.get(probe) or deque(maxlen=_SAMPLES) for probe in set(probes)}
        self.look(self._samples)

    def look(self, probes: Iterable[Probe | None]) -> dict[Probe, int | None]:
        """Return for each of `probes` a number that changes when its subject has been active, None if unknown."""
        start, moment = time.monotonic(), time.time()
        wanted = {probe for probe in probes if probe is not None}
        if any(probe.below for probe in wanted):
            self._started.refresh()
        now = {probe: self._started.run(probe.pid) if probe.below else written_by(probe.pid) for probe in wanted}
        for probe, done in now.items():
            self._samples.setdefault(probe, deque(maxlen=_SAMPLES)).append((moment, done))
        end = time.monotonic()
        self._rests_until = end + max(_REST_S, (end - start) / _SHARE)
        return now

    def is_tired(self) -> bool:
        """Return whether to wait a moment before examining again, to limit the time spent on it."""
        return time.monotonic() < self._rests_until

    def processes(self, probe: Probe) -> list[int]:
        """Return the processes of `probe`, as last examined."""
        below = self._started.below(probe.pid)
        return below if probe.below else [probe.pid, *below]

    def may_have_acted(self, probe: Probe | None, begin: float, end: float, grace: float = 0) -> bool:
        """Return whether the subject of `probe` may have been active from `begin` to `end`, in s since the epoch.

        It was not if the last sample before equals the first one after.  Use a sample before that is older by `grace`
        seconds, if there is one.
        """
        before: int | None = None
        for moment, done in self._samples.get(probe, ()) if probe is not None else ():
            if moment <= begin - grace or (moment <= begin and before is None):
                before = done
            elif moment >= end:
                return before is None or done is None or done != before
        return True


class Started:
    """The descendants of processes.

    If the parent of a descendant has ended, the descendant is still counted, provided that it was seen before.
    """

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}
        self._time = -math.inf

    def refresh(self) -> None:
        """Examine the processes that exist."""
        if not _HAS_PROC:
            return
        now = time.monotonic()
        # Numbers are used again after a while.
        known = self._parents if now - self._time < _KNOWN_S else {}
        self._time = now
        there = {int(name) for name in os.listdir("/proc") if name.isdigit()}

        def living(pid: int) -> int:
            while pid not in there and pid in known:
                pid = known[pid]
            return pid

        self._parents = {pid: living(known[pid]) if pid in known else parent_of(pid) for pid in there}

    def below(self, pid: int) -> list[int]:
        """Return the descendants of `pid`."""
        children: dict[int, list[int]] = {}
        for child, parent in self._parents.items():
            children.setdefault(parent, []).append(child)
        found: list[int] = []
        waiting = [pid]
        while waiting:
            below = children.get(waiting.pop(), [])
            found += below
            waiting += below
        return found

    def run(self, pid: int) -> int | None:
        """Return a number that changes when any process below `pid` has run, None if unknown."""
        if not _HAS_PROC:
            return None
        state: list[tuple[int, bytes]] = []
        for each in sorted(self.below(pid)):
            with suppress(OSError):
                for task in os.listdir(f"/proc/{each}/task"):
                    with open(f"/proc/{each}/task/{task}/schedstat", "rb", buffering=0) as file:
                        state.append((each, file.read()))
        return hash(tuple(state))


def started_in(turn: str) -> list[int]:
    """Return the processes that the shell of Qwen Code has started in the turn whose prompt has the id `turn`.

    Qwen Code marks them in their environment.  Linux only.
    """
    mark = b"QWEN_CODE_PROMPT_ID=" + turn.encode()
    found: list[int] = []
    for name in os.listdir("/proc") if _HAS_PROC else ():
        with suppress(OSError):
            if name.isdigit() and mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return found


def written_files(pid: int) -> list[bytes]:
    """Return the files that process `pid` has open for writing."""
    found: list[bytes] = []
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                path = os.readlink(os.fsencode(f"/proc/{pid}/fd/{number}"))
                # The permission to write is that of the link itself.
                if path.startswith(b"/") and os.lstat(f"/proc/{pid}/fd/{number}").st_mode & stat.S_IWUSR:
                    found.append(path)
    return found


def written_by(pid: int) -> int | None:
    """Return the bytes that process `pid` has written so far, to files, terminals or connections; None if unknown.

    A working CLI draws, writes its logs and calls the model; one that waits for the user does none of this.
    """
    with suppress(psutil.Error, OSError, AttributeError):
        return psutil.Process(pid).io_counters().write_chars
    return None


def last_input(pid: int) -> int | None:
    """Return when process `pid` last read input in its terminal, in ms since the epoch; None without a terminal.

    Linux rounds down to 8 seconds.
    """
    with suppress(psutil.Error, OSError):
        terminal = f"/proc/{pid}/fd/0" if os.path.isdir("/proc/self/fd") else psutil.Process(pid).terminal()
        if terminal is not None:
            status = os.stat(terminal)
            if stat.S_ISCHR(status.st_mode):
                return int(status.st_atime * 1000)
    return None
