# SPDX-License-Identifier: GPL-3.0-or-later
"""The effects of a CLI's own rewind on files.  It restores whole files, over what the user has saved since.

This is recorded in two steps.  First the turns are undone with the edits of others kept, as an undo in Emacs would do.
Then a separate turn of the source `rewind` contains the rest, that is, the user's edits that the rewind overwrote.
Undoing that turn restores them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress

import anyio

from qwen_companion.base.local_ids import local_id
from qwen_companion.domain import CliRewind
from qwen_companion.files.versions import Loaded, TooLargeError, Version
from qwen_companion.journal.answers import Summary
from qwen_companion.journal.changes import MissingTextError
from qwen_companion.journal.nets import Nets
from qwen_companion.journal.root import Root, now_ms
from qwen_companion.journal.roots import Roots
from qwen_companion.journal.store import REWIND, UNDO, Store, TurnRow
from qwen_companion.journal.telling import Telling
from qwen_companion.journal.undos import Undos

_RECENT_MS = 60_000
"""Age of a CLI's rewind up to which its effects on files are searched."""

_LOOKS_S = (0.0, 0.3, 2.0)
"""Seconds until the files are examined: a daemon writes them after its record, within 20 ms when idle."""

_FILES_FIRST_S = 2
"""Seconds by which the files may be restored before the record, by clocks in whole seconds."""


class CliRewinds:
    """Handles the rewinds that CLIs make by themselves.  Call its methods on the event loop."""

    def __init__(self, roots: Roots, telling: Telling, tell_taken: Callable[[Summary], None]) -> None:
        """`tell_taken` is called with the turn of the overwritten edits of the user, after `telling` has sent it."""
        self._roots = roots
        self._telling = telling
        self._tell_taken = tell_taken
        self._newest: dict[str, CliRewind] = {}
        """By conversation."""

    async def take(self, rewind: CliRewind) -> None:
        """Note the turns that a CLI has rewound, and examine their files if that was just now."""
        name = self._roots.name_of(rewind.directory)
        if not self._roots.settings.journal or name is None or await self._roots.open(name, only_known=True) is None:
            return
        self._newest[rewind.session] = rewind
        for root in list(self._roots.by_name.values()):
            conversation = local_id("session", rewind.session)
            rows = await root.done(root.rewound, conversation, rewind.since, None, rewind.time) or ()
            # Later, others may have written the files.
            if now_ms() - rewind.time < _RECENT_MS and self._roots.tasks is not None:
                record = root.record
                restored = Restored(record.store, record.nets, record.look, rewind.session, rows, rewind.time)
                self._roots.tasks.start_soon(self._look, root, rewind, restored)

    async def _look(self, root: Root, rewind: CliRewind, restored: Restored) -> None:
        for wait in _LOOKS_S:
            await anyio.sleep(wait)
            if self._newest[rewind.session] is not rewind:
                # A later rewind has restored the files.
                return
            taken = await root.done(_take_back, root, restored)
            if taken is not None:
                # So that Emacs knows the turn.
                await self._telling.tell_news()
                self._tell_taken(taken)


def _take_back(root: Root, restored: Restored) -> Summary | None:
    """Record the restored files; return the turn of the overwritten edits, if it is new."""
    is_new = restored.record()
    root.changed.update(restored.changed)
    return root.record.answers.summary(restored.turn) if is_new and restored.turn is not None else None


