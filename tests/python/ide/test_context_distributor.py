# SPDX-License-Identifier: GPL-3.0-or-later
"""Which CLI gets which context, with real files and the real git."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from qwen_companion import domain
from qwen_companion.ide import context_distributor as module
from qwen_companion.ide import local_context
from qwen_companion.ide.local_context import LocalContext
from qwen_companion.ide.models import told_context
from qwen_companion.privacy import watch
from qwen_companion.privacy.exclusions import Exclusions
from qwen_companion.privacy.verdicts import Verdict
from qwen_companion.privacy.watch import DiskWatch
from qwen_companion.wire.messages import ContextSent, ExclusionList, Notification
from support import TIMEOUT_S, Home

pytestmark = pytest.mark.anyio


class Hall:
    """A context distributor, two projects to work in, and a record of the notifications."""

    def __init__(self, home: Home) -> None:
        self.one, self.two = home.work / "one", home.work / "two"
        for project in (self.one, self.two):
            project.mkdir()
        self.told: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self.reports: asyncio.Queue[Notification] = asyncio.Queue()
        self.warnings: list[str] = []
        self._contexts: dict[str, bytes] = {}
        reports = module.Reports(
            self._deliver,
            lambda session, place, roots, sent, text: self.reports.put_nowait(
                ContextSent(session, roots is None, roots or (), sent, text, told_context(text, place))
            ),
            lambda: self.reports.put_nowait(ExclusionList(self.distributor.exclusions)),
        )
        self.distributor = LocalContext(home.environ, reports, self.warnings.append)
        self.distributor.set_roots((str(self.one), str(self.two)))

    def _deliver(self, session: str, notification: bytes) -> None:
        # As the sessions do.  While the rules are asked for long, what was told is delivered again.
        if self._contexts.get(session) == notification:
            return
        self._contexts[session] = notification
        self.told.put_nowait((session, json.loads(notification)["params"]["workspaceState"]))
        self.distributor.sent(session, notification)

    def file(self, name: str, text: str = "") -> str:
        """Return a new file, named from the directory of the projects."""
        path = self.one.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    def git(self, project: Path, *arguments: str) -> None:
        identity = ("-c", "user.name=Test", "-c", "user.email=test@localhost")
        subprocess.run(["git", *identity, *arguments], cwd=project, check=True, capture_output=True)

    def join(self, name: str, directory: Path | None, family: str | None = "qwen", identified: bool = True) -> None:
        """Connect a CLI that works in `directory`, or one whose process is unknown."""
        peer = domain.Peer(1, "boot:1", str(directory), family, (1,)) if directory else None
        self.distributor.set_session(
            domain.SessionState(domain.KnownSession(name, "1", "", "", peer), True, identified)
        )

    def leave(self, name: str) -> None:
        """Let a CLI go."""
        self.distributor.drop_session(name)
        del self._contexts[name]

    def show(
        self, *paths: str, active: str | None = None, exposures: Mapping[str, str] | None = None, selection: str = ""
    ) -> None:
        """Emacs has `paths` open, the first one longest ago."""
        files = tuple(domain.VisitedFile(path, time, (exposures or {}).get(path)) for time, path in enumerate(paths, 1))
        self.distributor.set_snapshot(domain.Snapshot(files, active, 3, 7, selection))

    async def next(self) -> tuple[str, dict[str, Any]]:
        """Return the name of the CLI that is notified next, and the notification."""
        return await asyncio.wait_for(self.told.get(), TIMEOUT_S)

    async def heard(self, *sessions: str) -> dict[str, Sequence[str]]:
        """Return the names of the files each of `sessions` is told next, newest first, the active one with a star."""
        heard: dict[str, Sequence[str]] = {}
        while set(heard) != set(sessions):
            session, state = await self.next()
            heard[session] = [
                Path(file["path"]).name + ("*" if file.get("isActive") else "") for file in state["openFiles"]
            ]
        return heard

    async def hears(self, session: str, *names: str) -> None:
        """Wait until `session` is told of the files `names`, newest first, perhaps after something else."""
        while (await self.heard(session))[session] != list(names):
            pass

    async def report(self) -> Notification:
        """Return the next notification shown in an open inspector."""
        return await asyncio.wait_for(self.reports.get(), TIMEOUT_S)

    async def exclusions(self) -> Sequence[domain.Exclusion]:
        """Return the next list of exclusions shown there."""
        while not isinstance(report := await self.report(), ExclusionList):
            pass
        return report.exclusions


@pytest.fixture
async def early_hall(home: Home) -> AsyncIterator[Hall]:
    """Yield one in which the settings are not known yet."""
    hall = Hall(home)
    # Python 3.10 cannot tell the cancellation of a task from the end of a wait in it, and may lose it.
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hall.distributor.run)
        yield hall
        tasks.cancel_scope.cancel()


@pytest.fixture
async def hall(early_hall: Hall) -> Hall:
    early_hall.distributor.set_settings(domain.Settings())
    return early_hall


async def test_a_cli_hears_of_the_files_below_its_own_root(hall: Hall) -> None:
    a, b, c = hall.file("one/a"), hall.file("one/deep/b"), hall.file("two/c")
    hall.join("first", hall.one)
    hall.join("second", hall.two)
    hall.join("deep", hall.one / "deep")
    hall.show(a, b, c, active=b, selection="text")
    heard = await hall.heard("first", "second", "deep")
    assert heard == {"first": ["b*", "a"], "second": ["c"], "deep": ["b*", "a"]}


async def test_all_roots_when_the_user_says_so(hall: Hall) -> None:
    hall.distributor.set_settings(domain.Settings(all_roots=True))
    hall.join("first", hall.one)
    hall.show(hall.file("one/a"), hall.file("two/c"), hall.file("elsewhere/d"))
    assert await hall.heard("first") == {"first": ["d", "c", "a"]}


async def test_a_cli_of_which_nothing_is_known_hears_of_all_roots_and_of_nothing_else(hall: Hall) -> None:
    hall.join("stranger", None)
    hall.show(hall.file("one/a"), hall.file("two/c"), hall.file("elsewhere/d"))
    assert await hall.heard("stranger") == {"stranger": ["c", "a"]}


async def test_nothing_is_told_before_it_is_known_whom(hall: Hall) -> None:
    hall.join("first", hall.one)
    hall.join("new", None, identified=False)
    a, c = hall.file("one/a"), hall.file("two/c")
    hall.show(a, c)
    assert await hall.heard("first") == {"first": ["a"]}
    hall.join("new", hall.two)
    assert await hall.next() == ("new", {"openFiles": [{"path": c, "timestamp": 2}]})


async def test_nothing_is_told_before_the_settings_are_known(early_hall: Hall) -> None:
    early_hall.join("first", early_hall.one)
    early_hall.show(early_hall.file("one/a"), early_hall.file("one/b"))
    early_hall.distributor.set_settings(domain.Settings(patterns=("b",)))
    # Not the file first, and then no longer.
    assert await early_hall.heard("first") == {"first": ["a"]}


async def test_a_secret_in_focus_means_no_active_file(hall: Hall) -> None:
    a, key = hall.file("one/a"), hall.file("one/.env")
    hall.join("first", hall.one)
    hall.show(a, key, active=key, selection="PASSWORD=x")
    session, state = await hall.next()
    assert (session, [Path(file["path"]).name for file in state["openFiles"]]) == ("first", ["a"])
    assert "isActive" not in str(state)
    assert "PASSWORD" not in str(state)


async def test_what_git_ignores_and_what_is_not_on_disk(hall: Hall) -> None:
    hall.git(hall.one, "init", "--quiet")
    hall.file("one/.gitignore", "*.log\n")
    kept, ignored = hall.file("one/a"), hall.file("one/b.log")
    tracked = hall.file("one/tracked.log")
    hall.git(hall.one, "add", "--force", "tracked.log")
    hall.join("first", hall.one)
    hall.show(kept, ignored, tracked, str(hall.one / "missing"), "relative", "/ssh:host:/tmp/x")
    assert await hall.heard("first") == {"first": ["tracked.log", "a"]}


async def test_each_family_has_its_ignore_file(hall: Hall) -> None:
    hall.file("one/.qwenignore", "only-gemini\n")
    hall.file("one/.geminiignore", "only-qwen\n")
    hall.join("qwen", hall.one, "qwen")
    hall.join("gemini", hall.one, "gemini")
    hall.join("other", hall.one, None)
    hall.show(hall.file("one/only-gemini"), hall.file("one/only-qwen"), hall.file("one/both"))
    assert await hall.heard("qwen", "gemini", "other") == {
        "qwen": ["both", "only-qwen"],
        "gemini": ["both", "only-gemini"],
        "other": ["both"],
    }


def unable(*_: object) -> bool:
    return False


@pytest.fixture(params=["told by the system", "looked for"])
def noticed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have changes of the disk noticed in one of both ways only."""
    if request.param == "looked for":
        monkeypatch.setattr(local_context, "RULES_S", 0.01)
        monkeypatch.setattr(DiskWatch, "cover", unable)
    elif sys.platform != "linux":
        pytest.skip("There is no inotify.")
    else:
        monkeypatch.setattr(local_context, "RULES_S", 3600)
        monkeypatch.setattr(local_context, "WATCHED_RULES_S", 3600)
        monkeypatch.setattr(watch, "PAUSE_S", 0)


