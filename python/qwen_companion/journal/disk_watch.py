# SPDX-License-Identifier: GPL-3.0-or-later
"""Scan the files of a root when the disk changes, while agents may be working there."""

from __future__ import annotations

import math
import time

import anyio
import psutil

from qwen_companion.base.threads import in_thread
from qwen_companion.journal.activity import SAMPLE_S
from qwen_companion.journal.agents import Agents
from qwen_companion.journal.attribution import Attribution
from qwen_companion.journal.baselines import FAILURES
from qwen_companion.journal.root import Root, Worker
from qwen_companion.journal.roots import Roots
from qwen_companion.journal.sites import Watch
from qwen_companion.journal.store import DISK

SETTLE_S = 0.3
"""Seconds after a change on the disk until the scan: changes seldom come alone."""

QUIET_S = 5.0
"""Seconds without activity after which the turn of a CLI without hooks counts as ended."""

LOOK_SHARE = 0.1
"""Largest part of the time that may be spent on repeated scans."""

MAX_PAUSE_S = 2.0
"""Longest time that a change waits for that."""

TOOLS_SAMPLE_S = 0.2
"""Seconds between two samples of the processes of tools of several agents."""


class DiskWatch:
    """The watch of the disk.  Call its methods on the event loop."""

    def __init__(self, roots: Roots, agents: Agents, attribution: Attribution) -> None:
        """Watch for `agents` in `roots`."""
        self._roots = roots
        self._agents = agents
        self._attribution = attribution

    async def run(self, root: Root) -> None:
        """Scan the files when the disk changes, while agents may be working below `root`."""
        while True:
            await root.stirred.wait()
            root.stirred = anyio.Event()
            if self._agents.is_watched(root):
                watch = root.watch = root.record.site.watch(lambda paths: self._attribution.disk_changed(root, paths))
                try:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._sample, root)
                        await self._watch_with(root, watch)
                        tasks.cancel_scope.cancel()
                finally:
                    root.watch = None
                    root.witness.forget()
                    watch.close()

    async def _sample(self, root: Root) -> None:
        """Sample the processes that may be writing, below `root` and elsewhere, until cancelled."""
        while True:
            roots = self._roots.by_name.values()
            self._agents.activity.sample(probe for each in roots for probe in self._agents.probes_in(each))
            self._forget_ended(root)
            at_work = self._agents.at_work(root)
            several = len({worker.session for worker in at_work}) > 1 and any(worker.runs_tool for worker in at_work)
            if several:
                self._attribution.look_at_processes(root)
            await anyio.sleep(TOOLS_SAMPLE_S if several else SAMPLE_S)

    def _forget_ended(self, root: Root) -> None:
        """Forget the processes left behind by turns that have ended; scan for the changes of the last ones."""
        for running in root.left:
            running.left = [pid for pid in running.left if psutil.pid_exists(pid)]
        if gone := [running for running in root.left if not running.left]:
            root.left = [running for running in root.left if running.left]
            for running in gone:
                root.remember(Worker(running.row.session, DISK, running, begin=running.begin, end=time.time()))
            self._attribution.look(root)
            root.stirred.set()

    async def _watch_with(self, root: Root, watch: Watch) -> None:
        complete = await self._cover(root, watch)
        while self._agents.is_watched(root):
            with anyio.move_on_after(QUIET_S if self._looks_by_itself(root, complete) else math.inf) as waited:
                await root.stirred.wait()
            root.stirred = anyio.Event()
            if waited.cancelled_caught and ((await self._agents.check_quiet(root) and not complete) or root.failed):
                root.news = time.time()
            if root.news is None:
                continue
            await anyio.sleep(SETTLE_S)
            start = time.monotonic()
            news, root.news = root.news, None
            if root.looked < news:
                self._attribution.look(root)
                await root.done_so_far()
            complete = await self._cover(root, watch)
            await anyio.sleep(min(MAX_PAUSE_S, (time.monotonic() - start) / LOOK_SHARE))

    async def _cover(self, root: Root, watch: Watch) -> bool:
        """Watch the directories of `root`; return whether every change will be reported."""
        try:
            directories = await in_thread(root.record.directories)
        except FAILURES:
            return False
        coverage = await watch.cover(directories)
        if coverage.grown and root.news is None:
            root.news = time.time()
            root.stirred.set()
        return coverage.complete

    def _looks_by_itself(self, root: Root, complete: bool) -> bool:
        """Return whether to scan periodically without events of the disk."""
        return root.failed or not complete or any(key in self._agents.silent for key in root.running)
