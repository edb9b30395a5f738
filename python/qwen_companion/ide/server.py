# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP server for CLIs (spec T1-T3).

The MCP library answers each POST (`ide.rpc`); it is imported in the background soon after the start.  The sessions
are ours (`ide.sessions`), since they have to outlive this process, and so is the event stream a CLI opens by GET, since
its exact bytes decide whether the CLI gets over a restart: HTTP/1.1, `Connection: close`, neither Content-Length nor
Transfer-Encoding, and `retry:` first.  Then a killed process looks to the CLI like a stream that ended well, and it
comes back after that time.  Its stream does not wait for the library.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import importlib.util
import socket
import sys
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import anyio
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from qwen_companion.base.errors import CompanionError
from qwen_companion.base.json_objects import read_object
from qwen_companion.base.listening import BACKLOG
from qwen_companion.base.sockets import Connection, is_of_another_user
from qwen_companion.base.threads import in_thread
from qwen_companion.domain import KnownSession
from qwen_companion.ide.bodies import Body, BodyTooLargeError, read_body
from qwen_companion.ide.guard import Guard, Keys
from qwen_companion.ide.replies import UNSUPPORTED_PROTOCOL_VERSION, refusal, refuse, reply
from qwen_companion.ide.sessions import SESSION_HEADER, Sessions
from qwen_companion.ide.tools import DiffTools

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from qwen_companion.ide.rpc import RpcHandler

PATH = "/mcp"

MAX_STRANGERS = 2 * BACKLOG
"""Most connections that have not shown the token; with more, the oldest is closed.

The event loop accepts up to `BACKLOG` before it reads from any.  One that shows the token at once must be read before
it is the oldest.
"""

STRANGER_S = 30.0
"""Seconds that a connection may take to show the token.

A CLI connects and then draws the proposal before it sends anything: 1,200 lines took it 6 s on a busy machine.
"""

MAX_HEAD_BYTES = 64 * 1024
"""Longest unfinished head or trailer that is accepted, in bytes."""

IDLE_CONNECTION_S = 65
"""Seconds an idle connection is kept: longer than the CLI's HTTP client keeps it, so that the client ends it."""

LIBRARY_AFTER_S = 1.0
"""Seconds after the start until the import of the MCP library begins, if no CLI comes before.

By then the start is over, which the import would slow down.  It takes most of a second of CPU, in which other work of
this process waits for some milliseconds at a time, 100 at most.
"""

MAX_NOTIFICATION_BYTES = 4096
"""Largest body that may be a notification; a larger one always goes to the library."""

STREAMS_END_S = 0.3
SERVER_END_S = 0.5

_FOREIGN = "This connection belongs to another user."

_CONNECTION = "qwen_companion.connection"
"""Key of a request's `_Protocol` in its state."""


@dataclass(frozen=True)
class Door:
    """Another application on the same port, with its own `secret`."""

    app: ASGIApp
    secret: str


