# SPDX-License-Identifier: GPL-3.0-or-later
"""A run of the tests that a signal ends leaves no process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from leftovers import MARKER, marked, new_mark
from sandbox import CHECKOUT
from terminal import PATIENCE

STARTED = {"emacs", "tmux: server", "backend", "qwen serve"}
"""What the test that is ended has started."""


def kinds(processes: list[psutil.Process]) -> Iterator[str]:
    """Yield what the `processes` are, by the names in `STARTED` and others."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            arguments = process.cmdline()
            yield (
                "backend"
                if arguments[-1:] == ["qwen_companion"]
                else ("qwen serve" if "serve" in arguments else process.name().removesuffix("-lucid"))
            )


@pytest.mark.parametrize(
    ("send", "number"),
    [
        pytest.param(os.kill, signal.SIGTERM, id="make is told to end"),
        pytest.param(os.killpg, signal.SIGHUP, id="the terminal is closed"),
    ],
)
def test_it_leaves_no_process(send: Callable[[int, int], None], number: int, tmp_path: Path) -> None:
    mark = new_mark()
    arguments = "-n 1 -k test_started_used_and_stopped"
    command = ["make", "--old-file=build", "--old-file=setup-tests", "test-e2e", f"ARGS={arguments}"]
    with (
        (tmp_path / "output").open("w") as output,
        subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env={**os.environ, MARKER: mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as run,
    ):
        deadline = time.monotonic() + PATIENCE
        while not STARTED <= (there := set(kinds(marked(mark)))):
            assert run.poll() is None, (tmp_path / "output").read_text()
            assert time.monotonic() < deadline, f"of {STARTED} there are {there}"
            with suppress(subprocess.TimeoutExpired):
                run.wait(0.2)
        send(run.pid, number)
        run.wait(PATIENCE)
    psutil.wait_procs(marked(mark), PATIENCE)
    assert list(kinds(marked(mark))) == []
