# SPDX-License-Identifier: GPL-3.0-or-later
"""The events of a session, and their effects on its turns, transcript, permissions and connection."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from qwen_companion.daemon import models
from qwen_companion.daemon.interrupted_turns import DONE, Output
from qwen_companion.daemon.messages import SlashCommand, SlashCommands
from qwen_companion.daemon.permissions import ME, NOBODY, OTHER, Permissions
from qwen_companion.daemon.sanitize import clean, line
from qwen_companion.daemon.session_state import Connection, SessionFacts
from qwen_companion.daemon.tools import plan_in, without_texts
from qwen_companion.daemon.transcript import Transcript, time_of
from qwen_companion.daemon.turns import Turns
from qwen_companion.local_ids import local_id
from qwen_companion.tasks import log_failure

_log = logging.getLogger(__name__)

_QUESTION = "user_question"
_OUTCOMES = {"end_turn": DONE, "cancelled": "cancelled"}
_SHUTDOWN = "daemon_shutdown"
_KIND = re.compile(r"[\w./-]{1,80}")
_SHORT_TEXT = 2000


class SessionEvents:
    """The state of one session, built from its events between two loads."""

    def __init__(
        self,
        session: str,
        turns: Turns,
        facts: SessionFacts,
        connection: Connection,
        is_me: Callable[[str], bool],
    ) -> None:
        """Begin with no event.

        :param session: Emacs's id of the session
        :param is_me: return whether a client id is this client's
        """
        self._session = session
        self._turns = turns
        self._facts = facts
        self._connection = connection
        self._is_me = is_me
        self.transcript = Transcript(turns, self._author)
        self.permissions = Permissions(session)
        self._logged: set[str] = set()

    def handle(self, envelope: models.Envelope) -> list[Output]:
        """Handle the event in `envelope`; return the reports to Emacs.  Contain errors in it."""
        outputs: list[Output] = []
        try:
            outputs.extend(self._handle(envelope))
        except Exception as error:  # noqa: BLE001 - an event that fails must not end the session
            log_failure(self._handle, error)
            outputs.extend(self.transcript.unsupported(envelope.type.rpartition("/")[2], envelope))
        return outputs

    def _handle(self, envelope: models.Envelope) -> Iterator[Output]:
        payload = envelope.payload
        if isinstance(payload, models.Unknown):
            yield from self._unknown(payload.kind, envelope)
        elif payload.KIND in HANDLERS:
            yield from HANDLERS[payload.KIND](self, envelope, payload)

    def _unknown(self, kind: str, envelope: models.Envelope) -> Iterator[Output]:
        """Yield the report of an unrecognised or malformed event."""
        name = kind.rpartition("/")[2]
        if name in HANDLERS or name in _NOT_SHOWN:
            yield from self.transcript.unsupported(name, envelope)
        elif kind not in self._logged:
            self._logged.add(kind)
            _log.info("unknown event: %s", kind if _KIND.fullmatch(kind) else "(with an odd name)")

    def _author(self, client_id: str | None) -> str | None:
        if client_id is None:
            return None
        return ME if self._is_me(client_id) else OTHER

    def _transcribe(self, envelope: models.Envelope, payload: models.Payload) -> Iterator[Output]:
        yield from self.transcript.apply(envelope, payload)

    def _fact(self, _envelope: models.Envelope, payload: models.Payload) -> Iterator[Output]:
        self._facts.apply(payload)
        return iter(())

    def _commands(self, _envelope: models.Envelope, payload: models.AvailableCommandsUpdate) -> Iterator[Output]:
        yield slash_commands(self._session, payload.available_commands)

    def _injected(self, envelope: models.Envelope, payload: models.MidTurnMessageInjected) -> Iterator[Output]:
        for message_id in payload.message_ids:
            # It was queued like a prompt, and becomes none.
            self._turns.dequeue(message_id)
        yield from self.transcript.apply(envelope, payload)

    # --- Turns

    def _queue(self, envelope: models.Envelope, payload: models.Payload) -> Iterator[Output]:
        match payload:
            case models.PendingPromptAdded():
                self._turns.enqueue(payload.prompt_id, payload.text, self._author(envelope.originator_client_id))
            case models.PendingPromptStarted():
                self._turns.begin(payload.prompt_id)
            case models.PendingPromptCompleted():
                self._turns.dequeue(payload.prompt_id, removed=payload.state == "removed")
            case models.PromptCancelled():
                self._turns.cancelled(envelope.prompt_id, payload.reason)
            case _:
                pass
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
        if self._turns.ends_running(prompt_id):
            yield from self.transcript.flush()
        if outcome == "failed":
            yield from self.transcript.give_up(local_id("turn", prompt_id))
        yield self._turns.end(prompt_id, outcome, text)

    def _closed(self, _envelope: models.Envelope, _payload: models.SessionClosed) -> Iterator[Output]:
        yield from self.finish("closed", "The session has been closed.")

    def _died(self, _envelope: models.Envelope, payload: models.SessionDied) -> Iterator[Output]:
        if payload.reason == _SHUTDOWN:
            # The stream resumes, and the session is loaded, as soon as a daemon is there.
            text = "The daemon has shut down."
            self._connection.lose(text)
            yield from self._break_off(text)
        else:
            yield from self.finish("dead", "The agent of the session has ended.")

    def finish(self, state: str, text: str) -> list[Output]:
        """End the session in `state`, because of `text`; return the reports to Emacs."""
        outputs = self._break_off(text)
        self._connection.finish(state, text)
        return outputs

    def _break_off(self, text: str) -> list[Output]:
        """End the running turn as unfinished; void its permissions."""
        outputs: list[Output] = list(self.transcript.flush())
        for request_id in self.permissions.unanswered:
            outputs += self.permissions.close(request_id)
        return [*outputs, *self._turns.break_off(text)]

    # --- Permissions

    def _permission(self, envelope: models.Envelope, payload: models.PermissionRequest) -> Iterator[Output]:
        if self.permissions.knows(payload.request_id):
            return
        fields, said = without_texts(payload.tool_call)
        yield from self.transcript.unsupported_content(envelope, fields)
        tool = self.transcript.tools.describe(fields, self._turns.of(envelope), time_of(envelope))
        change = tool.change()
        yield change
        meta = fields.meta
        questions = meta.qwen_questions if meta is not None and meta.qwen_interaction_kind == _QUESTION else ()
        self.permissions.ask(payload.request_id, payload.options, questions, change, tool.news(said), plan_in(fields))
        # Only after the replay is it known whether the permission is still open.
        if not self._turns.replaying:
            yield from self.permissions.show()

    def interaction(self, item: models.PendingInteraction) -> Iterator[Output]:
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
        tool = self.transcript.tools.describe(fields, self._turns.current, None)
        change = tool.change()
        yield change
        self.permissions.ask(item.request_id, item.options, item.questions, change, tool.news(said), plan_in(fields))

    def _resolved(self, envelope: models.Envelope, payload: models.PermissionResolved) -> Iterator[Output]:
        by = self._author(payload.voter_client_id)
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
        name = self.permissions.allowed(request_id, option_id)
        tool = None if name is None else self.transcript.tools.get(name)
        if tool is not None and tool.allowed(time_of(envelope)):
            yield tool.change()
        yield from self.permissions.close(request_id, by, option_id)


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
"""Events that a chat should show but cannot: it shows their names."""

# The private methods are the table's alone.
# pyright: reportPrivateUsage=false
HANDLERS: Mapping[str, Callable[[SessionEvents, models.Envelope, Any], Iterator[Output]]] = {
    "user_message_chunk": SessionEvents._transcribe,
    "agent_message_chunk": SessionEvents._transcribe,
    "agent_thought_chunk": SessionEvents._transcribe,
    "tool_call": SessionEvents._transcribe,
    "tool_call_update": SessionEvents._transcribe,
    "plan": SessionEvents._transcribe,
    "model_switch_failed": SessionEvents._transcribe,
    "settings_changed": SessionEvents._transcribe,
    "followup_suggestion": SessionEvents._transcribe,
    "history_truncated": SessionEvents._transcribe,
    "session_rewound": SessionEvents._transcribe,
    "mid_turn_message_injected": SessionEvents._injected,
    "usage_update": SessionEvents._fact,
    "current_mode_update": SessionEvents._fact,
    "session_info_update": SessionEvents._fact,
    "model_switched": SessionEvents._fact,
    "approval_mode_changed": SessionEvents._fact,
    "session_metadata_updated": SessionEvents._fact,
    "session_snapshot": SessionEvents._fact,
    "available_commands_update": SessionEvents._commands,
    "permission_request": SessionEvents._permission,
    "permission_resolved": SessionEvents._resolved,
    "permission_already_resolved": SessionEvents._already_resolved,
    "turn_complete": SessionEvents._completed,
    "turn_error": SessionEvents._failed,
    "prompt_cancelled": SessionEvents._queue,
    "pending_prompt_added": SessionEvents._queue,
    "pending_prompt_started": SessionEvents._queue,
    "pending_prompt_completed": SessionEvents._queue,
    "session_closed": SessionEvents._closed,
    "session_died": SessionEvents._died,
}
"""Handlers of the events that a chat shows, by kind (spec A4, A5).

An event with an unreadable shape is reported by name, once a turn.  Those about the stream are handled by `stream`, and
any other kind is logged.
"""


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
