# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP server for CLIs (spec T1-T3).

The MCP library answers each POST (`ide.rpc`); it is imported in the background soon after the start.  The sessions
are ours (`ide.sessions`), since they have to outlive this process, and so is the event stream a CLI opens by GET, since
its exact bytes decide whether the CLI gets over a restart: HTTP/1.1, `Connection: close`, neither Content-Length nor
Transfer-Encoding, and `retry:` first.  Then a killed process looks to the CLI like a stream that ended well, and it
comes back after that time.  Its stream does not wait for the library.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import socket
import sys
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import anyio
from starlette.types import ASGIApp, Receive, Scope, Send

from qwen_companion.base.json_objects import read_object
from qwen_companion.base.sockets import Connection
from qwen_companion.base.threads import in_thread
from qwen_companion.domain import KnownSession
from qwen_companion.ide.bodies import Body, BodyTooLargeError, read_body
from qwen_companion.ide.guard import Guard, Keys
from qwen_companion.ide.http import HttpServer, client_of
from qwen_companion.ide.replies import UNSUPPORTED_PROTOCOL_VERSION, refuse, reply
from qwen_companion.ide.sessions import SESSION_HEADER, Sessions
from qwen_companion.ide.tools import DiffTools

if TYPE_CHECKING:
    # It imports the library.
    from qwen_companion.ide.rpc import RpcHandler

PATH = "/mcp"

LIBRARY_AFTER_S = 1.0
"""Seconds after the start until the import of the MCP library begins, if no CLI comes before.

By then the start is over, which the import would slow down.  It takes most of a second of CPU, in which other work of
this process waits for some milliseconds at a time, 100 at most.
"""

MAX_NOTIFICATION_BYTES = 4096
"""Largest body that may be a notification; a larger one always goes to the library."""

STREAMS_END_S = 0.3


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
        self._sessions = sessions
        self._tools = tools
        self._ready = anyio.Event()
        self._library_wanted = anyio.Event()
        self._library_there = anyio.Event()
        self._rpc: RpcHandler | None = None
        secrets = {path: door.secret for path, door in self._doors.items()}
        guard = Guard(self._route, Keys(listener.getsockname()[1], token, secrets), keys_of)
        self._server = HttpServer(guard, listener)

    async def serve(self, on_ready: Callable[[], None]) -> None:
        """Serve until cancelled or told to stop; call `on_ready` once streams are served.

        :raises ImportError: in a group, when the MCP library cannot be imported
        """

        def ready() -> None:
            on_ready()
            self._ready.set()

        async with anyio.create_task_group() as tasks:
            for work in (self._run_rpc, self._sessions.run, self._tools.run):
                tasks.start_soon(work)
            await self._server.serve(ready)
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
        self._server.stop()

    # --- HTTP ---

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._server.admit(client_of(scope))
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
        supported = (await self._library()).protocols
        if version in supported:
            return True
        # Later revisions lack sessions and this stream; told so, a client falls back to `initialize`.
        await refuse(
            send,
            400,
            "Unsupported protocol version",
            code=UNSUPPORTED_PROTOCOL_VERSION,
            data={"supported": list(supported), "requested": version},
        )
        return False

    async def _get(self, session: KnownSession, headers: Mapping[bytes, bytes], scope: Scope, send: Send) -> None:
        accept = headers.get(b"accept", b"")
        if not any(kind in accept for kind in (b"text/event-stream", b"text/*", b"*/*")):
            await refuse(send, 406, "Not Acceptable: Client must accept text/event-stream")
            return
        self._identify(session, scope)
        client = client_of(scope)
        last = headers.get(b"last-event-id")
        last_received = None if last is None else last.decode("latin-1")
        if not await self._sessions.serve_stream(session.id, client.when_lost, send, last_received):
            # Closing would wait for a client that reads nothing.
            client.transport.abort()

    def _identify(self, session: KnownSession, scope: Scope) -> None:
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
