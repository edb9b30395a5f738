# SPDX-License-Identifier: GPL-3.0-or-later
"""The MCP sessions and their event streams.

Each stream has its own task, so a CLI that does not read blocks no other.  It costs no more memory than its unread
decisions: contexts are not queued, and a stream that accepts data again is sent the newest one.

A CLI does not announce its end, it only lets its stream end; and a stream also ends when this process is killed.  So a
session is kept for a while without a stream, and the sessions of an earlier process are taken over.  If the process of
the CLI is known, its end is the end of the session.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import anyio
from starlette.types import Message, Send

from qwen_companion.base.processes import ended
from qwen_companion.base.sockets import Connection
from qwen_companion.base.tasks import Task, Tasks
from qwen_companion.base.threads import in_thread
from qwen_companion.domain import KnownSession, Peer, SessionState
from qwen_companion.ide.peers import Caller, Callers
from qwen_companion.ide.streams import OpenStreams, Stream, event

RETRY_MS = 1500
"""The time that a CLI is told to wait before it opens its stream again: enough to replace a killed process.

Until then it receives nothing.  It tries once, and stays disconnected if nobody listens; a new process listens after a
tenth of a second, on a busy machine after half a second.
"""

LAST_RETRY_MS = 500
"""The same when the companion stops for good: the CLI finds nobody, and soon shows that."""

KEEP_ALIVE_S = 15.0
"""Longest silence on a stream.  A CLI closes a stream that was silent for 300 s, and does not recover."""

RETURN_S = RETRY_MS / 1000 + 5.0
"""Time after the end of its stream at which a session is dropped."""

LEFT_S = RETRY_MS / 1000 + 1.0
"""The same if the CLI has ended the stream: most likely it was told to disconnect, or has quit."""

HIDDEN_S = 1.2
"""Seconds after that until the session is reported as ended: the user should see it after two, at most.

A session whose stream has ended by mistake is reported again when it comes back.
"""

FIRST_STREAM_S = 60.0
"""Time after its last request at which a session that never had a stream is dropped."""

CUT_OFF_S = 3600.0
"""Time for which a session is kept while its host is disconnected: as long as the relay there keeps the CLI's data."""

STALL_S = 600.0
"""Time for which a stream may accept nothing before it is cut.  A CLI stopped with C-z for a coffee survives it."""

WATCH_S = 2.0
"""Interval, in seconds, of checks of the process of a CLI whose stream is open."""

LOST_WATCH_S = 0.1
"""The same while it is not open: a process closes its connections a moment before it has ended."""

LOSS_TURNS = 3
"""Turns of the event loop after which the loss of a connection is certainly known here.

In the first turn the end of the client's side is read, and the connection is closed; in the second that is reported.
"""

SESSION_HEADER = b"mcp-session-id"


@dataclass(frozen=True)
class Timing:
    """The limits above, in seconds."""

    keep_alive: float = KEEP_ALIVE_S
    give_up: float = RETURN_S
    left: float = LEFT_S
    hidden: float = HIDDEN_S
    first_stream: float = FIRST_STREAM_S
    cut_off: float = CUT_OFF_S
    stall: float = STALL_S
    watch: float = WATCH_S
    lost_watch: float = LOST_WATCH_S


@dataclass(frozen=True, eq=False)
class _Posted:
    notification: Iterable[bytes]
    key: str | None


@dataclass(eq=False)
class _Session:
    known: KnownSession
    patience: float
    """Seconds without stream and request after which it is dropped."""

    identified: bool = False
    """Whether its process was looked up, found or not."""

    context: bytes | None = None

    unsent: list[_Posted] = field(default_factory=list[_Posted])
    stream: Stream | None = None
    reaper: asyncio.TimerHandle | None = None
    hider: asyncio.TimerHandle | None = None
    is_hidden: bool = False
    """Whether it is not reported, since its CLI has ended the stream."""

    connections: list[Connection] = field(default_factory=list[Connection])
    """The connections whose process is still to be looked up."""

    lookup: Task | None = None
    """Looks up its process, and then waits for its end."""

    def state(self) -> SessionState:
        """Return its state."""
        return SessionState(self.known, self.stream is not None, self.identified)

    def stop_watching(self) -> None:
        """Cancel its background work."""
        for work in (self.reaper, self.hider, self.lookup):
            if work is not None:
                work.cancel()


