# SPDX-License-Identifier: GPL-3.0-or-later
"""The connections of one place's CLIs, carried to this process's server and kept while the pipe is down.

Each becomes a loopback connection to the server, so that the same code serves CLIs there and here.  The relay controls
neither its target nor its contents; the server recognises it by its port on this side.

Both sides of a stream count its bytes, and store unacknowledged ones.  On the next pipe the relay reopens its streams
with their positions: they resume there, without loss or repeats.  Bytes sent to an ended process of Emacs are not sent
to the next one.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from qwen_companion.base.errors import first_error
from qwen_companion.base.listening import LOOPBACK
from qwen_companion.base.tasks import Tasks
from qwen_companion.remote.frames import (
    PIECE_BYTES,
    WINDOW_BYTES,
    Frame,
    FrameError,
    Kind,
    credit,
    credit_of,
    read_object,
)

MAX_STREAMS = 100
"""Most connections of all CLIs at a place; further ones are closed."""

_KEPT_S = 10.0
_MAX_PORTS = 10 * MAX_STREAMS
_MAX_REFUSALS = 1000


@dataclass(eq=False)
class _Stream:
    """A CLI's connection: our `port` of its connection to the server, and the relay's description `who` of the CLI."""

    number: int
    who: Mapping[str, Any]
    incoming: MemoryObjectSendStream[bytes | None]
    arrived: MemoryObjectReceiveStream[bytes | None]
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    port: int = 0
    open: bool = True
    """Whether the relay has opened it on this pipe."""

    received: int = 0
    """Bytes received from the CLI."""
    passed: int = 0
    """Bytes of these passed to the server."""
    granted: int = 0
    """Bytes of these acknowledged to the relay."""
    repeated: int = 0
    """Bytes the relay will resend because it missed our acknowledgement."""
    ended: bool = False
    """Whether the relay has sent its end."""

    kept: bytearray = field(default_factory=bytearray)
    """The server's bytes that the CLI has not acknowledged."""
    taken: int = 0
    """The number of bytes before these."""
    sent: int = 0
    """The number of bytes sent, over this pipe or an earlier one."""
    finished: bool = False
    """Whether the server has ended it."""
    stirred: anyio.Event = field(default_factory=anyio.Event)
    freed: anyio.Event = field(default_factory=anyio.Event)

    def receive(self, data: bytes) -> None:
        """Handle `data` of the CLI.

        :raises FrameError: when it may not send that
        """
        if self.ended:
            raise FrameError("a stream goes on after its end")
        # Empty pieces cost no credit, so their number would be unlimited.
        if not data:
            raise FrameError("a stream has an empty piece")
        new = data[self.repeated :]
        self.repeated -= len(data) - len(new)
        self.received += len(new)
        if self.received - self.passed > WINDOW_BYTES:
            raise FrameError("a stream has more bytes on their way than it may")
        if new:
            self.incoming.send_nowait(new)

    def end(self) -> None:
        """Handle the end of the CLI's bytes.

        :raises FrameError: when they have already ended
        """
        if self.ended:
            raise FrameError("a stream goes on after its end")
        self.ended = True
        self.incoming.send_nowait(None)

    def free(self, total: int) -> None:
        """Record that the CLI has acknowledged `total` bytes."""
        count = max(0, min(total, self.sent) - self.taken)
        del self.kept[:count]
        self.taken += count
        self.freed.set()
        self.stirred.set()

    def resume(self, start: object, got: object) -> bool:
        """Resume on a new pipe, which sends bytes from `start` and needs them from `got`; return whether that works."""
        if (
            self.open
            or not isinstance(start, int)
            or not isinstance(got, int)
            or not max(0, self.received - WINDOW_BYTES) <= start <= self.received
            or not self.taken <= got <= self.taken + len(self.kept)
        ):
            return False
        self.open, self.ended = True, False
        self.repeated, self.granted, self.sent = self.received - start, start, got
        self.stirred.set()
        return True

    def next(self) -> Frame | None:
        """Return the next frame to send, or None."""
        if self.granted < self.passed:
            self.granted = self.passed
            return Frame(self.number, Kind.CREDIT, credit(self.passed))
        start = self.sent - self.taken
        piece = bytes(self.kept[start : start + PIECE_BYTES])
        if not piece:
            return None
        self.sent += len(piece)
        return Frame(self.number, Kind.DATA, piece)


