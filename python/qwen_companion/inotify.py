# SPDX-License-Identifier: GPL-3.0-or-later
"""The system's news of changes below directories: on Linux, inotify."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress

MODIFY, ATTRIB, CLOSE_WRITE = 0x2, 0x4, 0x8
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF = 0x400, 0x800
Q_OVERFLOW = 0x4000
ONLYDIR = 0x1000000

READ_BYTES = 64 * 1024
"""How much of the news is read at a time."""

_EVENT = struct.Struct("iIII")

_LOCAL_FILE_SYSTEMS = frozenset(
    (
        *(0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x2FC12FC1, 0xCA451A4E),  # ext, xfs, btrfs, f2fs, zfs, bcachefs
        *(0x01021994, 0x858458F6, 0x794C7630, 0xF15F),  # tmpfs, ramfs, overlay, ecryptfs
        *(0x3153464A, 0x52654973, 0x4D44, 0x2011BAB0),  # jfs, reiserfs, vfat, exfat
    )
)
"""Kinds of file systems, as statfs(2) names them, that nobody changes behind the back of this system."""


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
        """Cease to watch what has that number, if it is still there."""
        self._library.inotify_rm_watch(self.descriptor, number)

    def is_local(self, path: str) -> bool:
        """Return whether `path` is on a file system that only this system changes."""
        status = ctypes.create_string_buffer(256)  # More than the structure has anywhere.
        if self._library.statfs(os.fsencode(path), status) != 0:
            return False
        return ctypes.c_long.from_buffer(status).value & 0xFFFFFFFF in _LOCAL_FILE_SYSTEMS


def open_inotify() -> Inotify | None:
    """Return a new one; None where there is no inotify, or no room for it."""
    if sys.platform != "linux":
        return None
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None, use_errno=True)
        descriptor = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor >= 0:
            return Inotify(library, descriptor)
    return None


def events(data: bytes) -> Iterator[tuple[int, int, str]]:
    """The number of the watch, the mask and the name, which may be empty, of each event in `data`."""
    position = 0
    while position < len(data):
        number, mask, _, size = _EVENT.unpack_from(data, position)
        position += _EVENT.size + size
        yield number, mask, os.fsdecode(data[position - size : position].rstrip(b"\0"))
