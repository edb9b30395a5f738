# SPDX-License-Identifier: GPL-3.0-or-later
"""Time tool calls of the real CLI with the settings layer, which makes it call our hooks, and without.

    .build/venv/bin/python tests/bench/hooks.py [ROUNDS [CALLS]]

Each round runs `qwen -p` in the mode yolo, with the layer and without, on a model that reads a file CALLS times, one
call after the other, and on one that writes as many files; the order changes with each round.  A call lasts from one
request to the model until the next.  Prints the medians of all calls in ms, and the processor time of the CLI.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(CHECKOUT / name) for name in ("tests/e2e", "tests", "tests/python", "python")]

import psutil  # noqa: E402  the path is set first

from qwen_companion.doors.layer import VARIABLE  # noqa: E402  the path is set first
from stage import Stage  # noqa: E402
from table import ROUNDS, row  # noqa: E402

KINDS = {"read_file": "reads", "write_file": "writes a file"}
"""The tools that are called, and what they do."""


def family(pid: int) -> list[psutil.Process]:
    """Return the process `pid` and those that it has started: the CLI starts itself once more."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


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
            processor.append(sum(sum(process.cpu_times()[:2]) for process in family(cli.pid)))
        said, _ = cli.communicate()
    assert "Done." in said, said
    return [1000 * (end - start) for start, end in pairwise(moments)], 1000 * (processor[-1] - processor[0]) / calls


def main(rounds: int = ROUNDS, calls: int = 40) -> None:
    """Print two lines for each kind of call, without the layer and with it, and their difference."""
    times: defaultdict[tuple[str, bool], list[float]] = defaultdict(list)
    processor: defaultdict[tuple[str, bool], list[float]] = defaultdict(list)
    with Stage() as stage:
        stage.start_emacs(stage.sandbox.greeting)
        layer = stage.emacs.eval(f'(getenv "{VARIABLE}")').strip('"')
        # As a user has it: the tests make the CLI start faster, and compute slower.
        without = {
            key: value for key, value in stage.environment.items() if not key.startswith(("NODE_", "QWEN_DEBUG"))
        }
        environments = {False: without, True: {**without, VARIABLE: layer}}
        for number in range(rounds):
            for with_layer in (False, True) if number % 2 else (True, False):
                for tool in KINDS:
                    lasted, took = run(stage, environments[with_layer], tool, calls)
                    times[tool, with_layer] += lasted
                    processor[tool, with_layer].append(took)
    for tool, done in KINDS.items():
        for with_layer, name in ((False, "without hooks"), (True, "with hooks")):
            key = (tool, with_layer)
            both = statistics.median(times[key]), statistics.median(processor[key])
            print("{} {}: {:.1f} ms a call, {:.1f} ms of processor time".format(tool, name, *both))
        added = statistics.median(times[tool, True]) - statistics.median(times[tool, False])
        what = f"hooks and journal: p50 added to a tool call that {done}, as the CLI sees it, {rounds * calls} calls"
        row("speed", what, f"{added:.1f} ms", "3 ms")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
