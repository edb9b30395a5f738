# SPDX-License-Identifier: GPL-3.0-or-later
"""Time each tool call of the real CLI with the settings layer, which makes it call our hooks, and without.

    .build/venv/bin/python tests/bench/hooks.py [ROUNDS [CALLS]]

Each round runs `qwen -p` twice, in the mode yolo, on a model that reads a file CALLS times, one call after the other;
the order of the two changes with each round.  Prints medians per call in ms: wall clock, and processor time of the CLI
without its children.  The start of the CLI is in both; it is measured by runs without a call and taken off.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(CHECKOUT / name) for name in ("tests/e2e", "tests", "tests/python", "python")]

from qwen_companion.doors.layer import VARIABLE  # noqa: E402  the path is set first
from stage import Stage  # noqa: E402
from table import ROUNDS, row  # noqa: E402


def run(stage: Stage, environment: dict[str, str], calls: int) -> tuple[float, float]:
    """Let the CLI make `calls` tool calls; return wall clock and processor time in ms."""
    for number in range(calls):
        # The CLI ends a run that makes the same call again and again.
        stage.model.call("read_file", file_path=str(stage.sandbox.notes), offset=0, limit=number + 1)
    stage.model.say("Done.")
    before, began = os.times(), time.perf_counter()
    done = subprocess.run(
        ["qwen", "--approval-mode", "yolo", "-p", "read it"],
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
    """Print one line without and one with the layer, and their differences."""
    results: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with Stage() as stage:
        stage.start_emacs(stage.sandbox.greeting)
        layer = stage.emacs.eval(f'(getenv "{VARIABLE}")').strip('"')
        without = {**stage.environment, "PATH": f"{CHECKOUT}/.build/bin:{os.environ['PATH']}"}
        environments = {False: without, True: {**without, VARIABLE: layer}}
        for number in range(rounds):
            for with_layer in (False, True) if number % 2 else (True, False):
                start = run(stage, environments[with_layer], 0)
                whole = run(stage, environments[with_layer], calls)
                results[with_layer].append(((whole[0] - start[0]) / calls, (whole[1] - start[1]) / calls))
    medians = {key: [statistics.median(column) for column in zip(*rows, strict=True)] for key, rows in results.items()}
    for with_layer, name in ((False, "without hooks"), (True, "with hooks")):
        print(f"{name}: {medians[with_layer][0]:.1f} ms a call, {medians[with_layer][1]:.1f} ms of processor time")
    added = medians[True][0] - medians[False][0]
    row(
        "speed", f"hooks and journal: added to a tool call as the CLI sees it, {calls} calls", f"{added:.1f} ms", "3 ms"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
