# SPDX-License-Identifier: GPL-3.0-or-later
"""The tokens of a conversation, from the transcript that its CLI writes; of that, only what was appended is read."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from qwen_companion.domain import Usage
from qwen_companion.frozen import frozen
from qwen_companion.json_objects import as_object, read_object
from qwen_companion.privacy.verdicts import printable

_CHUNK_BYTES = 1 << 20

_LINE_BYTES = 64 * 1024
"""A longer line tells of no request: these have 500 bytes."""

_MOST_BYTES = 256 << 20
"""How much is read at once, in 0.2 s; the rest is left to the next time."""

_MOST_REQUESTS = 5000
"""How many of the last requests are known one by one."""

_MOST_MODELS = 20

_MOST_TOKENS = 10**12
"""A larger number is none of tokens."""

_REQUEST = "qwen-code.api_response"
_MARK = f'"{_REQUEST}"'.encode()


@frozen
class _Request:
    """A request that was answered at `time`, in ms since the epoch."""

    time: int
    usage: Usage


class Transcript:
    """The transcript at a path.  Its methods may be called in any thread, one after the other."""

    def __init__(self, path: str) -> None:
        """Begin to follow the file `path`, which may come to be later."""
        self._path = path
        self._begin(None)

    def _begin(self, inode: int | None) -> None:
        self._inode = inode
        self._offset = 0
        self._rest = b""
        self._skips = False
        """Whether the rest of a line that is too long is left out."""
        self._requests: deque[_Request] = deque(maxlen=_MOST_REQUESTS)
        self._total: dict[str, Usage] = {}

    def read(self) -> None:
        """Read what was appended since the last call; where there is no such file any more, do nothing."""
        with suppress(OSError):
            # No link is followed, and no pipe waited for.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                found = os.fstat(descriptor)
                if stat.S_ISREG(found.st_mode):
                    if found.st_ino != self._inode or found.st_size < self._offset:
                        self._begin(found.st_ino)
                    os.lseek(descriptor, self._offset, os.SEEK_SET)
                    end = self._offset + _MOST_BYTES
                    while self._offset < end and (data := os.read(descriptor, _CHUNK_BYTES)):
                        self._offset += len(data)
                        self._take(data)
            finally:
                os.close(descriptor)

    def total(self) -> tuple[Usage, ...]:
        """Return what all requests have used, by model."""
        return tuple(self._total.values())

    def since(self, time: int) -> tuple[Usage, ...]:
        """Return what requests that were answered since `time` have used, by model; `time` in ms since the epoch."""
        return tuple(_summed({}, (request.usage for request in self._requests if request.time >= time)).values())

    def requests_since(self, time: int) -> int:
        """Return how many requests have been answered since `time`, in ms since the epoch."""
        return sum(request.time >= time for request in self._requests)

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._skips and lines:
            del lines[0]
            self._skips = False
        if len(self._rest) > _LINE_BYTES:
            self._rest, self._skips = b"", True
        for line in lines:
            if _MARK in line and len(line) <= _LINE_BYTES and (request := _request(line)) is not None:
                self._requests.append(request)
                _summed(self._total, [request.usage])


def _request(line: bytes) -> _Request | None:
    """Return the request of which `line` tells, None for another line."""
    entry = read_object(line) or {}
    event = as_object(as_object(entry.get("systemPayload")).get("uiEvent"))
    if event.get("event.name") != _REQUEST:
        return None
    model = event.get("model")
    usage = Usage(
        printable(model[:100])[:100] if isinstance(model, str) else "",
        _count(event, "input_token_count"),
        _count(event, "output_token_count"),
        _count(event, "cached_content_token_count"),
    )
    return _Request(_time(event.get("event.timestamp")) or _time(entry.get("timestamp")) or 0, usage)


def _count(event: Mapping[str, Any], key: str) -> int:
    value = event.get(key)
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else 0


def _time(value: object) -> int | None:
    """Return the time that JavaScript writes as `value`, in ms since the epoch, None for none."""
    with suppress(ValueError, OverflowError):
        if isinstance(value, str):
            return round(1000 * datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp())
    return None


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
