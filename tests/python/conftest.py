# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures all tests of the backend share."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest
from hypothesis.configuration import set_hypothesis_home_dir

from qwen_companion.wire.spool import Spool
from support import Backend, Home

# Where everything generated lies; and no time limit, for a loaded machine.
set_hypothesis_home_dir(Path(__file__).parents[2] / ".build/hypothesis")
hypothesis.settings.register_profile("checkout", deadline=None)
# What `make fuzz` takes.
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("checkout")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that `make robust` gives."""
    parser.addoption("--rounds", type=int, default=1, help="rounds of hostile input in test_robust.py")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def spool() -> Iterator[Spool]:
    with tempfile.TemporaryDirectory() as directory:
        yield Spool(directory)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let it look as if the machine's clock had been set, by so many seconds: the time of booting moves with it."""
    booted = psutil.boot_time()

    def set_clock(seconds: float) -> None:
        system = {"linux": "_pslinux", "darwin": "_psosx"}[sys.platform]
        monkeypatch.setattr(f"psutil.{system}.boot_time", lambda: booted + seconds)

    return set_clock


@pytest.fixture
def backend(home: Home) -> Iterator[Backend]:
    """Yield a process of its own that has published its files and is serving."""
    with Backend(home) as process:
        process.serve()
        yield process
