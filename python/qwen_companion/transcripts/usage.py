# SPDX-License-Identifier: GPL-3.0-or-later
"""The tokens of a conversation, from the transcript that its CLI writes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from qwen_companion.domain import Usage
from qwen_companion.frozen import frozen
from qwen_companion.json_objects import as_object, read_object
from qwen_companion.privacy.verdicts import printable
from qwen_companion.transcripts.recording import Recording, time_of

_MOST_REQUESTS = 5000
"""How many of the last requests are known one by one."""

_MOST_MODELS = 20

_MOST_TOKENS = 10**12
"""A larger number is none of tokens."""

ANSWERED = "qwen-code.api_response"
"""The name of the event of a request that was answered whole."""

REFUSED = "qwen-code.api_error"
"""That of a request that was not; the CLI repeats most of these."""

_MARK = f'"{ANSWERED}"'.encode()


@frozen
class _Request:
    """A request that was answered at `time`, in ms since the epoch."""

    time: int
    usage: Usage


class Transcript(Recording):
    """The transcript at a path, and the requests in it."""

    def begin_anew(self) -> None:
        """Forget all requests."""
        self._requests: deque[_Request] = deque(maxlen=_MOST_REQUESTS)
        self._total: dict[str, Usage] = {}

    def feed(self, line: bytes) -> None:
        """Note the request that `line` tells of, if it tells of one."""
        if _MARK in line and (request := _request(line)) is not None:
            self._requests.append(request)
            _summed(self._total, [request.usage])

    def total(self) -> tuple[Usage, ...]:
        """Return what all requests have used, by model."""
        return tuple(self._total.values())

    def since(self, time: int, until: float = math.inf) -> tuple[Usage, ...]:
        """Return what requests that were answered since `time`, before `until`, have used, by model.

        Both are in ms since the epoch.
        """
        return tuple(_summed({}, (each.usage for each in self._requests if time <= each.time < until)).values())

    def requests_since(self, time: int) -> int:
        """Return how many requests have been answered since `time`, in ms since the epoch."""
        return sum(request.time >= time for request in self._requests)


def event_of(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the event of a request, a tool or the like in `entry`; nothing where it has none."""
    return as_object(as_object(entry.get("systemPayload")).get("uiEvent"))


def _request(line: bytes) -> _Request | None:
    """Return the request of which `line` tells, None for another line."""
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
    return _Request(time_of(event.get("event.timestamp")) or time_of(entry.get("timestamp")) or 0, usage)


def count_of(event: Mapping[str, Any], key: str) -> int:
    """Return the number of tokens `key` of `event`, 0 where it has none."""
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
    """Return the number of tokens in `usages`, those that came from a cache too."""
    return sum(usage.input + usage.output for usage in usages)
