# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies of files at a place are kept current, whatever the relay says of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from qwen_companion.domain import PlaceNames, SharedDirectory
from qwen_companion.ide.targets import TargetError
from qwen_companion.remote.link import Link
from qwen_companion.remote.mirrors import Copies
from qwen_companion.remote.streams import Streams
from qwen_companion.wire.messages import ListPlaceFiles, Notification, PlaceFile, PlaceFiles
from relays import linked

pytestmark = pytest.mark.anyio


class Relay(Link):
    """Says `times` of a file, one after the other."""

    def __init__(self, times: list[object]) -> None:
        super().__init__([], {}, b"", Streams(1), lambda _paths: None)
        self._times = times
        self.asked: list[str] = []

    async def ask(self, name: str, data: bytes = b"", **_values: Any) -> tuple[dict[str, Any], bytes]:
        self.asked.append(name)
        if name == "names":
            return {"names": ["a b.py", "sub/ü", "two\nlines", "\x1b[2J", "\u202eexe", "", 7, None]}, b""
        return ({"time": self._times.pop(0)}, b"%d left\n" % len(self._times)) if name == "read" else ({}, data)


async def test_what_a_relay_says_of_the_time_may_be_anything(tmp_path: Path) -> None:
    relay = Relay(["1", [], None, math.nan, math.inf, -math.inf, 10**400, 1e300, 5.5])
    told: list[Notification] = []
    seen = anyio.Event()

    def tell(message: Notification) -> None:
        told.append(message)
        seen.set()

    copies = Copies(PlaceNames("/ssh:far:"), str(tmp_path), lambda: relay, tell)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(copies.run)
        copies.set_visited(["/home/far/a.txt"])
        while not seen.is_set():
            copies.note_changes(["/home/far/a.txt"])
            await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    (message,) = told
    assert isinstance(message, PlaceFile)
    assert message.time == 5


async def test_a_file_that_goes_is_told(home: Path) -> None:
    """Also one that comes back with the bytes that it had."""
    told: list[Notification] = []
    news = anyio.Event()
    project = home / "work"
    project.mkdir()
    file = project / "a.txt"
    file.write_text("a\n")

    def tell(message: Notification) -> None:
        nonlocal news
        told.append(message)
        news.set()
        news = anyio.Event()

    async def next_told() -> PlaceFile:
        while not told:
            await news.wait()
        message = told.pop(0)
        assert isinstance(message, PlaceFile)
        return message

    def changed(paths: Sequence[str]) -> None:
        copies.note_changes(paths)

    async with linked(home, changed=changed) as (link, _, _server), anyio.create_task_group() as tasks:
        copies = Copies(PlaceNames("/docker:box:"), str(home.parent / "spool"), lambda: link, tell)
        tasks.start_soon(copies.run)
        copies.set_visited([str(file), str(project / "never.txt")])
        assert (await next_told()).copy is not None
        file.unlink()
        assert (await next_told()) == PlaceFile(f"/docker:box:{file}", None, 0)
        file.write_text("a\n")
        assert (await next_told()).copy is not None
        file.unlink()
        assert (await next_told()) == PlaceFile(f"/docker:box:{file}", None, 0)
        tasks.cancel_scope.cancel()
    assert told == []


async def test_a_shared_file_is_read_here(tmp_path: Path) -> None:
    """Nothing is copied, and a link that means another file here is refused."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "a.txt").write_text("text\n")
    (here / "a.bin").write_bytes(b"\0")
    (here / "link").symlink_to("/work/a.txt")
    names = PlaceNames("/docker:box:", (SharedDirectory("/work", str(here)),))
    copies = Copies(names, str(tmp_path / "spool"), lambda: Relay([]), lambda _message: None)
    assert await copies.review_file("/work/a.txt") == (str(here / "a.txt"), None)
    assert [await copies.is_text(path, path) for path in ("/work/a.txt", "/work/a.bin", "/work/new.txt")] == [
        True,
        False,
        True,
    ]
    for real in ("/work/a.txt", "/etc/passwd"):
        with pytest.raises(TargetError, match="another file than here"):
            await copies.is_text("/work/link", real)
    assert not (tmp_path / "spool").exists()


async def test_the_file_of_a_proposal_is_read_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    relay = Relay([1, 2])
    copies = Copies(PlaceNames("/ssh:far:"), str(tmp_path), lambda: relay, lambda _message: None)
    await copies.inspect("/p/a.py")
    assert await copies.is_text("/p/a.py", "/p/a.py")
    copy = Path((await copies.review_file("/p/a.py"))[0])
    assert sorted(relay.asked) == ["look", "read", "watch"]
    assert copy.read_text() == "1 left\n"
    copies.note_changes(["/p/a.py"])
    await copies.review_file("/p/a.py")
    assert copy.read_text() == "0 left\n"


async def test_only_names_that_can_be_read_are_completed(tmp_path: Path) -> None:
    told: list[Notification] = []
    copies = Copies(PlaceNames("/ssh:far:"), str(tmp_path), lambda: Relay([]), told.append)
    await copies.list_files(ListPlaceFiles("/ssh:far:", "/p"))
    assert told == [PlaceFiles("/ssh:far:", "/p", ("a b.py", "sub/ü"))]
