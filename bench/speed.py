# SPDX-License-Identifier: GPL-3.0-or-later
"""Time what a user and a CLI wait for, between a real Emacs in a terminal and a client in the place of the CLI.

    .build/venv/bin/python bench/speed.py [ROUNDS]

A pause of the cursor to its context at the client; a proposal to Ediff on the screen, beside Ediff alone with the same
texts; an acceptance to its bytes at the client, beside saving the same text; the start of the mode, beside importing
the packages it needs.  Emacs has its default `gc-cons-threshold`.  Medians of ROUNDS (5).  Asserts nothing.
"""

from __future__ import annotations

import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT / name) for name in ("tests/e2e", "tests/helpers", "python")]

from editor import lisp_string  # noqa: E402  the path is set first
from stage import ROOTS_TOLD, Stage  # noqa: E402
from support import Cli  # noqa: E402
from table import ROUNDS, compare, exponent, row  # noqa: E402

SIZES = {"64 KB": 1_300, "1 MB": 20_000, "10 MB": 200_000}
"""Sizes and their lines of 50 bytes."""

LINE_ENDS = {"": "\n", ", CR LF": "\r\n"}

CHANGES = 20
"""Lines that a proposal changes."""

MOVES = 30

CLIENTS = (1, 10, 50)

PAUSE_MS = 50
"""How long Emacs waits for another command before it tells the context."""

SETUP = """
(progn
  (require 'ediff)
  ;; What the tests have added.
  (advice-mapc (lambda (function _) (advice-remove 'qwen-companion-backend-call function)) 'qwen-companion-backend-call)
  (setq gc-cons-threshold 800000
        qwen-companion-diff-arrival 'now
        qwen-companion-diff-style 'ediff
        qwen-companion-review-ediff--least-lines 0
        bench-moves nil bench-began nil bench-ready nil bench-control nil bench-elapsed nil)
  (add-hook 'post-command-hook (lambda () (push (cons (line-number-at-pos) (float-time)) bench-moves)))
  ;; Once Emacs waits again.
  (add-hook 'ediff-startup-hook
            (lambda ()
              (setq bench-control (current-buffer))
              (run-at-time 0 nil (lambda () (setq bench-ready (float-time))))))
  (defun bench-text (file)
    (with-current-buffer (generate-new-buffer "bench")
      (insert-file-contents file)
      (current-buffer)))
  (defun bench-ediff (old new)
    (setq bench-ready nil bench-began (float-time))
    (ediff-buffers (bench-text old) (bench-text new)))
  (defun bench-end-ediff ()
    (let ((buffers (with-current-buffer bench-control (list ediff-buffer-A ediff-buffer-B))))
      (with-current-buffer bench-control (ediff-really-quit nil))
      (mapc #'kill-buffer buffers)))
  (defun bench-save (file target)
    (with-current-buffer (bench-text file)
      (setq bench-began (float-time))
      (write-region nil nil target nil 0)
      (setq bench-elapsed (- (float-time) bench-began))
      (kill-buffer)))
  (defun bench-accept ()
    (run-at-time 0 nil (lambda ()
                         (setq bench-began (float-time))
                         (qwen-companion-diff-accept (car (qwen-companion-proposals)))))
    t)
  (defun bench-start ()
    (setq bench-ready nil bench-began (float-time))
    (qwen-companion-mode 1)
    (setq bench-elapsed (- (float-time) bench-began)))
  (add-hook 'qwen-companion-state-functions
            (lambda (state) (when (eq state 'ready) (setq bench-ready (float-time)))))
  t)
"""

BARE_START = """
(let ((start (float-time)))
  (make-process :name "bench" :command '("true") :connection-type 'pipe :noquery t)
  (* 1000 (- (float-time) start)))
"""

IMPORTS = "import anyio, httptools, psutil, sexpdata, uvicorn, mcp.server.lowlevel, mcp.server.streamable_http"


