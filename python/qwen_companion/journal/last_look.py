# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that the last scan of a root skipped.  If one shows up later, it is not treated as new.

A file that is found for the first time was not necessarily created since: rules may have hidden it, it may have been
too large, or it was renamed from such a path.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

from qwen_companion.base.inotify import is_local, library
from qwen_companion.base.state import write_private
from qwen_companion.journal.index import Index
from qwen_companion.journal.repository import Repository
from qwen_companion.journal.rules import RecordRules
from qwen_companion.journal.versions import Version, inode_of

_CLOCK_REALTIME_COARSE = 5

TICK_S = time.clock_getres(_CLOCK_REALTIME_COARSE) if sys.platform == "linux" else 0.001
"""Seconds by which a write may be later than the time that the system gives its file."""


@dataclass(frozen=True)
class LastLook:
    """A scan of a root, begun at `time`, in ns, in the repository with the work tree `top`.

    `repositories` are those within the root, by directory.  `hidden` are absolute names of skipped files that may have
    existed; a directory stands for all its files.
    """

    top: str
    repositories: Mapping[str, Repository | None]
    hidden: frozenset[bytes]
    time: int

    def hid(self, path: bytes) -> bool:
        """Return whether `path` was skipped, or may have been."""
        above: bytes = path
        while above not in self.hidden:
            path, above = above, os.path.dirname(above)
            if above == path:
                return False
        return True

    def save(self, file: str, before: LastLook | None) -> None:
        """Save it in `file`, which contains `before`.

        :raises OSError: if it cannot be written
        """
        if before is None or (self.top, self.repositories, self.hidden) != (
            before.top,
            before.repositories,
            before.hidden,
        ):
            repositories = {name: value and asdict(value) for name, value in self.repositories.items()}
            hidden = [os.fsdecode(path) for path in self.hidden]
            write_private(f"{file}.new", json.dumps([self.top, repositories, hidden]).encode())
            os.replace(f"{file}.new", file)
        os.utime(file, ns=(self.time, self.time))


class Evidence:
    """The evidence about the files of a root since the last scan."""

    def __init__(self, last: LastLook | None, rules: RecordRules) -> None:
        """`last` is the last scan, None before the first one is complete."""
        self.last = last
        self._rules = rules
        self.observed: set[bytes] | None = None
        """Files that may have been recorded since they were added to the index; None before the first scan.

        If such a file has the bytes in the index again, git considers it unchanged within the second.
        """
        self.seen: set[bytes] = set()
        """Files whose previous state is known since the last scan, including the fact that they did not exist."""
        self.moved: set[int] = set()
        """Inodes, in git's form, of recorded files that are missing."""
        self.listed: dict[bytes, int] = {}
        """The inodes of the listed files whose previous state is known."""
        self.missed: set[int] = set()
        """Inodes of files that were listed by the last scan but missing when they were to be read."""

    def is_known(self, path: bytes, before: Version | None) -> bool:
        """Return whether `path` was `before` at the last scan, or since; None means that it did not exist."""
        if path in self.seen:
            return True
        if self.last is None or self.last.hid(path):
            return False
        if before is not None:
            return True
        inode = inode_of_older(path, self.last.time)
        return inode is None or inode in self.moved

    def is_newer(self, name: bytes) -> bool:
        """Return whether the file `name` has been changed since the last scan, in any way."""
        with suppress(OSError):
            return self.last is None or os.lstat(name).st_ctime_ns >= self.last.time
        return False

    def moved_from(self, index: Index) -> set[int]:
        """Return the inodes of the recorded files in `index` that are missing."""
        found = {index.prefix + path: inode for path, inode in index.moved().items()}
        # The user's index, of which it may be a copy, contains excluded files as well.
        excluded = self._rules.excluded(found)
        return {inode for name, inode in found.items() if name not in excluded}


def load_last_look(file: str) -> LastLook | None:
    """Return the last scan that is saved in `file`, None for none."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        with open(file, "rb") as kept:
            top, repositories, hidden = json.load(kept)
            time = os.fstat(kept.fileno()).st_mtime_ns
        found = {name: value and Repository(**value) for name, value in repositories.items()}
        return LastLook(top, found, frozenset(os.fsencode(path) for path in hidden), time)
    return None


def clock_ns() -> int:
    """Return the time of the clock that stamps files."""
    return time.clock_gettime_ns(_CLOCK_REALTIME_COARSE) if sys.platform == "linux" else time.time_ns()


def inode_of_older(path: bytes, moment: int) -> int | None:
    """Return the inode of the file `path`, in git's form, if the file was created before `moment`; else None.

    If the time is unknown, as on a network with other clocks, only a file with several names counts as older: it may
    be another name of an unrecorded file.
    """
    try:
        status = os.lstat(path)
        is_ours = sys.platform != "linux" or is_local(os.fsdecode(os.path.dirname(path)))
    except OSError:
        return None
    birth = _birth_ns(path, status) if is_ours else None
    if birth is None and status.st_nlink == 1 and is_ours:
        # No later than the last change.
        birth = status.st_ctime_ns
    is_older = status.st_nlink > 1 if birth is None else birth < moment
    return inode_of(status) if is_older else None


def _birth_ns(path: bytes, status: os.stat_result) -> int | None:
    """Return when the file with that `status` was created, None if the system does not tell."""
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
