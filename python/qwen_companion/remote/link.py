# SPDX-License-Identifier: GPL-3.0-or-later
"""The pipe to the relay at one place: its process, the connections of CLIs that it carries, and requests to it.

Each connection becomes one to the server of this process, on loopback, so that CLIs there are served by the same code
as those here.  The relay chooses neither where it leads nor what it says; the server knows it by its port on this side.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
from anyio.abc import ByteReceiveStream, Process, TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from qwen_companion.errors import CompanionError, first_error
from qwen_companion.frozen import frozen
from qwen_companion.listening import LOOPBACK
from qwen_companion.remote.commands import failure, is_lasting
from qwen_companion.remote.frames import (
    PART_BYTES,
    PIECE_BYTES,
    VERSION,
    WINDOW_BYTES,
    Decoder,
    Frame,
    FrameError,
    Kind,
    credit,
    credit_of,
    read_object,
    read_reply,
)

START_S = 30.0
"""How long the relay may take to come up, in seconds."""

PING_S = 15.0
"""How often the relay is asked for a sign of life, in seconds; without two of them the pipe counts as broken."""

REQUEST_S = 20.0
"""How long a request may take, in seconds."""

MAX_STREAMS = 100
"""Most connections at once of all CLIs at a place; further ones are closed."""

_MAX_OUTPUT = 16 * 1024
_END_S = 1.0
_QUIT_S = 3.0
"""How long the relay may take to end: one that is cut off before it was told stays, for Emacs to come back."""

_CHUNK_BYTES = 64 * 1024
_EVENT_LIMIT = 1000
_KEPT_S = 10.0
_MAX_PORTS = 10 * MAX_STREAMS
_MAX_REFUSALS = 1000
_LARGEST = 1 << 53


class LinkError(CompanionError):
    """The pipe to a place could not be opened, or has broken; `lasting` if trying again soon is of no use."""

    def __init__(self, text: str, *, lasting: bool = False) -> None:
        super().__init__(text)
        self.lasting = lasting


class RequestError(CompanionError):
    """The relay could not do what it was asked for; the text says why."""


@frozen
class Greeting:
    """What the relay says of itself: its process, the home directory, where it lays files, where its Node.js lies.

    `layer` is the file of settings that a CLI there would read in the place of ours.
    """

    pid: int
    started: str
    home: str
    folder: str
    node: str
    layer: str


@dataclass(eq=False)
class _Stream:
    """A connection of a CLI.  `port` is that of our end of its connection to the server, `who` what the relay knows."""

    number: int
    who: Mapping[str, Any]
    incoming: MemoryObjectSendStream[bytes | None]
    arrived: MemoryObjectReceiveStream[bytes | None]
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    port: int = 0
    ended: bool = False
    """Whether the relay has sent its end."""

    room: int = WINDOW_BYTES
    """Bytes that the relay may still send."""

    credit: int = WINDOW_BYTES
    """Bytes that it takes."""

    credited: anyio.Event = field(default_factory=anyio.Event)


@dataclass(eq=False)
class _Request:
    done: anyio.Event = field(default_factory=anyio.Event)
    values: dict[str, Any] | None = None
    data: bytes = b""


class Link:
    """One run of the relay at a place."""

    def __init__(
        self,
        command: Sequence[str],
        source: bytes,
        environ: Mapping[str, str],
        server_port: int,
        changed: Callable[[Sequence[str]], None],
        is_asking: Callable[[], bool] = lambda: False,
    ) -> None:
        """`command` runs the relay, whose `source` is sent over the pipe; connections are carried to `server_port`.

        `changed` is called with the paths that have changed, of those that are watched.  `is_asking` tells whether
        `command` waits for the user.
        """
        self._command = command
        self._source = source
        self._environ = environ
        self._server_port = server_port
        self._changed = changed
        self._is_asking = is_asking
        self._process: Process | None = None
        self._decoder = Decoder()
        self._writing = anyio.Lock()
        self._streams: dict[int, _Stream] = {}
        self._ports: dict[int, Mapping[str, Any]] = {}
        self._requests: dict[int, _Request] = {}
        self._last_request = 0
        self._refusals = 0
        self._output = bytearray()
        self._greeted = anyio.Event()
        self._admitted = anyio.Event()
        self._heard = 0.0
        self._greeting: Greeting | None = None
        self.is_left = False
        """Whether the relay came up, and its pipe broke before it could be told to end."""

    async def run(self, ready: Callable[[Greeting], None]) -> None:
        """Run the relay until cancelled; call `ready` when it is up.

        :raises LinkError: when it cannot be run, or ends
        """
        try:
            await self._run(ready)
        except BaseException as error:  # noqa: BLE001 - raised again
            found = first_error(error)
            if isinstance(found, (FrameError, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)):
                raise LinkError(self._reason(found), lasting=is_lasting(self._printed())) from None
            raise found from None
        finally:
            for request in self._requests.values():
                request.done.set()

    async def _run(self, ready: Callable[[Greeting], None]) -> None:
        try:
            # In a session of its own: what it asks must not appear in the terminal of Emacs.
            process = await anyio.open_process(self._command, env=dict(self._environ), start_new_session=True)
        except FileNotFoundError:
            raise LinkError(f"there is no program {self._command[0]}", lasting=True) from None
        self._process = process
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._collect, process.stderr)
                tasks.start_soon(self._receive, tasks, process.stdout)
                await self._write(self._source)
                ready(await self._wait_for_greeting())
                await self._keep_alive()
        except anyio.get_cancelled_exc_class():
            # For good.  One whose pipe has broken must go on: the next pipe finds it.
            with anyio.CancelScope(shield=True):
                await self._quit(process)
            raise
        finally:
            # With all that it has started: as long as one has the pipe, the end of this process is not told.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.aclose()

    async def _wait_for_greeting(self) -> Greeting:
        while self._greeting is None:
            with anyio.move_on_after(START_S):
                await self._greeted.wait()
            if self._greeting is None and not self._is_asking():
                raise LinkError(self._reason(None))
        return self._greeting

    async def _quit(self, process: Process) -> None:
        """Tell the relay to end: it removes what it has laid there."""
        with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError), anyio.move_on_after(_END_S):
            if self._greeting is not None and process.returncode is None:
                await self._send(Frame(0, Kind.REQUEST, b'{"name":"quit"}'))
            if process.stdin is not None:
                await process.stdin.aclose()
        with anyio.move_on_after(_QUIT_S):
            await process.wait()
        self.is_left = process.returncode not in (0, None)

    def _printed(self) -> str:
        return self._output.decode("utf-8", "replace")

    def _reason(self, error: BaseException | None) -> str:
        if isinstance(error, FrameError):
            return str(error)
        return (
            failure(self._printed()) if self._output else "the connection has ended" if error else "it does not answer"
        )

    async def _collect(self, stream: ByteReceiveStream | None) -> None:
        """Keep the end of what the program prints to its standard error."""
        with suppress(anyio.EndOfStream):
            while stream is not None:
                self._output += await stream.receive()
                del self._output[:-_MAX_OUTPUT]

    async def _keep_alive(self) -> None:
        self._heard = anyio.current_time()
        while anyio.current_time() - self._heard < 2 * PING_S:
            await self._send(Frame(0, Kind.PING))
            await anyio.sleep(PING_S)
        raise LinkError("it has not answered for half a minute")

    # --- Frames

    async def _send(self, frame: Frame) -> None:
        await self._write(frame.encode())

    async def _write(self, data: bytes) -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise LinkError("the connection has ended")
        async with self._writing:
            await process.stdin.send(data)

    async def _receive(self, tasks: TaskGroup, stream: ByteReceiveStream | None) -> None:
        try:
            while stream is not None:
                for frame in self._decoder.feed(await stream.receive(_CHUNK_BYTES)):
                    self._heard = anyio.current_time()
                    self._take(tasks, frame)
        except anyio.EndOfStream:
            # What it says of that may still be on its way.
            with anyio.move_on_after(_END_S):
                await self._wait_for_process()
            raise LinkError(self._reason(EOFError()), lasting=is_lasting(self._printed())) from None

    async def _wait_for_process(self) -> None:
        if self._process is not None:
            await self._process.wait()
            await anyio.sleep(0)

    def _take(self, tasks: TaskGroup, frame: Frame) -> None:
        if frame.kind is Kind.HELLO:
            self._greeting = _greeting(read_object(frame.payload))
            self.is_left = True
            self._greeted.set()
        elif frame.kind is Kind.OPEN:
            self._open(tasks, frame)
        elif frame.kind is Kind.REPLY:
            request = self._requests.get(frame.stream)
            if request is not None:
                request.values, request.data = read_reply(frame.payload)
                request.done.set()
        elif frame.kind is Kind.EVENT:
            self._changed(strings(read_object(frame.payload).get("changed"))[:_EVENT_LIMIT])
        elif frame.stream in self._streams:
            self._take_stream(self._streams[frame.stream], frame)

    def _take_stream(self, stream: _Stream, frame: Frame) -> None:
        if frame.kind in (Kind.DATA, Kind.END):
            if stream.ended:
                raise FrameError("a stream goes on after its end")
            stream.ended = frame.kind is Kind.END
            # Empty pieces would cost no credit, so there could be any number of them.
            if not stream.ended and not frame.payload:
                raise FrameError("a stream has an empty piece")
            stream.room -= len(frame.payload)
            if stream.room < 0:
                raise FrameError("a stream has more bytes on their way than it may")
            stream.incoming.send_nowait(None if stream.ended else frame.payload)
        elif frame.kind is Kind.CREDIT:
            stream.credit = min(stream.credit + credit_of(frame.payload), WINDOW_BYTES)
            stream.credited.set()
        elif frame.kind is Kind.RESET:
            stream.scope.cancel()

    # --- Connections

    def who(self, port: int) -> Mapping[str, Any] | None:
        """Return what the relay knows of the CLI whose connection comes from `port` here; None for none of ours.

        It may be called in any thread.
        """
        return self._ports.get(port)

    def admit(self) -> None:
        """Carry connections from now on, also those that have come before: by now the server knows what admits them."""
        self._admitted.set()

    def _open(self, tasks: TaskGroup, frame: Frame) -> None:
        if frame.stream in self._streams or len(self._streams) >= MAX_STREAMS or len(self._ports) >= _MAX_PORTS:
            if self._refusals >= _MAX_REFUSALS:
                raise FrameError("it opens more connections than can be refused")
            self._refusals += 1
            tasks.start_soon(self._refuse, frame.stream)
            return
        incoming, arrived = anyio.create_memory_object_stream[bytes | None](math.inf)
        stream = _Stream(frame.stream, read_object(frame.payload), incoming, arrived)
        self._streams[stream.number] = stream
        tasks.start_soon(self._serve, stream)

    async def _refuse(self, number: int) -> None:
        await self._send(Frame(number, Kind.RESET))
        self._refusals -= 1

    async def _serve(self, stream: _Stream) -> None:
        """Carry `stream` to the server and back until both sides have ended it."""
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        connection.setblocking(False)
        writer: asyncio.StreamWriter | None = None
        try:
            with stream.scope:
                connection.bind((LOOPBACK, 0))
                # Known before the server can see it.
                stream.port = connection.getsockname()[1]
                self._ports[stream.port] = stream.who
                await self._admitted.wait()
                await asyncio.get_running_loop().sock_connect(connection, (LOOPBACK, self._server_port))
                reader, writer = await asyncio.open_connection(sock=connection, limit=PIECE_BYTES)
                async with anyio.create_task_group() as both:
                    both.start_soon(self._carry_in, stream, writer)
                    await self._carry_out(stream, reader)
        except OSError:
            await self._send(Frame(stream.number, Kind.RESET))
        except BaseException as error:  # noqa: BLE001 - raised again
            found = first_error(error)
            if not isinstance(found, OSError):
                raise found from None
            await self._send(Frame(stream.number, Kind.RESET))
        finally:
            if writer is not None:
                writer.transport.abort()
            connection.close()
            # What it has asked may be looked at a moment later.
            asyncio.get_running_loop().call_later(_KEPT_S, self._forget, stream)
            stream.incoming.close()
            stream.arrived.close()
            del self._streams[stream.number]

    def _forget(self, stream: _Stream) -> None:
        if self._ports.get(stream.port) is stream.who:
            del self._ports[stream.port]

    async def _carry_in(self, stream: _Stream, writer: asyncio.StreamWriter) -> None:
        granted = 0
        while (data := await stream.arrived.receive()) is not None:
            writer.write(data)
            await writer.drain()
            granted += len(data)
            if granted >= PIECE_BYTES or stream.arrived.statistics().current_buffer_used == 0:
                stream.room += granted
                await self._send(Frame(stream.number, Kind.CREDIT, credit(granted)))
                granted = 0
        writer.write_eof()

    async def _carry_out(self, stream: _Stream, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(PIECE_BYTES):
            while data:
                while stream.credit == 0:
                    stream.credited = anyio.Event()
                    await stream.credited.wait()
                piece, data = data[: stream.credit], data[stream.credit :]
                stream.credit -= len(piece)
                await self._send(Frame(stream.number, Kind.DATA, piece))
        await self._send(Frame(stream.number, Kind.END))
        # The server has closed both ways.
        stream.scope.cancel()

    # --- Requests

    async def request(self, name: str, **values: Any) -> dict[str, Any]:
        """Have the relay do `name` with `values`, and return what it answers.

        :raises RequestError: when it cannot
        :raises LinkError: when the pipe is broken
        """
        return (await self.ask(name, **values))[0]

    async def read(self, path: str, limit: int) -> bytes:
        """Return the bytes of the file `path` there, which must be a regular one of at most `limit` bytes.

        :raises RequestError: when it cannot be read
        :raises LinkError: when the pipe is broken
        """
        data = bytearray()
        while True:
            _, piece = await self.ask("read", path=path, offset=len(data), length=1024 * 1024)
            data += piece
            if len(data) > limit:
                raise RequestError(f"it has more than {limit} bytes")
            if not piece:
                return bytes(data)

    async def ask(self, name: str, **values: Any) -> tuple[dict[str, Any], bytes]:
        """Do the same as `request`; return what the relay answers, and the bytes with it.

        :raises RequestError: when it cannot
        :raises LinkError: when the pipe is broken
        """
        self._last_request += 1
        number, request = self._last_request, _Request()
        self._requests[number] = request
        try:
            data = json.dumps({"name": name, **values}).encode("utf-8")
            while len(data) > PART_BYTES:
                await self._send(Frame(number, Kind.PART, data[:PART_BYTES]))
                data = data[PART_BYTES:]
            await self._send(Frame(number, Kind.REQUEST, data))
            with anyio.move_on_after(REQUEST_S):
                await request.done.wait()
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise LinkError("the connection has ended") from None
        finally:
            del self._requests[number]
        if request.values is None:
            raise LinkError("it does not answer")
        error = request.values.get("error")
        if error is not None:
            raise RequestError(_words(error))
        return request.values, request.data


def strings(value: object) -> list[str]:
    """Return the strings in `value` that may be absolute names of files, if it is a list of the relay's."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [item for item in items if isinstance(item, str) and item.startswith("/") and "\0" not in item]


