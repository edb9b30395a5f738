# SPDX-License-Identifier: GPL-3.0-or-later
"""The activity of a CLI without hooks, from the system: whether it does something, and when it was typed to."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

import psutil


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
