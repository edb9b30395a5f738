# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qwen_companion.privacy.exclusions import Exclusions
from qwen_companion.privacy.git import TIMEOUT_S
from qwen_companion.privacy.options import Options
from qwen_companion.privacy.verdicts import Verdict
from support import TIMEOUT_S as PATIENCE_S

REAL_GIT = shutil.which("git")


class Place:
    """A home directory with repositories in it, and the rules in force there."""

    def __init__(self, directory: Path) -> None:
        self.top = directory.resolve()
        self.home = self.top / "home"
        self.root = self.home / "project"
        self.root.mkdir(parents=True)
        self.time = 0.0
        self.environ = {"HOME": str(self.home), "PATH": os.environ["PATH"]}
        self.exclusions = Exclusions(self.environ)

    def configure(self, *patterns: str, auth_sources: tuple[str, ...] = (), git_timeout_s: float = TIMEOUT_S) -> None:
        options = Options(patterns, auth_sources)
        self.exclusions = Exclusions(self.environ, options, git_timeout_s, lambda: self.time)

    def git(self, *arguments: str, at: Path | None = None) -> None:
        assert REAL_GIT is not None
        identity = ("-c", "user.name=A", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
        environ = {**self.environ, "PATH": os.environ["PATH"], "GIT_CONFIG_SYSTEM": os.devnull}
        command = [REAL_GIT, *identity, *arguments]
        subprocess.run(command, cwd=at or self.root, env=environ, check=True, stdout=subprocess.DEVNULL)

    def repository(self, directory: Path | None = None, ignored: str = "*.log\n") -> Path:
        directory = directory or self.root
        directory.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q", ".", at=directory)
        write(directory / ".gitignore", ignored)
        return directory

    def check(self, path: Path | str, family: str | None = "qwen") -> Verdict:
        return self.exclusions.check([str(path)], [str(self.root)], family)[str(path)]

    def rule(self, path: Path | str, family: str | None = "qwen") -> str:
        """Return the rule that excludes `path`."""
        verdict = self.check(path, family)
        assert verdict.excluded
        return verdict.rule

    def changed(self, path: Path | str) -> bool:
        return self.exclusions.changed([str(path)], [str(self.root)])

    def fake_git(self, script: str) -> None:
        """Put a program that does `script` in front of git, and ask anew."""
        programs = self.top / "programs"
        programs.mkdir(exist_ok=True)
        write(programs / "git", f"#!/bin/sh\n{script}\n")
        (programs / "git").chmod(0o755)
        self.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
        self.configure()


def write(path: Path, text: str | bytes = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_an_ordinary_file_may_be_told(place: Place) -> None:
    assert place.check(write(place.root / "a.py")) == Verdict(False)


def test_a_secret_is_excluded_by_name_without_being_there(place: Place) -> None:
    assert place.rule(place.home / ".netrc") == "passwords for other machines (.netrc)"


def test_what_is_no_file_of_this_machine_is_excluded(place: Place) -> None:
    assert place.rule("/ssh:host:/etc/motd") == "a remote file"
    assert place.rule("/x/a.tar!./b.c") == place.rule("/x/a.zip:b.c") == "a file in an archive"
    assert place.rule("notes.txt") == "no absolute file name"
    assert place.rule("/a\0b") == place.rule("/\ud800") == "its true name is unknown: no file can have it"


def test_a_file_below_a_file_is_excluded(place: Place) -> None:
    archive = write(place.root / "a.tar.gz")
    assert place.rule(archive / "b.c") == f"its true name is unknown: {archive} is no directory"


def test_a_link_to_a_secret_is_one(place: Place) -> None:
    key = write(place.home / ".ssh/deploy")
    (place.root / "notes.txt").symlink_to(key)
    assert place.rule(place.root / "notes.txt") == "a store of keys or passwords (.ssh/)"


def test_a_link_by_way_of_a_secret_directory_is_a_secret(place: Place) -> None:
    write(place.top / "disk/deploy")
    (place.home / ".ssh").symlink_to(place.top / "disk")
    (place.root / "notes.txt").symlink_to(place.home / ".ssh/deploy")
    assert place.rule(place.root / "notes.txt") == "a store of keys or passwords (.ssh/)"


def test_a_relative_link_in_a_linked_directory_is_followed(place: Place) -> None:
    write(place.top / "disk/.env")
    (place.top / "disk/deep").mkdir()
    (place.top / "disk/deep/settings").symlink_to("../.env")
    (place.root / "here").symlink_to(place.top / "disk/deep")
    assert place.rule(place.root / "here/settings").endswith("(.env*)")


def test_links_in_a_circle_are_excluded(place: Place) -> None:
    (place.root / "a").symlink_to("b")
    (place.root / "b").symlink_to("a")
    assert place.rule(place.root / "a") == "its true name is unknown: too many symbolic links"


def test_what_git_ignores_is_excluded_and_its_line_named(place: Place) -> None:
    place.repository(ignored="# made\n\n*.log\n!keep.log\nbuild/\n")
    assert place.rule(place.root / "a.log") == "git ignores it (.gitignore:3: *.log)"
    assert place.rule(place.root / "build/keep.log") == "git ignores it (.gitignore:5: build/)"
    assert place.check(place.root / "keep.log") == Verdict(False)
    assert place.check(place.root / "new/file.py") == Verdict(False)


def test_a_nested_file_of_rules_decides_below_it(place: Place) -> None:
    place.repository()
    write(place.root / "sub/.gitignore", "!a.log\n/b.py\n")
    assert place.check(place.root / "sub/a.log") == Verdict(False)
    assert place.rule(place.root / "sub/b.py") == "git ignores it (sub/.gitignore:2: /b.py)"


def test_rules_of_the_user_and_of_the_clone_count(place: Place) -> None:
    place.repository()
    write(place.home / ".config/git/ignore", "*.user\n")
    write(place.root / ".git/info/exclude", "*.clone\n")
    assert place.rule(place.root / "a.user") == f"git ignores it ({place.home}/.config/git/ignore:1: *.user)"
    assert place.rule(place.root / "a.clone") == "git ignores it (.git/info/exclude:1: *.clone)"


@pytest.mark.parametrize(
    "name", ["a b.log", "a\nb.log", ":(top)a.log", "-a.log", os.fsdecode(b"\xff.log"), "é\u2028.log"]
)
def test_any_name_can_be_asked_about(place: Place, name: str) -> None:
    place.repository()
    assert place.rule(place.root / name) == "git ignores it (.gitignore:1: *.log)"
    assert place.check(place.root / name.replace(".log", ".py")) == Verdict(False)


def test_a_rule_is_one_line_that_can_be_sent(place: Place) -> None:
    place.repository(ignored="")
    write(place.root / ".gitignore", b"\xff*\n")
    write(place.root / ".qwenignore", b"\xfe*\n")
    assert place.rule(place.root / os.fsdecode(b"\xffa")) == "git ignores it (.gitignore:1: \\udcff*)"
    assert place.rule(place.root / os.fsdecode(b"\xfea")) == ".qwenignore:1: \\udcfe*"


def test_a_file_outside_any_repository_does_not_disturb_the_others(place: Place) -> None:
    place.repository()
    inside, outside = str(place.root / "a.log"), str(place.top / "a.log")
    verdicts = place.exclusions.check([outside, inside], [], None)
    assert (verdicts[outside].excluded, verdicts[inside].excluded) == (False, True)


def test_a_link_is_judged_by_the_repository_it_leads_to(place: Place) -> None:
    place.repository()
    other = place.repository(place.home / "other", ignored="notes\n")
    (place.root / "a").symlink_to(write(other / "notes"))
    (place.root / "b.py").symlink_to(write(other / "x.log"))
    (place.root / "there").symlink_to(other)
    assert (
        place.rule(place.root / "a") == place.rule(place.root / "there/notes") == "git ignores it (.gitignore:1: notes)"
    )
    assert place.check(place.root / "b.py") == place.check(place.root / "there/x.log") == Verdict(False)


def test_a_link_that_is_ignored_itself_excludes_what_is_behind_it(place: Place) -> None:
    place.repository(ignored="private\n")
    (place.root / "private").symlink_to(place.top)
    write(place.top / "letter")
    assert place.rule(place.root / "private/letter") == "git ignores it (.gitignore:1: private)"


def test_a_worktree_has_rules_of_its_own(place: Place) -> None:
    place.repository()
    place.git("add", ".gitignore")
    place.git("commit", "-q", "-m", "x")
    place.git("worktree", "add", "-q", "../tree")
    write(place.root / ".git/info/exclude", "*.clone\n")
    write(place.home / "tree/.gitignore", "*.tree\n")
    assert place.rule(place.home / "tree/a.tree") == "git ignores it (.gitignore:1: *.tree)"
    assert place.rule(place.home / "tree/a.clone").endswith("/info/exclude:1: *.clone)")
    assert place.check(place.home / "tree/a.log") == Verdict(False)
    write(place.root / ".git/info/exclude", "")
    assert place.check(place.home / "tree/a.clone") == Verdict(False)
    place.git("add", "-f", write(place.home / "tree/b.tree").name, at=place.home / "tree")
    assert place.check(place.home / "tree/b.tree") == Verdict(False)


def test_a_submodule_decides_about_its_own_files(place: Place) -> None:
    other = place.repository(place.home / "other", ignored="*.sub\n")
    place.git("add", ".gitignore", at=other)
    place.git("commit", "-q", "-m", "x", at=other)
    place.repository()
    place.git("submodule", "--quiet", "add", str(other), "lib")
    assert place.rule(place.root / "lib/a.sub") == "git ignores it (.gitignore:1: *.sub)"
    assert place.check(place.root / "lib/a.log") == Verdict(False)


def test_a_name_that_git_does_not_want_is_excluded_alone(place: Place) -> None:
    test_a_submodule_decides_about_its_own_files(place)
    place.git("submodule", "--quiet", "deinit", "--force", "lib")
    bad, good, ignored = (str(place.root / name) for name in ("lib/a.py", "a.py", "a.log"))
    verdicts = place.exclusions.check([good, bad, ignored], [], None)
    assert verdicts[bad].rule == f"git could not be asked: Pathspec '{bad}' is in submodule 'lib'"
    assert verdicts[good] == Verdict(False)
    assert verdicts[ignored].rule == "git ignores it (.gitignore:1: *.log)"


def test_a_commit_message_may_be_told(place: Place) -> None:
    place.repository()
    assert place.check(place.root / ".git/COMMIT_EDITMSG") == Verdict(False)


def test_without_git_there_is_no_rule_of_git(place: Place) -> None:
    place.repository()
    place.environ["PATH"] = str(place.top / "empty")
    place.configure()
    assert place.check(place.root / "a.log") == Verdict(False)


def test_git_is_asked_once_it_has_been_installed(place: Place) -> None:
    place.repository()
    place.environ["PATH"] = str(place.top / "programs")
    place.configure()
    place.check(place.root / "a.log")
    assert REAL_GIT is not None
    (place.top / "programs").mkdir()
    (place.top / "programs/git").symlink_to(REAL_GIT)
    assert place.changed(place.root / "a.log")
    assert place.check(place.root / "a.log").excluded


def test_a_git_that_fails_excludes_and_is_asked_again_later(place: Place) -> None:
    place.repository()
    place.fake_git("echo 'fatal: out of order' >&2; exit 128")
    assert place.rule(place.root / "a.py") == "git could not be asked: out of order"
    write(place.top / "programs/git", f'#!/bin/sh\nexec {REAL_GIT} "$@"\n')
    assert not place.changed(place.root / "a.py")
    assert place.check(place.root / "a.py").excluded
    place.time = 60.0
    assert place.changed(place.root / "a.py")
    assert place.check(place.root / "a.py") == Verdict(False)


def test_a_git_that_does_not_tell_all_excludes(place: Place) -> None:
    place.repository()
    place.fake_git("cat >/dev/null; exit 0")
    assert place.rule(place.root / "a.py") == "git could not be asked: its answer is not complete"


def test_a_git_that_does_not_end_is_ended_with_all_it_started(place: Place) -> None:
    place.repository()
    os.mkfifo(place.top / "pipe")
    # Its child holds the output open, and says by the pipe's end that it has been ended.
    place.fake_git(f"(exec 3>{place.top}/pipe; read never <{place.top}/pipe) & wait")
    place.configure(git_timeout_s=0.2)
    ended = threading.Event()

    def watch() -> None:
        with open(place.top / "pipe", "rb") as pipe:
            pipe.read()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    assert place.rule(place.root / "a.py") == "git could not be asked: no answer within 0.2 s"
    assert ended.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        (".gitignore", ""),
        ("deep/.gitignore", ""),
        (".git/config", ""),
        (".git/info/exclude", ""),
        ("pipe", "core.excludesfile"),
        ("pipe", "include.path"),
    ],
)
def test_a_pipe_in_place_of_rules_is_waited_for_once_at_most(place: Place, name: str, setting: str) -> None:
    place.repository()
    pipe = place.root / name
    pipe.unlink(missing_ok=True)
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)
    place.configure(git_timeout_s=1)
    if setting:
        place.git("config", setting, str(pipe))
    problem = "no answer within 1 s" if setting else f"{pipe} is not a regular file"
    start = time.monotonic()
    for number in range(5):
        rule = place.rule(place.root / f"deep/{number}")
        assert rule == f"git could not be asked: {problem}"
    # Each git alone would take as long as one may, and five files ask it ten times.
    assert time.monotonic() - start < 5
    pipe.unlink()
    place.time += 60
    assert not place.check(place.root / "deep/0").excluded


