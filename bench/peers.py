# SPDX-License-Identifier: GPL-3.0-or-later
"""Time what other packages for Emacs take for what ours does, in the same Emacs and in turns with ours.

    PEERS=~/src .build/venv/bin/python bench/peers.py [ROUNDS]

PEERS is a folder with checkouts of the packages in `NEEDED`; which are missing is said.  They are compiled, in a copy.
An `openDiff` of claude-code-ide.el to Ediff on the screen, beside a proposal of ours, medians of ROUNDS (2); and an
answer of 2 MB that streams into gptel and into agent-shell, beside our chat, once.  Asserts nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT / name) for name in ("tests/e2e", "tests/helpers")]

OTHER = CHECKOUT / ".build/other-emacs"
if (OTHER / "emacs").exists() and not (OTHER / "usr/share/emacs/28.2").exists():
    # Agent-shell needs a newer one.
    os.environ["EMACS"] = str(OTHER / "emacs")

from editor import PROGRAM, lisp_string  # noqa: E402  the path and the program are set first
from keys import TEXT  # noqa: E402
from speed import SETUP, SIZES, Client, review, shown, texts  # noqa: E402
from stage import ROOTS_TOLD, Stage  # noqa: E402
from table import compare, row  # noqa: E402

CLAUDE, GPTEL, AGENT_SHELL = "claude-code-ide.el", "gptel", "agent-shell"

NEEDED = {CLAUDE: (CLAUDE, "emacs-websocket"), GPTEL: (GPTEL, "markdown-mode"), AGENT_SHELL: (AGENT_SHELL,)}
"""Each package, and the folders that it needs of PEERS."""

LARGEST = 20_000
"""Lines of the largest text that is proposed: 1 MB takes claude-code-ide.el 13 s and more."""

CHARACTERS = 2_000_000

Stream = tuple[float, float, float]
"""Seconds of the processor, ms by which one of 100 timers is later, and the share of the text that came."""


def there(folder: Path | None) -> list[str]:
    """Return the packages that `folder` has all of; say what the others lack."""
    if folder is None:
        print("peers: not measured, PEERS names no folder with their checkouts")
        return []
    lacking = {name: [need for need in needs if not (folder / need).is_dir()] for name, needs in NEEDED.items()}
    for name, needs in lacking.items():
        if needs:
            print(f"peers: {name} is not measured, {folder} lacks {', '.join(needs)}")
    return [name for name, needs in lacking.items() if not needs]


def compiled(folder: Path, names: Sequence[str], target: Path) -> list[Path]:
    """Copy what the packages `names` need from `folder` to `target`, and compile it; return the directories."""
    places = [target / need for name in names for need in NEEDED[name]]
    for place in places:
        shutil.copytree(folder / place.name, place, ignore=shutil.ignore_patterns(".git", "test*", "*-test*"))
    loads = [argument for place in places for argument in ("-L", str(place))]
    files = [str(file) for place in places for file in place.glob("*.el")]
    # Files of theirs for packages that are not there fail, and are not needed.
    subprocess.run([PROGRAM, "-Q", "--batch", *loads, "-f", "batch-byte-compile", *files], capture_output=True)
    return places


class ClaudeCodeIde:
    """A connection to claude-code-ide.el in the Emacs of `stage`, as its CLI has one."""

    def __init__(self, stage: Stage) -> None:
        project = lisp_string(f"{stage.sandbox.project}/")
        port = int(stage.emacs.eval(f"(progn (require 'claude-code-ide) (claude-code-ide-mcp-start {project}))"))
        self._socket = socket.create_connection(("127.0.0.1", port))
        head = ("GET / HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket", "Connection: Upgrade")
        version = ("Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
        self._socket.sendall("\r\n".join((*head, *version, "", "")).encode())
        self._socket.recv(4096)
        # By that it gets its tools ready.
        self.send(json.dumps({"jsonrpc": "2.0", "id": 0, "method": "tools/list"}).encode())
        self._socket.recv(65536)

    def __enter__(self) -> ClaudeCodeIde:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, body: bytes) -> None:
        """Send `body` as one message, masked as a client's must be."""
        self._socket.sendall(b"\x81\xff" + struct.pack(">Q", len(body)) + bytes(4) + body)


