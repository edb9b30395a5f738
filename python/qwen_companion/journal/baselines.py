# SPDX-License-Identifier: GPL-3.0-or-later
"""The files below a root before an agent worked, and their differences now.

The first baseline lists all files and keeps the bytes of those that the user's repository cannot give back.  From then
on only what has changed is looked at.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from qwen_companion.errors import CompanionError
from qwen_companion.frozen import frozen
from qwen_companion.journal.git import GitError, Index, Listing, find_repository, write_private
from qwen_companion.journal.rules import RecordRules
from qwen_companion.journal.store import Store
from qwen_companion.journal.versions import MAX_FILE_BYTES, Loaded, TooLargeError, Version, load

MAX_FILES = 100_000
MAX_TOTAL_BYTES = 1024 * 1024 * 1024
"""Largest first baseline of a root."""

MAX_NESTED = 32
"""Most repositories within a root, submodules among them, whose files are recorded."""

_MANY = 1000
"""Of more changes at once, bytes that the user's repository has are not copied: another branch was checked out."""

_CHUNK = 500

_BATCH_BYTES = 16 * 1024 * 1024
"""How much of a first baseline is kept in memory until it is stored: one large step takes half of the time of many."""

_ITEM_BYTES = 500
"""Memory for a file beside its bytes."""


class LimitError(CompanionError):
    """There is too much below a root to be recorded."""


@frozen
class Change:
    """The file `path`, an absolute name, was `before` when it was last looked at, and is `after` now."""

    path: bytes
    before: Version | None
    after: Version | None


@dataclass
class Found:
    """The `changes` since the last look, and messages for the user about files `left_out` of the record."""

    changes: list[Change] = field(default_factory=list[Change])
    left_out: list[str] = field(default_factory=list[str])


