# SPDX-License-Identifier: GPL-3.0-or-later
"""The worktrees of a repository beside each other: what each has changed, and what a merge would contradict.

Git is only asked.  A merge is tried in memory, file by file, with what is on the disk on both sides: what is not
committed counts too.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from qwen_companion.domain import Worktree
from qwen_companion.journal.changes import Net, with_renames
from qwen_companion.journal.git import Git, GitError, items
from qwen_companion.journal.index import raw_entries
from qwen_companion.journal.nets import from_commit
from qwen_companion.journal.repository import Objects, Repository, find_repository
from qwen_companion.journal.versions import MAX_FILE_BYTES, TooLargeError, Version, load
from qwen_companion.journal.worktrees import WorktreeError
from qwen_companion.texts.hunks import Budget
from qwen_companion.texts.merge import Labels, merge

_MOST = 200
"""Worktrees that are listed, and files that are merged in memory for each."""

_MOST_NAMED = 200
"""Files that git is given the names of; of more it looks at all."""

_STEPS = 300_000
"""Budget for merging one file, in steps of a microsecond."""


class WorktreeList:
    """The worktrees of the repository that a directory is in.  All methods wait for git and the disk."""

    def __init__(self, directory: str, environ: Mapping[str, str]) -> None:
        """`directory` is in the repository.

        :raises WorktreeError: where it is in none
        """
        repository = find_repository(os.path.realpath(directory))
        if repository is None:
            raise WorktreeError(f"{directory} is not in a git repository")
        self._repository: Repository = repository
        self._git = Git(repository.common, environ, None)

    def trees(self) -> list[Worktree]:
        """Return the worktrees, the main one first; nothing is known of their files yet.

        :raises GitError: when that fails
        """
        output = self._ask(self._repository.top, "worktree", "list", "--porcelain").decode("utf-8", "replace")
        found = [_read(part) for part in output.split("\n\n") if part.strip()]
        return [tree for tree in found if tree is not None][:_MOST]

    def examined(self, path: str) -> Worktree:
        """Return the worktree `path` with all that can be known of it.

        :raises GitError, WorktreeError: when that fails
        """
        main, *others = self.trees()
        tree = _there((main, *others), path)
        open_files = self._uncommitted(path, ())
        base = "" if tree == main or main.branch == "" else self._base(tree, main)
        if not base:
            return replace(tree, files=len(open_files), uncommitted=len(open_files))
        counted = self._ask(path, "rev-list", "--left-right", "--count", f"{main.head}...{tree.head}").split()
        changed = self._since(tree, base, open_files)
        # Only files of these names are looked at in the main tree, which may be large: once for each worktree.
        mine = self._since(main, base, self._uncommitted(main.path, changed)) if changed else changed
        both = sorted(changed & mine)[:_MOST]
        conflicts = [os.fsdecode(name) for name in both if self._conflicts(main.path, path, base, name)]
        return replace(
            tree,
            base=base,
            files=len(changed),
            uncommitted=len(open_files),
            behind=int(counted[0]),
            ahead=int(counted[1]),
            conflicts=tuple(conflicts),
        )

    def differences(self, path: str, other: str | None, only: Collection[bytes] | None = None) -> list[Net]:
        """Return how files of the worktree `path` differ from those of `other`, or with None from where it began.

        That is the commit that it has in common with the main tree.  `only` the files of these names, if any are given.

        :raises GitError, WorktreeError: when that fails
        """
        trees = self.trees()
        here, there = _there(trees, path), trees[0] if other is None else _there(trees, other)
        base = self._base(here, there)
        if not base:
            raise WorktreeError(f"it has no commit in common with {there.path}")
        versions = self._changed(path, base)
        if other is not None:
            versions = {**self._changed(other, base), **versions}
        top = os.fsencode(path)
        if only is not None:
            versions = {name: its for name, its in versions.items() if os.path.join(top, name) in only}
        digests = [version.digest for version in versions.values() if version is not None and other is None]
        blobs = Objects(self._git, path, (), self._repository).blobs(digests)
        nets: list[Net | None] = []
        for name, version in sorted(versions.items()):
            place = os.path.join(top, name)
            with suppress(OSError, TooLargeError):
                if other is not None:
                    nets.append(Net(place, load(os.path.join(os.fsencode(other), name)), load(place)))
                else:
                    before = None if version is None else blobs.get(version.digest)
                    nets.append(from_commit(place, version, before, load(place)))
        return with_renames(net for net in nets if net is not None)

    def _base(self, tree: Worktree, other: Worktree) -> str:
        """Return the commit from which both worktrees come, "" for none."""
        if not tree.head or not other.head:
            return ""
        return self._ask(tree.path, "merge-base", other.head, tree.head, good=(0, 1)).decode().strip()

    def _ask(self, top: str, *command: str | bytes, good: tuple[int, ...] = (0,)) -> bytes:
        return self._git.run(command, cwd=top, good=good)

    def _changed(self, top: str, base: str) -> dict[bytes, Version | None]:
        """Return the files in the worktree `top` that differ from the commit `base`, with their versions in it."""
        command = ("diff-index", "--raw", "-z", "--abbrev=64", "--no-renames", "--ignore-submodules=all", base)
        new = items(self._ask(top, "ls-files", "-z", "--others", "--exclude-standard"))
        versions = {name: version for name, version, _ in raw_entries(self._ask(top, *command))}
        return {**{name: None for name in new if not name.endswith(b"/")}, **versions}

    def _since(self, tree: Worktree, base: str, open_files: Collection[bytes]) -> set[bytes]:
        """Return the files of `tree` that differ from the commit `base`; `open_files` are not committed."""
        command = ("diff-tree", "-r", "--name-only", "-z", "--no-renames", "--ignore-submodules=all")
        committed = set(items(self._ask(tree.path, *command, base, tree.head)))
        # What was committed may be as it was again.
        restored = committed.intersection(open_files)
        if restored:
            named = sorted(restored) if len(restored) <= _MOST_NAMED else ()
            diff = ("diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", "--no-textconv")
            differ = items(self._ask(tree.path, *diff, base, "--", *named))
            return committed.union(open_files) - restored.difference(differ)
        return committed.union(open_files)

    def _uncommitted(self, top: str, names: Collection[bytes]) -> set[bytes]:
        """Return the files in the worktree `top` that are changed or new since its last commit.

        Of those with `names` at least, if any are given.
        """
        command = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--")
        output = self._ask(top, *command, *(sorted(names) if len(names) <= _MOST_NAMED else ()))
        return {entry[3:] for entry in items(output)}

    def _conflicts(self, main: str, tree: str, base: str, name: bytes) -> bool:
        """Return whether the file `name` of the worktree `tree` cannot be merged into that of `main`."""
        mine, theirs = (_text(os.path.join(os.fsencode(top), name)) for top in (main, tree))
        if mine == theirs:
            return False
        before = ""
        with suppress(GitError):
            before = self._ask(main, "cat-file", "blob", f"{base}:{os.fsdecode(name)}").decode("latin-1")
        if theirs == before or mine == before:
            return False
        if mine is None or theirs is None or "\0" in mine + theirs:
            return True
        return merge(before, mine, theirs, Labels("", "", ""), Budget(_STEPS)).conflicts > 0


def _there(trees: Sequence[Worktree], path: str) -> Worktree:
    """Return the worktree `path` of `trees`.

    :raises WorktreeError: where it is not there
    """
    tree = next((tree for tree in trees if tree.path == path), None)
    if tree is None or tree.gone:
        raise WorktreeError(f"{path} is no worktree any more")
    return tree


def _read(part: str) -> Worktree | None:
    """Return the worktree that a paragraph of `git worktree list` is about; None without its name."""
    values = {name: value for name, _, value in (line.partition(" ") for line in part.splitlines())}
    path = values.get("worktree")
    if not path:
        return None
    branch = "" if "bare" in values else values.get("branch", "").removeprefix("refs/heads/") or None
    head = values.get("HEAD", "").strip("0")
    is_gone = "prunable" in values or not os.path.isdir(path)
    return Worktree(path, branch, values["HEAD"] if head else "", values.get("locked"), is_gone)


def _text(path: bytes) -> str | None:
    """Return the bytes of the file `path` as characters; None where there is none that can be merged."""
    with suppress(OSError):
        if os.path.isfile(path) and not os.path.islink(path) and os.path.getsize(path) <= MAX_FILE_BYTES:
            with open(path, "rb") as file:
                return file.read().decode("latin-1")
    return None
