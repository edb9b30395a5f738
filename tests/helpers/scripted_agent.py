# SPDX-License-Identifier: GPL-3.0-or-later
"""A CLI scripted by a test: it connects, calls its hooks, writes files and runs commands.

    python scripted_agent.py LAYER PORT TOKEN

Each line of its input is a request in JSON, and is answered by a line when it is done.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from support import TIMEOUT_S, Cli


class Hooks:
    """The hooks that the settings layer names, over one connection as a CLI has it."""

    def __init__(self, layer: Path) -> None:
        (hook,) = json.loads(layer.read_text())["hooks"]["PreToolUse"][0]["hooks"]
        self._headers = {**hook["headers"], "Content-Type": "application/json"}
        address, _, path = hook["url"].removeprefix("http://").partition("/")
        self._path = f"/{path}"
        self._connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)

    def call(self, event: dict[str, Any]) -> str:
        """Report `event`; return the answer."""
        body = json.dumps({"cwd": os.getcwd(), "permission_mode": "yolo", **event})
        try:
            self._connection.request("POST", self._path, body, self._headers)
            return self._connection.getresponse().read().decode()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            # The server ends one that is not used.
            self._connection.close()
            self._connection.request("POST", self._path, body, self._headers)
            return self._connection.getresponse().read().decode()


def write(path: str, data: bytes) -> None:
    """Write as a tool does that edits a file."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


def run(command: str) -> str:
    """Run `command`; return what it says."""
    done = subprocess.run(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def main() -> None:
    layer, port, token = sys.argv[1:]
    hooks = Hooks(Path(layer))
    session = f"conversation {os.getpid()}"
    hooks.call({"hook_event_name": "SessionStart", "session_id": session})
    cli = Cli(int(port), token)
    cli.initialize()
    stream = cli.stream()
    threading.Thread(target=stream.rest, daemon=True).start()
    for line in sys.stdin:
        request = json.loads(line)
        if "hook_event_name" in request:
            answer = hooks.call({**request, "session_id": session})
        elif "command" in request:
            answer = run(request["command"])
        else:
            write(request["path"], base64.b64decode(request["data"]))
            answer = ""
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
