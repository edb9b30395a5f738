# SPDX-License-Identifier: GPL-3.0-or-later
"""The files below a root before an agent worked, and their differences now.

The first baseline lists all files and keeps the bytes of those that the user's repository cannot restore.  Later scans
look only at changed files.

Undoing relies on this: after a turn is undone, each path is as before the turn, with the user's own later edits, or
untouched, and never less than both.  So a change is attributed to an agent only if its previous state is known.  A file
that is found for the first time counts as created since the last scan only if that scan cannot have skipped it (see
`last_look`), and if no unrecorded file was renamed to it.  Otherwise it has no author, and is recorded from then on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from qwen_companion.base.errors import CompanionError
from qwen_companion.base.git import GitError
from qwen_companion.journal.database import StoreError
from qwen_companion.journal.first_look import FirstLook, LimitError
from qwen_companion.journal.index import Index
from qwen_companion.journal.indexes import Indexes
from qwen_companion.journal.last_look import Evidence, LastLook, clock_ns, load_last_look
from qwen_companion.journal.looks import CHUNK, Change, Found, Lister, Look, Skip
from qwen_companion.journal.modes import Modes
from qwen_companion.journal.repository import find_repository
from qwen_companion.journal.rules import RecordRules
from qwen_companion.journal.store import Store
from qwen_companion.journal.versions import (
    Loaded,
    TooLargeError,
    Version,
    algorithm_of,
    git_mode,
    is_behind_link,
    load,
    why_not,
)

_MANY = 1000
"""With more changes at once, bytes in the user's repository are not copied: another branch was checked out."""

_UNKNOWN = Version("", 0)

Keep = Callable[[Sequence[Change]], None]
"""Stores changes permanently."""


class UnknownBeforeError(CompanionError):
    """A file was skipped by the last scan, or was at another path."""

    def __init__(self) -> None:
        super().__init__("it may have been there before, and its earlier text is not known")


FAILURES = (GitError, LimitError, StoreError, OSError)
"""Errors that prevent changes from being recorded."""


