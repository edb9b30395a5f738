# SPDX-License-Identifier: GPL-3.0-or-later
"""One session of the daemon as a state machine: takes the daemon's events, returns reports for Emacs.

No I/O.  It can be built anew from a load at any moment; the chat in Emacs holds no state of its own.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from enum import Enum
from typing import Any

from qwen_companion.daemon import models
from qwen_companion.daemon.ids import local_id
from qwen_companion.daemon.interrupted_turns import DONE, InterruptedTurns, Output
from qwen_companion.daemon.messages import (
    EndChange,
    NoteChange,
    PlanChange,
    PlanStep,
    Queued,
    SessionInfo,
    SlashCommand,
    SlashCommands,
    TextChange,
    UsageChange,
)
from qwen_companion.daemon.permissions import ME, NOBODY, OTHER, Permissions
from qwen_companion.daemon.sanitize import TextStream, clean, line, reveal
from qwen_companion.daemon.stream import Connected, Disconnected, Ended, Frame, ReplayDone, Resync, StreamItem
from qwen_companion.daemon.tools import Tools, unknown_content, without_texts

_log = logging.getLogger(__name__)

MODEL_WRITES = "user"
"""The settings that a change of the model writes there: the user's."""

_QUESTION = "user_question"
_BACKGROUND_DONE = "background_task_completed"
_BACKGROUND = "background_notification"
_BACKGROUND_TURN = "background_notification_turn_started"
_INJECTED = "mid_turn_message_injected"
_PLAN_STATUS = {"pending": "pending", "in_progress": "running", "completed": "done"}
_OUTCOMES = {"end_turn": "done", "cancelled": "cancelled"}
_TERMINALS = {"completed": DONE, "cancelled": "cancelled"}
_SHUTDOWN = "daemon_shutdown"
_FORWARD_FAILED = "forward_failed"
_UNKNOWN_PROMPT = ""
_KIND = re.compile(r"[\w./-]{1,80}")
_ANSWERED = ("_title", "_clients", "_model", "_model_names", "_mode")
"""Facts that answers to our questions tell, beside events."""
_SHORT_TEXT = 2000


class Treatment(Enum):
    """The treatment of an event without a handler."""

    QUIET = "it says nothing to a chat"
    UNSUPPORTED = "it ought to be shown and cannot be: the user is told its name"


