# SPDX-License-Identifier: GPL-3.0-or-later
"""The recorded roots: they are opened when agents work there, and their jobs are run."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from qwen_companion.base.errors import CompanionError
from qwen_companion.base.file_names import FileNameError, file_name
from qwen_companion.base.git import Git
from qwen_companion.base.tasks import contained_call
from qwen_companion.base.threads import in_thread
from qwen_companion.domain import HIDE as _HIDE
from qwen_companion.domain import Settings, Snapshot
from qwen_companion.journal.activity import Activity
from qwen_companion.journal.answers import RecordError
from qwen_companion.journal.baselines import FAILURES, reason_of
from qwen_companion.journal.commit_notes import CommitNotes
from qwen_companion.journal.database import DamagedStoreError, StoreError
from qwen_companion.journal.places import is_recorded
from qwen_companion.journal.record import Record
from qwen_companion.journal.record_directory import NoRecordError
from qwen_companion.journal.root import Root
from qwen_companion.journal.sites import Site, ThisMachine
from qwen_companion.journal.store import MAX_BYTES
from qwen_companion.journal.worktrees import is_ignored, note_recorded, recorded_below, root_around
from qwen_companion.privacy.options import Options

CLOSE_S = 2.0
"""Seconds that the end of the process waits for work on one record."""


class Roots:
    """The recorded roots.  Call its methods on the event loop."""

    def __init__(
        self,
        environ: Mapping[str, str],
        activity: Activity,
        begin: Callable[[Root], Awaitable[None]],
        warn: Callable[[str], None],
        tell_problems: Callable[[Mapping[str, str], Mapping[str, int]], None],
        site_of: Callable[[str], Site | None],
    ) -> None:
        """Call `begin` with each root that is opened, before its jobs are done; `warn` shows the user a message.

        `tell_problems` gets all roots that cannot be recorded now, with the reason, and those whose turns need too many
        bytes, with their number.  The user is warned of each once.  `site_of` returns the site of a remote root, None
        for a local one.
        """
        self.environ = environ
        # The location of files is needed on the way to other answers, which must be fast.
        self.git = Git(environ, limit_s=1.0)
        self._activity = activity
        self._begin = begin
        self.warn = warn
        self._tell_problems = tell_problems
        self._site_of = site_of
        self.settings = Settings()
        self._hidden: tuple[str, ...] = ()
        self._visited: frozenset[str] = frozenset()
        self.names: tuple[str, ...] = ()
        self._names_around: dict[str, str | None] = {}
        """The results of `name_of` for the current roots."""
        self.by_name: dict[str, Root] = {}
        """The open roots."""
        self._trees: set[str] = set()
        """The roots that are worktrees below another root."""
        self.refused: dict[str, str] = {}
        self._crowded: dict[str, int] = {}
        self._warned: set[tuple[str, str]] = set()
        self.dirty = anyio.Event()
        """Set when jobs may have changed something that Emacs shows."""
        self.tasks: TaskGroup | None = None
        """Runs the jobs; None before and after the journal runs."""
        self._opening = anyio.Lock()

    # --- The user's settings ---

    def set_settings(self, settings: Settings) -> None:
        """Set the user's `settings`."""
        self.settings = settings
        if not settings.journal:
            for name in list(self.refused):
                self.refuse(name, None)
        self._update_rules()

    def set_snapshot(self, snapshot: Snapshot) -> None:
        """Store from `snapshot` which files are open, and which are hidden by the user."""
        hidden = tuple(sorted(file.path for file in snapshot.files if file.exposure == _HIDE))
        if hidden != self._hidden:
            self._hidden = hidden
            self._update_rules()
        self._visited = frozenset(file.path for file in snapshot.files)
        for root in self.by_name.values():
            root.record.visited = self._visited

    def _update_rules(self) -> None:
        for root in self.by_name.values():
            root.do(self._set_options, root)

    def _set_options(self, root: Root) -> None:
        record = root.record
        record.visited = self._visited
        record.rules.set_options(Options(self.settings.patterns, self.settings.auth_sources), self._hidden)
        root.write_notes = partial(self._write_notes, record) if self.settings.commit_notes else None

    async def set_roots(self, names: Sequence[str]) -> None:
        """Set the open workspace roots; open those with a record, so that their turns can be reported."""
        self.names = tuple(names)
        self._names_around.clear()
        if self.settings.journal:
            for name in names:
                await self.open(name, only_known=True)
                for tree in await in_thread(recorded_below, name, self.environ):
                    await self.open(tree, only_known=True)

    def committed(self) -> None:
        """Write notes on new commits: the option was on when the user committed, even if it is off now."""
        for root in self.by_name.values():
            root.do(self._write_notes, root.record)

    def _write_notes(self, record: Record) -> None:
        if isinstance(record.site, ThisMachine):
            CommitNotes(record.site.true, self.environ).write(record)

    # --- Opening and closing ---

    async def open(self, name: str, only_known: bool = False) -> Root | None:
        """Return the work on the root `name`; begin it if necessary.  None if it cannot be recorded."""
        if name in self.by_name and not self._opening.locked():
            return self.by_name[name]
        async with self._opening:
            if name in self.by_name or self.tasks is None:
                return self.by_name.get(name)
            try:
                record = await in_thread(self._open, name, only_known)
            except NoRecordError as error:
                self.refuse(name, str(error))
                return None
            if record is None:
                return None
            if record.news is not None:
                self.warn(record.news)
            root = self.by_name[name] = Root(record, self._activity, self.warn)
            if (around := self.name_of(os.path.dirname(name))) is not None and root_around(around, name) == name:
                self._trees.add(name)
                await in_thread(note_recorded, around, name, self.environ)
            await in_thread(self._set_options, root)
            await self._begin(root)
            self.tasks.start_soon(self._work, root)
            self.dirty.set()
            return root

    async def close(self) -> None:
        """Close all roots."""
        for root in self.by_name.values():
            root.jobs.close()
            root.jobs_left.close()
            # A job may be using it, may be waiting for this event loop, or may never end.
            with anyio.move_on_after(CLOSE_S, shield=True):
                await in_thread(root.record.close)

    # --- Jobs ---

    async def _work(self, root: Root) -> None:
        """Do the jobs of `root`."""
        with suppress(anyio.ClosedResourceError):
            async for job in root.jobs_left:
                # Let the hook that has added this job be answered first: the job's thread would slow it down.
                await checkpoint()
                failed = root.failed
                await in_thread(contained_call, self._attempt, root, job)
                if root.failed and not failed:
                    root.stirred.set()
                self.dirty.set()

    def _attempt(self, root: Root, job: Callable[[], object]) -> None:
        try:
            self._do_on_whole_record(root, job)
        except (*FAILURES, CompanionError) as error:
            root.failed = root.failed or isinstance(error, StoreError)
            self.refuse(root.record.root, reason_of(error))

    def _do_on_whole_record(self, root: Root, job: Callable[[], object]) -> None:
        """Do `job`; if the record has been removed or is damaged, begin it anew and tell the user."""
        try:
            if root.record.restore():
                news = f"What was recorded of changes in {root.record.root} has been removed; it begins anew"
                root.begun_anew(news)
            job()
            # This may be the first to read the damaged part.
            self._note_size(root.record)
        except DamagedStoreError as error:
            root.record.replace_damaged(str(error))
            root.begun_anew(root.record.news or "")
            job()

    def _note_size(self, record: Record) -> None:
        """Tell the user when the turns of `record` begin to need too many bytes, or no longer do."""
        excess = record.store.excess()
        if excess != self._crowded.get(record.root):
            if excess is not None and record.root not in self._crowded:
                which = f"The turns of {record.root} need {excess >> 20} MiB, more than {MAX_BYTES >> 20}"
                self.warn(f"{which}; M-x qwen-companion-journal-prune forgets the oldest")
            others = {name: size for name, size in self._crowded.items() if name != record.root}
            self._crowded = others if excess is None else {**others, record.root: excess}
            self._tell_problems(self.refused, self._crowded)

    def refuse(self, name: str, reason: str | None) -> None:
        """Tell the user why nothing is recorded of the root `name`, or with None that it is recorded again."""
        if self.refused.get(name) == reason:
            return
        refused = {key: its for key, its in self.refused.items() if key != name}
        self.refused = refused if reason is None else {**refused, name: reason}
        self._tell_problems(self.refused, self._crowded)
        if reason is not None and (name, reason) not in self._warned:
            self._warned.add((name, reason))
            self.warn(f"Changes in {name} are not recorded: {reason}")

    # --- Finding ---

    def record_of(self, name: str) -> Record:
        """Return the record of the root `name`, a name from Emacs.

        :raises RecordError: if that fails
        """
        root = self.by_name.get(name)
        if root is None:
            raise RecordError(f"Nothing is recorded of {name}")
        return root.record

    def record_around(self, path: str) -> Record | None:
        """Return the record of the innermost root that contains `path`."""
        found = [root.record for root in self.by_name.values() if root.record.names.name_in(path) is not None]
        return max(found, key=lambda record: len(record.root), default=None)

    def name_of(self, directory: str) -> str | None:
        """Return Emacs's name of the root that contains `directory`, or of the worktree in that root."""
        if directory not in self._names_around:
            try:
                file_name(directory)
            except FileNameError:
                return None
            true = os.path.realpath(directory) + "/"
            found = [name for name in self.names if true.startswith(os.path.realpath(name).rstrip("/") + "/")]
            innermost = max(found, key=len, default=None)
            self._names_around[directory] = innermost and root_around(innermost, directory)
        return self._names_around[directory]

    def root_around(self, name: str, path: str) -> str:
        """Return the root `name`, the worktree below it with `path`, or another root whose record includes `path`."""
        around = root_around(name, path)
        if around == name:
            # For example a worktree beside a project in a part of its repository, or the main tree of a worktree.
            other = self.name_of(os.path.dirname(path))
            return name if other is None or other.startswith(f"{name.rstrip('/')}/") else other
        return around if around in self._trees or is_ignored(name, around, self.git) else name

    def worktrees_in(self, root: Root) -> tuple[bytes, ...]:
        """Return the worktrees below `root` that have their own records, each with a slash at its end."""
        names = [root.record.names.name_in(name) for name in list(self._trees)]
        return tuple(name + b"/" for name in names if name is not None)

    def _open(self, name: str, only_known: bool) -> Record | None:
        """Open the record of the root `name`; with `only_known`, return None if nothing is recorded yet."""
        if only_known and not is_recorded([name], self.environ):
            return None
        return Record(name, self.environ, self._site_of(name))