class McpServer:
    """The server on one listening socket."""

    def __init__(
        self,
        listener: socket.socket,
        token: str,
        sessions: Sessions,
        tools: DiffTools,
        doors: Mapping[str, Door] | None = None,
        keys_of: Callable[[int], Keys | None] = lambda _port: None,
    ) -> None:
        """Serve each of `doors` at the path that is its key.

        For `keys_of` see `Guard`.
        """
        self._doors = dict(doors or {})
        self._listener = listener
        self._sessions = sessions
        self._tools = tools
        self._ready = anyio.Event()
        self._library_wanted = anyio.Event()
        self._library_there = anyio.Event()
        self._rpc: RpcHandler | None = None
        secrets = {path: door.secret for path, door in self._doors.items()}
        guard = Guard(self._route, Keys(listener.getsockname()[1], token, secrets), keys_of)
        self._server = _Uvicorn(
            uvicorn.Config(
                _delimit_by_end(guard),
                proxy_headers=False,
                http=cast("type[_Protocol]", functools.partial(_Protocol, strangers=_Strangers())),
                backlog=BACKLOG,
                # Otherwise strangers could fill the log with a line for each malformed request.
                log_level="error",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=IDLE_CONNECTION_S,
            )
        )

    async def serve(self, on_ready: Callable[[], None]) -> None:
        """Serve until cancelled or told to stop; call `on_ready` once streams are served.

        :raises ImportError: in a group, when the MCP library cannot be imported
        """

        def ready() -> None:
            on_ready()
            self._ready.set()

        self._server.on_ready = ready
        async with anyio.create_task_group() as tasks:
            for work in (
                self._run_rpc,
                self._sessions.run,
                self._tools.run,
                self._server.end_in_time,
            ):
                tasks.start_soon(work)
            await self._server.serve(sockets=[self._listener])
            tasks.cancel_scope.cancel()

    async def _run_rpc(self) -> None:
        await self._ready.wait()
        # The CLIs of an earlier process come back soon.
        with anyio.move_on_after(0.0 if self._sessions.states() else LIBRARY_AFTER_S):
            await self._library_wanted.wait()
        rpc_type = await in_thread(import_rpc)
        rpc = rpc_type(self._sessions, self._tools, self._identify)
        async with rpc.run():
            self._rpc = rpc
            self._library_there.set()
            await anyio.sleep_forever()

    async def _library(self) -> RpcHandler:
        """Return the handler of requests once the MCP library is imported."""
        while self._rpc is None:
            await self._library_there.wait()
        return self._rpc

    async def stop(self, for_good: bool) -> None:
        """End the streams in good order and let `serve` return soon; for `for_good` see `Sessions.end_streams`."""
        await self._sessions.end_streams(STREAMS_END_S, for_good)
        self._server.told_to_stop.set()

    # --- HTTP ---

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        cast("_Protocol", scope["state"][_CONNECTION]).admit()
        door = self._doors.get(scope["path"])
        if door is not None:
            await door.app(scope, receive, send)
            return
        if scope["path"] != PATH:
            await refuse(send, 404, f"The only endpoint is {PATH}.")
            return
        self._library_wanted.set()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        identifier = headers.get(SESSION_HEADER)
        session = None if identifier is None else self._sessions.get(identifier.decode("latin-1"))
        version = headers.get(b"mcp-protocol-version")
        if version is not None and not await self._is_spoken(version.decode("latin-1"), session, send):
            return
        if identifier is not None and session is None:
            await refuse(send, 404, "Session not found")
            return
        if session is not None:
            self._sessions.touch(session.id)
        method = scope["method"]
        if method == "POST":
            await self._post(session, scope, receive, send)
        elif method not in ("GET", "DELETE"):
            await refuse(send, 405, "Method Not Allowed", headers=[(b"allow", b"GET, POST, DELETE")])
        elif session is None:
            await refuse(send, 400, "Bad Request: Missing session ID")
        elif method == "DELETE":
            self._sessions.close(session.id)
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self._get(session, headers, scope, send)

    async def _is_spoken(self, version: str, session: KnownSession | None, send: Send) -> bool:
        """Return whether this server supports the protocol `version`; if not, refuse the request."""
        if session is not None and version == session.protocol:
            return True
        await self._library()
        from qwen_companion.ide.rpc import HANDSHAKE_PROTOCOL_VERSIONS

        if version in HANDSHAKE_PROTOCOL_VERSIONS:
            return True
        # Later revisions lack sessions and this stream; told so, a client falls back to `initialize`.
        await refuse(
            send,
            400,
            "Unsupported protocol version",
            code=UNSUPPORTED_PROTOCOL_VERSION,
            data={"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": version},
        )
        return False

    async def _get(self, session: KnownSession, headers: Mapping[bytes, bytes], scope: Scope, send: Send) -> None:
        accept = headers.get(b"accept", b"")
        if not any(kind in accept for kind in (b"text/event-stream", b"text/*", b"*/*")):
            await refuse(send, 406, "Not Acceptable: Client must accept text/event-stream")
            return
        self._identify(session, scope)
        connection = cast("_Protocol", scope["state"][_CONNECTION])
        last = headers.get(b"last-event-id")
        last_received = None if last is None else last.decode("latin-1")
        if not await self._sessions.serve_stream(session.id, connection.when_lost, send, last_received):
            # Closing would wait for a client that reads nothing.
            connection.transport.abort()
            # uvicorn must see the end of the connection before an incomplete answer.
            await anyio.sleep(0)

    def _identify(self, session: KnownSession, scope: Scope) -> None:
        if scope["client"] is not None:
            self._sessions.identify(session.id, Connection(tuple(scope["client"]), tuple(scope["server"])))

    async def _post(self, session: KnownSession | None, scope: Scope, receive: Receive, send: Send) -> None:
        limit = self._tools.text_limit
        try:
            body = await read_body(receive, limit)
        except BodyTooLargeError as error:
            await refuse(send, 413, str(error))
            return
        if session is not None and _is_notification(body):
            # This server ignores notifications, and the library takes as long for one as for a request.
            await reply(send, 202)
            return
        rpc = await self._library()
        answering = rpc.post(session, body, limit, scope, receive, send)
        # The body may be large, and a call may take long.
        del body
        await answering


