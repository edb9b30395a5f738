# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose a change is: the agents that may have made it, as far as hooks, the disk and processes tell."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence

import anyio

from qwen_companion.domain import KnownSession, Peer
from qwen_companion.journal.activity import may_have_acted
from qwen_companion.journal.agents import Agents
from qwen_companion.journal.record import NOBODY, Cause
from qwen_companion.journal.root import News, Root, SilentCli, Worker, key_of
from qwen_companion.journal.roots import Roots
from qwen_companion.journal.store import DISK

_TWO_AT_ONCE = "another agent was at work at the same time"


class Attribution:
    """Looks at files, and gives what has changed to agents.

    The methods are for the event loop; `scan` is for a job of the root.
    """

    def __init__(self, roots: Roots, agents: Agents) -> None:
        """Give changes in `roots` to `agents`."""
        self._roots = roots
        self._agents = agents

    def scan(
        self,
        root: Root,
        suspects: Callable[[], Sequence[Worker]],
        newcomers: Sequence[SilentCli] = (),
        skip: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        """Look at all files but those to `skip`, and give what has changed to those who may have done it.

        These are `suspects` where the system tells nothing better of a file; without any, those of `newcomers` that
        came before it was changed.
        """

        def choose(paths: Sequence[bytes]) -> Sequence[Cause]:
            heard, others = anyio.from_thread.run_sync(self._writers, root, paths, suspects)
            return [
                self._cause(
                    root,
                    path,
                    _in_their_turns(root, path, writers)
                    or _in_their_turns(root, path, others)
                    or self._arrived_before(root, path, newcomers),
                )
                for path, writers in zip(paths, heard, strict=True)
            ]

        root.looked = looked = time.monotonic()
        trees = self._roots.worktrees_in(root)
        root.record.scan(choose, lambda path: root.is_reserved(path) or path.startswith(trees) or skip(path))
        root.failed = False
        problem = root.record.rules.problem
        self._roots.refuse(root.record.root, problem and f"every file is excluded, also for CLIs: {problem}")
        anyio.from_thread.run_sync(root.witness.forget, looked)

    def _writers(
        self, root: Root, paths: Sequence[bytes], suspects: Callable[[], Sequence[Worker]]
    ) -> tuple[Sequence[Sequence[Worker]], Sequence[Worker]]:
        """Return for each of `paths` who was at work when it changed, as far as is known, and the suspects for all."""
        # Only now: somebody may have begun to write while the files were looked at.
        self.look_at_processes(root)
        others = suspects()
        return [root.witness.take(path) for path in paths], others

    def _arrived_before(self, root: Root, path: bytes, newcomers: Sequence[SilentCli]) -> Sequence[Worker]:
        changed = root.record.site.changed_at(path)
        return [Worker(key_of(cli.peer), DISK, None, cli=cli) for cli in newcomers if changed >= cli.since]

    def _cause(self, root: Root, path: bytes, writers: Sequence[Worker]) -> Cause:
        """Return the cause of a change of `path` that one of `writers` has made; note it with all of them."""
        known = [each for each in writers if each.cli is not None or each.number is not None]
        if not known:
            return NOBODY
        first, *others = known
        number = self._agents.turn_of_silent(root, first.cli) if first.cli is not None else first.number
        others = [each for each in others if each.session != first.session]
        numbers = {each for each in (number, *(other.number for other in others)) if each is not None}
        if others:
            for each in numbers:
                root.record.store.add_note(each, _TWO_AT_ONCE)
        root.changed.update(numbers)
        cli = None if first.cli is None else first.cli.session
        if cli is None and first.is_resumed and first.running and (pid := first.running.row.pid) is not None:
            cli = KnownSession("", "", "", "", Peer(pid, "", None, None, ()))
        tool = first.tool if cli is None else self._agents.recorded_tool(root, cli, path, first.tool)
        return Cause(number, tool, first.agent)

    # --- Who may have made a change ---

    def suspects(self, root: Root, news: News) -> Sequence[Worker]:
        """Return the workers that may have caused `news`, the likeliest first."""
        # A command that has ended may have made what the look after it has not come to yet.
        ended = [
            Worker(session, call.tool, running, None, call.agent, runs_tool=True)
            for session, (running, call) in root.commands.items()
        ]
        workers = [*ended, *self._agents.workers(root)]
        if any(worker.runs_tool for worker in workers):
            workers = [worker for worker in workers if worker.writes_by_itself]
        workers = [worker for worker in workers if worker.session not in root.coming]
        now = self._agents.activity.look(worker.probe for worker in workers)
        # One may have done its last work between the change and the news of it; one that goes on is likelier.
        acted = [worker for worker in workers if may_have_acted(worker.probe, news.before, now)]
        likely = [
            worker
            for worker in acted
            if may_have_acted(worker.probe, news.told, now) and not (worker.is_lost and worker.probe is None)
        ]
        # Nobody tells of the tools of a lost one.
        doubtful = [worker for worker in acted if worker.is_lost and worker not in likely]
        active = [*likely, *doubtful] if likely else acted or [worker for worker in workers if worker.runs_tool]
        return [worker for worker in active if worker.writes_by_itself] or active

    def suspects_before(self, root: Root, newcomers: Collection[str]) -> Sequence[Worker]:
        """Return the workers that may have made the changes not yet looked at, before new sessions may write."""
        going = [
            (session, running)
            for session, running in root.running.items()
            if session not in newcomers and running.number is not None
        ]
        if len(going) == 1:
            return [Worker(going[0][0], DISK, going[0][1])]
        suspects = self.suspects(root, self.news_since_look(root))
        return [suspect for suspect in suspects if suspect.session not in newcomers]

    def look_at_processes(self, root: Root) -> None:
        """Take the news of the disk, and who may have caused them, before it is another one that may."""
        if root.watch is None:
            return
        at_work = self._agents.at_work(root)
        if len({worker.session for worker in at_work}) > 1:
            self._agents.activity.look(worker.probe for worker in at_work)
        if not root.watch.read():
            root.witness.hear((), at_work)
        root.witness.conclude(at_work)

    def disk_changed(self, root: Root, paths: Collection[bytes] | None) -> None:
        """Note that `paths` below `root` have changed, or with None, files that are not known."""
        if paths is None:
            root.witness.forget()
        root.witness.hear(paths or (), self._agents.at_work(root))
        if root.news is None:
            before = self._agents.activity.before(time.monotonic())
            root.news = News(0.0, before, self._agents.activity.look(self._agents.probes_in(root)))
        root.news.time = time.monotonic()
        root.stirred.set()

    def news_since_look(self, root: Root) -> News:
        """Return news of all that has changed below `root` since the last look."""
        done = self._agents.activity.before(root.looked)
        return News(time.monotonic(), done, done)


def _in_their_turns(root: Root, path: bytes, writers: Sequence[Worker]) -> Sequence[Worker]:
    """Return those of `writers` whose turns had not ended when `path` changed."""
    # When a file was deleted, and when one at a place changed, is not known as exactly.
    if all(writer.end == math.inf for writer in writers) or root.record.site.stamp(path) is None:
        return writers
    changed = root.record.site.changed_at(path)
    if changed > time.time():
        # The clock of the disk is another one.
        return writers
    # The next turn of a chat takes over what has changed since its prompt.
    following = {session: running.prompted for session, running in root.running.copy().items()}
    return [each for each in writers if changed <= each.end or changed >= following.get(each.session, math.inf)]