class DaemonSession:
    """The state of one session."""

    def __init__(
        self,
        session_id: str,
        client_id: str | None,
        was_mine: Callable[[str], bool] = lambda _: False,
        interrupted: InterruptedTurns | None = None,
    ) -> None:
        """`session_id` and `client_id`, which is ours, are the daemon's; `was_mine` knows those that were ours before.

        `interrupted` are the turns that broke off before.
        """
        self.session_id = session_id
        self.id = local_id("session", session_id)
        self._client_id = client_id
        self._was_mine = was_mine
        self._title: str | None = None
        self._clients: int | None = None
        self._model: str | None = None
        self._model_names: dict[str, str] = {}
        self._mode: str | None = None
        self._window: tuple[int, int] | None = None
        self._end: tuple[str, str] | None = None
        self._why: str | None = None
        self._connected = False
        self._loading = True
        self._epoch: str | None = None
        self._interrupted = interrupted or InterruptedTurns()
        self._forget()

    def _forget(self) -> None:
        """Forget all that a load tells anew."""
        self._replaying = True
        self._running: str | None = None
        self._cancelling: str | None = None
        self._queue: dict[str, Queued] = {}
        self._removed: dict[str, str] = {}
        self._ended: set[str] = set()
        self._permissions = Permissions(self.id)
        self._tools = Tools()
        self._streams: dict[tuple[str, str | None, str | None], TextStream] = {}
        self._past_turns = 0
        self._past_turn: str | None = None
        self._first_words: str | None = None
        self._mentioned: set[tuple[str, str | None]] = set()
        self._reports: set[tuple[str | None, str]] = set()

    # --- What it is asked

    @property
    def info(self) -> SessionInfo:
        """Where it stands."""
        state, text = self._state()
        return SessionInfo(
            session=self.id,
            state=state,
            text=text,
            turn=local_id("turn", self._running) if self._running else None,
            # As the daemon lists one that has not been given a title.
            title=self._title or self._first_words,
            model=None if self._model is None else self._model_names.get(self._model, line(self._model)),
            mode=self._mode,
            used=None if self._window is None else self._window[0],
            size=None if self._window is None else self._window[1],
            clients=self._clients,
            queue=tuple(self._queue.values()),
        )

    def _state(self) -> tuple[str, str | None]:
        if self._end is not None:
            return self._end
        if self._loading:
            return "loading", None
        if not self._connected:
            return "disconnected", self._why
        if self._running is None:
            return "idle", None
        if self._cancelling == self._running:
            return "cancelling", None
        return ("waiting" if self._permissions.shown else "busy"), None

    @property
    def dead(self) -> bool:
        """Whether nothing more comes before it is loaded again."""
        return self._end is not None

    @property
    def busy(self) -> bool:
        """Whether a turn runs."""
        return self._running is not None

    @property
    def permissions(self) -> Permissions:
        """Those nobody is known to have answered."""
        return self._permissions

    def queued_prompt(self, turn: str) -> str | None:
        """Return the daemon's id of the queued prompt that Emacs calls `turn`."""
        return next((prompt for prompt, item in self._queue.items() if item.turn == turn), None)

    def tool_text(self, tool: str, part: str, index: int) -> str | None:
        """Return a text of the tool Emacs calls `tool`, see `HeldTool.text`."""
        found = self._tools.get(tool)
        return None if found is None else found.text(part, index)

    def tool_path(self, tool: str) -> str | None:
        """Return the file of the first change of the tool Emacs calls `tool`, as the daemon names it."""
        found = self._tools.get(tool)
        return None if found is None else found.first_path

    def tool_revision(self, tool: str) -> int | None:
        """Which one of its revisions the tool Emacs calls `tool` is in, see `ToolChange`."""
        found = self._tools.get(tool)
        return None if found is None else found.revision

    # --- What it is told

    def replayed(self, reply: models.LoadReply) -> tuple[DaemonSession, list[Output]]:
        """Return the session built anew from `reply`, and all that was said in it; `loaded` completes both.

        This session stays as it is, so that this can be done in a thread: it takes 0.1 s for each MB.
        """
        again = copy(self)
        again._forget()
        again._client_id = reply.client_id or self._client_id
        again._ended.update(item.prompt_id for item in reply.prompt_terminals)
        outputs = [
            output for envelope in (*reply.compacted_replay, *reply.live_journal) for output in again._event(envelope)
        ]
        return again, [*outputs, *again._flush()]

    def loaded(self, reply: models.LoadReply, outputs: Sequence[Output], why: str | None = None) -> list[Output]:
        """Begin with `reply`, because of `why`; return `outputs` completed by the turns that broke off before."""
        outcomes = {
            local_id("turn", item.prompt_id): _TERMINALS.get(item.terminal or "", "failed")
            for item in reply.prompt_terminals
        }
        if not reply.has_active_prompt:
            self._running = None
        elif self._running is None:
            self._running = _UNKNOWN_PROMPT
        completed = self._interrupted.completed(
            outputs, outcomes, running=self._running_turn(reply.event_epoch), why=why or "The turn broke off."
        )
        self._epoch = reply.event_epoch
        # The session lives now, even if its history has an end in it.
        self._end = self._why = None
        self._loading = False
        return completed

    def catch_up(self, before: DaemonSession, now: DaemonSession) -> None:
        """Take the facts by which `now`, which this session replaces, differs from `before`, its copy at the load."""
        for name in _ANSWERED:
            if getattr(now, name) != getattr(before, name):
                setattr(self, name, getattr(now, name))
        if now._running and now._running != before._running:
            self.accepted(now._running)

    def _running_turn(self, epoch: str) -> str | None:
        """Return the turn that runs after a load of `epoch`: None for none, "" for an unknown one."""
        if self._running != _UNKNOWN_PROMPT:
            return None if self._running is None else local_id("turn", self._running)
        # As long as neither daemon nor agent was replaced, the turn that ran goes on.
        return "" if self._epoch not in (None, epoch) else self._interrupted.running or ""

    def reloading(self) -> None:
        """Note that a load has been asked for."""
        self._loading = True
        self._connected = False
        self._end = None

    def lost(self, text: str) -> list[Output]:
        """Mark the session as dead because of `text`, until the user loads it again."""
        outputs = self._finish("dead", text)
        self._interrupted.told(outputs)
        return outputs

    def left(self) -> list[Output]:
        """Note that this client has left the session."""
        outputs: list[Output] = list(self._permissions.hold())
        self._end = "closed", "The session has been left."
        return outputs

    def take(self, item: StreamItem) -> list[Output]:
        """Take one item of the stream; return what Emacs is told."""
        match item:
            case Frame():
                self._replaying = item.replayed
                outputs = list(self._event(item.envelope))
                self._interrupted.told(outputs)
                return outputs
            case Connected():
                self._why = None
            case ReplayDone():
                self._replaying = False
                self._connected = True
            case Disconnected():
                self._connected, self._why = False, item.reason
                return list(self._permissions.hold())
            case Ended():
                return self.lost(str(item.error))
            case Resync():
                self._connected = False
                return list(self._permissions.hold())
        return []

    def status(self, reply: models.StatusReply | None, asked_about: frozenset[str]) -> list[Output]:
        """Take the daemon's status, None if it is unavailable; return what Emacs is told.

        `asked_about` is what `permissions.unanswered` was when it was asked: what came later it may not know.
        """
        outputs: list[Output] = []
        if reply is not None:
            self.counted(reply.client_count)
            waiting = {item.request_id for item in reply.pending_interactions}
            for request_id in asked_about - waiting:
                outputs += self._permissions.close(request_id)
            for item in reply.pending_interactions:
                if not self._permissions.knows(item.request_id):
                    outputs += self._interaction(item)
        return [*outputs, *self._permissions.show()]

    def choices(self, state: models.ContextState) -> None:
        """Take the available models and modes, and which are in use."""
        self._model_names = {item.model_id: line(item.name or item.model_id) for item in state.models.available_models}
        self._model = state.models.current_model_id or self._model
        self._mode = state.modes.current_mode_id or self._mode

    def counted(self, clients: int | None) -> None:
        """Note how many `clients` take part; None when the daemon does not say."""
        self._clients = clients

    def named(self, title: str | None) -> None:
        """Note the name `title` of the session, if any."""
        self._title = line(title) if title else self._title

    def model_id(self, identifier: str) -> str | None:
        """Return the daemon's id of the model that Emacs calls `identifier`."""
        return next((name for name in self._model_names if local_id("model", name) == identifier), None)

    def accepted(self, prompt_id: str) -> str:
        """Note that the daemon has taken our prompt, and return its turn.  Its echo may have come before."""
        known = prompt_id in self._ended or prompt_id in self._queue
        if not known and self._running is None:
            self._running = prompt_id
        return local_id("turn", prompt_id)

    def cancelling(self) -> None:
        """Note that the running turn is being cancelled."""
        self._cancelling = self._running

    def not_cancelling(self) -> None:
        """Note that the running turn could not be cancelled."""
        self._cancelling = None

    def answered_elsewhere(self, request_id: str) -> list[Output]:
        """Note that our answer came too late."""
        return list(self._permissions.close(request_id, OTHER))

    # --- Events

    def _event(self, envelope: models.Envelope) -> Iterator[Output]:
        payload = envelope.payload
        if isinstance(payload, models.Unknown):
            yield from self._unknown_event(payload.kind, envelope)
            return
        treatment = EVENTS[payload.KIND]
        if not isinstance(treatment, Treatment):
            yield from treatment(self, envelope, payload)
        elif treatment is Treatment.UNSUPPORTED:
            yield from self._unsupported(payload.KIND, envelope)

    def _unknown_event(self, kind: str, envelope: models.Envelope) -> Iterator[Output]:
        """Return the message to Emacs about an unrecognised or malformed event."""
        name = kind.rpartition("/")[2]
        treatment = EVENTS.get(name)
        if treatment is Treatment.QUIET:
            return
        if treatment is not None:
            # Of an event that is usually shown, something is missing now.
            yield from self._unsupported(name, envelope)
        elif (kind, None) not in self._mentioned:
            self._mentioned.add((kind, None))
            _log.info("unknown event: %s", kind if _KIND.fullmatch(kind) else "(with an odd name)")

    def _unsupported(self, name: str, envelope: models.Envelope) -> Iterator[Output]:
        """Name what is missing, once in each turn."""
        key = name, self._turn(envelope)
        if key not in self._mentioned:
            self._mentioned.add(key)
            yield self._note(envelope, "unsupported", line(name))

    def _note(self, envelope: models.Envelope, note: str, text: str) -> NoteChange:
        return NoteChange(self._turn(envelope), _time(envelope), note=note, text=text)

    def _turn(self, envelope: models.Envelope) -> str | None:
        return self._past_turn if envelope.prompt_id is None else local_id("turn", envelope.prompt_id)

    def _who(self, client_id: str | None) -> str | None:
        if client_id is None:
            return None
        return ME if client_id == self._client_id or self._was_mine(client_id) else OTHER

    def _user_chunk(self, envelope: models.Envelope, payload: models.UserMessageChunk) -> Iterator[Output]:
        # When read from the disk, injected and agents' texts come as if the user had said them (0.24.4).
        if payload.meta is not None and payload.meta.source == _INJECTED:
            yield self._note(envelope, "injected", clean(payload.content.text)[:_SHORT_TEXT])
            return
        if _in_background(payload.meta):
            yield from self._words(envelope, "answer", payload.content, payload.meta)
            return
        if envelope.prompt_id is not None:
            self._begin(envelope.prompt_id)
        elif self._replaying:
            # In a history from the disk only this event names the prompt, if any does.
            self._past_turns += 1
            known = None if payload.meta is None else payload.meta.prompt_id
            self._past_turn = local_id("turn", known or f"{self.session_id} {self._past_turns}")
        content = payload.content
        match content.type:
            case "text":
                text = content.text
            case "resource_link":
                # In a history from the disk, links come after all of the text.
                text = f"\n{_linked(content.uri)}" if envelope.prompt_id is None else _linked(content.uri)
            case other:
                text = f"[{line(other)}]\n"
        self._first_words = self._first_words or line(text) or None
        yield from self._text(envelope, "user", text, None, by=self._who(envelope.originator_client_id))

    def _answer_chunk(self, envelope: models.Envelope, payload: models.AgentMessageChunk) -> Iterator[Output]:
        yield from self._words(envelope, "answer", payload.content, payload.meta)
        meta = payload.meta
        if meta is not None and meta.usage is not None:
            yield UsageChange(
                self._turn(envelope),
                _time(envelope),
                input=meta.usage.input_tokens,
                output=meta.usage.output_tokens,
                thought=meta.usage.thought_tokens,
                cached=meta.usage.cached_read_tokens,
                duration=None if meta.duration_ms is None else round(meta.duration_ms),
                retries=meta.api_retries,
            )

    def _thought_chunk(self, envelope: models.Envelope, payload: models.AgentThoughtChunk) -> Iterator[Output]:
        yield from self._words(envelope, "thought", payload.content, payload.meta)

    def _words(
        self, envelope: models.Envelope, voice: str, content: models.Content, meta: models.Meta | None
    ) -> Iterator[Output]:
        if content.type != "text":
            yield from self._unsupported(f"{voice}/{content.type}", envelope)
            return
        if meta is not None and self._said_already(meta, content.text):
            return
        parent = None if meta is None or meta.parent_tool_call_id is None else meta.parent_tool_call_id
        name = None if parent is None else self._tools.name_of(parent)
        yield from self._text(envelope, voice, content.text, name, background=_in_background(meta))

    def _said_already(self, meta: models.Meta, text: str) -> bool:
        """Return whether `text` with `meta`, about something in the background, says nothing new."""
        if meta.source == _BACKGROUND_TURN:
            # The texts for the model, and its answer, come after it.
            return True
        report = (None if meta.background_task is None else meta.background_task.task_id, text)
        if meta.source == _BACKGROUND_DONE:
            self._reports.add(report)
            return False
        return meta.source == _BACKGROUND and report in self._reports

    def _text(
        self,
        envelope: models.Envelope,
        voice: str,
        text: str,
        parent: str | None,
        *,
        by: str | None = None,
        background: bool = False,
    ) -> Iterator[Output]:
        turn = self._turn(envelope)
        # A user's message and one of the background come whole.
        if voice == "user" or background:
            text = clean(text)
        else:
            text = self._streams.setdefault((voice, turn, parent), TextStream()).feed(text)
        if text:
            yield TextChange(turn, _time(envelope), voice=voice, text=text, by=by, parent=parent, background=background)

    def _flush(self) -> Iterator[Output]:
        """The text that the streams still hold back."""
        streams, self._streams = self._streams, {}
        for (voice, turn, parent), stream in streams.items():
            if text := stream.flush():
                yield TextChange(turn, None, voice=voice, text=text, parent=parent)

    def _tool_call(self, envelope: models.Envelope, payload: models.ToolCall) -> Iterator[Output]:
        yield from self._tool(envelope, payload, begins=True)

    def _tool_update(self, envelope: models.Envelope, payload: models.ToolCallUpdate) -> Iterator[Output]:
        yield from self._tool(envelope, payload, begins=False)

    def _tool(self, envelope: models.Envelope, fields: models.ToolFields, *, begins: bool) -> Iterator[Output]:
        for sort in unknown_content(fields.content):
            yield from self._unsupported(f"tool_call/{sort}", envelope)
        yield self._tools.merge(fields, self._turn(envelope), _time(envelope), begins=begins).change()

    def _plan(self, envelope: models.Envelope, payload: models.Plan) -> Iterator[Output]:
        steps = (
            PlanStep(
                clean(entry.content)[:_SHORT_TEXT],
                _PLAN_STATUS.get(entry.status or "", "pending"),
                None if entry.priority is None else line(entry.priority),
            )
            for entry in payload.entries
        )
        yield PlanChange(self._turn(envelope), _time(envelope), tuple(steps))

    def _usage(self, _envelope: models.Envelope, payload: models.UsageUpdate) -> Iterator[Output]:
        self._window = payload.used, payload.size
        return iter(())

    def _commands(self, _envelope: models.Envelope, payload: models.AvailableCommandsUpdate) -> Iterator[Output]:
        yield slash_commands(self.id, payload.available_commands)

    def _mode_update(self, _envelope: models.Envelope, payload: models.CurrentModeUpdate) -> Iterator[Output]:
        self._mode = line(payload.current_mode_id)
        return iter(())

    def _mode_changed(self, _envelope: models.Envelope, payload: models.ApprovalModeChanged) -> Iterator[Output]:
        self._mode = line(payload.next)
        return iter(())

    def _titled(self, _envelope: models.Envelope, payload: models.SessionInfoUpdate) -> Iterator[Output]:
        self.named(payload.title)
        return iter(())

    def _renamed(self, _envelope: models.Envelope, payload: models.SessionMetadataUpdated) -> Iterator[Output]:
        self.named(payload.display_name)
        return iter(())

    def _snapshot(self, _envelope: models.Envelope, payload: models.SessionSnapshot) -> Iterator[Output]:
        self._model = payload.current_model_id or self._model
        self._mode = line(payload.current_approval_mode) if payload.current_approval_mode else self._mode
        return iter(())

    def _model_switched(self, _envelope: models.Envelope, payload: models.ModelSwitched) -> Iterator[Output]:
        self._model = payload.model_id
        return iter(())

    def _model_failed(self, envelope: models.Envelope, payload: models.ModelSwitchFailed) -> Iterator[Output]:
        yield self._note(envelope, "model-failed", line(payload.error or "The model was not changed."))

    def _setting(self, envelope: models.Envelope, payload: models.SettingsChanged) -> Iterator[Output]:
        yield self._note(envelope, "setting", line(payload.key))

    def _injected(self, envelope: models.Envelope, payload: models.MidTurnMessageInjected) -> Iterator[Output]:
        for message_id in payload.message_ids:
            # It waited like a prompt, and becomes none.
            self._queue.pop(message_id, None)
        for message in payload.messages:
            yield self._note(envelope, "injected", clean(message)[:_SHORT_TEXT])

    def _suggestion(self, envelope: models.Envelope, payload: models.FollowupSuggestion) -> Iterator[Output]:
        yield NoteChange(None, _time(envelope), note="suggestion", text=clean(payload.suggestion)[:_SHORT_TEXT])

    def _truncated(self, envelope: models.Envelope, payload: models.HistoryTruncated) -> Iterator[Output]:
        yield self._note(envelope, "truncated", str(payload.truncated_events))

    def _rewound(self, envelope: models.Envelope, payload: models.SessionRewound) -> Iterator[Output]:
        yield NoteChange(None, _time(envelope), note="rewound", text=str(payload.target_turn_index))

    # --- Turns

    def _begin(self, prompt_id: str) -> None:
        self._queue.pop(prompt_id, None)
        self._past_turn = None
        if prompt_id not in self._ended:
            self._running = prompt_id

    def _queue_added(self, envelope: models.Envelope, payload: models.PendingPromptAdded) -> Iterator[Output]:
        self._queue[payload.prompt_id] = Queued(
            local_id("turn", payload.prompt_id),
            clean(payload.text)[:_SHORT_TEXT],
            self._who(envelope.originator_client_id),
        )
        # The answer to our POST may have come first, when nothing else was known to run.
        if self._running == payload.prompt_id:
            self._running = _UNKNOWN_PROMPT
        return iter(())

    def _queue_started(self, _envelope: models.Envelope, payload: models.PendingPromptStarted) -> Iterator[Output]:
        self._begin(payload.prompt_id)
        return iter(())

    def _queue_done(self, _envelope: models.Envelope, payload: models.PendingPromptCompleted) -> Iterator[Output]:
        queued = self._queue.pop(payload.prompt_id, None)
        if payload.state == "removed":
            self._removed[payload.prompt_id] = "" if queued is None else queued.text
        return iter(())

    def _cancelled(self, envelope: models.Envelope, payload: models.PromptCancelled) -> Iterator[Output]:
        # Without a prompt it is about nothing: somebody cancelled while nothing ran.
        about_it = envelope.prompt_id is not None and envelope.prompt_id == self._running
        if about_it and payload.reason != _FORWARD_FAILED:
            self._cancelling = self._running
        return iter(())

    def _completed(self, envelope: models.Envelope, payload: models.TurnComplete) -> Iterator[Output]:
        reason = payload.stop_reason or "end_turn"
        outcome = _OUTCOMES.get(reason, "other")
        yield from self._turn_over(envelope, payload.prompt_id, outcome, line(reason) if outcome == "other" else None)

    def _failed(self, envelope: models.Envelope, payload: models.TurnError) -> Iterator[Output]:
        text = clean(payload.message)[:_SHORT_TEXT] or "The turn has failed."
        yield from self._turn_over(envelope, payload.prompt_id, "failed", text)

    def _turn_over(
        self, envelope: models.Envelope, prompt_id: str | None, outcome: str, text: str | None
    ) -> Iterator[Output]:
        prompt_id = prompt_id or envelope.prompt_id
        if prompt_id is None:
            return
        waited = self._queue.pop(prompt_id, None)
        queued = waited is not None or prompt_id in self._removed
        self._ended.add(prompt_id)
        # A prompt that never left the queue ends in the middle of the turn of another.
        if self._running in (prompt_id, _UNKNOWN_PROMPT) and not queued:
            yield from self._flush()
            self._running = self._cancelling = None
        if outcome == "failed":
            for tool in self._tools.give_up(local_id("turn", prompt_id)):
                yield tool.change()
        if queued and outcome == "cancelled":
            outcome, text = "removed", line(self._removed.get(prompt_id, "") if waited is None else waited.text) or None
        yield EndChange(local_id("turn", prompt_id), _time(envelope), outcome=outcome, text=text)

    def _closed(self, _envelope: models.Envelope, _payload: models.SessionClosed) -> Iterator[Output]:
        yield from self._finish("closed", "The session has been closed.")

    def _died(self, _envelope: models.Envelope, payload: models.SessionDied) -> Iterator[Output]:
        if payload.reason == _SHUTDOWN:
            # The stream goes on as soon as a daemon is there, and the session is loaded then.
            self._connected, self._why = False, "The daemon has shut down."
            yield from self._break_off(self._why)
        else:
            yield from self._finish("dead", "The agent of the session has ended.")

    def _finish(self, state: str, text: str) -> list[Output]:
        outputs = self._break_off(text)
        self._end = state, text
        self._connected = self._loading = False
        return outputs

    def _break_off(self, text: str) -> list[Output]:
        """End the running turn as unfinished; nobody waits for an answer any more."""
        outputs: list[Output] = list(self._flush())
        for request_id in self._permissions.unanswered:
            outputs += self._permissions.close(request_id)
        if self._running:
            outputs.append(EndChange(local_id("turn", self._running), None, outcome="failed", text=text))
            self._ended.add(self._running)
        self._running = self._cancelling = None
        self._queue.clear()
        return outputs

    # --- Permissions

    def _permission(self, envelope: models.Envelope, payload: models.PermissionRequest) -> Iterator[Output]:
        if self._permissions.knows(payload.request_id):
            return
        fields, said = without_texts(payload.tool_call)
        for sort in unknown_content(fields.content):
            yield from self._unsupported(f"tool_call/{sort}", envelope)
        tool = self._tools.describe(fields, self._turn(envelope), _time(envelope))
        change = tool.change()
        yield change
        meta = fields.meta
        questions = meta.qwen_questions if meta is not None and meta.qwen_interaction_kind == _QUESTION else ()
        self._permissions.ask(payload.request_id, payload.options, questions, change, tool.news(said))
        # Whether it is still open is not known before the replay is over.
        if not self._replaying:
            yield from self._permissions.show()

    def _interaction(self, item: models.PendingInteraction) -> Iterator[Output]:
        """A permission as the status tells it, which does not say which tool call it is about."""
        action = item.action or models.PendingAction()
        fields = models.ToolFields(
            tool_call_id=item.request_id,
            title=item.title or action.title,
            kind=action.type,
            raw_input=action.input,
            content=action.content,
            locations=action.locations,
            _meta=None,
        )
        fields, said = without_texts(fields)
        tool = self._tools.describe(fields, self.info.turn, None)
        change = tool.change()
        yield change
        self._permissions.ask(item.request_id, item.options, item.questions, change, tool.news(said))

    def _resolved(self, envelope: models.Envelope, payload: models.PermissionResolved) -> Iterator[Output]:
        by = self._who(payload.voter_client_id)
        if by is None and payload.outcome.outcome == "cancelled":
            by = NOBODY
        yield from self._answered(envelope, payload.request_id, by, payload.outcome.option_id)

    def _already_resolved(
        self, envelope: models.Envelope, payload: models.PermissionAlreadyResolved
    ) -> Iterator[Output]:
        yield from self._answered(envelope, payload.request_id, OTHER, payload.outcome.option_id)

    def _answered(
        self, envelope: models.Envelope, request_id: str, by: str | None, option_id: str | None
    ) -> Iterator[Output]:
        name = self._permissions.allowed(request_id, option_id)
        tool = None if name is None else self._tools.get(name)
        if tool is not None and tool.allowed(_time(envelope)):
            yield tool.change()
        yield from self._permissions.close(request_id, by, option_id)


