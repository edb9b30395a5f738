# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures of the tests of the daemon client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from daemon_emacs import Chatting, Emacs, connected_emacs
from fake_daemon import FakeDaemon
from qwen_companion.wire.spool import Spool


@pytest.fixture
async def daemon() -> AsyncIterator[FakeDaemon]:
    async with FakeDaemon() as daemon:
        yield daemon


@pytest.fixture
async def emacs(spool: Spool) -> AsyncIterator[Emacs]:
    async with connected_emacs(spool) as emacs:
        yield emacs


@pytest.fixture
async def chatting(emacs: Emacs, daemon: FakeDaemon) -> Chatting:
    """Return a new session that is open."""
    return await emacs.chat(daemon)
