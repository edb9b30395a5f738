# SPDX-License-Identifier: GPL-3.0-or-later
"""Read transcripts as they grow, if the system reports changes."""

from __future__ import annotations

import os
from collections.abc import Collection

import anyio

from qwen_companion.base.tasks import contained
from qwen_companion.base.threads import in_thread
from qwen_companion.conversations.recording import Recording
from qwen_companion.journal.tree_watch import TreeWatch


class RecordingWatch:
    """Follows transcripts.  Call its methods on the event loop."""

    def __init__(self) -> None:
        """Begin with no transcript."""
        self._followed: set[Recording] = set()
        self._grown: set[Recording] = set()
        """The transcripts to read."""
        self._stirred = anyio.Event()

    async def run(self) -> None:
        """Read followed transcripts until cancelled."""
        watch = TreeWatch(self._changed)
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    self._stirred = anyio.Event()
                    watched = set(self._followed)
                    await watch.cover_nearest({os.path.dirname(each.path) for each in watched})
                    # Recordings added meanwhile are watched first and read in the next round, to miss no change.
                    grown = self._grown & watched
                    self._grown -= grown
                    for each in grown & self._followed:
                        tasks.start_soon(contained, self.read, each)
                    await self._stirred.wait()
        finally:
            watch.close()

    def follow(self, recording: Recording) -> None:
        """Read `recording` now, and whenever it has grown."""
        self._followed.add(recording)
        self._grown.add(recording)
        self._stirred.set()

    def forget(self, recording: Recording) -> None:
        """Stop following `recording`."""
        self._followed.discard(recording)
        self._grown.discard(recording)

    def _changed(self, paths: Collection[bytes] | None) -> None:
        # A directory above it may have been created.
        self._grown |= {
            each
            for each in self._followed
            if paths is None or any(f"{each.path}/".startswith(os.fsdecode(path) + "/") for path in paths)
        }
        if self._grown:
            self._stirred.set()

    async def read(self, recording: Recording) -> None:
        """Read `recording` now."""
        async with recording.reading:
            await in_thread(recording.read)
            recording.settle()
