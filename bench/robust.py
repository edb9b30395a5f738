# SPDX-License-Identifier: GPL-3.0-or-later
"""Kill, load and attack backends on this machine and print a table with the goals; asserts nothing.

    .build/venv/bin/python bench/robust.py [--share 0.1] [--seed 1]

`--share` is how much of the whole is done, 1 by default.  All connections go to 127.0.0.1.
A row says how many of how many went well, or a figure; the tests that show a part of a row in detail are run as well,
and count as one case each.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT / name) for name in ("python", "tests/helpers", "tests/python", "tests/e2e")]

import psutil  # noqa: E402 - the path above
from sexpdata import dumps  # noqa: E402

from bad_input import bad_input  # noqa: E402
from conformance import conformance  # noqa: E402
from deaths import deaths  # noqa: E402
from loopback import KINDS, Table, context, new_home, session, tests, wait_for_line  # noqa: E402
from qwen_companion.doors.door_settings import secrets_of  # noqa: E402
from support import INITIALIZE, SECRET, Backend, Cli, Stream  # noqa: E402
from table import percentile  # noqa: E402
from test_robust import answer_to, noise, spoilt_token  # noqa: E402


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
        table.add("2", "processor time of the idle backend", f"{100 * spent / idle_s:.2f} %", "0.2 %")


CLI = r"""
import http.client, json, re, sys
port, token = int(sys.argv[1]), sys.argv[2]
headers = {"Host": f"127.0.0.1:{port}", "Authorization": f"Bearer {token}", "Content-Type": "application/json",
           "Accept": "application/json, text/event-stream"}
info = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
calls, stream = (http.client.HTTPConnection("127.0.0.1", port) for _ in range(2))
calls.request("POST", "/mcp", json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": info}), headers)
answer = calls.getresponse()
answer.read()
headers |= {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
calls.request("POST", "/mcp", json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}), headers)
calls.getresponse().read()
stream.request("GET", "/mcp", None, {**headers, "Accept": "text/event-stream"})
answer = stream.getresponse()
print(flush=True)
while (event := answer.readline()):
    if (found := re.search(rb'"line": ?(\d+)', event)) is not None:
        print(int(found[1]), int(sys.argv[3].encode() not in event), flush=True)
"""
"""A CLI in a directory of its own; for each context with a cursor it prints the line, and 1 for another directory."""


def load_of_many_roots(table: Table, share: float) -> None:
    """Add the rows of CLIs in roots of their own, each told of its own files only."""
    clis, rounds = 50, max(2, int(20 * share))
    with new_home() as home, Backend(home, fresh=True) as backend, ExitStack() as stack:
        roots = [home.work / f"root-{number:02}-" for number in range(clis)]
        for root in roots:
            root.mkdir()
            (root / "a.txt").write_text("text\n")
        backend.greet()
        backend.emacs.call("roots", dumps({"roots": [str(root) for root in roots]}))
        backend.emacs.call("settings", "(:reviews t)")
        backend.emacs.wait_for("serving")
        running: list[subprocess.Popen[bytes]] = []
        for root in roots:
            command = [sys.executable, "-I", "-c", CLI, str(backend.port), backend.token, root.name]
            process = stack.enter_context(subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            running.append(process)
            assert process.stdout is not None
            process.stdout.readline()
        foreign, times, line = 0, list[float](), 1
        for number in range(rounds + 1):
            for root, process in zip(roots, running, strict=True):
                line += 1
                begun = time.perf_counter()
                backend.emacs.call("context", context(root / "a.txt", line))
                assert process.stdout is not None
                told = ""
                while told != str(line):
                    told, elsewhere = process.stdout.readline().decode().split()
                    foreign += int(elsewhere)
                # In the first round a CLI may not have been found yet.
                if number:
                    times.append((time.perf_counter() - begun) * 1000)
        name = f"the same, {clis} CLIs each in a root of its own, {len(times)} changes: p50, p99"
        table.add("2", name, f"{percentile(times, 0.5):.2f} ms, {percentile(times, 0.99):.2f} ms", "-")
        table.add("2", "contexts that one of them got of another's root", str(foreign), "0")


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
        words = (backend.token, SECRET, *secrets_of(backend.token).values())
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
        deaths(table, share, chance)
    if "2" in only:
        load(table, share)
        load_of_many_roots(table, share)
    if "3" in only:
        bad_input(table, max(20, int(10_000 * share)), chance)
        conformance(table)
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
