# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP/1.1 on one listening socket, for an ASGI application (spec T1).

`httptools` reads the requests; nothing bounds a head there, so `Client` does.  An answer is with the operating system
once `send` returns.  An answer without Content-Length is delimited by the end of its connection (RFC 9112, section
6.3), never in chunks.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import cast
from urllib.parse import unquote

import anyio
import httptools
from starlette.types import ASGIApp, Message, Scope

from qwen_companion.base.errors import CompanionError
from qwen_companion.base.listening import BACKLOG
from qwen_companion.base.sockets import Connection, is_of_another_user
from qwen_companion.base.tasks import log_failure
from qwen_companion.ide.replies import refusal, refuse

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

MAX_UNREAD_BYTES = 64 * 1024
"""Bytes of a body to store before the application asks for them."""

IDLE_CONNECTION_S = 65.0
"""Seconds an idle connection is kept: longer than the CLI's HTTP client keeps it, so that the client ends it."""

SERVER_END_S = 0.5
"""Seconds that requests may take to end when the server stops."""

_CLIENT = "qwen_companion.client"
"""Key of a request's `Client` in its scope."""

_NO_BODY = (204, 304)
"""Statuses of answers that have no body."""


class HttpServer:
    """Serves `app` on one listening socket."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        """Serve requests only while `serve` runs."""
        self._app = app
        self._listener = listener
        self._clients: set[Client] = set()
        self._strangers: dict[Client, asyncio.TimerHandle] = {}
        """Clients that have not shown the token yet, each with the timer that ends its connection."""
        self._answers: set[asyncio.Task[None]] = set()
        """The tasks that answer requests."""
        self._told_to_stop = anyio.Event()

    async def serve(self, on_ready: Callable[[], None]) -> None:
        """Serve until told to stop; call `on_ready` once connections are accepted."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Client(self), sock=self._listener, backlog=BACKLOG)
        try:
            on_ready()
            await self._told_to_stop.wait()
        finally:
            server.close()
            for client in tuple(self._clients):
                client.close_when_answered()
        with anyio.move_on_after(SERVER_END_S):
            while self._answers:
                await asyncio.wait(self._answers)
        for client in tuple(self._clients):
            client.transport.abort()

    def stop(self) -> None:
        """Let `serve` return soon."""
        self._told_to_stop.set()

    def add(self, client: Client) -> None:
        """Note a new connection, a stranger's; close the oldest stranger's when there are too many."""
        self._clients.add(client)
        if len(self._strangers) >= MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            self.admit(oldest)
            oldest.transport.abort()
        loop = asyncio.get_running_loop()
        self._strangers[client] = loop.call_later(STRANGER_S, client.transport.abort)

    def admit(self, client: Client) -> None:
        """Drop the limits for strangers from `client`: it has shown the token, or has ended."""
        deadline = self._strangers.pop(client, None)
        if deadline is not None:
            deadline.cancel()

    def discard(self, client: Client) -> None:
        """Forget `client`, which has ended."""
        self.admit(client)
        self._clients.discard(client)

    def answer(self, exchange: Exchange) -> None:
        """Begin to answer the request of `exchange`."""
        task = asyncio.get_running_loop().create_task(exchange.run(self._app))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)


def client_of(scope: Scope) -> Client:
    """Return the connection of the request with `scope`."""
    return scope[_CLIENT]


class _PipeliningError(CompanionError):
    """A client has sent a request before the last one was answered; no CLI does that."""


