# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal: receives the events of agents from hooks, has their changes recorded, and informs Emacs.

A turn begins with a prompt.  Then all files are scanned while the model thinks; the first tool that writes waits for
that, for a second at most.  The change of a tool that edits one file is recorded by comparing the file before and after
it.  The changes of a command are recorded by a scan after it, and any other change at the end of the turn.  Files that
Emacs reports as written are the user's.  The record contains the files on the disk and does not depend on their
description by hooks.

While agents may be working, the disk is watched too, and a change without a hook is attributed to the agent that is
active just then.  If there are several, their processes may decide; otherwise it is in a turn of its own.  This is the
only way for a CLI that calls no hooks: its turn begins with its first write after the user has typed in its terminal.
The changes of a CLI that may still call hooks wait until it calls one, counts as one without hooks, or has ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import anyio
from anyio.abc import TaskStatus

from qwen_companion.base.threads import in_thread
from qwen_companion.domain import ChatWork, KnownSession, Peer, TurnChange, Usage, WaitingProposal
from qwen_companion.doors.listeners import Fitting
from qwen_companion.files.versions import TooLargeError
from qwen_companion.journal.agents import Agents, MissedReview, clis_of
from qwen_companion.journal.answers import RecordError, Summary
from qwen_companion.journal.attribution import Attribution
from qwen_companion.journal.cli_rewinds import CliRewinds
from qwen_companion.journal.disk_watch import DiskWatch
from qwen_companion.journal.hook_reports import LATE, HookReports
from qwen_companion.journal.model_news import Excluded, ModelNews
from qwen_companion.journal.root import Call, Root, SilentCli, key_of, now_ms, row_of
from qwen_companion.journal.roots import Roots
from qwen_companion.journal.sites import Site
from qwen_companion.journal.store import CHAT, HOOKS
from qwen_companion.journal.telling import Telling
from qwen_companion.journal.turns import Turns
from qwen_companion.journal.worktrees import home_of

GATHER_S = 0.2
"""Shortest interval between reports to Emacs, in seconds."""


