# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal: hears from hooks what agents do, has it recorded, and tells Emacs.

A turn begins with a prompt.  All files are looked at then, while the model thinks; the first tool that writes waits for
that, for a second at most.  A tool that edits one file is recorded by the file before and after it, a command by
all that is different after it, and so is any other change at the end of the turn.  Files that Emacs reports as written
are the user's.  The record holds the files on the disk: nothing depends on how hooks describe them.

While agents may be at work the disk is watched as well, and a change without a hook is given to the one that is doing
something just then.  Where several are, their processes may tell whose it is; else the turns of all have a note.  That
is all there is of a CLI that calls no hooks: a turn of its begins with its first write after the user has typed in its
terminal.  Of one that may still call hooks, what it has changed waits until it calls one, or is taken for silent, or
has gone.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup, TaskStatus
from anyio.lowlevel import checkpoint

from qwen_companion.domain import HIDE as _HIDE
from qwen_companion.domain import ChangedFile, ChatWork, KnownSession, Peer, Settings, Snapshot, Turn
from qwen_companion.doors.listeners import Report
from qwen_companion.errors import CompanionError
from qwen_companion.file_names import FileNameError, file_name
from qwen_companion.frozen import frozen
from qwen_companion.journal.activity import SAMPLE_S, Activity, Probe, last_input, may_have_acted, written_by
from qwen_companion.journal.answers import RecordError, Summary
from qwen_companion.journal.baselines import FAILURES, reason_of
from qwen_companion.journal.database import DamagedStoreError, StoreError
from qwen_companion.journal.last_look import clock_ns
from qwen_companion.journal.places import is_recorded
from qwen_companion.journal.record import NOBODY, Cause, Record
from qwen_companion.journal.record_directory import NoRecordError, forget_unused
from qwen_companion.journal.store import CHAT, DISK, HOOKS, MAX_BYTES, TurnRow
from qwen_companion.journal.subscriptions import EDIT_TOOLS, ENTER_TOOL, EXIT_TOOL, HOLD_S, SHELL_TOOL
from qwen_companion.journal.tree_watch import TreeWatch
from qwen_companion.journal.versions import Loaded, TooLargeError, changed_since
from qwen_companion.journal.witness import Witness
from qwen_companion.journal.worktrees import (
    entered,
    home_of,
    is_ignored,
    note_recorded,
    recorded_below,
    root_around,
)
from qwen_companion.privacy.options import Options
from qwen_companion.processes import age_of
from qwen_companion.processes import ended as process_ended
from qwen_companion.tasks import contained, contained_call

if TYPE_CHECKING:
    from qwen_companion.doors.events import Event

GATHER_S = 0.2
"""Shortest interval between reports to Emacs, in seconds."""

RECORDS_S = 5.0
"""How long a CLI waits at most to hear whether files are recorded, behind the first look at all of them."""

_LATE = "the first look at all files took too long; what was changed in that time may be missing"

_POLL_S = 2.0
"""How often a process is looked after where the system does not tell its end."""

SETTLE_S = 0.3
"""How long after a change on the disk it is looked at: one seldom comes alone."""

QUIET_S = 5.0
"""How long a CLI that calls no hooks does nothing until its turn is taken for ended."""

LOOK_SHARE = 0.1
"""The part of the time that may be spent on looking at the files again and again."""

MAX_PAUSE_S = 2.0
"""How long a change waits at most for that."""

TOOLS_SAMPLE_S = 0.2
"""Seconds between two looks at the processes of tools of several agents."""

ARRIVAL_S = 10.0
"""How long before a CLI is seen first it may have started for its changes since then to be its own."""

_TWO_AT_ONCE = "another agent was at work at the same time"

WAIT_S = 60.0
"""How long Emacs can wait for an agent to be done with a file."""

LOOK_WAIT_S = 0.8 * HOLD_S
"""How long the report of a tool waits at most for looks at all files; the rest is for the file itself."""


@frozen
class Update:
    """A turn, its changed `files`, and the files of `gone`, which have no change any more."""

    turn: Turn
    files: tuple[ChangedFile, ...]
    gone: tuple[str, ...]


@frozen
class _Call:
    """A tool at work for `session`; `path` is the file it writes, None if that is unknown, or not below the root."""

    session: str
    tool: str
    agent: str
    path: bytes | None

    @property
    def is_command(self) -> bool:
        """Return whether it may write any file."""
        return self.tool == SHELL_TOOL


@dataclass
class _Running:
    """A turn that goes on.  `ready` is set when the files have been looked at; `number` is that of the record then."""

    row: TurnRow
    ready: anyio.Event = field(default_factory=anyio.Event)
    number: int | None = None
    waited: bool = False
    """Whether a tool has waited for `ready` as long as one may."""
    since: float = math.inf
    """When a command of it began that could not wait for `ready`, in seconds since the epoch."""


@frozen
class _Worker:
    """Somebody who may be writing, for `session`, by `tool`.  `probe`: only if that does something just then."""

    session: str
    tool: str
    running: _Running | None
    probe: Probe | None = None
    agent: str = ""
    runs_tool: bool = False
    cli: _SilentCli | None = None

    @property
    def writes_by_itself(self) -> bool:
        """Return whether it may write without a hook that tells of the file."""
        return self.runs_tool or self.cli is not None

    @property
    def number(self) -> int | None:
        """Return the number of its turn, None while that has not begun."""
        return None if self.running is None else self.running.number


@dataclass
class _SilentCli:
    """A CLI that calls no hooks.  `turn` is the last of its turns, in which it wrote last at the time `written`.

    Changes after `since`, in seconds since the epoch, may be its own.
    """

    session: KnownSession
    peer: Peer
    since: float
    root: _Root | None = None
    turn: TurnRow | None = None
    written: int = 0
    done: int | None = None
    """How much its process had written in total at the last sample."""


@dataclass
class _News:
    """The disk changed, at `time` last.  So much had processes written `before` it, and when it was `told` first."""

    time: float
    before: Mapping[Probe, int | None]
    told: Mapping[Probe, int | None]


