# SPDX-License-Identifier: GPL-3.0-or-later
"""Watch files and directories for changes; on Linux, by inotify."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from qwen_companion.base import inotify as system
from qwen_companion.base.inotify import Inotify, InotifyWatch

PAUSE_S = 1.0
"""Seconds without reading after some changes.

A directory may get thousands of files in a second, and some of git's change with each command.
"""

_SELF = system.ATTRIB | system.DELETE_SELF | system.MOVE_SELF
_DIRECTORY_MASK = _SELF | system.MOVED_FROM | system.MOVED_TO | system.CREATE | system.DELETE | system.ONLYDIR
_FILE_MASK = _SELF | system.MODIFY


@dataclass(frozen=True)
class Dependencies:
    """The files and directories that an answer depends on.

    `entries` are the absolute names whose directory entries matter, existing or not, with those of the directories and
    links on the way.  No directory in them is a link.  `contents` are files whose content matters.

    `lasting`: time alone does not change the answer.
    """

    entries: frozenset[str]
    contents: frozenset[str]
    lasting: bool


class DiskWatch(InotifyWatch):
    """Watches one set of `Dependencies` at a time."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """Must be made on the event loop, which calls `changed` soon after each change of a watched file."""
        super().__init__()
        self._changed = changed
        # By watched directory, the names of its entries that matter; None for a file.
        self._watched: dict[int, set[str] | None] = {}

    def cover(self, dependencies: Dependencies) -> bool:
        """Watch `dependencies` and nothing else; return whether every change will be reported.

        Changes made before this returns may be missed.  Blocks on disk I/O.
        """
        with self._in_use():
            if self._inotify is None and not self._closed:
                self._inotify = system.open_inotify()
                if self._inotify is not None:
                    self._loop.call_soon_threadsafe(self._listen)
            if self._inotify is None:
                return False
            return self._watch(self._inotify, dependencies) and dependencies.lasting

    def _watch(self, inotify: Inotify, dependencies: Dependencies) -> bool:
        complete = True
        directories: defaultdict[str, set[str]] = defaultdict(set)
        for name in dependencies.entries:
            directory, _, entry = name.rpartition("/")
            directories[directory or "/"].add(entry)
        watched: dict[int, set[str] | None] = {}
        for directory, entries in directories.items():
            number = inotify.add(directory, _DIRECTORY_MASK)
            if number is None:
                # A missing directory is an entry of the one above.
                complete = complete and ctypes.get_errno() in (errno.ENOENT, errno.ENOTDIR)
                continue
            complete = complete and system.is_local(directory)
            watched[number] = entries | (watched.get(number) or set())
        for file in dependencies.contents:
            with suppress(OSError, ValueError):
                if stat.S_ISREG(os.stat(file).st_mode):
                    number = inotify.add(file, _FILE_MASK)
                    if number is None:
                        # Changes of unreadable files are not reported.
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
            data = os.read(self._inotify.descriptor, system.READ_BYTES)
            if any(self._matters(*event) for event in system.events(data)):
                self._changed()

    def _matters(self, number: int, mask: int, name: str) -> bool:
        if mask & system.Q_OVERFLOW:
            return True
        if number not in self._watched:
            return False
        entries = self._watched[number]
        return entries is None or not name or name in entries
