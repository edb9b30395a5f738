# SPDX-License-Identifier: GPL-3.0-or-later
"""The event streams of sessions: send on one, and watch the open ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import anyio
from starlette.types import Send

PIECE_BYTES = 256 * 1024
"""A CLI that reads fewer bytes than this within the time limit for a stalled stream counts as not reading."""


@dataclass(eq=False)
class Stream:
    """One open GET, served within `scope`.

    `context` is the one sent last.  `is_silent`: a sign of life is due.  `sending_since` is the time of the event loop
    at which sending the current piece began, None between pieces.
    """

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    wake: anyio.Event = field(default_factory=anyio.Event)
    context: bytes | None = None
    is_silent: bool = False
    sending_since: float | None = None
    ended: bool = False
    last_words: bytes = b""
    lost: bool = False

    def lose(self) -> None:
        """Record that the connection is lost."""
        self.lost = True
        self.wake.set()

    def end(self, last_words: bytes = b"") -> None:
        """Let the task that serves this stream finish after it has sent `last_words`."""
        self.ended = True
        self.last_words = last_words
        self.wake.set()

    async def send(self, send: Send, pieces: Iterable[bytes], more: bool = True) -> None:
        """Send `pieces`, the last ones of the answer unless `more`, and wait until all are accepted."""
        for piece in pieces:
            self.sending_since = anyio.current_time()
            await send({"type": "http.response.body", "body": piece, "more_body": more})
            self.sending_since = None
        self.is_silent = False


class OpenStreams:
    """The streams that are open."""

    def __init__(self, keep_alive_s: float, stall_s: float) -> None:
        """For the limits see `sessions.Timing`."""
        self._keep_alive_s = keep_alive_s
        self._stall_s = stall_s
        self._open: set[Stream] = set()
        self._none = anyio.Event()
        self._none.set()
        self._some = anyio.Event()

    def add(self, stream: Stream) -> None:
        """Watch `stream` from now on."""
        if not self._open:
            self._none = anyio.Event()
            self._some.set()
        self._open.add(stream)

    def discard(self, stream: Stream) -> None:
        """Record that `stream` has ended."""
        self._open.discard(stream)
        if not self._open:
            self._none.set()

    async def end(self, last_words: bytes) -> None:
        """End all streams with `last_words`, and wait until they have ended."""
        for stream in self._open:
            stream.end(last_words)
        await self._none.wait()

    async def watch(self) -> None:
        """Send signs of life on silent streams, and cut those whose client reads nothing.

        One clock serves all streams.  A stream is cut if one piece takes too long, regardless of
        the length of the whole.
        """
        period = min(self._keep_alive_s, self._stall_s)
        while True:
            if not self._open:
                self._some = anyio.Event()
                await self._some.wait()
            await anyio.sleep(period - anyio.current_time() % period)
            for stream in self._open:
                if stream.sending_since is None:
                    stream.is_silent = True
                    stream.wake.set()
                elif anyio.current_time() - stream.sending_since >= self._stall_s:
                    stream.scope.cancel()


def event(notification: Iterable[bytes], key: str | None = None) -> Iterator[bytes]:
    """Yield the event of `notification`, in pieces of at most `PIECE_BYTES` if its own are.

    `key` is its id: a returning client names the last id that it has received.
    """
    # JSON escapes line ends inside strings, so the data is one line.
    piece = b"event: message\n" + (b"" if key is None else f"id: {key}\n".encode("ascii")) + b"data: "
    for part in notification:
        if len(piece) + len(part) > PIECE_BYTES:
            yield piece
            piece = b""
        piece += part
    yield piece + b"\n\n"
