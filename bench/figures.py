# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure everything and write docs/figures.org, and the README's table from it: `make figures`.

    .build/venv/bin/python bench/figures.py [SHARE]

docs/figures.org has the date, the machine and the output of `make robust` and `make bench` as it was, docs/figures a
picture of each kind of rows.  The README has `ROWS` between the comments `MARKS`, in words for users; a test
compares the two.  Asserts nothing.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

from charts import links, write
from table import HEAD

CHECKOUT = Path(__file__).resolve().parents[1]
FIGURES = CHECKOUT / "docs/figures.org"
README = CHECKOUT / "README.org"
MORE = (
    "All of it: [[file:docs/figures.org][docs/figures.org]].  "
    "Where the time goes: [[file:docs/performance.org][docs/performance.org]]."
)
README_HEAD = ("| what | measured | goal |", "|---+---+---|")
ROWS = {
    "a command: with the mode on and a session, beside bare Emacs": "a command, beside Emacs without the mode",
    "64 KB: proposal sent to Ediff on the screen, beside Ediff on two texts that come by one request and one message": (
        "a change of a file of 64 KB is drawn by Ediff, beside Ediff with a text from a bare server"
    ),
    "following a changed file of 1 MB, beside revert-buffer-with-fine-grain: word renamed": (
        "a buffer of 1 MB follows its file, beside =revert-buffer-with-fine-grain="
    ),
}
"""The rows that the README has, and its words for them."""
MARKS = ("# Figures: written by make figures", "# End of figures")


def machine() -> str:
    """Return the processor, system and versions that were measured, in one line."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        if line.startswith("model name")
    ]
    emacs = subprocess.run(
        [os.environ.get("EMACS", "emacs"), "-Q", "--batch", "--eval", "(princ emacs-version)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    system = f"{platform.system()} {platform.release().partition('-')[0]}"
    return f"{len(names)} cores {names[0]}, {system}, Emacs {emacs}, Python {platform.python_version()}"


def run(*command: str) -> str:
    """Run `command` in the checkout, show its output as it comes, and return it."""
    said: list[str] = []
    with subprocess.Popen(
        command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            said.append(line.rstrip())
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}")
    return "\n".join(said)


def split(output: str) -> tuple[list[str], list[str]]:
    """Return the rows of a table in `output`, and the other lines."""
    lines = [line for line in output.splitlines() if line]
    return [line for line in lines if line.startswith("|")], [line for line in lines if not line.startswith("|")]


def document(robust: str, bench: str) -> str:
    """Return the text of docs/figures.org for the two outputs."""
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    rows, rest = split(robust)
    times, details = split(bench)
    return "\n".join(
        [
            "#+title: Figures",
            "",
            f"Measured on {date}: {machine()}.  "
            "A ratio is the median of the ratios of each round.  None of these is a promise.",
            "",
            "* Deaths, load, bad input, attack and system: =make robust=",
            "",
            *rows,
            "",
            *links("\n".join(rows)),
            "",
            *rest,
            "",
            "* Speed: =make bench=",
            "",
            *HEAD.splitlines(),
            *times,
            "",
            *links("\n".join(times)),
            "",
            "In detail:",
            "",
            "#+begin_example",
            *details,
            "#+end_example",
            "",
        ]
    )


def summary(figures: str) -> list[str]:
    """Return the lines of docs/figures.org, `figures`, that the README has: date and machine, and the `ROWS` in words.

    :raises ValueError: when a row is not there
    """
    lines = figures.splitlines()
    found: dict[str, tuple[str, str]] = {}
    for line in lines:
        if not line.startswith("| ") or line in HEAD:
            continue
        _, what, measured, goal = (cell.strip() for cell in line.strip("|").split(" | "))
        found[what] = measured, goal
    rows: list[str] = []
    for what, words in ROWS.items():
        if what not in found:
            raise ValueError(f"docs/figures.org has no row {what!r}: change ROWS in bench/figures.py")
        rows.append(f"| {words} | {' | '.join(found[what])} |")
    return [next(line for line in lines if line.startswith("Measured on ")), *README_HEAD, *rows]


def with_table(readme: str, figures: str) -> str:
    """Return `readme` with the table of `figures` between the marks."""
    before, _, rest = readme.partition(MARKS[0] + "\n")
    _, _, after = rest.partition(MARKS[1] + "\n")
    measured, *rows = summary(figures)
    inner = "\n".join(("* Figures", "", measured, "", *rows, "", MORE))
    return f"{before}{MARKS[0]}\n{inner}\n\n{MARKS[1]}\n{after}"


def main() -> None:
    """Measure and write."""
    share = sys.argv[1] if len(sys.argv) > 1 else "1"
    robust = run(sys.executable, "bench/robust.py", "--share", share)
    text = document(robust, run("make", "--no-print-directory", "-s", "bench"))
    FIGURES.write_text(text, encoding="utf-8")
    write(text)
    README.write_text(with_table(README.read_text("utf-8"), text), encoding="utf-8")


if __name__ == "__main__":
    main()
