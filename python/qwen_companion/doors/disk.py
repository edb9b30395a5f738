# SPDX-License-Identifier: GPL-3.0-or-later
"""What a CLI sees of files, and its variables: asked to find out what an edit or a command of its would do."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from fnmatch import translate

from qwen_companion.doors.layer import JsonObject, read_settings
from qwen_companion.frozen import frozen
from qwen_companion.ide.targets import check_target
from qwen_companion.threads import in_thread

FILE = "file"
DIRECTORY = "directory"
LINK = "link"
OTHER = "other"


@frozen
class Status:
    """What lies at a path: its kind, one of those above, and how many names it has."""

    kind: str
    links: int


class Disk:
    """That of this machine.  But for `review_file` nothing here is for the event loop.

    Questions about another one may raise OSError.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        """`environ` has the variables by which CLIs find settings, and shells programs."""
        self.environ = environ

    # --- What is asked of it

    def expect(self, paths: Collection[str], settings: Collection[str]) -> None:
        """Prepare for questions about `paths` and the files `settings`."""

    def status(self, path: str) -> Status | None:
        """Return what lies at `path` itself, None for nothing."""
        with suppress(OSError, ValueError):
            found = os.lstat(path)
            kinds = ((stat.S_ISREG, FILE), (stat.S_ISDIR, DIRECTORY), (stat.S_ISLNK, LINK))
            return Status(next((kind for test, kind in kinds if test(found.st_mode)), OTHER), found.st_nlink)
        return None

    def real(self, path: str) -> str:
        """Return the true name of `path`."""
        return os.path.realpath(path)

    def names(self, directory: str) -> list[str]:
        """Return the names in `directory`, none for what is no directory."""
        with suppress(OSError):
            return os.listdir(directory)
        return []

    def may_enter(self, directory: str) -> bool:
        """Return whether a shell can change to `directory`."""
        return os.path.isdir(directory) and os.access(directory, os.X_OK)

    def settings(self, path: str) -> JsonObject:
        """Return the settings in the file `path`, see `read_settings`.

        :raises LayerError: where the CLI would not start
        """
        return read_settings(path)

    def name(self, path: str) -> str:
        """Return the name in Emacs of the file `path`."""
        return path

    async def review_file(self, path: str) -> str:
        """Return the file of this machine that has the text of `path`, for a review.

        :raises TargetError: when it cannot be given a new text in a review
        """
        await in_thread(check_target, path, None)
        return path

    # --- What follows from that

    def exists(self, path: str) -> bool:
        """Return whether there is anything at `path`, be it a link that leads nowhere."""
        return self.status(path) is not None

    def is_link(self, path: str) -> bool:
        """Return whether `path` is a symbolic link."""
        return self._is(LINK, path)

    def is_directory(self, path: str) -> bool:
        """Return whether `path` is a directory, or leads to one."""
        return self._is(DIRECTORY, self.real(path))

    def has_other_names(self, path: str) -> bool:
        """Return whether `path` is a file, or leads to one, that has another name, which may be anywhere."""
        found = self.status(self.real(path))
        return found is not None and found.kind == FILE and found.links > 1

    def _is(self, kind: str, path: str) -> bool:
        found = self.status(path)
        return found is not None and found.kind == kind

    def below(self, path: str) -> Iterator[str]:
        """Yield all names below the directory `path`; follow no links."""
        for name in self.names(path) if self._is(DIRECTORY, path) else ():
            inner = os.path.join(path, name)
            yield inner
            yield from self.below(inner)

    def matching(self, directory: str, pattern: str) -> list[str]:
        """Return the names, relative to `directory` if `pattern` is, that a shell puts in its place."""
        found = ["/" if pattern.startswith("/") else ""]
        for part in filter(None, pattern.split("/")):
            if glob.has_magic(part):
                matches = re.compile(translate(part)).match
                found = [
                    os.path.join(place, name)
                    for place in found
                    for name in self.names(os.path.join(directory, place))
                    if matches(name) and (part.startswith(".") or not name.startswith("."))
                ]
            else:
                names = (os.path.join(place, part) for place in found)
                found = [name for name in names if self.exists(os.path.join(directory, name))]
        if pattern.endswith("/"):
            return [f"{name}/" for name in found if self.is_directory(os.path.join(directory, name))]
        return found
