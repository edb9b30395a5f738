# SPDX-License-Identifier: GPL-3.0-or-later
"""What a CLI does with prompts of ours, by its record of the conversation: no hook tells when the model gets one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anyio

from qwen_companion.domain import CliState
from qwen_companion.doors.states import CANCELLED, IDLE, WORKING, first_words, last_line
from qwen_companion.journal.tree_watch import TreeWatch
from qwen_companion.json_objects import as_object, read_object
from qwen_companion.registry.registry import cover
from qwen_companion.threads import in_thread
from qwen_companion.transcripts.recorded_sessions import parts_of

_MAX_BYTES = 16 * 1024 * 1024
"""How much is read at a time."""

_MOST = 20
"""How many prompts are awaited at most."""


@dataclass(eq=False)
class Awaited:
    """The prompt of a `request`, until the model gets it; `queued`: the user was told that it has not yet."""

    request: int
    text: str
    queued: bool = False
    at_model: anyio.Event = field(default_factory=anyio.Event)


class Transcript:
    """The record of one conversation, of which only turns that begin with prompts of ours count."""

    def __init__(
        self, path: str, sender: str, reached: Callable[[Awaited], None], changed: Callable[[CliState], None]
    ) -> None:
        """Begin at the present end of the file `path`, if it is there; waits for the disk.

        `sender` is the address that our messages name.  `reached` is called with each prompt that reaches the model,
        `changed` with what the CLI does then.
        """
        self.path = path
        self._awaited: list[Awaited] = []
        self._mark = f'<cross_session_message from="{sender}"'
        self._reached = reached
        self._changed = changed
        self._offset = 0
        with suppress(OSError):
            self._offset = os.path.getsize(path)
        self._state = CliState()
        self._answered = False
        """Whether the model's answer to the last request has come whole."""
        self._reading = anyio.Lock()

    def expect(self, request: int, text: str) -> Awaited:
        """Note that the prompt `text` of `request` is being sent."""
        self._awaited.append(awaited := Awaited(request, text))
        del self._awaited[:-_MOST]
        return awaited

    def forget(self, awaited: Awaited) -> None:
        """Note that a prompt does not come."""
        self._awaited = [each for each in self._awaited if each is not awaited]

    async def follow(self) -> None:
        """Follow the record until cancelled."""
        stirred = anyio.Event()
        watch = TreeWatch(lambda _paths: stirred.set())
        try:
            while True:
                stirred = anyio.Event()
                await cover(watch, os.path.dirname(self.path))
                await self.read()
                await stirred.wait()
        finally:
            watch.close()

    async def read(self) -> None:
        """Take what was added to the record."""
        async with self._reading:
            for entry in await in_thread(self._entries):
                self._take(entry)

    def _entries(self) -> list[dict[str, Any]]:
        """Return the new entries."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read(_MAX_BYTES)
        except OSError:
            return []
        # The last line may be half written.
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole) or (len(data) if len(data) == _MAX_BYTES else 0)
        return [entry for line in whole.splitlines() if (entry := read_object(line)) is not None]

    def _take(self, entry: Mapping[str, Any]) -> None:
        kind, parts = entry.get("type"), parts_of(entry)
        text = "".join(text for part in parts if isinstance(text := part.get("text"), str) and not part.get("thought"))
        now = int(time.time() * 1000)
        if kind == "user" and text:
            if entry.get("subtype") == "notification" and text.startswith(self._mark):
                self._become(CliState(WORKING, now, prompt=self._begun(text)))
            else:
                # Nothing tells of the end of what is typed there, if it is cancelled.
                self._become(CliState())
        elif self._state.activity != WORKING:
            pass
        elif kind == "assistant" and not any("functionCall" in part for part in parts):
            # One that is cancelled has no more than what had come of it.  The CLI then begins with it anew.
            whole = self._answered or "usageMetadata" in entry
            self._become(CliState(IDLE if whole else CANCELLED, now, prompt=self._state.prompt, said=last_line(text)))
        elif kind == "tool_result" and any(_was_cancelled(part) for part in parts):
            self._become(CliState(CANCELLED, now, prompt=self._state.prompt))
        if kind in ("user", "assistant", "tool_result"):
            self._answered = False
        elif as_object(as_object(entry.get("systemPayload")).get("uiEvent")).get("event.name") == _ANSWERED:
            self._answered = True

    def _begun(self, text: str) -> str:
        """Note that the model has got our message `text`; return the beginning of its prompt."""
        body = text.partition(">\n")[2].partition("\n</cross_session_message>")[0]
        for number, awaited in enumerate(self._awaited):
            if awaited.text.strip().replace("<", "&lt;") == body.strip():
                # Those sent before it will not come any more.
                del self._awaited[: number + 1]
                awaited.at_model.set()
                self._reached(awaited)
                break
        return first_words(body.replace("&lt;", "<"))

    def _become(self, state: CliState) -> None:
        if state != self._state:
            self._state = state
            self._changed(state)


_ANSWERED = "qwen-code.api_response"


def _was_cancelled(part: Mapping[str, Any]) -> bool:
    """Return whether `part` is of a tool that the user has stopped or refused, and the turn with it."""
    response = as_object(as_object(part.get("functionResponse")).get("response"))
    return str(response.get("error")).startswith("[Operation Cancelled]")
