# SPDX-License-Identifier: GPL-3.0-or-later
"""The pipes of the program that leads to a relay."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import cast

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process

from qwen_companion.base.programs import open_process

_CHUNK_BYTES = 64 * 1024
_MAX_PRINTED = 16 * 1024

_END_S = 2.0
"""Seconds to wait for the end of a broken pipe."""


async def run_program(command: Sequence[str], environ: Mapping[str, str]) -> Channel:
    """Run `command` and return its pipes.

    :raises FileNotFoundError: when the program is not there
    """
    # In a session of its own: its prompts must not appear in Emacs's terminal.
    return Channel(await open_process(command, environ))


class Channel:
    """The pipes of a program; its child processes end with them.

    Its methods raise OSError, `anyio.BrokenResourceError` or `anyio.ClosedResourceError` when a pipe is broken.
    """

    def __init__(self, process: Process) -> None:
        self._printed = bytearray()
        self._process = process
        # It has all three pipes.
        self._input = cast("ByteSendStream", process.stdin)
        self._output, self._errors = (cast("ByteReceiveStream", each) for each in (process.stdout, process.stderr))

    @property
    def printed(self) -> str:
        """Return the output of the program to its standard error."""
        return self._printed.decode("utf-8", "replace")

    async def collect(self) -> None:
        """Collect `printed` until it ends."""
        with suppress(anyio.EndOfStream):
            while True:
                self._printed += await self._errors.receive()
                del self._printed[:-_MAX_PRINTED]

    async def send(self, data: bytes) -> None:
        """Send all of `data`."""
        await self._input.send(data)

    async def receive(self) -> bytes:
        """Return the next bytes, at least one.

        :raises anyio.EndOfStream: at the end
        """
        return await self._output.receive(_CHUNK_BYTES)

    async def end(self) -> None:
        """Close the sending side."""
        await self._input.aclose()

    async def wait_ended(self) -> bool:
        """Wait for the end of the program; return whether the relay ended well."""
        return await self._process.wait() == 0

    async def close(self) -> None:
        """Close both sides, and end the program and its children."""
        # While one of its children has the pipe, the end of the process is not reported.  Another user's child, as of
        # sudo, ends with the pipe.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.aclose()
        # Python 3.10 logs a broken pipe as an unseen error unless its end is awaited.
        with suppress(OSError), anyio.move_on_after(_END_S, shield=True):
            await getattr(self._process.stdin, "_stream").wait_closed()  # noqa: B009 - no public name