class SessionListener:
    """Base of the parts that follow the sessions."""

    def session_changed(self, state: SessionState) -> None:
        """Handle a new or changed session."""

    def session_gone(self, session: str) -> None:
        """Handle the end of the session with that id."""

    def context_sent(self, session: str, context: bytes) -> None:
        """Record that `context` was sent to the session with that id."""

    def went_out(self, key: str) -> None:
        """Record that the whole notification `key` was handed to the operating system."""


class Sessions:
    """All sessions, by id.  Their processes are looked up and watched while `run` runs."""

    def __init__(self, known: Iterable[KnownSession], callers: Callers, timing: Timing | None = None) -> None:
        """`known` are the sessions of an earlier process.  Create this on the event loop."""
        self.listeners: Sequence[SessionListener] = ()
        """Called in this order."""
        self._callers = callers
        self._timing = timing or Timing()
        self.offers_reviews = True
        """Whether sessions opened from now on are offered reviews; a CLI asks once, when it connects."""
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[str, _Session] = {}
        self._streams = OpenStreams(self._timing.keep_alive, self._timing.stall)
        self._tasks = Tasks()
        known = tuple(known)
        self._cut_off = {item.peer.place for item in known if item.peer}
        """The disconnected remote hosts; at first, all."""
        for item in known:
            session = self._sessions[item.id] = _Session(item, self._timing.give_up, identified=True)
            self._reap_later(session)
            if item.peer is not None and item.peer.place is None:
                session.lookup = self._tasks.start(self._close_at_end, session, item.peer)

    async def run(self) -> None:
        """Look up and watch the processes of sessions, and watch their streams, until cancelled."""
        async with self._tasks:
            await self._streams.watch()

    # --- Sessions ---

    def open(self, client: str, version: str, protocol: str) -> KnownSession:
        """Return a new session, for a client with that name, version and MCP version."""
        known = KnownSession(uuid.uuid4().hex, protocol, client, version, reviews=self.offers_reviews)
        session = self._sessions[known.id] = _Session(known, self._timing.first_stream)
        self._reap_later(session)
        self._report(session)
        return known

    def _report(self, session: _Session) -> None:
        """Report a new or changed `session` to the listeners."""
        state = session.state()
        for listener in self.listeners:
            listener.session_changed(state)

    def states(self) -> tuple[SessionState, ...]:
        """Return all sessions."""
        return tuple(item.state() for item in self._sessions.values())

    def reported(self, identifier: str) -> SessionState | None:
        """Return the session with that id and its state; None if its CLI has most likely left."""
        session = self._sessions.get(identifier)
        return session.state() if session and not session.is_hidden else None

    def get(self, identifier: str) -> KnownSession | None:
        """Return the session with that id."""
        session = self._sessions.get(identifier)
        return session.known if session else None

    def of_process(self, pid: int) -> KnownSession | None:
        """Return the session of the process `pid`.  Thread-safe."""
        found = (item.known for item in list(self._sessions.values()))
        return next((known for known in found if known.peer is not None and known.peer.pid == pid), None)

    def touch(self, identifier: str) -> None:
        """Note that a request of the session has arrived."""
        session = self._sessions.get(identifier)
        if session is not None and session.stream is None:
            self._reap_later(session)

    def close(self, identifier: str) -> None:
        """End a session, its stream, and its background work."""
        session = self._sessions.pop(identifier, None)
        if session is None:
            return
        session.stop_watching()
        if session.stream is not None:
            session.stream.end()
        for listener in self.listeners:
            listener.session_gone(identifier)

    async def end_streams(self, timeout: float, for_good: bool) -> None:
        """End all streams in good order, up to `timeout` seconds; open no more.  The sessions stay.

        `for_good` means that no other process will serve them: each CLI is made to reconnect soon, so that it shows
        that it is alone.
        """
        for session in self._sessions.values():
            session.stop_watching()
        self._sessions.clear()
        with anyio.move_on_after(timeout):
            await self._streams.end(_retry(LAST_RETRY_MS) if for_good else b"")

    # --- Processes ---

    def identify(self, identifier: str, connection: Connection) -> None:
        """Find the process of `connection` to that session in the background, if it is not known yet."""
        session = self._sessions[identifier]
        elsewhere = self._callers.elsewhere(connection)
        if elsewhere is not None:
            # Its process is on another machine, so the session ends only with its stream.
            self._identified(session, elsewhere)
            self._report(session)
        elif session.known.peer is None:
            session.connections.append(connection)
            if session.lookup is None:
                session.lookup = self._tasks.start(self._look_up, session)

    async def _look_up(self, session: _Session) -> None:
        """Find the process of `session`, and drop `session` when it has ended."""
        while session.connections and session.known.peer is None:
            connection = session.connections.pop(0)
            caller = await in_thread(self._callers.find, connection)
            if caller is None:
                continue
            self._identified(session, caller)
        session.identified = True
        self._report(session)
        if session.known.peer is None:
            session.lookup = None
        else:
            # In this task, since another one for each session is expensive.
            await self._close_at_end(session, session.known.peer)

    def _identified(self, session: _Session, caller: Caller) -> None:
        session.identified = True
        session.known = replace(session.known, peer=caller.peer)
        if caller.name:
            session.known = replace(session.known, client=caller.name, version=caller.version)

    async def _close_at_end(self, session: _Session, peer: Peer) -> None:
        await ended(
            peer.pid,
            peer.started,
            lambda: self._timing.lost_watch if session.stream is None else self._timing.watch,
        )
        session.lookup = None
        self.close(session.known.id)

    # --- Time limits ---

    def _keep(self, session: _Session) -> None:
        if session.reaper is not None:
            session.reaper.cancel()
            session.reaper = None

    def _reap_later(self, session: _Session) -> None:
        self._keep(session)
        patience = self._timing.cut_off if self._is_cut_off(session) else session.patience
        session.reaper = self._loop.call_later(patience, self.close, session.known.id)

    def _is_cut_off(self, session: _Session) -> bool:
        place = session.known.peer and session.known.peer.place
        return place is not None and place in self._cut_off

    def set_reachable(self, place: str, reachable: bool) -> None:
        """Note whether `place` is connected.

        While it is not, nothing is received from its CLIs, but they may not have left.  Once it is connected again,
        they have as long to come back as after a restart of this process.
        """
        if reachable != (place in self._cut_off):
            return
        self._cut_off ^= {place}
        for session in self._sessions.values():
            if session.stream is None and session.known.peer and session.known.peer.place == place:
                session.patience = max(session.patience, self._timing.give_up)
                self._show(session)
                self._reap_later(session)
                self._report(session)

    def _hide(self, session: _Session) -> None:
        session.is_hidden = True
        self._report(session)

    def _show(self, session: _Session) -> None:
        session.is_hidden = False
        if session.hider is not None:
            session.hider.cancel()
            session.hider = None

    # --- Notifications ---

    def set_context(self, identifier: str, notification: bytes) -> None:
        """Make `notification` the context of a session, if it exists; each of its streams is sent it once."""
        session = self._sessions.get(identifier)
        if session is not None and session.context != notification:
            session.context = notification
            if session.stream is not None:
                session.stream.wake.set()

    def post(self, session: str, notification: Iterable[bytes], key: str | None = None) -> bool:
        """Send `notification` on the stream of `session`, now or when it opens; False if there is no such session.

        It is iterated over for each stream on which it is sent.
        """
        found = self._sessions.get(session)
        if found is None:
            return False
        found.unsent.append(_Posted(notification, key))
        if found.stream is not None:
            found.stream.wake.set()
        return True

    def withdraw(self, session: str, key: str) -> None:
        """Do not send the notification posted under `key`, if it was not sent yet."""
        found = self._sessions.get(session)
        if found is not None:
            found.unsent = [item for item in found.unsent if item.key != key]

    # --- Streams ---

    async def serve_stream(
        self,
        identifier: str,
        when_lost: Callable[[Callable[[], None]], None],
        send: Send,
        last_received: str | None = None,
    ) -> bool:
        """Serve one GET of the session until either side ends it; return False if it was cut as the CLI read nothing.

        `last_received` is the key of the last notification that the CLI has received, perhaps from an earlier process.
        `when_lost(function)` makes the server call `function` when the connection is lost.  `send` returns once the
        operating system has accepted the whole message.

        The body is delimited by the end of the connection, see `ide.server`.  A second GET replaces the first: it means
        that the CLI has lost that one, whether or not this side has noticed.
        """
        session = self._sessions[identifier]
        if session.stream is not None:
            session.stream.end()
        if last_received is not None:
            self.withdraw(identifier, last_received)
            self._report_arrival(last_received)
        stream = session.stream = Stream()
        session.patience = self._timing.give_up
        self._show(session)
        self._streams.add(stream)
        self._keep(session)
        self._report(session)
        when_lost(stream.lose)
        try:
            with stream.scope:
                await self._pump(session, stream, send)
            return not stream.scope.cancelled_caught
        finally:
            self._streams.discard(stream)
            if session.stream is stream:
                session.stream = None
                if self._sessions.get(identifier) is session:
                    if stream.lost and not self._is_cut_off(session):
                        session.patience = self._timing.left
                        session.hider = self._loop.call_later(self._timing.hidden, self._hide, session)
                    self._reap_later(session)
                    self._report(session)

    async def _pump(self, session: _Session, stream: Stream, send: Send) -> None:
        # It is sent with the following data, so it does not wait.
        await send(_start(session.known.id))
        await stream.send(send, [_retry(RETRY_MS)])
        while not (stream.ended or stream.lost):
            stream.wake = anyio.Event()
            context = session.context
            if context is not None and stream.context != context:
                stream.context = context
                await stream.send(send, event([context]))
                for listener in self.listeners:
                    listener.context_sent(session.known.id, context)
            elif session.unsent:
                await self._send_posted(session, stream, send, session.unsent[0])
            elif stream.is_silent:
                await stream.send(send, [b": still here\n\n"])
            else:
                await stream.wake.wait()
        if not stream.lost:
            await stream.send(send, [stream.last_words], more=False)

    async def _send_posted(self, session: _Session, stream: Stream, send: Send, posted: _Posted) -> None:
        await stream.send(send, event(posted.notification, posted.key))
        # A send on a connection that was just lost reports nothing.
        for _ in range(LOSS_TURNS):
            await anyio.sleep(0)
        if stream.lost or posted not in session.unsent:
            return
        session.unsent.remove(posted)
        if posted.key is not None:
            self._report_arrival(posted.key)

    def _report_arrival(self, key: str) -> None:
        for listener in self.listeners:
            listener.went_out(key)


def _start(identifier: str) -> Message:
    headers = [
        (b"content-type", b"text/event-stream"),
        (b"cache-control", b"no-cache, no-transform"),
        (b"connection", b"close"),
        (SESSION_HEADER, identifier.encode("ascii")),
    ]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def _retry(milliseconds: int) -> bytes:
    return b"retry: %d\n\n" % milliseconds
