# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies here of files at a place, for reviews and for the buffers that visit them.

Emacs compares a proposal with such a copy and watches it for writes, exactly like a local file; a buffer is updated
from it.  So neither needs TRAMP.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, cast

import anyio

from qwen_companion.base.errors import CompanionError
from qwen_companion.base.threads import in_thread
from qwen_companion.domain import PlacedFile, PlaceNames
from qwen_companion.ide.context import ResolvedPath
from qwen_companion.ide.targets import TargetError, is_text
from qwen_companion.remote.link import Link, LinkError, Look, RequestError, objects, read_look
from qwen_companion.wire.messages import ListPlaceFiles, Notification, PlaceFile, PlaceFiles

MAX_MIRRORS = 200
"""Most copies of one place to update: the latest requested ones."""

FOLDER = "places"

FRESH_S = 2.0
"""Seconds that a copy made for a proposal serves the steps of its review."""

MAX_TEXT_BYTES = 64 * 1024 * 1024
"""Largest file there, in bytes, that is reviewed when the user has set no limit."""


class Copies:
    """Updates copies of files of the place with `names` while `run` runs.  Call its methods on the event loop."""

    def __init__(
        self, names: PlaceNames, directory: str, link: Callable[[], Link], tell: Callable[[Notification], None]
    ) -> None:
        """Use a private `directory`.  `link` returns the pipe to the place, or raises LinkError.

        `tell` sends Emacs the new text of a visited file, and requested names of files.
        """
        self.size_limit: int | None = None
        self._names = names
        self._directory = os.path.join(directory, FOLDER)
        self._link = link
        self._tell = tell
        self._paths: dict[str, None] = {}
        self._fresh_until: dict[str, float] = {}
        self._visited: frozenset[str] = frozenset()
        self._untold: set[str] = set()
        """Those whose state Emacs was not sent yet."""
        self._stale: set[str] = set()
        self._stale_noted = anyio.Event()

    @property
    def paths(self) -> Sequence[str]:
        """The names there of the copied files."""
        return tuple(self._paths)

    def note_changes(self, paths: Sequence[str]) -> None:
        """Renew the copies of `paths`, which have changed there."""
        for path in paths:
            self._fresh_until.pop(path, None)
        self._stale.update(path for path in paths if path in self._paths)
        self._stale_noted.set()

    def set_visited(self, paths: Iterable[str]) -> None:
        """Set the files there that buffers visit; Emacs is sent each write to them."""
        self._visited, before = frozenset(paths), self._visited
        for path in self._visited - before:
            self._track(path)
            self._untold.add(path)
            self._stale.add(path)
            self._stale_noted.set()

    async def run(self) -> None:
        """Copy changed files until cancelled."""
        while True:
            await self._stale_noted.wait()
            self._stale_noted = anyio.Event()
            if self._untold:
                await self._watch()
            while self._stale:
                with suppress(CompanionError, OSError):
                    await self._update(self._stale.pop())

    async def review_file(self, path: str) -> tuple[str, str | None]:
        """Return the file here with which a proposal for the file `path` there is compared.

        It is an updated copy, with Emacs's name of the original, or in a shared directory the file itself, with None.
        """
        file = self._names.file(path)
        return (await self._add(path), file.name) if file.place else (file.path, None)

    async def check_target(self, path: str, roots: Sequence[ResolvedPath]) -> None:
        """Check that the file `path` there, below `roots`, can be given a new text in a review.

        :raises TargetError: otherwise; then no copy is left, unless a buffer visits the file
        """
        try:
            await self._check_target(path, roots)
        except TargetError:
            if path not in self._visited:
                self._paths.pop(path, None)
                self._fresh_until.pop(path, None)
                await in_thread(self._write, self._name(path), None)
            raise

    async def _check_target(self, path: str, roots: Sequence[ResolvedPath]) -> None:
        try:
            look = await self.inspect(path)
        except LinkError as error:
            raise TargetError(f"{path} cannot be inspected: {error}. Decide in the terminal instead.") from None
        if look is None:
            raise TargetError(f"{path} cannot be inspected. Decide in the terminal instead.")
        # A link that leads out of the roots is rejected: its name does not show which file it would write.
        real = ResolvedPath(look.spellings[-1], look.spellings[-1])
        if not any(real.is_below(ResolvedPath(root.real, root.real)) for root in roots):
            raise TargetError(f"{path} lies outside the workspace roots of Emacs. Decide in the terminal instead.")
        if look.kind not in ("file", None) or path.endswith("/"):
            raise TargetError(f"{path} is not a regular file and cannot be reviewed.")
        if not await self.is_text(path, real.path):
            raise TargetError(f"{path} is not a text file and cannot be reviewed. Decide in the terminal instead.")

    async def inspect(self, path: str) -> Look | None:
        """Return the state of `path` there, None if unknown; in the same round trip copy it for a review.

        A file of a shared directory needs no copy.

        :raises LinkError: when the place cannot be reached
        """
        link = self._link()
        found: list[dict[str, Any]] = []
        async with anyio.create_task_group() as tasks:
            if self._names.file(path).place:
                tasks.start_soon(self._prepare, path)
            with suppress(CompanionError):
                found = objects((await link.request("look", paths=[path])).get("files"))
        return read_look(found[0]) if found else None

    async def list_files(self, request: ListPlaceFiles) -> None:
        """Answer `request`, unless the place cannot be reached or has no such directory."""
        with suppress(CompanionError):
            names = (await self._link().request("names", root=request.directory)).get("names")
            found = cast("list[object]", names) if isinstance(names, list) else []
            # Names with line ends or deceiving characters are unfit for a prompt.
            files = tuple(name for name in found if isinstance(name, str) and name and name.isprintable())
            self._tell(PlaceFiles(self._names.place, request.directory, files))

    async def _prepare(self, path: str) -> None:
        """Copy the file `path` there, and keep updating the copy."""
        self._track(path)
        # In one round trip: the relay carries out requests in order.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch)
            # A change reported meanwhile ends the freshness.
            self._fresh_until[path] = time.monotonic() + FRESH_S
            try:
                await self._update(path)
            except (CompanionError, OSError):
                self._fresh_until.pop(path, None)

    def _is_fresh(self, path: str) -> bool:
        return time.monotonic() < self._fresh_until.get(path, 0)

    async def _add(self, path: str) -> str:
        """Return the name of an updated copy here of the file `path` there."""
        if not self._is_fresh(path):
            await self._prepare(path)
        return self._name(path)

    async def is_text(self, path: str, real: str) -> bool:
        """Return whether the file `path` there, with the real path `real`, is text or absent.

        :raises TargetError: when that is unavailable
        """
        file, target = self._names.file(path), self._names.file(real)
        if file.place:
            if not self._is_fresh(path):
                await self._update(path)
            file = PlacedFile("", self._name(path))
        elif target.place or os.path.realpath(file.path) != os.path.realpath(target.path):
            raise TargetError(f"{path} is a link to another file than here. Decide in the terminal instead.")
        try:
            return not os.path.exists(file.path) or await in_thread(is_text, file.path)
        except OSError as error:
            raise TargetError(f"{path} cannot be read: {error.strerror}. Decide in the terminal instead.") from None

    async def _watch(self) -> None:
        with suppress(CompanionError):
            await self._link().request("watch", paths=list(self._paths))

    def _track(self, path: str) -> None:
        self._paths.pop(path, None)
        self._paths[path] = None
        if len(self._paths) > MAX_MIRRORS:
            oldest = next(iter(self._paths))
            del self._paths[oldest]
            self._fresh_until.pop(oldest, None)

    def _here(self, path: str) -> str:
        """Return Emacs's TRAMP name of `path`."""
        return PlacedFile(self._names.place, path).name

    def _name(self, path: str) -> str:
        """Return the name of the copy of `path`, with the same last part, by which Emacs chooses a mode."""
        digest = hashlib.sha256(self._here(path).encode("utf-8", "surrogatepass")).hexdigest()[:24]
        return os.path.join(self._directory, digest, os.path.basename(path))

    async def _update(self, path: str) -> None:
        """Update the copy of `path` from there.

        :raises TargetError: when that is impossible
        """
        data, written_at = None, 0
        try:
            data, written_at = await self._link().read(path, self.size_limit or MAX_TEXT_BYTES)
        except (LinkError, RequestError) as error:
            if str(error) not in ("ENOENT", "ENOTDIR"):
                raise TargetError(f"{path} cannot be read: {error}. Decide in the terminal instead.") from None
        changed = await in_thread(self._write, self._name(path), data)
        if data is None and path in self._visited and path not in self._untold:
            self._untold.add(path)
            self._tell(PlaceFile(self._here(path), None, 0))
        if written_at > 0 and path in self._visited and (changed or path in self._untold):
            self._untold.discard(path)
            self._tell(PlaceFile(self._here(path), self._name(path), written_at))

    def _write(self, copy: str, data: bytes | None) -> bool:
        """Write `data` to `copy` atomically, or remove it with None; return whether its bytes have changed.

        :raises OSError: when it cannot be written
        """
        os.makedirs(os.path.dirname(copy), mode=0o700, exist_ok=True)
        if data is None:
            with suppress(FileNotFoundError):
                os.unlink(copy)
            return False
        with suppress(FileNotFoundError), open(copy, "rb") as old:
            if old.read() == data:
                return False
        # Outside of its folder, so that Emacs is notified only of the finished file.
        temporary = os.path.join(self._directory, f".{secrets.token_hex(8)}")
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as new:
                new.write(data)
            os.rename(temporary, copy)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        return True
