# SPDX-License-Identifier: GPL-3.0-or-later
"""Time who wrote each line of a file of 20,000 lines after 500 turns in it.

    .build/venv/bin/python bench/blame.py [TURNS]

Prints the ms until the answer is there: in a new process, then with text that is not saved; and what following one turn
took at its end, and following all of them anew.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT / name) for name in ("tests/helpers", "python")]

from journal_project import Project  # noqa: E402  the path is set first
from table import row  # noqa: E402

LINES = 20_000


def ms_of(work: Callable[[], object]) -> float:
    """Return how long `work` takes, in ms."""
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


def main() -> None:
    """Let an agent edit two places of the file in each turn, and ask."""
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    chance = random.Random(1)  # noqa: S311 - not for secrets
    with tempfile.TemporaryDirectory() as home:
        project = Project(Path(home))
        lines = [f"value_{number} = compute({number * 7919 % 10007})" for number in range(LINES)]
        project.commit(a="\n".join(lines).encode())
        path = os.fsencode(project.root / "a")
        steps: list[float] = []
        for turn in range(turns):
            number = project.begin()
            for _ in range(2):
                place = chance.randrange(LINES)
                lines[place : place + chance.randrange(3)] = [f"agent_{turn}_{n} = new({n})" for n in range(4)]
            project.edit(number, "a", "\n".join(lines).encode())
            steps.append(ms_of(lambda: project.record.answers.origins.trace(path)))
            project.record.end(number, 2000)
        project.reopen()
        unsaved = "\n".join([*lines[:9000], "mine", *lines[9000:]]).encode()
        first, again = (ms_of(lambda data=data: answer(project, data)) for data in (None, unsaved))
        what = f"who wrote each of {len(lines)} lines, after {turns} turns"
        row("speed", what, f"{first:.0f} ms", "200 ms")
        row("speed", f"{what}: with unsaved text", f"{again:.0f} ms", "200 ms")
        print(f"first {first:.0f}  unsaved {again:.0f}  each turn {statistics.median(steps):.0f} ms")
        project.record.close()


def answer(project: Project, data: bytes | None) -> None:
    """Ask for the authors of all lines."""
    assert project.record.answers.line_origins(str(project.root / "a"), data)[0]


if __name__ == "__main__":
    main()
