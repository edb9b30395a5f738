# SPDX-License-Identifier: GPL-3.0-or-later
"""Scan the files below one root: which exist and may be recorded, and which are skipped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from qwen_companion.base.git import GitError
from qwen_companion.journal.contents import Contents
from qwen_companion.journal.index import Index, Listing
from qwen_companion.journal.indexes import Indexes
from qwen_companion.journal.last_look import Evidence, inode_of_older
from qwen_companion.journal.rules import RecordRules
from qwen_companion.journal.versions import Version, inode_at

MAX_NESTED = 32
"""Most repositories within a root, including submodules, whose files are recorded."""

_MAX_LISTS = 3
"""Most attempts at listing files while they move."""

CHUNK = 500
"""Files that are recorded at once."""

Skip = Callable[[bytes], bool]
"""Returns whether a scan should skip a file because another part records it."""


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

    `hidden` are all skipped files, as in `LastLook`; `repositories` the private directories of repositories.
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


@dataclass(frozen=True)
class Look:
    """A scan of the repository of `index`: the files that git lists, and the `paths` of those that may be recorded."""

    index: Index
    first: bool
    listing: Listing
    paths: list[bytes]

    def names(self) -> Iterator[bytes]:
        """Yield the absolute names of the files that have changed or are unknown, if the index had any before."""
        if not self.first:
            yield from (self.index.prefix + path for path in (*self.listing.changed, *self.listing.unknown))


class Lister:
    """Lists the files of the repository of a root, and of those within it.  Its methods block on git and the disk."""

    def __init__(self, root: str, indexes: Indexes, evidence: Evidence, contents: Contents, rules: RecordRules) -> None:
        """`root` is a true name."""
        self._root = root
        self._indexes = indexes
        self._evidence = evidence
        self._contents = contents
        self._rules = rules
        self._skip: Skip = lambda _path: False

    def look(self, skip: Skip) -> tuple[Found, list[Look]]:
        """Scan all files except those to `skip`; add what the scan reveals about other paths to the evidence.

        :raises GitError, StoreError, OSError: if that fails
        """
        self._skip = skip
        found, looks = self._list_settled()
        self._evidence.moved |= self._moved_in(looks)
        self._evidence.listed = dict(self._inodes_in(looks))
        kept = set(filter(skip, self._evidence.seen))
        self._evidence.seen = kept.union(*(self._leave_skipped(look, found) for look in looks))
        return found, looks

    def _list_settled(self) -> tuple[Found, list[Look]]:
        """List the files; repeat that while a file may have moved from one repository to another."""
        gone: set[bytes] | None = None
        for _ in range(_MAX_LISTS - 1):
            found = Found()
            looks = self._list_all(found)
            before, gone = gone, {look.index.prefix + path for look in looks for path in look.listing.gone}
            there = (name for look in looks for name in look.names() if name not in gone)
            all_there = all(map(os.path.lexists, there))
            if all_there and (gone == before or not (self._evidence.moved or (gone and len(looks) > 1))):
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
                found.hidden.update(os.fsencode(each) for each in (scope, *waiting) if each not in self._indexes.nested)
                break
            try:
                look = self._list(scope, found)
            except GitError:
                if self._indexes.is_gone(scope):
                    continue
                raise
            looks.append(look)
            if os.path.isdir(own := os.path.join(look.index.top, ".git")):
                found.repositories.add(own)
            found.repositories.update(self._made_in(look))
            nested = [os.path.join(look.index.top, os.fsdecode(path)) for path in look.listing.nested]
            waiting += sorted(nested, key=lambda each: each not in self._indexes.nested)
        return looks

    def _made_in(self, look: Look) -> Iterator[str]:
        """Yield the private directories of repositories that were made since the last scan around recorded files.

        Git lists the files in them as those of the repository around them.
        """
        if (last := self._evidence.last) is None:
            return
        directories: set[bytes] = set()
        for path in (*look.listing.changed, *look.listing.unknown):
            while (path := os.path.dirname(path)) and path not in directories:
                directories.add(path)
        for directory in directories:
            own = os.path.join(look.index.prefix, directory, b".git")
            if os.path.isdir(own) and inode_of_older(own, last.time) is None:
                yield os.fsdecode(own)

    def _list(self, scope: str, found: Found) -> Look:
        """List the files of the repository `scope`; take over those of nested repositories that no longer exist."""
        index = self._indexes.open(scope)
        first = self._evidence.last is None
        index.set_rules(self._rules.lines(is_root=index.top == self._root))
        listing = self._list_first(index) if first else index.changes()
        nested = [path for path in listing.nested if os.path.lexists(os.path.join(index.prefix, path, b".git"))]
        listing = replace(listing, nested=nested)
        for other in sorted(self._indexes.nested):
            is_listed = index.below(os.fsencode(other)) in nested
            if other != scope and self._indexes.around(other) == scope and not is_listed:
                self._take_over(other)
        return Look(index, first, listing, self.recorded(index, listing, found))

    def _list_first(self, index: Index) -> Listing:
        """Add the files that the user's repository stores to `index`, and list all others."""
        if self._indexes.lends(index) and index.copy_users_index():
            listing = index.changes()
            if not index.configuration.converts((*listing.unknown, *listing.ignored)):
                return listing
        index.clear()
        return index.changes()

    def _take_over(self, scope: str) -> None:
        """Hand the files of `scope`, a deleted or ignored repository, to the repository around it."""
        index = self._indexes.open(scope)
        entries = ((index.prefix + path, version) for path, version in index.entries())
        files = {name: self._contents.current(name, version) for name, version in entries}
        for name in self._rules.excluded(files):
            del files[name]
        # Including files of which only the mode was recorded.
        lacking = self._contents.lacking(version.digest for version in files.values() if version is not None)
        for start in range(0, len(lacking), CHUNK):
            self._contents.put(index.objects.blobs(lacking[start : start + CHUNK]).items())
        self._contents.set_current(files.items())
        self._evidence.moved |= self._evidence.moved_from(index)
        if self._evidence.observed is not None:
            self._evidence.observed.update(files)
        self._indexes.remove(scope)

    def _moved_in(self, looks: Sequence[Look]) -> set[int]:
        """Return the inodes of the files that may have other names now, if `looks` found any older files."""
        new = (look.index.prefix + path for look in looks for path in look.listing.unknown)
        if self._evidence.last is None or all(inode_of_older(name, self._evidence.last.time) is None for name in new):
            return set()
        # Even if none is listed as missing: it may have been renamed between two lists.
        return {inode for look in looks if not look.first for inode in self._evidence.moved_from(look.index)}

    def _inodes_in(self, looks: Sequence[Look]) -> Iterator[tuple[bytes, int]]:
        """Yield the files listed by `looks` whose previous state is known, with their inodes."""
        for look in looks:
            for name in look.names():
                before = look.listing.changed.get(name[len(look.index.prefix) :])
                # In this order: a file that was removed meanwhile may not be newer than the last scan.
                if self._evidence.is_known(name, before) and (inode := inode_at(name)) is not None:
                    yield name, inode

    def recorded(self, index: Index, listing: Listing, found: Found) -> list[bytes]:
        """Return those paths of `listing` that may be recorded, and drop the others from `index`."""
        inner = [index.prefix + path + b"/" for path in listing.nested]
        observed = [
            index.below(path)
            for path in self._evidence.observed or ()
            if self._indexes.of(path) is index and not path.startswith(tuple(inner))
        ]
        names = {
            path: name
            for path in (*listing.changed, *listing.unknown, *observed)
            if not self._skip(name := index.prefix + path)
        }
        excluded = self._rules.excluded(names.values())
        index.drop([path for path in listing.changed if names.get(path) in excluded])
        hidden = {*(index.prefix + path for path in listing.ignored), *excluded}
        own = {self._rules.own_directory(os.fsdecode(name)) for name in hidden}
        found.repositories.update(directory for directory in own if directory is not None)
        found.hidden.update(hidden)
        return [path for path, name in names.items() if name not in excluded]

    def _leave_skipped(self, look: Look, found: Found) -> Iterator[bytes]:
        """Yield the skipped files that are new; hide those that may have existed."""
        for name in (look.index.prefix + path for path in look.listing.unknown):
            if self._skip(name):
                if self._evidence.is_known(name, None):
                    yield name
                else:
                    found.hidden.add(name)
