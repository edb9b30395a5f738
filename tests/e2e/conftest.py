# SPDX-License-Identifier: GPL-3.0-or-later
"""Each test gets a stage: a sandbox, a scripted model, a terminal, and Emacs if it starts one.

Starting Emacs, its backend and a CLI takes most of the time, so tests that need nothing special are marked with
`reuses_stage` and find what an earlier one has left, with everything else reset (see `Stage.reset`).

When a test fails, its screen, logs and model requests go to one folder below .build/e2e-failures, and the ends of
them into the report.  After each test no process and no file of it may be left.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import cast

import pytest

from editor import EmacsError, lisp_string
from far import PLACES, SHARED
from records import UNCAUGHT, keep_records, shown_records
from sandbox import BUILD
from serve import Serve
from stage import Stage
from terminal import ScreenTimeoutError

INTEROP = "--interop"
AT = "--at"
CLI = "--cli"
REUSE = "reuses_stage"
FRESH = "fresh_stage"
ENDS_CLI = "ends_cli"
ENDS = "ends_stage"
RELAUNCH = "relaunches_cli"
LOCAL = "local"

_reports = pytest.StashKey[list[pytest.TestReport]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that say which CLIs are there, and where they run."""
    parser.addoption(INTEROP, action="store_true", help="older CLIs too, which scripts/setup interop installs")
    parser.addoption(AT, choices=PLACES, help="run the CLIs, and have the project, at another place")
    parser.addoption(CLI, default="qwen", help="the program in .build/bin that is `qwen`, as qwen-0.23.4")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of the tests that need the option."""
    config.addinivalue_line("markers", f"interop: only with {INTEROP}, which `make test-interop` gives")
    config.addinivalue_line("markers", f"{REUSE}(kind): begins on the stage that a test of this kind has left")
    config.addinivalue_line(
        "markers", f"{FRESH}: does not, though its file is marked so, and comes before those that do"
    )
    config.addinivalue_line("markers", f"{ENDS_CLI}: comes after those that need a CLI, since it leaves none")
    config.addinivalue_line("markers", f"{ENDS}: comes last of its kind, since it leaves no stage, or none with a CLI")
    config.addinivalue_line("markers", f"{LOCAL}(reason): not with {AT}")
    config.addinivalue_line("markers", f"at(place): with the project and the CLIs at `place`, whatever {AT} says")
    config.addinivalue_line("markers", f"{RELAUNCH}: the CLI starts itself a second time, as it does for users")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the marked tests out unless they are asked for."""
    if not config.getoption(INTEROP):
        left_out = [item for item in items if item.get_closest_marker("interop")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    if config.getoption(AT):
        left_out = [item for item in items if "stage" not in cast("pytest.Function", item).fixturenames]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
        for item in items:
            if (marker := item.get_closest_marker(LOCAL)) is not None:
                item.add_marker(pytest.mark.skip(reason=f"local only: {marker.args[0]}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the reports with the item for its fixture, and add the records of the stage to that of a failure."""
    report = yield
    item.stash.setdefault(_reports, []).append(report)
    stage = cast("pytest.Function", item).funcargs.get("stage")
    if report.failed and isinstance(stage, Stage):
        folder = BUILD / "e2e-failures" / re.sub(r"[^\w.-]+", "-", item.name)
        keep_records(stage, folder)
        report.sections += [(name, text) for name, text in shown_records(folder)]
    return report


@pytest.fixture(scope="session")
def kept_stages() -> Iterator[dict[str, Stage]]:
    """Yield the stages that tests have left for the next ones, by kind."""
    stages: dict[str, Stage] = {}
    yield stages
    # One that does not end well keeps none of the others.
    with ExitStack() as stack:
        for stage in stages.values():
            stack.enter_context(stage)
            stack.callback(stage.end)


@pytest.fixture
def stage(request: pytest.FixtureRequest, kept_stages: dict[str, Stage]) -> Iterator[Stage]:
    """Return the stage of one test; see the markers."""
    item: pytest.Item = request.node
    marker = item.get_closest_marker(REUSE)
    kind = str(marker.args[0]) if marker else ""
    kept = None if item.get_closest_marker(FRESH) else kept_stages.pop(kind, None)
    with ExitStack() as stack:
        stage = kept or Stage(
            relaunch=item.get_closest_marker(RELAUNCH) is not None,
            place=_place_of(item),
            cli=str(item.config.getoption(CLI)),
        )
        stack.enter_context(stage)
        yield stage
        if any(report.failed for report in item.stash[_reports]):
            return
        if stage.emacs.running:
            # What Emacs was to do there is not done; after one in a filter it also forgets what is typed ahead.
            assert not UNCAUGHT.findall(stage.emacs.buffer_text("*Messages*"))
            if stage.far is not None and stage.far.label != SHARED:
                # Emacs has opened no file of this machine instead of one there.
                local = f"(string-prefix-p {lisp_string(str(stage.sandbox.projects))} buffer-file-name)"
                form = f"(seq-filter (lambda (buffer) (with-current-buffer buffer (and buffer-file-name {local})))"
                assert stage.emacs.eval(f"{form} (buffer-list))") == "nil"
        if kind and kind not in kept_stages and _reset(stage):
            kept_stages[kind] = stage
            stack.pop_all()
        else:
            stage.end()


def _place_of(item: pytest.Item) -> str:
    """Return the beginning of the names of the project of the test `item`, "" on this machine."""
    marker = item.get_closest_marker("at")
    method = marker.args[0] if marker else item.config.getoption(AT)
    return {"": "", "docker-shared": f"/docker:{SHARED}:", **PLACES}[method or ""]


def _reset(stage: Stage) -> bool:
    """Restore `stage` to its state at the start; return whether that succeeded."""
    try:
        return stage.reset()
    except (EmacsError, ScreenTimeoutError, OSError):
        # Also where a program makes or removes a file in a directory that is about to be deleted.
        return False


@pytest.fixture
def serve(stage: Stage) -> Serve:
    """Return a daemon that was started by somebody else, perhaps in an earlier test of this stage."""
    if not stage.serve.running:
        stage.serve.start()
    return stage.serve
