# SPDX-License-Identifier: GPL-3.0-or-later
"""Handle the events that hooks report."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import anyio

from qwen_companion.base.processes import ended
from qwen_companion.base.sockets import Connection
from qwen_companion.base.tasks import Tasks, contained, contained_call
from qwen_companion.base.threads import in_thread
from qwen_companion.domain import NEWS_UNITS, HookAnswer, Peer, SessionState, Settings
from qwen_companion.doors import events
from qwen_companion.doors.files import LocalFiles, RemotePlaces
from qwen_companion.doors.held import Asker, HeldCalls, Reply
from qwen_companion.doors.layers import SettingsLayers
from qwen_companion.doors.listeners import Block, Failure, Listener, Report, Words
from qwen_companion.doors.questions import Questions
from qwen_companion.doors.reviews import HookReviews
from qwen_companion.doors.states import States, first_words
from qwen_companion.doors.terminal_files import terminal_files
from qwen_companion.ide.peers import Caller
from qwen_companion.ide.proposals import Decision
from qwen_companion.ide.sessions import Sessions
from qwen_companion.ide.tools import Editor

_WATCH_S = 2.0
"""Seconds between checks whether a process has ended, if the system does not report that."""

_CONNECTED_S = 30.0
"""Seconds that a remote CLI may take to connect after its first hook."""

_LARGE_BYTES = 256 * 1024
"""Smallest body whose parsing would block the event loop too long."""

_MAX_KINDS = 30
"""Most answers that are kept for a process; the oldest is dropped first."""


EventT = TypeVar("EventT", bound=events.Event)


class Answers:
    """The answers to each process, for display.  They contain no text of prompts or files."""

    def __init__(self) -> None:
        self._given: defaultdict[int, dict[tuple[str, str, str], HookAnswer]] = defaultdict(dict)

    def note(self, pid: int, event: events.Event, answer: events.Answer, now: int) -> None:
        """Note that `event` of process `pid` was answered `answer` at `now`, in ms since the epoch."""
        given = self._given[pid]
        key = (
            event.name,
            first_words(event.tool_name) if isinstance(event, events.ToolEvent) else "",
            events.describe(answer),
        )
        before = given.pop(key, HookAnswer(*key, count=0, time=now))
        given[key] = replace(before, count=before.count + 1, time=now)
        if len(given) > _MAX_KINDS:
            del given[next(iter(given))]

    def get(self, pid: int) -> tuple[HookAnswer, ...]:
        """Return the answers to process `pid`, the newest first."""
        return tuple(reversed(self._given[pid].values())) if pid in self._given else ()

    def forget(self, pid: int) -> None:
        """Forget the process `pid`, which has ended."""
        self._given.pop(pid, None)


@dataclass(eq=False)
class HookCall:
    """One call of a hook, with the report `data`.

    `shortened`: long texts of the report are missing.  `before_edit`: the edit must not be made without an answer.
    `gone` is set when the caller no longer waits for the reply.
    """

    data: bytes
    shortened: bool
    connection: Connection
    before_edit: bool = False
    gone: anyio.Event = field(default_factory=anyio.Event)


@dataclass(eq=False)
class _Delivery:
    """The handling of `report` by `listener`; `words` is the result once `done`."""

    listener: Listener
    report: Report
    done: anyio.Event = field(default_factory=anyio.Event)
    words: Words | None = None

    async def run(self, turn: anyio.Lock) -> None:
        """Pass the report to the listener, after the earlier ones of the same process, by the lock `turn`."""
        async with turn:
            self.words = await contained(self.listener.hear, self.report)
        self.done.set()

    async def result(self) -> Words | None:
        """Return the result; None if it comes after the CLI has stopped waiting."""
        with anyio.CancelScope(deadline=self.report.waits_until):
            await self.done.wait()
        return self.words


class HookHandler:
    """Answers the hooks: keeps the states of CLIs, informs the listeners, and asks the user.

    Call its methods on the event loop.
    """

    def __init__(
        self,
        layers: SettingsLayers,
        known: Sequence[SessionState],
        editor: Editor,
        sessions: Sessions,
        places: RemotePlaces,
        listeners: Sequence[Listener],
        find_caller: Callable[[Connection], Caller | None],
        changed: Callable[[], None],
    ) -> None:
        """`known` has the sessions of an earlier process.

        `find_caller`, called in a thread, returns the process at the other end of a connection.  `changed` is called
        when a state has changed.
        """
        files_of = partial(terminal_files, layers.directory)
        self.states = States(known)
        self.reviews = HookReviews(editor, files_of)
        self.questions = Questions(editor, files_of, layers.environ, places)
        self.listeners = tuple(listeners)
        self._editor = editor
        self._sessions = sessions
        self._places = places
        self._find_caller = find_caller
        self._changed = changed
        self._answers = Answers()
        self._is_watched = False
        self._tasks = Tasks()
        # Saves one turn of the event loop.
        self._turn = anyio.Lock(fast_acquire=True)
        self._callers: dict[str, list[Caller]] = {}
        """The CLIs of each conversation: several if one has resumed it while another still has it."""
        self._turns: dict[int, defaultdict[int, anyio.Lock]] = {}
        """By process and index of listener, a lock that keeps events in order."""

    async def run(self) -> None:
        """Run the tasks that hooks start, until cancelled."""
        async with self._tasks, self.reviews.tasks, self.questions.tasks:
            await anyio.sleep_forever()

    def set_settings(self, settings: Settings) -> None:
        """Set the user's settings."""
        self.reviews.scope = settings.reviewed
        self.questions.wanted = settings.questions

    def decide(self, identifier: str, decision: Decision) -> None:
        """Carry out the user's decision on the proposal `identifier`, which came from a hook."""
        if not self.questions.decide(identifier, decision) and not self.reviews.decide(identifier, decision):
            self._editor.settled(identifier)

    def watch(self, on: bool) -> None:
        """Begin or stop reporting the answers to hooks."""
        self._is_watched = on
        self._report_answers()

    def _report_answers(self, pid: int | None = None) -> None:
        """Report, while Emacs watches, the answers to the hooks of process `pid`, None for all."""
        for state in self._sessions.states() if self._is_watched else ():
            peer = state.session.peer
            if peer is not None and pid in (None, peer.pid):
                self._editor.hook_answers(state.session.id, self._answers.get(peer.pid))

    def prompted(self, pid: int, prompt: str, time: int) -> bool:
        """Note that process `pid` has begun a turn with `prompt`, see `States.prompted`."""
        has_ended = self.states.prompted(pid, prompt, time)
        self._changed()
        return has_ended

    async def reply(self, call: HookCall) -> Reply:
        """Return the reply to `call`, whose event is noted after those of earlier calls.

        :raises ValueError: if a call before an edit does not report one
        """
        async with self._turn:
            event, caller = await self._read(call)
            calls = None if caller is None else self._calls_of(event, caller.peer)
            deliveries: list[_Delivery] = []
            # Listeners get no event without its long texts: it would mislead them.
            if caller is not None and calls is None and not call.before_edit and not call.shortened:
                deliveries = self._deliver(self._report(event, caller))
        if call.before_edit and isinstance(event, events.PreToolUse):
            return await self._before_edit(event, caller, call)
        if caller is None:
            return Reply()
        if calls is not None and isinstance(event, events.PostToolUse):
            return await self._after_call(calls, event, caller, call.shortened)
        if isinstance(event, events.PermissionRequest) and not call.shortened:
            return await self._decide(event, caller, call.gone)
        return self._reply_with(event, caller.peer, await _results(deliveries))

    async def _read(self, call: HookCall) -> tuple[events.Event, Caller | None]:
        """Return the event that `call` reports, and its caller, None if unknown; note it in the caller's state.

        :raises ValueError: as `reply` does
        """
        parse = partial(events.parse_event, call.data)
        event = parse() if len(call.data) <= _LARGE_BYTES else await in_thread(parse)
        if call.before_edit and not isinstance(event, events.PreToolUse):
            raise ValueError("it reports no edit")
        if event is None:
            return events.Event(), None
        caller = await self._caller(event, call.connection)
        return (event, None) if caller is None else (self._note(event, caller.peer), caller)

    def _calls_of(self, event: events.Event, peer: Peer) -> HeldCalls[Any] | None:
        """Return the held calls that contain the tool call reported by `event` of process `peer`, or None."""
        if not isinstance(event, events.PostToolUse):
            return None
        return next((calls for calls in (self.reviews, self.questions) if calls.awaits(peer, event)), None)

    def _report(self, event: events.Event, caller: Caller) -> Report:
        session = self._sessions.of_process(caller.peer.pid)
        return Report(event, caller.peer, caller.label, session and session.id, _now())

    def _note_answer(self, event: events.Event, peer: Peer, answer: events.Answer) -> None:
        self._answers.note(peer.pid, event, answer, _now())
        self._report_answers(peer.pid)

    def _note(self, event: events.Event, peer: Peer) -> events.Event:
        """Note `event` of the process `peer`; return it with the subagent that it belongs to."""
        pid = peer.pid
        if pid not in self._turns:
            self._turns[pid] = defaultdict(partial(anyio.Lock, fast_acquire=True))
            self._tasks.start(self._forget_at_end, peer)
        event = self.states.attribute(pid, event)
        if isinstance(event, events.SubagentStop) and event.agent_id is not None:
            self.reviews.end_agent(pid, event.agent_id)
        if self.states.note(pid, event, _now()):
            self._changed()
        guessed = self._guessed(pid, event)
        self.reviews.note(peer, guessed)
        self.questions.note(peer, guessed)
        return event

    def _guessed(self, pid: int, event: EventT) -> EventT:
        """Return `event` of process `pid`, attributed to a running subagent if it does not name its agent.

        A review can be answered for either; without the attribution, a subagent would be refused.
        """
        unknown = isinstance(event, events.ToolEvent) and event.agent_id is None and event.prompt_id is None
        return event.model_copy(update={"agent_id": self.states.running_agent(pid)}) if unknown else event

    # --- Listeners ---

    def _deliver(self, report: Report) -> list[_Delivery]:
        """Begin to pass `report` to the listeners that subscribe; return the deliveries for which the CLI waits."""
        # The process may end, and its locks be dropped, before a delivery begins.
        turns = self._turns[report.peer.pid]
        now = anyio.current_time()
        waited: list[_Delivery] = []
        for place, listener in enumerate(self.listeners):
            hold_s = _hold_s(listener, report)
            if hold_s is not None:
                delivery = _Delivery(listener, replace(report, waits_until=now + hold_s))
                self._tasks.start(self._run, delivery, turns[place])
                waited += [delivery] if hold_s > 0 else []
        return waited

    async def _run(self, delivery: _Delivery, turn: anyio.Lock) -> None:
        """Run `delivery`, and note a failure that it finds."""
        await delivery.run(turn)
        words, pid = delivery.words, delivery.report.peer.pid
        if isinstance(words, Failure) and self.states.fail(pid, words.reason, _now()):
            self._changed()

    def _reply_with(self, event: events.Event, peer: Peer, said: Iterable[Words]) -> Reply:
        """Return the reply to `event` of the process `peer` with the results of listeners."""
        answer = _answer(event, said)
        if events.blocks(answer):
            self.states.stop(peer.pid, "token limit", _now())
            self._changed()
        self._note_answer(event, peer, answer)
        return Reply(answer)

    # --- Edits, plans and questions ---

    async def _notify(self, caller: Caller, event: events.ToolEvent) -> str:
        """Pass `event` of `caller` to the listeners; return their texts for the model, or ""."""
        return "\n\n".join(_texts(await _results(self._deliver(self._report(event, caller)))))

    async def _before_edit(self, event: events.PreToolUse, caller: Caller | None, call: HookCall) -> Reply:
        if call.shortened:
            # A text of this size is not shown.
            event = event.model_copy(update={"tool_input": {**event.tool_input, "content": None, "old_string": None}})
        if caller is None:
            return self.reviews.reply_to_unknown(event)
        guessed = self._guessed(caller.peer.pid, event)
        agent = None if guessed.agent_id is None else self.states.agent(caller.peer.pid, guessed.agent_id)
        notify = partial(self._notify, caller)
        reply = await self.reviews.reply(guessed, self._asker(caller), agent, notify, call.gone)
        if not events.refuses(reply.answer):
            await notify(event)
        self._note_answer(event, caller.peer, reply.answer)
        return reply

    async def _after_call(
        self, calls: HeldCalls[Any], event: events.PostToolUse, caller: Caller, shortened: bool
    ) -> Reply:
        if shortened:
            event = event.model_copy(update={"tool_response": None})
        # This may change the file, so do it before the listeners read it.
        words = await calls.ran(caller.peer, event)
        return self._reply_with(
            event, caller.peer, [words, *await _results(self._deliver(self._report(event, caller)))]
        )

    async def _decide(self, request: events.PermissionRequest, caller: Caller, gone: anyio.Event) -> Reply:
        # The CLI refuses plans and questions of subagents.
        agent = self._guessed(caller.peer.pid, request).agent_id
        is_question = agent is None and request.tool_name in events.QUESTION_TOOLS
        reply = await self.questions.reply(request, self._asker(caller), gone) if is_question else Reply()
        self._note_answer(request, caller.peer, reply.answer)
        return reply

    async def _forget_at_end(self, peer: Peer) -> None:
        await self._end_of(peer)
        self.reviews.end_process(peer.pid)
        self.questions.end_process(peer.pid)
        self.states.forget(peer.pid)
        self._answers.forget(peer.pid)
        remaining = {
            session: [caller for caller in callers if caller.peer.pid != peer.pid]
            for session, callers in self._callers.items()
        }
        self._callers = {session: callers for session, callers in remaining.items() if callers}
        del self._turns[peer.pid]
        for listener in self.listeners:
            contained_call(listener.ended, peer)

    async def _end_of(self, peer: Peer) -> None:
        """Wait until the process of `peer` has ended, or a remote one has disconnected."""
        if peer.place is None:
            await ended(peer.pid, peer.started, _WATCH_S)
            return
        # Its first hook may arrive before it connects.
        await anyio.sleep(_CONNECTED_S)
        while self._sessions.of_process(peer.pid) is not None:
            await anyio.sleep(_WATCH_S)

    async def _caller(self, event: events.Event, connection: Connection) -> Caller | None:
        """Return the caller that reports `event`, by its conversation or else by its connection."""
        if (there := self._places.caller(connection)) is not None:
            # The event could name any conversation of this machine.
            return there
        known = self._callers.get(event.session_id, ())
        only = known[0] if len(known) == 1 else None
        # Another CLI may have resumed the conversation.
        if only is not None and not isinstance(event, events.SessionStart):
            return only
        caller = await in_thread(self._find_caller, connection)
        if caller is None:
            return only
        callers = self._callers.setdefault(event.session_id, [])
        if caller.peer.pid not in {other.peer.pid for other in callers}:
            callers.append(caller)
        return caller

    def _asker(self, caller: Caller) -> Asker:
        """Return `caller` as the reviews need it, with its session if it is connected."""
        peer, session = caller.peer, self._sessions.of_process(caller.peer.pid)
        if session is None:
            # Without a session, it is unknown where its files are.
            return Asker(peer, f"process {peer.pid}", caller.label, None if peer.place else LocalFiles())
        files = self._places.files(peer) if peer.place else LocalFiles()
        return Asker(peer, session.id, session.label, files)


