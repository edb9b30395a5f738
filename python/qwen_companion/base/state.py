# SPDX-License-Identifier: GPL-3.0-or-later
"""The directory of data that outlives an Emacs."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Mapping


def state_home(environ: Mapping[str, str]) -> str:
    """Return the directory of all stored data."""
    home = environ.get("HOME") or os.path.expanduser("~")
    state = environ.get("XDG_STATE_HOME", "")
    return os.path.join(state if os.path.isabs(state) else os.path.join(home, ".local/state"), "qwen-companion")


def key_of(root: str) -> str:
    """Return the key under which data of the directory `root` is stored.  Blocks on disk I/O."""
    return hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:16]


def write_private(path: str, data: bytes) -> None:
    """Write `data` to the file `path`, which only the user can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)


def read_own(path: str, most: int, hidden: int = 0) -> bytes:
    """Return the first `most` bytes of the user's file `path`, whose mode has none of the bits `hidden`.

    Follows no link, and waits for no pipe.

    :raises OSError: when it cannot be read, or is another kind of file
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise (OSError(errno.ELOOP, "it is a symbolic link") if error.errno == errno.ELOOP else error) from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        if found.st_uid != os.geteuid() or found.st_mode & hidden:
            raise OSError(errno.EPERM, "it belongs to another user, or is open to others")
        return file.read(most)
