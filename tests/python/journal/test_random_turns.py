# SPDX-License-Identifier: GPL-3.0-or-later
"""After an undo each path is as it was before the turn, or untouched: a few random turns; `make fuzz' takes many."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

from random_turns import mount, run, unmount

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("hg") is None, reason="Mercurial is not installed; scripts/setup tests does that"),
]

FUZZES = hypothesis.settings().max_examples >= 1000
SEED = int(os.environ.get("FUZZ_SEED", "1"))
TREE = os.environ.get("FUZZ_TREE")
TREES, TURNS = (25, 8) if FUZZES else (2, 4)


@pytest.mark.parametrize("seed", range(SEED, SEED + (3 if FUZZES and TREE is None else 1)))
def test_undoing_gives_back_what_was_there_and_nothing_else(
    tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    if mount(tmp_path):
        unmount(tmp_path)
    else:
        record_property("without full disks,", "as mount is not permitted")
    trees = range(TREES) if TREE is None else [int(TREE)]
    problems = run(tmp_path, seed, trees, 8 if TREE is not None else TURNS)
    assert not problems, "\n\n".join([f"{len(problems)} of {len(trees)} trees differ", *problems])
