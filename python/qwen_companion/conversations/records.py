# SPDX-License-Identifier: GPL-3.0-or-later
"""The records that Qwen Code, since 0.23, writes of its running processes: one file for each conversation.

Any of the user's programs can write there, and a killed CLI leaves its record behind.  So each is read defensively, and
counts only while the exact process it names is running.  All functions block on disk I/O; never call them on the event
loop.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from qwen_companion.base.errors import CompanionError
from qwen_companion.base.file_names import FileNameError, file_name
from qwen_companion.base.json_objects import read_object, valid_text
from qwen_companion.base.local_ids import local_id
from qwen_companion.base.processes import has_ended, start_of
from qwen_companion.base.state import read_own
from qwen_companion.discovery.dialects import LOCK_FILE
from qwen_companion.discovery.files import directory_of
from qwen_companion.domain import RegisteredCli
from qwen_companion.doors.user_settings import user_settings_file

SCHEMA = 1
"""The latest known format of records."""

NAME = re.compile(r"(\d{1,10})(?:-[0-9a-f]{8})?\.json")

_SESSION = re.compile("[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
"""Becomes a file name, and an argument of a CLI."""

_MAX_BYTES = 64 * 1024
_MAX_WORDS = 200
_END_OF_TIME = 1 << 53
"""Upper limit of a plausible time in ms."""

_CLOCK_S = 2.0
"""Seconds that a record may seem older than its process, as the clock may have been set."""


class RecordError(CompanionError):
    """A record cannot be used; the text says why."""


@dataclass(frozen=True)
class Record:
    """The record of a running CLI in the file `name`.

    `started` is the result of `processes.start_of`.  `socket` accepts messages; "" for none.
    """

    name: str
    started: str
    cli: RegisteredCli
    socket: str


def registry_directory(environ: Mapping[str, str]) -> str:
    """Return the directory of the records."""
    return os.path.join(os.path.dirname(user_settings_file(environ)), "sessions")


def names_in(directory: str) -> set[str]:
    """Return the names of all records in `directory`; none if it is missing or another user's."""
    with suppress(OSError):
        if os.stat(directory).st_uid == os.geteuid():
            return {name for name in os.listdir(directory) if NAME.fullmatch(name)}
    return set()


def read_record(directory: str, name: str) -> Record | None:
    """Return the record in the file `name`; None if its process has ended or is not on this machine.

    An unreadable one of a living process has a `problem` and little else.
    """
    match = NAME.fullmatch(name)
    # Do not open the records of dead processes: there may be ten thousand.
    if match is None or has_ended(pid := int(match[1]), ""):
        return None
    started = start_of(pid) or ""
    try:
        values = _read(os.path.join(directory, name))
        return _record(name, pid, started, values) if _is_of(pid, started, values) else None
    except FileNotFoundError:
        return None
    except (CompanionError, OSError) as error:
        text = error.strerror if isinstance(error, OSError) else str(error)
        cli = RegisteredCli(name.removesuffix(".json"), pid, problem=f"its record cannot be used: {text}")
        return Record(name, started, cli, "")


def _read(path: str) -> dict[str, Any]:
    """Return the content of the record at `path`.

    :raises RecordError, OSError: for one that cannot be used
    """
    data = read_own(path, _MAX_BYTES + 1)
    values = read_object(data) if len(data) <= _MAX_BYTES else None
    if values is None:
        raise RecordError("it is not a JSON object, or too large")
    if not isinstance(schema := values.get("schemaVersion"), int) or schema > SCHEMA:
        raise RecordError("it has a form of a newer Qwen Code, which this package does not know")
    if not isinstance(begun := values.get("startedAt"), int | float) or not 0 <= begun < _END_OF_TIME:
        raise RecordError("it lacks the time at which the CLI has started")
    return values


def _is_of(pid: int, started: str, values: Mapping[str, Any]) -> bool:
    """Return whether `values` describe the running process `pid`, started at `started`."""
    space, start = values.get("pidNs"), values.get("procStart")
    with suppress(OSError):
        if space is not None and space != os.stat("/proc/self/ns/pid").st_ino:
            return False  # It is in a container, whose processes have other numbers.
    if isinstance(start, str):
        return start == started
    # Only records on Linux have this.  A process younger than its record has reused the number of a killed CLI.
    try:
        return psutil.Process(pid).create_time() <= values["startedAt"] / 1000 + _CLOCK_S
    except psutil.Error:
        return False


def _record(name: str, pid: int, started: str, values: Mapping[str, Any]) -> Record:
    """Return the record of the running process `pid`.

    :raises RecordError, FileNameError: when a required member is missing
    """
    kind, socket = values.get("kind"), ""
    with suppress(FileNameError):
        socket = file_name(values.get("ipcPath"))
    if values.get("pid") != pid:
        raise RecordError("it names another process than its file")
    directory = file_name(values.get("cwd"))
    session = values.get("sessionId")
    if not isinstance(session, str) or not _SESSION.fullmatch(session):
        raise RecordError("the id of its conversation is not valid")
    cli = RegisteredCli(
        name.removesuffix(".json"),
        pid,
        session=session,
        chat=local_id("session", session),
        directory=directory,
        name=_words(values.get("name")),
        version=_words(values.get("qwenVersion")),
        kind=kind if isinstance(kind, str) and re.fullmatch("[a-z][a-z0-9-]{0,15}", kind) else "tui",
        start=int(values["startedAt"]),
        listens=bool(socket),
        problem=None if os.path.isdir(directory) else "its directory is gone",
    )
    return Record(name, started, cli, socket)


def _words(value: object) -> str:
    """Return `value` if it is a string, shortened to a limit, as valid Unicode."""
    return valid_text(value[:_MAX_WORDS]) if isinstance(value, str) else ""


def other_editors(environ: Mapping[str, str], own_port: int) -> dict[int, str]:
    """Return the names of the other editors that CLIs can connect to, by their ports."""
    found: dict[int, str] = {}
    directory = directory_of(LOCK_FILE, environ)
    with suppress(OSError):
        for name in os.listdir(directory):
            port = name.removesuffix(".lock")
            if port.isdecimal() and port != str(own_port):
                with suppress(OSError), open(os.path.join(directory, name), "rb") as file:
                    values = read_object(file.read(_MAX_BYTES)) or {}
                    found[int(port)] = _words(values.get("ideName")) or "another editor"
    return found


def editor_of(pid: int, editors: Mapping[int, str]) -> str | None:
    """Return the name in `editors`, by port, of the editor that the process `pid` is connected to, or None."""
    try:
        connections = psutil.Process(pid).net_connections("tcp") if editors else []
    except (psutil.Error, OSError):
        return None
    ports = (item.raddr.port for item in connections if item.raddr and item.status == psutil.CONN_ESTABLISHED)
    return next((editors[port] for port in ports if port in editors), None)
