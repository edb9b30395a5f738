# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs each file of Emacs Lisp tests in an Emacs of its own, as one test of pytest."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from limit import limit_s

CHECKOUT: Final = Path(__file__).parents[2]
EMACS: Final = os.environ.get("EMACS") or "emacs"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that chooses tests inside of the files."""
    parser.addoption("--ert", default="t", help="an ERT selector, such as '\"regexp\"', for the Emacs Lisp tests")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect `file_path` when it is a file of Emacs Lisp tests."""
    if not file_path.name.endswith("-test.el"):
        return None
    return ErtFile.from_parent(parent, path=file_path)  # pyright: ignore[reportUnknownMemberType]


class ErtFile(pytest.File):
    """A file of Emacs Lisp tests."""

    def collect(self) -> Iterator[pytest.Item]:
        yield ErtItem.from_parent(self, name="ert")  # pyright: ignore[reportUnknownMemberType]


class ErtItem(pytest.Item):
    """All tests of a file, run by Emacs."""

    def runtest(self) -> None:
        selector = str(self.config.getoption("--ert"))
        # Loading a file of tests leaves so much that collecting it would take half of the time.
        quick = ["--eval", "(setq gc-cons-threshold (* 64 1024 1024))"]
        load = ["-l", "scripts/checkout.el", "-L", "tests/elisp", "-l", str(self.path)]
        result = subprocess.run(
            [EMACS, "-Q", "--batch", *quick, *load, "--eval", f"(ert-run-tests-batch-and-exit '{selector})"],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            # In batch mode a call to a process that has just died would end Emacs, by SIGPIPE.
            restore_signals=False,
            # One wait after the other may be as long as the limit.
            timeout=5 * limit_s(),
            check=False,
        )
        ran = re.search(r"^Ran (\d+ tests).*?(, \d+ skipped)?( \(.*)?$", result.stdout, re.MULTILINE)
        if result.returncode and not ran:
            raise ErtError(f"{result.stdout}\nEmacs has ended before its tests, with status {result.returncode}")
        if result.returncode:
            passed = re.compile(r"^ +passed +\d+/\d+ .*\n", re.MULTILINE)
            raise ErtError(passed.sub("", result.stdout))
        self.user_properties.append(("ran", (ran[1] + (ran[2] or "")) if ran else "nothing"))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        if isinstance(excinfo.value, ErtError):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.path.name


class ErtError(Exception):
    """Tests have failed; the message is Emacs's output."""
