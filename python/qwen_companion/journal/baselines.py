# SPDX-License-Identifier: GPL-3.0-or-later
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
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from qwen_companion.base.errors import CompanionError
from qwen_companion.base.git import GitError
from qwen_companion.files.listing import Lister, WorkTree
from qwen_companion.files.repository import Repository, find_repository
from qwen_companion.files.rules import RecordRules
from qwen_companion.files.stamps import created_ns
from qwen_companion.files.table import Look, Table
from qwen_companion.files.versions import (
    Loaded,
    TooLargeError,
    Version,
    algorithm_of,
    git_mode,
    is_behind_link,
    load,
    why_not,
)
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

_FETCHED = 8 * 1024 * 1024
"""Bytes of blobs that are requested from git at once: all of them are in memory."""

_UNKNOWN = Version("", 0)


@dataclass(frozen=True)
class Change:
    """The file `path`, an absolute name, was `before` at the last scan, and is `after` now.

    Unless it is `known`, it may have been something else too.  `linked`: it is a name of another file now.
    """

    path: bytes
    before: Version | None
    after: Version | None
    known: bool = True
    linked: bool = False


@dataclass
class Found:
    """The known `changes` since the last scan, and messages for the user about files `left_out` of the record.

    `hidden` are all skipped files, see `Scan`; `repositories` the private directories of repositories.
    """

    changes: list[Change] = field(default_factory=list[Change])
    left_out: list[str] = field(default_factory=list[str])
    hidden: set[bytes] = field(default_factory=set[bytes])
    repositories: set[str] = field(default_factory=set[str])

    def leave_out(self, name: bytes, error: Exception) -> None:
        """Note that the file `name` is not recorded because of `error`."""
        self.warn(name, error)
        self.hidden.add(name)

    def warn(self, name: bytes, error: Exception) -> None:
        """Tell the user of `error` with the file `name`."""
        reason = error.strerror if isinstance(error, OSError) else str(error)
        self.left_out.append(f"{os.fsdecode(name).encode('utf-8', 'replace').decode()}: {reason}")


Keep = Callable[[Sequence[Change]], None]
"""Stores changes permanently."""

Skip = Callable[[bytes], bool]
"""Returns whether a scan should skip a file because another part records it."""


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


def _read_scan(facts: str, time: int) -> Scan | None:
    """Return the scan with these `facts`, None for none."""
    with suppress(ValueError, TypeError, AttributeError):
        hidden, repositories = json.loads(facts)
        found = {scope: Repository(**values) for scope, values in repositories.items()}
        return Scan(time, frozenset(map(os.fsencode, hidden)), found)
    return None


