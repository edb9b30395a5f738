# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may be writing below a root: CLIs with hooks, without them, and agents of a daemon."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import anyio

from qwen_companion.domain import ChatWork, KnownSession, Peer
from qwen_companion.journal.activity import Activity, Probe, last_input
from qwen_companion.journal.root import Root, Running, SilentCli, Worker, key_of, now_ms, row_of
from qwen_companion.journal.store import CHAT, DISK, UNREVIEWED, TurnRow
from qwen_companion.processes import age_of
from qwen_companion.threads import in_thread

ARRIVAL_S = 10.0
"""How long before a CLI is seen first it may have started for its changes since then to be its own."""

MissedReview = Callable[[KnownSession, str, bool], bool]
"""Returns, in a thread, whether a CLI has changed a file, which may be open in Emacs, without a wanted review.

The session need have no more than the process of the CLI.
"""


class Agents:
    """All methods are for the event loop, if they do not say otherwise."""

    def __init__(self, missed_review: MissedReview) -> None:
        """Begin with no agent."""
        self._missed_review = missed_review
        self.activity = Activity()
        self.pids: dict[str, int] = {}
        """The processes of CLIs that call hooks, by their sessions; negative for one at another place."""
        self.entered: dict[str, str] = {}
        """The worktrees that agents have entered by a tool, by their sessions: hooks go on naming the project."""
        self.connected: dict[str, str | None] = {}
        """The connected CLIs, by their sessions."""
        self.silent: dict[str, SilentCli] = {}
        self.arriving: dict[str, SilentCli] = {}
        """CLIs that may call hooks and have called none yet."""
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
        # CLIs with hooks write mostly by the tools that these report.
        agents = self.agents_of_chats(root) if self.chats else {}
        probe = Probe(next(iter(agents.values())).peer.pid) if len(agents) == 1 else None
        for session, running in root.running.items():
            work = self.chats.get(session)
            begin = running.begin
            if work is not None and running.row.source == CHAT:
                # Events may come later than the writes they report.
                found += [Worker(session, tool, running, runs_tool=True, begin=begin) for _, tool in work.tools] or [
                    Worker(session, DISK, running, probe, is_lost=work.is_lost, begin=begin)
                ]
            elif running.row.pid is not None and session not in self.silent:
                found.append(Worker(session, DISK, running, Probe(running.row.pid), begin=begin))
            elif self.pids.get(session, 0) < 0:
                # At another place nobody looks at processes.
                found.append(Worker(session, DISK, running, begin=begin))
        for running in root.left:
            session, begin = running.row.session, running.begin
            found += [Worker(session, DISK, running, Probe(pid), begin=begin) for pid in running.left]
        return [*found, *(_worker(root, key, cli, key in agents) for key, cli in self.silent_in(root))]

    def at_work(self, root: Root) -> list[Worker]:
        """Return those that may be writing below `root` without a hook that tells of the file."""
        return [worker for worker in self.workers(root) if worker.writes_by_itself]

    def probes_in(self, root: Root) -> list[Probe]:
        """Return what to look at of the agents below `root`."""
        return [worker.probe for worker in self.workers(root) if worker.probe is not None]

    def silent_in(self, root: Root) -> list[tuple[str, SilentCli]]:
        """Return the CLIs that work in `root` and call no hooks, with their keys.

        Also of a prompt to one that may still call some no hook has told, once it is known from elsewhere.
        """
        told = ((key, cli) for key, cli in self.arriving.items() if cli.conversation)
        return [(key, cli) for key, cli in (*self.silent.items(), *told) if cli.root is root]

    def agents_of_chats(self, root: Root) -> dict[str, SilentCli]:
        """Return those of the CLIs of `silent_in` that may be agents of a daemon, by their keys."""
        # These have no terminal, and are of this machine.
        return {
            key: cli for key, cli in self.silent_in(root) if cli.peer.place is None and last_input(cli.peer.pid) is None
        }

    def is_watched(self, root: Root) -> bool:
        """Return whether anybody may be at work below `root`."""
        return bool(root.running or root.calls or root.left or self.silent_in(root))

    # --- CLIs that call no hooks ---

    async def check_quiet(self, root: Root) -> bool:
        """End the turns of CLIs that have done nothing for a while; return whether anybody has done something."""
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
        # By now it may have written more.
        root.finish(number, cli.written)

    def recorded_tool(self, root: Root, cli: KnownSession, path: bytes, tool: str) -> str:
        """Return `UNREVIEWED` if a change of `path` by `cli` should have been reviewed, else `tool`.

        For a change that no hook announced; for `cli` see `MissedReview`.  Blocks on disk I/O.
        """
        name = root.record.names.name_out(path) or ""
        return UNREVIEWED if self._missed_review(cli, name, name in root.record.visited) else tool

    def turn_of_silent(self, root: Root, cli: SilentCli) -> int:
        """Return the turn of `cli` for a change: the last, or a new one if it has got a prompt since."""
        row = cli.turn
        if row is not None and root.record.store.turn(row.id) is None:
            # Nothing of it was recorded, or that was forgotten.
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
        """Note that the turn `row` of `cli` goes on; end it if the CLI has gone meanwhile."""
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
    """Return the CLIs of `sessions` with a process; those of `known` as they are."""
    return [
        known.get(key_of(session.peer)) or SilentCli(session, session.peer, _since(session.peer), time.time())
        for session in sessions
        if session.peer is not None
    ]


def _since(peer: Peer) -> float:
    """Return the time since which changes may be those of a CLI that is seen for the first time."""
    age = age_of(peer.started)
    return time.time() - (age if age is not None and age <= ARRIVAL_S else 0)