class _Root:
    """The work on the record of one root: jobs in a thread, one after the other."""

    def __init__(self, record: Record, activity: Activity) -> None:
        self.record = record
        self.watch: TreeWatch | None = None
        self.witness: Witness[_Worker] = Witness(activity)
        self.stirred = anyio.Event()
        self.news: _News | None = None
        self.looked = -math.inf
        self.failed = False
        """Whether the last look at the files could not be recorded; it is repeated."""
        self.running: dict[str, _Running] = {}
        self.ending: list[tuple[str, _Running]] = []
        """Turns that have ended, with their sessions, while not all that they have changed has been looked at."""
        self.coming: set[str] = set()
        """Silent CLIs, by their keys, while what was changed before they came has not been looked at."""
        self.calls: dict[str, _Call] = {}
        self.commands: dict[str, tuple[_Running, _Call]] = {}
        """The last command of each session, until the look after it is done."""
        self.reserved: Counter[bytes] = Counter()
        self.told: dict[int, Summary] = {}
        self.changed: set[int] = set()
        self.jobs, self.jobs_left = anyio.create_memory_object_stream[Callable[[], None]](math.inf)

    def do(self, job: Callable[[], None]) -> None:
        """Have `job` done after those before it."""
        self.jobs.send_nowait(job)

    async def done_so_far(self) -> None:
        """Wait until the jobs so far are done."""
        done = anyio.Event()
        self.do(partial(anyio.from_thread.run_sync, done.set))
        await done.wait()

    def is_reserved(self, path: bytes) -> bool:
        """Return whether somebody else will say who has written `path`."""
        return path in self.reserved

    def has_call_of(self, session: str) -> bool:
        """Return whether a tool of `session` is at work."""
        return any(call.session == session for call in self.calls.values())

    def commands_of_others(self, session: str) -> bool:
        """Return whether an agent of another session runs a command."""
        return any(call.is_command and call.session != session for call in self.calls.values())


