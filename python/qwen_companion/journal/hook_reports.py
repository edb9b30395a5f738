# SPDX-License-Identifier: GPL-3.0-or-later
"""Handle the reports of hooks about agents: prompts, tools and their ends."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import anyio

from qwen_companion.domain import READ_TOOL, KnownSession, WaitingProposal
from qwen_companion.doors.listeners import Report, Words
from qwen_companion.journal.database import StoreError
from qwen_companion.journal.model_news import ModelNews, attached_files
from qwen_companion.journal.record import Cause, Record
from qwen_companion.journal.store import HOOKS, TurnRow
from qwen_companion.journal.subscriptions import EDIT_TOOLS, ENTER_TOOL, EXIT_TOOL, HOLD_S, SHELL_TOOL
from qwen_companion.journal.worktrees import entered
from qwen_companion.privacy.verdicts import printable

if TYPE_CHECKING:
    from qwen_companion.doors.events import Event
from qwen_companion.base.threads import in_thread
from qwen_companion.base.times import milliseconds
from qwen_companion.journal.agents import Agents
from qwen_companion.journal.attribution import Attribution
from qwen_companion.journal.root import Call, Root, Running, row_of, shortened
from qwen_companion.journal.roots import Roots
from qwen_companion.journal.turns import Turns

LOOK_WAIT_S = 0.8 * HOLD_S
"""Seconds that the report of a tool waits for scans of all files; the rest is for the file itself."""

_MS_S = 0.002
"""Seconds by which a time and a duration in whole ms may be off together."""

_MOST_TOLD = 10
"""Most files of one turn for which a model is told of another agent."""

_DELAY_MS = 600_000
"""Longest time between an event and its report."""

LATE = "the first look at all files took too long; what was changed in that time may be missing"


class HookReports:
    """The handler of the reports.  Call its methods on the event loop."""

    def __init__(
        self,
        roots: Roots,
        agents: Agents,
        attribution: Attribution,
        turns: Turns,
        news: ModelNews,
        waiting: Callable[[], Iterable[WaitingProposal]],
    ) -> None:
        """Handle the reports about `agents` in `roots`; `news` has the texts about changed files for their models.

        `waiting` returns the proposals of all CLIs.
        """
        self._roots = roots
        self._agents = agents
        self._attribution = attribution
        self._turns = turns
        self._news = news
        self._waiting = waiting

    async def hear(self, report: Report) -> Words | None:
        """Handle the report of a hook; return a text for the agent, or None."""
        name = self._roots.name_of(report.event.cwd)
        if not self._roots.settings.journal or name is None:
            return None
        event = report.event
        self._agents.pids[event.session_id] = report.peer.pid
        self._agents.connected[event.session_id] = report.session
        kind = event.name
        if kind == "UserPromptSubmit":
            return await self._prompt(name, report)
        tool = getattr(event, "tool_name", "")
        if tool == READ_TOOL:
            await self._note_read(name, report)
        elif tool in (ENTER_TOOL, EXIT_TOOL):
            await self._move(name, report)
        elif kind == "PreToolUse":
            for each in self._names_at_work(name, event):
                await self._before_tool(each, report)
        elif kind in ("PostToolUse", "PostToolUseFailure"):
            texts = [
                await self._after_tool(root, report) for root in self._open_roots(self._names_at_work(name, event))
            ]
            return next(filter(None, texts), None)
        elif kind in ("Stop", "StopFailure", "SessionEnd") or getattr(event, "notification_type", "") == "idle_prompt":
            # A cancelled turn has no Stop.
            for root in self._open_roots(self._names_of(name, event.session_id)):
                self._turns.end(root, event.session_id, _happened(report))
        return None

    def has_others(self, session: str) -> bool:
        """Return whether the model of `session` may have to be told of another agent.

        It may if another agent has a running turn in a root where `session` has one, or a waiting proposal.
        """
        if not self._roots.settings.tell_agents:
            return False
        roots = [root for root in self._roots.by_name.values() if session in root.running]
        return any(len(root.running) > 1 for root in roots) or bool(self._proposals_of_others(session))

    def _proposals_of_others(self, session: str) -> list[WaitingProposal]:
        # The proposal of a CLI that is not connected is named by its process.
        own = (self._agents.connected.get(session), f"process {self._agents.pids.get(session)}")
        return [each for each in self._waiting() if each.session not in own]

    def _open_roots(self, names: Sequence[str]) -> list[Root]:
        return [self._roots.by_name[name] for name in names if name in self._roots.by_name]

    def _names_of(self, name: str, session: str) -> list[str]:
        """Return `name`, and the other roots in which `session` has a turn or a running tool."""
        roots = self._roots.by_name.items()
        others = [key for key, root in roots if session in root.running or root.has_call_of(session)]
        return list(dict.fromkeys((name, *others)))

    def _names_at_work(self, name: str, event: Event) -> list[str]:
        """Return the roots in which the tool of `event` may write; its session works in the root `name`."""
        call = _values_of(event)
        around = self._roots.root_around(name, os.path.join(event.cwd, call.place)) if call.place else name
        if call.tool != SHELL_TOOL:
            return [around]
        return list(dict.fromkeys((around, *self._names_of(name, event.session_id))))

    async def _note_read(self, name: str, report: Report) -> None:
        event = report.event
        # The model of the conversation has not seen what a subagent reads.
        if event.name == "PostToolUse" and event.agent_id is None:
            await self._news.saw(name, event.session_id, os.path.join(event.cwd, _values_of(event).place), report.time)

    async def _move(self, name: str, report: Report) -> None:
        """Begin a turn in the worktree that an agent has entered by the tool of `report`, or note that it has left."""
        session = report.event.session_id
        self._agents.entered.pop(session, None)
        if report.event.name == "PostToolUse" and getattr(report.event, "tool_name", "") == ENTER_TOOL:
            wanted = cast("Mapping[str, object]", getattr(report.event, "tool_input", {})).get("name")
            tree = await in_thread(entered, name, self._roots.names, wanted)
            root = None if tree is None else await self._roots.open(tree)
            if root is not None:
                self._agents.entered[session] = root.record.root
                self._begin_reported(root, report, self._prompt_of(session))

    def _prompt_of(self, session: str) -> str:
        """Return the first line of the prompt that `session` works on, "" if unknown."""
        turns = [root.running[session].row.prompt for root in self._roots.by_name.values() if session in root.running]
        return next(filter(None, turns), "")

    async def _prompt(self, name: str, report: Report) -> Words | None:
        session = report.event.session_id
        if not report.event.begins_turn:
            # The turn only continues.
            return None
        prompt = str(getattr(report.event, "prompt", "")).strip()
        roots: list[Root] = []
        for each in dict.fromkeys(filter(None, (name, self._agents.entered.get(session)))):
            root = await self._roots.open(each)
            if root is not None:
                self._begin_reported(root, report, prompt)
                roots.append(root)
        return await self._news.of(roots, session, report.peer, report.event.cwd, report.time, attached_files(prompt))

    def _begin_reported(self, root: Root, report: Report, prompt: str) -> Running:
        row = row_of(report.event.session_id, report.cli, HOOKS, prompt, report.time, report.peer)
        running = self._turns.begin(root, row)
        running.prompt = None if report.peer.place else report.event.prompt_id
        return running

    async def _before_tool(self, name: str, report: Report) -> None:
        root = await self._roots.open(name)
        if root is None:
            return
        session = report.event.session_id
        running = root.running.get(session) or self._begin_reported(root, report, self._prompt_of(session))
        call = _call_of(report, root.record)
        if call.is_command:
            self._attribution.look_at_processes(root)
        if call.path is not None:
            await self._before_edit(root, call.path, running, report)
        root.calls[_call_id(report.event)] = call
        if running.ready.is_set():
            return
        with anyio.move_on_after(0 if running.waited else LOOK_WAIT_S):
            await running.ready.wait()
            return
        running.waited = True
        if call.is_command and not root.record.has_baseline:
            root.do(root.note, running, LATE)

    async def _before_edit(self, root: Root, path: bytes, running: Running, report: Report) -> None:
        """Record `path` before the tool of `report` writes it, and exclude it from scans until then."""
        changed = await in_thread(self._attribution.changed, root, path)
        before = await root.read(path)
        if running.ready.is_set():
            # The CLI may not wait until the scan after its last command has ended, which should see this file too.
            with anyio.move_on_after(LOOK_WAIT_S):
                await root.done_so_far()
                changed = await in_thread(self._attribution.changed, root, path)
                before = await root.read(path)
        # Without waiting until the call is known, with which this ends.
        root.reserved[path] += 1
        # What was read after the tool stopped waiting may be its own.
        if anyio.current_time() < report.waits_until:
            root.do(self._attribution.found_before, root, changed, before)

    async def _after_tool(self, root: Root, report: Report) -> str | None:
        """Record the effects of the tool of `report`; return the text for the model about other agents, or None."""
        session = report.event.session_id
        self._attribution.look_at_processes(root)
        call = root.calls.pop(_call_id(report.event), None) or await self._unannounced_call(root, report)
        self._turns.now_idle()
        running = root.running.get(session) or self._begin_reported(root, report, self._prompt_of(session))
        if (path := call.path) is not None:
            after = await root.read(path)
            root.do(lambda: root.keep(path, after, Cause(root.begin(running), call.tool, call.agent)))
            root.release(path)
            return await self._text_of_others(root, path, running) if self.has_others(session) else None
        if not call.is_command:
            root.do(root.note, running, "not recorded: a file that is not below the root")
            return None
        end, duration = _happened(report), getattr(report.event, "duration_ms", None)
        begin = call.begin if duration is None else (end - duration) / 1000 - _MS_S
        self._turns.look_after(root, replace(call, begin=begin), end)
        return None

    async def _unannounced_call(self, root: Root, report: Report) -> Call:
        """Return the call of `report`, which was not reported before it ran."""
        call = _call_of(report, root.record)
        if call.path is None:
            # It began at any time in its turn.
            return replace(call, begin=-math.inf)
        cli = KnownSession("", "", "", "", report.peer)
        return replace(call, tool=await in_thread(self._agents.recorded_tool, root, cli, call.path, call.tool))

    async def _text_of_others(self, root: Root, path: bytes, running: Running) -> str | None:
        """Return the text for the model about other agents that work on `path`, once in the turn `running`, or None."""
        if path in running.told or len(running.told) >= _MOST_TOLD:
            return None
        name = root.record.names.name_out(path)
        session, client = running.row.session, running.row.client
        proposed = self._proposals_of_others(session)

        def text() -> str | None:
            others = [each.row for each in root.others_at(path, session)]
            true = os.path.realpath(name)
            waiting = [each for each in proposed if os.path.realpath(each.path) == true]
            return _others_text(printable(name), client, others, waiting)

        with suppress(StoreError):
            found = await in_thread(text)
            if found is not None:
                running.told.add(path)
            return found
        return None


@dataclass(frozen=True)
class CallValues:
    """The values of a hook about a call of `tool`: the file that it edits, or its working directory; "" for none."""

    tool: str
    place: str


def _values_of(event: Event) -> CallValues:
    tool = str(getattr(event, "tool_name", ""))
    values = cast("Mapping[str, object]", getattr(event, "tool_input", {}))
    place = values.get("directory" if tool == SHELL_TOOL else {**EDIT_TOOLS, READ_TOOL: "file_path"}.get(tool, ""))
    return CallValues(tool, place if isinstance(place, str) else "")


def _happened(report: Report) -> int:
    """Return when the event of `report` happened by the clock of its CLI, in ms since the epoch.

    Return the time of the report if the CLI gives no plausible time, and for a remote CLI, whose clock may differ.
    """
    told = None if report.peer.place else milliseconds(report.event.timestamp)
    return told if told is not None and report.time - _DELAY_MS <= told <= report.time else report.time


def _call_of(report: Report, record: Record) -> Call:
    event, values = report.event, _values_of(report.event)
    path = values.place if values.tool in EDIT_TOOLS else ""
    name = record.names.name_in(os.path.join(event.cwd, path)) if path else None
    return Call(event.session_id, values.tool, event.agent_id or "", name, _happened(report) / 1000)


def _call_id(event: Event) -> str:
    identifier = getattr(event, "tool_call_id", None) or getattr(event, "tool_use_id", None)
    return f"{event.session_id} {identifier or getattr(event, 'tool_name', '')}"


def _others_text(path: str, client: str, changing: Sequence[TurnRow], waiting: Sequence[WaitingProposal]) -> str | None:
    """Return the note for the model of a `client` about other agents that work on the file `path`; None for none.

    The turns `changing` have changed it, and the proposals `waiting` want to.
    """

    def named(others: Sequence[TurnRow] | Sequence[WaitingProposal]) -> str:
        return ", ".join(dict.fromkeys(_name(each, client) for each in others[:3]))

    news = [
        f"{named(others)} has {done}"
        for others, done in (
            (changing, "changed it in a turn that goes on"),
            (waiting, "proposed a change of it, on which the user has not decided"),
        )
        if others
    ]
    return (
        f"Another agent works on {path} too: {'; '.join(news)}. Read the file again before you edit it the next time, "
        "and keep the changes that are not yours."
        if news
        else None
    )


def _name(other: TurnRow | WaitingProposal, client: str) -> str:
    """Return the name of the CLI of `other`, distinguished from a `client` of the same name."""
    name = shortened(other.client) or "a CLI"
    return f"{name} (process {other.pid})" if other.client == client and other.pid is not None else name