class Client:
    """A session with the companion of `stage`, whose stream is read as raw bytes."""

    def __init__(self, stage: Stage) -> None:
        (lock,) = stage.sandbox.lock_files
        self.http = Cli(int(lock.stem), json.loads(lock.read_text())["authToken"])
        self.http.initialize()
        headers = self.http.headers | {"mcp-session-id": self.http.session, "mcp-protocol-version": "2025-11-25"}
        lines = [f"{name}: {value}" for name, value in (headers | {"Accept": "text/event-stream"}).items()]
        self._socket = socket.create_connection(("127.0.0.1", self.http.port))
        self._socket.sendall("\r\n".join(["GET /mcp HTTP/1.1", *lines, "", ""]).encode("ascii"))
        self._data = bytearray()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.post(b"", method="DELETE")
        self._socket.close()

    def arrival(self, pattern: bytes) -> float:
        """Wait for the end of an event with `pattern`; return when it came, in seconds since the epoch."""
        start = -1
        while True:
            if start < 0 and (found := re.search(pattern, self._data)):
                start = found.start()
            if start >= 0 and (end := self._data.find(b"\n\n", max(start, len(self._data) - (1 << 21)))) >= 0:
                now = time.time()
                del self._data[: end + 2]
                return now
            if not (piece := self._socket.recv(1 << 20)):
                raise SystemExit("the stream has ended")
            self._data += piece


def number(stage: Stage, form: str) -> float:
    return float(stage.emacs.eval(form))


def when_ready(stage: Stage) -> float:
    """Wait until Emacs has noted the moment in `bench-ready`; return it in seconds since the epoch."""
    while stage.emacs.eval("bench-ready") == "nil":
        # Asking keeps Emacs from its work.
        time.sleep(0.1)
    return number(stage, "bench-ready")


def pauses(stage: Stage, client: Client, line: int) -> list[float]:
    """Move the cursor `MOVES` times from `line` on; return how long each took after the pause, in ms."""
    found: list[float] = []
    for moved in range(line + 1, line + 1 + MOVES):
        stage.screen.keys("Down")
        came = client.arrival(rb'"line": ?%d\b' % moved)
        found.append(1000 * (came - number(stage, f"(cdr (assq {moved} bench-moves))")) - PAUSE_MS)
    return found


def measure_pauses(stage: Stage, client: Client) -> None:
    """Print the time from the pause to the client, with more and more clients, and what it took of the disk."""
    process = stage.sandbox.backend()
    line, connected, medians = 1, 1, dict[int, float]()
    # Python writes what it has compiled when it first needs it.
    pauses(stage, client, line)
    line += MOVES
    with ExitStack() as others:
        for count in CLIENTS:
            for _ in range(connected, count):
                others.enter_context(Client(stage))
            connected = count
            before = process.io_counters()
            times = sorted(pauses(stage, client, line))
            after = process.io_counters()
            line += MOVES
            medians[count] = statistics.median(times)
            if count == 1:
                row(
                    "speed",
                    f"pause of the cursor to its context at the CLI, after the {PAUSE_MS} ms: p50, most of {MOVES}",
                    f"{medians[1]:.1f} ms, {times[-1]:.1f} ms",
                    "p50 5 ms",
                )
                disk = after.read_bytes - before.read_bytes, after.write_bytes - before.write_bytes
                row("speed", "the same: bytes that Python read from disk and wrote", "{}, {}".format(*disk), "0, 0")
    said = ", ".join(f"{median:.1f}" for median in medians.values())
    grows = exponent([(count, max(0.1, median)) for count, median in medians.items()])
    row("speed", f"the same with {', '.join(map(str, CLIENTS))} CLIs; exponent", f"{said} ms; {grows:.2f}", "-")


def texts(lines: int, end: str) -> tuple[str, str]:
    """Return a text of `lines` lines and one with `CHANGES` of them changed."""
    old = [f"{line:06} {'x' * 42}{end}" for line in range(lines)]
    new = list(old)
    for line in range(lines // CHANGES // 2, lines, lines // CHANGES):
        new[line] = f"{line:06} changed{end}"
    return "".join(old), "".join(new)


def review(stage: Stage, client: Client, path: Path, new: str) -> tuple[float, float]:
    """Propose `new` for `path` and accept it; return the ms to Ediff on the screen, and those to the client."""
    arguments: dict[str, Any] = {"filePath": str(path), "newContent": new}
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "openDiff", "arguments": arguments},
    }
    body = json.dumps(call).encode()
    stage.emacs.eval("(setq bench-ready nil)")
    began = time.time()
    client.http.post(body)
    ready = 1000 * (when_ready(stage) - began)
    stage.emacs.eval("(bench-accept)")
    came = client.arrival(rb"ide/diffAccepted")
    accepted = 1000 * (came - number(stage, "bench-began"))
    path.write_bytes(new.encode())
    stage.emacs.wait_until("(null qwen-companion-disk--writes)")
    return ready, accepted


