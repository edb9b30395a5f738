# SPDX-License-Identifier: GPL-3.0-or-later
"""The store of one root: turns, writes and the bytes of files, in a private SQLite file.

A write takes a file from one version to another; those of one path follow each other without a gap.  Its turn is the
agent's, or that of an undo; a write without a turn is somebody else's, mostly the user's.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import zlib
from array import array
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import accumulate
from typing import Any

from qwen_companion.errors import CompanionError
from qwen_companion.frozen import frozen
from qwen_companion.journal.versions import Loaded, Version

FORMAT = 1

MAX_BYTES = 512 * 1024 * 1024
"""When the texts that only turns need are larger, the oldest turns are forgotten."""

MAX_AGE_MS = 14 * 24 * 3600 * 1000
"""How long a turn is kept: git keeps unreferenced objects as long."""

_TABLES = """
create table if not exists blobs(digest text primary key, packed integer not null, data blob not null) without rowid;
create table if not exists bundles(
  batch integer, first blob, digests blob, ends blob, data blob, primary key(batch, first)) without rowid;
create table if not exists current(path blob primary key, digest text, mode integer) without rowid;
create table if not exists turns(
  id integer primary key autoincrement, session text, client text, source text, prompt text, start integer, end integer,
  undone integer, notes text not null default '[]', pid integer, started text);
create table if not exists writes(
  id integer primary key autoincrement, turn integer, path blob not null, before text, before_mode integer,
  after text, after_mode integer, tool text, agent text, time integer);
create index if not exists writes_of_path on writes(path, id);
create index if not exists writes_of_turn on writes(turn, path);
create table if not exists seen(
  turn integer, path blob, digest text, whole integer, hunks text, primary key(turn, path));
create table if not exists undone(turn integer, session text, path blob, primary key(turn, path));
"""


class StoreError(CompanionError):
    """Nothing can be read from the record or written to it; the text says why."""


@frozen
class TurnRow:
    """A turn as it is recorded.  `undone` is the turn that it undid.  `pid` and `started` are the CLI's process."""

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


@frozen
class Write:
    """The change of `path` from one version to another; None stands for no file.  `turn` is None if no agent wrote."""

    turn: int | None
    path: bytes
    before: Version | None
    after: Version | None
    tool: str = ""
    agent: str = ""


@frozen
class SeenRow:
    """The user's mark on a file in a turn: all of it as long as it has `digest`, or some hunks."""

    digest: str
    whole: bool
    hunks: tuple[str, ...]


class DamagedStoreError(StoreError):
    """The file is none of SQLite's, or not all of it."""


