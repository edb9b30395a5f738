# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes of agents are put into the user's index and nothing else is touched; patches of them can be applied."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import hypothesis
import pytest

from journal_project import Project
from qwen_companion.base.git import GitError
from qwen_companion.files.versions import FILE, LINK, Loaded, Version, digest_of
from qwen_companion.journal.changes import Net
from qwen_companion.journal.staging import OthersStagedError, Staging, StagingError

FUZZES = hypothesis.settings().max_examples >= 1000
SEED = int(os.environ.get("FUZZ_SEED", "1"))


def staging(project: Project) -> Staging:
    return Staging(os.path.realpath(project.root), project.environ)


def index(project: Project) -> dict[str, tuple[str, str]]:
    """Return the mode and the digest of each entry of the user's index, by name."""
    lines = project.git("ls-files", "-z", "-s").split("\0")[:-1]
    return {line.split("\t", 1)[1]: (line[:6], line.split(" ")[1]) for line in lines}


def staged(project: Project, name: str) -> bytes:
    """Return the bytes of `name` in the index."""
    command = ["git", "cat-file", "blob", f":{name}"]
    return subprocess.run(command, cwd=project.root, env=project.environ, check=True, capture_output=True).stdout


def disk(project: Project) -> dict[str, tuple[bytes, int]]:
    """Return the bytes and the mode of each file in the working tree, and when it was changed."""
    found: dict[str, tuple[bytes, int]] = {}
    for path in project.root.rglob("*"):
        if ".git" not in path.parts and (path.is_symlink() or path.is_file()):
            data = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
            found[str(path.relative_to(project.root))] = data, path.lstat().st_mtime_ns
    return found


def side(data: bytes | None, mode: int = FILE) -> Loaded | None:
    return None if data is None else Loaded(Version(digest_of(data), mode), data)


def net(project: Project, name: str, before: bytes | None, after: bytes | None, **more: int) -> Net:
    """Return a change of the file `name`, with `mode` after it and `mode_before`."""
    path = os.fsencode(os.path.realpath(project.root) + "/" + name)
    mode_before = more.get("mode_before", FILE)
    return Net(path, side(before, mode_before), side(after, more.get("mode", mode_before)))


def numbered(count: int, changes: Mapping[int, str] = {}, end: str = "\n") -> bytes:
    return "".join(f"{changes.get(number, number)}{end}" for number in range(count)).encode()


def test_only_the_hunks_are_staged_beside_edits_of_the_user(project: Project) -> None:
    project.commit(a=numbered(30), b=b"b\n")
    # Line 3 is the user's from before the turn, and line 25 from after it.
    before, after = numbered(30, {3: "mine"}), numbered(30, {3: "mine", 15: "agent"})
    project.write("a", numbered(30, {3: "mine", 15: "agent", 25: "mine too"}))
    project.write("b", b"mine\n")
    mode = (project.root / ".git/index").stat().st_mode
    there = disk(project)
    assert staging(project).stage([net(project, "a", before, after)]) == 1
    assert staged(project, "a") == numbered(30, {15: "agent"})
    assert staged(project, "b") == b"b\n"
    assert disk(project) == there
    assert (project.root / ".git/index").stat().st_mode == mode
    project.git("fsck", "--strict")
    project.git("commit", "--quiet", "--message=agent")
    assert project.git("diff", "--stat").count("\n") == 3
    with pytest.raises(StagingError, match="in the last commit already"):
        staging(project).stage([net(project, "a", before, after)])


