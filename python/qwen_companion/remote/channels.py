# SPDX-License-Identifier: GPL-3.0-or-later
"""Channels for bytes to a relay and back: a program's pipes, or a line that TRAMP has opened in Emacs.

Where programs need a terminal (`su`, the user's own methods), TRAMP connects in Emacs, which carries the bytes between
that process and a socket of ours.  As Emacs would block on a full terminal, only as much as a terminal holds is under
way to the relay, which acknowledges bytes.
"""

from __future__ import annotations

import os
import signal
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, cast

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process, SocketStream

from qwen_companion.domain import Hop
from qwen_companion.programs import open_process
from qwen_companion.remote.commands import HEARS, NeedsTerminalError, line_command, relay_command

_CHUNK_BYTES = 64 * 1024
_MAX_PRINTED = 16 * 1024

_END_S = 2.0
"""Seconds to wait for the end of a broken pipe."""

_HEARS_S = 30.0
"""Seconds until the other end of a line must answer."""

LINE_BYTES = 8 * 1024
"""Most bytes under way to a relay over a line of TRAMP: Emacs needs 1 ms for each KB."""


class Channel(Protocol):
    """A channel to a relay that is about to start at the other end.

    Its methods raise OSError, `anyio.BrokenResourceError` or `anyio.ClosedResourceError` when it is broken.
    """

    _printed: bytearray

    @property
    def printed(self) -> str:
        """Return the output there that is not from the relay."""
        return self._printed.decode("utf-8", "replace").replace(HEARS, "")

    async def collect(self) -> None:
        """Collect the output apart from the relay's stream, until it ends."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Send all of `data`."""

    @abstractmethod
    async def receive(self) -> bytes:
        """Return the next bytes, at least one.

        :raises anyio.EndOfStream: at the end
        """

    def note_taken(self, count: int) -> None:
        """Record that the relay has received `count` bytes since its start; only a line needs this."""

    async def end(self) -> None:
        """Close the sending side; a terminal, which cannot be half closed, stays open."""

    @abstractmethod
    async def wait_ended(self) -> bool:
        """Wait for the end of the other side; return whether the relay ended well."""

    @abstractmethod
    async def close(self) -> None:
        """Close both sides, and end all processes started for this."""


class _Program(Channel):
    """The pipes of a program; its child processes end with them."""

    def __init__(self, process: Process) -> None:
        self._printed = bytearray()
        self._process = process
        # It has all three pipes.
        self._input = cast("ByteSendStream", process.stdin)
        self._output, self._errors = (cast("ByteReceiveStream", each) for each in (process.stdout, process.stderr))

    async def collect(self) -> None:
        with suppress(anyio.EndOfStream):
            while True:
                self._printed += await self._errors.receive()
                del self._printed[:-_MAX_PRINTED]

    async def send(self, data: bytes) -> None:
        await self._input.send(data)

    async def receive(self) -> bytes:
        return await self._output.receive(_CHUNK_BYTES)

    async def end(self) -> None:
        await self._input.aclose()

    async def wait_ended(self) -> bool:
        return await self._process.wait() == 0

    async def close(self) -> None:
        # While one of its children has the pipe, the end of the process is not reported.  Another user's child, as of
        # sudo, ends with the pipe.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.aclose()
        # Python 3.10 logs a broken pipe as an unseen error unless its end is awaited.
        with suppress(OSError), anyio.move_on_after(_END_S, shield=True):
            await getattr(self._process.stdin, "_stream").wait_closed()  # noqa: B009 - no public name


class _Line(Channel):
    """A line that TRAMP has opened; a shell at its end reads and runs a command."""

    def __init__(self, socket: SocketStream) -> None:
        self._printed = bytearray()
        self._socket = socket
        self._sent = 0
        self._taken = 0
        self._is_paced = False
        self._freed = anyio.Event()

    async def start(self, command: str) -> None:
        """Run `command`; return when it has printed `HEARS`, or will not any more."""
        await self._socket.send(f"{command}\n".encode())
        with suppress(anyio.EndOfStream), anyio.move_on_after(_HEARS_S):
            while HEARS.encode() not in self._printed and len(self._printed) < _MAX_PRINTED:
                self._printed += await self.receive()

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), LINE_BYTES):
            piece = data[start : start + LINE_BYTES]
            while self._is_paced and self._sent + len(piece) - self._taken > LINE_BYTES:
                self._freed = anyio.Event()
                await self._freed.wait()
            await self._socket.send(piece)
            self._sent += len(piece) if self._is_paced else 0

    async def receive(self) -> bytes:
        return await self._socket.receive(_CHUNK_BYTES)

    def note_taken(self, count: int) -> None:
        self._is_paced = True
        self._taken = min(count, self._sent)
        self._freed.set()

    async def wait_ended(self) -> bool:
        with suppress(anyio.EndOfStream):
            while True:
                await self._socket.receive(_CHUNK_BYTES)
        return True

    async def close(self) -> None:
        await self._socket.aclose()


async def run_program(command: Sequence[str], environ: Mapping[str, str]) -> Channel:
    """Run `command` and return its pipes.

    :raises FileNotFoundError: when the program is not there
    """
    # In a session of its own: its prompts must not appear in Emacs's terminal.
    return _Program(await open_process(command, environ))


async def open_line(path: str, note: Callable[[str | None], None]) -> Channel:
    """Return the line that Emacs connects to a socket at `path`; the relay is about to run at its end.

    `note` is called with the path while it waits for Emacs, and with None afterwards.

    :raises OSError: when the socket cannot be made, or the line has ended
    """
    async with await anyio.create_unix_listener(path, mode=0o600) as listener:
        note(path)
        line = _Line(await listener.accept())
        note(None)
    await line.start(line_command())
    return line


class Way:
    """The way to a place: a program, or, where that needs a terminal, a line of TRAMP."""

    def __init__(self, environ: Mapping[str, str], socket: str, note: Callable[[str | None], None]) -> None:
        """Programs run with the variables `environ`; for the path `socket` and `note` see `open_line`."""
        self.is_line = False
        self._environ = environ
        self._socket = socket
        self._note = note

    def opener(
        self, hops: Sequence[Hop], control: str | None, asks: Mapping[str, str]
    ) -> Callable[[], Awaitable[Channel]]:
        """Return a function that opens a channel over `hops`; for `control` see `relay_command`.

        A program on the way may ask for passwords with the variables `asks`.

        :raises UnsupportedPlaceError: for an invalid name
        """
        command: list[str] = []
        try:
            command = relay_command(hops, control, "askpass" if asks else "never")
        except NeedsTerminalError:
            self.is_line = True
        if self.is_line:
            return partial(open_line, self._socket, self._note)
        return partial(run_program, command, {**self._environ, **asks})
