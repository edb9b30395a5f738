# SPDX-License-Identifier: GPL-3.0-or-later
"""Ends the processes that a run of the tests has left, however the run has ended.

Run as a program with the id of a process, it waits until that has ended and kills what it was to end with, see
`end_with_this_process`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from contextlib import suppress
from typing import Final

import psutil

MARKER: Final = "QWEN_COMPANION_TESTS"
"""The environment variable with the mark of a process."""

_WAIT_S: Final = 1.0
"""Seconds after which processes that were killed are looked for anew."""


def new_mark() -> str:
    """Return a mark for processes; it begins with that of this process, so that `marked` finds them by both."""
    return f"{os.environ.get(MARKER, '')}/{uuid.uuid4().hex}"


def marked(mark: str) -> list[psutil.Process]:
    """Return all live processes that were started with `mark`, directly or not."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARKER, "").startswith(mark) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def end_with_this_process() -> None:
    """Mark what this process starts from now on, and have what is left of it killed once this process has ended."""
    global _killer
    os.environ[MARKER] = new_mark()
    command = [sys.executable, __file__, str(os.getpid())]
    # In a session of its own it gets no signal of the terminal.
    _killer = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)


_killer: subprocess.Popen[bytes] | None = None
"""Kept, or Python warns that it is not waited for."""


def _kill_when_ended(pid: int) -> None:
    """Wait until the process `pid` has ended, and kill all others with the mark of this one."""
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait()
    while left := [process for process in marked(os.environ[MARKER]) if process.pid != os.getpid()]:
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, _WAIT_S)


if __name__ == "__main__":
    _kill_when_ended(int(sys.argv[1]))
