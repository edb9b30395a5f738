# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: D102 - what implements a protocol has the docstrings
"""The files below a root before an agent worked, and their differences now.

The first scan lists all files and keeps the bytes of those that the user's repository cannot restore.  Later scans
read only changed files.

Undoing relies on this: after a turn is undone, each path is as before the turn, with the user's own later edits, or
untouched, and never less than both.  So a change is attributed to an agent only if its previous state is known.  A file
that is found for the first time was not necessarily created since: rules may have hidden it, it may have been too
large, or it was renamed from such a path.  It counts as created since the last scan only if that scan cannot have
skipped it, and if no unrecorded file was renamed to it.  Otherwise it has no author, and is recorded from then on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Protocol

from qwen_companion.base.errors import CompanionError
from qwen_companion.base.git import GitError
from qwen_companion.files.repository import Repository
from qwen_companion.files.rules import RecordRules
from qwen_companion.files.stamps import Status
from qwen_companion.files.table import Change, Look, Table
from qwen_companion.files.versions import Loaded, TooLargeError, Version, git_mode
from qwen_companion.journal.contents import Contents
from qwen_companion.journal.database import StoreError
from qwen_companion.journal.store import Store

MAX_FILES = 100_000
MAX_TOTAL_BYTES = 1024 * 1024 * 1024
"""Largest first baseline of a root."""

BATCH_BYTES = 16 * 1024 * 1024
"""Bytes of a first baseline in memory before they are stored: one large step takes half of the time of many."""

_ITEM_BYTES = 500
"""Memory for a file beside its bytes."""

CHUNK = 500
"""Files that are recorded at once."""

_MANY = 1000
"""With more changes at once, bytes in the user's repository are not copied: another branch was checked out."""

_UNKNOWN = Version("", 0)


Keep = Callable[[Sequence[Change]], None]
"""Stores changes permanently."""

Skip = Callable[[bytes], bool]
"""Returns whether a scan should skip a file because another part records it."""


Begun = tuple[bytes, Version, bytes | None]
"""A file of a first scan with its version, and its bytes unless one of the user's repositories has them."""


class LimitError(CompanionError):
    """There is too much below a root to be recorded."""


class UnknownBeforeError(CompanionError):
    """A file was skipped by the last scan, or was at another path."""

    def __init__(self) -> None:
        super().__init__("it may have been there before, and its earlier text is not known")


FAILURES = (GitError, LimitError, StoreError, OSError)
"""Errors that prevent changes from being recorded."""


