# SPDX-License-Identifier: GPL-3.0-or-later
"""A conversation whose hooks reach a journal, and what the journal reports to Emacs."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import anyio

from journal_project import SHELL, Project
from qwen_companion.base.processes import start_of
from qwen_companion.domain import (
    ChangedFile,
    Peer,
    Settings,
    Turn,
    WaitingProposal,
)
from qwen_companion.doors.events import parse_event
from qwen_companion.doors.listeners import Report
from qwen_companion.journal.model_news import Excluded
from qwen_companion.journal.sites import ThisMachine
from qwen_companion.wire.journal_front import Elsewhere, JournalFront
from qwen_companion.wire.messages import (
    ChangeScope,
    JournalCall,
    JournalPrune,
    JournalReply,
    JournalTexts,
    JournalWatch,
    JournalWrote,
    Notification,
    Texts,
    TurnChanges,
    Unrecorded,
    WantedFile,
)
from support import TIMEOUT_S, until

T = TypeVar("T", bound=Notification)
ON = Settings(journal=True)


def an_hour_ahead(_site: ThisMachine, _path: bytes) -> float:
    """Return the time of a file, in seconds since the epoch, where the clock of the disk is ahead."""
    return time.time() + 3600


class Agent:
    """A conversation of a CLI whose hooks reach the journal."""

    def __init__(self, front: JournalFront, project: Project, session: str = "s", pid: int | None = None) -> None:
        self.front = front
        self._project = project
        self.session = session
        self.cwd = str(project.root)
        pid = pid or os.getpid()
        self.peer = Peer(pid, start_of(pid) or "", self.cwd, "qwen", ())
        self._calls = 0
        self.time = 0
        """When it reported last, in ms since the epoch."""
        self.ago = 0
        """How long ago it works, in ms."""
        self.waits_until = math.inf

    async def report(self, name: str, **fields: Any) -> Any:
        """Report an event, as the CLI would, and return the answer."""
        values = {"hook_event_name": name, "session_id": self.session, "cwd": self.cwd, **fields}
        event = parse_event(json.dumps(values).encode())
        assert event is not None
        self.time = max(self.time + 1, int(time.time() * 1000) - self.ago)
        with anyio.fail_after(TIMEOUT_S):
            report = Report(event, self.peer, "Qwen Code 0.24.4", "connected", self.time, self.waits_until)
            return await self.front.hear(report)

    async def prompt(self, text: str) -> Any:
        return await self.report("UserPromptSubmit", prompt=text)

    async def turn(self, prompt: str, files: Mapping[str, bytes]) -> None:
        """Take a whole turn, from `prompt` to its end, in which tools write `files`."""
        await self.prompt(prompt)
        for name, data in files.items():
            await self.edit(name, data)
        await self.report("Stop")

    async def begin(self, tool: str, agent: str | None = None, **values: str) -> dict[str, Any]:
        """Begin a call of `tool`."""
        self._calls += 1
        call = {"tool_name": tool, "tool_input": values, "tool_call_id": str(self._calls), "agent_id": agent}
        await self.report("PreToolUse", **call)
        return call

    async def done(self, call: dict[str, Any], **fields: Any) -> Any:
        return await self.report("PostToolUse", **call, **fields)

    async def edit(self, name: str | Path, data: bytes, agent: str | None = None) -> Any:
        """Write `data` to `name`, below where it works, as a tool does; return what the model is told."""
        path = Path(self.cwd) / name
        call = await self.begin("write_file", agent, file_path=str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return await self.done(call)

    async def run(self, write: Callable[[], object], **values: str) -> None:
        """Run a command that does `write`."""
        call = await self.begin(SHELL, command="make", **values)
        write()
        await self.done(call)


class Nowhere:
    """There are no roots at other places."""

    roots: Sequence[str] = ()

    def site(self, name: str) -> None:
        pass

    def named(self, report: Report) -> Report:
        return report


class Site:
    """A journal, and its reports to Emacs."""

    def __init__(self, project: Project, silence_s: float = 0, elsewhere: Elsewhere | None = None) -> None:
        self.project = project
        self.told: list[Notification] = []
        self._news = anyio.Event()
        self.turns: dict[str, Turn] = {}
        self.files: dict[str, dict[str, ChangedFile]] = {}
        self.waiting: list[WaitingProposal] = []
        """The proposals of CLIs."""
        self.excluded: Excluded = lambda _peer, _paths: ()
        """Returns the files that are hidden from a CLI."""
        self.unreviewed: list[str] = []
        """Names of files whose changes were to be reviewed."""
        self.front = JournalFront(
            project.environ,
            self._take,
            elsewhere or Nowhere(),
            lambda peer, paths: self.excluded(peer, paths),
            silence_s=silence_s,
            waiting=lambda: self.waiting,
            missed_review=lambda _cli, path, _is_open: os.path.basename(path) in self.unreviewed,
        )
        self._requests = 0

    def _take(self, message: Notification) -> None:
        self.told.append(message)
        if isinstance(message, TurnChanges):
            if message.reset:
                self.turns.clear()
                self.files.clear()
            for change in message.turns:
                files = self.files.setdefault(change.turn.id, {})
                self.turns[change.turn.id] = change.turn
                files.update({os.path.basename(file.path): file for file in change.files})
                for path in change.files_gone:
                    del files[os.path.basename(path)]
            for turn in message.gone:
                del self.turns[turn], self.files[turn]
        self._news.set()

    async def when(self, condition: Callable[[], object]) -> None:
        """Wait until `condition`, about what the journal has told, holds."""
        with anyio.fail_after(TIMEOUT_S):
            while not condition():
                self._news = anyio.Event()
                await self._news.wait()

    async def _until(self, found: Callable[[], object], expected: object) -> Sequence[Turn]:
        """Wait until `found` returns what is `expected`; return the turns, the oldest first."""
        with suppress(TimeoutError):
            await self.when(lambda: found() == expected)
        assert found() == expected, (found(), self.turns)
        return self._oldest_first()

    async def until(self, *expected: dict[str, str]) -> Sequence[Turn]:
        """Wait until the turns, the oldest first, have these kinds of changes by file; return the turns."""
        return await self._until(self.kinds, list(expected))

    async def until_turns(self, *expected: tuple[str, dict[str, str]]) -> Sequence[Turn]:
        """Wait until the turns, the oldest first, have these prompts and kinds of changes; return the turns."""

        def prompts_and_kinds() -> list[tuple[str, dict[str, str]]]:
            return [(turn.prompt, kinds) for turn, kinds in zip(self._oldest_first(), self.kinds(), strict=True)]

        return await self._until(prompts_and_kinds, list(expected))

    async def until_changed(self, name: str) -> Turn:
        """Wait until the file `name` is changed in a single turn; return that."""

        def those() -> list[Turn]:
            return [self.turns[turn] for turn, files in self.files.items() if name in files]

        await self.when(lambda: len(those()) == 1)
        return those()[0]

    async def until_noted(self, *expected: tuple[str, ...]) -> None:
        """Wait until the turns, the oldest first, have these notes: they may be told after the files."""
        await self._until(lambda: [turn.notes for turn in self._oldest_first()], list(expected))

    def told_of(self, kind: type[T]) -> list[T]:
        """Return the messages of a `kind`."""
        return [message for message in self.told if isinstance(message, kind)]

    async def until_told(self, kind: type[T]) -> T:
        """Wait for a message of a `kind`; return the last one."""
        await self.when(lambda: self.told_of(kind))
        return self.told_of(kind)[-1]

    def refused(self) -> Mapping[str, str]:
        """Return the roots that are not recorded, as they were told last."""
        told = self.told_of(Unrecorded)
        return told[-1].reasons if told else {}

    async def until_ended(self, turn: str) -> None:
        await self.when(lambda: self.turns[turn].end is not None)

    async def until_done(self, root: str | None = None) -> None:
        """Wait until the journal has recorded all that it was told of `root`, by default the project."""
        await anyio.wait_all_tasks_blocked()
        # It forgets nothing, but after all that goes before.
        await self.ask(lambda number: JournalPrune(number, root or str(self.project.root), ()))

    async def until_watched(self, project: Project) -> None:
        """Wait until the directory of `project` is watched: the system lists what this process watches."""
        await until(lambda: _is_watched(project))

    async def until_unwatched(self, project: Project) -> None:
        """Wait until the directory of `project` is not watched any more, so that nobody looks at its files."""
        await until(lambda: not _is_watched(project))

    async def until_size(self, turn: str, name: str, added: int) -> None:
        """Wait until so many lines have been added to the file `name` in `turn`."""
        await self.when(lambda: name in self.files[turn] and self.files[turn][name].added == added)

    def kinds(self) -> list[dict[str, str]]:
        files = [self.files[turn.id] for turn in self._oldest_first()]
        return [{name: file.kind for name, file in its.items()} for its in files]

    def _oldest_first(self) -> list[Turn]:
        """Return the turns by their numbers, which each record counts, and where these are equal by their starts."""

        def order(turn: Turn) -> tuple[int, int, bool]:
            # In the same millisecond an agent begins in the project, and goes on in a worktree of it.
            return int(turn.id.rpartition("-")[2]), turn.start, "/worktrees/" in turn.root

        return sorted(self.turns.values(), key=order)

    async def texts(self, scope: ChangeScope, *paths: str) -> Sequence[Texts]:
        """Return the texts of the files `paths` before and after `scope`."""
        wanted = tuple(map(WantedFile, paths))
        return (await self.ask(lambda n: JournalTexts(n, scope, wanted))).texts or ()

    async def before(self, turn: Turn, name: str) -> bytes | None:
        """Return the bytes of the file `name` before `turn`."""
        scope = ChangeScope(turn.root, "turn", turn.id, None)
        (texts,) = await self.texts(scope, os.path.join(turn.root, name))
        return texts.before and texts.before.data

    async def agent(self, prompt: str | None = None, session: str = "s", cwd: Path | None = None) -> Agent:
        """Return an agent in the project, or in `cwd`, which has got `prompt` unless it is None."""
        agent = Agent(self.front, self.project, session)
        agent.cwd = str(cwd or self.project.root)
        if prompt is not None:
            await agent.prompt(prompt)
        return agent

    async def ask(self, make: Callable[[int], JournalCall]) -> JournalReply:
        """Send a request and return the answer to it."""
        self._requests += 1
        number = self._requests
        self.front.handle(make(number))
        await self.when(lambda: number in [reply.id for reply in self.told_of(JournalReply)])
        return next(reply for reply in self.told_of(JournalReply) if reply.id == number)

    def say(self, call: JournalCall) -> None:
        self.front.handle(call)

    def write(
        self, name: str, data: bytes, turn: str | None = None, label: str | None = None, source: str | None = None
    ) -> None:
        """Write the file `name` as Emacs does, for the user or to undo or merge `turn`, and tell that."""
        path = self.project.write(name, data)
        self.say(JournalWrote((str(path),), turn, label, source))


def _is_watched(project: Project) -> bool:
    """Return whether the directory of `project` is in the system's list of the files that this process watches."""
    number = f"ino:{os.stat(project.root).st_ino:x} "
    found: list[str] = []
    for descriptor in Path("/proc/self/fdinfo").iterdir():
        with suppress(OSError):
            found += [line for line in descriptor.read_text().splitlines() if line.startswith("inotify")]
    return any(number in line for line in found)


@asynccontextmanager
async def site(
    project: Project, settings: Settings = ON, silence_s: float = 0, elsewhere: Elsewhere | None = None
) -> AsyncGenerator[Site]:
    place = Site(project, silence_s, elsewhere)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(place.front.run)
        await anyio.wait_all_tasks_blocked()
        place.front.set_settings(settings)
        place.front.set_roots([str(project.root)])
        place.say(JournalWatch(on=True))
        yield place
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def at_work(
    project: Project, prompt: str | None = None, settings: Settings = ON, cwd: Path | None = None
) -> AsyncGenerator[tuple[Site, Agent]]:
    """Yield a journal of `project` and an agent there, or in `cwd`, which has got `prompt` unless it is None."""
    async with site(project, settings) as place:
        yield place, await place.agent(prompt, cwd=cwd)
