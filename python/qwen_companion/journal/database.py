# SPDX-License-Identifier: GPL-3.0-or-later
"""The private SQLite file of one root's record: opened, checked, and used in transactions."""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from functools import cache
from typing import Any

from qwen_companion.base.errors import CompanionError

FORMAT = 3

_TABLES = """
create table if not exists blobs(digest text primary key, packed integer not null, data blob not null) without rowid;
create table if not exists bundles(
  batch integer, first blob, digests blob, ends blob, data blob, primary key(batch, first)) without rowid;
create table if not exists current(path blob primary key, digest text, mode integer) without rowid;
create table if not exists files(path blob primary key, row blob not null) without rowid;
create table if not exists scan(one integer primary key, facts text not null, time integer not null);
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
create table if not exists usage(turn integer, model text, input integer, output integer, cached integer,
  primary key(turn, model)) without rowid;
create table if not exists views(
  session text, path blob, digest text, named text, after integer, size integer, time integer,
  primary key(session, path)) without rowid;
create table if not exists prompts(turn integer primary key, text text);
create table if not exists origins(write integer primary key, state blob);
create table if not exists removed(
  path blob, line blob, previous blob, origin integer, primary key(path, line, previous)) without rowid;
create table if not exists rewound(turn integer primary key, copy text);
create table if not exists rewinding(turn integer primary key);
create table if not exists linked(write integer primary key);
"""

_FORMER = "create table undone(turn integer, session text, path blob, primary key(turn, path));"
"""A table of earlier versions."""

_TYPED = ("turns", "writes", "current", "files", "scan", "seen", "usage", "views", "prompts", "rewound")
"""Tables whose columns are checked for the types of their values, since SQLite accepts any."""

_REQUIRED = ("session", "client", "source", "prompt", "start", "notes", "path", "text", "model", "row", "facts")
"""Columns of these tables that are never null."""

QUERY_S = 5.0
"""Longest time for a query, in seconds: the longest for a record of 500 MiB takes a fifth of that."""

CLOSE_S = 1.0
"""Longest time for a statement after the file was closed, in seconds."""

_STEPS = 50_000
"""Steps of SQLite's machine between checks of the time of a query: about a millisecond."""

_CHECKED_BYTES = 64 * 1024 * 1024
"""Largest file that is read completely when it is opened, in 0.1 s; damage of a larger one shows when it is used."""


class StoreError(CompanionError):
    """The record cannot be read or written; the message has the reason."""


class DamagedStoreError(StoreError):
    """The file is not of SQLite, or incomplete."""


class Database:
    """An open file with the tables of a record.

    Its methods block on disk I/O, are thread-safe, and raise StoreError.
    """

    def __init__(self, path: str) -> None:
        """Open the file `path` in a private directory, or create it."""
        self._lock = threading.RLock()
        self._limit = math.inf
        """When the running query is interrupted, in seconds of the monotonic clock."""
        self._end = math.inf
        """When any statement is interrupted."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.close(descriptor)
        self._path = path
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._db.set_progress_handler(lambda: time.monotonic() > min(self._limit, self._end), _STEPS)
        except sqlite3.Error as error:
            raise StoreError(str(error)) from None
        try:
            self._check()
            # Written data survives the end of this process, but not always a crash of the machine.
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
        :raises DamagedStoreError: if it is incomplete, or has definitions that are not ours
        """
        self._db.executescript("pragma trusted_schema=off; pragma cell_size_check=on")
        if self._db.execute("pragma user_version").fetchone()[0] > FORMAT:
            raise StoreError("what is recorded there was written by a newer version of qwen-companion")
        # A view, a trigger or a computed column would run in our queries.
        strange = _definitions(self._db) - _own_definitions()
        if strange:
            raise DamagedStoreError(f"it defines what is not ours: {', '.join(sorted(name for name, _ in strange))}")
        if os.path.getsize(self._path) <= _CHECKED_BYTES:
            (found,) = self._db.execute("pragma quick_check(1)").fetchone()
            if found != "ok":
                raise DamagedStoreError(found)
        for table in _TYPED:
            columns = self._db.execute(f"pragma table_info({table})").fetchall()
            wrong = [f"typeof({name}) not in ('{kind.lower()}', 'null')" for _, name, kind, *_ in columns]
            wrong += [f"{name} is null" for _, name, *_ in columns if name in _REQUIRED]
            if wrong and self.row(f"select 1 from {table} where {' or '.join(wrong)} limit 1"):  # noqa: S608 - these names
                raise DamagedStoreError(f"the table {table} holds what was not written there")

    def close(self) -> None:
        """Close the file; interrupt statements that still run after `CLOSE_S`."""
        self._end = time.monotonic() + CLOSE_S
        with self._lock:
            self._db.close()

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Run a block as one transaction."""
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

    def execute(self, statement: str, *values: object) -> None:
        """Execute `statement` with `values` in a transaction."""
        with self.transaction() as db:
            db.execute(statement, values)

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return all rows of the result of `query` with `values`, in a transaction."""
        with self.transaction() as db:
            self._limit = time.monotonic() + QUERY_S
            try:
                return db.execute(query, values).fetchall()
            finally:
                self._limit = math.inf

    def row(self, query: str, *values: object) -> tuple[Any, ...] | None:
        """Return the first row of the result of `query` with `values`, None without one."""
        return next(iter(self.rows(query, *values)), None)

    @property
    def changes(self) -> int:
        """A number that increases with each change."""
        return self._db.total_changes

    def size(self) -> int:
        """Return the bytes of the file in use."""
        query = "select (page_count - freelist_count) * page_size"
        return self.rows(f"{query} from pragma_page_count, pragma_freelist_count, pragma_page_size")[0][0]

    def give_back(self) -> None:
        """Shrink the file by the unused part."""
        with self._lock:
            # `execute` would take one step of it, which frees one page.
            self._db.executescript("pragma incremental_vacuum")


def _definitions(db: sqlite3.Connection) -> set[tuple[str, str]]:
    """Return all definitions in `db`: the names, and the kinds with the texts."""
    rows = db.execute("select name, type, tbl_name, sql from sqlite_master").fetchall()
    return {(str(name), " ".join(f"{kind} {table} {definition}".split())) for name, kind, table, definition in rows}


@cache
def _own_definitions() -> set[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_TABLES + _FORMER)
        return _definitions(db)


def _failure(error: sqlite3.Error) -> StoreError:
    if str(error) == "interrupted":
        return StoreError(f"a query of the record took longer than {QUERY_S:g} s")
    # Locks and full disks raise subclasses; this one also occurs for a file that was emptied.
    is_damage = type(error) is sqlite3.DatabaseError or str(error).startswith("no such table")
    return (DamagedStoreError if is_damage else StoreError)(str(error))
