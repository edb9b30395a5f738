# SPDX-License-Identifier: GPL-3.0-or-later
"""The store of one root: turns, their writes, and the user's marks on them.

A write takes a file from one version to another; the writes of a path follow each other without a gap.  The turn of a
write is the agent's, or that of an undo; a write without a turn is by somebody else, mostly the user.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

from qwen_companion.domain import Usage
from qwen_companion.files.versions import Version
from qwen_companion.journal.contents import Contents, columns_of, read_version
from qwen_companion.journal.database import Database

MAX_BYTES = 512 * 1024 * 1024
"""Size of the texts that only turns need from which the user is warned: they may be the only copies left."""

MAX_AGE_MS = 14 * 24 * 3600 * 1000
"""How long a turn is kept: as long as git keeps unreferenced objects."""

_RECENT_S = 2
"""Longest time between a save and its report by Emacs."""

UNDO = "undo"
"""The source of a turn of the user's."""

HOOKS, CHAT = "hooks", "chat"
"""The source of a turn reported by a CLI or a daemon."""

DISK = "disk"
"""The tool of a write, and the source of a turn, known only from the disk."""

UNREVIEWED = "unreviewed"
"""The tool of a write known only from the disk, which the user wanted to review."""

MERGE = "merge"
"""The source of a turn in which the user merged an agent's changes from a worktree."""

REWIND = "rewind"
"""The source of the turn of the user's edits that a CLI's own rewind overwrote, and the tool of its writes."""

# Without git the baseline is stored here too, and forgetting turns does not shrink that.
_OF_TURNS = (
    "from blobs"
    " where digest not in (select digest from current where digest is not null union select digest from views)"
)

_SIZES = " ".join((
    "with needed as (select digest, length(data) as size", _OF_TURNS, "), of_turns as (",
    "select turn, before as digest from writes where turn is not null",
    "union select turn, after from writes where turn is not null),",
    "last as (select digest, max(turn) as turn from of_turns group by digest)",
    "select turns.id, coalesce(sum(size), 0) from turns left join last on last.turn = turns.id",
    "left join needed using(digest) where turns.end is not null group by turns.id order by turns.id",
))  # fmt: skip

_SELECT_TURN = "select id, session, client, source, prompt, start, end, undone, notes, pid, started from turns"
SELECT_WRITE = "select turn, path, before, before_mode, after, after_mode, tool, agent from writes"


@dataclass(frozen=True)
class TurnRow:
    """A turn as it is recorded.  `undone` is the turn that it undid.  `pid` and `started` identify the CLI's process.

    `text` is the whole prompt of a turn that begins, see `Store.prompt`.
    """

    id: int
    session: str
    client: str
    source: str
    prompt: str
    start: int
    end: int | None
    undone: int | None
    notes: tuple[str, ...]
    pid: int | None
    started: str | None
    text: str = ""


@dataclass(frozen=True)
class Write:
    """The change of `path` from one version to another; None means no file.  `turn` is None if no agent wrote."""

    turn: int | None
    path: bytes
    before: Version | None
    after: Version | None
    tool: str = ""
    agent: str = ""


@dataclass(frozen=True)
class SeenRow:
    """The user's mark on a file in a turn: the whole file while it has `digest`, or some hunks."""

    digest: str
    whole: bool
    hunks: tuple[str, ...]


