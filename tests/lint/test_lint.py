# SPDX-License-Identifier: GPL-3.0-or-later
"""`make lint` as tests, so that it runs beside the others."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from limit import limit_s

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize("language", ["elisp", "python"])
def test_nothing_is_found(language: str, tmp_path: Path) -> None:
    # What is built is not looked at again.
    command = ["make", "--silent", "--old-file=build", "--old-file=setup-tests", f"lint-{language}"]
    result = subprocess.run(
        command,
        cwd=CHECKOUT,
        env={**os.environ, "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=5 * limit_s(),
    )
    assert result.returncode == 0, f"make lint finds:\n{result.stdout}"
    assert list(tmp_path.iterdir()) == []
