# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the process at the other end of a connection: the wire does not name it, the operating system does.

All functions scan processes and read files; never call them on the event loop.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import psutil

from qwen_companion.base.file_names import FileNameError, file_name
from qwen_companion.base.json_objects import read_object
from qwen_companion.base.processes import parent_of, start_of
from qwen_companion.base.sockets import KERNEL_TELLS, Connection, client_socket
from qwen_companion.domain import KnownSession, Peer


@dataclass(frozen=True)
class Caller:
    """The calling program.  `name` and `version` are "" if unknown."""

    peer: Peer
    name: str
    version: str

    @property
    def label(self) -> str:
        """Its name and version for display; may be empty."""
        return f"{self.name} {self.version}".strip()


@dataclass(frozen=True)
class _Product:
    """A CLI: its npm package, its program and its display name.

    `keeps_edits_before` is the first version that writes the proposal itself when it is accepted in the terminal, and
    not the user's version returned by `closeDiff`; None without a known one.  `ends_lines` means that it may add a
    final line end.
    """

    package: str
    program: str
    name: str
    family: str
    keeps_edits_before: tuple[int, ...] | None
    ends_lines: bool


# Qwen Code 0.12.0 kept the edits, 0.15.10 dropped them; the versions between are untested.
_PRODUCTS = (
    _Product("@qwen-code/qwen-code", "qwen", "Qwen Code", "qwen", (0, 13), ends_lines=False),
    _Product("@google/gemini-cli", "gemini", "Gemini CLI", "gemini", None, ends_lines=True),
)

_FORWARDERS = frozenset(
    (
        *("ssh", "sshd", "sshd-session", "socat", "kubectl"),
        *("docker-proxy", "com.docker.backend", "rootlessport", "slirp4netns", "pasta", "pasta.avx2", "gvproxy"),
    )
)
"""Programs that carry a connection for a remote process: their directory and life are not the CLI's."""

_SHELLS = ("sh", "bash", "dash")
"""Shells in which a CLI runs a hook's command."""

_INTERPRETER = re.compile(r"(node|nodejs|bun|deno)[\d.]*")

_OPTIONS_WITH_VALUE = frozenset(
    (
        *("-r", "--require", "--import", "--loader", "--experimental-loader", "-C", "--conditions", "--title"),
        *("--env-file", "--env-file-if-exists", "--preload", "--config", "-c"),
    )
)
"""Options of the interpreters whose value may be the next argument, and a file name."""

_recent: deque[int] = deque(maxlen=8)
"""Processes found, the latest first: a CLI connects several times, also for its hooks and tools."""

_ASK_AGAIN = 16
"""Recheck the connection after scanning this many processes, as scanning takes longer."""

_MAX_LINEAGE = 30
"""Most processes in a relay's lineage of a CLI: itself and its ancestors."""

_MAX_MANIFEST_BYTES = 1024 * 1024
_MAX_NAME = 80


class Callers:
    """The programs at the other ends of connections, of this machine and of others."""

    def __init__(self, emacs_pid: int, elsewhere: Callable[[Connection], Caller | None]) -> None:
        """`elsewhere` returns the caller whose connection a relay carries; callable in any thread."""
        self._emacs_pid = emacs_pid
        self.elsewhere = elsewhere

    def find(self, connection: Connection) -> Caller | None:
        """Return the local or remote process at the other end of `connection`; see `find_caller`."""
        caller = self.elsewhere(connection) or find_caller(connection, self._emacs_pid)
        # The connections that a relay carries belong to this process, for a moment longer than that is known.
        return None if caller is None or caller.peer.pid == os.getpid() else caller


def keeps_edits(session: KnownSession | None) -> bool:
    """Return whether the CLI of `session` writes the user's edits when a proposal is accepted in the terminal."""
    product = _product(session)
    if session is None or product is None:
        return False
    version = tuple(int(number) for number in re.findall(r"\d+", session.version)[:2])
    return product.keeps_edits_before is None or () < version < product.keeps_edits_before


def ends_lines(session: KnownSession | None) -> bool:
    """Return whether the CLI of `session` may add a final line end."""
    product = _product(session)
    return product is not None and product.ends_lines