def reason_of(error: Exception) -> str:
    """Return the text of `error` for the user."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


@dataclass(frozen=True)
class Scan:
    """A complete scan of a root, begun at `time`, in ns.

    `hidden` are absolute names of skipped files that may have existed; a directory stands for all its files.
    `repositories` are the user's, by directory.
    """

    time: int
    hidden: frozenset[bytes]
    repositories: Mapping[str, Repository]

    def hid(self, path: bytes) -> bool:
        """Return whether `path` was skipped, or may have been."""
        above: bytes = path
        while above not in self.hidden:
            path, above = above, os.path.dirname(above)
            if above == path:
                return False
        return True

    def facts(self) -> str:
        """Return a text with all but the time."""
        repositories = {scope: asdict(repository) for scope, repository in self.repositories.items()}
        return json.dumps([sorted(map(os.fsdecode, self.hidden)), repositories])


class Source(Protocol):
    """The machine where the files below a root lie; for each method see `LocalFiles`."""

    @property
    def repositories(self) -> Mapping[str, Repository]: ...
    def look(self, table: Table, last: Scan | None, others: Collection[bytes], /) -> Look: ...
    def done(self) -> None: ...
    def begin(self, look: Look, names: Sequence[bytes], /) -> Iterator[Begun]: ...
    def read(self, name: bytes, before: Version | None, /) -> Version | None: ...
    def keep(self, changes: Sequence[Change], sparingly: bool, /) -> set[bytes]: ...
    def status(self, path: bytes, /) -> tuple[Status | None, int]: ...
    def lists(self, path: bytes, /) -> bool: ...
    def records(self, paths: Sequence[bytes], table: Table, /) -> bool: ...
    def load(self, name: bytes, /) -> Loaded | None: ...
    def fetch(self, digests: Iterable[str], /) -> dict[str, bytes]: ...
    def directories(self, table: Table, /) -> set[bytes]: ...
    def committed(self) -> dict[bytes, Version]: ...


def read_scan(contents: Contents) -> Scan | None:
    """Return the last scan that is stored in `contents`, None for none."""
    with suppress(ValueError, TypeError, AttributeError):
        if (stored := contents.load_scan()) is not None:
            hidden, repositories = json.loads(stored[0])
            found = {scope: Repository(**values) for scope, values in repositories.items()}
            return Scan(stored[1], frozenset(map(os.fsencode, hidden)), found)
    return None


def check_limits(count: int, total: int) -> None:
    """Check the number of files of a first baseline, and their bytes.

    :raises LimitError: if there are too many
    """
    if count > MAX_FILES:
        raise LimitError(f"it has {count} files, and {MAX_FILES} are the limit")
    if total > MAX_TOTAL_BYTES:
        raise LimitError(f"its files have {total >> 20} MiB, and {MAX_TOTAL_BYTES >> 20} are the limit")


class Baseline:
    """Follows the files below one root.  Its methods block on its source, and must not overlap."""

    def __init__(self, source: Source, root: str, store: Store, rules: RecordRules) -> None:
        """`root` is the name of the directory in the record."""
        self._source = source
        self._store = store
        self._contents = store.contents
        self._rules = rules
        self._root = root
        self._last = read_scan(store.contents)
        self._table = Table(root, self._contents.load_rows() if self._last else {})
        self._seen: set[bytes] = set()
        """Files whose previous state is known since the last scan, including the fact that they did not exist."""
        self._observed = set(self._contents.recorded()) if self._last else set[bytes]()
        """Files that may have been recorded since the last scan, or were skipped: the table may not have them."""
        self._moved: dict[int, int] = {}
        """Inodes of recorded files that are missing, with the times of their last changes."""
        self.fetch, self.load = source.fetch, source.load

    @property
    def is_complete(self) -> bool:
        """Whether the first scan is complete."""
        return self._last is not None

    def recorded(self) -> set[bytes]:
        """Return the recorded files."""
        return set(self._table)

    def take(self, record: Keep, skip: Skip = lambda _path: False) -> Look:
        """Scan all files except those to `skip`, and `record` the changes; the first scan has none.

        :raises GitError, LimitError, StoreError, OSError: if that fails
        """
        self._rules.refresh()
        if self._last is None:
            # There may be remains of another baseline.
            self._contents.restart()
            self._table = Table(self._root, {})
        look = self._source.look(self._table, self._last, self._observed)
        names = list(dict.fromkeys((*look.changed, *look.failed, *(look.gone | (look.missing & self._observed)))))
        excluded = self._rules.excluded(names)
        for name in excluded:
            self._table.drop(name)
        gone = self._moved_away(look, names)
        look.hidden |= excluded
        own = {self._rules.own_directory(os.fsdecode(name)) for name in look.hidden}
        look.repositories.update(directory for directory in own if directory is not None)
        skipped = {name for name in (*names, *self._observed) if name not in excluded and skip(name)}
        names = [name for name in names if name not in excluded and name not in skipped]
        if self._last is None:
            self._begin(look, names)
            self._close_gaps()
        else:
            self._seen = set(self._leave_skipped(look, skipped))
            self._moved |= gone
            skipped |= self._compare(self._last, look, names, record)
        self._finish(look)
        self._observed = skipped
        return look

    def _finish(self, look: Look) -> None:
        scan = Scan(look.time, frozenset(look.hidden), dict(self._source.repositories))
        self._contents.save_scan(scan.facts(), scan.time, self._table.unsaved())
        self._last = scan
        self._source.done()

    # --- The first scan ---

    def _begin(self, look: Look, names: Sequence[bytes]) -> None:
        """Record the files `names` as they are; store the bytes that the user's repository cannot restore."""
        loaded: list[tuple[bytes, Loaded]] = []
        size = 0
        for name, version, data in self._source.begin(look, names):
            self._table.put(name, version, look.changed[name], look.time)
            if data is not None:
                loaded.append((name, Loaded(version, data)))
                size += len(data) + _ITEM_BYTES
            if size > BATCH_BYTES:
                self._contents.begin_with(loaded)
                loaded, size = [], 0
        self._contents.begin_with(loaded)

    def _close_gaps(self) -> None:
        """Record the state of the files after a time without a baseline, with no author."""
        for path in self._store.written():
            with suppress(OSError, TooLargeError):
                last, now = self._store.writes(path)[-1].after, self._table.version(path)
                item = None if now is not None else self.load(path)
                if item is not None:
                    self._contents.put([(item.version.digest, item.data)])
                    now = item.version
                if last != now:
                    self._store.record([(path, last, now)], None, "", "")

    # --- Later scans ---

    def _leave_skipped(self, look: Look, skipped: Set[bytes]) -> Iterator[bytes]:
        """Yield the `skipped` files that are new, or were seen before; hide those that may have existed."""
        yield from self._seen & skipped
        for name, status in look.changed.items():
            if name not in self._table and name in skipped:
                if self._is_known(name, None, status, look.created.get(name, 0)):
                    yield name
                else:
                    look.hidden.add(name)

    def _compare(self, last: Scan, look: Look, names: Sequence[bytes], record: Keep) -> set[bytes]:
        """Add the changes of the files `names` since the `last` scan to `look`, and update the table.

        Return the files that have changed again meanwhile.
        """
        again: set[bytes] = set()
        gone = self._moved_away(look, names)
        for start in range(0, len(names), CHUNK):
            changes: list[Change] = []
            there: dict[bytes, Version | None] = {}
            for name in names[start : start + CHUNK]:
                status = look.changed.get(name)
                is_newer = status is not None and status.st_ctime_ns >= last.time
                try:
                    change = self._change(look, name)
                except (OSError, TooLargeError) as error:
                    # Its state will be unknown when it can be recorded again.
                    self._table.drop(name)
                    if is_newer:
                        look.warn(name, error)
                    look.hidden.add(name)
                    continue
                there[name] = change.after
                if change.after is None and status is not None and change.known:
                    # It was moved after it was listed.
                    gone[status.st_ino] = status.st_ctime_ns
                if change.before != change.after:
                    changes.append(change)
                    if not change.known and is_newer:
                        look.warn(name, UnknownBeforeError())
            lost = self._source.keep(changes, len(names) > _MANY)
            changes = [change for change in changes if change.path not in lost]
            record(changes)
            look.changes += [change for change in changes if change.known]
            self._update(look, {name: version for name, version in there.items() if name not in lost})
            again |= lost
        self._moved = gone
        return again

    def _moved_away(self, look: Look, names: Sequence[bytes]) -> dict[int, int]:
        """Return the inodes of the recorded files of `names` that are missing, and the times of their last changes."""
        found: dict[int, int] = {}
        for name in names:
            recorded, status = self._table.inode(name), look.changed.get(name)
            if recorded is not None and (status is None or status.st_ino != recorded[0]):
                found[recorded[0]] = recorded[1]
        return found

    def _change(self, look: Look, name: bytes) -> Change:
        """Return the change of the file `name` since the last scan, which may be none.

        :raises TooLargeError, OSError: if it cannot be recorded
        """
        if name in look.failed:
            raise look.failed[name]
        status, recorded = look.changed.get(name), self._table.inode(name)
        before = self._contents.current(name, self._table.version(name))
        after = None if status is None else self._source.read(name, before)
        known = self._is_known(name, before, status, look.created.get(name, 0))
        linked = status is not None and status.st_nlink > 1 and recorded is not None and recorded[0] != status.st_ino
        return Change(name, before, after, known, linked)

    def _update(self, look: Look, there: Mapping[bytes, Version | None]) -> None:
        """Note in the table the versions of files that were read; None for missing ones."""
        for name, version in there.items():
            if version is None:
                self._table.drop(name)
            else:
                self._table.put(name, version, look.changed[name], look.time)

    def _is_known(self, name: bytes, before: Version | None, status: Status | None, created: int) -> bool:
        """Return whether the file `name` was `before` at the last scan; None means that it did not exist.

        It has that `status`, and was `created` at that time, in ns.
        """
        if name in self._table:
            return True
        if self._last is None or self._last.hid(name):
            return False
        if before is not None or status is None or created >= self._last.time:
            return True
        # A renamed file keeps the time of its creation; another one may have the number of a deleted one.
        return created <= self._moved.get(status.st_ino, -1)

    # --- Single files ---

    def observe(self, path: bytes, loaded: Loaded | None) -> Change | None:
        """Return the change from the last record of `path` to `loaded`, its contents now; store the bytes.

        Return None without a change, or if the file is not to be recorded.
        """
        before = self._contents.current(path, _UNKNOWN)
        if before is _UNKNOWN:
            if self._last is None or self._rules.excluded([path]):
                return None
            before = self._table.version(path)
            if before is None and loaded is None:
                self._seen.add(path)
                return None
            if before is None and not self._source.lists(path):
                return None
        after = None if loaded is None else loaded.version
        known = path in self._seen or self._is_known(path, before, *self._source.status(path))
        self._seen.add(path)
        if before == after:
            return None
        self._contents.put([] if loaded is None else [(loaded.version.digest, loaded.data)])
        self._contents.put(self.fetch([] if before is None else [before.digest]).items())
        self._observed.add(path)
        return Change(path, before, after, known)

    def records(self, paths: Sequence[bytes]) -> bool:
        """Return whether all the files `paths` are recorded, now or by the next scan.

        A missing file counts as recorded if it would be.

        :raises GitError, OSError: if that fails
        """
        if self._last is None or self._rules.excluded(paths):
            return False
        return self._source.records(paths, self._table)

    def directories(self) -> set[bytes]:
        """Return the absolute names of the directories in which files are recorded, and of those above.

        :raises GitError, OSError: if that fails
        """
        return {name for name in self._source.directories(self._table) if self._is_recorded(name)}

    def committed(self) -> dict[bytes, Version | None]:
        """Return the files that may differ from the last commit, with their versions in it; None without one.

        :raises GitError, OSError: if there is no commit
        """
        committed = self._source.committed()
        found = {name: committed.get(name) for name in self._store.written()}
        for name in self._table:
            version, now = committed.get(name), self._table.version(name)
            if version is None or now is None or (version.digest, version.mode) != (now.digest, git_mode(now.mode)):
                found[name] = version
        missing = [name for name in committed if name not in self._table]
        excluded = self._rules.excluded(missing)
        found.update((name, committed[name]) for name in missing if name not in excluded)
        return {name: version for name, version in found.items() if self._is_recorded(name)}

    def _is_recorded(self, name: bytes) -> bool:
        return self._rules.own_directory(os.fsdecode(name)) is None

    def text(self, digest: str) -> bytes | None:
        """Return the bytes of `digest`, None if they are no longer available."""
        data = self._contents.get(digest)
        return self.fetch([digest]).get(digest) if data is None else data
