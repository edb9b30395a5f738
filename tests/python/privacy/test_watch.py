# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes of the disk, told by the real system."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from qwen_companion.base.inotify import Inotify
from qwen_companion.privacy import watch as module
from qwen_companion.privacy.names import names
from qwen_companion.privacy.watch import Dependencies, DiskWatch
from support import TIMEOUT_S

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="there is no inotify")]


class Watched:
    """A directory with links in it, and a watch."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.calls: asyncio.Queue[None] = asyncio.Queue()
        self.watch = DiskWatch(lambda: self.calls.put_nowait(None))
        for name in ("real/deep", "other/deep"):
            (top / name).mkdir(parents=True)
        (top / "link").symlink_to("real")
        (top / "real/deep/rules").write_text("a")

    def cover(self, *files: str, lasting: bool = True) -> bool:
        """Watch `files`, both their names and their content."""
        paths = [str(self.top / file) for file in files]
        entries: dict[str, str | None] = {}
        for path in paths:
            names(path, entries)
        return self.watch.cover(Dependencies(frozenset(entries), frozenset(paths), lasting))

    async def call(self) -> None:
        await asyncio.wait_for(self.calls.get(), TIMEOUT_S)


@pytest.fixture
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    monkeypatch.setattr(module, "PAUSE_S", 0)
    watched = Watched(tmp_path)
    yield watched
    watched.watch.close()


def replace(top: Path) -> None:
    (top / "new").write_text("b")
    (top / "new").rename(top / "real/deep/rules")


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda top: (top / "real/deep/rules").write_text("b"),
    "mode": lambda top: (top / "real/deep/rules").chmod(0),
    "replaced": replace,
    "deleted": lambda top: (top / "real/deep/rules").unlink(),
    "directory renamed": lambda top: (top / "real/deep").rename(top / "real/shallow"),
    "directory above renamed": lambda top: (top / "real").rename(top / "unreal"),
    "link gone": lambda top: (top / "link").unlink(),
    "link replaced": lambda top: ((top / "l").symlink_to("other"), (top / "l").rename(top / "link")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_a_change_is_told(watched: Watched, change: Callable[[Path], object]) -> None:
    assert watched.cover("link/deep/rules")
    change(watched.top)
    await watched.call()


async def test_what_is_not_there_yet_is_told_when_it_comes(watched: Watched) -> None:
    assert watched.cover("to/come/rules")
    (watched.top / "to").mkdir()
    await watched.call()
    # Each answer is made from what there is by then.
    assert watched.cover("to/come/rules")
    (watched.top / "to/come").mkdir()
    await watched.call()
    assert watched.cover("to/come/rules")
    (watched.top / "to/come/rules").write_text("")
    await watched.call()
    assert watched.cover("to/come/rules")
    (watched.top / "to/come/rules").write_text("b")
    await watched.call()


async def test_neighbours_and_what_was_watched_before_are_not_told(watched: Watched) -> None:
    (watched.top / "other/deep/rules").write_text("")
    assert watched.cover("real/deep/rules")
    assert watched.cover("other/deep/rules")
    (watched.top / "real/deep/rules").write_text("b")
    (watched.top / "other/deep/neighbour").write_text("b")
    (watched.top / "other/deep/neighbour").unlink()
    (watched.top / "other/deep/rules").unlink()
    await watched.call()
    # The file itself and its entry, but nothing before.
    assert watched.calls.qsize() == 0


async def test_more_changes_than_the_system_keeps_count_as_one_that_matters(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    monkeypatch.setattr("qwen_companion.base.inotify.READ_BYTES", 1024 * kept)
    assert watched.cover("real/deep/rules")
    for number in range(kept // 2 + 1):
        os.close(os.open(watched.top / "real/deep" / str(number), os.O_CREAT))
        os.unlink(watched.top / "real/deep" / str(number))
    await watched.call()


async def test_says_what_it_cannot_watch(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not on a disk of this system.
    assert not watched.watch.cover(Dependencies(frozenset(["/proc/self/status"]), frozenset(), True))
    # It changes by itself.
    assert not watched.cover("real/deep/rules", lasting=False)
    assert watched.cover("real/deep/rules")
    watched.watch.close()
    assert not watched.cover("real/deep/rules")
    # No descriptor is left.
    monkeypatch.setattr("qwen_companion.base.inotify.open_inotify", lambda: None)
    other = Watched(watched.top / "real")
    assert not other.cover("real/deep/rules")


async def test_a_watch_closed_while_a_thread_waits_for_the_disk_keeps_its_descriptor_until_then(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, answers = threading.Event(), threading.Event()
    descriptors: list[int] = []
    add = Inotify.add

    def slow(inotify: Inotify, path: str, mask: int) -> int | None:
        descriptors.append(inotify.descriptor)
        waits.set()
        assert answers.wait(TIMEOUT_S)
        return add(inotify, path, mask)

    monkeypatch.setattr(Inotify, "add", slow)
    covering = asyncio.create_task(asyncio.to_thread(watched.cover, "real/deep/rules"))
    await asyncio.to_thread(waits.wait, TIMEOUT_S)
    watched.watch.close()
    os.fstat(descriptors[0])
    answers.set()
    await asyncio.wait_for(covering, TIMEOUT_S)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[0])
