# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs without the token, of this user and of another one, against a real backend.

Another user is played by a process that gives up root, so these tests need root.
"""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from qwen_companion.ide.http import MAX_STRANGERS
from support import (
    BECOME_OTHER,
    KNOWN,
    NEVER_GIVEN_UP,
    NO_LIBRARY,
    SECRET,
    TIMEOUT_S,
    Backend,
    Cli,
    EpcPeer,
    Home,
    needs_root,
)

HALF_A_REQUEST = "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Le"

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose a connection is")

FLOOD = """
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
port, count, said = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
held = []
for _ in range(count):
    connection = socket.create_connection(("127.0.0.1", port))
    try:
        connection.sendall(said)
    except OSError:
        pass
    held.append(connection)
print("done", flush=True)
sys.stdin.read()
"""

ASK = """
port = int(sys.argv[1])
connection = socket.create_connection(("127.0.0.1", port))
try:
    connection.sendall(sys.stdin.buffer.read())
    while data := connection.recv(65536):
        sys.stdout.buffer.write(data)
except OSError:
    pass
"""


@contextmanager
def flood(port: int, *, by_other: bool, count: int, said: str = "") -> Generator[None, None, None]:
    """Keep `count` connections open inside, each after sending `said`."""
    script = (BECOME_OTHER if by_other else "import resource, socket, sys\n") + FLOOD
    command = [sys.executable, "-c", script, str(port), str(count), said]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        yield
        process.stdin.close()


def ask_as_other(port: int, request: bytes) -> bytes:
    """Send `request` as another user; return the answer."""
    command = [sys.executable, "-c", BECOME_OTHER + ASK, str(port)]
    return subprocess.run(command, input=request, stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=True).stdout


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Generator[Backend, None, None]:
    """Yield a backend that survives all the tests that have it.

    It may open no more files than programs of a desktop on macOS may.
    """
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    settings = f"{NO_LIBRARY}; {NEVER_GIVEN_UP}"
    backend = Backend(Home(tmp_path_factory.mktemp("besieged")), settings=settings, sessions=[KNOWN])
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    with backend:
        backend.serve()
        yield backend
        assert backend.stopped() == ""


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Generator[Backend, None, None]:
    """Yield a backend that gives strangers less time than usual, so that a test has not to wait for so long."""
    settings = f"{NO_LIBRARY}; from qwen_companion.ide import http; http.STRANGER_S = 1.0"
    with Backend(Home(tmp_path_factory.mktemp("impatient")), settings=settings, sessions=[KNOWN]) as backend:
        backend.serve()
        yield backend


@pytest.mark.parametrize("by_other", [False, pytest.param(True, marks=[needs_root, needs_linux])])
def test_a_flood_of_half_requests_keeps_no_cli_out(besieged: Backend, by_other: bool) -> None:
    count = MAX_STRANGERS + 150
    with (
        flood(besieged.port, by_other=by_other, count=count, said=HALF_A_REQUEST),
        Cli(besieged.port, besieged.token, "known").stream() as stream,
    ):
        assert stream.status_line == "HTTP/1.1 200 OK"
        descriptors = psutil.Process(besieged.process.pid).num_fds()
        assert descriptors < (100 if by_other else MAX_STRANGERS + 100)


def test_half_a_request_is_given_up_soon(impatient: Backend) -> None:
    with ExitStack() as stack:
        address = ("127.0.0.1", impatient.port)
        slow = [stack.enter_context(socket.create_connection(address)) for _ in range(4)]
        slow[1].sendall(b"PO")
        slow[2].sendall(HALF_A_REQUEST.encode())
        # One that is refused, and does not go.
        slow[3].sendall(b"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        for connection in slow:
            connection.settimeout(TIMEOUT_S)
            while connection.recv(65536):
                pass


ENDLESS = {
    "path": ("GET /", "a"),
    "name of a header": ("GET / HTTP/1.1\r\n", "a"),
    "header": ("GET / HTTP/1.1\r\nX: ", "a"),
    "headers": ("GET / HTTP/1.1\r\n", "X: a\r\n"),
    "size of a chunk": ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;", "a"),
    "trailer": ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ", "a"),
    "trailers": ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "X: a\r\n"),
}


@pytest.mark.parametrize("part", ENDLESS)
def test_what_does_not_end_is_not_kept(besieged: Backend, part: str) -> None:
    beginning, more = ENDLESS[part]
    piece = (more * 65536)[:65536].encode()
    with socket.create_connection(("127.0.0.1", besieged.port), TIMEOUT_S) as connection:
        connection.sendall(beginning.encode())
        # This takes less than the time after which a stranger is given up in any case.
        with pytest.raises(ConnectionError):
            for _ in range(256):
                connection.sendall(piece)


def test_a_caller_with_the_token_is_not_given_up(impatient: Backend) -> None:
    cli = Cli(impatient.port, impatient.token, "known")
    with cli.stream() as stream, socket.create_connection(("127.0.0.1", impatient.port)) as silent:
        # When that one is given up, the limit has passed for the stream too.
        silent.settimeout(TIMEOUT_S)
        assert silent.recv(1) == b""
        impatient.emacs.call("context", '(:files ((:path "/a" :timestamp 1)))')
        assert stream.event()["method"] == "ide/contextUpdate"


@needs_root
@needs_linux
def test_another_user_is_refused_whatever_token_they_show(besieged: Backend) -> None:
    headers = {**Cli(besieged.port, besieged.token).headers, "Connection": "close", "Content-Length": "2"}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    answer = ask_as_other(besieged.port, f"POST /mcp HTTP/1.1\r\n{head}\r\n{{}}".encode())
    # What is still unread when the connection is closed may cost the answer.
    assert answer == b"" or answer.startswith(b"HTTP/1.1 403 ")
    assert b"jsonrpc" not in answer or b"another user" in answer


@needs_root
@needs_linux
def test_another_user_is_not_taken_for_emacs_and_keeps_it_not_out(home: Home) -> None:
    with Backend(home) as backend:
        assert backend.process.stdout is not None
        port = int(backend.process.stdout.readline())
        call = f'(call 1 roots ("{SECRET}" (:roots nil)))\n'.encode()
        with flood(port, by_other=True, count=100):
            assert ask_as_other(port, b"%06x" % len(call) + call) == b""
            backend.emacs = EpcPeer(port)
            assert backend.emacs.call("roots", "(:roots nil)")[0] == "return"


def test_silent_programs_of_the_user_do_not_keep_emacs_out(home: Home) -> None:
    with Backend(home) as backend:
        assert backend.process.stdout is not None
        port = int(backend.process.stdout.readline())
        with flood(port, by_other=False, count=100):
            backend.emacs = EpcPeer(port)
            assert backend.emacs.call("roots", "(:roots nil)")[0] == "return"
