# SPDX-License-Identifier: GPL-3.0-or-later
"""After a turn is undone, each file is as it was before the turn or untouched: none is lost or made by mistake."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from journal_project import SHELL, Project, data_of
from qwen_companion.files.listing import WorkTree
from qwen_companion.files.stamps import clock_ns
from qwen_companion.files.table import Table
from qwen_companion.files.versions import changed_at
from qwen_companion.journal.baselines import Baseline
from qwen_companion.journal.local_files import LocalFiles
from qwen_companion.journal.record import Cause
from qwen_companion.journal.store import DISK
from qwen_companion.privacy.options import Options

List = Callable[[WorkTree, Sequence[str]], list[bytes]]

PRECIOUS = "data/precious.csv"


def repository(project: Project, name: str, **files: bytes) -> Path:
    """Make the directory `name` a repository with `files` committed, `a_b=` for the file "a.b"."""
    directory = project.root / name
    directory.mkdir(parents=True)
    project.git("init", "--quiet", cwd=directory)
    for file, data in files.items():
        (directory / file.replace("_", ".")).write_bytes(data)
    project.git("add", "--all", cwd=directory)
    project.git("commit", "--quiet", "--message=x", cwd=directory)
    return directory


def older(path: Path) -> None:
    """Wait until the clock of the disk has gone on since `path` was written; it has steps of some ms."""
    while clock_ns() <= path.stat().st_ctime_ns:
        time.sleep(0.001)


# --- Rules that change ---


def ignored_by(project: Project, how: str) -> Callable[[], None]:
    """Let `PRECIOUS` be left out of the record, and return what makes it visible."""
    root, rules = project.root, project.record.rules
    if how == "checkout":
        project.git("checkout", "--quiet", "-b", "other")
        project.commit(other=b"o\n")
        project.git("checkout", "--quiet", "main")
        project.commit(_gitignore=b"data/\n")
        return lambda: (project.git("checkout", "--quiet", "other"), None)[1]
    if how == "options":
        rules.set_options(Options(patterns=("precious.csv",)), ())
        return lambda: rules.set_options(Options(), ())
    if how == "hidden":
        rules.set_options(Options(), (str(root / PRECIOUS),))
        return lambda: rules.set_options(Options(), ())
    name, text = {
        "directory": (".gitignore", b"data/\n"),
        "pattern": (".gitignore", b"*.csv\n"),
        "contents": (".gitignore", b"data/*\n"),
        "in it": ("data/.gitignore", b"*\n"),
        "exclude": (".git/info/exclude", b"data/\n"),
        "excludesfile": ("excluded", b"data/\n"),
        "qwen": (".qwenignore", b"data/\n"),
        "broken": (".qwenignore", b"[z-\xff\n"),
    }[how]
    if how == "excludesfile":
        project.git("config", "core.excludesfile", str(root / name))
    project.write(name, text)
    return lambda: (project.write(name, b"# nothing\n"), None)[1]


@pytest.mark.parametrize(
    "how",
    [
        *("directory", "pattern", "contents", "in it", "exclude", "excludesfile"),
        *("qwen", "broken", "checkout", "options", "hidden"),
    ],
)
def test_a_file_that_rules_do_not_hide_any_more_was_there_before(project: Project, how: str) -> None:
    project.commit(a=b"a\n")
    show = ignored_by(project, how)
    older(project.write(PRECIOUS, b"precious\n"))
    turn = project.begin()
    show()
    project.write("new.csv", b"made\n")
    project.scan(turn)
    assert PRECIOUS not in project.files(turn)
    assert project.kinds(turn)["new.csv"] == "added"
    assert not any("precious.csv:" in note for note in project.notes(turn))
    # From now on it is recorded.
    later = project.command({PRECIOUS: b"spoilt\n"})
    assert project.kinds(later) == {PRECIOUS: "modified"}
    assert project.before(PRECIOUS, later) == b"precious\n"


def test_another_process_knows_what_was_ignored(project: Project) -> None:
    project.commit(_gitignore=b"data/\n")
    project.write(PRECIOUS, b"precious\n")
    turn = project.begin()
    project.write(".gitignore", b"")
    project.reopen()
    project.scan(turn)
    assert project.kinds(turn) == {".gitignore": "modified"}


def test_a_file_that_is_shown_and_changed_at_once_is_left_alone_and_that_is_said(project: Project) -> None:
    project.commit(_gitignore=b"data/\n*.log\n")
    older(project.write(PRECIOUS, b"precious\n"))
    turn = project.begin()
    project.write(".gitignore", b"")
    project.write(PRECIOUS, b"spoilt\n")
    project.write("data/maybe new", b"?\n")
    # Only of directories it is unknown what was in them.
    project.write("a.log", b"new\n")
    project.scan(turn)
    assert project.kinds(turn) == {".gitignore": "modified", "a.log": "added"}
    assert sorted(project.notes(turn)) == [
        f"not recorded: {project.root / name}: it may have been there before, and its earlier text is not known"
        for name in ("data/maybe new", PRECIOUS)
    ]
    project.undo(turn)
    assert project.tree() == {".gitignore": b"data/\n*.log\n", PRECIOUS: b"spoilt\n", "data/maybe new": b"?\n"}


def test_a_tool_that_writes_a_file_that_was_ignored_before_is_recorded(project: Project) -> None:
    project.commit(_gitignore=b"data/\n")
    project.write(PRECIOUS, b"precious\n")
    turn = project.begin()
    project.edit(turn, ".gitignore", b"")
    for name in (PRECIOUS, "data/new"):
        project.edit(turn, name, b"by a tool\n")
    project.scan(turn)
    assert project.kinds(turn) == {".gitignore": "modified", PRECIOUS: "modified", "data/new": "added"}
    assert project.before(PRECIOUS, turn) == b"precious\n"
    assert project.notes(turn) == ()


def test_a_look_while_a_tool_makes_a_file_again_does_not_forget_that_it_was_deleted(project: Project) -> None:
    project.commit(a=b"old\n")
    turn = project.begin()
    path = project.root / "a"
    name = os.fsencode(path)
    path.unlink()
    project.record.observe(name, None, Cause(turn, SHELL))
    older(project.write("a", b"new\n"))
    project.record.scan(Cause(turn, DISK), lambda each: each == name)
    project.record.observe(name, project.record.look(name), Cause(turn, "write_file"))
    assert project.kinds(turn) == {"a": "modified"}
    assert project.before("a", turn) == b"old\n"


def test_a_file_that_a_tool_writes_just_after_the_user_has_hidden_it_stops_no_look(project: Project) -> None:
    path = project.write("a", b"old\n")
    turn = project.begin()
    project.record.rules.set_options(Options(), [str(path)])
    project.write("a", b"new\n")
    project.write("b", b"b\n")
    project.record.scan(Cause(turn, SHELL), lambda each: each == os.fsencode(path))
    assert project.kinds(turn) == {"b": "added"}


def test_a_file_that_was_too_large_before_is_not_the_agents(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qwen_companion.files.versions.MAX_FILE_BYTES", 1000)
    project.commit(a=b"a\n", tracked=b"small\n")
    for name in ("tracked", "large"):
        project.write(name, b"x" * 2000)
    turn = project.command(dict.fromkeys(("tracked", "large"), b"small\n"))
    assert project.kinds(turn) == {}
    # The user lets it grow, and then the agent writes.
    project.write("a", b"x" * 2000)
    turn = project.command(a=b"agent\n")
    assert project.kinds(turn) == {}


@pytest.mark.parametrize("name", ["secret.log", "d/secret.log", "outside"])
def test_a_file_that_was_renamed_from_where_nothing_is_recorded_is_not_deleted(project: Project, name: str) -> None:
    project.commit(_gitignore=b"*.log\nd/\n", known=b"known\n")
    path = project.write(name if name != "outside" else "../outside", b"precious\n")
    project.write("dir/a", b"a\n")
    older(path)
    turn = project.begin()
    path.rename(project.root / "notes.txt")
    # What is recorded is renamed; what is new is deleted.
    (project.root / "dir").rename(project.root / "dir2")
    (project.root / "known").rename(project.root / "known2")
    project.write("known2", b"known\nand more\n")
    project.write("new", b"new\n")
    project.scan(turn)
    kinds = {"new": "added", "dir2/a": "renamed", "known2": "renamed"}
    assert project.kinds(turn) == kinds
    project.undo(turn)
    tree = project.tree()
    assert tree == {".gitignore": tree[".gitignore"], "known": b"known\n", "dir/a": b"a\n", "notes.txt": b"precious\n"}


@pytest.mark.parametrize("birth", ["known", "unknown"])
def test_another_name_of_a_file_that_was_there_is_not_deleted(
    project: Project, monkeypatch: pytest.MonkeyPatch, birth: str
) -> None:
    def is_local(_directory: str) -> bool:
        return birth == "known"

    monkeypatch.setattr("qwen_companion.files.stamps.is_local", is_local)
    project.commit(_gitignore=b"data/\n", known=b"known\n")
    older(project.write(PRECIOUS, b"precious\n"))
    turn = project.begin()
    os.link(project.root / PRECIOUS, project.root / "copy.csv")
    project.write("new", b"new\n")
    (project.root / "known").rename(project.root / "renamed")
    project.scan(turn)
    (project.root / PRECIOUS).unlink()
    project.scan(turn)
    assert project.kinds(turn) == {"new": "added", "renamed": "renamed"}
    assert any("copy.csv: it may have been there before" in note for note in project.notes(turn))
    project.undo(turn)
    assert project.tree() == {".gitignore": b"data/\n", "known": b"known\n", "copy.csv": b"precious\n"}


@pytest.mark.parametrize("how", ["during a look", "with its repository"])
def test_an_excluded_file_that_is_committed_and_renamed_is_not_deleted(project: Project, how: str) -> None:
    project.commit(_env=b"SECRET=1\n", a=b"a\n")
    nest = project.root / "nest"
    project.git("worktree", "add", "--quiet", "nest")
    repository(project, "nest2", b=b"b\n")
    older(nest / ".env")
    before = project.tree()
    turn = project.begin()

    def rename() -> None:
        (nest / ".env").rename(project.root / "nest2/notes.txt")

    def rename_after_the_list_of_nest(files: List, tree: WorkTree, rules: Sequence[str]) -> list[bytes]:
        names = files(tree, rules)
        if tree.top == str(nest) and (nest / ".env").exists():
            rename()
        return names

    if how == "with its repository":
        rename()
        shutil.rmtree(nest)
        project.scan(turn)
    else:
        (nest / "a").unlink()
        project.scan_with(turn, WorkTree, "files", rename_after_the_list_of_nest)
    assert project.kinds(turn) == {"nest/a": "deleted"}
    project.undo(turn)
    before["nest2/notes.txt"] = before.pop("nest/.env")
    assert project.tree() == before


def test_what_is_renamed_during_a_look_is_the_agents(project: Project) -> None:
    older(project.write("sub/a", b"a\n"))
    turn = project.begin()

    def rename_after_the_list(files: List, tree: WorkTree, rules: Sequence[str]) -> list[bytes]:
        names = files(tree, rules)
        if (project.root / "sub").exists():
            (project.root / "sub").rename(project.root / "moved")
        return names

    project.scan_with(turn, WorkTree, "files", rename_after_the_list)
    project.scan(turn)
    assert project.kinds(turn) == {"moved/a": "renamed"}


@pytest.mark.parametrize(("again", "kinds"), [(b"old\n", {"b": "added"}), (b"new\n", {"a": "modified", "b": "added"})])
def test_what_is_renamed_and_made_again_is_the_agents(project: Project, again: bytes, kinds: dict[str, str]) -> None:
    """As by `mv a b && git checkout a`, or where a file is put aside before it is written anew."""
    older(project.write("a", b"old\n"))
    turn = project.begin()
    (project.root / "a").rename(project.root / "b")
    project.write("a", again)
    project.scan(turn)
    assert project.kinds(turn) == kinds


@pytest.mark.parametrize("moment", ["files", "compare", "load", "_finish"])
@pytest.mark.parametrize(
    ("how", "kinds"),
    [
        ("modified", {"moved": "renamed"}),
        ("replaced", {"moved": "renamed"}),
        ("made", {"moved": "added"}),
        # What was there before and only came to light.
        ("shown", {}),
    ],
)
def test_what_is_renamed_after_it_was_listed_and_before_it_is_read_is_the_agents(
    project: Project, how: str, kinds: dict[str, str], moment: str
) -> None:
    text = "".join(f"{number}\n" for number in range(9)).encode()
    project.write(".gitignore", b"shown\n")
    older(project.write("shown", b"1\n"))
    older(project.write("modified", text))
    older(project.write("replaced", text))
    turn = project.begin()
    path = project.root / how
    if how == "shown":
        path = path.rename(project.root / "visible")
    elif how == "replaced":
        project.write("new", text + b"agent\n").rename(path)
    else:
        project.write(how, text + b"agent\n")
    older(path)

    def rename(method: Callable[..., object], *arguments: object) -> object:
        found = method(*arguments) if moment in ("files", "compare") else None
        if path.exists():
            path.rename(project.root / "moved")
        return method(*arguments) if found is None else found

    owners = {"files": WorkTree, "compare": Table, "load": LocalFiles}
    project.scan_with(turn, owners.get(moment, Baseline), moment, rename)
    project.scan(turn)
    # What has come to light is recorded by the name it has then.
    assert project.kinds(turn) == ({"moved": "renamed"} if (how, moment) == ("shown", "_finish") else kinds)


@pytest.mark.parametrize(("owner", "method"), [(WorkTree, "files"), (Table, "compare")])
@pytest.mark.parametrize(("old", "new"), [("a", "a/deep/b"), ("a/deep/b", "a")])
def test_what_takes_the_place_of_another_during_a_look_does_not_hide_it(
    project: Project, old: str, new: str, owner: type, method: str
) -> None:
    project.write(old, b"old\n")
    turn = project.begin()

    def exchange(method: Callable[..., object], *arguments: object) -> object:
        found = method(*arguments)
        path = project.root / "a"
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        project.write(new, b"new\n")
        return found

    project.scan_with(turn, owner, method, exchange)
    project.scan(turn)
    assert project.kinds(turn) == {old: "deleted", new: "added"}
    assert project.before(old, turn) == b"old\n"


@pytest.mark.parametrize("name", ["nest/sub", "nest"])
def test_what_is_moved_from_a_repository_during_a_look_is_the_agents(project: Project, name: str) -> None:
    repository(project, "nest", b=b"b\n")
    repository(project, "nest/inner", c=b"c\n")
    older(project.write("nest/sub/a", b"a\n"))
    turn = project.begin()
    before = project.tree()

    def move_after_the_list_of_the_root(files: List, tree: WorkTree, rules: Sequence[str]) -> list[bytes]:
        names = files(tree, rules)
        if (project.root / name).exists():
            (project.root / name).rename(project.root / "moved")
        return names

    project.scan_with(turn, WorkTree, "files", move_after_the_list_of_the_root)
    project.scan(turn)
    moved = {path.replace(name, "moved", 1) for path in before if path.startswith(f"{name}/")}
    assert project.kinds(turn) == dict.fromkeys(moved, "renamed")
    project.undo(turn)
    assert project.tree() == before


def test_a_repository_that_is_made_around_the_root_makes_nothing_new(project: Project) -> None:
    shutil.rmtree(project.root / ".git")
    project.write("a", b"a\n")
    project.write("b", b"1\n2\n3\n4\n5\n")
    first = project.begin()
    project.edit(first, "b", b"agent\n2\n3\n4\n5\n")
    project.git("init", "--quiet", cwd=project.home)
    project.write("b", b"agent\n2\n3\n4\nuser\n")
    project.reopen()
    turn = project.command(a=b"agent\n")
    assert project.kinds(turn) == {"a": "modified"}
    project.edit(turn, "b", b"agent\n2\nagent\n4\nuser\n")
    assert data_of(project.net("b", first, "since").before) == b"1\n2\n3\n4\nuser\n"


# --- Directories that become something else ---


def test_a_directory_that_becomes_a_link_takes_its_files_away(project: Project) -> None:
    project.write("d/a", b"one\n")
    project.write("other/a", b"two\n")
    project.commit()
    turn = project.begin()
    shutil.rmtree(project.root / "d")
    (project.root / "d").symlink_to("other")
    project.scan(turn)
    assert project.kinds(turn) == {"d/a": "deleted", "d": "added"}
    project.undo(turn)
    assert project.tree() == {"d/a": b"one\n", "other/a": b"two\n"}


@pytest.mark.parametrize("when", ["before the first look", "during the first look", "during a look"])
@pytest.mark.parametrize("becomes", ["directory", "pipe", "link to a directory", "link to itself"])
def test_what_no_index_holds_stops_no_record(project: Project, becomes: str, when: str) -> None:
    project.write("other/a", b"two\n")
    path, inner = project.root / "d", project.root / "d/a"
    is_file = becomes in ("directory", "pipe")

    def change(finish: Callable[..., object] | None = None, *arguments: object) -> None:
        if (path if is_file else inner).is_file() and not path.is_symlink():
            (os.unlink if is_file else shutil.rmtree)(path)
            if becomes == "directory":
                project.write("d/a", b"one\n")
            elif becomes == "pipe":
                os.mkfifo(path)
            else:
                path.symlink_to("other" if becomes == "link to a directory" else "d")
        if finish is not None:
            finish(*arguments)

    begun = project.begin() if when == "during a look" else None
    project.write("d" if is_file else "d/a", b"one\n")
    if when == "before the first look":
        project.commit()
        change()
    else:
        project.scan_with(begun, Baseline, "_finish", change)
    turn = begun or project.begin()
    project.write("later", b"x\n")
    project.scan(turn)
    expected = {"later"} if begun is None or becomes == "pipe" else {"later", "d/a" if is_file else "d"}
    assert project.kinds(turn) == dict.fromkeys(expected, "added")


# --- Repositories within the root ---


def nested(project: Project, kind: str) -> str:
    """Make a repository of that `kind` within the root, with a committed file and work beside it; return its name."""
    project.commit(top=b"t\n")
    if kind == "worktree":
        project.git("worktree", "add", "--quiet", "nest")
        project.write("nest/a", b"committed\n")
        project.git("add", "a", cwd=project.root / "nest")
        project.git("commit", "--quiet", "--message=y", cwd=project.root / "nest")
    elif kind == "submodule":
        shutil.move(repository(project, "other", a=b"committed\n"), project.home / "other")
        project.git("submodule", "--quiet", "add", str(project.home / "other"), "nest")
    else:
        repository(project, "nest", a=b"committed\n")
    if kind == "nested in nested":
        repository(project, "nest/deep", b=b"deep\n")
        project.write("nest/deep/work", b"deep work\n")
    project.write("nest/work", b"work\n")
    return "nest"


KINDS = ["nested", "nested in nested", "worktree", "submodule"]


@pytest.mark.parametrize("dies", [False, True], ids=["", "by another process"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_a_repository_within_that_vanishes_comes_back(project: Project, kind: str, how: str, dies: bool) -> None:
    nest = project.root / nested(project, kind)
    before = project.tree()
    turn = project.begin()
    if how == "deleted":
        shutil.rmtree(nest)
    else:
        nest.rename(project.root / "moved")
    if dies:
        project.reopen()
    project.scan(turn)
    changed = {name for name in before if name.startswith("nest/")}
    if how == "deleted":
        assert project.kinds(turn) == dict.fromkeys(changed, "deleted")
    else:
        assert project.kinds(turn) == {name.replace("nest", "moved", 1): "renamed" for name in changed}
    project.undo(turn)
    assert project.tree() == before
    if how == "moved":
        assert (project.root / "moved/.git").exists()
    # That goes on being recorded.
    later = project.command({"nest/a": b"again\n"})
    assert project.kinds(later) == {"nest/a": "modified"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["damaged", "removed", "ignored"])
def test_a_repository_within_that_is_none_any_more_is_recorded_as_before(project: Project, kind: str, how: str) -> None:
    nest = project.root / nested(project, kind)
    project.write("nest/hidden.log", b"hidden\n")
    project.write("nest/.gitignore", b"*.log\n")
    turn = project.begin()
    if how == "ignored":
        project.write(".gitignore", b"nest/\n")
    elif how == "removed":
        (shutil.rmtree if (nest / ".git").is_dir() else os.unlink)(nest / ".git")
    elif (nest / ".git").is_dir():
        (nest / ".git/HEAD").unlink()
    else:
        (nest / ".git").write_bytes(b"gitdir: /nowhere\n")
    project.write("nest/.gitignore", b"\n")
    project.write("nest/a", b"agent\n")
    project.scan(turn)
    expected = {"nest/a": "modified", "nest/.gitignore": "modified"}
    assert project.kinds(turn) == {**expected, **({".gitignore": "added"} if how == "ignored" else {})}
    assert project.before("nest/a", turn) == b"committed\n"


def test_a_repository_within_that_was_ignored_was_there_before(project: Project) -> None:
    project.commit(_gitignore=b"nest/\n")
    nested(project, "nested in nested")
    turn = project.command({".gitignore": b"\n"})
    assert project.kinds(turn) == {".gitignore": "modified"}
    shutil.rmtree(project.root / "nest")
    project.scan(turn)
    project.undo(turn)
    assert project.tree()["nest/a"] == b"committed\n"
    assert project.tree()["nest/deep/work"] == b"deep work\n"


def test_a_directory_that_becomes_a_repository_makes_nothing_new(project: Project) -> None:
    project.commit(_gitignore=b"*.log\n")
    project.write("sub/a", b"a\n")
    project.write("only/b.log", b"b\n")
    turn = project.begin()
    for name in ("sub", "only"):
        project.git("init", "--quiet", cwd=project.root / name)
    project.write("sub/b", b"new\n")
    project.scan(turn)
    assert project.kinds(turn) == {"sub/b": "added"}
    # Git lists the files in it as those of the repository around it.
    notes = {f"the repository {name}/.git is new; undo leaves it alone" for name in ("only", "sub")}
    # A file that git ignored is told of too if it was made in the same tick of the clock as the last scan.
    assert {note for note in project.notes(turn) if not note.startswith("not recorded")} == notes
    shutil.rmtree(project.root / "only")
    project.scan(turn)
    assert project.kinds(turn) == {"sub/b": "added", "only/b.log": "deleted"}
    later = project.command({"sub/b": b"newer\n"})
    project.end(later)
    assert project.notes(later) == ()


def test_more_repositories_than_are_recorded_are_not_the_agents(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        repository(project, f"n{number}", a=b"a\n")
    monkeypatch.setattr("qwen_companion.files.listing.MAX_NESTED", 2)
    turn = project.begin()
    shutil.rmtree(project.root / "n0")
    project.scan(turn)
    assert project.kinds(turn) == {"n0/a": "deleted"}


def test_two_repositories_with_long_names_are_two(project: Project) -> None:
    long = "x" * 120
    for last in "ab":
        repository(project, long + last, a=last.encode())
    turn = project.command({f"{long}b/a": b"agent\n"})
    assert project.kinds(turn) == {f"{long}b/a": "modified"}
    assert project.before(f"{long}b/a", turn) == b"b"


# --- What the user had not committed ---


def test_what_the_user_had_deleted_is_not_deleted_by_the_agent(project: Project) -> None:
    project.commit(a=b"a\n", b=b"b\n", c=b"c\n")
    nested(project, "submodule")
    (project.root / "a").unlink()
    (project.root / "b").rename(project.root / "b2")
    (project.root / "nest/a").unlink()
    turn = project.begin()
    project.scan(turn)
    assert project.kinds(turn) == {}
    before = project.tree()
    project.git("checkout", "a")
    project.git("checkout", ".", cwd=project.root / "nest")
    project.scan(turn)
    assert project.kinds(turn) == {"a": "added", "nest/a": "added"}
    project.undo(turn)
    assert project.tree() == before


def test_a_file_has_changed_since_the_moment_of_its_change(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch()
    moments: set[int] = set()
    while len(moments) < 60:
        path.chmod(0o600)
        moment = path.stat().st_ctime_ns
        assert changed_at(os.fsencode(path)) >= moment / 1e9
        moments.add(moment)