def reason_of(error: Exception) -> str:
    """Return the text of `error` for the user."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


class Baseline:
    """Follows the files below one root.  Its methods block on git and the disk, and must not overlap."""

    def __init__(self, directory: str, root: str, environ: Mapping[str, str], store: Store, rules: RecordRules) -> None:
        """`root` is a true name; indexes are kept in `directory`."""
        self._store = store
        self._contents = store.contents
        self._rules = rules
        self._last_look = os.path.join(directory, "last-look")
        top = repository.top if (repository := find_repository(root)) else root
        last = load_last_look(self._last_look)
        # If a repository was created around the root, or removed, the indexes have other names.
        last = last if last is not None and last.top == top else None
        self.indexes = Indexes(directory, root, environ, self._contents, last.repositories if last is not None else {})
        self._evidence = Evidence(last, rules)
        self._modes = Modes(self._contents, rules)
        self._lister = Lister(root, self.indexes, self._evidence, self._contents, rules)
        self._first = FirstLook(self.indexes, self._lister, self._contents, self._modes)
        self.text, self.fetch = self.indexes.text, self.indexes.fetch

    @property
    def is_complete(self) -> bool:
        """Whether the first scan is complete."""
        return self._evidence.last is not None

    def directories(self) -> set[bytes]:
        """See `Indexes`."""
        return {name for name in self.indexes.directories() if self._is_recorded(name)}

    def committed(self) -> dict[bytes, Version | None]:
        """See `Indexes`."""
        return {name: version for name, version in self.indexes.committed().items() if self._is_recorded(name)}

    def _is_recorded(self, name: bytes) -> bool:
        return self._rules.own_directory(os.fsdecode(name)) is None

    def take(self, record: Keep, skip: Skip = lambda _path: False) -> Found:
        """Scan all files except those to `skip`, and `record` the changes; the first scan has none.

        :raises GitError, LimitError, StoreError, OSError: if that fails
        """
        self._rules.refresh()
        self._evidence.moved, self._evidence.missed = self._evidence.missed, set()
        began = clock_ns()
        anew = self._evidence.last is None
        if anew:
            # There may be remains of another baseline.
            self._contents.restart()
            self.indexes.clear()
        if self._evidence.observed is None:
            self._evidence.observed = set(self._store.written())
        self._evidence.observed |= self._modes.find_changed()
        found, looks = self._lister.look(skip)
        for look in looks:
            if look.first:
                self._first.take(look, found)
            else:
                try:
                    self._compare(look, found, record)
                except GitError:
                    # The next scan finds its files in the repository around it.
                    if not self.indexes.is_gone(look.index.top):
                        raise
        if anew:
            self._close_gaps()
        self._finish(began, found)
        return found

    def _close_gaps(self) -> None:
        """Record the state of the files after a time without a baseline, with no author."""
        for path in self._store.written():
            with suppress(OSError, TooLargeError):
                last = self._store.writes(path)[-1].after
                item = self.load(path, _algorithm_of(last, self.indexes.algorithm))
                now = None if item is None else item.version
                if last != now:
                    self.indexes.keep([] if item is None else [item], [])
                    self._store.record([(path, last, now)], None, "", "")

    def _finish(self, time: int, found: Found) -> None:
        last = LastLook(self.indexes.root.top, dict(self.indexes.nested), frozenset(found.hidden), time)
        last.save(self._last_look, self._evidence.last)
        self._evidence.last = last

    def observe(self, path: bytes, loaded: Loaded | None) -> Change | None:
        """Return the change from the last record of `path` to `loaded`, its contents now; store the bytes.

        Return None without a change, or if the file is not to be recorded.
        """
        if self._evidence.last is not None and not self.indexes.all():
            self.indexes.open_all()
        before = self._contents.current(path, _UNKNOWN)
        if before is _UNKNOWN:
            index = self.indexes.of(path)
            if index is None or self._rules.excluded([path]):
                return None
            name = index.below(path)
            before = index.entry(name)
            if before is None and loaded is None:
                self._evidence.seen.add(path)
                return None
            if before is None and not index.lists(name):
                return None
        after = None if loaded is None else loaded.version
        known = self._evidence.is_known(path, before)
        self._evidence.seen.add(path)
        if before == after:
            return None
        self.indexes.keep([] if loaded is None else [loaded], [] if before is None else [before])
        if self._evidence.observed is not None:
            self._evidence.observed.add(path)
        return Change(path, before, after, known)

    def records(self, paths: Sequence[bytes]) -> bool:
        """Return whether all the files `paths` are recorded, now or by the next scan.

        A missing file counts as recorded if it would be.

        :raises GitError, OSError: if that fails
        """
        if self._evidence.last is None or self._rules.excluded(paths):
            return False
        self.indexes.open_all()
        there: dict[Index, list[bytes]] = {}
        new: dict[Index, list[bytes]] = {}
        for path in paths:
            index = self.indexes.of(path)
            is_there = os.path.lexists(path)
            if index is None or (is_there and why_not(path, os.lstat(path)) is not None):
                return False
            (there if is_there else new).setdefault(index, []).append(index.below(path))
        recorded = all(index.lists(*names) for index, names in there.items())
        return recorded and not any(index.ignores(*names) for index, names in new.items())

    def _compare(self, look: Look, found: Found, record: Keep) -> None:
        """Add the changes in `look` to `found`, and update the index with its files."""
        index, paths = look.index, look.paths
        linked = _linked(index, paths)
        there: dict[bytes, Version] = {}
        gone: list[bytes] = []
        for start in range(0, len(paths), CHUNK):
            loaded: list[Loaded] = []
            changes: list[Change] = []
            for path in paths[start : start + CHUNK]:
                name = index.prefix + path
                before = self._contents.current(name, look.listing.changed.get(path))
                try:
                    item = self.load(name, _algorithm_of(before, index.algorithm))
                except (OSError, TooLargeError) as error:
                    # Its state will be unknown when it can be recorded again.
                    gone.append(path)
                    self._evidence.listed.pop(name, None)
                    if self._evidence.is_newer(name):
                        found.leave_out(name, error)
                    found.hidden.add(name)
                    continue
                if item is None:
                    gone.append(path)
                else:
                    there[path] = replace(item.version, mode=git_mode(item.version.mode))
                change = Change(name, before, None if item is None else item.version)
                if change.before != change.after:
                    known = self._evidence.is_known(name, before)
                    change = replace(change, known=known, linked=path in linked)
                    changes.append(change)
                    if item is not None:
                        loaded.append(item)
                    if not change.known and self._evidence.is_newer(name):
                        found.warn(name, UnknownBeforeError())
            self.indexes.keep(loaded, [change.before for change in changes if change.before], len(paths) > _MANY)
            record(changes)
            found.changes += [change for change in changes if change.known]
        start = time.time()
        # Last: files that are unchanged in the index are not read again.
        self._take_in(look, there, gone)
        for name in (index.prefix + path for path in there):
            with suppress(OSError):
                self._modes.note_if_new(name, os.lstat(name), start)

    def _take_in(self, look: Look, there: Mapping[bytes, Version], gone: Sequence[bytes]) -> None:
        """Update the index of `look`: add the files `there`, with git's modes, and remove those `gone`."""
        index = look.index
        if any(path not in look.listing.gone and index.prefix + path not in self._evidence.listed for path in gone):
            # It was moved after it was listed and before its inode was read.
            self._evidence.missed |= self._evidence.moved_from(index)
        names = [index.prefix + path for path in gone]
        if self._evidence.observed is not None:
            # Git may fail half way: then the index has entries that are not recorded.
            self._evidence.observed.update(index.prefix + path for path in look.paths)
        index.update(list(there))
        index.drop(gone)
        if self._evidence.observed is not None:
            # Written or deleted since they were read here.
            later = [index.prefix + path for path in index.differing(there)]
            self._evidence.observed.difference_update(index.prefix + path for path in look.paths)
            self._evidence.observed.update(later)
            names += later
        self._evidence.missed.update(self._evidence.listed[name] for name in names if name in self._evidence.listed)

    def load(self, name: bytes, algorithm: str = "") -> Loaded | None:
        """Return the file `name`, with a digest by `algorithm` or that of the root; None also for a file behind a link.

        :raises TooLargeError: for a file too large to record
        :raises OSError: if it cannot be read
        """
        return None if is_behind_link(name) else load(name, algorithm or self.indexes.algorithm)


def _linked(index: Index, paths: Sequence[bytes]) -> set[bytes]:
    """Return those of `paths` that have become names of other files."""
    linked: set[bytes] = set()
    for path in paths:
        with suppress(OSError):
            if os.lstat(index.prefix + path).st_nlink > 1:
                linked.add(path)
    return linked & index.moved().keys() if linked else linked


def _algorithm_of(version: Version | None, otherwise: str) -> str:
    """Return the algorithm of the digest of `version`."""
    return otherwise if version is None else algorithm_of(version.digest)
