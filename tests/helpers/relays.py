# SPDX-License-Identifier: GPL-3.0-or-later
"""The real relay over a pipe, in a stand-in of a container."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import psutil

from qwen_companion.domain import Hop
from qwen_companion.remote.commands import HOLD_S, relay_command, relay_source
from qwen_companion.remote.link import Greeting, Link
from qwen_companion.remote.streams import Streams

NODE = Path(sys.prefix) / "bin" / "node"
SIZE = 2_000_000


class CountedLink(Link):
    """A link with the requests that it was asked for."""

    asked: list[str]

    async def ask(self, name: str, data: bytes = b"", **values: Any) -> tuple[dict[str, Any], bytes]:
        self.asked.append(name)
        return await super().ask(name, data, **values)


def make_home(place: Path) -> Path:
    programs = place / "bin"
    programs.mkdir()
    # Of its container, what is asked for runs here.
    (programs / "docker").write_text('#!/bin/sh\n[ "$1 $2 $3" = \'exec -i box\' ] || exit 3\nshift 3\nexec "$@"\n')
    (programs / "docker").chmod(0o700)
    (programs / "node").symlink_to(NODE)
    (place / "home").mkdir()
    return place / "home"


def environ(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "PATH": f"{home.parent}/bin:/usr/bin:/bin", "SHELL": "/bin/sh"}


APART = """
import subprocess, sys, threading
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
there = subprocess.Popen(sys.argv[1:], start_new_session=True, **pipes)
def carry(source, sink):
    while data := source.read(65536):
        sink.write(data)
    sink.close()
threading.Thread(target=carry, args=(open(0, "rb", 0), there.stdin), daemon=True).start()
carry(there.stdout, open(1, "wb", 0))
sys.exit(there.wait())
"""
"""A program that carries the bytes of one in a session of its own, as ssh does."""


def _lines() -> Iterator[psutil.Process]:
    """Yield what carries the bytes of relays that are apart."""
    for process in psutil.Process().children():
        # Others may have ended.
        with suppress(psutil.NoSuchProcess):
            if APART in process.cmdline():
                yield process


def cut() -> None:
    """Break the line to a relay that is apart."""
    for process in _lines():
        process.kill()


@contextmanager
def silent_line() -> Generator[None]:
    """Let the line to a relay that is apart carry nothing, and then all that it was given meanwhile."""
    lines = list(_lines())
    for process in lines:
        process.suspend()
    for process in lines:
        # Each of its threads stops a little later.
        while any(psutil.Process(thread.id).status() != psutil.STATUS_STOPPED for thread in process.threads()):
            pass
    try:
        yield
    finally:
        for process in lines:
            with suppress(psutil.NoSuchProcess):
                process.resume()


def apart() -> list[str]:
    """Return the command of a relay that is not killed with the program that has its pipe, as behind ssh."""
    return [sys.executable, "-c", APART, *relay_command([Hop("docker", "box")], None)]


class Server:
    """Answers each connection with `SIZE` bytes after its first line, and keeps whose it was.

    With `answer_bytes`, only with so many, and without an end.
    """

    def __init__(self, answer_bytes: int | None = None) -> None:
        self._bytes = answer_bytes
        self.asked = anyio.Event()
        self.lines: list[bytes] = []
        self.callers: list[object] = []
        self.streams: Streams

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.lines.append(await reader.readline())
            self.callers.append(self.streams.who(writer.get_extra_info("peername")[1]))
            self.asked.set()
            writer.write(b"x" * (SIZE if self._bytes is None else self._bytes))
            with suppress(ConnectionError):
                await writer.drain()
                if self._bytes is not None:
                    await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def linked(
    home: Path,
    command: Sequence[str] | None = None,
    linger: int = 0,
    changed: Callable[[Sequence[str]], None] = lambda _paths: None,
    identifier: str = "id",
    variables: Mapping[str, str] | None = None,
    answer_bytes: int | None = None,
    hold: float = HOLD_S,
    admit: bool = True,
) -> AsyncGenerator[tuple[CountedLink, Greeting, Server]]:
    """Yield a link to a relay that has come up, its greeting, and the server that it leads to."""
    server = Server(answer_bytes)
    listener = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    words = command or relay_command([Hop("docker", "box")], None)
    streams = server.streams = Streams(listener.sockets[0].getsockname()[1])
    link = CountedLink(
        words,
        {**environ(home), **(variables or {})},
        relay_source(identifier, linger, hold),
        streams,
        changed,
    )
    link.asked = []
    greetings: list[Greeting] = []
    greeted = anyio.Event()

    def ready(greeting: Greeting) -> None:
        greetings.append(greeting)
        greeted.set()

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(streams.run)
        tasks.start_soon(link.run, ready)
        await greeted.wait()
        if admit:
            streams.admit()
        yield link, greetings[0], server
        tasks.cancel_scope.cancel()
