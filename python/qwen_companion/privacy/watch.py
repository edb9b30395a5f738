# SPDX-License-Identifier: GPL-3.0-or-later
"""Watch files and directories for changes; on Linux, by inotify."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import stat
import struct
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

PAUSE_S = 1.0
"""How long no further changes are read after some.

A directory may have thousands of files made in it in a second, and some of git change with each of its commands.
"""

_READ_BYTES = 64 * 1024
_EVENT = struct.Struct("iIII")

_IN_MODIFY = 0x2
_IN_ATTRIB = 0x4
_IN_MOVED_FROM, _IN_MOVED_TO, _IN_CREATE, _IN_DELETE = 0x40, 0x80, 0x100, 0x200
_IN_DELETE_SELF, _IN_MOVE_SELF = 0x400, 0x800
_IN_Q_OVERFLOW = 0x4000
_IN_ONLYDIR = 0x1000000
_SELF = _IN_ATTRIB | _IN_DELETE_SELF | _IN_MOVE_SELF
_DIRECTORY_MASK = _SELF | _IN_MOVED_FROM | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE | _IN_ONLYDIR
_FILE_MASK = _SELF | _IN_MODIFY

_LOCAL_FILE_SYSTEMS = frozenset(
    (
        *(0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x2FC12FC1, 0xCA451A4E),  # ext, xfs, btrfs, f2fs, zfs, bcachefs
        *(0x01021994, 0x858458F6, 0x794C7630, 0xF15F),  # tmpfs, ramfs, overlay, ecryptfs
        *(0x3153464A, 0x52654973, 0x4D44, 0x2011BAB0),  # jfs, reiserfs, vfat, exfat
    )
)
"""Kinds of file systems, as statfs(2) names them, that nobody changes behind the back of this system."""


@dataclass(frozen=True)
class Dependencies:
    """What an answer about files rests on.

    `entries` are the absolute names that matter as entries of their directories, there or not, those of the directories
    and links on the way included.  No directory in them is a link.  `contents` are files whose content matters.
    `lasting`: time alone does not change the answer.
    """

    entries: frozenset[str]
    contents: frozenset[str]
    lasting: bool


class DiskWatch:
    """Watches one set of `Dependencies` at a time."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """Must be made on the event loop, on which `changed` is called soon after each change of what is watched."""
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._inotify: _Inotify | None = None
        self._closed = False
        # For each watched directory the entries that matter, and None for a file.
        self._watched: dict[int, set[str] | None] = {}

    def cover(self, dependencies: Dependencies) -> bool:
        """Watch `dependencies` and nothing else; return whether each change will be told.

        When it is false some may be told.  Changes made before this returns may not be.  Waits for the disk.
        """
        with self._lock:
            if self._inotify is None and not self._closed:
                self._inotify = _open_inotify()
                if self._inotify is not None:
                    self._loop.call_soon_threadsafe(self._listen)
            if self._inotify is None:
                return False
            complete = self._watch(self._inotify, dependencies)
            if self._closed:
                self._end(self._inotify)
            return complete and dependencies.lasting

    def close(self) -> None:
        """Watch no more."""
        self._closed = True
        if self._inotify is not None:
            self._loop.remove_reader(self._inotify.descriptor)
            # A thread that waits for a slow disk must find the descriptor as it was.
            if self._lock.acquire(blocking=False):
                self._end(self._inotify)
                self._lock.release()

    def _end(self, inotify: _Inotify) -> None:
        self._inotify = None
        os.close(inotify.descriptor)

    def _watch(self, inotify: _Inotify, dependencies: Dependencies) -> bool:
        complete = True
        directories: defaultdict[str, set[str]] = defaultdict(set)
        for name in dependencies.entries:
            directory, _, entry = name.rpartition("/")
            directories[directory or "/"].add(entry)
        watched: dict[int, set[str] | None] = {}
        for directory, entries in directories.items():
            number = inotify.add(directory, _DIRECTORY_MASK)
            if number is None:
                # One that is not there is an entry of the one above.
                complete = complete and ctypes.get_errno() in (errno.ENOENT, errno.ENOTDIR)
                continue
            complete = complete and inotify.is_local(directory)
            watched[number] = entries | (watched.get(number) or set())
        for file in dependencies.contents:
            with suppress(OSError, ValueError):
                if stat.S_ISREG(os.stat(file).st_mode):
                    number = inotify.add(file, _FILE_MASK)
                    if number is None:
                        # Who may not read it is not told of its changes.
                        complete = complete and ctypes.get_errno() in (errno.ENOENT, errno.ENOTDIR)
                    else:
                        watched[number] = None
        former, self._watched = self._watched, watched
        for number in former.keys() - watched.keys():
            inotify.remove(number)
        return complete

    def _listen(self) -> None:
        if self._inotify is not None and not self._closed:
            self._loop.add_reader(self._inotify.descriptor, self._read)

    def _read(self) -> None:
        if self._inotify is None:
            return
        self._loop.remove_reader(self._inotify.descriptor)
        self._loop.call_later(PAUSE_S, self._listen)
        with suppress(BlockingIOError):
            data = os.read(self._inotify.descriptor, _READ_BYTES)
            if any(self._matters(*event) for event in _events(data)):
                self._changed()

    def _matters(self, number: int, mask: int, name: str) -> bool:
        if mask & _IN_Q_OVERFLOW:
            return True
        if number not in self._watched:
            return False
        entries = self._watched[number]
        return entries is None or not name or name in entries


class _Inotify:
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


def _open_inotify() -> _Inotify | None:
    """Return None where there is no inotify, or no room for it."""
    if sys.platform != "linux":
        return None
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None, use_errno=True)
        descriptor = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor >= 0:
            return _Inotify(library, descriptor)
    return None


def _events(data: bytes) -> Iterator[tuple[int, int, str]]:
    """The number of the watch, the mask and the name, which may be empty, of each event in `data`."""
    position = 0
    while position < len(data):
        number, mask, _, size = _EVENT.unpack_from(data, position)
        position += _EVENT.size + size
        yield number, mask, os.fsdecode(data[position - size : position].rstrip(b"\0"))
