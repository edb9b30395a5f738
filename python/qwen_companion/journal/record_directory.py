# SPDX-License-Identifier: GPL-3.0-or-later
"""The directory of one root's record: private, used by one Emacs at a time, and begun anew if it is damaged."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress

from qwen_companion.base.errors import CompanionError
from qwen_companion.base.state import key_of
from qwen_companion.journal.database import DamagedStoreError, StoreError
from qwen_companion.journal.places import state_directory
from qwen_companion.journal.store import Store

_SLOTS = 8
"""Most Emacs processes that can record the same root at once, each in its own directory."""


class NoRecordError(CompanionError):
    """Nothing can be recorded below a root; the message has the reason."""


class RecordDirectory:
    """The locked directory of one root's record.  Its methods block on disk I/O, and must not overlap."""

    def __init__(self, root: str, environ: Mapping[str, str]) -> None:
        """Lock a directory for the directory `root`, a name from Emacs.

        :raises OSError, NoRecordError: if that fails
        """
        self._root = root
        self._environ = environ
        self.news: str | None = None
        """A message for the user about a previous record that is lost; None for none."""
        self._descriptor = -1
        self.path, self.key = self._lock()

    def _lock(self) -> tuple[str, str]:
        name = key_of(self._root)
        above = os.path.join(state_directory(self._environ), name)
        state = state_directory(self._environ)
        os.makedirs(os.path.dirname(state), exist_ok=True)
        _make_private(state)
        if os.path.lexists(above) and not os.path.isdir(above):
            aside = _put_aside(above)
            self.news = f"A file was in the place of the record of {self._root}: it was put aside as {aside}"
        _make_private(above)
        for slot in range(_SLOTS):
            directory = os.path.join(above, str(slot))
            try:
                _make_private(directory)
                descriptor = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except NotADirectoryError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            self._descriptor = descriptor
            return directory, f"{name}-{slot}"
        raise NoRecordError("too many Emacsen record it")

    @property
    def trees(self) -> str:
        """The directory for git's indexes."""
        return os.path.join(self.path, "trees")

    @property
    def _file(self) -> str:
        return os.path.join(self.path, "journal.sqlite")

    def close(self) -> None:
        """Let another Emacs use the directory."""
        os.close(self._descriptor)

    def open_store(self) -> Store:
        """Open the store; if it is damaged, put it aside and begin anew.

        :raises OSError, StoreError: if that fails
        """
        if os.path.isdir(self.trees) and os.path.exists(self._file) and os.path.getsize(self._file) == 0:
            self.news = f"What was recorded of changes in {self._root} is lost: its file was empty; it begins anew"
            shutil.rmtree(self.trees, ignore_errors=True)
        try:
            return Store(self._file)
        except DamagedStoreError as error:
            return self.replace_store(str(error))

    def replace_store(self, damage: str) -> Store:
        """Put the store's file aside for its `damage`, and return a new one.

        :raises OSError, StoreError: if that fails
        """
        aside = _put_aside(self._file)
        with suppress(FileNotFoundError):
            # It belongs to that file, and would be applied to the new one.
            os.rename(f"{self._file}-journal", f"{aside}-journal")
        # So do these.
        shutil.rmtree(self.trees, ignore_errors=True)
        self.news = (
            f"What was recorded of changes in {self._root} is damaged ({damage}): it was put aside as {aside}, and "
            "the record begins anew"
        )
        return Store(self._file)

    def restore(self) -> Store | None:
        """Return a new store if the directory has been removed, else None.

        :raises DamagedStoreError: if the store's file has been emptied
        :raises OSError, StoreError, NoRecordError: if that fails
        """
        with suppress(FileNotFoundError):
            if os.path.getsize(self._file) == 0:
                raise DamagedStoreError("its file was emptied")
            return None
        descriptor = self._descriptor
        self.path, self.key = self._lock()
        try:
            store = Store(self._file)
        except (OSError, StoreError):
            os.close(self._descriptor)
            self._descriptor = descriptor
            with suppress(OSError):
                os.unlink(self._file)
            raise
        os.close(descriptor)
        return store


def _put_aside(path: str) -> str:
    """Rename the file `path`; return its new name, which has the date.

    :raises OSError: if that fails
    """
    aside = f"{path}.damaged-{time.strftime('%Y-%m-%d-%H%M%S')}"
    os.rename(path, aside)
    return aside


def _make_private(directory: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    if not os.path.isdir(directory):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
    os.chmod(directory, 0o700)