class Streams:
    """The streams of one place; each becomes a connection to the port `server_port`, while `run` runs."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._streams: dict[int, _Stream] = {}
        self._ports: dict[int, Mapping[str, Any]] = {}
        self._send: Callable[[Frame], Awaitable[None]] | None = None
        self._relay: object = None
        self._same_relay = False
        self._admitted = anyio.Event()
        self._refusals = 0
        self._tasks = Tasks()

    async def run(self) -> None:
        """Carry streams until cancelled."""
        await self._tasks.run()

    def who(self, port: int) -> Mapping[str, Any] | None:
        """Return the relay's description of the CLI whose connection comes from local `port`, or None.

        Callable in any thread.
        """
        return self._ports.get(port)

    # --- The pipe

    def attach(self, send: Callable[[Frame], Awaitable[None]], relay: object) -> None:
        """Send frames by `send`, which never raises, to the process `relay` there.

        It names the resumed streams before it answers any request.
        """
        self._same_relay, self._relay, self._send = relay == self._relay, relay, send
        if not self._same_relay:
            self._drop_closed()
        if self._admitted.is_set():
            self._admitted = anyio.Event()

    def detach(self) -> None:
        """Keep all streams after the pipe broke."""
        self._send = None
        for stream in self._streams.values():
            stream.open = False

    def admit(self) -> None:
        """Carry the waiting connections of the relay; the server now knows the keys that admit them."""
        self._drop_closed()
        self._admitted.set()

    def _drop_closed(self) -> None:
        for number, stream in list(self._streams.items()):
            if not stream.open:
                stream.scope.cancel()
                del self._streams[number]

    def handle(self, frame: Frame) -> None:
        """Handle a frame of the relay.

        :raises FrameError: when it violates the protocol
        """
        stream = self._streams.get(frame.stream)
        if frame.kind is Kind.OPEN:
            self._open(frame.stream, read_object(frame.payload))
        elif stream is None or not stream.open:
            return
        elif frame.kind is Kind.DATA:
            stream.receive(frame.payload)
        elif frame.kind is Kind.END:
            stream.end()
        elif frame.kind is Kind.CREDIT:
            stream.free(credit_of(frame.payload))
        elif frame.kind is Kind.RESET:
            stream.scope.cancel()

    def _open(self, number: int, values: dict[str, Any]) -> None:
        start, got = values.pop("start", 0), values.pop("got", 0)
        known = self._streams.get(number)
        if known is not None and known.resume(start, got):
            return
        # A stream opened earlier may have been served by an ended process; not so if none of its bytes were used.
        is_new = values.pop("again", False) is not True or (self._same_relay and start == got == 0)
        if known or not is_new or len(self._streams) >= MAX_STREAMS or len(self._ports) >= _MAX_PORTS:
            if self._refusals >= _MAX_REFUSALS:
                raise FrameError("it opens more connections than can be refused")
            self._refusals += 1
            self._tasks.start(self._refuse, number)
            return
        incoming, arrived = anyio.create_memory_object_stream[bytes | None](math.inf)
        stream = self._streams[number] = _Stream(number, values, incoming, arrived)
        self._tasks.start(self._serve, stream)

    async def _refuse(self, number: int) -> None:
        await self._reset(number)
        self._refusals -= 1

    async def _reset(self, number: int) -> None:
        if self._send is not None:
            await self._send(Frame(number, Kind.RESET))

    # --- A stream

    async def _serve(self, stream: _Stream) -> None:
        """Carry `stream` to the server and back until both sides have ended it."""
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        connection.setblocking(False)
        writer: asyncio.StreamWriter | None = None
        try:
            with stream.scope:
                connection.bind((LOOPBACK, 0))
                # Set before the server can see it.
                stream.port = connection.getsockname()[1]
                self._ports[stream.port] = stream.who
                await self._admitted.wait()
                await asyncio.get_running_loop().sock_connect(connection, (LOOPBACK, self._server_port))
                reader, writer = await asyncio.open_connection(sock=connection, limit=PIECE_BYTES)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._carry_in, stream, writer)
                    tasks.start_soon(self._send_frames, stream)
                    await self._carry_out(stream, reader)
        except BaseException as error:  # noqa: BLE001 - raised again
            found = first_error(error)
            if not isinstance(found, OSError):
                raise found from None
            await self._reset(stream.number)
        finally:
            if writer is not None:
                writer.transport.abort()
            connection.close()
            # The server may still look up its request.
            asyncio.get_running_loop().call_later(_KEPT_S, self._forget, stream)
            stream.incoming.close()
            stream.arrived.close()
            if self._streams.get(stream.number) is stream:
                del self._streams[stream.number]

    def _forget(self, stream: _Stream) -> None:
        if self._ports.get(stream.port) is stream.who:
            del self._ports[stream.port]

    async def _carry_in(self, stream: _Stream, writer: asyncio.StreamWriter) -> None:
        while (data := await stream.arrived.receive()) is not None:
            writer.write(data)
            await writer.drain()
            stream.passed += len(data)
            stream.stirred.set()
        writer.write_eof()

    async def _carry_out(self, stream: _Stream, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(min(PIECE_BYTES, WINDOW_BYTES - len(stream.kept))):
            stream.kept += data
            stream.stirred.set()
            while len(stream.kept) == WINDOW_BYTES:
                stream.freed = anyio.Event()
                await stream.freed.wait()
        stream.finished = True
        stream.stirred.set()

    async def _send_frames(self, stream: _Stream) -> None:
        end: object = None
        while True:
            stream.stirred = anyio.Event()
            send = self._send if stream.open else None
            if send is not None and (frame := stream.next()) is not None:
                await send(frame)
            elif send is not None and stream.finished and end is not send:
                end = send
                await send(Frame(stream.number, Kind.END))
            elif end is not None and not stream.kept:
                # The server has closed both directions.
                stream.scope.cancel()
                return
            else:
                await stream.stirred.wait()