def test_a_change_is_looked_for_while_git_takes_its_time(place: Place) -> None:
    place.repository()
    known = str(place.root / "a.py")
    place.check(known)
    for name in ("started", "go"):
        os.mkfifo(place.top / name)
    place.fake_git(f'echo >{place.top}/started; read line <{place.top}/go; exec {REAL_GIT} "$@"')
    exclusions = place.exclusions
    thread = threading.Thread(target=place.check, args=(place.root / "b.log",))
    thread.start()
    (place.top / "started").read_bytes()
    assert exclusions.changed([known], [str(place.root)])
    # Git is called twice: for its configuration and for the file.
    (place.top / "go").write_text("\n")
    (place.top / "started").read_bytes()
    (place.top / "go").write_text("\n")
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_no_program_of_a_repository_is_run(place: Place) -> None:
    place.repository()
    place.git("add", "-f", write(place.root / "b.log").name)
    place.git("config", "core.fsmonitor", f"touch {place.top}/pwned; echo")
    assert place.check(place.root / "a.log").excluded
    assert not (place.top / "pwned").exists()
    # Git itself would have run it.
    place.git("status")
    assert (place.top / "pwned").exists()


def test_git_is_asked_about_the_repository_of_the_file_only(place: Place) -> None:
    place.repository()
    other = place.repository(place.home / "other", ignored="")
    place.environ.update(GIT_DIR=str(other / ".git"), GIT_WORK_TREE=str(other), GIT_LITERAL_PATHSPECS="1")
    place.configure()
    assert place.rule(place.root / "a.log") == "git ignores it (.gitignore:1: *.log)"


