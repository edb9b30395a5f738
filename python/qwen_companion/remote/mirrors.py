# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies here of files at a place, for the reviews of them.

Emacs compares a proposal with such a copy, and watches it for what the CLI writes, exactly as it does with a file of
this machine; so no review asks TRAMP for anything.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress

from qwen_companion.domain import PlacedFile

MAX_MIRRORS = 200
"""Copies of one place that are kept current: of more, those that were asked for last."""

FOLDER = "places"


class Mirrors:
    """The copies of one place below a private `directory`.  `write` is not for the event loop."""

    def __init__(self, directory: str) -> None:
        self._directory = os.path.join(directory, FOLDER)
        self._paths: dict[str, None] = {}

    @property
    def paths(self) -> Sequence[str]:
        """The names there of the files that are copied."""
        return tuple(self._paths)

    def add(self, file: PlacedFile) -> str:
        """Return the name of the copy of `file`, which `write` makes, and keep it current from now on."""
        self._paths.pop(file.path, None)
        self._paths[file.path] = None
        if len(self._paths) > MAX_MIRRORS:
            del self._paths[next(iter(self._paths))]
        return self.name(file)

    def name(self, file: PlacedFile) -> str:
        """Return the name of the copy of `file`: with its own last part, by which Emacs chooses a mode."""
        digest = hashlib.sha256(file.name.encode("utf-8", "surrogatepass")).hexdigest()[:24]
        return os.path.join(self._directory, digest, os.path.basename(file.path))

    def write(self, file: PlacedFile, data: bytes | None) -> bool:
        """Make the copy hold `data`, in one step; None removes it.  Return whether it has other bytes now.

        :raises OSError: when it cannot be written
        """
        path = self.name(file)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if data is None:
            with suppress(FileNotFoundError):
                os.unlink(path)
            return False
        with suppress(FileNotFoundError), open(path, "rb") as old:
            if old.read() == data:
                return False
        # Beside its folder, so that Emacs hears of the finished file only.
        temporary = os.path.join(self._directory, f".{secrets.token_hex(8)}")
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as new:
                new.write(data)
            os.rename(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        return True
