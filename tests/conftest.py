# SPDX-License-Identifier: GPL-3.0-or-later
"""How the suite runs: the limit of its waits, its order, the number of its workers, and what it shows of its progress.

Lint, unit tests and end-to-end tests are run by the same pytest, so that the many waits for Emacs and Node.js to start
are filled with work.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from leftovers import end_with_this_process
from limit import set_limit

TESTS: Final = Path(__file__).parent
_STAGE: Final = re.compile(r'^pytestmark = \[?pytest\.mark\.reuses_stage\("(.+?)"\)', re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that `make test-busy` gives."""
    parser.addoption("--busy", action="store_true", help="run two busy loops for each processor beside the tests")


def pytest_configure(config: pytest.Config) -> None:
    """Set the limit of all waits, and show a line for each file of unit tests and each other test as it ends.

    Whatever ends the run, its processes end with it.
    """
    config.addinivalue_line("markers", "long: takes half a minute or more, and so comes first")
    if not hasattr(config, "workerinput"):
        end_with_this_process()
        if config.getoption("--busy"):
            _busy.extend(
                subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(2 * (os.cpu_count() or 1))
            )
        limit = set_limit()
        config.pluginmanager.register(_Progress(config, limit), "progress")


_busy: Final[list[subprocess.Popen[bytes]]] = []
"""The busy loops."""


def pytest_xdist_auto_num_workers() -> int:
    """Return the number of workers of `-n auto`: three more than processors, since each also waits."""
    return (os.cpu_count() or 1) + 3


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Give the tests of a file, and those of all files that share a stage, to one worker."""
    return _ByStage(config, log) if config.getoption("dist") == "loadfile" else None


class _ByStage(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid.split("::")[0])


@cache
def _scope(file: str) -> str:
    """Return the group of tests that share a worker with `file`, a path from the root of the checkout."""
    marked = _STAGE.search((TESTS.parent / file).read_text(encoding="utf-8"))
    return marked[1] if marked else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests that share a stage, long and large groups first, so that none of them starts last.

    Groups of each directory are spread over the whole run: some compute, others wait.  A file of Emacs Lisp is one
    test, whose length tells.  Within a group, tests that need a fresh stage come first, then those that leave it with
    its CLI, then those that end the CLI, and last those that end the stage; those with the same CLI follow each other,
    since it may stay.
    """
    scopes = {item: _scope(item.nodeid.split("::")[0]) for item in items}
    directories = {scopes[item]: item.path.relative_to(TESTS).parts[0] for item in items}
    long = {scopes[item] for item in items if directories[scopes[item]] == "lint" or item.get_closest_marker("long")}
    sizes = Counter(scopes.values())
    lengths = {scopes[item]: item.path.stat().st_size for item in items}
    ranks: dict[str, float] = {}
    for directory, total in Counter(directories.values()).items():
        of_it = [scope for scope in directories if directories[scope] == directory]
        of_it.sort(key=lambda scope: (-sizes[scope], -lengths[scope], scope))
        ranks.update({scope: number / total for number, scope in enumerate(of_it)})

    def key(item: pytest.Item) -> tuple[bool, float, str, int, str]:
        places = {"fresh_stage": -1, "ends_cli": 1, "ends_stage": 2}
        place = next((place for name, place in places.items() if item.get_closest_marker(name)), 0)
        scope = scopes[item]
        return scope not in long, ranks[scope], scope, place, _cli(item)

    items.sort(key=key)


def _cli(item: pytest.Item) -> str:
    """Return the name of the CLI that is a parameter of the test `item`, by default "qwen"."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return str(getattr(parameters.get("cli"), "name", "qwen"))


class _Progress:
    """Prints a line with the time in seconds for each end-to-end test and for each file of unit tests."""

    def __init__(self, config: pytest.Config, limit: float) -> None:
        self._config = config
        self._limit = limit
        self._left: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def pytest_report_header(self) -> str:
        return f"limit of each wait: {self._limit:.0f} s"

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._count([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._count(ids)

    def _count(self, ids: list[str]) -> None:
        self._left = Counter(map(self._line, ids))

    @staticmethod
    def _line(nodeid: str) -> str:
        """Return the unit that the progress shows for the test `nodeid`: its file, or an end-to-end test by itself."""
        return nodeid if nodeid.startswith("tests/e2e/") else nodeid.split("::")[0]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        line = self._line(report.nodeid)
        self._seconds[line] += report.duration
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[line][report.outcome] += 1
        if report.when != "teardown":
            return
        self._left[line] -= 1
        if self._left[line] == 0:
            counts = [f"{number} {outcome}" for outcome, number in sorted(self._outcomes[line].items())]
            outcomes = ", ".join([*counts, *(f"{name} {value}" for name, value in report.user_properties)])
            reporter: pytest.TerminalReporter | None = self._config.pluginmanager.get_plugin("terminalreporter")
            if reporter is not None:
                reporter.ensure_newline()
                reporter.write_line(f"{self._seconds[line]:7.1f} s  {line}  {outcomes}")

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Show no letter for a test: its line says it."""
        if report.when == "call" and report.passed:
            return "passed", "", ""
        return None
