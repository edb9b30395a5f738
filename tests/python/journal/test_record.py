# SPDX-License-Identifier: GPL-3.0-or-later
"""Records of real directories and repositories equal the files on the disk, byte for byte."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from journal_project import SHELL, Project
from qwen_companion.base import git, programs
from qwen_companion.base.git import Git, GitError
from qwen_companion.domain import Usage
from qwen_companion.files.listing import WorkTree
from qwen_companion.files.repository import Objects, find_repository
from qwen_companion.files.rules import OWN, RecordRules
from qwen_companion.files.table import Table
from qwen_companion.files.versions import Loaded, digest_of, inode_at, load
from qwen_companion.journal.activity import written_by
from qwen_companion.journal.answers import RecordError, Scope
from qwen_companion.journal.baselines import Baseline, LimitError
from qwen_companion.journal.changes import Net
from qwen_companion.journal.database import DamagedStoreError, StoreError
from qwen_companion.journal.record import ONE_GO_MS, Cause, Record
from qwen_companion.journal.record_directory import NoRecordError
from qwen_companion.journal.store import MAX_AGE_MS, Store, TurnRow, Write
from qwen_companion.privacy.options import Options

ENDLESS = "with recursive n(i) as (select 1 union all select i + 1 from n) select 1, 'm', 0, 0, sum(i) from n"

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256))


@pytest.fixture(params=[True, False], ids=["git", "no git"])
def any_project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    return Project(tmp_path, git=request.param)


def test_everything_a_command_does_to_files_is_recorded_with_its_bytes(any_project: Project) -> None:
    project = any_project
    texts = {
        "latin": "caf\xe9\n".encode("latin-1"),
        "crlf": b"a\r\nb\r\n",
        "bom": b"\xef\xbb\xbfa\nno end",
        "utf16": "\ufeffa\nb\n".encode("utf-16-le"),
        "png": PNG,
        "empty": b"",
        "old name": b"one\ntwo\nthree\nfour\n",
        "d/gone": b"gone\n",
        "run": b"#!/bin/sh\n",
        "same": b"same\n",
        "n\xe4me \n\u2028": b"x\n",
    }
    for name, data in texts.items():
        project.write(name, data)
    (project.root / "link").symlink_to("latin")
    if (project.root / ".git").exists():
        # Half of it is committed, half is untracked.
        project.git("add", *list(texts)[::2], "link")
        project.git("commit", "--quiet", "--message=x")
    turn = project.begin()
    for name in ("latin", "crlf", "bom", "utf16", "png", "empty", "n\xe4me \n\u2028"):
        project.write(name, texts[name] + b"more\0" + texts[name])
    (project.root / "old name").rename(project.root / "new name")
    shutil.rmtree(project.root / "d")
    for name in ("run", "latin"):
        (project.root / name).chmod(0o755)
    (project.root / "link").unlink()
    (project.root / "link").symlink_to("bom")
    project.write("made/here", b"new\n")
    project.scan(turn)
    modified = ("latin", "crlf", "bom", "utf16", "png", "empty", "n\xe4me \n\u2028", "link")
    assert project.kinds(turn) == {
        **dict.fromkeys(modified, "modified"),
        "new name": "renamed",
        "d/gone": "deleted",
        "run": "mode",
        "made/here": "added",
    }
    for name in ("latin", "crlf", "bom", "utf16", "png", "empty", "n\xe4me \n\u2028", "d/gone"):
        assert project.before(name, turn) == texts[name], name
    renamed = project.net("new name", turn)
    assert (renamed.previous, project.before("new name", turn)) == (
        os.fsencode(project.root / "old name"),
        texts["old name"],
    )
    assert project.before("link", turn) == b"latin"
    assert project.before("made/here", turn) is None
    assert project.after("latin", turn) == (project.root / "latin").read_bytes()
    assert project.files(turn)["latin"].writers == ((SHELL, None),)
    assert project.files(turn)["png"].binary
    assert {name for name, file in project.files(turn).items() if file.mode} == {"run", "latin"}
    assert {name for name, file in project.files(turn).items() if file.link} == {"link"}
    assert (project.files(turn)["made/here"].added, project.files(turn)["d/gone"].deleted) == (1, 1)


def test_large_texts_that_only_git_has_are_asked_for_little_by_little(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit(a=b"12345", b=b"67890", c=b"abcde")
    root = os.path.realpath(project.root)
    objects = Objects(Git(project.environ), f"{root}/.git", find_repository(root))
    digests = [digest_of(data) for data in (b"12345", b"no such", b"67890", b"abcde")]
    assert objects.few(digests, 10) == digests[:3]
    assert objects.few(digests, 9) == digests[:2]
    assert objects.few(digests, 4) == digests[:1]
    project.begin()
    files = project.reopen().site.files(str(project.home / "trees"), project.record.store)
    files.take(lambda _changes: None)
    monkeypatch.setattr("qwen_companion.journal.local_files._FETCHED", 10)
    assert files.fetch(digests) == {digests[0]: b"12345", digests[2]: b"67890"}


def test_the_users_repository_stays_as_it_is(project: Project) -> None:
    project.write(".gitignore", b"ignored\n")
    project.commit(a_txt=b"a\n", b_txt=b"b\n")
    project.write("a.txt", b"changed by the user\n")
    project.write("staged", b"s\n")
    project.git("add", "staged")
    project.write("untracked", b"u\n")
    project.git("config", "core.hooksPath", "hooks")
    for hook in ("post-index-change", "fsmonitor"):
        project.write(f"hooks/{hook}", b"#!/bin/sh\ntouch $HOME/ran\n", 0o755)
    project.git("config", "core.fsmonitor", str(project.root / "hooks/fsmonitor"))
    before = project.repository_state()
    turn = project.command({"a.txt": b"agent\n", "ignored": b"not recorded\n"})
    project.end(turn)
    assert project.record.answers.files(Scope("commit"))
    assert project.kinds(turn) == {"a.txt": "modified"}
    assert project.before("a.txt", turn) == b"changed by the user\n"
    assert project.repository_state() == before
    assert not (project.home / "ran").exists()
    project.git("config", "--unset", "core.fsmonitor")
    assert project.git("status", "--porcelain").splitlines() == [" M a.txt", "A  staged", "?? hooks/", "?? untracked"]
    project.git("fsck", "--strict")


def test_what_the_repository_has_is_not_copied_until_it_is_changed(project: Project) -> None:
    project.commit(a=b"committed one\n", b=b"committed two\n")
    project.command(a=b"agent\n")
    (path,) = (project.home / "state").rglob("journal.sqlite")
    assert b"committed one" in path.read_bytes()
    assert b"committed two" not in path.read_bytes()


@pytest.mark.parametrize("setting", ["true", "input"])
def test_line_ends_are_those_of_the_disk_whatever_git_converts(project: Project, setting: str) -> None:
    project.git("config", "core.autocrlf", setting)
    project.commit(a_txt=b"a\r\nb\r\n", b_txt=b"a\r\nb\r\n")
    turn = project.command({"a.txt": b"a\nb\n"})
    assert project.kinds(turn) == {"a.txt": "modified"}
    assert project.before("a.txt", turn) == b"a\r\nb\r\n"


def test_of_many_files_that_git_converts_the_same_holds_and_what_the_repository_has_is_not_copied(
    project: Project,
) -> None:
    project.git("config", "core.autocrlf", "true")
    before = {f"{number}.txt": b"file %d%s" % (number, (b"\n", b"\r\n")[number % 2]) for number in range(600)}
    for name, data in before.items():
        project.write(name, data)
    project.git("add", "--all")
    # Not all that is in the index has a blob.
    for name, data in (("empty.txt", b""), ("known.txt", b"known\n")):
        before[name] = data
        project.write(name, data)
        project.git("update-index", "--add", "--info-only", name)
    turn = project.begin()
    (path,) = (project.home / "state").rglob("journal.sqlite")
    kept = path.read_bytes()
    assert b"file 1\r\n" in kept
    assert b"file 2\n" not in kept
    for name in before:
        project.write(name, b"x")
    project.scan(turn)
    assert project.all_before(before, turn) == before


@pytest.mark.parametrize("attributes", ["* text=auto eol=crlf", "*.txt ident", "*.txt working-tree-encoding=UTF-16LE"])
def test_bytes_are_those_of_the_disk_whatever_attributes_say(project: Project, attributes: str) -> None:
    project.write("sub/.gitattributes", attributes.encode() + b"\n")
    original = "$Id$\r\n".encode("utf-16-le")
    project.write("sub/a.txt", original)
    project.commit()
    (project.root / "sub/a.txt").unlink()
    project.git("checkout", "--", ".")
    original = (project.root / "sub/a.txt").read_bytes()
    turn = project.begin()
    (project.root / "sub/a.txt").unlink()
    project.scan(turn)
    assert project.kinds(turn) == {"sub/a.txt": "deleted"}
    assert project.before("sub/a.txt", turn) == original


@pytest.mark.parametrize(
    "attributes",
    [b"*.txt\ttext merge=union", b'"*.txt"\ttext diff', b"[attr]t\ttext diff\n*.txt\tt"],
)
@pytest.mark.parametrize("place", [".gitattributes", "sub/.gitattributes", ".git/info/attributes", "ignored"])
def test_a_text_that_git_converts_has_the_bytes_of_the_disk(project: Project, attributes: bytes, place: str) -> None:
    if place == "ignored":
        project.write(".git/info/exclude", b".gitattributes\n")
        place = ".gitattributes"
    project.write(place, attributes + b"\n")
    project.commit(**{"sub/a_txt": b"one\r\ntwo\r\n"})
    turn = project.command({"sub/a.txt": b"one\r\n2\r\n"})
    assert project.kinds(turn) == {"sub/a.txt": "modified"}
    assert project.before("sub/a.txt", turn) == b"one\r\ntwo\r\n"


def test_no_filter_program_runs(project: Project) -> None:
    project.write(".gitattributes", b"*.bin filter=lfs diff=lfs merge=lfs -text\n")
    project.write("a.bin", b"large\n")
    project.commit()
    for kind in ("clean", "smudge", "process"):
        project.git("config", f"filter.lfs.{kind}", "touch $HOME/ran; cat")
    turn = project.command({"a.bin": b"larger\n", "b.bin": b"new\n"})
    project.record.answers.files(Scope("commit"))
    assert project.kinds(turn) == {"a.bin": "modified", "b.bin": "added"}
    assert project.before("a.bin", turn) == b"large\n"
    assert not (project.home / "ran").exists()


def test_no_excluded_or_ignored_file_is_recorded(any_project: Project) -> None:
    project = any_project
    secrets = {
        ".env": b"KEY=tracked\n",
        "id_rsa": b"my own key\n",
        "sub/private.txt": b"by option\n",
        "hidden": b"hidden by hand\n",
    }
    secrets |= {"build/out": b"ignored by git\n", "docs/note": b"ignored by the CLI\n"}
    project.write(".gitignore", b"build/\n")
    project.write(".qwenignore", b"docs/\n")
    for name, data in secrets.items():
        project.write(name, data)
    project.write("open", b"open\n")
    if (project.root / ".git").exists():
        project.git("add", ".env", "open")
        project.git("commit", "--quiet", "--message=x")
    project.record.rules.set_options(Options(patterns=("private.txt",)), [str(project.root / "hidden")])
    turn = project.command({name: b"written " + data for name, data in (*secrets.items(), ("open", b"open\n"))})
    for name in secrets:
        project.edit(turn, name, b"edited " + secrets[name])
    assert project.kinds(turn) == {"open": "modified"}
    for name in secrets:
        with pytest.raises(RecordError, match="not kept any more"):
            project.net(name, turn)
    project.record.close()
    for path in (project.home / "state").rglob("*"):
        if path.is_file():
            assert not any(text.strip() in path.read_bytes() for text in secrets.values()), path
            assert path.stat().st_mode & 0o077 == 0, path
        else:
            assert path.name in ("state", "qwen-companion") or path.stat().st_mode & 0o077 == 0, path


def test_options_about_places_count_below_the_root_and_around_it(project: Project) -> None:
    (project.home / "link").symlink_to(project.root)
    paths = {name: os.fsencode(project.root / name) for name in ("logins", "keys/a", "Linked", "open")}
    rules = project.record.rules

    def excluded(*patterns: str, auth_sources: tuple[str, ...] = ()) -> set[str]:
        rules.set_options(Options(patterns, auth_sources), ())
        rules.refresh()
        return {name for name, path in paths.items() if path in rules.excluded(paths.values())}

    assert excluded(auth_sources=("~/.authinfo", "~/work/logins")) == {"logins"}
    assert excluded("~/work/keys", "~/other/**", "~/works/") == {"keys/a"}
    assert excluded("~/link/linked") == {"Linked"}
    assert excluded("~/*/logins") == {"logins"}
    assert excluded("~/WORK/") == excluded(str(project.home)) == excluded("~/link") == set(paths)
    assert excluded("~/.authinfo", "~/wor", auth_sources=("~/.netrc",)) == set()


def test_what_an_agent_writes_below_git_is_not_recorded(any_project: Project) -> None:
    """It cannot be undone either."""
    project = any_project
    names = (".git/hooks/pre-commit", ".git/info/note", "sub/.git/note")
    for name in names:
        project.write(name, b"before\n")
    project.write("open", b"open\n")
    turn = project.begin()
    for name in (*names, "open"):
        project.edit(turn, name, b"edited\n")
    for name in names:
        project.write(name, b"by a command\n")
    project.scan(turn)
    assert project.kinds(turn) == {"open": "modified"}
    for name in names:
        with pytest.raises(RecordError, match="not kept any more"):
            project.net(name, turn)


def test_submodules_and_repositories_within_are_recorded(project: Project, tmp_path: Path) -> None:
    other = Project(tmp_path / "other")
    other.commit(a_txt=b"a\n")
    project.commit(top_txt=b"t\n")
    project.git("submodule", "--quiet", "add", str(other.root), "mod")
    project.git("commit", "--quiet", "--message=mod")
    shutil.copytree(other.root, project.root / "nested")
    turn = project.begin()
    project.write("mod/a.txt", b"agent\n")
    project.write("nested/a.txt", b"agent too\n")
    project.git("commit", "--quiet", "--all", "--message=y", cwd=project.root / "mod")
    project.git("clone", "--quiet", str(other.root), "cloned")
    project.scan(turn)
    assert project.kinds(turn) == {"mod/a.txt": "modified", "nested/a.txt": "modified", "cloned/a.txt": "added"}
    assert project.before("mod/a.txt", turn) == b"a\n"
    assert project.notes(turn) == ("the repository cloned/.git is new; undo leaves it alone",)
    # The next one goes on from there.
    turn = project.begin()
    project.write("cloned/a.txt", b"b\n")
    # Another process goes on.
    project.reopen()
    project.scan(turn)
    assert project.kinds(turn) == {"cloned/a.txt": "modified"}


@pytest.mark.parametrize(("owner", "method"), [(WorkTree, "files"), (Table, "compare"), (Baseline, "_finish")])
def test_what_was_in_a_repository_that_is_deleted_during_a_look_is_recorded(
    project: Project, owner: type, method: str
) -> None:
    nested = Project(project.root / "nested")
    nested.commit(a=b"a\n", b=b"b\n")
    project.commit(c=b"c\n")
    name = f"nested/{nested.root.name}"
    turn = project.begin()
    project.write(f"{name}/a", b"agent\n")

    def call_and_delete(call: Callable[..., object], *arguments: object) -> object:
        is_nested = not isinstance(tree := arguments[0], WorkTree) or tree.top == str(nested.root)
        if not is_nested or not nested.root.exists():
            return call(*arguments)
        (nested.root / "a").unlink()
        result = None if method == "files" else call(*arguments)
        shutil.rmtree(nested.root)
        return call(*arguments) if method == "files" else result

    project.scan_with(turn, owner, method, call_and_delete)
    project.scan(turn)
    assert project.kinds(turn) == {f"{name}/a": "deleted", f"{name}/b": "deleted"}
    assert project.before(f"{name}/a", turn) == b"a\n"


def test_a_worktree_and_a_directory_within_a_repository_are_recorded(project: Project, tmp_path: Path) -> None:
    project.write(".gitignore", b"*.log\n")
    project.write("in/a.txt", b"a\n")
    project.commit()
    project.git("worktree", "add", "--quiet", str(tmp_path / "tree"))
    for root in (tmp_path / "tree", project.root / "in"):
        project.root = root
        project.reopen()
        name = "in/a.txt" if root.name == "tree" else "a.txt"
        turn = project.begin()
        project.write(name, b"agent\n")
        project.write("x.log", b"ignored\n")
        (root.parent / "outside").write_bytes(b"not below the root\n")
        project.scan(turn)
        assert project.kinds(turn) == {name: "modified"}
        assert project.before(name, turn) == b"a\n"


def test_odd_states_of_an_index_hide_nothing(project: Project) -> None:
    project.write("in/a", b"a\n")
    project.write("out/b", b"b\n")
    project.commit(assumed=b"1\n", skipped=b"1\n")
    project.git("sparse-checkout", "set", "in")
    project.git("update-index", "--assume-unchanged", "assumed")
    project.git("update-index", "--skip-worktree", "skipped")
    project.write("intended", b"i\n")
    project.git("add", "--intent-to-add", "intended")
    turn = project.command(dict.fromkeys(("assumed", "skipped", "intended", "in/a"), b"agent\n"))
    assert project.kinds(turn) == dict.fromkeys(("assumed", "skipped", "intended", "in/a"), "modified")
    assert project.before("intended", turn) == b"i\n"


def test_a_sparse_checkout_shows_what_comes_and_goes_and_nothing_that_is_away(project: Project) -> None:
    for name in ("in/a", "out/b", "out/deep/c"):
        project.write(name, name.encode())
    project.commit(top=b"t\n")
    project.git("sparse-checkout", "set", "--cone", "--sparse-index", "in")
    before = project.repository_state()
    turn = project.command({"in/a": b"agent\n"})
    assert project.kinds(turn) == {"in/a": "modified"}
    assert project.before("in/a", turn) == b"in/a"
    # Git sets the times of trees that it has expanded from the index, and nothing else.
    after = project.repository_state()
    assert {name: data for name, (data, _) in after.items()} == {name: data for name, (data, _) in before.items()}
    assert all(name.startswith("objects/") for name in after if after[name] != before[name])
    # The agent brings one directory and puts away the other.
    project.git("checkout", "--", "in/a")
    project.git("sparse-checkout", "set", "--cone", "out")
    project.scan(turn)
    assert project.kinds(turn) == {"in/a": "deleted", "out/b": "added", "out/deep/c": "added"}
    assert project.before("in/a", turn) == b"in/a"
    assert project.after("out/deep/c", turn) == b"out/deep/c"
    turn = project.begin()
    project.git("sparse-checkout", "disable")
    project.scan(turn)
    assert project.kinds(turn) == {"in/a": "added"}


def test_thousands_of_ignored_files_are_neither_read_nor_recorded(
    any_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `npm install` writes them."""
    project = any_project
    project.write(".gitignore", b"node_modules/\n*.log\n")
    project.write("package.json", b"{}\n")
    project.write("node_modules/old/index.js", b"there before\n")
    turn = project.begin()
    read: list[bytes] = []

    def note(path: bytes, algorithm: str) -> Loaded | None:
        read.append(path)
        return load(path, algorithm)

    monkeypatch.setattr("qwen_companion.journal.local_files.load", note)
    project.write("package.json", b'{"dependencies": {}}\n')
    project.write("package-lock.json", b"{}\n")
    project.write("npm-debug.log", b"log\n")
    (project.root / "node_modules/old/index.js").unlink()
    for number in range(3000):
        project.write(f"node_modules/p{number % 60}/lib/{number}.js", b"code %d\n" % number)
    project.scan(turn)
    assert project.kinds(turn) == {"package.json": "modified", "package-lock.json": "added"}
    # One that was written just before the first look may be read again.
    names = {os.path.basename(path) for path in read} - {b".gitignore"}
    assert names == {b"package.json", b"package-lock.json"}
    # Nor are their directories watched.
    assert project.record.directories() == {os.fsencode(project.root)}
    project.record.close()
    (kept,) = (project.home / "state").rglob("journal.sqlite")
    assert b"there before" not in kept.read_bytes()
    assert b"code " not in kept.read_bytes()


