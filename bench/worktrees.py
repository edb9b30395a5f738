# SPDX-License-Identifier: GPL-3.0-or-later
"""Time the list of worktrees from its key, and how long Emacs is busy while git looks at all of them.

    .build/venv/bin/python bench/worktrees.py [FILES [WORKTREES]]

In `emacs -Q -nw`, in a repository with so many WORKTREES (20) of FILES (5,000) of 300 bytes each, in one of which and
in the main tree the same line is changed.  A gap is the time between two calls of a timer that is due every 10 ms.
Prints the load of the machine too, by which the clock goes.  Asserts nothing.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT / name) for name in ("tests/helpers", "python")]

from journal_project import Project  # noqa: E402  the path is set first
from keys import Terminal, read_times  # noqa: E402
from table import row  # noqa: E402

# The key resets `bench-shown`: a refresh of the list before it does not count.
INIT = """
(progn
  (find-file "FILE")
  (require 'qwen-companion-worktrees)
  (advice-add 'qwen-companion-list-print :after
              (lambda ()
                (when (and qwen-companion-worktrees--trees (not bench-shown))
                  (redisplay t)
                  (setq bench-shown (float-time)))))
  (global-set-key (kbd "C-c w")
                  (lambda () (interactive) (setq bench-shown nil) (qwen-companion-worktrees)))
  t)
"""
EXAMINED = """
(with-current-buffer "*qwen-companion worktrees*"
  (and qwen-companion-worktrees--trees
       (cl-every 'qwen-companion-worktree-files qwen-companion-worktrees--trees)
       (null qwen-companion-worktrees--queue)))
"""


def make_worktrees(home: Path, files: int, count: int) -> Project:
    """Return a project with `count` worktrees of so many `files`."""
    project = Project(home)
    for number in range(files):
        project.write(f"{number % 100}/{number}", b"%0299d\n" % number)
    project.commit()
    for number in range(count):
        tree = project.root / f".qwen/worktrees/{number}"
        project.git("worktree", "add", "--quiet", str(tree))
        (tree / "0/0").write_bytes(b"tree\n")
    project.write(".qwen/.gitignore", b"worktrees/\n")
    project.write("0/0", b"main\n")
    return project


async def measure(terminal: Terminal, what: str) -> None:
    """Open the list by its key, wait until all is known, and print both."""
    await terminal.eval("(setq bench-shown nil bench-keys nil bench-ticks nil)")
    typed = time.time()
    terminal.type("\x03w")
    await terminal.until(f"(and bench-shown (< {typed} bench-shown))")
    shown = float(await terminal.eval("bench-shown"))
    await terminal.until(EXAMINED)
    known = time.time()
    _, ticks = read_times(await terminal.eval("(bench-times)"))
    clock, processor = (
        max(1000 * (later[index] - earlier[index]) for earlier, later in pairwise(ticks)) for index in (0, 1)
    )
    load = os.getloadavg()[0]
    row(
        "speed",
        f"{what}: from the key to the list",
        f"{1000 * (shown - typed):.0f} ms, at a load of {load:.1f}",
        "300 ms",
    )
    measured = f"{known - typed:.1f} s; longest gap {clock:.0f} ms, {processor:.0f} ms of the processor's time"
    row("speed", f"{what}: until git has looked at all", measured, "-")


async def main(files: int = 5_000, count: int = 20) -> None:
    """Print the rows, of the first time and of the second."""
    with tempfile.TemporaryDirectory() as directory:
        project = make_worktrees(Path(directory), files, count)
        terminal = Terminal(Path(directory), "http://127.0.0.1:1")
        try:
            await terminal.written("started")
            await terminal.until("(eq 'ready (qwen-companion-state))")
            await terminal.eval("(setq bench-shown nil)")
            await terminal.eval(INIT.replace("FILE", str(project.root / "1/1")).replace("\n", " "))
            for number in ("first", "second"):
                await measure(terminal, f"{count} worktrees of {files} files, the {number} time")
                await terminal.eval("(progn (quit-window) t)")
        finally:
            terminal.end()
            project.record.close()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
