# SPDX-License-Identifier: GPL-3.0-or-later
"""The tokens of a conversation, from the transcript that its CLI writes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from qwen_companion.base.json_objects import as_object, read_object
from qwen_companion.base.times import milliseconds
from qwen_companion.conversations.recording import Recording
from qwen_companion.domain import Usage
from qwen_companion.privacy.verdicts import printable

_MOST_REQUESTS = 5000
"""Number of recent requests kept individually."""

_MOST_MODELS = 20

_MOST_TOKENS = 10**12
"""Largest plausible number of tokens."""

ANSWERED = "qwen-code.api_response"
"""The name of the event of a completely answered request."""

REFUSED = "qwen-code.api_error"
"""The name of the event of a failed request; the CLI retries most of these."""

_MARK = f'"{ANSWERED}"'.encode()

COMPRESSION = "chat_compression"
"""The subtype of an entry that replaces the conversation by a summary."""

_COMPRESSED = f'"subtype":"{COMPRESSION}"'.encode()


@dataclass(frozen=True)
class _Request:
    """A request that was answered at `time`, in ms since the epoch; `own` is false for one of a subagent."""

    time: int
    usage: Usage
    own: bool


class Transcript(Recording):
    """The transcript at a path, and the requests in it."""

    def begin_anew(self) -> None:
        """Forget all requests."""
        self._requests: deque[_Request] = deque(maxlen=_MOST_REQUESTS)
        self._total: dict[str, Usage] = {}
        self.last_input = 0
        """The tokens that the conversation's last request sent, 0 if it was compressed since."""

    def feed(self, line: bytes) -> None:
        """Add the request in `line`, if there is one."""
        if _MARK in line and (request := _request(line)) is not None:
            self._requests.append(request)
            _summed(self._total, [request.usage])
            if request.own:
                self.last_input = request.usage.input
        elif _COMPRESSED in line:
            self.last_input = 0

    def total(self) -> tuple[Usage, ...]:
        """Return the usage of all requests, by model."""
        return tuple(self._total.values())

    def since(self, time: int, until: float = math.inf) -> tuple[Usage, ...]:
        """Return the usage of requests answered since `time` and before `until`, by model.

        Both are in ms since the epoch.
        """
        return tuple(_summed({}, (each.usage for each in self._requests if time <= each.time < until)).values())

    def requests_since(self, time: int) -> int:
        """Return the number of own requests answered since `time`, in ms since the epoch."""
        return sum(request.own and request.time >= time for request in self._requests)


def event_of(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the event in `entry`, such as a request's or a tool's, or {}."""
    return as_object(as_object(entry.get("systemPayload")).get("uiEvent"))


def _request(line: bytes) -> _Request | None:
    """Return the request in `line`, or None."""
    entry = read_object(line) or {}
    event = event_of(entry)
    if event.get("event.name") != ANSWERED:
        return None
    model = event.get("model")
    usage = Usage(
        printable(model[:100])[:100] if isinstance(model, str) else "",
        count_of(event, "input_token_count"),
        count_of(event, "output_token_count"),
        count_of(event, "cached_content_token_count"),
    )
    time = milliseconds(event.get("event.timestamp")) or milliseconds(entry.get("timestamp")) or 0
    return _Request(time, usage, not is_of_subagent(event))


def is_of_subagent(event: Mapping[str, Any]) -> bool:
    """Return whether the request of `event` is a subagent's."""
    return bool(event.get("subagent_id") or event.get("subagent_name"))


def count_of(event: Mapping[str, Any], key: str) -> int:
    """Return the number of tokens `key` of `event`, or 0."""
    value = event.get(key)
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else 0


def _summed(totals: dict[str, Usage], usages: Iterable[Usage]) -> dict[str, Usage]:
    """Add `usages` to `totals`, by model, and return those."""
    for usage in usages:
        model = usage.model if usage.model in totals or len(totals) < _MOST_MODELS else next(iter(totals))
        before = totals.get(model, Usage(model))
        totals[model] = Usage(
            model, before.input + usage.input, before.output + usage.output, before.cached + usage.cached
        )
    return totals


def tokens(usages: Iterable[Usage]) -> int:
    """Return the number of tokens in `usages`, including those from a cache."""
    return sum(usage.input + usage.output for usage in usages)
