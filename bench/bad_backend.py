# SPDX-License-Identifier: GPL-3.0-or-later
"""Play a backend that sends Emacs what no backend should, and count how often Emacs answers and goes on.

The messages are made of the classes that the real one sends, whole and damaged.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import random
import re
import shutil
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import hypothesis
from hypothesis import strategies as st
from sexpdata import Symbol, dumps, loads

from loopback import CHECKOUT, Table, new_home
from qwen_companion.wire import messages
from qwen_companion.wire.spool import Spool
from support import Home, as_dict

HANG_S = 30.0

EMACS = """
(progn
  (require 'qwen-companion-chat)
  (setq qwen-companion-environment-source (file-name-as-directory (getenv "BAD_BACKEND"))
        qwen-companion-diff-arrival 'command
        inhibit-message t)
  (find-file "a.txt")
  (qwen-companion-mode 1)
  (qwen-companion-backend-add-methods qwen-companion-daemon--methods)
  (while t
    (accept-process-output nil 0.05)
    ;; Else thousands are open.
    (when (nthcdr 20 (qwen-companion-proposals)) (qwen-companion-proposal-end-all))))
"""

BACKEND = """
import os, sys
with open(os.environ["BAD_BACKEND_HELLO"], "w") as file:
    file.write(sys.stdin.readline())
print(os.environ["BAD_BACKEND_PORT"], flush=True)
sys.stdin.read()
"""
"""In the place of the package: it says what Emacs has said, and where to connect."""

CLASSES = [
    cast("type[messages.Outgoing[Any]]", found)
    for name in ("qwen_companion.wire.messages", "qwen_companion.daemon.messages")
    for found in vars(importlib.import_module(name)).values()
    if isinstance(found, type) and issubclass(found, messages.Outgoing) and dataclasses.is_dataclass(cast("Any", found))
]


def bad_backend(table: Table, cases: int, chance: random.Random) -> None:
    """Add the rows of `cases` messages."""
    with new_home() as home, _emacs(home) as emacs:
        spool = Spool(str(home.spool))
        good = done = 0

        @hypothesis.settings(
            max_examples=cases,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
        )
        @hypothesis.given(st.one_of([st.from_type(found) for found in CLASSES]))
        def send(message: messages.Outgoing[Any]) -> None:
            nonlocal good, done
            payload: Any = _with_words(message.payload(spool))
            # It may make a few more or fewer messages.
            if done < cases:
                done += 1
                payload = _damaged(payload, home, chance) if chance.random() < 0.5 else payload
                good += emacs.answer(message.method, payload) != ""

        send()
        table.count("3", "EPC to Emacs, every other message damaged: done or refused, no hang", good, done)
        text = {
            "id": "last",
            "session": "s",
            "client": "qwen",
            "path": str(home.work / "a.txt"),
            "digest": "",
            "text": "",
        }
        shown = emacs.answer(
            "proposal-open", [part for key, value in text.items() for part in (Symbol(f":{key}"), value)]
        )
        table.add("3", "a proposal after them", "shown" if shown == "return" else "lost", "shown")


class _Emacs:
    """The connection of Emacs to what it takes for its backend."""

    def __init__(self, connection: socket.socket, secret: str) -> None:
        connection.settimeout(HANG_S)
        self._socket = connection
        self._file = connection.makefile("rb")
        self._secret = secret
        self._calls = 0

    def answer(self, method: str, payload: object) -> str:
        """Call `method` with `payload`; return the kind of the answer, "" when none comes."""
        self._calls += 1
        try:
            self._send(f"(call {self._calls} {method} ({dumps(self._secret)} {dumps(payload)}))")
            while True:
                kind, identifier = self._next()
                if kind == "call":
                    self._send(f"(return {identifier} nil)")
                elif identifier == str(self._calls):
                    return kind
        except OSError:
            return ""

    def _send(self, text: str) -> None:
        # Lone surrogates become bytes that are no UTF-8.
        data = text.encode("utf-8", "surrogatepass") + b"\n"
        self._socket.sendall(b"%06x" % len(data) + data)

    def _next(self) -> tuple[str, str]:
        """Return the kind and the identifier of the next message of Emacs."""
        data = self._file.read(int(self._file.read(6) or b"0", 16))
        found = re.match(rb"\(([a-z-]+) (\d+)", data)
        if found is None:
            raise ConnectionError
        return found[1].decode(), found[2].decode()


@contextmanager
def _emacs(home: Home) -> Generator[_Emacs]:
    """Start an Emacs whose backend is this process; yield its connection."""
    source = home.home / "python"
    package = source / "qwen_companion"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(BACKEND)
    for file in (CHECKOUT / "python").glob("*.lock"):
        shutil.copy(file, source)
    (home.work / "a.txt").write_text("text\n")
    (home.work / ".git").mkdir()
    hello = home.home / "hello"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(HANG_S)
        environ = home.environ | {
            "BAD_BACKEND": str(source),
            "BAD_BACKEND_HELLO": str(hello),
            "BAD_BACKEND_PORT": str(listener.getsockname()[1]),
        }
        process = subprocess.Popen(
            [
                os.environ.get("EMACS", "emacs"),
                "-Q",
                "--batch",
                "-l",
                str(CHECKOUT / "scripts/checkout.el"),
                "--eval",
                EMACS,
            ],
            cwd=home.work,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with process:
            try:
                connection, _ = listener.accept()
                with connection:
                    yield _Emacs(connection, as_dict(loads(hello.read_text()))["secret"])
            finally:
                process.kill()


def _with_words(part: Any) -> Any:
    """Return `part` with a word for each symbol that is none: they come from fixed sets, and "." cannot be read."""
    if isinstance(part, Symbol):
        return part if re.fullmatch(r":?[a-z-]+", str(part)) else Symbol("word")
    if isinstance(part, list | tuple):
        return [_with_words(inner) for inner in cast("list[Any]", part)]
    return part


def _damaged(payload: Any, home: Home, chance: random.Random) -> Any:
    """Return the property list `payload` with one to three parts that are something else."""
    path = str(home.work / "a.txt")
    wrong: tuple[Any, ...] = (
        None, -1, 10**12, 1.5, "", "\ud800", "%s", "x" * 3000, path, path + "/x", "/ssh:nobody@localhost:/x", [],
        [Symbol("a")], [[[]]], Symbol("t"), Symbol("nil"), Symbol(":key"), [Symbol("a"), Symbol("."), Symbol("b")],
    )  # fmt: skip
    payload = list(payload)
    for _ in range(chance.randrange(1, 4)):
        place: list[Any] = payload
        while place:
            index = chance.randrange(len(place))
            inner = place[index]
            # A part of a pair with a dot may be nothing that Emacs can read, and so no message.
            if isinstance(inner, (list, tuple)) and inner and Symbol(".") not in inner and chance.random() < 0.8:
                place[index] = place = list(cast("list[Any]", inner))
            elif chance.random() < 0.3:
                del place[index]
                break
            else:
                place[index] = chance.choice(wrong)
                break
    return payload
