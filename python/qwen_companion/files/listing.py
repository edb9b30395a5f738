# SPDX-License-Identifier: GPL-3.0-or-later
"""List the files below a root with git: those of its repository, and of the repositories within it.

Git provides paths and ignore rules, and at the first scan the digests of unchanged files from the user's index.  It
only reads, and no filter can change what is recorded.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

from qwen_companion.base.git import EXACT, Git, GitError, items, place
from qwen_companion.files.repository import Configuration, Objects, Repository, empty_repository, find_repository
from qwen_companion.files.rules import RecordRules
from qwen_companion.files.stamps import Status, clock_ns, is_young
from qwen_companion.files.table import Look, Table
from qwen_companion.files.versions import EXECUTABLE, FILE, LINK, Version, mode_of

MAX_NESTED = 32
"""Most repositories within a root, including submodules, whose files are recorded."""

_MAX_LISTS = 3
"""Most attempts at listing files while they move."""

_MODES = {b"100644": FILE, b"100755": EXECUTABLE, b"120000": LINK}

_ENTRY = re.compile(
    rb"(\d+) ([0-9a-f]+) (\d)\t([^\0]+)\0  ctime: (\d+):(\d+)\n  mtime: (\d+):(\d+)\n"
    rb"  dev: .*\tino: (\d+)\n  uid: .*\n  size: (\d+)\t.*\n"
)
"""An entry of `ls-files --stage --debug`: mode, digest, stage, path, both times, inode and size."""

_32_BITS = 0xFFFFFFFF
"""Git stores only these of an inode and a size."""


class WorkTree:
    """The files of one repository below `scope`, or of a directory without one.  Its methods block on git."""

    def __init__(self, scope: str, repository: Repository | None, objects: Objects) -> None:
        """`scope` is a true name; `objects` are those of the `repository`."""
        self.repository = repository
        self.objects = objects
        self.prefix = os.fsencode(scope).rstrip(b"/") + b"/"
        self.top = repository.top if repository else scope
        self._scope = scope
        self._configuration: Configuration | None = None

    def files(self, rules: Sequence[str]) -> list[bytes]:
        """Return the files that git tracks, there or not, and those that neither it nor `rules` ignore.

        Repositories within have a slash at their end.
        """
        return self._list(["--cached", "--others", *rules])

    def ignored(self, rules: Sequence[str]) -> list[bytes]:
        """Return the files, or directories with all their files, that git or `rules` ignore."""
        found = self._list(["--others", "--ignored", "--directory", *rules])
        # A directory that is listed only for its contents comes right before them.
        return [
            path.rstrip(b"/")
            for path, following in pairwise([*found, b""])
            if not (path.endswith(b"/") and following.startswith(path))
        ]

    def lists(self, names: Sequence[bytes]) -> bool:
        """Return whether each of `names` is tracked, or exists and is not ignored."""
        paths = [self._below(name) for name in names]
        return not paths or set(paths) <= set(self._list(["--cached", "--others"], paths))

    def ignores(self, names: Sequence[bytes]) -> bool:
        """Return whether any of `names`, which need not exist, is ignored.

        :raises GitError: for a name behind a link
        """
        data = b"".join(b"./" + self._below(name) + b"\0" for name in names)
        # Status 1 means that none is.
        return bool(names and self._run(["check-ignore", "-z", "--stdin"], data, (0, 1)))

    def committed(self) -> dict[bytes, Version]:
        """Return the files in the last commit, with their versions in it.

        :raises GitError: if there is no commit
        """
        found: dict[bytes, Version] = {}
        for line in items(self._run(["ls-tree", "-r", "-z", "HEAD"])):
            entry, _, path = line.partition(b"\t")
            mode, _, digest = entry.split(b" ")
            if mode in _MODES:
                found[self.prefix + path] = Version(digest.decode(), _MODES[mode])
        return found

    def lent(self, look: Look) -> tuple[dict[bytes, Version], set[str]]:
        """Return the files of `look` that the user's index knows as unchanged, with their versions.

        Return also the digests of all files in the index; an entry may have no blob.
        """
        if self.repository is None:
            return {}, set()
        written = os.stat(self.repository.index).st_mtime_ns
        converts = self._opened().converts((*look.changed, *look.hidden))
        unchanged: dict[bytes, Version] = {}
        digests: set[str] = set()
        for entry in _ENTRY.finditer(self._run(["ls-files", "-z", "--stage", "--debug"])):
            mode, digest, stage, path, *numbers = entry.groups()
            if mode not in _MODES or stage != b"0":
                continue
            digests.add(digest.decode())
            name = self.prefix + path
            status = look.changed.get(name)
            if status is not None and not converts and _is_unchanged(status, mode, list(map(int, numbers)), written):
                unchanged[name] = Version(digest.decode(), mode_of(status))
        return unchanged, digests

    def _below(self, name: bytes) -> bytes:
        return os.path.relpath(name, self.prefix)

    def _list(self, options: Sequence[str], paths: Sequence[bytes] = ()) -> list[bytes]:
        return items(self._run(["ls-files", "-z", *options, "--exclude-standard", "--", *paths]))

    def _run(self, command: Sequence[str | bytes], data: bytes = b"", good: Sequence[int] = (0,)) -> bytes:
        self._opened().check_files()
        directory = self.objects.directory if self.repository is None else self.repository.directory
        return self.objects.git.run(command, self._scope, data, good, (*EXACT, *place(directory, self.top)))

    def _opened(self) -> Configuration:
        """Return the settings, which are read once.

        :raises GitError: if that fails
        """
        if self._configuration is None:
            self._configuration = Configuration(self.objects.git, self.top, self.repository)
        return self._configuration


def _is_unchanged(status: Status, mode: bytes, numbers: Sequence[int], written: int) -> bool:
    """Return whether a file has that `status` since its entry of that `mode`, with `numbers`, came into an index.

    The index was `written` at that time, in ns.
    """
    changed_s, changed_ns, modified_s, modified_ns, inode, size = numbers
    times = (changed_s * 1_000_000_000 + changed_ns, modified_s * 1_000_000_000 + modified_ns)
    return (
        times == (status.st_ctime_ns, status.st_mtime_ns)
        and (inode, size) == (status.st_ino & _32_BITS, status.st_size & _32_BITS)
        and stat.S_ISLNK(status.st_mode) == (_MODES[mode] == LINK)
        and not is_young(status, written)
    )


def _has_files(directory: bytes) -> bool:
    with suppress(OSError):
        return bool(os.listdir(directory))
    return False


class Lister:
    """Lists the files below a root.  Its methods block on git and the disk."""

    def __init__(
        self,
        directory: str,
        root: str,
        environ: Mapping[str, str],
        rules: RecordRules,
        repositories: Mapping[str, Repository],
    ) -> None:
        """`root` is a true name; keep repositories of ours in `directory`.

        `repositories` are those at the last scan, by directory: they may still have the bytes of files.
        """
        self._directory = directory
        self._root = root
        self._environ = environ
        self._rules = rules
        self.repositories = dict(repositories)
        self._trees: dict[str, WorkTree] = {}
        self._scopes = set(repositories)
        """The repositories of the last scan."""
        self._missing: set[bytes] = set()
        """Files that git has listed in the last scan, and that were not there: deleted, or just renamed."""

    def look(self, table: Table, is_first: bool, others: Collection[bytes] = ()) -> Look:
        """Scan all files, for the first time or not, and return the differences from `table`.

        Examine the files `others` too, whether git lists them or not.

        :raises GitError, OSError: if that fails
        """
        look, listed = self._list(table, is_first)
        for _ in range(_MAX_LISTS - 1):
            missing, self._missing = self._missing, look.missing
            if look.missing <= missing:
                break
            look, listed = self._list(table, is_first)
        # Also those that are ignored now, and those of repositories that are none any more.
        table.compare([name for name in dict.fromkeys((*table, *others)) if name not in listed], look)
        return look

    def _list(self, table: Table, is_first: bool) -> tuple[Look, set[bytes]]:
        """Return the differences in the repository of the root and in those within it, and all files there."""
        look, listed = Look(clock_ns(), is_first), set[bytes]()
        waiting = [self._root]
        trees: dict[str, WorkTree] = {}
        while waiting:
            scope = waiting.pop(0)
            if trees and not os.path.isdir(scope):
                continue
            if len(trees) > MAX_NESTED:
                look.left_out.append(f"{scope}: too many repositories in {self._root}")
                look.hidden.update(os.fsencode(each) for each in (scope, *waiting) if each not in self._scopes)
                break
            tree = self._open(scope)
            try:
                nested = self._add(tree, table, look, listed)
            except GitError:
                if trees and not os.path.isdir(scope):
                    continue
                raise
            trees[scope] = tree
            waiting += sorted(map(os.fsdecode, nested), key=lambda each: each not in self._scopes)
        self._trees, self._scopes = trees, set(trees)
        return look, listed

    def _add(self, tree: WorkTree, table: Table, look: Look, listed: set[bytes]) -> list[bytes]:
        """Add the files of `tree` to `look` and `listed`; return the repositories within it."""
        if os.path.isdir(own := os.path.join(tree.top, ".git")):
            look.repositories.add(own)
        patterns = self._rules.patterns(is_root=tree.top == self._root)
        rules = [f"--exclude={pattern}" for pattern in patterns]
        # First: if the rules change just now, a file may be both ignored and listed, but must not be neither.
        look.hidden.update(tree.prefix + path for path in tree.ignored(rules))
        # A file in a conflict is listed several times.
        names = list(dict.fromkeys([tree.prefix + path for path in tree.files(rules)]))
        nested = [name for name in names if name.endswith(b"/")]
        if nested:
            names = [name for name in names if not name.endswith(b"/")]
        listed.update(names)
        # A submodule is tracked like a file, also if its repository is damaged.
        submodules = [name for name in table.compare(names, look) if _has_files(name)]
        return [name[:-1] for name in nested if os.path.lexists(name + b".git")] + submodules

    def _open(self, scope: str) -> WorkTree:
        repository = find_repository(scope)
        if scope != self._root and repository is not None and repository.top != scope:
            repository = None
        tree = self._trees.get(scope)
        if tree is None or tree.repository != repository:
            tree = self._trees[scope] = WorkTree(scope, repository, self._objects(repository))
            if repository is not None:
                self.repositories[scope] = repository
        return tree

    def tree_of(self, name: bytes) -> WorkTree:
        """Return the innermost work tree of the last scan that contains the file `name`."""
        scope = os.path.dirname(os.fsdecode(name))
        while len(scope) > len(self._root):
            if scope in self._scopes and os.path.lexists(os.path.join(scope, ".git")):
                return self._open(scope)
            scope = os.path.dirname(scope)
        return self._open(self._root)

    # --- The user's repositories ---

    def _objects(self, repository: Repository | None) -> Objects:
        git = Git(self._environ, repository and repository.objects)
        return Objects(
            git, empty_repository(self._directory, repository.algorithm if repository else "sha1"), repository
        )

    def objects(self) -> list[Objects]:
        """Return the objects of all repositories."""
        found = {repository.objects: repository for repository in self.repositories.values()}
        return [self._objects(each) for path, each in found.items() if os.path.isdir(path)]

    def lenders(self, any_place: bool = False) -> list[WorkTree]:
        """Return the listed work trees whose repositories keep their objects if the work tree is deleted.

        With `any_place`, return also the others.
        """
        return [tree for tree in self._trees.values() if tree.repository and (any_place or self._is_kept(tree))]

    def _is_kept(self, tree: WorkTree) -> bool:
        around, repository = self.repositories.get(self._root), tree.repository
        if repository is None or repository == around:
            return repository is not None
        inside = f"{repository.common}/"
        return (around is not None and inside.startswith(f"{around.common}/")) or not inside.startswith(
            f"{self._root}/"
        )
