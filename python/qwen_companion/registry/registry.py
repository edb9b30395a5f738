# SPDX-License-Identifier: GPL-3.0-or-later
"""The CLIs that are registered, kept current: their folder is watched, and the end of each process waited for."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

import anyio
from anyio.abc import TaskGroup

from qwen_companion.domain import CliState, RegisteredCli
from qwen_companion.journal.tree_watch import Coverage, TreeWatch
from qwen_companion.processes import ended
from qwen_companion.registry.controller import controllers_file
from qwen_companion.registry.records import (
    Record,
    editor_of,
    names_in,
    other_editors,
    read_record,
    registry_directory,
)
from qwen_companion.threads import in_thread

CONNECTS_S = 3.0
"""How long after its start a CLI has surely connected to its editor, in seconds."""

UNTOLD_S = 5.0
"""How often the folder is looked at where the system tells nothing of its changes, in seconds."""


async def cover(watch: TreeWatch, directory: str) -> Coverage:
    """Watch `directory` and the one above, or where these are not there the nearest one above them."""
    grown = False
    while True:
        folders = await in_thread(_existing, directory)
        coverage = await watch.cover([os.fsencode(each) for each in folders])
        if not coverage.grown:
            return Coverage(coverage.complete, grown)
        # One below may have been made before it was watched.
        grown = True


def _existing(directory: str) -> list[str]:
    above = os.path.dirname(directory)
    found = [each for each in (directory, above) if os.path.isdir(each)]
    return found if found or above == directory else _existing(above)


class Registry:
    """See the top of this file.  All methods are for the event loop."""

    def __init__(
        self,
        environ: Mapping[str, str],
        own_port: int,
        changed: Callable[[Collection[RegisteredCli], Collection[str]], None],
        controllers_changed: Callable[[], None],
    ) -> None:
        """Call `changed` with the CLIs that are new or have changed, and with the ids of those that have gone.

        Call `controllers_changed` when CLIs may take prompts from other programs than before.
        """
        self._environ = environ
        self._own_port = own_port
        self._changed = changed
        self._controllers_changed = controllers_changed
        self._directory = registry_directory(environ)
        self._records: dict[str, Record] = {}
        self._told: dict[str, RegisteredCli] = {}
        self._editors: dict[str, str | None] = {}
        self._states: dict[str, CliState] = {}
        self._killed: set[str] = set()
        """Those whose process has ended without removing its record."""
        self._news: set[str] | None = None
        """Records that may have changed; None for any."""
        self._stirred = anyio.Event()
        self._tasks: TaskGroup | None = None

    async def run(self) -> None:
        """Keep the registry current until cancelled."""
        watch = TreeWatch(self._disk_changed)
        try:
            async with anyio.create_task_group() as self._tasks:
                while True:
                    stirred = self._stirred = anyio.Event()
                    coverage = await cover(watch, self._directory)
                    if coverage.grown:
                        self._news = None
                    news, self._news = self._news, set()
                    await self._read(news)
                    with anyio.move_on_after(math.inf if coverage.complete else UNTOLD_S) as waited:
                        await stirred.wait()
                    if waited.cancelled_caught:
                        self._news = None
        finally:
            self._tasks = None
            watch.close()

    def _disk_changed(self, paths: Collection[bytes] | None) -> None:
        inside = os.fsencode(self._directory)
        if paths is None or os.fsencode(controllers_file(self._environ)) in paths:
            self._controllers_changed()
        if paths is None or any(inside == path or inside.startswith(path + b"/") for path in paths):
            self._news = None
        elif self._news is not None:
            names = {os.fsdecode(os.path.basename(path)) for path in paths if os.path.dirname(path) == inside}
            if not names:
                return
            self._news |= names
        self._stirred.set()

    async def _read(self, names: Collection[str] | None) -> None:
        """Read the records `names`, or with None all."""
        if names is None:
            known = set(self._records)
            names = await in_thread(names_in, self._directory) | known
        if not names:
            return
        found = await in_thread(self._read_several, names)
        for name, record in found.items():
            before = self._records.get(name)
            if record is not None:
                self._records[name] = record
                self._killed.discard(name)
                if before is None or before.started != record.started:
                    self._begin(record)
            elif before is not None and not await in_thread(os.path.lexists, os.path.join(self._directory, name)):
                self._forget(name)
        self._tell(found)

    def _read_several(self, names: Iterable[str]) -> dict[str, Record | None]:
        return {name: read_record(self._directory, name) for name in names}

    def _begin(self, record: Record) -> None:
        """Wait for the end of the CLI of `record`, which is new, and see what it connects to."""
        if self._tasks is not None:
            self._tasks.start_soon(self._watch_end, record)
            self._tasks.start_soon(self._watch_connection, record)

    async def _watch_end(self, record: Record) -> None:
        await ended(record.cli.pid, record.started, UNTOLD_S)
        # A CLI that ends by itself removes its record before; there is no news of that left to read.
        if self._is_current(record):
            if await in_thread(os.path.lexists, os.path.join(self._directory, record.name)):
                self._killed.add(record.name)
            else:
                self._forget(record.name)
            self._tell([record.name])

    async def _watch_connection(self, record: Record) -> None:
        await self.look([record])
        await anyio.sleep(CONNECTS_S)
        await self.look([record])

    def _is_current(self, record: Record) -> bool:
        known = self._records.get(record.name)
        return known is not None and known.started == record.started

    def _forget(self, name: str) -> None:
        for known in (self._records, self._editors, self._states):
            known.pop(name, None)
        self._killed.discard(name)

    async def look(self, records: Collection[Record] | None = None) -> None:
        """See to which editors the CLIs of `records`, or with None all, are connected: nothing tells of that."""
        looked = list(self._records.values()) if records is None else records
        editors = await in_thread(other_editors, self._environ, self._own_port)
        for record in looked:
            editor = await in_thread(editor_of, record.cli.pid, editors) if editors else None
            if self._is_current(record):
                self._editors[record.name] = editor
        self._tell([record.name for record in looked])

    def note_state(self, identifier: str, state: CliState) -> None:
        """Take what the CLI `identifier` does with a prompt of ours."""
        name = f"{identifier}.json"
        if name in self._records:
            self._states[name] = state
            self._tell([name])

    async def record(self, identifier: str) -> Record | None:
        """Return the record of the CLI `identifier` as it is now; None where that has ended."""
        return await in_thread(read_record, self._directory, f"{identifier}.json")

    def _tell(self, names: Iterable[str]) -> None:
        """Tell of those of `names` that are not as they were told last."""
        changed: list[RegisteredCli] = []
        gone: list[str] = []
        for name in list(names):
            record = self._records.get(name)
            before = self._told.get(name)
            if record is not None:
                now = replace(
                    record.cli,
                    editor=self._editors.get(name),
                    state=self._states.get(name),
                    gone=name in self._killed,
                )
                if now != before:
                    self._told[name] = now
                    changed.append(now)
            elif before is not None:
                del self._told[name]
                gone.append(before.id)
        if changed or gone:
            self._changed(changed, gone)
