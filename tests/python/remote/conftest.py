# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures of the tests of places."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from relays import make_home


@pytest.fixture
def home() -> Iterator[Path]:
    """Yield a home directory for the relay, and a PATH with Node.js and the stand-in `docker` in it."""
    # With a short name: that of a socket may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="qc-") as directory:
        yield make_home(Path(directory).resolve())
