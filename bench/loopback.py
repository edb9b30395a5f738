# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts that all measurements of `make robust` share: homes, streams and sessions on this machine, and rows."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sexpdata import dumps

from support import Backend, Cli, Home, Stream
from table import HEAD, row

CHECKOUT = Path(__file__).resolve().parents[1]

SOON_S = 2.0
"""Within this time all has to be well again."""

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


@contextmanager
def chdir(directory: Path) -> Generator[None]:
    """Work in `directory`; Python 3.10 has no `contextlib.chdir`."""
    before = os.getcwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


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


@contextmanager
def session(backend: Backend) -> Generator[Cli]:
    """Yield a CLI whose session ends with the block."""
    cli = backend.cli()
    yield cli
    cli.post(b"", "DELETE")


def tests(table: Table, point: str, what: str, *arguments: str) -> None:
    """Run pytest with `arguments` and add a row of how many tests passed."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", *arguments]
    said = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False).stdout
    numbers = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error|skipped)", said)}
    passed, bad = numbers.get("passed", 0), numbers.get("failed", 0) + numbers.get("error", 0)
    skipped = f", {numbers['skipped']} skipped" if "skipped" in numbers else ""
    table.add(point, what, f"{passed} of {passed + bad} tests{skipped}", "all")
