# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the bodies of requests without storing large ones.

A proposal above the user's size limit is refused by size, before it is parsed: only the request with its long strings
emptied is stored, so that its tool call can still be answered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.types import Receive

MAX_BODY_BYTES = 1024 * 1024 * 1024
"""Largest body to read, in bytes: more than Node.js's longest string."""

_ROOM_BYTES = 64 * 1024
"""Generous size of a request without its text; and the longest string that `_Shortener` stores."""

_MAX_SHORTENED_BYTES = 1024 * 1024
_PIECE_BYTES = 256 * 1024
_INSIDE_STRING = re.compile(rb'(?:[^"\\]+|\\.)*', re.DOTALL)


class BodyTooLargeError(Exception):
    """A body is too large to be answered as a request; the text says so to its sender."""


@dataclass(frozen=True)
class Body:
    """The body of a request, of `size` bytes.

    `oversized`: its text is above the limit, and `data` has its long strings emptied.
    """

    data: bytes
    size: int
    oversized: bool = False


async def read_body(receive: Receive, text_limit: int | None) -> Body:
    """Read a body to its end.  `text_limit`: largest text to store, in UTF-8 bytes; None for any.

    :raises BodyTooLargeError: when even the shortened body is too large
    """
    kept = bytearray()
    shortener: _Shortener | None = None
    size = counted = text_size = 0
    while True:
        message = await receive()
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > MAX_BODY_BYTES:
            raise BodyTooLargeError(f"The request is larger than {MAX_BODY_BYTES} bytes.")
        if shortener is not None:
            shortener.feed(piece)
        else:
            kept += piece
            if text_limit is not None and len(kept) > text_limit + _ROOM_BYTES:
                text_size += _least_size(kept, counted)
                counted = len(kept)
            if text_limit is not None and text_size > text_limit + _ROOM_BYTES:
                shortener = _Shortener()
                with memoryview(kept) as view:
                    for start in range(0, len(view), _PIECE_BYTES):
                        shortener.feed(bytes(view[start : start + _PIECE_BYTES]))
                kept.clear()
        if not message.get("more_body", False):
            if shortener is not None:
                return Body(shortener.shortened(), size, oversized=True)
            return Body(bytes(kept), size)


def _least_size(data: bytearray, start: int) -> int:
    """Return the least number of UTF-8 bytes that the JSON in `data` from `start` on can stand for.

    An escape of 2 or 6 bytes stands for at least one.
    """
    return len(data) - start - data.count(b"\\", start) - 4 * data.count(b"\\u", start)


class _Shortener:
    """Receives JSON in pieces and empties its long strings."""

    def __init__(self) -> None:
        self._shortened = bytearray()
        self._string: bytearray | None = None
        """The stored beginning of the current string; None between strings."""
        self._is_long = False
        self._is_escaped = False

    def feed(self, piece: bytes) -> None:
        """Process the next `piece`.

        :raises BodyTooLargeError: when even the shortened body is too large
        """
        position = 0
        while position < len(piece):
            if self._string is None:
                end = piece.find(b'"', position) + 1
                self._shortened += piece[position : end or len(piece)]
                if len(self._shortened) > _MAX_SHORTENED_BYTES:
                    raise BodyTooLargeError("The request is too large, and not for the text of a file.")
                if not end:
                    return
                self._string, position = bytearray(), end
            else:
                position = self._feed_string(self._string, piece, position)

    def _feed_string(self, string: bytearray, piece: bytes, start: int) -> int:
        """Process the rest of the current string in `piece` from `start` on; return the position after it."""
        match = _INSIDE_STRING.match(piece, start + self._is_escaped)
        end = match.end() if match else len(piece)
        self._is_escaped = piece[end : end + 1] == b"\\"
        end += self._is_escaped
        if not self._is_long:
            string += piece[start:end]
            if len(string) > _ROOM_BYTES:
                self._is_long = True
                string.clear()
        if end == len(piece):
            return end
        self._shortened += string + b'"'
        self._string, self._is_long = None, False
        return end + 1

    def shortened(self) -> bytes:
        """Return the body so far, with its long strings emptied."""
        return bytes(self._shortened)
