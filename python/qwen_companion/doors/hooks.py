# SPDX-License-Identifier: GPL-3.0-or-later
"""The endpoint that the hooks of a CLI call.

A CLI waits for each of its hooks, and takes silence or any failure for consent.  So all is answered at once but what
the user is to decide, and the rest is done afterwards; what that takes is imported when the first hook calls.  Nothing
that comes here goes into a log.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from qwen_companion.ide.bodies import BodyTooLargeError, read_body
from qwen_companion.ide.replies import refuse
from qwen_companion.sockets import Connection

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from qwen_companion.doors.hook_handler import HookHandler

_TEXT_LIMIT_BYTES = 64 * 1024 * 1024
"""Longer texts in an event are not kept; what is larger is not reviewed."""

_DECIDES = b'"PermissionRequest"'
"""What is in each event that may wait for an answer."""


class Hooks:
    """Answers the hooks of all CLIs."""

    def __init__(self, load: Callable[[], Awaitable[HookHandler]]) -> None:
        """LOAD imports what deals with events, the first time it is called."""
        self._load = load
        self._reports: asyncio.Queue[tuple[bytes, Connection, asyncio.Event]] = asyncio.Queue()

    async def run(self) -> None:
        """Note what has been reported, in order, until cancelled."""
        while True:
            data, connection, noted = await self._reports.get()
            await (await self._load()).note(data, connection)
            noted.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["method"] != "POST":
            await refuse(send, 405, "Method Not Allowed", headers=[(b"allow", b"POST")])
            return
        try:
            body = await read_body(receive, _TEXT_LIMIT_BYTES)
        except BodyTooLargeError as error:
            await refuse(send, 413, str(error))
            return
        connection = Connection(tuple(scope["client"]), tuple(scope["server"]))
        noted = asyncio.Event()
        self._reports.put_nowait((body.data, connection, noted))
        if _DECIDES not in body.data or body.oversized:
            await _reply(send, {})
            return
        gone = asyncio.Event()
        watcher = asyncio.create_task(_watch(receive, gone))
        try:
            # What was reported before tells which subagent this is.
            await noted.wait()
            handler = await self._load()
            answer, sent = await handler.decide(body.data, connection, gone)
            await _reply(send, answer)
            if sent is not None:
                sent()
        finally:
            watcher.cancel()


async def _watch(receive: Receive, gone: asyncio.Event) -> None:
    """Set GONE at the end of the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()


async def _reply(send: Send, answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode("utf-8")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode("ascii"))]
    # Whoever is not there any more needs no answer.
    with suppress(OSError):
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
