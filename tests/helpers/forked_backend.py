# SPDX-License-Identifier: GPL-3.0-or-later
"""Backends forked from a process that has imported everything: a start takes hundredths of a second of processor time.

A new interpreter takes half a second, and one and a half once a CLI has connected.  What a backend does after its start
is the same.  Tests of the start itself begin with a new interpreter (see `support.Backend`).
"""

from __future__ import annotations

import atexit
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Final

PYTHON_DIRECTORY: Final = Path(__file__).parents[2] / "python"
_REQUEST_BYTES: Final = 1 << 20


class ForkedBackend:
    """A running backend, with those members of `subprocess.Popen` that tests use."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Start one with the environment `environ`."""
        (their_input, own_input), (own_output, their_output), (own_errors, their_errors), (ended, end) = (
            os.pipe() for _ in range(4)
        )
        template = _template()
        request = json.dumps(dict(environ)).encode() + b"\n"
        socket.send_fds(template, [request], [their_input, their_output, their_errors, end])
        for descriptor in (their_input, their_output, their_errors, end):
            os.close(descriptor)
        self.pid = int(template.recv(16))
        self.stdin: IO[bytes] = os.fdopen(own_input, "wb")
        self.stdout: IO[bytes] = os.fdopen(own_output, "rb")
        self.stderr: IO[bytes] = os.fdopen(own_errors, "rb")
        self._ended: IO[bytes] = os.fdopen(ended, "rb", 0)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None as long as it runs."""
        if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
            self.returncode = int(self._ended.read(16))
            self._ended.close()
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Return the exit code once it has ended; raise `subprocess.TimeoutExpired` after `timeout` seconds."""
        if self.returncode is None:
            select.select([self._ended], [], [], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("a forked backend", timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send it the signal `number`, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


@cache
def _template() -> socket.socket:
    """Start, once, the process that backends are forked from; return the connection to it, with which it ends."""
    own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with its:
        command = [sys.executable, str(Path(__file__)), str(its.fileno())]
        process = subprocess.Popen(command, cwd=PYTHON_DIRECTORY, stdin=subprocess.DEVNULL, pass_fds=[its.fileno()])

    def end() -> None:
        own.close()
        process.wait()

    atexit.register(end)
    return own


def _import_everything() -> None:
    """Import all modules of the backend, and those that they import only on demand."""
    from qwen_companion.__main__ import PACKAGES

    # It is run, not imported.
    del sys.modules["qwen_companion.__main__"]
    package = import_module("qwen_companion")
    for module in pkgutil.walk_packages(package.__path__, "qwen_companion."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    for name in (*PACKAGES, "anyio._backends._asyncio"):
        import_module(name)


def _serve(control: socket.socket) -> None:
    """Fork a backend for each request on `control`, until that ends, and report how each ends."""
    running: dict[int, tuple[int, int]] = {}
    while True:
        for descriptor in select.select([control.fileno(), *running], [], [])[0]:
            if descriptor in running:
                pid, end = running.pop(descriptor)
                os.close(descriptor)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.write(end, b"%d" % code)
                os.close(end)
                continue
            request, descriptors, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 4)
            if not request:
                return
            while not request.endswith(b"\n"):
                request += control.recv(_REQUEST_BYTES)
            # Its other end is open as long as the backend lives.
            life, lives = os.pipe()
            pid = os.fork()
            if pid == 0:
                for other in (control.detach(), life, descriptors[3], *running, *(end for _, end in running.values())):
                    os.close(other)
                _become_backend(json.loads(request), descriptors[:3])
            os.close(lives)
            *standard, end = descriptors
            for number in standard:
                os.close(number)
            running[life] = pid, end
            control.sendall(b"%d" % pid)


def _become_backend(environ: Mapping[str, str], standard: list[int]) -> None:
    """Run as a backend that was started with `environ` and these descriptors."""
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environ)
    runpy.run_module("qwen_companion", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    # As for a module that is run there.
    sys.path[0] = str(PYTHON_DIRECTORY)
    _import_everything()
    _serve(socket.socket(fileno=int(sys.argv[1])))
