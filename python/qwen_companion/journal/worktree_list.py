# SPDX-License-Identifier: GPL-3.0-or-later
"""The worktrees of a repository: what each has changed, and which of it conflicts with a merge.

Git is only asked.  A merge is computed in memory, file by file, from the disk on both sides, so that uncommitted
changes count too.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from qwen_companion.base.git import EXACT, Git, GitError, items
from qwen_companion.domain import Worktree
from qwen_companion.files.repository import Objects, Repository, find_repository
from qwen_companion.files.rules import own_directory
from qwen_companion.files.versions import EXECUTABLE, FILE, LINK, Loaded, TooLargeError, Version, git_mode, load
from qwen_companion.journal.changes import Net, is_binary, merged, with_renames
from qwen_companion.journal.nets import from_commit
from qwen_companion.journal.worktrees import WorktreeError, main_tree

_MOST = 200
"""Most worktrees that are listed, and most files that are merged in memory for each."""

_GITLINK = "160000"
_MODES = {"100644": FILE, "100755": EXECUTABLE, "120000": LINK}

_MOST_NAMED = 200
"""Most files that are named to git; with more it examines all."""


class WorktreeList:
    """The worktrees of the repository of a directory.  Its methods block on git and the disk."""

    def __init__(self, directory: str, environ: Mapping[str, str]) -> None:
        """`directory` is in the repository.

        :raises WorktreeError: if it is in none
        """
        repository = find_repository(os.path.realpath(directory))
        if repository is None:
            raise WorktreeError(f"{directory} is not in a git repository")
        self._repository: Repository = repository
        self._git = Git(environ)

    def trees(self) -> list[Worktree]:
        """Return the worktrees, the main one first, without information about their files.

        :raises GitError: if that fails
        """
        output = self._ask(self._repository.top, "worktree", "list", "--porcelain", "-z").decode("utf-8", "replace")
        read = [_read(part) for part in output.split("\0\0") if part]
        found = [tree for tree in read if tree is not None][:_MOST]
        if found and found[0].path == self._repository.common and (top := main_tree(self._git, found[0].path)):
            found[0] = replace(found[0], path=top)
        return [found[0], *map(self._checked, found[1:])] if found else []

    def _checked(self, tree: Worktree) -> Worktree:
        """Return `tree`, marked as gone unless its directory is a worktree of this repository."""
        its = None if tree.gone else find_repository(os.path.realpath(tree.path))
        is_here = its is not None and os.path.realpath(its.common) == os.path.realpath(self._repository.common)
        return replace(tree, gone=not is_here)

    def examined(self, path: str) -> Worktree:
        """Return the worktree `path` with all available information.

        :raises GitError, WorktreeError: if that fails
        """
        main, *others = self.trees()
        tree = _there((main, *others), path)
        open_files = self._uncommitted(path, ())
        inner = 0 if tree == main else self._inner_commits(path)
        base = "" if tree == main or main.branch == "" else self._base(tree, main)
        if not base:
            return replace(tree, files=len(open_files), uncommitted=len(open_files), inner=inner)
        counted = self._ask(path, "rev-list", "--left-right", "--count", f"{main.head}...{tree.head}").split()
        changed = self._since(tree, base, open_files)
        # Examine only these files of the main tree, which may be large: this is done once for each worktree.
        mine = self._since(main, base, self._uncommitted(main.path, changed)) if changed else changed
        both = sorted(changed & mine)[:_MOST]
        nets = self._nets(path, self._changed(path, base, both), main.path) if both else []
        conflicts = [os.path.relpath(os.fsdecode(net.path), path) for net in nets if net.mixed]
        return replace(
            tree,
            base=base,
            files=len(changed),
            uncommitted=len(open_files),
            behind=int(counted[0]),
            ahead=int(counted[1]),
            conflicts=tuple(conflicts),
            inner=inner,
        )

    def differences(self, path: str, other: str, only: Collection[bytes] | None = None) -> list[Net]:
        """Return the differences between the files of the worktrees `path` and `other`, or only of the names `only`.

        :raises GitError, WorktreeError: if that fails
        """
        trees = self.trees()
        here, there = _there(trees, path), _there(trees, other)
        base = self._common(here, there)
        places = {
            os.path.join(os.fsencode(path), name): name
            for each in (here, there)
            for name in self._changed(each.path, base)
        }
        nets: list[Net] = []
        for place, name in sorted(places.items()):
            if only is None or place in only:
                with suppress(OSError, TooLargeError):
                    nets.append(Net(place, load(os.path.join(os.fsencode(other), name)), load(place)))
        return with_renames(nets)

    def since_begun(self, path: str, to_merge: bool, only: Collection[bytes] | None = None) -> list[Net]:
        """Return the differences between the worktree `path` and the commit that it has in common with the main tree.

        With `to_merge`, return the changes of the main tree by a merge of these differences.  Files that conflict are
        returned as without it, and `mixed`.  `only` as in `differences`.

        :raises GitError, WorktreeError: if that fails
        """
        trees = self.trees()
        here, main = _there(trees, path), trees[0]
        versions = self._changed(path, self._common(here, main))
        top = os.fsencode(path)
        chosen = {name: its for name, its in versions.items() if only is None or os.path.join(top, name) in only}
        return with_renames(self._nets(path, chosen, main.path if to_merge else None))

    def _nets(self, path: str, versions: Mapping[bytes, Version | None], main: str | None) -> list[Net]:
        """Return the differences between the files of the worktree `path` and their `versions` in a commit.

        With the tree `main`, return the changes of its files by a merge, see `since_begun`.
        """
        digests = [version.digest for version in versions.values() if version is not None]
        blobs = Objects(self._git, self._repository.common, self._repository).blobs(digests)
        nets: list[Net] = []
        for name, version in sorted(versions.items()):
            place = os.path.join(os.fsencode(path), name)
            with suppress(OSError, TooLargeError):
                before = None if version is None else blobs.get(version.digest)
                net = from_commit(place, version, before, load(place))
                if net is not None and main is not None:
                    net = _merged_into(load(os.path.join(os.fsencode(main), name)), net)
                if net is not None:
                    nets.append(net)
        return nets

    def _common(self, tree: Worktree, other: Worktree) -> str:
        """Return the commit from which both worktrees come.

        :raises WorktreeError: if there is none
        """
        base = self._base(tree, other)
        if not base:
            raise WorktreeError(f"it has no commit in common with {other.path}")
        return base

    def _base(self, tree: Worktree, other: Worktree) -> str:
        """Return the commit from which both worktrees come, "" for none."""
        if not tree.head or not other.head:
            return ""
        return self._ask(tree.path, "merge-base", other.head, tree.head, good=(0, 1)).decode().strip()

    def _ask(self, top: str, *command: str | bytes, good: tuple[int, ...] = (0,)) -> bytes:
        # Settings of a repository can name other files than those around them.
        return self._git.run(command, top, good=good, options=(*EXACT, f"--work-tree={top}"))

    def _changed(self, top: str, base: str, names: Sequence[bytes] = ()) -> dict[bytes, Version | None]:
        """Return the files in the worktree `top` that differ from the commit `base`, with their versions in it.

        If `names` are given, only files with these names.
        """
        command = ("diff-index", "--raw", "-z", "--abbrev=64", "--no-renames", "--ignore-submodules=all", base)
        new = items(self._ask(top, "ls-files", "-z", "--others", "--exclude-standard", "--", *names))
        versions = {name: version for name, version, _ in _raw_entries(self._ask(top, *command, "--", *names))}
        found = {**{name: None for name in new if not name.endswith(b"/")}, **versions}
        known: dict[str, str | None] = {}
        paths = {name: os.path.join(top, os.fsdecode(name)) for name in found}
        return {name: version for name, version in found.items() if own_directory(top, paths[name], known) is None}

    def _since(self, tree: Worktree, base: str, open_files: Collection[bytes]) -> set[bytes]:
        """Return the files of `tree` that differ from the commit `base`; `open_files` are not committed."""
        command = ("diff-tree", "-r", "--name-only", "-z", "--no-renames", "--ignore-submodules=all")
        committed = set(items(self._ask(tree.path, *command, base, tree.head)))
        # A committed change may have been reverted since.
        restored = committed.intersection(open_files)
        if restored:
            # By their bytes: `git diff` would write the index, even if told not to lock it.
            nets = self._nets(tree.path, self._changed(tree.path, base, _few(restored)), None)
            top = os.fsencode(tree.path)
            return committed.union(open_files) - restored.difference(os.path.relpath(net.path, top) for net in nets)
        return committed.union(open_files)

    def _inner_commits(self, top: str) -> int:
        """Return the number of unpushed commits of submodules and other repositories in the worktree `top`."""
        count = 0
        found = [top]
        for place in found:
            with suppress(GitError):
                linked = (line.split(b"\t", 1) for line in items(self._ask(place, "ls-files", "-z", "-s")))
                names = [name for entry, name in linked if entry.startswith(b"160000 ")]
                names += [name for name in items(self._ask(place, "ls-files", "-z", "--others")) if name.endswith(b"/")]
                inner = (os.path.join(place, os.fsdecode(name)) for name in names)
                # Otherwise git would count those of the repository around it.
                inner = [each for each in inner if os.path.lexists(os.path.join(each, ".git"))]
                found += inner[: _MOST - len(found)]
                if place != top:
                    count += int(self._ask(place, "rev-list", "--count", "--all", "HEAD", "--not", "--remotes"))
        return count

    def _uncommitted(self, top: str, names: Collection[bytes]) -> set[bytes]:
        """Return the files in the worktree `top` that are changed or new since its last commit.

        If `names` are given, at least those with these names.
        """
        command = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--")
        output = self._ask(top, *command, *_few(names))
        return {entry[3:] for entry in items(output)}


def _raw_entries(output: bytes) -> Iterator[tuple[bytes, Version | None, bool]]:
    """Yield the path of each entry of a raw difference, its left side, and whether the right side exists."""
    fields = items(output)
    for head, path in zip(fields[::2], fields[1::2], strict=True):
        old_mode, _, digest, _, status = os.fsdecode(head).lstrip(":").split(" ")
        if old_mode != _GITLINK:
            mode = _MODES.get(old_mode)
            yield path, None if mode is None else Version(digest, mode), status != "D"


def _few(names: Collection[bytes]) -> Sequence[bytes]:
    """Return `names` for git in order, or none, which means all files, if there are too many."""
    return sorted(names) if len(names) <= _MOST_NAMED else ()


def _there(trees: Sequence[Worktree], path: str) -> Worktree:
    """Return the worktree `path` of `trees`.

    :raises WorktreeError: if it is not among them
    """
    tree = next((tree for tree in trees if tree.path == path), None)
    if tree is None or tree.gone:
        raise WorktreeError(f"{path} is no worktree any more")
    return tree


def _read(part: str) -> Worktree | None:
    """Return the worktree in a paragraph of `git worktree list`; None without its name."""
    values = {name: value for name, _, value in (line.partition(" ") for line in part.split("\0"))}
    path = values.get("worktree")
    if not path:
        return None
    branch = "" if "bare" in values else values.get("branch", "").removeprefix("refs/heads/") or None
    head = values.get("HEAD", "").strip("0")
    is_gone = "prunable" in values or not os.path.isdir(path)
    return Worktree(path, branch, values["HEAD"] if head else "", values.get("locked"), is_gone)


def _merged_into(mine: Loaded | None, net: Net) -> Net | None:
    """Return the change of the file `mine` of the main tree when `net` is merged into it, None for nothing.

    If the two conflict, return `net` as it is, and `mixed`.
    """
    base, theirs = net.before, net.after
    if _same(mine, theirs):
        return None
    if _same(mine, base):
        return replace(net, before=mine)
    if base is None or mine is None or theirs is None or any(is_binary(side.data) for side in (mine, theirs)):
        return replace(net, mixed=True)
    after = merged(base, mine, theirs)
    if after is None:
        return replace(net, mixed=True)
    return None if after == mine else replace(net, before=mine, after=after)


def _same(one: Loaded | None, other: Loaded | None) -> bool:
    """Return whether both are the same for git."""
    if one is None or other is None:
        return one is other
    return one.data == other.data and git_mode(one.version.mode) == git_mode(other.version.mode)