def test_files_in_conflict_are_recorded(project: Project) -> None:
    project.commit(a=b"base\n")
    project.git("checkout", "--quiet", "-b", "other")
    project.commit(a=b"theirs\n")
    project.git("checkout", "--quiet", "main")
    project.commit(a=b"ours\n")
    with pytest.raises(subprocess.CalledProcessError):
        project.git("merge", "other")
    conflict = (project.root / "a").read_bytes()
    turn = project.begin()
    project.write("a", b"resolved\n")
    project.git("commit", "--quiet", "--all", "--message=merged")
    project.scan(turn)
    assert project.kinds(turn) == {"a": "modified"}
    assert project.before("a", turn) == conflict


def test_git_checkout_and_rebase_by_an_agent_are_changes_of_files(project: Project) -> None:
    project.commit(a=b"1\n", b=b"1\n")
    project.git("checkout", "--quiet", "-b", "other")
    project.commit(a=b"2\n", c=b"new\n")
    project.git("checkout", "--quiet", "main")
    project.commit(b=b"main\n")
    turn = project.begin()
    project.git("checkout", "--quiet", "other")
    project.scan(turn)
    project.git("rebase", "--quiet", "main")
    project.git("gc", "--quiet", "--prune=now")
    project.scan(turn)
    assert project.kinds(turn) == {"a": "modified", "c": "added"}
    assert project.before("a", turn) == b"1\n"


