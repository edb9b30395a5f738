# SPDX-License-Identifier: GPL-3.0-or-later
"""The frames on the pipe to a relay.  The other side is untrusted: sizes are checked before anything is stored."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from qwen_companion.base import json_objects
from qwen_companion.base.errors import CompanionError

VERSION = 6
"""The version of the frames and requests, as in the relay."""

PIECE_BYTES = 64 * 1024
"""Largest piece of a stream in a frame."""

WINDOW_BYTES = 256 * 1024
"""Most bytes of a stream under way in one direction."""

PART_BYTES = 2 * 1024 * 1024
"""Largest piece of a request in a frame."""

MARK = b"\0qwen-companion relay\0"
"""Precedes the first frame: a login shell may print anything before."""

MAX_CHATTER_BYTES = 64 * 1024
"""Most bytes before the mark."""

_HEAD = struct.Struct(">IBI")
_LENGTH = struct.Struct(">I")
_COUNT = struct.Struct(">Q")
_TIME = struct.Struct(">d")


class Kind(IntEnum):
    """The content of a frame."""

    HELLO = 0
    OPEN = 1
    DATA = 2
    END = 3
    CREDIT = 4
    RESET = 5
    REQUEST = 6
    REPLY = 7
    EVENT = 8
    PING = 9
    PART = 10
    """A leading part of a request that is too large for a frame."""


_LIMITS = {
    Kind.HELLO: 16 * 1024,
    Kind.OPEN: 16 * 1024,
    Kind.DATA: PIECE_BYTES,
    Kind.END: 0,
    Kind.CREDIT: 8,
    Kind.RESET: 0,
    Kind.REPLY: 4 * 1024 * 1024,
    Kind.EVENT: 1024 * 1024,
    Kind.PING: 0,
}
"""Largest payload of each kind that a relay may send."""


class FrameError(CompanionError):
    """The relay has violated the protocol."""


@dataclass(frozen=True)
class Frame:
    """One frame of the stream or request with the number `stream`."""

    stream: int
    kind: Kind
    payload: bytes = b""

    def encode(self) -> bytes:
        """Return its bytes for the pipe."""
        return _HEAD.pack(self.stream, self.kind, len(self.payload)) + self.payload


class Decoder:
    """Decodes the bytes of a pipe into frames."""

    def __init__(self) -> None:
        self._unread = bytearray()
        self._marked = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete with `data`.

        :raises FrameError: for bytes that no relay sends
        """
        self._unread += data
        if not self._marked:
            start = self._unread.find(MARK)
            if start < 0:
                if len(self._unread) > MAX_CHATTER_BYTES:
                    raise FrameError("what answers there is no relay; does its login shell print without end?")
                return
            del self._unread[: start + len(MARK)]
            self._marked = True
        while len(self._unread) >= _HEAD.size:
            stream, number, length = _HEAD.unpack_from(self._unread)
            try:
                kind = Kind(number)
            except ValueError:
                raise FrameError(f"a frame has the unknown kind {number}") from None
            if length > _LIMITS.get(kind, -1):
                raise FrameError(f"a frame of kind {kind.name} says that it has {length} bytes")
            end = _HEAD.size + length
            if len(self._unread) < end:
                return
            payload = bytes(self._unread[_HEAD.size : end])
            del self._unread[:end]
            yield Frame(stream, kind, payload)


def credit_of(payload: bytes) -> int:
    """Return the number of bytes of a stream acknowledged by a credit frame with `payload`.

    :raises FrameError: for an invalid payload
    """
    if len(payload) != _COUNT.size:
        raise FrameError("a frame of credit has no number")
    return _COUNT.unpack(payload)[0]


def credit(count: int) -> bytes:
    """Return the payload that acknowledges `count` bytes of a stream."""
    return _COUNT.pack(count)


def deadline(time: float) -> bytes:
    """Return the trailer of a request that the relay must start before `time`, in ms by its own clock."""
    return _TIME.pack(time)


def read_object(payload: bytes) -> dict[str, Any]:
    """Return the JSON object in `payload`.

    :raises FrameError: for anything else
    """
    value = json_objects.read_object(payload)
    if value is None:
        raise FrameError("a frame holds no JSON object")
    return value


def write_message(values: Mapping[str, Any], data: bytes = b"") -> bytes:
    """Return the payload of a request or reply with `values` and `data`."""
    head = json.dumps(values).encode("ascii")
    return _LENGTH.pack(len(head)) + head + data


def read_message(payload: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the values and the data in the `payload` of a request or reply.

    :raises FrameError: when it is invalid
    """
    if len(payload) < _LENGTH.size:
        raise FrameError("a reply does not say where its data begins")
    end = _LENGTH.size + _LENGTH.unpack_from(payload)[0]
    return read_object(payload[_LENGTH.size : end]), payload[end:]
