# SPDX-License-Identifier: GPL-3.0-or-later
"""The activity of processes, from the system: whether they do something, what they write, and when one was typed to."""

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

from qwen_companion.processes import parent_of

SAMPLE_S = 1.0
"""Seconds between two samples of the output of processes."""

_SAMPLES = 1000
"""As many are kept of each probe."""

_REST_S = 0.02
"""How long after one look at processes the next one is at the earliest."""

_SHARE = 0.05
"""The part of the time that looks at processes may take."""

_KNOWN_S = 5.0
"""How long a number is taken for the same process without looking."""

_HAS_PROC = os.path.exists("/proc/self/schedstat")


@dataclass(frozen=True)
class Probe:
    """The bytes that process `pid` writes, or with `below`, whether the processes that it has started run."""

    pid: int
    below: bool = False


@dataclass(frozen=True)
class Work:
    """What `written_by` and `last_input` return of a process."""

    written: int | None
    typed: int | None


class Activity:
    """Samples of the work of certain processes, taken every `SAMPLE_S` and when there is news."""

    def __init__(self) -> None:
        """Begin with no process."""
        self._samples: dict[Probe, deque[tuple[float, int | None]]] = {}
        self._started = Started()
        self._rests_until = -math.inf

    def sample(self, probes: Iterable[Probe]) -> None:
        """Look at `probes` now, and forget all others."""
        self._samples = {probe: self._samples.get(probe) or deque(maxlen=_SAMPLES) for probe in set(probes)}
        self.look(self._samples)

    def look(self, probes: Iterable[Probe | None]) -> dict[Probe, int | None]:
        """Return a number for each of `probes` that changes once it has done something, None where that is unknown."""
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
        """Return whether to look again only in a moment, so that looking takes a small part of the time."""
        return time.monotonic() < self._rests_until

    def processes(self, probe: Probe) -> list[int]:
        """Return the processes to which `probe` belongs, as they were last looked at."""
        below = self._started.below(probe.pid)
        return below if probe.below else [probe.pid, *below]

    def may_have_acted(self, probe: Probe | None, begin: float, end: float, grace: float = 0) -> bool:
        """Return whether the subject of `probe` may have done anything from `begin` to `end`, in s since the epoch.

        It has not where the last sample before equals the first one after.  The sample before is older by `grace`, in
        seconds, if there is such a one.
        """
        before: int | None = None
        for moment, done in self._samples.get(probe, ()) if probe is not None else ():
            if moment <= begin - grace or (moment <= begin and before is None):
                before = done
            elif moment >= end:
                return before is None or done is None or done != before
        return True


class Started:
    """The processes that others have started, and again those of these.

    One whose parent has ended still counts to the one that started that, if it was seen before.
    """

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}
        self._time = -math.inf

    def refresh(self) -> None:
        """Look which processes there are."""
        if not _HAS_PROC:
            return
        now = time.monotonic()
        # Numbers are used again, after a while.
        known = self._parents if now - self._time < _KNOWN_S else {}
        self._time = now
        there = {int(name) for name in os.listdir("/proc") if name.isdigit()}

        def living(pid: int) -> int:
            while pid not in there and pid in known:
                pid = known[pid]
            return pid

        self._parents = {pid: living(known[pid]) if pid in known else parent_of(pid) for pid in there}

    def below(self, pid: int) -> list[int]:
        """Return the processes that `pid` has started, and these, and so on."""
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
        """Return a number that changes once any process below `pid` has run, None where that is unknown."""
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

    It marks them in their environment; on Linux only.
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
                # The right to write is one of the link's own.
                if path.startswith(b"/") and os.lstat(f"/proc/{pid}/fd/{number}").st_mode & stat.S_IWUSR:
                    found.append(path)
    return found


def written_by(pid: int) -> int | None:
    """Return how much process `pid` has written so far, to files, terminals or connections; None where nobody knows.

    A CLI at work draws, writes its logs and calls the model; one that waits for the user does nothing of the kind.
    """
    with suppress(psutil.Error, OSError, AttributeError):
        return psutil.Process(pid).io_counters().write_chars
    return None


def last_input(pid: int) -> int | None:
    """Return when process `pid` last read what was typed in its terminal, in ms since the epoch; None without one.

    Linux rounds down to 8 seconds.
    """
    with suppress(psutil.Error, OSError):
        terminal = f"/proc/{pid}/fd/0" if os.path.isdir("/proc/self/fd") else psutil.Process(pid).terminal()
        if terminal is not None:
            status = os.stat(terminal)
            if stat.S_ISCHR(status.st_mode):
                return int(status.st_atime * 1000)
    return None