class Client(asyncio.Protocol):
    """One connection.  At most one of its requests is unanswered; a connection of another user is not read."""

    transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        # What follows a request that closes the connection is a request too early, see `on_message_begin`.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._exchange: Exchange | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._unparsed = 0
        """Bytes received since the last head or piece of a body, the most that the parser stores."""
        self._deaf = False
        """Whether nothing more is read: malformed HTTP, or a request before the last one was answered."""
        self._writable = asyncio.Event()
        self._writable.set()
        self._idle: asyncio.TimerHandle | None = None
        self._loss_listener: Callable[[], None] | None = None

    # --- The connection ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=0)
        client, server = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if client is None or is_of_another_user(Connection(client, server)):
            self._refuse(HTTPStatus.FORBIDDEN, "This connection belongs to another user.")
        else:
            self._server.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._server.discard(self)
        self._end_idleness()
        self._writable.set()
        self._lose()

    def _lose(self) -> None:
        """Report that the client is gone, or talks nonsense."""
        if self._exchange is not None:
            self._exchange.disconnect()
        if self._loss_listener is not None:
            self._loss_listener()

    def when_lost(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the connection is lost, at once if it is closing; replace the previous listener."""
        self._loss_listener = listener
        if self.transport.is_closing():
            listener()

    def close_when_answered(self) -> None:
        """Close the connection once the current request, if any, is answered."""
        if self._exchange is None or self._exchange.answered:
            self.transport.close()
        else:
            self._exchange.keeps_alive = False

    def pause_writing(self) -> None:
        """See asyncio."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """See asyncio."""
        self._writable.set()

    async def write(self, data: bytes) -> None:
        """Send `data`; return once it is with the operating system, or the connection is lost."""
        self.transport.write(data)
        await self._writable.wait()

    def end_exchange(self, keeps_alive: bool) -> None:
        """Wait for the next request, or close the connection."""
        if not keeps_alive:
            self.transport.close()
        elif not self.transport.is_closing():
            self._idle = asyncio.get_running_loop().call_later(IDLE_CONNECTION_S, self.transport.close)
            self.transport.resume_reading()

    def _end_idleness(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    # --- Requests ---

    def data_received(self, data: bytes) -> None:
        """See asyncio.  Refuse a head or a trailer that is too long."""
        if self._deaf:
            return
        self._end_idleness()
        self._unparsed += len(data)
        try:
            with suppress(httptools.HttpParserUpgrade):  # A request to upgrade is answered like any other.
                self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._deaf = True
            if isinstance(error.__context__, _PipeliningError):
                self._end_after_answer()
            else:
                self._give_up("This is not HTTP.")
            return
        if self._unparsed > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._give_up("The head of the request is too long.")

    def _end_after_answer(self) -> None:
        """Let the last request be answered, then close; but the answer to a GET may never end."""
        exchange = self._exchange
        if exchange is not None and exchange.scope["method"] != "GET":
            exchange.keeps_alive = False
        else:
            self._give_up("A request came before the last one was answered.")

    def _give_up(self, reason: str) -> None:
        """Close the connection, and say why unless an answer has begun."""
        if self._exchange is None or self._exchange.answered or not self._exchange.begun:
            self._refuse(HTTPStatus.BAD_REQUEST, reason)
        else:
            self.transport.close()
        self._lose()

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        body = refusal(reason)
        length = (b"content-length", b"%d" % len(body))
        headers = [(b"content-type", b"application/json"), length, (b"connection", b"close")]
        self.transport.write(_head(status, headers) + body)
        self.transport.close()

    def on_message_begin(self) -> None:
        """See httptools.  Refuse a request before the last one is answered."""
        if self._exchange is not None and not self._exchange.answered:
            raise _PipeliningError
        self._url, self._headers = b"", []

    def on_url(self, url: bytes) -> None:
        """See httptools."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """See httptools."""
        self._unparsed = 0
        # Trailers are no headers (RFC 9110, section 6.5.1).
        headers, self._headers = self._headers, []
        url, version = httptools.parse_url(self._url), self._parser.get_http_version()
        scope = {
            "type": "http",
            "http_version": version,
            "method": self._parser.get_method().decode("ascii"),
            "scheme": "http",
            "path": unquote(url.path.decode("ascii")),
            "query_string": url.query or b"",
            "headers": headers,
            "client": self.transport.get_extra_info("peername"),
            "server": self.transport.get_extra_info("sockname"),
            _CLIENT: self,
        }
        self._exchange = Exchange(self, scope, version != "1.0" and self._parser.should_keep_alive())
        self._server.answer(self._exchange)

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self._unparsed = 0
        if self._exchange is not None:
            self._exchange.feed(body)

    def on_message_complete(self) -> None:
        """See httptools."""
        if self._exchange is not None:
            self._exchange.feed(None)


class Exchange:
    """One request and its answer, with the `receive` and `send` of ASGI."""

    def __init__(self, client: Client, scope: Scope, keeps_alive: bool) -> None:
        self.scope = scope
        self.keeps_alive = keeps_alive
        """Whether another request may follow on the connection."""
        self.begun = False
        """Whether the answer has begun."""
        self.answered = False
        """Whether all of the answer has been sent."""
        self._client = client
        self._disconnected = False
        self._body = bytearray()
        self._has_more = True
        self._news = asyncio.Event()
        self._awaits_word = any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in scope["headers"]
        )
        self._head = b""

    async def run(self, app: ASGIApp) -> None:
        """Let `app` answer the request."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception as error:  # noqa: BLE001 - one request that fails must not end the others
            log_failure(app, error)
            if not self.begun:
                await refuse(self.send, 500, "Internal error")
        finally:
            if not self.answered:
                self._client.transport.close()

    def disconnect(self) -> None:
        """Record that the client reads no answer any more."""
        self._disconnected = True
        self._news.set()

    def feed(self, body: bytes | None) -> None:
        """Add a piece of the body, None for its end."""
        if self.answered:
            return
        if body is None:
            self._has_more = False
        else:
            self._body += body
            if len(self._body) > MAX_UNREAD_BYTES:
                self._client.transport.pause_reading()
        self._news.set()

    async def receive(self) -> Message:
        """See ASGI."""
        if self._awaits_word:
            self._awaits_word = False
            await self._client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self._disconnected and not self.answered:
            self._client.transport.resume_reading()
            await self._news.wait()
            self._news.clear()
        if self._disconnected or self.answered:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self._has_more}

    async def send(self, message: Message) -> None:
        """See ASGI.  The head goes out with the first piece of the body."""
        if self._disconnected:
            return
        if message["type"] == "http.response.start":
            self._begin(message["status"], message["headers"])
            return
        body = b"" if self.scope["method"] == "HEAD" else message.get("body", b"")
        data, self._head = self._head + body, b""
        await self._client.write(data)
        if not message.get("more_body", False) and not self.answered:
            self.answered = True
            self._news.set()
            self._client.end_exchange(self.keeps_alive)

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.begun = True
        self._awaits_word = False
        names = {name.lower() for name, _ in headers}
        self.keeps_alive &= b"content-length" in names or status in _NO_BODY
        closing = [] if self.keeps_alive or b"connection" in names else [(b"connection", b"close")]
        self._head = _head(HTTPStatus(status), [*headers, *closing])


def _head(status: HTTPStatus, headers: list[tuple[bytes, bytes]]) -> bytes:
    lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode("ascii")]
    return b"\r\n".join([*lines, *(name + b": " + value for name, value in headers), b"", b""])