class Baseline:
    """Follows the files below one root.  Its methods wait for git and the disk, and must not overlap."""

    def __init__(self, directory: str, root: str, environ: Mapping[str, str], store: Store, rules: RecordRules) -> None:
        """`root` is a true name; indexes are kept in `directory`."""
        self._directory = directory
        self._root = root
        self._environ = environ
        self._store = store
        self.rules = rules
        self._indexes: dict[str, Index] = {}
        self._complete = os.path.isfile(os.path.join(directory, _COMPLETE))
        self._record: Record = lambda _changes: None
        self._skip: Callable[[bytes], bool] = lambda _path: False
        self._observed: set[bytes] | None = None
        """Files that may have been recorded since the index knows them; None before the first look.

        Where such a file has the bytes again that the index knows, git takes it for unchanged within the second.
        """

    @property
    def is_complete(self) -> bool:
        """Whether all files have been looked at once."""
        return self._complete

    @property
    def algorithm(self) -> str:
        """The name of the digest that the repository uses."""
        index = self._indexes.get(self._root)
        return "sha1" if index is None else index.algorithm

    def take(self, record: Record, skip: Callable[[bytes], bool] = lambda _path: False) -> Found:
        """Look at all files but those to `skip`, and `record` the changes; the first time there are none.

        GitError, LimitError, StoreError, OSError.
        """
        self.rules.refresh()
        self._record, self._skip = record, skip
        if not self._complete:
            self._start_anew()
        if self._observed is None:
            self._observed = set(self._store.written())
        found = Found()
        waiting = [self._root]
        done: set[str] = set()
        while waiting:
            scope = waiting.pop(0)
            if scope in done:
                continue
            if len(done) > MAX_NESTED:
                found.left_out.append(f"{scope}: too many repositories in {self._root}")
                break
            done.add(scope)
            waiting += self._look(scope, found)
        self._finish()
        return found

    def _start_anew(self) -> None:
        """Remove the remains of an unfinished baseline."""
        self._indexes.clear()
        self._store.restart()
        shutil.rmtree(self._directory, ignore_errors=True)
        os.makedirs(self._directory, mode=0o700)

    def _finish(self) -> None:
        if not self._complete:
            write_private(os.path.join(self._directory, _COMPLETE), b"")
            self._complete = True

    def observe(self, path: bytes, loaded: Loaded | None) -> Change | None:
        """Return the change from the last record of `path` to `loaded`, its contents now; keep the bytes.

        None where it does not, or where the file is not to be recorded.
        """
        if self._complete and not self._indexes:
            self._open(self._root)
        before = self._store.current(path, _UNKNOWN)
        if before is _UNKNOWN:
            index = self._index_of(path)
            if index is None or self.rules.excluded([os.fsdecode(path)]):
                return None
            name = _below(path, index)
            before = index.entry(name)
            if before is None and (loaded is None or not index.lists(name)):
                return None
        after = None if loaded is None else loaded.version
        if before == after:
            return None
        self._keep([] if loaded is None else [loaded], [] if before is None else [before])
        if self._observed is not None:
            self._observed.add(path)
        return Change(path, before, after)

    def records(self, paths: Sequence[bytes]) -> bool:
        """Return whether each of the files `paths` is recorded, by now or by the next look.  GitError, OSError."""
        if not self._complete or self.rules.excluded([os.fsdecode(path) for path in paths]):
            return False
        self._open(self._root)
        index = self._index_of(paths[0])
        return (
            index is not None
            and all(_is_of(path, index) and _why_not(path, os.lstat(path)) is None for path in paths)
            and index.lists(*(_below(path, index) for path in paths))
        )

    def directories(self) -> set[bytes]:
        """Return the absolute names of the directories in which files are recorded.  GitError, OSError."""
        self._open(self._root)
        return {directory for index in self._indexes.values() for directory in index.directories()}

    def text(self, digest: str) -> bytes | None:
        """Return the bytes of `digest`, None where they are not there any more."""
        data = self._store.get(digest)
        if data is None:
            self._open(self._root)
            for index in self._indexes.values():
                with suppress(GitError):
                    data = index.blobs([digest]).get(digest)
                if data is not None:
                    break
        return data

    def committed(self) -> dict[bytes, Version | None]:
        """Return the files that differ from the last commit, with their versions in it.  GitError."""
        index = self._indexes[self._root]
        return {_absolute(path, index): version for path, version in index.committed().items()}

    # --- One repository ---

    def _look(self, scope: str, found: Found) -> list[str]:
        """Look at the files of the repository `scope`; return those within it."""
        index = self._open(scope)
        first = not index.exists
        if first and not (self._complete or index.copy_users_index()):
            index.clear()
        index.set_rules(self._rule_lines(index))
        listing = index.changes()
        if first and index.converts(listing.unknown):
            index.clear()
            listing = index.changes()
        paths = self._recorded(index, listing, found)
        if first and not self._complete:
            self._begin(index, paths, found)
        else:
            # A repository within the root that was not there before is new with all its files.
            self._compare(index, listing, paths, found)
        nested = [os.path.join(index.top, os.fsdecode(path)) for path in listing.nested]
        return [path for path in nested if os.path.lexists(os.path.join(path, ".git"))]

    def _open(self, scope: str) -> Index:
        index = self._indexes.get(scope)
        if index is None:
            index = Index(os.path.join(self._directory, _name(scope, self._root)), scope, self._environ)
            index.open()
            self._indexes[scope] = index
        return index

    def _rule_lines(self, index: Index) -> bytes:
        # The patterns of the ignore files are relative to the root.
        return self.rules.lines() if index.top == self._root else b""

    def _recorded(self, index: Index, listing: Listing, found: Found) -> list[bytes]:
        """Return those paths of `listing` that may be recorded, and drop the others from `index`."""
        observed = [_below(path, index) for path in self._observed or () if _is_of(path, index)]
        names = {
            path: os.fsdecode(name)
            for path in (*listing.changed, *listing.unknown, *observed)
            if not self._skip(name := index.prefix + path)
        }
        excluded = self.rules.excluded(names.values())
        index.drop([path for path in listing.changed if names.get(path) in excluded])
        return [path for path, name in names.items() if name not in excluded]

    def _begin(self, index: Index, paths: Sequence[bytes], found: Found) -> None:
        """Take `paths` into `index` as they are."""
        files = self._within_limits(index, paths, found)
        index.update(list(files))
        if len(files) > _CHUNK and (stored := index.stored_digests()):
            # After a file was checked out with other line ends its blob may have those of the disk, or not.
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
                found.left_out.append(_why(name, error))
                continue
            if item is not None:
                versions[path] = item.version
                loaded.append((name, item))
                size += len(item.data) + _ITEM_BYTES
                if size > _BATCH_BYTES:
                    self._store.begin_with(loaded)
                    loaded, size = [], 0
        self._store.begin_with(loaded)
        # A file may have been written since the index took it.
        self._store.set_current((index.prefix + path, versions[path]) for path in index.differing(versions))

    def _within_limits(self, index: Index, paths: Sequence[bytes], found: Found) -> dict[bytes, bool]:
        """Return those of `paths` that can be recorded, and whether each is a regular file.

        Add the others to `found`.  LimitError for too much of them.
        """
        if len(paths) > MAX_FILES:
            raise LimitError(f"it has {len(paths)} files, and {MAX_FILES} are the limit")
        result: dict[bytes, bool] = {}
        total = 0
        for path in paths:
            name = index.prefix + path
            try:
                status = os.lstat(name)
            except FileNotFoundError:
                continue
            reason = _why_not(name, status)
            if reason is None:
                result[path] = stat.S_ISREG(status.st_mode)
                total += status.st_size
            else:
                found.left_out.append(_why(name, reason))
        if total > MAX_TOTAL_BYTES:
            raise LimitError(f"its files have {total >> 20} MiB, and {MAX_TOTAL_BYTES >> 20} are the limit")
        return result

    def _compare(self, index: Index, listing: Listing, paths: Sequence[bytes], found: Found) -> None:
        """Add the changes among `paths` to `found`, and take them into `index`."""
        lost: set[bytes] = set()
        for start in range(0, len(paths), _CHUNK):
            chunk = paths[start : start + _CHUNK]
            loaded: list[Loaded] = []
            changes: list[Change] = []
            for path in chunk:
                name = _absolute(path, index)
                try:
                    item = load(name, index.algorithm)
                except (OSError, TooLargeError) as error:
                    found.left_out.append(_why(name, error))
                    lost.add(path)
                    continue
                before = self._store.current(name, listing.changed.get(path))
                after = None if item is None else item.version
                if before != after:
                    changes.append(Change(name, before, after))
                    if item is not None:
                        loaded.append(item)
            self._keep(loaded, [change.before for change in changes if change.before], len(paths) > _MANY)
            self._record(changes)
            found.changes += changes
        # Last: files that the index takes for unchanged are not read again.
        index.update([path for path in paths if path not in lost])
        if self._observed:
            self._observed.difference_update(index.prefix + path for path in paths)

    def _keep(self, after: Sequence[Loaded], before: Sequence[Version], sparingly: bool = False) -> None:
        """Keep the bytes of `after`, and those of `before` as long as they can be had."""
        items = {item.version.digest: item.data for item in after}
        lacking = self._store.lacking(version.digest for version in before)
        if sparingly:
            there = items.keys() - set().union(*(index.unavailable(items) for index in self._indexes.values()))
            items = {digest: data for digest, data in items.items() if digest not in there}
        else:
            for index in self._indexes.values():
                got = index.blobs([digest for digest in lacking if digest not in items])
                items.update(got)
        self._store.put(items.items())

    def _index_of(self, path: bytes) -> Index | None:
        """Return the index of the innermost repository that `path` is in."""
        name = os.fsdecode(path)
        scopes = [scope for scope in self._indexes if name.startswith(scope.rstrip("/") + "/")]
        return self._indexes[max(scopes, key=len)] if scopes else None