class Journal:
    """See the top of this file.  All methods are for the event loop."""

    def __init__(
        self,
        environ: Mapping[str, str],
        tell: Callable[[Sequence[Update], Sequence[str], bool], None],
        warn: Callable[[str], None],
        tell_refused: Callable[[Mapping[str, str]], None],
    ) -> None:
        """`tell` gets turns that have changed, the ids of those that are gone, and whether these are all there are.

        `tell_refused` gets all roots that cannot be recorded just now, with the reason; each reason is warned of once.
        """
        self.environ = environ
        self._tell = tell
        self._warn = warn
        self._tell_refused = tell_refused
        self._settings = Settings()
        self._hidden: tuple[str, ...] = ()
        self._names: tuple[str, ...] = ()
        self._names_around: dict[str, str | None] = {}
        """The results of `_name_of` for the roots there are now."""
        self._roots: dict[str, _Root] = {}
        self._trees: set[str] = set()
        """Those of the roots that are worktrees below another."""
        self._refused: dict[str, str] = {}
        self._warned: set[tuple[str, str]] = set()
        self._pids: dict[str, int] = {}
        self._entered: dict[str, str] = {}
        """The worktrees that agents have entered by a tool, by their sessions: hooks go on naming the project."""
        self._connected: dict[str, str | None] = {}
        self._silent: dict[str, _SilentCli] = {}
        self._arriving: dict[str, _SilentCli] = {}
        """CLIs that may call hooks and have called none yet."""
        self._activity = Activity()
        self._chats: dict[str, ChatWork] = {}
        self._watching = False
        self._telling_all = False
        """Whether all turns are to be told next, not only what has changed."""
        self._dirty = anyio.Event()
        self._idle = anyio.Event()
        self._tasks: TaskGroup | None = None
        self._opening = anyio.Lock()

    # --- What the user wants ---

    def set_settings(self, settings: Settings) -> None:
        """Take the user's `settings`."""
        self._settings = settings
        if not settings.journal:
            for name in list(self._refused):
                self._refuse(name, None)
        self._update_rules()

    def set_snapshot(self, snapshot: Snapshot) -> None:
        """Take from `snapshot` which files the user hides."""
        hidden = tuple(sorted(file.path for file in snapshot.files if file.exposure == _HIDE))
        if hidden != self._hidden:
            self._hidden = hidden
            self._update_rules()

    def _update_rules(self) -> None:
        for root in self._roots.values():
            root.do(lambda record=root.record: self._set_rules(record))

    def _set_rules(self, record: Record) -> None:
        record.rules.set_options(Options(self._settings.patterns, self._settings.auth_sources), self._hidden)

    async def set_roots(self, names: Sequence[str]) -> None:
        """Take the open workspace roots; those with a record are opened, so that their turns can be told."""
        self._names = tuple(names)
        self._names_around.clear()
        if self._settings.journal:
            for name in names:
                await self._root(name, only_known=True)
                for tree in await to_thread.run_sync(recorded_below, name, self.environ, abandon_on_cancel=True):
                    await self._root(tree, only_known=True)

    # --- Life ---

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Record and tell until cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                task_status.started()
                while True:
                    await self._dirty.wait()
                    self._dirty = anyio.Event()
                    if self._watching:
                        await contained(self._tell_all if self._telling_all else self._tell_changes)
                    await anyio.sleep(GATHER_S)
        finally:
            self._tasks = None
            for root in self._roots.values():
                root.jobs.close()
                root.jobs_left.close()
                # A job may have it in use, and ask this event loop something.
                with anyio.CancelScope(shield=True):
                    await to_thread.run_sync(root.record.close)

    async def _work(self, root: _Root) -> None:
        """Do the jobs of `root`."""
        with suppress(anyio.ClosedResourceError):
            async for job in root.jobs_left:
                # Let the hook that has added this job be answered first: the job's thread would slow it down.
                await checkpoint()
                failed = root.failed
                await to_thread.run_sync(contained_call, self._attempt, root, job, abandon_on_cancel=True)
                if root.failed and not failed:
                    root.stirred.set()
                self._dirty.set()

    def _attempt(self, root: _Root, job: Callable[[], None]) -> None:
        try:
            self._do_on_whole_record(root, job)
        except (*FAILURES, CompanionError) as error:
            root.failed = root.failed or isinstance(error, StoreError)
            self._refuse(root.record.root, reason_of(error))

    def _do_on_whole_record(self, root: _Root, job: Callable[[], None]) -> None:
        """Do `job`; begin the record anew where it has been removed or is damaged, and tell the user."""
        try:
            if root.record.restore():
                news = f"What was recorded of changes in {root.record.root} has been removed; it begins anew"
                self._begun_anew(root, news)
            job()
        except DamagedStoreError as error:
            root.record.replace_damaged(str(error))
            self._begun_anew(root, root.record.news or "")
            job()

    def _begun_anew(self, root: _Root, news: str) -> None:
        for running in root.running.values():
            running.number = None
        root.changed.update(root.told)
        self._warn(news)

    def _refuse(self, name: str, reason: str | None) -> None:
        """Tell the user why nothing is recorded of the root `name`, or with None that it is recorded again."""
        if self._refused.get(name) == reason:
            return
        refused = {key: its for key, its in self._refused.items() if key != name}
        self._refused = refused if reason is None else {**refused, name: reason}
        self._tell_refused(self._refused)
        if reason is not None and (name, reason) not in self._warned:
            self._warned.add((name, reason))
            self._warn(f"Changes in {name} are not recorded: {reason}")

    async def _root(self, name: str, only_known: bool = False) -> _Root | None:
        """Return the work on the root `name`, begun if need be; None where it cannot be recorded."""
        if name in self._roots and not self._opening.locked():
            return self._roots[name]
        async with self._opening:
            if name in self._roots or self._tasks is None:
                return self._roots.get(name)
            try:
                record = await to_thread.run_sync(_open, name, self.environ, only_known, abandon_on_cancel=True)
            except NoRecordError as error:
                self._refuse(name, str(error))
                return None
            if record is None:
                return None
            if record.news is not None:
                self._warn(record.news)
            root = self._roots[name] = _Root(record, self._activity)
            if (around := self._name_of(os.path.dirname(name))) is not None and root_around(around, name) == name:
                self._trees.add(name)
                await to_thread.run_sync(note_recorded, around, name, self.environ)
            await to_thread.run_sync(self._set_rules, record)
            await to_thread.run_sync(self._resume, root)
            self._tasks.start_soon(self._work, root)
            self._tasks.start_soon(self._watch, root)
            for running in root.running.values():
                self._tasks.start_soon(self._end_with_process, root, running.row)
            self._dirty.set()
            return root

    async def _end_with_process(self, root: _Root, row: TurnRow) -> None:
        """End the turn `row`, which another process has recorded, with its CLI."""
        if row.pid is not None:
            await process_ended(row.pid, row.started or "", _POLL_S)
            self._end(root, row.session, _now())

    def _resume(self, root: _Root) -> None:
        """Go on with turns that another process of this Emacs has recorded."""
        now = _now()
        with suppress(*FAILURES):
            self._forget_old(root)
            for row in root.record.resume():
                going = _Worker(row.session, DISK, _Running(row, number=row.id))
                root.do(lambda going=going: self._scan(root, lambda: [going]))
                if row.source == HOOKS:
                    running = root.running[row.session] = _Running(row, number=row.id)
                    running.ready.set()
                else:
                    root.do(lambda row=row: self._finish(root, row.id, now))
            root.changed.update(root.record.answers.turns())

    # --- What agents do ---

    async def hear(self, report: Report) -> str | None:
        """Handle the report of a hook; return a text for the agent, or None."""
        name = self._name_of(report.event.cwd)
        if not self._settings.journal or name is None:
            return None
        event = report.event
        self._pids[event.session_id] = report.peer.pid
        self._connected[event.session_id] = report.session
        kind = event.name
        if kind == "UserPromptSubmit":
            return await self._prompt(name, report)
        if getattr(event, "tool_name", "") in (ENTER_TOOL, EXIT_TOOL):
            await self._move(name, report)
        elif kind == "PreToolUse":
            for each in self._names_at_work(name, event):
                await self._before_tool(each, report)
        elif kind in ("PostToolUse", "PostToolUseFailure"):
            for root in self._open_roots(self._names_at_work(name, event)):
                await self._after_tool(root, report)
        elif kind in ("Stop", "SessionEnd") or getattr(event, "notification_type", "") == "idle_prompt":
            # There is no Stop of a turn that was cancelled.
            for root in self._open_roots(self._names_of(name, event.session_id)):
                self._end(root, event.session_id, report.time)
        return None

    def _open_roots(self, names: Sequence[str]) -> list[_Root]:
        return [self._roots[name] for name in names if name in self._roots]

    def _root_around(self, name: str, path: str) -> str:
        """Return the root `name`, or the worktree below it that `path` is in and that has another record."""
        around = root_around(name, path)
        return around if around in self._trees or (around != name and is_ignored(name, around)) else name

    def _names_of(self, name: str, session: str) -> list[str]:
        """Return `name`, and the other roots in which `session` has a turn or a tool at work."""
        others = [key for key, root in self._roots.items() if session in root.running or root.has_call_of(session)]
        return list(dict.fromkeys((name, *others)))

    def _names_at_work(self, name: str, event: Event) -> list[str]:
        """Return the roots in which the tool of `event` may write; its session works in the root `name`."""
        call = _values_of(event)
        around = self._root_around(name, os.path.join(event.cwd, call.place)) if call.place else name
        if call.tool != SHELL_TOOL:
            return [around]
        return list(dict.fromkeys((around, *self._names_of(name, event.session_id))))

    async def _move(self, name: str, report: Report) -> None:
        """Begin a turn in the worktree that an agent has entered by the tool of `report`, or note that it has left."""
        session = report.event.session_id
        self._entered.pop(session, None)
        if report.event.name == "PostToolUse" and getattr(report.event, "tool_name", "") == ENTER_TOOL:
            wanted = cast("Mapping[str, object]", getattr(report.event, "tool_input", {})).get("name")
            tree = await to_thread.run_sync(entered, name, wanted, abandon_on_cancel=True)
            root = None if tree is None else await self._root(tree)
            if root is not None:
                self._entered[session] = root.record.root
                self._begin_reported(root, report, self._prompt_of(session))

    def _prompt_of(self, session: str) -> str:
        """Return the first line of the prompt that `session` works on, "" if unknown."""
        turns = [root.running[session].row.prompt for root in self._roots.values() if session in root.running]
        return next(filter(None, turns), "")

    async def records(self, directory: str, paths: Collection[str]) -> bool:
        """Return whether each of the files `paths` is recorded with `directory`, so that its change can be undone."""
        name = self._name_of(directory)
        if name is None or not self._settings.journal:
            return False
        by_root: dict[str, list[str]] = {}
        for path in paths:
            by_root.setdefault(self._root_around(name, os.path.join(directory, path)), []).append(path)
        found = [await self._records_below(await self._root(each), its) for each, its in by_root.items()]
        return all(found)

    async def _records_below(self, root: _Root | None, paths: Collection[str]) -> bool:
        if root is None or root.failed:
            return False
        found: list[bool] = []
        looked = anyio.Event()

        def look() -> None:
            # A file may have gone meanwhile.
            with suppress(*FAILURES):
                found.append(root.record.records(paths))
            with suppress(RuntimeError):
                anyio.from_thread.run_sync(looked.set)

        # After the scan with which the turn begins.
        root.do(look)
        with anyio.move_on_after(RECORDS_S):
            await looked.wait()
        return found == [True]

    def ended(self, peer: Peer) -> None:
        """Take that the process of a CLI has ended, and its turns with it."""
        for session in [session for session, pid in self._pids.items() if pid == peer.pid]:
            del self._pids[session]
            self._entered.pop(session, None)
            self._connected.pop(session, None)
            for root in self._roots.values():
                self._end(root, session, _now())

    async def _prompt(self, name: str, report: Report) -> str | None:
        session = report.event.session_id
        if not report.event.begins_turn:
            # The turn only goes on.
            return None
        prompt = str(getattr(report.event, "prompt", "")).strip()
        files: list[str] = []
        for each in filter(None, (name, self._entered.get(session))):
            root = await self._root(each)
            if root is not None:
                self._begin_reported(root, report, prompt)
                with suppress(StoreError):
                    files += await to_thread.run_sync(root.record.take_undone, session, abandon_on_cancel=True)
        return _undone_text(files) if files else None

    def _begin_reported(self, root: _Root, report: Report, prompt: str) -> _Running:
        return self._begin(root, _row(report.event.session_id, report.cli, HOOKS, prompt, report.time, report.peer))

    def _begin(self, root: _Root, row: TurnRow) -> _Running:
        self._end(root, row.session, row.start)
        running = root.running[row.session] = _Running(row)
        root.stirred.set()

        def begin() -> None:
            try:
                self._scan(root, lambda: self._suspects_before(root, {row.session}))
                running.number = root.record.store.begin(row).id
            finally:
                with suppress(RuntimeError):
                    anyio.from_thread.run_sync(running.ready.set)

        root.do(begin)
        return running

    def _suspects_before(self, root: _Root, newcomers: Collection[str]) -> Sequence[_Worker]:
        """Return the workers that may have made the changes not yet looked at, before new sessions may write."""
        going = [
            (session, running)
            for session, running in root.running.items()
            if session not in newcomers and running.number is not None
        ]
        if len(going) == 1:
            return [_Worker(going[0][0], DISK, going[0][1])]
        suspects = self._suspects(root, self._news_since_look(root))
        return [suspect for suspect in suspects if suspect.session not in newcomers]

    async def _before_tool(self, name: str, report: Report) -> None:
        root = await self._root(name)
        if root is None:
            return
        session = report.event.session_id
        running = root.running.get(session) or self._begin_reported(root, report, self._prompt_of(session))
        call = _call_of(report.event, root.record)
        if call.is_command:
            self._look_at_processes(root)
        if call.path is not None:
            await self._before_edit(root, call.path, session, running)
        root.calls[_call_id(report.event)] = call
        if running.ready.is_set():
            return
        with anyio.move_on_after(0 if running.waited else LOOK_WAIT_S):
            await running.ready.wait()
            return
        running.waited = True
        if call.is_command:
            running.since = min(running.since, clock_ns() / 1e9)
            root.do(lambda: self._note(root, (running, call), _LATE))

    async def _before_edit(self, root: _Root, path: bytes, session: str, running: _Running) -> None:
        """Record `path` as it is before a tool of `session` writes it, and let no look at all files see it."""
        writer = None
        before = await self._read(root, path)
        if running.ready.is_set():
            # The CLI may not wait as long as the look after its last command takes, which is to see this file too.
            with anyio.move_on_after(LOOK_WAIT_S) as waited:
                await root.done_so_far()
            if waited.cancelled_caught:
                writer = root.commands.get(session)
            else:
                before = await self._read(root, path)
        elif await to_thread.run_sync(changed_since, path, running.since, abandon_on_cancel=True):
            # Else undoing the edit would not give back what the command has deleted or written over.
            writer = root.commands.get(session)
        # Without a wait until the call is known, with which this ends.
        root.reserved[path] += 1
        root.do(lambda: self._record(root, path, before, writer))

    async def _after_tool(self, root: _Root, report: Report) -> None:
        session = report.event.session_id
        self._look_at_processes(root)
        call = root.calls.pop(_call_id(report.event), None) or _call_of(report.event, root.record)
        self._now_idle()
        running = root.running.get(session) or self._begin_reported(root, report, self._prompt_of(session))
        if call.path is not None:
            after = await self._read(root, call.path)
            root.do(lambda path=call.path: self._record(root, path, after, (running, call)))
            self._release(root, call.path)
            return
        if not call.is_command:
            root.do(lambda: self._note(root, (running, call), "not recorded: a file that is not below the root"))
            return
        root.commands[session] = command = running, call
        self._look_for(root, _Worker(session, call.tool, running, None, call.agent))

        def forget() -> None:
            if root.commands.get(session) is command:
                del root.commands[session]

        root.do(forget)

    def _look_for(self, root: _Root, worker: _Worker) -> None:
        """Look at all files after the end of `worker`, or its tool: what has changed is its, as far as is known."""

        def suspects() -> Sequence[_Worker]:
            others = self._suspects(root, self._news_since_look(root))
            at_once = [other for other in others if other.session != worker.session and other.writes_by_itself]
            return [worker, *at_once]

        def scan() -> None:
            if worker.cli is not None or worker.number is not None:
                self._scan(root, suspects)

        root.do(scan)

    async def _read(self, root: _Root, path: bytes) -> Loaded | TooLargeError | OSError | None:
        """Return the file at `path`, or why it cannot be read."""
        try:
            return await to_thread.run_sync(root.record.look, path, abandon_on_cancel=True)
        except (TooLargeError, OSError) as error:
            return error

    def _record(
        self,
        root: _Root,
        path: bytes,
        found: Loaded | TooLargeError | OSError | None,
        writer: tuple[_Running, _Call] | None,
    ) -> None:
        """Record what was `found` at `path` as written by `writer`, or with None by somebody else."""
        if isinstance(found, TooLargeError):
            self._note(root, writer, f"not recorded: {os.fsdecode(path)}: larger than 64 MiB")
        elif not isinstance(found, OSError):
            cause = NOBODY if writer is None else Cause(writer[0].number, writer[1].tool, writer[1].agent)
            if root.record.observe(path, found, cause) and cause.turn is not None:
                root.changed.add(cause.turn)

    def _note(self, root: _Root, writer: tuple[_Running, _Call] | None, text: str) -> None:
        if writer is not None and writer[0].number is not None:
            root.record.store.add_note(writer[0].number, text)

    def _release(self, root: _Root, path: bytes) -> None:
        """Let scans look at `path` again, once its last contents are recorded."""

        def release() -> None:
            root.reserved[path] -= 1
            if root.reserved[path] <= 0:
                del root.reserved[path]

        root.do(release)

    def _scan(
        self,
        root: _Root,
        suspects: Callable[[], Sequence[_Worker]],
        newcomers: Sequence[_SilentCli] = (),
        skip: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        """Look at all files but those to `skip`, and give what has changed to those who may have done it.

        These are `suspects` where the system tells nothing better of a file; without any, those of `newcomers` that
        came before it was changed.
        """

        def choose(paths: Sequence[bytes]) -> Sequence[Cause]:
            found = anyio.from_thread.run_sync(self._writers, root, paths, suspects)
            return [
                self._cause(root, writers or self._arrived_before(root, path, newcomers))
                for path, writers in zip(paths, found, strict=True)
            ]

        root.looked = looked = time.monotonic()
        trees = self._worktrees_in(root)
        root.record.scan(choose, lambda path: root.is_reserved(path) or path.startswith(trees) or skip(path))
        root.failed = False
        problem = root.record.rules.problem
        self._refuse(root.record.root, problem and f"every file is excluded, also for CLIs: {problem}")
        anyio.from_thread.run_sync(root.witness.forget, looked)

    def _worktrees_in(self, root: _Root) -> tuple[bytes, ...]:
        """Return the worktrees below `root` that have records of their own, each with a slash at its end."""
        names = [root.record.names.name_in(name) for name in list(self._trees)]
        return tuple(name + b"/" for name in names if name is not None)

    def _writers(
        self, root: _Root, paths: Sequence[bytes], suspects: Callable[[], Sequence[_Worker]]
    ) -> Sequence[Sequence[_Worker]]:
        """Return for each of `paths`, which have changed, who may have done that."""
        # Only now: somebody may have begun to write while the files were looked at.
        self._look_at_processes(root)
        others = suspects()
        return [root.witness.take(path) or others for path in paths]

    def _arrived_before(self, root: _Root, path: bytes, newcomers: Sequence[_SilentCli]) -> Sequence[_Worker]:
        return [_Worker(_key_of(cli.peer), DISK, None, cli=cli) for cli in newcomers if changed_since(path, cli.since)]

    def _cause(self, root: _Root, writers: Sequence[_Worker]) -> Cause:
        """Return the cause of a change that one of `writers` has made; where there are several, note it with all."""
        known = [each for each in writers if each.cli is not None or each.number is not None]
        if not known:
            return NOBODY
        first, *others = known
        number = self._turn_of_silent(root, first.cli) if first.cli is not None else first.number
        others = [each for each in others if each.session != first.session]
        numbers = {each for each in (number, *(other.number for other in others)) if each is not None}
        if others:
            for each in numbers:
                root.record.store.add_note(each, _TWO_AT_ONCE)
        root.changed.update(numbers)
        return Cause(number, first.tool, first.agent)

    def _look_at_processes(self, root: _Root) -> None:
        """Take the news of the disk, and who may have caused them, before it is another one that may."""
        if root.watch is None:
            return
        at_work = self._at_work(root)
        if len({worker.session for worker in at_work}) > 1:
            self._activity.look(worker.probe for worker in at_work)
        if not root.watch.read():
            root.witness.hear((), at_work)
        root.witness.conclude(at_work)

    def _end(self, root: _Root, session: str, time: int, looks: bool = True) -> None:
        """End the turn of `session`; with `looks`, look at the files first."""
        self._look_at_processes(root)
        running = root.running.pop(session, None)
        for identifier in [key for key, call in root.calls.items() if call.session == session]:
            call = root.calls.pop(identifier)
            if call.path is not None:
                self._release(root, call.path)
        self._now_idle()
        root.stirred.set()
        if running is None:
            return
        # A look that has begun may find changes of it.
        ending = (session, running)
        root.ending.append(ending)

        def end() -> None:
            try:
                if running.number is not None:
                    if looks and not root.commands_of_others(session):
                        self._scan(root, lambda: [_Worker(session, DISK, running)])
                    self._finish(root, running.number, time)
            finally:
                root.ending.remove(ending)

        root.do(end)

    def _finish(self, root: _Root, number: int, time: int) -> None:
        root.record.end(number, time)
        root.changed.add(number)
        self._forget_old(root)

    def _forget_old(self, root: _Root) -> None:
        root.changed.update(root.record.store.forget_old(_now()))
        gone = root.record.store.shrink()
        root.changed.update(gone)
        if gone:
            which = "the oldest turn is" if len(gone) == 1 else f"the {len(gone)} oldest turns are"
            limit = f"{MAX_BYTES >> 20} MiB"
            self._warn(f"Changes in {root.record.root} need more than {limit}: {which} forgotten and cannot be undone")

    # --- What agents do of which no hook tells ---

    async def set_silent(self, sessions: Sequence[KnownSession], arriving: Sequence[KnownSession] = ()) -> None:
        """Take the `sessions` whose CLIs call no hooks, and those that may still call some.

        The process of each is known, and where it works.
        """
        known, were_silent = {**self._silent, **self._arriving}, self._silent
        self._silent = {_key_of(cli.peer): cli for cli in _clis(sessions, known)}
        self._arriving = {_key_of(cli.peer): cli for cli in _clis(arriving, known)}
        for key in known.keys() - self._silent.keys() - self._arriving.keys():
            self._connected.pop(key, None)
            cli = known[key]
            looks = cli.root is not None and key in were_silent
            if cli.root is not None and looks:
                # It may have written just now.
                self._look_for(cli.root, _Worker(key, DISK, None, cli=cli))
            for root in self._roots.values():
                self._end(root, key, _now(), looks=not looks)
        new = [cli for key, cli in self._silent.items() if key not in were_silent]
        new_arriving = [cli for key, cli in self._arriving.items() if key not in known]
        for cli in (*self._silent.values(), *self._arriving.values()):
            self._connected[_key_of(cli.peer)] = cli.session.id
            name = self._name_of(cli.peer.directory or "")
            if cli.root is None and name is not None:
                cli.root = await self._root(name)
        for root in self._roots.values():
            self._welcome(
                root, [cli for cli in new if cli.root is root], [cli for cli in new_arriving if cli.root is root]
            )

    def _welcome(self, root: _Root, silent: Sequence[_SilentCli], arriving: Sequence[_SilentCli]) -> None:
        """Look what was there before CLIs came; what those that call no hooks have changed since is theirs."""
        if not silent and not arriving:
            return
        newcomers = {_key_of(cli.peer) for cli in (*silent, *arriving)}
        root.coming |= newcomers

        def look() -> None:
            # Without an earlier look nobody knows what a file was before.
            waiting = arriving if root.record.has_baseline else ()
            try:
                self._scan(
                    root,
                    lambda: self._suspects_before(root, newcomers),
                    silent,
                    lambda path: any(changed_since(path, cli.since) for cli in waiting),
                )
            finally:
                root.coming -= newcomers

        root.do(look)
        root.stirred.set()

    async def take_chat(self, work: ChatWork) -> None:
        """Take the activity of an agent of `qwen serve`; ignore it where hooks report it better."""
        name = self._name_of(work.directory)
        if name is None or not self._settings.journal or work.session in self._pids:
            return
        root = await self._root(name)
        if root is None:
            return
        before = self._chats.get(work.session)
        self._chats[work.session] = work
        root.stirred.set()
        if before is not None and before.turn is not None:
            for _, tool in set(before.tools) - set(work.tools):
                self._look_for(root, _Worker(work.session, tool, root.running.get(work.session)))
            if before.turn != work.turn:
                self._end(root, work.session, _now())
        if work.turn is not None and (before is None or before.turn != work.turn):
            self._begin(root, _row(work.session, work.client, CHAT, work.prompt, _now(), None))
        elif before is None:
            root.do(lambda: self._scan(root, lambda: self._suspects_before(root, {work.session})))
        running = root.running.get(work.session)
        if work.tools and running is not None and not running.ready.is_set():
            # The daemon waits for nobody.
            root.do(lambda: None if running.number is None else root.record.store.add_note(running.number, _LATE))

    async def _watch(self, root: _Root) -> None:
        """Look at the files when the disk changes, as long as anybody may be at work below `root`."""
        while True:
            await root.stirred.wait()
            root.stirred = anyio.Event()
            if self._is_watched(root):
                watch = root.watch = TreeWatch(lambda paths: self._disk_changed(root, paths))
                try:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._sample, root)
                        await self._watch_with(root, watch)
                        tasks.cancel_scope.cancel()
                finally:
                    root.watch = None
                    root.witness.forget()
                    watch.close()

    async def _sample(self, root: _Root) -> None:
        """Look again and again at what the processes do that may be writing, below `root` and elsewhere."""
        while True:
            self._activity.sample(probe for each in self._roots.values() for probe in self._probes_in(each))
            at_work = self._at_work(root)
            several = len({worker.session for worker in at_work}) > 1 and any(worker.runs_tool for worker in at_work)
            if several:
                self._look_at_processes(root)
            await anyio.sleep(TOOLS_SAMPLE_S if several else SAMPLE_S)

    def _probes_in(self, root: _Root) -> list[Probe]:
        return [worker.probe for worker in self._workers(root) if worker.probe is not None]

    def _disk_changed(self, root: _Root, paths: Collection[bytes] | None) -> None:
        if paths is None:
            root.witness.forget()
        root.witness.hear(paths or (), self._at_work(root))
        if root.news is None:
            before = self._activity.before(time.monotonic())
            root.news = _News(0.0, before, self._activity.look(self._probes_in(root)))
        root.news.time = time.monotonic()
        root.stirred.set()

    def _news_since_look(self, root: _Root) -> _News:
        done = self._activity.before(root.looked)
        return _News(time.monotonic(), done, done)

    async def _watch_with(self, root: _Root, watch: TreeWatch) -> None:
        complete = await self._cover(root, watch)
        while self._is_watched(root):
            with anyio.move_on_after(QUIET_S if self._looks_by_itself(root, complete) else math.inf) as waited:
                await root.stirred.wait()
            root.stirred = anyio.Event()
            if waited.cancelled_caught and ((self._check_quiet(root) and not complete) or root.failed):
                root.news = self._news_since_look(root)
            if root.news is None:
                continue
            await anyio.sleep(SETTLE_S)
            start = time.monotonic()
            news, root.news = root.news, None
            if root.looked < news.time:
                await self._look(root, news)
            complete = await self._cover(root, watch)
            await anyio.sleep(min(MAX_PAUSE_S, (time.monotonic() - start) / LOOK_SHARE))

    async def _cover(self, root: _Root, watch: TreeWatch) -> bool:
        """Watch the directories of `root`; return whether each change will be told."""
        try:
            directories = await to_thread.run_sync(root.record.directories, abandon_on_cancel=True)
        except FAILURES:
            return False
        coverage = await watch.cover(directories)
        if coverage.grown and root.news is None:
            root.news = self._news_since_look(root)
            root.stirred.set()
        return coverage.complete

    def _workers(self, root: _Root) -> list[_Worker]:
        """Return the agents that may be writing below `root`."""
        found: list[_Worker] = []
        for call in root.calls.values():
            if call.is_command:
                pid = self._pids.get(call.session)
                probe = None if pid is None else Probe(pid, below=True)
                running = root.running.get(call.session)
                found.append(_Worker(call.session, call.tool, running, probe, call.agent, runs_tool=True))
        # CLIs with hooks write mostly by the tools that these report.
        has_chat = any(running.row.source == CHAT for running in root.running.values())
        found += [
            _Worker(key, DISK, root.running.get(key), Probe(cli.peer.pid), cli=cli)
            for key, cli in self._silent_in(root)
            # One without a terminal is the agent of that chat, of which the daemon tells more.
            if not has_chat or last_input(cli.peer.pid) is not None
        ]
        for session, running in root.running.items():
            work = self._chats.get(session)
            if work is not None and running.row.source == CHAT:
                # Events may come later than the writes they report.
                found += [_Worker(session, tool, running, runs_tool=True) for _, tool in work.tools] or [
                    _Worker(session, DISK, running)
                ]
            elif running.row.pid is not None and session not in self._silent:
                found.append(_Worker(session, DISK, running, Probe(running.row.pid)))
        found += [_Worker(session, DISK, running) for session, running in [*root.ending]]
        return found

    def _at_work(self, root: _Root) -> list[_Worker]:
        return [worker for worker in self._workers(root) if worker.writes_by_itself]

    def _silent_in(self, root: _Root) -> list[tuple[str, _SilentCli]]:
        return [(key, cli) for key, cli in self._silent.items() if cli.root is root]

    def _is_watched(self, root: _Root) -> bool:
        """Return whether anybody may be at work below `root`."""
        return bool(root.running or root.calls or self._silent_in(root))

    def _looks_by_itself(self, root: _Root, complete: bool) -> bool:
        """Return whether to look now and then without news of the disk."""
        return root.failed or not complete or any(key in self._silent for key in root.running)

    def _check_quiet(self, root: _Root) -> bool:
        """End the turns of CLIs that have done nothing for a while; return whether anybody has done something."""
        busy = False
        for key, cli in self._silent.items():
            done = written_by(cli.peer.pid)
            if done is None or done != cli.done:
                cli.done = done
                busy = True
            elif key in root.running:
                running = root.running.pop(key)
                root.do(lambda number=running.number, cli=cli: self._finish(root, number or 0, cli.written))
        return busy or any(key not in self._silent for key in root.running)

    async def _look(self, root: _Root, news: _News) -> None:
        """Look at all files because of `news`."""
        done = anyio.Event()

        def look() -> None:
            try:
                self._scan(root, lambda: self._suspects(root, news))
            finally:
                anyio.from_thread.run_sync(done.set)

        root.do(look)
        await done.wait()

    def _suspects(self, root: _Root, news: _News) -> Sequence[_Worker]:
        """Return the workers that may have caused `news`, the likeliest first."""
        workers = self._workers(root)
        if any(worker.runs_tool for worker in workers):
            workers = self._at_work(root)
        workers = [worker for worker in workers if worker.session not in root.coming]
        now = self._activity.look(worker.probe for worker in workers)
        # One may have done its last work between the change and the news of it; one that goes on is likelier.
        active = (
            [worker for worker in workers if may_have_acted(worker.probe, news.told, now)]
            or [worker for worker in workers if may_have_acted(worker.probe, news.before, now)]
            or [worker for worker in workers if worker.runs_tool]
        )
        return [worker for worker in active if worker.writes_by_itself] or active

    def _turn_of_silent(self, root: _Root, cli: _SilentCli) -> int:
        """Return the turn of `cli` for a change: the last, or a new one if its terminal has been typed to since."""
        row = cli.turn
        typed = last_input(cli.peer.pid)
        if row is None or (typed is not None and typed > cli.written):
            if row is not None:
                self._finish(root, row.id, cli.written)
            row = root.record.store.begin(_row(_key_of(cli.peer), cli.session.label, DISK, "", _now(), cli.peer))
        elif _key_of(cli.peer) not in root.running:
            root.record.store.end(row.id, None)
        anyio.from_thread.run_sync(self._goes_on, root, cli, row)
        return row.id

    def _goes_on(self, root: _Root, cli: _SilentCli, row: TurnRow) -> None:
        """Take that the turn `row` of `cli` goes on; end it if the CLI has gone meanwhile."""
        key = _key_of(cli.peer)
        cli.turn, cli.written = row, _now()
        if key not in self._silent:
            root.do(lambda: self._finish(root, row.id, cli.written))
        elif key not in root.running or root.running[key].row is not row:
            running = root.running[key] = _Running(row, number=row.id)
            running.ready.set()

    # --- What the user does ---

    async def wrote(
        self, paths: Sequence[str], undo_of: str | None, label: str | None, bring_back: bool = False
    ) -> None:
        """Record that Emacs has written `paths`: the user's own work, or an undo of a part of the turn `undo_of`.

        With `bring_back`, a part of that turn that was undone is there again.
        """
        for root in list(self._roots.values()):
            names = [path for each in paths if (path := root.record.names.name_in(each)) is not None]
            undone = None if undo_of is None else root.record.names.number(undo_of)
            if undone is not None:
                root.do(partial(self._undo, root, undone, label or "Undo", names, bring_back))
            elif undo_of is None:
                for path in names:
                    root.reserved[path] += 1
                    with suppress(TooLargeError, OSError):
                        loaded = await to_thread.run_sync(root.record.look, path, abandon_on_cancel=True)
                        root.do(lambda root=root, path=path, loaded=loaded: self._claim(root, path, loaded))
                    self._release(root, path)

    def _claim(self, root: _Root, path: bytes, loaded: Loaded | None) -> None:
        root.record.claim(path, loaded)
        root.changed.update(running.number for running in root.running.values() if running.number is not None)

    def _undo(self, root: _Root, undone: int, label: str, paths: Sequence[bytes], bring_back: bool) -> None:
        turn = root.record.undo(undone, _shortened(label), paths, _now(), bring_back)
        root.changed.add(undone)
        if turn is not None:
            # For what is brought back, an undoing that Emacs may not have known of.
            root.changed.update(number for number in (turn.id, turn.undone) if number is not None)

    async def prepare_merge(self, tree: str) -> str:
        """Return the root into which changes in the worktree `tree` are merged, its files recorded as they are now.

        :raises RecordError, WorktreeError: when that fails
        """
        name = await to_thread.run_sync(home_of, tree, self._names, abandon_on_cancel=True)
        root = await self._root(name)
        if root is None:
            raise RecordError(f"Nothing can be recorded of {name}: {self._refused.get(name)}")
        root.do(lambda: self._scan(root, lambda: self._suspects_before(root, set())))
        await root.done_so_far()
        if not root.record.has_baseline:
            raise RecordError(f"Nothing can be recorded of {name}: {self._refused.get(name)}")
        return name

    async def merged(self, paths: Sequence[str], turn: str, label: str) -> None:
        """Record that Emacs has merged parts of `turn`, one in a worktree, into `paths`."""
        numbers = ((root, root.record.names.number(turn)) for root in self._roots.values())
        found = [(root, number) for root, number in numbers if number is not None]
        row = found[0][0].record.store.turn(found[0][1]) if found else None
        if row is None:
            await self.wrote(paths, None, None)
            return
        for root in list(self._roots.values()):
            names = [path for each in paths if (path := root.record.names.name_in(each)) is not None]
            if names and root.record is self.record_around(paths[0]):
                root.do(partial(self._merge, root, row, label, names))

    def _merge(self, root: _Root, of: TurnRow, label: str, paths: Sequence[bytes]) -> None:
        turn = root.record.merge(of, _shortened(label), paths, _now())
        if turn is not None:
            root.changed.add(turn.id)

    def mark(self, turn: str, path: str | None, hunks: Sequence[str], seen: bool) -> None:
        """Note that the user has `seen` something of `turn`, or takes that back."""
        for root in self._roots.values():
            number = root.record.names.number(turn)
            if number is not None:

                def mark(root: _Root = root, number: int = number) -> None:
                    root.record.answers.mark(number, path, hunks, seen)
                    root.changed.add(number)

                root.do(mark)

    async def forget(self, name: str | None) -> None:
        """Remove what is recorded of the root `name`, or of all roots.

        :raises RecordError: when that fails
        """
        for root in [root for key, root in self._roots.items() if name in (None, key)]:
            done = anyio.Event()

            def forget(root: _Root = root, done: anyio.Event = done) -> None:
                try:
                    root.record.forget()
                    root.running.clear()
                    root.changed.update(root.told)
                finally:
                    anyio.from_thread.run_sync(done.set)

            root.do(forget)
            await done.wait()
        if name is None:
            await to_thread.run_sync(forget_unused, self.environ, abandon_on_cancel=True)

    def busy(self, paths: Sequence[str]) -> list[tuple[str, str, str]]:
        """Return at which of `paths` an agent is at work: the path, the turn and the tool."""
        found: list[tuple[str, str, str]] = []
        for root in self._roots.values():
            for call in root.calls.values():
                running = root.running.get(call.session)
                turn = "" if running is None or running.number is None else root.record.names.identifier(running.number)
                for path in paths:
                    name = root.record.names.name_in(path)
                    if name is not None and (call.is_command or call.path == name):
                        found.append((path, turn, call.tool))
        return found

    async def wait_until_idle(self, paths: Sequence[str]) -> list[tuple[str, str, str]]:
        """Wait until no agent is at work at `paths`, or `WAIT_S`; return what `busy` returns then."""
        with anyio.move_on_after(WAIT_S):
            while self.busy(paths):
                await self._idle.wait()
        return self.busy(paths)

    def _now_idle(self) -> None:
        """Wake the waiters for agents to be done."""
        self._idle.set()
        self._idle = anyio.Event()

    # --- Telling ---

    def watch(self, on: bool) -> None:
        """Begin or stop telling Emacs: the user looks, or no longer does."""
        self._watching = self._telling_all = on
        self._dirty.set()

    async def _tell_all(self) -> None:
        self._telling_all = False
        updates: list[Update] = []
        for root in list(self._roots.values()):
            # What changes from now on is told next.
            root.changed = set()
            root.told = await to_thread.run_sync(self._summaries, root, None, abandon_on_cancel=True)
            updates += [self._update(summary, None) for summary in root.told.values()]
        self._tell(sorted(updates, key=lambda update: update.turn.start), (), True)

    async def _tell_changes(self) -> None:
        for root in list(self._roots.values()):
            numbers, root.changed = root.changed, set()
            if not numbers:
                continue
            now = await to_thread.run_sync(self._summaries, root, numbers, abandon_on_cancel=True)
            updates = [self._update(summary, root.told.get(number)) for number, summary in now.items()]
            gone = [number for number in numbers if number not in now and root.told.pop(number, None) is not None]
            root.told.update(now)
            if updates or gone:
                self._tell(updates, [root.record.names.identifier(number) for number in gone], False)

    def _summaries(self, root: _Root, numbers: set[int] | None) -> dict[int, Summary]:
        try:
            wanted = root.record.answers.turns() if numbers is None else sorted(numbers)
            return {number: found for number in wanted if (found := root.record.answers.summary(number)) is not None}
        except FAILURES:
            return {}

    def _update(self, summary: Summary, before: Summary | None) -> Update:
        known = {} if before is None else before.files
        files = tuple(file for path, file in summary.files.items() if known.get(path) != file)
        turn = replace(summary.turn, cli=self._connected.get(summary.turn.session))
        return Update(turn, files, tuple(path for path in known if path not in summary.files))

    # --- Answering ---

    def record_of(self, name: str) -> Record:
        """Return the record of the root `name`, as Emacs has it.

        :raises RecordError: when that fails
        """
        root = self._roots.get(name)
        if root is None:
            raise RecordError(f"Nothing is recorded of {name}")
        return root.record

    def record_around(self, path: str) -> Record | None:
        """Return the record of the innermost root that `path` is in."""
        found = [root.record for root in self._roots.values() if root.record.names.name_in(path) is not None]
        return max(found, key=lambda record: len(record.root), default=None)

    def _name_of(self, directory: str) -> str | None:
        """Return the root that `directory` is in, as Emacs has it, or the worktree in that."""
        if directory not in self._names_around:
            try:
                file_name(directory)
            except FileNameError:
                return None
            true = os.path.realpath(directory) + "/"
            found = [name for name in self._names if true.startswith(os.path.realpath(name).rstrip("/") + "/")]
            innermost = max(found, key=len, default=None)
            self._names_around[directory] = innermost and root_around(innermost, directory)
        return self._names_around[directory]


