# SPDX-License-Identifier: GPL-3.0-or-later
"""The files below a root of this machine, for its baseline: scanned with git, and read from the disk."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from qwen_companion.base.git import GitError
from qwen_companion.files.listing import Lister, WorkTree
from qwen_companion.files.repository import Repository, find_repository
from qwen_companion.files.rules import RecordRules
from qwen_companion.files.stamps import created_ns
from qwen_companion.files.table import Change, Look, Table
from qwen_companion.files.versions import Loaded, TooLargeError, Version, algorithm_of, is_behind_link, load, why_not
from qwen_companion.journal.baselines import CHUNK, Begun, LimitError, Scan, check_limits, read_scan
from qwen_companion.journal.contents import Contents

_FETCHED = 8 * 1024 * 1024
"""Bytes of blobs that are requested from git at once: all of them are in memory."""


_LARGE = 1024 * 1024
"""Bytes of a file that does not stay in memory while others are read."""


class LocalFiles:
    """The files below a root.  Its methods block on git and the disk."""

    def __init__(
        self, directory: str, root: str, environ: Mapping[str, str], contents: Contents, rules: RecordRules
    ) -> None:
        """`root` is a true name; repositories of ours are kept in `directory`."""
        self._root = root
        self._contents = contents
        scan = read_scan(contents)
        lost = None if scan is None else scan.repositories.get(root)
        if scan is None or (lost is not None and not os.path.isdir(lost.objects)):
            # What the user's repository had is lost, or this is of an earlier version.
            scan = None
            contents.restart()
            shutil.rmtree(directory, ignore_errors=True)
        self._lister = Lister(directory, root, environ, rules, scan.repositories if scan else {})
        repository = find_repository(root)
        self._algorithm = "sha1" if repository is None else repository.algorithm
        self._directories: set[bytes] | None = None
        """Those of the last scan in this process."""
        self._read: dict[bytes, Loaded] = {}

    @property
    def repositories(self) -> Mapping[str, Repository]:
        """Return the user's repositories, by directory."""
        return self._lister.repositories

    def look(self, table: Table, last: Scan | None, others: Collection[bytes]) -> Look:
        """Scan all files, and the files `others`, since the `last` scan; return the differences from `table`.

        :raises GitError, OSError: if that fails
        """
        look = self._lister.look(table, last is None, others)
        self._directories = {os.fsencode(self._root), *(name for name, is_real in look.directories.items() if is_real)}
        if last is not None:
            look.repositories.update(self._made_around((*look.changed, *look.gone), last.time))
        return look

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

    def done(self) -> None:
        """Note that the result of the last `look` is recorded."""

    def begin(self, look: Look, names: Sequence[bytes]) -> Iterator[Begun]:
        """Yield those files `names` of the first `look` that can be recorded; leave out the others.

        Yield also their versions, and their bytes unless one of the user's repositories has them.

        :raises LimitError: if they are too many or too large
        """
        lenders = self._lister.lenders()
        lent, digests = _borrowed(lenders, look)
        try:
            files = _within_limits(look, names, lent)
        except LimitError:
            # Now: if the directory of a repository within is deleted, what was committed there is lost.
            lenders = self._lister.lenders(any_place=True)
            lent, digests = _borrowed(lenders, look)
            files = _within_limits(look, names, lent)
        yield from ((name, lent[name], None) for name in files if name in lent)
        doubtful: list[tuple[bytes, Loaded]] = []
        for name in files:
            try:
                is_regular = stat.S_ISREG(look.changed[name].st_mode)
                item = None if name in lent else load(name, self._algorithm, is_regular)
            except (OSError, TooLargeError) as error:
                look.leave_out(name, error)
                continue
            if item is not None and item.version.digest in digests:
                doubtful.append((name, item))
            elif item is not None:
                yield name, item.version, item.data
            if len(doubtful) >= CHUNK or (doubtful and len(doubtful[-1][1].data) > _LARGE):
                yield from _unlent(lenders, doubtful)
                doubtful = []
        yield from _unlent(lenders, doubtful)

    def read(self, name: bytes, before: Version | None) -> Version | None:
        """Return the version of the file `name`, which was `before`; None if it is gone.

        :raises TooLargeError, OSError: if it cannot be recorded
        """
        item = self.load(name, self._algorithm if before is None else algorithm_of(before.digest))
        if item is not None:
            self._read[name] = item
        return None if item is None else item.version

    def keep(self, changes: Sequence[Change], sparingly: bool) -> set[bytes]:
        """Store the bytes before and after `changes`, of files that were just read.

        Return the files that have changed again meanwhile.  Store `sparingly` none that a repository keeps.
        """
        items = {item.version.digest: item.data for each in changes if (item := self._read.get(each.path)) is not None}
        self._read.clear()
        if sparingly:
            for tree in self._lister.lenders():
                items = {digest: items[digest] for digest in tree.objects.unavailable(items)}
        else:
            lacking = self._contents.lacking(change.before.digest for change in changes if change.before is not None)
            for objects in self._lister.objects() if lacking else ():
                items.update(objects.blobs([digest for digest in lacking if digest not in items]))
        self._contents.put(items.items())
        return set()

    def status(self, path: bytes) -> tuple[os.stat_result | None, int]:
        """Return the status of the file `path`, None without one, and when it was created, in ns."""
        status = _status_of(path)
        return status, 0 if status is None else created_ns(path, status)

    def lists(self, path: bytes) -> bool:
        """Return whether the file `path` is tracked, or exists and is not ignored."""
        return self._lister.tree_of(path).lists([path])

    def records(self, paths: Sequence[bytes], table: Table) -> bool:
        """Return whether all the files `paths` are in `table`, or the next scan would record them.

        :raises GitError, OSError: if that fails
        """
        for path in paths:
            status = _status_of(path)
            if status is not None and why_not(path, status) is not None:
                return False
            tree = self._lister.tree_of(path)
            if path not in table and (tree.ignores([path]) if status is None else not tree.lists([path])):
                return False
        return True

    def load(self, name: bytes, algorithm: str = "") -> Loaded | None:
        """Return the file `name`, with a digest by `algorithm` or that of the root; None also for a file behind a link.

        :raises TooLargeError: for a file too large to record
        :raises OSError: if it cannot be read
        """
        return None if is_behind_link(name) else load(name, algorithm or self._algorithm)

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

    def directories(self, table: Table) -> set[bytes]:
        """Return the absolute names of the directories with files, and of those above.

        :raises GitError, OSError: if that fails
        """
        if self._directories is None:
            self.look(table, None, ())
        return self._directories or set()

    def committed(self) -> dict[bytes, Version]:
        """Return the files in the last commit, with their versions in it.

        :raises GitError, OSError: if there is no commit
        """
        return self._lister.tree_of(os.fsencode(os.path.join(self._root, "."))).committed()


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


def _unlent(lenders: Iterable[WorkTree], files: Sequence[tuple[bytes, Loaded]]) -> Iterator[Begun]:
    """Yield `files` with their versions, and their bytes unless a repository of `lenders` has them.

    Files that git stores in another form may have the bytes of a blob, or not.
    """
    lacking = {item.version.digest for _, item in files}
    for tree in lenders:
        lacking = tree.objects.unavailable(lacking)
    for name, item in files:
        yield name, item.version, item.data if item.version.digest in lacking else None


def _within_limits(look: Look, names: Sequence[bytes], lent: Mapping[bytes, Version]) -> list[bytes]:
    """Return those files `names` of `look` that can be recorded; leave out the others.

    :raises LimitError: if those that are not `lent` are too many or too large
    """
    check_limits(sum(name not in lent for name in names), 0)
    result: list[bytes] = []
    for name in names:
        reason = look.failed.get(name) or why_not(name, look.changed[name])
        if reason is None:
            result.append(name)
        else:
            look.leave_out(name, reason)
    check_limits(0, sum(look.changed[name].st_size for name in result if name not in lent))
    return result


def _status_of(path: bytes) -> os.stat_result | None:
    with suppress(OSError):
        return os.lstat(path)
    return None
