# SPDX-License-Identifier: GPL-3.0-or-later
"""Report all changes in certain directories, if the system reports them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from qwen_companion.base import inotify as system
from qwen_companion.base.inotify import Inotify, InotifyWatch, open_inotify
from qwen_companion.base.threads import in_thread

_MASK = (
    *(system.CLOSE_WRITE, system.MOVED_FROM, system.MOVED_TO, system.CREATE, system.DELETE),
    *(system.ATTRIB, system.ONLYDIR),
)


@dataclass(frozen=True)
class Coverage:
    """The reach of a watch.  `complete`: it reports each change.  `grown`: a directory may have changed before."""

    complete: bool
    grown: bool


class TreeWatch(InotifyWatch):
    """Watches the directories that `cover` names.  Call its methods on the event loop."""

    def __init__(self, changed: Callable[[Collection[bytes] | None], None]) -> None:
        """Call `changed` with the files on the event loop soon after each change; with None if some are unknown."""
        super().__init__(open_inotify())
        self._changed = changed
        self._names: dict[int, bytes] = {}
        if self._inotify is not None:
            self._loop.add_reader(self._inotify.descriptor, self._read, self._inotify)

    async def cover(self, directories: Collection[bytes]) -> Coverage:
        """Watch `directories` and nothing else."""
        return await in_thread(self._cover, directories)

    async def cover_nearest(self, directories: Collection[str]) -> bool:
        """Watch `directories`, or the nearest existing ones above; return whether each change is reported."""
        while True:
            folders = await in_thread(_existing, directories)
            coverage = await self.cover(folders)
            # One below may have been created before it was watched.
            if not coverage.grown:
                return coverage.complete

    def _cover(self, directories: Collection[bytes]) -> Coverage:
        with self._in_use():
            inotify = self._inotify
            if inotify is None:
                return Coverage(complete=False, grown=False)
            before = set(self._names)
            numbers: dict[int, bytes] = {}
            complete = True
            for directory in directories:
                name = os.fsdecode(directory)
                # A watched directory keeps its number; one that was removed and created again gets another.
                number = inotify.add(name, sum(_MASK))
                if number is not None:
                    numbers[number] = self._names[number] = directory
                complete = complete and number is not None and system.is_local(name)
            for number in before - numbers.keys():
                inotify.remove(number)
            grown = not numbers.keys() <= before
            self._names = numbers
            return Coverage(complete, grown)

    def read(self) -> bool:
        """Read the pending events; return whether there were any."""
        return self._inotify is not None and not self._closed and self._read(self._inotify)

    def _read(self, inotify: Inotify) -> bool:
        paths: set[bytes] = set()
        known = True
        any_news = False
        with suppress(BlockingIOError):
            while True:
                data = os.read(inotify.descriptor, system.READ_BYTES)
                any_news = True
                for number, mask, name in system.events(data):
                    known = known and not mask & system.Q_OVERFLOW
                    if name and (directory := self._names.get(number)) is not None:
                        paths.add(os.path.join(directory, os.fsencode(name)))
                if len(data) <= system.READ_BYTES // 2:
                    break
        if any_news:
            self._changed(paths if known else None)
        return any_news


def _existing(directories: Collection[str]) -> set[bytes]:
    """Return each of `directories`, or the nearest existing one above."""
    found: set[bytes] = set()
    for directory in directories:
        while not os.path.isdir(directory) and directory != (above := os.path.dirname(directory)):
            directory = above
        found.add(os.fsencode(directory))
    return found
