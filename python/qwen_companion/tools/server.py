# SPDX-License-Identifier: GPL-3.0-or-later
"""The endpoint of the tools, an MCP server of its own beside that for the IDE.

It keeps no session that could be lost: the id that it hands out only tells the calls of one CLI from those of another,
so that a call can be cancelled and its process is looked for once.  Any id is taken, those of an earlier process too.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import anyio

from qwen_companion.ide.bodies import BodyTooLargeError, read_body
from qwen_companion.ide.peers import Caller
from qwen_companion.ide.replies import refuse
from qwen_companion.ide.sessions import SESSION_HEADER
from qwen_companion.sockets import Connection
from qwen_companion.threads import in_thread

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from qwen_companion.tools.calls import Tools
    from qwen_companion.tools.rpc import ToolRpc

_MAX_BODY_BYTES = 256 * 1024
"""Largest request: a model names places, it sends no texts."""

_MAX_CALLERS = 200

_CANCELLED = "notifications/cancelled"


@dataclass(eq=False)
class _Exchange:
    """One call that is being answered."""

    cancelled: bool = False


class ToolServer:
    """Answers the requests of all CLIs, once `run` is running."""

    def __init__(self, tools: Tools, find_caller: Callable[[Connection], Caller | None]) -> None:
        """`find_caller`, called in a thread, tells whose connection it is."""
        self._tools = tools
        self._find_caller = find_caller
        self._cli_came = anyio.Event()
        self._rpc: ToolRpc | None = None
        self._ready = anyio.Event()
        self._callers: dict[str, Caller] = {}
        self._exchanges: dict[tuple[str, object], _Exchange] = {}

    async def run(self) -> None:
        """Answer requests until cancelled.  Imports the MCP library with the first one; ImportError."""
        await self._cli_came.wait()
        rpc = self._rpc = (await in_thread(_import_rpc))(self._tools)
        async with rpc.run():
            self._ready.set()
            await anyio.sleep_forever()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["method"] != "POST":
            # There is no stream to open by GET and nothing to DELETE.
            await refuse(send, 405, "Method Not Allowed", headers=[(b"allow", b"POST")])
            return
        self._cli_came.set()
        try:
            body = await read_body(receive, _MAX_BODY_BYTES)
        except BodyTooLargeError as error:
            await refuse(send, 413, str(error))
            return
        if body.oversized:
            await refuse(send, 413, f"The request is larger than {_MAX_BODY_BYTES} bytes.")
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        session = headers.get(SESSION_HEADER, b"").decode("latin-1")
        message = _message(body.data)
        if message.get("method") == _CANCELLED:
            self._cancel(session, message)
        key = (session, _hashable(message.get("id")))
        exchange = self._exchanges[key] = _Exchange()
        try:
            caller = await self._caller(session, scope) if message.get("method") == "tools/call" else None
            await self._ready.wait()
            rpc = cast("ToolRpc", self._rpc)
            new = uuid.uuid4().hex if message.get("method") == "initialize" else None
            await rpc.post(body.data, caller, scope, receive, _answer(send, exchange, new))
        finally:
            if self._exchanges.get(key) is exchange:
                del self._exchanges[key]

    def _cancel(self, session: str, message: dict[str, Any]) -> None:
        """The CLI does not wait any more: it would take an answer for the end of the server."""
        params = message.get("params")
        if isinstance(params, dict):
            request = _hashable(cast("dict[str, object]", params).get("requestId"))
            exchange = self._exchanges.get((session, request))
            if exchange is not None:
                exchange.cancelled = True

    async def _caller(self, session: str, scope: Scope) -> Caller | None:
        caller = self._callers.get(session)
        if caller is None:
            connection = Connection(tuple(scope["client"]), tuple(scope["server"]))
            caller = await in_thread(self._find_caller, connection)
            if caller is not None and session:
                while len(self._callers) >= _MAX_CALLERS:
                    del self._callers[next(iter(self._callers))]
                self._callers[session] = caller
        return caller


def _answer(send: Send, exchange: _Exchange, new: str | None) -> Send:
    """Return what sends an answer in the place of `send`: nothing to a cancelled call, and `new` as id of a session."""
    dropped = False

    async def answer(message: Message) -> None:
        nonlocal dropped
        if message["type"] == "http.response.start":
            dropped = exchange.cancelled
            if dropped:
                message = {**message, "status": 202, "headers": [(b"content-length", b"0")]}
            elif new is not None and message["status"] < 400:
                header = (SESSION_HEADER, new.encode("ascii"))
                message = {**message, "headers": [*message["headers"], header]}
        elif dropped:
            message = {**message, "body": b""}
        await send(message)

    return answer


def _message(data: bytes) -> dict[str, Any]:
    """The JSON-RPC message in `data`, {} where there is none."""
    try:
        message: object = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", message) if isinstance(message, dict) else {}


def _hashable(identifier: object) -> object:
    return identifier if isinstance(identifier, str | int) else None


def _import_rpc() -> type[ToolRpc]:
    from qwen_companion.tools.rpc import ToolRpc

    return ToolRpc
