# SPDX-License-Identifier: GPL-3.0-or-later
"""A place keeps its CLIs over a broken line: the real relay in a stand-in of a container, with a server of ours."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from pathlib import Path

import anyio
import pytest

from qwen_companion.domain import Hop
from qwen_companion.ide.context_distributor import Reports
from qwen_companion.ide.guard import Keys
from qwen_companion.ide.targets import TargetError
from qwen_companion.remote.checks import checks
from qwen_companion.remote.laid_files import Callbacks
from qwen_companion.remote.place import Place
from qwen_companion.remote.places import Places
from qwen_companion.wire.messages import Notification, PlaceState, RunAt, RunCommand, WantedPlace
from relays import APART, cut, environ

pytestmark = pytest.mark.anyio

NAME = "/docker:box:"


class Served:
    """A place with what it tells, and with the keys of each connection that the server gets."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.states: list[str] = []
        self.reason: str | None = None
        self.commands: list[RunCommand] = []
        self._told = anyio.Event()
        self.reachable: list[bool] = []
        self.keys: list[Keys | None] = []
        self.lines: list[bytes] = []
        self.asked = anyio.Event()
        self.may_answer = anyio.Event()
        self.begins = False
        self.text = b"answer"
        self.place: Place

    def make(self, port: int, wanted: WantedPlace | None = None) -> Place:
        """Return the place, whose CLIs are served at `port`."""
        wanted = wanted or WantedPlace(NAME, (Hop("docker", "box"),), None, 3600, (str(self._home),))
        reports = Reports(
            lambda _session, _context: None, lambda _session, _place, _roots, _time, _text: None, lambda: None
        )
        callbacks = Callbacks(
            layer_of=lambda _keys, _command: None,
            tell=self._tell,
            roots_changed=lambda: None,
            set_reachable=lambda _, reachable: self.reachable.append(reachable),
        )
        places = Places("token", port, environ(self._home), str(self._home.parent), reports, callbacks)
        # One that is not wanted counts as reachable.
        places.set_reachable = callbacks.set_reachable
        self.place = Place(wanted, places)
        return self.place

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a connection of a CLI, as soon as that may be; begin to at once where the test wants it."""
        self.keys.append(self.place.keys(writer.get_extra_info("peername")[1]))
        self.lines.append(await reader.readline())
        if self.begins:
            writer.write(b"begun, ")
        self.asked.set()
        await self.may_answer.wait()
        writer.write(self.text)
        writer.close()

    def _tell(self, message: Notification) -> None:
        if isinstance(message, PlaceState):
            self.states.append(message.state)
            assert (message.retry_at is not None) is (message.state == "lost")
            self.reason = message.reason
            self._told.set()
        elif isinstance(message, RunCommand):
            self.commands.append(message)

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


async def test_no_copy_is_left_of_a_file_outside_of_the_roots_there(home: Path) -> None:
    """Also of one behind a link in them."""
    served = Served(home)
    secret = home.parent / "secret"
    secret.write_text("secret\n")
    (home / "link").symlink_to(secret)
    (home / "a.py").write_text("a\n")
    write_program(home, home)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.make(1).run)
        await served.wait_for("ready")
        await served.place.check_target(str(home / "a.py"))
        for path in (secret, home / "link"):
            with pytest.raises(TargetError, match="outside"):
                await served.place.check_target(str(path))
        copies = [path.read_text() for path in home.parent.glob("places/*/*")]
        assert copies == ["a\n"]
        tasks.cancel_scope.cancel()


async def test_who_asks_while_the_line_is_broken_is_admitted_when_it_comes_back(home: Path) -> None:
    served = Served(home)
    served.may_answer.set()
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


async def test_a_dead_connection_of_tramp_is_not_used_again_and_again(home: Path) -> None:
    """After a break the first attempt is one of our own; where that has no key, the next one uses TRAMP's again."""
    served = Served(home)
    write_program(home, home)
    tried, refusing = home / "tried", home / "refusing"
    (home.parent / "bin/ssh").write_text(
        f'#!/bin/sh\ncase "$*" in *ControlPath*) echo shared >>{tried};; *) echo own >>{tried}\n'
        f'[ ! -e {refusing} ] || {{ echo "Permission denied (password)." >&2; exit 255; }} ;; esac\n'
        'while [ "$1" != -- ]; do shift; done; exec docker exec -i box sh -c "$3"\n'
    )
    (home.parent / "bin/ssh").chmod(0o700)
    async with anyio.create_task_group() as tasks:
        place = served.make(1, WantedPlace("/ssh:box:", (Hop("ssh", "box"),), "/control", 3600, (str(home),)))
        tasks.start_soon(place.run)
        await served.wait_for("ready")
        for _ in range(2):
            cut()
            await served.wait_for("lost")
            refusing.touch()
            await served.wait_for("ready")
        assert tried.read_text().split() == ["shared", "own", "shared", "own", "shared"]
        tasks.cancel_scope.cancel()


