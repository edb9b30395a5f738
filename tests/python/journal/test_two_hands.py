# SPDX-License-Identifier: GPL-3.0-or-later
"""Who wrote which line, after random edits of an agent and a user; `make fuzz' takes 2,000 of them."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis

from two_hands import run

FUZZES = hypothesis.settings().max_examples >= 1000
SEED = int(os.environ.get("FUZZ_SEED", "1"))


def test_lines_are_said_to_be_of_their_authors(tmp_path: Path) -> None:
    steps, seeds = (2000, 1) if FUZZES else (25, 2)
    tallies = [run(tmp_path / str(seed), seed, steps) for seed in range(SEED, SEED + seeds)]
    assert [tally for tally in tallies if tally.slander] == []
    assert sum(tally.wrong for tally in tallies) <= sum(tally.lines for tally in tallies) / 100, tallies
