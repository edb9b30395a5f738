# SPDX-License-Identifier: GPL-3.0-or-later
"""Kill Emacs, backends and CLIs, and count how often nothing is lost: the deaths of `make robust`."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
from sexpdata import Symbol, dumps

from loopback import CHECKOUT, SOON_S, Table, context, gone_in, new_home, tests, wait_for_line
from sandbox import NOTES
from stage import Stage
from support import SECRET, Backend, Cli, Stream

EMACS = """
(progn
  (require 'qwen-companion)
  (find-file "a.txt")
  (qwen-companion-mode 1)
  (while (not (eq (qwen-companion-state) 'ready)) (accept-process-output nil 0.05))
  (message "backend=%d" (process-id (get-process "qwen-companion")))
  (while t (accept-process-output nil 1)))
"""


def deaths(table: Table, share: float, chance: random.Random) -> None:
    """Add the rows of all deaths."""
    _deaths_of_emacs(table, max(1, int(34 * share)))
    _deaths_of_backends(table, max(4, int(100 * share)), chance)
    _deaths_in_acceptances(table, max(2, int(100 * share)), chance)
    _deaths_of_clis(table, max(2, int(34 * share)))


# --- Emacs ------------------------------------------------------------------------------------------------------------


def _deaths_of_emacs(table: Table, rounds: int) -> None:
    emacs = os.environ.get("EMACS", "emacs")
    for number, name in ((signal.SIGKILL, "SIGKILL"), (signal.SIGSEGV, "SIGSEGV"), (signal.SIGHUP, "hang-up")):
        good = 0
        for _ in range(rounds):
            with new_home() as home:
                (home.work / "a.txt").write_text("text\n")
                (home.work / ".git").mkdir()
                process = subprocess.Popen(
                    [emacs, "-Q", "--batch", "-l", str(CHECKOUT / "scripts/checkout.el"), "--eval", EMACS],
                    cwd=home.work,
                    env=home.environ,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
                with process:
                    assert process.stderr is not None
                    said = (line for line in process.stderr if line.startswith("backend="))
                    backend = int(next(said).removeprefix("backend="))
                    files = home.files()
                    process.send_signal(number)
                    begun = time.monotonic()
                    ended = gone_in(backend, SOON_S)
                    left = [path for path in files if path.exists() and "ide" in path.parts]
                    good += bool(files) and ended and not left and time.monotonic() - begun <= SOON_S
                    process.kill()
        table.count("1", f"Emacs dies by {name}: backend and its files gone in {SOON_S:g} s", good, rounds)


# --- Backends ---------------------------------------------------------------------------------------------------------


def _deaths_of_backends(table: Table, rounds: int, chance: random.Random) -> None:
    """Kill backends with an open proposal at a moment of chance; each is replaced as Emacs does it."""
    moments: dict[str, Callable[[Backend, Path], None]] = {
        "idle": lambda _backend, _path: None,
        "a context": _send_context,
        "an outcome that belongs to no proposal": _send_unknown_outcome,
        "a burst of contexts": _send_contexts,
        "its own start": lambda _backend, _path: None,
    }
    outcomes, fresh, kept, times = dict.fromkeys(moments, 0), 0, 0, list[float]()
    tried = dict.fromkeys(moments, 0)
    for _ in range(rounds):
        moment = chance.choice(list(moments))
        tried[moment] += 1
        with new_home() as home, ExitStack() as stack:
            path = home.work / "a.txt"
            path.write_text("before\n")
            backend = stack.enter_context(Backend(home, fresh=True))
            backend.greet()
            backend.emacs.call("context", context(path, 1))
            cli = backend.cli()
            wait_for_line(stack.enter_context(cli.stream()), 1)
            cli.tool("openDiff", filePath=str(path), newContent="after\n")
            held = backend.emacs.wait_for("proposal-open")
            moments[moment](backend, path)
            port, token = backend.port, backend.token
            begun = time.monotonic()
            backend.kill()
            known = {"id": cli.session, "protocol": "2025-11-25", "client": "test-client", "version": "1.2"}
            proposal = {"id": held["id"], "session": cli.session, "path": str(path), "digest": held["digest"]}
            hello: dict[str, Any] = {"port": port, "token": token, "sessions": [known], "proposals": [proposal]}
            if moment == "its own start":
                with Backend(home, fresh=True, **hello) as starting:
                    # A start takes half a second; there is no event at a moment of chance in it.
                    time.sleep(chance.random() * 0.5)
                    starting.kill()
                begun = time.monotonic()
            after = stack.enter_context(Backend(home, fresh=True, **hello))
            after.greet()
            after.emacs.call("context", context(path, 2))
            stream = stack.enter_context(cli.stream())
            wait_for_line(stream, 2)
            times.append(time.monotonic() - begun)
            fresh += times[-1] <= SOON_S
            # Emacs sends the outcome until it hears that it was delivered.
            after.emacs.call("outcome", dumps({"id": held["id"], "outcome": Symbol("accepted"), "text": "after\n"}))
            event = stream.event()
            kept += after.port == port
            outcomes[moment] += event.get("method") == "ide/diffAccepted"
    for moment, good in outcomes.items():
        table.count("1", f"backend killed, a review open ({moment}): the outcome reaches the CLI", good, tried[moment])
    table.count("1", "backend killed: its port and the session are kept", kept, rounds)
    table.count(
        "1", f"the same: context fresh in {SOON_S:g} s (median {statistics.median(times):.2f} s)", fresh, rounds
    )


def _send_context(backend: Backend, path: Path) -> None:
    backend.emacs.call("context", context(path, 1))


def _send_unknown_outcome(backend: Backend, path: Path) -> None:
    backend.emacs.send(f'(call 77 outcome ({dumps(SECRET)} (:id "none" :outcome accepted :text "x")))')


def _send_contexts(backend: Backend, path: Path) -> None:
    for line in range(3, 50):
        backend.emacs.send(f"(call {line} context ({dumps(SECRET)} {context(path, line)}))")


MANY_RESTARTS = "(setq qwen-companion-backend--restart-limit '(100000 . 60))"
"""Emacs gives up after five in a minute otherwise."""

ACCEPT = """
(let ((proposal (car (qwen-companion-proposals))))
  (with-current-buffer (qwen-companion-proposal-buffer proposal)
    (goto-char (point-max))
    (setq buffer-read-only nil)
    (insert %s))
  (run-at-time 0 nil #'qwen-companion-diff-accept proposal)
  t)
"""


def _deaths_in_acceptances(table: Table, rounds: int, chance: random.Random) -> None:
    """Kill the backend of a real Emacs around an acceptance, every other time also the one that takes its place."""
    good = again = 0
    times: list[float] = []
    with Stage() as stage:
        stage.start_emacs(stage.sandbox.notes, forms=(MANY_RESTARTS,))
        client = stage.connect_client()
        for number in range(rounds):
            path, text, edit = stage.sandbox.project / f"{number}.txt", f"{number}\n{NOTES}", f"edit {number}\n"
            client.propose(path, text)
            stage.emacs.wait_until("(qwen-companion-proposals)")
            killed = stage.sandbox.backend()
            stage.emacs.eval(ACCEPT % f'"{edit}"'.replace("\n", "\\n"))
            # There is no event at a moment of chance in an acceptance.
            time.sleep(chance.random() * 0.03)
            killed.kill()
            if number % 2:
                again += 1
                next_one = _next_backend(stage, killed)
                time.sleep(chance.random() * 0.5)
                next_one.kill()
                killed = next_one
            begun = time.monotonic()
            stage.emacs.wait_until(
                "(let ((process (qwen-companion-backend--process)))"
                f" (and (process-live-p process) (/= {killed.pid} (process-id process))"
                " (eq 'ready (qwen-companion-state))))"
            )
            client.listen_again()
            good += client.write_accepted(path) == text + edit
            times.append(time.monotonic() - begun)
            stage.emacs.wait_until("(null (qwen-companion-proposals))")
        kept = int(
            stage.emacs.eval('(cl-count-if (lambda (b) (string-match-p "kept:" (buffer-name b))) (buffer-list))')
        )
        stage.end()
    table.count("1", "backend killed around an acceptance, real Emacs: the CLI gets the edited text", good, rounds)
    what = (
        f"the same: the next backend killed too, in {again} of them during its start; the longest until the text came"
    )
    table.add("1", what, f"{max(times):.1f} s", "-")
    table.add("1", "the same: texts that Emacs had to keep in a buffer", str(kept), "0")


def _next_backend(stage: Stage, killed: psutil.Process) -> psutil.Process:
    """Wait for the backend that Emacs starts in the place of `killed`."""
    while True:
        found = [process for process in stage.sandbox.backends() if process.pid != killed.pid]
        if found:
            return found[0]


# --- CLIs -------------------------------------------------------------------------------------------------------------

CLI = """
import http.client, json, sys
port, token, session, path = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
headers = {"Host": f"127.0.0.1:{port}", "Authorization": f"Bearer {token}", "Accept": "text/event-stream",
           "mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
stream = http.client.HTTPConnection("127.0.0.1", port)
stream.request("GET", "/mcp", None, headers)
answer = stream.getresponse()
print(answer.status, flush=True)
while path and answer.read1():
    pass
sys.stdin.read()
"""
"""A process that has the stream of a session, and reads it if its last argument is not empty."""

WAYS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "never reading": None}

LARGE = "x" * 16_000


def _deaths_of_clis(table: Table, rounds: int) -> None:
    """Kill or stop processes of CLIs with an open proposal, or let them never read, beside five other CLIs."""
    fresh, orphans, answered = dict.fromkeys(WAYS, 0), 0, 0
    with new_home() as home, Backend(home, fresh=True) as backend, ExitStack() as stack:
        path = home.work / "a.txt"
        path.write_text("text\n")
        backend.greet()
        backend.emacs.wait_for("serving")
        others = [(cli := backend.cli(), stack.enter_context(cli.stream())) for _ in range(5)]
        line = 1
        for way, number in WAYS.items():
            for _ in range(rounds):
                cli = backend.cli()
                arguments = (str(backend.port), backend.token, cli.session, "" if number is None else "reads")
                with subprocess.Popen(
                    [sys.executable, "-I", "-c", CLI, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                ) as victim:
                    assert victim.stdout is not None
                    assert victim.stdout.readline() == b"200\n"
                    cli.tool("openDiff", filePath=str(path), newContent="of one that dies\n")
                    held = backend.emacs.wait_for("proposal-open")["id"]
                    if number is not None:
                        victim.send_signal(number)
                    begun = time.monotonic()
                    for _ in range(20):
                        line += 1
                        backend.emacs.call("context", context(path, line, LARGE))
                        for _, stream in others:
                            wait_for_line(stream, line)
                    fresh[way] += time.monotonic() - begun <= SOON_S
                    answered += _answers(backend, *others[line % 5], path)
                    victim.kill()
                    orphans += backend.emacs.wait_for("proposal-orphan")["id"] == held
    for way, good in fresh.items():
        table.count("1", f"a CLI {way}: 20 contexts of 16 KB reach the 5 others in {SOON_S:g} s", good, rounds)
    table.count("1", "the same: a proposal of another CLI is accepted meanwhile", answered, 3 * rounds)
    table.count(
        "1", "the same, when its process has ended: Emacs is told that its proposal is an orphan", orphans, 3 * rounds
    )
    edits = ("tests/e2e/test_peers.py::test_a_killed_cli_is_gone_and_leaves_its_proposal_in_a_buffer",)
    tests(table, "1", "a killed CLI: the edited proposal is kept in a buffer, real Emacs", *edits)


def _answers(backend: Backend, cli: Cli, stream: Stream, path: Path) -> bool:
    """Let `cli` propose a text; return whether it hears of its acceptance on `stream`."""
    cli.tool("openDiff", filePath=str(path), newContent="of another\n")
    opened = backend.emacs.wait_for("proposal-open")
    backend.emacs.call("outcome", dumps({"id": opened["id"], "outcome": Symbol("accepted"), "text": "edited\n"}))
    while (event := stream.event())["method"] != "ide/diffAccepted":
        pass
    backend.emacs.wait_for("delivered")
    return event["params"]["content"] == "edited\n"
