# SPDX-License-Identifier: GPL-3.0-or-later
"""Run `qwen serve` on a free port of 127.0.0.1 with a fresh token, until this process ends."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import secrets
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import anyio

from qwen_companion.base.programs import find_program, start
from qwen_companion.daemon.address import DaemonAddress
from qwen_companion.daemon.errors import NotStartedError

START_S = 60.0
"""Seconds a daemon may take to start.  One is usual; the first start after an update takes longer."""

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_ARGUMENTS = (
    *("serve", "--hostname", "127.0.0.1", "--port", "0"),
    # --require-auth: even /health wants the token.  --no-web: the Web Shell is not needed.
    *("--require-auth", "--no-web"),
    # With the default of 10 s, the daemon on a busy machine kills its agent and fails (0.21.2 and 0.24.4).
    *("--initialize-timeout-ms", "60000"),
    "--workspace",
)
_LISTENING = re.compile(r"listening on (http://127\.0\.0\.1:\d+)\b")
_LAST_LINES = 3
_KILLED = 128
"""Above this, the supervisor's exit code means that a signal ended the daemon; then its output gives no reason."""


class LocalDaemon:
    """A running daemon that listens at `address`; made by `start_local`."""

    def __init__(self, address: DaemonAddress, supervisor_input: IO[bytes], output: _Output) -> None:
        self.address = address
        self._input = supervisor_input
        self._output = output

    async def ended(self) -> str:
        """Wait for its end; return the last lines of output, "" if there is none or it was killed."""
        await self._output.ended.wait()
        return self._output.last

    async def stop(self) -> None:
        """End it and wait for that, which may take some seconds.

        At the end of this process nobody needs to call this: the daemon ends too.
        """
        self._input.close()
        await self.ended()


async def start_local(
    program: Sequence[str], root: str, environment: Mapping[str, str], timeout: float = START_S
) -> LocalDaemon:
    """Start the CLI `program`, a command with arguments, as daemon of the workspace `root`; wait until it listens.

    `environment` is added to that of this process.

    :raises NotStartedError: when it has ended, or does not listen within `timeout` seconds
    """
    token = secrets.token_hex(32)
    variables = {**os.environ, **environment}
    absolute = find_program(program[0], variables)
    if absolute is None:
        raise NotStartedError(f"qwen serve did not start: {program[0]}: {os.strerror(errno.ENOENT)}.")
    # Isolated: neither the user's directory nor environment adds to the supervisor's import path.
    command = [sys.executable, "-I", str(_SUPERVISOR), absolute, *program[1:], *_ARGUMENTS, root]
    try:
        # asyncio's transport would kill the supervisor when the loop closes, before the daemon has ended.
        supervisor = start(command, variables, root, stderr=subprocess.STDOUT)
    except OSError as error:
        raise NotStartedError(f"qwen serve cannot be started in {root}: {error.strerror}.") from None
    supervisor_input = _pipe(supervisor.stdin)
    with suppress(BrokenPipeError):
        os.write(supervisor_input.fileno(), f"{token}\n".encode())
    output = _Output(supervisor, token)
    try:
        with anyio.move_on_after(timeout):
            await output.listening_or_ended.wait()
    except BaseException:
        supervisor_input.close()
        raise
    if output.url is not None:
        return LocalDaemon(DaemonAddress(output.url, token), supervisor_input, output)
    if output.ended.is_set():
        raise NotStartedError(f"qwen serve did not start: {output.last or 'it said nothing.'}")
    supervisor_input.close()
    raise NotStartedError(f"qwen serve does not listen after {timeout:g} s.")


class _Output:
    """A supervisor's output.  `last` are its last lines once it has `ended`, if they may explain the end.

    Read in a thread of its own, as a worker thread of anyio would keep this process from ending.
    """

    def __init__(self, supervisor: subprocess.Popen[bytes], token: str) -> None:
        self.url: str | None = None
        self.last = ""
        self.ended = anyio.Event()
        self.listening_or_ended = anyio.Event()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(supervisor, token), daemon=True).start()

    def _read(self, supervisor: subprocess.Popen[bytes], token: str) -> None:
        last = _read_output(supervisor, token, lambda url: self._to_loop(self._listens, url))
        self._to_loop(self._end, last)

    def _to_loop(self, callback: Callable[[str], None], text: str) -> None:
        with suppress(RuntimeError):  # The loop has closed: the process is ending.
            self._loop.call_soon_threadsafe(callback, text)

    def _listens(self, url: str) -> None:
        self.url = url
        self.listening_or_ended.set()

    def _end(self, last: str) -> None:
        self.last = last
        self.ended.set()
        self.listening_or_ended.set()


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise TypeError("no pipe")
    return stream


def _read_output(supervisor: subprocess.Popen[bytes], token: str, listens: Callable[[str], None]) -> str:
    """Read the output of `supervisor` to its end; return the last lines if they explain the exit.

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
