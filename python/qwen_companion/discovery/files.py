# SPDX-License-Identifier: GPL-3.0-or-later
"""Writing, renewing and removing the discovery files (spec D1-D6, L1, L2).

Everything is done relative to directories held open, each checked to be ours when it was opened, so nobody can slip in
another one between the check and the use.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import secrets
import stat
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from qwen_companion.discovery.dialects import DIALECTS, ENVIRONMENT, Base, Dialect, Value
from qwen_companion.processes import is_alive, start_time

EDITOR_INFO = {"name": "emacs", "displayName": "Emacs"}

MARKER = "qwenCompanion"
"""Key of our own in each file: `{"host": NAME, "pid": N, "started": SECONDS}` of the Emacs it stands for.

A home directory may be shared by several machines or containers, whose process numbers say nothing to each other.
"""

_MAX_BYTES = 1024 * 1024
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Publication:
    """What was done: the ENVIRONMENT for terminals, and WARNINGS for the user about what was left out."""

    environment: dict[str, str]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class _Owner:
    """The Emacs a file stands for; the fields are those of `MARKER`."""

    host: str
    pid: int
    started: float


class _UnsafeError(Exception):
    """A directory cannot be used; the text says which and why."""


class Discovery:
    """The discovery files of one Emacs.  Its methods wait for the disk: not for the event loop."""

    def __init__(
        self,
        editor_pid: int,
        port: int,
        token: str,
        environ: Mapping[str, str],
        dialects: Sequence[Dialect] = DIALECTS,
    ) -> None:
        """ENVIRON is the environment the CLI's directories are found by."""
        self._pid = editor_pid
        self._owner = _Owner(platform.node(), editor_pid, start_time(editor_pid) or 0.0)
        self._port = port
        self._token = token
        self._environ = environ
        self._dialects = dialects
        self._lock = threading.Lock()
        self._closed = False
        self._written: dict[Dialect, tuple[str, bytes]] = {}
        self._cleared = False

    def publish(self, roots: Sequence[str]) -> Publication:
        """Put the files on disk, or rewrite them, for ROOTS: absolute paths without trailing slash."""
        with self._lock:
            warnings: list[str] = []
            usable: list[str] = []
            for root in roots:
                if os.pathsep in root:
                    # There is no way to quote it, and half of it may be another directory.
                    warnings.append(f"{root} is left out: a CLI cannot be told of a directory with {os.pathsep!r}")
                else:
                    usable.append(root)
            values = self._values(usable)
            if not self._closed:
                for dialect in self._dialects:
                    self._publish(dialect, values, warnings)
                self._cleared = True
            return Publication({name: values[value] for name, value in ENVIRONMENT}, tuple(warnings))

    def renew(self) -> tuple[str, ...]:
        """Write again what somebody else has removed, a cleaner of temporary files for one.

        Gives a warning for each file that cannot be written any more; that one is not tried again.
        """
        with self._lock:
            warnings: list[str] = []
            for dialect, (name, data) in list(self._written.items()):
                known = len(warnings)
                with _warned(dialect, name, warnings), self._directory(dialect, create=True) as directory:
                    if not _exists(directory, name):
                        _replace(directory, name, data)
                if len(warnings) > known:
                    del self._written[dialect]
            return tuple(warnings)

    def remove(self) -> None:
        """Remove the files this object has written; it writes no more."""
        with self._lock:
            self._closed = True
            for dialect, (name, data) in self._written.items():
                with contextlib.suppress(OSError, _UnsafeError), self._directory(dialect) as directory:
                    if _read(directory, name) == data:
                        os.unlink(name, dir_fd=directory)
            self._written.clear()

    def _values(self, roots: Sequence[str]) -> dict[Value, Any]:
        return {
            Value.PORT_NUMBER: self._port,
            Value.PORT_STRING: str(self._port),
            Value.WORKSPACE: os.pathsep.join(roots),
            Value.TOKEN: self._token,
            Value.EDITOR_PID: self._pid,
            Value.EDITOR_INFO: EDITOR_INFO,
            Value.EDITOR_NAME: EDITOR_INFO["displayName"],
        }

    def _publish(self, dialect: Dialect, values: Mapping[Value, Any], warnings: list[str]) -> None:
        name = dialect.file_name.format(pid=self._pid, port=self._port)
        content = {key: values[value] for key, value in dialect.content}
        content[MARKER] = asdict(self._owner)
        data = json.dumps(content, ensure_ascii=False).encode("utf-8")
        with _warned(dialect, name, warnings), self._directory(dialect, create=True) as directory:
            _replace(directory, name, data)
            self._written[dialect] = (name, data)
            if not self._cleared:
                self._clear_stale(directory, dialect, name)

    def _clear_stale(self, directory: int, dialect: Dialect, keep: str) -> None:
        """Remove files of this dialect that we left for an Emacs that has died, or for this one on another port."""
        pattern = re.compile(re.escape(dialect.file_name).replace(r"\{pid\}", r"\d+").replace(r"\{port\}", r"\d+"))
        for name in os.listdir(directory):
            if name == keep or not pattern.fullmatch(name):
                continue
            owner = _owner(_read(directory, name))
            if owner is None or owner.host != self._owner.host:
                continue
            if owner == self._owner or not is_alive(owner.pid, owner.started):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=directory)

    @contextlib.contextmanager
    def _directory(self, dialect: Dialect, create: bool = False) -> Generator[int, None, None]:
        """The open directory of DIALECT.  _UnsafeError or OSError when there is none to be used."""
        path, parts, ours = self._place(dialect)
        if ours and create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        descriptor = os.open(path, _DIRECTORY_FLAGS & ~os.O_NOFOLLOW)
        try:
            if ours:
                _check_ours(descriptor, path)
            for part in parts:
                path = os.path.join(path, part)
                descriptor, outer = _enter(descriptor, part, path, create), descriptor
                os.close(outer)
                _check_ours(descriptor, path)
            yield descriptor
        finally:
            os.close(descriptor)

    def _place(self, dialect: Dialect) -> tuple[str, tuple[str, ...], bool]:
        """Where to start, what to enter from there, and whether the start itself has to be the user's own.

        The start is taken as the user gave it, links and all; of what follows, nothing may be a link.
        """
        if dialect.base is Base.TEMPORARY:
            names = ("TMPDIR", "TMP", "TEMP")
            found = next((self._environ[name] for name in names if self._environ.get(name)), "/tmp")  # noqa: S108
            return (found[:-1] if len(found) > 1 and found.endswith("/") else found), dialect.directories, False
        home = self._environ.get("HOME") or os.path.expanduser("~")
        configured = self._environ.get("QWEN_HOME")
        if not configured:
            return home, (".qwen", *dialect.directories), False
        if configured == "~" or configured.startswith("~/"):
            configured = home + configured[1:]
        if not os.path.isabs(configured):
            raise _UnsafeError(f"QWEN_HOME is {configured}, which is another directory for each CLI")
        return configured, dialect.directories, True