class Baseline:
    """Follows the files below one root.  Its methods block on git and the disk, and must not overlap."""

    def __init__(self, directory: str, root: str, environ: Mapping[str, str], store: Store, rules: RecordRules) -> None:
        """`root` is a true name; repositories of ours are kept in `directory`."""
        self._store = store
        self._contents = store.contents
        self._rules = rules
        self._root = root
        stored = self._contents.load_scan()
        self._last = None if stored is None else _read_scan(*stored)
        lost = None if self._last is None else self._last.repositories.get(root)
        if self._last is None or (lost is not None and not os.path.isdir(lost.objects)):
            # What the user's repository had is lost, or this is of an earlier version.
            self._last = None
            shutil.rmtree(directory, ignore_errors=True)
        self._lister = Lister(directory, root, environ, rules, self._last.repositories if self._last else {})
        self._table = Table(root, self._contents.load_rows() if self._last else {})
        repository = find_repository(root)
        self._algorithm = "sha1" if repository is None else repository.algorithm
        self._directories: set[bytes] | None = None
        """Those of the last scan in this process."""
        self._seen: set[bytes] = set()
        """Files whose previous state is known since the last scan, including the fact that they did not exist."""
        self._observed = set(self._contents.recorded()) if self._last else set[bytes]()
        """Files that may have been recorded since the last scan: the table may not have them."""
        self._moved: dict[int, int] = {}
        """Inodes of recorded files that are missing, with the times of their last changes."""

    @property
    def is_complete(self) -> bool:
        """Whether the first scan is complete."""
        return self._last is not None

    def recorded(self) -> set[bytes]:
        """Return the recorded files."""
        return set(self._table)

    def take(self, record: Keep, skip: Skip = lambda _path: False) -> Found:
        """Scan all files except those to `skip`, and `record` the changes; the first scan has none.

        :raises GitError, LimitError, StoreError, OSError: if that fails
        """
        self._rules.refresh()
        if self._last is None:
            # There may be remains of another baseline.
            self._contents.restart()
            self._table = Table(self._root, {})
        look = self._lister.look(self._table, self._last is None, self._observed)
        found = Found([], look.left_out, look.hidden, look.repositories)
        self._directories = {os.fsencode(self._root), *(name for name, is_real in look.directories.items() if is_real)}
        names = [*look.changed, *look.failed, *(look.gone | (look.missing & self._observed))]
        excluded = self._rules.excluded(names)
        for name in excluded:
            self._table.drop(name)
        gone = self._moved_away(look, names)
        found.hidden |= excluded
        own = {self._rules.own_directory(os.fsdecode(name)) for name in found.hidden}
        found.repositories.update(directory for directory in own if directory is not None)
        names = [name for name in names if name not in excluded and not skip(name)]
        if self._last is None:
            self._begin(look, names, found)
            self._close_gaps()
        else:
            found.repositories.update(self._made_around(names, self._last.time))
            self._seen = set(self._leave_skipped(look, skip, found))
            self._moved |= gone
            self._compare(self._last, look, names, found, record)
        self._finish(look, found, skip)
        return found

    def _finish(self, look: Look, found: Found, skip: Skip) -> None:
        scan = Scan(look.time, frozenset(found.hidden), dict(self._lister.repositories))
        self._contents.save_scan(scan.facts(), scan.time, self._table.unsaved())
        self._last = scan
        self._observed = set(filter(skip, self._observed))

    # --- The first scan ---

    def _begin(self, look: Look, names: Sequence[bytes], found: Found) -> None:
        """Record the files `names` as they are; store the bytes that the user's repository cannot restore."""
        lenders = self._lister.lenders()
        lent, digests = _borrowed(lenders, look)
        try:
            files = self._within_limits(look, names, lent, found)
        except LimitError:
            # Now: if the directory of a repository within is deleted, what was committed there is lost.
            lenders = self._lister.lenders(any_place=True)
            lent, digests = _borrowed(lenders, look)
            files = self._within_limits(look, names, lent, found)
        batch = _Batch(self._contents, lenders, digests)
        for name in files:
            version, status = lent.get(name), look.changed[name]
            if version is None:
                try:
                    item = load(name, self._algorithm, is_regular=stat.S_ISREG(status.st_mode))
                except (OSError, TooLargeError) as error:
                    found.leave_out(name, error)
                    continue
                if item is None:
                    continue
                version = item.version
                batch.add(name, item)
            self._table.put(name, version, status, look.time)
        batch.store()

    def _within_limits(
        self, look: Look, names: Sequence[bytes], lent: Mapping[bytes, Version], found: Found
    ) -> list[bytes]:
        """Return those files `names` of `look` that can be recorded; add the others to `found`.

        :raises LimitError: if those that are not `lent` are too many or too large
        """
        count = sum(name not in lent for name in names)
        if count > MAX_FILES:
            raise LimitError(f"it has {count} files, and {MAX_FILES} are the limit")
        result: list[bytes] = []
        total = 0
        for name in names:
            status = look.changed.get(name)
            reason = look.failed[name] if status is None else why_not(name, status)
            if status is None or reason is not None:
                found.leave_out(name, reason or look.failed[name])
                continue
            result.append(name)
            total += 0 if name in lent else status.st_size
        if total > MAX_TOTAL_BYTES:
            raise LimitError(f"its files have {total >> 20} MiB, and {MAX_TOTAL_BYTES >> 20} are the limit")
        return result

    def _close_gaps(self) -> None:
        """Record the state of the files after a time without a baseline, with no author."""
        for path in self._store.written():
            with suppress(OSError, TooLargeError):
                last = self._store.writes(path)[-1].after
                item = self.load(path, self._algorithm if last is None else algorithm_of(last.digest))
                now = None if item is None else item.version
                if last != now:
                    self._keep([] if item is None else [item], [])
                    self._store.record([(path, last, now)], None, "", "")

    # --- Later scans ---

    def _leave_skipped(self, look: Look, skip: Skip, found: Found) -> Iterator[bytes]:
        """Yield the skipped files that are new, or were seen before; hide those that may have existed."""
        yield from filter(skip, self._seen)
        for name, status in look.changed.items():
            if name not in self._table and skip(name):
                if self._is_known(name, None, status, look.created.get(name, 0)):
                    yield name
                else:
                    found.hidden.add(name)

    def _compare(self, last: Scan, look: Look, names: Sequence[bytes], found: Found, record: Keep) -> None:
        """Add the changes of the files `names` since the `last` scan to `found`, and update the table."""
        gone = self._moved_away(look, names)
        for start in range(0, len(names), CHUNK):
            loaded: list[Loaded] = []
            changes: list[Change] = []
            there: dict[bytes, Version | None] = {}
            for name in names[start : start + CHUNK]:
                try:
                    change, item = self._change(look, name)
                except (OSError, TooLargeError) as error:
                    # Its state will be unknown when it can be recorded again.
                    self._table.drop(name)
                    if _is_newer(name, last.time):
                        found.warn(name, error)
                    found.hidden.add(name)
                    continue
                there[name] = change.after
                status = look.changed.get(name)
                if item is None and status is not None and change.known:
                    # It was moved after it was listed.
                    gone[status.st_ino] = status.st_ctime_ns
                if change.before != change.after:
                    changes.append(change)
                    loaded += [item] if item is not None else []
                    if not change.known and _is_newer(name, last.time):
                        found.warn(name, UnknownBeforeError())
            self._keep(loaded, [change.before for change in changes if change.before], len(names) > _MANY)
            record(changes)
            found.changes += [change for change in changes if change.known]
            self._update(look, there)
        self._moved = gone

    def _made_around(self, names: Iterable[bytes], moment: int) -> Iterator[str]:
        """Yield the private directories of repositories that were made since `moment` around the files `names`.

        Git lists the files in one without commits as those of the repository around it.
        """
        directories: set[bytes] = set()
        for name in names:
            while len(name := os.path.dirname(name)) > len(self._root) and name not in directories:
                directories.add(name)
        for own in (os.path.join(directory, b".git") for directory in directories):
            status = _status_of(own)
            if status is not None and stat.S_ISDIR(status.st_mode) and created_ns(own, status) >= moment:
                yield os.fsdecode(own)

    def _moved_away(self, look: Look, names: Sequence[bytes]) -> dict[int, int]:
        """Return the inodes of the recorded files of `names` that are missing, and the times of their last changes."""
        found: dict[int, int] = {}
        for name in names:
            recorded, status = self._table.inode(name), look.changed.get(name)
            if recorded is not None and (status is None or status.st_ino != recorded[0]):
                found[recorded[0]] = recorded[1]
        return found

    def _change(self, look: Look, name: bytes) -> tuple[Change, Loaded | None]:
        """Return the change of the file `name` since the last scan, which may be none, and the file.

        :raises TooLargeError, OSError: if it cannot be recorded
        """
        if name in look.failed:
            raise look.failed[name]
        status, recorded = look.changed.get(name), self._table.inode(name)
        before = self._contents.current(name, self._table.version(name))
        item = None if status is None else self.load(name, _algorithm_of(before, self._algorithm))
        known = self._is_known(name, before, status, look.created.get(name, 0))
        linked = status is not None and status.st_nlink > 1 and recorded is not None and recorded[0] != status.st_ino
        return Change(name, before, None if item is None else item.version, known, linked), item

    def _update(self, look: Look, there: Mapping[bytes, Version | None]) -> None:
        """Note in the table the versions of files that were read; None for missing ones."""
        for name, version in there.items():
            if version is None:
                self._table.drop(name)
            else:
                self._table.put(name, version, look.changed[name], look.time)

    def _is_known(self, name: bytes, before: Version | None, status: os.stat_result | None, created: int) -> bool:
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
            if before is None and not self._lister.tree_of(path).lists([path]):
                return None
        after = None if loaded is None else loaded.version
        status = _status_of(path)
        created = 0 if status is None else created_ns(path, status)
        known = path in self._seen or self._is_known(path, before, status, created)
        self._seen.add(path)
        if before == after:
            return None
        self._keep([] if loaded is None else [loaded], [] if before is None else [before])
        self._observed.add(path)
        return Change(path, before, after, known)

    def records(self, paths: Sequence[bytes]) -> bool:
        """Return whether all the files `paths` are recorded, now or by the next scan.

        A missing file counts as recorded if it would be.

        :raises GitError, OSError: if that fails
        """
        if self._last is None or self._rules.excluded(paths):
            return False
        for path in paths:
            status = _status_of(path)
            if status is not None and why_not(path, status) is not None:
                return False
            tree = self._lister.tree_of(path)
            if path not in self._table and (tree.ignores([path]) if status is None else not tree.lists([path])):
                return False
        return True

    def load(self, name: bytes, algorithm: str = "") -> Loaded | None:
        """Return the file `name`, with a digest by `algorithm` or that of the root; None also for a file behind a link.

        :raises TooLargeError: for a file too large to record
        :raises OSError: if it cannot be read
        """
        return None if is_behind_link(name) else load(name, algorithm or self._algorithm)

    def directories(self) -> set[bytes]:
        """Return the absolute names of the directories in which files are recorded, and of those above.

        :raises GitError, OSError: if that fails
        """
        if self._directories is None:
            look = self._lister.look(self._table, is_first=True)
            self._directories = {os.fsencode(self._root), *(name for name, real in look.directories.items() if real)}
        return {name for name in self._directories if self._is_recorded(name)}

    def committed(self) -> dict[bytes, Version | None]:
        """Return the files that may differ from the last commit, with their versions in it; None without one.

        :raises GitError: if there is no commit
        """
        committed = self._lister.tree_of(os.fsencode(os.path.join(self._root, "."))).committed()
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

    # --- Bytes ---

    def text(self, digest: str) -> bytes | None:
        """Return the bytes of `digest`, None if they are no longer available."""
        data = self._contents.get(digest)
        return self.fetch([digest]).get(digest) if data is None else data

    def fetch(self, digests: Iterable[str]) -> dict[str, bytes]:
        """Return the bytes of those of `digests` that only the user's repositories have.

        If they are many and large, return only some.
        """
        found: dict[str, bytes] = {}
        lacking = self._contents.lacking(digests)
        for objects in self._lister.objects() if lacking else ():
            with suppress(GitError):
                left = [digest for digest in lacking if digest not in found]
                found.update(objects.blobs(objects.few(left, _FETCHED)))
        return found

    def _keep(self, after: Sequence[Loaded], before: Sequence[Version], sparingly: bool = False) -> None:
        """Store the bytes of `after`, and those of `before` while they are available."""
        items = {item.version.digest: item.data for item in after}
        if sparingly:
            for tree in self._lister.lenders():
                items = {digest: items[digest] for digest in tree.objects.unavailable(items)}
        else:
            lacking = self._contents.lacking(version.digest for version in before)
            for objects in self._lister.objects() if lacking else ():
                items.update(objects.blobs([digest for digest in lacking if digest not in items]))
        self._contents.put(items.items())