def _open(name: str, environ: Mapping[str, str], only_known: bool) -> Record | None:
    """Open the record of the root `name`; None where there is none and it is `only_known` that is wanted."""
    if only_known and not is_recorded([name], environ):
        return None
    return Record(name, environ)


@frozen
class _CallValues:
    """What a hook says of a call of `tool`: the file that it edits, or the directory that it runs in; "" for none."""

    tool: str
    place: str


def _values_of(event: Event) -> _CallValues:
    tool = str(getattr(event, "tool_name", ""))
    values = cast("Mapping[str, object]", getattr(event, "tool_input", {}))
    place = values.get("directory" if tool == SHELL_TOOL else EDIT_TOOLS.get(tool, ""))
    return _CallValues(tool, place if isinstance(place, str) else "")


def _call_of(event: Event, record: Record) -> _Call:
    values = _values_of(event)
    path = values.place if values.tool in EDIT_TOOLS else ""
    name = record.names.name_in(os.path.join(event.cwd, path)) if path else None
    return _Call(event.session_id, values.tool, event.agent_id or "", name)


def _call_id(event: Event) -> str:
    identifier = getattr(event, "tool_call_id", None) or getattr(event, "tool_use_id", None)
    return f"{event.session_id} {identifier or getattr(event, 'tool_name', '')}"


