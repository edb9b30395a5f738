# SPDX-License-Identifier: GPL-3.0-or-later
"""Time tool calls of the real CLI with the settings layer, which makes it call our hooks, and without.

    .build/venv/bin/python tests/bench/hooks.py [ROUNDS [CALLS]]

Each round runs `qwen -p` in the mode yolo, with the layer and without, on a model that reads a file CALLS times, one
call after the other, and on one that writes as many files; the order changes with each round.  Prints medians per call
in ms: wall clock, and processor time of the CLI without its children.  The start of the CLI is in all of them; it is
measured by runs without a call and taken off.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(CHECKOUT / name) for name in ("tests/e2e", "tests", "tests/python", "python")]

from qwen_companion.doors.layer import VARIABLE  # noqa: E402  the path is set first
from stage import Stage  # noqa: E402
from table import ROUNDS, row  # noqa: E402

KINDS = {"read_file": "reads", "write_file": "writes a file"}
"""The tools that are called, and what they do."""


def run(stage: Stage, environment: dict[str, str], tool: str, calls: int) -> tuple[float, float]:
    """Let the CLI call `tool` `calls` times; return wall clock and processor time in ms."""
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
    before, began = os.times(), time.perf_counter()
    done = subprocess.run(
        ["qwen", "--approval-mode", "yolo", "-p", "do it"],
        cwd=stage.sandbox.project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    wall, after = time.perf_counter() - began, os.times()
    assert "Done." in done.stdout, done.stdout + done.stderr
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return 1000 * wall, 1000 * processor


def main(rounds: int = ROUNDS, calls: int = 40) -> None:
    """Print two lines for each kind of call, without the layer and with it, and their difference."""
    results: defaultdict[tuple[str, bool], list[tuple[float, float]]] = defaultdict(list)
    with Stage() as stage:
        stage.start_emacs(stage.sandbox.greeting)
        layer = stage.emacs.eval(f'(getenv "{VARIABLE}")').strip('"')
        without = {**stage.environment, "PATH": f"{CHECKOUT}/.build/bin:{os.environ['PATH']}"}
        environments = {False: without, True: {**without, VARIABLE: layer}}
        for number in range(rounds):
            for with_layer in (False, True) if number % 2 else (True, False):
                environment = environments[with_layer]
                start = run(stage, environment, "read_file", 0)
                for tool in KINDS:
                    whole = run(stage, environment, tool, calls)
                    results[tool, with_layer].append(((whole[0] - start[0]) / calls, (whole[1] - start[1]) / calls))
    for tool, done in KINDS.items():
        wall: dict[bool, float] = {}
        for with_layer, name in ((False, "without hooks"), (True, "with hooks")):
            columns = zip(*results[tool, with_layer], strict=True)
            wall[with_layer], processor = (statistics.median(column) for column in columns)
            print(f"{tool} {name}: {wall[with_layer]:.1f} ms a call, {processor:.1f} ms of processor time")
        added = f"{wall[True] - wall[False]:.1f} ms"
        row(
            "speed",
            f"hooks and journal: added to a tool call that {done}, as the CLI sees it, {calls} calls",
            added,
            "3 ms",
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