class _Batch:
    """Stores the bytes of files of a first baseline, many at once."""

    def __init__(self, contents: Contents, lenders: Sequence[WorkTree], digests: Set[str]) -> None:
        """Leave out those of `digests` that a repository of `lenders` has."""
        self._contents = contents
        self._lenders = lenders
        self._digests = digests
        self._files: list[tuple[bytes, Loaded]] = []
        self._size = 0

    def add(self, name: bytes, item: Loaded) -> None:
        """Store the bytes of the file `name`, now or later."""
        self._files.append((name, item))
        self._size += len(item.data) + _ITEM_BYTES
        if self._size > BATCH_BYTES:
            self.store()

    def store(self) -> None:
        """Store all."""
        wanted = lacking = {item.version.digest for _, item in self._files} & self._digests
        for tree in self._lenders:
            lacking = tree.objects.unavailable(lacking)
        lent = wanted - lacking
        self._contents.begin_with([each for each in self._files if each[1].version.digest not in lent])
        self._files, self._size = [], 0


def _borrowed(lenders: Iterable[WorkTree], look: Look) -> tuple[dict[bytes, Version], set[str]]:
    """Return what the user's indexes tell of the files of `look`, see `WorkTree.lent`."""
    lent: dict[bytes, Version] = {}
    digests: set[str] = set()
    for tree in lenders:
        with suppress(GitError, OSError):
            versions, found = tree.lent(look)
            lent |= versions
            digests |= found
    return lent, digests


def _status_of(path: bytes) -> os.stat_result | None:
    with suppress(OSError):
        return os.lstat(path)
    return None


def _is_newer(name: bytes, moment: int) -> bool:
    """Return whether the file `name` has been changed since `moment`, in any way."""
    status = _status_of(name)
    return status is not None and status.st_ctime_ns >= moment


def _algorithm_of(version: Version | None, otherwise: str) -> str:
    """Return the algorithm of the digest of `version`."""
    return otherwise if version is None else algorithm_of(version.digest)
