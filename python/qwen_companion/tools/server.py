# SPDX-License-Identifier: GPL-3.0-or-later
"""The endpoint of the tools, an MCP server beside that for the IDE.

It has no session that could be lost.  The id that it gives to a CLI only distinguishes the calls of CLIs, so that a
call can be cancelled and its process is looked up once.  Any id is accepted, including those of an earlier process.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from qwen_companion.base.json_objects import as_object, read_object
from qwen_companion.base.sockets import Connection
from qwen_companion.base.threads import in_thread
from qwen_companion.ide.bodies import BodyTooLargeError, read_body
from qwen_companion.ide.peers import Caller
from qwen_companion.ide.replies import refuse, reply
from qwen_companion.ide.sessions import SESSION_HEADER
from qwen_companion.tools.calls import Tools
from qwen_companion.tools.rpc import CALL_TOOL, CANCELLED, INITIALIZE, JsonObject, is_request, reply_to

_MAX_BODY_BYTES = 256 * 1024
"""Largest request in bytes: a model sends names and positions, no texts."""

_MAX_CALLERS = 200

_PARSE_ERROR = -32700


@dataclass(eq=False)
class _Exchange:
    """One request that is being answered."""

    cancelled: bool = False


class ToolServer:
    """Answers the requests of all CLIs."""

    def __init__(
        self,
        tools: Tools,
        find_caller: Callable[[Connection], Caller | None],
    ) -> None:
        """`find_caller`, called in a thread, returns a connection's caller."""
        self._tools = tools
        self._find_caller = find_caller
        self._callers: dict[str, Caller] = {}
        self._exchanges: dict[tuple[str, object], _Exchange] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["method"] != "POST":
            # There is no stream for GET, and no session for DELETE.
            await refuse(send, 405, "Method Not Allowed", headers=[(b"allow", b"POST")])
            return
        try:
            body = await read_body(receive, _MAX_BODY_BYTES)
        except BodyTooLargeError as error:
            await refuse(send, 413, str(error))
            return
        if body.oversized:
            await refuse(send, 413, f"The request is larger than {_MAX_BODY_BYTES} bytes.")
            return
        message = _message(body.data)
        if message is None:
            await refuse(send, 400, "Not a message of JSON-RPC", code=_PARSE_ERROR)
            return
        session = dict(scope["headers"]).get(SESSION_HEADER, b"").decode("latin-1")
        if is_request(message):
            await self._answer(message, session, scope, send)
        else:
            if message.get("method") == CANCELLED:
                self._cancel(session, message)
            await reply(send, 202)

    async def _answer(self, request: JsonObject, session: str, scope: Scope, send: Send) -> None:
        key = (session, _hashable(request["id"]))
        exchange = self._exchanges[key] = _Exchange()
        try:
            caller = await self._caller(session, scope) if request["method"] == CALL_TOOL else None
            response = await reply_to(request, self._tools, caller)
        finally:
            if self._exchanges.get(key) is exchange:
                del self._exchanges[key]
        if exchange.cancelled:
            await reply(send, 202)
            return
        headers: list[tuple[bytes, bytes]] = []
        if request["method"] == INITIALIZE and "result" in response:
            headers.append((SESSION_HEADER, uuid.uuid4().hex.encode("ascii")))
        await reply(send, 200, json.dumps(response).encode("ascii"), headers)

    def _cancel(self, session: str, message: JsonObject) -> None:
        """Leave the cancelled call unanswered: the CLI would mistake an answer for the end of the server."""
        request = _hashable(as_object(message.get("params")).get("requestId"))
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


def _message(data: bytes) -> JsonObject | None:
    """Return the JSON-RPC message in `data`, None without one."""
    message = read_object(data)
    try:
        # Half a surrogate pair, which no answer could repeat.
        json.dumps(message, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        return None
    return message


def _hashable(identifier: object) -> object:
    return identifier if isinstance(identifier, str | int) else None
