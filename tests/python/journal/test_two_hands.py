# SPDX-License-Identifier: GPL-3.0-or-later
"""Who wrote which line, after random edits of an agent and a user; `make fuzz' takes 2,000 of them."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

from two_hands import run

FUZZES = hypothesis.settings().max_examples >= 1000
SEED = int(os.environ.get("FUZZ_SEED", "1"))


@pytest.mark.parametrize("seed", range(SEED, SEED + (4 if FUZZES else 2)))
def test_each_line_is_said_to_be_of_its_author(tmp_path: Path, seed: int) -> None:
    tally = run(tmp_path, seed, 500 if FUZZES else 25)
    assert tally.slander == 0, tally
    assert tally.wrong <= tally.lines / 100, tally
