# SPDX-License-Identifier: GPL-3.0-or-later
"""The turns of agents: their beginnings and ends, and waiting until no agent is working."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import anyio

from qwen_companion.base.processes import ended as process_ended
from qwen_companion.journal.activity import Probe, started_in
from qwen_companion.journal.agents import Agents
from qwen_companion.journal.attribution import Attribution
from qwen_companion.journal.baselines import FAILURES
from qwen_companion.journal.root import Call, Root, Running, SilentCli, Worker, key_of, now_ms
from qwen_companion.journal.roots import Roots
from qwen_companion.journal.store import DISK, HOOKS, TurnRow

WAIT_S = 60.0
"""Seconds that Emacs can wait for an agent to finish with a file."""

_POLL_S = 2.0
"""Seconds between checks whether a process has ended, if the system does not report that."""


class Turns:
    """The turns of all roots.  Call its methods on the event loop."""

    def __init__(self, roots: Roots, agents: Agents, attribution: Attribution) -> None:
        """Record the turns of `agents` in `roots`."""
        self._roots = roots
        self._agents = agents
        self._attribution = attribution
        self._idle = anyio.Event()

    def begin(self, root: Root, row: TurnRow, since: int | None = None) -> Running:
        """Begin the turn `row` with a scan of all files.

        The turn of a chat may be reported late: it gets the changes `since` its prompt, in ms since the epoch.
        """
        start = row.start if since is None else since
        self.end(root, row.session, row.start)
        # `since` is rounded down.
        running = root.running[row.session] = Running(row, begin=(start + 1) / 1000)
        root.begins(row.session, running.begin)
        root.stirred.set()

        def is_ready() -> None:
            with suppress(RuntimeError):
                anyio.from_thread.run_sync(running.ready.set)

        root.do(root.begin, running)
        if since is not None:
            root.do(lambda: anyio.from_thread.run_sync(self._forget_agents, root))
        self._attribution.look(root, running.begin)
        if since is not None:
            root.do(self._attribution.revise, root, running.begin)
        root.do(is_ready)
        return running

    def _hand_over(self, root: Root, earlier: int, since: int, turn: Callable[[], int]) -> None:
        """Move the writes since `since` from the turn `earlier` to the result of `turn`, if there are any."""
        if writes := root.record.written_since(earlier, since / 1000):
            number = turn()
            root.record.store.hand_over(writes, earlier, number)
            root.changed |= {number, earlier}

    def _forget_agents(self, root: Root) -> None:
        """End the turns of processes that are agents of chats."""
        for key, cli in self._agents.agents_of_chats(root).items():
            if cli.turn is not None:
                cli.turn = None
                self.end(root, key, now_ms(), looks=False)

    def begin_silent(self, root: Root, cli: SilentCli, conversation: str, prompt: str, since: int) -> None:
        """Note that `cli` has begun with `prompt`: that turn gets its next change, and its changes `since`."""
        cli.conversation = conversation
        self._attribution.look(root)

        def begin() -> None:
            cli.prompt = prompt
            if cli.turn is not None:
                self._hand_over(root, cli.turn.id, since, lambda: self._agents.turn_of_silent(root, cli))

        root.do(begin)

    def end(self, root: Root, session: str, time: int, looks: bool = True) -> None:
        """End the turn of `session` at `time`, in ms since the epoch; with `looks`, scan the files first."""
        self._attribution.look_at_processes(root)
        running = root.running.pop(session, None)
        for identifier in [key for key, call in root.calls.items() if call.session == session]:
            call = root.calls.pop(identifier)
            if call.path is not None:
                root.release(call.path)
        self.now_idle()
        root.stirred.set()
        if running is None:
            return
        # `time` is rounded down.
        probe = None if running.row.pid is None else Probe(running.row.pid)
        if running.row.source != DISK:
            root.remember(Worker(session, DISK, running, probe, begin=running.begin, end=(time + 1) / 1000))
        running.end = time
        if running.prompt is not None and (found := started_in(running.prompt)):
            running.left = found
            root.left.append(running)
        if looks:
            self._attribution.look(root, (time + 1) / 1000)
        root.do(root.end, running)

    def look_for_gone(self, root: Root, cli: SilentCli) -> None:
        """Scan all files after the end of `cli`; attribute the changes to it unless something contradicts that."""
        key = key_of(cli.peer)
        root.remember(Worker(key, DISK, root.running.get(key), cli=cli, begin=cli.since, end=time.time()))
        self._attribution.look(root)

    def look_after(self, root: Root, call: Call, end: int) -> None:
        """Scan all files after `call`, a tool of a running turn that may have written any of them.

        It ended at `end`, in ms since the epoch.
        """
        running = root.running.get(call.session)
        if running is not None:
            begin = max(call.begin, running.begin)
            worker = Worker(call.session, call.tool, running, None, call.agent, runs_tool=True, begin=begin)
            root.remember(replace(worker, end=(end + 1) / 1000))
            self._attribution.look(root, (end + 1) / 1000)
            root.do(self._attribution.revise, root, begin)

    def resume(self, root: Root) -> None:
        """Continue turns that another process of this Emacs has recorded."""
        now = now_ms()
        with suppress(*FAILURES):
            root.forget_old()
            for row in root.record.resume():
                running, begin = Running(row, number=row.id, begin=now / 1000), row.start / 1000
                root.remember(Worker(row.session, DISK, running, is_resumed=True, begin=begin, end=now / 1000))
                self._attribution.look(root)
                if row.source == HOOKS:
                    root.running[row.session] = running
                    running.ready.set()
                else:
                    root.do(root.finish, row.id, now)
            root.changed.update(root.record.answers.turns())

    async def end_with_process(self, root: Root, pid: int, started: str) -> None:
        """End the turns of the CLI in the process `pid`, which another process has recorded, when that ends."""
        await process_ended(pid, started, _POLL_S)
        for running in list(root.running.values()):
            if (running.row.pid, running.row.started or "") == (pid, started):
                self.end(root, running.row.session, now_ms())

    # --- Waiting ---

    def busy(self, paths: Sequence[str]) -> list[tuple[str, str, str]]:
        """Return those of `paths` on which an agent is working: the path, the turn and the tool."""
        found: list[tuple[str, str, str]] = []
        for root in self._roots.by_name.values():
            for call in root.calls.values():
                running = root.running.get(call.session)
                turn = "" if running is None or running.number is None else root.record.names.identifier(running.number)
                for path in paths:
                    name = root.record.names.name_in(path)
                    if name is not None and (call.is_command or call.path == name):
                        found.append((path, turn, call.tool))
        return found

    async def wait_until_idle(self, paths: Sequence[str]) -> list[tuple[str, str, str]]:
        """Wait until no agent is working on `paths`, or `WAIT_S`; return the result of `busy` then."""
        with anyio.move_on_after(WAIT_S):
            while self.busy(paths):
                await self._idle.wait()
        return self.busy(paths)

    def now_idle(self) -> None:
        """Wake the waiters for agents to finish."""
        self._idle.set()
        self._idle = anyio.Event()
