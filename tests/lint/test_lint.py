# SPDX-License-Identifier: GPL-3.0-or-later
"""`make lint`, and the Lisp tests with the oldest Emacs, as tests, so that they run beside the others."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from limit import limit_s

CHECKOUT = Path(__file__).parents[2]
OTHER_EMACS = CHECKOUT / ".build/other-emacs"


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


def test_the_oldest_emacs_passes_the_lisp_tests() -> None:
    if (missing := OTHER_EMACS / "missing").exists():
        pytest.skip(f"no other Emacs: {missing.read_text().strip()}")
    if not (OTHER_EMACS / "usr/share/emacs/28.2").exists():
        pytest.skip("the Emacs of the other tests is the oldest one")
    result = subprocess.run(
        ["scripts/with-emacs", OTHER_EMACS / "emacs", "test-ert"],
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=10 * limit_s(),
    )
    assert result.returncode == 0, result.stdout
