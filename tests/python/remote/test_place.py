# SPDX-License-Identifier: GPL-3.0-or-later
"""A place keeps its CLIs over a broken line: the real relay in a stand-in of a container, with a server of ours."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from pathlib import Path

import anyio
import pytest

from qwen_companion.domain import Hop
from qwen_companion.emacs.messages import Notification, PlaceState, WantedPlace
from qwen_companion.ide.guard import Keys
from qwen_companion.remote.place import Place
from relays import APART, cut, environ

pytestmark = pytest.mark.anyio

NAME = "/docker:box:"


class Served:
    """A place with what it tells, and with the keys of each connection that the server gets."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.states: list[str] = []
        self._told = anyio.Event()
        self.reachable: list[bool] = []
        self.keys: list[Keys | None] = []
        self.lines: list[bytes] = []
        self.place: Place

    def make(self, port: int) -> Place:
        """Return the place, whose CLIs are served at `port`."""
        wanted = WantedPlace(NAME, (Hop("docker", "box"),), None, (str(self._home),))
        self.place = Place(
            *(wanted, "token", port, environ(self._home), str(self._home.parent)),
            layer_of=lambda _port, _secret, _tools: None,
            deliver=lambda _session, _context: None,
            tell=self._tell,
            roots_changed=lambda: None,
            stirred=lambda _: None,
            set_reachable=lambda _, reachable: self.reachable.append(reachable),
        )
        return self.place

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a connection of a CLI."""
        self.keys.append(self.place.keys(writer.get_extra_info("peername")[1]))
        self.lines.append(await reader.readline())
        writer.write(b"answer")
        writer.close()

    def _tell(self, message: Notification) -> None:
        if isinstance(message, PlaceState):
            self.states.append(message.state)
            self._told.set()

    async def wait_for(self, state: str) -> None:
        """Wait until the place is in `state`."""
        while self.states[-1:] != [state]:
            self._told = anyio.Event()
            await self._told.wait()

    @property
    def lock(self) -> tuple[int, int]:
        """The port there, and the process of the relay."""
        (file,) = (self._home / ".qwen/ide").glob("*.lock")
        return int(file.stem), json.loads(file.read_text())["ppid"]


def write_program(home: Path, wait_for: Path) -> None:
    """Make the stand-in run what goes on without it, once the file `wait_for` is there."""
    wait = f"until [ -e {shlex.quote(str(wait_for))} ]; do sleep 0.05; done"
    command = shlex.join([sys.executable, "-c", APART])
    (home.parent / "bin/docker").write_text(f'#!/bin/sh\n{wait}\nshift 3\nexec {command} "$@"\n')


async def test_who_asks_while_the_line_is_broken_is_admitted_when_it_comes_back(home: Path) -> None:
    served = Served(home)
    write_program(home, home)
    async with await asyncio.start_server(served.answer, "127.0.0.1", 0) as server, anyio.create_task_group() as tasks:
        tasks.start_soon(served.make(server.sockets[0].getsockname()[1]).run)
        await served.wait_for("ready")
        port, relay = served.lock
        write_program(home, home / "go on")
        cut()
        await served.wait_for("lost")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello\n")
        (home / "go on").touch()
        assert await reader.read(-1) == b"answer"
        writer.close()
        await served.wait_for("ready")
        assert served.lock == (port, relay)
        assert [keys and keys.port for keys in served.keys] == [port]
        tasks.cancel_scope.cancel()
    assert served.lines == [b"hello\n"]
    assert served.reachable == [True, False, True]
    assert not (home / ".qwen").exists()
