# SPDX-License-Identifier: GPL-3.0-or-later
"""Identify processes reliably, since the system reuses process numbers.

A process is identified by number and start, in a form independent of the machine's clock: on Linux the boot and the
clock ticks since then.  (psutil's `create_time` adds the ticks to a boot time that moves when the clock is set.)
"""

from __future__ import annotations

import functools
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import anyio
import psutil

_STATE, _PARENT, _THREADS, _START = 0, 1, 17, 19
"""Indices into the value of `_fields`."""

_DEAD_STATES = ("Z", "X")
"""States in /proc/PID/stat of a process that has ended: a zombie, and one about to vanish."""


def start_of(pid: int) -> str | None:
    """Return a text unique among all processes, past and future, with the number `pid`.

    Return None when there is no such process, or it cannot be inspected.
    """
    try:
        if sys.platform == "linux":
            return f"{_boot()}:{_fields(pid)[_START]}"
        # macOS stores the start time of a process unchanged.  psutil adjusts it, but only in a process during whose
        # life the clock was set.
        return repr(psutil.Process(pid).create_time())
    except (psutil.Error, ValueError, OSError):
        return None


def age_of(started: str) -> float | None:
    """Return the age in seconds of the process whose `start_of` is `started`; it may be gone.

    Return None if it is of another boot, or `started` is "".
    """
    boot, _, moment = started.rpartition(":")
    try:
        if sys.platform == "linux":
            # The tick of its start counts from its end.
            ticks = (int(moment) + 1) / os.sysconf("SC_CLK_TCK")
            return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks if boot == _boot() else None
        return time.time() - float(moment)
    except (ValueError, OSError):
        return None


def started_before(started: str, other: str) -> bool:
    """Return whether a process began before another, by the `start_of` of both.

    Return False if either is "", or they are of different boots.
    """
    (boot, _, time), (other_boot, _, other_time) = started.rpartition(":"), other.rpartition(":")
    return bool(time and other_time) and boot == other_boot and float(time) < float(other_time)


def has_ended(pid: int, started: str) -> bool:
    """Return whether the process `pid`, whose `start_of` is `started`, has certainly ended.  A zombie has.

    With `started` "", any process of that number counts.
    """
    if not _exists(pid):
        return True
    try:
        if sys.platform == "linux":
            fields = _fields(pid)
            if started and f"{_boot()}:{fields[_START]}" != started:
                return True
            # A process whose first thread has ended is also shown as a zombie.
            return fields[_STATE] in _DEAD_STATES and int(fields[_THREADS]) <= 1
        if started and start_of(pid) not in (started, None):
            return True
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OSError):
        # It ended just now, or cannot be inspected.
        return not _exists(pid)


async def ended(pid: int, started: str, poll: float | Callable[[], float]) -> None:
    """Wait until `has_ended` is true; poll every `poll` seconds if the system sends no event."""
    descriptor = _open_process(pid)
    if descriptor is not None:
        try:
            # Checked now that the descriptor is known to be the same process's.
            if not has_ended(pid, started):
                await anyio.wait_readable(descriptor)
        finally:
            os.close(descriptor)
    while not has_ended(pid, started):
        await anyio.sleep(poll() if callable(poll) else poll)


async def end(pid: int, started: str, limit_s: float) -> bool:
    """End a process as its terminal would; return whether it has ended within `limit_s` seconds."""
    if not has_ended(pid, started):
        with suppress(OSError):
            os.kill(pid, signal.SIGTERM)
        with anyio.move_on_after(limit_s):
            await ended(pid, started, 0.2)
    return has_ended(pid, started)


def parent_of(pid: int) -> int:
    """Return the parent of the process `pid`; 0 if it has none or cannot be inspected."""
    try:
        if sys.platform == "linux":
            return int(_fields(pid)[_PARENT])
        return psutil.Process(pid).ppid()
    except (psutil.Error, ValueError, OSError):
        return 0


def process_space() -> str:
    """Return a name for the space in which numbers and starts of processes are unique.

    It differs on another machine and in most containers, even if the host has the same name.
    """
    parts = [os.uname().nodename, _read_if_there("/etc/machine-id")]
    for namespace in ("pid", "time"):
        try:
            parts.append(os.readlink(f"/proc/self/ns/{namespace}"))
        except OSError:
            parts.append("")
    # Hashed, as the machine's id is not for others to read.
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _exists(pid: int) -> bool:
    """Return whether there is a process, or a zombie, of that number."""
    if pid <= 0:
        return False  # To the system these are groups of processes.
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # It is another user's.
    return True


def _fields(pid: int) -> list[str]:
    """Return the fields of /proc/`pid`/stat from the third on.

    :raises OSError: when there is no such process
    """
    # Field 2 is the program's name in parentheses, and may hold any character.
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


@functools.cache
def _boot() -> str:
    return _read("/proc/sys/kernel/random/boot_id")


def _read(path: str) -> str:
    # A buffer would double the time, and finding the process of a new CLI reads about ten of these files.
    with open(path, "rb", buffering=0) as file:
        return file.read().decode("utf-8", "surrogateescape").strip()


def _read_if_there(path: str) -> str:
    try:
        return _read(path)
    except OSError:
        return ""


def _open_process(pid: int) -> int | None:
    """Return a descriptor that can be read from once the process `pid` has ended; None where that is unavailable."""
    if sys.platform == "linux":
        try:
            return os.pidfd_open(pid)
        except (OSError, OverflowError, AttributeError):
            pass  # An old kernel, no descriptor left, or no such process.
    return None
