# SPDX-License-Identifier: GPL-3.0-or-later
"""The endpoint that the hooks of a CLI call.

A CLI waits for each of its hooks.  So a hook is answered at once and handled afterwards, unless the user has to decide
or a listener asks for time.  A CLI treats silence or a failure as consent.  Only the command that it runs before an
edit makes it ask instead.  Never log a report.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

import anyio
from starlette.types import Receive, Scope, Send

from qwen_companion.base.sockets import Connection
from qwen_companion.base.tasks import contained
from qwen_companion.doors.door_settings import EDIT_QUERY
from qwen_companion.doors.events import PermissionRequest, PostToolUse
from qwen_companion.doors.hook_handler import HookCall, HookHandler
from qwen_companion.ide.bodies import BodyTooLargeError, read_body
from qwen_companion.ide.replies import refuse, reply

_TEXT_LIMIT_BYTES = 64 * 1024 * 1024
"""Largest text of an event that is kept; a larger edit is not reviewed."""

_EVENT_NAME = re.compile(rb'"hook_event_name"\s*:\s*"(\w*)"')
"""The name precedes all text by a user or a model, in which quotes are escaped."""


class Hooks:
    """Answers the hooks of all CLIs."""

    def __init__(self, handler: HookHandler) -> None:
        self._handler = handler
        subscriptions = (item for listener in handler.listeners for item in listener.subscriptions)
        self._waited = {item.event for item in subscriptions if item.hold_s > 0}
        self._waited |= {PermissionRequest.name, PostToolUse.name}

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
        before_edit = scope["query_string"] == EDIT_QUERY.encode("ascii")
        call = HookCall(
            body.data, body.oversized, Connection(tuple(scope["client"]), tuple(scope["server"])), before_edit
        )
        match = _EVENT_NAME.search(body.data)
        name = "" if match is None else match[1].decode("ascii", "replace")
        if name not in self._waited and not before_edit:
            await _send(send, {})
            await contained(self._handler.reply, call)
            return
        async with anyio.create_task_group() as watch:
            watch.start_soon(_watch, receive, call.gone)
            reply = await contained(self._handler.reply, call)
            await _send(send, reply.answer if reply else {}, 500 if reply is None and before_edit else 200)
            if reply is not None and reply.after is not None:
                reply.after()
            watch.cancel_scope.cancel()


async def _watch(receive: Receive, gone: anyio.Event) -> None:
    """Set `gone` at the end of the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()


async def _send(send: Send, answer: dict[str, Any], status: int = 200) -> None:
    # A caller that has gone needs no answer.
    with suppress(OSError):
        await reply(send, status, json.dumps(answer).encode("utf-8"))
