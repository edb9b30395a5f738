# SPDX-License-Identifier: GPL-3.0-or-later
"""Transcripts are read when they have grown."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import anyio
import pytest

from qwen_companion.conversations.recording import Recording
from qwen_companion.conversations.recording_watch import RecordingWatch
from qwen_companion.journal.tree_watch import TreeWatch
from support import TIMEOUT_S

pytestmark = pytest.mark.anyio


async def test_a_transcript_is_read_after_it_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is followed while the directories of others are being watched; else its next line might be missed."""
    cover = TreeWatch.cover_nearest
    watched: list[str] = []
    is_begun, go_on = anyio.Event(), anyio.Event()

    class Transcript(Recording):
        was_watched = anyio.Event()

        def begin_anew(self) -> None:
            """See `Recording`."""

        def settle(self) -> None:
            """See `Recording`."""
            assert str(tmp_path) in watched
            self.was_watched.set()

    async def cover_later(watch: TreeWatch, directories: Collection[str]) -> bool:
        is_begun.set()
        await go_on.wait()
        complete = await cover(watch, directories)
        watched.extend(directories)
        return complete

    monkeypatch.setattr(TreeWatch, "cover_nearest", cover_later)
    transcript, recordings = Transcript(str(tmp_path / "transcript")), RecordingWatch()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recordings.run)
        await is_begun.wait()
        recordings.follow(transcript)
        go_on.set()
        with anyio.fail_after(TIMEOUT_S):
            await transcript.was_watched.wait()
        tasks.cancel_scope.cancel()
