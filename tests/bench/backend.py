# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the backends of two checkouts: `python tests/bench/backend.py OLD NEW [ROUNDS]`.

Each round starts one process of either, in turns, so that a change of the machine's load meets both.  Times are from
the outside, medians of all rounds in ms; asserts nothing.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
sys.path[:0] = [str(CHECKOUT / name) for name in ("python", "tests", "tests/python")]

import psutil  # noqa: E402 - the path above
from sexpdata import dumps  # noqa: E402

import support  # noqa: E402

CALLS = 40

PAYLOAD = """
import sys, tempfile, time
from qwen_companion.daemon.messages import TextChange, Turns
from qwen_companion.emacs.spool import Spool
message = Turns("s", tuple(TextChange("t", 5, voice="answer", text="word " * 40) for _ in range(16)))
with tempfile.TemporaryDirectory() as directory:
    spool = Spool(directory)
    message.payload(spool)
    begun = time.perf_counter()
    for _ in range(1000):
        message.payload(spool)
    print(time.perf_counter() - begun)
"""
"""Print how many ms the payload of one full message about a conversation takes."""


def timed(function: Callable[[], object]) -> float:
    """Return how many ms `function` takes."""
    begun = time.perf_counter()
    function()
    return (time.perf_counter() - begun) * 1000


def measure(tree: Path) -> dict[str, list[float]]:
    """Return the times of one process of the backend in `tree`, in ms."""
    support.PYTHON_DIRECTORY = tree / "python"
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        home = support.Home(Path(directory))
        file = home.work / "a.txt"
        file.write_text("old\n")
        begun = time.perf_counter()
        with support.Backend(home) as backend:
            backend.greet()
            times["start to `published'"] = [(time.perf_counter() - begun) * 1000]
            backend.emacs.wait_for("serving")
            times["start to `serving'"] = [(time.perf_counter() - begun) * 1000]
            cli = backend.cli()
            process = psutil.Process(backend.process.pid)
            before = sum(process.cpu_times()[:2])
            times["EPC echo"] = [timed(lambda: backend.emacs.call("ping", "nil")) for _ in range(CALLS)]
            times["closeDiff over HTTP"] = [
                timed(lambda: cli.tool("closeDiff", filePath=str(file))) for _ in range(CALLS)
            ]
            times["openDiff over HTTP and EPC"] = [
                timed(lambda number=number: cli.tool("openDiff", filePath=str(file), newContent=f"{number}\n"))
                for number in range(CALLS)
            ]
            times["context, Emacs to CLI"] = []
            with cli.stream() as stream:
                stream.block()
                for number in range(CALLS):
                    # The first one of a file also asks the rules.
                    snapshot = {
                        "files": [{"path": str(file), "timestamp": 1000}],
                        "active": str(file),
                        "line": number + 1,
                        "character": 1,
                    }
                    begun = time.perf_counter()
                    backend.emacs.call("context", dumps(snapshot))
                    stream.event()
                    if number:
                        times["context, Emacs to CLI"].append((time.perf_counter() - begun) * 1000)
            times["CPU of all these calls"] = [(sum(process.cpu_times()[:2]) - before) * 1000]
    printed = subprocess.run(
        [sys.executable, "-c", PAYLOAD], cwd=tree / "python", capture_output=True, text=True, check=True
    )
    times["payload of 16 changes"] = [float(printed.stdout)]
    return times


def main() -> None:
    """Measure both checkouts in turns and print a table."""
    trees = [Path(name).resolve() for name in sys.argv[1:3]]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 6
    found: list[dict[str, list[float]]] = [{}, {}]
    for number in range(rounds):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            for name, values in measure(trees[which]).items():
                found[which].setdefault(name, []).extend(values)
    print(f"{'median, ms':32} {'old':>9} {'new':>9}  new/old")
    for name, values in found[0].items():
        old, new = statistics.median(values), statistics.median(found[1][name])
        print(f"{name:32} {old:9.3f} {new:9.3f}  {new / old:.2f}")


if __name__ == "__main__":
    main()