@pytest.mark.usefixtures("noticed")
async def test_a_rule_file_that_changes_counts_without_any_other_event(hall: Hall) -> None:
    hall.join("first", hall.one)
    hall.show(hall.file("one/a"), hall.file("one/b"))
    assert await hall.heard("first") == {"first": ["b", "a"]}
    hall.file("one/.qwenignore", "b\n")
    assert await hall.heard("first") == {"first": ["a"]}
    (hall.one / ".qwenignore").unlink()
    assert await hall.heard("first") == {"first": ["b", "a"]}
    # By git's word, in a repository that comes later, in a file whose directory comes later still.
    hall.git(hall.one, "init", "--quiet")
    hall.file("one/.gitignore", "a\n")
    await hall.hears("first", "b")
    shutil.rmtree(hall.one / ".git/info")
    (hall.one / ".gitignore").unlink()
    await hall.hears("first", "b", "a")
    hall.file("one/.git/info/exclude", "b\n")
    await hall.hears("first", "a")
    # In a directory that has taken the place of the one that was looked at.
    hall.one.rename(hall.one.with_name("old"))
    await hall.hears("first")
    for name in ("one/a", "one/b"):
        hall.file(name)
    await hall.hears("first", "b", "a")
    hall.file("one/.qwenignore", "a\n")
    await hall.hears("first", "b")


