# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports of hooks and of Emacs become turns, attributed to their writers; the hooks are called by this test."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from anyio import to_thread

from journal_project import SHELL, Project
from journal_site import ON, Agent, Site, an_hour_ahead, at_work, site
from limit import stretched
from qwen_companion.base.processes import start_of
from qwen_companion.domain import (
    ChatWork,
    CliState,
    KnownSession,
    Peer,
    SessionState,
    Settings,
    Snapshot,
    Usage,
    VisitedFile,
    WaitingProposal,
)
from qwen_companion.files.stamps import clock_ns
from qwen_companion.journal import roots
from qwen_companion.journal.activity import Activity, Probe, last_input
from qwen_companion.journal.answers import Answers, Summary
from qwen_companion.journal.baselines import UnknownBeforeError
from qwen_companion.journal.database import StoreError
from qwen_companion.journal.journal import Journal
from qwen_companion.journal.record import Cause, Chooser, Record
from qwen_companion.journal.sites import ThisMachine
from qwen_companion.journal.store import Store
from qwen_companion.journal.tree_watch import TreeWatch
from qwen_companion.journal.witness import Witness
from qwen_companion.wire.messages import (
    ChangeScope,
    JournalBusy,
    JournalFiles,
    JournalMerge,
    JournalOrigins,
    JournalPrune,
    JournalReply,
    JournalSeen,
    JournalSpans,
    JournalTexts,
    JournalWatch,
    JournalWorktrees,
    JournalWrote,
    Notice,
    TurnChanges,
    Unrecorded,
    WantedFile,
)
from support import TIMEOUT_S, until

pytestmark = pytest.mark.anyio

SHARED = 'what this or another agent has changed is in a turn "One of: ..."'

DRAW = "for i in 1 2 3 4 5 6 7 8 9; do echo .; sleep 0.1; done"
"""A command of a process that goes on working for a second, as agents do that have written a file."""


class SilentCli:
    """A process that calls no hooks: a shell in a terminal of its own, which runs given commands."""

    def __init__(self, directory: Path, family: str = "gemini") -> None:
        self._terminal, inner = os.openpty()
        self._name = os.ttyname(inner)
        terminal: Mapping[str, Any] = {"stdin": inner, "stdout": inner, "stderr": inner}
        self.process = subprocess.Popen(["sh"], **terminal, cwd=directory, start_new_session=True)
        os.close(inner)
        self._read_prompt()
        self.peer = Peer(self.process.pid, start_of(self.process.pid) or "", str(directory), family, ())
        name = "Gemini CLI" if family == "gemini" else "Qwen Code"
        self.state = SessionState(KnownSession(family, "", name, "0.61.0", self.peer), streaming=True)

    def type(self, *commands: str) -> None:
        """Have it run `commands`, one line, and after each of them draw for a second as one that goes on working."""
        os.write(self._terminal, "; ".join(f"{command}; {DRAW}" for command in commands).encode() + b"\n")

    def type_quietly(self, command: str) -> None:
        """Have it run `command`, and nothing after it."""
        os.write(self._terminal, command.encode() + b"\n")

    def wait_until_idle(self) -> None:
        """Wait until it has done all that it was told; the event loop stands still."""
        self._read_prompt()

    def _read_prompt(self) -> None:
        shown = b""
        while not shown.endswith((b"# ", b"$ ")):
            shown += os.read(self._terminal, 1000)

    async def until_idle(self) -> None:
        """Wait until it has done all that it was told."""
        await to_thread.run_sync(self._read_prompt)

    def typed_at(self, moment: float) -> None:
        """Make `moment` the time at which it was typed to last."""
        os.utime(self._name, (moment, moment))

    def __enter__(self) -> SilentCli:
        return self

    def __exit__(self, *_: object) -> None:
        # Its commands too: one may go on for good.
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(TIMEOUT_S)
        os.close(self._terminal)


class ChatAgent:
    """The agent of a chat as the daemon starts it, a process without a terminal, that runs given commands."""

    def __init__(self, project: Project, family: str = "gemini") -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(["sh"], stdin=pipe, stdout=pipe, cwd=project.root, text=True)
        peer = Peer(self.process.pid, start_of(self.process.pid) or "", str(project.root), family, ())
        self.state = SessionState(KnownSession("agent", "", "Qwen Code", "0.24.4", peer), streaming=True)

    def run(self, command: str) -> None:
        """Have it run `command`."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    async def until_idle(self) -> None:
        """Wait until it has done all that it was told."""
        assert self.process.stdout is not None
        self.run("echo idle")
        while await to_thread.run_sync(self.process.stdout.readline) != "idle\n":
            pass

    def __enter__(self) -> ChatAgent:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.__exit__(None, None, None)


@pytest.fixture
def cli(project: Project) -> Iterator[SilentCli]:
    with SilentCli(project.root) as cli:
        yield cli


@pytest.fixture
def agent(project: Project) -> Iterator[ChatAgent]:
    with ChatAgent(project) as agent:
        yield agent


@asynccontextmanager
async def watching(project: Project, calls: list[str], *clis: SilentCli | ChatAgent) -> AsyncGenerator[Site]:
    """Yield a journal that watches what `clis` write; what is there until then is not theirs."""
    async with site(project) as place:
        place.front.silent.set_sessions([cli.state for cli in clis])
        await place.until_watched(project)
        await until_more(calls, "scan", 0)
        yield place


def chat_of(project: Project, turn: str | None = None, prompt: str = "", **fields: Any) -> ChatWork:
    return ChatWork("chat", str(project.root), "Qwen Code", turn, prompt, **fields)


def turn_of(reply: JournalReply) -> str:
    """Return the turn that is at work, "" while it is not recorded yet."""
    assert reply.busy
    return reply.busy[0][1]


def before_each_look(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do `act` each time before the journal looks at files."""
    scan = Record.scan

    def act_and_scan(record: Record, *arguments: Any) -> bool:
        act()
        return scan(record, *arguments)

    monkeypatch.setattr(Record, "scan", act_and_scan)


