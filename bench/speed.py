# SPDX-License-Identifier: GPL-3.0-or-later
"""Time what a user and a CLI wait for, between a real Emacs in a terminal and a client in the place of the CLI.

    .build/venv/bin/python bench/speed.py [ROUNDS]

A pause of the cursor to its context at the client, also on a loaded machine, beside a timer and a program that pass the
line on; a proposal to Ediff on the screen, beside Ediff with the same texts,
of which one comes by one HTTP request and one message; an acceptance to its bytes at the client, beside saving the same
text; the start of the mode, beside importing the packages it needs, and what memory the idle backend has then.  Emacs
has its default `gc-cons-threshold`.  Medians of ROUNDS (5).  Asserts nothing.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT / name) for name in ("tests/e2e", "tests/helpers", "python")]

import psutil  # noqa: E402  the path is set first

from editor import lisp_string  # noqa: E402  the path is set first
from sessions import BARE  # noqa: E402  the path is set first
from stage import ROOTS_TOLD, Stage  # noqa: E402
from support import Cli  # noqa: E402
from table import ROUNDS, compare, exponent, percentile, row  # noqa: E402

SIZES = {"64 KB": 1_300, "1 MB": 20_000, "10 MB": 200_000}
"""Sizes and their lines of 50 bytes."""

LINE_ENDS = {"": "\n", ", CR LF": "\r\n"}

CHANGES = 20
"""Lines that a proposal changes."""

MOVES = {1: 100, 10: 30, 50: 30}
"""Moves of the cursor by the number of clients."""

BUSY_MOVES = 250
"""Moves on a loaded machine: one collection of garbage in Emacs is more than 1 % of fewer."""

PAUSE_MS = 50
"""How long Emacs waits for another command before it tells the context."""

LIMIT_S = 300
"""How long Emacs may take for anything, in seconds."""

BUSY = 4
"""Programs beside that are busy, for a pause on a loaded machine."""

BUSY_LOOP = "import time\nend = time.monotonic() + 120\nwhile time.monotonic() < end: pass"

LEAST = "Ediff on two texts that come by one request and one message"

SETUP = """
(progn
  (require 'ediff)
  ;; What the tests have added.
  (advice-mapc (lambda (function _) (advice-remove 'qwen-companion-backend-call function)) 'qwen-companion-backend-call)
  (setq gc-cons-threshold 800000
        qwen-companion-diff-arrival 'now
        qwen-companion-diff-style 'ediff
        qwen-companion-review-ediff--least-lines 0
        bench-moves nil bench-line nil bench-began nil bench-ready nil bench-control nil bench-elapsed nil)
  (add-hook 'post-command-hook (lambda () (push (cons (line-number-at-pos) (float-time)) bench-moves)))
  ;; Once it is drawn: after a `redisplay', or when Emacs waits again.
  (defun bench-drawn (&rest _)
    (when (eq bench-ready 'soon) (setq bench-ready (float-time))))
  (advice-add 'redisplay :after #'bench-drawn)
  (add-hook 'ediff-startup-hook
            (lambda ()
              (setq bench-control (current-buffer) bench-ready 'soon)
              (run-at-time 0 nil #'bench-drawn)))
  (defun bench-text (file)
    (with-current-buffer (generate-new-buffer "bench")
      (insert-file-contents file)
      (current-buffer)))
  (defun bench-connect (port)
    (make-network-process
     :name "bench" :host "127.0.0.1" :service port :noquery t
     :filter (lambda (_process line)
               (apply #'ediff-buffers (mapcar #'bench-text (read line))))))
  (defun bench-tell (port)
    (setq bench-line (make-network-process :name "line" :host "127.0.0.1" :service port :noquery t))
    (run-with-idle-timer 0.05 t (lambda () (process-send-string bench-line (format "<%d>" (line-number-at-pos))))))
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

IMPORTS = "import anyio, httptools, psutil, sexpdata, mcp.server.lowlevel, mcp.server.streamable_http"


BARE_SERVER = r"""
import json, socket, sys
requests, editors = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
print(requests.getsockname()[1], editors.getsockname()[1], flush=True)
editor, _ = editors.accept()
while True:
    client, _ = requests.accept()
    with client, client.makefile("rb") as request:
        while (line := request.readline().lower()) != b"\r\n":
            if line.startswith(b"content-length:"):
                size = int(line.partition(b":")[2])
        call = json.loads(request.read(size))["params"]["arguments"]
        with open(sys.argv[1], "w", newline="") as text:
            text.write(call["newContent"])
        editor.sendall(f'({json.dumps(call["filePath"])} {json.dumps(sys.argv[1])})'.encode())
        client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
"""
"""The least that a proposal is: takes the text of an `openDiff` call, writes it to a file, tells Emacs both names."""


BARE_LINE = """
import socket
editors, clients = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
print(editors.getsockname()[1], clients.getsockname()[1], flush=True)
editor, client = editors.accept()[0], clients.accept()[0]
while line := editor.recv(4096):
    client.sendall(line)
"""
"""The least that a pause is: passes on what Emacs sends after it."""


class Bare:
    """Such a server, connected to the Emacs of `stage`."""

    def __init__(self, stage: Stage) -> None:
        self.new = stage.sandbox.project.parent / "new.txt"
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", BARE_SERVER, str(self.new)], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._port, editors = map(int, self._process.stdout.readline().split())
        stage.emacs.eval(f"(progn (bench-connect {editors}) t)")

    def __enter__(self) -> Bare:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def post(self, body: bytes) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        connection.request("POST", "/", body)
        connection.getresponse().read()
        connection.close()


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

    def told(self, line: int) -> float:
        """Wait for the context with the cursor at `line`; return when it came, in seconds since the epoch."""
        return self.arrival(rb'"line": ?%d\b' % line)

    def arrival(self, pattern: bytes) -> float:
        """Wait for the end of an event with `pattern`; return when it came, in seconds since the epoch."""
        start = -1
        while True:
            if start < 0 and (found := re.search(pattern, self._data)):
                start = found.start()
            if start >= 0 and (end := self._data.find(b"\n\n", start)) >= 0:
                now = time.time()
                del self._data[: end + 2]
                return now
            if start >= 0:
                # To look again at what has been looked at would take most of the time.
                start = len(self._data) - 1
            if not (piece := self._socket.recv(1 << 20)):
                raise SystemExit("the stream has ended")
            self._data += piece


def number(stage: Stage, form: str) -> float:
    return float(stage.emacs.eval(form))


def when_ready(stage: Stage) -> float:
    """Wait until Emacs has noted the moment in `bench-ready`; return it in seconds since the epoch."""
    deadline = time.monotonic() + LIMIT_S
    while stage.emacs.eval("(numberp bench-ready)") == "nil":
        if time.monotonic() > deadline:
            raise SystemExit(f"Emacs is not ready after {LIMIT_S} s")
        # Asking keeps Emacs from its work.
        time.sleep(0.1)
    return number(stage, "bench-ready")


def pauses(stage: Stage, arrival: Callable[[int], float], line: int, moves: int) -> list[float]:
    """Move the cursor `moves` times from `line` on; return how long each took after the pause to `arrival`, in ms."""
    found: list[float] = []
    for moved in range(line + 1, line + 1 + moves):
        stage.screen.keys("Down")
        came = arrival(moved)
        found.append(1000 * (came - number(stage, f"(cdr (assq {moved} bench-moves))")) - PAUSE_MS)
    return found


@contextmanager
def busy(count: int) -> Generator[None]:
    """Keep `count` programs busy, for two minutes at most."""
    programs = [subprocess.Popen([sys.executable, "-I", "-c", BUSY_LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def measure_pauses(stage: Stage, client: Client) -> int:
    """Print the time from the pause to the client, with more and more clients, and what it took of the disk.

    Return the line of the cursor.
    """
    process = stage.sandbox.backend()
    line, connected, medians = 1, 1, dict[int, float]()
    # Python writes what it has compiled when it first needs it.
    pauses(stage, client.told, line, MOVES[10])
    line += MOVES[10]
    with ExitStack() as others:
        for count, moves in MOVES.items():
            for _ in range(connected, count):
                others.enter_context(Client(stage))
            connected = count
            before = process.io_counters()
            times = pauses(stage, client.told, line, moves)
            after = process.io_counters()
            line += moves
            medians[count] = statistics.median(times)
            if count == 1:
                row(
                    "speed",
                    f"pause of the cursor to its context at the CLI, after the {PAUSE_MS} ms: p50, p99 of {moves}",
                    f"{medians[1]:.1f} ms, {percentile(times, 0.99):.1f} ms, load {os.getloadavg()[0]:.0f}",
                    "p50 5 ms",
                )
                disk = after.read_bytes - before.read_bytes, after.write_bytes - before.write_bytes
                row("speed", "the same: bytes that Python read from disk and wrote", "{}, {}".format(*disk), "0, 0")
    said = ", ".join(f"{median:.1f}" for median in medians.values())
    grows = exponent([(count, max(0.1, median)) for count, median in medians.items()])
    row("speed", f"the same with {', '.join(map(str, MOVES))} CLIs; exponent", f"{said} ms; {grows:.2f}", "-")
    return line


def bare_pauses(stage: Stage, line: int) -> list[float]:
    """Return the pauses, in ms, to a program that passes on what a timer of Emacs sends, with busy programs beside."""
    with subprocess.Popen([sys.executable, "-I", "-c", BARE_LINE], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        editors, clients = map(int, program.stdout.readline().split())
        stage.emacs.eval(f"(progn (setq bench-timer (bench-tell {editors})) t)")
        with socket.create_connection(("127.0.0.1", clients)) as lines, busy(BUSY):

            def arrival(line: int) -> float:
                data = b""
                while b"<%d>" % line not in data:
                    data += lines.recv(4096)
                return time.time()

            found = pauses(stage, arrival, line, BUSY_MOVES)
        stage.emacs.eval("(progn (cancel-timer bench-timer) (delete-process bench-line) t)")
    return found


def measure_busy_pauses(stage: Stage, line: int) -> None:
    """Print the time from the pause to the client on a loaded machine, beside the least; leave the mode off."""
    with Client(stage) as client, busy(BUSY):
        ours = pauses(stage, client.told, line, BUSY_MOVES)
    stage.emacs.eval("(qwen-companion-mode -1)")
    stage.emacs.wait_until('(not (get-process "qwen-companion"))')
    least = bare_pauses(stage, line + BUSY_MOVES)
    p50, p99 = (f"{percentile(ours, at):.1f} ms beside {percentile(least, at):.1f}" for at in (0.5, 0.99))
    row(
        "speed",
        f"pause of the cursor with {BUSY} busy programs, {BUSY_MOVES} moves, beside a timer and a program: p50, p99",
        f"{p50}, {p99}",
        "p99 10 ms",
    )


def texts(lines: int, end: str) -> tuple[str, str]:
    """Return a text of `lines` lines and one with `CHANGES` of them changed."""
    old = [f"{line:06} {'x' * 42}{end}" for line in range(lines)]
    new = list(old)
    for line in range(lines // CHANGES // 2, lines, lines // CHANGES):
        new[line] = f"{line:06} changed{end}"
    return "".join(old), "".join(new)


def proposal(path: Path, new: str) -> bytes:
    """Return the request that proposes `new` for `path`."""
    arguments: dict[str, Any] = {"filePath": str(path), "newContent": new}
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "openDiff", "arguments": arguments},
    }
    return json.dumps(call).encode()


def shown(stage: Stage, post: Callable[[bytes], object], body: bytes) -> float:
    """Let `post` send `body`; return the ms until Ediff is on the screen."""
    stage.emacs.eval("(setq bench-ready nil)")
    began = time.time()
    post(body)
    return 1000 * (when_ready(stage) - began)


def review(stage: Stage, client: Client, path: Path, new: str) -> tuple[float, float]:
    """Propose `new` for `path` and accept it; return the ms to Ediff on the screen, and those to the client."""
    ready = shown(stage, client.http.post, proposal(path, new))
    stage.emacs.eval("(bench-accept)")
    came = client.arrival(rb"ide/diffAccepted")
    accepted = 1000 * (came - number(stage, "bench-began"))
    path.write_bytes(new.encode())
    stage.emacs.wait_until("(null qwen-companion-disk--writes)")
    return ready, accepted


def bare(stage: Stage, server: Bare, path: Path, old: str, new: str) -> tuple[float, float]:
    """Show `old` and `new`, which comes from `server`, in Ediff and save `new`; return the ms of both."""
    path.write_bytes(old.encode())
    ediff = shown(stage, server.post, proposal(path, new))
    stage.emacs.eval("(bench-end-ediff)")
    names = (lisp_string(str(file)) for file in (server.new, server.new.with_name("saved.txt")))
    stage.emacs.eval(f"(bench-save {' '.join(names)})")
    return ediff, 1000 * number(stage, "bench-elapsed")


def measure_reviews(stage: Stage, client: Client, server: Bare, rounds: int) -> None:
    """Print what reviews of texts of all sizes take, beside Ediff with `server` and saving alone."""
    points: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for end_name, end in LINE_ENDS.items():
        for size, lines in SIZES.items():
            old, new = texts(lines, end)
            ready: list[tuple[float, float]] = []
            accepted: list[tuple[float, float]] = []
            for count in range(rounds):
                path = stage.sandbox.project / f"{lines}-{len(end)}-{count}.txt"
                path.write_bytes(old.encode())
                ours, theirs = review(stage, client, path, new), bare(stage, server, path, old, new)
                ready.append((ours[0], theirs[0]))
                accepted.append((ours[1], theirs[1]))
                path.unlink()
            goal = "1.3, 30 ms" if lines == SIZES["64 KB"] else "1.3"
            compare(f"{size}{end_name}: proposal sent to Ediff on the screen, beside {LEAST}", ready, goal)
            goal = "-" if lines == SIZES["64 KB"] else "2"
            compare(f"{size}{end_name}: acceptance to its bytes at the CLI, beside saving alone", accepted, goal)
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
    process = stage.sandbox.backend()
    # What a session needs is imported in the background, and idleness tells nobody of its end.
    with Client(stage):
        pass
    memory, least = process.memory_full_info(), bare_memory()
    row(
        "speed",
        "memory of the idle backend, resident, beside a bare MCP server",
        f"{memory.rss / 1e6:.0f} MB, {memory.uss / 1e6:.0f} MB of them its own, beside {least / 1e6:.0f} MB",
        "50 MB",
    )


def bare_memory() -> int:
    """Return the bytes that a server of the MCP library has in memory once it has answered a request."""
    with subprocess.Popen([sys.executable, "-c", BARE], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            Cli(int(server.stdout.readline()), "").initialize()
            return psutil.Process(server.pid).memory_info().rss
        finally:
            server.kill()


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
            line = measure_pauses(stage, client)
            with Bare(stage) as server:
                measure_reviews(stage, client, server, rounds)
        show = f"(find-file {lisp_string(str(text))}) (delete-other-windows) (goto-char 1) (forward-line {line - 1})"
        stage.emacs.eval(f"(progn {show} t)")
        measure_busy_pauses(stage, line)
        measure_start(stage, rounds)
        stage.end()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
