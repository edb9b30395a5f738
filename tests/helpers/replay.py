# SPDX-License-Identifier: GPL-3.0-or-later
"""Replay a wire log against a backend and report the first reply that differs: `make replay FILE=wire-log`.

Plays the part of Emacs and of the CLIs, in a temporary directory.  Each message is sent once all that the backend had
said before it in the record has come again.  Where the record has only the size of a text, another one of that size is
sent.  Not compared are ports, times and processes, and messages that depend on them (`UNCOMPARED`).  Exits with 1 for a
difference and with 2 for a file that cannot be replayed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import queue
import socket
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, cast

from sexpdata import Symbol, dumps

from qwen_companion.doors.hook_settings import door_secret
from qwen_companion.tools.settings import tool_secret
from qwen_companion.wire_log import FORMAT, TEXT, Redactor, key_of, stand_in
from support import MCP_ACCEPT, SECRET, TIMEOUT_S, Backend, EpcPeer, Home

UNCOMPARED = frozenset(
    (
        *(
            "context-sent",
            "daemon-state",
            "exclusions",
            "files",
            "hook-answers",
            "journal-turns",
            "notice",
            "published",
        ),
        *("serving", "sessions", "tool-called"),
    )
)
"""Calls whose payload depends on this machine, or that are sent less often when much happens at once."""

AWAITED = frozenset(("published", "serving"))
"""Those of them that are waited for all the same."""

VOLATILE_KEYS = frozenset(("pid", "port", "started", "ancestors", "sent", "ms", "time", "timestamp", "digest", "token"))

Entry = dict[str, Any]
Channel = tuple[object, ...]


class RecordError(Exception):
    """A file that cannot be replayed; the text says why."""


class Difference(Exception):
    """The first reply that differs from the record."""


def read_record(path: Path) -> list[Entry]:
    """Return the entries of the wire log at `path`.

    :raises RecordError: when it is none
    """
    entries: list[Entry] = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            entry: object = json.loads(line)
        except ValueError:
            raise RecordError(f"{path}:{number}: this is no wire log") from None
        entries.append({**cast("Entry", entry), "line": number})
    if not entries or entries[0].get("wire") != "start":
        raise RecordError(f"{path}: this is no wire log, or its beginning is missing")
    if entries[0]["value"] is None or entries[0]["format"] != FORMAT:
        raise RecordError(f"{path}: this wire log is of another version of the package")
    return entries


class Translation:
    """Convert names, texts and identifiers of the record to those of this replay, and back."""

    def __init__(self, directory: str, keep_texts: bool) -> None:
        """`directory` stands in the place of the root of the file system."""
        self._directory = directory
        self._redactor = Redactor((), keep_texts)
        self._identifiers: dict[str, str] = {}
        self._recorded: dict[str, str] = {}
        self._numbers: dict[str, str] = {}

    def played(self, value: object) -> Any:
        """Return the recorded `value` for sending: JSON, or with symbols and property lists a Lisp expression."""
        if isinstance(value, str):
            return self._played_text(value)
        if isinstance(value, list):
            return [self.played(item) for item in cast("list[object]", value)]
        if isinstance(value, dict):
            items = cast("dict[str, object]", value)
            if list(items) == ["'"]:
                return Symbol(str(items["'"]))
            if items and all(key.startswith(":") for key in items):
                return [part for key, item in items.items() for part in (Symbol(key), self.played(item))]
            return {self._played_text(key): self.played(item) for key, item in items.items()}
        return value

    def _played_text(self, text: str) -> str:
        if match := TEXT.fullmatch(text):
            length, lines, number = (int(part) for part in match.groups())
            made = _text(length, lines, number)
            self._redactor.know_text(made, number)
            return made
        if text.startswith("/") and "\n" not in text:
            for name in text.split("/"):
                self._redactor.know_name(name)
            return self._directory + text
        return self._identifiers.get(text, text)

    def recorded(self, value: object) -> object:
        """Return `value`, a reply in this replay, as the record would have it."""
        return self._redactor.redact(self._without_directory(value))

    def _without_directory(self, value: object) -> object:
        if isinstance(value, Symbol):
            return value
        if isinstance(value, str):
            return self._recorded.get(value, value.replace(self._directory, ""))
        if isinstance(value, list):
            return [self._without_directory(item) for item in cast("list[object]", value)]
        if isinstance(value, dict):
            return {key: self._without_directory(item) for key, item in cast("dict[str, object]", value).items()}
        return value

    def difference(self, recorded: object, now: object, at: str = "") -> str | None:
        """Return where and how `now` differs from `recorded`, both as in a record; None when it does not.

        Identifiers that are seen for the first time mean the same from then on.
        """
        if isinstance(recorded, dict) and isinstance(now, dict):
            return self._difference_of_objects(cast("Entry", recorded), cast("Entry", now), at)
        if isinstance(recorded, list) and isinstance(now, list):
            ours, theirs = cast("list[object]", recorded), cast("list[object]", now)
            if len(ours) != len(theirs):
                return f"{at}: {len(ours)} items in the record, {len(theirs)} now"
            pairs = enumerate(zip(ours, theirs, strict=True))
            return next((found for index, (a, b) in pairs if (found := self.difference(a, b, f"{at}[{index}]"))), None)
        if (
            isinstance(recorded, str)
            and isinstance(now, str)
            and self._mean_the_same(recorded, now, key_of(at.rpartition(".")[2]))
        ):
            return None
        if recorded == now or (_is_nil(recorded) and _is_nil(now)):
            return None
        return f"{at}: {recorded!r}, now {now!r}"

    def _difference_of_objects(self, recorded: Entry, now: Entry, at: str) -> str | None:
        for name in [*recorded, *(name for name in now if name not in recorded)]:
            if key_of(name) in VOLATILE_KEYS:
                continue
            if name not in recorded or name not in now:
                return f"{at}.{name}: only {'in the record' if name in recorded else 'now'}"
            if found := self.difference(recorded[name], now[name], f"{at}.{name}"):
                return found
        return None

    def _mean_the_same(self, recorded: str, now: str, key: str) -> bool:
        if (ours := TEXT.fullmatch(recorded)) and (theirs := TEXT.fullmatch(now)):
            return ours.groups()[:2] == theirs.groups()[:2] and self._numbers.setdefault(recorded, now) == now
        if key in ("id", "session", "requestId") and recorded != now and recorded not in self._identifiers:
            self.learn(recorded, now)
            return True
        return recorded == now

    def learn(self, recorded: str, now: str) -> None:
        """Let the identifier `now` stand for `recorded` from now on."""
        self._identifiers[recorded] = now
        self._recorded[now] = recorded


def _is_nil(value: Any) -> bool:
    return value is None or value == []


def _text(length: int, lines: int, number: int) -> str:
    """Return a text of `length` characters with `lines` line ends, another one for each `number`."""
    if length <= lines:
        return "\n" * length
    word = stand_in(length - lines, number)
    step = max(1, len(word) // max(1, lines))
    pieces = [word[index * step : (index + 1) * step] for index in range(lines)]
    return "".join(f"{piece}\n" for piece in pieces) + word[lines * step :]


class _Channels:
    """Replies of the backend as they come, in order within each channel."""

    def __init__(self) -> None:
        self._queues: dict[Channel, queue.Queue[object]] = defaultdict(queue.Queue)
        self._lock = threading.Lock()

    def of(self, channel: Channel) -> queue.Queue[object]:
        with self._lock:
            return self._queues[channel]

    def left(self) -> Iterator[tuple[Channel, object]]:
        """Yield the replies that were compared with nothing."""
        with self._lock:
            queues = list(self._queues.items())
        for channel, items in queues:
            with suppress(queue.Empty):
                while True:
                    yield channel, items.get_nowait()


class _Emacs(EpcPeer):
    """Answers as the Emacs in the record did, and keeps what it is told."""

    def __init__(self, port: int, channels: _Channels, answers: Mapping[str, queue.Queue[tuple[str, Any]]]) -> None:
        self._channels = channels
        self._answers = answers
        super().__init__(port)

    def _take(self, message: Any) -> None:
        kind, uid, *rest = message
        if str(kind) != "call":
            self._channels.of(("reply to", uid)).put({"kind": str(kind), "value": rest[0] if rest else None})
            return
        method, (_, payload) = str(rest[0]), rest[1]
        try:
            answer, value = self._answers[method].get_nowait()
        except (KeyError, queue.Empty):
            answer, value = "return", None
        # First what it was told: who waits for that may end the backend.
        self.send(f"({answer} {uid} {dumps(value)})")
        self._channels.of(("call of", method)).put(payload)


class _Exchange(threading.Thread):
    """One HTTP request, whose answer goes into a channel."""

    def __init__(self, channels: _Channels, number: int, port: int, entry: Entry, headers: Mapping[str, str]) -> None:
        super().__init__(daemon=True)
        self._replies = channels.of(("answer to", number))
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        self._connection.connect()
        self._socket: socket.socket = self._connection.sock
        self._entry = entry
        self._headers = dict(headers)
        self.start()

    def run(self) -> None:
        with suppress(OSError, http.client.HTTPException), closing(self._connection):  # `close` ends it at any moment.
            body = self._entry.get("body")
            data = None if body is None else json.dumps(body).encode()
            self._connection.request(self._entry["method"], self._entry["path"], data, self._headers)
            with self._connection.getresponse() as response:
                self._read(response)

    def _read(self, response: http.client.HTTPResponse) -> None:
        head: Entry = {"status": response.status}
        if session := response.headers.get("mcp-session-id"):
            head["session"] = session
        if self._entry["method"] != "GET" or response.status != 200:
            text = response.read()
            self._replies.put({**head, "body": json.loads(text) if text else None})
            return
        self._replies.put(head)
        while line := response.readline():
            if line.startswith(b"data: "):
                self._replies.put({"event": json.loads(line.removeprefix(b"data: "))})

    def close(self) -> None:
        """End the connection and wait for the thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.join()


