# SPDX-License-Identifier: GPL-3.0-or-later
"""The first scan of the files of a repository: their state before any agent has worked."""

from __future__ import annotations

import os
import stat
from dataclasses import replace

from qwen_companion.base.errors import CompanionError
from qwen_companion.journal.contents import Contents
from qwen_companion.journal.indexes import Indexes
from qwen_companion.journal.looks import CHUNK, Found, Lister, Look
from qwen_companion.journal.modes import Modes
from qwen_companion.journal.versions import GONE, Loaded, TooLargeError, Version, is_behind_link, load, why_not

MAX_FILES = 100_000
MAX_TOTAL_BYTES = 1024 * 1024 * 1024
"""Largest first baseline of a root."""

BATCH_BYTES = 16 * 1024 * 1024
"""Bytes of a first baseline in memory before they are stored: one large step takes half of the time of many."""

_ITEM_BYTES = 500
"""Memory for a file beside its bytes."""


class LimitError(CompanionError):
    """There is too much below a root to be recorded."""


class FirstLook:
    """Records files as they are, and stores the bytes of those that the user's repository cannot restore."""

    def __init__(self, indexes: Indexes, lister: Lister, contents: Contents, modes: Modes) -> None:
        """Store bytes in `contents`; `lister` has listed the files."""
        self._indexes = indexes
        self._lister = lister
        self._contents = contents
        self._modes = modes

    def take(self, look: Look, found: Found) -> None:
        """Record the files of the first `look` as they are."""
        index = look.index
        try:
            files = self._within_limits(look, found)
        except LimitError:
            if self._indexes.lends(index) or not index.copy_users_index():
                raise
            # Now: if its directory is deleted, what was committed is lost.
            listing = index.changes()
            look = replace(look, listing=listing, paths=self._lister.recorded(index, listing, found))
            files = self._within_limits(look, found)
        index.update(list(files))
        gone = [path for path in look.paths if path not in files]
        if self._indexes.lends(index) and len(files) > CHUNK and (stored := index.objects.stored_digests()):
            # After a file was checked out with other line ends, its blob may have those of the disk, or not.
            for path, version in index.entries():
                if version.digest in stored:
                    files.pop(path, None)
        loaded: list[tuple[bytes, Loaded]] = []
        versions: dict[bytes, Version] = {}
        size = 0
        for path, is_regular in files.items():
            name = index.prefix + path
            try:
                item = load(name, index.algorithm, is_regular)
            except (OSError, TooLargeError) as error:
                found.leave_out(name, error)
                item = None
            if item is None:
                gone.append(path)
                continue
            versions[path] = item.version
            loaded.append((name, item))
            size += len(item.data) + _ITEM_BYTES
            if size > BATCH_BYTES:
                self._contents.begin_with(loaded)
                loaded, size = [], 0
        self._contents.begin_with(loaded)
        # From the user's index; this includes uncommitted deletions by the user.
        index.drop(gone)
        self._modes.note_all(index)
        # A file may have been written since it was added to the index.
        self._contents.set_current((index.prefix + path, versions[path]) for path in index.differing(versions))

    def _within_limits(self, look: Look, found: Found) -> dict[bytes, bool]:
        """Return the files of `look` that can be recorded, and whether each is a regular file.

        Add the others to `found`.

        :raises LimitError: if they are too many or too large
        """
        if len(look.paths) > MAX_FILES:
            raise LimitError(f"it has {len(look.paths)} files, and {MAX_FILES} are the limit")
        result: dict[bytes, bool] = {}
        total = 0
        for path in look.paths:
            name = look.index.prefix + path
            try:
                status = os.lstat(name)
            except OSError as error:
                if error.errno not in GONE:
                    found.leave_out(name, error)
                continue
            if path in look.listing.changed and is_behind_link(name):
                continue
            reason = why_not(name, status)
            if reason is None:
                result[path] = stat.S_ISREG(status.st_mode)
                total += status.st_size
            else:
                found.leave_out(name, reason)
        if total > MAX_TOTAL_BYTES:
            raise LimitError(f"its files have {total >> 20} MiB, and {MAX_TOTAL_BYTES >> 20} are the limit")
        return result
