# SPDX-License-Identifier: GPL-3.0-or-later
"""What a CLI does with prompts of ours, by its record of the conversation: no hook tells when the model gets one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio

from qwen_companion.domain import CliState
from qwen_companion.doors.states import CANCELLED, IDLE, WORKING, first_words, last_line
from qwen_companion.json_objects import as_object, read_object
from qwen_companion.transcripts.recorded_sessions import parts_of
from qwen_companion.transcripts.recording import Recording, time_of
from qwen_companion.transcripts.usage import answer_of

_MOST = 1000
"""How many prompts are awaited at most."""


@dataclass(eq=False)
class Awaited:
    """The prompt of a `request`, until the model gets it; `queued`: the user was told that it has not yet."""

    request: int
    text: str
    queued: bool = False
    at_model: anyio.Event = field(default_factory=anyio.Event)


class Transcript(Recording):
    """The record of one conversation, of which only turns that begin with prompts of ours count."""

    longest_line = 16 * 1024 * 1024
    """A prompt may be as long as a message, and an answer is one line."""

    def __init__(
        self, path: str, sender: str, reached: Callable[[Awaited, int], None], changed: Callable[[CliState], None]
    ) -> None:
        """Begin at the present end of the file `path`, if it is there; waits for the disk.

        `sender` is the address that our messages name.  `reached` is called with each prompt that has reached the
        model, and when it did, in ms since the epoch; `changed` with what the CLI does then.
        """
        self._awaited: list[Awaited] = []
        self._mark = f'<cross_session_message from="{sender}"'
        self._reached = reached
        self._changed = changed
        self._state = CliState()
        self._answered = False
        """Whether the model's answer to the last request has come whole."""
        super().__init__(path, at_end=True)

    def begin_anew(self) -> None:
        """Forget the entries that were read."""
        self._entries: list[dict[str, Any]] = []

    def take(self, line: bytes) -> None:
        """Read the entry `line`."""
        if (entry := read_object(line)) is not None:
            self._entries.append(entry)

    def settle(self) -> None:
        """Follow what the entries say."""
        entries, self._entries = self._entries, []
        for entry in entries:
            self._follow(entry)

    def expect(self, request: int, text: str) -> Awaited:
        """Note that the prompt `text` of `request` is being sent."""
        self._awaited.append(awaited := Awaited(request, text))
        del self._awaited[:-_MOST]
        return awaited

    def forget(self, awaited: Awaited) -> None:
        """Note that a prompt does not come."""
        self._awaited = [each for each in self._awaited if each is not awaited]

    def _follow(self, entry: Mapping[str, Any]) -> None:
        kind, parts = entry.get("type"), parts_of(entry)
        text = "".join(text for part in parts if isinstance(text := part.get("text"), str) and not part.get("thought"))
        now = time_of(entry.get("timestamp")) or int(time.time() * 1000)
        if kind == "user" and text:
            if entry.get("subtype") == "notification" and text.startswith(self._mark):
                self._become(CliState(WORKING, now, prompt=self._begun(text, now)))
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
        elif answer_of(entry):
            self._answered = True

    def _begun(self, text: str, time: int) -> str:
        """Note that the model got our message `text` at `time`; return the beginning of its prompt."""
        body = text.partition(">\n")[2].partition("\n</cross_session_message>")[0]
        for number, awaited in enumerate(self._awaited):
            if awaited.text.strip().replace("<", "&lt;") == body.strip():
                # Those sent before it will not come any more.
                del self._awaited[: number + 1]
                awaited.at_model.set()
                self._reached(awaited, time)
                break
        return first_words(body.replace("&lt;", "<"))

    def _become(self, state: CliState) -> None:
        if state != self._state:
            self._state = state
            self._changed(state)


def _was_cancelled(part: Mapping[str, Any]) -> bool:
    """Return whether `part` is of a tool that the user has stopped or refused, and the turn with it."""
    response = as_object(as_object(part.get("functionResponse")).get("response"))
    return str(response.get("error")).startswith("[Operation Cancelled]")
