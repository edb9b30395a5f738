# SPDX-License-Identifier: GPL-3.0-or-later
"""Hostile input, kills, a full disk and a clock that is set, by seed, and a real backend.

`make robust` runs many rounds, with the strangers of test_strangers.py and test_listening.py; `make test` the first.
All of it goes to 127.0.0.1, in a bounded number of connections.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from sexpdata import Symbol, dumps

from support import INITIALIZE, KNOWN, NO_LIBRARY, SECRET, TIMEOUT_S, Backend, Cli, EpcPeer, Home

ATTACKS_A_ROUND = 60

INITIALIZED = b'{"jsonrpc": "2.0", "method": "notifications/initialized"}'


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test with as many seeds as wanted."""
    if "chance" in metafunc.fixturenames:
        seeds = range(int(str(metafunc.config.getoption("--rounds"))))
        chances = [random.Random(seed) for seed in seeds]  # noqa: S311 - it is to be the same each time
        metafunc.parametrize("chance", chances, ids=[f"seed {seed}" for seed in seeds])


def answer_to(port: int, data: bytes) -> bytes:
    """Send `data`; return the answer up to the end of the connection."""
    answer = b""
    with suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.sendall(data)
        with suppress(OSError):  # It has been closed by the other side.
            connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(65536):
            answer += piece
    return answer


