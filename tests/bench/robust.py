# SPDX-License-Identifier: GPL-3.0-or-later
"""Kill, load and attack backends on this machine and print a table with the goals; asserts nothing.

    .build/venv/bin/python tests/bench/robust.py [--share 0.1] [--seed 1]

`--share` is how much of the whole is done, 1 by default.  All connections go to 127.0.0.1.
A row says how many of how many went well, or a figure; the tests that show a part of a row in detail are run as well,
and count as one case each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(CHECKOUT / name) for name in ("python", "tests", "tests/python")]

import hypothesis  # noqa: E402 - the path above
import psutil  # noqa: E402
from sexpdata import Symbol, dumps  # noqa: E402

from qwen_companion.doors.hook_settings import door_secret  # noqa: E402
from qwen_companion.tools.settings import tool_secret  # noqa: E402
from schema_messages import client_messages  # noqa: E402
from support import INITIALIZE, SECRET, Backend, Cli, EpcPeer, Home, Stream  # noqa: E402
from table import HEAD, row  # noqa: E402
from test_robust import answer_to, damaged, hostile_body, hostile_request, noise, spoilt_token  # noqa: E402

SOON_S = 2.0
"""Within this time all has to be well again."""

EMACS = """
(progn
  (require 'qwen-companion)
  (find-file "a.txt")
  (qwen-companion-mode 1)
  (while (not (eq (qwen-companion-state) 'ready)) (accept-process-output nil 0.05))
  (message "backend=%d" (process-id (get-process "qwen-companion")))
  (while t (accept-process-output nil 1)))
"""


KINDS = {"1": "death", "2": "load", "3": "bad input", "4": "attack", "5": "system"}
"""Names of the points, by number."""


class Table:
    """The rows, printed as they come."""

    def __init__(self) -> None:
        print(HEAD, flush=True)

    def add(self, point: str, what: str, measured: str, goal: str) -> None:
        row(KINDS[point], what, measured, goal)

    def count(self, point: str, what: str, good: int, of: int) -> None:
        self.add(point, what, f"{good} of {of}", "all")


@contextmanager
def new_home() -> Generator[Home]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        yield Home(Path(directory))


def context(path: Path, line: int, text: str = "") -> str:
    files = [{"path": str(path), "timestamp": 1000}]
    return dumps(
        {"files": files, "active": str(path), "line": line, "character": 1, **({"text": text} if text else {})}
    )


def line_of(stream: Stream) -> int | None:
    """Return the line of the cursor in the next context of `stream`."""
    files: list[dict[str, Any]] = stream.event().get("params", {}).get("workspaceState", {}).get("openFiles")
    return files[0].get("cursor", {}).get("line") if files else None


def wait_for_line(stream: Stream, line: int) -> None:
    while line_of(stream) != line:
        pass


def gone_in(pid: int, seconds: float) -> bool:
    """Return whether the process `pid` ends within `seconds`."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


# --- 1. Deaths --------------------------------------------------------------------------------------------------------


def deaths_of_emacs(table: Table, rounds: int) -> None:
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


def deaths_of_backends(table: Table, rounds: int, chance: random.Random) -> None:
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
    tests(table, "1", "backend killed before it has read an acceptance, real Emacs", "tests/e2e/test_acceptance.py")


def _send_context(backend: Backend, path: Path) -> None:
    backend.emacs.call("context", context(path, 1))


def _send_unknown_outcome(backend: Backend, path: Path) -> None:
    backend.emacs.send(f'(call 77 outcome ({dumps(SECRET)} (:id "none" :outcome accepted :text "x")))')


def _send_contexts(backend: Backend, path: Path) -> None:
    for line in range(3, 50):
        backend.emacs.send(f"(call {line} context ({dumps(SECRET)} {context(path, line)}))")


# --- 2. Load ----------------------------------------------------------------------------------------------------------


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


@contextmanager
def session(backend: Backend) -> Generator[Cli]:
    """Yield a CLI whose session ends with the block."""
    cli = backend.cli()
    yield cli
    cli.post(b"", "DELETE")


def load(table: Table, share: float) -> None:
    clis, changes = 50, max(100, int(100_000 * share))
    proposals, connects = max(20, int(2_000 * share)), max(20, int(1_000 * share))
    with new_home() as home, Backend(home, fresh=True) as backend:
        paths = [home.work / f"{number}.txt" for number in range(10)]
        for path in paths:
            path.write_text("text\n")
        backend.greet()
        backend.emacs.wait_for("serving")
        process = psutil.Process(backend.process.pid)
        with ExitStack() as warm:
            _connect(backend, 5, warm)
            _latencies(backend, paths[0], 20)
        # The processes above Emacs are watched from the second look at them on, five seconds after the first.
        while time.time() - process.create_time() < START_S:
            time.sleep(1)
        before = _settled(process)
        with ExitStack() as stack:
            _connect(backend, clis, stack)
            measured = max(50, min(1000, changes // 20))
            plain = _latencies(backend, paths[0], measured)
            _change(backend, paths[0], changes - measured)
            large = _latencies(backend, paths[0], measured, SELECTED)
            for _ in range(clis // 5):
                stack.enter_context(stack.enter_context(session(backend)).stream())
            # Until the system takes no more for those who do not read.
            _change(backend, paths[0], max(100, min(1000, changes)), SELECTED)
            beside = _latencies(backend, paths[0], measured, SELECTED)
            name = f"context to its bytes at one of {clis + 1} CLIs, {changes} changes: p50, p99"
            table.add("2", name, f"{percentile(plain, 0.5):.2f} ms, {percentile(plain, 0.99):.2f} ms", "-")
            ratio = percentile(beside, 0.99) / percentile(large, 0.99)
            table.add(
                "2", f"p99 with {clis // 5} stalled readers, 16 KB selected, to that without", f"{ratio:.2f}", "1.2"
            )
            good = 0
            with session(backend) as cli, cli.stream():
                for number in range(proposals):
                    cli.tool("openDiff", filePath=str(paths[0]), newContent=f"{number}\n")
                    good += backend.emacs.wait_for("proposal-open")["text"] == f"{number}\n"
                cli.tool("closeDiff", filePath=str(paths[0]))
            table.count("2", "proposals that reach Emacs", good, proposals)
        for _ in range(connects):
            with session(backend) as cli, cli.stream() as stream:
                stream.block()
        after = _settled(process)
        table.add("2", f"memory after {connects} connects, to that before", f"{after[0] / before[0]:.3f}", "1.05")
        table.add(
            "2",
            "descriptors, threads after it, less those before",
            f"{after[1] - before[1]}, {after[2] - before[2]}",
            "0, 0",
        )
        idle_s = 10.0 * max(0.2, min(1.0, share * 3))
        spent = sum(process.cpu_times()[:2])
        # Nothing is to happen in this time, so there is no event to wait for.
        time.sleep(idle_s)
        spent = sum(process.cpu_times()[:2]) - spent
        table.add("2", f"processor time of the idle backend in {idle_s:g} s", f"{100 * spent / idle_s:.2f} %", "0.2 %")


SELECTED = "x" * 16_000
START_S = 12.0


def _connect(backend: Backend, count: int, stack: ExitStack) -> None:
    """Open `count` sessions, each with a thread that reads its stream."""

    def read(stream: Stream) -> None:
        with stream:
            while stream.block():
                pass

    for _ in range(count):
        cli = backend.cli()
        reader = threading.Thread(target=read, args=(cli.stream(),), daemon=True)
        reader.start()
        # The backend ends the stream, and with it the thread.
        stack.callback(reader.join)
        stack.callback(cli.post, b"", "DELETE")


def _change(backend: Backend, path: Path, count: int, text: str = "") -> None:
    """Change the context `count` times as fast as it goes; wait for every hundredth to come to a CLI."""
    with session(backend) as cli, cli.stream() as stream:
        for number in range(2, count + 2):
            backend.emacs.call("context", context(path, number, text))
            if number % 100 == 0 or number == count + 1:
                wait_for_line(stream, number)


def _latencies(backend: Backend, path: Path, count: int, text: str = "") -> list[float]:
    """Return how long each of `count` changes of the context takes to the stream of a CLI, in ms."""
    found: list[float] = []
    with session(backend) as cli, cli.stream() as stream:
        for number in range(2, count + 2):
            begun = time.perf_counter()
            backend.emacs.call("context", context(path, number, text))
            wait_for_line(stream, number)
            found.append((time.perf_counter() - begun) * 1000)
    return found


def _state(process: psutil.Process) -> tuple[int, int, int]:
    return process.memory_info().rss, process.num_fds(), process.num_threads()


def _settled(process: psutil.Process) -> tuple[int, int, int]:
    """Return the state of `process` once it has not changed for a second, in ten seconds at most."""
    end, now = time.monotonic() + 10, _state(process)
    while time.monotonic() < end:
        time.sleep(1)
        before, now = now, _state(process)
        if before == now:
            break
    return now


# --- 3. Bad input and 4. Attack ---------------------------------------------------------------------------------------


def bad_input(table: Table, cases: int, chance: random.Random) -> None:
    with new_home() as home, Backend(home, fresh=True) as backend:
        backend.greet()
        backend.emacs.wait_for("serving")
        cli = backend.cli()
        written = set(home.files())
        ways: dict[str, Callable[[], bool]] = {
            "HTTP": lambda: b" 500 " not in answer_to(backend.port, hostile_request(chance, cli))[:20],
            "JSON-RPC": lambda: cli.post(hostile_body(chance))[0] < 500,
            "hook bodies": lambda: _post(backend.port, "/hook", door_secret(backend.token), _hook(chance)) < 500,
            "tool calls": lambda: _post(backend.port, "/tools", tool_secret(backend.token), _call(chance)) < 500,
            "EPC with the secret": lambda: _epc(backend.emacs, chance),
        }
        for name, case in ways.items():
            good = sum(_survives(case) for _ in range(cases))
            table.count("3", f"{name}: refused or answered, no crash, no hang", good, cases)
        table.count("3", "JSON-RPC by its schema: refused or answered", _by_schema(cli, home, cases), cases)
        backend.emacs.call("stop", "nil")
        code, said = backend.exit_code(), backend.error_text()
        quiet = "nothing" if not said and not code else f"status {code}, {len(said.splitlines())} lines"
        table.add("3", "said on standard error after all that", quiet, "nothing")
        new = {path for path in set(home.files()) - written if path.exists()}
        table.add("3", "files written by it", str(len(new)), "0")


def _by_schema(cli: Cli, home: Home, cases: int) -> int:
    """Send about `cases` messages by the schema, whole and damaged; return how many harmed nothing, at most `cases`."""
    good = bad = 0

    @hypothesis.settings(max_examples=cases, derandomize=True, database=None, deadline=None)
    @hypothesis.given(client_messages(str(home.work)))
    def send(message: Any) -> None:
        nonlocal good, bad
        if _survives(lambda: cli.post(json.dumps(message).encode())[0] < 500):
            good += 1
        else:
            bad += 1

    send()
    # It may send a few more or fewer.
    return cases - bad if good else 0


def _survives(case: Callable[[], bool]) -> bool:
    with suppress(OSError, ValueError):
        return case()
    return False


def _hook(chance: random.Random) -> bytes:
    wrong: list[object] = [None, 7, "x" * 3000, [], {"a": []}, "\0", "../..", True]
    names = ["PreToolUse", "PostToolUse", "UserPromptSubmit", "Stop", "PermissionRequest", "SessionStart", "?"]
    keys = ("session_id", "transcript_path", "cwd", "tool_name", "tool_input", "prompt", "permission_mode")
    body: dict[str, object] = {"hook_event_name": chance.choice(names), **{key: chance.choice(wrong) for key in keys}}
    data = json.dumps(body).encode()
    return damaged(chance, data) if chance.random() < 0.3 else data


def _call(chance: random.Random) -> bytes:
    wrong: list[object] = [None, 7, "x" * 3000, [], {"path": "/etc/shadow"}, "../..", True]
    params = {"name": chance.choice(["diagnostics", "buffer_text", "", 7]), "arguments": chance.choice(wrong)}
    body = {"jsonrpc": "2.0", "id": chance.choice([1, "a", None]), "method": "tools/call", "params": params}
    data = json.dumps(body).encode()
    return damaged(chance, data) if chance.random() < 0.3 else data


def _post(port: int, path: str, secret: str, body: bytes) -> int:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {secret}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(head.encode() + body)
        answer = connection.makefile("rb").readline()
    return int(answer.split()[1])


def _epc(emacs: EpcPeer, chance: random.Random) -> bool:
    methods = ("context", "roots", "outcome", "compare", "merge", "journal-files", "tool-answer", "prompt", "none")
    values: list[Any] = [None, 7, -1, "x" * 300, [], [Symbol("a")], "/..", Symbol("t"), {"path": 7}]
    keys = ("id", "path", "files", "active", "line", "roots", "outcome", "text", "old", "new", "scope", "turn", "file")
    payload = {key: chance.choice(values) for key in chance.sample(keys, 4)}
    return emacs.call(chance.choice(methods), dumps(payload))[0] in ("return", "return-error")


def attacks(table: Table, cases: int, chance: random.Random) -> None:
    with new_home() as home, Backend(home) as backend:
        backend.greet()
        backend.emacs.wait_for("serving")

        def refused(**headers: str) -> bool:
            cli = Cli(backend.port, backend.token)
            cli.headers |= headers
            return cli.request("initialize", INITIALIZE)[0] in (401, 403, 421)

        good = sum(refused(Authorization=f"Bearer {spoilt_token(chance, backend.token)}") for _ in range(cases))
        table.count("4", "another token: refused", good, cases)
        hosts = ("evil.example", "127.0.0.1.evil.example", f"127.0.0.1:{backend.port + 1}", f"[::1]:{backend.port}")
        good = sum(refused(Host=chance.choice(hosts)) for _ in range(cases))
        table.count("4", "another host name, as by DNS rebinding: refused", good, cases)
        origins = ("null", "http://127.0.0.1", f"http://localhost:{backend.port}", "https://evil.example")
        good = sum(refused(Origin=chance.choice(origins)) for _ in range(cases))
        table.count("4", "a web page: refused", good, cases)
        words = (backend.token, SECRET, door_secret(backend.token), tool_secret(backend.token))
        proc = Path(f"/proc/{backend.process.pid}")
        visible = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
        table.add(
            "4", "secrets in its arguments and its environment", str(sum(w.encode() in visible for w in words)), "0"
        )
        strangers = 0
        for _ in range(cases):
            data = b"%06x" % (len(frame := noise(chance, 100))) + frame
            strangers += b"return" not in answer_to(backend.port, data)
        table.count("4", "EPC at the wrong port: not answered", strangers, cases)


def tests(table: Table, point: str, what: str, *arguments: str) -> None:
    """Run pytest with `arguments` and add a row of how many tests passed."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", *arguments]
    said = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False).stdout
    numbers = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error|skipped)", said)}
    passed, bad = numbers.get("passed", 0), numbers.get("failed", 0) + numbers.get("error", 0)
    skipped = f", {numbers['skipped']} skipped" if "skipped" in numbers else ""
    table.add(point, what, f"{passed} of {passed + bad} tests{skipped}", "all")


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="how much of the whole is done")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", default="12345", help="points to do, such as 23: " + ", ".join(map(" ".join, KINDS.items()))
    )
    arguments = parser.parse_args()
    share, only = arguments.share, arguments.only
    chance = random.Random(arguments.seed)  # noqa: S311 - it is to be the same each time
    table = Table()
    begun = time.monotonic()
    if "1" in only:
        deaths_of_emacs(table, max(1, int(34 * share)))
        deaths_of_backends(table, max(4, int(100 * share)), chance)
    if "2" in only:
        load(table, share)
    if "3" in only:
        bad_input(table, max(20, int(10_000 * share)), chance)
    if "4" in only:
        attacks(table, max(10, int(1_000 * share)), chance)
        strangers = (
            "tests/python/test_strangers.py",
            "tests/python/test_listening.py",
            "tests/python/ide/test_guard.py",
        )
        tests(table, "4", "other users and other programs", *strangers)
        model = ("tests/python/privacy", "tests/python/ide/test_targets.py", "tests/python/tools/test_endpoint.py")
        tests(table, "4", "the model: excluded files, links, paths out of the root", *model)
    if "5" in only:
        system = "full_disk or read_only or clock_is_set or proxy or without_git or leaves_no_descriptor or poor"
        tests(
            table,
            "5",
            "full disk, read-only home, clock set, proxies, no git, no inotify, few descriptors, LANG=C",
            "tests/python",
            "-k",
            system,
        )
    print(f"\nseed {arguments.seed}, share {share:g}, {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