def test_configuration_in_the_environment_counts(place: Place) -> None:
    place.repository()
    write(place.top / "mine", "*.mine\n")
    place.environ.update(
        GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="core.excludesFile", GIT_CONFIG_VALUE_0=f"{place.top}/mine"
    )
    place.configure()
    assert place.check(place.root / "a.mine").excluded
    write(place.top / "mine", "")
    assert not place.check(place.root / "a.mine").excluded


def test_a_repository_git_does_not_trust_has_no_rule_but_is_told_of(place: Place) -> None:
    place.repository()
    # As if the directory were another user's, which only root could make.
    place.fake_git(f'GIT_TEST_ASSUME_DIFFERENT_OWNER=1 exec {REAL_GIT} "$@"')
    note = f"git was not asked: {place.root} is another user's (safe.directory)"
    assert place.check(place.root / "a.log") == Verdict(False, note)
    place.git("config", "--global", "safe.directory", str(place.root), at=place.home)
    assert place.check(place.root / "a.log").excluded


def test_an_empty_mark_of_a_repository_is_none(place: Place) -> None:
    (place.root / ".git").mkdir()
    assert place.check(place.root / "a.py") == Verdict(False)
    place.repository(place.home)
    assert place.rule(place.root / "a.log") == "git ignores it (.gitignore:1: *.log)"