def _product(session: KnownSession | None) -> _Product | None:
    """Return the kind of CLI of `session`, or None if unknown."""
    family = session.peer.family if session and session.peer else None
    return next((product for product in _PRODUCTS if product.family == family), None)


def find_caller(connection: Connection, emacs_pid: int) -> Caller | None:
    """Return the process of this user that holds the client's end of `connection`.

    None if it is another user's or invisible: in a container, behind a tunnel.  The ancestors end below the process
    `emacs_pid`, or at the top if that is not among them.
    """
    try:
        process = _holder(connection)
        process = process and _without_command(process)
        if process is None or process.name() in _FORWARDERS:
            return None
        if process.pid not in _recent:
            _recent.appendleft(process.pid)
        directory = _directory(process)
        name, version, family = _identity(process, directory)
        ancestors = tuple(_ancestors(process.pid, emacs_pid))
        return Caller(Peer(process.pid, start_of(process.pid) or "", directory, family, ancestors), name, version)
    except (psutil.Error, OSError):
        return None  # It has ended, or the system gives no data.


def caller_at(place: str, who: Mapping[str, Any]) -> Caller:
    """Return the caller that the relay at `place` describes by `who`, an untrusted mapping."""
    name, version, directory, terminal = (who.get(key) for key in ("name", "version", "directory", "terminal"))
    try:
        directory = file_name(directory)
    except FileNameError:
        directory = None
    product = next((product for product in _PRODUCTS if product.package == name), None)
    pids = _pids(who.get("pids"))
    identity = f"{place}\0{pids[:1]}\0{who.get('started')}".encode("utf-8", "replace")
    peer = Peer(
        pid=-1 - int.from_bytes(hashlib.sha256(identity).digest()[:3], "big"),
        started="",
        directory=directory,
        family=product.family if product else None,
        ancestors=pids,
        place=place,
        terminal=terminal if isinstance(terminal, int) else None,
        prompts=who.get("prompts") is True,
    )
    return Caller(peer, product.name if product else _label(name), _label(version))


def _pids(value: object) -> tuple[int, ...]:
    """Return the numbers of processes at another place in `value`; none if it is malformed."""
    numbers = cast("list[object]", value) if isinstance(value, list) else []
    found = tuple(each for each in numbers if type(each) is int and 0 < each < 2**31)
    return found if len(found) == len(numbers) <= _MAX_LINEAGE else ()


def _holder(connection: Connection) -> psutil.Process | None:
    """Return the process of this user at the client's end."""
    found = None
    if KERNEL_TELLS:
        found = client_socket(connection)
        if found is None or found.inode == 0 or found.uid != os.getuid():
            return None
        look = partial(_find_descriptor, f"socket:[{found.inode}]")
    else:
        look = partial(_find_connection, connection)
    own = os.getpid()
    for number, pid in enumerate(_candidates(), 1):
        if KERNEL_TELLS and number % _ASK_AGAIN == 0 and client_socket(connection) != found:
            return None  # It was closed meanwhile.
        descriptor = look(pid)
        if descriptor is not None:
            # A child of the caller shares its descriptors, for a moment or for good.
            while (parent := parent_of(pid)) != own and look(parent, descriptor) is not None:
                pid = parent
            # Such a child may have ended meanwhile: its parent comes later.
            with suppress(psutil.NoSuchProcess):
                return psutil.Process(pid)
    return None


def _without_command(process: psutil.Process) -> psutil.Process | None:
    """Return the CLI above `process`, if that is its command hook's program, run by a shell; else `process`."""
    if process.name() != "curl":
        return process
    parent = process.parent()
    return parent.parent() if parent is not None and parent.name() in _SHELLS else parent


def _candidates() -> Iterator[int]:
    """Yield the processes that may hold a connection: likely ones first, this one last."""
    yield from tuple(_recent)
    own = os.getpid()
    # Most CLIs were started recently.
    yield from sorted(psutil.pids(), key=lambda pid: (pid == own, -pid))


