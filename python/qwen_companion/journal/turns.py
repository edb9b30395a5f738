# SPDX-License-Identifier: GPL-3.0-or-later
"""The turns of agents: where they begin and end, and waiting until no agent is at work."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import anyio

from qwen_companion.journal.agents import Agents
from qwen_companion.journal.attribution import Attribution
from qwen_companion.journal.baselines import FAILURES
from qwen_companion.journal.root import Call, Root, Running, SilentCli, Worker, key_of, now_ms
from qwen_companion.journal.roots import Roots
from qwen_companion.journal.store import DISK, HOOKS, TurnRow
from qwen_companion.processes import ended as process_ended

WAIT_S = 60.0
"""How long Emacs can wait for an agent to be done with a file."""

_POLL_S = 2.0
"""How often a process is looked after where the system does not tell its end."""


class Turns:
    """All methods are for the event loop."""

    def __init__(self, roots: Roots, agents: Agents, attribution: Attribution) -> None:
        """Record the turns of `agents` in `roots`."""
        self._roots = roots
        self._agents = agents
        self._attribution = attribution
        self._idle = anyio.Event()

    def begin(self, root: Root, row: TurnRow, since: int | None = None) -> Running:
        """Begin the turn `row` with a look at all files.

        A chat may be told of late: what has changed `since` its prompt, in ms since the epoch, is its.
        """
        self.end(root, row.session, row.start)
        # Else the user may have written to the same files since the last look.
        followed = bool(root.running) or not root.record.has_baseline
        running = root.running[row.session] = Running(row, prompted=math.inf if since is None else since / 1000)
        root.stirred.set()

        def begin() -> None:
            # A first look leaves nothing out: it would be taken for what was committed.
            skips = followed and root.record.has_baseline
            changed_at = root.record.site.changed_at
            try:
                before = partial(self._attribution.suspects_before, root, {row.session})
                self._attribution.scan(root, before, skip=lambda path: skips and changed_at(path) >= running.since)
                running.number = root.record.store.begin(row).id
                if since is not None:
                    self._take_over(root, running.number, row, since)
            finally:
                with suppress(RuntimeError):
                    anyio.from_thread.run_sync(running.ready.set)

        root.do(begin)
        return running

    def _take_over(self, root: Root, number: int, row: TurnRow, since: int) -> None:
        """Give to the turn `number` of a chat what was taken for work of its process, or of the turn before it."""
        turns = root.record.store.turns()
        earlier = [turn.id for turn in turns if (turn.session, turn.source) == (row.session, row.source)][-2:-1]
        earlier += anyio.from_thread.run_sync(self._forget_agents, root)
        for each in earlier:
            self._hand_over(root, each, since, lambda: number)

    def _hand_over(self, root: Root, earlier: int, since: int, turn: Callable[[], int]) -> None:
        """Give what was taken for work of `earlier` and changed `since` to the result of `turn`, if there is any."""
        if writes := root.record.written_since(earlier, since / 1000):
            number = turn()
            root.record.store.hand_over(writes, earlier, number)
            root.changed |= {number, earlier}

    def _forget_agents(self, root: Root) -> list[int]:
        """End the turns of processes that are agents of chats, and return their numbers."""
        numbers: list[int] = []
        for key, cli in self._agents.agents_of_chats(root).items():
            if cli.turn is not None:
                numbers.append(cli.turn.id)
                cli.turn = None
                self.end(root, key, now_ms(), looks=False)
        return numbers

    def begin_silent(self, root: Root, cli: SilentCli, conversation: str, prompt: str, since: int) -> None:
        """Note that `cli` has begun with `prompt`: its next change is of that, and what it has changed `since` is."""
        self.look_for(root, Worker(key_of(cli.peer), DISK, None, cli=cli))

        def begin() -> None:
            cli.conversation, cli.prompt = conversation, prompt
            if cli.turn is not None:
                self._hand_over(root, cli.turn.id, since, lambda: self._agents.turn_of_silent(root, cli))

        root.do(begin)

    def end(self, root: Root, session: str, time: int, looks: bool = True) -> None:
        """End the turn of `session` at `time`, in ms since the epoch; with `looks`, look at the files first."""
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
        running.until = (time + 1) / 1000
        # A look that has begun may find changes of it.
        root.ending.append(ending := Worker(session, DISK, running))

        def end() -> None:
            if running.number is not None:
                if looks and not root.commands_of_others(session):
                    self._attribution.scan(root, lambda: [ending])
                root.finish(running.number, time)

        root.do(end)
        root.do(lambda: root.ending.remove(ending))

    def look_for(self, root: Root, worker: Worker) -> None:
        """Look at all files after the end of `worker`, or its tool: what has changed is its, as far as is known."""

        def suspects() -> Sequence[Worker]:
            others = self._attribution.suspects(root, self._attribution.news_since_look(root))
            at_once = [other for other in others if other.session != worker.session and other.writes_by_itself]
            return [worker, *at_once]

        def scan() -> None:
            if worker.cli is not None or worker.number is not None:
                self._attribution.scan(root, suspects)

        root.do(scan)

    def look_for_gone(self, root: Root, cli: SilentCli) -> None:
        """Look at all files after the end of `cli`: what has changed just before is its, as far as is known."""
        # Also where a look that has begun finds it.
        root.ending.append(worker := Worker(key_of(cli.peer), DISK, root.running.get(key_of(cli.peer)), cli=cli))
        self.look_for(root, worker)
        root.do(lambda: root.ending.remove(worker))

    def look_after(self, root: Root, call: Call) -> None:
        """Look at all files after the end of `call`, a tool of a running turn that may have written any of them."""
        running = root.running.get(call.session)
        if running is None:
            return
        root.commands[call.session] = command = running, call
        self.look_for(root, Worker(call.session, call.tool, running, None, call.agent))

        def forget() -> None:
            if root.commands.get(call.session) is command:
                del root.commands[call.session]

        root.do(forget)

    def resume(self, root: Root) -> None:
        """Go on with turns that another process of this Emacs has recorded."""
        now = now_ms()
        with suppress(*FAILURES):
            root.forget_old()
            for row in root.record.resume():
                going = Worker(row.session, DISK, Running(row, number=row.id), is_resumed=True)
                root.do(self._attribution.scan, root, lambda going=going: [going])
                if row.source == HOOKS:
                    running = root.running[row.session] = Running(row, number=row.id)
                    running.ready.set()
                else:
                    root.do(root.finish, row.id, now)
            root.changed.update(root.record.answers.turns())

    async def end_with_process(self, root: Root, pid: int, started: str) -> None:
        """End the turns of the CLI in the process `pid`, which another process has recorded, with that."""
        await process_ended(pid, started, _POLL_S)
        for running in list(root.running.values()):
            if (running.row.pid, running.row.started or "") == (pid, started):
                self.end(root, running.row.session, now_ms())

    # --- Waiting ---

    def busy(self, paths: Sequence[str]) -> list[tuple[str, str, str]]:
        """Return at which of `paths` an agent is at work: the path, the turn and the tool."""
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
        """Wait until no agent is at work at `paths`, or `WAIT_S`; return what `busy` returns then."""
        with anyio.move_on_after(WAIT_S):
            while self.busy(paths):
                await self._idle.wait()
        return self.busy(paths)

    def now_idle(self) -> None:
        """Wake the waiters for agents to be done."""
        self._idle.set()
        self._idle = anyio.Event()
