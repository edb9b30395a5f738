# SPDX-License-Identifier: GPL-3.0-or-later
"""The files below a root before an agent worked, and their differences now.

The first baseline lists all files and keeps the bytes of those that the user's repository cannot give back.  From then
on only what has changed is looked at.

Undoing relies on this: after a turn is undone, each path is as it was before the turn, with the user's own later edits,
or untouched, and never less than both.  So a change is an agent's only if it is known what was there before.  A file
that is found for the first time counts as made since the last look only if it cannot have been left out then (see
`last_look`) and was not renamed from a place of which nothing is recorded.  Else it is nobody's, and recorded from then
on.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from qwen_companion.errors import CompanionError
from qwen_companion.frozen import frozen
from qwen_companion.journal.git import GitError
from qwen_companion.journal.index import Index, Listing
from qwen_companion.journal.last_look import LastLook, clock_ns, inode_of_older, load_last_look
from qwen_companion.journal.repository import Repository, find_repository
from qwen_companion.journal.rules import RecordRules
from qwen_companion.journal.store import Store
from qwen_companion.journal.versions import (
    LINK,
    MAX_FILE_BYTES,
    Loaded,
    TooLargeError,
    Version,
    git_mode,
    inode_at,
    load,
    mode_of,
)

MAX_FILES = 100_000
MAX_TOTAL_BYTES = 1024 * 1024 * 1024
"""Largest first baseline of a root."""

MAX_NESTED = 32
"""Most repositories within a root, submodules among them, whose files are recorded."""

_MAX_LISTS = 3
"""How often files are listed at most while they move."""

_MANY = 1000
"""Of more changes at once, bytes that the user's repository has are not copied: another branch was checked out."""

_CHUNK = 500

_BATCH_BYTES = 16 * 1024 * 1024
"""How much of a first baseline is kept in memory until it is stored: one large step takes half of the time of many."""

_ITEM_BYTES = 500
"""Memory for a file beside its bytes."""


class LimitError(CompanionError):
    """There is too much below a root to be recorded."""


class UnknownBeforeError(CompanionError):
    """A file was left out at the last look, or was not at its place."""

    def __init__(self) -> None:
        super().__init__("it may have been there before, and its earlier text is not known")


@frozen
class Change:
    """The file `path`, an absolute name, was `before` when it was last looked at, and is `after` now.

    Unless it is `known`, it may have been something else as well.
    """

    path: bytes
    before: Version | None
    after: Version | None
    known: bool = True


@dataclass
class Found:
    """The known `changes` since the last look, and messages for the user about files `left_out` of the record.

    `hidden` are all those that are left out, as in `LastLook`.
    """

    changes: list[Change] = field(default_factory=list[Change])
    left_out: list[str] = field(default_factory=list[str])
    hidden: set[bytes] = field(default_factory=set[bytes])

    def leave_out(self, name: bytes, error: Exception) -> None:
        """Note that the file `name` is not recorded because of `error`."""
        self.left_out.append(_why(name, error))
        self.hidden.add(name)


@frozen
class Look:
    """A look at the files of the repository of `index`: what git lists, and which `paths` of that may be recorded."""

    index: Index
    first: bool
    listing: Listing
    paths: list[bytes]

    def names(self) -> Iterator[bytes]:
        """Yield the absolute names of the files that have changed or are unknown, if the index knew any before."""
        if not self.first:
            yield from (self.index.prefix + path for path in (*self.listing.changed, *self.listing.unknown))


