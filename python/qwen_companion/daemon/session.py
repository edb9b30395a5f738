# SPDX-License-Identifier: GPL-3.0-or-later
"""One session of the daemon as a state machine: daemon events in, reports for Emacs out.

No I/O.  It can be rebuilt from a load at any moment; the chat in Emacs has no state of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy

from qwen_companion.daemon import models
from qwen_companion.daemon.events import SessionEvents
from qwen_companion.daemon.interrupted_turns import DONE, InterruptedTurns, Output
from qwen_companion.daemon.messages import Change, Queued, SessionInfo
from qwen_companion.daemon.permissions import OTHER, Permissions
from qwen_companion.daemon.session_state import Connection, SessionFacts
from qwen_companion.daemon.stream import Connected, Disconnected, Ended, Frame, ReplayDone, Resync, StreamItem
from qwen_companion.daemon.tools import HeldTool
from qwen_companion.daemon.transcript import PastPrompt
from qwen_companion.daemon.turns import UNKNOWN_PROMPT, Turns, lost_ends
from qwen_companion.local_ids import local_id

_TERMINALS = {"completed": DONE, "cancelled": "cancelled"}


class DaemonSession:
    """The state of one session."""

    def __init__(
        self,
        session_id: str,
        client_id: str | None,
        was_mine: Callable[[str], bool] = lambda _: False,
        interrupted: InterruptedTurns | None = None,
    ) -> None:
        """`session_id` and our `client_id` are the daemon's; `was_mine` tells whether a client id was ours before.

        `interrupted` are the turns that broke off before.
        """
        self.session_id = session_id
        self.id = local_id("session", session_id)
        self._client_id = client_id
        self._was_mine = was_mine
        self.facts = SessionFacts()
        self._connection = Connection()
        self._epoch: str | None = None
        self._interrupted = interrupted or InterruptedTurns()
        self._queued: tuple[Queued, ...] = ()
        """The prompts queued before the load."""
        self._begin_anew(())

    def _begin_anew(self, ended: Iterable[str]) -> None:
        """Reset the state that a load rebuilds; the turns of the prompts `ended` are over."""
        self.turns = Turns(self.session_id, ended)
        self._events = SessionEvents(self.id, self.turns, self.facts, self._connection, self._is_me)

    def _is_me(self, client_id: str) -> bool:
        return client_id == self._client_id or self._was_mine(client_id)

    # --- What it is asked

    @property
    def info(self) -> SessionInfo:
        """The state of the session."""
        state, text = self._connection.trouble or (self._activity(), None)
        window = self.facts.window or (None, None)
        return SessionInfo(
            session=self.id,
            state=state,
            text=text,
            turn=self.turns.current,
            # The daemon lists an untitled session by its first words, too.
            title=self.facts.title or self._events.transcript.first_words,
            model=self.facts.model_name,
            mode=self.facts.mode,
            used=window[0],
            size=window[1],
            clients=self.facts.clients,
            queue=self.turns.queue,
        )

    def _activity(self) -> str:
        if not self.busy:
            return "idle"
        if self.turns.cancelling:
            return "cancelling"
        return "waiting" if self.permissions.shown else "busy"

    @property
    def dead(self) -> bool:
        """Whether no more events come before the next load."""
        return self._connection.end is not None

    @property
    def connected(self) -> bool:
        """Whether events arrive as they happen."""
        return self._connection.connected

    @property
    def busy(self) -> bool:
        """Whether a turn runs."""
        return self.turns.running is not None

    @property
    def permissions(self) -> Permissions:
        """The pending permissions."""
        return self._events.permissions

    @property
    def prompts(self) -> Sequence[PastPrompt]:
        """The prompts since the session began, in order; includes rewound ones as long as the daemon lives."""
        return self._events.transcript.prompts

    def tool(self, tool: str) -> HeldTool | None:
        """Return the tool that Emacs calls `tool`, or None if it is not held (any more)."""
        return self._events.transcript.tools.get(tool)

    # --- Loads

    def snapshot(self) -> DaemonSession:
        """Return a copy, unaffected by later events, to replay a load in a thread."""
        again = copy(self)
        again.facts, again._connection, again.turns = copy(self.facts), copy(self._connection), copy(self.turns)
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
            output
            for envelope in (*reply.compacted_replay, *reply.live_journal)
            for output in again._events.handle(envelope)
        ]
        return again, [*outputs, *again._events.transcript.flush()]

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
        self._connection.loaded()
        return completed

    def catch_up(self, before: DaemonSession, now: DaemonSession) -> None:
        """Copy the facts that `now`, replaced by this session, has learnt since `before`, its snapshot at the load."""
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
        self._connection.reload()

    # --- What it is told

    def lost(self, text: str) -> list[Output]:
        """Mark the session as dead because of `text`, until the user loads it again."""
        outputs = self._events.finish("dead", text)
        self._interrupted.record(outputs)
        return outputs

    def left(self) -> list[Output]:
        """Record that this client has left the session."""
        outputs: list[Output] = list(self.permissions.hold())
        self._connection.end = "closed", "The session has been left."
        return outputs

    def handle(self, item: StreamItem) -> list[Output]:
        """Handle one item of the stream; return the reports to Emacs."""
        match item:
            case Frame():
                self.turns.replaying = item.replayed
                outputs = self._events.handle(item.envelope)
                self._interrupted.record(outputs)
                return outputs
            case Connected():
                self._connection.why = None
            case ReplayDone():
                self.turns.replaying = False
                self._connection.connected = True
            case Disconnected():
                self._connection.lose(item.reason)
                return list(self.permissions.hold())
            case Ended():
                return self.lost(str(item.error))
            case Resync():
                self._connection.connected = False
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
                    outputs += self._events.interaction(item)
        return [*outputs, *self.permissions.show()]

    def answered_elsewhere(self, request_id: str) -> list[Output]:
        """Record that our answer came too late."""
        return list(self.permissions.close(request_id, OTHER))
