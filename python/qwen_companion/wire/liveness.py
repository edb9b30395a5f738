# SPDX-License-Identifier: GPL-3.0-or-later
"""Notice the end of Emacs: standard input ends at once; if another process holds it open, watch Emacs's process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress

from qwen_companion.base.processes import ended, start_of

POLL_S = 2.0


def watch_input(descriptor: int, on_end: Callable[[], None]) -> None:
    """Call `on_end` on the running event loop when `descriptor` ends; discard its data."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        # A plain read: unlike an event loop it can wait for any kind of file.
        with suppress(OSError):
            while os.read(descriptor, 65536):
                pass
        with suppress(RuntimeError):  # The loop has closed: the process is ending.
            loop.call_soon_threadsafe(on_end)

    threading.Thread(target=read, name="stdin", daemon=True).start()


async def process_end(pid: int, poll: float = POLL_S) -> None:
    """Wait until the process `pid` has ended; poll every `poll` seconds if the system sends no event."""
    await ended(pid, start_of(pid) or "", poll)