def test_a_worktree_whose_repository_is_gone_is_excluded(place: Place) -> None:
    write(place.root / ".git", "gitdir: /nowhere\n")
    assert place.rule(place.root / "a.py") == "git could not be asked: not a git repository: /nowhere"
    write(place.root / ".git", b"gitdir: a\0b\n")
    assert place.check(place.root / "a.py").excluded


def test_a_file_of_rules_git_cannot_read_excludes(place: Place) -> None:
    place.repository()
    place.fake_git(f'echo "warning: unable to access \'.gitignore\': Permission denied" >&2; exec {REAL_GIT} "$@"')
    assert place.rule(place.root / "a.py") == "git could not be asked: unable to access '.gitignore': Permission denied"


def test_a_linked_file_of_rules_is_none_for_git(place: Place) -> None:
    place.repository()
    (place.root / ".gitignore").rename(place.root / "rules")
    (place.root / ".gitignore").symlink_to("rules")
    assert place.check(place.root / "a.log") == Verdict(False)


Change = Callable[[Place], object]


def global_config(place: Place) -> None:
    write(place.home / "my-ignores", "*.x\n")
    write(place.home / ".gitconfig", "[core]\n excludesFile = ~/my-ignores\n")


def included(place: Place) -> None:
    write(place.home / "my-ignores", "*.x\n")
    write(place.home / "more", "[core]\n excludesFile = ~/my-ignores\n")


