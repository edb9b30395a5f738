# SPDX-License-Identifier: GPL-3.0-or-later
"""The two files of a CLI in a terminal of Emacs: it writes events to one, and reads prompts and answers from the other.

Emacs passes them by the options `--json-file` and `--input-file` of the CLI.  They are in the private directory.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass

import psutil

from qwen_companion.base.errors import PromptError
from qwen_companion.base.json_objects import as_object, read_object
from qwen_companion.domain import Peer

_NEWEST_BYTES = 1024 * 1024
"""Bytes of the newest events that are read at first; more if a plan among them is longer."""

_MOST_BYTES = 64 * 1024 * 1024

_MESSAGE = b'"type":"assistant"'

_TYPE_BYTES = 64
"""An event begins with its type."""

_TRIM_BYTES = 4 * 1024 * 1024
"""Size from which the file is emptied before a new prompt."""


@dataclass(frozen=True)
class AskedCall:
    """A call of `tool`; hooks name it `call`."""

    tool: str
    call: str


@dataclass(frozen=True)
class TerminalFiles:
    """The file `events` that a CLI writes, and `answers`, which it reads; both lie in `directory`."""

    directory: str
    events: str
    answers: str

    def trim(self) -> None:
        """Empty the file of events if it is large.  The CLI goes on writing at its offset, after a hole."""
        with suppress(OSError):
            # `st_size` would count the hole.
            if os.stat(self.events).st_blocks * 512 > _TRIM_BYTES:
                os.truncate(self.events, 0)

    def awaited(self) -> dict[str, AskedCall]:
        """Return the calls that the terminal asks about since the model's last message, by the ids of its requests.

        A call that was refused may still be among them.
        """
        asked: dict[str, AskedCall] = {}
        for line in self._newest_lines():
            if _MESSAGE in line[:_TYPE_BYTES]:
                asked.clear()
            event = (read_object(line) or {}) if b'"control_re' in line[:_TYPE_BYTES] else {}
            identifier, request = event.get("request_id"), as_object(event.get("request"))
            if isinstance(identifier, str) and isinstance(tool := request.get("tool_name"), str):
                asked[identifier] = AskedCall(tool, str(request.get("tool_use_id", "")))
            asked.pop(str(as_object(event.get("response")).get("request_id")), None)
        return asked

    def _newest_lines(self) -> list[bytes]:
        """Return the last lines of the events, at least those since the model's last message."""
        try:
            with open(self.events, "rb") as file:
                end, size = file.seek(0, os.SEEK_END), _NEWEST_BYTES
                while True:
                    file.seek(max(0, end - size))
                    lines = file.read(size).split(b"\n")[:-1]
                    if size >= min(end, _MOST_BYTES) or any(_MESSAGE in line[:_TYPE_BYTES] for line in lines[1:]):
                        return lines
                    size *= 4
        except OSError:
            return []

    def answer(self, request: str, allowed: bool) -> None:
        """Answer the request with the id `request` of the terminal.

        :raises PromptError: if it could not be written
        """
        entry = {"type": "confirmation_response", "request_id": request, "allowed": allowed}
        append_line(self.directory, self.answers, json.dumps(entry))


def terminal_files(directory: str, peer: Peer) -> TerminalFiles | None:
    """Return the files in `directory` of the CLI in the process of `peer`, or None."""
    if peer.place is not None:
        return None
    try:
        arguments = psutil.Process(peer.pid).cmdline()
    except (psutil.Error, OSError):
        return None
    values = [
        next((value for option, value in zip(arguments, arguments[1:], strict=False) if option == name), "")
        for name in ("--json-file", "--input-file")
    ]
    if any(os.path.dirname(value) != directory.rstrip("/") for value in values):
        return None
    return TerminalFiles(directory.rstrip("/"), *values)


def append_prompt(directory: str, path: str, text: str) -> None:
    """Add the prompt `text` to the file at `path`, which must be in `directory`.  Blocks on disk I/O.

    A CLI skips what the file contained when it began to watch it.

    :raises PromptError: if it could not be written; then the CLI has read nothing of it
    """
    append_line(directory, path, submission(text))


def submission(text: str) -> str:
    """Return the line that submits the prompt `text` to a CLI."""
    return json.dumps({"type": "submit", "text": text})


def append_line(directory: str, path: str, entry: str) -> None:
    """Add the line `entry`, which is ASCII, to the file at `path`, as `append_prompt` does.

    :raises PromptError: as `append_prompt` does
    """
    if os.path.dirname(path) != directory:
        raise PromptError("a file of prompts lies outside the private directory")
    line = entry.encode("ascii") + b"\n"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if os.write(descriptor, line) < len(line):
                # A CLI does not read a line without its end.
                os.ftruncate(descriptor, size)
                raise PromptError("there is no room for a prompt in the private directory")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise PromptError(f"cannot write a prompt into the private directory: {error.strerror}") from None