class Store:
    """Its methods wait for the disk, may be called in any thread, and raise StoreError."""

    def __init__(self, path: str) -> None:
        """Open the file `path` in a private directory, or make it."""
        self._lock = threading.RLock()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.close(descriptor)
        self._path = path
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        except sqlite3.Error as error:
            raise StoreError(str(error)) from None
        try:
            self._check()
            # Written data survives the end of this process, if not a crash of the machine.
            self._db.executescript(
                "pragma auto_vacuum=incremental; pragma journal_mode=delete; pragma synchronous=off;"
                " pragma secure_delete=on;"
            )
            self._db.execute("pragma cache_size=-4000")
            self._db.executescript(_TABLES)
            self._db.execute(f"pragma user_version={FORMAT}")
        except StoreError:
            self._db.close()
            raise
        except sqlite3.Error as error:
            self._db.close()
            raise _failure(error) from None

    def _check(self) -> None:
        """Check the file.

        :raises StoreError: for a file of a newer version
        :raises DamagedStoreError: for one that is not whole
        """
        if self._db.execute("pragma user_version").fetchone()[0] > FORMAT:
            raise StoreError("what is recorded there was written by a newer version of qwen-companion")
        if os.path.getsize(self._path) <= _CHECKED_BYTES:
            (found,) = self._db.execute("pragma quick_check(1)").fetchone()
            if found != "ok":
                raise DamagedStoreError(found)

    def close(self) -> None:
        """Use the file no more."""
        with self._lock:
            self._db.close()

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Run a block as one transaction: all or nothing of it is kept."""
        with self._lock:
            try:
                if self._db.in_transaction:
                    yield self._db
                    return
                self._db.execute("begin immediate")
                try:
                    yield self._db
                except BaseException:
                    if self._db.in_transaction:
                        self._db.execute("rollback")
                    raise
                self._db.execute("commit")
            except sqlite3.Error as error:
                # It may have been closed meanwhile.
                with suppress(sqlite3.Error):
                    if self._db.in_transaction:
                        self._db.execute("rollback")
                raise _failure(error) from None

    # --- Bytes ---

    def put(self, items: Iterable[tuple[str, bytes]]) -> None:
        """Keep the bytes of each digest."""
        with self.transaction() as db:
            db.executemany(
                "insert or ignore into blobs values(?, ?, ?)", ((digest, *_pack(data)) for digest, data in items)
            )

    def get(self, digest: str) -> bytes | None:
        """Return the bytes of `digest`, None where they are not kept, or damaged."""
        with self.transaction() as db:
            row = db.execute("select packed, data from blobs where digest = ?", (digest,)).fetchone()
            if row is None:
                place = _place(db, digest)
                query = "select 0, substr(data, ?, ?) from bundles where batch = ? and first = ?"
                row = place and db.execute(query, place).fetchone()
        with suppress(zlib.error):
            return None if row is None else zlib.decompress(row[1]) if row[0] else bytes(row[1])
        return None

    def begin_with(self, files: Sequence[tuple[bytes, Loaded]]) -> None:
        """Keep the bytes of `files`, a part of a first baseline; note that large ones lie on the disk.

        The small ones are kept as long as this store, many in a row: a row for each took a third of all the time.
        """
        small = {loaded.version.digest: loaded.data for _, loaded in files if len(loaded.data) <= _PACK_FROM}
        large = [(path, loaded) for path, loaded in files if len(loaded.data) > _PACK_FROM]
        with self.transaction() as db:
            self.put((loaded.version.digest, loaded.data) for _, loaded in large)
            self.set_current((path, loaded.version) for path, loaded in large)
            batch = _batches(db)
            ordered = sorted(small)
            for start in range(0, len(ordered), _BUNDLED):
                digests = ordered[start : start + _BUNDLED]
                texts = [small[digest] for digest in digests]
                ends = array("I", accumulate(map(len, texts))).tobytes()
                columns = (bytes.fromhex(digests[0]), bytes.fromhex("".join(digests)), ends, b"".join(texts))
                db.execute("insert into bundles values(?, ?, ?, ?, ?)", (batch, *columns))

    def lacking(self, digests: Iterable[str]) -> list[str]:
        """Return those of `digests` that are not kept."""
        with self.transaction() as db:
            return [
                digest
                for digest in dict.fromkeys(digests)
                if db.execute("select 1 from blobs where digest = ?", (digest,)).fetchone() is None
                and _place(db, digest) is None
            ]

    # --- What lies on the disk ---

    def current(self, path: bytes, otherwise: Version | None) -> Version | None:
        """Return the version of `path` that was recorded last, `otherwise` where none was."""
        with self.transaction() as db:
            row = db.execute("select digest, mode from current where path = ?", (path,)).fetchone()
        return otherwise if row is None else _version(*row)

    def set_current(self, items: Iterable[tuple[bytes, Version | None]]) -> None:
        """Note the versions of files that are on the disk now."""
        with self.transaction() as db:
            db.executemany(
                "insert or replace into current values(?, ?, ?)", ((path, *_columns(v)) for path, v in items)
            )

    def restart(self) -> None:
        """Forget the versions noted as on the disk; a new baseline notes them again."""
        with self.transaction() as db:
            db.execute("delete from current")
            # An unfinished baseline may be taken again and again.
            db.execute("delete from bundles where not exists (select 1 from writes)")

    # --- Turns and writes ---

    def begin(self, turn: TurnRow) -> TurnRow:
        """Record `turn`; return it with its number."""
        with self.transaction() as db:
            cursor = db.execute(
                "insert into turns(session, client, source, prompt, start, end, undone, notes, pid, started)"
                " values(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (turn.session, turn.client, turn.source, turn.prompt, turn.start, turn.end, turn.undone,
                 json.dumps(turn.notes), turn.pid, turn.started),
            )  # fmt: skip
            return replace(turn, id=int(cursor.lastrowid or 0))

    def end(self, turn: int, time: int | None) -> None:
        """Record that `turn` ended at `time`, or with None that it goes on."""
        with self.transaction() as db:
            db.execute("update turns set end = ? where id = ?", (time, turn))

    def rename(self, turn: int, prompt: str) -> None:
        """Record that `turn` is to be shown with `prompt`."""
        with self.transaction() as db:
            db.execute("update turns set prompt = ? where id = ?", (prompt, turn))

    def last_turn(self) -> TurnRow | None:
        """Return the turn that began last."""
        with self.transaction() as db:
            row = db.execute(f"{_SELECT_TURN} order by id desc limit 1").fetchone()
        return None if row is None else _turn(row)

    def add_note(self, turn: int, note: str) -> None:
        """Add `note` to those of `turn`, once."""
        found = self.turn(turn)
        if found is not None and note not in found.notes:
            with self.transaction() as db:
                db.execute("update turns set notes = ? where id = ?", (json.dumps((*found.notes, note)[:20]), turn))

    def turns(self) -> list[TurnRow]:
        """Return all turns, the oldest first."""
        with self.transaction() as db:
            return [_turn(row) for row in db.execute(f"{_SELECT_TURN} order by id")]

    def turn(self, turn: int) -> TurnRow | None:
        """Return the turn of that number."""
        with self.transaction() as db:
            row = db.execute(f"{_SELECT_TURN} where id = ?", (turn,)).fetchone()
        return None if row is None else _turn(row)

    def add(self, writes: Sequence[Write]) -> None:
        """Record `writes` in this order."""
        with self.transaction() as db:
            db.executemany(
                "insert into writes(turn, path, before, before_mode, after, after_mode, tool, agent, time)"
                " values(?, ?, ?, ?, ?, ?, ?, ?, strftime('%s', 'now'))",
                (
                    (write.turn, write.path, *_columns(write.before), *_columns(write.after), write.tool, write.agent)
                    for write in writes
                ),
            )

    def record(
        self, changes: Sequence[tuple[bytes, Version | None, Version | None]], turn: int | None, tool: str, agent: str
    ) -> None:
        """Record `changes`, each a path with its old and its new version, as writes of `turn`.

        Changes without a turn are kept only for files that an agent has written too.
        """
        with self.transaction():
            writes = (Write(turn, path, before, after, tool, agent) for path, before, after in changes)
            self.add([write for write in writes if turn is not None or self.is_known(write.path)])
            self.set_current((path, after) for path, _, after in changes)

    def reassign(self, path: bytes, version: Version | None, turn: int | None, tools: Collection[str]) -> bool:
        """Assign to `turn` the write of `version` to `path`, if one of `tools` made it in the last few seconds."""
        with self.transaction() as db:
            row = db.execute(
                "select id, after, after_mode, tool from writes where path = ? and turn is not null"
                " and time >= strftime('%s', 'now') - ? order by id desc limit 1",
                (path, _RECENT_S),
            ).fetchone()
            if row is None or _version(row[1], row[2]) != version or row[3] not in tools:
                return False
            db.execute("update writes set turn = ?, tool = '' where id = ?", (turn, row[0]))
        return True

    def writes(self, path: bytes) -> list[Write]:
        """Return all writes of `path` in order."""
        with self.transaction() as db:
            return [_write(row) for row in db.execute(f"{_SELECT_WRITE} where path = ? order by id", (path,))]

    def is_known(self, path: bytes) -> bool:
        """Return whether a write of `path` is recorded."""
        with self.transaction() as db:
            return db.execute("select 1 from writes where path = ? limit 1", (path,)).fetchone() is not None

    def written(self) -> list[bytes]:
        """Return the paths with recorded writes."""
        with self.transaction() as db:
            return [bytes(path) for (path,) in db.execute("select distinct path from writes")]

    def last_writes(self, turn: int) -> dict[bytes, int]:
        """Return the number of the last write of each path in `turn`, in order of their first one."""
        with self.transaction() as db:
            rows = db.execute(
                "select path, max(id) from writes where turn = ? group by path order by min(id)", (turn,)
            ).fetchall()
        return {bytes(path): last for path, last in rows}

    def paths(self, turns: Iterable[int]) -> list[bytes]:
        """Return the paths written in `turns`, in order of their first write."""
        found: dict[bytes, None] = {}
        with self.transaction() as db:
            for turn in turns:
                rows = db.execute("select path from writes where turn = ? group by path order by min(id)", (turn,))
                found.update(dict.fromkeys(bytes(row[0]) for row in rows))
        return list(found)

    # --- What the user has marked and undone ---

    def seen(self, turn: int, path: bytes) -> SeenRow:
        """Return the mark on `path` in `turn`."""
        with self.transaction() as db:
            row = db.execute(
                "select digest, whole, hunks from seen where turn = ? and path = ?", (turn, path)
            ).fetchone()
        return SeenRow("", False, ()) if row is None else SeenRow(row[0], bool(row[1]), tuple(json.loads(row[2])))

    def mark(self, turn: int, path: bytes, row: SeenRow) -> None:
        """Keep the marks of `path` in `turn`."""
        with self.transaction() as db:
            columns = (turn, path, row.digest, row.whole, json.dumps(row.hunks))
            db.execute("insert or replace into seen values(?, ?, ?, ?, ?)", columns)

    def note_undone(self, session: str, turn: int, paths: Iterable[bytes]) -> None:
        """Remember to tell the agent of `session` that the user has undone `turn` in `paths`."""
        with self.transaction() as db:
            db.executemany("insert or replace into undone values(?, ?, ?)", ((turn, session, path) for path in paths))

    def forget_undone(self, turn: int, paths: Iterable[bytes]) -> None:
        """Do not tell the agent of `turn` in `paths` any more."""
        with self.transaction() as db:
            db.executemany("delete from undone where turn = ? and path = ?", ((turn, path) for path in paths))

    def take_undone(self, session: str) -> list[tuple[int, bytes]]:
        """Return the turns and paths to tell the agent of `session`, and forget them."""
        with self.transaction() as db:
            rows = db.execute(
                "select turn, path from undone where session = ? order by turn, path", (session,)
            ).fetchall()
            db.execute("delete from undone where session = ?", (session,))
        return [(turn, bytes(path)) for turn, path in rows]

    # --- Bounds ---

    def forget_old(self, now: int) -> list[int]:
        """Forget turns that ended too long ago; return their numbers."""
        gone = [turn.id for turn in self.turns() if turn.end is not None and turn.end <= now - MAX_AGE_MS]
        if gone:
            self.drop(gone)
        return gone

    def shrink(self) -> list[int]:
        """Forget the oldest of the ended turns while they need too many bytes; return their numbers."""
        gone: list[int] = []
        ended = [turn.id for turn in self.turns() if turn.end is not None]
        for turn in ended:
            if self._size() <= MAX_BYTES or self._size_of_turns() <= MAX_BYTES:
                break
            self.drop([turn])
            gone.append(turn)
        return gone

    def discard(self, turn: int) -> None:
        """Forget `turn`, in which nothing was written."""
        with self.transaction() as db:
            db.execute("delete from turns where id = ?", (turn,))

    def drop(self, turns: Sequence[int]) -> None:
        """Forget `turns`, and all bytes that only they needed."""
        with self.transaction() as db:
            for turn in turns:
                for table, column in (("writes", "turn"), ("seen", "turn"), ("undone", "turn"), ("turns", "id")):
                    db.execute(f"delete from {table} where {column} = ?", (turn,))  # noqa: S608 - these names
            # Writes of others matter between those of agents only.
            db.execute("delete from writes where path not in (select path from writes where turn is not null)")
            db.execute(
                "delete from blobs where digest not in (select before from writes where before is not null"
                " union select after from writes where after is not null"
                " union select digest from current where digest is not null)"
            )
        with self._lock:
            # `execute` takes one step of it, which frees one page.
            self._db.executescript("pragma incremental_vacuum")

    def _size(self) -> int:
        with self.transaction() as db:
            pages, free = (db.execute(f"pragma {name}").fetchone()[0] for name in ("page_count", "freelist_count"))
            return (pages - free) * db.execute("pragma page_size").fetchone()[0]

    def _size_of_turns(self) -> int:
        # Without git the baseline is kept here too, and to forget turns makes that no smaller.
        with self.transaction() as db:
            return db.execute(
                "select coalesce(sum(length(data)), 0) from blobs"
                " where digest not in (select digest from current where digest is not null)"
            ).fetchone()[0]


def _failure(error: sqlite3.Error) -> StoreError:
    # Those of another kind, of a lock or a full disk, are subclasses.
    return (DamagedStoreError if type(error) is sqlite3.DatabaseError else StoreError)(str(error))


_CHECKED_BYTES = 64 * 1024 * 1024
"""Up to this size all of a file is read when it is opened, in 0.1 s; in a larger one damage is met when it is used."""

_RECENT_S = 2
"""How long after a save Emacs's word on it may come."""

