# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done with the events that hooks report.  Importing this module imports pydantic."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from qwen_companion.domain import Peer, SessionState
from qwen_companion.doors.events import NO_DECISION, Answer, Event, PermissionRequest, SubagentStop, parse_event
from qwen_companion.doors.reviews import Asker, HookReviews
from qwen_companion.doors.states import States
from qwen_companion.ide.peers import Caller
from qwen_companion.processes import ended
from qwen_companion.sockets import Connection
from qwen_companion.threads import in_thread

_WATCH_S = 2.0
"""How often the process of a CLI is looked after where the system does not tell its end."""

_LARGE_BYTES = 256 * 1024
"""What takes longer to parse than may be spent on the event loop."""


class HookHandler:
    """Keeps the states of the CLIs, and has their requests decided."""

    def __init__(
        self,
        states: States,
        reviews: HookReviews,
        find_caller: Callable[[Connection], Caller | None],
        sessions: Callable[[], Iterable[SessionState]],
        changed: Callable[[], None],
    ) -> None:
        """FIND_CALLER, which is called in a thread, tells whose connection it is, SESSIONS which CLIs are connected.

        CHANGED is called when a state is another one.
        """
        self.states = states
        self.reviews = reviews
        self._find_caller = find_caller
        self._sessions = sessions
        self._changed = changed
        self._callers: dict[str, Caller] = {}
        self._watches: dict[int, asyncio.Task[None]] = {}

    async def note(self, data: bytes, connection: Connection) -> None:
        """Take the report DATA, which came over CONNECTION."""
        event = await _parse(data)
        caller = await self._caller(event, connection) if event else None
        if event is None or caller is None:
            return
        pid = caller.peer.pid
        if pid not in self._watches:
            self._watches[pid] = asyncio.create_task(self._forget_at_end(caller.peer))
        if isinstance(event, SubagentStop) and event.agent_id is not None:
            self.reviews.end_agent(pid, event.agent_id)
        if self.states.note(pid, event, int(time.time() * 1000)):
            self._changed()

    async def decide(
        self, data: bytes, connection: Connection, gone: asyncio.Event
    ) -> tuple[Answer, Callable[[], None] | None]:
        """Return the answer to the request in DATA, and what to do once it has been sent: see `HookReviews.answer`."""
        request = await _parse(data)
        if not isinstance(request, PermissionRequest):
            return NO_DECISION, None
        caller = await self._caller(request, connection)
        if caller is None:
            return NO_DECISION, None
        if request.agent_id is None and request.prompt_id is None:
            # It does not say who asks.  A review serves both; without one, the subagent would be refused.
            request = request.model_copy(update={"agent_id": self.states.running_agent(caller.peer.pid)})
        agent = None if request.agent_id is None else self.states.agent(caller.peer.pid, request.agent_id)
        return await self.reviews.answer(request, self._asker(caller), agent, gone)

    async def _forget_at_end(self, peer: Peer) -> None:
        await ended(peer.pid, peer.started, _WATCH_S)
        self.reviews.end_process(peer.pid)
        self.states.forget(peer.pid)
        for session in [session for session, known in self._callers.items() if known.peer.pid == peer.pid]:
            del self._callers[session]
        del self._watches[peer.pid]

    async def _caller(self, event: Event, connection: Connection) -> Caller | None:
        """Who reports EVENT; looked for once in each of its conversations."""
        caller = self._callers.get(event.session_id)
        if caller is None:
            caller = await in_thread(self._find_caller, connection)
            if caller is not None:
                self._callers[event.session_id] = caller
        return caller

    def _asker(self, caller: Caller) -> Asker:
        """CALLER as the reviews know it: by its session, if it is connected."""
        peer = caller.peer
        for state in self._sessions():
            known = state.session
            if known.peer is not None and known.peer.pid == peer.pid:
                return Asker(peer.pid, known.id, known.label, state.streaming and known.reviews, peer.directory)
        return Asker(peer.pid, f"process {peer.pid}", f"{caller.name} {caller.version}".strip(), False, peer.directory)


async def _parse(data: bytes) -> Event | None:
    return parse_event(data) if len(data) <= _LARGE_BYTES else await in_thread(parse_event, data)