def _undone_text(files: Sequence[str]) -> str:
    """Return the note for the agent that the user has undone something in `files`."""
    named = "\n".join(f"- {path}" for path in files[:50])
    more = f"\n- and {len(files) - 50} more" if len(files) > 50 else ""
    return (
        "Since your last turn the user has undone some or all of your changes in these files, on purpose. "
        f"Read a file again before you edit it or rely on its text:\n{named}{more}"
    )


def _row(session: str, client: str, source: str, prompt: str, start: int, peer: Peer | None) -> TurnRow:
    """Return a turn that begins."""
    line = _shortened(next(iter(prompt.splitlines()), ""))
    pid, started = (None, None) if peer is None else (peer.pid, peer.started)
    return TurnRow(0, session, client, source, line, start, None, None, (), pid, started)


def _clis(sessions: Sequence[KnownSession], known: Mapping[str, _SilentCli]) -> list[_SilentCli]:
    """Return the CLIs of `sessions` with a process; those of `known` as they are."""
    return [
        known.get(_key_of(session.peer)) or _SilentCli(session, session.peer, _since(session.peer))
        for session in sessions
        if session.peer is not None
    ]


def _since(peer: Peer) -> float:
    """Return the time since which changes may be those of a CLI that is seen for the first time."""
    age = age_of(peer.started)
    return time.time() - (age if age is not None and age <= ARRIVAL_S else 0)


def _key_of(peer: Peer) -> str:
    """Return an id for the conversation of a CLI that does not tell its own."""
    return f"process {peer.pid} {peer.started}"


def _shortened(text: str) -> str:
    words = " ".join(text[:800].split())
    return words if len(words) <= 80 else words[:79] + "…"


def _now() -> int:
    return int(time.time() * 1000)
