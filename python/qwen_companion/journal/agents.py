# SPDX-License-Identifier: GPL-3.0-or-later
"""The agents that may write below a root: CLIs with hooks, CLIs without them, and agents of a daemon."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import anyio

from qwen_companion.base.processes import age_of
from qwen_companion.base.threads import in_thread
from qwen_companion.domain import ChatWork, KnownSession, Peer
from qwen_companion.journal.activity import Activity, Probe, last_input
from qwen_companion.journal.root import Root, Running, SilentCli, Worker, key_of, now_ms, row_of
from qwen_companion.journal.store import CHAT, DISK, UNREVIEWED, TurnRow

ARRIVAL_S = 10.0
"""Seconds before a CLI was first seen during which it may have started; later changes may then be its own."""

MissedReview = Callable[[KnownSession, str, bool], bool]
"""Returns, in a thread, whether a CLI has changed a file, which may be open in Emacs, without a wanted review.

Of the session, only the process of the CLI needs to be known.
"""


class Agents:
    """The known agents.  Call its methods on the event loop, unless they say otherwise."""

    def __init__(self, missed_review: MissedReview) -> None:
        """Begin with no agent."""
        self._missed_review = missed_review
        self.activity = Activity()
        self.pids: dict[str, int] = {}
        """The processes of CLIs that call hooks, by session; a negative number for a remote one."""
        self.entered: dict[str, str] = {}
        """The worktrees that agents have entered by a tool, by session: their hooks still name the project."""
        self.connected: dict[str, str | None] = {}
        """The connected CLIs, by session."""
        self.silent: dict[str, SilentCli] = {}
        self.arriving: dict[str, SilentCli] = {}
        """CLIs that may call hooks and have not called one yet."""
        self.chats: dict[str, ChatWork] = {}

    def workers(self, root: Root) -> list[Worker]:
        """Return the agents that may be writing below `root`."""
        found: list[Worker] = []
        for call in root.calls.values():
            if call.is_command:
                pid = self.pids.get(call.session, -1)
                probe = None if pid < 0 else Probe(pid, below=True)
                running = root.running.get(call.session)
                worker = Worker(call.session, call.tool, running, probe, call.agent, runs_tool=True, begin=call.begin)
                found.append(worker)
        # CLIs with hooks write mostly by tools that these report.
        agents = self.agents_of_chats(root) if self.chats else {}
        probe = Probe(next(iter(agents.values())).peer.pid) if len(agents) == 1 else None
        for session, running in root.running.items():
            work = self.chats.get(session)
            begin = running.begin
            if work is not None and running.row.source == CHAT:
                # Events may arrive later than the writes that they report.
                found += [Worker(session, tool, running, runs_tool=True, begin=begin) for _, tool in work.tools] or [
                    Worker(session, DISK, running, probe, is_lost=work.is_lost, begin=begin)
                ]
            elif running.row.pid is not None and session not in self.silent:
                found.append(Worker(session, DISK, running, Probe(running.row.pid), begin=begin))
            elif self.pids.get(session, 0) < 0:
                # The processes of remote CLIs are not examined.
                found.append(Worker(session, DISK, running, begin=begin))
        for running in root.left:
            session, begin = running.row.session, running.begin
            found += [Worker(session, DISK, running, Probe(pid), begin=begin) for pid in running.left]
        return [*found, *(_worker(root, key, cli, key in agents) for key, cli in self.silent_in(root))]

    def at_work(self, root: Root) -> list[Worker]:
        """Return the agents that may be writing below `root` without a hook that reports the file."""
        return [worker for worker in self.workers(root) if worker.writes_by_itself]

    def probes_in(self, root: Root) -> list[Probe]:
        """Return the probes of the agents below `root`."""
        return [worker.probe for worker in self.workers(root) if worker.probe is not None]

    def silent_in(self, root: Root) -> list[tuple[str, SilentCli]]:
        """Return the CLIs that work in `root` and call no hooks, with their keys.

        Include a CLI that may still call some, if a prompt to it was not reported by a hook but became known elsewhere.
        """
        told = ((key, cli) for key, cli in self.arriving.items() if cli.conversation)
        return [(key, cli) for key, cli in (*self.silent.items(), *told) if cli.root is root]

    def agents_of_chats(self, root: Root) -> dict[str, SilentCli]:
        """Return those CLIs of `silent_in` that may be agents of a daemon, by their keys."""
        # These have no terminal, and run on this machine.
        return {
            key: cli for key, cli in self.silent_in(root) if cli.peer.place is None and last_input(cli.peer.pid) is None
        }

    def is_watched(self, root: Root) -> bool:
        """Return whether any agent may be working below `root`."""
        return bool(root.running or root.calls or root.left or self.silent_in(root))

    # --- CLIs that call no hooks ---

    async def check_quiet(self, root: Root) -> bool:
        """End the turns of CLIs that have been inactive for a while; return whether any has been active."""
        busy = False
        for key, cli in self.silent_in(root):
            done = (await in_thread(root.record.site.work_of, cli.peer)).written
            if done is None or done != cli.done:
                cli.done = done
                busy = True
            elif key in root.running:
                running = root.running.pop(key)
                root.do(self._finish, root, running.number or 0, cli)
        return busy or any(key not in self.silent for key in root.running)

    def _finish(self, root: Root, number: int, cli: SilentCli) -> None:
        # It may have written more by now.
        root.finish(number, cli.written)

    def recorded_tool(self, root: Root, cli: KnownSession, path: bytes, tool: str) -> str:
        """Return `UNREVIEWED` if a change of `path` by `cli` should have been reviewed, else `tool`.

        For a change that no hook announced; for `cli` see `MissedReview`.  Blocks on disk I/O.
        """
        name = root.record.names.name_out(path)
        return UNREVIEWED if self._missed_review(cli, name, name in root.record.visited) else tool

    def turn_of_silent(self, root: Root, cli: SilentCli) -> int:
        """Return the turn of `cli` for a change: the last, or a new one if it has received a prompt since."""
        row = cli.turn
        if row is not None and not root.record.store.has(row.id, row):
            # The turn recorded nothing, was pruned, or is in a record that is lost.
            cli.prompt, row = cli.prompt or row.text, None
        typed = root.record.site.work_of(cli.peer).typed
        prompt, cli.prompt = cli.prompt, ""
        if row is None or prompt or (typed is not None and typed > cli.written):
            if row is not None:
                root.finish(row.id, cli.written)
            session = cli.conversation or key_of(cli.peer)
            new = row_of(session, cli.session.label, DISK, prompt, now_ms(), cli.peer)
            row = root.record.store.begin(new)
        elif key_of(cli.peer) not in root.running:
            root.record.store.end(row.id, None)
        anyio.from_thread.run_sync(self._goes_on, root, cli, row)
        return row.id

    def _goes_on(self, root: Root, cli: SilentCli, row: TurnRow) -> None:
        """Note that the turn `row` of `cli` continues; end it if the CLI has ended meanwhile."""
        key = key_of(cli.peer)
        cli.turn, cli.written = row, now_ms()
        if key not in self.silent:
            root.do(self._finish, root, row.id, cli)
        elif key not in root.running or root.running[key].row is not row:
            running = root.running[key] = Running(row, number=row.id)
            running.ready.set()


def _worker(root: Root, key: str, cli: SilentCli, serves_chats: bool) -> Worker:
    probe = None if cli.peer.place else Probe(cli.peer.pid)
    running = root.running.get(key)
    return Worker(key, DISK, running, probe, cli=cli, serves_chats=serves_chats, begin=cli.since)


def clis_of(sessions: Sequence[KnownSession], known: Mapping[str, SilentCli]) -> list[SilentCli]:
    """Return the CLIs of `sessions` with a known process; reuse the entries of `known`."""
    return [
        known.get(key_of(session.peer)) or SilentCli(session, session.peer, _since(session.peer), time.time())
        for session in sessions
        if session.peer is not None
    ]


def _since(peer: Peer) -> float:
    """Return the time since which changes may be by a CLI that was not seen before."""
    age = age_of(peer.started)
    return time.time() - (age if age is not None and age <= ARRIVAL_S else 0)