@contextlib.contextmanager
def _warned(dialect: Dialect, name: str, warnings: list[str]) -> Generator[None, None, None]:
    """Turn what keeps the file NAME of DIALECT from being written into one of WARNINGS."""
    try:
        yield
    except _UnsafeError as error:
        warnings.append(f"the {dialect.name} is not written: {error}")
    except OSError as error:
        warnings.append(f"the {dialect.name} is not written: {error.filename or name}: {error.strerror}")


def _enter(parent: int, name: str, path: str, create: bool) -> int:
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
    try:
        return os.open(name, _DIRECTORY_FLAGS, dir_fd=parent)
    except OSError as error:
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise _UnsafeError(f"{path} is a symbolic link") from None
        raise OSError(error.errno, error.strerror, path) from None


def _check_ours(descriptor: int, path: str) -> None:
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid():
        raise _UnsafeError(f"{path} belongs to another user")
    # Where each user has a group of their own, directories writable by that group are usual and harmless.
    others = 0o002 if found.st_gid == os.getegid() else 0o022
    if found.st_mode & others:
        raise _UnsafeError(f"{path} can be written to by other users")


def _replace(directory: int, name: str, data: bytes) -> None:
    """Put DATA at NAME in one step: a reader sees the old file or the new one, and a link there is replaced."""
    temporary = f".{name}.{secrets.token_hex(4)}"
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise


def _exists(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _read(directory: int, name: str) -> bytes | None:
    """The content of NAME if it is a regular file of ours and not huge."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                return None
            return file.read(_MAX_BYTES)
    except OSError:
        return None


def _owner(data: bytes | None) -> _Owner | None:
    """Whom a file with our mark stands for."""
    try:
        content: object = json.loads(data or b"")
    except ValueError:
        return None
    mark = cast("dict[str, object]", content).get(MARKER) if isinstance(content, dict) else None
    if not isinstance(mark, dict):
        return None
    host, pid, started = (cast("dict[str, object]", mark).get(key) for key in ("host", "pid", "started"))
    if not isinstance(host, str) or not isinstance(pid, int) or not isinstance(started, int | float):
        return None
    return _Owner(host, pid, float(started))