def bare(stage: Stage, path: Path, old: str, new: str) -> tuple[float, float]:
    """Show `old` and `new` in Ediff alone and save `new` at `path`; return the ms of both."""
    place = path.parent.parent
    files = [place / "old.txt", place / "new.txt"]
    for file, text in zip(files, (old, new), strict=True):
        file.write_bytes(text.encode())
    names = [lisp_string(str(file)) for file in files]
    stage.emacs.eval(f"(progn (run-at-time 0 nil #'bench-ediff {' '.join(names)}) (setq bench-ready nil) t)")
    ediff = 1000 * (when_ready(stage) - number(stage, "bench-began"))
    stage.emacs.eval("(bench-end-ediff)")
    stage.emacs.eval(f"(bench-save {names[1]} {lisp_string(str(place / 'saved.txt'))})")
    return ediff, 1000 * number(stage, "bench-elapsed")


def measure_reviews(stage: Stage, client: Client, rounds: int) -> None:
    """Print what reviews of texts of all sizes take, beside Ediff and saving alone."""
    points: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for end_name, end in LINE_ENDS.items():
        for size, lines in SIZES.items():
            old, new = texts(lines, end)
            ready: list[tuple[float, float]] = []
            accepted: list[tuple[float, float]] = []
            for count in range(rounds):
                path = stage.sandbox.project / f"{lines}-{len(end)}-{count}.txt"
                path.write_bytes(old.encode())
                ours, theirs = review(stage, client, path, new), bare(stage, path, old, new)
                ready.append((ours[0], theirs[0]))
                accepted.append((ours[1], theirs[1]))
                path.unlink()
            compare(f"{size}{end_name}: proposal sent to Ediff on the screen, beside Ediff alone", ready, "1.1")
            compare(f"{size}{end_name}: acceptance to its bytes at the CLI, beside saving alone", accepted, "1.1")
            for name, pairs in (("proposal", ready), ("acceptance", accepted)):
                for index, whose in enumerate(("ours", "alone")):
                    points[name, whose].append((lines, statistics.median(pair[index] for pair in pairs)))
    for name in ("proposal", "acceptance"):
        grows = [exponent(points[name, whose]) for whose in ("ours", "alone")]
        row("speed", f"{name}: exponent of the growth with the size", "{:.2f} beside {:.2f}".format(*grows), "-")


def measure_start(stage: Stage, rounds: int) -> None:
    """Print what the start of the mode takes, beside the imports alone."""
    returned: list[tuple[float, float]] = []
    ready: list[tuple[float, float]] = []
    for _ in range(rounds):
        stage.emacs.eval("(qwen-companion-mode -1)")
        stage.emacs.wait_until('(not (get-process "qwen-companion"))')
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", IMPORTS], check=True)
        imports = 1000 * (time.perf_counter() - began)
        stage.emacs.eval("(progn (run-at-time 0 nil #'bench-start) (setq bench-ready nil) t)")
        ready.append((1000 * (when_ready(stage) - number(stage, "bench-began")), imports))
        elapsed = 1000 * number(stage, "bench-elapsed")
        returned.append((elapsed, number(stage, BARE_START)))
    alone = statistics.median(bare for _, bare in returned)
    median = statistics.median(ours for ours, _ in returned)
    row(
        "speed", "M-x qwen-companion-mode returns", f"{median:.1f} ms, starting a program alone {alone:.1f} ms", "10 ms"
    )
    compare("the same to CLIs being served, beside importing the packages alone", ready, "1.0")


def main(rounds: int = ROUNDS) -> None:
    """Measure all and print a row for each."""
    with Stage() as stage:
        text = stage.sandbox.project / "moves.txt"
        text.write_text("a line\n" * 1000)
        stage.start_emacs(text)
        stage.emacs.eval(SETUP)
        stage.emacs.wait_until(ROOTS_TOLD)
        # A CLI hears of the files of its own project.
        os.chdir(stage.sandbox.project)
        with Client(stage) as client:
            stage.screen.wait_for("Qwen[1]")
            measure_pauses(stage, client)
            measure_reviews(stage, client, rounds)
        measure_start(stage, rounds)
        stage.end()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