def test_new_deleted_renamed_links_modes_and_binaries(project: Project) -> None:
    project.commit(gone=b"gone\n", old=numbered(9), run=b"#!/bin/sh\n", image=b"\0\1", both=numbered(9))
    root = os.path.realpath(project.root)
    moved = Net(
        os.fsencode(f"{root}/sub/new"),
        side(numbered(9)),
        side(numbered(9, {4: "x"})),
        previous=os.fsencode(f"{root}/old"),
    )
    nets = [
        net(project, "made", None, b"made"),
        net(project, "gone", b"gone\n", None),
        moved,
        net(project, "run", b"#!/bin/sh\n", b"#!/bin/sh\n", mode=0o100755),
        net(project, "image", b"\0\1", b"\0\2"),
        net(project, "link", None, b"made", mode_before=LINK),
        net(project, "both", numbered(9), numbered(9, {1: "x"}), mode_before=0o100600),
    ]
    there = disk(project)
    patch = staging(project).patch(nets)
    assert staging(project).stage(nets) == 7
    modes = {name: mode for name, (mode, _) in index(project).items()}
    assert modes == {
        "made": "100644", "sub/new": "100644", "run": "100755", "image": "100644", "link": "120000", "both": "100644"
    }  # fmt: skip
    assert staged(project, "sub/new") == numbered(9, {4: "x"})
    assert (staged(project, "image"), staged(project, "link")) == (b"\0\2", b"made")
    assert disk(project) == there
    # The commit may fail, and be asked for again.
    before = index(project)
    assert staging(project).stage(nets[:1], onto_staged=True) == 1
    assert index(project) == before
    # The patch makes the same of the last commit.
    wanted = index(project)
    project.git("reset", "--quiet", "--hard")
    (project.home / "patch").write_bytes(patch)
    project.git("apply", "--index", str(project.home / "patch"))
    assert index(project) == wanted
    assert b"rename from old\nrename to sub/new\n" in patch
    assert b"old mode 100644\nnew mode 100755\n" in patch


def test_what_does_not_stand_on_the_commit_is_refused_with_the_reason(project: Project) -> None:
    project.commit(a=numbered(9), b=numbered(9))
    good = net(project, "b", numbered(9), numbered(9, {2: "x"}))
    before = index(project)
    cases = {
        "does not stand": net(project, "a", numbered(9, {4: "mine"}), numbered(9, {4: "agent"})),
        "with another text": net(project, "a", None, b"agent\n"),
        "was not in the repository": net(project, "c", b"mine\n", b"agent\n"),
        "deleted": net(project, "a", numbered(9, {4: "mine"}), None),
    }
    for reason, bad in cases.items():
        with pytest.raises(StagingError, match=reason) as refused:
            staging(project).stage([good, bad])
        # Emacs begins a sentence with it, which the name of a file does not stand.
        assert str(refused.value).startswith("the ")
        assert index(project) == before
    project.write(".gitignore", b"secret\n")
    with pytest.raises(StagingError, match="git ignores secret"):
        staging(project).stage([good, net(project, "secret", None, b"1\n")])
    assert index(project) == before


def test_what_the_agent_has_given_to_git_itself(project: Project) -> None:
    """After its `git mv`, `git rm` and `git add` the index has those changes, and no others are counted."""
    project.commit(old=numbered(9), gone=b"gone\n", edited=numbered(9), both=numbered(9))
    project.git("mv", "old", "new")
    project.git("rm", "--quiet", "gone")
    project.write("new", numbered(9, {4: "agent"}))
    project.write("edited", numbered(9, {4: "agent"}))
    project.git("add", "edited")
    root = os.path.realpath(project.root)
    nets = [
        Net(
            os.fsencode(f"{root}/new"),
            side(numbered(9)),
            side(numbered(9, {4: "agent"})),
            previous=os.fsencode(f"{root}/old"),
        ),
        net(project, "gone", b"gone\n", None),
        net(project, "edited", numbered(9), numbered(9, {4: "agent"})),
    ]
    for _ in range(2):
        assert staging(project).stage(nets) == 3
        assert sorted(index(project)) == ["both", "edited", "new"]
        assert staged(project, "new") == numbered(9, {4: "agent"})
    # What the user has staged in the same files is another change.
    project.write("edited", numbered(9, {4: "agent", 8: "mine"}))
    project.git("add", "edited")
    with pytest.raises(OthersStagedError):
        staging(project).stage(nets)
    # So is the deletion of a file that the agent has edited.
    project.git("reset", "--quiet", "--hard")
    project.git("rm", "--quiet", "--cached", "both")
    with pytest.raises(StagingError, match="the file both is deleted in the index"):
        staging(project).stage([net(project, "both", numbered(9), numbered(9, {4: "agent"}))], onto_staged=True)


@pytest.mark.parametrize("command", ["merge", "cherry-pick", "revert"])
def test_a_merge_under_way_is_not_committed(project: Project, command: str) -> None:
    project.commit(a=numbered(30), b=b"1\n")
    project.git("checkout", "--quiet", "-b", "other")
    project.commit(a=numbered(30, {3: "other"}))
    project.git("checkout", "--quiet", "main")
    project.commit(a=numbered(30, {3: "main"}))
    project.commit(a=numbered(30, {3: "main again"}))
    with pytest.raises(subprocess.CalledProcessError):
        project.git(command, "HEAD~1" if command == "revert" else "other")
    project.git("add", "a")
    before = index(project)
    with pytest.raises(StagingError, match=f"a {command} is in progress"):
        staging(project).stage([net(project, "c", None, b"agent\n")], onto_staged=True)
    assert index(project) == before