async def test_the_doctor_checks_a_place(home: Path) -> None:
    served = Served(home)
    write_program(home, home)
    served.text = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
    served.may_answer.set()
    bin = home / ".local/bin"
    bin.mkdir(parents=True)
    async with await asyncio.start_server(served.answer, "127.0.0.1", 0) as server, anyio.create_task_group() as tasks:
        place = served.make(server.sockets[0].getsockname()[1])
        assert [check.status for check in await checks(place, "qwen")] == ["fail"]
        tasks.start_soon(place.run)
        await served.wait_for("ready")
        found = {check.name: check for check in await checks(place, "qwen")}
        names = ["reach", "shell", "PATH", "Node.js", "CLI", "home", "files", "forwarding", "clock"]
        assert list(found) == names
        assert [name for name, check in found.items() if check.status == "fail"] == ["CLI"]
        assert all(check.remedy for check in found.values() if check.status != "pass")
        # A CLI that the login shell alone finds, a file that others can read, and a server that knows no token.
        (home / ".profile").write_text(f"PATH={bin}:$PATH\n")
        package = home / "lib/node_modules/@qwen-code/qwen-code"
        package.mkdir(parents=True)
        (package / "package.json").write_text('{"name": "@qwen-code/qwen-code", "version": "0.24.4"}')
        (package / "cli.js").touch(0o755)
        (bin / "qwen").symlink_to(package / "cli.js")
        next((home / ".qwen/ide").glob("*.lock")).chmod(0o644)
        served.text = served.text.replace(b"400 Bad Request", b"401 Unauthorized")
        found = {check.name: check for check in await checks(place, "qwen")}
        assert found["CLI"].text.startswith(f"0.24.4 at {bin}/qwen")
        assert str(bin) in found["PATH"].text
        assert [name for name, check in found.items() if check.status == "fail"] == ["files", "forwarding"]
        tasks.cancel_scope.cancel()


async def test_a_directory_that_is_not_there_is_told(home: Path) -> None:
    served = Served(home)
    write_program(home, home)
    async with anyio.create_task_group() as tasks:
        place = served.make(1)
        tasks.start_soon(place.run)
        await place.run_at(RunAt(1, NAME, str(home / "none"), True, ("qwen",)))
        assert [command.error for command in served.commands] == [f"there is no directory {home}/none"]
        tasks.cancel_scope.cancel()


async def test_a_place_that_needs_a_password_is_tried_again_when_it_is_wanted_again(home: Path) -> None:
    """As when the user has let TRAMP log in there: the list of places may be the same."""
    served = Served(home)
    (home.parent / "bin/docker").write_text("#!/bin/sh\necho 'me@box: Permission denied (password).' >&2; exit 255\n")
    async with anyio.create_task_group() as tasks:
        place = served.make(1)
        tasks.start_soon(place.run)
        await served.wait_for("failed")
        assert served.reason is not None
        assert "let TRAMP log in" in served.reason
        write_program(home, home)
        place.want(place.wanted)
        await served.wait_for("ready")
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("begins", [False, True])
async def test_a_request_that_is_being_answered_when_the_line_breaks_is_done_once(home: Path, begins: bool) -> None:
    """What was answered meanwhile, and what of an answer was lost with the line, comes then."""
    served = Served(home)
    served.begins = begins
    write_program(home, home)
    async with await asyncio.start_server(served.answer, "127.0.0.1", 0) as server, anyio.create_task_group() as tasks:
        tasks.start_soon(served.make(server.sockets[0].getsockname()[1]).run)
        await served.wait_for("ready")
        reader, writer = await asyncio.open_connection("127.0.0.1", served.lock[0])
        writer.write(b"POST " + b"q" * 20_000 + b"\n")
        await served.asked.wait()
        for _ in range(3):
            cut()
            await served.wait_for("lost")
            await served.wait_for("ready")
        served.may_answer.set()
        assert await reader.read(-1) == (b"begun, answer" if begins else b"answer")
        writer.close()
        tasks.cancel_scope.cancel()
    assert len(served.lines) == 1


async def test_bytes_that_are_on_their_way_when_the_line_breaks_come_once(home: Path) -> None:
    """A CLI and the server send each other more than fits into the pipe, which is cut again and again."""
    text = os.urandom(3_000_000)
    served = Served(home)
    write_program(home, home)
    halves = [anyio.Event() for _ in range(4)]

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for half in halves[:2]:
            writer.write(await reader.readexactly(len(text) // 2))
            half.set()
            await writer.drain()
        writer.close()

    async def cut_again() -> None:
        for half in halves[:3]:
            await half.wait()
            cut()
            await served.wait_for("lost")
            await served.wait_for("ready")
        halves[3].set()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server, anyio.create_task_group() as tasks:
        tasks.start_soon(served.make(server.sockets[0].getsockname()[1]).run)
        await served.wait_for("ready")
        reader, writer = await asyncio.open_connection("127.0.0.1", served.lock[0])
        tasks.start_soon(cut_again)
        writer.write(text)
        got = await reader.readexactly(2_000_000)
        halves[2].set()
        assert got + await reader.read(-1) == text
        writer.close()
        await halves[3].wait()
        tasks.cancel_scope.cancel()
