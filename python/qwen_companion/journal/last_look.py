# SPDX-License-Identifier: GPL-3.0-or-later
"""Files left out of the record at the last look at a root: where one is found later, it is not new.

That a file is found for the first time does not show that somebody has made it since: rules may have hidden it, it may
have been too large, or it was renamed from such a place.
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

from qwen_companion.inotify import is_local, library
from qwen_companion.journal.index import Index
from qwen_companion.journal.repository import Repository
from qwen_companion.journal.rules import RecordRules
from qwen_companion.journal.versions import Version, inode_of
from qwen_companion.state import write_private

_CLOCK_REALTIME_COARSE = 5

TICK_S = time.clock_getres(_CLOCK_REALTIME_COARSE) if sys.platform == "linux" else 0.001
"""How much later than the time that its file gets from the system a write may be, in seconds."""


@dataclass(frozen=True)
class LastLook:
    """A look at a root, begun at `time`, in ns, in the repository with the work tree `top`.

    `repositories` are those within the root, by their directories.  `hidden` are absolute names of files that were left
    out and may have been there; one of a directory stands for all in it.
    """

    top: str
    repositories: Mapping[str, Repository | None]
    hidden: frozenset[bytes]
    time: int

    def hid(self, path: bytes) -> bool:
        """Return whether `path` was left out, or may have been."""
        above: bytes = path
        while above not in self.hidden:
            path, above = above, os.path.dirname(above)
            if above == path:
                return False
        return True

    def save(self, file: str, before: LastLook | None) -> None:
        """Keep it in `file`, which has `before`.

        :raises OSError: when it cannot be written
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
    """What is known of the files of a root since the last look at them."""

    def __init__(self, last: LastLook | None, rules: RecordRules) -> None:
        """`last` is the last look, None before the first one has been finished."""
        self.last = last
        self._rules = rules
        self.observed: set[bytes] | None = None
        """Files that may have been recorded since the index knows them; None before the first look.

        Where such a file has the bytes again that the index knows, git takes it for unchanged within the second.
        """
        self.seen: set[bytes] = set()
        """Files whose state before is known since the last look, also that they were not there."""
        self.moved: set[int] = set()
        """Inodes, as git has them, of recorded files that are not at their places any more."""
        self.listed: dict[bytes, int] = {}
        """The inodes of the listed files whose state before is known."""
        self.missed: set[int] = set()
        """Inodes of files that were listed at the last look, and were not there any more when they were to be read."""

    def is_known(self, path: bytes, before: Version | None) -> bool:
        """Return whether `path` was `before` at the last look, or since: for None, that it was not there."""
        if path in self.seen:
            return True
        if self.last is None or self.last.hid(path):
            return False
        if before is not None:
            return True
        inode = inode_of_older(path, self.last.time)
        return inode is None or inode in self.moved

    def is_newer(self, name: bytes) -> bool:
        """Return whether the file `name` has been changed since the last look, in any way."""
        with suppress(OSError):
            return self.last is None or os.lstat(name).st_ctime_ns >= self.last.time
        return False

    def moved_from(self, index: Index) -> set[int]:
        """Return the inodes of the recorded files in `index` that are not at their places any more."""
        found = {index.prefix + path: inode for path, inode in index.moved().items()}
        # The user's index, which it may be a copy of, has excluded files as well.
        excluded = self._rules.excluded(found)
        return {inode for name, inode in found.items() if name not in excluded}


def load_last_look(file: str) -> LastLook | None:
    """Return the last look that is kept in `file`, None for none."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        with open(file, "rb") as kept:
            top, repositories, hidden = json.load(kept)
            time = os.fstat(kept.fileno()).st_mtime_ns
        found = {name: value and Repository(**value) for name, value in repositories.items()}
        return LastLook(top, found, frozenset(os.fsencode(path) for path in hidden), time)
    return None


def clock_ns() -> int:
    """Return the time by the clock that files get their times from."""
    return time.clock_gettime_ns(_CLOCK_REALTIME_COARSE) if sys.platform == "linux" else time.time_ns()


def inode_of_older(path: bytes, moment: int) -> int | None:
    """Return the inode of the file `path`, as git has it, if the file was made before `moment`, under whatever name.

    None where that is not known, as on a network, where others' clocks count.  One with several names is then taken for
    older: it may be another name of a file that nobody has recorded.
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
    """Return when the file with that `status` was made, None where the system does not tell."""
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
"""Where the time of birth is in the structure of statx(2)."""