def _is_notification(body: Body) -> bool:
    """Return whether `body` is a JSON-RPC notification of a size that a CLI sends."""
    if len(body.data) > MAX_NOTIFICATION_BYTES:
        return False
    values = read_object(body.data) or {}
    return values.get("jsonrpc") == "2.0" and isinstance(values.get("method"), str) and "id" not in values


def import_rpc() -> type[RpcHandler]:
    """Import the MCP library, as little of it as serves; return the handler of requests.

    :raises ImportError: when the library cannot be imported
    """
    with contextlib.suppress(ImportError), _without_init("mcp", "mcp.server"):
        importlib.import_module("qwen_companion.ide.rpc")
    # Imported by now, unless another version of the library needs them.
    from qwen_companion.ide.rpc import RpcHandler

    return RpcHandler


@contextlib.contextmanager
def _without_init(*packages: str) -> Generator[None]:
    """Import modules of `packages` without the `__init__` of these.

    Those of `mcp` and `mcp.server` import clients, authorization and a framework: half a second of processor time
    and 12 MB, of which nothing is used here.
    """
    bare: dict[str, ModuleType] = {}
    for name in packages:
        spec = importlib.util.find_spec(name) if name not in sys.modules else None
        if spec is not None:
            bare[name] = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        yield
    finally:
        # A later import of one of them gets the whole package.
        for name, module in bare.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


class _Strangers:
    """Connections that have not shown the token yet, limited in time and number."""

    def __init__(self) -> None:
        self._deadlines: dict[_Protocol, asyncio.TimerHandle] = {}

    def add(self, stranger: _Protocol) -> None:
        """Start the time limit of `stranger`; close the oldest one when there are too many."""
        if len(self._deadlines) >= MAX_STRANGERS:
            oldest = next(iter(self._deadlines))
            self.discard(oldest)
            oldest.transport.abort()
        self._deadlines[stranger] = stranger.loop.call_later(STRANGER_S, stranger.transport.abort)

    def discard(self, protocol: _Protocol) -> None:
        """Remove `protocol` if it is here: it has shown the token, or has ended."""
        deadline = self._deadlines.pop(protocol, None)
        if deadline is not None:
            deadline.cancel()


class _PipeliningError(CompanionError):
    """A client has sent a request before the last one was answered; no CLI does that."""


