# SPDX-License-Identifier: GPL-3.0-or-later
"""Time what the journal of a project at a place costs, beside that of the same project on the local disk.

    .build/venv/bin/python bench/remote.py [FILES [DIRECTORIES]]

The place is a stand-in of a container on this machine, so the line takes no time: the rows name how often each look
crosses it.  Prints the time of the first look at FILES (5,000) committed files of 300 bytes in DIRECTORIES (100), which
are watched, of later ones, and of reading 20 MB, and the memory of the relay.  Medians; asserts nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import psutil

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT / name) for name in ("tests/helpers", "python")]

from journal_project import Project  # noqa: E402  the path is set first
from qwen_companion.domain import PlacedFile  # noqa: E402
from qwen_companion.journal.record import NOBODY, Record  # noqa: E402
from qwen_companion.remote.far import FarSite  # noqa: E402
from relays import NODE, linked, make_home  # noqa: E402
from table import ROUNDS, compare  # noqa: E402

PLACE = "/docker:box:"
LARGE = 20_000_000
IDLE_S = 30
"""After so long without work, Node.js has given back what it can."""


async def took_ms(work: Callable[[], Awaitable[object]]) -> float:
    """Return how long `work` takes, in ms."""
    start = time.perf_counter()
    await work()
    return 1000 * (time.perf_counter() - start)


async def measure(project: Project, home: Path, files: int) -> None:
    """Look at the `files` of `project` there and here, and print a row for each kind of look."""
    async with linked(home) as (link, greeting, _server):
        await print_memory(greeting.pid, "at its start")
        root = PlacedFile(PLACE, str(project.root))
        site = FarSite(root, str(home), lambda: link)
        site.watch(lambda _paths: None)
        there = Record(root.name, project.environ, site)

        async def look(what: str, rounds: int, change: Callable[[int], object] = lambda _round: None) -> None:
            pairs: list[tuple[float, float]] = []
            before = len(link.asked)
            for number in range(rounds):
                change(number)
                pairs.append((await scan(there), await scan(project.record)))
            trips = (len(link.asked) - before) // rounds
            compare(f"{files} files at a place, {what}: {trips} round trips, beside the local disk", pairs, "-")

        async def scan(record: Record) -> float:
            return await took_ms(lambda: anyio.to_thread.run_sync(record.scan, NOBODY))

        def change(number: int) -> None:
            for name in range(20):
                project.write(f"{name}/{name}", f"changed {number}\n".encode())

        await look("the first look", 1)
        await look("none changed", ROUNDS)
        await look("20 changed", ROUNDS, change)
        there.close()
        project.record.close()
        await print_memory(greeting.pid, f"just after looks at {files} files")
        await print_memory(greeting.pid, f"{IDLE_S} s later", IDLE_S)
        large = project.write("large", b"x" * LARGE)
        read = partial(link.read, str(large), LARGE)
        pairs = [
            (await took_ms(read), await took_ms(lambda: anyio.to_thread.run_sync(large.read_bytes)))
            for _ in range(ROUNDS)
        ]
        compare(f"{LARGE // 1_000_000} MB read at a place, beside the local disk", pairs, "-")


async def print_memory(relay: int, when: str, pause: float = 0) -> None:
    """Print what the process `relay` takes after `pause` seconds, beside Node.js with nothing to do."""
    await anyio.sleep(pause)
    script = "setTimeout(() => console.log(process.memoryUsage.rss()), 200)"
    bare = int(subprocess.run([NODE, "-e", script], capture_output=True, check=True).stdout)
    here = psutil.Process(relay).memory_info().rss
    what = f"{here / 1e6:.0f} MB beside {bare / 1e6:.0f} MB of Node.js alone"
    print(f"| memory | the relay {when} | {what} | 20 MB more |", flush=True)


def main() -> None:
    """Make a project and measure it."""
    files = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    directories = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    # With a short name: that of a socket may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="qc-") as directory:
        home = make_home(Path(directory).resolve())
        project = Project(home)
        for number in range(files):
            project.write(f"{number % directories}/{number}", b"%0299d\n" % number)
        project.commit()
        # Of a file as new as the index git does not believe its time.
        time.sleep(1.1)
        project.git("status")
        anyio.run(measure, project, home, files)


if __name__ == "__main__":
    main()
