# SPDX-License-Identifier: GPL-3.0-or-later
"""Modes of files that git's index cannot express: permissions to read and write, and changes within a second."""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from dataclasses import replace

from qwen_companion.journal.contents import Contents
from qwen_companion.journal.index import Index
from qwen_companion.journal.rules import RecordRules
from qwen_companion.journal.versions import LINK, Version, mode_of

_CLOCK_S = 0.1
"""Seconds by which the clock that stamps files may be late."""


class Modes:
    """Remembers the files that are too new for git to notice another change of their modes."""

    def __init__(self, contents: Contents, rules: RecordRules) -> None:
        """Record modes in `contents`, unless the `rules` exclude a file."""
        self._contents = contents
        self._rules = rules
        self._new: set[bytes] = set()
        """Files that were changed less than a second before the last scan."""

    def note_all(self, index: Index) -> None:
        """Record the files with modes other than the two that git knows."""
        start = time.time()
        noted: list[tuple[bytes, Version]] = []
        for path, version in index.entries():
            name = index.prefix + path
            with suppress(OSError):
                status = os.lstat(name)
                if stat.S_ISREG(status.st_mode) and version.mode != LINK:
                    is_new = self.note_if_new(name, status, start)
                    if is_new or mode_of(status) != version.mode:
                        noted.append((name, replace(version, mode=mode_of(status))))
        excluded = self._rules.excluded([name for name, _ in noted])
        self._contents.set_current(item for item in noted if item[0] not in excluded)

    def note_if_new(self, name: bytes, status: os.stat_result, start: float) -> bool:
        """Note the file `name` if it was changed in the second of `start` or later; return whether it was.

        Git stores times in seconds, and would miss another change of the mode.
        """
        is_new = int(status.st_ctime + _CLOCK_S) >= int(start)
        if is_new:
            self._new.add(name)
        return is_new

    def find_changed(self) -> set[bytes]:
        """Return the files noted as new whose modes now differ from the recorded ones."""
        start, names = time.time(), self._new
        self._new = set()
        found: set[bytes] = set()
        for name in names:
            known = self._contents.current(name, None)
            with suppress(OSError):
                status = os.lstat(name)
                self.note_if_new(name, status, start)
                if known is not None and stat.S_ISREG(status.st_mode) and mode_of(status) != known.mode:
                    found.add(name)
        return found
