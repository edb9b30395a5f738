# SPDX-License-Identifier: GPL-3.0-or-later
"""Record the messages on both wires, EPC and HTTP, for a bug report; only on the user's wish.

The record is a file of JSON lines in the spool directory.  It has no secret.  Texts and names of files are replaced,
unless the user keeps them: a text by its numbers of characters and line ends and a number that equal texts share, 0 for
one that is not looked at; each part of a path by another name of the same length.  Words of the protocols and
identifiers stay as they are.

A thread of its own redacts and writes.  Recording stops for good when the file is full or cannot be written.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from sexpdata import Symbol

from qwen_companion.frozen import frozen

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

NAME = "wire-log"
"""Name of the file in the spool directory; Emacs copies it from there."""

FORMAT = 1

MAX_BYTES = 16 * 1024 * 1024
"""Largest record: some ten thousand moves of the cursor."""

MAX_TEXT_BYTES = 1024 * 1024
"""Largest text or HTTP body that is looked at; of a larger one, only the size is recorded."""

_MAX_WAITING = 1000
"""Most messages that wait to be written; more are counted and left out."""

_CLOSE_S = 0.5

SECRET_KEYS = frozenset(("token", "secret", "authorization"))
WORD_KEYS = frozenset(
    (
        *("client", "decision", "event", "hook_event_name", "id", "jsonrpc", "kind", "level", "method"),
        *("name", "outcome", "permission_mode", "protocol", "protocolVersion", "requestId", "role", "scope", "session"),
        *("session_id", "source", "state", "tool", "tool_name", "tool_use_id", "type", "version"),
    )
)
"""Keys, without the colon of a property list, whose strings are words of a protocol or identifiers."""
OPAQUE_KEYS = frozenset(("arguments", "tool_input", "tool_response"))
"""Keys whose values come from a model; keys inside are data."""

SECRET = "‹secret›"  # noqa: S105 - what stands in its place
_WORD = re.compile(r"[\w.:+-][\w.:+/-]{0,79}")
_KEY = re.compile(r":?[A-Za-z_][\w.-]{0,60}")
_PATHS = ("/mcp", "/hook", "/tools")
_DIGITS = "abcdefghijklmnopqrstuvwxyz0123456789"
_LINE_END = re.compile(r"\r\n?|\n")

_log = logging.getLogger(__name__)


def _stand_in(length: int, number: int) -> str:
    """Return a word of `length` letters, longer if need be, that differs for each `number`."""
    word = ""
    while number or not word:
        number, digit = divmod(number, len(_DIGITS))
        word = _DIGITS[digit] + word
    return word.rjust(length, _DIGITS[0])


class Redactor:
    """Replaces texts and names of files, equal ones by the same."""

    def __init__(self, secrets: Iterable[str], keep_texts: bool) -> None:
        """With `keep_texts`, replace nothing but `secrets` and what stands at `SECRET_KEYS`."""
        self._secrets = tuple(secret for secret in secrets if secret)
        self._keep_texts = keep_texts
        self._texts: dict[int, int] = {}
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()
        self._numbers = count(1)

    def redact(self, value: object, key: str = "") -> object:
        """Return `value`, JSON or a Lisp expression that stands at `key`, as JSON without secrets and texts.

        A property list becomes an object with the colons in its keys, a symbol an object with the key "'".
        """
        if isinstance(value, Omitted):
            return f"‹text {value.size} 0 #0›"
        if isinstance(value, Symbol):
            return {"'": str(value)}
        if isinstance(value, str):
            return self._string(value, key)
        if isinstance(value, dict):
            items = cast("dict[str, object]", value).items()
            return {self._key(name): self.redact(item, _inner(key, name)) for name, item in items}
        if isinstance(value, list | tuple):
            values = cast("Sequence[object]", value)
            if values and len(values) % 2 == 0 and all(_is_key(item) for item in values[::2]):
                pairs = zip(values[::2], values[1::2], strict=True)
                return {str(name): self.redact(item, _inner(key, str(name))) for name, item in pairs}
            return [self.redact(item, key) for item in values]
        return value

    def without_secrets(self, text: str) -> str:
        """Return `text` with each secret in it replaced."""
        for secret in self._secrets:
            text = text.replace(secret, SECRET)
        return text

    def _key(self, key: str) -> str:
        return key if self._keep_texts or _KEY.fullmatch(key) else self._string(key, "")

    def _string(self, text: str, key: str) -> str:
        if key in SECRET_KEYS:
            return SECRET if text else ""
        if self._keep_texts or not text or (key in WORD_KEYS and _WORD.fullmatch(text)):
            return self.without_secrets(text)
        if text.startswith("/") and "\n" not in text:
            return "/".join(self._name(part) for part in text.split("/"))
        number = self._texts.get(hash(text))
        if number is None:
            number = self._texts[hash(text)] = next(self._numbers)
        return f"‹text {len(text)} {len(_LINE_END.findall(text))} #{number}›"

    def _name(self, name: str) -> str:
        if name in ("", ".", ".."):
            return name
        found = self._names.get(name)
        if found is None:
            found = next(word for word in (_stand_in(len(name), n) for n in count()) if word not in self._taken)
            self._names[name] = self._names[found] = found
            self._taken.add(found)
        return found


@frozen
class Omitted:
    """Stands in a message for a text of `size` bytes that is too large to be looked at."""

    size: int


def _inner(outer: str, key: str) -> str:
    """Return the key that decides about what stands at `key` in what stands at `outer`."""
    name = key.removeprefix(":")
    return outer if outer in OPAQUE_KEYS and name not in SECRET_KEYS else name


def _is_key(item: object) -> bool:
    return isinstance(item, Symbol) and str(item).startswith(":")


class WireLog:
    """The record of one backend.  All methods but `run` return at once, on any thread."""

    def __init__(self, directory: str, secrets: Iterable[str], keep_texts: bool) -> None:
        """Add to the record in `directory`, a private one, or begin it."""
        self._path = os.path.join(directory, NAME)
        self._redactor = Redactor(secrets, keep_texts)
        self._keep_texts = keep_texts
        self._begun = time.monotonic()
        self._waiting: queue.Queue[dict[str, object] | None] = queue.Queue(_MAX_WAITING)
        self._left_out = 0
        self._stopped = False
        self._requests = count(1)
        self._thread = threading.Thread(target=self._write, name="wire-log", daemon=True)
        self._thread.start()

    def start(self, **hello: object) -> None:
        """Record the start of a process, with what `hello` told it."""
        head = {"format": FORMAT, "texts": self._keep_texts, "python": sys.version.split()[0]}
        self._put({"wire": "start", **head, "value": hello})

    def close(self) -> None:
        """End the record; wait a moment for what is not written yet."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            self._stopped = True
        self._thread.join(_CLOSE_S)

    # --- EPC ---

    def emacs(self, to: str, kind: str, uid: object, method: str, value: object) -> None:
        """Record a message on the wire to Emacs.

        `to` is "backend" or "emacs", `kind` that of EPC ("call", "return", "return-error"), `uid` a number that a call
        and its answer share if the call is of Emacs.  Pings and their answers are left out.
        """
        if method != "ping" and not self._stopped:
            message = {"wire": "emacs", "to": to, "kind": kind, "uid": uid, "method": method}
            self._put({**message, "value": _with_texts(value)})

    # --- HTTP ---

    def app(self, app: ASGIApp) -> ASGIApp:
        """Return `app` with its requests and answers recorded."""

        async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
            exchange = _Exchange(self, next(self._requests), scope)

            async def recorded_receive() -> Message:
                message = await receive()
                exchange.received(message)
                return message

            async def recorded_send(message: Message) -> None:
                exchange.sent(message)
                await send(message)

            if self._stopped:
                await app(scope, receive, send)
            else:
                exchange.begin()
                await app(scope, recorded_receive, recorded_send)

        return recorded

    def request(self, number: int, to: str, **values: object) -> None:
        """Record a part of the HTTP exchange `number`."""
        self._put({"wire": "cli", "to": to, "request": number, **values})

    # --- The file ---

    def _put(self, entry: dict[str, object]) -> None:
        if self._stopped:
            return
        if self._left_out:
            entry["left-out"] = self._left_out
        try:
            self._waiting.put_nowait({"ms": round((time.monotonic() - self._begun) * 1000), **entry})
            self._left_out = 0
        except queue.Full:
            self._left_out += 1

    def _write(self) -> None:
        """Run the thread: write entries until the end, the limit or an error."""
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o600)
            try:
                size = os.fstat(descriptor).st_size
                while not self._stopped and (entry := self._waiting.get()) is not None:
                    size = self._write_entry(descriptor, entry, size)
            finally:
                os.close(descriptor)
        except OSError as error:
            _log.warning("the wire log has ended: %s", error.strerror)
        self._stopped = True

    def _write_entry(self, descriptor: int, entry: dict[str, object], size: int) -> int:
        """Write one line; return the new size of the file."""
        # The words of our own that have no text in them stay.
        redacted = {
            key: self._redactor.redact(item, key) if key in ("body", "value", "event", "session") else item
            for key, item in entry.items()
        }
        line = self._redactor.without_secrets(json.dumps(redacted, ensure_ascii=False)).encode("utf-8", "replace")
        if size + len(line) + 1 > MAX_BYTES:
            self._stopped = True
            _log.warning("the wire log has ended: it has reached %d bytes", MAX_BYTES)
            return size
        try:
            written = os.write(descriptor, line + b"\n")
            if written <= len(line):
                raise OSError(28, os.strerror(28))
        except OSError:
            # Half a line would be taken for the end of the record.
            os.ftruncate(descriptor, size)
            raise
        return size + written