class Restored:
    """The files that a CLI has restored.  Its methods block on disk I/O and are thread-safe.

    `changed` are the numbers of the changed turns, and `turn` that of the overwritten edits, None while there are none.
    """

    def __init__(
        self,
        store: Store,
        nets: Nets,
        look: Callable[[bytes], Loaded | None],
        session: str,
        rows: Sequence[TurnRow],
        time: int,
    ) -> None:
        """Handle the turns `rows` of `session`, rewound at `time`, in ms; `look` returns the file at a path.

        The CLI also restores files that the conversation has written only before these turns.
        """
        self._session = session
        self._store = store
        self._nets = nets
        self._look = look
        self._rows = rows
        self._time = time
        self._undos: dict[int, int] = {}
        self._put_back: set[bytes] = set()
        self.changed: set[int] = set()
        self.turn: int | None = None

    def record(self) -> bool:
        """Examine the files, and record the restored ones; return whether edits of the user were overwritten."""
        before = self.turn
        turns = self._store.turns()
        undos = Undos(turns)
        for path in self._store.paths(row.id for row in turns if row.session == self._session):
            # Later writes of a restored file are by others.
            if path not in self._put_back:
                with suppress(OSError, TooLargeError):
                    self._record_file(path, self._look(path), undos)
        for number in (*self._undos.values(), *filter(None, [self.turn])):
            self._store.end(number, self._time)
        return before is None and self.turn is not None

    def _record_file(self, path: bytes, found: Loaded | None, undos: Undos) -> None:
        writes = self._store.writes(path)
        version = None if found is None else found.version
        if is_found := version == writes[-1].after:
            # A scan may have come before the report of the rewind.
            writes.pop()
        if _digest(version) not in {_digest(write.before) for write in writes} or (
            is_found and not self._store.forget_found(path, self._time // 1000 - _FILES_FIRST_S)
        ):
            # It was not restored, or somebody else has written it.
            return
        if found is not None:
            self._store.contents.put([(found.version.digest, found.data)])
        self._put_back.add(path)
        rows = [row for row in self._rows if any(write.turn == row.id for write in writes)]
        # A turn may be inseparable from a later one that replaced its lines, but both together may be separable from
        # the edits of others.
        told = all(self._undo(path, row, undos.within([row.id])) for row in reversed(rows)) or self._undo(
            path, rows[0], self._all(rows)
        )
        last = self._store.writes(path)[-1].after
        if last is None and version is not None:
            # Nothing was overwritten in a missing file, and restoring that must not delete the file.
            self._store.record([(path, last, version)], None, "", "")
            return
        if not told:
            name = os.fsdecode(os.path.basename(path))
            self._note(f"the lines of {name} that the agent wrote are among these: yours touch them")
        if last != version:
            self._store.record([(path, last, version)], self._own_turn(), REWIND, "")

    def _all(self, rows: Sequence[TurnRow]) -> Sequence[int]:
        """Return the turns `rows`, restored edits of earlier rewinds, and all undos of these."""
        turns = self._store.turns()
        undos = Undos(turns)
        back = [turn.id for turn in turns if turn.source == REWIND and undos.of(turn.id)]
        return undos.within([*back, *(row.id for row in rows)])

    def _undo(self, path: bytes, row: TurnRow, turns: Sequence[int]) -> bool:
        """Record `path` without the net change of `turns`, as an undo of `row`; return whether that can be computed."""
        last = self._store.writes(path)[-1].after
        try:
            found = self._nets.without(path, turns, last)
        except MissingTextError:
            return False
        if found is not None:
            self._store.contents.put([(found.version.digest, found.data)])
        version = None if found is None else found.version
        if version != last:
            self._store.record([(path, last, version)], self._undo_of(row), UNDO, "")
        return True

    def _undo_of(self, row: TurnRow) -> int:
        if row.id not in self._undos:
            self._undos[row.id] = self._begin(UNDO, f"Rewind of the CLI to before {self._title}", row.id)
        return self._undos[row.id]

    def _own_turn(self) -> int:
        if self.turn is None:
            self.turn = self._begin(REWIND, f"Your edits that the rewind to before {self._title} took", None)
        return self.turn

    def _note(self, text: str) -> None:
        self._store.add_note(self._own_turn(), text)

    def _begin(self, source: str, title: str, undone: int | None) -> int:
        client = next(row.client for row in self._store.turns() if row.session == self._session)
        row = TurnRow(0, self._session, client, source, title, self._time, self._time, undone, (), None, None)
        number = self._store.begin(row).id
        self.changed |= {number, *filter(None, [undone])}
        return number

    @property
    def _title(self) -> str:
        prompt = self._rows[0].prompt if self._rows else ""
        return f'"{prompt}"' if prompt else "a prompt"


def _digest(version: Version | None) -> str | None:
    return None if version is None else version.digest
