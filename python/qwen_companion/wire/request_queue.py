# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests of Emacs that take a while: texts, prompts, conversations and plans."""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable

import anyio

from qwen_companion.base.errors import EmacsRefusedError, EmacsUnavailableError, PromptError
from qwen_companion.base.plan_files import kept_plans
from qwen_companion.base.tasks import Tasks
from qwen_companion.base.threads import in_thread
from qwen_companion.conversations.recorded_sessions import recorded_sessions
from qwen_companion.doors.terminal_files import append_prompt
from qwen_companion.wire import messages
from qwen_companion.wire.bridge import Bridge
from qwen_companion.wire.text_requests import answer


class RequestQueue:
    """Answers requests.  Texts are answered one after the other, as long ones take seconds.

    Prompts wait only for earlier prompts.  The link to a remote host keeps the order of its prompts.
    """

    def __init__(self, bridge: Bridge, directory: str, send_there: Callable[[str, str], Awaitable[None]]) -> None:
        """`directory` is the spool, where prompts are written.

        `send_there` sends a prompt to a remote session; it raises PromptError.
        """
        self._bridge = bridge
        self._directory = directory
        self._send_there = send_there
        self._texts, self._texts_left = anyio.create_memory_object_stream[messages.Compare | messages.Merge](math.inf)
        self._jobs = Tasks()
        self._prompting = anyio.Lock()

    def handle(self, request: messages.QueuedCall) -> None:
        """Schedule the answer to `request`."""
        if isinstance(request, messages.Compare | messages.Merge):
            self._texts.send_nowait(request)
        else:
            self._jobs.start(self._prompt if isinstance(request, messages.Prompt) else self._list, request)

    def close(self) -> None:
        """Drop the remaining requests."""
        for stream in (self._texts, self._texts_left):
            stream.close()

    async def run(self) -> None:
        """Answer requests until cancelled."""
        async with self._jobs:
            await self._answer_texts()

    async def _answer_texts(self) -> None:
        """Compare and merge texts."""
        async for request in self._texts_left:
            try:
                await self._bridge.call(await in_thread(answer, request))
            except EmacsRefusedError:
                # The disk may have no room for a long answer.
                self._bridge.notify(request.failed())
            except EmacsUnavailableError:
                pass

    async def _prompt(self, call: messages.Prompt) -> None:
        """Pass the prompt of `call` to its CLI."""
        try:
            if call.file is None:
                await self._send_there(call.session or "", call.text)
            else:
                async with self._prompting:
                    await in_thread(append_prompt, self._directory, call.file, call.text)
        except PromptError as error:
            self._bridge.notify(messages.Notice(f"{error}; the prompt is in the history"))

    async def _list(self, call: messages.ListRecorded | messages.ListPlans) -> None:
        """List recorded conversations, or plans."""
        if isinstance(call, messages.ListPlans):
            plans = await in_thread(kept_plans, os.environ, call.directory, call.conversation)
            self._bridge.notify(messages.Plans(call.id, plans))
        else:
            found = await in_thread(recorded_sessions, os.environ, call.directory)
            self._bridge.notify(messages.RecordedSessions(call.id, found))
