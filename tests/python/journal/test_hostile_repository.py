# SPDX-License-Identifier: GPL-3.0-or-later
"""What only looks at a repository of a stranger runs none of its programs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hostile_project import RELATIVE, make_hostile_project
from qwen_companion.base.git import Git, GitError
from qwen_companion.base.programs import find_program, isolated
from qwen_companion.files.versions import FILE, Loaded, Version, digest_of
from qwen_companion.journal.changes import Net
from qwen_companion.journal.commit_notes import CommitNotes
from qwen_companion.journal.staging import Staging
from qwen_companion.journal.worktree_list import WorktreeList
from qwen_companion.journal.worktrees import is_ignored, main_tree
from qwen_companion.privacy.exclusions import Exclusions


class Trap:
    """A project with traps, and an environment in which they could go off."""

    def __init__(self, place: Path) -> None:
        self.root = place / "project"
        self._markers = place / "markers"
        make_hostile_project(self.root, self._markers)
        self.environ = {
            "PATH": f"{RELATIVE}:.::{os.environ['PATH']}",
            "HOME": str(place),
            "GIT_CONFIG_SYSTEM": os.devnull,
            "PYTHONPATH": ".",
        }
        self.sprung()

    def sprung(self) -> set[str]:
        """Return the traps that went off, and set them anew."""
        found = set(os.listdir(self._markers))
        for name in found:
            (self._markers / name).unlink()
        return found


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trap]:
    trap = Trap(tmp_path)
    monkeypatch.chdir(trap.root)
    yield trap
    assert trap.sprung() == set()


def test_the_traps_go_off_with_git_alone(trap: Trap) -> None:
    for command in ("status", "blame a.txt", "blame sub/c.txt"):
        subprocess.run(["git", *command.split()], cwd=trap.root, capture_output=True)
    assert {"fsmonitor", "module-fsmonitor", "process-0", "clean-0", "textconv-0", "textconv-1"} <= trap.sprung()


def test_the_list_of_worktrees_runs_nothing_and_has_no_forged_rows(trap: Trap) -> None:
    listed = WorktreeList(str(trap.root), trap.environ)
    main, forged, tree = listed.trees()
    assert (main.path, tree.path) == (str(trap.root), str(trap.root / "tree"))
    assert forged.gone
    found = listed.examined(tree.path)
    assert (found.files, found.uncommitted, found.conflicts) == (1, 1, ())
    assert listed.examined(main.path).uncommitted > 1
    assert [os.path.basename(net.path) for net in listed.since_begun(tree.path, False)] == [b"a.txt"]
    assert b"a.txt" not in {os.path.basename(net.path) for net in listed.differences(tree.path, main.path)}


def test_a_worktree_of_another_repository_is_gone(trap: Trap) -> None:
    (trap.root / ".git/worktrees/tree/gitdir").write_text(f"{trap.root}/.elsewhere/.git\n")
    listed = WorktreeList(str(trap.root), trap.environ)
    other = next(tree for tree in listed.trees() if tree.path.endswith(".elsewhere"))
    assert other.gone


def test_files_elsewhere_that_settings_name_are_not_those_of_a_worktree(trap: Trap, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private/letter").write_text("x\n")
    with (trap.root / ".git/config").open("a") as file:
        file.write(f"[core]\n    worktree = {tmp_path / 'private'}\n")
    listed = WorktreeList(str(trap.root), trap.environ)
    main = listed.trees()[0]
    assert main.path == str(trap.root)
    names = {os.path.relpath(net.path, os.fsencode(trap.root)) for net in listed.since_begun(main.path, False)}
    assert b"a.txt" in names
    assert b"letter" not in names


def test_the_lines_of_commits_are_found_without_converting_text(trap: Trap) -> None:
    git = Git(trap.environ)
    identity = {"GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_NAME": "A"}
    git.run(
        ["notes", "--ref=refs/notes/qwen-companion", "add", "-m", "{}", "HEAD"],
        str(trap.root),
        variables={**identity, "GIT_COMMITTER_EMAIL": "a@example.org"},
    )
    notes = CommitNotes(str(trap.root), trap.environ)
    for path in ("a.txt", "b.txt", "sub/c.txt"):
        assert list(notes.origins(str(trap.root / path), None)) == []
        assert list(notes.origins(str(trap.root / path), b"one\n2\nthree\n")) == []


def test_rules_are_asked_for_without_running_anything(trap: Trap) -> None:
    path = str(trap.root / "a.txt")
    assert not Exclusions(trap.environ).check([path], [str(trap.root)], None)[path].excluded
    git = Git(trap.environ)
    assert not is_ignored(str(trap.root), str(trap.root / "tree"), git)
    assert main_tree(git, str(trap.root / ".git")) == str(trap.root)


def test_a_patch_runs_no_filter(trap: Trap) -> None:
    before, after = b"one\ntwo\nthree\n", b"one\n2\nthree\n"
    old, new = (Loaded(Version(digest_of(data), FILE), data) for data in (before, after))
    patch = Staging(str(trap.root), trap.environ).patch([Net(os.fsencode(trap.root / "a.txt"), old, new)])
    assert b"-two\n+2\n" in patch


def test_to_commit_filters_run_as_with_git(trap: Trap) -> None:
    with (trap.root / ".git/config").open("a") as file:
        file.write('[filter "upper"]\n    clean = tr a-z A-Z\n')
    (trap.root / ".git/info/attributes").write_text("new.txt filter=upper\n")
    data = b"new\n"
    net = Net(os.fsencode(trap.root / "new.txt"), None, Loaded(Version(digest_of(data), FILE), data))
    assert Staging(str(trap.root), trap.environ).stage([net], onto_staged=True) == 1
    git = Git(trap.environ)
    assert git.run(["cat-file", "blob", ":new.txt"], str(trap.root)) == b"NEW\n"


def test_a_filter_that_no_option_can_name_keeps_git_from_running(trap: Trap) -> None:
    with (trap.root / ".git/config").open("a") as file:
        file.write('[filter "a=b"]\n    clean = cat\n')
    with pytest.raises(GitError, match="equals sign"):
        Git(trap.environ).run(["status", "--porcelain", "-z"], str(trap.root))


def test_programs_are_found_by_absolute_names_only(trap: Trap) -> None:
    found = find_program("git", trap.environ)
    assert found is not None
    assert os.path.isabs(found)
    assert not found.startswith(str(trap.root))
    assert find_program("./git", trap.environ) is None
    assert find_program(str(trap.root / "git"), trap.environ) == str(trap.root / "git")
    cleaned = isolated(trap.environ)
    assert "PYTHONPATH" not in cleaned
    assert all(map(os.path.isabs, cleaned["PATH"].split(":")))