class Baseline:
    """Follows the files below one root.  Its methods wait for git and the disk, and must not overlap."""

    def __init__(self, directory: str, root: str, environ: Mapping[str, str], store: Store, rules: RecordRules) -> None:
        """`root` is a true name; indexes are kept in `directory`."""
        self._directory = directory
        self._root = root
        self._environ = environ
        self._store = store
        self._contents = store.contents
        self.rules = rules
        self._indexes: dict[str, Index] = {}
        top = repository.top if (repository := find_repository(root)) else root
        last = load_last_look(os.path.join(directory, _LAST_LOOK))
        # Where a repository was made around the root, or removed, the indexes have other names.
        self._last = last if last is not None and last.top == top else None
        """The last look, None before the first one has been finished."""
        self._repositories: dict[str, Repository | None] = {} if self._last is None else dict(self._last.repositories)
        """Those within the root that have an index."""
        self._record: Record = lambda _changes: None
        self._skip: Callable[[bytes], bool] = lambda _path: False
        self._observed: set[bytes] | None = None
        """Files that may have been recorded since the index knows them; None before the first look.

        Where such a file has the bytes again that the index knows, git takes it for unchanged within the second.
        """
        self._seen: set[bytes] = set()
        """Files whose state before is known since the last look, also that they were not there."""
        self._moved: set[int] = set()
        """Inodes, as git has them, of recorded files that are not at their places any more."""
        self._listed: dict[bytes, int] = {}
        """The inodes of the listed files whose state before is known."""
        self._missed: set[int] = set()
        """Inodes of files that were listed at the last look, and were not there any more when they were to be read."""
        self._new: set[bytes] = set()
        """Files that were changed less than a second before they were last looked at."""

    @property
    def is_complete(self) -> bool:
        """Whether all files have been looked at once."""
        return self._last is not None

    @property
    def algorithm(self) -> str:
        """The name of the digest that the repository uses."""
        index = self._indexes.get(self._root)
        return "sha1" if index is None else index.algorithm

    def take(self, record: Record, skip: Callable[[bytes], bool] = lambda _path: False) -> Found:
        """Look at all files but those to `skip`, and `record` the changes; the first time there are none.

        :raises GitError, LimitError, StoreError, OSError: when that fails
        """
        self.rules.refresh()
        self._record, self._skip = record, skip
        self._moved, self._missed = self._missed, set()
        time = clock_ns()
        anew = self._last is None
        if anew:
            self._start_anew()
        if self._observed is None:
            self._observed = set(self._store.written())
        self._observed |= self._find_new_modes()
        found, looks = self._list_settled()
        self._moved |= self._moved_in(looks)
        self._listed = dict(self._inodes_in(looks))
        self._seen = {name for look in looks for name in self._leave_skipped(look, found)}
        for look in looks:
            (self._begin if look.first else self._compare)(look, found)
        if anew:
            self._close_gaps()
        self._finish(time, found)
        return found

    def _list_settled(self) -> tuple[Found, list[Look]]:
        """List the files, again while lists may be older than a move from one repository to another."""
        gone: set[bytes] | None = None
        for _ in range(_MAX_LISTS - 1):
            found = Found()
            looks = self._list_all(found)
            before, gone = gone, {look.index.prefix + path for look in looks for path in look.listing.gone}
            there = (name for look in looks for name in look.names() if name not in gone)
            if all(map(os.path.lexists, there)) and (gone == before or not (self._moved or (gone and len(looks) > 1))):
                return found, looks
        found = Found()
        return found, self._list_all(found)

    def _list_all(self, found: Found) -> list[Look]:
        """List the files of the repository of the root, and of those within it."""
        looks: list[Look] = []
        waiting = [self._root]
        while waiting:
            scope = waiting.pop(0)
            if looks and not os.path.isdir(scope):
                continue
            if len(looks) > MAX_NESTED:
                found.left_out.append(f"{scope}: too many repositories in {self._root}")
                found.hidden.update(os.fsencode(each) for each in (scope, *waiting) if each not in self._repositories)
                break
            look = self._list(scope, found)
            looks.append(look)
            nested = [os.path.join(look.index.top, os.fsdecode(path)) for path in look.listing.nested]
            waiting += sorted(nested, key=lambda each: each not in self._repositories)
        return looks

    def _start_anew(self) -> None:
        """Remove the remains of another baseline."""
        self._indexes.clear()
        self._contents.restart()
        shutil.rmtree(self._directory, ignore_errors=True)
        os.makedirs(self._directory, mode=0o700)

    def _close_gaps(self) -> None:
        """Note what has become of recorded files while there was no baseline, as nobody's."""
        for path in self._store.written():
            with suppress(OSError, TooLargeError):
                last = self._store.writes(path)[-1].after
                item = self.load(path, _algorithm_of(last, self.algorithm))
                now = None if item is None else item.version
                if last != now:
                    self._keep([] if item is None else [item], [])
                    self._store.record([(path, last, now)], None, "", "")

    def _finish(self, time: int, found: Found) -> None:
        top = self._indexes[self._root].top
        last = LastLook(top, dict(self._repositories), frozenset(found.hidden), time)
        last.save(os.path.join(self._directory, _LAST_LOOK), self._last)
        self._last = last

    def observe(self, path: bytes, loaded: Loaded | None) -> Change | None:
        """Return the change from the last record of `path` to `loaded`, its contents now; keep the bytes.

        None where it does not, or where the file is not to be recorded.
        """
        if self._last is not None and not self._indexes:
            self._open_all()
        before = self._contents.current(path, _UNKNOWN)
        if before is _UNKNOWN:
            index = self._index_of(path)
            if index is None or self.rules.excluded([os.fsdecode(path)]):
                return None
            name = _below(path, index)
            before = index.entry(name)
            if before is None and loaded is None:
                self._seen.add(path)
                return None
            if before is None and not index.lists(name):
                return None
        after = None if loaded is None else loaded.version
        known = self._is_known(path, before)
        self._seen.add(path)
        if before == after:
            return None
        self._keep([] if loaded is None else [loaded], [] if before is None else [before])
        if self._observed is not None:
            self._observed.add(path)
        return Change(path, before, after, known)

    def records(self, paths: Sequence[bytes]) -> bool:
        """Return whether each of the files `paths` is recorded, by now or by the next look.

        One that is not there counts if it would be.

        :raises GitError, OSError: when that fails
        """
        if self._last is None or self.rules.excluded([os.fsdecode(path) for path in paths]):
            return False
        self._open_all()
        there: dict[Index, list[bytes]] = {}
        new: dict[Index, list[bytes]] = {}
        for path in paths:
            index = self._index_of(path)
            is_there = os.path.lexists(path)
            if index is None or (is_there and _why_not(path, os.lstat(path)) is not None):
                return False
            (there if is_there else new).setdefault(index, []).append(_below(path, index))
        recorded = all(index.lists(*names) for index, names in there.items())
        return recorded and not any(index.ignores(*names) for index, names in new.items())

    def directories(self) -> set[bytes]:
        """Return the absolute names of the directories in which files are recorded.

        :raises GitError, OSError: when that fails
        """
        self._open_all()
        indexes = [index for scope, index in self._indexes.items() if os.path.isdir(scope)]
        return {directory for index in indexes for directory in index.directories()}

    def text(self, digest: str) -> bytes | None:
        """Return the bytes of `digest`, None where they are not there any more."""
        data = self._contents.get(digest)
        return self.fetch([digest]).get(digest) if data is None else data

    def fetch(self, digests: Iterable[str]) -> dict[str, bytes]:
        """Return the bytes of those of `digests` that only the user's repositories have."""
        found: dict[str, bytes] = {}
        lacking = self._contents.lacking(digests)
        if lacking:
            self._open_all()
        for index in self._indexes.values() if lacking else ():
            with suppress(GitError):
                found.update(index.objects.blobs([digest for digest in lacking if digest not in found]))
        return found

    def committed(self) -> dict[bytes, Version | None]:
        """Return the files that differ from the last commit, with their versions in it.

        :raises GitError: when that fails
        """
        index = self._indexes[self._root]
        return {index.prefix + path: version for path, version in index.committed().items()}

    # --- One repository ---

    def _list(self, scope: str, found: Found) -> Look:
        """List the files of the repository `scope`; let it go on with those within it that are none any more."""
        index = self._open(scope)
        first = self._last is None
        index.set_rules(self._rule_lines(index))
        listing = self._list_first(index) if first else index.changes()
        nested = [path for path in listing.nested if os.path.lexists(os.path.join(index.prefix, path, b".git"))]
        listing = replace(listing, nested=nested)
        for other in sorted(self._repositories):
            if other != scope and self._around(other) == scope and _below(os.fsencode(other), index) not in nested:
                self._take_over(other)
        return Look(index, first, listing, self._recorded(index, listing, found))

    def _list_first(self, index: Index) -> Listing:
        """Let `index` have the files whose bytes the user's repository keeps, and list all others."""
        if self._lends(index) and index.copy_users_index():
            listing = index.changes()
            if not index.configuration.converts((*listing.unknown, *listing.ignored)):
                return listing
        index.clear()
        return index.changes()

    def _lends(self, index: Index) -> bool:
        """Whether the repository of `index` keeps its objects when its directory is deleted."""
        repository, root = index.repository, self._indexes[self._root]
        if repository is None or index is root:
            return repository is not None
        inside = f"{repository.common}/"
        outside = root.repository is not None and inside.startswith(f"{root.repository.common}/")
        return outside or not inside.startswith(f"{self._root}/")

    def _around(self, scope: str) -> str:
        """Return the innermost repository around the repository `scope`."""
        found = (each for each in self._repositories if scope.startswith(f"{each}/"))
        return max(found, key=len, default=self._root)

    def _take_over(self, scope: str) -> None:
        """Let the repository around `scope`, which is none any more or is ignored, go on with its files."""
        index = self._open(scope)
        entries = ((index.prefix + path, version) for path, version in index.entries())
        files = {name: self._contents.current(name, version) for name, version in entries}
        for name in self._excluded(files):
            del files[name]
        # Also of files whose mode alone was recorded.
        lacking = self._contents.lacking(version.digest for version in files.values() if version is not None)
        for start in range(0, len(lacking), _CHUNK):
            self._contents.put(index.objects.blobs(lacking[start : start + _CHUNK]).items())
        self._contents.set_current(files.items())
        self._moved |= self._moved_from(index)
        if self._observed is not None:
            self._observed.update(files)
        del self._indexes[scope], self._repositories[scope]
        shutil.rmtree(index.directory, ignore_errors=True)

    def _moved_in(self, looks: Sequence[Look]) -> set[int]:
        """Return the inodes of the files that may have other names now, if `looks` found any older files."""
        new = (look.index.prefix + path for look in looks for path in look.listing.unknown)
        if self._last is None or all(inode_of_older(name, self._last.time) is None for name in new):
            return set()
        # Also where none is listed as gone: it may have been renamed between two lists.
        return {inode for look in looks if not look.first for inode in self._moved_from(look.index)}

    def _inodes_in(self, looks: Sequence[Look]) -> Iterator[tuple[bytes, int]]:
        """Yield the files that `looks` have listed whose state before is known, with their inodes."""
        for look in looks:
            for name in look.names():
                before = look.listing.changed.get(name[len(look.index.prefix) :])
                # In this order: one that has gone meanwhile is not known to be newer than the last look.
                if self._is_known(name, before) and (inode := inode_at(name)) is not None:
                    yield name, inode

    def _moved_from(self, index: Index) -> set[int]:
        """Return the inodes of the recorded files in `index` that are not at their places any more."""
        found = {index.prefix + path: inode for path, inode in index.moved().items()}
        # The user's index, which it may be a copy of, has excluded files as well.
        excluded = self._excluded(found)
        return {inode for name, inode in found.items() if name not in excluded}

    def _excluded(self, names: Iterable[bytes]) -> set[bytes]:
        """Return those of `names` that must not be recorded."""
        return set(map(os.fsencode, self.rules.excluded([os.fsdecode(name) for name in names])))

    def _open_all(self) -> None:
        for scope in (self._root, *self._repositories):
            self._open(scope)

    def _open(self, scope: str) -> Index:
        index = self._indexes.get(scope)
        if index is None:
            repository = find_repository(scope)
            if scope != self._root and (repository is None or repository.top != scope):
                repository = self._repositories.get(scope)
            index = Index(os.path.join(self._directory, _name(scope, self._root)), scope, self._environ, repository)
            index.open()
            self._indexes[scope] = index
            if scope != self._root:
                self._repositories[scope] = repository
        return index

    def _rule_lines(self, index: Index) -> bytes:
        # The patterns of the ignore files are relative to the root.
        return self.rules.lines() if index.top == self._root else b""

    def _recorded(self, index: Index, listing: Listing, found: Found) -> list[bytes]:
        """Return those paths of `listing` that may be recorded, and drop the others from `index`."""
        inner = [index.prefix + path + b"/" for path in listing.nested]
        observed = [
            _below(path, index)
            for path in self._observed or ()
            if self._index_of(path) is index and not path.startswith(tuple(inner))
        ]
        names = {
            path: os.fsdecode(name)
            for path in (*listing.changed, *listing.unknown, *observed)
            if not self._skip(name := index.prefix + path)
        }
        excluded = self.rules.excluded(names.values())
        index.drop([path for path in listing.changed if names.get(path) in excluded])
        found.hidden.update(index.prefix + path for path in listing.ignored)
        found.hidden.update(map(os.fsencode, excluded))
        return [path for path, name in names.items() if name not in excluded]

    def _leave_skipped(self, look: Look, found: Found) -> Iterator[bytes]:
        """Yield the skipped files that are new; hide those that may have been there."""
        for name in (look.index.prefix + path for path in look.listing.unknown):
            if self._skip(name):
                if self._is_known(name, None):
                    yield name
                else:
                    found.hidden.add(name)

    def _is_known(self, path: bytes, before: Version | None) -> bool:
        """Whether `path` was `before` at the last look, or since: for None, that it was not there."""
        if path in self._seen:
            return True
        if self._last is None or self._last.hid(path):
            return False
        if before is not None:
            return True
        inode = inode_of_older(path, self._last.time)
        return inode is None or inode in self._moved

    def _begin(self, look: Look, found: Found) -> None:
        """Take the files of the first `look` as they are."""
        index = look.index
        try:
            files = self._within_limits(look, found)
        except LimitError:
            if self._lends(index) or not index.copy_users_index():
                raise
            # Now, if its directory is deleted, what was committed is lost.
            listing = index.changes()
            look = replace(look, listing=listing, paths=self._recorded(index, listing, found))
            files = self._within_limits(look, found)
        index.update(list(files))
        gone = [path for path in look.paths if path not in files]
        if self._lends(index) and len(files) > _CHUNK and (stored := index.objects.stored_digests()):
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
                found.leave_out(name, error)
                item = None
            if item is None:
                gone.append(path)
                continue
            versions[path] = item.version
            loaded.append((name, item))
            size += len(item.data) + _ITEM_BYTES
            if size > _BATCH_BYTES:
                self._contents.begin_with(loaded)
                loaded, size = [], 0
        self._contents.begin_with(loaded)
        # Of the user's index; also what the user has deleted and not committed.
        index.drop(gone)
        self._note_modes(index)
        # A file may have been written since the index took it.
        self._contents.set_current((index.prefix + path, versions[path]) for path in index.differing(versions))

    def _note_modes(self, index: Index) -> None:
        """Note which files have other modes than the two that git knows of files."""
        start = time.time()
        noted: list[tuple[bytes, Version]] = []
        for path, version in index.entries():
            name = index.prefix + path
            with suppress(OSError):
                status = os.lstat(name)
                if stat.S_ISREG(status.st_mode) and version.mode != LINK:
                    is_new = self._note_if_new(name, status, start)
                    if is_new or mode_of(status) != version.mode:
                        noted.append((name, replace(version, mode=mode_of(status))))
        excluded = self._excluded(name for name, _ in noted)
        self._contents.set_current(item for item in noted if item[0] not in excluded)

    def _note_if_new(self, name: bytes, status: os.stat_result, start: float) -> bool:
        """Note the file `name` if it was changed in the second of `start` or later; return whether it was.

        Git tells times by the second, and would not see another change of its mode.
        """
        is_new = int(status.st_ctime + _CLOCK_S) >= int(start)
        if is_new:
            self._new.add(name)
        return is_new

    def _find_new_modes(self) -> set[bytes]:
        """Return those of the files that were just noted as new that have other modes now than recorded."""
        start, names = time.time(), self._new
        self._new = set()
        found: set[bytes] = set()
        for name in names:
            known = self._contents.current(name, None)
            with suppress(OSError):
                status = os.lstat(name)
                self._note_if_new(name, status, start)
                if known is not None and stat.S_ISREG(status.st_mode) and mode_of(status) != known.mode:
                    found.add(name)
        return found

    def _within_limits(self, look: Look, found: Found) -> dict[bytes, bool]:
        """Return those files of `look` that can be recorded, and whether each is a regular file.

        Add the others to `found`.  LimitError for too much of them.
        """
        if len(look.paths) > MAX_FILES:
            raise LimitError(f"it has {len(look.paths)} files, and {MAX_FILES} are the limit")
        result: dict[bytes, bool] = {}
        total = 0
        for path in look.paths:
            name = look.index.prefix + path
            try:
                status = os.lstat(name)
            except (FileNotFoundError, NotADirectoryError):
                continue
            if path in look.listing.changed and _is_behind_link(name):
                continue
            reason = _why_not(name, status)
            if reason is None:
                result[path] = stat.S_ISREG(status.st_mode)
                total += status.st_size
            else:
                found.leave_out(name, reason)
        if total > MAX_TOTAL_BYTES:
            raise LimitError(f"its files have {total >> 20} MiB, and {MAX_TOTAL_BYTES >> 20} are the limit")
        return result

    def _compare(self, look: Look, found: Found) -> None:
        """Add the changes in `look` to `found`, and take its files into the index."""
        index, paths = look.index, look.paths
        there: dict[bytes, Version] = {}
        gone: list[bytes] = []
        for start in range(0, len(paths), _CHUNK):
            loaded: list[Loaded] = []
            changes: list[Change] = []
            for path in paths[start : start + _CHUNK]:
                name = index.prefix + path
                before = self._contents.current(name, look.listing.changed.get(path))
                try:
                    item = self.load(name, _algorithm_of(before, index.algorithm))
                except (OSError, TooLargeError) as error:
                    # What it is now will not be known when it can be recorded again.
                    gone.append(path)
                    self._listed.pop(name, None)
                    if self._is_newer(name):
                        found.leave_out(name, error)
                    found.hidden.add(name)
                    continue
                if item is None:
                    gone.append(path)
                else:
                    there[path] = replace(item.version, mode=git_mode(item.version.mode))
                change = Change(name, before, None if item is None else item.version)
                if change.before != change.after:
                    change = replace(change, known=self._is_known(name, before))
                    changes.append(change)
                    if item is not None:
                        loaded.append(item)
                    if not change.known and self._is_newer(name):
                        found.left_out.append(_why(name, UnknownBeforeError()))
            self._keep(loaded, [change.before for change in changes if change.before], len(paths) > _MANY)
            self._record(changes)
            found.changes += [change for change in changes if change.known]
        start = time.time()
        # Last: files that the index takes for unchanged are not read again.
        self._take_in(look, there, gone)
        for change in found.changes:
            with suppress(OSError):
                self._note_if_new(change.path, os.lstat(change.path), start)

    def _take_in(self, look: Look, there: Mapping[bytes, Version], gone: Sequence[bytes]) -> None:
        """Take the files of `look` into its index: those `there`, with git's modes, and those `gone`."""
        index = look.index
        index.update(list(there))
        index.drop(gone)
        names = (index.prefix + path for path in gone)
        self._missed.update(self._listed[name] for name in names if name in self._listed)
        if self._observed is not None:
            self._observed.difference_update(index.prefix + path for path in look.paths)
            # Written or deleted since they were read here: the index knows what is not recorded.
            self._observed.update(index.prefix + path for path in index.differing(there))

    def load(self, name: bytes, algorithm: str = "") -> Loaded | None:
        """Return the file `name`, with a digest by `algorithm` or that of the root; None also for one behind a link.

        :raises TooLargeError: for a file too large to record
        :raises OSError: where it cannot be read
        """
        return None if _is_behind_link(name) else load(name, algorithm or self.algorithm)

    def _is_newer(self, name: bytes) -> bool:
        """Return whether the file `name` has been changed since the last look, in any way."""
        with suppress(OSError):
            return self._last is None or os.lstat(name).st_ctime_ns >= self._last.time
        return False

    def _keep(self, after: Sequence[Loaded], before: Sequence[Version], sparingly: bool = False) -> None:
        """Keep the bytes of `after`, and those of `before` as long as they can be had."""
        items = {item.version.digest: item.data for item in after}
        lacking = self._contents.lacking(version.digest for version in before)
        if sparingly:
            for index in filter(self._lends, self._indexes.values()):
                items = {digest: items[digest] for digest in index.objects.unavailable(items)}
        else:
            for index in self._indexes.values():
                got = index.objects.blobs([digest for digest in lacking if digest not in items])
                items.update(got)
        self._contents.put(items.items())

    def _index_of(self, path: bytes) -> Index | None:
        """Return the index of the innermost repository that `path` is in."""
        name = os.fsdecode(path)
        scopes = [scope for scope in self._indexes if name.startswith(scope.rstrip("/") + "/")]
        return self._indexes[max(scopes, key=len)] if scopes else None


Record = Callable[[Sequence[Change]], None]
"""Keeps changes for good."""

_CLOCK_S = 0.1
"""The clock that stamps files may be late by so much."""

_LAST_LOOK = "last-look"
"""The name of the file for the last look."""

_SHA256_DIGITS = 64

_UNKNOWN = Version("", 0)


def _below(path: bytes, index: Index) -> bytes:
    return os.path.relpath(path, os.fsencode(index.top))


def _is_behind_link(name: bytes) -> bool:
    """Return whether a directory above the file `name` is a link by now."""
    directory = os.path.dirname(name)
    return os.path.realpath(directory) != directory


def _algorithm_of(version: Version | None, otherwise: str) -> str:
    """Return by which algorithm `version` has its digest."""
    return otherwise if version is None else "sha256" if len(version.digest) == _SHA256_DIGITS else "sha1"


def _name(scope: str, root: str) -> str:
    """Return the name of the directory for the index of `scope`."""
    return "root" if scope == root else f"in-{hashlib.sha256(os.fsencode(scope)).hexdigest()[:32]}"


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
