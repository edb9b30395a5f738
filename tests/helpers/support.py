# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-ins for Emacs and the CLI, and a backend process to put between them."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import queue
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
import pytest
from sexpdata import Symbol, dumps, loads

from forked_backend import PYTHON_DIRECTORY, ForkedBackend
from limit import limit_s
from qwen_companion.base.errors import EmacsBusyError
from qwen_companion.domain import HookAnswer
from qwen_companion.ide.proposals import Proposal

T = TypeVar("T")
TIMEOUT_S = limit_s()
"""How long a test waits for an event, in seconds; a passing test never waits that long."""

SECRET = "a secret of Emacs"
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test-client", "version": "1.2"},
}
OTHER_USER = 65534
"""A user without a name or with that of nobody."""

BECOME_OTHER = f"""
import encodings.idna, os, resource, socket, sys
os.setgroups([]); os.setresgid(*[{OTHER_USER}] * 3); os.setresuid(*[{OTHER_USER}] * 3)
"""
"""Start of a Python script that goes on as another user; by itself, for that user may not be able to run Python."""

NO_LIBRARY = "import threading; from qwen_companion.ide import server; server.import_rpc = threading.Event().wait"
"""As settings of a `Backend`: the MCP library, a second of processor time, is never imported; streams do without it."""

NEVER_GIVEN_UP = """from functools import partial
from qwen_companion.ide import sessions
sessions.Timing = partial(sessions.Timing, give_up=600.0, left=600.0, hidden=600.0)"""
"""As settings of a `Backend`: a session outlives its stream for as long as a slow test takes."""

KNOWN: dict[str, object] = {
    "id": "known",
    "protocol": "2025-11-25",
    "client": "a CLI",
    "version": "1",
    "reviews": True,
}
"""As one of the sessions of a `Backend`: its stream needs no library."""

ANYWHERE = dumps({"all-roots": True})
"""What a test opens lies in a temporary directory, and the CLI that it plays works somewhere else."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

MCP_ACCEPT = "application/json, text/event-stream"


async def soon(awaitable: Awaitable[T]) -> T:
    """Return what `awaitable` gives, if it comes in time."""
    return await asyncio.wait_for(awaitable, TIMEOUT_S)


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition` holds, while the event loop goes on."""
    with anyio.fail_after(TIMEOUT_S):
        while not condition():
            await anyio.sleep(0.001)


def as_dict(plist: object) -> dict[str, Any]:
    """Return a property list as a dictionary, `:key` without the colon."""
    assert isinstance(plist, list)
    items = cast("list[Any]", plist)
    return {str(key)[1:]: value for key, value in zip(items[::2], items[1::2], strict=True)}