def test_odd_repositories(project: Project, tmp_path: Path) -> None:
    change = net(project, "a", None, b"agent\n")
    # Nothing is committed yet, and the file is announced only.
    project.write("a", b"agent\nmine\n")
    project.git("add", "--intent-to-add", "a")
    assert staging(project).stage([change], onto_staged=True) == 1
    assert staged(project, "a") == b"agent\n"
    project.git("commit", "--quiet", "--message=x")
    # Something else is staged.
    project.write("b", b"b\n")
    project.git("add", "b")
    more = net(project, "a", b"agent\n", b"agent\nmore\n")
    with pytest.raises(OthersStagedError) as others:
        staging(project).stage([more])
    assert others.value.count == 1
    assert staged(project, "a") == b"agent\n"
    assert staging(project).stage([more], onto_staged=True) == 1
    assert (staged(project, "a"), staged(project, "b")) == (b"agent\nmore\n", b"b\n")
    project.git("commit", "--quiet", "--message=y")
    # A submodule, and a repository of its own.
    inner = project.root / "inner"
    shutil.copytree(project.root / ".git", inner / ".git")
    with pytest.raises(StagingError, match="of its own or a submodule"):
        staging(project).stage([net(project, "inner/a", b"agent\n", b"x\n")])
    # An index that another git writes, and a conflict.
    lock = project.root / ".git/index.lock"
    lock.touch()
    last = net(project, "a", b"agent\nmore\n", b"last\n")
    with pytest.raises(GitError, match=r"index\.lock"):
        staging(project).stage([last])
    lock.unlink()
    project.git("checkout", "--quiet", "--force", "-b", "other", "HEAD~1")
    project.write("a", b"other\n")
    project.git("commit", "--quiet", "--all", "--message=other")
    with pytest.raises(subprocess.CalledProcessError):
        project.git("merge", "main")
    with pytest.raises(StagingError, match="conflict in a"):
        staging(project).stage([last])
    # None at all: no index, but a patch.
    bare = Project(tmp_path / "bare", git=False)
    with pytest.raises(StagingError, match="not in a git repository"):
        staging(bare).stage([net(bare, "a", b"1\r\n", b"2\r\n")])
    bare.write("a", b"1\r\n")
    (bare.home / "patch").write_bytes(staging(bare).patch([net(bare, "a", b"1\r\n", b"2\r\n")]))
    bare.git("apply", str(bare.home / "patch"))
    assert (bare.root / "a").read_bytes() == b"2\r\n"


def test_shallow_clones_submodules_and_a_file_that_the_user_has_renamed(project: Project) -> None:
    project.commit(a=numbered(9))
    project.commit(a=numbered(30))
    origin = project.root
    project.root = project.home / "shallow"
    project.git("clone", "--quiet", "--depth=1", origin.as_uri(), str(project.root), cwd=project.home)
    project.git("submodule", "--quiet", "add", origin.as_uri(), "module")
    project.git("commit", "--quiet", "--message=module")
    change = net(project, "a", numbered(30), numbered(30, {4: "agent"}))
    os.rename(project.root / "a", project.root / "renamed")
    project.write("renamed", numbered(30, {4: "agent", 20: "mine"}))
    there = disk(project)
    assert staging(project).stage([change]) == 1
    assert staged(project, "a") == numbered(30, {4: "agent"})
    assert "renamed" not in index(project)
    assert disk(project) == there
    for name in ("module/a", "module"):
        with pytest.raises(StagingError, match="of its own or a submodule"):
            staging(project).stage([net(project, name, numbered(30), b"x\n")], onto_staged=True)


@pytest.mark.parametrize("setting", [("core.autocrlf", "true"), ("core.eol", "crlf")])
def test_line_ends_are_converted_as_git_add_does(project: Project, setting: tuple[str, str]) -> None:
    project.commit(a=numbered(9), b=numbered(9, end="\r\n"))
    project.git("config", *setting)
    project.write(".gitattributes", b"a text\nb -text\n" if setting[0] == "core.eol" else b"")
    before, after = (numbered(9, changes, "\r\n") for changes in ({}, {4: "x"}))
    nets = [net(project, name, before, after) for name in ("a", "b")]
    for name in ("a", "b"):
        project.write(name, after)
    patch = staging(project).patch(nets)
    if setting[0] == "core.eol":
        project.git("add", ".gitattributes")
    assert staging(project).stage(nets, onto_staged=True) == 2
    assert staged(project, "a") == numbered(9, {4: "x"})
    wanted = index(project)
    project.git("add", "a", "b")
    assert index(project) == wanted
    assert patch


