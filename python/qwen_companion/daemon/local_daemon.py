# SPDX-License-Identifier: GPL-3.0-or-later
"""A `qwen serve` of our own: on a free port of 127.0.0.1, with a fresh token, and not a moment longer than we live."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from qwen_companion.daemon.errors import NotStartedError
from qwen_companion.daemon.settings import DaemonAddress
from qwen_companion.threads import in_thread

START_S = 60.0
"""How long a daemon may take until it listens.  One second is usual; the first start after an update takes longer."""

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_ARGUMENTS = (
    *("serve", "--hostname", "127.0.0.1", "--port", "0"),
    # Even /health wants the token then; the Web Shell is nothing we need.
    *("--require-auth", "--no-web"),
    # Else it gives an agent 10 s to start, kills it and fails (0.21.2 and 0.24.4): on a busy machine, each time.
    *("--initialize-timeout-ms", "60000"),
    "--workspace",
)
_LISTENING = re.compile(r"listening on (http://127\.0\.0\.1:\d+)\b")
_LAST_LINES = 3
_KILLED = 128
"""Exit codes above this are the supervisor's for a daemon that a signal has ended: nothing it printed says why."""


class LocalDaemon:
    """A running daemon, which listens at `address`; made by `start_local`."""

    def __init__(self, address: DaemonAddress, supervisor_input: IO[bytes], output: asyncio.Task[str]) -> None:
        self.address = address
        self._input = supervisor_input
        self._output = output

    async def ended(self) -> str:
        """Wait until it has ended, by itself or stopped; the last lines that it printed, "" for none or when killed."""
        return await asyncio.shield(self._output)

    async def stop(self) -> None:
        """End it, and return when it has ended; may take some seconds.

        Nothing has to wait for this when the whole process ends: the daemon ends all the same.
        """
        self._input.close()
        await self.ended()


async def start_local(program: Sequence[str], root: str, timeout: float = START_S) -> LocalDaemon:
    """Start the CLI `program`, a command with its arguments, as daemon of the workspace `root`; return when it listens.

    NotStartedError when it has not done so within `timeout` seconds or has ended.
    """
    token = secrets.token_hex(32)
    # Isolated: neither the directory nor the environment of the user adds to what the supervisor imports.
    command = [sys.executable, "-I", str(_SUPERVISOR), *program, *_ARGUMENTS, root]
    try:
        # asyncio's transport would kill the supervisor when the loop closes, before it has ended the daemon.
        supervisor = subprocess.Popen(  # noqa: S603 - the user's own command
            command,
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise NotStartedError(f"qwen serve cannot be started in {root}: {error.strerror}.") from None
    supervisor_input = _pipe(supervisor.stdin)
    with suppress(BrokenPipeError):
        os.write(supervisor_input.fileno(), f"{token}\n".encode())
    loop = asyncio.get_running_loop()
    listening: asyncio.Future[str] = loop.create_future()

    def listens(url: str) -> None:
        with suppress(RuntimeError):  # The loop has closed: the process is ending.
            loop.call_soon_threadsafe(listening.set_result, url)

    output = asyncio.create_task(in_thread(lambda process: _read_output(process, token, listens), supervisor))
    try:
        await asyncio.wait([listening, output], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    except BaseException:
        supervisor_input.close()
        raise
    if listening.done():
        return LocalDaemon(DaemonAddress(listening.result(), token), supervisor_input, output)
    if output.done():
        raise NotStartedError(f"qwen serve did not start: {output.result() or 'it said nothing.'}")
    supervisor_input.close()
    raise NotStartedError(f"qwen serve does not listen after {timeout:g} s.")


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    """`stream`, which was asked for and so is there."""
    if stream is None:
        raise TypeError("no pipe")
    return stream


def _read_output(supervisor: subprocess.Popen[bytes], token: str, listens: Callable[[str], None]) -> str:
    """Read what is printed until `supervisor` has ended; return the last lines, if they can be a reason for the end.

    Calls `listens` once, with the URL.
    """
    last: deque[str] = deque(maxlen=_LAST_LINES)
    url: re.Match[str] | None = None
    with _pipe(supervisor.stdout) as output:
        for line in output:
            text = line.decode("utf-8", "replace").strip().replace(token, "TOKEN")
            if text:
                last.append(text)
            if url is None and (url := _LISTENING.search(text)):
                listens(url[1])
    killed = supervisor.wait() > _KILLED
    _pipe(supervisor.stdin).close()
    return "" if killed else " / ".join(last)
