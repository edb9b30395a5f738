# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures of the journal's tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal_project import Project
from qwen_companion.journal import database, hook_reports, model_news
from support import TIMEOUT_S


@pytest.fixture(autouse=True)
def databases(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the databases that a test leaves open, as the end of a process does; Python warns of them since 3.13."""
    opened: list[sqlite3.Connection] = []

    class Connection(sqlite3.Connection):
        def __init__(self, path: str, check_same_thread: bool = False, isolation_level: None = None) -> None:
            super().__init__(path, check_same_thread=check_same_thread, isolation_level=isolation_level)
            # Others are closed by their thread.
            if not check_same_thread:
                opened.append(self)

    monkeypatch.setattr(database.sqlite3, "connect", Connection)
    yield
    for connection in opened:
        connection.close()


@pytest.fixture(autouse=True)
def long_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all wait for looks at the files as long as a busy machine needs; else they go on without."""
    monkeypatch.setattr(hook_reports, "LOOK_WAIT_S", TIMEOUT_S)
    monkeypatch.setattr(model_news, "RECORD_S", TIMEOUT_S)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)