class Replay:
    """One run of a record against backends in a temporary directory."""

    def __init__(self, entries: Sequence[Entry], home: Home, patience_s: float) -> None:
        """Wait up to `patience_s` seconds for a reply."""
        self._entries = entries
        self._home = home
        self._patience_s = patience_s
        self._translation = Translation(str(home.work.resolve()), bool(entries[0]["texts"]))
        self._backend: Backend | None = None
        self._channels = _Channels()
        self._exchanges: dict[int, _Exchange] = {}
        self._port, self._token = 0, ""
        self._compared = 0

    def run(self) -> int:
        """Play all entries; return how many replies were the same.

        :raises Difference: for the first one that was not
        """
        with ExitStack() as stack:
            stack.callback(lambda: [exchange.close() for exchange in self._exchanges.values()])
            for index, entry in enumerate(self._entries):
                if entry.get("left-out"):
                    raise Difference(f"line {entry['line']}: messages are missing in the record before this")
                if entry["wire"] == "start":
                    self._start(stack, index)
                elif entry["to"] == "backend":
                    self._play(entry)
                else:
                    self._compare(entry)
            for channel, reply in self._channels.left():
                if not _may_come_alone(channel, reply):
                    raise Difference(f"after the record: {_channel_text(channel)} {_short(reply)}")
        return self._compared

    def _start(self, stack: ExitStack, index: int) -> None:
        if self._backend is not None:
            self._backend.kill()
        value = self._translation.played(self._entries[index]["value"])
        answers: dict[str, queue.Queue[tuple[str, Any]]] = defaultdict(queue.Queue)
        for entry in self._entries[index + 1 :]:
            if entry["wire"] == "start":
                break
            if entry["wire"] == "emacs" and entry["to"] == "backend" and entry["kind"] != "call":
                answers[entry["method"]].put((entry["kind"], self._translation.played(entry["value"])))
        self._backend = stack.enter_context(
            Backend(
                self._home,
                port=self._port,
                token=self._token,
                sessions=value["sessions"] or None,
                proposals=[{**item, "digest": "0"} for item in value["proposals"]] or None,
            )
        )
        assert self._backend.process.stdout is not None
        self._backend.emacs = _Emacs(int(self._backend.process.stdout.readline()), self._channels, answers)
        # The backend begins to speak when it has seen the secret, which may stand after that in the record.
        self._backend.emacs.send(f"(call 0 ping ({dumps(SECRET)} nil))")

    def _play(self, entry: Entry) -> None:
        if entry["wire"] == "cli":
            self._play_request(entry)
        elif entry["kind"] == "call":
            value = self._translation.played(entry["value"])
            self._make_files(entry["method"], value)
            assert self._backend is not None
            self._backend.emacs.send(f"(call {entry['uid']} {entry['method']} ({dumps(SECRET)} {dumps(value)}))")

    def _play_request(self, entry: Entry) -> None:
        number = entry["request"]
        if entry.get("closed"):
            if number in self._exchanges:
                self._exchanges.pop(number).close()
            return
        if "other" in (entry["method"], entry["path"]):
            return
        token = {"/hook": door_secret(self._token), "/tools": tool_secret(self._token)}.get(entry["path"], self._token)
        headers = {
            "Host": f"127.0.0.1:{self._port}",
            "Authorization": f"Bearer {token}",
            "Accept": "text/event-stream" if entry["method"] == "GET" else MCP_ACCEPT,
            "Content-Type": "application/json",
        }
        if "session" in entry:
            headers |= {"mcp-session-id": self._translation.played(entry["session"])}
        body = self._translation.played(entry.get("body"))
        self._exchanges[number] = _Exchange(self._channels, number, self._port, {**entry, "body": body}, headers)

    def _make_files(self, method: str, value: Any) -> None:
        """Make the directories and files that the payload `value` of `method` speaks of."""
        if method == "roots":
            for root in _at(value, ":roots"):
                os.makedirs(root, exist_ok=True)
        elif method == "context":
            for file in _at(value, ":files"):
                path = Path(_at(file, ":path"))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()

    def _compare(self, entry: Entry) -> None:
        if entry["wire"] == "cli":
            number = entry["request"]
            if number not in self._exchanges:
                return
            recorded = {name: entry[name] for name in ("status", "session", "body", "event") if name in entry}
            self._expect(entry, ("answer to", number), recorded)
        elif entry["kind"] != "call":
            self._expect(entry, ("reply to", entry["uid"]), {"kind": entry["kind"], "value": entry["value"]})
        elif entry["method"] not in UNCOMPARED:
            self._expect(entry, ("call of", entry["method"]), entry["value"])
        elif entry["method"] in AWAITED:
            payload = self._next(entry, ("call of", entry["method"]))
            if entry["method"] == "published":
                self._port, self._token = _at(payload, ":port"), _at(payload, ":token")

    def _expect(self, entry: Entry, channel: Channel, recorded: object) -> None:
        """Compare the next reply in `channel` with the `recorded` one."""
        while True:
            reply = self._translation.recorded(self._next(entry, channel))
            difference = self._translation.difference(recorded, reply)
            if difference is None:
                self._compared += 1
                return
            # Of several contexts in a moment only the newest goes out: here there may be more than in the record.
            if not _is_context(recorded) or not _is_context(reply):
                raise Difference(f"line {entry['line']}: {_channel_text(channel)}{difference}")

    def _next(self, entry: Entry, channel: Channel) -> object:
        try:
            return self._channels.of(channel).get(timeout=self._patience_s)
        except queue.Empty:
            what = _short({key: entry[key] for key in ("value", "body", "event", "status") if key in entry})
            raise Difference(f"line {entry['line']}: {_channel_text(channel)} has not come: {what}") from None