def noise(chance: random.Random, length: int) -> bytes:
    return bytes(chance.choice((0, 10, 13, 32, 34, 40, 41, 58, 92, 123, 125, 255)) for _ in range(length))


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Return `data` with a part cut out, doubled, or replaced by noise."""
    start = chance.randrange(len(data))
    end = min(len(data), start + chance.randrange(1, 40))
    middle = chance.choice((b"", data[start:end] * 2, noise(chance, end - start)))
    return data[:start] + middle + data[end:]


def hostile_body(chance: random.Random) -> bytes:
    request: dict[str, object] = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
    wrong: list[object] = [None, 7, -1e308, "x" * 70000, [], {"a": []}, "\0", "../..", True]
    if chance.random() < 0.3:
        nested = b"[" * 100_000
        return chance.choice((b"", b"null", b"[]", nested, b'{"id":' * 20_000, b"\xff\xfe", b'"\\ud800"'))
    request[chance.choice(("jsonrpc", "id", "method", "params"))] = chance.choice(wrong)
    if chance.random() < 0.5:
        arguments = {"filePath": chance.choice(wrong), "newContent": chance.choice(wrong)}
        request |= {"method": "tools/call", "params": {"name": chance.choice(["openDiff", "closeDiff", "", 7])}}
        request["params"] = {"name": "openDiff", "arguments": chance.choice([arguments, None, []])}
    return json.dumps(request).encode()


def hostile_request(chance: random.Random, cli: Cli) -> bytes:
    """Return a request with the headers of `cli` that no `cli` would send."""
    body = hostile_body(chance)
    headers = {**cli.headers, "mcp-session-id": chance.choice((cli.session, "no such", "\x80", ""))}
    headers["Connection"] = "close"
    headers["Content-Length"] = str(chance.choice((len(body), 0, -1, 10**12, "ten", len(body) + 1)))
    if chance.random() < 0.2:
        headers["Transfer-Encoding"] = chance.choice(("chunked", "gzip", "chunked, chunked"))
    if chance.random() < 0.2:
        headers["X-Long"] = "x" * chance.choice((1000, 100_000))
    method = chance.choice(("POST", "POST", "POST", "PUT", "OPTIONS", "DELETE", "\0"))
    path = chance.choice(("/mcp", "/mcp", "/", "//", "/%00", "http://elsewhere/mcp"))
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    data = f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body
    return damaged(chance, data) if chance.random() < 0.5 else data


def spoilt_token(chance: random.Random, good: str) -> str:
    """Another token than `good`, which looks like it."""
    spoilt: list[Callable[[], str]] = [
        lambda: "",
        lambda: good[:-1],
        lambda: good + "0",
        lambda: good.upper() if good.upper() != good else good[::-1],
        lambda: "".join(chance.sample(good, len(good))),
        lambda: good[: (cut := chance.randrange(len(good)))] + "g" + good[cut + 1 :],
        lambda: f"{good},{good}",
        lambda: good * chance.randrange(2, 400),
    ]
    return chance.choice(spoilt)()


def test_hostile_requests_and_other_tokens_harm_nobody(backend: Backend, home: Home, chance: random.Random) -> None:
    path = home.work / "a"
    path.write_text("")
    with backend.cli().stream() as stream:
        attacker = backend.cli()
        for _ in range(ATTACKS_A_ROUND):
            answer_to(backend.port, hostile_request(chance, attacker))
            status, _, _ = Cli(backend.port, spoilt_token(chance, backend.token)).request("initialize", INITIALIZE)
            assert status == 401
        backend.emacs.call("context", dumps({"files": [{"path": str(path), "timestamp": 1}], "active": str(path)}))
        assert stream.event()["method"] == "ide/contextUpdate"
    check_unharmed(backend)


def test_hostile_frames_keep_emacs_out_no_more_than_they_get_in(home: Home, chance: random.Random) -> None:
    call = f'(call 1 roots ("{SECRET[:-1]}" (:roots nil)))\n'.encode()
    with Backend(home) as backend:
        assert backend.process.stdout is not None
        port = int(backend.process.stdout.readline())
        for _ in range(ATTACKS_A_ROUND):
            frame = chance.choice((call, b"(" * 50_000, b"(return 1 nil)\n", b"'" * 100, noise(chance, 100), b""))
            length = chance.choice((len(frame), 0, 1, 0xFFFFFF, len(frame) + 5))
            data = b"%06x" % length + frame
            assert b"return" not in answer_to(port, damaged(chance, data) if chance.random() < 0.5 else data)
        backend.emacs = EpcPeer(port)
        assert backend.emacs.call("roots", "(:roots nil)")[0] == "return"
        check_unharmed(backend)


def test_kills_at_any_moment_are_survived(home: Home, chance: random.Random) -> None:
    # After a moment of chance in the life of a backend; one a round, as each start takes a while.
    moment = chance.randrange(4)
    with Backend(home, sessions=[KNOWN]) as backend, ExitStack() as stack:
        backend.greet()
        port, token = backend.port, backend.token
        cli = Cli(port, token, "known")
        if moment > 1:
            assert cli.post(INITIALIZED)[0] == 202
            if moment > 2:
                stack.enter_context(cli.stream())
        backend.kill()
    if moment == 0:
        with Backend(home, port=port, token=token) as backend:
            backend.kill()
    with Backend(home, port=port, token=token, sessions=[KNOWN]) as backend:
        assert backend.greet()["port"] == port
        with cli.stream() as stream:
            assert stream.block() == ["retry: 1500"]
        backend.emacs.wait_for("serving")
        check_unharmed(backend)
        assert home.files() == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits a process that runs")
def test_a_disk_that_is_full_from_any_moment_on_loses_nothing(home: Home, chance: random.Random) -> None:
    # A process that may write no byte to any file gets errors where one on a full disk does.
    moment = chance.randrange(3)
    text = "é\r\n" * chance.randrange(30_000, 100_000)
    path = str(home.work / "a.txt")
    with Backend(home, sessions=[KNOWN]) as backend, ExitStack() as stack:
        if moment == 0:
            limit_files(backend, 0)
        published = backend.greet()
        assert bool(published["warnings"]) == (moment == 0)
        cli = Cli(backend.port, backend.token, "known")
        if moment == 1:
            limit_files(backend, 0)
        stream = stack.enter_context(cli.stream())
        limit_files(backend, 0)
        cli.tool("openDiff", filePath=path, newContent=text)
        opened = backend.emacs.wait_for("proposal-open")
        assert opened["text"] == text
        outcome = {"id": opened["id"], "outcome": Symbol("accepted"), "text": text + "more"}
        assert backend.emacs.call("outcome", dumps(outcome))[0] == "return"
        assert stream.event()["params"]["content"] == text + "more"
        assert backend.emacs.wait_for("delivered") == {"id": opened["id"]}
        limit_files(backend, resource.RLIM_INFINITY)
        cli.tool("openDiff", filePath=path, newContent=text)
        file = Path(backend.emacs.wait_for("proposal-open")["text-file"])
        assert file.read_bytes() == text.encode("utf-8")
        # What could not be written at first.
        backend.emacs.call("roots", dumps({"roots": [str(home.home)]}))
        backend.emacs.wait_until("published", lambda message: not message["warnings"])
        assert [found.name for found in home.files()]
        stream.close()
        backend.stopped()
        assert "Traceback" not in backend.error_text()
        assert home.files() == []


def limit_files(backend: Backend, size: int) -> None:
    """Let `backend` write no files of more than `size` bytes."""
    resource.prlimit(backend.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


POOR = """import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)); \
from qwen_companion.base import inotify; inotify.open_inotify = lambda: None"""
"""As settings of a `Backend`: it may open few files, and the system tells nothing of changes."""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems need other descriptors for themselves")
def test_a_poor_system_has_its_reviews(home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # In the locale C, without git, and behind a proxy that does not answer.
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    path, text = home.work / "größe.txt", "naïve 🙂\n"
    with Backend(home, settings=POOR) as backend:
        backend.greet()
        cli = backend.cli()
        with cli.stream() as stream:
            cli.tool("openDiff", filePath=str(path), newContent=text)
            opened = backend.emacs.wait_for("proposal-open")
            assert (opened["path"], opened["text"]) == (str(path), text)
            outcome = {"id": opened["id"], "outcome": Symbol("accepted"), "text": text + "more"}
            assert backend.emacs.call("outcome", dumps(outcome))[0] == "return"
            while (event := stream.event())["method"] != "ide/diffAccepted":
                pass
            assert event["params"]["content"] == text + "more"
        assert backend.stopped() == ""
        assert home.files() == []


STEP = """
import signal, time, psutil
time_of_day, booted, step = time.time, psutil.boot_time(), [%r]
time.time = lambda: time_of_day() + step[0]
psutil._pslinux.boot_time = lambda: booted + step[0]
signal.signal(signal.SIGUSR1, lambda *_: step.__setitem__(0, %r))
"""
"""As settings of a `Backend`: its clock is set by so many seconds from the start, and by as many on SIGUSR1."""


@pytest.mark.skipif(sys.platform != "linux", reason="the names of other systems differ")
def test_steps_of_the_clock_end_nothing_of_a_live_emacs(home: Home, chance: random.Random) -> None:
    steps = chance.sample([0, 5, -5, 3600, -3600, 10**8, -(10**8)], 4)

    def settings() -> str:
        return f"exec({STEP % (steps.pop(), steps.pop())!r}); {NO_LIBRARY}"

    with Backend(home, settings=settings(), sessions=[KNOWN]) as backend, ExitStack() as stack:
        backend.serve()
        stream = stack.enter_context(Cli(backend.port, backend.token, "known").stream())
        files = home.files()
        backend.process.send_signal(signal.SIGUSR1)
        # That of another Emacs, which clears what dead ones have left.
        other = stack.enter_context(Backend(home, settings=settings(), emacs_pid=os.getppid()))
        other.serve()
        other.process.send_signal(signal.SIGUSR1)
        assert set(files) < set(home.files())
        path = home.work / "a"
        path.write_text("")
        backend.emacs.call("context", dumps({"files": [{"path": str(path), "timestamp": 1}], "active": str(path)}))
        assert stream.event()["method"] == "ide/contextUpdate"
        check_unharmed(other)
        assert home.files() == files
        check_unharmed(backend)
        assert home.files() == []


def check_unharmed(backend: Backend) -> None:
    """End `backend`, which has nothing to say."""
    assert backend.stopped() == ""
