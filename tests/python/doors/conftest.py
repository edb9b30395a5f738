# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures of the tests of the doors."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return an environment with a home directory, in which the administrator has set nothing."""
    for name in ("home/.qwen", "etc"):
        (tmp_path / name).mkdir(parents=True)
    return {"HOME": str(tmp_path / "home"), "QWEN_CODE_SYSTEM_SETTINGS_PATH": str(tmp_path / "etc/settings.json")}
