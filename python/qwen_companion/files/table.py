# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of the files below a root: the stamp and the version of each at the last scan."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct

from qwen_companion.files.stamps import STAMP, Status, created_ns, lasting_stamp, stamp_of
from qwen_companion.files.versions import GONE, TooLargeError, Version

_MODE = Struct("<I")

_AT_ONCE = 1000
"""Files that are examined before other threads run: this takes some 3 ms."""

_PAUSE_S = 0.0001


@dataclass(frozen=True)
class Change:
    """The file `path`, an absolute name, was `before` at the last scan, and is `after` now.

    Unless it is `known`, it may have been something else too.  `linked`: it is a name of another file now.
    """

    path: bytes
    before: Version | None
    after: Version | None
    known: bool = True
    linked: bool = False


@dataclass
class Look:
    """What a scan begun at `time`, in ns, found on the disk.

    `changed` are the files that differ from the table or are new, `gone` those of the table that are missing, `failed`
    those that cannot be examined.  `created` has the times at which the new ones were created, in ns.  `missing` are
    listed files that are not there.  `hidden` are all skipped files that may have existed; a directory stands for all
    its files.  `repositories` are the private directories of repositories, and `left_out` messages for the user about
    files that are not recorded.
    """

    time: int
    is_first: bool = False
    changed: dict[bytes, Status] = field(default_factory=dict[bytes, Status])
    gone: set[bytes] = field(default_factory=set[bytes])
    failed: dict[bytes, OSError | TooLargeError] = field(default_factory=dict[bytes, OSError | TooLargeError])
    created: dict[bytes, int] = field(default_factory=dict[bytes, int])
    missing: set[bytes] = field(default_factory=set[bytes])
    hidden: set[bytes] = field(default_factory=set[bytes])
    repositories: set[str] = field(default_factory=set[str])
    left_out: list[str] = field(default_factory=list[str])
    directories: dict[bytes, bool] = field(default_factory=dict[bytes, bool])
    """The directories of all files, and whether each can be reached without a link."""
    changes: list[Change] = field(default_factory=list[Change])
    """The known changes since the last scan."""

    def leave_out(self, name: bytes, error: Exception) -> None:
        """Note that the file `name` is not recorded because of `error`."""
        self.warn(name, error)
        self.hidden.add(name)

    def warn(self, name: bytes, error: Exception) -> None:
        """Tell the user of `error` with the file `name`."""
        reason = error.strerror if isinstance(error, OSError) else str(error)
        self.left_out.append(f"{os.fsdecode(name).encode('utf-8', 'replace').decode()}: {reason}")


class Table:
    """The files below the directory `root`, a true name, by absolute names."""

    def __init__(self, root: str, rows: Mapping[bytes, bytes]) -> None:
        """Begin with `rows`, as stored before."""
        self._root = os.fsencode(root).rstrip(b"/")
        # One string for each file, as there may be very many: the stamp, the mode and the digest.
        self._rows = dict(rows)
        self._unsaved: set[bytes] = set()

    def __contains__(self, name: bytes) -> bool:
        """Return whether the table has the file `name`."""
        return name in self._rows

    def __iter__(self) -> Iterator[bytes]:
        """Return the names of all files."""
        return iter(self._rows)

    def version(self, name: bytes) -> Version | None:
        """Return the version of the file `name`, None if the table does not have it."""
        row = self._rows.get(name)
        if row is None:
            return None
        start = STAMP.size + _MODE.size
        return Version(row[start:].hex(), _MODE.unpack_from(row, STAMP.size)[0])

    def inode(self, name: bytes) -> tuple[int, int] | None:
        """Return the inode of the file `name` and the time of its last change, None if the table does not have it."""
        row = self._rows.get(name)
        if row is None:
            return None
        inode, _, _, _, changed = STAMP.unpack_from(row)
        return inode, changed

    def put(self, name: bytes, version: Version, status: Status, now: int) -> None:
        """Note that the file `name` had that `status`, and after `now` that `version`."""
        row = lasting_stamp(status, now) + _MODE.pack(version.mode) + bytes.fromhex(version.digest)
        if self._rows.get(name) != row:
            self._rows[name] = row
            self._unsaved.add(name)

    def drop(self, name: bytes) -> None:
        """Forget the file `name`, if the table has it."""
        if self._rows.pop(name, None) is not None:
            self._unsaved.add(name)

    def unsaved(self) -> dict[bytes, bytes | None]:
        """Return the rows that differ from those stored, None for dropped ones; count them as stored."""
        found = {name: self._rows.get(name) for name in self._unsaved}
        self._unsaved.clear()
        return found

    def compare(self, names: Iterable[bytes], look: Look) -> list[bytes]:
        """Examine the files `names`, add the differences to `look`, and return those that are directories."""
        directories: list[bytes] = []
        for count, name in enumerate(names, 1):
            if count % _AT_ONCE == 0:
                time.sleep(_PAUSE_S)
            row, status = self._rows.get(name), self._status(name, look)
            if row is not None and status is not None and row.startswith(stamp_of(status)):
                continue
            kind = 0 if status is None else stat.S_IFMT(status.st_mode)
            if status is not None and kind in (stat.S_IFREG, stat.S_IFLNK):
                look.changed[name] = status
                if row is None and not look.is_first:
                    # Now: it may move.
                    look.created[name] = created_ns(name, status)
            elif name not in look.failed:
                if kind == stat.S_IFDIR:
                    directories.append(name)
                look.missing.add(name)
                if row is not None:
                    look.gone.add(name)
        return directories

    def _status(self, name: bytes, look: Look) -> os.stat_result | None:
        """Return the status of `name`, None for a missing file or one behind a link; note a failure in `look`."""
        directory = name[: name.rfind(b"/")]
        is_real = look.directories.get(directory)
        if is_real is None:
            is_real = self._is_real(directory, look.directories)
        try:
            return os.lstat(name) if is_real else None
        except OSError as error:
            if error.errno not in GONE:
                look.failed[name] = error
            return None

    def _is_real(self, directory: bytes, known: dict[bytes, bool]) -> bool:
        """Return whether `directory` is one, and can be reached from the root without a link."""
        if len(directory) <= len(self._root):
            return True
        found = known.get(directory)
        if found is None:
            found = self._is_real(os.path.dirname(directory), known)
            if found:
                try:
                    found = stat.S_ISDIR(os.lstat(directory).st_mode)
                except OSError as error:
                    # Then the files tell why they cannot be examined.
                    found = error.errno not in GONE
            known[directory] = found
        return found
