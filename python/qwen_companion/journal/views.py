# SPDX-License-Identifier: GPL-3.0-or-later
"""What the model of each conversation last saw of a file: by reading, by notes, and by writing."""

from __future__ import annotations

from dataclasses import dataclass

from qwen_companion.files.versions import Loaded
from qwen_companion.journal.contents import Contents
from qwen_companion.journal.database import Database
from qwen_companion.journal.store import DISK, HOOKS, MAX_AGE_MS, MERGE, REWIND, UNDO

NO_FILE, UNKNOWN = "", "?"
"""The digests for a missing file, and for unknown contents."""

MAX_TEXT_BYTES = 1024 * 1024
"""Largest file whose bytes are kept for a view."""

MAX_BYTES = 32 * 1024 * 1024
"""Most bytes that are kept for views; then the oldest views are forgotten."""

MAX_FILES = 500
"""Most files of one conversation that are followed: those that it saw last."""


@dataclass(frozen=True)
class View:
    """A conversation saw the bytes of `digest` in the file `path`; then it was told that these are `named`, or None."""

    path: bytes
    digest: str
    named: str | None = None


def digest_in(loaded: Loaded | None) -> str:
    """Return the digest of `loaded`, `NO_FILE` for None."""
    return NO_FILE if loaded is None else loaded.version.digest


class Views:
    """The views of one root.  Its methods block on disk I/O, are thread-safe, and raise StoreError."""

    def __init__(self, database: Database, contents: Contents) -> None:
        """Store views in `database`, and bytes in `contents`."""
        self._database = database
        self._contents = contents

    def note(self, session: str, path: bytes, loaded: Loaded | None, now: int) -> None:
        """Note that the model of `session` has seen `loaded` in `path`, or None for no file, at `now` in ms."""
        data = b"" if loaded is None or len(loaded.data) > MAX_TEXT_BYTES else loaded.data
        with self._database.transaction() as db:
            if loaded is not None and len(data) == len(loaded.data):
                self._contents.put([(loaded.version.digest, data)])
            db.execute(
                "insert or replace into views values(?, ?, ?, null,"
                " (select coalesce(max(id), 0) from writes where path = ?), ?, ?)",
                (session, path, digest_in(loaded), path, len(data), now),
            )
            db.execute("delete from views where time < ?", (now - MAX_AGE_MS,))
            if db.execute("select sum(size) from views").fetchone()[0] > MAX_BYTES:
                # Half of them: otherwise the next read would do the same again.
                db.execute("delete from views where time <= (select avg(time) from views)")
                self._contents.forget_unused()

    def note_unknown(self, session: str, path: bytes, now: int) -> None:
        """Note that the model of `session` has seen an unknown text in `path` by `now`, in ms.

        An earlier view, or a write of its own, is more informative and is kept.
        """
        self._database.execute(
            "insert or ignore into views values(?, ?, ?, null, 0, 0, ?)", session, path, UNKNOWN, now
        )

    def has(self, session: str, path: bytes) -> bool:
        """Return whether the model of `session` is known to have seen `path`."""
        return self._database.row("select 1 from views where session = ? and path = ?", session, path) is not None

    def name(self, session: str, view: View, digest: str, now: int) -> None:
        """Note that `session` was told, without the text, that the file of `view` now has the bytes of `digest`."""
        self._database.execute(
            "insert or replace into views values(?, ?, ?, ?, (select coalesce(max(id), 0) from writes"
            " where path = ?), coalesce((select size from views where session = ? and path = ?), 0), ?)",
            *(session, view.path, view.digest, digest, view.path, session, view.path, now),
        )

    def forget(self, session: str, since: int) -> None:
        """Forget what the model of `session` has seen from `since` on, in ms."""
        self._database.execute("delete from views where session = ? and time >= ?", session, since)

    def known(self, session: str) -> list[View]:
        """Return the views of `session`, the latest first."""
        with self._database.transaction() as db:
            seen = db.execute("select path, digest, named, after from views where session = ?", (session,)).fetchall()
            # A change that no hook reported may be the user's.
            written = db.execute(
                "select path, after, id from writes where id in (select max(writes.id) from writes"
                " join turns on turn = turns.id where session = ? and source not in (?, ?, ?)"
                " and turn not in (select turn from rewound)"
                " and not (tool = ? and source = ?) group by path)",
                (session, UNDO, MERGE, REWIND, DISK, HOOKS),
            ).fetchall()
        found = {bytes(path): (after, View(bytes(path), digest, named)) for path, digest, named, after in seen}
        for path, digest, number in written:
            if bytes(path) not in found or found[bytes(path)][0] < number:
                found[bytes(path)] = number, View(bytes(path), digest or NO_FILE)
        return [view for _, view in sorted(found.values(), key=lambda each: each[0], reverse=True)[:MAX_FILES]]

    def paths_with(self, digest: str) -> list[bytes]:
        """Return files that had the bytes of `digest` at the last scan, two at most."""
        rows = self._database.rows("select path from current where digest = ? limit 2", digest)
        return [bytes(path) for (path,) in rows]