def test_sha256_and_a_split_index_are_recorded(tmp_path: Path) -> None:
    project = Project(tmp_path, git=False)
    project.git("init", "--quiet", "--object-format=sha256")
    project.git("config", "core.splitIndex", "true")
    project.commit(a=b"a\n", b=b"b\n")
    turn = project.command(a=b"agent\n")
    assert project.kinds(turn) == {"a": "modified"}
    assert project.before("a", turn) == b"a\n"


def test_permissions_are_those_of_the_disk(any_project: Project) -> None:
    """Git knows only whether a file can be run."""
    project = any_project
    modes = {"plain": 0o644, "shared": 0o664, "private": 0o600, "script": 0o755, "own": 0o700, "deleted": 0o640}
    for name, mode in modes.items():
        project.write(name, b"text\n", mode)
    if (project.root / ".git").exists():
        project.commit()
    project.write("unknown", b"text\n", 0o600)
    turn = project.begin()
    project.write("plain", b"text\n", 0o600)
    project.write("shared", b"new\n", 0o644)
    project.write("private", b"new\n", 0o600)
    (project.root / "script").chmod(0o4644)
    (project.root / "own").unlink()
    project.write("own", b"text\n", 0o755)
    (project.root / "deleted").unlink()
    project.write("unknown", b"new\n", 0o640)
    project.scan(turn)
    nets = {name: project.net(name, turn) for name in project.kinds(turn)}
    assert {name: (permissions(net.before), permissions(net.after)) for name, net in nets.items()} == {
        "plain": (0o644, 0o600),
        "shared": (0o664, 0o644),
        "private": (0o600, 0o600),
        "script": (0o755, 0o644),
        "own": (0o700, 0o755),
        "deleted": (0o640, None),
        "unknown": (0o600, 0o640),
    }
    assert project.kinds(turn)["plain"] == project.kinds(turn)["own"] == "mode"
    # Only what git's two modes do not say is noted.
    second = project.begin(start=3000)
    project.scan(second)
    assert project.kinds(second) == {}


@pytest.mark.parametrize("by_tool", [True, False])
def test_permissions_that_change_soon_after_a_look_are_recorded(any_project: Project, by_tool: bool) -> None:
    """Git compares the seconds of the stamps, and of the modes whether the file can be run."""
    project = any_project
    turn = project.begin()
    file = project.root / "a"
    looked = 0
    while not file.exists() or int(file.stat().st_ctime) != int(time.time()):
        looked += 1
        if by_tool:
            project.edit(turn, "a", b"new %d\n" % looked)
        else:
            project.write("a", b"new %d\n" % looked)
        project.scan(turn)
    file.chmod(0o600)
    project.scan(turn)
    assert permissions(project.net("a", turn).after) == 0o600


