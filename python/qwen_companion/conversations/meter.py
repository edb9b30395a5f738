# SPDX-License-Identifier: GPL-3.0-or-later
"""Report the tokens used by turns and conversations, and end a turn that has used too many.

A CLI records a request some ms after its answer, and the last one of a turn even after its hook Stop.  There is only
one way to stop a turn (0.21.10, 0.23.4, 0.24.4): the hook before the results of its tools are sent can withhold them.
The model then reads that they were not recorded, so the next prompt corrects that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import anyio

from qwen_companion.base.threads import in_thread
from qwen_companion.base.times import milliseconds
from qwen_companion.conversations.recording import is_transcript
from qwen_companion.conversations.usage import Transcript, tokens
from qwen_companion.domain import Peer, Usage
from qwen_companion.doors.events import AttentionRequest, Event
from qwen_companion.doors.listeners import Block, Failure, Report, Subscription, Words
from qwen_companion.doors.user_settings import session_token_limit

HOLD_S = 2.0
"""Most seconds a CLI waits for the decision whether its turn continues."""

_WRITTEN_S = 1.0
"""Seconds to wait for its transcript: on a busy machine the last request may not be in it yet."""

_POLL_S = 0.02

SETTLE_S = 0.5
"""Seconds after a turn until its last request is usually in the transcript."""

_SETTLED_S = 2.0
"""Further seconds to wait for it: a busy CLI writes its transcript late."""

_RAN = (
    "The user's limit of tokens ended your last turn before you got the results of your last tool calls. Those tools "
    "did run, also where a result says that it was not recorded. Look at what they have done before you repeat one."
)


class RemoteFiles(Protocol):
    """The files of remote CLIs."""

    async def read_more(self, name: str, path: str, offset: int) -> bytes:
        """Return a piece of the file `path` at the place `name` from `offset` on; empty if it cannot be read."""
        ...


@dataclass(eq=False)
class _Process:
    """A CLI: the transcript of its conversation, and its turn, if one has begun.

    `began` is the start of the turn and `delay` the lag of a remote clock, in ms.  `reported` is the usage reported
    last, with the start of its turn.  At least `rounds` requests of the turn were answered.
    """

    transcript: Transcript
    began: int | None = None
    delay: int = 0
    rounds: int = 0
    reported: tuple[int, tuple[Usage, ...]] | None = None


class Meter:
    """Listens to hooks.  Call its methods on the event loop."""

    def __init__(
        self,
        spent: Callable[[str, int, Sequence[Usage]], None],
        changed: Callable[[], None],
        remote_files: RemoteFiles,
        environ: Mapping[str, str],
        settle_s: float = SETTLE_S,
    ) -> None:
        """`spent` is called with the usage so far of the turn of a conversation that began at a time.

        `changed` is called when `total` may return another value.  `environ` locates the settings of local CLIs.
        """
        self.limit: int | None = None
        """Most tokens of a turn, None for no limit."""
        self._spent = spent
        self._changed = changed
        self._remote_files = remote_files
        self._environ = environ
        self._settle_s = settle_s
        self._processes: dict[int, _Process] = {}
        self._stopped: set[str] = set()
        """The conversations with an ended turn of which the model was not informed yet."""

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """The hooks that it subscribes to."""
        others = ("SessionStart", "Stop", "Notification", "SessionEnd")
        return (
            Subscription("UserPromptSubmit", hold_s=HOLD_S),
            *(Subscription(name) for name in others),
        )

    def holds(self, event: Event) -> bool:
        """Return whether the turn may end here, or the model needs to be informed that the last one did."""
        return event.session_id in self._stopped if event.begins_turn else self.limit is not None

    async def hear(self, report: Report) -> Words | None:
        """Handle `report`; return the end of the turn, or a note for the model about the last end, or None."""
        event, pid = report.event, report.peer.pid
        if event.agent_id is not None or not is_transcript(event.transcript_path):
            return None
        process = self._processes.setdefault(pid, _Process(Transcript(event.transcript_path)))
        last = None
        if event.begins_turn:
            last = process.began, process.delay
            there = milliseconds(event.timestamp) if report.peer.place else None
            process.began, process.rounds = report.time, 0
            process.delay = 0 if there is None else report.time - there
        elif event.name == "UserPromptSubmit":
            process.rounds += 1
        if event.name == "Stop" and not process.rounds:
            # The number of requests to come is unknown.
            await anyio.sleep(self._settle_s)
        await self._read(process, report)
        if last is not None and last[0] is not None and process.began is not None:
            # Its last request may have been recorded since.  If hooks are handled late, requests of this turn have been
            # counted for it.
            until = process.began - process.delay
            self._report(process, report, last[0], process.transcript.since(last[0] - last[1], until))
        used: tuple[Usage, ...] = ()
        if process.began is not None:
            used = process.transcript.since(process.began - process.delay)
            self._report(process, report, process.began, used)
        if event.begins_turn and event.session_id in self._stopped:
            return self._note_about(event.session_id)
        if _is_idle(event):
            return await self._failure(process, report.peer)
        limit, count = self.limit, tokens(used)
        if event.name == "UserPromptSubmit" and not event.begins_turn and limit is not None and count > limit:
            self._stopped.add(event.session_id)
            return Block(
                f"this turn has used {count} tokens, more than qwen-companion-token-limit ({limit}). "
                "A prompt goes on from here."
            )
        return None

    def _report(self, process: _Process, report: Report, began: int, usages: tuple[Usage, ...]) -> None:
        """Report the usage of the turn that began at `began`, if it has changed since the last report."""
        reported = process.reported or (began, ())
        if (began, usages) != reported and (usages or reported[0] == began):
            process.reported = began, usages
            self._spent(report.peer.conversation(report.event.session_id), began, usages)

    async def _read(self, process: _Process, report: Report) -> None:
        """Read the transcript named in `report`; wait for the requests of the turn where their number matters."""
        path, place, ends = report.event.transcript_path, report.peer.place, report.event.name == "Stop"
        if process.transcript.path != path:
            process.transcript = Transcript(path)
        transcript = process.transcript
        read = partial(in_thread, transcript.read)
        if place is not None:
            read = partial(transcript.read_there, partial(self._remote_files.read_more, place))
        before = transcript.total()
        await read()
        if process.began is not None and (ends or _is_idle(report.event) or self.limit is not None):
            with anyio.move_on_after(_SETTLED_S if ends else _WRITTEN_S):
                while transcript.requests_since(process.began - process.delay) < process.rounds + ends:
                    await anyio.sleep(_POLL_S)
                    await read()
        if transcript.total() != before:
            self._changed()

    async def _failure(self, process: _Process, peer: Peer) -> Failure | None:
        """Return the failure of the last turn of `peer` if the CLI's own limit of tokens has ended it.

        No hook reports that: the CLI then does not send the prompt or the results of its last hook.
        """
        began, transcript = process.began, process.transcript
        sent = began is None or transcript.requests_since(began - process.delay) > process.rounds
        if sent or peer.place is not None:
            return None
        limit = await in_thread(session_token_limit, peer.directory or "/", self._environ)
        return Failure("token limit") if transcript.last_input > limit else None

    def _note_about(self, session: str) -> Words:
        def note(_room: int) -> str:
            self._stopped.discard(session)
            return _RAN

        return note

    def total(self, pid: int) -> tuple[Usage, ...]:
        """Return the usage of the conversation of process `pid`, by model."""
        return self._processes[pid].transcript.total() if pid in self._processes else ()

    def ended(self, peer: Peer) -> None:
        """Forget the process of `peer`."""
        self._processes.pop(peer.pid, None)


def _is_idle(event: Event) -> bool:
    return isinstance(event, AttentionRequest) and event.notification_type == "idle_prompt"
