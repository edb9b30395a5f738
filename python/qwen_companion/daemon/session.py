# SPDX-License-Identifier: GPL-3.0-or-later
"""One session of the daemon as a state machine: daemon events in, reports for Emacs out.

No I/O.  It can be rebuilt from a load at any moment; the chat in Emacs has no state of its own.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy

from qwen_companion.base.local_ids import local_id
from qwen_companion.base.tasks import log_failure
from qwen_companion.daemon import models
from qwen_companion.daemon.interrupted_turns import DONE, InterruptedTurns, Output
from qwen_companion.daemon.messages import Change, Queued, SessionInfo, SlashCommand, SlashCommands
from qwen_companion.daemon.permissions import ME, NOBODY, OTHER, Permissions
from qwen_companion.daemon.sanitize import clean, line
from qwen_companion.daemon.session_facts import SessionFacts
from qwen_companion.daemon.stream import Connected, Disconnected, Ended, Frame, ReplayDone, Resync, StreamItem
from qwen_companion.daemon.tools import HeldTool, plan_in, without_texts
from qwen_companion.daemon.transcript import PastPrompt, Transcript, time_of
from qwen_companion.daemon.turns import UNKNOWN_PROMPT, Turns, lost_ends

_log = logging.getLogger(__name__)

_QUESTION = "user_question"
_OUTCOMES = {"end_turn": DONE, "cancelled": "cancelled"}
_TERMINALS = {"completed": DONE, "cancelled": "cancelled"}
_SHUTDOWN = "daemon_shutdown"
_KIND = re.compile(r"[\w./-]{1,80}")
_SHORT_TEXT = 2000

_NOT_SHOWN = frozenset(
    {
        # Another client's shell command in the session, with its output, for the model to read.
        "user_shell_command",
        "session_cwd_changed",
        # Never seen on the wire, only in the daemon's code.
        "session_branched",
        "session_recording_degraded",
        "permission_forbidden",
        "permission_partial_vote",
    }
)
"""Events that a chat should show but cannot: it shows their names, as it does for known events in another shape."""


class DaemonSession:
    """The state of one session."""

    def __init__(
        self,
        session_id: str,
        client_id: str | None,
        was_mine: Callable[[str], bool] = lambda _: False,
        interrupted: InterruptedTurns | None = None,
    ) -> None:
        """`session_id` and our `client_id` are the daemon's; `was_mine` returns whether a client id was ours before.

        `interrupted` are the session's interrupted turns.
        """
        self.session_id = session_id
        self.id = local_id("session", session_id)
        self._client_id = client_id
        self._was_mine = was_mine
        self.facts = SessionFacts()
        self.connected = False
        """Whether events arrive as they happen."""
        self._loading = True
        self._lost_because: str | None = None
        self._end: tuple[str, str] | None = None
        """The state and text of a session that gets no events until the next load, else None."""
        self._epoch: str | None = None
        self._interrupted = interrupted or InterruptedTurns()
        self._queued: tuple[Queued, ...] = ()
        """The prompts queued before the load."""
        self._logged: set[str] = set()
        self._begin_anew(())

    def _begin_anew(self, ended: Iterable[str]) -> None:
        """Reset the state that a load rebuilds; the turns of the prompts `ended` are over."""
        self.turns = Turns(self.session_id, ended)
        self.transcript = Transcript(self.turns, self._author)
        self.permissions = Permissions(self.id)
        """The pending permissions."""

    def _author(self, client_id: str | None) -> str | None:
        if client_id is None:
            return None
        return ME if client_id == self._client_id or self._was_mine(client_id) else OTHER

    # --- State

    @property
    def info(self) -> SessionInfo:
        """The state of the session."""
        state, text = self._state()
        window = self.facts.window or (None, None)
        return SessionInfo(
            session=self.id,
            state=state,
            text=text,
            turn=self.turns.current,
            # The daemon lists an untitled session by its first words, too.
            title=self.facts.title or self.transcript.first_words,
            model=self.facts.model_name,
            mode=self.facts.mode,
            used=window[0],
            size=window[1],
            clients=self.facts.clients,
            queue=self.turns.queue,
        )

    def _state(self) -> tuple[str, str | None]:
        if self._end is not None:
            return self._end
        if self._loading:
            return "loading", None
        if not self.connected:
            return "disconnected", self._lost_because
        if not self.busy:
            return "idle", None
        if self.turns.cancelling:
            return "cancelling", None
        return "waiting" if self.permissions.shown else "busy", None

    @property
    def dead(self) -> bool:
        """Whether no more events come before the next load."""
        return self._end is not None

    @property
    def busy(self) -> bool:
        """Whether a turn runs."""
        return self.turns.running is not None

    @property
    def prompts(self) -> Sequence[PastPrompt]:
        """The prompts since the session began, in order; includes rewound ones as long as the daemon lives."""
        return self.transcript.prompts

    def tool(self, tool: str) -> HeldTool | None:
        """Return the tool that Emacs calls `tool`, or None if it is not held (any more)."""
        return self.transcript.tools.get(tool)

    # --- Loads

    def snapshot(self) -> DaemonSession:
        """Return a copy, unaffected by later events, to replay a load in a thread."""
        again = copy(self)
        again.facts, again.turns = copy(self.facts), copy(self.turns)
        return again

    def replayed(self, reply: models.LoadReply) -> tuple[DaemonSession, list[Output]]:
        """Return the session rebuilt from `reply` and all its outputs; `loaded` completes both.

        This session is unchanged, so call it in a thread: it takes 0.1 s for each MB.
        """
        again = self.snapshot()
        again._client_id = reply.client_id or self._client_id
        again._queued = self.turns.queue
        again._begin_anew(item.prompt_id for item in reply.prompt_terminals)
        outputs = [
            output for envelope in (*reply.compacted_replay, *reply.live_journal) for output in again.apply(envelope)
        ]
        return again, [*outputs, *again.transcript.flush()]

    def loaded(self, reply: models.LoadReply, outputs: Sequence[Output], why: str | None = None) -> list[Output]:
        """Start from `reply`, because of `why`; return `outputs` completed by the interrupted turns."""
        outcomes = {
            local_id("turn", item.prompt_id): _TERMINALS.get(item.terminal or "", "failed")
            for item in reply.prompt_terminals
        }
        if not reply.has_active_prompt:
            self.turns.running = None
        elif self.turns.running is None:
            self.turns.running = UNKNOWN_PROMPT
        completed = self._interrupted.completed(
            outputs, outcomes, running=self._running_turn(reply.event_epoch), why=why or "The turn broke off."
        )
        if self._replaced(reply.event_epoch):
            known = {item.turn for item in (*completed, *self.turns.queue) if isinstance(item, Change | Queued)}
            completed += lost_ends(item for item in self._queued if item.turn not in known)
        self._epoch = reply.event_epoch
        # The session is live, even if its history contains an end.
        self._loading, self._end, self._lost_because = False, None, None
        return completed

    def catch_up(self, before: DaemonSession, now: DaemonSession) -> None:
        """Copy the changes of `now`, which this session replaces, since `before`, its snapshot at the load."""
        self.facts.catch_up(before.facts, now.facts)
        running = now.turns.running
        if running and running != before.turns.running:
            self.turns.accept(running)

    def _running_turn(self, epoch: str) -> str | None:
        """Return the turn that runs after a load of `epoch`: None for none, "" for an unknown one."""
        if self.turns.running != UNKNOWN_PROMPT:
            return self.turns.current
        return "" if self._replaced(epoch) else self._interrupted.running or ""

    def _replaced(self, epoch: str) -> bool:
        """Return whether `epoch` is new: daemon or agent was replaced, and running and queued turns are lost."""
        return self._epoch not in (None, epoch)

    def reloading(self) -> None:
        """Record that a load was requested."""
        self.connected, self._loading, self._end = False, True, None

    # --- Reports about the session

    def lost(self, text: str) -> list[Output]:
        """Mark the session as dead because of `text`, until the user loads it again."""
        outputs = self._finish("dead", text)
        self._interrupted.record(outputs)
        return outputs

    def left(self) -> list[Output]:
        """Record that this client has left the session."""
        outputs: list[Output] = list(self.permissions.hold())
        self._end = "closed", "The session has been left."
        return outputs

    def handle(self, item: StreamItem) -> list[Output]:
        """Handle one item of the stream; return the reports to Emacs."""
        match item:
            case Frame():
                self.turns.replaying = item.replayed
                outputs = self.apply(item.envelope)
                self._interrupted.record(outputs)
                return outputs
            case Connected():
                self._lost_because = None
            case ReplayDone():
                self.turns.replaying = False
                self.connected = True
            case Disconnected():
                self.connected, self._lost_because = False, item.reason
                return list(self.permissions.hold())
            case Ended():
                return self.lost(str(item.error))
            case Resync():
                self.connected = False
                return list(self.permissions.hold())
        return []

    def status(self, reply: models.StatusReply | None, asked_about: frozenset[str]) -> list[Output]:
        """Handle the daemon's status, None if unavailable; return the reports to Emacs.

        `asked_about` is `permissions.unanswered` at the time of the request: the status may lack newer ones.
        """
        outputs: list[Output] = []
        if reply is not None:
            self.facts.clients = reply.client_count
            waiting = {item.request_id for item in reply.pending_interactions}
            for request_id in asked_about - waiting:
                outputs += self.permissions.close(request_id)
            for item in reply.pending_interactions:
                if not self.permissions.knows(item.request_id):
                    outputs += self._interaction(item)
        return [*outputs, *self.permissions.show()]

    def answered_elsewhere(self, request_id: str) -> list[Output]:
        """Record that our answer came too late."""
        return list(self.permissions.close(request_id, OTHER))

    # --- Events

    def apply(self, envelope: models.Envelope) -> list[Output]:
        """Handle the event in `envelope`; return the reports to Emacs.  Log an error in this; raise none."""
        outputs: list[Output] = []
        try:
            outputs.extend(self._apply(envelope))
        except Exception as error:  # noqa: BLE001 - an event that fails must not end the session
            log_failure(self._apply, error)
            outputs.extend(self.transcript.unsupported(envelope.type.rpartition("/")[2], envelope))
        return outputs

    def _apply(self, envelope: models.Envelope) -> Iterator[Output]:
        payload = envelope.payload
        self.facts.apply(payload)
        self.turns.apply(envelope, self._author)
        yield from self.transcript.apply(envelope, payload)
        yield from self._apply_permission(envelope)
        match payload:
            case models.Unknown():
                yield from self._unknown(payload.kind, envelope)
            case models.AvailableCommandsUpdate():
                yield slash_commands(self.id, payload.available_commands)
            case models.TurnComplete():
                reason = payload.stop_reason or "end_turn"
                outcome = _OUTCOMES.get(reason, "other")
                text = line(reason) if outcome == "other" else None
                yield from self._turn_over(envelope, payload.prompt_id, outcome, text)
            case models.TurnError():
                text = clean(payload.message)[:_SHORT_TEXT] or "The turn has failed."
                yield from self._turn_over(envelope, payload.prompt_id, "failed", text)
            case models.SessionClosed():
                yield from self._finish("closed", "The session has been closed.")
            case models.SessionDied(reason=reason) if reason == _SHUTDOWN:
                # The stream resumes, and the session is loaded, as soon as a daemon is there.
                self.connected, self._lost_because = False, "The daemon has shut down."
                yield from self._break_off(self._lost_because)
            case models.SessionDied():
                yield from self._finish("dead", "The agent of the session has ended.")
            case _:
                pass

    def _unknown(self, kind: str, envelope: models.Envelope) -> Iterator[Output]:
        """Yield the report of an unrecognised or malformed event."""
        name = kind.rpartition("/")[2]
        if name in models.SHOWN or name in _NOT_SHOWN:
            yield from self.transcript.unsupported(name, envelope)
        elif kind not in self._logged:
            self._logged.add(kind)
            _log.info("unknown event: %s", kind if _KIND.fullmatch(kind) else "(with an odd name)")

    def _turn_over(
        self, envelope: models.Envelope, prompt_id: str | None, outcome: str, text: str | None
    ) -> Iterator[Output]:
        prompt_id = prompt_id or envelope.prompt_id
        if prompt_id is None:
            return
        if self.turns.ends_running(prompt_id):
            yield from self.transcript.flush()
        if outcome == "failed":
            yield from self.transcript.give_up(local_id("turn", prompt_id))
        yield self.turns.end(prompt_id, outcome, text)

    def _finish(self, state: str, text: str) -> list[Output]:
        """End the session in `state`, because of `text`; return the reports to Emacs."""
        outputs = self._break_off(text)
        self.connected = self._loading = False
        self._end = state, text
        return outputs

    def _break_off(self, text: str) -> list[Output]:
        """End the running turn as unfinished; void its permissions."""
        outputs: list[Output] = list(self.transcript.flush())
        for request_id in self.permissions.unanswered:
            outputs += self.permissions.close(request_id)
        return [*outputs, *self.turns.break_off(text)]

    # --- Permissions

    def _apply_permission(self, envelope: models.Envelope) -> Iterator[Output]:
        match payload := envelope.payload:
            case models.PermissionRequest():
                yield from self._permission(envelope, payload)
            case models.PermissionResolved():
                by = self._author(payload.voter_client_id)
                if by is None and payload.outcome.outcome == "cancelled":
                    by = NOBODY
                yield from self._answered(envelope, payload.request_id, by, payload.outcome.option_id)
            case models.PermissionAlreadyResolved():
                yield from self._answered(envelope, payload.request_id, OTHER, payload.outcome.option_id)
            case _:
                pass

    def _permission(self, envelope: models.Envelope, payload: models.PermissionRequest) -> Iterator[Output]:
        if self.permissions.knows(payload.request_id):
            return
        fields, said = without_texts(payload.tool_call)
        yield from self.transcript.unsupported_content(envelope, fields)
        tool = self.transcript.tools.describe(fields, self.turns.of(envelope), time_of(envelope))
        change = tool.change()
        yield change
        meta = fields.meta
        questions = meta.qwen_questions if meta is not None and meta.qwen_interaction_kind == _QUESTION else ()
        self.permissions.ask(payload.request_id, payload.options, questions, change, tool.news(said), plan_in(fields))
        # Only after the replay is it known whether the permission is still open.
        if not self.turns.replaying:
            yield from self.permissions.show()

    def _interaction(self, item: models.PendingInteraction) -> Iterator[Output]:
        """Add a permission from `/status`, which does not name its tool call."""
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
        tool = self.transcript.tools.describe(fields, self.turns.current, None)
        change = tool.change()
        yield change
        self.permissions.ask(item.request_id, item.options, item.questions, change, tool.news(said), plan_in(fields))

    def _answered(
        self, envelope: models.Envelope, request_id: str, by: str | None, option_id: str | None
    ) -> Iterator[Output]:
        name = self.permissions.allowed(request_id, option_id)
        tool = None if name is None else self.transcript.tools.get(name)
        if tool is not None and tool.allowed(time_of(envelope)):
            yield tool.change()
        yield from self.permissions.close(request_id, by, option_id)


def slash_commands(session: str, commands: Iterable[models.Command]) -> SlashCommands:
    """Return the report of the `commands` that work in a session of the daemon."""
    return SlashCommands(
        session,
        tuple(
            SlashCommand(line(item.name), line(item.description), line(item.input.hint) if item.input else "")
            for item in commands
            if item.works_here
        ),
    )
