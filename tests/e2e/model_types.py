# SPDX-License-Identifier: GPL-3.0-or-later
"""The requests to a scripted model and its answers, independent of a protocol."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Role = Literal["system", "user", "assistant", "tool"]

QUESTIONS: Final = (
    {
        "question": "Which database?",
        "header": "Database",
        "options": [{"label": "sqlite", "description": "one file"}, {"label": "postgres", "description": "a server"}],
        "multiSelect": False,
    },
    {
        "question": "Which colours?",
        "header": "Colours",
        "options": [{"label": "red", "description": "warm"}, {"label": "blue", "description": "cold"}],
        "multiSelect": True,
    },
    {
        "question": "Which name?",
        "header": "Name",
        "options": [{"label": "Anna", "description": "short"}, {"label": "Bernadette", "description": "long"}],
        "multiSelect": False,
    },
)
"""Questions for the tool `ask_user_question`; one of them takes several answers."""


@dataclass(frozen=True)
class Message:
    """One message of a conversation; `text` is all its text parts, joined by newlines."""

    role: Role
    text: str


@dataclass(frozen=True)
class ModelRequest:
    """One request of a CLI; `body` is its JSON as received."""

    messages: tuple[Message, ...]
    tools: frozenset[str]
    wants_json: bool
    streaming: bool
    body: Mapping[str, Any]

    @property
    def prompt(self) -> str:
        """The user's last prompt, with the context that the CLI put before it, in the same message or in its own."""
        newest = itertools.dropwhile(lambda message: message.role != "user", reversed(self.messages))
        texts = [message.text for message in itertools.takewhile(lambda message: message.role == "user", newest)]
        return "\n".join(reversed(texts))

    @property
    def tool_results(self) -> list[str]:
        """Results of the tools called in the turn before this request; empty when this is the user's own prompt."""
        results: list[str] = []
        for message in reversed(self.messages):
            if message.role == "assistant":
                break
            if message.role == "tool":
                results.insert(0, message.text)
        return results

    @property
    def results_since_prompt(self) -> list[str]:
        """Results of all tools called since the newest user message."""
        results: list[str] = []
        for message in reversed(self.messages):
            if message.role == "user":
                break
            if message.role == "tool":
                results.insert(0, message.text)
        return results


@dataclass(frozen=True)
class Call:
    """The model calls a tool."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """One turn of the model: some text, then the tools it calls."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    thought: str = ""
    """The model's thoughts before its text; sent only by OpenAI's protocol, and only as a stream."""
    pieces: int = 2
    """In how many pieces the text is streamed."""
    halfway: threading.Event | None = None
    """The event after which the second half of the text is sent."""
    refusal: int | None = None
    """A status of HTTP that the CLI gets in place of an answer."""

    def streamed(self) -> Iterator[str]:
        """Yield the pieces of the text, each when its time has come."""
        size = max(1, math.ceil(len(self.text) / self.pieces))
        starts = range(0, len(self.text), size)
        for number, start in enumerate(starts):
            if self.halfway and number == len(starts) // 2:
                self.halfway.wait()
            yield self.text[start : start + size]
