# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of files and turns: in Emacs, and in the record.

Bytes of a name that are not UTF-8 have in Emacs's names the form of `os.fsdecode`.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from qwen_companion.base.file_names import FileNameError, file_name


class Names:
    """Translates the names of one root.  The methods with a name from Emacs block on disk I/O."""

    def __init__(self, root: str, key: str, true: str, true_directory: Callable[[str], str]) -> None:
        """`root` is Emacs's name of the directory, `key` that of the record; for the other arguments see `Site`."""
        self._root = root
        self._true = true
        self._true_directory = true_directory
        self._key = key

    def name_in(self, path: str) -> bytes | None:
        """Return the true name of `path`, a name from Emacs or a CLI; None if it is not below the root."""
        try:
            directory, name = os.path.split(os.path.normpath(file_name(path, raw=True)))
        except FileNameError:
            return None
        true = os.path.join(self._true_directory(directory), name)
        return os.fsencode(true) if true.startswith(self._true.rstrip("/") + "/") else None

    def told(self, path: str) -> bytes | None:
        """Return the recorded name of `path`, a name sent before, even if a directory above it is a link now."""
        try:
            return os.fsencode(os.path.join(self._true, os.path.relpath(file_name(path, raw=True), self._root)))
        except FileNameError:
            return None

    def name_out(self, path: bytes) -> str:
        """Return Emacs's name of `path`."""
        return os.path.join(self._root, os.fsdecode(os.path.relpath(path, os.fsencode(self._true))))

    def identifier(self, turn: int) -> str:
        """Return the id in Emacs of the turn with that number."""
        return f"{self._key}-{turn}"

    def number(self, identifier: str) -> int | None:
        """Return the number of the turn with the id `identifier` in Emacs; None for one of another record."""
        head, _, number = identifier.rpartition("-")
        return int(number) if head == self._key and number.isdigit() else None