async def _results(deliveries: Iterable[_Delivery]) -> list[Words]:
    """Return the results of the `deliveries` that are done in time."""
    results = [await delivery.result() for delivery in deliveries]
    return [words for words in results if words]


def _answer(event: events.Event, said: Iterable[Words]) -> events.Answer:
    """Return the answer to `event` with the results of listeners."""
    words = list(said)
    reason = next((each.reason for each in words if isinstance(each, Block)), None)
    if reason is not None and event.name == events.UserPromptSubmit.name:
        return events.block(reason)
    texts = _texts(words)
    return events.add_context(event, "\n\n".join(texts)) if texts else events.NO_DECISION


def _texts(words: Iterable[Words]) -> list[str]:
    """Return the texts of `words` for the model, within its limit."""
    words = list(words)
    texts = [each for each in words if isinstance(each, str) and each]
    for each in words:
        if callable(each):
            used = sum(len(text.encode("utf-16-le", "surrogatepass")) // 2 + 2 for text in texts)
            text = contained_call(each, max(0, NEWS_UNITS - used))
            texts += [text] if text else []
    return texts


def _hold_s(listener: Listener, report: Report) -> float | None:
    """Return the most seconds that the CLI waits for `listener`; None if that does not subscribe to `report`."""
    event = report.event
    tool = event.tool_name if isinstance(event, events.ToolEvent) else ""
    matching = (
        subscription.hold_s
        for subscription in listener.subscriptions
        if subscription.event == event.name
        and (subscription.tools is None or re.fullmatch(subscription.tools, tool) is not None)
    )
    hold_s = max(matching, default=None)
    return hold_s if not hold_s or contained_call(listener.holds, event) else 0.0


def _now() -> int:
    return int(time.time() * 1000)
