# SPDX-License-Identifier: GPL-3.0-or-later
"""A language server that does what a test wants.

Its argument is JSON: `capabilities` beside synchronization; `answers` to methods, none for one that is never answered;
`reports`, the seconds after which it reports on a text that is opened or changed, its lines with "bad" only the last
time; `versions`, whether reports name the version of the text.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

OPTIONS: dict[str, Any] = json.loads(sys.argv[1])
WRITING = threading.Lock()
PLANNED: list[threading.Timer] = []


def send(message: dict[str, Any]) -> None:
    """Send `message` to the editor."""
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    with WRITING:
        sys.stdout.buffer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        sys.stdout.buffer.flush()


def report(uri: str, version: int | None, lines: list[int]) -> None:
    """Report a problem in each of `lines` of `uri`."""
    problems = [
        {"range": {"start": {"line": line, "character": 0}, "end": {"line": line, "character": 3}}, "message": "Bad"}
        for line in lines
    ]
    named = {"version": version} if version is not None and OPTIONS.get("versions") else {}
    send({"method": "textDocument/publishDiagnostics", "params": {"uri": uri, "diagnostics": problems, **named}})


def check(uri: str, version: int, text: str) -> None:
    """Report on `text` later, and no more on an earlier one."""
    for timer in PLANNED:
        timer.cancel()
    found = [number for number, line in enumerate(text.splitlines()) if "bad" in line]
    delays: list[float] = OPTIONS.get("reports", [])
    for delay in delays:
        lines = found if delay == delays[-1] else []
        PLANNED.append(threading.Timer(delay, report, (uri, version, lines)))
        PLANNED[-1].start()


def handle(message: dict[str, Any]) -> None:
    """Answer `message`."""
    method, params = message.get("method"), message.get("params", {})
    match method:
        case "initialize":
            send({"id": message["id"], "result": {"capabilities": {"textDocumentSync": 1, **OPTIONS["capabilities"]}}})
        case "textDocument/didOpen":
            document = params["textDocument"]
            check(document["uri"], document["version"], document["text"])
        case "textDocument/didChange":
            document = params["textDocument"]
            check(document["uri"], document["version"], params["contentChanges"][-1]["text"])
        case "textDocument/didClose":
            report(params["textDocument"]["uri"], None, [])
        case "shutdown":
            send({"id": message["id"], "result": None})
        case _ if method in OPTIONS.get("answers", {}):
            send({"id": message["id"], **OPTIONS["answers"][method]})
        case _:
            pass


while header := sys.stdin.buffer.readline():
    while sys.stdin.buffer.readline().strip():
        pass
    request = json.loads(sys.stdin.buffer.read(int(header.split(b":")[1])))
    if request.get("method") == "exit":
        break
    handle(request)