def _find_descriptor(target: str, pid: int, only: str | None = None) -> str | None:
    """Return the number of a descriptor of `pid` that leads to `target`, as /proc shows it, or None.

    With `only`, check only the descriptor of that number.
    """
    try:
        names = os.listdir(f"/proc/{pid}/fd") if only is None else [only]
    except OSError:
        return None  # Another user's, or it has ended.
    # The newest descriptors come last.
    return next((name for name in reversed(names) if _target(f"/proc/{pid}/fd/{name}") == target), None)


def _target(link: str) -> str | None:
    try:
        return os.readlink(link)
    except OSError:
        return None


def _find_connection(connection: Connection, pid: int, _only: str | None = None) -> str | None:
    """Return "" if `pid` is a process of this user with the client's end of `connection`, else None."""
    try:
        process = psutil.Process(pid)
        is_ours = process.uids().real == os.getuid()
        return "" if is_ours and any(_joins(item, connection) for item in process.net_connections("tcp")) else None
    except psutil.Error:
        return None


def _joins(item: Any, connection: Connection) -> bool:
    """Return whether `item`, a connection by psutil, is `connection` seen from the client."""
    return bool(item.laddr and item.raddr) and (
        (_ipv4(item.laddr.ip), item.laddr.port) == connection.client
        and (_ipv4(item.raddr.ip), item.raddr.port) == connection.server
    )


def _ipv4(address: str) -> str:
    """Return `address` without the prefix of a dual-stack socket."""
    return address.removeprefix("::ffff:")


def _directory(process: psutil.Process) -> str | None:
    try:
        directory = process.cwd()
        directory.encode("utf-8")
    except (psutil.AccessDenied, UnicodeEncodeError):
        return None
    return directory or None


def _ancestors(pid: int, emacs_pid: int) -> Iterator[int]:
    while pid not in (0, emacs_pid):
        yield pid
        pid = parent_of(pid)


# --- Name and version ---


def _identity(process: psutil.Process, directory: str | None) -> tuple[str, str, str | None]:
    """Return name, version and family; "" and None where they are unknown."""
    try:
        command, program = process.cmdline(), process.exe()
    except psutil.AccessDenied:
        return "", "", None
    if not program:
        # The system hides it, or the file has been deleted.
        return "", "", None
    name = version = ""
    if _INTERPRETER.fullmatch(os.path.basename(program)):
        script = _script(command[1:], directory)
        if script is None:
            return "", "", None
        program = script
        name, version = _package(os.path.realpath(script))
    for product in _PRODUCTS:
        if name == product.package:
            return product.name, version, product.family
    # A single file is recognised by its name: the package around it is another's.
    stems = {os.path.basename(path).partition(".")[0] for path in (program, os.path.realpath(program))}
    for product in _PRODUCTS:
        if product.program in stems:
            return product.name, "", product.family
    return name, version, None


def _script(arguments: Sequence[str], directory: str | None) -> str | None:
    """Return the first of `arguments` that is a file and not the value of an option."""
    is_value = False
    for argument in arguments:
        if argument.startswith("-"):
            is_value = argument in _OPTIONS_WITH_VALUE
            continue
        path = os.path.join(directory or "/", argument)
        if not is_value and os.path.isfile(path):
            return path
        is_value = False
    return None


def _package(program: str) -> tuple[str, str]:
    """Return name and version of the npm package that contains `program`, or ""."""
    folder = os.path.dirname(program)
    # The package above a `node_modules` is the one that uses this package.
    while os.path.basename(folder) != "node_modules":
        manifest = _manifest(os.path.join(folder, "package.json"))
        name = _label(manifest.get("name"))
        if name:
            return name, _label(manifest.get("version"))
        above = os.path.dirname(folder)
        if above == folder:
            break
        folder = above
    return "", ""


def _manifest(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return read_object(file.read(_MAX_MANIFEST_BYTES)) or {}
    except OSError:
        return {}


def _label(value: object) -> str:
    """Return `value` if it is a displayable name, else ""."""
    return value if isinstance(value, str) and len(value) <= _MAX_NAME and value.isprintable() else ""