def _at(values: Any, key: str) -> Any:
    """Return the value at `key` of a property list; nil for none."""
    return next((item for name, item in zip(values[::2], values[1::2], strict=True) if str(name) == key), None) or []


def _is_context(reply: object) -> bool:
    event = cast("Entry", reply).get("event") if isinstance(reply, dict) else None
    return isinstance(event, dict) and cast("Entry", event).get("method") == "ide/contextUpdate"


def _may_come_alone(channel: Channel, reply: object) -> bool:
    return _is_context(reply) or channel[0] != "call of" or channel[1] in UNCOMPARED


def _channel_text(channel: Channel) -> str:
    return {"call of": "the call", "reply to": "the reply to call", "answer to": "the answer to request"}[
        str(channel[0])
    ] + f" {channel[1]}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 300 else text[:300] + "..."


def replay(path: Path, patience_s: float = 10.0) -> int:
    """Replay the record at `path`; return how many replies were the same.

    :raises RecordError: when it cannot be replayed
    :raises Difference: for the first reply that differs
    """
    entries = read_record(path)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        return Replay(entries, Home(Path(directory)), patience_s).run()


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Replay a wire log against a backend.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to wait for a reply")
    arguments = parser.parse_args()
    try:
        same = replay(arguments.file, arguments.seconds)
    except (RecordError, OSError) as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    except Difference as difference:
        print(f"replay: {difference}")
        return 1
    print(f"replay: all {same} replies are as recorded")
    return 0


if __name__ == "__main__":
    sys.exit(main())