def permissions(side: Loaded | None) -> int | None:
    """Return the permission bits of a version of a file."""
    return None if side is None else side.version.mode & 0o7777


def test_many_files_in_one_command(project: Project) -> None:
    for index in range(1200):
        project.write(f"d{index % 7}/f{index}", b"line\n" * (index % 5) + b"%d\n" % index)
    project.commit()
    turn = project.command({f"d{index % 7}/f{index}": b"agent %d\n" % index for index in range(1200)})
    assert len(project.files(turn)) == 1200
    assert project.before("d1/f8", turn) == b"line\n" * 3 + b"8\n"


@pytest.mark.parametrize("what", ["written", "deleted"])
def test_a_file_that_changes_after_a_look_has_read_it_is_recorded_by_the_next(any_project: Project, what: str) -> None:
    project = any_project
    project.write("a", b"one\n")
    turn = project.begin()

    def change_and_finish(finish: Callable[..., None], *arguments: object) -> None:
        if what == "written":
            project.write("new", b"three\n")
        else:
            (project.root / "new").unlink()
        finish(*arguments)

    project.write("new", b"two\n")
    project.scan_with(turn, Baseline, "_finish", change_and_finish)
    project.scan(turn)
    assert project.kinds(turn) == ({"new": "added"} if what == "written" else {})
    if what == "written":
        assert project.after("new", turn) == b"three\n"


def test_a_file_that_moves_right_after_it_was_listed_is_known_at_its_new_name(any_project: Project) -> None:
    """A command goes on while the look after the one before it is taken."""
    project = any_project
    old = project.write("a/old", b"old\n")
    turn = project.begin()
    old.write_bytes(b"old and new\n")

    def compare_and_move(compare: Callable[..., object], *arguments: object) -> object:
        result = compare(*arguments)
        if old.exists():
            old.parent.rename(project.root / "b")
        return result

    project.scan_with(turn, Table, "compare", compare_and_move)
    project.scan(turn)
    assert project.kinds(turn) == {"a/old": "deleted", "b/old": "added"}


