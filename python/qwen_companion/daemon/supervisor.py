# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a daemon for as long as its standard input is open: `python -I supervisor.py PROGRAM ARGUMENT...`.

Whoever started it holds the other end of that pipe and cannot take it along into death: when the owner ends, is killed
or loses its Emacs, the pipe closes and the daemon is told to end, then made to.  This works on Linux and macOS alike.
On Linux the daemon is also told to end when this process is killed.

The first line of the input is the token.  It is put into the environment of the daemon only, which hands it to nothing
that it starts; on a command line everybody could read it.

A script of the standard library alone, so that it needs no import path: none of the user's directories is on it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

TOKEN_VARIABLE = "QWEN_SERVER_TOKEN"  # noqa: S105 - a name
GRACE_S = 8.0
"""How long the daemon may take to end by itself; with a session open it takes five seconds."""

EXIT_NOT_STARTED = 127


def main(command: list[str]) -> int:
    """Run `command`; return its exit code, as a shell counts."""
    token = _read_line()
    if not token:
        # The owner has gone already.
        return EXIT_NOT_STARTED
    # From its own session, no key in a terminal and no signal to Emacs's group reaches the daemon but through here.
    try:
        daemon = subprocess.Popen(  # noqa: S603 - the user's own command
            command,
            stdin=subprocess.DEVNULL,
            env={**os.environ, TOKEN_VARIABLE: token},
            start_new_session=True,
            preexec_fn=_end_with(os.getpid()) if sys.platform == "linux" else None,
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", flush=True)
        return EXIT_NOT_STARTED

    def terminate(_number: int, _frame: FrameType | None) -> None:
        daemon.terminate()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, terminate)
    threading.Thread(target=_end_with_input, args=(daemon,), daemon=True).start()
    code = daemon.wait()
    return code if code >= 0 else 128 - code


def _end_with(parent: int) -> Callable[[], None]:
    """Return what has the kernel tell a child of `parent` to end with that, see PR_SET_PDEATHSIG in prctl(2)."""
    libc = ctypes.CDLL(None)

    def end_with() -> None:
        libc.prctl(1, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(EXIT_NOT_STARTED)

    return end_with


def _read_line() -> str:
    """Return the first line of the input, "" when that ends before; unbuffered so that its end is seen later."""
    line = b""
    while (piece := os.read(0, 1)) != b"\n":
        if not piece:
            return ""
        line += piece
    return line.decode("ascii")


def _end_with_input(daemon: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        while os.read(0, 65536):
            pass
    daemon.terminate()
    time.sleep(GRACE_S)
    # This process ends with the daemon, so it is still there.
    with suppress(OSError):
        os.killpg(daemon.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
