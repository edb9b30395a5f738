# SPDX-License-Identifier: GPL-3.0-or-later
"""The real relay over a pipe, in a stand-in of a container."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio

from qwen_companion.domain import Hop
from qwen_companion.remote.commands import relay_command, relay_source
from qwen_companion.remote.link import Greeting, Link

NODE = Path(sys.prefix) / "bin" / "node"
SIZE = 2_000_000


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


class Server:
    """Answers each connection with `SIZE` bytes after its first line, and keeps whose it was."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.callers: list[object] = []
        self.link: Link | None = None

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.lines.append(await reader.readline())
            self.callers.append(self.link and self.link.who(writer.get_extra_info("peername")[1]))
            writer.write(b"x" * SIZE)
            with suppress(ConnectionError):
                await writer.drain()
        finally:
            writer.close()


@asynccontextmanager
async def linked(
    home: Path,
    command: Sequence[str] | None = None,
    changed: Callable[[Sequence[str]], None] = lambda _paths: None,
    linger: int = 0,
    identifier: str = "id",
    variables: Mapping[str, str] | None = None,
) -> AsyncGenerator[tuple[Link, Greeting, Server]]:
    """Yield a link to a relay that has come up, its greeting, and the server that it leads to."""
    server = Server()
    listener = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    words = command or relay_command([Hop("docker", "box")], None)
    link = server.link = Link(
        words,
        relay_source(identifier, linger),
        {**environ(home), **(variables or {})},
        listener.sockets[0].getsockname()[1],
        changed,
    )
    greetings: list[Greeting] = []
    greeted = anyio.Event()

    def ready(greeting: Greeting) -> None:
        greetings.append(greeting)
        greeted.set()

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(link.run, ready)
        await greeted.wait()
        yield link, greetings[0], server
        tasks.cancel_scope.cancel()
