# SPDX-License-Identifier: GPL-3.0-or-later
"""The activity of a CLI without hooks, from the system: whether it does something, and when it was typed to."""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress

import psutil

SAMPLE_S = 1.0
"""Seconds between two samples of the output of processes."""

GRACE_S = 0.5
"""Seconds by which a write may precede the news of its change, which never arrives at once."""

_SAMPLES = 30
"""As many are kept of each process."""


class Activity:
    """How much certain processes had written at certain times, looked at every `SAMPLE_S`."""

    def __init__(self) -> None:
        """Begin with no process."""
        self._samples: dict[int, deque[tuple[float, int | None]]] = {}

    def sample(self, pids: Iterable[int]) -> None:
        """Look at the processes `pids` now, and forget all others."""
        now = time.monotonic()
        known, self._samples = self._samples, {}
        for pid in pids:
            samples = self._samples[pid] = known.get(pid) or deque(maxlen=_SAMPLES)
            samples.append((now, written_by(pid)))

    def before(self, moment: float) -> dict[int, int | None]:
        """Return how much each process had written `GRACE_S` before `moment`, or when it was looked at first.

        `moment` is a monotonic time.  As news and samples come by the same event loop, a loop that is late cannot
        sample activity after a change and before the news of it.
        """
        return {
            pid: next((done for time, done in reversed(samples) if time <= moment - GRACE_S), samples[0][1])
            for pid, samples in self._samples.items()
        }


def did_something(pid: int | None, before: Mapping[int, int | None]) -> bool:
    """Whether process `pid` has written anything since it had written `before`, as far as anybody knows."""
    if pid is None or before.get(pid) is None:
        return True
    return written_by(pid) != before[pid]


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
