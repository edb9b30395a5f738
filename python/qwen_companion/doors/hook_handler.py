# SPDX-License-Identifier: GPL-3.0-or-later
"""Handle the events that hooks report."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import anyio

from qwen_companion.base.processes import ended
from qwen_companion.base.sockets import Connection
from qwen_companion.base.tasks import Tasks, contained, contained_call
from qwen_companion.base.threads import in_thread
from qwen_companion.domain import NEWS_UNITS, HookAnswer, Peer, SessionState, Settings
from qwen_companion.doors import events
from qwen_companion.doors.calls import HookCall, PendingReply, RemotePlaces, Reply, no_decision
from qwen_companion.doors.files import LocalFiles
from qwen_companion.doors.held import Asker
from qwen_companion.doors.hook_settings import QUESTION_TOOLS
from qwen_companion.doors.layers import SettingsLayers
from qwen_companion.doors.listeners import Block, Listener, Report, Words
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
class _Delivery:
    """The handling of an event by `listener`, serialized by the lock `turn`; `words` is the result once `done`.

    The CLI waits for it `hold_s` seconds at most, `until` a time of the event loop.
    """

    listener: Listener
    turn: anyio.Lock
    hold_s: float
    until: float
    done: anyio.Event = field(default_factory=anyio.Event)
    words: Words | None = None


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
        self.listeners = (*listeners, self.questions)
        self._editor = editor
        self._sessions = sessions
        self._places = places
        self._find_caller = find_caller
        self._changed = changed
        self._answers = Answers()
        self._is_watched = False
        self._tasks = Tasks()
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

    async def accept(self, call: HookCall) -> PendingReply:
        """Begin to handle `call`; return a function that waits for its reply.  Pass the next call after this returns.

        :raises ValueError: if a call before an edit does not report one
        """
        parse = partial(events.parse_event, call.data)
        event = parse() if len(call.data) <= _LARGE_BYTES else await in_thread(parse)
        caller = await self._caller(event, call.connection) if event else None
        if call.before_edit and not isinstance(event, events.PreToolUse):
            raise ValueError("it reports no edit")
        if event is not None and caller is not None:
            event = self._note(event, caller.peer)
        if call.before_edit and isinstance(event, events.PreToolUse):
            return partial(self._before_edit, event, caller, call)
        if event is None or caller is None:
            return no_decision
        if isinstance(event, events.PostToolUse) and self.reviews.awaits(caller.peer.pid, event):
            if call.shortened:
                event = event.model_copy(update={"tool_response": None})
            return partial(self._after_edit, event, caller)
        report = self._report(event, caller)
        # Listeners get no event without its long texts: it would mislead them.
        deliveries = [] if call.shortened else self._deliveries(report)
        waited = [delivery for delivery in deliveries if delivery.hold_s > 0]
        if waited:
            self._begin(waited, report)
            others = [delivery for delivery in deliveries if delivery.hold_s == 0]
            return partial(self._reply_with, waited, others, report)
        self._begin(deliveries, report)
        if isinstance(event, events.PermissionRequest) and not call.shortened:
            return partial(self._decide, event, caller, call.gone)
        self._note_answer(event, caller.peer, events.NO_DECISION)
        return no_decision

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
        self.reviews.note(pid, self._guessed(pid, event))
        return event

    def _guessed(self, pid: int, event: EventT) -> EventT:
        """Return `event` of process `pid`, attributed to a running subagent if it does not name its agent.

        A review can be answered for either; without the attribution, a subagent would be refused.
        """
        unknown = isinstance(event, events.ToolEvent) and event.agent_id is None and event.prompt_id is None
        return event.model_copy(update={"agent_id": self.states.running_agent(pid)}) if unknown else event

    # --- Listeners ---

    def _deliveries(self, report: Report) -> list[_Delivery]:
        """Return a delivery for each listener that subscribes to the event of `report`."""
        # The process may end, and its locks be dropped, before a delivery begins.
        turns = self._turns[report.peer.pid]
        holds = ((place, listener, _hold_s(listener, report)) for place, listener in enumerate(self.listeners))
        now = anyio.current_time()
        return [
            _Delivery(listener, turns[place], hold_s, now + hold_s)
            for place, listener, hold_s in holds
            if hold_s is not None
        ]

    def _begin(self, deliveries: Iterable[_Delivery], report: Report) -> None:
        """Begin the `deliveries` of `report`."""
        for delivery in deliveries:
            self._tasks.start(self._deliver, delivery, report)

    async def _deliver(self, delivery: _Delivery, report: Report) -> None:
        async with delivery.turn:
            delivery.words = await contained(delivery.listener.hear, replace(report, waits_until=delivery.until))
        delivery.done.set()

    async def _reply_with(self, waited: Iterable[_Delivery], others: Iterable[_Delivery], report: Report) -> Reply:
        """Return the reply with the results that the `waited` deliveries have in time; begin the `others`."""
        said = await _results(waited)
        if any(isinstance(words, Block) for words in said):
            self.states.stop(report.peer.pid, "token limit", _now())
            self._changed()
        reply = self._answered_with(report, said)
        # The CLI does not wait for these.
        self._begin(others, report)
        return reply

    async def _deliver_all(self, report: Report) -> list[Words]:
        """Pass `report` to all listeners; return the results of those for which the CLI waits."""
        deliveries = self._deliveries(report)
        self._begin(deliveries, report)
        return await _results(delivery for delivery in deliveries if delivery.hold_s > 0)

    def _answered_with(self, report: Report, said: Iterable[Words]) -> Reply:
        answer = _answer(report.event, said)
        self._note_answer(report.event, report.peer, answer)
        return Reply(answer)

    # --- Edits, plans and questions ---

    async def _before_edit(self, event: events.PreToolUse, caller: Caller | None, call: HookCall) -> Reply:
        async def notify(reported: events.ToolEvent) -> str:
            if caller is None:
                return ""
            return "\n\n".join(_texts(await self._deliver_all(self._report(reported, caller))))

        if call.shortened:
            # A text of this size is not shown.
            event = event.model_copy(update={"tool_input": {**event.tool_input, "content": None, "old_string": None}})
        if caller is None:
            return await self.reviews.reply(event, None, None, notify, call.gone)
        guessed = self._guessed(caller.peer.pid, event)
        agent = None if guessed.agent_id is None else self.states.agent(caller.peer.pid, guessed.agent_id)
        reply = await self.reviews.reply(guessed, self._asker(caller), agent, notify, call.gone)
        if not events.refuses(reply.answer):
            await notify(event)
        self._note_answer(event, caller.peer, reply.answer)
        return reply

    async def _after_edit(self, event: events.PostToolUse, caller: Caller) -> Reply:
        # This may change the file, so do it before the listeners read it.
        words = await self.reviews.ran(caller.peer.pid, event)
        report = self._report(event, caller)
        return self._answered_with(report, [words, *await self._deliver_all(report)])

    async def _decide(self, request: events.PermissionRequest, caller: Caller, gone: anyio.Event) -> Reply:
        # The CLI refuses plans and questions of subagents.
        agent = self._guessed(caller.peer.pid, request).agent_id
        is_question = agent is None and re.fullmatch(QUESTION_TOOLS, request.tool_name)
        reply = await self.questions.reply(request, self._asker(caller), gone) if is_question else Reply()
        self._note_answer(request, caller.peer, reply.answer)
        return reply

    async def _forget_at_end(self, peer: Peer) -> None:
        await self._end_of(peer)
        self.reviews.end_process(peer.pid)
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


async def _results(waited: Iterable[_Delivery]) -> list[Words]:
    """Return the results of the `waited` deliveries that are done in time."""
    said: list[Words] = []
    for delivery in waited:
        with anyio.CancelScope(deadline=delivery.until):
            await delivery.done.wait()
        if delivery.words:
            said.append(delivery.words)
    return said


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
