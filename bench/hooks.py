# SPDX-License-Identifier: GPL-3.0-or-later
"""Time tool calls of the real CLI without hooks, with ours, and with the same hooks on a server that does nothing.

    .build/venv/bin/python bench/hooks.py [ROUNDS [CALLS]]

Each round runs `qwen -p` in the mode yolo with each of the three layers of settings, on a model that reads a file CALLS
times, one call after the other, and on one that writes as many files; the order changes with each round.  A call lasts
from one request to the model until the next.  Prints the medians of all calls in ms, and the processor time of the CLI.

The layers differ in their hooks only: the tools of Emacs cost something too, in each request to the model.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT / name) for name in ("tests/e2e", "tests/helpers", "python")]

import psutil  # noqa: E402  the path is set first

from qwen_companion.doors.layers import VARIABLE  # noqa: E402  the path is set first
from stage import Stage  # noqa: E402
from table import ROUNDS, row  # noqa: E402

WITHOUT, BARE, OURS = "without hooks", "with hooks that a bare server answers", "with hooks"

BARE_SERVER = r"""
import socketserver

class Handler(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self):
        while self.rfile.readline():
            size = 0
            while (line := self.rfile.readline().lower()) not in (b"\r\n", b""):
                if line.startswith(b"content-length:"):
                    size = int(line.partition(b":")[2])
            self.rfile.read(size)
            self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")

with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
    print(server.server_address[1], flush=True)
    server.serve_forever()
"""

KINDS = {"read_file": "reads", "write_file": "writes a file"}
"""The tools that are called, and what they do."""


@contextmanager
def bare_server() -> Generator[int]:
    """Run a server that answers all at once with nothing; the value is its port."""
    with subprocess.Popen([sys.executable, "-c", BARE_SERVER], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()


def make_layers(ours: Path, directory: Path, bare_port: int) -> dict[str, Path]:
    """Return the three layers, made of `ours` in `directory`."""
    settings = json.loads(ours.read_text())
    layers = {WITHOUT: directory / "without.json", BARE: directory / "bare.json", OURS: ours}
    layers[WITHOUT].write_text(json.dumps({**settings, "hooks": {}}))
    for entries in settings["hooks"].values():
        for entry in entries:
            entry["hooks"] = [{"type": "http", "url": f"http://127.0.0.1:{bare_port}/hook"}]
    layers[BARE].write_text(json.dumps(settings))
    return layers


def processor_s(pid: int) -> float:
    """Return the processor time of the process `pid` and those that it has started: the CLI starts itself once more."""
    used = 0.0
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            used += sum(process.cpu_times()[:2])
    return used


def run(stage: Stage, environment: dict[str, str], tool: str, calls: int) -> tuple[list[float], float]:
    """Let the CLI call `tool` `calls` times; return how long each lasted, and its processor time for one, in ms."""
    for number in range(calls):
        if tool == "read_file":
            # The CLI ends a run that makes the same call again and again.
            stage.model.call(tool, file_path=str(stage.sandbox.notes), offset=0, limit=number + 1)
        else:
            path = stage.sandbox.project / f"new-{number}.txt"
            # One that is there would have to be read first.
            path.unlink(missing_ok=True)
            stage.model.call(tool, file_path=str(path), content="a line\n" * 100)
    stage.model.say("Done.")
    moments: list[float] = []
    processor: list[float] = []
    with subprocess.Popen(
        ["qwen", "--approval-mode", "yolo", "-p", "do it"],
        cwd=stage.sandbox.project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as cli:
        for _ in range(calls + 1):
            stage.model.next_request()
            moments.append(time.perf_counter())
            processor.append(processor_s(cli.pid))
        said, _ = cli.communicate()
    assert "Done." in said, said
    return [1000 * (end - start) for start, end in pairwise(moments)], 1000 * (processor[-1] - processor[0]) / calls


def main(rounds: int = ROUNDS, calls: int = 40) -> None:
    """Print a line for each kind of call and each layer, and what the hooks add."""
    times: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    processor: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    with Stage() as stage, bare_server() as bare_port:
        stage.start_emacs(stage.sandbox.greeting)
        ours = Path(stage.emacs.eval(f'(getenv "{VARIABLE}")').strip('"'))
        layers = make_layers(ours, stage.sandbox.project.parent, bare_port)
        # As a user has it: the tests make the CLI start faster, and compute slower.
        environment = {
            key: value for key, value in stage.environment.items() if not key.startswith(("NODE_", "QWEN_DEBUG"))
        }
        for number in range(rounds):
            for name in random.Random(number).sample(list(layers), len(layers)):  # noqa: S311  no secret
                for tool in KINDS:
                    lasted, took = run(stage, {**environment, VARIABLE: str(layers[name])}, tool, calls)
                    times[tool, name] += lasted
                    processor[tool, name].append(took)
    for tool, done in KINDS.items():
        medians = {name: statistics.median(times[tool, name]) for name in layers}
        for name, ms in medians.items():
            print(f"{tool} {name}: {ms:.1f} ms a call, {statistics.median(processor[tool, name]):.1f} ms of processor")
        added, floor = (medians[name] - medians[WITHOUT] for name in (OURS, BARE))
        what = f"hooks and journal: p50 added to a tool call that {done}, beside hooks on a server that does nothing"
        row("speed", what, f"{added - floor:.1f} ms; {added:.1f} ms beside no hooks", "1.5 ms")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