Record = Callable[[Sequence[Change]], None]
"""Keeps changes for good."""

_COMPLETE = "complete"
"""The name of a file that says that the first baseline has been finished."""

_UNKNOWN = Version("", 0)


def _absolute(path: bytes, index: Index) -> bytes:
    return index.prefix + path


def _below(path: bytes, index: Index) -> bytes:
    return os.path.relpath(path, os.fsencode(index.top))


def _is_of(path: bytes, index: Index) -> bool:
    """Return whether the file `path` is in the repository of `index`, or in none as that is."""
    repository = find_repository(os.fsdecode(os.path.dirname(path)))
    return (repository and repository.top) == (index.repository and index.repository.top)


def _name(scope: str, root: str) -> str:
    """Return the name of the directory for the index of `scope`."""
    below = os.path.relpath(scope, root)
    return "root" if below == "." else "in-" + below.encode("utf-8", "surrogateescape").hex()[:200]


def _why_not(path: bytes, status: os.stat_result) -> Exception | None:
    """Why the file `path` cannot be recorded, None where it can."""
    if stat.S_ISLNK(status.st_mode):
        return None
    if status.st_size > MAX_FILE_BYTES:
        return TooLargeError("larger than 64 MiB")
    readable = (status.st_uid == os.geteuid() and status.st_mode & stat.S_IRUSR) or os.access(path, os.R_OK)
    return None if readable else PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _why(name: bytes, error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return f"{os.fsdecode(name).encode('utf-8', 'replace').decode()}: {reason}"
