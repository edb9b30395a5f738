# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory for large texts: as little of it as possible, and back to the system afterwards.

Python and the C library keep what has been freed for later use.  A large text is rare, and a backend lives for days.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress

import anyio

from qwen_companion.threads import in_thread

LARGE_BYTES = 4 * 1024 * 1024
"""Texts from this size on are worth giving back."""

_DELAY_S = 1.0
"""Until then a large request has been answered, and the next one of a burst has begun, as a rule."""

PIECE_CHARACTERS = 64 * 1024
"""Size of a piece of a text: its memory is used again for the next one.  New memory for 10 MB takes 5 ms."""

_M_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD_BYTES = 1024 * 1024


class MemoryReturn:
    """Gives memory back soon after the last large text.  For the event loop."""

    def __init__(self) -> None:
        self._large = anyio.Event()
        # glibc raises this after the first large block, and further ones come from where only the end can be given
        # back, and from a thread's share of memory not even that.
        _call_libc("mallopt", _M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)

    def text_was(self, size: int) -> None:
        """Note that a text of `size` bytes has gone through this process."""
        if size >= LARGE_BYTES:
            self._large.set()

    async def run(self) -> None:
        """Give memory back after each burst of large texts, until cancelled."""
        while True:
            await self._large.wait()
            while self._large.is_set():
                self._large = anyio.Event()
                with anyio.move_on_after(_DELAY_S):
                    await self._large.wait()
            await in_thread(give_back)


def utf8_pieces(text: str) -> Iterator[bytes]:
    """Yield `text` in UTF-8, in pieces."""
    for start in range(0, len(text), PIECE_CHARACTERS):
        yield text[start : start + PIECE_CHARACTERS].encode("utf-8")


def give_back() -> None:
    """Give back what is free.  Takes some milliseconds: not for the event loop."""
    gc.collect()
    _call_libc("malloc_trim", 0)


def _call_libc(name: str, *arguments: int) -> None:
    """Call the function `name` of the C library where it has one: glibc has, others lack it."""
    # A Python may have been built without ctypes.
    with suppress(ImportError, OSError, AttributeError):
        import ctypes

        getattr(ctypes.CDLL(None), name)(*arguments)