def objects(value: object) -> list[dict[str, Any]]:
    """Return the objects in `value` if it is a list of the relay's."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item if isinstance(item, dict) else {}) for item in items]


def first_object(value: object) -> dict[str, Any]:
    """Return the first of the objects in a list of the relay's, an empty one where there is none."""
    found = objects(value)
    return found[0] if found else {}


def number(value: object) -> float:
    """Return `value` if it is a number of the relay's that a float holds exactly, else 0."""
    return float(value) if isinstance(value, int | float) and abs(value) <= _LARGEST else 0.0


@frozen
class Look:
    """What lies at a path: its names, the true one last; its `kind`, "file", "directory", "other" or None for nothing.

    `ignored` is the word of git on a file in a `repository`, None where git did not say.
    """

    spellings: tuple[str, ...]
    kind: str | None
    repository: bool
    ignored: bool | None


def read_look(values: Mapping[str, Any]) -> Look | None:
    """Return what a relay says in `values` of a path; None where it could not find out."""
    spellings, kind, ignored = strings(values.get("spellings")), values.get("kind"), values.get("ignored")
    if "error" in values or not spellings or kind not in ("file", "directory", "other", None):
        return None
    repository = values.get("repository") is not None
    return Look(tuple(spellings), kind, repository, ignored if isinstance(ignored, bool) else None)


def _greeting(values: Mapping[str, Any]) -> Greeting:
    if values.get("version") != VERSION:
        raise FrameError("the relay is of another version than this Emacs: restart qwen-companion-mode")
    pid, texts = values.get("pid"), [values.get(key) for key in ("started", "home", "folder", "node", "layer")]
    if not isinstance(pid, int) or not all(isinstance(text, str) and len(text) < 4096 for text in texts):
        raise FrameError("the relay's greeting is not understood")
    return Greeting(pid, *map(str, texts))


def _words(error: object) -> str:
    """Return the `error` of a relay as one line for a person; a code of the system in its words."""
    text = "".join(character for character in str(error)[:200] if character.isprintable())
    number = {"ENOSPC": 28, "EROFS": 30, "EACCES": 13, "EDQUOT": 122}.get(text)
    return os.strerror(number) if number else text
