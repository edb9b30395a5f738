# SPDX-License-Identifier: GPL-3.0-or-later
"""Attribute changes to agents, by hooks, the times of files and the activity of processes.

The time of a change is that of the file if the system knows it, else that of the event of the disk, else any time since
the last scan.  The order in which reports arrive does not matter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

import anyio

from qwen_companion.domain import KnownSession, Peer
from qwen_companion.files.versions import Loaded, TooLargeError
from qwen_companion.journal.agents import Agents
from qwen_companion.journal.authors import Changed, Scan, authors_of
from qwen_companion.journal.record import NOBODY, Cause
from qwen_companion.journal.root import Root, Worker
from qwen_companion.journal.roots import Roots
from qwen_companion.journal.sites import ThisMachine


class Attribution:
    """Scans the files and attributes the changes to agents.

    Call its methods on the event loop, unless they say otherwise.
    """

    def __init__(self, roots: Roots, agents: Agents) -> None:
        """Attribute changes in `roots` to `agents`."""
        self._roots = roots
        self._agents = agents

    def look(self, root: Root, until: float | None = None, skip: Callable[[bytes], bool] = lambda _: False) -> None:
        """Schedule a scan of all files of `root` except those to `skip`.

        A change of unknown time is attributed to the agents that worked before `until`, in seconds since the epoch,
        None for now.
        """
        root.do(self._scan, root, time.time() if until is None else until, skip)

    def _scan(self, root: Root, asked: float, skip: Callable[[bytes], bool]) -> None:
        """Scan all files, as requested at the time `asked`.  A job of the root."""
        since, root.looked = root.looked, time.time()
        trees = self._roots.worktrees_in(root)

        def choose(paths: Sequence[bytes]) -> Sequence[Cause]:
            return self._causes(root, [self.changed(root, path) for path in paths], since, asked)

        root.record.scan(choose, lambda path: root.is_reserved(path) or path.startswith(trees) or skip(path))
        root.failed = False
        problem = root.record.rules.problem
        self._roots.refuse(root.record.root, problem and f"every file is excluded, also for CLIs: {problem}")
        anyio.from_thread.run_sync(root.witness.forget, root.looked)

    def found_before(self, root: Root, changed: Changed, found: Loaded | TooLargeError | OSError | None) -> None:
        """Record what was `found` in a `changed` file before a tool writes it.  A job of the root."""
        since, asked = min(root.looked, changed.time), time.time()
        root.keep(changed.path, found, lambda _: self._causes(root, [changed], since, asked))

    def changed(self, root: Root, path: bytes) -> Changed:
        """Return when the file `path` was last changed.  Thread-safe."""
        site = root.record.site
        # The time of a deletion, and of a remote change, is less exact.
        is_exact = isinstance(site, ThisMachine) and site.stamp(path) is not None
        return Changed(path, site.changed_at(path), is_exact)

    def revise(self, root: Root, since: float) -> None:
        """Attribute scanned changes made since `since` to agents whose activity was reported later.

        A job of the root.
        """
        found = root.record.found(since)
        changes = [Changed(path, time, is_exact=True) for _, _, path, time in found]
        writers = anyio.from_thread.run_sync(self._authors, root, changes, since, since)
        for (write, turn, _, _), authors in zip(found, writers, strict=True):
            told = [author for author in authors if author.cli is None]
            if told and turn not in [author.number for author in authors]:
                number = self._turn(root, told) or turn
                if number != turn:
                    root.record.store.hand_over([write], turn, number)
                    root.changed |= {turn, number}
        root.withdraw_shared()

    # --- Possible authors ---

    def _causes(self, root: Root, changes: Sequence[Changed], since: float, asked: float) -> Sequence[Cause]:
        """Return the causes of `changes`, which were made between `since` and `asked`."""
        authors = anyio.from_thread.run_sync(self._authors, root, changes, since, asked)
        return [self._cause(root, each.path, its) for each, its in zip(changes, authors, strict=True)]

    def _authors(
        self, root: Root, changes: Sequence[Changed], since: float, asked: float
    ) -> Sequence[Sequence[Worker]]:
        self.look_at_processes(root)
        workers = [*root.past, *self._agents.workers(root)]
        scan = Scan(since, asked, time.time())
        samples = self._agents.activity
        samples.look(each.probe for each in workers)
        return [authors_of(each, root.witness.take(each.path), scan, workers, samples) for each in changes]

    def _cause(self, root: Root, path: bytes, authors: Sequence[Worker]) -> Cause:
        """Return the cause of a change of `path` that one of `authors` has made."""
        if not authors:
            return NOBODY
        first = authors[0]
        cli = None if first.cli is None else first.cli.session
        if cli is None and first.is_resumed and first.running and (pid := first.running.row.pid) is not None:
            cli = KnownSession("", "", "", "", Peer(pid, "", None, None, ()))
        tool = first.tool if cli is None else self._agents.recorded_tool(root, cli, path, first.tool)
        return Cause(self._turn(root, authors), tool, first.agent)

    def _turn(self, root: Root, authors: Sequence[Worker]) -> int | None:
        """Return the turn for a change that one of `authors` has made: that of the first, or one of all sessions."""
        firsts = {author.session: author for author in reversed(authors)}
        numbers = {number for each in firsts.values() if (number := self._number(root, each)) is not None}
        root.changed.update(numbers)
        return root.shared(numbers) if len(numbers) > 1 else next(iter(numbers), None)

    def _number(self, root: Root, worker: Worker) -> int | None:
        """Return the number of the turn of `worker`; begin it if necessary."""
        if worker.cli is not None:
            return self._agents.turn_of_silent(root, worker.cli)
        return None if worker.running is None else root.begin(worker.running)

    # --- Events of the disk ---

    def look_at_processes(self, root: Root) -> None:
        """Read the events of the disk with their possible authors, before another agent may be one."""
        if root.watch is None:
            return
        at_work = self._agents.at_work(root)
        if len({worker.session for worker in at_work}) > 1:
            self._agents.activity.look(worker.probe for worker in at_work)
        if not root.watch.read():
            root.witness.hear((), at_work)
        root.witness.conclude(at_work)

    def disk_changed(self, root: Root, paths: Collection[bytes] | None) -> None:
        """Note that `paths` below `root` have changed; None means unknown files."""
        if paths is None:
            root.witness.forget()
        if root.news is None:
            self._agents.activity.look(self._agents.probes_in(root))
        root.witness.hear(paths or (), self._agents.at_work(root))
        root.news = time.time()
        root.stirred.set()
