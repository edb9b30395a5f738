# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: D102 - what implements a protocol has the docstrings
"""The site of a root: its record uses files only through the site.  The site here is this machine."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from qwen_companion.domain import Peer
from qwen_companion.files.rules import RecordRules
from qwen_companion.files.versions import changed_at
from qwen_companion.journal.activity import Work, last_input, written_by
from qwen_companion.journal.baselines import Baseline
from qwen_companion.journal.local_files import LocalFiles
from qwen_companion.journal.store import Store
from qwen_companion.journal.tree_watch import Coverage, TreeWatch

Changed = Callable[[Collection[bytes] | None], None]
"""Handles the files that have changed, or None if some are unknown."""


class Watch(Protocol):
    """Reports changes in directories; for each method see `TreeWatch`."""

    async def cover(self, directories: Collection[bytes], /) -> Coverage: ...
    def read(self) -> bool: ...
    def close(self) -> None: ...


class Site(Protocol):
    """The machine where a root lies.  `true` is its name in the record, `home` the home directory there."""

    @property
    def true(self) -> str: ...
    @property
    def home(self) -> str: ...
    @property
    def rules(self) -> RecordRules:
        """Return the rules for files that are not recorded."""
        ...

    def true_directory(self, directory: str) -> str:
        """Return the name of `directory` in the record; it need not be below the root."""
        ...

    def there(self, name: str) -> str:
        """Return the name that programs there use for the file that Emacs calls `name`."""
        ...

    def files(self, directory: str, store: Store) -> Baseline:
        """Return the files below the root, recorded in `store`; lists of them are kept in `directory`."""
        ...

    def stamp(self, path: bytes, /) -> tuple[int, int] | None:
        """Return a value that changes with each write of `path`; None without a file, or if unknown."""
        ...

    def changed_at(self, path: bytes, /) -> float:
        """Return when `path` was last changed, in seconds since the epoch; see `versions`."""
        ...

    def work_of(self, peer: Peer, /) -> Work:
        """Return the activity of the process `peer` there.  Blocks."""
        ...

    def write(self, path: bytes, expected: str | None, data: bytes | None, mode: int, since: int | None, /) -> None:
        """Write `data` to `path`, or with None delete it, if it has the digest `expected` (None: no file).

        Delete empty directories created after `since`, in ms since the epoch, with it.  Blocks.

        :raises OSError: if that fails
        """
        ...

    def stage(self, patch: bytes, onto_staged: bool, /) -> int:
        """Put `patch` into the user's index, see `Staging.stage`.  Blocks.

        :raises StagingError: if that fails
        """
        ...

    def watch(self, changed: Changed) -> Watch:
        """Call `changed` soon after each change in the watched directories."""
        ...


class ThisMachine:
    """The site of a root on this machine."""

    def __init__(self, root: str, environ: Mapping[str, str]) -> None:
        """`root` is a name of the directory.  Blocks on disk I/O."""
        self._environ = environ
        self.true = os.path.realpath(root)
        self.home = os.path.realpath(environ.get("HOME") or os.path.expanduser("~"))
        self.rules = RecordRules(self.true, environ)

    def true_directory(self, directory: str) -> str:
        """See `Site`."""
        return os.path.realpath(directory)

    def there(self, name: str) -> str:
        """See `Site`."""
        return name

    def files(self, directory: str, store: Store) -> Baseline:
        """See `Site`."""
        local = LocalFiles(directory, self.true, self._environ, store.contents, self.rules)
        return Baseline(local, self.true, store, self.rules)

    def stamp(self, path: bytes) -> tuple[int, int] | None:
        """Return the inode and the time of the last write of `path`, in ns; None without a file."""
        try:
            found = os.lstat(path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def changed_at(self, path: bytes) -> float:
        """See `Site`."""
        return changed_at(path)

    def work_of(self, peer: Peer) -> Work:
        """See `Site`."""
        return Work(written_by(peer.pid), last_input(peer.pid))

    def write(self, path: bytes, *_what: object) -> None:
        """See `Site`.

        :raises OSError: always
        """
        raise OSError(errno.ENOSYS, "Emacs itself writes the files of this machine", path)

    def stage(self, patch: bytes, *_what: object) -> int:
        """See `Site`.

        :raises OSError: always
        """
        raise OSError(errno.ENOSYS, "changes of this machine are staged file by file")

    def watch(self, changed: Changed) -> Watch:
        """See `Site`."""
        return TreeWatch(changed)
