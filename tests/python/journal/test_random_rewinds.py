# SPDX-License-Identifier: GPL-3.0-or-later
"""After a rewind files are as at the prompt, with the edits of the others: a few sessions; `make fuzz' takes many."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

from random_rewinds import run

pytestmark = pytest.mark.long

FUZZES = hypothesis.settings().max_examples >= 1000
SEED = int(os.environ.get("FUZZ_SEED", "1"))
SESSIONS, REWINDS = (20, 5) if FUZZES else (1, 3)


def test_rewinding_gives_back_the_files_of_the_prompt_and_loses_no_edit(tmp_path: Path) -> None:
    problems = run(tmp_path, SEED, SESSIONS, REWINDS)
    assert not problems, "\n\n".join([f"{len(problems)} of {SESSIONS} sessions differ", *problems])


def test_what_the_clis_own_rewind_takes_comes_back(tmp_path: Path) -> None:
    problems = run(tmp_path, SEED, SESSIONS, REWINDS, own=True)
    assert not problems, "\n\n".join([f"{len(problems)} of {SESSIONS} sessions differ", *problems])