class _Protocol(HttpToolsProtocol):
    """uvicorn's HTTP with limits for strangers, and no buffer of its own: data is with the system once `send` returns.

    A connection of another user is closed before anything is read from it.  At most one request is unanswered; uvicorn
    keeps it and its answer as `cycle`.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        strangers: _Strangers,
    ) -> None:
        super().__init__(config, server_state, {**app_state, _CONNECTION: self}, _loop)
        self._strangers = strangers
        self._unparsed = 0
        """Bytes received since the last head or piece of a body, the most that the parser stores."""
        self._deaf = False
        """Whether a request came before the last one was answered: nothing more is read."""
        self._loss_listener: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)
        client, server = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if client is None or is_of_another_user(Connection(client, server)):
            transport.write(_foreign_answer())
            transport.close()
        else:
            self._strangers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._strangers.discard(self)
        super().connection_lost(exc)
        self._report_loss()

    def _report_loss(self) -> None:
        if self._loss_listener is not None:
            self._loss_listener()

    def when_lost(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the connection is lost, at once if it is closing; replace the previous listener."""
        self._loss_listener = listener
        if self.transport.is_closing():
            listener()

    def data_received(self, data: bytes) -> None:
        """See asyncio.  Refuse a head or a trailer that is too long."""
        if self._deaf:
            return
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > MAX_HEAD_BYTES and not self._deaf and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        """See httptools.  Refuse a request before the last one is answered: uvicorn would forget the last one's end."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            self._deaf = True
            raise _PipeliningError
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """See httptools."""
        self._unparsed = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self._unparsed = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Refuse malformed HTTP.  Tell an application that is answering the request that the client has disconnected.

        If it is only another request that came too early, let the last one be answered, then close; but the answer to a
        GET may never end.
        """
        # None before the first request, whatever its declaration says.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if self._deaf and cycle is not None and cycle.scope["method"] != "GET":
            cycle.keep_alive = False
            return
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.close()
        else:
            super().send_400_response(msg)
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        self._report_loss()

    def admit(self) -> None:
        """Record that this connection has shown the token."""
        self._strangers.discard(self)


class _GetAnswer:
    """The answer to a GET.  Without a length it is delimited by the end of the connection (RFC 9112, section 6.3)."""

    def __init__(self, connection: _Protocol, send: Send) -> None:
        """`send` is uvicorn's, which would send in chunks what has no length."""
        self._connection = connection
        self._cycle = connection.cycle
        self._send = send
        self._has_length = True
        self._head = b""

    async def send(self, message: Message) -> None:
        """Send `message`, and return once it is with the system; the head goes out with the first piece of the body.

        See ASGI.
        """
        if message["type"] == "http.response.start":
            headers: list[tuple[bytes, bytes]] = message["headers"]
            self._has_length = any(name == b"content-length" for name, _ in headers)
            if not self._has_length:
                lines = [f"HTTP/1.1 {message['status']} {HTTPStatus(message['status']).phrase}".encode("ascii")]
                lines += [name + b": " + value for name, value in headers]
                self._head = b"\r\n".join([*lines, b"", b""])
                self._cycle.response_started = True
                return
        if self._has_length:
            await self._send(message)
            return
        if self._cycle.disconnected:
            return
        self._connection.transport.write(self._head + message["body"])
        self._head = b""
        if self._connection.flow.write_paused:
            await self._connection.flow.drain()
        if not message["more_body"]:
            self._cycle.response_complete = True
            self._cycle.message_event.set()
            self._connection.transport.close()


def _delimit_by_end(app: ASGIApp) -> ASGIApp:
    """Return `app` with answers to GET that have no length."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":
            send = _GetAnswer(scope["state"][_CONNECTION], send).send
        await app(scope, receive, send)

    return serve


def _foreign_answer() -> bytes:
    """Return an HTTP response for a connection before any request was read from it."""
    body = refusal(_FOREIGN)
    head = f"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode("ascii") + body


class _Uvicorn(uvicorn.Server):
    """uvicorn without signal handlers and without polling, with a callback when it is up."""

    on_ready: Callable[[], None]

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.told_to_stop = anyio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        await super().startup(sockets)
        self.on_ready()

    async def main_loop(self) -> None:
        """Return when told to stop.  uvicorn's own loop polls ten times a second, and renews an unsent header."""
        await self.told_to_stop.wait()

    async def end_in_time(self) -> None:
        """Wait no longer than `SERVER_END_S` for open connections, once told to stop."""
        await self.told_to_stop.wait()
        await anyio.sleep(SERVER_END_S)
        self.force_exit = True