CHANGES: list[Change] = [
    lambda place: write(place.root / ".gitignore", "*.x\n"),
    lambda place: write(place.root / "sub/.gitignore", "*.x\n"),
    lambda place: write(place.root / ".git/info/exclude", "*.x\n"),
    lambda place: write(place.home / "later", "*.x\n"),
    lambda place: place.git("config", "core.excludesFile", str(write(place.home / "my-ignores", "*.x\n"))),
    lambda place: place.repository(place.root / "sub", ignored="*.x\n"),
    lambda place: write(place.root / ".qwenignore", "*.x\n"),
    lambda place: write(place.root / ".aiignore", "*.x\n"),
    global_config,
    included,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_is_excluded_as_soon_as_a_rule_comes(place: Place, change: Change) -> None:
    write(place.home / ".gitconfig", "[core]\n excludesFile = ~/later\n[include]\n path = more\n")
    place.repository(ignored="")
    file = write(place.root / "sub/a.x")
    assert place.check(file) == Verdict(False)
    assert not place.changed(file)
    change(place)
    assert place.changed(file)
    assert place.check(file).excluded
    assert not place.changed(file)


def test_the_first_rules_and_the_first_configuration_of_a_user_are_noticed(place: Place) -> None:
    place.repository(ignored="")
    file = place.root / "a.x"
    assert not place.check(file).excluded
    write(place.home / ".config/git/ignore", "*.x\n")
    assert place.check(file).excluded
    write(place.home / ".config/git/config", "[core]\n excludesFile = /nowhere\n")
    assert not place.check(file).excluded
    global_config(place)
    assert place.check(file).excluded


def test_a_file_that_is_no_longer_tracked_is_excluded_and_one_that_becomes_so_is_not(place: Place) -> None:
    place.repository()
    file = write(place.root / "a.log")
    place.git("add", "-f", "a.log")
    assert not place.check(file).excluded
    place.git("rm", "-q", "--cached", "a.log")
    assert place.changed(file)
    assert place.check(file).excluded
    place.git("add", "-f", "a.log")
    assert place.changed(file)
    assert not place.check(file).excluded


def test_a_repository_made_around_a_file_decides(place: Place) -> None:
    write(place.root / ".gitignore", "*.log\n")
    assert place.check(place.root / "a.log") == Verdict(False)
    place.git("init", "-q", ".")
    assert place.changed(place.root / "a.log")
    assert place.check(place.root / "a.log").excluded
    shutil.rmtree(place.root / ".git")
    assert place.changed(place.root / "a.log")
    assert place.check(place.root / "a.log") == Verdict(False)


def test_a_rule_that_is_gone_excludes_no_more(place: Place) -> None:
    place.repository()
    write(place.root / ".qwenignore", "*.txt\n")
    assert place.check(place.root / "a.log").excluded
    assert place.check(place.root / "a.txt").excluded
    (place.root / ".gitignore").unlink()
    (place.root / ".qwenignore").unlink()
    assert not place.check(place.root / "a.log").excluded
    assert not place.check(place.root / "a.txt").excluded


def test_rules_of_the_same_age_are_told_apart(place: Place) -> None:
    rules = write(place.root / ".qwenignore", "a.py\n")
    assert place.check(place.root / "a.py").excluded
    before = rules.stat()
    write(place.root / "new", "b.py\n").rename(rules)
    os.utime(rules, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not place.check(place.root / "a.py").excluded
    write(rules, "a.*\n")
    os.utime(rules, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert place.check(place.root / "a.py").excluded


def test_a_link_that_leads_elsewhere_now_is_judged_anew(place: Place) -> None:
    write(place.root / "plain")
    link = place.root / "link"
    link.symlink_to("plain")
    assert place.check(link) == Verdict(False)
    link.unlink()
    link.symlink_to(place.home / ".netrc")
    assert place.changed(link)
    assert place.check(link).excluded


def test_a_directory_on_the_way_that_becomes_a_link_is_noticed(place: Place) -> None:
    file = write(place.root / "sub/a.py")
    assert place.check(file) == Verdict(False)
    shutil.rmtree(place.root / "sub")
    (place.root / "sub").symlink_to(place.home / ".ssh")
    assert place.changed(file)
    assert place.check(file).excluded


def test_a_deleted_file_keeps_its_verdict(place: Place) -> None:
    place.repository()
    for name in ("a.log", "a.py"):
        file = write(place.root / name)
        verdict = place.check(file)
        file.unlink()
        assert place.check(file) == verdict


def test_git_is_not_asked_again_while_nothing_changes(place: Place) -> None:
    place.repository()
    place.fake_git(f'echo x >>{place.top}/calls; exec {REAL_GIT} "$@"')
    files = [str(place.root / f"{number}.py") for number in range(50)]
    place.exclusions.check(files, [], "qwen")
    calls = (place.top / "calls").read_text()
    assert len(calls.splitlines()) == 2  # The configuration, and all files together.
    place.exclusions.check(files, [], "gemini")
    assert (place.top / "calls").read_text() == calls


def test_an_ignore_file_counts_for_its_own_cli(place: Place) -> None:
    write(place.root / ".qwenignore", "# mine\nsecrets/\n")
    write(place.root / ".agentignore", "agent.txt\n")
    write(place.root / ".geminiignore", "*.md\n")
    assert place.rule(place.root / "secrets/a", "qwen") == ".qwenignore:2: secrets/"
    assert place.rule(place.root / "agent.txt", "qwen") == ".agentignore:1: agent.txt"
    assert not place.check(place.root / "secrets/a", "gemini").excluded
    assert place.rule(place.root / "a.md", "gemini") == ".geminiignore:1: *.md"
    assert not place.check(place.root / "a.md", "qwen").excluded
    for unknown in (None, "another"):
        assert place.check(place.root / "a.md", unknown).excluded
        assert place.check(place.root / "secrets/a", unknown).excluded


def test_an_ignore_file_counts_below_its_root_only(place: Place) -> None:
    write(place.root / ".qwenignore", "a.py\n")
    write(place.root / "sub/.qwenignore", "b.py\n")
    assert not place.check(place.home / "a.py").excluded
    assert not place.check(place.home / "project-2/a.py").excluded
    assert not place.check(place.root / "sub/b.py").excluded
    verdicts = place.exclusions.check([f"{place.root}/sub/b.py"], [str(place.root), f"{place.root}/sub"], "qwen")
    assert next(iter(verdicts.values())).excluded


def test_a_root_by_any_of_its_names_has_its_ignore_file(place: Place) -> None:
    write(place.root / ".qwenignore", "/a.py\n")
    (place.home / "link").symlink_to(place.root)
    for root, file in (("link", "project"), ("project", "link"), ("link", "link")):
        path = f"{place.home}/{file}/a.py"
        assert place.exclusions.check([path], [f"{place.home}/{root}"], "qwen")[path].excluded


def test_all_is_excluded_while_an_ignore_file_cannot_be_read(place: Place) -> None:
    (place.root / ".qwenignore").mkdir()
    assert place.rule(place.root / "a.py") == f"{place.root}/.qwenignore cannot be read: It is not a regular file"
    assert not place.check(place.home / "a.py").excluded
    assert not place.check(place.root / "a.py", "gemini").excluded
    (place.root / ".qwenignore").rmdir()
    os.mkfifo(place.root / ".qwenignore")
    assert place.check(place.root / "a.py").excluded
    (place.root / ".qwenignore").unlink()
    write(place.root / ".qwenignore", "a\n" * 100_000)
    assert place.rule(place.root / "a.py") == f"{place.root}/.qwenignore is longer than 64 KiB"
    write(place.root / ".qwenignore", "")
    assert not place.check(place.root / "a.py").excluded


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("~/letters/", "home/letters/deep/a", "home/letters"),
        ("~/letters", "home/letters/a", "letters/a"),
        ("diary.org", "elsewhere/Diary.org", "elsewhere/diary.org.txt"),
        ("*.diary", "home/a.diary", "home/a.diaries"),
        ("work/*.org", "home/work/a.org", "home/project/work/a.org"),
        ("~/a b/[xy]*/", "home/a b/xz/c", "home/a b/zx/c"),
        ("~/letters/../notes", "home/notes/a", "home/letters/a"),
    ],
)
def test_a_pattern_of_the_option_excludes(place: Place, pattern: str, inside: str, outside: str) -> None:
    place.configure("before", pattern, "after")
    assert place.rule(place.top / inside) == f"the option: {pattern}"
    assert place.check(place.top / outside) == Verdict(False)


def test_an_absolute_pattern_excludes_by_every_name(place: Place) -> None:
    write(place.top / "disk/letters/a")
    (place.home / "letters").symlink_to(place.top / "disk/letters")
    place.configure(f"{place.home}/letters/")
    assert place.check(place.home / "letters/a").excluded
    assert place.check(place.top / "disk/letters/a").excluded
    (place.home / "letters").unlink()
    assert place.changed(place.top / "disk/letters/a")
    assert not place.check(place.top / "disk/letters/a").excluded


def test_the_users_own_files_of_passwords_are_excluded(place: Place) -> None:
    place.configure(auth_sources=("~/my [pass]words", "/etc/mine"))
    assert place.rule(place.home / "my [pass]words") == "an auth-source file: ~/my [pass]words"
    assert place.rule("/etc/mine") == "an auth-source file: /etc/mine"
    assert not place.check(place.home / "my pwords").excluded


def test_an_option_that_protects_nothing_is_named_and_the_others_go_on(place: Place) -> None:
    bad = ("", "# x", "!keep", "/", "a\\", "a[", "~nobody-of-this-name/x")
    place.configure(*bad, "b.txt")
    assert len(place.exclusions.warnings) == len(bad)
    for text, warning in zip(bad, place.exclusions.warnings, strict=True):
        assert warning.startswith(f'nothing is excluded by "{text}": ')
    assert place.check(place.root / "b.txt").excluded


def test_a_name_in_another_case_is_below_the_same_root(place: Place) -> None:
    write(place.root / ".qwenignore", "a.py\n")
    assert place.check(place.home / "Project/a.py").excluded


def test_more_files_than_are_remembered_have_verdicts(place: Place) -> None:
    files = [str(place.root / f"{number}.py") for number in range(1200)]
    assert len(place.exclusions.check(files, [], None)) == 1200
    assert not place.exclusions.changed(files, [])
    assert place.check(place.root / "0.py") == Verdict(False)