class Store:
    """The turns of one root.  Its methods block on disk I/O, are thread-safe, and raise StoreError."""

    def __init__(self, path: str) -> None:
        """Open the file `path` in a private directory, or create it."""
        self.database = Database(path)
        self.contents = Contents(self.database)
        self._measured = -1, 0
        """The changes of the file when the texts of turns were measured last, and their bytes then."""

    # --- Turns and writes ---

    def begin(self, turn: TurnRow) -> TurnRow:
        """Record `turn`; return it with its number."""
        with self.database.transaction() as db:
            cursor = db.execute(
                "insert into turns(session, client, source, prompt, start, end, undone, notes, pid, started)"
                " values(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (turn.session, turn.client, turn.source, turn.prompt, turn.start, turn.end, turn.undone,
                 json.dumps(turn.notes), turn.pid, turn.started),
            )  # fmt: skip
            if turn.text:
                db.execute("insert into prompts values(?, ?)", (cursor.lastrowid, turn.text))
            if turn.source in (HOOKS, CHAT):
                # The conversation continues without a rewind.
                query = "delete from rewinding where turn in (select id from turns where session = ?)"
                db.execute(query, (turn.session,))
            return replace(turn, id=int(cursor.lastrowid or 0))

    def prompt(self, turn: int) -> str:
        """Return the whole prompt of `turn`, or its first words if no more is known."""
        query = "select coalesce(p.text, t.prompt) from turns t left join prompts p on p.turn = t.id where t.id = ?"
        row = self.database.row(query, turn)
        return "" if row is None else str(row[0])

    def end(self, turn: int, time: int | None) -> None:
        """Record that `turn` ended at `time`, or with None that it continues."""
        self.database.execute("update turns set end = ? where id = ?", time, turn)

    def rename(self, turn: int, prompt: str) -> None:
        """Record that `turn` is to be shown with `prompt`."""
        self.database.execute("update turns set prompt = ? where id = ?", prompt, turn)

    def set_usage(self, session: str, start: int, usage: Iterable[Usage]) -> list[int]:
        """Record the tokens of the turn of `session` begun at `start`; return its number, if it is recorded."""
        with self.database.transaction() as db:
            query = "select id from turns where session = ? and start = ? and undone is null"
            turns = [row[0] for row in db.execute(query, (session, start))]
            rows = [(turn, each.model, each.input, each.output, each.cached) for turn in turns for each in usage]
            db.executemany("delete from usage where turn = ?", [(turn,) for turn in turns])
            db.executemany("insert into usage values(?, ?, ?, ?, ?)", rows)
        return turns

    def add_usage(self, turn: int, usage: Iterable[Usage]) -> None:
        """Record that `turn` has used more tokens."""
        with self.database.transaction() as db:
            db.executemany(
                "insert into usage values(?, ?, ?, ?, ?) on conflict do update set"
                " input = input + excluded.input, output = output + excluded.output, cached = cached + excluded.cached",
                ((turn, each.model, each.input, each.output, each.cached) for each in usage),
            )

    def usage(self, turn: int) -> tuple[Usage, ...]:
        """Return the tokens of `turn`, by model."""
        query = "select model, input, output, cached from usage where turn = ? order by model"
        return tuple(Usage(*row) for row in self.database.rows(query, turn))

    def last_turn(self) -> TurnRow | None:
        """Return the turn that began last."""
        row = self.database.row(f"{_SELECT_TURN} order by id desc limit 1")
        return None if row is None else _turn(row)

    def add_note(self, turn: int, note: str, replaced: str | None = None) -> None:
        """Add `note` to those of `turn`, once, replacing the note `replaced`."""
        found = self.turn(turn)
        if found is not None and note not in found.notes:
            notes = json.dumps((*(each for each in found.notes if each != replaced), note)[:20])
            self.database.execute("update turns set notes = ? where id = ?", notes, turn)

    def remove_note(self, turn: int, note: str) -> None:
        """Remove `note` from those of `turn`."""
        found = self.turn(turn)
        if found is not None and note in found.notes:
            notes = json.dumps([each for each in found.notes if each != note])
            self.database.execute("update turns set notes = ? where id = ?", notes, turn)

    def turns(self) -> list[TurnRow]:
        """Return all turns, the oldest first."""
        return list(map(_turn, self.database.rows(f"{_SELECT_TURN} order by id")))

    def turn(self, turn: int) -> TurnRow | None:
        """Return the turn with that number."""
        row = self.database.row(f"{_SELECT_TURN} where id = ?", turn)
        return None if row is None else _turn(row)

    def has(self, number: int, turn: TurnRow) -> bool:
        """Return whether `turn` is recorded with that number; after a new beginning, another turn may have it."""
        query = "select 1 from turns where id = ? and session = ? and start = ?"
        return self.database.row(query, number, turn.session, turn.start) is not None

    def add(self, writes: Sequence[Write]) -> None:
        """Record `writes` in this order."""
        with self.database.transaction() as db:
            db.executemany(
                "insert into writes(turn, path, before, before_mode, after, after_mode, tool, agent, time)"
                " values(?, ?, ?, ?, ?, ?, ?, ?, strftime('%s', 'now'))",
                (
                    (each.turn, each.path, *columns_of(each.before), *columns_of(each.after), each.tool, each.agent)
                    for each in writes
                ),
            )

    def record(
        self,
        changes: Sequence[tuple[bytes, Version | None, Version | None]],
        turn: int | None,
        tool: str,
        agent: str,
        linked: Collection[bytes] = (),
    ) -> range:
        """Record `changes`, each a path with its old and its new version, as writes of `turn`; return their numbers.

        Changes without a turn are stored only for files that an agent has written too.  The paths `linked` have become
        names of other files.
        """
        with self.database.transaction() as db:
            writes = (Write(turn, path, before, after, tool, agent) for path, before, after in changes)
            kept = [write for write in writes if turn is not None or self.is_known(write.path)]
            self.add(kept)
            (last,) = db.execute("select last_insert_rowid()").fetchone()
            numbers = range(last + 1 - len(kept), last + 1)
            others = ((number,) for number, write in zip(numbers, kept, strict=True) if write.path in linked)
            db.executemany("insert into linked values(?)", others)
            self.contents.set_current((path, after) for path, _, after in changes)
        return numbers

    def linked(self, turn: int) -> list[bytes]:
        """Return the paths that have become names of other files since their first write in `turn`, or a later turn."""
        query = (
            "select distinct path from writes w join linked on write = w.id"
            " where w.id >= (select min(id) from writes where path = w.path and turn >= ?)"
        )
        return [bytes(path) for (path,) in self.database.rows(query, turn)]

    def reassign(self, path: bytes, version: Version | None, turn: int | None, tools: Collection[str]) -> bool:
        """Assign to `turn` the write of `version` to `path`, if one of `tools` made it recently."""
        with self.database.transaction() as db:
            row = db.execute(
                "select id, after, after_mode, tool from writes where path = ? and turn is not ?"
                " and time >= strftime('%s', 'now') - ? order by id desc limit 1",
                (path, turn, _RECENT_S),
            ).fetchone()
            if row is None or read_version(row[1], row[2]) != version or row[3] not in tools:
                return False
            db.execute("update writes set turn = ?, tool = '' where id = ?", (turn, row[0]))
            db.execute("delete from origins where write >= ?", (row[0],))
        return True

    def forget_found(self, path: bytes, since: int) -> bool:
        """Forget the last write of `path` if it has no author and was recorded since `since`; return whether it was.

        `since` is in seconds since the epoch.
        """
        with self.database.transaction() as db:
            query = "select id, turn, time from writes where path = ? order by id desc limit 1"
            write, turn, time = db.execute(query, (path,)).fetchone()
            if turn is not None or time < since:
                return False
            db.execute("delete from writes where id = ?", (write,))
            db.execute("delete from origins where write >= ?", (write,))
        return True

    def hand_over(self, writes: Sequence[int], earlier: int, turn: int) -> None:
        """Assign the `writes` of the turn `earlier` to `turn`; forget `earlier` if it has no others."""
        with self.database.transaction() as db:
            db.executemany("update writes set turn = ? where id = ?", ((turn, write) for write in writes))
            db.execute("delete from origins where write >= ?", (min(writes),))
            if not self.paths([earlier]):
                self.discard(earlier)

    def turns_of(self, writes: Iterable[int]) -> list[tuple[int, int]]:
        """Return those of `writes` that have a turn, each with that."""
        numbers = ",".join(map(str, writes))
        query = f"select id, turn from writes where turn is not null and id in ({numbers})"  # noqa: S608 - numbers
        return self.database.rows(query)

    def numbers(self, turn: int) -> list[int]:
        """Return the numbers of the writes of `turn`."""
        return [number for (number,) in self.database.rows("select id from writes where turn = ? order by id", turn)]

    def name(self, turn: TurnRow, since: int) -> list[int]:
        """Give the prompt of `turn` to the turns of its session that began after `since`, in ms, and have none.

        Return their numbers.
        """
        with self.database.transaction() as db:
            query = "select id from turns where session = ? and source = ? and prompt = '' and start >= ?"
            found = [row[0] for row in db.execute(query, (turn.session, turn.source, since))]
            for number in found:
                db.execute("update turns set prompt = ? where id = ?", (turn.prompt, number))
                db.execute("insert or replace into prompts values(?, ?)", (number, turn.text))
        return found

    def writes(self, path: bytes) -> list[Write]:
        """Return all writes of `path` in order."""
        return list(map(write_of, self.database.rows(f"{SELECT_WRITE} where path = ? order by id", path)))

    def is_known(self, path: bytes) -> bool:
        """Return whether a write of `path` is recorded."""
        return self.database.row("select 1 from writes where path = ? limit 1", path) is not None

    def written(self) -> list[bytes]:
        """Return the paths with recorded writes."""
        return [bytes(path) for (path,) in self.database.rows("select distinct path from writes")]

    def last_writes(self, turn: int) -> dict[bytes, int]:
        """Return the number of the last write of each path in `turn`, in order of their first one."""
        query = "select path, max(id) from writes where turn = ? group by path order by min(id)"
        return {bytes(path): last for path, last in self.database.rows(query, turn)}

    def last_version(self, turn: int, path: bytes) -> Version | None:
        """Return the version of `path` after the last write of `turn`; None for no file, or without a write."""
        query = "select after, after_mode from writes where turn = ? and path = ? order by id desc limit 1"
        row = self.database.row(query, turn, path)
        return None if row is None else read_version(*row)

    def paths(self, turns: Iterable[int]) -> list[bytes]:
        """Return the paths written in `turns`, in order of their first write."""
        with self.database.transaction():
            return list(dict.fromkeys(path for turn in turns for path in self.last_writes(turn)))

    # --- The user's marks ---

    def seen(self, turn: int, path: bytes) -> SeenRow:
        """Return the mark on `path` in `turn`."""
        row = self.database.row("select digest, whole, hunks from seen where turn = ? and path = ?", turn, path)
        return SeenRow("", False, ()) if row is None else SeenRow(row[0], bool(row[1]), _texts(row[2]) or ())

    def mark(self, turn: int, path: bytes, row: SeenRow) -> None:
        """Store the marks of `path` in `turn`."""
        columns = (turn, path, row.digest, row.whole, json.dumps(row.hunks))
        self.database.execute("insert or replace into seen values(?, ?, ?, ?, ?)", *columns)

    def note_rewinding(self, turn: int) -> None:
        """Record that a rewind to before `turn` begins."""
        self.database.execute("insert or ignore into rewinding values(?)", turn)

    def rewinding(self) -> list[str]:
        """Return the prompts of unfinished rewinds, which lead to before these prompts."""
        query = "select prompt from turns where id in (select turn from rewinding)"
        return [prompt for (prompt,) in self.database.rows(query)]

    def note_rewound(self, turns: Sequence[int], copy: str | None) -> None:
        """Record that `turns` are no longer part of their conversation, but of its `copy`, None for none."""
        with self.database.transaction() as db:
            db.executemany("delete from rewinding where turn = ?", ((turn,) for turn in turns))
            # A rewind that the CLI has recorded itself is noticed, too, and names no copy.
            db.executemany(
                "insert into rewound values(?, ?) on conflict(turn) do update set copy = coalesce(excluded.copy, copy)",
                ((turn, copy) for turn in turns),
            )

    def rewound(self, turn: int) -> tuple[bool, str | None]:
        """Return whether `turn` was rewound, and the copy of its conversation that still contains it."""
        row = self.database.row("select copy from rewound where turn = ?", turn)
        return row is not None, None if row is None else row[0]

    # --- Bounds ---

    def forget_old(self, now: int) -> list[int]:
        """Forget turns that ended too long ago; return their numbers."""
        gone = [turn.id for turn in self.turns() if turn.end is not None and turn.end <= now - MAX_AGE_MS]
        if gone:
            self.drop(gone)
        return gone

    def excess(self) -> int | None:
        """Return the bytes that only turns need, if they are too many; None otherwise."""
        if self.database.size() <= MAX_BYTES:
            return None
        changes = self.database.changes
        if changes != self._measured[0]:
            self._measured = changes, self.database.rows(f"select coalesce(sum(length(data)), 0) {_OF_TURNS}")[0][0]
        return self._measured[1] if self._measured[1] > MAX_BYTES else None

    def sizes(self) -> list[tuple[int, int]]:
        """Return the numbers of the turns that have ended, the oldest first.

        Each has the bytes that are freed if it is forgotten with all before it.
        """
        return self.database.rows(_SIZES)

    def forget_files(self, paths: Iterable[bytes], note: str) -> None:
        """Forget all that is recorded of the files `paths`, and add `note` to the turns in which they were written."""
        with self.database.transaction() as db:
            for path in paths:
                query = "select distinct turn from writes where path = ? and turn is not null"
                for (turn,) in db.execute(query, (path,)).fetchall():
                    self.add_note(turn, note)
                for table in ("writes", "seen", "current", "removed", "views"):
                    db.execute(f"delete from {table} where path = ?", (path,))  # noqa: S608 - these names
            self.contents.forget_unused()

    def discard(self, turn: int) -> None:
        """Forget `turn`, in which nothing was written."""
        with self.database.transaction() as db:
            db.execute("delete from turns where id = ?", (turn,))
            for table in ("prompts", "usage"):
                db.execute(f"delete from {table} where turn = ?", (turn,))  # noqa: S608 - these names

    def drop(self, turns: Sequence[int]) -> None:
        """Forget `turns`, and all bytes that only they needed."""
        with self.database.transaction() as db:
            for turn in turns:
                for table in ("writes", "seen", "prompts", "usage", "rewound", "rewinding"):
                    db.execute(f"delete from {table} where turn = ?", (turn,))  # noqa: S608 - these names
                db.execute("delete from turns where id = ?", (turn,))
            # Writes of others matter only between those of agents.
            db.execute("delete from writes where path not in (select path from writes where turn is not null)")
            for table in ("origins", "linked"):
                db.execute(f"delete from {table} where write not in (select id from writes)")  # noqa: S608 - these names
            db.execute("delete from removed where path not in (select path from writes)")
            self.contents.forget_unused()
        self.database.give_back()


def _turn(row: tuple[Any, ...]) -> TurnRow:
    notes = _texts(row[8])
    return TurnRow(*row[:8], notes=("its notes are damaged",) if notes is None else notes, pid=row[9], started=row[10])


def _texts(kept: object) -> tuple[str, ...] | None:
    """Return the list of texts in `kept`, JSON; None if it is damaged."""
    with suppress(ValueError, TypeError, RecursionError):
        found = json.loads(cast("str", kept))
        if isinstance(found, list) and all(isinstance(each, str) for each in cast("list[object]", found)):
            return tuple(cast("list[str]", found))
    return None


def write_of(row: Sequence[Any]) -> Write:
    """Return the write in a row of `SELECT_WRITE`."""
    turn, path, before, before_mode, after, after_mode, tool, agent = row
    return Write(turn, bytes(path), read_version(before, before_mode), read_version(after, after_mode), tool, agent)
