# SPDX-License-Identifier: GPL-3.0-or-later
"""Time what the journal costs in a directory of many files: the first look at all of them, and later ones.

    .build/venv/bin/python bench/journal.py [FILES]

Prints the processor time of the look and of the git that it runs, in ms, in a repository where all is committed, in one
where nothing is, and without git; and beside it what `git status` takes.  The files have 300 bytes each.  Then what it
takes to look at each of five worktrees for the list of them, beside `git status` in each.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT / name) for name in ("tests/helpers", "python")]

from journal_project import Project  # noqa: E402  the path is set first
from qwen_companion.journal.worktree_list import WorktreeList  # noqa: E402
from qwen_companion.privacy.options import Options  # noqa: E402
from table import compare, exponent, row  # noqa: E402


def spent_ms(work: Callable[[], object]) -> float:
    """Return the processor time that `work` and its children take, in ms."""
    before = os.times()
    work()
    after = os.times()
    return 1000 * (sum(after[:4]) - sum(before[:4]))


def measure(what: str, project: Project, files: int, status: bool) -> tuple[float, float]:
    """Look at the `files` of `project` again and again, print it as `what`; return the ms of the first two looks."""
    # As Emacs has it where `auth-source' is loaded.
    project.record.rules.set_options(Options(auth_sources=("~/.authinfo", "~/.authinfo.gpg", "~/.netrc")), ())
    first = spent_ms(lambda: project.begin())
    turn = project.begin()
    nothing = spent_ms(lambda: project.scan(turn))
    for number in range(20):
        project.write(f"{number % 100}/{number}", b"changed\n")
    some = spent_ms(lambda: project.scan(turn))
    assert len(project.files(turn)) == 20
    beside = f"{spent_ms(lambda: project.git('status', '--porcelain')):6.0f}" if status else "     -"
    row(
        "speed",
        f"journal, {files} files, {what}: look at all, none changed",
        f"{nothing:.0f} ms beside {beside.strip()} ms of git status",
        "-",
    )
    print(f"{what:28}{files:8} files  first {first:6.0f}  unchanged {nothing:6.0f}  20 changed {some:6.0f}  {beside}")
    project.record.close()
    return first, nothing


def main() -> None:
    """Measure all three kinds of directories."""
    files = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    for what, git, committed in (
        ("all committed", True, True),
        ("nothing committed", True, False),
        ("no git", False, False),
    ):
        # The clock of the processor has steps of 10 ms.
        points = [(count, measure_new(what, git, committed, count)) for count in (files // 10, files)]
        grows = [exponent([(count, max(10.0, times[look])) for count, times in points]) for look in (0, 1)]
        what = f"journal, {what}: exponent of the growth with the files, the first look and a later one"
        row("speed", what, "{:.2f}, {:.2f}".format(*grows), "-")
    measure_worktrees(files // 10)


def measure_worktrees(files: int) -> None:
    """Look at five worktrees of `files` files, with a change in each and in the main tree, and at their status."""
    with tempfile.TemporaryDirectory() as home:
        project = Project(Path(home))
        for number in range(files):
            project.write(f"{number % 100}/{number}", b"%0299d\n" % number)
        project.commit()
        trees = [project.root / f".qwen/worktrees/{number}" for number in range(5)]
        for tree in trees:
            project.git("worktree", "add", "--quiet", str(tree))
            (tree / "0/0").write_bytes(b"tree\n")
        project.write("0/0", b"main\n")
        pairs = [
            (spent_ms(lambda: examine(project, trees)), spent_ms(lambda: status(project, trees))) for _ in range(5)
        ]
        compare(f"five worktrees of {files} files: looked at for the list, beside git status", pairs, "-")
        project.record.close()


def examine(project: Project, trees: Sequence[Path]) -> None:
    """Look at all of `trees`, as the list does."""
    listed = WorktreeList(str(project.root), project.environ)
    assert all(listed.examined(str(tree)).conflicts for tree in trees)


def status(project: Project, trees: Sequence[Path]) -> None:
    """Ask git for the status of all of `trees`."""
    for tree in trees:
        project.git("status", "--porcelain", cwd=tree)


def measure_new(what: str, git: bool, committed: bool, files: int) -> tuple[float, float]:
    """Make a directory of `files` files, and return the ms of the first two looks at them."""
    with tempfile.TemporaryDirectory() as home:
        project = Project(Path(home), git)
        for number in range(files):
            project.write(f"{number % 100}/{number}", b"%0299d\n" % number)
        if committed:
            project.commit()
            # Of a file as new as the index git does not believe its time.
            time.sleep(1.1)
            project.git("status")
        return measure(what, project, files, git)


if __name__ == "__main__":
    main()
