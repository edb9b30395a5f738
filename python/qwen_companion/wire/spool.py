# SPDX-License-Identifier: GPL-3.0-or-later
"""Private files for texts too large for an EPC frame.

Emacs makes the directory (mode 0700) and names it in the hello line.  The reader of a file removes it.  If Emacs cannot
write a file, for example on a full disk, it sends the text in parts, which are kept here in memory.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress

from qwen_companion.base.errors import SpoolError


class Spool:
    """The spool directory of one Emacs."""

    def __init__(self, directory: str) -> None:
        """Use `directory`, an absolute name.

        :raises SpoolError: if it is not a private directory of this user
        """
        self.directory = os.path.normpath(directory)
        try:
            found = os.lstat(self.directory)
        except OSError as error:
            raise SpoolError(f"spool directory {directory}: {error.strerror}") from None
        if not os.path.isabs(directory) or not stat.S_ISDIR(found.st_mode):
            raise SpoolError(f"spool directory {directory} is not a directory")
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise SpoolError(f"spool directory {directory} is open to other users")
        self._parts: dict[int, list[str]] = {}

    def write(self, text: str) -> str:
        """Write `text` to a new file and return its path: exact UTF-8, with its line ends."""
        kind = "ascii" if text.isascii() else "utf-8"
        return self.write_pieces([text.encode("utf-8")], f"{kind}-crlf" if _ends_lines_in_crlf(text) else kind)

    def write_pieces(self, pieces: Iterable[bytes | bytearray], kind: str = "bytes") -> str:
        """Write `pieces` to a new file, one after the other, and return its path.

        The name begins with `kind`, by which Emacs reads a text faster: one that is only ASCII, or one whose lines all
        end in CR LF.
        """
        path = os.path.join(self.directory, f"{kind}-{secrets.token_hex(8)}")
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.writelines(pieces)
        except OSError as error:
            # The incomplete file would take up the last space.
            self.discard(path)
            raise SpoolError(f"cannot write to the spool directory: {error.strerror}") from None
        return path

    def add_part(self, identifier: int, part: str) -> None:
        """Add `part` to the end of the text `identifier`, which Emacs sends in parts."""
        self._parts.setdefault(identifier, []).append(part)

    def pop_parts(self, identifier: int) -> str:
        """Return the text `identifier` and forget it.

        :raises SpoolError: if no part of it has arrived
        """
        parts = self._parts.pop(identifier, None)
        if parts is None:
            raise SpoolError("a text that was sent in parts is not there")
        return "".join(parts)

    def read(self, path: str) -> str:
        """Return the text that Emacs has written to `path`, and remove the file.

        :raises SpoolError: if `path` is not one of ours or not UTF-8
        """
        if os.path.dirname(path) != self.directory:
            raise SpoolError("a text file lies outside the spool directory")
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise SpoolError("a text file in the spool directory is not a regular file")
                data = file.read()
        except OSError as error:
            raise SpoolError(f"cannot read a text file in the spool directory: {error.strerror}") from None
        finally:
            self.discard(path)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise SpoolError("a text from Emacs is not valid UTF-8") from None

    def discard(self, path: str) -> None:
        """Remove the file at `path` if it still exists."""
        with suppress(OSError):
            os.unlink(path)

    def remove(self) -> None:
        """Remove the directory with all its files: nobody will read them."""
        shutil.rmtree(self.directory, ignore_errors=True)


def _ends_lines_in_crlf(text: str) -> bool:
    """Return whether `text` has line ends, and all are CR LF."""
    first = text.find("\n")
    return first > 0 and text[first - 1] == "\r" and text.count("\r\n") == text.count("\n")