class _Exchange:
    """One HTTP request and its answer."""

    def __init__(self, log: WireLog, number: int, scope: Scope) -> None:
        self._log = log
        self._number = number
        self._scope = scope
        self._is_stream = scope["method"] == "GET"
        self._request = _Body()
        self._answer = _Body()
        self._status: dict[str, object] = {}

    def begin(self) -> None:
        if self._is_stream:
            self._note_request()

    def received(self, message: Message) -> None:
        if message["type"] == "http.disconnect":
            if self._is_stream:
                self._log.request(self._number, "backend", closed=True)
        elif not self._is_stream:
            self._request.add(message.get("body", b""))
            if not message.get("more_body", False):
                self._note_request(body=self._request.value())

    def sent(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = dict(cast("list[tuple[bytes, bytes]]", message.get("headers", [])))
            self._status = {"status": message["status"], **_session(headers)}
            if self._is_stream and message["status"] == 200:
                self._log.request(self._number, "cli", **self._status)
        elif self._is_stream and self._status.get("status") == 200:
            for line in message.get("body", b"").split(b"\n"):
                if line.startswith(b"data: "):
                    self._log.request(self._number, "cli", event=_json(line.removeprefix(b"data: ")))
        else:
            self._answer.add(message.get("body", b""))
            if not message.get("more_body", False):
                self._log.request(self._number, "cli", **self._status, body=self._answer.value())

    def _note_request(self, **more: object) -> None:
        path = self._scope["path"]
        self._log.request(
            self._number,
            "backend",
            method=self._scope["method"] if self._scope["method"] in ("GET", "POST", "DELETE") else "other",
            path=path if path in _PATHS else "other",
            **_session(dict(self._scope["headers"])),
            **more,
        )


class _Body:
    """A body in pieces, kept up to the limit."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._size = 0

    def add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= MAX_TEXT_BYTES:
            self._kept += piece
        else:
            self._kept.clear()

    def value(self) -> object:
        return _json(bytes(self._kept)) if self._size <= MAX_TEXT_BYTES else Omitted(self._size)


def _session(headers: dict[bytes, bytes]) -> dict[str, object]:
    value = headers.get(b"mcp-session-id")
    return {} if value is None else {"session": value.decode("latin-1")}


def _json(data: bytes) -> object:
    """Return the JSON in `data`, None for nothing, or how large it is."""
    if not data:
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return Omitted(len(data))


def _with_texts(value: object) -> Any:
    """Return the Lisp expression `value`, nil as None, with texts in the place of the files that hold them."""
    if value is False or value == []:
        return None
    if not isinstance(value, list | tuple):
        return value
    values = [_with_texts(item) for item in cast("Sequence[object]", value)]
    for index in range(0, len(values) - 1):
        if (
            isinstance(values[index], Symbol)
            and str(values[index]) == ":text-file"
            and isinstance(values[index + 1], str)
        ):
            values[index : index + 2] = [Symbol(":text"), _spooled(values[index + 1])]
    return values


def _spooled(path: str) -> object:
    """Return the text in the file `path`, which its reader will remove, or how large it is."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
            size = os.fstat(descriptor).st_size
    except OSError:
        return Omitted(0)
    return Omitted(size) if size > MAX_TEXT_BYTES else data.decode("utf-8", "replace")
