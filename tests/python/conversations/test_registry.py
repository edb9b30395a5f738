# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from limit import limit_s
from qwen_companion.base.local_ids import local_id
from qwen_companion.conversations.records import Record, editor_of, other_editors, read_record
from qwen_companion.conversations.registry import Registry
from qwen_companion.domain import RegisteredCli
from registry_records import values_of, write
from support import OTHER_USER, needs_root

pytestmark = pytest.mark.anyio


@contextmanager
def process() -> Generator[subprocess.Popen[bytes]]:
    """Run a program that does nothing until it is ended."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as running:
        try:
            yield running
        finally:
            running.kill()


def own_record(home: Path) -> Record:
    """Return what the record of this process in `home` says, which there is."""
    record = read_record(str(home / "sessions"), f"{os.getpid()}.json")
    assert record is not None
    return record


def test_a_record_says_what_the_user_needs_and_keeps_the_token(tmp_path: Path) -> None:
    write(tmp_path, values_of(os.getpid(), tmp_path))
    record = own_record(tmp_path)
    assert record.cli == RegisteredCli(
        str(os.getpid()),
        os.getpid(),
        session="a-conversation",
        chat=local_id("session", "a-conversation"),
        directory=str(tmp_path),
        name="home-b7",
        version="0.24.4",
        start=1795692392658,
        listens=True,
    )
    assert record.socket == "/run/qwen.sock"
    assert "not for us" not in repr(record)


@pytest.mark.parametrize(
    "others",
    [
        {"procStart": "another boot:1"},
        {"pidNs": 1},
        # Where it does not say: the process is younger than the record.
        {"procStart": None, "startedAt": 1000},
    ],
    ids=["number used again", "container", "number used again, not on Linux"],
)
def test_the_record_of_another_process_is_none(tmp_path: Path, others: dict[str, Any]) -> None:
    write(tmp_path, values_of(os.getpid(), tmp_path, **others))
    assert read_record(str(tmp_path / "sessions"), f"{os.getpid()}.json") is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"pid": 1', "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        ('"' + "x" * 100_000 + '"', "too large"),
        ({"schemaVersion": 2}, "newer Qwen Code"),
        ({"pid": 1}, "another process than its file"),
        ({"cwd": "relative"}, "not an absolute file name"),
        ({"cwd": "/half \ud83d"}, "half a surrogate pair"),
        ({"startedAt": "now"}, "the time at which"),
        ({"startedAt": float("inf")}, "the time at which"),
        ({"startedAt": 10**400}, "the time at which"),
        ({"startedAt": 10**400, "procStart": None}, "the time at which"),
        ({"sessionId": "../../x"}, "the id of its conversation"),
        ({"sessionId": "--yolo"}, "the id of its conversation"),
        ({"sessionId": 7}, "the id of its conversation"),
        ({"cwd": "/not/there"}, "its directory is gone"),
    ],
)
def test_what_is_wrong_with_a_record_is_said(tmp_path: Path, content: dict[str, Any] | str, problem: str) -> None:
    values = content if isinstance(content, str) else values_of(os.getpid(), tmp_path, **content)
    write(tmp_path, values, f"{os.getpid()}.json")
    record = own_record(tmp_path)
    assert problem in (record.cli.problem or "")
    assert record.cli.pid == os.getpid()


@pytest.mark.parametrize("address", ["relative", "/run/\0", "/half \ud83d", 7])
def test_odd_words_in_a_record_are_harmless(tmp_path: Path, address: object) -> None:
    odd = {"name": "half \ud83d", "qwenVersion": ["x"], "kind": "../..", "ipcPath": address}
    write(tmp_path, values_of(os.getpid(), tmp_path, **odd))
    record = own_record(tmp_path)
    cli = record.cli
    assert (cli.name, cli.version, cli.kind, cli.listens) == ("half ?", "", "tui", False)


def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    target = write(tmp_path, values_of(os.getpid(), tmp_path)).rename(tmp_path / "target")
    path = tmp_path / "sessions" / f"{os.getpid()}.json"
    for make, problem in (
        (lambda: path.symlink_to(target), "symbolic link"),
        (lambda: os.mkfifo(path), "no regular"),
    ):
        make()
        record = own_record(tmp_path)
        assert problem in (record.cli.problem or "")
        assert not record.cli.session
        path.unlink()


@needs_root
def test_the_record_of_another_user_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path, values_of(os.getpid(), tmp_path))
    os.chown(path, OTHER_USER, OTHER_USER)
    record = own_record(tmp_path)
    assert "another user" in (record.cli.problem or "")


def test_the_editor_that_a_cli_is_connected_to(tmp_path: Path) -> None:
    (tmp_path / "ide").mkdir()
    (tmp_path / "ide/7.lock").write_text("{")
    (tmp_path / "ide/8.lock").write_text('{"ideName": "Emacs"}')
    editors = other_editors({"QWEN_HOME": str(tmp_path)}, 7)
    assert editors == {8: "Emacs"}
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        port = server.getsockname()[1]
        assert editor_of(os.getpid(), {port: "Emacs"}) == "Emacs"
        assert editor_of(os.getpid(), editors) is None


class Watched:
    """What a registry has told: the CLIs that there are, by their ids."""

    def __init__(self) -> None:
        self.clis: dict[str, RegisteredCli] = {}
        self.told = 0
        self._news = anyio.Event()

    def changed(self, clis: Collection[RegisteredCli], gone: Collection[str], _controller: str) -> None:
        self.told += 1
        self.clis.update({cli.id: cli for cli in clis})
        for identifier in gone:
            del self.clis[identifier]
        self._news.set()
        self._news = anyio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(limit_s()):
            while not condition():
                await self._news.wait()


async def test_clis_come_and_go(tmp_path: Path) -> None:
    """Also before there is a folder, and one that is killed, which leaves its record behind."""
    watched = Watched()
    home = tmp_path / "deep" / ".qwen"
    registry = Registry({"QWEN_HOME": str(home)}, 1, watched.changed)
    with process() as first, process() as second:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(registry.run)
            await anyio.wait_all_tasks_blocked()
            home.mkdir(parents=True)
            path = write(home, values_of(first.pid, home))
            await watched.until(lambda: str(first.pid) in watched.clis)
            write(home, values_of(second.pid, home, kind="serve"), f"{second.pid}-0123abcd.json")
            await watched.until(lambda: len(watched.clis) == 2)
            assert watched.clis[f"{second.pid}-0123abcd"].kind == "serve"
            # As a CLI that ends does.
            path.unlink()
            first.kill()
            await watched.until(lambda: len(watched.clis) == 1)
            second.kill()
            await watched.until(lambda: all(cli.gone for cli in watched.clis.values()))
            # As the next `qwen sessions ps` does.
            (home / "sessions" / f"{second.pid}-0123abcd.json").unlink()
            await watched.until(lambda: not watched.clis)
            tasks.cancel_scope.cancel()


async def test_where_the_system_tells_of_no_changes_nothing_is_looked_at_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qwen_companion.journal.tree_watch.open_inotify", lambda: None)
    watched = Watched()
    registry = Registry({"QWEN_HOME": str(tmp_path)}, 1, watched.changed)
    with process() as cli:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(registry.run)
            # Of the token.
            await watched.until(lambda: watched.told == 1)
            assert not registry.is_told
            write(tmp_path, values_of(cli.pid, tmp_path))
            await anyio.wait_all_tasks_blocked()
            assert not watched.clis
            registry.refresh()
            await watched.until(lambda: str(cli.pid) in watched.clis)
            cli.kill()
            cli.wait()
            registry.refresh()
            await watched.until(lambda: watched.clis[str(cli.pid)].gone)
            tasks.cancel_scope.cancel()


async def test_ten_thousand_records_that_were_left_are_soon_known_for_what_they_are(tmp_path: Path) -> None:
    watched = Watched()
    (tmp_path / "sessions").mkdir()
    for number in range(10_000):
        (tmp_path / "sessions" / f"{4_000_000 + number}.json").write_text("{}")
    write(tmp_path, values_of(os.getpid(), tmp_path))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Registry({"QWEN_HOME": str(tmp_path)}, 1, watched.changed).run)
        await watched.until(lambda: bool(watched.clis))
        assert list(watched.clis) == [str(os.getpid())]
        tasks.cancel_scope.cancel()


async def test_a_record_that_is_written_anew_is_told_once(tmp_path: Path) -> None:
    """A CLI writes its record again when it takes messages, and with another conversation."""
    watched = Watched()
    values = values_of(os.getpid(), tmp_path)
    write(tmp_path, {key: value for key, value in values.items() if key != "ipcPath"})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Registry({"QWEN_HOME": str(tmp_path)}, 1, watched.changed).run)
        await watched.until(lambda: bool(watched.clis))
        assert not watched.clis[str(os.getpid())].listens
        write(tmp_path, values)
        await watched.until(lambda: watched.clis[str(os.getpid())].listens)
        before = watched.told
        write(tmp_path, values)
        write(tmp_path, {**values, "sessionId": "another"})
        await watched.until(lambda: watched.clis[str(os.getpid())].session == "another")
        assert watched.told == before + 1
        tasks.cancel_scope.cancel()


async def test_of_more_records_than_anybody_looks_at_the_newest_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qwen_companion.conversations.registry.MOST", 3)
    watched = Watched()
    values = values_of(os.getpid(), tmp_path)
    names = [f"{os.getpid()}-0000000{number}" for number in range(5)]
    for number, name in enumerate(names):
        write(tmp_path, {**values, "startedAt": values["startedAt"] + number}, f"{name}.json")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Registry({"QWEN_HOME": str(tmp_path)}, 1, watched.changed).run)
        await watched.until(lambda: bool(watched.clis))
        assert sorted(watched.clis) == names[2:]
        write(tmp_path, {**values, "startedAt": values["startedAt"] + 9}, f"{os.getpid()}-00000009.json")
        await watched.until(lambda: f"{os.getpid()}-00000009" in watched.clis)
        # The oldest is told no longer, and has not ended.
        assert sorted(watched.clis) == [*names[3:], f"{os.getpid()}-00000009"]
        tasks.cancel_scope.cancel()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells by a descriptor that a process has ended")
async def test_a_process_takes_one_descriptor_however_many_records_it_has(tmp_path: Path) -> None:
    """And none once its records are gone."""

    def pidfds() -> int:
        links: list[str] = []
        for number in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):
                links.append(os.readlink(f"/proc/self/fd/{number}"))
        return sum("pidfd" in link for link in links)

    watched = Watched()
    before = pidfds()
    with process() as cli:
        paths = [write(tmp_path, values_of(cli.pid, tmp_path), f"{cli.pid}-{number:08x}.json") for number in range(50)]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Registry({"QWEN_HOME": str(tmp_path)}, 1, watched.changed).run)
            await watched.until(lambda: len(watched.clis) == 50)
            await anyio.wait_all_tasks_blocked()
            assert pidfds() == before + 1
            for path in paths:
                path.unlink()
            await watched.until(lambda: not watched.clis)
            await anyio.wait_all_tasks_blocked()
            assert pidfds() == before
            tasks.cancel_scope.cancel()