class Journal:
    """The journal, see the top of this file.  Call its methods on the event loop."""

    def __init__(
        self,
        environ: Mapping[str, str],
        tell: Callable[[Sequence[TurnChange], Sequence[str], bool], None],
        warn: Callable[[str], None],
        tell_problems: Callable[[Mapping[str, str], Mapping[str, int]], None],
        site_of: Callable[[str], Site | None],
        excluded: Excluded = lambda _peer, _paths: (),
        waiting: Callable[[], Iterable[WaitingProposal]] = tuple,
        tell_taken: Callable[[Summary], None] = lambda _summary: None,
        missed_review: MissedReview = lambda _session, _path, _is_open: False,
    ) -> None:
        """For the arguments see `Telling`, `Roots`, `ModelNews`, `HookReports`, `CliRewinds` and `Agents`."""
        self._agents = Agents(missed_review)
        self.roots = Roots(environ, self._agents.activity, self._begin_root, warn, tell_problems, site_of)
        self._attribution = Attribution(self.roots, self._agents)
        self.turns = Turns(self.roots, self._agents, self._attribution)
        self._news = ModelNews(self.roots, excluded)
        self.hooks = HookReports(self.roots, self._agents, self._attribution, self.turns, self._news, waiting)
        self.telling = Telling(self.roots, self._agents, tell)
        self.rewinds = CliRewinds(self.roots, self.telling, tell_taken)
        self._disk = DiskWatch(self.roots, self._agents, self._attribution)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Record and report until cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                self.roots.tasks = tasks
                task_status.started()
                while True:
                    await self.roots.dirty.wait()
                    self.roots.dirty = anyio.Event()
                    await self.telling.tell_news()
                    await anyio.sleep(GATHER_S)
        finally:
            self.roots.tasks = None
            await self.roots.close()

    async def _begin_root(self, root: Root) -> None:
        """Continue the turns of `root`, which has been opened, and watch its files."""
        await in_thread(self.turns.resume, root)
        for prompt in await in_thread(root.record.store.rewinding):
            where = f'The rewind to before "{prompt}" in {root.record.root}'
            self.roots.warn(f"{where} has not ended: M-x qwen-companion-rewind there goes on")
        if self.roots.tasks is not None:
            self.roots.tasks.start_soon(self._disk.run, root)
            for pid, started in {(running.row.pid, running.row.started) for running in root.running.values()}:
                if pid is not None:
                    self.roots.tasks.start_soon(self.turns.end_with_process, root, pid, started or "")

    def ended(self, peer: Peer) -> None:
        """Note that the process of a CLI has ended, and its turns with it."""
        for session in [session for session, pid in self._agents.pids.items() if pid == peer.pid]:
            del self._agents.pids[session]
            self._agents.entered.pop(session, None)
            self._agents.connected.pop(session, None)
            for root in self.roots.by_name.values():
                self.turns.end(root, session, now_ms())

    async def set_silent(self, sessions: Sequence[KnownSession], arriving: Sequence[KnownSession] = ()) -> None:
        """Set the `sessions` whose CLIs call no hooks, and those that may still call some.

        The process and the directory of each are known.
        """
        known, were_silent = {**self._agents.silent, **self._agents.arriving}, self._agents.silent
        self._agents.silent = {key_of(cli.peer): cli for cli in clis_of(sessions, known)}
        self._agents.arriving = {key_of(cli.peer): cli for cli in clis_of(arriving, known)}
        for key in known.keys() - self._agents.silent.keys() - self._agents.arriving.keys():
            cli = known[key]
            for conversation in (key, cli.conversation):
                self._agents.connected.pop(conversation, None)
            looks = cli.root is not None and key in were_silent
            if cli.root is not None and looks:
                self.turns.look_for_gone(cli.root, cli)
            for root in self.roots.by_name.values():
                self.turns.end(root, key, now_ms(), looks=not looks)
        new = [cli for key, cli in self._agents.silent.items() if key not in were_silent]
        new_arriving = [cli for key, cli in self._agents.arriving.items() if key not in known]
        for cli in (*self._agents.silent.values(), *self._agents.arriving.values()):
            self._agents.connected[key_of(cli.peer)] = cli.session.id
            name = self.roots.name_of(cli.peer.directory or "")
            if cli.root is None and name is not None:
                cli.root = await self.roots.open(name)
        for root in self.roots.by_name.values():
            self._welcome(
                root, [cli for cli in new if cli.root is root], [cli for cli in new_arriving if cli.root is root]
            )

    async def prompted(
        self, session: KnownSession, conversation: str, prompt: str, since: int, has_ended: bool
    ) -> None:
        """Note that the CLI of `session` has begun with `prompt`, although no hook reported it; its process is known.

        The turn began at `since`, in ms since the epoch, and gets its changes since then.  `has_ended`: hooks have
        reported the end of the turn.
        """
        peer = session.peer
        if peer is None:
            return
        name = self.roots.name_of(peer.directory or "")
        root = None if name is None else await self.roots.open(name)
        cli = self._agents.silent.get(key_of(peer)) or self._agents.arriving.get(key_of(peer))
        if cli is not None:
            cli.root = cli.root or root
            if cli.root is not None:
                self.turns.begin_silent(cli.root, cli, conversation, prompt, since)
                self._agents.connected[conversation] = cli.session.id
        elif root is not None:
            row = row_of(conversation, session.label, HOOKS, prompt, now_ms(), peer)
            running = root.running.get(conversation)
            if has_ended or (running is not None and running.row.start >= since):
                # Hooks have reported that turn before.
                root.do(lambda: root.changed.update(root.record.store.name(row, since)))
            else:
                self.turns.begin(root, row)

    def _welcome(self, root: Root, silent: Sequence[SilentCli], arriving: Sequence[SilentCli]) -> None:
        """Scan the state before CLIs came; changes since then by those without hooks are theirs."""
        if not silent and not arriving:
            return

        def waits(path: bytes) -> bool:
            # Without an earlier scan, the previous state of a file is unknown.
            return root.record.has_baseline and any(root.record.site.changed_at(path) >= cli.since for cli in arriving)

        self._attribution.look(root, skip=waits)
        root.stirred.set()

    async def take_chat(self, work: ChatWork, time: int) -> None:
        """Handle the activity of an agent of `qwen serve`; ignore it if hooks report it better.

        It was reported at `time`, in ms since the epoch.
        """
        name = self.roots.name_of(work.directory)
        if name is None or not self.roots.settings.journal or work.session in self._agents.pids:
            return
        root = await self.roots.open(name)
        if root is None:
            return
        for path in work.reads:
            await self._news.saw(name, work.session, os.path.join(work.directory, path), time)
        before = self._agents.chats.get(work.session)
        self._agents.chats[work.session] = work
        root.stirred.set()
        root.count(work.session, work.used)
        if before is not None and before.turn is not None:
            for _, tool in set(before.tools) - set(work.tools):
                self.turns.look_after(root, Call(work.session, tool, "", None), time)
            if before.turn != work.turn:
                self.turns.end(root, work.session, time)
        if work.turn is not None and (before is None or before.turn != work.turn):
            row = row_of(work.session, work.client, CHAT, work.prompt, time, None)
            self.turns.begin(root, row, row.start if work.start is None else work.start)
        elif before is None:
            self._attribution.look(root)
        running = root.running.get(work.session)
        if work.tools and running is not None and not running.ready.is_set():
            # The daemon does not wait.
            root.do(lambda: None if running.number is None else root.record.store.add_note(running.number, LATE))

    def spent(self, session: str, start: int, usage: Sequence[Usage]) -> None:
        """Record the tokens that the turn of `session` begun at `start`, in ms since the epoch, has used so far."""
        for root in self.roots.by_name.values():
            root.do(root.spent, session, start, usage)

    async def news_for_chat(self, session: str, directory: str, attached: Sequence[str]) -> Fitting | None:
        """Return the text about changed files for a prompt to `session` of a daemon; None for none.

        For the other arguments see `ModelNews.of`.
        """
        name = self.roots.name_of(directory)
        if name is None or not self.roots.settings.journal or session in self._agents.pids:
            return None
        root = await self.roots.open(name, only_known=True)
        return None if root is None else await self._news.of([root], session, None, directory, now_ms(), attached)

    # --- The user's actions ---

    async def wrote(
        self, paths: Sequence[str], undo_of: str | None, label: str | None, bring_back: bool = False
    ) -> None:
        """Record that Emacs has written `paths`: the user's own work, or an undo of a part of the turn `undo_of`.

        With `bring_back`, an undone part of that turn was restored.
        """
        for root in list(self.roots.by_name.values()):
            names = [path for each in paths if (path := root.record.names.name_in(each)) is not None]
            undone = None if undo_of is None else root.record.names.number(undo_of)
            if undone is not None:
                # The next call of Emacs may write them again.
                await root.done(root.undo, undone, label or "Undo", names, bring_back)
            elif undo_of is None:
                for path in names:
                    root.reserved[path] += 1
                    with suppress(TooLargeError, OSError):
                        loaded = await in_thread(root.record.look, path)
                        root.do(root.claim, path, loaded)
                    root.release(path)

    async def prepare_merge(self, tree: str) -> str:
        """Scan the root into which changes in the worktree `tree` are merged, and return it.

        :raises RecordError, WorktreeError: if that fails
        """
        name = await in_thread(home_of, tree, self.roots.names, self.roots.git)
        root = await self.roots.open(name)
        if root is None:
            raise RecordError(f"Nothing can be recorded of {name}: {self.roots.refused.get(name)}")
        await self.look(root)
        if not root.record.has_baseline:
            raise RecordError(f"Nothing can be recorded of {name}: {self.roots.refused.get(name)}")
        return name

    async def look(self, root: Root) -> None:
        """Record the changes below `root` until now.

        :raises RecordError: if that fails
        """
        self._attribution.look(root)
        await root.done_so_far()
        if (reason := self.roots.refused.get(root.record.root)) is not None:
            raise RecordError(reason)

    async def merged(self, paths: Sequence[str], turn: str | None, label: str) -> None:
        """Record that Emacs has merged parts of `turn`, one in a worktree, into `paths`; with None, of no turn."""
        numbers = [(root.record, root.record.names.number(turn or "")) for root in self.roots.by_name.values()]
        row = next((record.store.turn(number) for record, number in numbers if number is not None), None)
        around = [(path, self.roots.record_around(path)) for path in paths]
        for root in list(self.roots.by_name.values()):
            its = [root.record.names.name_in(path) for path, record in around if record is root.record]
            if names := [name for name in its if name is not None]:
                await root.done(root.merge, row, label, names)

    def rewound(self, conversation: str, since: int, copy: str | None, begins: bool) -> None:
        """Note that the turns of `conversation` from `since` on, in ms since the epoch, are only part of its `copy`.

        With `begins`, the rewind is only about to start.
        """
        for root in self.roots.by_name.values():
            if begins:
                root.do(root.rewinding, conversation, since)
            else:
                root.do(root.rewound, conversation, since, copy)

    def mark(self, turn: str, path: str | None, hunks: Sequence[str], seen: bool) -> None:
        """Note that the user has `seen` something of `turn`, or withdraw that."""
        for root in self.roots.by_name.values():
            if (number := root.record.names.number(turn)) is not None:
                root.do(root.mark, number, path, hunks, seen)

    async def prune(self, name: str, turns: Sequence[str]) -> list[tuple[str, int]]:
        """Forget those of `turns` of the root `name` that have ended; return the sizes of the others, see `Store`.

        :raises RecordError: if that fails
        """
        names = self.roots.record_of(name).names
        numbers = [number for turn in turns if (number := names.number(turn)) is not None]
        sizes = await self.roots.by_name[name].done(self.roots.by_name[name].prune, numbers)
        if sizes is None:
            raise RecordError(f"The turns of {name} could not be forgotten")
        return [(names.identifier(number), size) for number, size in sizes]