class EpcPeer:
    """A raw EPC connection, as Emacs makes it.  Answers calls by `handlers`, with nil where there is none."""

    def __init__(self, port: int, secret: str = SECRET) -> None:
        self.secret = secret
        self.handlers: dict[str, Callable[[dict[str, Any]], object]] = {}
        self.ended = threading.Event()
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._socket.settimeout(None)
        self._calls: dict[str, queue.Queue[dict[str, Any]]] = {}
        self._replies: queue.Queue[list[Any]] = queue.Queue()
        self._lock = threading.Lock()
        self._uid = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def calls(self, method: str) -> queue.Queue[dict[str, Any]]:
        with self._lock:
            return self._calls.setdefault(method, queue.Queue())

    def wait_for(self, method: str) -> dict[str, Any]:
        """Return the payload of the next call of `method`."""
        return self.calls(method).get(timeout=TIMEOUT_S)

    def wait_until(self, method: str, good: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the payload of the next call of `method` that is `good`."""
        while not good(payload := self.wait_for(method)):
            pass
        return payload

    def call(self, method: str, payload: str, secret: str | None = None) -> list[Any]:
        """Call `method` with `payload`, a printed property list; the reply as `[kind, uid, value]`."""
        self._uid += 1
        self.send(f"(call {self._uid} {method} ({dumps(self.secret if secret is None else secret)} {payload}))")
        return self.next_reply()

    def next_reply(self) -> list[Any]:
        """Return the next reply to anything, `[kind, uid, value]`."""
        return self._replies.get(timeout=TIMEOUT_S)

    def send(self, text: str) -> None:
        data = text.encode("utf-8") + b"\n"
        self.send_raw(b"%06x" % len(data) + data)

    def send_raw(self, data: bytes) -> None:
        with self._lock:
            self._socket.sendall(data)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(TIMEOUT_S)
        self._socket.close()

    def _read(self) -> None:
        with suppress(OSError), self._socket.makefile("rb") as file:
            while head := file.read(6):
                self._take(loads(file.read(int(head, 16)).decode("utf-8")))
        self.ended.set()

    def _take(self, message: Any) -> None:
        if message[0] != Symbol("call"):
            self._replies.put([str(message[0]), *message[1:]])
            return
        _, uid, method, (secret, payload) = message
        assert secret == self.secret
        values = as_dict(payload)
        self.calls(str(method)).put(values)
        handler = self.handlers.get(str(method))
        if handler is not no_answer:
            self.send(f"(return {uid} {dumps(handler(values) if handler else None)})")


def no_answer(_values: dict[str, Any]) -> object:
    """As a handler: Emacs is busy and does not answer."""
    raise AssertionError


class Home:
    """Directories of a made-up user."""

    def __init__(self, directory: Path) -> None:
        self.home, self.temporary, self.spool, self.work = (
            directory / name for name in ("home", "tmp", "spool", "work")
        )
        for path in (self.home, self.temporary, self.spool, self.work):
            path.mkdir(mode=0o700)

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in ("QWEN_HOME", "TMP", "TEMP")}
        return {**kept, "HOME": str(self.home), "TMPDIR": str(self.temporary)}

    def files(self) -> list[Path]:
        """Return all discovery files, and any other files in their directories."""
        return sorted(path for top in (self.home, self.temporary) for path in top.rglob("*") if path.is_file())


def _interpreter(home: Home, settings: str) -> subprocess.Popen[bytes]:
    """Start a backend as Emacs does; it runs `settings` first, if any."""
    run = "import runpy; runpy.run_module('qwen_companion', run_name='__main__', alter_sys=True)"
    return subprocess.Popen(
        [sys.executable, *(["-c", f"{settings}; {run}"] if settings else ["-m", "qwen_companion"])],
        cwd=PYTHON_DIRECTORY,
        env=home.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


class Backend:
    """A backend process."""

    def __init__(self, home: Home, *, settings: str = "", fresh: bool = False, **hello: object) -> None:
        """Start one; `hello` adds fields to the usual greeting.

        With `settings`, Python that it runs first, or with `fresh` it is a new interpreter, as for users.
        """
        self.home = home
        self.process = _interpreter(home, settings) if settings or fresh else ForkedBackend(home.environ)
        values: dict[str, object] = {
            "protocol": 1,
            "secret": SECRET,
            "emacs-pid": os.getpid(),
            "port": 0,
            "token": "",
            "spool": f"{home.spool}/",
            "sessions": None,
            "proposals": None,
        } | {key.replace("_", "-"): value for key, value in hello.items()}
        self.say(dumps(values))
        self.emacs: EpcPeer
        self.port = 0
        self.token = ""

    def __enter__(self) -> Backend:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(TIMEOUT_S)
        if hasattr(self, "emacs"):
            self.emacs.close()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode("utf-8") + b"\n")
        self.process.stdin.flush()

    def connect(self) -> EpcPeer:
        """Connect as Emacs does."""
        assert self.process.stdout is not None
        self.emacs = EpcPeer(int(self.process.stdout.readline()))
        return self.emacs

    def greet(self, settings: str = ANYWHERE, tools: Sequence[object] | None = None) -> dict[str, Any]:
        """Connect with `settings` and `tools`, if any, and name the roots; return the `published` message."""
        self.connect()
        self.emacs.call("settings", settings)
        if tools is not None:
            self.emacs.call("tools", dumps({"tools": tools}))
        self.emacs.call("roots", dumps({"roots": [str(self.home.work)]}))
        published = self.emacs.wait_for("published")
        self.port, self.token = published["port"], published["token"]
        return published

    def serve(self, settings: str = ANYWHERE, tools: Sequence[object] | None = None) -> dict[str, Any]:
        """Do as `greet`, and wait until CLIs are served."""
        published = self.greet(settings, tools)
        self.emacs.wait_for("serving")
        return published

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(TIMEOUT_S)

    def stopped(self) -> str:
        """Tell the process to stop; return what it has printed to standard error."""
        self.emacs.call("stop", "nil")
        assert self.exit_code() == 0
        return self.error_text()

    def exit_code(self) -> int:
        return self.process.wait(TIMEOUT_S)

    def error_text(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode("utf-8")

    def error_line(self) -> str:
        """Return the next line of standard error, once it comes."""
        assert self.process.stderr is not None
        assert select.select([self.process.stderr], [], [], TIMEOUT_S)[0]
        return self.process.stderr.readline().decode("utf-8")

    def cli(self) -> Cli:
        """Return a CLI that has said hello."""
        cli = Cli(self.port, self.token)
        cli.initialize()
        return cli


class Cli:
    """A CLI as far as HTTP goes: POSTs one by one, and the stream."""

    def __init__(self, port: int, token: str, session: str = "") -> None:
        self.port = port
        self.session = session
        self.headers = {
            "Host": f"127.0.0.1:{port}",
            "Authorization": f"Bearer {token}",
            "Accept": MCP_ACCEPT,
            "Content-Type": "application/json",
        }
        self._id = 0

    def initialize(self) -> dict[str, Any]:
        status, headers, result = self.request("initialize", INITIALIZE)
        assert status == 200, result
        self.session = headers["mcp-session-id"]
        status, _, _ = self.post(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode())
        assert status == 202
        return result["result"]

    def request(self, method: str, params: Mapping[str, Any]) -> tuple[int, Mapping[str, str], Any]:
        self._id += 1
        message = {"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}
        return self.post(json.dumps(message).encode("utf-8"))

    def tool(self, name: str, **arguments: object) -> dict[str, Any]:
        status, _, answer = self.request("tools/call", {"name": name, "arguments": arguments})
        assert status == 200, answer
        return answer["result"]

    def post(self, body: bytes, method: str = "POST") -> tuple[int, Mapping[str, str], Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, "/mcp", body, self._all_headers())
            response = connection.getresponse()
            data = response.read()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return response.status, headers, json.loads(data) if data else None
        finally:
            connection.close()

    def stream(self, last_received: str | None = None) -> Stream:
        more = {} if last_received is None else {"Last-Event-ID": last_received}
        return Stream(self.port, {**self._all_headers(), "Accept": "text/event-stream", **more})

    def _all_headers(self) -> dict[str, str]:
        session = {"mcp-session-id": self.session, "mcp-protocol-version": "2025-11-25"} if self.session else {}
        return {**self.headers, **session}


KEEP_ALIVE = ": still here"
"""Sent by the clock, so between any two things that a test asks for."""


class Stream:
    """A GET on a raw socket, so that a test sees the very bytes."""

    def __init__(self, port: int, headers: Mapping[str, str]) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._file = self._socket.makefile("rb")
        self.headers: dict[str, str] = {}
        lines = ["GET /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        try:
            self._socket.sendall("\r\n".join(lines).encode("ascii"))
            self.status_line = self._file.readline().decode("ascii").strip()
            while line := self._file.readline().decode("ascii").strip():
                name, _, value = line.partition(":")
                self.headers[name.lower()] = value.strip()
        except OSError:
            # Else a test that comes later gets the warning that it was left open.
            self.close()
            raise

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def reset(self) -> None:
        """Break the connection off, as a killed client's system does."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def block(self, *, keep_alives: bool = False) -> list[str]:
        """Return the lines up to the next empty one; an empty list at the end of the stream."""
        lines: list[str] = []
        while line := self._file.readline().decode("utf-8"):
            if line != "\n":
                lines.append(line.removesuffix("\n"))
            elif lines == [KEEP_ALIVE] and not keep_alives:
                lines = []
            else:
                return lines
        return lines

    def event(self) -> dict[str, Any]:
        """Return the next notification."""
        while block := self.block():
            data = [line.removeprefix("data: ") for line in block if line.startswith("data: ")]
            if data:
                return json.loads(data[0])
        raise AssertionError("the stream has ended")

    def rest(self) -> bytes:
        """All that comes until the end, keep-alives left out; raises when the connection is reset."""
        return self._file.read().replace(f"{KEEP_ALIVE}\n\n".encode(), b"")


class FakeEditor:
    """Emacs as the tools see it, scripted."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.opened: list[tuple[Proposal, str, str]] = []
        self.shown: asyncio.Queue[Proposal] = asyncio.Queue()
        self.refusal: str | None | Exception = None
        self.free = asyncio.Event()
        self.free.set()
        self.text: str | None | Exception = None
        self.visited: tuple[str, ...] | None = ()
        self.types = False
        self.frozen = asyncio.Event()
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    async def silence(self) -> None:
        await self.frozen.wait()

    async def is_visited(self, path: str) -> bool:
        """Say whether `path` is among the visited files; with None for these, Emacs does not answer."""
        if self.visited is None:
            raise EmacsBusyError("busy")
        return path in self.visited

    async def open_review(self, proposal: Proposal, client: str, text: str) -> str | None:
        self.opened.append((proposal, client, text))
        self.log.append(("open", proposal.path))
        await self.free.wait()
        if isinstance(self.refusal, Exception):
            raise self.refusal
        self.shown.put_nowait(proposal)
        return self.refusal

    async def close_review(self, proposal: Proposal) -> str | None:
        self.log.append(("close", proposal.id))
        if isinstance(self.text, Exception):
            raise self.text
        return self.text

    def abandon(self, proposal: Proposal, reason: str | None = None) -> None:
        self.log.append(("abandon", proposal.id if reason is None else reason))

    async def type_key(self, proposal: Proposal, key: str, prompt: str | None = None) -> bool:
        self.log.append(("key", key))
        if prompt is not None:
            self.log.append(("prompt", prompt))
        return self.types

    def released(self, proposal: Proposal, reason: str, answerable: bool) -> None:
        self.log.append(("released" if answerable else "shown", reason))

    def written(self, proposal: Proposal, exactly: bool) -> None:
        self.log.append(("written", "exactly" if exactly else "otherwise"))

    def settled(self, identifier: str) -> None:
        self.log.append(("settled", identifier))

    def hook_answers(self, session: str, answers: tuple[HookAnswer, ...]) -> None:
        pass


class FakeOutbox:
    """The sessions as the tools see them."""

    def __init__(self, *sessions: str) -> None:
        self.sessions = set(sessions)
        self.posted: list[tuple[str, Any, str | None]] = []

    def post(self, session: str, notification: Iterable[bytes], key: str | None = None) -> bool:
        if session not in self.sessions:
            return False
        self.posted.append((session, json.loads(b"".join(notification)), key))
        return True

    def withdraw(self, session: str, key: str) -> None:
        self.posted = [item for item in self.posted if (item[0], item[2]) != (session, key)]
