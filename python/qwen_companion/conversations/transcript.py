# SPDX-License-Identifier: GPL-3.0-or-later
"""A CLI's activity by its record of the conversation: unlike hooks, it shows our prompts and failures."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from qwen_companion.base.json_objects import as_object, read_object
from qwen_companion.base.times import milliseconds
from qwen_companion.conversations.recorded_sessions import parts_of
from qwen_companion.conversations.recording import Recording
from qwen_companion.conversations.usage import ANSWERED, COMPRESSION, REFUSED, count_of, event_of, is_of_subagent
from qwen_companion.domain import CliState
from qwen_companion.doors.states import CANCELLED, FAILED, IDLE, RETRYING, WORKING, first_words, last_line

_MOST = 1000
"""Most prompts awaited."""

_TAIL_BYTES = 1 << 20
"""Bytes of a record that are read first, from its end on: mostly the whole turn."""

_LAST_REFUSALS = frozenset((400, 401, 402, 403, 404, 413, 422))
"""HTTP statuses of requests that a CLI does not retry."""


@dataclass(eq=False)
class Awaited:
    """The prompt of a `request`, until the model gets it; if `queued`, the user was informed that it waits.

    `reached` is called then, with the time, in ms since the epoch.
    """

    request: int
    text: str
    reached: Callable[[Awaited, int], None]
    queued: bool = False
    at_model: anyio.Event = field(default_factory=anyio.Event)


class Transcript(Recording):
    """The record of one conversation."""

    longest_line = 16 * 1024 * 1024
    """Limit in bytes: a prompt may be as long as a message, and an answer is one line."""

    def __init__(self, path: str, sender: str, start: int, limit: float, changed: Callable[[CliState], None]) -> None:
        """Begin near the present end of the file `path`, if it exists; blocks on disk I/O.

        `sender` is the address in our messages.  The CLI started at `start`, in ms since the epoch: earlier entries do
        not count.  After a request above its `limit` of tokens it sends no other.  `changed` is called with its
        activity.
        """
        self._awaited: list[Awaited] = []
        self._mark = f'<cross_session_message from="{sender}"'
        self._start = start
        self._limit = limit
        self._changed = changed
        self._state = CliState()
        self._answered = False
        """Whether the model's answer to the last request is complete."""
        self._calls: set[str] = set()
        """The ids of the tool calls without a result."""
        super().__init__(path, _TAIL_BYTES)

    def begin_anew(self) -> None:
        """Forget the entries that were read."""
        self._entries: list[dict[str, Any]] = []

    def feed(self, line: bytes) -> None:
        """Add the entry `line`."""
        if (entry := read_object(line)) is not None:
            self._entries.append(entry)

    def settle(self) -> None:
        """Apply the new entries."""
        entries, self._entries = self._entries, []
        before = self._state
        for entry in entries:
            now = milliseconds(entry.get("timestamp")) or int(time.time() * 1000)
            if now >= self._start:
                self._follow(entry, now)
        if self._state != before:
            self._changed(self._state)

    def expect(self, request: int, text: str, reached: Callable[[Awaited, int], None]) -> Awaited:
        """Record that the prompt `text` of `request` is being sent; see `Awaited` for `reached`."""
        self._awaited.append(awaited := Awaited(request, text, reached))
        del self._awaited[:-_MOST]
        return awaited

    def forget(self, awaited: Awaited) -> None:
        """Stop awaiting a prompt."""
        self._awaited = [each for each in self._awaited if each is not awaited]

    def _follow(self, entry: Mapping[str, Any], now: int) -> None:
        kind, parts, state = entry.get("type"), parts_of(entry), self._state
        texts = [text for part in parts if isinstance(text := part.get("text"), str) and not part.get("thought")]
        if kind == "user" and texts:
            self._calls.clear()
            self._state = CliState(WORKING, now, prompt=self._begun(entry, texts, now), tokens=state.tokens)
            self._check_limit(now)
        elif kind == "system":
            self._note_system(entry, now)
        elif state.activity in (IDLE, CANCELLED):
            pass
        elif kind == "assistant":
            self._calls = {str(as_object(part["functionCall"]).get("id")) for part in parts if "functionCall" in part}
            if self._calls:
                self._state = replace(state, activity=WORKING, since=state.since or now, tool_since=now)
            else:
                # A cancelled answer is recorded in part, without its usage.
                whole = self._answered or "usageMetadata" in entry
                self._end(IDLE if whole else CANCELLED, now, last_line("".join(texts)))
        elif kind == "tool_result":
            self._calls -= {str(as_object(part.get("functionResponse")).get("id")) for part in parts}
            if any(_was_cancelled(part) for part in parts):
                self._end(CANCELLED, now)
            elif not self._calls:
                self._state = replace(state, tool_since=None)
                self._check_limit(now)
        if kind in ("user", "assistant", "tool_result"):
            self._answered = False

    def _end(self, activity: str, now: int, said: str | None = None) -> None:
        self._calls.clear()
        self._state = CliState(activity, now, prompt=self._state.prompt, said=said, tokens=self._state.tokens)

    def _check_limit(self, now: int) -> None:
        """Note that the turn ends if the CLI's limit of tokens does not let it send a request."""
        if (self._state.tokens or 0) > self._limit:
            self._state = replace(self._state, activity=FAILED, since=now, failure="token limit")

    def _note_system(self, entry: Mapping[str, Any], now: int) -> None:
        """Apply the `entry` of a request to the model, or of a compression."""
        event, state = event_of(entry), self._state
        name = event.get("event.name")
        if entry.get("subtype") == COMPRESSION:
            self._state = replace(state, tokens=None)
        if is_of_subagent(event):
            return
        if name == ANSWERED:
            self._answered = True
            tokens = count_of(event, "input_token_count") or state.tokens
            if state.activity in (RETRYING, FAILED):
                state = replace(state, activity=WORKING, since=now, failure=None)
            self._state = replace(state, tokens=tokens)
        elif name == REFUSED and state.activity in (WORKING, RETRYING, FAILED):
            activity = FAILED if event.get("status_code") in _LAST_REFUSALS else RETRYING
            since = state.since if state.activity == activity else now
            failure = first_words(str(event.get("error_message") or "unknown error"))
            self._state = replace(self._state, activity=activity, since=since, failure=failure)

    def _begun(self, entry: Mapping[str, Any], texts: list[str], time: int) -> str:
        """Record that the model got the prompt of `entry`, with `texts`, at `time`; return its first words."""
        text = "".join(texts)
        if entry.get("subtype") != "notification":
            # The CLI's additions, as the editor's context, are in tags.
            return first_words(next((each for each in texts if not each.startswith("<")), text))
        body = text.partition(">\n")[2].partition("\n</cross_session_message>")[0]
        if text.startswith(self._mark):
            for number, awaited in enumerate(self._awaited):
                if awaited.text.strip().replace("<", "&lt;") == body.strip():
                    # Prompts sent before it will not come any more.
                    del self._awaited[: number + 1]
                    awaited.at_model.set()
                    awaited.reached(awaited, time)
                    break
        return first_words(body.replace("&lt;", "<") or text)


def _was_cancelled(part: Mapping[str, Any]) -> bool:
    """Return whether the user stopped or refused the tool of `part`, and thereby the turn."""
    response = as_object(as_object(part.get("functionResponse")).get("response"))
    return str(response.get("error")).startswith("[Operation Cancelled]")
