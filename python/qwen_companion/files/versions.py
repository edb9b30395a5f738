# SPDX-License-Identifier: GPL-3.0-or-later
"""Files on the disk: bytes and mode, named by git's digest of the bytes."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass

from qwen_companion.base.errors import CompanionError
from qwen_companion.files.stamps import Status

FILE, EXECUTABLE, LINK = 0o100644, 0o100755, 0o120000
"""Modes in git's form.  The bytes of a link are its target."""

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Largest file that is recorded."""

GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""The errors for a missing file: directories above it may be other things, or links to themselves."""


_SHA256_DIGITS = 64


class TooLargeError(CompanionError):
    """A file is too large to be recorded."""


@dataclass(frozen=True)
class Version:
    """A file at some time.  `digest` is that of git's blob with the same bytes, `mode` the value of `mode_of`."""

    digest: str
    mode: int


@dataclass(frozen=True)
class Loaded:
    """A version and its bytes."""

    version: Version
    data: bytes


def mode_of(status: Status) -> int:
    """Return the mode to record of a file or link: its kind, and the permissions to read, write and run it."""
    return LINK if stat.S_ISLNK(status.st_mode) else stat.S_IFMT(status.st_mode) | status.st_mode & 0o777


def git_mode(mode: int) -> int:
    """Return git's mode of a file of `mode`."""
    return LINK if mode == LINK else EXECUTABLE if mode & stat.S_IXUSR else FILE


def inode_at(path: bytes) -> int | None:
    """Return the number of the inode at `path`, None without a file."""
    with suppress(OSError):
        return os.lstat(path).st_ino
    return None


def has_no_attributes(path: bytes) -> bool:
    """Return whether the file `path` is known to have no extended attributes except those that Emacs keeps."""
    kept = {"security.selinux", "system.posix_acl_access"}
    if sys.platform == "linux":
        with suppress(OSError):
            return kept.issuperset(os.listxattr(path, follow_symlinks=False))
    return False


def digest_of(data: bytes, algorithm: str = "sha1") -> str:
    """Return the digest that git gives a blob of `data`."""
    digest = (hashlib.sha256 if algorithm == "sha256" else hashlib.sha1)(
        b"blob %d\0" % len(data), usedforsecurity=False
    )
    digest.update(data)
    return digest.hexdigest()


def algorithm_of(digest: str) -> str:
    """Return the name of the algorithm that made `digest`."""
    return "sha256" if len(digest) == _SHA256_DIGITS else "sha1"


def load(path: bytes, algorithm: str = "sha1", is_regular: bool = False) -> Loaded | None:
    """Return the file or link at `path`; None for nothing or another kind of file.

    `is_regular`: it was a regular file a moment ago, and need not be examined before it is opened.

    :raises TooLargeError: for a file too large to record
    :raises OSError: if it cannot be read
    """
    try:
        if not is_regular:
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode):
                return _loaded(os.readlink(path), LINK, algorithm)
            if not stat.S_ISREG(found.st_mode):
                return None
            if found.st_size > MAX_FILE_BYTES:
                raise TooLargeError("larger than 64 MiB")
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        data = _read(descriptor, found.st_size + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE_BYTES:
        raise TooLargeError("larger than 64 MiB")
    return _loaded(data, mode_of(found), algorithm)


def changed_at(path: bytes) -> float:
    """Return when the file at `path`, or if it is missing its directory, was last changed, in s since the epoch.

    If that cannot be read, return a time long ago.
    """
    while True:
        try:
            # `st_ctime` is rounded differently from `clock_ns`, to before an equal moment.
            return os.lstat(path).st_ctime_ns / 1e9
        except OSError as error:
            if error.errno not in GONE:
                return -math.inf
            path = os.path.dirname(path)


def _read(descriptor: int, size: int) -> bytes:
    """Read about `size` bytes from `descriptor`, and at most slightly more than is allowed."""
    data = os.read(descriptor, size)
    if len(data) < size - 1 or len(data) == size:
        # It is being written, or the system returned only a part.
        parts = [data]
        while (part := os.read(descriptor, 1 << 20)) and sum(map(len, parts)) <= MAX_FILE_BYTES:
            parts.append(part)
        data = b"".join(parts)
    return data


def _loaded(data: bytes, mode: int, algorithm: str) -> Loaded:
    return Loaded(Version(digest_of(data, algorithm), mode), data)


def why_not(path: bytes, status: Status) -> Exception | None:
    """Return the reason why the file `path` cannot be recorded, None if it can."""
    if stat.S_ISLNK(status.st_mode):
        return None
    if status.st_size > MAX_FILE_BYTES:
        return TooLargeError("larger than 64 MiB")
    return None if os.access(path, os.R_OK) else PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def is_behind_link(name: bytes) -> bool:
    """Return whether a directory above the file `name` is a link now."""
    directory = os.path.dirname(name)
    return os.path.realpath(directory) != directory
