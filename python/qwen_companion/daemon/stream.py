# SPDX-License-Identifier: GPL-3.0-or-later
"""The events of one session, in order, without repeats or gaps."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

import anyio

from qwen_companion.base.tasks import Tasks
from qwen_companion.daemon.client import DaemonClient
from qwen_companion.daemon.errors import (
    BusyError,
    DaemonError,
    FrameTooLargeError,
    ProtocolViolationError,
    ServerFailedError,
    UnreachableError,
)
from qwen_companion.daemon.models import Cursor, Envelope, ReplayComplete, StateResyncRequired, parse_frame
from qwen_companion.daemon.requests import EventSource

_log = logging.getLogger(__name__)

SILENCE_S = 45.0
"""Seconds without a byte after which a connection is dead: three heartbeats (one every 15 s on 0.24.4)."""

FRAME_TOO_LARGE = "frame_too_large"
"""The reason for a reload after an event above the size limit."""

_SHORTEST_WAIT_S = 0.5
_LONGEST_WAIT_S = 15.0
_LONGEST_ORDERED_WAIT_S = 300.0
"""Longest `Retry-After` that is honoured in full, in seconds."""


@dataclass(frozen=True)
class Connected:
    """A connection is open.  Missed events follow, then `ReplayDone`, then live ones."""


@dataclass(frozen=True)
class Frame:
    """An event; a `replayed` one was missed and may be long past."""

    envelope: Envelope
    replayed: bool


@dataclass(frozen=True)
class ReplayDone:
    """The end of the replay: later events are live."""


@dataclass(frozen=True)
class Disconnected:
    """The connection is lost because of `reason`, a text for the user; the next try is in `retry_in_s` seconds."""

    reason: str
    retry_in_s: float


@dataclass(frozen=True)
class Resync:
    """Missed events are lost; the last item.

    Load the session, and open a new stream at the cursor of the reply.  `reason` is the daemon's word (`ring_evicted`
    or `epoch_reset`), or `FRAME_TOO_LARGE`.
    """

    reason: str


@dataclass(frozen=True)
class Ended:
    """The last item: the stream ended for good, because of `error`.

    After a NotFoundError the session can be reloaded; after others only by the user.
    """

    error: DaemonError


StreamItem = Connected | Frame | ReplayDone | Disconnected | Resync | Ended


class Backoff:
    """The wait before the next try: longer each time, and random, to spread the clients."""

    def __init__(self, draw: Callable[[float, float], float] = random.uniform) -> None:
        """`draw` returns a random number between two others."""
        self._draw = draw
        self._tries = 0

    def reset(self) -> None:
        """Start with short waits again, after a successful try."""
        self._tries = 0

    def next(self, ordered_s: float = 0.0) -> float:
        """Return the seconds to wait now, at least the `ordered_s` that the daemon requested."""
        self._tries += 1
        most = min(_LONGEST_WAIT_S, _SHORTEST_WAIT_S * 2.0 ** min(self._tries, 10))
        return max(self._draw(_SHORTEST_WAIT_S, most), min(ordered_s, _LONGEST_ORDERED_WAIT_S))


class EventStream:
    """One session's events from a cursor on, over as many connections as needed.

    Use as `async with EventStream(...) as stream: async for item in stream`.  Ends with `Resync` or `Ended`.

    Each connection yields `Connected`, missed events, `ReplayDone`, live events, and at last `Disconnected`.  The next
    connection is made when the caller has received the last event, so none is repeated or lost, however slow the
    caller.
    """

    def __init__(
        self,
        client: DaemonClient,
        session_id: str,
        cursor: Cursor,
        *,
        backoff: Backoff | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        silence_s: float = SILENCE_S,
    ) -> None:
        """`backoff` may be shared by a session's successive streams."""
        self._client = client
        self._session_id = session_id
        self._cursor = cursor
        self._backoff = backoff or Backoff()
        self._sleep = sleep
        self._silence_s = silence_s
        self._tasks = Tasks()
        self._items = self._connections()

    async def __aenter__(self) -> EventStream:
        """Return the stream itself, whose connection ends with the context."""
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave no connection and no task behind."""
        try:
            await self._items.aclose()
        finally:
            await self._tasks.__aexit__()

    def __aiter__(self) -> AsyncIterator[StreamItem]:
        """Yield the items, once."""
        return self._items

    async def _connections(self) -> AsyncGenerator[StreamItem]:
        while True:
            try:
                async with (
                    self._client.events(self._session_id, self._cursor, self._silence_s) as source,
                    aclosing(self._connection(source)) as items,
                ):
                    async for item in items:
                        yield item
                        if isinstance(item, Resync):
                            return
                last = Disconnected(f"The daemon at {self._client.url} has ended the stream.", self._backoff.next())
            except DaemonError as error:
                last = self._after(error)
            yield last
            if not isinstance(last, Disconnected):
                return
            await self._sleep(last.retry_in_s)

    def _after(self, error: DaemonError) -> Disconnected | Resync | Ended:
        """Return the item to yield after `error`."""
        if isinstance(error, FrameTooLargeError):
            return Resync(FRAME_TOO_LARGE)
        if isinstance(error, BusyError):
            return Disconnected(str(error), self._backoff.next(error.retry_after_s))
        # A proxy or a portal may temporarily answer in the daemon's place.
        if isinstance(error, UnreachableError | ServerFailedError | ProtocolViolationError):
            return Disconnected(str(error), self._backoff.next())
        return Ended(error)

    async def _connection(self, source: EventSource) -> AsyncGenerator[StreamItem]:
        """Yield the items of one connection."""
        if source.epoch and source.epoch != self._cursor.epoch:
            # The daemon also sends an event about this; an older one might not.
            yield Resync("epoch_reset")
            return
        replaying = True
        yield Connected()
        async with _Reader(source, self._tasks) as reader:
            while (text := await reader.next()) is not None:
                item = self._parse(text, source.epoch, replaying)
                if item is not None:
                    yield item
                replaying = replaying and not isinstance(item, ReplayDone)

    def _parse(self, text: str, epoch: str, replaying: bool) -> StreamItem | None:
        """Return the item for the event `text`, or None if there is none.  Advances the cursor."""
        try:
            envelope = parse_frame(text)
        except ProtocolViolationError as error:
            _log.warning("left out: %s", error)
            return None
        if isinstance(envelope.payload, StateResyncRequired):
            return Resync(envelope.payload.reason)
        if isinstance(envelope.payload, ReplayComplete):
            return ReplayDone() if replaying else None
        if envelope.id is not None:
            if envelope.id <= self._cursor.event_id:
                return None
            self._cursor = Cursor(envelope.id, epoch)
            # The events that start each connection have no id: if it breaks right after them, it counts as failed.
            self._backoff.reset()
        return Frame(envelope, replaying)


class _Reader:
    """One task that only queues a connection's texts, as the daemon cuts off slow readers."""

    def __init__(self, source: EventSource, tasks: Tasks) -> None:
        self._queue, self._texts = anyio.create_memory_object_stream[str](math.inf)
        self._error: Exception | None = None
        self._task = tasks.start(self._read, source)

    async def _read(self, source: EventSource) -> None:
        with self._queue:
            try:
                async for text in source.data:
                    self._queue.send_nowait(text)
            except Exception as error:  # noqa: BLE001 - raised again by `next`
                self._error = error

    async def next(self) -> str | None:
        """Return the next text, or None at the end; raise the error that broke the connection."""
        try:
            return await self._texts.receive()
        except anyio.EndOfStream:
            if self._error is not None:
                raise self._error from None
            return None

    async def __aenter__(self) -> _Reader:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._task.stop()
        finally:
            self._queue.close()
            self._texts.close()
