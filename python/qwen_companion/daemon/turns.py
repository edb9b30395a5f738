# SPDX-License-Identifier: GPL-3.0-or-later
"""A session's turns: running, queued and ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from qwen_companion.base.local_ids import local_id
from qwen_companion.daemon import models
from qwen_companion.daemon.messages import EndChange, Queued
from qwen_companion.daemon.notes import without_notes
from qwen_companion.daemon.sanitize import clean, line

UNKNOWN_PROMPT = ""
"""Stands for the running prompt when the daemon says that one runs, but not which."""

_FORWARD_FAILED = "forward_failed"
_SHORT_TEXT = 2000


class Turns:
    """The turns since the session was loaded; rebuilt by each load."""

    def __init__(self, session_id: str, ended: Iterable[str] = ()) -> None:
        """`session_id` is the daemon's; `ended` are its ids of prompts whose turns are over."""
        self._session_id = session_id
        self.replaying = True
        """Whether the events are from a history."""
        self.running: str | None = None
        """The daemon's id of the prompt of the running turn, `UNKNOWN_PROMPT`, or None."""
        self._cancelling: str | None = None
        self._queue: dict[str, Queued] = {}
        self._removed: dict[str, str] = {}
        self._ended = set(ended)
        self._past_turns = 0
        self._past_turn: str | None = None

    @property
    def current(self) -> str | None:
        """Emacs's id of the running turn."""
        return local_id("turn", self.running) if self.running else None

    @property
    def cancelling(self) -> bool:
        """Whether the running turn is being cancelled."""
        return self.running is not None and self._cancelling == self.running

    @cancelling.setter
    def cancelling(self, value: bool) -> None:
        self._cancelling = self.running if value else None

    @property
    def queue(self) -> tuple[Queued, ...]:
        """The queued prompts."""
        return tuple(self._queue.values())

    def queued_prompt(self, turn: str) -> str | None:
        """Return the daemon's id of the queued prompt that Emacs calls `turn`."""
        return next((prompt for prompt, item in self._queue.items() if item.turn == turn), None)

    def of(self, envelope: models.Envelope) -> str | None:
        """Return Emacs's id of the turn of the event in `envelope`."""
        return self._past_turn if envelope.prompt_id is None else local_id("turn", envelope.prompt_id)

    def apply(self, envelope: models.Envelope, author: Callable[[str | None], str | None]) -> None:
        """Apply the event in `envelope`, if it is about the queue; `author` maps a client id to an author."""
        match payload := envelope.payload:
            case models.PendingPromptAdded():
                by, text = author(envelope.originator_client_id), clean(without_notes(payload.text))[:_SHORT_TEXT]
                self._queue[payload.prompt_id] = Queued(local_id("turn", payload.prompt_id), text, by)
                # The answer to our POST may have come first, when no other turn was known to run.
                if self.running == payload.prompt_id:
                    self.running = UNKNOWN_PROMPT
            case models.PendingPromptStarted():
                self.begin(payload.prompt_id)
            case models.PendingPromptCompleted():
                prompt = self._queue.pop(payload.prompt_id, None)
                if payload.state == "removed":
                    # The end of its turn follows.
                    self._removed[payload.prompt_id] = "" if prompt is None else prompt.text
            case models.PromptCancelled():
                # Without a prompt, the client cancelled while nothing ran.
                named = envelope.prompt_id is not None and payload.reason != _FORWARD_FAILED
                if named and envelope.prompt_id == self.running:
                    self.cancelling = True
            case models.MidTurnMessageInjected():
                for message_id in payload.message_ids:
                    # It was queued like a prompt, but gets no turn.
                    self._queue.pop(message_id, None)
            case _:
                pass

    def accept(self, prompt_id: str) -> str:
        """Record that the daemon accepted our prompt, maybe after its echo; return its turn."""
        known = prompt_id in self._ended or prompt_id in self._queue
        if not known and self.running is None:
            self.running = prompt_id
        return local_id("turn", prompt_id)

    def begin(self, prompt_id: str) -> None:
        """Record that the turn of `prompt_id` has begun, unless it is already over."""
        self._queue.pop(prompt_id, None)
        self._past_turn = None
        if prompt_id not in self._ended:
            self.running = prompt_id

    def begin_past(self, known: str | None) -> None:
        """Record the beginning of a turn in a history from disk; its prompt has the id `known`, or None."""
        self._past_turns += 1
        self._past_turn = local_id("turn", known or f"{self._session_id} {self._past_turns}")

    def ends_running(self, prompt_id: str) -> bool:
        """Return whether the end of the turn of `prompt_id` ends the running turn."""
        # A prompt that never left the queue ends during another turn.
        queued = prompt_id in self._queue or prompt_id in self._removed
        return not queued and self.running in (prompt_id, UNKNOWN_PROMPT)

    def end(self, prompt_id: str, outcome: str, text: str | None) -> EndChange:
        """Return the end of the turn of `prompt_id`, with `outcome`."""
        if self.ends_running(prompt_id):
            self.running = self._cancelling = None
        waited = self._queue.pop(prompt_id, None)
        if outcome == "cancelled" and (waited is not None or prompt_id in self._removed):
            outcome, text = "removed", line(self._removed.get(prompt_id, "") if waited is None else waited.text) or None
        self._ended.add(prompt_id)
        return EndChange(local_id("turn", prompt_id), outcome=outcome, text=text)

    def break_off(self, text: str) -> list[EndChange]:
        """Return the ends of all turns: the running one failed because of `text`, the queued ones are lost."""
        lost = lost_ends(self.queue)
        self._queue.clear()
        ends: list[EndChange] = []
        if self.running:
            ends.append(self.end(self.running, "failed", text))
        self.running = self._cancelling = None
        return [*ends, *lost]


def lost_ends(queue: Iterable[Queued]) -> list[EndChange]:
    """Return the ends of the lost turns in `queue`."""
    return [EndChange(queued.turn, outcome="lost", text=line(queued.text) or None) for queued in queue]
