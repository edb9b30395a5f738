# SPDX-License-Identifier: GPL-3.0-or-later
"""The port between two backends, with a program of another user that tries to take it all the time."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qwen_companion.base.listening import listen_reserved
from support import BECOME_OTHER, KNOWN, NO_LIBRARY, Backend, Cli, Home, needs_root

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a port without a process")

# SO_REUSEADDR and SO_REUSEPORT are what may let a socket share a port.
TAKE = """
import itertools, select
port = int(sys.argv[1])
options = [(), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)]
print("trying", flush=True)
taken = ""
for host, chosen in itertools.cycle(itertools.product(["127.0.0.1", "0.0.0.0"], options)):
    # Many times in the third of a second that the next backend takes to start, and the processor is left to that.
    if taken or select.select([sys.stdin], [], [], 0.001)[0]:
        break
    attempt = socket.socket()
    try:
        for option in chosen:
            attempt.setsockopt(socket.SOL_SOCKET, option, 1)
        attempt.bind((host, port))
        attempt.listen()
        taken = f"{host} {chosen}"
    except OSError:
        attempt.close()
sys.stdin.read()
print("taken:", taken)
"""


@contextmanager
def reserve_at(path: Path) -> Generator[None, None, None]:
    """Yield a Unix socket, as Emacs keeps one, on which nothing accepts."""
    with socket.socket(socket.AF_UNIX) as reserve:
        reserve.bind(str(path))
        reserve.listen()
        yield


@needs_root
def test_another_user_never_gets_the_port_of_a_killed_backend(home: Home) -> None:
    path = home.spool / "reserve"
    with (
        reserve_at(path),
        Backend(home, settings=NO_LIBRARY, reserve=str(path), sessions=[KNOWN]) as backend,
    ):
        port = backend.serve()["port"]
        command = [sys.executable, "-c", BECOME_OTHER + TAKE, str(port)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stranger:
            assert stranger.stdout is not None
            assert stranger.stdout.readline() == "trying\n"
            token = backend.token
            # With and without connections that linger on the port.
            with Cli(port, token, "known").stream() as stream:
                assert stream.block()[0].startswith("retry: ")
                backend.kill()
            for _ in range(2):
                with Backend(home, settings=NO_LIBRARY, reserve=str(path), port=port, token=token) as successor:
                    assert successor.greet()["port"] == port
                    successor.kill()
            assert stranger.communicate("\n")[0] == "taken: \n"
    # Not longer than Emacs keeps the reserve.
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_without_a_reserve_a_port_is_taken_and_not_kept(tmp_path: Path) -> None:
    for reserve in (None, str(tmp_path / "nobody listens here"), str(tmp_path / ("long" * 50))):
        with listen_reserved(0, reserve) as listener:
            port = listener.getsockname()[1]
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_a_port_of_another_program_of_the_user_is_not_shared(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError, match="in use"):
        listen_reserved(other.getsockname()[1], str(tmp_path / "reserve"))


def test_two_that_start_at_once_get_ports_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "reserve"
    with reserve_at(path):
        listeners = [listen_reserved(0, str(path)) for _ in range(3)]
        ports = {listener.getsockname()[1] for listener in listeners}
        for listener in listeners:
            listener.close()
        assert len(ports) == 3
