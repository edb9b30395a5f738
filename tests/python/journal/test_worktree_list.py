# SPDX-License-Identifier: GPL-3.0-or-later
"""Worktrees are listed with what they have changed, and conflicts are foreseen; nothing is written."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from journal_project import Project
from qwen_companion.domain import Worktree
from qwen_companion.journal.worktree_list import WorktreeList
from qwen_companion.journal.worktrees import WorktreeError

LINES = [b"%d\n" % number for number in range(9)]


def changed(**lines: bytes) -> bytes:
    """Return the text with other lines, `l3=` for the fourth."""
    return b"".join(lines.get(f"l{number}", line) for number, line in enumerate(LINES))


def add(project: Project, name: str, *options: str) -> Path:
    path = project.root / ".qwen/worktrees" / name
    project.git("worktree", "add", "--quiet", *options, str(path))
    return path


def listed(project: Project) -> WorktreeList:
    return WorktreeList(str(project.root), project.environ)


def test_a_worktree_is_listed_with_what_it_has_changed(project: Project) -> None:
    project.commit(a_txt=changed(), b_txt=changed(), bin=b"\0one")
    tree = add(project, "with space", "-b", "worktree-x")
    project.git("commit", "--quiet", "--allow-empty", "--message=main")
    (tree / "a.txt").write_bytes(changed(l1=b"tree\n"))
    project.git("commit", "--quiet", "--all", "--message=tree", cwd=tree)
    (tree / "b.txt").write_bytes(changed(l1=b"tree\n"))
    (tree / "bin").write_bytes(b"\0tree")
    (tree / "new.txt").write_bytes(b"tree\n")
    before = {path: path.stat().st_mtime_ns for path in (project.root / ".git").rglob("*")}
    first = listed(project).trees()
    assert [(each.path, each.branch) for each in first] == [(str(project.root), "main"), (str(tree), "worktree-x")]
    found = listed(project).examined(str(tree))
    assert (found.files, found.uncommitted, found.ahead, found.behind, found.conflicts) == (4, 3, 1, 1, ())
    # Committed or not, on the lines of the other or beside them.
    project.write("a.txt", changed(l8=b"main\n"))
    project.write("b.txt", changed(l1=b"main\n"))
    project.write("bin", b"\0main")
    project.write("new.txt", b"main\n")
    found = listed(project).examined(str(tree))
    assert found.conflicts == ("b.txt", "bin", "new.txt")
    for name in ("a.txt", "b.txt"):
        (project.root / "base").write_bytes(changed())
        command = ["git", "merge-file", "-p", str(project.root / name), str(project.root / "base"), str(tree / name)]
        assert (subprocess.run(command, capture_output=True).returncode > 0) == (name in found.conflicts)
    assert before == {path: path.stat().st_mtime_ns for path in (project.root / ".git").rglob("*")}


def remove(project: Project, tree: Path) -> None:
    project.git("worktree", "lock", "--reason", "on a disk", str(tree))
    tree.rename(tree.with_name("elsewhere"))


def detach(project: Project, tree: Path) -> None:
    project.git("checkout", "--quiet", "--detach", cwd=tree)
    project.git("branch", "--delete", "--force", "worktree-x")


def make_bare(project: Project, tree: Path) -> None:
    project.git("config", "core.bare", "true")


def forget_commits(project: Project, tree: Path) -> None:
    project.git("update-ref", "-d", "HEAD")


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (remove, ("worktree-x", "on a disk", True)),
        (detach, (None, None, False)),
        (make_bare, ("worktree-x", None, False)),
        (forget_commits, ("worktree-x", None, False)),
    ],
)
def test_odd_worktrees_are_listed(
    project: Project, harm: Callable[[Project, Path], None], expected: tuple[object, ...]
) -> None:
    project.commit(a_txt=changed())
    tree = add(project, "feat", "-b", "worktree-x")
    harm(project, tree)
    main, found = listed(project).trees()
    assert (found.branch, found.locked, found.gone) == expected
    assert (main.branch == "") == (harm is make_bare)
    if found.gone:
        with pytest.raises(WorktreeError, match="no worktree any more"):
            listed(project).examined(found.path)
    else:
        assert listed(project).examined(found.path).files == 0


def test_outside_a_repository_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(WorktreeError, match="not in a git repository"):
        WorktreeList(str(tmp_path), Project(tmp_path, git=False).environ)


def test_a_submodule_and_a_repository_without_a_commit_are_listed(project: Project) -> None:
    (only,) = listed(project).trees()
    assert only == Worktree(str(project.root), "main", "", None, gone=False)
    assert listed(project).examined(only.path).files == 0
    other = Project(project.home / "other")
    other.commit(a_txt=b"x")
    project.git("submodule", "--quiet", "add", str(other.root), "sub")
    inside = WorktreeList(str(project.root / "sub"), project.environ)
    assert [tree.branch for tree in inside.trees()] == ["main"]
