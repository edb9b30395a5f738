# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a daemon while standard input is open: `python -I supervisor.py PROGRAM ARGUMENT...`.

The owner holds the other end of that pipe: when the owner ends, is killed or loses its Emacs, the pipe closes, and the
daemon is told to end, then forced to.  This works on Linux and macOS alike.  On Linux the daemon is also told to end
when this process is killed.

The first line of the input is the token.  It goes into the environment of the daemon only, which passes it to none of
its children; on a command line everybody could read it.

This module uses only the standard library, so it needs no import path with the user's directories.
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
"""Seconds the daemon may take to end by itself; with an open session it takes five."""

EXIT_NOT_STARTED = 127


def main(command: list[str]) -> int:
    """Run `command`; return its exit code, as a shell counts."""
    token = _read_line()
    if not token:
        # The owner is gone already.
        return EXIT_NOT_STARTED
    # In a session of its own, the daemon gets no terminal key and no signal to Emacs's group but through here.
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
    """Return a function for `preexec_fn` that ends the child with `parent`, see PR_SET_PDEATHSIG in prctl(2)."""
    libc = ctypes.CDLL(None)

    def end_with() -> None:
        libc.prctl(1, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(EXIT_NOT_STARTED)

    return end_with


def _read_line() -> str:
    """Return the first line of the input, "" at its end; unbuffered, to detect the end later."""
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
    # This process ends after the daemon, which is therefore still there.
    with suppress(OSError):
        os.killpg(daemon.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
