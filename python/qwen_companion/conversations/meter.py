# SPDX-License-Identifier: GPL-3.0-or-later
"""Report the tokens used by turns and conversations, and find or make the end of a turn that has used too many.

A CLI records a request some ms after its answer, and the last one of a turn even after its hook Stop.  There is only
one way to stop a turn (0.21.10, 0.23.4, 0.24.4): the hook before the results of its tools are sent can withhold them.
The model then reads that they were not recorded, so the next prompt corrects that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

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
"""Seconds after the end of a turn by which its last request is mostly written."""

_SETTLED_S = 2.0
"""Further seconds to wait for it: a busy CLI writes its transcript late."""

_RAN = (
    "The user's limit of tokens ended your last turn before you got the results of your last tool calls. Those tools "
    "did run, also where a result says that it was not recorded. Look at what they have done before you repeat one."
)


class Meter:
    """Listens to hooks.  Call its methods on the event loop."""

    def __init__(
        self,
        spent: Callable[[str, int, Sequence[Usage]], None],
        changed: Callable[[], None],
        read_there: Callable[[str, str, int], Awaitable[bytes]],
        environ: Mapping[str, str],
        settle_s: float = SETTLE_S,
    ) -> None:
        """`spent` is called with the usage so far of the turn of a conversation that began at a time.

        `changed` is called when `total` may return another value.  `read_there` returns a piece of a remote file.
        `environ` locates the settings of local CLIs.
        """
        self.limit: int | None = None
        """Most tokens of a turn, None for no limit."""
        self._spent = spent
        self._changed = changed
        self._read_there = read_there
        self._environ = environ
        self._settle_s = settle_s
        self._transcripts: dict[int, tuple[str, Transcript]] = {}
        """The transcript of each process's conversation."""
        self._began: dict[int, int] = {}
        """The start of each process's turn, in ms since the epoch."""
        self._reported: dict[int, tuple[int, tuple[Usage, ...]]] = {}
        """The last reported usage of each process's turn, with the start of the turn."""
        self._delays: dict[int, int] = {}
        """The lag of the clock of each remote process, in ms."""
        self._rounds: Counter[int] = Counter()
        """Least number of answered requests in each process's turn."""
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
        last = None
        if event.begins_turn:
            last = self._began.get(pid), self._delays.get(pid, 0)
            self._began[pid] = report.time
            there = milliseconds(event.timestamp) if report.peer.place else None
            self._delays[pid] = 0 if there is None else report.time - there
            self._rounds[pid] = 0
        elif event.name == "UserPromptSubmit":
            self._rounds[pid] += 1
        if event.name == "Stop" and not self._rounds[pid]:
            # The number of requests to come is unknown.
            await anyio.sleep(self._settle_s)
        used = await self._read(report.peer, event)
        if last is not None and last[0] is not None:
            # Its last request may have been recorded since.  If hooks are handled late, requests of this turn have been
            # counted for it.
            until = self._began[pid] - self._delays[pid]
            self._report(report.peer, event, last[0], self._transcripts[pid][1].since(last[0] - last[1], until))
        if (began := self._began.get(pid)) is not None:
            self._report(report.peer, event, began, used)
        if event.begins_turn and event.session_id in self._stopped:
            return self._note_about(event.session_id)
        if _is_idle(event):
            return await self._failure(report.peer)
        limit, count = self.limit, tokens(used)
        if event.name == "UserPromptSubmit" and not event.begins_turn and limit is not None and count > limit:
            self._stopped.add(event.session_id)
            return Block(
                f"this turn has used {count} tokens, more than qwen-companion-token-limit ({limit}). "
                "A prompt goes on from here."
            )
        return None

    def _report(self, peer: Peer, event: Event, began: int, usages: tuple[Usage, ...]) -> None:
        """Report the usage of the turn that began at `began`, if it has changed since the last report."""
        reported = self._reported.get(peer.pid, (began, ()))
        if (began, usages) != reported and (usages or reported[0] == began):
            self._reported[peer.pid] = began, usages
            self._spent(peer.conversation(event.session_id), began, usages)

    async def _read(self, peer: Peer, event: Event) -> tuple[Usage, ...]:
        """Read the transcript named in `event` of the process `peer`; return the usage of the turn."""
        pid = peer.pid
        path, transcript = self._transcripts.get(pid, ("", None))
        if transcript is None or path != event.transcript_path:
            transcript = Transcript(event.transcript_path)
            self._transcripts[pid] = event.transcript_path, transcript
        read = partial(in_thread, transcript.read)
        if peer.place is not None:
            read = partial(transcript.read_there, partial(self._read_there, peer.place))
        before = transcript.total()
        await read()
        began, ends = self._began.get(pid), event.name == "Stop"
        if began is not None and (ends or _is_idle(event) or self.limit is not None):
            with anyio.move_on_after(_SETTLED_S if ends else _WRITTEN_S):
                while transcript.requests_since(began - self._delays[pid]) < self._rounds[pid] + ends:
                    await anyio.sleep(_POLL_S)
                    await read()
        if transcript.total() != before:
            self._changed()
        return () if began is None else transcript.since(began - self._delays[pid])

    async def _failure(self, peer: Peer) -> Failure | None:
        """Return the failure of the last turn of `peer` if the CLI's own limit of tokens has ended it.

        No hook reports that: the CLI then does not send the prompt or the results of its last hook.
        """
        pid = peer.pid
        began, (_, transcript) = self._began.get(pid), self._transcripts[pid]
        sent = began is None or transcript.requests_since(began - self._delays[pid]) > self._rounds[pid]
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
        return self._transcripts[pid][1].total() if pid in self._transcripts else ()

    def ended(self, peer: Peer) -> None:
        """Forget the process of `peer`."""
        for known in (self._transcripts, self._began, self._reported, self._delays, self._rounds):
            known.pop(peer.pid, None)


def _is_idle(event: Event) -> bool:
    return isinstance(event, AttentionRequest) and event.notification_type == "idle_prompt"
