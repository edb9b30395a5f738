# SPDX-License-Identifier: GPL-3.0-or-later
"""Watch directories by the system's events: on Linux, inotify."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cache

MODIFY, ATTRIB, CLOSE_WRITE = 0x2, 0x4, 0x8
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF = 0x400, 0x800
Q_OVERFLOW = 0x4000
ONLYDIR = 0x1000000

READ_BYTES = 64 * 1024
"""Most bytes of events to read at once."""

_EVENT = struct.Struct("iIII")

_LOCAL_FILE_SYSTEMS = frozenset(
    (
        *(0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x2FC12FC1, 0xCA451A4E),  # ext, xfs, btrfs, f2fs, zfs, bcachefs
        *(0x01021994, 0x858458F6, 0x794C7630, 0xF15F),  # tmpfs, ramfs, overlay, ecryptfs
        *(0x3153464A, 0x52654973, 0x4D44, 0x2011BAB0),  # jfs, reiserfs, vfat, exfat
    )
)
"""Kinds of file systems, by statfs(2), that only this system changes."""


@cache
def library() -> ctypes.CDLL:
    """Return the C library."""
    return ctypes.CDLL(None, use_errno=True)


def is_local(path: str) -> bool:
    """Return whether `path` is on a file system that only this system changes.  Linux only."""
    status = ctypes.create_string_buffer(256)  # More than the structure's size anywhere.
    if library().statfs(os.fsencode(path), status) != 0:
        return False
    return ctypes.c_long.from_buffer(status).value & 0xFFFFFFFF in _LOCAL_FILE_SYSTEMS


class Inotify:
    """The functions of the C library, on one `descriptor`."""

    def __init__(self, library: ctypes.CDLL, descriptor: int) -> None:
        self._library = library
        self.descriptor = descriptor

    def add(self, path: str, mask: int) -> int | None:
        """Watch `path` for the events in `mask`; return the number of the watch, or None: see `ctypes.get_errno`."""
        number = self._library.inotify_add_watch(self.descriptor, os.fsencode(path), ctypes.c_uint32(mask))
        return None if number < 0 else number

    def remove(self, number: int) -> None:
        """Stop watching the watch `number`, if it still exists."""
        self._library.inotify_rm_watch(self.descriptor, number)


class InotifyWatch:
    """Base of watches: a thread, which may block on a slow disk, sets them; the event loop reads and closes them."""

    def __init__(self, inotify: Inotify | None = None) -> None:
        """Own `inotify`.  Must be called on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._inotify = inotify
        self._closed = False
        self._lock = threading.Lock()

    def close(self) -> None:
        """Stop watching."""
        if self._inotify is not None:
            self._loop.remove_reader(self._inotify.descriptor)
        # From now on a thread may close the descriptor.
        self._closed = True
        self._close_if_free()

    @contextmanager
    def _in_use(self) -> Generator[None, None, None]:
        """Keep the descriptor open inside the context: if it were closed, its number could soon be another file's."""
        try:
            with self._lock:
                yield
        finally:
            if self._closed:
                self._close_if_free()

    def _close_if_free(self) -> None:
        if self._lock.acquire(blocking=False):
            if self._inotify is not None:
                os.close(self._inotify.descriptor)
                self._inotify = None
            self._lock.release()


def open_inotify() -> Inotify | None:
    """Return a new inotify; None if the system has none, or no capacity for it."""
    if sys.platform != "linux":
        return None
    with suppress(OSError, AttributeError):
        descriptor = library().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor >= 0:
            return Inotify(library(), descriptor)
    return None


def events(data: bytes) -> Iterator[tuple[int, int, str]]:
    """Yield the number of the watch, the mask and the name, which may be empty, of each event in `data`."""
    position = 0
    while position < len(data):
        number, mask, _, size = _EVENT.unpack_from(data, position)
        position += _EVENT.size + size
        yield number, mask, os.fsdecode(data[position - size : position].rstrip(b"\0"))
