# SPDX-License-Identifier: GPL-3.0-or-later
"""Answer requests with the MCP library (spec T1-T3).

Importing this module imports the library, which takes most of a second and 25 MB: `ide.server` does so in a thread,
after the start.  The library answers each POST without state; its answers to `initialize` and `tools/list`, with which
each CLI begins, are cached for equal requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.types import Message, Receive, Scope, Send

from qwen_companion import __version__
from qwen_companion.base.json_objects import read_object
from qwen_companion.domain import KnownSession
from qwen_companion.ide.bodies import MAX_BODY_BYTES, Body
from qwen_companion.ide.models import ANONYMOUS_CLIENT, TOOLS
from qwen_companion.ide.replies import reply
from qwen_companion.ide.sessions import SESSION_HEADER, Sessions
from qwen_companion.ide.tools import DiffTools

NO_REVIEWS = "The user wants no reviews in Emacs. Decide in the terminal."
"""The error for a session that calls a tool it was not offered."""

MAX_OPENING_BYTES = 4096
"""Largest request whose answer is cached; a CLI's `initialize` has some 200 bytes."""

MAX_ANSWERS = 16
"""Most cached answers: CLIs of one version all send the same requests."""

_EXCHANGE = "qwen_companion.exchange"


class _OpeningKey(NamedTuple):
    """Everything that the answer to an `initialize` or `tools/list` depends on, but the id; `params` as JSON.

    `reviews` is the session's, None for `initialize`.
    """

    reviews: bool | None
    params: str
    accept: bytes | None
    content_type: bytes | None
    protocol: bytes | None


@dataclass(frozen=True)
class _Opening:
    """An `initialize`, or with a session a `tools/list`, of the usual form and size."""

    key: _OpeningKey
    id: str | int


@dataclass(frozen=True)
class _Handshake:
    """The client in an `initialize`, and the version of the protocol in the answer."""

    client: str
    version: str
    protocol: str


@dataclass(frozen=True)
class _Answer:
    """The `result` of a request as JSON; `handshake` for an `initialize`, else None."""

    result: str
    handshake: _Handshake | None


@dataclass
class _Exchange:
    """One POST.  `session` is None until `initialize` has made one.

    For `damaged` see `_replace_lone_surrogates`; `size_limit` is the limit that a text exceeded, in bytes, see `Body`.
    """

    session: KnownSession | None
    damaged: bool
    size_limit: int | None
    opening: _Opening | None
    is_new: bool = False


