# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a test waits for an event: the one number for all tests, in Python, tmux and Emacs.

A wait ends with an event; the limit only ends a hang.  It grows with the time that this machine takes for a fixed
piece of work when the suite starts, so that a busy machine is no reason for a failure.
"""

from __future__ import annotations

import os
import time
from typing import Final

LIMIT_S: Final = 120.0
"""The limit in seconds on a machine that is idle."""
VARIABLE: Final = "QWEN_COMPANION_TEST_LIMIT"
"""The environment variable that hands the limit to worker processes and to Emacs, in seconds."""

_WORK: Final = 3_000_000
_WORK_S: Final = 0.6
"""The time of the work on an idle machine, in seconds; a faster machine counts as this one."""


def limit_s() -> float:
    """Return the limit in seconds: that of the suite, or `LIMIT_S` for a test that is run by hand."""
    return float(os.environ.get(VARIABLE) or LIMIT_S)


def stretched(seconds: float) -> float:
    """Return `seconds`, in which something is done on an idle machine, stretched as the limit is."""
    return seconds * limit_s() / LIMIT_S


def set_limit() -> float:
    """Measure how busy the machine is, set the limit for this process and its children, and return it in seconds."""
    if VARIABLE not in os.environ:
        start = time.perf_counter()
        sum(range(_WORK))
        for number in range(_WORK):
            _ = number * number
        factor = max(1.0, (time.perf_counter() - start) / _WORK_S)
        os.environ[VARIABLE] = f"{LIMIT_S * factor:.0f}"
    return limit_s()