def test_a_large_file_is_recorded_and_one_too_large_is_told(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    large = b"0123456789abcde\n" * 330_000
    project.commit(a=large)
    turn = project.begin()
    project.write("a", large + b"more\n")
    monkeypatch.setattr("qwen_companion.files.versions.MAX_FILE_BYTES", len(large) + 5)
    project.write("b", large + b"too much\n")
    project.scan(turn)
    assert {name: (file.kind, file.added) for name, file in project.files(turn).items()} == {"a": ("modified", 1)}
    assert project.before("a", turn) == large
    assert project.notes(turn) == (f"not recorded: {project.root / 'b'}: larger than 64 MiB",)


def test_limits_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(tmp_path, git=False)
    project.write("a", b"1234\n")
    project.write("b", b"1234\n")
    monkeypatch.setattr("qwen_companion.journal.baselines.MAX_FILES", 1)
    with pytest.raises(LimitError, match="it has 2 files, and 1 are the limit"):
        project.begin()
    monkeypatch.setattr("qwen_companion.journal.baselines.MAX_FILES", 2)
    monkeypatch.setattr("qwen_companion.journal.baselines.MAX_TOTAL_BYTES", 9)
    with pytest.raises(LimitError, match="its files have 0 MiB, and 0 are the limit"):
        project.begin()
    monkeypatch.setattr("qwen_companion.journal.baselines.MAX_TOTAL_BYTES", 10)
    # Nothing of the attempts before is taken for a baseline.
    turn = project.command(a=b"agent\n")
    assert project.before("a", turn) == b"1234\n"


def test_the_home_directory_is_not_recorded(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    for root in ("/", str(tmp_path), str(tmp_path / "home")):
        with pytest.raises(NoRecordError, match="home directory"):
            Record(root, environ)


def test_unreadable_files_are_told_and_the_others_recorded(project: Project) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    project.commit(a=b"a\n", b=b"b\n")
    turn = project.begin()
    project.write("a", b"agent\n", mode=0)
    project.write("b", b"agent\n")
    project.scan(turn)
    assert project.kinds(turn) == {"b": "modified"}


def test_another_process_goes_on_with_the_record(any_project: Project) -> None:
    project = any_project
    project.write("a", b"a\n")
    project.write("b", b"b\n")
    turn = project.command(a=b"agent\n")
    # Written when nobody looked, as the turn goes on.
    project.write("b", b"meanwhile\n")
    record = project.reopen()
    assert [row.id for row in record.resume()] == [turn]
    project.scan(turn)
    assert project.before("a", turn) == b"a\n"
    assert project.before("b", turn) == b"b\n"
    # A second Emacs records for itself meanwhile.
    other = Record(str(project.root), project.environ)
    assert other.answers.turns() == []
    assert other.names.number(record.names.identifier(turn)) is None
    assert record.names.number(record.names.identifier(turn)) == turn


def test_a_baseline_that_was_not_finished_is_taken_anew_and_takes_no_more_room(
    any_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = any_project
    project.write("a", os.urandom(3000))
    project.write("b", b"b\n")

    def fail(*_: object) -> None:
        raise OSError("killed")

    sizes: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr("qwen_companion.journal.baselines.Baseline._finish", fail)
        for _ in range(5):
            with pytest.raises(OSError, match="killed"):
                project.begin()
            (kept,) = (project.home / "state").rglob("journal.sqlite")
            sizes.append(kept.stat().st_size)
            project.reopen()
    assert sizes[-1] == sizes[1]
    project.write("a", b"later\n")
    turn = project.command(a=b"agent\n")
    assert project.before("a", turn) == b"later\n"


def test_what_is_written_while_the_first_look_is_taken_is_not_the_agents(
    any_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = any_project
    # The index knows the files by now, and their bytes are read.
    for name in ("a", "b", "large"):
        project.write(name, b"before\n")

    def late(path: bytes, algorithm: str, is_regular: bool = False) -> Loaded | None:
        name = os.path.basename(path).decode()
        project.write(name, b"meanwhile\n" * (1000 if name == "large" else 1))
        return load(path, algorithm, is_regular)

    with monkeypatch.context() as patch:
        patch.setattr("qwen_companion.journal.local_files.load", late)
        turn = project.begin()
    for name in ("a", "large"):
        project.write(name, b"agent\n")
    project.scan(turn)
    assert project.kinds(turn) == {"a": "modified", "large": "modified"}
    assert project.before("a", turn) == b"meanwhile\n"
    assert project.before("large", turn) == b"meanwhile\n" * 1000


@pytest.mark.parametrize("inner", ["sha1", "sha256"])
def test_small_and_large_files_of_a_first_look_are_kept_whatever_digests_there_are(tmp_path: Path, inner: str) -> None:
    project = Project(tmp_path, git=False)
    project.git("init", "--quiet", f"--object-format={'sha1' if inner == 'sha256' else 'sha256'}")
    (project.root / "in").mkdir()
    project.git("init", "--quiet", f"--object-format={inner}", cwd=project.root / "in")
    before = {
        f"{place}{number}": b"%d\n" % number * number for place in ("", "in/", "d/") for number in range(0, 2000, 40)
    }
    for name, data in before.items():
        project.write(name, data)
    turn = project.begin()
    for name in before:
        project.write(name, b"agent\n")
    project.reopen()
    project.scan(turn)
    assert project.all_before(before, turn) == before


def test_what_the_user_writes_is_not_the_agents(any_project: Project) -> None:
    project = any_project
    lines = [b"%d\n" % number for number in range(20)]
    project.write("a", b"".join(lines))
    turn = project.begin()
    project.edit(turn, "a", b"".join([b"agent\n", *lines[1:]]))
    project.edit(None, "a", b"".join([b"agent\n", *lines[1:10], b"user\n", *lines[11:]]))
    project.edit(turn, "a", b"".join([b"agent\n", *lines[1:10], b"user\n", *lines[11:19], b"end\n"]))
    project.edit(None, "mine", b"user\n")
    assert project.before("a", turn) == b"".join([*lines[:10], b"user\n", *lines[11:]])
    file = project.files(turn)["a"]
    assert (file.added, file.deleted, file.mixed, file.writers) == (2, 2, False, (("edit", None),))
    assert list(project.files(turn)) == ["a"]
    # Where both have changed the same line it is said.
    project.edit(None, "a", b"".join([b"by user\n", *lines[1:]]))
    project.edit(turn, "a", b"".join([b"again\n", *lines[1:]]))
    assert project.files(turn)["a"].mixed


def test_the_users_save_stays_the_users_even_if_a_look_at_all_files_came_first(project: Project) -> None:
    project.commit(a=b"a\n", b=b"b\n")
    turn = project.command(dict.fromkeys(("a", "b"), b"user\n"))
    path = os.fsencode(project.root / "a")
    assert project.record.claim(path, project.record.look(path))
    assert project.kinds(turn) == {"b": "modified"}
    # But not what a tool is known to have written.
    project.edit(turn, "a", b"agent\n")
    assert not project.record.claim(path, project.record.look(path))
    assert project.kinds(turn) == {"b": "modified", "a": "modified"}


def test_the_user_can_save_what_a_command_of_the_agents_wrote_a_moment_ago(project: Project) -> None:
    project.commit(a=b"a\n")
    turn = project.begin()
    path = project.write("a", b"agent\n")
    project.scan(turn)
    # Later than the command wrote it; a disk may count in steps of 10 ms.
    written = path.stat().st_mtime_ns + 10_000_000
    project.write("a", b"agent\n")
    os.utime(path, ns=(written, written))
    assert not project.record.claim(os.fsencode(path), project.record.look(os.fsencode(path)))
    assert project.kinds(turn) == {"a": "modified"}
    assert project.before("a", turn) == b"a\n"


@pytest.mark.parametrize("dies", [False, True])
def test_a_command_that_takes_back_an_edit_within_the_second_is_recorded(any_project: Project, dies: bool) -> None:
    project = any_project
    project.write("a", b"a\n")
    turn = project.command(a=b"command\n")
    project.edit(turn, "a", b"tool\n")
    if dies:
        project.reopen()
    project.write("a", b"command\n")
    project.scan(turn)
    assert project.after("a", turn) == b"command\n"


def take_news(project: Project) -> list[str]:
    """Return the files of whose changes the model has not been told, and tell it."""
    changes = project.record.unseen.changes("s")
    for change in changes:
        project.record.unseen.told("s", change, 5000, with_text=True)
    return sorted(os.path.basename(change.name) for change in changes)


def test_a_rewound_turn_is_told_of_with_the_copy_that_has_it(project: Project) -> None:
    project.commit(a=b"a\n")
    turns = [project.begin() for _ in range(2)]
    for turn in turns:
        project.edit(turn, "a", b"%d\n" % turn)
        project.end(turn)
    project.record.store.note_rewound(turns[1:], "the copy")
    told = [project.record.answers.summary(turn) for turn in turns]
    assert [(each.turn.rewound, each.turn.copy) for each in told if each] == [(False, None), (True, "the copy")]
    project.reopen()
    assert project.record.store.rewound(turns[1]) == (True, "the copy")
    # The model wrote the first, and knows nothing of the second.
    project.record.unseen.forget("s", 0)
    project.write("a", b"%d\n" % turns[0])
    assert take_news(project) == []
    project.record.store.drop(turns[1:])
    assert project.record.store.rewound(turns[1]) == (False, None)


def test_undoing_is_a_turn_that_can_be_undone(project: Project) -> None:
    project.commit(a=b"a\n", b=b"b\n")
    turn = project.turn({"a": b"agent\n", "b": None})
    project.write("a", b"a\n")
    project.write("b", b"b\n")
    paths = [os.fsencode(project.root / name) for name in ("a", "b")]
    undo = project.record.undo(turn, "Undo the turn", paths, 3000)
    assert undo is not None
    assert project.kinds(undo.id) == {"a": "modified", "b": "added"}
    assert project.before("a", undo.id) == b"agent\n"
    first, second = project.record.answers.summary(turn), project.record.answers.summary(undo.id)
    assert first is not None
    assert second is not None
    assert (first.turn.undone_by, second.turn.undone) == ((second.turn.id,), first.turn.id)
    assert project.record.answers.files(Scope("all")) == []
    assert take_news(project) == ["a", "b"]
    assert take_news(project) == []
    # What changes nothing is none.
    assert project.record.undo(turn, "Undo the turn", paths, 4000) is None


def test_a_turn_keeps_what_it_has_used_as_long_as_it_is_recorded(project: Project) -> None:
    project.commit(a=b"a\n")
    turn = project.turn({"a": b"agent\n"}, start=1000)
    store = project.record.store
    assert store.set_usage("s", 1000, [Usage("m", 1, 2, 3)]) == [turn]
    assert store.set_usage("s", 1000, [Usage("m", 10, 20, 30), Usage("n", 1)]) == [turn]
    assert store.set_usage("s", 1001, [Usage("m", 5)]) == store.set_usage("other", 1000, [Usage("m", 5)]) == []
    summary = project.reopen().answers.summary(turn)
    assert summary is not None
    assert summary.turn.usage == (Usage("m", 10, 20, 30), Usage("n", 1))
    project.record.store.drop([turn])
    assert project.record.store.usage(turn) == ()


def test_what_is_brought_back_at_once_undoes_the_undoing(project: Project) -> None:
    """Emacs names the agent's turn: it may not yet know that of the undoing."""
    project.commit(a=b"a\n", b=b"b\n")
    turn = project.turn({"a": b"agent\n", "b": b"agent\n"})

    def write(name: str, data: bytes, label: str, bring_back: bool = False) -> TurnRow:
        path = os.fsencode(project.write(name, data))
        row = project.record.undo(turn, label, [path], 3000, bring_back)
        assert row is not None
        return row

    undone = write("a", b"a\n", "Undo a")
    back = write("a", b"agent\n", "Bring back a", bring_back=True)
    assert (back.undone, back.prompt) == (undone.id, "Bring back a")
    again = write("b", b"b\n", "Undo b")
    assert (again.undone, again.prompt) == (turn, "Undo b")
    # The agent is not told of what is there again.
    assert take_news(project) == ["b"]
    # Not the undoing of another file, nor one that is brought back already.
    assert write("b", b"agent\n", "Bring back b", bring_back=True).undone == again.id
    once_more = write("a", b"a\n", "Undo a once more")
    back = write("a", b"agent\n", "Bring back a", bring_back=True)
    assert back.undone == once_more.id
    assert take_news(project) == ["b"]
    # The agent's change is gone again when its bringing back is undone.
    path = os.fsencode(project.write("a", b"a\n"))
    assert project.record.undo(back.id, "Undo the bringing back", [path], 4000) is not None
    assert take_news(project) == ["a"]


@pytest.mark.parametrize("at_work", [False, True])
def test_an_undo_that_a_look_at_all_files_finds_before_it_is_told_is_one(project: Project, at_work: bool) -> None:
    project.commit(a=b"a\n")
    turn = project.turn({"a": b"agent\n"})
    path = os.fsencode(project.write("a", b"a\n"))
    project.scan(turn if at_work else None)
    undo = project.record.undo(turn, "Undo", [path], 3000)
    assert undo is not None
    assert project.kinds(undo.id) == {"a": "modified"}
    project.write("a", b"agent\n")
    project.scan(None)
    back = project.record.undo(turn, "Bring back", [path], 3000, bring_back=True)
    assert back is not None
    assert back.undone == undo.id


def test_what_the_user_has_just_undone_by_hand_is_no_undoing_of_ours(project: Project) -> None:
    project.commit(a=b"a\n")
    turn = project.begin()
    project.edit(turn, "a", b"agent\n")
    project.end(turn)
    project.edit(None, "a", b"a\n")
    path = os.fsencode(project.root / "a")
    assert project.record.undo(turn, "Undo", [path], 3000) is None
    assert [write.turn for write in project.record.store.writes(path)] == [turn, None]


def test_hunks_undone_one_after_the_other_are_one_turn(project: Project) -> None:
    lines = b"".join(b"%d\n" % number for number in range(20))
    changed = lines.replace(b"3\n", b"three\n", 1).replace(b"9\n", b"nine\n", 1)
    project.commit(a=lines, b=b"b\n")
    turn = project.turn({"a": changed, "b": b"agent\n"})

    def undo(name: str, data: bytes, of: int, time: int) -> int:
        path = os.fsencode(project.write(name, data))
        row = project.record.undo(of, f"step at {time}", [path], time)
        assert row is not None
        return row.id

    first = undo("a", changed.replace(b"three", b"3"), turn, 3000)
    assert undo("a", lines, turn, 4000) == first
    assert (project.before("a", first), project.kinds(first)) == (changed, {"a": "modified"})
    summary = project.summary(first)
    assert (summary.turn.prompt, summary.turn.end) == ("Undo changes of a", 4000)
    assert undo("b", b"b\n", turn, 5000) == first
    assert take_news(project) == ["a", "b"]
    # That nothing changed does not end it; and all of it is undone at once.
    assert project.record.undo(turn, "again", [os.fsencode(project.root / "b")], 6000) is None
    again = undo("a", changed, first, 7000)
    assert undo("b", b"agent\n", first, 8000) == again
    summary = project.summary(again)
    assert (summary.turn.prompt, project.kinds(again)) == (
        "Bring back changes of 2 files",
        {"a": "modified", "b": "modified"},
    )
    spans = project.record.answers.spans(str(project.root / "a"))
    assert [(line, whose) for line, _, whose, _ in spans] == [
        (4, project.record.names.identifier(turn)),
        (10, project.record.names.identifier(turn)),
    ]
    # After a while, or after another turn, it is another one.
    late = undo("a", lines, turn, 9000)
    assert late not in (first, again)
    assert undo("b", b"b\n", turn, 9000 + ONE_GO_MS + 1) not in (first, again, late)


def test_scopes_and_marks(project: Project) -> None:
    project.commit(a=b"1\n2\n3\n", b=b"b\n")
    first = project.turn({"a": b"one\n2\n3\n"}, "s")
    second = project.turn({"a": b"one\n2\nthree\n", "c": b"c\n"}, "t")

    def names(kind: str, turn: int | None = None, session: str | None = None) -> dict[str, int]:
        found = project.record.answers.files(Scope(kind, turn, session))
        return {os.path.relpath(file.path, project.root): file.added for file in found}

    assert names("turn", first) == {"a": 1}
    assert names("since", first) == {"a": 2, "c": 1}
    assert names("since", second) == {"a": 1, "c": 1}
    assert names("session", session="t") == {"a": 1, "c": 1}
    assert names("commit") == names("all") == names("look") == {"a": 2, "c": 1}
    record, path = project.record, str(project.root / "a")
    record.answers.mark(second, None, (), seen=True)
    record.answers.mark(first, path, ("k1", "k2"), seen=True)
    record.answers.mark(first, path, ("k2",), seen=False)
    assert names("look") == {"a": 2}
    assert project.files(first)["a"].seen_hunks == ("k1",)
    spans = record.answers.spans(path)
    assert [(line, count, record.names.number(turn), seen) for line, count, turn, seen in spans] == [
        (1, 1, first, False),
        (3, 1, second, True),
    ]
    # What has changed since it was marked is to be seen again.
    project.edit(second, "a", b"one\n2\nthree\nfour\n")
    assert not project.files(second)["a"].seen
    assert project.files(second)["c"].seen


def test_turns_are_forgotten_when_they_are_old_or_on_request(project: Project) -> None:
    project.commit(a=b"a\n")
    turn = project.turn({"a": b"agent\n" * 1000}, end=2000)
    later = project.turn({"a": b"later\n"}, start=MAX_AGE_MS, end=MAX_AGE_MS)
    assert project.record.store.forget_old(MAX_AGE_MS + 2000) == [turn]
    assert project.record.answers.turns() == [later]
    assert project.before("a", later) == b"agent\n" * 1000
    project.record.store.drop([later])
    assert project.record.answers.turns() == []
    state = [path for path in (project.home / "state").rglob("*") if path.is_file()]
    assert not any(b"agent\n" in path.read_bytes() for path in state)
    turn = project.begin()
    project.edit(turn, "a", b"more\n")
    assert project.before("a", turn) == b"later\n"


def test_turns_that_need_too_much_are_kept_and_measured(any_project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project = any_project
    store = project.record.store
    # What is there from the baseline is not the turns'.
    project.write("data", os.urandom(400_000))
    texts = {name: os.urandom(100_000) for name in "abc"}
    for name, text in texts.items():
        project.write(name, text)
    monkeypatch.setattr("qwen_companion.journal.store.MAX_BYTES", 150_000)
    turns: dict[str, int] = {}
    for name in "abc":
        assert store.excess() is None
        turns[name] = project.begin()
        # What lies on the disk, under whatever name, takes no room.
        project.edit(turns[name], name, texts["a"] if name == "b" else b"agent\n")
        if name != "c":
            project.end(turns[name])
    assert store.excess() == 200_000
    # Now the turn that goes on needs it; that is no matter of choice.
    project.edit(turns["c"], "b", None)
    assert store.excess() == 300_000
    assert store.sizes() == [(turns["a"], 0), (turns["b"], 100_000)]
    assert {project.before(name, turns[name]) for name in "abc"} == set(texts.values())
    store.drop([turns["a"], turns["b"]])
    assert store.excess() == 200_000
    assert project.before("c", turns["c"]) == texts["c"]


def test_a_full_disk_loses_nothing_of_what_was_recorded(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.commit(a=b"a\n", b=b"b\n")
    turn = project.command(a=b"agent\n")
    project.write("b", os.urandom(100_000))
    store = project.record.store
    with store.database.transaction() as db:
        pages = db.execute("pragma page_count").fetchone()[0]
    with store.database.transaction() as db:
        db.execute(f"pragma max_page_count={pages}")
    with pytest.raises(Exception, match="full"):
        project.scan(turn)
    assert project.before("a", turn) == b"a\n"
    with store.database.transaction() as db:
        db.execute("pragma max_page_count=1000000")
    # Once there is room it is found as if nothing had been.
    project.record.scan(Cause(turn, SHELL))
    assert project.kinds(turn) == {"a": "modified", "b": "modified"}
    assert project.before("b", turn) == b"b\n"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_place_that_cannot_be_written_to_is_told(
    project: Project, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(path: str, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "mkdir", fail)
    with pytest.raises(NoRecordError, match=os.strerror(number)):
        Record(str(project.root), project.environ)


# --- What a stranger's repository or a damaged disk may bring ---


def test_an_index_that_leads_to_a_device_is_not_read(project: Project) -> None:
    project.commit(a_txt=b"one\n")
    index = project.root / ".git/index"
    index.rename(project.home / "index")
    index.symlink_to(os.devnull.replace("null", "zero"))
    with pytest.raises(GitError, match="is not a regular file"):
        project.begin()
    index.unlink()
    index.symlink_to(project.home / "index")
    turn = project.begin()
    project.edit(turn, "a.txt", b"two\n")
    assert project.before("a.txt", turn) == b"one\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much a process has written")
def test_an_index_of_a_stranger_does_not_fill_the_disk(project: Project) -> None:
    project.commit(a_txt=b"one\n")
    with (project.root / ".git/index").open("wb") as file:
        file.truncate(256 << 20)
    before = written_by(os.getpid()) or 0
    with pytest.raises(GitError, match="larger than 64 MiB"):
        project.begin()
    assert (written_by(os.getpid()) or 0) - before < 64 << 20


def test_git_is_not_asked_again_where_it_has_just_stalled(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git, "STALL_S", 0.3)
    os.mkfifo(project.home / "included")
    project.git("config", "include.path", str(project.home / "included"))
    with pytest.raises(GitError, match="no answer"):
        project.begin()
    monkeypatch.setattr(programs.subprocess, "Popen", None)
    with pytest.raises(GitError, match="no answer"):
        project.begin()


def damaged(project: Project, change: Callable[[Path], object]) -> tuple[Record, Path]:
    """Record a turn, `change` the journal's file, and open it anew."""
    project.write("a.txt", b"one\n" * 50_000)
    project.turn({"a.txt": b"two\n" * 50_000})
    (file,) = (project.home / "state").rglob("journal.sqlite")
    project.record.close()
    change(file)
    return project.reopen_after_close(), file


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "header": lambda data: b"x" * 100 + data[100:],
    "all": lambda _: b"garbage" * 1000,
    "end": lambda data: data[:9000],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_journal_is_put_aside_and_begun_anew(project: Project, damage: Callable[[bytes], bytes]) -> None:
    record, file = damaged(project, lambda file: file.write_bytes(damage(file.read_bytes())))
    (aside,) = file.parent.glob("journal.sqlite.damaged-*")
    assert str(aside) in (record.news or "")
    assert record.answers.turns() == []
    turn = project.begin()
    project.edit(turn, "a.txt", b"three\n")
    assert project.kinds(turn) == {"a.txt": "modified"}
    assert project.reopen().news is None


def altered(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file, check_same_thread=True, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


@pytest.mark.parametrize(
    "statements",
    [
        ["drop table usage", f"create view usage(turn, model, input, output, cached) as {ENDLESS}"],
        ["create trigger t after insert on turns begin delete from writes; end"],
        ["create table of_others(x)"],
        ["drop table seen", "create table seen(turn integer, path, digest, whole, hunks, x as (turn + 1))"],
        ["drop index writes_of_turn", "create index writes_of_turn on writes(turn, path, abs(turn))"],
    ],
)
def test_a_journal_in_which_others_have_defined_something_is_put_aside(
    project: Project, statements: Sequence[str]
) -> None:
    record, file = damaged(project, lambda file: altered(file, *statements))
    (aside,) = file.parent.glob("journal.sqlite.damaged-*")
    assert f"it defines what is not ours: {statements[-1].split()[2].partition('(')[0]}" in (record.news or "")
    assert str(aside) in (record.news or "")
    assert record.answers.turns() == []


def test_a_journal_of_an_earlier_version_is_opened(project: Project) -> None:
    former = "create table undone(turn integer, session text,\n path blob, primary key(turn, path))"
    record, _ = damaged(project, lambda file: altered(file, former))
    assert record.news is None
    assert len(record.answers.turns()) == 1


def test_notes_and_marks_that_are_damaged_hide_no_turn(project: Project) -> None:
    marks = "insert into seen select id, x'61', '', 1, '[[[' from turns"
    record, _ = damaged(project, lambda file: altered(file, "update turns set notes = '{nonsense'", marks))
    (turn,) = record.answers.turns()
    assert project.kinds(turn) == {"a.txt": "modified"}
    assert project.notes(turn) == ("its notes are damaged",)


@pytest.mark.parametrize("data", ["x'00'", "'a text'", "7", "x'789c4bce'"])
@pytest.mark.parametrize("packed", ["0", "1"])
def test_a_text_that_is_damaged_is_lost_alone(project: Project, data: str, packed: str) -> None:
    change = f"update blobs set data = {data}, packed = {packed} where digest = (select before from writes)"  # noqa: S608
    record, _ = damaged(project, lambda file: altered(file, change))
    (turn,) = record.answers.turns()
    assert project.kinds(turn) == {"a.txt": "modified"}
    with pytest.raises(RecordError, match="its text is not kept any more"):
        project.net("a.txt", turn)


@pytest.mark.parametrize(
    "change", ["turns set start = 'soon'", "writes set path = 'a text'", "writes set after = x'00'"]
)
def test_a_row_that_is_damaged_is_damage_of_the_record(project: Project, change: str) -> None:
    record, _ = damaged(project, lambda file: altered(file, f"update {change}"))
    assert f"the table {change.split()[0]} holds what was not written there" in (record.news or "")
    assert record.answers.turns() == []


def test_a_query_that_does_not_end_is_interrupted(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    database = project.record.store.database
    with monkeypatch.context() as short:
        short.setattr("qwen_companion.journal.database.QUERY_S", 0.1)
        with pytest.raises(StoreError, match=r"a query of the record took longer than 0\.1 s"):
            database.rows(ENDLESS)
    assert database.rows("select 1") == [(1,)]
    monkeypatch.setattr("qwen_companion.journal.database.CLOSE_S", 0.1)
    with ThreadPoolExecutor() as threads:
        running = threads.submit(database.rows, ENDLESS)
        database.close()
        assert isinstance(running.exception(), StoreError)


def test_a_journal_that_was_emptied_is_told(project: Project) -> None:
    record, _ = damaged(project, lambda file: file.write_bytes(b""))
    assert "empty" in (record.news or "")
    assert project.reopen().news is None


def test_a_journal_of_a_newer_version_is_left_alone(project: Project) -> None:
    def change(file: Path) -> None:
        with closing(sqlite3.connect(file, check_same_thread=True, isolation_level=None)) as db:
            db.execute("pragma user_version=99")

    with pytest.raises(NoRecordError, match="newer version"):
        damaged(project, change)
    (file,) = (project.home / "state").rglob("journal.sqlite")
    with closing(sqlite3.connect(file, check_same_thread=True, isolation_level=None)) as db:
        assert db.execute("pragma user_version").fetchone() == (99,)


def test_a_stray_file_among_the_journals_harms_nothing(project: Project) -> None:
    state = project.home / "state/qwen-companion/journal"
    project.begin()
    project.record.close()
    (state / "stray").write_text("")
    (slot,) = (path for path in state.glob("*/0"))
    shutil.rmtree(slot)
    slot.write_text("")
    project.reopen_after_close()
    project.begin()
    assert (state / "stray").exists()


def test_whose_each_line_is_takes_one_read_of_the_writes_however_many_turns_there_are(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit(a=b"a\n" * 9)
    for count in range(9):
        project.turn({"a": b"agent\n" * (count + 1) + b"a\n" * (8 - count)}, start=1000 + count)
    project.record.answers.spans(str(project.root / "a"))
    reads: list[bytes] = []
    writes = Store.writes

    def read(store: Store, path: bytes) -> list[Write]:
        reads.append(path)
        return writes(store, path)

    monkeypatch.setattr(Store, "writes", read)
    spans = project.record.answers.spans(str(project.root / "a"))
    assert (len(spans), len(reads)) == (9, 1)


def test_a_stray_file_in_place_of_a_roots_directory_is_put_aside(project: Project) -> None:
    project.begin()
    (file,) = (project.home / "state").rglob("journal.sqlite")
    project.record.close()
    own = file.parent.parent
    shutil.rmtree(own)
    own.write_text("stray")
    project.reopen_after_close()
    project.begin()
    (aside,) = own.parent.glob(f"{own.name}.damaged-*")
    assert aside.read_text() == "stray"
    assert str(aside) in (project.record.news or "")


def test_what_is_forgotten_leaves_the_file_and_the_disk(project: Project) -> None:
    turn = project.begin()
    # Of no use to zlib.
    secret = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(1 << 15))
    project.edit(turn, "a.txt", secret)
    project.edit(turn, "a.txt", None)
    project.end(turn)
    (file,) = (project.home / "state").rglob("journal.sqlite")
    before = file.stat().st_size
    assert secret[:64] in file.read_bytes()
    assert project.record.store.forget_old(2000 + MAX_AGE_MS) == [turn]
    assert file.stat().st_size < before / 2
    assert secret[:64] not in file.read_bytes()


def test_a_store_whose_file_is_emptied_meanwhile_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    store = Store(str(path))
    try:
        os.truncate(path, 0)
        with pytest.raises(DamagedStoreError):
            store.turns()
    finally:
        store.database.close()


def test_what_editors_keep_beside_a_file_is_no_agents(any_project: Project) -> None:
    project = any_project
    project.write("b.txt", b"b\n")
    project.write("two\nlines", b"b\n")
    project.write("gone~", b"a backup of a file that is gone\n")
    project.record.visited = [str(project.root / "open.txt")]
    turn = project.begin()
    for name in ("#b.txt#", "b.txt~", "b.txt.~3~", ".b.txt.swp", "#open.txt#", "#new.txt#", "#two\nlines#"):
        project.write(name, b"an editor's\n")
    for name in ("b.txt", "new.txt"):
        (project.root / f".#{name}").symlink_to("me@here.123:456")
    project.write("agent.txt~", b"agent\n")
    project.write("b.txt", b"agent\n")
    project.scan(turn)
    (project.root / "#b.txt#").unlink()
    (project.root / ".#new.txt").unlink()
    (project.root / "#new.txt#").unlink()
    (project.root / "gone~").unlink()
    project.end(turn)
    assert project.kinds(turn) == {"agent.txt~": "added", "b.txt": "modified", "gone~": "deleted"}
    later = project.turn({"#b.txt#": b"a tool has said so\n"})
    assert project.kinds(later) == {"#b.txt#": "added"}


def test_a_temporary_file_of_a_killed_emacs_is_no_agents_and_goes_unless_it_may_be_a_last_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path)
    project.write("sub/a", b"one\n")
    turn = project.command({"sub/a": b"two\n"})
    project.write("sub/a", b"two\nmine\n")
    spare, kept = (
        {"empty": b"", "before": b"on", "now": b"two\nmine\n"},
        {"edited": b"two\nyours\n", "one": b"one\n2\n"},
    )
    for name, data in {**spare, **kept}.items():
        project.write(f"sub/.qwen-companion-{name}", data)
    project.write(".qwen-companion-elsewhere", b"one\n")
    before = project.tree()
    project.scan(turn)
    assert project.tree() == before
    monkeypatch.setattr("qwen_companion.journal.record._WRITTEN_S", -1.0)
    project.reopen()
    project.scan(None)
    gone = {f"sub/.qwen-companion-{name}" for name in spare}
    assert project.tree() == {name: data for name, data in before.items() if name not in gone}
    project.end(turn)
    assert project.kinds(turn) == {"sub/a": "modified"}


def test_names_that_are_not_utf8_are_recorded(project: Project) -> None:
    project.write("lat\udcff", b"1\n2\n3\n")
    project.write("named", b"1\n2\n5\n")
    turn = project.begin()
    (project.root / "named").rename(project.root / "\udcfe moved")
    project.write("new", b"1\n2\n4\n")
    (project.root / "lat\udcff").unlink()
    project.write("other\udcff", b"other\n")
    project.end(turn)
    assert project.kinds(turn) == {"new": "renamed", "other\udcff": "added", "\udcfe moved": "renamed"}
    files = [(str(project.root / "new"), str(project.root / "lat\udcff"))]
    (new,) = project.record.answers.texts(files, Scope("turn", turn))
    assert isinstance(new, Net)
    assert new.previous == os.fsencode(project.root / "lat\udcff")
    project.undo(turn)
    assert project.tree() == {"lat\udcff": b"1\n2\n3\n", "named": b"1\n2\n5\n"}


def test_a_name_that_another_file_has_got_is_known(any_project: Project) -> None:
    project = any_project
    for name in ("a", "b", "c"):
        project.write(name, name.encode())
    os.link(project.root / "c", project.root / "d")
    turn = project.begin()
    for name in ("a", "c"):
        project.write(name, b"new")
    (project.root / "b").unlink()
    os.link(project.root / "a", project.root / "b")
    project.end(turn)
    assert project.kinds(turn) == dict.fromkeys("abcd", "modified")
    # What is written to b or a would be in the other one.
    assert project.record.answers.linked(Scope("turn", turn)) == {inode_at(os.fsencode(project.root / "a"))}
    project.record.store.drop([turn])
    assert project.record.store.database.rows("select * from linked") == []


def test_the_insides_of_repositories_are_no_files_of_a_turn(any_project: Project) -> None:
    project = any_project
    project.write("a.txt", b"one\n")
    names = [f"sub/{name}/store/data" for name in sorted(OWN - {".git"})]
    for name in names:
        project.write(name, b"1\n")
    subprocess.run(["git", "init", "--quiet", "--bare", ".bare"], cwd=project.root, check=True, capture_output=True)
    turn = project.begin()
    for name in names:
        project.write(name, b"1\n2\n")
    project.write("sub/.hg/store/00changelog.i", b"1\n2\n")
    project.git("--git-dir=.bare", "update-ref", "refs/x", _a_commit(project))
    subprocess.run(["git", "init", "--quiet", "--bare", "new"], cwd=project.root, check=True, capture_output=True)
    project.edit(turn, ".bare/description", b"told by a tool\n")
    project.write("a.txt", b"two\n")
    project.end(turn)
    assert project.kinds(turn) == {"a.txt": "modified"}
    assert set(project.notes(turn)) == {
        "the repository new is new; undo leaves it alone",
        "the repository sub/.hg has changed too; undo leaves it alone",
        "1 commit in the repository .bare; undo leaves it alone",
    }
    # In a later one nothing has happened there.
    later = project.command(a_txt=b"three\n")
    project.end(later)
    assert project.notes(later) == ()


def test_the_commits_of_a_turn_are_counted_and_packing_is_none(any_project: Project) -> None:
    project = any_project
    subprocess.run(["git", "init", "--quiet", "--bare", ".bare"], cwd=project.root, check=True, capture_output=True)
    first = _a_commit(project)
    project.git("--git-dir=.bare", "update-ref", "refs/heads/a", first)
    turn = project.command(a=b"1")
    project.git("--git-dir=.bare", "pack-refs", "--all")
    project.git("--git-dir=.bare", "gc", "--quiet")
    project.scan(turn)
    assert project.notes(turn) == ()
    for said in ("1 commit", "2 commits"):
        first = _a_commit(project, first)
        project.git("--git-dir=.bare", "update-ref", "refs/heads/a", first)
        project.scan(turn)
        assert project.notes(turn) == (f"{said} in the repository .bare; undo leaves it alone",)
    project.git("--git-dir=.bare", "branch", "--delete", "--force", "a")
    # It would keep whoever reads it waiting.
    os.mkfifo(project.root / ".bare/refs/pipe")
    project.end(turn)
    assert project.notes(turn) == ("the repository .bare has changed too; undo leaves it alone",)
    later = project.command(a=b"2")
    shutil.rmtree(project.root / ".bare")
    project.end(later)
    assert project.notes(later) == ("the repository .bare is gone; undo does not bring it back",)


@pytest.mark.parametrize("how", ["with its files", "alone"])
def test_a_deleted_repository_of_git_is_told(project: Project, how: str) -> None:
    nest = project.root / "nest"
    project.git("init", "--quiet", str(nest))
    project.write("nest/a", b"a\n")
    turn = project.command(b=b"b\n")
    project.git("commit", "--quiet", "--allow-empty", "--message=x", cwd=nest)
    project.scan(turn)
    # Its files are recorded, as those of the repository around it.
    assert project.notes(turn) == ()
    shutil.rmtree(nest if how == "with its files" else nest / ".git")
    project.end(turn)
    assert project.notes(turn) == ("the repository nest/.git is gone; undo does not bring it back",)


def _a_commit(project: Project, *parents: str) -> str:
    tree = project.git("--git-dir=.bare", "mktree").strip()
    options = [word for parent in parents for word in ("-p", parent)]
    return project.git("--git-dir=.bare", "commit-tree", "-m", "x", *options, tree).strip()


def test_a_work_tree_in_the_directory_of_a_bare_repository_is_recorded(project: Project) -> None:
    shutil.rmtree(project.root / ".git")
    project.git("init", "--quiet", "--bare", ".")
    project.git("worktree", "add", "--quiet", "-b", "main", "main", _commit_in(project))
    turn = project.command({"main/a.txt": b"a\n", "config": b"[core]\nbare = true\n"})
    project.end(turn)
    assert project.kinds(turn) == {"main/a.txt": "added"}


def _commit_in(project: Project) -> str:
    return project.git("commit-tree", "-m", "x", project.git("mktree").strip()).strip()


def test_what_was_recorded_of_a_repository_earlier_is_forgotten(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(RecordRules, "own_directory", Mock(return_value=None))
        earlier.setattr("qwen_companion.files.rules.OWN", OWN - {".hg"})
        turn = project.command({".hg/store/00changelog.i": b"1\n", "a.txt": b"a\n"})
        project.end(turn)
        assert len(project.kinds(turn)) == 2
    project.reopen()
    assert project.kinds(turn) == {"a.txt": "added"}
    assert project.notes(turn) == ("the repository .hg has changed too; undo leaves it alone",)
    with pytest.raises(RecordError):
        project.net(".hg/store/00changelog.i", turn)