class RpcHandler:
    """Answers POSTs, while the context that `run` returns is entered."""

    protocols = HANDSHAKE_PROTOCOL_VERSIONS
    """The versions of MCP that it knows."""

    def __init__(self, sessions: Sessions, tools: DiffTools, identify: Callable[[KnownSession, Scope], None]) -> None:
        """`identify` is called with a new session and the scope of the request that has made it."""
        self._sessions = sessions
        self._tools = tools
        self._identify = identify
        self._answers: dict[_OpeningKey, _Answer] = {}
        library = Server("qwen-companion", version=__version__, on_list_tools=_list_tools, on_call_tool=self._call_tool)
        library.middleware.append(self._admit)
        self._manager = StreamableHTTPSessionManager(
            library,
            json_response=True,
            stateless=True,
            # The guard in front checks more than these settings could, on every request.
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            # The limit counts bytes that were already read.
            max_request_body_size=MAX_BODY_BYTES,
        )

    def run(self) -> AbstractAsyncContextManager[None]:
        """Return the context in which requests are answered; exit it in the task that entered it."""
        return self._manager.run()

    async def post(
        self,
        session: KnownSession | None,
        body: Body,
        size_limit: int | None,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer a POST with `body` for `session`.

        `size_limit` is the limit that an oversized text exceeds, in bytes.
        """
        mended = _replace_lone_surrogates(body.data)
        opening = _opening(mended, session, scope)
        if opening is not None and (known := self._answers.get(opening.key)) is not None:
            await self._repeat(known, opening.id, scope, send)
            return
        exchange = _Exchange(session, mended is not body.data, size_limit if body.oversized else None, opening)
        parts = iter([mended])
        del body, mended

        async def replay() -> Message:
            part = next(parts, None)
            return await receive() if part is None else {"type": "http.request", "body": part, "more_body": False}

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                if exchange.session is None and message["status"] < 400:
                    message = {**message, "status": 400}
                elif exchange.session is not None and exchange.is_new:
                    header = (SESSION_HEADER, exchange.session.id.encode("ascii"))
                    message = {**message, "headers": [*message["headers"], header]}
            await send(message)

        await self._manager.handle_request({**scope, _EXCHANGE: exchange}, replay, answer)

    async def _admit(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Admit only `initialize` without a session, which it creates; a middleware of the library."""
        exchange = _exchange(ctx)
        if exchange.session is not None:
            result = await call_next(ctx)
            self._cache(exchange, result)
            return result
        if ctx.request_id is None:
            return None
        if ctx.method != "initialize":
            raise MCPError(code=types.INVALID_REQUEST, message="Bad Request: Missing session ID")
        result = await call_next(ctx)
        client = types.InitializeRequestParams.model_validate(ctx.params or {}, by_name=False).client_info
        protocol = str(cast("dict[str, Any]", result)["protocolVersion"])
        name, version = ("", "") if client.name == ANONYMOUS_CLIENT else (client.name, client.version)
        handshake = _Handshake(name, version, protocol)
        self._cache(exchange, result, handshake)
        request: Any = ctx.request
        exchange.session = self._open(handshake, request.scope)
        exchange.is_new = True
        return result

    def _cache(self, exchange: _Exchange, result: HandlerResult, handshake: _Handshake | None = None) -> None:
        """Cache `result` for equal requests, if CLIs begin with such a request."""
        if exchange.opening is not None:
            if len(self._answers) >= MAX_ANSWERS:
                del self._answers[next(iter(self._answers))]
            self._answers[exchange.opening.key] = _Answer(json.dumps(result), handshake)

    def _open(self, handshake: _Handshake, scope: Scope) -> KnownSession:
        session = self._sessions.open(handshake.client, handshake.version, handshake.protocol)
        self._identify(session, scope)
        return session

    async def _repeat(self, known: _Answer, identifier: str | int, scope: Scope, send: Send) -> None:
        """Answer the request `identifier` with the library's answer to an equal one; open a session for `initialize`.

        The library itself would take a third of the processor time of a new session for each of the two.
        """
        answer = f'{{"jsonrpc": "2.0", "id": {json.dumps(identifier)}, "result": {known.result}}}'.encode()
        headers: list[tuple[bytes, bytes]] = []
        if known.handshake is not None:
            session = self._open(known.handshake, scope)
            headers.append((SESSION_HEADER, session.id.encode("ascii")))
        await reply(send, 200, answer, headers)

    async def _call_tool(
        self, context: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        exchange = _exchange(context)
        # `_admit` lets no tool call through without one.
        session = cast("KnownSession", exchange.session)
        if not session.reviews:
            return types.CallToolResult(content=[types.TextContent(text=NO_REVIEWS)], is_error=True)
        if exchange.size_limit is not None:
            text = _oversized(params.arguments or {}, exchange.size_limit)
            return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)
        result = await self._tools.call(
            session.id, session.label, params.name, params.arguments or {}, damaged=exchange.damaged
        )
        content = [] if result.text is None else [types.TextContent(text=result.text)]
        return types.CallToolResult(content=[*content], is_error=result.is_error)


async def _list_tools(
    context: ServerRequestContext[Any, Any], _params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    # `_admit` lets nothing through without a session.
    session = cast("KnownSession", _exchange(context).session)
    # F1 requires both tools, with one exception: if the user wants no reviews, a CLI without these tools asks only in
    # its terminal.
    return types.ListToolsResult(
        tools=[types.Tool(name=t.name, description=t.description, input_schema=t.input_schema) for t in TOOLS]
        if session.reviews
        else []
    )


def _opening(body: bytes, session: KnownSession | None, scope: Scope) -> _Opening | None:
    """Return the `initialize` in `body`, or with a `session` the `tools/list`.

    None for another body, or one in an unusual form.
    """
    method = "initialize" if session is None else "tools/list"
    # Skip parsing a body that cannot be one.
    if len(body) > MAX_OPENING_BYTES or method.encode("ascii") not in body:
        return None
    values = read_object(body)
    identifier: object = None if values is None else values.get("id")
    if (
        values is None
        or values.keys() - {"params"} != {"jsonrpc", "id", "method"}
        or values["jsonrpc"] != "2.0"
        or values["method"] != method
        # No boolean, which is an integer too.
        or (type(identifier) is not int and type(identifier) is not str)
    ):
        return None
    headers: dict[bytes, bytes] = dict(scope["headers"])
    key = _OpeningKey(
        None if session is None else session.reviews,
        json.dumps(values["params"]) if "params" in values else "",
        headers.get(b"accept"),
        headers.get(b"content-type"),
        headers.get(b"mcp-protocol-version"),
    )
    return _Opening(key, identifier)


def _exchange(ctx: ServerRequestContext[Any, Any]) -> _Exchange:
    request: Any = ctx.request
    return request.scope[_EXCHANGE]


def _oversized(arguments: Mapping[str, object], limit: int) -> str:
    """Return the answer to a tool call whose text was too large."""
    return (
        f"The text for {arguments.get('filePath')} is larger than the {limit} bytes that Emacs reviews "
        "(`qwen-companion-diff-size-limit'). Decide in the terminal instead."
    )


_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def _replace_lone_surrogates(body: bytes) -> bytes:
    """Return `body` with U+FFFD in place of each half surrogate pair in a JSON string.

    JavaScript can send such strings; the library rejects the whole request for them, which the CLI mistakes for a
    broken connection.  The tool it called should report them instead.
    """
    # Each search takes as long as parsing; `JSON.stringify` writes no other such escapes but of control characters.
    if b"\\u" not in body or (b"\\ud" not in body and b"\\uD" not in body):
        return body
    damaged = False

    def replacement(match: re.Match[bytes]) -> bytes:
        nonlocal damaged
        if match.group(1) is None:
            return match.group(0)
        damaged = True
        return b"\\ufffd"

    mended = _ESCAPE.sub(replacement, body)
    return mended if damaged else body
