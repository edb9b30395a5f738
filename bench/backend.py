# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the backends of two checkouts: `python bench/backend.py OLD NEW [ROUNDS]`.

Each round starts one process of either, in turns, so that a change of the machine's load meets both.  For each round
there is one figure of either: of many calls the median time, or the CPU time of the process for one, which other
processes disturb least.  Printed are the medians over all rounds, and new/old, the median of the rounds' ratios with
its quartiles: a range around 1 is no difference.  Asserts nothing.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
sys.path[:0] = [str(CHECKOUT / name) for name in ("python", "tests/helpers")]

from sexpdata import dumps  # noqa: E402 - the path above

import support  # noqa: E402

CALLS = 200
WARM_UP = 20

PAYLOAD = """
import tempfile, time
from qwen_companion.daemon.messages import TextChange, Turns
from qwen_companion.wire.spool import Spool
message = Turns("s", tuple(TextChange("t", voice="answer", text="word " * 40) for _ in range(16)))
with tempfile.TemporaryDirectory() as directory:
    spool = Spool(directory)
    message.payload(spool)
    begun = time.process_time()
    for _ in range(1000):
        message.payload(spool)
    print(time.process_time() - begun)
"""
"""Print how many ms the payload of one full message about a conversation takes."""


class Clocks:
    """The time, and the `cpu` time of the process `pid` with all its threads, also those that have ended; in ms."""

    def __init__(self, pid: int) -> None:
        # See clock_getcpuclockid(3): Python has no name for it.
        self._cpu = (~pid << 3) | 2

    def cpu(self) -> float:
        return time.clock_gettime(self._cpu) * 1000

    def calls(self, times: dict[str, float], name: str, call: Callable[[int], object]) -> None:
        """Add the time of one `call`, measured over many; each gets its number."""
        for number in range(WARM_UP):
            call(number)
        walls: list[float] = []
        before = self.cpu()
        for number in range(WARM_UP, WARM_UP + CALLS):
            begun = time.perf_counter()
            call(number)
            walls.append((time.perf_counter() - begun) * 1000)
        times[name] = statistics.median(walls)
        times[f"{name}, CPU"] = (self.cpu() - before) / CALLS


def measure(tree: Path) -> dict[str, float]:
    """Return the times of one process of the backend in `tree`, in ms."""
    support.PYTHON_DIRECTORY = tree / "python"
    times: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        home = support.Home(Path(directory))
        file = home.work / "a.txt"
        file.write_text("old\n")
        begun = time.perf_counter()
        with support.Backend(home, fresh=True) as backend:
            clocks = Clocks(backend.process.pid)
            backend.greet()
            times["start to `published'"] = (time.perf_counter() - begun) * 1000
            times["start to `published', CPU"] = clocks.cpu()
            backend.emacs.wait_for("serving")
            times["start to `serving'"] = (time.perf_counter() - begun) * 1000
            cli = backend.cli()
            times["start to a CLI's session, CPU"] = clocks.cpu()
            clocks.calls(times, "EPC echo", lambda _: backend.emacs.call("ping", "nil"))
            clocks.calls(times, "closeDiff", lambda _: cli.tool("closeDiff", filePath=str(file)))
            clocks.calls(
                times, "openDiff", lambda number: cli.tool("openDiff", filePath=str(file), newContent=f"{number}\n")
            )
            with cli.stream() as stream:
                stream.block()

                def context(number: int) -> None:
                    snapshot = {
                        "files": [{"path": str(file), "timestamp": 1000}],
                        "active": str(file),
                        "line": number + 1,
                        "character": 1,
                    }
                    backend.emacs.call("context", dumps(snapshot))
                    stream.event()

                clocks.calls(times, "context", context)
    printed = subprocess.run(
        [sys.executable, "-c", PAYLOAD], cwd=tree / "python", capture_output=True, text=True, check=True
    )
    times["payload of 16 changes, CPU"] = float(printed.stdout)
    return times


def show(old: Sequence[dict[str, float]], new: Sequence[dict[str, float]]) -> None:
    """Print a table of the rounds."""
    print(f"{'median, ms':32} {'old':>9} {'new':>9}  new/old")
    for name in old[0]:
        ratios = sorted(after[name] / before[name] for before, after in zip(old, new, strict=True))
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        medians = (statistics.median(times[name] for times in rounds) for rounds in (old, new))
        print(f"{name:32} {next(medians):9.3f} {next(medians):9.3f}  {middle:.2f} ({low:.2f} to {high:.2f})")


def main() -> None:
    """Measure both checkouts in turns and print a table."""
    # As for users, else each start would compile the package anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    trees = [Path(name).resolve() for name in sys.argv[1:3]]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 12
    found: list[list[dict[str, float]]] = [[], []]
    for number in range(rounds):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            found[which].append(measure(trees[which]))
    show(found[0], found[1])


if __name__ == "__main__":
    main()
