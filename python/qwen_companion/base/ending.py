# SPDX-License-Identifier: GPL-3.0-or-later
"""The end of this process takes limited time, whatever hangs in it: a disk, a query, another program."""

from __future__ import annotations

import faulthandler
import select
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # At the start, it would delay the port, for which Emacs waits.
    from asyncio import AbstractEventLoop

END_S = 10.0
"""Seconds after which an ending process exits; the parts that stop in order take less than seven."""


def limit_end() -> None:
    """Exit after at most `END_S` seconds, and print to standard error where threads hang in the code."""
    # Its thread needs no lock of the interpreter, which a hanging call may hold.
    faulthandler.dump_traceback_later(END_S, exit=True)


def limit_end_after_input(descriptor: int) -> None:
    """Call `limit_end` when `descriptor` has no writer any more, even if the event loop does not run."""

    def wait() -> None:
        ended = select.poll()
        ended.register(descriptor, 0)
        ended.poll()
        limit_end()

    threading.Thread(target=wait, name="end of input", daemon=True).start()


def end_by_signal(loop: AbstractEventLoop, end: Callable[[], object]) -> None:
    """Call `end` on `loop`, and `limit_end`, when the system or the user tells this process to end."""

    def signalled(*_: object) -> None:
        limit_end()
        with suppress(RuntimeError):  # The loop has closed: the process is ending.
            loop.call_soon_threadsafe(end)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # A handler of the loop would not run while that is blocked.
        signal.signal(number, signalled)
