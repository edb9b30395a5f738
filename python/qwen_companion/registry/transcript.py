# SPDX-License-Identifier: GPL-3.0-or-later
"""What a CLI does with prompts of ours, by its record of the conversation: no hook tells when the model gets one."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import anyio

from qwen_companion.domain import CliState
from qwen_companion.doors.states import CANCELLED, IDLE, WORKING, first_words, last_line
from qwen_companion.journal.tree_watch import TreeWatch
from qwen_companion.json_objects import as_object, read_object
from qwen_companion.registry.registry import UNTOLD_S, cover
from qwen_companion.threads import in_thread

_MAX_BYTES = 16 * 1024 * 1024
"""How much is read at a time."""


@dataclass(eq=False)
class Awaited:
    """The prompt of a `request`, until the model gets it; `queued`: the user was told that it waits."""

    request: int
    text: str
    queued: bool = False
    at_model: anyio.Event = field(default_factory=anyio.Event)


class Transcript:
    """Follows the record of one conversation while prompts of ours wait there, or are worked on."""

    def __init__(
        self, path: str, sender: str, reached: Callable[[Awaited], None], changed: Callable[[CliState], None]
    ) -> None:
        """Follow the file `path` from its present end, if it is there; waits for the disk.

        `sender` is the address that our messages name.  `reached` is called with each prompt that reaches the model,
        `changed` with what the CLI does then.
        """
        self.path = path
        self._mark = f'<cross_session_message from="{sender}"'
        self._reached = reached
        self._changed = changed
        self._offset = 0
        with suppress(OSError):
            self._offset = os.path.getsize(path)
        self._awaited: deque[Awaited] = deque()
        self._state = CliState()
        self._stirred = anyio.Event()

    def expect(self, request: int, text: str) -> Awaited:
        """Note that the prompt `text` of `request` is being sent."""
        awaited = Awaited(request, text)
        self._awaited.append(awaited)
        return awaited

    def forget(self, awaited: Awaited) -> None:
        """Note that a prompt does not come."""
        with suppress(ValueError):
            self._awaited.remove(awaited)
        self._stirred.set()

    async def follow(self) -> None:
        """Follow until no prompt of ours waits or is worked on; at least one must be expected."""
        watch = TreeWatch(lambda _paths: self._stirred.set())
        try:
            while True:
                stirred = self._stirred = anyio.Event()
                coverage = await cover(watch, os.path.dirname(self.path))
                for entry in await in_thread(self._read):
                    self._take(entry)
                if not self._awaited and self._state.activity != WORKING:
                    return
                with anyio.move_on_after(math.inf if coverage.complete else UNTOLD_S):
                    await stirred.wait()
        finally:
            watch.close()

    def _read(self) -> list[dict[str, Any]]:
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
        kind, parts = entry.get("type"), _parts(entry)
        text = "".join(text for part in parts if isinstance(text := part.get("text"), str) and not part.get("thought"))
        now = int(time.time() * 1000)
        if kind == "user" and text:
            ours = entry.get("subtype") == "notification" and text.startswith(self._mark)
            if ours and self._awaited:
                body = text.partition(">")[2]
                awaited = next((each for each in self._awaited if each.text in body), self._awaited[0])
                # Those sent before it will not come any more.
                while self._awaited.popleft() is not awaited:
                    pass
                awaited.at_model.set()
                text = awaited.text
                self._reached(awaited)
            self._become(CliState(WORKING, now, prompt=first_words(text)))
        elif kind == "assistant" and not any("functionCall" in part for part in parts):
            self._become(CliState(IDLE, now, prompt=self._state.prompt, said=last_line(text)))
        elif kind == "tool_result" and any(_was_cancelled(part) for part in parts):
            self._become(CliState(CANCELLED, now, prompt=self._state.prompt))

    def _become(self, state: CliState) -> None:
        self._state = state
        self._changed(state)


def _was_cancelled(part: Mapping[str, Any]) -> bool:
    """Return whether `part` is of a tool that the user has stopped or refused, and the turn with it."""
    response = as_object(as_object(part.get("functionResponse")).get("response"))
    return str(response.get("error")).startswith("[Operation Cancelled]")


def _parts(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    parts = as_object(entry.get("message")).get("parts")
    return [as_object(part) for part in cast("list[object]", parts)] if isinstance(parts, list) else []
