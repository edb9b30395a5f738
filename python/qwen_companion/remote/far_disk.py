# SPDX-License-Identifier: GPL-3.0-or-later
"""What a CLI at a place sees of files there, by the word of the relay; what that cannot find out is an OSError."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import anyio

from qwen_companion.doors.disk import DIRECTORY, FILE, LINK, OTHER, Disk, Status
from qwen_companion.doors.layer import SYSTEM_VARIABLE, VARIABLE, JsonObject, LayerError, parse_settings
from qwen_companion.errors import CompanionError
from qwen_companion.file_names import FileNameError, file_name
from qwen_companion.frozen import frozen
from qwen_companion.remote.link import objects, strings
from qwen_companion.threads import on_event_loop

if TYPE_CHECKING:
    from qwen_companion.remote.place import Place

_SYSTEM_FILE = "/etc/qwen-code/settings.json"
"""The administrator's settings there, unless a variable names them."""

_MAX_SETTINGS = 65536
"""Bytes of settings that a relay tells."""


@frozen
class _Found:
    status: Status | None
    real: str
    may_enter: bool
    names: list[str] | None


class FarDisk(Disk):
    """The files at `place` at the time of one question; see `Disk`."""

    def __init__(self, environ: Mapping[str, str], place: Place) -> None:
        """`environ` has variables of the CLI, as the relay tells them.

        :raises OSError: where they do not say what has to be known
        """
        files = {SYSTEM_VARIABLE: _SYSTEM_FILE, **{key: value for key, value in environ.items() if key in _FILES}}
        try:
            names = {key: file_name(value) for key, value in files.items()}
            super().__init__({**environ, **names, **{key: environ[key] for key in _NEEDED}, VARIABLE: place.layer})
        except (KeyError, FileNameError):
            raise _unknown() from None
        self._place = place
        self._found: dict[str, _Found] = {}
        self._texts: dict[str, Mapping[str, Any]] = {}

    def expect(self, paths: Collection[str], settings: Collection[str]) -> None:
        """See `Disk`: it takes one round trip."""
        wanted = sorted({path for path in paths if path.startswith("/") and "\0" not in path} - self._found.keys())

        async def ask() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._inspect, wanted)
                tasks.start_soon(self._read, list(settings))

        on_event_loop(ask)

    def status(self, path: str) -> Status | None:
        """See `Disk`."""
        return self._look(path).status

    def real(self, path: str) -> str:
        """See `Disk`."""
        return self._look(path).real

    def may_enter(self, directory: str) -> bool:
        """See `Disk`."""
        return self.is_directory(directory) and self._look(directory).may_enter

    def names(self, directory: str) -> list[str]:
        """See `Disk`; what lies at the names is asked for at once."""
        on_event_loop(self._inspect, [directory], listed=True)
        names = self._look(directory).names
        if names is None:
            raise _unknown()
        self.expect([os.path.join(directory, name) for name in names], ())
        return names

    def settings(self, path: str) -> JsonObject:
        """See `Disk`.

        :raises LayerError: where the CLI would not start, or that is not known
        """
        if path not in self._texts:
            self.expect((), [path])
        found = self._texts.get(path, {"error": True})
        text = found.get("text")
        if "error" in found or (isinstance(text, str) and len(text) > _MAX_SETTINGS):
            raise LayerError(f"{path} cannot be read")
        return parse_settings(path, text.encode("utf-8", "replace")) if isinstance(text, str) else {}

    def name(self, path: str) -> str:
        """See `Disk`."""
        return self._place.name(path) or ""

    async def review_file(self, path: str) -> str:
        """See `Disk`: it is a copy.

        :raises TargetError: when it cannot be given a new text in a review
        """
        await self._place.check_target(path)
        return (await self._place.copies.review_file(path))[0]

    # --- What the relay says

    def _look(self, path: str) -> _Found:
        if path not in self._found:
            self.expect([path], ())
        if path not in self._found:
            raise _unknown()
        return self._found[path]

    async def _inspect(self, paths: list[str], listed: bool = False) -> None:
        with suppress(CompanionError):
            answer = await self._place.link().request("inspect", paths=paths, listed=listed) if paths else {}
            for path, value in zip(paths, objects(answer.get("files")), strict=False):
                with suppress(ValueError):
                    self._found[path] = _read_found(value, listed)

    async def _read(self, paths: list[str]) -> None:
        with suppress(CompanionError):
            answer = await self._place.link().request("texts", paths=paths) if paths else {}
            self._texts.update(zip(paths, objects(answer.get("texts")), strict=False))


_FILES = ("HOME", "QWEN_HOME", SYSTEM_VARIABLE)
"""The variables that name files."""

_NEEDED = ("HOME", "PATH")


def _read_found(value: Mapping[str, Any], listed: bool) -> _Found:
    """Return what a relay says in `value` of a path.

    :raises ValueError: where it does not say it
    """
    kind, links, real = value.get("kind"), value.get("links"), strings([value.get("real")])
    if "error" in value or kind not in (FILE, DIRECTORY, LINK, OTHER, None) or not isinstance(links, int) or not real:
        raise ValueError
    names = value.get("names")
    inner = [name[1:] for name in strings(names)] if listed else None
    if inner is not None and (not isinstance(names, list) or len(inner) < len(cast("list[object]", names))):
        raise ValueError
    if any("/" in name or "\ufffd" in name for name in inner or ()):
        raise ValueError
    status = None if kind is None else Status(str(kind), links)
    return _Found(status, real[0], value.get("enter") is True, inner)


def _unknown() -> OSError:
    return OSError(errno.EIO, "the relay does not say it")
