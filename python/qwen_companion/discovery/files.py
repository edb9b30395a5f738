# SPDX-License-Identifier: GPL-3.0-or-later
"""Write, renew and remove the discovery files (spec D1-D6, L1, L2).

All paths are relative to directories that are held open, and whose owner was checked when they were opened.  So nobody
can exchange a directory between the check and the use.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import stat
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from qwen_companion.base.json_objects import as_object, read_object
from qwen_companion.base.processes import has_ended, process_space, start_of
from qwen_companion.discovery.dialects import DIALECTS, Base, Dialect, File, Pids, Value, in_effect
from qwen_companion.discovery.editor_pids import editor_pids

EDITOR_INFO = {"name": "emacs", "displayName": "Emacs"}

MARKER = "qwenCompanion"
"""Our own key in each file, `{"space": NAME, "pid": N, "started": TEXT}`, which identifies its Emacs.

Several machines or containers may share a home directory, and a process number is unique in one of them only: see
`processes.process_space`.
"""

_MAX_BYTES = 1024 * 1024
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Publication:
    """The result of publishing: the `environment` for terminals, and `warnings` for the user about files left out.

    `reachable`: at least one root was published.
    """

    reachable: bool
    environment: dict[str, str]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class _Owner:
    """The Emacs that a file belongs to; `MARKER` has the same fields."""

    space: str
    pid: int
    started: str


class _UnsafeError(Exception):
    """A directory cannot be used; the message names it and the reason."""


class Discovery:
    """The discovery files of one Emacs.  Its methods block on disk I/O; never call them on the event loop."""

    def __init__(
        self,
        editor_pid: int,
        port: int,
        token: str,
        environ: Mapping[str, str],
        dialects: Sequence[Dialect] = DIALECTS,
    ) -> None:
        """`environ` locates the directories of the CLIs."""
        self._pid = editor_pid
        self._pids = editor_pids(editor_pid)
        self._owner = _Owner(process_space(), editor_pid, start_of(editor_pid) or "")
        self._port = port
        self._token = token
        self._environ = environ
        self._dialects = dialects
        self._lock = threading.Lock()
        self._closed = False
        self._wanted: dict[File, bytes] = {}
        self._written: dict[tuple[File, str], bytes] = {}
        self._failed: set[File] = set()
        self._cleared: set[File] = set()

    def publish(self, roots: Sequence[str]) -> Publication:
        """Write the files, or rewrite them, for `roots`: absolute paths without trailing slash."""
        with self._lock:
            warnings: list[str] = []
            usable: list[str] = []
            for root in roots:
                if os.pathsep in root:
                    # It cannot be quoted, and a part of it may be the name of another directory.
                    warnings.append(f"{root} is left out: a CLI cannot be told of a directory with {os.pathsep!r}")
                else:
                    usable.append(root)
            values = self._values(usable)
            files, variables = in_effect(self._dialects)
            self._pids = editor_pids(self._pid)
            self._wanted = {file: self._content(file, values) for file in files}
            self._failed.clear()
            self._write(warnings, anew=True)
            environment = {name: values[value] for name, value in variables}
            return Publication(bool(usable), environment, tuple(warnings))

    def renew(self) -> tuple[str, ...]:
        """Write the missing files: those that were removed by others, and those that could not be written before.

        Return messages for the user: about each file that cannot be written any more, once, and each that can again.
        """
        with self._lock:
            warnings: list[str] = []
            self._write(warnings)
            return tuple(warnings)

    def follow_ancestors(self) -> tuple[str, ...]:
        """Rename the files if the processes above Emacs have changed.

        They change when the terminal of Emacs is closed, and when a daemon has finished starting.
        """
        with self._lock:
            warnings: list[str] = []
            pids = editor_pids(self._pid)
            if pids != self._pids:
                self._pids = pids
                self._write(warnings)
            return tuple(warnings)

    def paths(self) -> tuple[str, ...]:
        """Return the paths of the files that this object has written and not removed."""
        with self._lock:
            return tuple(sorted(self._path(file, name) for file, name in self._written))

    def remove(self) -> None:
        """Remove the files of this object and directories that are then empty; write no more."""
        with self._lock:
            self._closed = True
            files = {file for file, _ in self._written}
            for file, name in list(self._written):
                self._remove(file, name)
            for file in files:
                self._remove_empty(file)

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

    def _content(self, file: File, values: Mapping[Value, Any]) -> bytes:
        content = {key: values[value] for key, value in file.content}
        content[MARKER] = asdict(self._owner)
        return json.dumps(content, ensure_ascii=False).encode("utf-8")

    def _names(self, file: File) -> tuple[str, ...]:
        pids = self._pids if file.pids is Pids.CANDIDATES else (self._pid,)
        return tuple(dict.fromkeys(file.name.format(pid=pid, port=self._port) for pid in pids))

    def _write(self, warnings: list[str], anew: bool = False) -> None:
        """Write the wanted files and remove others; overwrite existing ones only if `anew`."""
        if self._closed:
            return
        names = {file: self._names(file) for file in self._wanted}
        for file in self._wanted:
            failed = file in self._failed
            try:
                self._write_file(file, names[file], anew or failed)
            except (_UnsafeError, OSError) as error:
                reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
                if not failed:
                    warnings.append(f"the {file.label} is not written: {reason}; {file.without}")
                self._failed.add(file)
            else:
                if failed:
                    warnings.append(f"the {file.label} is written now")
                self._failed.discard(file)
        for file, name in [key for key in self._written if key[1] not in names.get(key[0], ())]:
            self._remove(file, name)

    def _write_file(self, file: File, names: Sequence[str], anew: bool) -> None:
        try:
            self._write_into_directory(file, names, anew)
        except FileNotFoundError:
            # Another Emacs has ended and removed the empty directory after we had opened it.
            self._write_into_directory(file, names, anew)

    def _write_into_directory(self, file: File, names: Sequence[str], anew: bool) -> None:
        with self._directory(file, create=True) as (directory, path):
            for name in names:
                if anew or not _exists(directory, name):
                    _replace(directory, path, name, self._wanted[file], self._owner)
                    self._written[file, name] = self._wanted[file]
            if file not in self._cleared:
                self._cleared.add(file)
                with contextlib.suppress(OSError):  # Only a leftover: our own files are written.
                    self._clear_stale(directory, file, names)

    def _path(self, file: File, name: str) -> str:
        return os.path.join(directory_of(file, self._environ), name)

    def _remove(self, file: File, name: str) -> None:
        """Remove one of our files unless another one has replaced it."""
        data = self._written.pop((file, name))
        with contextlib.suppress(OSError, _UnsafeError), self._directory(file) as (directory, _):
            if _read(directory, name) == data:
                os.unlink(name, dir_fd=directory)

    def _remove_empty(self, file: File) -> None:
        """Remove the directories of `file` from the shared temporary directory, where they would block other users."""
        if file.base is not Base.TEMPORARY:
            return
        path, parts, _ = _place(file, self._environ)
        with contextlib.suppress(OSError, _UnsafeError), contextlib.ExitStack() as stack:  # Not empty, or not ours.
            parents = [os.open(path, _DIRECTORY_FLAGS & ~os.O_NOFOLLOW)]
            stack.callback(os.close, parents[0])
            for part in parts[:-1]:
                path = os.path.join(path, part)
                parents.append(_enter(parents[-1], part, path, create=False, follow=False))
                stack.callback(os.close, parents[-1])
                _check_ours(os.fstat(parents[-1]), path)
            for parent, part in zip(reversed(parents), reversed(parts), strict=True):
                os.rmdir(part, dir_fd=parent)

    def _clear_stale(self, directory: int, file: File, keep: Sequence[str]) -> None:
        """Remove the files of this kind that belong to an Emacs that has died, or to this one on another port.

        Remove the temporary files of killed backends too, see `_replace`.
        """
        whole = re.escape(file.name).replace(r"\{pid\}", r"\d+").replace(r"\{port\}", r"\d+")
        pattern = re.compile(rf"{whole}|\.{whole}\.[0-9a-f]{{8}}")
        for name in os.listdir(directory):
            if name in keep or not pattern.fullmatch(name):
                continue
            owner = _owner(_read(directory, name))
            if owner is None or owner.space != self._owner.space:
                continue
            if owner == self._owner or has_ended(owner.pid, owner.started):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=directory)

    @contextlib.contextmanager
    def _directory(self, file: File, create: bool = False) -> Generator[tuple[int, str], None, None]:
        """Yield the open directory of `file` and its path.

        :raises _UnsafeError: if it is not safe to use
        :raises OSError: if it cannot be opened
        """
        path, parts, ours = _place(file, self._environ)
        if ours and create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        descriptor = os.open(path, _DIRECTORY_FLAGS & ~os.O_NOFOLLOW)
        try:
            if ours:
                _check_ours(os.fstat(descriptor), path)
            for part in parts:
                path = os.path.join(path, part)
                descriptor, outer = _enter(descriptor, part, path, create, file.base is not Base.TEMPORARY), descriptor
                os.close(outer)
                _check_ours(os.fstat(descriptor), path)
            yield descriptor, path
        finally:
            os.close(descriptor)


def _enter(parent: int, name: str, path: str, create: bool, follow: bool) -> int:
    """Open the directory `name` in `parent`; `path` is its name for messages.

    With `follow`, it may be a symbolic link of the user's own: below a home directory nobody else can replace that.
    """
    try:
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=parent)
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISLNK(found.st_mode):
            return os.open(name, _DIRECTORY_FLAGS, dir_fd=parent)
        if not follow:
            raise _UnsafeError(f"{path} is a symbolic link")
        if found.st_uid != os.geteuid():
            raise _UnsafeError(f"{path} is a symbolic link of another user")
        return os.open(name, _DIRECTORY_FLAGS & ~os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def directory_of(file: File, environ: Mapping[str, str]) -> str:
    """Return the directory in which CLIs with `environ` search for `file`."""
    top, directories, _ = _place(file, environ)
    return os.path.join(top, *directories)


def _place(file: File, environ: Mapping[str, str]) -> tuple[str, tuple[str, ...], bool]:
    """Return the directory to start from, the names to enter from it, and whether the user has to own it.

    The start may contain links, as the user chose it; for the names after it, see `_enter`.
    """
    if file.base is Base.TEMPORARY:
        names = ("TMPDIR", "TMP", "TEMP")
        found = next((environ[name] for name in names if environ.get(name)), "/tmp")  # noqa: S108
        return (found[:-1] if len(found) > 1 and found.endswith("/") else found), file.directories, False
    home = environ.get("HOME") or os.path.expanduser("~")
    configured = environ.get("QWEN_HOME")
    if not configured:
        return home, (".qwen", *file.directories), False
    if configured == "~" or configured.startswith("~/"):
        configured = home + configured[1:]
    if not os.path.isabs(configured):
        raise _UnsafeError(f"QWEN_HOME is {configured}, which is another directory for each CLI")
    return configured, file.directories, True


def _check_ours(found: os.stat_result, path: str) -> None:
    if found.st_uid != os.geteuid():
        raise _UnsafeError(f"{path} belongs to another user")
    # Where each user has a group of their own, directories writable by that group are usual and harmless.
    others = 0o002 if found.st_gid == os.getegid() else 0o022
    if found.st_mode & others:
        raise _UnsafeError(f"{path} can be written to by other users")


def _replace(directory: int, path: str, name: str, data: bytes, owner: _Owner) -> None:
    """Put `data` at `name` in `directory`, whose path is `path`, in one step: readers see the old file or the new one.

    A file of the same `owner` keeps its time.  Of several files a CLI chooses the newest.  That should be the file of
    the newest Emacs, not of the one whose projects have changed last.
    """
    path = os.path.join(path, name)
    try:
        times = _times_of_ours(directory, path, name, owner)
        temporary = f".{name}.{secrets.token_hex(4)}"
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory
        )
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            if times is not None:
                os.utime(temporary, ns=times, dir_fd=directory)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def _times_of_ours(directory: int, path: str, name: str, owner: _Owner) -> tuple[int, int] | None:
    """Return the times of the file at `name` if it belongs to `owner`.

    :raises _UnsafeError: if it is not of a kind that we write
    """
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise _UnsafeError(f"{path} is {'a symbolic link' if stat.S_ISLNK(found.st_mode) else 'no file'}")
    _check_ours(found, path)
    return (found.st_atime_ns, found.st_mtime_ns) if _owner(_read(directory, name)) == owner else None


def _exists(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _read(directory: int, name: str) -> bytes | None:
    """Return the content of `name` if it is a regular file of ours and not huge."""
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
    """Return the owner named by the mark in `data`, a discovery file; None without a mark of ours."""
    mark = as_object((read_object(data or b"") or {}).get(MARKER))
    space, pid, started = (mark.get(key) for key in ("space", "pid", "started"))
    if not isinstance(space, str) or not isinstance(pid, int) or not isinstance(started, str):
        return None
    return _Owner(space, pid, started)