_ABOUT_THE_WORKSPACE = (
    "agent_changed",
    "artifact_changed",
    "auth_device_flow_authorized",
    "auth_device_flow_cancelled",
    "auth_device_flow_failed",
    "auth_device_flow_started",
    "auth_device_flow_throttled",
    "channel_delivery_result",
    "extensions_changed",
    "git_branch_changed",
    "git_status_changed",
    "github_setup_completed",
    "language_changed",
    "mcp_budget_warning",
    "mcp_child_refused_batch",
    "mcp_server_added",
    "mcp_server_changed",
    "mcp_server_removed",
    "mcp_server_restart_refused",
    "mcp_server_restarted",
    "memory_changed",
    "settings_reloaded",
    "source_changed",
    "tool_toggled",
    "trust_change_requested",
    "workspace_initialized",
)
"""Events that every session gets of what is around it, as 0.24.4 lists them; none has been said in a conversation."""

_Handler = Callable[[DaemonSession, models.Envelope, Any], Iterator[Output]]

# The private methods are the table's alone.
# pyright: reportPrivateUsage=false
EVENTS: Mapping[str, _Handler | Treatment] = {
    "user_message_chunk": DaemonSession._user_chunk,
    "agent_message_chunk": DaemonSession._answer_chunk,
    "agent_thought_chunk": DaemonSession._thought_chunk,
    "tool_call": DaemonSession._tool_call,
    "tool_call_update": DaemonSession._tool_update,
    "plan": DaemonSession._plan,
    "usage_update": DaemonSession._usage,
    "available_commands_update": DaemonSession._commands,
    "current_mode_update": DaemonSession._mode_update,
    "session_info_update": DaemonSession._titled,
    "permission_request": DaemonSession._permission,
    "permission_resolved": DaemonSession._resolved,
    "permission_already_resolved": DaemonSession._already_resolved,
    "turn_complete": DaemonSession._completed,
    "turn_error": DaemonSession._failed,
    "prompt_cancelled": DaemonSession._cancelled,
    "pending_prompt_added": DaemonSession._queue_added,
    "pending_prompt_started": DaemonSession._queue_started,
    "pending_prompt_completed": DaemonSession._queue_done,
    "mid_turn_message_injected": DaemonSession._injected,
    "followup_suggestion": DaemonSession._suggestion,
    "model_switched": DaemonSession._model_switched,
    "model_switch_failed": DaemonSession._model_failed,
    "settings_changed": DaemonSession._setting,
    "approval_mode_changed": DaemonSession._mode_changed,
    "session_metadata_updated": DaemonSession._renamed,
    "session_snapshot": DaemonSession._snapshot,
    "session_closed": DaemonSession._closed,
    "session_died": DaemonSession._died,
    # Its words came as chunks before it.
    "background_notification_turn_complete": Treatment.QUIET,
    # About the stream, which deals with them.
    "replay_complete": Treatment.QUIET,
    "state_resync_required": Treatment.QUIET,
    "slow_client_warning": Treatment.QUIET,
    "client_evicted": Treatment.QUIET,
    "stream_error": Treatment.QUIET,
    "history_truncated": DaemonSession._truncated,
    "session_rewound": DaemonSession._rewound,
    # A command that another client ran in the session, with its output, for the model to read.
    "user_shell_command": Treatment.UNSUPPORTED,
    # That was named with the command.
    "shell_output": Treatment.QUIET,
    "user_shell_result": Treatment.QUIET,
    "session_cwd_changed": Treatment.UNSUPPORTED,
    # Never seen on the wire, only in the daemon's code.
    "session_branched": Treatment.UNSUPPORTED,
    "session_recording_degraded": Treatment.UNSUPPORTED,
    "permission_forbidden": Treatment.UNSUPPORTED,
    "permission_partial_vote": Treatment.UNSUPPORTED,
    **dict.fromkeys(_ABOUT_THE_WORKSPACE, Treatment.QUIET),
}
"""The handler of each kind of event (spec A4, A5); a kind that is not here is logged by its name, and that is all.

An event with a handler that comes in a shape the handler cannot read is unsupported, too.
"""


def _in_background(meta: models.Meta | None) -> bool:
    """Return whether `meta` is that of a message by itself, beside all turns."""
    return meta is not None and (meta.qwen_discrete_message or (meta.source or "").startswith(_BACKGROUND))


def _linked(uri: str) -> str:
    """Return the target of a link to `uri`, as a prompt names it."""
    return f"@{line(reveal(uri.removeprefix(models.FILE_SCHEME)))}"


def _time(envelope: models.Envelope) -> int | None:
    return None if envelope.server_timestamp is None else round(envelope.server_timestamp)


def slash_commands(session: str, commands: Iterable[models.Command]) -> SlashCommands:
    """Return those of `commands` that work here as they are told."""
    return SlashCommands(
        session,
        tuple(
            SlashCommand(line(item.name), line(item.description), line(item.input.hint) if item.input else "")
            for item in commands
            if item.works_here
        ),
    )