@pytest.mark.usefixtures("noticed")
async def test_a_deleted_file_is_noticed_without_any_other_event(hall: Hall) -> None:
    hall.join("first", hall.one)
    hall.show(hall.file("one/a"), path := hall.file("one/b"))
    assert await hall.heard("first") == {"first": ["b", "a"]}
    Path(path).unlink()
    assert await hall.heard("first") == {"first": ["a"]}


@contextmanager
def no_disk(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Inside, the disk must not be asked."""
    asked: list[str] = []

    def ask(path: str, *_: object, **__: object) -> None:
        asked.append(path)

    with monkeypatch.context() as patch:
        for name in ("stat", "lstat", "readlink", "open"):
            patch.setattr(os, name, ask)
        yield
    assert asked == []


@pytest.fixture
def not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no change of the disk looked for."""
    monkeypatch.setattr(local_context, "RULES_S", 3600)
    monkeypatch.setattr(local_context, "WATCHED_RULES_S", 3600)


@pytest.mark.usefixtures("not_looked_for")
async def test_a_move_of_the_cursor_asks_neither_disk_nor_git(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    hall.join("first", hall.one)
    paths = hall.file("one/a"), hall.file("one/b")
    hall.show(*paths)
    assert await hall.heard("first") == {"first": ["b", "a"]}
    with no_disk(monkeypatch):
        for active in paths * 3:
            hall.show(*paths, active=active)
            assert (await hall.next())[0] == "first"


@pytest.mark.usefixtures("not_looked_for")
async def test_one_more_session_asks_neither_disk_nor_git_and_tells_no_other(
    hall: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    hall.join("first", hall.one)
    hall.show(hall.file("one/a"), hall.file("two/c"))
    assert await hall.heard("first") == {"first": ["a"]}
    with no_disk(monkeypatch):
        for name in ("second", "third"):
            hall.join(name, hall.one)
            assert (await hall.next())[0] == name
    # In another directory, and of another family.
    hall.join("fourth", hall.two, "gemini")
    assert await hall.heard("fourth") == {"fourth": ["c"]}
    assert hall.told.empty()


@pytest.mark.usefixtures("not_looked_for")
async def test_one_more_session_costs_the_same_with_many_open(hall: Hall) -> None:
    hall.show(hall.file("one/a"))
    calls: list[int] = []
    for number in range(200):
        with counted_calls(calls):
            hall.join(str(number), hall.one)
            assert (await hall.next())[0] == str(number)
    # Not of the first ones, for which the disk is asked.
    assert min(calls[150:]) <= max(calls[5:20])


@contextmanager
def counted_calls(calls: list[int]) -> Generator[None]:
    """Add to `calls` how many functions are called meanwhile, in this thread."""
    called = itertools.count()
    sys.setprofile(lambda _frame, event, _argument: next(called) if event in ("call", "c_call") else None)
    try:
        yield
    finally:
        sys.setprofile(None)
        calls.append(next(called))


async def test_what_many_hear_is_made_once(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def describe(*arguments: Any) -> object:
        made.append(arguments)
        return real(*arguments)

    real = module.describe
    monkeypatch.setattr(module, "describe", describe)
    names = [str(number) for number in range(20)]
    for name in names:
        hall.join(name, hall.one)
    hall.join("other", hall.two)
    hall.show(hall.file("one/a"), hall.file("two/b"))
    assert await hall.heard(*names, "other") == {**dict.fromkeys(names, ["a"]), "other": ["b"]}
    # Two each time, which is more than once when something changes on the disk meanwhile.
    assert len(made) < len(names)


async def test_the_word_of_the_user_comes_before_the_rules(hall: Hall) -> None:
    a, key = hall.file("one/a"), hall.file("one/.env")
    hall.join("first", hall.one)
    hall.show(a, key, active=a, exposures={a: domain.HIDE, key: domain.SHOW})
    assert await hall.heard("first") == {"first": [".env"]}
    # It does not bring a file to those in whose root it is not, nor one that does not exist.
    hall.show(a, hall.file("two/c"), "/missing", exposures={"/missing": domain.SHOW, hall.file("two/c"): domain.SHOW})
    assert await hall.heard("first") == {"first": ["a"]}


async def test_while_the_rules_are_being_asked_nothing_new_is_told(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    hall.join("first", hall.one)
    a, b, c = hall.file("one/a"), hall.file("one/b"), hall.file("one/c")
    hall.show(a, b, active=a)
    assert await hall.heard("first") == {"first": ["a*", "b"]}
    answer = threading.Event()
    check = Exclusions.check

    def slow(self: Exclusions, paths: Any, roots: Any, family: str | None) -> dict[str, Verdict]:
        answer.wait(TIMEOUT_S)
        return check(self, paths, roots, family)

    monkeypatch.setattr(Exclusions, "check", slow)
    hall.show(a, b, c, active=c, exposures={b: domain.HIDE})
    # The new file is not told, what the user has just hidden is not either, and none is active.
    assert await hall.heard("first") == {"first": ["a"]}
    answer.set()
    assert await hall.heard("first") == {"first": ["c*", "a"]}


@pytest.mark.parametrize(
    ("trusted", "first", "second"),
    [((), None, None), (True, True, True), (("one",), True, False), (("one", "two"), True, True)],
)
async def test_trust(hall: Hall, trusted: bool | tuple[str, ...], first: bool | None, second: bool | None) -> None:
    names = () if isinstance(trusted, bool) else tuple(str(hall.one.parent / name) for name in trusted)
    hall.distributor.set_settings(domain.Settings(trusted=trusted is True, trusted_directories=names))
    hall.join("first", hall.one)
    hall.join("second", hall.two)
    hall.show(hall.file("one/a"))
    told = dict([await hall.next(), await hall.next()])
    assert {name: state.get("isTrusted") for name, state in told.items()} == {"first": first, "second": second}


async def test_trust_stays_the_same_for_the_life_of_a_connection(hall: Hall) -> None:
    hall.distributor.set_settings(domain.Settings(trusted=True))
    hall.join("first", hall.one)
    hall.show(hall.file("one/a"))
    assert (await hall.next())[1]["isTrusted"] is True
    hall.distributor.set_settings(domain.Settings())
    hall.show(hall.file("one/a"), hall.file("one/b"))
    state: dict[str, Any] = {}
    while len(state.get("openFiles", ())) < 2:
        _, state = await hall.next()
        assert state["isTrusted"] is True
    hall.leave("first")
    hall.join("first", hall.one)
    assert "isTrusted" not in (await hall.next())[1]


async def test_a_pattern_that_cannot_be_used_is_said(hall: Hall) -> None:
    hall.distributor.set_settings(domain.Settings(patterns=("good", "~nobody-of-this-name/x")))
    assert any("~nobody-of-this-name/x" in warning for warning in hall.warnings)


async def test_who_looks_is_shown_what_is_told_and_what_is_not(hall: Hall) -> None:
    hall.join("first", hall.one)
    a, key, c = hall.file("one/a"), hall.file("one/.env"), hall.file("two/c")
    hall.show(a, key, c, active=a, selection="some text")
    await hall.heard("first")
    assert hall.reports.empty()
    hall.distributor.watch(True)
    exclusions, sent = await hall.exclusions(), await hall.report()
    assert isinstance(sent, ContextSent)
    assert {item.path: item.session for item in exclusions} == {key: None, c: "first"}
    assert f"outside {hall.one}" in {item.rule for item in exclusions}
    assert sent.roots == (str(hall.one),)
    told = json.loads(sent.text)
    assert told["method"] == "ide/contextUpdate"
    assert told["params"]["workspaceState"]["openFiles"][0]["selectedText"] == "some text"
    assert json.loads(sent.context.pretty) == told
    assert sent.context.trust is None
    (shown,) = sent.context.files
    assert (shown.path, shown.active, shown.line, shown.character, shown.selection) == (a, True, 3, 7, "some text")
    # Each change is shown too, until nobody looks.
    hall.show(a, key, c, active=a, exposures={a: domain.HIDE})
    first, second = await hall.report(), await hall.report()
    (sent,) = [report for report in (first, second) if isinstance(report, ContextSent)]
    assert json.loads(sent.text)["params"] == {"workspaceState": {"openFiles": []}}
    (exclusions,) = [report for report in (first, second) if isinstance(report, ExclusionList)]
    assert domain.Exclusion(a, module.HIDDEN) in exclusions.exclusions
    await hall.heard("first")
    hall.distributor.watch(False)
    hall.show(a)
    await hall.heard("first")
    assert hall.reports.empty()


async def test_the_ignore_file_of_one_cli_excludes_nothing_for_another(hall: Hall) -> None:
    (hall.one / ".geminiignore").write_text("draft\n")
    draft, key = hall.file("one/draft"), hall.file("one/.env")
    hall.join("first", hall.one, "qwen")
    hall.join("second", hall.one, "gemini")
    hall.show(draft, key)
    assert await hall.heard("first", "second") == {"first": ["draft"], "second": []}
    hall.distributor.watch(True)
    assert [(item.path, item.session) for item in await hall.exclusions()] == [(key, None), (draft, "second")]
    # Where both hear of none, it is said once.
    (hall.one / ".qwenignore").write_text("draft\n")
    assert [(item.path, item.session) for item in await hall.exclusions()] == [(draft, None), (key, None)]


async def test_who_looks_before_any_cli_is_there_is_shown_what_the_rules_say(hall: Hall) -> None:
    key = hall.file("one/.env")
    hall.distributor.watch(True)
    assert await hall.report() == ExclusionList(())
    hall.show(key)
    assert [item.path for item in await hall.exclusions()] == [key]


async def test_who_looks_when_the_last_cli_has_gone_is_shown_what_is_open_now(hall: Hall) -> None:
    key, other = hall.file("one/.env"), hall.file("one/.netrc")
    hall.join("first", hall.one)
    hall.show(key, other)
    await hall.heard("first")
    hall.leave("first")
    hall.show(other)
    for _ in range(20):
        # It sees that nobody is there.
        await asyncio.sleep(0)
    hall.distributor.watch(True)
    await hall.exclusions()
    assert [item.path for item in await hall.exclusions()] == [other]


async def test_proposals_are_reviewed_below_all_roots_and_where_the_cli_works(hall: Hall) -> None:
    hall.join("first", hall.one)
    hall.join("elsewhere", hall.one / "deep")
    hall.join("stranger", None)
    roots = (str(hall.one), str(hall.two))
    assert hall.distributor.review_roots("first") == roots
    assert hall.distributor.review_roots("elsewhere") == (*roots, str(hall.one / "deep"))
    assert hall.distributor.review_roots("stranger") == roots


async def test_proposals_are_reviewed_anywhere_when_the_user_says_so_and_nowhere_without_roots(hall: Hall) -> None:
    hall.join("first", hall.one)
    hall.join("stranger", None)
    hall.distributor.set_settings(domain.Settings(all_roots=True))
    assert hall.distributor.review_roots("first") is None
    hall.distributor.set_settings(domain.Settings())
    hall.distributor.set_roots(())
    assert hall.distributor.review_roots("first") == (str(hall.one),)
    assert hall.distributor.review_roots("stranger") == ()
