# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from daemon_emacs import connected_emacs
from fake_daemon import FakeDaemon
from qwen_companion.daemon.memberships import Memberships
from qwen_companion.daemon.messages import TextChange, Turns
from qwen_companion.wire.spool import Spool


def test_what_is_kept_is_found_again_and_private(tmp_path: Path) -> None:
    file = tmp_path / "clients"
    before = Memberships(str(file))
    before.joined("s", "c1")
    before.joined("s", "c1")
    before.joined("t", "c2")
    before.left_once("s")
    before.forget("t")
    after = Memberships(str(file))
    assert (after.client_id("s"), after.count("s")) == ("c1", 1)
    assert (after.client_id("t"), after.count("t")) == (None, 0)
    assert after.is_mine("c2")
    assert not after.is_mine("c3")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("text", ["", "[]", '{"current": {"s": 1}}'])
def test_a_file_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "clients"
    file.write_text(text)
    kept = Memberships(str(file))
    assert kept.client_id("s") is None
    kept.joined("s", "c")
    assert Memberships(str(file)).client_id("s") == "c"


def test_one_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    kept = Memberships(str(tmp_path / "gone" / "clients"))
    kept.joined("s", "c")
    assert kept.client_id("s") == "c"


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_full(*_arguments: object, **_options: object) -> object:
        return open("/dev/full", "wb", buffering=0)

    kept = Memberships(str(tmp_path / "clients"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", open_full)
        kept.joined("s", "c")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.anyio
async def test_the_process_that_takes_the_place_of_another_is_the_same_client(spool: Spool, daemon: FakeDaemon) -> None:
    async with connected_emacs(spool) as killed:
        session, theirs, _ = chatting = await killed.chat(daemon)
        await killed.turn(chatting, "answer")
        async with connected_emacs(spool) as emacs:
            await emacs.connect(daemon)
            await emacs.load(session)
            assert len(theirs.members) == 1
            changes = [change for turns in emacs.all(Turns) for change in turns.changes]
            assert [item.by for item in changes if isinstance(item, TextChange) and item.voice == "user"] == ["me"]
            await emacs.call("daemon-close", session=session)
            assert not theirs.members
