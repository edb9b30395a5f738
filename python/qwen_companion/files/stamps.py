# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: D102 - what implements a protocol has the docstrings
"""When files were created and changed, by the clock that stamps them."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from contextlib import suppress
from struct import Struct
from typing import Protocol

from qwen_companion.base.inotify import is_local, library

_CLOCK_REALTIME_COARSE = 5

TICK_S = time.clock_getres(_CLOCK_REALTIME_COARSE) if sys.platform == "linux" else 0.001
"""Seconds by which a write may be later than the time that the system gives its file."""

STAMP = Struct("<QQIqq")
"""Inode, size, mode, and the times of the last write and change of a file, in ns."""

_YOUNG_NS = 50_000_000
"""A file may change again within this time and have the same stamp: longer than a tick of any clock of the system."""

_YOUNG_BY_SECONDS_NS = 2_000_000_000
"""The same on a disk that stores only seconds, or every other one."""

_NO_SIZE = 2**64 - 1

_NOT_BEFORE = 2**63
"""Stands for a time of creation that is unknown."""


class Status(Protocol):
    """The status of a file, by the names of `os.stat_result`."""

    @property
    def st_ino(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_mode(self) -> int: ...
    @property
    def st_nlink(self) -> int: ...
    @property
    def st_mtime_ns(self) -> int: ...
    @property
    def st_ctime_ns(self) -> int: ...


def clock_ns() -> int:
    """Return the time of the clock that stamps files."""
    return time.clock_gettime_ns(_CLOCK_REALTIME_COARSE) if sys.platform == "linux" else time.time_ns()


def stamp_of(status: Status) -> bytes:
    """Return a value that changes with the file of that `status`."""
    return STAMP.pack(status.st_ino, status.st_size, status.st_mode, status.st_mtime_ns, status.st_ctime_ns)


def is_young(status: Status, now: int) -> bool:
    """Return whether a file that is read at `now` may change later and keep that `status`."""
    return status.st_ctime_ns >= now - (_YOUNG_NS if status.st_ctime_ns % 1_000_000_000 else _YOUNG_BY_SECONDS_NS)


def lasting_stamp(status: Status, now: int) -> bytes:
    """Return the stamp of a file that is read at `now` or later; it equals none if the file is young."""
    if not is_young(status, now):
        return stamp_of(status)
    return STAMP.pack(status.st_ino, _NO_SIZE, status.st_mode, status.st_mtime_ns, status.st_ctime_ns)


def created_ns(path: bytes, status: os.stat_result) -> int:
    """Return when the file `path` with that `status` was created, in ns; 0 for a file that is gone.

    If the time is unknown, as on a network with other clocks, only a file with several names counts as old: it may be
    another name of an unrecorded file.
    """
    if not os.path.lexists(path):
        return 0
    if sys.platform == "linux" and not is_local(os.fsdecode(os.path.dirname(path))):
        return _NOT_BEFORE if status.st_nlink == 1 else 0
    birth = _birth_ns(path, status)
    if birth is None:
        # No later than the last change.
        return status.st_ctime_ns if status.st_nlink == 1 else 0
    return birth


def _birth_ns(path: bytes, status: os.stat_result) -> int | None:
    """Return when the file with that `status` was created, in ns, None if the system does not tell."""
    known = getattr(status, "st_birthtime", None)
    if known is not None:
        return int(known * 1_000_000_000)
    if sys.platform == "linux":
        found = ctypes.create_string_buffer(256)
        with suppress(AttributeError):
            failed = library().statx(_AT_FDCWD, path, _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, found)
            mask = ctypes.c_uint32.from_buffer(found).value
            if not failed and mask & _STATX_BTIME:
                seconds = ctypes.c_int64.from_buffer(found, _BTIME).value
                return seconds * 1_000_000_000 + ctypes.c_uint32.from_buffer(found, _BTIME + 8).value
    return None


_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _STATX_BTIME = -100, 0x100, 0x800
_BTIME = 80
"""The offset of the time of creation in the structure of statx(2)."""
