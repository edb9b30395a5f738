# SPDX-License-Identifier: GPL-3.0-or-later
"""A line that TRAMP has opened, with a stand-in of Emacs that carries its bytes to a terminal and back."""

from __future__ import annotations

import socket as sockets
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest

from qwen_companion.remote.channels import LINE_BYTES, open_line
from qwen_companion.remote.commands import HEARS, relay_source
from qwen_companion.remote.link import Greeting, Link, LinkError
from qwen_companion.remote.streams import Streams
from relays import environ

pytestmark = pytest.mark.anyio

EMACS = """
import os, pty, select, socket, sys
process, terminal = pty.fork()
if process == 0:
    os.execvp("sh", ["sh", "-c", "stty raw -echo -onlcr; printf listens; read -r line; eval \\"$line\\""])
seen = b""
while b"listens" not in seen:
    seen += os.read(terminal, 100)
line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[1])
while True:
    for ready in select.select([terminal, line], [], [])[0]:
        if ready is terminal:
            try:
                line.sendall(os.read(terminal, 4096))
            except OSError:
                sys.exit()
        elif data := line.recv(4096):
            os.write(terminal, data)
        else:
            sys.exit()
"""


@contextmanager
def emacs(home: Path) -> Generator[tuple[str, Callable[[str | None], None]]]:
    """Yield the path of the line's socket, and what is called when Emacs is to open the line."""
    path = str(home / "line")
    started: list[subprocess.Popen[bytes]] = []

    def note(socket: str | None) -> None:
        if socket:
            started.append(subprocess.Popen([sys.executable, "-c", EMACS, path], env=environ(home)))

    try:
        yield path, note
    finally:
        for process in started:
            process.kill()
            process.wait()


async def test_all_characters_go_over_a_terminal_both_ways(home: Path) -> None:
    text = "".join(map(chr, range(0xD7FF)))
    with emacs(home) as (path, note):
        async with anyio.create_task_group() as tasks:
            greeted = anyio.Event()

            def ready(_greeting: Greeting) -> None:
                greeted.set()

            streams, source = Streams(1), relay_source("id", 0, is_paced=True)
            link = Link(partial(open_line, path, note), source, streams, lambda _paths: None)
            tasks.start_soon(streams.run)
            tasks.start_soon(link.run, ready)
            await greeted.wait()
            file = (await link.request("lay", kind="sh", port=1, text=text))["path"]
            data = (await link.read(file, 10_000_000))[0]
            assert data == Path(file).read_bytes() == text.encode()
            tasks.cancel_scope.cancel()
    assert not (home / ".qwen").exists()


async def test_a_place_without_node_is_told(home: Path) -> None:
    (home.parent / "bin/node").unlink()
    (home.parent / "bin/node").write_text("echo sh: something is broken")
    (home.parent / "bin/node").chmod(0o700)
    with emacs(home) as (path, note):
        link = Link(partial(open_line, path, note), b"", Streams(1), lambda _paths: None)
        with pytest.raises(LinkError, match="something is broken"):
            await link.run(lambda _greeting: None)


async def test_no_more_is_on_its_way_than_a_terminal_takes(home: Path) -> None:
    data = bytes(range(256)) * 200
    path = str(home / "line")
    with sockets.socket(sockets.AF_UNIX) as terminal:

        def note(socket: str | None) -> None:
            if socket:
                terminal.connect(path)
                terminal.sendall(HEARS.encode())

        line = await open_line(path, note)
        terminal.setblocking(False)
        command = terminal.recv(100_000)
        assert command.endswith(b"\n")
        line.note_taken(0)
        taken = b""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.send, data)
            while taken != data:
                await anyio.wait_all_tasks_blocked()
                piece = terminal.recv(100_000)
                assert len(piece) <= LINE_BYTES
                taken += piece
                line.note_taken(len(taken))
        await line.close()