def open_diff(path: Path, new: str) -> bytes:
    """Return the message of its CLI that proposes `new` for `path`."""
    arguments: dict[str, Any] = {"old_file_path": str(path), "new_file_path": str(path), "tab_name": path.name}
    params: dict[str, Any] = {"name": "openDiff", "arguments": arguments | {"new_file_contents": new}}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


def measure_reviews(stage: Stage, rounds: int) -> None:
    """Print what proposals take to Ediff on the screen, ours and that of claude-code-ide.el."""
    with Client(stage) as client, ClaudeCodeIde(stage) as peer:
        stage.screen.wait_for("Qwen[1]")
        for size, lines in SIZES.items():
            if lines > LARGEST:
                continue
            old, new = texts(lines, "\n")
            pairs: list[tuple[float, float]] = []
            for count in range(rounds):
                path = stage.sandbox.project / f"{lines}-{count}.txt"
                path.write_text(old)
                ours, _ = review(stage, client, path, new)
                path.write_text(old)
                theirs = shown(stage, peer.send, open_diff(path, new))
                # It asks what to do with the text.
                stage.emacs.eval("(with-current-buffer bench-control (setq-local ediff-quit-hook nil))")
                stage.emacs.eval("(bench-end-ediff)")
                pairs.append((ours, theirs))
                path.unlink()
            compare(f"{size}: proposal sent to Ediff on the screen, beside {CLAUDE}", pairs, "1.0")


def stream(stage: Stage, function: str, text: Path) -> Stream:
    """Stream the file `text` with `function` of bench/peers.el."""
    stage.emacs.eval(f"(progn (peers-run '{function} {lisp_string(str(text))}) t)")
    while (result := stage.emacs.eval("peers-result", 120)) == "nil":
        # Asking takes of the processor.
        time.sleep(1)
    if result.startswith('"'):
        raise SystemExit(f"peers: {function}: {result}")
    seconds, late, share = map(float, result.strip("()").split())
    return seconds, late, share


def measure_streams(stage: Stage, names: Sequence[str]) -> None:
    """Print what an answer takes in our chat, and in those of the packages `names`."""
    text = stage.sandbox.project.parent / "answer.md"
    text.write_text((TEXT * (CHARACTERS // len(TEXT) + 1))[:CHARACTERS])
    stage.emacs.eval("(qwen-companion-mode -1)")
    seconds, late, _ = stream(stage, "peers-ours", text)
    for name in names:
        theirs, theirs_late, share = stream(stage, f"peers-{name}", text)
        given_up = "" if share == 1 else f", given up after {share:.0%} of it"
        row(
            "speed",
            f"an answer of 2 MB streamed into a chat, of the processor's time, beside {name}",
            f"{seconds:.1f} s beside {theirs:.1f} s, {seconds / theirs:.2f} times{given_up}; "
            f"timers late by p99 {late:.0f} and {theirs_late:.0f} ms",
            "1.0",
        )


def main(rounds: int = 2) -> None:
    """Measure those that are there."""
    folder = Path(os.environ["PEERS"]).expanduser() if os.environ.get("PEERS") else None
    names = there(folder)
    if folder is None or not names:
        return
    with tempfile.TemporaryDirectory() as directory, Stage() as stage:
        places = compiled(folder, names, Path(directory))
        stage.start_emacs(stage.sandbox.greeting)
        stage.emacs.eval(SETUP)
        paths = " ".join(lisp_string(str(place)) for place in (*places, CHECKOUT / "bench"))
        stage.emacs.eval(f"(progn (setq load-path (append '({paths}) load-path)) (require 'peers) t)")
        stage.emacs.wait_until(ROOTS_TOLD)
        os.chdir(stage.sandbox.project)
        if CLAUDE in names:
            measure_reviews(stage, rounds)
        if chats := [name for name in names if name != CLAUDE]:
            measure_streams(stage, chats)
        stage.end()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
