# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of one root as last recorded: their versions, and the bytes of these and of earlier ones."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from sqlite3 import Connection

from qwen_companion.files.versions import MAX_FILE_BYTES, Loaded, Version, algorithm_of, digest_of
from qwen_companion.journal.database import DamagedStoreError, Database

_PACK_FROM = 4096
"""Bytes from which a text is compressed, and not bundled with others."""

_BUNDLED = 32
"""Most texts in a row.  Finding one in a row of ten times as many took twice as long."""


class Contents:
    """The contents in a database.  Its methods block on disk I/O, are thread-safe, and raise StoreError."""

    def __init__(self, database: Database) -> None:
        """Store everything in `database`."""
        self._database = database

    # --- Bytes ---

    def put(self, items: Iterable[tuple[str, bytes]]) -> None:
        """Store the bytes of each digest."""
        with self._database.transaction() as db:
            db.executemany(
                "insert or ignore into blobs values(?, ?, ?)", ((digest, *_pack(data)) for digest, data in items)
            )

    def get(self, digest: str) -> bytes | None:
        """Return the bytes of `digest`, None if they are missing or damaged."""
        with self._database.transaction() as db:
            row = db.execute("select packed, data from blobs where digest = ?", (digest,)).fetchone()
            if row is None:
                place = _place(db, digest)
                query = "select 0, substr(data, ?, ?) from bundles where batch = ? and first = ?"
                row = place and db.execute(query, place).fetchone()
        with suppress(zlib.error, TypeError):
            if row is not None:
                data = zlib.decompressobj().decompress(row[1], MAX_FILE_BYTES + 1) if row[0] else bytes(row[1])
                return data if digest_of(data, algorithm_of(digest)) == digest else None
        return None

    def begin_with(self, files: Sequence[tuple[bytes, Loaded]]) -> None:
        """Store the bytes of `files`, a part of a first baseline; note that large ones are on the disk.

        The small ones are kept as long as this store, many in a row: a row for each took a third of the whole time.
        """
        small = {loaded.version.digest: loaded.data for _, loaded in files if len(loaded.data) <= _PACK_FROM}
        large = [(path, loaded) for path, loaded in files if len(loaded.data) > _PACK_FROM]
        with self._database.transaction() as db:
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
        """Return those of `digests` that are not stored."""
        with self._database.transaction() as db:
            return [
                digest
                for digest in dict.fromkeys(digests)
                if db.execute("select 1 from blobs where digest = ?", (digest,)).fetchone() is None
                and _place(db, digest) is None
            ]

    def forget_unused(self) -> None:
        """Delete the bytes that no write, no view and no file on the disk needs."""
        self._database.execute(
            "delete from blobs where digest not in (select before from writes where before is not null"
            " union select after from writes where after is not null"
            " union select digest from current where digest is not null union select digest from views)"
        )

    # --- The files on the disk ---

    def current(self, path: bytes, otherwise: Version | None) -> Version | None:
        """Return the last recorded version of `path`, or `otherwise` if there is none."""
        row = self._database.row("select digest, mode from current where path = ?", path)
        return otherwise if row is None else read_version(*row)

    def set_current(self, items: Iterable[tuple[bytes, Version | None]]) -> None:
        """Record the versions of files on the disk."""
        with self._database.transaction() as db:
            db.executemany(
                "insert or replace into current values(?, ?, ?)", ((path, *columns_of(v)) for path, v in items)
            )

    def recorded(self) -> list[bytes]:
        """Return the files with a recorded version on the disk."""
        rows = self._database.rows("select path from current where digest is not null")
        return [bytes(path) for (path,) in rows]

    def load_scan(self) -> tuple[str, int] | None:
        """Return the facts about the last scan and its time, None if there was none."""
        return self._database.row("select facts, time from scan")

    def load_rows(self) -> dict[bytes, bytes]:
        """Return the table of files at the last scan."""
        return dict(self._database.rows("select path, row from files"))

    def save_scan(self, facts: str, time: int, rows: Mapping[bytes, bytes | None]) -> None:
        """Store the `facts` about a scan at `time`, and the `rows` of the table that it has changed; None deletes."""
        with self._database.transaction() as db:
            db.execute("insert or replace into scan values(1, ?, ?)", (facts, time))
            db.executemany("delete from files where path = ?", ((path,) for path, row in rows.items() if row is None))
            kept = ((path, row) for path, row in rows.items() if row is not None)
            db.executemany("insert or replace into files values(?, ?)", kept)

    def restart(self) -> None:
        """Delete the recorded versions on the disk; a new baseline records them again."""
        with self._database.transaction() as db:
            for table in ("current", "files", "scan"):
                db.execute(f"delete from {table}")  # noqa: S608 - these names
            # An unfinished baseline may be repeated many times.
            db.execute("delete from bundles where not exists (select 1 from writes)")


def read_version(digest: str | None, mode: int | None) -> Version | None:
    """Return the version in two columns."""
    return None if digest is None or mode is None else Version(digest, mode)


def columns_of(version: Version | None) -> tuple[str | None, int | None]:
    """Return `version` as two columns."""
    return (None, None) if version is None else (version.digest, version.mode)


def _pack(data: bytes) -> tuple[int, bytes]:
    # Compressing small ones saves too little for its time.
    if len(data) > _PACK_FROM:
        packed = zlib.compress(data, 1)
        if len(packed) < len(data):
            return 1, packed
    return 0, data


def _batches(db: Connection) -> int:
    """Return the number of batches of bundles; within each, bundles are sorted by digests."""
    return db.execute("select coalesce(max(batch) + 1, 0) from bundles").fetchone()[0]


def _place(db: Connection, digest: str) -> tuple[int, int, int, bytes] | None:
    """Return the start of the bytes of `digest` in their bundle, from 1, their number, and the key of the bundle.

    :raises DamagedStoreError: if the bundle is not as it was written
    """
    try:
        return _place_in_bundle(db, bytes.fromhex(digest))
    except (TypeError, ValueError, IndexError):
        raise DamagedStoreError("the texts of the first look are damaged") from None


def _place_in_bundle(db: Connection, wanted: bytes) -> tuple[int, int, int, bytes] | None:
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
