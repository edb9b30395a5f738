# SPDX-License-Identifier: GPL-3.0-or-later
"""A root at a place is recorded by the real relay there, as one of this machine is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from anyio import to_thread

from journal_project import turn_row
from qwen_companion.domain import PlacedFile
from qwen_companion.journal.answers import Scope
from qwen_companion.journal.record import NOBODY, Cause, Record
from qwen_companion.journal.versions import Loaded
from qwen_companion.remote.far import FarSite
from qwen_companion.remote.link import Link
from relays import linked

pytestmark = pytest.mark.anyio

PLACE = "/docker:box:"
T = TypeVar("T")


class Reach:
    """The way there by a link, with the number of requests."""

    def __init__(self, link: Link, home: Path) -> None:
        self.link = link
        self.home = str(home)
        self.asked: list[str] = []

    async def ask(self, name: str, **values: Any) -> tuple[dict[str, Any], bytes]:
        self.asked.append(name)
        return await self.link.ask(name, **values)

    async def read(self, path: str, limit: int) -> bytes:
        return await self.link.read(path, limit)


class Recorded:
    """The project `root` there, with its record here."""

    def __init__(self, home: Path, link: Link) -> None:
        self.root = home / "a projét"
        self.root.mkdir(exist_ok=True)
        self.reach = Reach(link, home)
        root = PlacedFile(PLACE, str(self.root))
        self.site = FarSite(root, self.reach)
        state = {"HOME": str(home.parent), "XDG_STATE_HOME": str(home.parent / "state")}
        self.record = Record(root.name, state, self.site)

    def name(self, path: str) -> bytes:
        return os.fsencode(f"{PLACE}{self.root}/{path}")

    async def call(self, work: Callable[[], T]) -> T:
        return await to_thread.run_sync(work)

    async def scan(self, turn: int | None) -> None:
        await self.call(lambda: self.record.scan(NOBODY if turn is None else Cause(turn, "run_shell_command")))

    async def turn(self, work: Callable[[], object]) -> dict[str, tuple[bytes | None, bytes | None]]:
        """Do `work` in a turn; return what it has changed, with the bytes before and after."""
        await self.scan(None)
        number = self.record.store.begin(turn_row()).id
        work()
        await self.scan(number)
        return await self.changed(number)

    async def changed(self, number: int) -> dict[str, tuple[bytes | None, bytes | None]]:
        def texts() -> dict[str, tuple[bytes | None, bytes | None]]:
            scope = Scope("turn", number)
            files = self.record.answers.files(scope)
            nets = self.record.answers.texts([(file.path, file.previous) for file in files], scope)
            return {
                file.path.removeprefix(f"{PLACE}{self.root}/"): (_data(net.before), _data(net.after))
                for file, net in zip(files, nets, strict=True)
                if not isinstance(net, Exception)
            }

        return await self.call(texts)


def _data(side: Loaded | None) -> bytes | None:
    return None if side is None else side.data


@asynccontextmanager
async def recorded(home: Path, git: bool = True) -> AsyncGenerator[Recorded]:
    changed: list[Recorded] = []

    def tell(paths: Sequence[str]) -> None:
        for path in paths:
            assert path == str(changed[0].root)
            changed[0].site.stir()

    async with linked(home, changed=tell) as (link, _, _server):
        there = Recorded(home, link)
        changed.append(there)
        if git:
            run_git(there.root, "init", "--quiet")
        try:
            yield there
        finally:
            there.record.close()


def run_git(root: Path, *words: str) -> None:
    options = ["-c", "user.name=U", "-c", "user.email=u@example.org"]
    subprocess.run(["git", *options, *words], cwd=root, check=True, env={**os.environ, "HOME": str(root.parent)})


@pytest.mark.parametrize("git", [True, False])
async def test_what_a_turn_changes_is_recorded_with_its_bytes(home: Path, git: bool) -> None:
    async with recorded(home, git) as there:
        (there.root / "old.txt").write_bytes(b"one\r\n")
        (there.root / "sub").mkdir()
        (there.root / "sub/gone.bin").write_bytes(b"\0\xff")
        (there.root / ".env").write_text("KEY=1\n")
        (there.root / "kept.txt").write_text("kept\n")
        if git:
            (there.root / "built.txt").write_text("1\n")
            (there.root / ".gitignore").write_text("built.txt\n")
            run_git(there.root, "add", "kept.txt", "old.txt")
            run_git(there.root, "commit", "--quiet", "-m", "x")

        def work() -> None:
            (there.root / "old.txt").write_bytes(b"two\r\n")
            (there.root / "sub/gone.bin").unlink()
            (there.root / ".env").write_text("KEY=2\n")
            (there.root / "new").mkdir()
            (there.root / "new/file.txt").write_text("new\n")
            if git:
                (there.root / "built.txt").write_text("2\n")

        assert await there.turn(work) == {
            "old.txt": (b"one\r\n", b"two\r\n"),
            "sub/gone.bin": (b"\0\xff", None),
            "new/file.txt": (None, b"new\n"),
        }
        there.reach.asked.clear()
        assert await there.turn(lambda: (there.root / "kept.txt").write_text("changed\n")) == {
            "kept.txt": (b"kept\n", b"changed\n")
        }
        # One round trip for each of the two looks.
        assert there.reach.asked == ["tree", "tree"]
