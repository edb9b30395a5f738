# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers below the MCP library: JSON, or an HTTP status with a JSON-RPC error that gives the reason."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from starlette.types import Send

INVALID_REQUEST = -32600
UNSUPPORTED_PROTOCOL_VERSION = -32022


def refusal(message: str, code: int = INVALID_REQUEST, data: dict[str, Any] | None = None) -> bytes:
    """Return the body of a response with the error `message`."""
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode("utf-8")


async def refuse(
    send: Send,
    status: int,
    message: str,
    *,
    code: int = INVALID_REQUEST,
    data: dict[str, Any] | None = None,
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    """Answer a request with `status` and `message`."""
    await reply(send, status, refusal(message, code, data), headers)


async def reply(send: Send, status: int, body: bytes = b"", headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Answer a request with `status` and the JSON in `body`, if any."""
    kind = [(b"content-type", b"application/json")] if body else []
    length = (b"content-length", str(len(body)).encode("ascii"))
    await send({"type": "http.response.start", "status": status, "headers": [*kind, length, *headers]})
    await send({"type": "http.response.body", "body": body})
