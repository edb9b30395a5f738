# SPDX-License-Identifier: GPL-3.0-or-later
"""The ways for bytes to a relay and back: the pipes of a program, or a line that TRAMP has opened in Emacs.

Where no program reaches a place without a terminal (`su`, methods of the user's own), TRAMP does it in Emacs, which
carries the bytes between that process and a socket of ours.  Emacs would wait for a terminal that takes no more, so
only as much is on its way to the relay as a terminal takes at once: the relay says what it has got.
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
"""How long the end of a broken pipe is waited for, in seconds."""

_HEARS_S = 30.0
"""How long a line may take to be heard at its other end, in seconds."""

LINE_BYTES = 8 * 1024
"""Most bytes on their way to a relay over a line of TRAMP: Emacs takes 1 ms for each KB."""


class Channel(Protocol):
    """A way to a relay that is about to come up at the other end.

    Its methods raise OSError, `anyio.BrokenResourceError` or `anyio.ClosedResourceError` when it is broken.
    """

    _printed: bytearray

    @property
    def printed(self) -> str:
        """Return what was printed there that is not from the relay."""
        return self._printed.decode("utf-8", "replace").replace(HEARS, "")

    async def collect(self) -> None:
        """Collect what is printed elsewhere than where the relay writes, until there is no more."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Send `data`; returns when all has been sent."""

    @abstractmethod
    async def receive(self) -> bytes:
        """Return what has come, at least a byte.

        :raises anyio.EndOfStream: at the end
        """

    def note_taken(self, count: int) -> None:
        """Note that the relay has got `count` bytes since it runs; only a line has to know."""

    async def end(self) -> None:
        """Close the way there; a terminal that is closed one way is closed both ways, and stays open."""

    @abstractmethod
    async def wait_ended(self) -> bool:
        """Wait for the end of the other side; return whether the relay has ended well."""

    @abstractmethod
    async def close(self) -> None:
        """Close both ways, with all that this has started."""


class _Program(Channel):
    """The pipes of a program; all that it starts ends with them."""

    def __init__(self, process: Process) -> None:
        self._printed = bytearray()
        self._process = process
        # It has all three.
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
        # As long as one of its children has the pipe, the end of the process is not told.  Another user's, as of sudo,
        # ends with the pipe.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.aclose()
        # Python 3.10 logs the error of a broken pipe as one that nobody has seen, unless its end is waited for.
        with suppress(OSError), anyio.move_on_after(_END_S, shield=True):
            await getattr(self._process.stdin, "_stream").wait_closed()  # noqa: B009 - no public name


class _Line(Channel):
    """A line that TRAMP has opened; at its end, a shell reads a command and runs it."""

    def __init__(self, socket: SocketStream) -> None:
        self._printed = bytearray()
        self._socket = socket
        self._sent = 0
        self._taken = 0
        self._is_paced = False
        self._freed = anyio.Event()

    async def start(self, command: str) -> None:
        """Run `command`; returns when that says that it `HEARS`, or will not do so any more."""
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

    :raises FileNotFoundError: where there is no such program
    """
    # In a session of its own: what it asks must not appear in the terminal of Emacs.
    return _Program(await open_process(command, environ))


async def open_line(path: str, note: Callable[[str | None], None]) -> Channel:
    """Return the line that Emacs connects to a socket at `path`, at the end of which the relay is about to run.

    `note` is called with the path while it waits for Emacs, and with None afterwards.

    :raises OSError: when there can be no such socket, or the line has ended
    """
    async with await anyio.create_unix_listener(path, mode=0o600) as listener:
        note(path)
        line = _Line(await listener.accept())
        note(None)
    await line.start(line_command())
    return line


class Way:
    """How a place is reached: by a program, or where that needs a terminal by a line of TRAMP."""

    def __init__(self, environ: Mapping[str, str], socket: str, note: Callable[[str | None], None]) -> None:
        """Programs have the variables `environ`; for the path `socket` and `note` see `open_line`."""
        self.is_line = False
        self._environ = environ
        self._socket = socket
        self._note = note

    def opener(
        self, hops: Sequence[Hop], control: str | None, asks: Mapping[str, str]
    ) -> Callable[[], Awaitable[Channel]]:
        """Return what opens a channel over `hops`; a program may ask for passwords with the variables `asks`.

        For `control` see `relay_command`.

        :raises UnsupportedPlaceError: for a name that cannot be one
        """
        command: list[str] = []
        try:
            command = relay_command(hops, control, "askpass" if asks else "never")
        except NeedsTerminalError:
            self.is_line = True
        if self.is_line:
            return partial(open_line, self._socket, self._note)
        return partial(run_program, command, {**self._environ, **asks})
