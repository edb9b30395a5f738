# SPDX-License-Identifier: GPL-3.0-or-later
"""Worktrees are listed with what they have changed, and conflicts are foreseen; nothing is written."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from journal_project import Project
from qwen_companion.base.git import Git
from qwen_companion.domain import Worktree
from qwen_companion.journal.worktree_list import WorktreeList
from qwen_companion.journal.worktrees import WorktreeError, home_of

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


def test_the_insides_of_repositories_are_not_merged(project: Project) -> None:
    project.commit(a_txt=b"a\n")
    tree = add(project, "tree", "-b", "tree")
    (tree / "a.txt").write_bytes(b"tree\n")
    project.git("init", "--quiet", "--bare", str(tree / ".bare"))
    (tree / ".hg").mkdir()
    (tree / ".hg/data").write_bytes(b"x")
    assert [net.path for net in listed(project).since_begun(str(tree), to_merge=True)] == [bytes(tree / "a.txt")]
    assert [net.path for net in listed(project).differences(str(tree), str(project.root))] == [bytes(tree / "a.txt")]


def test_commits_of_repositories_in_a_worktree_are_counted(project: Project) -> None:
    """Those that no remote has are lost with it, also where git ignores the repository."""
    project.commit(a_txt=b"a\n", **{"gitignore": b""})
    tree = add(project, "tree", "-b", "tree")
    (tree / ".gitignore").write_text("ignored\n")
    for name in ("inner", "ignored", "inner/deep"):
        project.git("clone", "--quiet", project.root.as_uri(), str(tree / name))
        project.git("commit", "--quiet", "--allow-empty", "--message=x", cwd=tree / name)
        project.git("checkout", "--quiet", "--detach", cwd=tree / name)
        project.git("commit", "--quiet", "--allow-empty", "--message=y", cwd=tree / name)
    assert listed(project).examined(str(tree)).inner == 6
    assert listed(project).examined(str(project.root)).inner == 0


def test_a_worktree_that_is_removed_is_merged_into_the_tree_around_it(tmp_path: Path) -> None:
    roots = [str(tmp_path), str(tmp_path / "p"), str(tmp_path / "p/wt"), str(tmp_path / "other")]
    for root in (roots[1], roots[3]):
        os.mkdir(root)
    assert home_of(f"{tmp_path}/p/wt", roots, Git(dict(os.environ))) == str(tmp_path / "p")
    with pytest.raises(WorktreeError, match="the worktree is removed"):
        home_of(f"{tmp_path}/p/wt", [roots[3]], Git(dict(os.environ)))


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


def test_all_that_differs_is_told_from_where_a_worktree_began_and_from_another_one(project: Project) -> None:
    project.commit(a_txt=changed(), b_txt=changed(), c_txt=changed(), gone=b"x\n", old=changed(), crlf=b"1\n2\n")
    one, two = add(project, "one", "-b", "one"), add(project, "two", "-b", "two")
    project.write("a.txt", b"of the main tree\n")
    project.git("commit", "--quiet", "--all", "--message=main")
    (one / "a.txt").write_bytes(changed(l1=b"one\n"))
    project.git("commit", "--quiet", "--all", "--message=one", cwd=one)
    (one / "b.txt").write_bytes(changed(l1=b"one\n"))
    (one / "c.txt").write_bytes(changed(l1=b"one\n"))
    project.git("commit", "--quiet", "--all", "--message=one", cwd=one)
    # It is as it was at the beginning.
    (one / "c.txt").write_bytes(changed())
    (one / "gone").unlink()
    (one / "old").rename(one / "moved")
    (one / "new\n.txt").write_bytes(b"new\n")
    (one / "crlf").write_bytes(b"1\r\n2\r\n")
    (two / "b.txt").write_bytes(changed(l1=b"two\n"))
    before = project.repository_state()

    def differences(other: Path | None, *only: str) -> dict[str, tuple[str | None, bytes | None, bytes | None]]:
        names = {os.fsencode(one / name) for name in only} or None
        trees = listed(project)
        nets = trees.differences(str(one), str(other), names) if other else trees.since_begun(str(one), False, names)
        sides = [(net.before and net.before.data, net.after and net.after.data) for net in nets]
        return {
            os.path.relpath(os.fsdecode(net.path), one): (net.kind, *its) for net, its in zip(nets, sides, strict=True)
        }

    found = differences(None)
    assert found == {
        "a.txt": ("modified", changed(), changed(l1=b"one\n")),
        "b.txt": ("modified", changed(), changed(l1=b"one\n")),
        "gone": ("deleted", b"x\n", None),
        "moved": ("renamed", changed(), changed()),
        "new\n.txt": ("added", None, b"new\n"),
    }
    assert differences(None, "moved", "old") == {"moved": found["moved"]}
    assert differences(two, "b.txt") == {"b.txt": ("modified", changed(l1=b"two\n"), changed(l1=b"one\n"))}
    assert differences(two).keys() == {*found, "crlf"}
    assert differences(project.root)["a.txt"] == ("modified", b"of the main tree\n", changed(l1=b"one\n"))
    assert project.repository_state() == before
    project.git("worktree", "remove", "--force", str(two))
    with pytest.raises(WorktreeError, match="no worktree any more"):
        differences(two)


def test_what_a_merge_would_change_in_the_main_tree_is_told(project: Project) -> None:
    names = ("clean.txt", "there.txt", "beside.txt", "same.txt", "twice.txt", "bin", "gone", "left.txt", "mode.txt")
    project.commit(**{name.replace(".", "_"): changed() for name in names})
    tree = add(project, "feat", "-b", "worktree-x")
    for name in names:
        (tree / name).write_bytes(changed(l1=b"tree\n"))
    (tree / "bin").write_bytes(b"\0tree")
    (tree / "new.txt").write_bytes(b"new\n")
    (tree / "left.txt").unlink()
    (tree / "mode.txt").write_bytes(changed())
    (tree / "mode.txt").chmod(0o755)
    # Some is brought home, beside it or on it is the user's own, and what the tree has not touched does not count.
    project.write("there.txt", changed(l1=b"tree\n"))
    project.write("beside.txt", changed(l8=b"mine\n"))
    project.write("same.txt", changed(l1=b"tree\n", l8=b"mine\n"))
    project.write("twice.txt", changed(l1=b"mine\n"))
    project.write("bin", b"\0mine")
    (project.root / "gone").unlink()
    project.write("left.txt", changed())
    project.write("mode.txt", changed(l8=b"mine\n"))
    project.write("only.txt", b"mine\n")
    before = project.repository_state()
    nets = {os.path.relpath(os.fsdecode(net.path), tree): net for net in listed(project).since_begun(str(tree), True)}
    assert {name: (net.before and net.before.data, net.after and net.after.data) for name, net in nets.items()} == {
        "clean.txt": (changed(), changed(l1=b"tree\n")),
        "beside.txt": (changed(l8=b"mine\n"), changed(l1=b"tree\n", l8=b"mine\n")),
        "twice.txt": (changed(), changed(l1=b"tree\n")),
        "bin": (changed(), b"\0tree"),
        "gone": (changed(), changed(l1=b"tree\n")),
        "left.txt": (changed(), None),
        "new.txt": (None, b"new\n"),
        "mode.txt": (changed(l8=b"mine\n"), changed(l8=b"mine\n")),
    }
    mode = nets["mode.txt"].after
    assert mode and mode.version.mode & 0o777 == 0o755
    conflicts = [name for name, net in nets.items() if net.mixed]
    assert sorted(conflicts) == ["bin", "gone", "twice.txt"]
    assert listed(project).examined(str(tree)).conflicts == tuple(sorted(conflicts))
    (net,) = listed(project).since_begun(str(tree), True, {os.fsencode(tree / "beside.txt")})
    assert net == nets["beside.txt"]
    assert project.repository_state() == before


def test_a_file_that_is_as_it_was_again_or_only_touched_counts_no_more(project: Project) -> None:
    project.commit(a_txt=changed(), b_txt=changed())
    tree = add(project, "feat", "-b", "worktree-x")
    (tree / "a.txt").write_bytes(changed(l1=b"tree\n"))
    (tree / "b.txt").write_bytes(changed(l1=b"tree\n"))
    project.git("commit", "--quiet", "--all", "--message=tree", cwd=tree)
    assert listed(project).examined(str(tree)).files == 2
    (tree / "a.txt").write_bytes(changed())
    os.utime(tree / "b.txt", ns=(1, 1))
    before = project.repository_state()
    found = listed(project).examined(str(tree))
    assert (found.files, found.uncommitted) == (1, 1)
    assert project.repository_state() == before
    project.write("c.txt", b"main\n")
    other = add(project, "other", "-b", "worktree-y")
    os.utime(other / "a.txt", ns=(1, 1))
    assert listed(project).examined(str(other)).files == 0


def test_of_many_changes_each_is_found_in_the_main_tree(project: Project) -> None:
    names = [f"f{number}.txt" for number in range(201)]
    project.commit(**{name.replace(".", "_"): changed() for name in names})
    tree = add(project, "feat", "-b", "worktree-x")
    for name in names:
        (tree / name).write_bytes(changed(l1=b"tree\n"))
    project.write("f200.txt", changed(l1=b"main\n"))
    found = listed(project).examined(str(tree))
    assert (found.files, found.conflicts) == (201, ("f200.txt",))


def remove(project: Project, tree: Path) -> None:
    project.git("worktree", "lock", "--reason", "on a disk", str(tree))
    tree.rename(tree.with_name("elsewhere"))


def delete(project: Project, tree: Path) -> None:
    shutil.rmtree(tree)


def lose_branch(project: Project, tree: Path) -> None:
    project.git("update-ref", "-d", "refs/heads/worktree-x")
    project.git("rm", "--quiet", "--cached", "-r", ".", cwd=tree)
    (tree / "a.txt").unlink()


def detach(project: Project, tree: Path) -> None:
    project.git("checkout", "--quiet", "--detach", cwd=tree)
    project.git("branch", "--delete", "--force", "worktree-x")


def make_bare(project: Project, tree: Path) -> None:
    project.git("config", "core.bare", "true")


def forget_commits(project: Project, tree: Path) -> None:
    project.git("update-ref", "-d", "HEAD")


def begin_anew(project: Project, tree: Path) -> None:
    project.git("checkout", "--quiet", "--orphan", "new", cwd=tree)
    project.git("commit", "--quiet", "--message=new", cwd=tree)


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (remove, ("worktree-x", "on a disk", True)),
        (delete, ("worktree-x", None, True)),
        (lose_branch, ("worktree-x", None, False)),
        (detach, (None, None, False)),
        (make_bare, ("worktree-x", None, False)),
        (forget_commits, ("worktree-x", None, False)),
        (begin_anew, ("new", None, False)),
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
        if harm in (forget_commits, begin_anew, lose_branch):
            with pytest.raises(WorktreeError, match="no commit in common"):
                listed(project).since_begun(found.path, to_merge=True)


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
    tree = project.root / "sub/trees/in"
    project.git("worktree", "add", "--quiet", "-b", "in", str(tree), cwd=project.root / "sub")
    assert [(each.path, each.branch) for each in inside.trees()] == [
        (str(project.root / "sub"), "main"),
        (str(tree), "in"),
    ]
    (tree / "a.txt").write_bytes(b"in\n")
    assert [found.path for found in inside.since_begun(str(tree), True)] == [os.fsencode(tree / "a.txt")]
    assert home_of(str(tree), [str(project.root)], Git(project.environ)) == str(project.root / "sub")
