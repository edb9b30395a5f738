# SPDX-License-Identifier: GPL-3.0-or-later
"""Small files of rules, and whether they have changed."""

from __future__ import annotations

import errno
import os
import stat

Signature = tuple[int, ...]
"""Differs if the file under a name differs.  For a directory only its identity counts, not its contents."""


def signature(path: str) -> Signature:
    """Return the signature of the file that `path` leads to, or that of a missing file."""
    try:
        found = os.stat(path)
    except OSError as error:
        return (error.errno or 0,)
    except ValueError:  # No file can have that name.
        return (-1,)
    which = (found.st_dev, found.st_ino, stat.S_IFMT(found.st_mode))
    if stat.S_ISDIR(found.st_mode):
        return which
    return (*which, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def is_odd(path: str) -> bool:
    """Return whether `path` leads to a pipe or a device, where reading may wait or never end."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode) and os.path.realpath(path) != os.devnull


def read_start(path: str, size: int) -> bytes:
    """Return at most `size` bytes of the regular file `path`.

    :raises OSError: if it is not regular or cannot be read
    """
    # Reading a pipe would block for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "It is not a regular file", path)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(size)
    finally:
        os.close(descriptor)
