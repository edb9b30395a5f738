# SPDX-License-Identifier: GPL-3.0-or-later
"""The linked git worktrees below a root: each is recorded as a root of its own, even if git ignores it.

Names of roots are those of Emacs; the name of a worktree begins with that of the root around it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from qwen_companion.base.errors import CompanionError
from qwen_companion.base.file_names import FileNameError, file_name
from qwen_companion.base.git import Git, GitError, place
from qwen_companion.base.state import key_of
from qwen_companion.files.repository import find_repository
from qwen_companion.journal.places import is_recorded, state_directory
from qwen_companion.privacy.disk import read_start


class WorktreeError(CompanionError):
    """Something cannot be done with a worktree; the message has the reason."""


_MOST = 200
"""Most worktrees of one repository that are examined."""

_MOST_NOTED = 1024 * 1024
"""Most bytes of the names of recorded worktrees."""


def root_around(root: str, path: str) -> str:
    """Return the worktree below `root` that contains `path`, or `root` without one.  Blocks on disk I/O."""
    try:
        directory = os.path.realpath(file_name(os.path.join(root, path)))
    except FileNameError:
        return root
    true = os.path.realpath(root)
    while (repository := find_repository(directory)) is not None and repository.top.startswith(f"{true.rstrip('/')}/"):
        if repository.directory != repository.common:
            return os.path.join(root, os.path.relpath(repository.top, true))
        # A submodule, or another repository in the worktree.
        directory = os.path.dirname(repository.top)
    return root


def is_ignored(root: str, tree: str, git: Git) -> bool:
    """Return whether git ignores the worktree `tree` below `root`, whose record then lacks its files.

    Runs `git` the first time, and after a change of the files of rules above the worktree.
    """
    above = Path(tree).parents
    rules = [*(parent / ".gitignore" for parent in above), *(parent / ".git/info/exclude" for parent in above)]
    return _is_ignored(root, tree, git, tuple(map(_written, rules)))


def _written(path: Path) -> int | None:
    """Return when `path` was written, in ns; None without a file."""
    with suppress(OSError):
        return os.stat(path).st_mtime_ns
    return None


@lru_cache(maxsize=_MOST)
def _is_ignored(root: str, tree: str, git: Git, _rules: tuple[int | None, ...]) -> bool:
    with suppress(GitError):
        return bool(git.run(["check-ignore", "--no-index", "-z", "--stdin"], root, os.fsencode(tree) + b"\0", (0, 1)))
    return False


def worktrees_below(root: str) -> list[str]:
    """Return the worktrees below `root` that belong to its repository.  Blocks on disk I/O."""
    true = os.path.realpath(root)
    repository = find_repository(true)
    if repository is None:
        return []
    found: list[str] = []
    places = os.path.join(repository.common, "worktrees")
    try:
        names = sorted(os.listdir(places))[:_MOST]
    except OSError:
        return []
    for name in names:
        try:
            mark = os.fsdecode(read_start(os.path.join(places, name, "gitdir"), 4096)).strip()
        except (OSError, ValueError):
            continue
        top = os.path.realpath(os.path.dirname(mark))
        if top.startswith(f"{true.rstrip('/')}/") and os.path.lexists(mark):
            found.append(os.path.join(root, os.path.relpath(top, true)))
    return found


def recorded_below(root: str, environ: Mapping[str, str]) -> list[str]:
    """Return the worktrees below `root` with a record, including deleted ones.

    Blocks on disk I/O.
    """
    noted: list[str] = []
    with suppress(OSError):
        noted = os.fsdecode(read_start(_notes(root, environ), _MOST_NOTED)).split("\0")[:-1]
    trees = dict.fromkeys((*worktrees_below(root), *(os.path.join(root, name) for name in noted)))
    return [tree for tree in trees if is_recorded([tree], environ)]


def note_recorded(root: str, tree: str, environ: Mapping[str, str]) -> None:
    """Note that the worktree `tree` below `root` is recorded: git forgets it once it is removed.

    Blocks on disk I/O.
    """
    path = _notes(root, environ)
    name = os.fsencode(os.path.relpath(tree, root))
    with suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "r+b") as file:
            if name not in file.read(_MOST_NOTED).split(b"\0"):
                file.write(name + b"\0")


def _notes(root: str, environ: Mapping[str, str]) -> str:
    return os.path.join(state_directory(environ), key_of(root), "worktrees")


def main_tree(git: Git, common: str) -> str | None:
    """Return the main work tree of the repository with the directory `common`, None if it has none.  Runs `git`.

    That of a submodule is in its settings: `git worktree list` names the directory in place of it.
    """
    if os.path.basename(common) == ".git":
        return os.path.dirname(common)
    with suppress(GitError):
        output = git.run(["config", "-z", "core.worktree"], common, options=place(common, common))
        return os.path.normpath(os.path.join(common, os.fsdecode(output.rstrip(b"\0"))))
    return None


def home_of(tree: str, roots: Iterable[str], git: Git) -> str:
    """Return the main work tree of the repository of the worktree `tree`, by its name in `roots` if it has one.

    For a removed worktree it is the innermost of `roots` around it.

    :raises WorktreeError: if there is none
    """
    if not os.path.isdir(tree):
        around = [root for root in roots if tree.startswith(f"{root.rstrip('/')}/") and os.path.isdir(root)]
        if not around:
            raise WorktreeError("the worktree is removed; open a file of its main tree and try again")
        return max(around, key=len)
    repository = find_repository(os.path.realpath(tree))
    if repository is None:
        raise WorktreeError(f"{tree} is not in a git repository, or that is gone")
    if repository.directory == repository.common:
        raise WorktreeError("this is in the main tree already; what was changed in a worktree can be merged into it")
    top = main_tree(git, repository.common)
    main = None if top is None else find_repository(top)
    if top is None or main is None or not os.path.isfile(f"{main.directory}/index"):
        raise WorktreeError("its repository has no main tree; merge the branch with git")
    return next((root for root in roots if os.path.realpath(root) == os.path.realpath(top)), top)


def entered(root: str, roots: Iterable[str], name: object) -> str | None:
    """Return the worktree that an agent in `root` has just entered by the `name` of its directory, None if unknown.

    It is a worktree of the repository of `root`, and is below one of `roots`.
    """
    own = find_repository(os.path.realpath(root))
    places = [
        each for each in roots if own and (its := find_repository(os.path.realpath(each))) and its.common == own.common
    ]
    trees = [tree for each in places for tree in worktrees_below(each) if not name or os.path.basename(tree) == name]
    return max(trees, key=lambda tree: os.stat(os.path.join(tree, ".git")).st_mtime, default=None)
