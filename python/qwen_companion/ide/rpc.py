# SPDX-License-Identifier: GPL-3.0-or-later
"""Answer requests with the MCP library (spec T1-T3).

Importing this module imports the library, which takes most of a second and 25 MB: `ide.server` does so in a thread,
after the start.  The library answers each POST without state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, cast

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.types import Message, Receive, Scope, Send

from qwen_companion import __version__
from qwen_companion.domain import KnownSession
from qwen_companion.ide.bodies import MAX_BODY_BYTES, Body
from qwen_companion.ide.models import ANONYMOUS_CLIENT, TOOLS
from qwen_companion.ide.sessions import SESSION_HEADER, Sessions
from qwen_companion.ide.tools import DiffTools

NO_REVIEWS = "The user wants no reviews in Emacs. Decide in the terminal."
"""The error for a session that calls a tool it was not offered."""

_EXCHANGE = "qwen_companion.exchange"


@dataclass
class _Exchange:
    """One POST.  `session` is None until `initialize` has made one.

    For `damaged` see `_replace_lone_surrogates`; `size_limit` is the limit that a text exceeded, in bytes, see `Body`.
    """

    session: KnownSession | None
    damaged: bool
    size_limit: int | None
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
        exchange = _Exchange(session, mended is not body.data, size_limit if body.oversized else None)
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
            return await call_next(ctx)
        if ctx.request_id is None:
            return None
        if ctx.method != "initialize":
            raise MCPError(code=types.INVALID_REQUEST, message="Bad Request: Missing session ID")
        result = await call_next(ctx)
        client = types.InitializeRequestParams.model_validate(ctx.params or {}, by_name=False).client_info
        protocol = str(cast("dict[str, Any]", result)["protocolVersion"])
        name, version = ("", "") if client.name == ANONYMOUS_CLIENT else (client.name, client.version)
        exchange.session = self._sessions.open(name, version, protocol)
        exchange.is_new = True
        request: Any = ctx.request
        self._identify(exchange.session, request.scope)
        return result

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
