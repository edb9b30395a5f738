# SPDX-License-Identifier: GPL-3.0-or-later
"""The registered CLIs, kept current by watching their folder and waiting for the end of each process."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import anyio
from anyio.abc import TaskGroup

from qwen_companion.base.processes import ended
from qwen_companion.base.threads import in_thread
from qwen_companion.conversations.controller import controllers_file, grant_file, read_grant
from qwen_companion.conversations.records import (
    Record,
    editor_of,
    names_in,
    other_editors,
    read_record,
    registry_directory,
)
from qwen_companion.domain import CliState, RegisteredCli
from qwen_companion.journal.tree_watch import TreeWatch

MOST = 2000
"""Most CLIs to report, the newest."""

CONNECTS_S = 3.0
"""Seconds from the start of a CLI until it has certainly connected to its editor."""


class Registry:
    """The registered CLIs.  Call its methods on the event loop."""

    def __init__(
        self,
        environ: Mapping[str, str],
        own_port: int,
        changed: Callable[[Collection[RegisteredCli], Collection[str], str], None],
    ) -> None:
        """Call `changed` with new and changed CLIs, the ids of those gone, and the token's state, see `controller`."""
        self._environ = environ
        self._own_port = own_port
        self._changed = changed
        self._directory = registry_directory(environ)
        self._told: dict[str, RegisteredCli] = {}
        self._controller = ""
        self._started: dict[str, str] = {}
        """The starts of the CLIs' processes, by the CLIs' ids."""
        self._attended: dict[tuple[int, str], anyio.CancelScope] = {}
        """The processes whose end is awaited, by number and start: each needs a descriptor."""
        self._states: dict[str, CliState] = {}
        self._stirred = anyio.Event()
        self.is_told = True
        """Whether the system reports changes; else `refresh` must be called."""

    async def run(self) -> None:
        """Keep the registry current until cancelled."""
        watch = TreeWatch(lambda _paths: self.refresh())
        files = (controllers_file(self._environ), grant_file(self._environ))
        directories = (self._directory, *map(os.path.dirname, files))
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    stirred = self._stirred = anyio.Event()
                    self.is_told = await watch.cover_nearest(directories)
                    await self._read(tasks)
                    await stirred.wait()
        finally:
            watch.close()

    def refresh(self) -> None:
        """Schedule a scan, including the editors that CLIs are connected to, which nothing reports."""
        self._stirred.set()

    def note_state(self, identifier: str, state: CliState | None) -> None:
        """Set the activity of the CLI `identifier` from its record; None if unknown by now."""
        if state is None:
            self._states.pop(identifier, None)
        else:
            self._states[identifier] = state
        if identifier in self._told:
            self._report({**self._told, identifier: replace(self._told[identifier], state=state)}, self._controller)

    async def record(self, identifier: str) -> Record | None:
        """Return the current record of the CLI `identifier`, or None if it has ended."""
        return await in_thread(read_record, self._directory, f"{identifier}.json")

    async def _read(self, tasks: TaskGroup) -> None:
        records, editors, left, controller = await in_thread(self._scan)
        for identifier, record in records.items():
            if self._started.get(identifier) != record.started:
                self._started[identifier] = record.started
                self._states.pop(identifier, None)
        processes = {(record.cli.pid, record.started) for record in records.values() if self.is_told}
        for process in self._attended.keys() - processes:
            self._attended.pop(process).cancel()
        for pid, started in processes - self._attended.keys():
            scope = self._attended[pid, started] = anyio.CancelScope()
            tasks.start_soon(self._attend, pid, started, scope)
        found = {
            identifier: replace(record.cli, editor=editors[identifier], state=self._states.get(identifier))
            for identifier, record in records.items()
        }
        # A killed CLI leaves its record behind.
        killed = {identifier: replace(cli, gone=True) for identifier, cli in self._told.items() if identifier in left}
        for known in (self._started, self._states):
            for identifier in known.keys() - found.keys():
                del known[identifier]
        self._report({**killed, **found}, controller)

    def _scan(self) -> tuple[dict[str, Record], dict[str, str | None], set[str], str]:
        """Return the records of running CLIs, their editors, the names of other records, and the token's state."""
        names = names_in(self._directory)
        found = [record for name in names if (record := read_record(self._directory, name)) is not None]
        left = {name.removesuffix(".json") for name in names} - {record.cli.id for record in found}
        records = {record.cli.id: record for record in sorted(found, key=lambda each: each.cli.start)[-MOST:]}
        others = other_editors(self._environ, self._own_port)
        by_process = {pid: editor_of(pid, others) for pid in {record.cli.pid for record in records.values()}}
        editors = {each: by_process[record.cli.pid] for each, record in records.items()}
        return records, editors, left, read_grant(self._environ)[0]

    async def _attend(self, pid: int, started: str, scope: anyio.CancelScope) -> None:
        """Scan when a new CLI has certainly connected, and when its process has ended; `scope` ends this."""
        with scope:
            with anyio.move_on_after(CONNECTS_S):
                await ended(pid, started, math.inf)
            self.refresh()
            await ended(pid, started, math.inf)
            self.refresh()

    def _report(self, now: dict[str, RegisteredCli], controller: str) -> None:
        """Report the changes since the last report."""
        before, self._told = self._told, now
        changed = [cli for identifier, cli in now.items() if cli != before.get(identifier)]
        gone = before.keys() - now.keys()
        if changed or gone or controller != self._controller:
            self._controller = controller
            self._changed(changed, gone, controller)
