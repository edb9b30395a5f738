# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the transcript of a conversation while its CLI writes it: each time only what was appended."""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio

from qwen_companion.base.file_names import FileNameError, file_name

_CHUNK_BYTES = 1 << 20

_MOST_BYTES = 256 << 20
"""Most bytes to read at once, in 0.2 s; the rest follows next time."""

_MOST_BYTES_THERE = 16 << 20
"""The same for a remote file, over a shared line."""


class Recording:
    """Base of readers of a transcript.  Its methods may be called in any thread, but one at a time.

    `reading` ensures that.
    """

    longest_line = 64 * 1024
    """Longest line to handle, in bytes: requests and rewinds have a few hundred."""

    def __init__(self, path: str, tail: int | None = None) -> None:
        """Follow the file `path`, which need not exist yet; with `tail` from that many bytes before its end."""
        self.path = path
        self.reading = anyio.Lock()
        self._begin(None)
        if tail is not None:
            with suppress(OSError):
                found = os.stat(path)
                self._inode, self._offset = found.st_ino, max(0, found.st_size - tail)
                self._skips = self._offset > 0

    def begin_anew(self) -> None:
        """Forget the lines that were read: the file is another one, or shorter."""
        raise NotImplementedError

    def feed(self, line: bytes) -> None:
        """Handle an appended `line`."""
        raise NotImplementedError

    def settle(self) -> None:
        """Apply the new lines, on the event loop."""

    def _begin(self, inode: int | None) -> None:
        self._inode = inode
        self._offset = 0
        self._rest = b""
        self._skips = False
        """Whether the rest of an overlong line is being skipped."""
        self.begin_anew()

    def read(self) -> None:
        """Read the bytes appended since the last call; do nothing without the file."""
        with suppress(OSError):
            # Follow no link, and do not block on a pipe.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                found = os.fstat(descriptor)
                if stat.S_ISREG(found.st_mode):
                    if found.st_ino != self._inode or found.st_size < self._offset:
                        self._begin(found.st_ino)
                    os.lseek(descriptor, self._offset, os.SEEK_SET)
                    end = self._offset + _MOST_BYTES
                    while self._offset < end and (data := os.read(descriptor, _CHUNK_BYTES)):
                        self._offset += len(data)
                        self._feed_data(data)
            finally:
                os.close(descriptor)

    async def read_there(self, read: Callable[[str, int], Awaitable[bytes]]) -> None:
        """Read a remote file as `read` does; the argument `read` returns a piece from an offset on."""
        end = self._offset + _MOST_BYTES_THERE
        while self._offset < end and (data := await read(self.path, self._offset)):
            self._offset += len(data)
            self._feed_data(data)

    def _feed_data(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._skips and lines:
            del lines[0]
            self._skips = False
        if len(self._rest) > self.longest_line:
            self._rest, self._skips = b"", True
        for line in lines:
            if len(line) <= self.longest_line:
                self.feed(line)


def is_transcript(path: str) -> bool:
    """Return whether `path`, from a hook, can be the name of a file."""
    try:
        return bool(file_name(path))
    except FileNameError:
        return False
