# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that a CLI edits, local or remote, as a review reads and writes them."""

from __future__ import annotations

import errno
import io
import os
import secrets
import stat
from typing import Protocol

from qwen_companion.base.sockets import Connection
from qwen_companion.base.threads import in_thread
from qwen_companion.domain import Peer
from qwen_companion.ide.peers import Caller
from qwen_companion.ide.targets import check_target

CHANGED = "it has changed on disk"


class Files(Protocol):
    """The files where a CLI runs; `path` is the CLI's name for one."""

    def name(self, path: str, /) -> str | None:
        """Return the name in Emacs of the file `path`."""
        ...

    async def review_file(self, path: str, /) -> str:
        """Return a local file with the text of `path`, for a review.

        :raises TargetError: if a review cannot change the file
        """
        ...

    async def write(self, path: str, expected: bytes | None, data: bytes, /) -> None:
        """Replace the contents of the file `path`, which must be `expected` (None: no file), by `data`.

        :raises OSError: if they are not, or the file cannot be written
        """
        ...


class RemotePlaces(Protocol):
    """Remote CLIs, as the hooks need them."""

    def caller(self, connection: Connection, /) -> Caller | None:
        """Return the CLI whose `connection` a relay carries, or None.  Callable in any thread."""
        ...

    def files(self, peer: Peer, /) -> Files | None:
        """Return the files of the remote CLI in the process `peer`; None where its place is not served."""
        ...

    def name_of(self, peer: Peer, path: str, /) -> str:
        """Return Emacs's name of the file that the CLI in the process `peer`, local or remote, calls `path`."""
        ...

    async def lay_plan(self, place: str, text: str) -> str:
        """Write the plan `text` to a temporary file at `place`; return its name there.

        :raises CompanionError: if it cannot be written
        """
        ...


class LocalFiles:
    """The files of this machine."""

    def name(self, path: str) -> str:
        """See `Files`."""
        return path

    async def review_file(self, path: str) -> str:
        """See `Files`."""
        await in_thread(check_target, path, None)
        return path

    async def write(self, path: str, expected: bytes | None, data: bytes) -> None:
        """See `Files`."""
        await in_thread(_write, os.path.realpath(path), expected, data)


def _write(path: str, expected: bytes | None, data: bytes) -> None:
    try:
        with open(path, "rb") as file:
            status, found = os.fstat(file.fileno()), file.read()
    except FileNotFoundError:
        status = found = None
    if found != expected:
        raise OSError(errno.EBUSY, CHANGED)
    if status is not None and (status.st_nlink > 1 or status.st_uid != os.geteuid()):
        # Replacing the file would lose its hard links and its owner.
        with open(path, "r+b", buffering=0) as file:
            try:
                _replace(file, data)
            except OSError:
                # Overwriting needs no new blocks, so it works on a full disk.
                _replace(file, found or b"")
                raise
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = os.path.join(os.path.dirname(path), f".qwen-companion-{secrets.token_hex(6)}")
    try:
        # With the permissions of any new file.
        with open(temporary, "xb") as file:
            file.write(data)
            if status is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
        os.rename(temporary, path)
    except OSError:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise


def _replace(file: io.FileIO, data: bytes) -> None:
    """Replace the contents of `file` by `data`; after an OSError a part of it may be written."""
    file.seek(0)
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
    file.truncate()
