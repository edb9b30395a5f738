# SPDX-License-Identifier: GPL-3.0-or-later
"""The indexes of the repositories below one root, and the bytes of files in these repositories."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from qwen_companion.base.git import GitError
from qwen_companion.journal.contents import Contents
from qwen_companion.journal.index import Index
from qwen_companion.journal.repository import Repository, find_repository
from qwen_companion.journal.versions import Loaded, Version

_FETCHED = 8 * 1024 * 1024
"""Bytes of blobs that are requested from git at once: all of them are in memory."""


class Indexes:
    """An index for the root, and one for each repository within it.  Its methods block on git and the disk."""

    def __init__(
        self,
        directory: str,
        root: str,
        environ: Mapping[str, str],
        contents: Contents,
        nested: Mapping[str, Repository | None],
    ) -> None:
        """Keep indexes in `directory`, also of the repositories `nested` within `root`, a true name."""
        self._directory = directory
        self._root = root
        self._environ = environ
        self._contents = contents
        self._indexes: dict[str, Index] = {}
        """The open ones, by the directories of their repositories."""
        self._unopened: dict[str, Index] = {}
        """Those that could not be opened: they know when git has stalled."""
        self.nested = dict(nested)

    @property
    def root(self) -> Index:
        """The index of the root, which has been opened."""
        return self._indexes[self._root]

    @property
    def algorithm(self) -> str:
        """The name of the digest that the repository uses."""
        index = self._indexes.get(self._root)
        return "sha1" if index is None else index.algorithm

    def all(self) -> list[Index]:
        """Return the open indexes."""
        return list(self._indexes.values())

    def clear(self) -> None:
        """Remove all indexes."""
        self._indexes.clear()
        shutil.rmtree(self._directory, ignore_errors=True)
        os.makedirs(self._directory, mode=0o700)

    def open_all(self) -> None:
        """Open all indexes that are not open.

        :raises GitError, OSError: if that fails
        """
        for scope in (self._root, *self.nested):
            self.open(scope)

    def open(self, scope: str) -> Index:
        """Return the index of the repository `scope`, opened.

        :raises GitError, OSError: if that fails
        """
        index = self._indexes.get(scope)
        if index is None:
            repository = find_repository(scope)
            if scope != self._root and (repository is None or repository.top != scope):
                repository = self.nested.get(scope)
            index = self._unopened.get(scope)
            if index is None or index.repository != repository:
                directory = os.path.join(self._directory, self._name(scope))
                index = self._unopened[scope] = Index(directory, scope, self._environ, repository)
            index.open()
            self._indexes[scope] = self._unopened.pop(scope)
            if scope != self._root:
                self.nested[scope] = repository
        return index

    def _name(self, scope: str) -> str:
        """Return the name of the directory for the index of `scope`."""
        return "root" if scope == self._root else f"in-{hashlib.sha256(os.fsencode(scope)).hexdigest()[:32]}"

    def remove(self, scope: str) -> None:
        """Remove the index of the repository `scope`."""
        shutil.rmtree(self._indexes.pop(scope).directory, ignore_errors=True)
        del self.nested[scope]

    def of(self, path: bytes) -> Index | None:
        """Return the index of the innermost repository that contains `path`."""
        name = os.fsdecode(path)
        scopes = [scope for scope in self._indexes if name.startswith(scope.rstrip("/") + "/")]
        return self._indexes[max(scopes, key=len)] if scopes else None

    def around(self, scope: str) -> str:
        """Return the innermost repository around the repository `scope`."""
        found = (each for each in self.nested if scope.startswith(f"{each}/"))
        return max(found, key=len, default=self._root)

    def is_gone(self, scope: str) -> bool:
        """Return whether the repository `scope` within the root has been deleted."""
        return scope != self._root and not os.path.isdir(scope)

    def lends(self, index: Index) -> bool:
        """Return whether the repository of `index` keeps its objects when its directory is deleted."""
        repository, root = index.repository, self.root
        if repository is None or index is root:
            return repository is not None
        inside = f"{repository.common}/"
        outside = root.repository is not None and inside.startswith(f"{root.repository.common}/")
        return outside or not inside.startswith(f"{self._root}/")

    def directories(self) -> set[bytes]:
        """Return the absolute names of the directories in which files are recorded.

        :raises GitError, OSError: if that fails
        """
        self.open_all()
        indexes = [index for scope, index in self._indexes.items() if os.path.isdir(scope)]
        return {directory for index in indexes for directory in index.directories()}

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
        if lacking:
            self.open_all()
        for index in self._indexes.values() if lacking else ():
            with suppress(GitError):
                left = [digest for digest in lacking if digest not in found]
                found.update(index.objects.blobs(index.objects.few(left, _FETCHED)))
        return found

    def keep(self, after: Sequence[Loaded], before: Sequence[Version], sparingly: bool = False) -> None:
        """Store the bytes of `after`, and those of `before` while they are available."""
        items = {item.version.digest: item.data for item in after}
        lacking = self._contents.lacking(version.digest for version in before)
        if sparingly:
            for index in filter(self.lends, self._indexes.values()):
                items = {digest: items[digest] for digest in index.objects.unavailable(items)}
        else:
            for index in self._indexes.values():
                got = index.objects.blobs([digest for digest in lacking if digest not in items])
                items.update(got)
        self._contents.put(items.items())

    def committed(self) -> dict[bytes, Version | None]:
        """Return the files that differ from the last commit, with their versions in it.

        :raises GitError: if that fails
        """
        index = self.root
        return {index.prefix + path: version for path, version in index.committed().items()}