_PACK_FROM = 4096
"""Bytes from which a text is compressed, and not bundled with others."""

_BUNDLED = 32
"""Most texts in a row.  To find one in a row of ten times as many took twice as long."""

_SELECT_TURN = "select id, session, client, source, prompt, start, end, undone, notes, pid, started from turns"
_SELECT_WRITE = "select turn, path, before, before_mode, after, after_mode, tool, agent from writes"


def _version(digest: str | None, mode: int | None) -> Version | None:
    return None if digest is None or mode is None else Version(digest, mode)


def _batches(db: sqlite3.Connection) -> int:
    """Return how many batches of bundles there are; within each they are in the order of digests."""
    return db.execute("select coalesce(max(batch) + 1, 0) from bundles").fetchone()[0]


def _place(db: sqlite3.Connection, digest: str) -> tuple[int, int, int, bytes] | None:
    """Return where the bytes of `digest` begin in their bundle, from 1, their number, and the key of the bundle."""
    wanted = bytes.fromhex(digest)
    width = len(wanted)
    query = "select first, digests, ends from bundles where batch = ? and first <= ? order by first desc limit 1"
    for batch in range(_batches(db)):
        row = db.execute(query, (batch, wanted)).fetchone()
        if row is None:
            continue
        first, digests, ends = row
        place = digests.find(wanted)
        while place > 0 and place % width:
            place = digests.find(wanted, place + 1)
        if place >= 0:
            number = place // width
            start, end = array("I", bytes(4) + ends)[number : number + 2]
            return start + 1, end - start, batch, first
    return None


def _columns(version: Version | None) -> tuple[str | None, int | None]:
    return (None, None) if version is None else (version.digest, version.mode)


def _turn(row: tuple[Any, ...]) -> TurnRow:
    return TurnRow(*row[:8], notes=tuple(json.loads(row[8])), pid=row[9], started=row[10])


def _write(row: tuple[Any, ...]) -> Write:
    turn, path, before, before_mode, after, after_mode, tool, agent = row
    return Write(turn, bytes(path), _version(before, before_mode), _version(after, after_mode), tool, agent)


def _pack(data: bytes) -> tuple[int, bytes]:
    # Small ones gain less than it takes.
    if len(data) > _PACK_FROM:
        packed = zlib.compress(data, 1)
        if len(packed) < len(data):
            return 1, packed
    return 0, data
