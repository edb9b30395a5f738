# SPDX-License-Identifier: GPL-3.0-or-later
"""Is that process still the one it was?  A number alone is not enough, process numbers are used again."""

from __future__ import annotations

import asyncio

import psutil

_SAME_START_S = 2.0
"""Start times nearer than this are the same process; reading one twice may differ by a clock tick."""


def start_time(pid: int) -> float | None:
    """When process PID started, in seconds since the epoch; None when there is no such process."""
    try:
        return psutil.Process(pid).create_time()
    except (psutil.Error, ValueError):
        return None


def is_alive(pid: int, started: float) -> bool:
    """Whether the process PID that started at STARTED still runs.  A zombie counts as dead."""
    try:
        process = psutil.Process(pid)
        if abs(process.create_time() - started) > _SAME_START_S:
            return False
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.AccessDenied:
        return True
    except (psutil.Error, ValueError):
        return False


async def ended(pid: int, started: float, poll: float) -> None:
    """Return when the process PID that started at STARTED has ended; looks every POLL seconds."""
    while is_alive(pid, started):
        await asyncio.sleep(poll)