@pytest.fixture
def may_look(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Keep the journal from looking at files until the event is set."""
    event = threading.Event()
    before_each_look(monkeypatch, lambda: event.wait(TIMEOUT_S))
    return event


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the methods of records that were called and are done; "scan found" after a change."""
    done: list[str] = []

    def watch(owner: type[Record | Store], name: str) -> None:
        method = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            result = None
            try:
                result = method(*arguments)
                return result
            finally:
                done.append(name)
                if result is True:
                    done.append(f"{name} found")

        monkeypatch.setattr(owner, name, call)

    watch(Record, "scan")
    watch(Store, "begin")
    return done


async def until_more(calls: list[str], name: str, before: int) -> None:
    """Wait until there are more than `before` of `calls` of the method `name`."""
    await until(lambda: calls.count(name) > before)


async def until_begun(calls: list[str]) -> None:
    """Wait until a turn has begun, and the files have been looked at since."""
    await until(lambda: "begin" in calls and "scan" in calls[calls.index("begin") :])


async def test_turns_of_edits_and_commands(project: Project) -> None:
    project.commit(a=b"a\n", b=b"b\n", c=b"c\n")
    async with at_work(project) as (place, agent):
        assert await agent.prompt("Fix it\nplease") is None
        start = agent.time
        await agent.edit("a", b"agent\n")
        await agent.run(lambda: (project.root / "b").rename(project.root / "renamed"))
        (turn,) = await place.until({"a": "modified", "renamed": "renamed"})
        assert (turn.prompt, turn.client, turn.cli, turn.session) == ("Fix it", "Qwen Code 0.24.4", "connected", "s")
        assert (turn.root, turn.start, turn.end, turn.source) == (str(project.root), start, None, "hooks")
        assert place.files[turn.id]["a"].writers == (("write_file", None),)
        assert place.files[turn.id]["renamed"].previous == str(project.root / "b")
        # A subagent's call, a command that failed, and what nobody told of.
        await agent.edit("new", b"n\n", "helper")
        call = await agent.begin(SHELL, command="...")
        project.write("c", b"1\n")
        await agent.report("PostToolUseFailure", **call, error="exit 1")
        await place.until({"a": "modified", "renamed": "renamed", "new": "added", "c": "modified"})
        project.write("quiet", b"by a process in the background\n")
        await agent.report("Stop")
        changes = {"a": "modified", "renamed": "renamed", "new": "added", "c": "modified", "quiet": "added"}
        await place.until(changes)
        await place.until_ended(turn.id)
        files = place.files[turn.id]
        assert files["new"].writers == (("write_file", "helper"),)
        assert (files["c"].writers, files["quiet"].writers) == (((SHELL, None),), (("disk", None),))
        # A turn that changes nothing is none; a write that is taken back within one is no change.
        await agent.prompt("What is this?")
        await agent.report("Stop")
        await agent.prompt("And this?")
        await agent.edit("a", b"x\n")
        await place.until(changes, {"a": "modified"})
        await agent.edit("a", b"agent\n")
        await place.until(changes, {})


async def test_what_a_command_did_to_the_file_of_the_next_tool_is_the_agents(project: Project) -> None:
    project.commit(a=b"old\n")
    async with at_work(project, "Begin it anew") as (place, agent):
        # At once: nobody waits for the look after the command.
        await agent.run(lambda: (project.root / "a").rename(project.root / "b"))
        await agent.edit("a", b"new\n")
        await place.until({"a": "modified", "b": "added"})


async def test_a_file_is_read_before_a_tool_that_waits_no_longer_for_the_look_after_a_command(
    project: Project, may_look: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit(a=b"old\n")
    may_look.set()

    async def write_while_looking(_: object) -> None:
        project.write("a", b"of the tool\n")
        await anyio.sleep_forever()

    async with at_work(project, "Fix it") as (place, agent):
        call = await agent.begin(SHELL, command="...")
        may_look.clear()
        project.write("a", b"of the command\n")
        await agent.done(call)
        monkeypatch.setattr("qwen_companion.journal.hook_reports.LOOK_WAIT_S", 0.01)
        monkeypatch.setattr("qwen_companion.journal.root.Root.done_so_far", write_while_looking)
        await agent.done(await agent.begin("edit", file_path=str(project.root / "a")))
        may_look.set()
        (turn,) = await place.until({"a": "modified"})
        assert await place.before(turn, "a") == b"old\n"
        # The look of the command is told first.
        await place.when(lambda: place.files[turn.id]["a"].writers == ((SHELL, None), ("edit", None)))


async def test_what_a_tool_wrote_that_waited_no_longer_is_its_own(project: Project) -> None:
    """On a busy machine it is heard of only then: what lies there is not what was there before."""
    project.commit(a=b"old\n")
    async with at_work(project, "Fix it") as (place, agent):
        agent.waits_until = anyio.current_time()
        # Else the first look may see what it writes.
        await place.until_done()
        project.write("a", b"agent\n")
        await agent.edit("a", b"agent\n")
        (turn,) = await place.until({"a": "modified"})
        assert await place.before(turn, "a") == b"old\n"


async def test_a_record_that_was_removed_is_begun_anew(project: Project) -> None:
    """By the user or a cleaner, while the backend lives."""
    project.commit(a=b"a\n")
    async with at_work(project, "First") as (place, agent):
        await agent.edit("a", b"agent\n")
        await place.until({"a": "modified"})
        # At once: the backend may write into it meanwhile.
        (project.home / "state").rename(project.home / "removed")
        await agent.prompt("Second")
        await agent.edit("b", b"more\n")
        (turn,) = await place.until({"b": "added"})
        assert turn.prompt == "Second"
        notice = await place.until_told(Notice)
        assert notice.text == f"What was recorded of changes in {project.root} has been removed; it begins anew"


@pytest.mark.parametrize("damage", [b"", b"garbage" * 1000])
async def test_a_record_that_is_damaged_meanwhile_is_put_aside_and_begun_anew(project: Project, damage: bytes) -> None:
    project.commit(a=b"a\n")
    async with at_work(project, "First") as (place, agent):
        await agent.edit("a", b"agent\n")
        await place.until({"a": "modified"})
        (file,) = (project.home / "state").rglob("journal.sqlite")
        file.write_bytes(damage)
        # This waits for the record only, and reads nothing in it.
        await agent.begin("edit", file_path=str(project.root / "a"))
        await agent.prompt("Second")
        notice = await place.until_told(Notice)
        assert "begins anew" in notice.text
        await agent.prompt("Third")
        await agent.edit("b", b"more\n")
        await until(lambda: place.kinds()[-1:] == [{"b": "added"}])
        assert not place.refused()
        (notice,) = place.told_of(Notice)
        if damage:
            (aside,) = file.parent.glob("journal.sqlite.damaged-*")
            assert str(aside) in notice.text


async def test_nothing_is_recorded_where_it_is_not_wanted(project: Project) -> None:
    project.commit(a=b"a\n")
    async with at_work(project, "Fix it", Settings()) as (place, agent):
        await agent.edit("a", b"agent\n")
        agent.cwd = str(project.home)
        await agent.prompt("Elsewhere")
        reply = await place.ask(lambda n: JournalFiles(n, ChangeScope(str(project.root), "all", None, None)))
        assert reply.error == f"Nothing is recorded of {project.root}"
        assert not (project.home / "state").exists()


async def test_the_agent_waits_for_the_first_look_and_for_a_second_at_most(
    project: Project, may_look: threading.Event
) -> None:
    project.commit(a=b"a\n", b=b"b\n")
    async with at_work(project, "Fix it") as (place, agent):
        with anyio.move_on_after(1):
            await agent.begin("edit", file_path=str(project.root / "a"))
            raise AssertionError("it did not wait")
        project.write("a", b"agent\n")
        may_look.set()
        await agent.done({"tool_name": "edit", "tool_input": {"file_path": str(project.root / "a")}})
        await agent.report("Stop")
        (turn,) = await place.until({"a": "modified"})
        assert await place.before(turn, "a") == b"a\n"


def include(project: Project, path: str) -> None:
    project.git("config", "include.path", path)


def exclude_by(project: Project, path: str) -> None:
    project.git("config", "core.excludesfile", path)


def replace_repository(project: Project, path: str) -> None:
    shutil.rmtree(project.root / ".git")
    (project.root / ".git").symlink_to(path)


def hide_all(project: Project, _path: str) -> None:
    project.write(".qwenignore", b"x\n" * 400_000)


ODD_FILES: dict[str, tuple[Callable[[Project, str], None] | None, str]] = {
    ".gitignore": (None, "not a regular file"),
    "deep/.gitignore": (None, "no answer"),
    ".gitattributes": (None, "not a regular file"),
    ".git/config": (None, "not a regular file"),
    ".git/HEAD": (None, ""),
    ".git/info/exclude": (None, "not a regular file"),
    "included": (include, "no answer"),
    "excludes": (exclude_by, "not a regular file"),
    "/dev/zero": (exclude_by, "not a regular file"),
    "/dev/./zero": (include, "bad config"),
    "/dev/../dev/zero": (replace_repository, ""),
    ".qwenignore": (None, ".qwenignore cannot be read: It is not a regular file"),
    "too long": (hide_all, ".qwenignore is longer than 64 KiB"),
}
"""Odd files in place of rules: the function that leads git there, and the reason in the notice, "" if recorded."""


@pytest.mark.parametrize("name", ODD_FILES)
async def test_an_odd_file_of_rules_stalls_no_tool_and_is_told_until_it_is_mended(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("qwen_companion.base.git.STALL_S", 0.2)
    monkeypatch.setattr("qwen_companion.base.git.RETRY_S", 2)
    monkeypatch.setattr("qwen_companion.journal.hook_reports.LOOK_WAIT_S", 0.2)
    lead, reason = ODD_FILES[name]
    project.commit(a=b"a\n", **{"deep/b": b"b\n"})
    pipe = project.root / name
    if not name.startswith("/"):
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
    if lead is not None:
        lead(project, str(pipe))
    async with at_work(project, "Fix it") as (place, agent):
        start = time.monotonic()
        for number in range(10):
            await agent.edit("a", b"agent %d\n" % number)
        assert time.monotonic() - start < stretched(2)
        if not reason:
            await place.until({"a": "modified"})
            return
        await until(lambda: reason in str(place.refused()))
        (notice,) = place.told_of(Notice)
        assert reason in notice.text
        assert place.kinds() == []
        if lead is None:
            pipe.unlink()
            with anyio.fail_after(TIMEOUT_S):
                while place.refused():
                    await agent.prompt("Again")
                    await anyio.sleep(0.05)
            await agent.edit("b", b"new\n")
            await until(lambda: {"b": "added"} in place.kinds())


async def test_a_command_that_could_not_wait_any_longer_is_noted(
    project: Project, may_look: threading.Event, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit(a=b"a\n")
    monkeypatch.setattr("qwen_companion.journal.hook_reports.LOOK_WAIT_S", 0)
    async with at_work(project, "Fix it") as (place, agent):
        call = await agent.begin(SHELL, command="...")
        may_look.set()
        await until_begun(calls)
        project.write("a", b"agent\n")
        await agent.done(call)
        (turn,) = await place.until({"a": "modified"})
        assert turn.notes[0].startswith("the first look at all files took too long")


async def test_what_a_command_that_could_not_wait_did_to_the_file_of_the_next_tool_is_the_agents(
    project: Project, may_look: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else undoing would delete the file."""
    project.commit(a=b"old\n", b=b"b\n")
    may_look.set()
    async with at_work(project, "Begin") as (place, agent):
        await agent.edit("b", b"agent\n")
        await agent.report("Stop")
        await place.until({"b": "modified"})
        (first,) = place.turns
        await place.until_ended(first)
        may_look.clear()
        project.write("b", b"by the user\n")
        await tick()
        monkeypatch.setattr("qwen_companion.journal.hook_reports.LOOK_WAIT_S", 0)
        await agent.prompt("Begin it anew")
        await tick()
        await agent.run(lambda: (project.root / "a").rename(project.root / "c"))
        call = await agent.begin("write_file", file_path=str(project.root / "a"))
        project.write("a", b"new\n")
        may_look.set()
        await agent.done(call)
        _, turn = await place.until({"b": "modified"}, {"a": "modified", "c": "added"})
        assert await place.before(turn, "a") == b"old\n"


async def test_what_a_command_did_before_the_first_look_is_nobodys(
    project: Project, may_look: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what the user had written to the same file and not committed."""
    project.commit(a=b"a\n")
    project.write("a", b"by the user\n")
    monkeypatch.setattr("qwen_companion.journal.hook_reports.LOOK_WAIT_S", 0)
    async with at_work(project, "Fix it") as (place, agent):
        call = await agent.begin(SHELL, command="...")
        project.write("a", b"by both\n")
        may_look.set()
        await agent.done(call)
        await agent.edit("b", b"new\n")
        await agent.report("Stop")
        (turn,) = await place.until({"b": "added"})
        await place.until_ended(turn.id)
        assert place.kinds() == [{"b": "added"}]
        assert turn.notes[0].startswith("the first look at all files took too long")


@pytest.mark.parametrize("other", [False, True])
async def test_what_a_command_did_after_the_first_look_is_its_agents_before_the_look_of_its_turn_too(
    project: Project, calls: list[str], monkeypatch: pytest.MonkeyPatch, other: bool
) -> None:
    """The first look is under way when the prompt comes: by the arrival of its CLI, or for the turn of another."""
    project.commit(a=b"a\n")
    may_look = threading.Semaphore(0)
    before_each_look(monkeypatch, lambda: may_look.acquire(timeout=TIMEOUT_S))
    monkeypatch.setattr("qwen_companion.journal.hook_reports.LOOK_WAIT_S", 0)
    async with site(project, silence_s=math.inf) as place:
        agent = Agent(place.front, project)
        if other:
            await Agent(place.front, project, "other").prompt("Other")
        else:
            known = KnownSession("mcp", "", "Qwen Code", "0.24.4", agent.peer)
            place.front.silent.set_sessions([SessionState(known, streaming=True)])
            await anyio.wait_all_tasks_blocked()
        await agent.prompt("Fix it")
        may_look.release()
        await until(lambda: "scan" in calls)
        call = await agent.begin(SHELL, command="...")
        project.write("a", b"agent\n")
        may_look.release(9)
        await agent.done(call)
        await agent.report("Stop")
        (turn,) = await place.until({"a": "modified"})
        assert turn.prompt == "Fix it"
        assert await place.before(turn, "a") == b"a\n"


async def tick() -> None:
    """Wait until what is written has a later time than what was written before."""
    for _ in range(2):
        now = clock_ns()
        while clock_ns() <= now:
            await anyio.lowlevel.checkpoint()


async def test_what_commands_did_that_ended_before_either_was_looked_after_is_told_apart_by_its_time(
    project: Project, may_look: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system tells of no changes, the first look finds those of both."""
    monkeypatch.setattr("qwen_companion.journal.tree_watch.open_inotify", lambda: None)
    project.commit(a=b"a\n", b=b"b\n")
    may_look.set()
    async with site(project) as place:
        first, second = await place.agent("One", "first"), await place.agent("Two", "second")
        await second.edit("c", b"second\n")
        await place.until({"c": "added"})
        may_look.clear()
        await first.run(lambda: project.write("a", b"first\n"))
        await tick()
        await second.run(lambda: project.write("b", b"second\n"))
        may_look.set()
        await place.until({"a": "modified"}, {"c": "added", "b": "modified"})
        await place.until_noted((), ())


async def test_what_a_command_did_before_a_late_look_is_its(
    project: Project, may_look: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look that its prompt has asked for comes after it, on a busy machine."""
    project.commit(a=b"a\n")
    may_look.set()
    monkeypatch.setattr("qwen_companion.journal.hook_reports.LOOK_WAIT_S", 0)
    async with at_work(project) as (place, agent):
        await agent.turn("Begin", {"b": b"agent\n"})
        await place.until({"b": "added"})
        await place.until_done()
        may_look.clear()
        await agent.prompt("Go on")
        await tick()
        await agent.run(lambda: project.write("a", b"agent\n"))
        await agent.report("Stop")
        may_look.set()
        _, turn = await place.until({"b": "added"}, {"a": "modified"})
        assert await place.before(turn, "a") == b"a\n"


async def test_what_a_command_did_that_is_told_late_is_not_that_of_another(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is heard of while the command of another agent runs, which has begun since."""
    monkeypatch.setattr("qwen_companion.journal.tree_watch.open_inotify", lambda: None)
    project.commit(a=b"a\n", b=b"b\n")
    async with site(project) as place:
        first, second = await place.agent("One", "first"), await place.agent("Two", "second")
        await place.until_done()
        project.write("a", b"first\n")
        end = datetime.now(timezone.utc)
        await tick()
        await second.run(lambda: project.write("b", b"second\n"))
        await place.until_done()
        values: Mapping[str, Any] = {"tool_name": SHELL, "tool_call_id": "late", "duration_ms": 500}
        await first.report("PostToolUse", **values, timestamp=end.isoformat())
        one, two = await place.until({"a": "modified"}, {"b": "modified"})
        assert (one.prompt, two.prompt) == ("One", "Two")


@pytest.mark.parametrize("who", ["user", "agent"])
async def test_a_commit_is_told_with_the_turn_in_which_it_was_made(
    project: Project, may_look: threading.Event, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """The look that its prompt has asked for comes after it, on a busy machine."""
    bare = project.root / ".bare"
    project.git("init", "--quiet", "--bare", str(bare))

    def commit() -> None:
        (bare / "refs/heads/a").write_text(f"{first}\n")

    project.commit(a=b"a\n")
    project.git("push", "--quiet", str(bare), "HEAD")
    tree = project.git("--git-dir=.bare", "mktree").strip()
    first = project.git("--git-dir=.bare", "commit-tree", "-m", "x", tree).strip()
    may_look.set()
    monkeypatch.setattr("qwen_companion.journal.hook_reports.LOOK_WAIT_S", 0)
    async with at_work(project) as (place, agent):
        await agent.turn("One", {"a": b"1\n"})
        await place.until_done()
        may_look.clear()
        if who == "user":
            commit()
        await tick()
        await agent.prompt("Two")
        await tick()
        if who == "agent":
            await agent.run(commit)
        await tick()
        await agent.run(lambda: project.write("b", b"2\n"))
        await agent.report("Stop")
        may_look.set()
        await place.until({"a": "modified"}, {"b": "added"})
        note = "1 commit in the repository .bare; undo leaves it alone"
        await place.until_noted((), (note,) if who == "agent" else ())


async def test_what_is_told_apart_late_leaves_no_turn_of_several_agents_and_no_note(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qwen_companion.journal.tree_watch.open_inotify", lambda: None)
    project.commit(a=b"a\n", b=b"b\n")
    async with site(project) as place:
        agents = [await place.agent(name, name) for name in ("One", "Two", "Three")]
        await place.until_done()
        project.write("a", b"first\n")
        end = datetime.now(timezone.utc)
        await tick()
        await agents[2].run(lambda: project.write("b", b"third\n"))
        assert (await place.until_changed("a")).prompt == "One of: One / Two / Three"
        await agents[1].report("Stop")
        values: Mapping[str, Any] = {"tool_name": SHELL, "tool_call_id": "late", "duration_ms": 500}
        await agents[0].report("PostToolUse", **values, timestamp=end.isoformat())
        await place.until_turns(("One", {"a": "modified"}), ("Three", {"b": "modified"}))
        await place.until_noted((), ())


@pytest.mark.parametrize("tool", [SHELL, "write_file"])
async def test_a_turn_that_goes_on_is_recorded_after_all_it_had_was_anothers(project: Project, tool: str) -> None:
    project.commit(a=b"a\n", b=b"b\n")
    async with at_work(project, "Fix it") as (place, agent):
        await place.until_watched(project)
        await place.until_done()
        start = ms()
        await tick()
        project.write("a", b"of the chat\n")
        await place.until_turns(("Fix it", {"a": "modified"}))
        place.front.take_chat(chat_of(project, "1", "Told late", start=start, tools=(("1", "edit"),)))
        place.front.take_chat(chat_of(project))
        await place.until_turns(("Told late", {"a": "modified"}))
        if tool == SHELL:
            await agent.run(lambda: project.write("b", b"agent\n"))
        else:
            await agent.edit("b", b"agent\n")
        await place.when(lambda: sorted(map(str, place.kinds())) == ["{'a': 'modified'}", "{'b': 'modified'}"])


async def test_what_a_command_did_before_the_user_asks_for_changes_since_the_commit_is_its(project: Project) -> None:
    project.commit(a=b"a\n")
    async with at_work(project, "Fix it") as (place, agent):
        await place.until_done()
        call = await agent.begin(SHELL, command="...")
        project.write("a", b"agent\n")
        scope = ChangeScope(str(project.root), "commit", None, None)
        files = (await place.ask(lambda number: JournalFiles(number, scope))).files or ()
        assert [os.path.basename(file.path) for file in files] == ["a"]
        await agent.done(call)
        await place.until({"a": "modified"})


@pytest.mark.parametrize("marked", [True, False])
async def test_what_a_process_of_a_turn_writes_after_its_end_is_its_by_the_mark_of_the_cli(
    project: Project, marked: bool
) -> None:
    project.commit(a=b"a\n", b=b"b\n")
    os.mkfifo(project.root / ".git/go")
    marks = {"QWEN_CODE_SESSION_ID": "s", "QWEN_CODE_PROMPT_ID": "s########1"} if marked else {}
    async with site(project) as place:
        agent = await place.agent()
        await agent.report("UserPromptSubmit", prompt="Serve it", prompt_id="s########1")
        await place.until_watched(project)
        call = await agent.begin(SHELL, command="...")
        script = "read x < .git/go; echo background > b; echo > .git/go; exec sleep 1000"
        process = subprocess.Popen(["sh", "-c", script], cwd=project.root, env={**os.environ, **marks})
        try:
            await agent.done(call)
            await agent.report("Stop")
            await place.until_done()
            await to_thread.run_sync((project.root / ".git/go").write_text, "\n")
            await to_thread.run_sync((project.root / ".git/go").read_text)
            if marked:
                (turn,) = await place.until({"b": "modified"})
                assert (turn.prompt, turn.notes, turn.end is None) == ("Serve it", (), False)
        finally:
            process.kill()
            process.wait(TIMEOUT_S)
        await place.until_unwatched(project)
        project.write("a", b"user\n")
        await agent.prompt("Go on")
        await place.until_done()
        assert place.kinds() == ([{"b": "modified"}] if marked else [])


async def test_two_agents_and_the_user_at_once(project: Project) -> None:
    project.commit(a=b"a\n", b=b"b\n", c=b"c\n", d=b"d\n")
    async with site(project) as place:
        first, second = await place.agent("One", "first"), await place.agent("Two", "second")
        command = await first.begin(SHELL, command="...")
        edit = await second.begin("edit", file_path=str(project.root / "b"))
        project.write("a", b"first\n")
        project.write("b", b"second\n")
        # The user saves while both are at work.
        place.write("c", b"user\n")
        await first.done(command)
        await second.done(edit)
        await first.report("Stop")
        await second.report("Stop")
        one, two = await place.until({"a": "modified"}, {"b": "modified"})
        assert (one.prompt, two.prompt, one.notes) == ("One", "Two", ())
        # Two commands of one process cannot be told apart.
        await first.prompt("Three")
        await second.prompt("Four")
        calls = [await first.begin(SHELL, command="..."), await second.begin(SHELL, command="...")]
        project.write("d", b"somebody\n")
        await first.done(calls[0])
        await second.done(calls[1])
        await second.edit("c", b"second\n")
        shared = (await place.until(*({name: "modified"} if name else {} for name in ("a", "b", "", "c", "d"))))[-1]
        await place.until_noted((), (), (SHARED,), (SHARED,), ())
        assert (shared.prompt, shared.client) == ("One of: Three / Four", "Qwen Code 0.24.4")
        reply = await place.ask(lambda number: JournalOrigins(number, str(project.root / "d")))
        assert [origin.turn for origin in reply.origins or ()] == [shared.id]


async def test_what_an_editor_keeps_beside_a_file_is_in_no_turn_of_two_agents(project: Project) -> None:
    project.commit(a=b"a\n", b=b"b\n")
    async with site(project) as place:
        agents = await place.agent("One", "first"), await place.agent("Two", "second")
        calls = [await agent.begin(SHELL, command="...") for agent in agents]
        project.write("#a#", b"user\n")
        for agent, call in zip(agents, calls, strict=True):
            await agent.done(call)
            await agent.report("Stop")
        await agents[0].turn("Three", {"b": b"first\n"})
        await place.until_turns(("Three", {"b": "modified"}))


async def test_a_turn_of_two_agents_in_a_record_that_is_begun_anew_is_no_other_turn(project: Project) -> None:
    project.commit(a=b"a\n", b=b"b\n", c=b"c\n")
    async with site(project) as place:
        agents = await place.agent("One", "first"), await place.agent("Two", "second")

        async def write(name: str) -> None:
            calls = [await agent.begin(SHELL, command="...") for agent in agents]
            project.write(name, b"somebody\n")
            for agent, call in zip(agents, calls, strict=True):
                await agent.done(call)

        await write("a")
        assert (await place.until_changed("a")).prompt == "One of: One / Two"
        (project.home / "state").rename(project.home / "removed")
        await agents[0].prompt("Three")
        await agents[1].prompt("Four")
        await (await place.agent("Five", "third")).edit("b", b"third\n")
        assert (await place.until_changed("b")).prompt == "Five"
        await write("c")
        assert (await place.until_changed("c")).prompt == "One of: Three / Four"


class Shells:
    """Two agents with hooks, each with a shell for the commands that it runs."""

    def __init__(self, place: Site, *clis: SilentCli) -> None:
        self._project = place.project
        self._clis = clis
        self.agents = [Agent(place.front, place.project, str(cli.process.pid), cli.process.pid) for cli in clis]

    async def start(self, number: int, command: str) -> dict[str, Any]:
        """Have an agent run `command` in a process of its own, in which `wait NAME` does nothing until `go` of NAME."""
        call = await self.agents[number].begin(SHELL, command="...")
        script = f"wait() {{ read x < .git/$1; }}; echo > .git/ready; {command}\n"
        self._clis[number].type_quietly(f"sh {self._project.write(f'.git/{number}.sh', script.encode())}")
        await to_thread.run_sync((self._project.root / ".git/ready").read_text)
        return call

    def make(self, *names: str) -> None:
        for name in ("ready", *names):
            os.mkfifo(self._project.root / ".git" / name)

    async def go(self, name: str) -> None:
        await to_thread.run_sync((self._project.root / ".git" / name).write_text, "\n")


@pytest.fixture
def looks_at_processes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the word "look" for each look at processes that is done."""
    done: list[str] = []
    look = Activity.look

    def look_and_tell(activity: Activity, probes: Iterable[Probe | None]) -> dict[Probe, int | None]:
        try:
            return look(activity, probes)
        finally:
            done.append("look")

    monkeypatch.setattr(Activity, "look", look_and_tell)
    return done


async def test_what_two_agents_commands_write_at_once_is_told_apart_by_their_processes(
    project: Project, looks_at_processes: list[str]
) -> None:
    project.commit(a=b"a\n", b=b"b\n")
    with SilentCli(project.root) as one, SilentCli(project.root) as two:
        async with site(project) as place:
            shells = Shells(place, one, two)
            shells.make("first", "second", "third", "open", "end")
            for agent in shells.agents:
                await agent.prompt("Build it")
            await place.until_watched(project)
            works = "wait first; mkdir new; echo 1 > new/one; mv a moved; while ! [ -e .git/stop ]; do :; done"
            calls = [
                await shells.start(0, f"{works}; wait third"),
                await shells.start(1, "wait second; exec 3> c; echo 1 >&3; wait open; rm b; wait end"),
            ]
            await until_more(looks_at_processes, "look", len(looks_at_processes) + 8)
            # The other one sleeps.
            await shells.go("first")
            (turn,) = await place.until({"one": "added", "moved": "renamed"})
            assert turn.notes == ()
            # The other one works, and has not the file open.
            await shells.go("second")
            turns = await place.until({"one": "added", "moved": "renamed"}, {"c": "added"})
            assert [turn.notes for turn in turns] == [(), ()]
            # The other one works, and either may have done it.
            await shells.go("open")
            await place.until({"one": "added", "moved": "renamed"}, {"c": "added"}, {"b": "deleted"})
            await place.until_noted((SHARED,), (SHARED,), ())
            for agent, call in zip(shells.agents, calls, strict=True):
                await agent.done(call)


async def test_what_changes_while_all_turns_are_told_is_told_too(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit(a=b"a\n")
    is_read, go_on = anyio.Event(), threading.Event()
    summary = Answers.summary

    def summary_of_then(answers: Answers, number: int) -> Summary | None:
        monkeypatch.setattr(Answers, "summary", summary)
        found = summary(answers, number)
        anyio.from_thread.run_sync(is_read.set)
        go_on.wait(TIMEOUT_S)
        return found

    async with at_work(project, "Fix it") as (place, agent):
        await agent.edit("a", b"agent\n")
        await place.until({"a": "modified"})
        place.told.clear()
        monkeypatch.setattr(Answers, "summary", summary_of_then)
        place.say(JournalWatch(on=True))
        with anyio.fail_after(TIMEOUT_S):
            await is_read.wait()
        await agent.edit("b", b"agent\n")
        # After all that was to be recorded.
        await place.until_done()
        go_on.set()
        await place.until_told(TurnChanges)
        await place.until({"a": "modified", "b": "added"})


async def test_requests_about_a_turn(project: Project) -> None:
    project.commit(a=b"1\n2\n")
    path, root = str(project.root / "a"), str(project.root)
    async with at_work(project) as (place, agent):
        call = await agent.begin("edit", file_path=path)
        busy = await place.ask(lambda n: JournalBusy(n, (path, f"{root}/b"), wait=False))
        assert [(each[0], each[2]) for each in busy.busy or ()] == [(path, "edit")]
        project.write("a", b"1\nagent\n")
        await agent.done(call)
        free = await place.ask(lambda n: JournalBusy(n, (path,), wait=True))
        assert free.busy == []
        (turn,) = await place.until({"a": "modified"})
        assert turn.prompt == ""
        texts, missing = await place.texts(ChangeScope(root, "turn", turn.id, None), path, f"{root}/b")
        assert missing.error
        sides = [(side.data, side.permissions) for side in (texts.before, texts.after) if side is not None]
        assert sides == [(b"1\n2\n", 0o644), (b"1\nagent\n", 0o644)]
        if sys.platform == "linux":
            assert texts.plain
            os.setxattr(path, "user.note", b"mine")
            (texts,) = await place.texts(ChangeScope(root, "turn", turn.id, None), path)
            assert not texts.plain
        spans = await place.ask(lambda n: JournalSpans(n, path))
        assert [span[:3] for span in spans.spans or ()] == [(2, 1, turn.id)]
        place.say(JournalSeen(turn.id, None, (), seen=True))
        await until(lambda: place.files[turn.id]["a"].seen)
        reply = await place.ask(lambda n: JournalFiles(n, ChangeScope(root, "look", None, None)))
        assert reply.files == []
        for wrong in (ChangeScope(root, "turn", "other-1", None), ChangeScope("/", "all", None, None)):
            reply = await place.ask(lambda n, wrong=wrong: JournalTexts(n, wrong, (WantedFile(path),)))
            assert reply.error
        assert (await place.ask(lambda n: JournalSpans(n, "/elsewhere"))).spans == ()
        await agent.report("Stop")
        await place.until_ended(turn.id)
        assert (await place.ask(lambda n: JournalPrune(n, root, (turn.id,)))).sizes == []
        await place.until()


async def test_the_turns_of_another_process_are_told_and_go_on(project: Project) -> None:
    project.commit(a=b"a\n", b=b"b\n")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        async with site(project) as place:
            agent = Agent(place.front, project, pid=process.pid)
            await agent.prompt("Fix it")
            await agent.edit("a", b"agent\n")
            await place.until({"a": "modified"})
        project.write("b", b"nobody looked\n")
        async with site(project) as place:
            (turn,) = await place.until({"a": "modified", "b": "modified"})
            agent = Agent(place.front, project, pid=process.pid)
            await agent.edit("a", b"more\n")
            project.write("c", b"c\n")
            process.kill()
            process.wait(TIMEOUT_S)
            await place.until({"a": "modified", "b": "modified", "c": "added"})
            await place.until_ended(turn.id)


async def test_a_cli_without_hooks_has_turns_by_what_it_writes(
    project: Project, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qwen_companion.journal.disk_watch.QUIET_S", 0.5)
    typed = [0]

    # The system's time changes with what is typed every 8 seconds only.
    def typed_at(_: int) -> int:
        return typed[0]

    monkeypatch.setattr("qwen_companion.journal.sites.last_input", typed_at)
    project.commit(a=b"a\n", b=b"b\n", c=b"c\n", d=b"d\n")
    project.write("e/old", b"old\n")
    project.write("d", b"before it came\n")
    async with site(project) as place:
        with SilentCli(project.root) as cli:
            place.front.silent.set_sessions([cli.state])
            await place.until_watched(project)
            # What is there until then is not its.
            await until_more(calls, "scan", 0)
            # Nobody's: it is doing nothing.
            project.write("c", b"by another program of the user's\n")
            await until_more(calls, "scan found", 0)
            cli.type("echo agent > a; mkdir new; echo n > new/file; rm e/old")
            changes = {"a": "modified", "file": "added", "old": "deleted"}
            (turn,) = await place.until(changes)
            assert (turn.source, turn.client, turn.prompt, turn.cli) == ("disk", "Gemini CLI 0.61.0", "", "gemini")
            assert place.files[turn.id]["a"].writers == (("disk", None),)
            # The user's, who saves in Emacs while it is at work.
            for name in ("go", "next"):
                os.mkfifo(project.root / ".git" / name)
            cli.type("echo again >> new/file", "read _ <.git/go; echo more > more", "read _ <.git/next; echo next > a")
            place.write("b", b"user\n")
            await place.until_size(turn.id, "file", 2)
            assert "b" not in place.files[turn.id]
            await place.until_ended(turn.id)
            # It goes on by itself, until it is typed to.
            project.write(".git/go", b"")
            await place.until({**changes, "more": "added"})
            typed[0] = int(time.time() * 1000) + 60_000
            project.write(".git/next", b"")
            _, second = await place.until({**changes, "more": "added"}, {"a": "modified"})
            assert place.turns[turn.id].end is not None
            assert await place.before(second, "a") == b"agent\n"
        place.front.silent.set_sessions([], ["gemini"])
        await place.until_ended(second.id)


async def test_silent_clis_that_connect_together_are_taken_together(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    async def set_silent(_: Journal, sessions: Sequence[KnownSession], arriving: Sequence[KnownSession]) -> None:
        assert not arriving
        taken.append(len(sessions))

    monkeypatch.setattr(Journal, "set_silent", set_silent)
    project.commit(a=b"a\n")
    async with site(project) as place:
        for number in range(100):
            peer = Peer(os.getpid(), str(number), str(project.root), "gemini", ())
            place.front.silent.set_sessions([SessionState(KnownSession(str(number), "", "", "", peer), streaming=True)])
        await until(lambda: 100 in taken)
        await anyio.wait_all_tasks_blocked()
        assert len(taken) < 5


async def test_a_cli_that_has_done_all_before_the_disk_is_heard_of_has_written_it(
    project: Project, calls: list[str], cli: SilentCli
) -> None:
    project.commit(a=b"a\n")
    async with watching(project, calls, cli) as place:
        cli.type_quietly("echo agent > a")
        # Nothing is heard meanwhile: this is the event loop.
        cli.wait_until_idle()
        (turn,) = await place.until({"a": "modified"})
        assert turn.client == "Gemini CLI 0.61.0"


async def test_of_a_cli_that_never_calls_hooks_nobody_waits_for_one(
    project: Project, calls: list[str], cli: SilentCli
) -> None:
    project.commit(a=b"a\n")
    with SilentCli(project.root, "qwen") as qwen:
        async with site(project, silence_s=math.inf) as place:
            place.front.silent.set_sessions([qwen.state])
            place.front.silent.set_sessions([cli.state])
            await place.until_watched(project)
            await until_more(calls, "scan", 0)
            cli.type("echo agent > a")
            (turn,) = await place.until({"a": "modified"})
            assert (turn.client, turn.notes) == ("Gemini CLI 0.61.0", ())


async def test_a_cli_that_goes_before_it_is_sure_that_it_calls_no_hooks_has_its_turn(project: Project) -> None:
    """Changes before the first look at it count too, if there was an earlier look."""
    project.commit(a=b"a\n", b=b"b\n", c=b"c\n")
    async with site(project, silence_s=math.inf) as place:
        await (await place.agent()).turn("Fix it", {"a": b"first\n"})
        (turn,) = await place.until({"a": "modified"})
        await place.until_ended(turn.id)
        await place.until_unwatched(project)
        project.write("b", b"by the user, before it came\n")
        with SilentCli(project.root, "qwen") as cli:
            cli.type_quietly("sleep 0.1; echo agent > c")
            cli.wait_until_idle()
            place.front.silent.set_sessions([cli.state])
            await anyio.wait_all_tasks_blocked()
            place.front.silent.set_sessions([], [cli.state.session.id])
            turns = await place.until({"a": "modified"}, {"c": "modified"})
            assert (turns[1].source, turns[1].client) == ("disk", "Qwen Code 0.61.0")
            await place.until_ended(turns[1].id)


async def test_what_a_cli_that_calls_hooks_late_found_is_not_its(project: Project) -> None:
    project.commit(a=b"a\n", c=b"c\n")
    async with site(project, silence_s=math.inf) as place:
        with SilentCli(project.root, "qwen") as cli:
            agent = Agent(place.front, project, pid=cli.process.pid)
            place.front.silent.set_sessions([cli.state])
            await anyio.wait_all_tasks_blocked()
            project.write("c", b"by the user, while it starts\n")
            place.front.silent.set_sessions([replace(cli.state, state=CliState(activity="idle"))])
            await agent.turn("Fix it", {"a": b"agent\n"})
            (turn,) = await place.until({"a": "modified"})
            await place.until_ended(turn.id)


def test_when_a_terminal_was_typed_to_is_known(tmp_path: Path) -> None:
    with SilentCli(tmp_path) as cli:
        cli.typed_at(1000.0)
        assert last_input(cli.process.pid) == 1_000_000


def test_a_process_has_acted_between_two_samples_that_differ(tmp_path: Path) -> None:
    with SilentCli(tmp_path) as cli:
        probe = Probe(cli.process.pid)
        activity = Activity()
        activity.sample([probe])
        start = time.time()
        cli.type_quietly("echo agent > a")
        cli.wait_until_idle()
        activity.sample([probe])
        done = time.time()
        assert activity.may_have_acted(probe, start, done)
        later = time.time()
        activity.sample([probe])
        assert not activity.may_have_acted(probe, done, later)
        # Nobody knows of what was not looked at, or not yet.
        assert activity.may_have_acted(probe, start - 3600, done)
        activity.sample([])
        assert activity.may_have_acted(probe, start, done)


async def test_what_a_cli_without_hooks_writes_just_before_it_ends_is_recorded(
    project: Project, calls: list[str], cli: SilentCli
) -> None:
    project.commit(a=b"a\n")
    async with watching(project, calls, cli) as place:
        project.write("a", b"last\n")
        place.front.silent.set_sessions([], [cli.state.session.id])
        (turn,) = await place.until({"a": "modified"})
        await place.until_ended(turn.id)


async def test_what_a_look_finds_after_the_end_of_a_cli_without_hooks_is_its(
    project: Project, calls: list[str], cli: SilentCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look has begun before, and asks only then who was at work."""
    project.commit(a=b"a\n")
    found, is_gone = threading.Event(), threading.Event()
    scan = Record.scan

    def scan_slowly(record: Record, choose: Chooser, skip: Callable[[bytes], bool]) -> bool:
        def choose_later(paths: Sequence[bytes]) -> Sequence[Cause]:
            if paths:
                found.set()
                is_gone.wait(TIMEOUT_S)
            return choose(paths)

        return scan(record, choose_later, skip)

    monkeypatch.setattr(Record, "scan", scan_slowly)
    async with watching(project, calls, cli) as place:
        cli.type_quietly("echo last > a")
        await to_thread.run_sync(found.wait, TIMEOUT_S)
        place.front.silent.set_sessions([], [cli.state.session.id])
        await anyio.wait_all_tasks_blocked()
        is_gone.set()
        (turn,) = await place.until({"a": "modified"})
        await place.until_ended(turn.id)


async def test_a_cli_without_hooks_that_ends_in_its_turn_is_looked_at_once(
    project: Project, calls: list[str], cli: SilentCli
) -> None:
    project.commit(a=b"a\n")
    async with watching(project, calls, cli) as place:
        cli.type("echo agent > a")
        (turn,) = await place.until({"a": "modified"})
        await cli.until_idle()
        before = calls.count("scan")
        place.front.silent.set_sessions([], [cli.state.session.id])
        await place.until_ended(turn.id)
        # After all that was to be done.
        await place.until_done()
        assert calls.count("scan") == before + 1


async def test_a_watch_without_news_tells_nothing(tmp_path: Path) -> None:
    told: list[Collection[bytes] | None] = []
    watch = TreeWatch(told.append)
    try:
        await watch.cover([os.fsencode(tmp_path)])
        assert not watch.read()
        assert told == []
        (tmp_path / "a").touch()
        assert watch.read()
        assert told == [{os.fsencode(tmp_path / "a")}]
    finally:
        watch.close()


async def test_the_hooks_of_one_cli_and_the_writes_of_another_are_told_apart(
    project: Project, calls: list[str]
) -> None:
    project.commit(a=b"a\n", b=b"b\n", c=b"c\n")
    with SilentCli(project.root) as cli, SilentCli(project.root) as hooked:
        async with site(project) as place:
            agent = Agent(place.front, project, pid=hooked.process.pid)
            place.front.silent.set_sessions([cli.state])
            await place.until_watched(project)
            await agent.prompt("Fix it")
            await until_begun(calls)
            before = calls.count("scan")
            await agent.edit("a", b"hooked\n")
            await place.until({"a": "modified"})
            # What is written while the files are looked at for that edit is nobody's that can be known.
            await until_more(calls, "scan", before)
            # The one thinks and the other writes, which is seen before the turn ends.
            cli.type("echo silent > b")
            await place.until({"a": "modified"}, {"b": "modified"})
            await cli.until_idle()
            # A process that it has left in the background writes, and goes on working until that has been seen.
            # Without a pause: on a busy machine it might not run again before the files are looked at.
            hooked.type_quietly("echo background > c; while :; do echo .; done > /dev/null")
            one, two = await place.until({"a": "modified", "c": "modified"}, {"b": "modified"})
            assert (one.prompt, one.end, two.source) == ("Fix it", None, "disk")
            assert one.notes == two.notes == ()


async def test_what_a_long_command_writes_is_seen_while_it_runs(project: Project) -> None:
    project.commit(a=b"a\n", b=b"b\n")
    async with at_work(project, "Build it") as (place, agent):
        call = await agent.begin(SHELL, command="make")
        await place.until_watched(project)
        project.write("a", b"made\n")
        (turn,) = await place.until({"a": "modified"})
        assert place.files[turn.id]["a"].writers == ((SHELL, None),)
        assert turn.end is None
        await agent.done(call)


async def test_a_look_that_could_not_be_recorded_is_repeated(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although nothing happens on the disk any more."""
    monkeypatch.setattr("qwen_companion.journal.disk_watch.QUIET_S", 0.05)
    project.commit(a=b"a\n")
    async with at_work(project, "Build it") as (place, agent):
        await agent.begin(SHELL, command="make")
        await place.until_watched(project)
        failures = [StoreError("disk full")] * 3

        def fail() -> None:
            if failures:
                raise failures.pop()

        before_each_look(monkeypatch, fail)
        project.write("a", b"made\n")
        (turn,) = await place.until({"a": "modified"})
        assert (turn.end, failures) == (None, [])
        assert [notice.text for notice in place.told_of(Notice)] == [
            f"Changes in {project.root} are not recorded: disk full"
        ]


async def test_a_chat_has_turns_by_what_the_daemon_tells(project: Project, calls: list[str]) -> None:
    project.commit(a=b"a\n", b=b"b\n", c=b"c\n")
    idle = chat_of(project)
    async with site(project) as place:
        place.front.take_chat(idle)
        working = replace(idle, turn="turn 1", prompt="Fix it\nplease")
        place.front.take_chat(working)
        await until_begun(calls)
        place.front.take_chat(replace(working, tools=(("1", "edit"),)))
        project.write("a", b"agent\n")
        place.front.take_chat(replace(working, used=(Usage("m", 100, 5, 60), Usage("m", 200, 7))))
        (turn,) = await place.until({"a": "modified"})
        assert (turn.source, turn.prompt, turn.client, turn.session) == ("chat", "Fix it", "Qwen Code", "chat")
        # It depends on what comes first, the news of the disk or of the daemon.
        assert place.files[turn.id]["a"].writers in ((("edit", None),), (("disk", None),))
        place.front.take_chat(replace(idle, used=(Usage("n", 1, 1),)))
        await place.until_ended(turn.id)
        assert place.kinds() == [{"a": "modified"}]
        (ended,) = place.turns.values()
        assert ended.usage == (Usage("m", 300, 12, 60), Usage("n", 1, 1))
        # One whose hooks tell more is not told twice.
        agent = Agent(place.front, project, "chat")
        place.front.take_chat(replace(working, turn="turn 2", prompt="Again"))
        await agent.prompt("Again")
        await agent.edit("c", b"agent\n")
        place.front.take_chat(replace(working, turn="turn 2", prompt="Again", tools=(("2", "edit"),)))
        await agent.report("Stop")
        _, second = await place.until({"a": "modified"}, {"c": "modified"})
        assert (second.source, second.prompt) == ("hooks", "Again")


async def test_what_the_agent_of_a_chat_writes_is_the_chats_though_its_process_calls_no_hooks(
    project: Project, calls: list[str]
) -> None:
    project.commit(a=b"a\n")
    with ChatAgent(project, "qwen") as agent:
        async with watching(project, calls, agent) as place:
            place.front.take_chat(chat_of(project, "turn 1", "Fix it"))
            await until_begun(calls)
            # None of its tools runs, as far as anybody knows: the connection to the daemon is lost.
            agent.run("echo agent > a")
            (turn,) = await place.until({"a": "modified"})
            assert (turn.source, turn.prompt) == ("chat", "Fix it")


class HeldLooks:
    """From `hold` to `go_on`, looks at files wait when they begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._begun, self._may_go_on = threading.Event(), threading.Event()
        self.hold, self.go_on = self._may_go_on.clear, self._may_go_on.set
        self.go_on()
        before_each_look(monkeypatch, self._wait)

    def _wait(self) -> None:
        if not self._may_go_on.is_set():
            self._begun.set()
            self._may_go_on.wait(TIMEOUT_S)

    async def until_begun(self) -> None:
        """Wait until a look waits."""
        await to_thread.run_sync(self._begun.wait, TIMEOUT_S)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldLooks]:
    looks = HeldLooks(monkeypatch)
    yield looks
    looks.go_on()


def ms() -> int:
    """Return the time in ms by the clock of files: those written from now on are no older."""
    return clock_ns() // 1_000_000


@pytest.mark.parametrize("live", [False, True])
async def test_what_a_look_finds_at_the_end_of_a_chat_is_the_chats_and_not_that_of_another_process(
    project: Project, calls: list[str], looks: HeldLooks, live: bool, agent: ChatAgent, cli: SilentCli
) -> None:
    """While the connection to the daemon was lost: the tool and its end are told together, or with the turn's."""
    project.commit(a=b"a\n")
    working = chat_of(project, "turn 1", "Fix it")
    async with site(project) as place:
        place.front.silent.set_sessions([agent.state, *([cli.state] if live else [])])
        await place.until_watched(project)
        place.front.take_chat(replace(working, turn=None, prompt=""))
        place.front.take_chat(working)
        await until_begun(calls)
        if live:
            # It draws, and writes nothing.
            cli.type("true")
        looks.hold()
        agent.run("echo agent > a")
        await looks.until_begun()
        place.front.take_chat(replace(working, tools=(("1", "edit"),)))
        place.front.take_chat(working)
        if not live:
            place.front.take_chat(chat_of(project))
        await anyio.wait_all_tasks_blocked()
        looks.go_on()
        turn = await place.until_changed("a")
        # The other one, which tells nobody of its work, may have done it.
        assert (turn.source, turn.prompt) == ("chat", "Fix it") or (live and turn.prompt.startswith("One of: "))


async def test_a_chat_that_is_told_of_late_has_what_was_written_since_its_prompt(
    project: Project, calls: list[str], agent: ChatAgent
) -> None:
    """The connection to the daemon was lost when another client sent the prompts."""
    project.commit(a=b"a\n", b=b"b\n", c=b"c\n", d=b"d\n")
    async with watching(project, calls, agent) as place:
        place.front.take_chat(chat_of(project))
        agent.run("echo before > d")
        await place.until({"d": "modified"})
        first = ms()
        await tick()
        agent.run("echo agent > a; echo agent > c")
        await place.until({"d": "modified", "a": "modified", "c": "modified"})
        place.write("c", b"by the user\n")
        await place.until_done()
        second = ms()
        await tick()
        agent.run("echo agent > b")
        await place.until({"d": "modified", "a": "modified", "c": "modified", "b": "modified"})
        for work in (
            chat_of(project, "1", "First", start=first, tools=(("1", "edit"),)),
            chat_of(project, "1", "First", start=first),
            chat_of(project),
            chat_of(project, "2", "Second", start=second),
            chat_of(project),
        ):
            place.front.take_chat(work)
        told = (
            ("", {"d": "modified"}),
            ("First", {"a": "modified", "c": "modified"}),
            ("Second", {"b": "modified"}),
        )
        _, *known = await place.until_turns(*told)
        for turn in known:
            await place.until_ended(turn.id)
        # What the process writes now is of no prompt that is known.
        agent.run("echo background > b")
        await place.until_turns(*told, ("", {"b": "modified"}))


async def test_a_turn_of_a_chat_that_is_taken_late_has_what_was_written_since_it_was_told(
    project: Project, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look at the end of the turn before it comes as late."""
    project.commit(a=b"a\n")
    async with site(project) as place:
        place.front.take_chat(chat_of(project, "1", "First"))
        await until_begun(calls)
        monkeypatch.setattr("qwen_companion.journal.journal.now_ms", lambda: ms() + 1000)
        place.front.take_chat(chat_of(project))
        place.front.take_chat(chat_of(project, "2", "Second"))
        now = clock_ns()
        while clock_ns() <= now + 20_000_000:
            # Without giving the journal the time to take it.
            pass
        project.write("a", b"agent\n")
        await place.until_turns(("Second", {"a": "modified"}))


async def test_a_chat_that_is_told_of_late_has_what_nobody_has_looked_at(
    project: Project, calls: list[str], looks: HeldLooks, agent: ChatAgent
) -> None:
    project.commit(a=b"a\n")
    async with watching(project, calls, agent) as place:
        start = ms()
        await tick()
        looks.hold()
        agent.run("echo agent > a")
        await looks.until_begun()
        place.front.take_chat(chat_of(project, "1", "Fix it", start=start))
        await anyio.wait_all_tasks_blocked()
        looks.go_on()
        (turn,) = await place.until_turns(("Fix it", {"a": "modified"}))
        assert turn.notes == ()


async def test_what_a_chat_writes_while_nobody_tells_of_it_is_told_from_what_a_cli_writes(
    project: Project, calls: list[str], agent: ChatAgent, cli: SilentCli
) -> None:
    project.commit(a=b"a\n", b=b"b\n")
    working = chat_of(project, "1", "Fix it", is_lost=True)
    async with site(project) as place:
        place.front.silent.set_sessions([agent.state, cli.state])
        await place.until_watched(project)
        place.front.take_chat(working)
        await until_begun(calls)
        # One draws and the other writes.
        cli.type("true")
        agent.run(f"echo agent > a; {DRAW}")
        assert (await place.until_changed("a")).prompt in ("Fix it", "One of: Fix it / Gemini CLI 0.61.0")
        await cli.until_idle()
        await agent.until_idle()
        cli.type("echo cli > b")
        # What the agent has done a moment before may have been a write of the same file.
        assert (await place.until_changed("b")).client in ("Gemini CLI 0.61.0", "Qwen Code or Gemini CLI 0.61.0")


@pytest.mark.parametrize("agents", [0, 1, 2])
async def test_what_the_agent_of_a_lost_chat_may_have_written_is_not_given_to_a_cli_alone(
    project: Project, calls: list[str], agents: int, agent: ChatAgent, cli: SilentCli
) -> None:
    """Of none of its tools is told, and of several agents nobody knows which one is that of the chat."""
    project.commit(a=b"a\n")
    with ChatAgent(project) as other:
        async with site(project) as place:
            known = [
                replace(each.state, session=replace(each.state.session, id=str(each.process.pid)))
                for each in (agent, other)[:agents]
            ]
            place.front.silent.set_sessions([*known, cli.state])
            await place.until_watched(project)
            place.front.take_chat(chat_of(project, "1", "Fix it", is_lost=True))
            await until_begun(calls)
            # It goes on when the agent, which has written, does nothing any more.
            cli.type("true")
            agent.run("echo agent > a")
            assert (await place.until_changed("a")).client in ("Qwen Code", "Qwen Code or Gemini CLI 0.61.0")


@pytest.mark.parametrize("newcomer", ["cli", "chat"])
async def test_what_was_written_just_before_another_agent_came_is_that_of_the_turn_that_goes_on(
    project: Project, calls: list[str], newcomer: str, cli: SilentCli
) -> None:
    project.commit(a=b"a\n")
    working = chat_of(project, "turn 1", "Fix it")
    async with site(project) as place:
        place.front.take_chat(working)
        await until_begun(calls)
        project.write("a", b"agent\n")
        before = calls.count("scan")
        if newcomer == "cli":
            place.front.silent.set_sessions([cli.state])
        else:
            place.front.take_chat(ChatWork("another", str(project.root), "Qwen Code", None, ""))
        await until_more(calls, "scan", before)
        (turn,) = await place.until({"a": "modified"})
        assert turn.prompt == "Fix it"


@pytest.mark.parametrize("told_by", ["hooks", "daemon"])
async def test_what_is_written_after_the_end_of_a_turn_is_not_the_agents(
    project: Project, calls: list[str], looks: HeldLooks, told_by: str
) -> None:
    """The look that finds it comes later, as others are before it."""
    project.commit(a=b"a\n", b=b"b\n", c=b"c\n")
    async with site(project) as place:
        agent = Agent(place.front, project)
        working = chat_of(project, "turn 1", "Fix it")
        if told_by == "hooks":
            await agent.prompt("Fix it")
        else:
            place.front.take_chat(working)
        await until_begun(calls)
        await place.until_watched(project)
        looks.hold()
        project.write("a", b"agent\n")
        await looks.until_begun()
        (project.root / "c").unlink()
        if told_by == "hooks":
            await agent.report("Stop")
        else:
            place.front.take_chat(replace(working, turn=None, prompt=""))
        end = max(ms(), agent.time) + 1
        await until(lambda: ms() > end)
        project.write("b", b"user\n")
        looks.go_on()
        (turn,) = await place.until({"a": "modified", "c": "deleted"})
        await place.until_ended(turn.id)
        assert place.kinds() == [{"a": "modified", "c": "deleted"}]


async def test_what_a_disk_whose_clock_is_ahead_tells_at_the_end_of_a_turn_is_the_agents(
    project: Project, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit(a=b"a\n")
    monkeypatch.setattr(ThisMachine, "changed_at", an_hour_ahead)
    async with site(project) as place:
        agent = Agent(place.front, project)
        await agent.prompt("Fix it")
        await until_begun(calls)
        project.write("a", b"agent\n")
        await agent.report("Stop")
        await place.until({"a": "modified"})


@pytest.mark.parametrize("change", ["end", "cli"])
async def test_what_a_look_finds_that_began_before_the_agents_changed_is_that_of_the_turn_that_went_on(
    project: Project, calls: list[str], looks: HeldLooks, cli: SilentCli, change: str
) -> None:
    project.commit(a=b"a\n")
    async with at_work(project, "Fix it") as (place, agent):
        await until_begun(calls)
        await place.until_watched(project)
        looks.hold()
        project.write("a", b"agent\n")
        await looks.until_begun()
        if change == "end":
            await agent.report("Stop")
        else:
            place.front.silent.set_sessions([cli.state])
            await anyio.wait_all_tasks_blocked()
        looks.go_on()
        (turn,) = await place.until({"a": "modified"})
        assert turn.prompt == "Fix it"


async def test_a_file_that_the_user_hides_is_not_recorded(project: Project) -> None:
    project.commit(a=b"a\n", b=b"b\n")
    async with site(project) as place:
        hidden = VisitedFile(str(project.root / "a"), 0, "hide")
        place.front.journal.roots.set_snapshot(Snapshot((hidden,), None, None, None, None))
        await (await place.agent()).turn("Fix it", {"a": b"agent\n", "b": b"agent\n"})
        await place.until({"b": "modified"})


async def test_why_nothing_is_recorded_is_said_once(project: Project) -> None:
    project.environ = {**project.environ, "PATH": str(project.home)}
    async with at_work(project) as (place, agent):
        for _ in range(3):
            await agent.turn("Fix it", {"a": b"agent\n"})
        notice = await place.until_told(Notice)
        assert notice.text == f"Changes in {project.root} are not recorded: git is not installed"
        assert place.told_of(Notice) == [notice]


async def test_too_many_files_are_told(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.commit(a=b"a\n", b=b"b\n")
    project.write("c", b"c\n")
    monkeypatch.setattr("qwen_companion.journal.baselines.MAX_FILES", 2)
    shutil.rmtree(project.root / ".git")
    async with at_work(project, "Fix it") as (place, _):
        notice = await place.until_told(Notice)
        assert notice.text == f"Changes in {project.root} are not recorded: it has 3 files, and 2 are the limit"


async def test_turns_that_need_much_room_are_kept_until_the_user_prunes_them(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {name: os.urandom(100_000) for name in "abc"}
    for name, data in texts.items():
        project.write(name, data)
    monkeypatch.setattr("qwen_companion.journal.store.MAX_BYTES", 250_000)
    root = str(project.root)
    async with at_work(project) as (place, agent):
        for name in "abc":
            await agent.prompt("Fix it")
            await agent.edit(name, b"agent\n")
        # At once, and not when the turn has ended.
        notice = await place.until_told(Notice)
        said = f"The turns of {root} need 0 MiB, more than 512; M-x qwen-companion-journal-prune forgets the oldest"
        assert notice.text == said
        first, second, third = await place.until(*[{name: "modified"} for name in "abc"])
        assert place.told_of(Unrecorded)[-1].crowded == {root: 300_000}
        assert (await place.ask(lambda number: JournalPrune(number, "/elsewhere", ()))).error
        reply = await place.ask(lambda number: JournalPrune(number, root, ()))
        assert reply.sizes == [(first.id, 100_000), (second.id, 100_000)]
        reply = await place.ask(lambda number: JournalPrune(number, root, (first.id, third.id)))
        assert reply.sizes == [(second.id, 100_000)]
        # Never the turn that goes on.
        await place.until({"b": "modified"}, {"c": "modified"})
        assert place.told_of(Unrecorded)[-1].crowded == {}


# --- Several agents ---


@pytest.mark.parametrize("tells", [True, False])
async def test_a_model_is_told_once_a_turn_that_another_agent_works_on_its_file(project: Project, tells: bool) -> None:
    project.commit(a_txt=BEFORE, b_txt=BEFORE)
    async with site(project, replace(ON, tell_agents=tells)) as place:
        one = await place.agent("One", "one")
        assert await one.edit("a.txt", b"1\n") is None
        await place.until({"a.txt": "modified"})
        other = await place.agent("Other", "other")
        assert await other.edit("b.txt", b"1\n") is None
        told = await other.edit("a.txt", b"2\n")
        assert (f"Qwen Code 0.24.4 (process {os.getpid()}) has changed it" in (told or "")) == tells
        assert (str(project.root / "a.txt") in (told or "")) == tells
        assert await other.edit("a.txt", b"3\n") is None
        await place.until({"a.txt": "modified"}, {"a.txt": "modified", "b.txt": "modified"})
        # Their turn has ended, and the first one begins another.
        await other.report("Stop")
        assert await one.edit("a.txt", b"4\n") is None
        await other.prompt("Another")
        assert bool(await other.edit("a.txt", b"5\n")) == tells


async def test_a_model_is_told_of_a_proposal_of_another_agent_that_waits_for_its_file(project: Project) -> None:
    project.commit(a_txt=BEFORE, b_txt=BEFORE)
    (project.home / "link").symlink_to(project.root)
    async with site(project, replace(ON, tell_agents=True)) as place:
        waits = WaitingProposal("other", "Gemini CLI 0.50.0", 1, str(project.home / "link/a.txt"))
        # Its own does not count.
        place.waiting = [replace(waits, session="connected", path=str(project.root / "b.txt")), waits]
        agent = await place.agent("One")
        assert await agent.edit("b.txt", b"1\n") is None
        told = await agent.edit("a.txt", b"1\n")
        assert "Gemini CLI 0.50.0 has proposed a change of it, on which the user has not decided" in told
        assert await agent.edit("a.txt", b"2\n") is None
        place.waiting = []
        await agent.prompt("Two")
        assert await agent.edit("a.txt", b"3\n") is None


# --- Worktrees ---

BEFORE, AFTER = b"one\ntwo\n", b"one\nagent\n"


def add_worktree(project: Project, name: str = "feat") -> Path:
    """Add a worktree as Qwen Code does, which git ignores."""
    project.commit(a_txt=BEFORE)
    path = project.root / ".qwen/worktrees" / name
    project.git("worktree", "add", "--quiet", "-b", "worktree-x", str(path))
    project.write(".qwen/.gitignore", b"worktrees/\n")
    return path


def roots_of(place: Site) -> list[str]:
    return [turn.root for turn in place.turns.values()]


@pytest.mark.parametrize("ignored", [True, False])
async def test_a_cli_that_was_started_in_a_worktree_is_recorded_there(project: Project, ignored: bool) -> None:
    tree = add_worktree(project, "feat one")
    if not ignored:
        project.write(".qwen/.gitignore", b"")
    async with at_work(project, "in the tree", cwd=tree) as (place, agent):
        await agent.edit("a.txt", AFTER)
        await agent.run(lambda: (tree / "made.txt").write_bytes(b"made\n"))
        await agent.report("Stop")
        (turn,) = await place.until({"a.txt": "modified", "made.txt": "added"})
        assert turn.root == str(tree)
        assert await place.before(turn, "a.txt") == BEFORE
        reply = await place.ask(lambda number: JournalSpans(number, str(tree / "a.txt")))
        assert [(line, of) for line, _, of, _ in reply.spans or ()] == [(2, turn.id)]
        # One at work in the project itself has not made what is in the worktree.
        other = await place.agent("in the project", "other")
        await other.run(lambda: ((tree / "made.txt").write_bytes(b"by hand\n"), project.write("b.txt", b"b\n")))
        await other.report("Stop")
        await place.until({"a.txt": "modified", "made.txt": "added"}, {"b.txt": "added"})


@pytest.mark.parametrize("place_of_it", [None, "/dev/shm"])
async def test_a_worktree_that_is_a_root_itself_is_recorded_once_also_on_another_disk(
    project: Project, place_of_it: str | None
) -> None:
    tree = add_worktree(project)
    with TemporaryDirectory(dir=place_of_it) as directory:
        if place_of_it is not None:
            assert os.stat(directory).st_dev != os.stat(project.root).st_dev
            project.git("worktree", "remove", "--force", str(tree))
            tree = Path(directory) / "feat"
            project.git("worktree", "add", "--quiet", str(tree), "worktree-x")
        async with site(project) as place:
            place.front.set_roots([str(project.root), str(tree)])
            agent = await place.agent("in the tree", cwd=tree)
            await agent.edit("a.txt", AFTER)
            await agent.run(lambda: (tree / "made.txt").write_bytes(b"made\n"))
            await agent.report("Stop")
            (turn,) = await place.until({"a.txt": "modified", "made.txt": "added"})
            assert turn.root == str(tree)
            reply = await place.ask(lambda number: JournalWorktrees(number, str(project.root), str(tree)))
            found = list(reply.worktrees or ())[0]
            assert (found.path, found.files, found.conflicts) == (str(tree), 2, ())
            assert (await place.ask(lambda number: JournalMerge(number, str(tree)))).root == str(project.root)
            place.write("a.txt", AFTER, turn.id, "From feat", "merge")
            await place.until({"a.txt": "modified", "made.txt": "added"}, {"a.txt": "modified"})


async def test_a_worktree_that_git_does_not_ignore_is_part_of_the_project_of_the_cli(project: Project) -> None:
    tree = add_worktree(project)
    project.write(".qwen/.gitignore", b"")
    async with at_work(project, "Fix it") as (place, agent):
        await agent.edit(tree / "a.txt", AFTER)
        await place.until({"a.txt": "modified"})
        assert roots_of(place) == [str(project.root)]
        await agent.run(lambda: shutil.rmtree(tree))
        await place.until({"a.txt": "deleted"})


async def test_a_rule_that_comes_later_makes_git_ignore_a_worktree(project: Project) -> None:
    tree = add_worktree(project)
    project.write(".qwen/.gitignore", b"")
    async with at_work(project, "Fix it") as (place, agent):
        await agent.edit(tree / "a.txt", AFTER)
        await place.until({"a.txt": "modified"})
        project.write(".git/info/exclude", b"worktrees/\n")
        await agent.edit(tree / "new.txt", AFTER)
        await place.until({"a.txt": "modified"}, {"new.txt": "added"})
        assert sorted(roots_of(place)) == [str(project.root), str(tree)]


async def test_a_cli_that_enters_a_worktree_has_a_turn_in_each(project: Project) -> None:
    tree = add_worktree(project)
    async with at_work(project, "enter it") as (place, agent):
        await agent.edit("b.txt", b"b\n")
        await agent.edit(tree / "a.txt", AFTER)
        await agent.run(lambda: ((tree / "made.txt").write_bytes(b"made\n"), project.write("c.txt", b"c\n")))
        await agent.report("Stop")
        turns = await place.until({"b.txt": "added", "c.txt": "added"}, {"a.txt": "modified", "made.txt": "added"})
        assert {turn.root: turn.prompt for turn in turns} == {str(project.root): "enter it", str(tree): "enter it"}
        for turn in turns:
            await place.until_ended(turn.id)


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_project_below_its_repository_has_recorded_worktrees_beside_it(project: Project, is_open: bool) -> None:
    project.commit(**{"sub/a.txt": BEFORE})
    tree = add_worktree(project)
    sub = project.root / "sub"
    async with site(project) as place:
        place.front.set_roots([str(sub), str(project.root / ".qwen/worktrees"), *([str(tree)] if is_open else [])])
        agent = await place.agent("enter it", cwd=sub)
        await agent.report("PostToolUse", tool_name="enter_worktree", tool_input={"name": "feat"})
        await agent.edit(tree / "sub/a.txt", AFTER)
        await agent.edit(sub / "b.txt", b"b\n")
        await agent.run(lambda: (tree / "made.txt").write_bytes(b"made\n"))
        await agent.report("Stop")
        turns = await place.until({"b.txt": "added"}, {"a.txt": "modified", "made.txt": "added"})
        assert {turn.root: turn.prompt for turn in turns} == {str(sub): "enter it", str(tree): "enter it"}
        # One that works there may also write to the main tree.
        other = await place.agent("go home", "other", cwd=tree)
        await other.edit(sub / "c.txt", b"c\n")
        await other.report("Stop")
        await place.until({"b.txt": "added"}, {"a.txt": "modified", "made.txt": "added"}, {"c.txt": "added"})
        reply = await place.ask(lambda number: JournalMerge(number, str(tree)))
        home, made = sub / "a.txt", project.write("made.txt", b"made\n")
        home.write_bytes(AFTER)
        place.say(JournalWrote((str(home), str(made)), turns[1].id, "From feat", "merge"))
        assert (reply.error, reply.root) == (None, str(project.root))
        # Each record numbers its own turns.
        before = [{"b.txt": "added"}, {"a.txt": "modified", "made.txt": "added"}]
        found = await place.until(*before, {"made.txt": "added"}, {"c.txt": "added"}, {"a.txt": "modified"})
        assert [(turn.root, turn.source) for turn in found[2:]] == [
            (str(project.root), "merge"),
            (str(sub), "hooks"),
            (str(sub), "merge"),
        ]
        assert await place.before(found[4], "a.txt") == BEFORE


async def test_a_command_is_recorded_in_the_worktree_that_it_runs_in(project: Project) -> None:
    tree = add_worktree(project)
    async with at_work(project, "run it there") as (place, agent):
        await agent.run(lambda: (tree / "made.txt").write_bytes(b"made\n"), directory=".qwen/worktrees/feat")
        await agent.report("Stop")
        (turn,) = await place.until({"made.txt": "added"})
        assert turn.root == str(tree)


async def test_worktrees_are_listed_while_their_records_are_opened(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = add_worktree(project)
    async with at_work(project, "in the tree", cwd=tree) as (place, agent):
        await agent.edit("a.txt", AFTER)
        await place.until({"a.txt": "modified"})
    listed = threading.Event()

    def slowly(*arguments: Any) -> Record:
        assert listed.wait(TIMEOUT_S)
        return Record(*arguments)

    monkeypatch.setattr(roots, "Record", slowly)
    async with site(project) as place:
        reply = await place.ask(lambda number: JournalWorktrees(number, str(project.root), None))
        listed.set()
        assert [found.path for found in reply.worktrees or ()] == [str(project.root), str(tree)]
        await place.until({"a.txt": "modified"})


@pytest.mark.parametrize("removed", [False, True])
async def test_what_was_recorded_of_a_worktree_is_told_by_the_next_backend(project: Project, removed: bool) -> None:
    tree = add_worktree(project)
    async with at_work(project, "in the tree", cwd=tree) as (place, agent):
        await agent.edit("a.txt", AFTER)
        await agent.report("Stop")
        (turn,) = await place.until({"a.txt": "modified"})
        # Only a turn that has ended can be forgotten below.
        await place.until_ended(turn.id)
    if removed:
        project.git("worktree", "remove", "--force", str(tree))
    async with site(project) as place:
        (turn,) = await place.until({"a.txt": "modified"})
        assert turn.root == str(tree)
        (texts,) = await place.texts(ChangeScope(turn.root, "turn", turn.id, None), str(tree / "a.txt"))
        assert [side and side.data for side in (texts.before, texts.after)] == [BEFORE, AFTER]
        await place.ask(lambda number: JournalPrune(number, str(tree), (turn.id,)))
        await place.until()


@pytest.mark.parametrize("damage", ["gone", "unlinked", "pipe"])
async def test_a_damaged_worktree_does_not_stop_the_record_of_the_project(project: Project, damage: str) -> None:
    tree = add_worktree(project)
    if damage == "gone":
        project.git("worktree", "remove", "--force", str(tree))
    elif damage == "unlinked":
        (tree / ".git").write_text("gitdir: /nowhere\n")
    else:
        (project.root / ".git/worktrees/feat/gitdir").unlink()
        (project.root / ".git/worktrees/feat/gitdir").mkdir()
    async with at_work(project, "work") as (place, agent):
        await agent.edit("b.txt", b"b\n")
        await agent.report("Stop")
        await place.until({"b.txt": "added"})


async def test_a_change_that_is_merged_from_a_worktree_is_a_turn_that_can_be_undone(project: Project) -> None:
    tree = add_worktree(project)
    async with at_work(project, "in the tree", cwd=tree) as (place, agent):
        for name in ("a.txt", "made.txt"):
            await agent.edit(name, AFTER)
        await agent.report("Stop")
        (turn,) = await place.until({"a.txt": "modified", "made.txt": "added"})
        reply = await place.ask(lambda number: JournalMerge(number, str(tree)))
        assert (reply.error, reply.root) == (None, str(project.root))
        for name in ("a.txt", "made.txt"):
            place.write(name, AFTER, turn.id, "From feat", "merge")
        expected = {"a.txt": "modified", "made.txt": "added"}
        turns = {turn.root: turn for turn in await place.until(expected, expected)}
        merged = turns[str(project.root)]
        assert (merged.prompt, merged.source, merged.client) == ("From feat", "merge", "Qwen Code 0.24.4")
        assert await place.before(merged, "a.txt") == BEFORE
        place.write("a.txt", BEFORE, merged.id, "Undo", "undo")
        await place.until(expected, expected, {"a.txt": "modified"})
        assert (await place.ask(lambda number: JournalMerge(number, str(project.root)))).error


async def test_an_undo_that_is_brought_back_at_once_is_recorded(project: Project, looks: HeldLooks) -> None:
    """Emacs writes again as soon as its next call is answered, however long the record takes."""
    project.commit(a_txt=BEFORE)
    path = str(project.root / "a.txt")
    async with at_work(project, "Fix it") as (place, agent):
        await agent.edit("a.txt", AFTER)
        (turn,) = await place.until({"a.txt": "modified"})
        looks.hold()
        await agent.report("Stop")
        await looks.until_begun()

        async def bring_back() -> None:
            await place.ask(lambda number: JournalBusy(number, (path,), wait=False))
            place.write("a.txt", AFTER, turn.id, "Bring back", "bring-back")

        place.write("a.txt", BEFORE, turn.id, "Undo", "undo")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bring_back)
            await anyio.wait_all_tasks_blocked()
            looks.go_on()
        _, undo, again = await place.until(*[{"a.txt": "modified"}] * 3)
        assert (undo.undone, again.undone) == (turn.id, undo.id)


async def test_what_differs_in_a_worktree_is_told_and_merged_without_a_turn_there(project: Project) -> None:
    tree = add_worktree(project)
    (tree / "a.txt").write_bytes(AFTER)
    async with site(project) as place:
        scope = ChangeScope(str(tree), "merge", None, None)
        [file] = list((await place.ask(lambda number: JournalFiles(number, scope))).files or ())
        assert (file.path, file.kind, file.added, file.deleted) == (str(tree / "a.txt"), "modified", 1, 1)
        texts, other = await place.texts(scope, file.path, str(tree / "other"))
        assert (texts.before and texts.before.data, texts.after and texts.after.data) == (BEFORE, AFTER)
        assert other.error == "it does not differ any more"
        await place.ask(lambda number: JournalMerge(number, str(tree)))
        place.write("a.txt", AFTER, None, "From feat", "merge")
        (turn,) = await place.until({"a.txt": "modified"})
        assert (turn.root, turn.prompt, turn.source, turn.client) == (str(project.root), "From feat", "merge", "")


@pytest.mark.parametrize("kind", ["bare", "no commit"])
async def test_what_has_no_main_tree_to_merge_into_is_said(project: Project, kind: str) -> None:
    tree = add_worktree(project)
    if kind == "bare":
        project.git("config", "core.bare", "true")
        (project.root / ".git/index").unlink()
    else:
        project.git("update-ref", "-d", "HEAD")
    async with site(project) as place:
        reply = await place.ask(lambda number: JournalMerge(number, str(tree)))
        assert ("merge the branch" in (reply.error or "")) == (kind == "bare")


@pytest.fixture
def nothing_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no CLI have been typed to: the system tells that with 8 seconds more or less."""

    def last_input(_pid: int) -> int:
        return 0

    for module in ("agents", "sites"):
        monkeypatch.setattr(f"qwen_companion.journal.{module}.last_input", last_input)


@pytest.mark.usefixtures("nothing_typed")
async def test_a_change_that_was_to_be_reviewed_is_known_as_unreviewed(
    project: Project, calls: list[str], cli: SilentCli
) -> None:
    project.commit(a=b"a\n", b=b"b\n")
    async with watching(project, calls, cli) as place:
        place.unreviewed.append("b")
        cli.type("echo agent > a; echo agent > b")
        (turn,) = await place.until({"a": "modified", "b": "modified"})
        writers = {name: file.writers for name, file in place.files[turn.id].items()}
        assert writers == {"a": (("disk", None),), "b": (("unreviewed", None),)}


async def test_what_no_hook_was_answered_for_may_be_unreviewed(project: Project) -> None:
    """Both what the next backend finds of a turn that goes on, and a tool of which it hears the end only."""
    project.commit(a=b"a\n", b=b"b\n", c=b"c\n", d=b"d\n")
    async with at_work(project, "Change") as (place, agent):
        await agent.edit("a", b"agent\n")
        await place.until({"a": "modified"})
    project.write("b", b"agent\n")
    async with site(project) as place:
        place.unreviewed += ["a", "b", "c"]
        agent = await place.agent()
        call = {"tool_name": "write_file", "tool_input": {"file_path": str(project.write("c", b"agent\n"))}}
        await agent.report("PostToolUse", **call)
        await agent.edit("d", b"agent\n")
        (turn,) = await place.until(dict.fromkeys("abcd", "modified"))
        writers = {name: file.writers[0][0] for name, file in place.files[turn.id].items()}
        assert writers == {"a": "write_file", "b": "unreviewed", "c": "unreviewed", "d": "write_file"}


@pytest.mark.usefixtures("nothing_typed")
async def test_a_prompt_that_is_told_of_late_has_what_a_cli_without_hooks_has_changed_since(
    project: Project, calls: list[str], cli: SilentCli
) -> None:
    """The CLI writes its transcript a second after that on a busy machine."""
    project.commit(a=b"a\n", b=b"b\n", c=b"c\n", d=b"d\n")
    async with watching(project, calls, cli) as place:
        cli.type("echo before > a; echo before > b")
        await place.until({"a": "modified", "b": "modified"})
        await cli.until_idle()
        first = ms()
        cli.type("echo agent > b; echo agent > c")
        await place.until({"a": "modified", "b": "modified", "c": "modified"})
        await place.front.prompt_began(cli.state.session, "conversation", "First", first)
        told = ("", {"a": "modified", "b": "modified"}), ("First", {"b": "modified", "c": "modified"})
        _, turn = await place.until_turns(*told)
        assert (turn.session, turn.notes) == ("conversation", ())
        await cli.until_idle()
        # One that is told of in time has what comes after it, and nothing else.
        await place.front.prompt_began(cli.state.session, "conversation", "Second", ms())
        await place.until_done()
        cli.type("echo agent > d")
        await place.until_turns(*told, ("Second", {"d": "modified"}))


@pytest.mark.usefixtures("nothing_typed")
@pytest.mark.parametrize("silence_s", [0, math.inf], ids=["silent", "arriving"])
@pytest.mark.parametrize("told", ["before", "between", "unseen", "after"])
async def test_a_prompt_has_what_a_cli_without_hooks_writes_by_way_of_another_file(
    project: Project, calls: list[str], told: str, silence_s: float
) -> None:
    """The prompt is told of before the CLI writes, between its steps, seen or not, or after them."""
    project.commit(a=b"a\n")
    with SilentCli(project.root) as cli:
        async with site(project, silence_s=silence_s) as place:
            session = cli.state.session
            assert session.peer is not None
            session = replace(session, peer=replace(session.peer, family="qwen"))
            place.front.silent.set_sessions([replace(cli.state, session=session)])
            await until_more(calls, "scan", 0)
            if silence_s == 0:
                await place.until_watched(project)
            since = ms()

            async def tell() -> None:
                await place.front.prompt_began(session, "conversation", "Fix it", since)

            if told == "before":
                await tell()
                await place.until_done()
            cli.type("echo agent > new.tmp")
            if told == "between":
                await cli.until_idle()
                await tell()
                await place.until_turns(("Fix it", {"new.tmp": "added"}))
            else:
                if silence_s == 0:
                    await place.until({"new.tmp": "added"})
                await cli.until_idle()
            if told == "unseen":
                cli.type_quietly("mv new.tmp new")
                cli.wait_until_idle()
            else:
                cli.type("mv new.tmp new")
                await cli.until_idle()
            if told == "after" and silence_s == 0:
                await place.until({"new": "added"})
            if told in ("after", "unseen"):
                await tell()
            elif silence_s:
                place.front.silent.set_sessions([], [session.id])
            (turn,) = await place.until_turns(("Fix it", {"new": "added"}))
            assert (turn.session, turn.notes) == ("conversation", ())


async def test_a_prompt_that_is_told_of_while_the_record_is_opened_is_not_lost(project: Project) -> None:
    project.commit(a=b"a\n")
    with SilentCli(project.root) as cli:
        async with site(project) as place:
            place.front.silent.set_sessions([cli.state])
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(place.front.prompt_began, cli.state.session, "conversation", "Fix it", ms())
            await place.until_watched(project)
            await place.until_done()
            cli.type("echo agent > a")
            await place.until_turns(("Fix it", {"a": "modified"}))


@pytest.mark.usefixtures("nothing_typed")
async def test_a_turn_of_a_cli_without_hooks_that_was_forgotten_is_begun_again(
    project: Project, calls: list[str], cli: SilentCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qwen_companion.journal.disk_watch.QUIET_S", 0.5)
    project.commit(a=b"a\n")
    (project.home / "older").write_bytes(b"old\n")
    async with watching(project, calls, cli) as place:
        await place.front.prompt_began(cli.state.session, "conversation", "Fix it", ms())
        await place.until_done()
        # Nobody can say whether it was there, under rules that hid it.
        cli.type("mv ../older b")
        (turn,) = await place.until_turns(("Fix it", {}))
        assert [note.rpartition(": ")[2] for note in turn.notes] == [str(UnknownBeforeError())]
        await place.until_ended(turn.id)
        await place.ask(lambda number: JournalPrune(number, str(project.root), (turn.id,)))
        await place.until()
        await cli.until_idle()
        cli.type("echo agent > a")
        await place.until_turns(("Fix it", {"a": "modified"}))


@pytest.mark.usefixtures("nothing_typed")
async def test_what_a_cli_without_hooks_does_in_a_record_that_is_begun_anew_is_in_no_other_turn(
    project: Project, calls: list[str], cli: SilentCli
) -> None:
    project.commit(a=b"a\n", b=b"b\n", c=b"c\n")
    async with watching(project, calls, cli) as place:
        cli.type("echo cli > a")
        assert (await place.until_changed("a")).client == "Gemini CLI 0.61.0"
        await cli.until_idle()
        (project.home / "state").rename(project.home / "removed")
        await (await place.agent("Fix it")).edit("b", b"agent\n")
        assert (await place.until_changed("b")).prompt == "Fix it"
        cli.type("echo cli > c")
        assert (await place.until_changed("c")).client == "Gemini CLI 0.61.0"


@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_prompt_that_is_told_of_late_names_the_turn_that_hooks_have_told_of(
    project: Project, has_ended: bool
) -> None:
    project.commit(a=b"a\n", b=b"b\n")
    async with at_work(project) as (place, agent):
        session = KnownSession("mcp", "", "Qwen Code", "0.24.4", agent.peer)
        await agent.turn("Before", {"a": b"before\n"})
        since = agent.time + 1
        call = await agent.begin("write_file", file_path=str(project.root / "b"))
        project.write("b", b"agent\n")
        if has_ended:
            await agent.done(call)
            await agent.report("Stop")
        await place.front.prompt_began(session, agent.session, "Fix it\nplease", since, has_ended)
        if not has_ended:
            await agent.done(call)
        told = ("Before", {"a": "modified"}), ("Fix it", {"b": "modified"})
        _, turn = await place.until_turns(*told)
        assert place.files[turn.id]["b"].writers == (("write_file", None),)
        if not has_ended:
            await agent.report("Stop")
        await place.until_ended(turn.id)


async def test_what_was_deleted_with_a_directory_may_be_gone_since_its_first_event() -> None:
    witness = Witness(Activity())
    witness.hear((), ())
    first = time.time()
    witness.hear([b"directory"], ())
    await tick()
    witness.hear([b"directory"], ())
    told = witness.take(b"directory/file")
    assert told is not None
    assert told.begin <= first < told.end