def test_filters_of_the_user_are_used(project: Project) -> None:
    project.git("config", "filter.upper.clean", "tr a-z A-Z")
    project.write(".gitattributes", b"*.txt filter=upper\n")
    project.commit(a_txt=numbered(5, {1: "one"}))
    assert staged(project, "a.txt") == numbered(5, {1: "ONE"})
    change = net(project, "a.txt", numbered(5, {1: "one"}), numbered(5, {1: "one", 3: "three"}))
    assert staging(project).stage([change]) == 1
    assert staged(project, "a.txt") == numbered(5, {1: "ONE", 3: "THREE"})


def test_what_git_says_does_not_begin_with_a_file_name(project: Project) -> None:
    """Emacs makes the first letter of a reason a capital."""
    project.write(".gitattributes", b"*.txt filter=lost\n")
    project.commit(a_txt=b"a\n")
    project.git("config", "filter.lost.required", "true")
    with pytest.raises(GitError, match=r"^git: a\.txt: clean filter"):
        staging(project).stage([net(project, "a.txt", b"a\n", b"b\n")])


@pytest.mark.parametrize("seed", range(SEED, SEED + (60 if FUZZES else 4)))
def test_the_index_is_the_commit_with_those_hunks(tmp_path: Path, seed: int) -> None:
    """In random trees: the oracle knows each text by its numbered places, some the agent's and some the user's."""
    chance = random.Random(seed)  # noqa: S311 - not for secrets
    project = Project(tmp_path)
    names = ["a", "b c", "d/é", 'd/"q"', "e.bin"]
    ends = {name: chance.choice(("\n", "\n", "\r\n")) for name in names}
    committed = {name: numbered(40, {}, ends[name]) for name in names if chance.random() < 0.8}
    for name, data in committed.items():
        project.write(name, data, chance.choice((0o644, 0o755)))
    project.commit()
    expected = {name: staged(project, name) for name in committed}
    modes = {name: mode for name, (mode, _) in index(project).items()}
    nets: list[Net] = []
    for name in names:
        places = chance.sample(range(0, 40, 4), 6)
        user, agent = (
            {place: f"{who} {place}" for place in its} for who, its in (("mine", places[:3]), ("agent", places[3:]))
        )
        old = 0o100755 if modes.get(name) == "100755" else FILE
        if name not in committed:
            data, kind = numbered(5, {}, ends[name]), "added"
            nets.append(net(project, name, None, data))
            project.write(name, data + b"mine\n")
            expected[name] = data
            modes[name] = "100644"
            continue
        kind = chance.choice(("edited", "edited", "mode", "deleted", "none"))
        if kind in ("edited", "mode"):
            new = old ^ 0o111 if kind == "mode" else old
            before, after = numbered(40, user, ends[name]), numbered(40, {**user, **agent}, ends[name])
            nets.append(net(project, name, before, after, mode_before=old, mode=new))
            project.write(name, numbered(40, {**user, **agent, 39: "mine"}, ends[name]))
            expected[name] = numbered(40, agent, ends[name])
            modes[name] = f"{new:o}"
        elif kind == "deleted":
            nets.append(net(project, name, committed[name], None, mode_before=old))
            (project.root / name).unlink()
            del expected[name], modes[name]
    there = disk(project)
    patch = staging(project).patch(nets)
    if nets:
        staging(project).stage(nets)
    assert {name: mode for name, (mode, _) in index(project).items()} == modes
    assert {name: staged(project, name) for name in index(project)} == expected
    assert disk(project) == there
    # The patch makes the texts after the changes of those before them.
    for change in nets:
        path = Path(os.fsdecode(change.path))
        path.unlink(missing_ok=True)
        if change.before is not None:
            path.write_bytes(change.before.data)
            path.chmod(change.before.version.mode & 0o777)
    (project.home / "patch").write_bytes(patch)
    project.git("apply", "--allow-empty", str(project.home / "patch"))
    for change in nets:
        path = Path(os.fsdecode(change.path))
        assert (path.read_bytes() if path.exists() else None) == (change.after and change.after.data)
