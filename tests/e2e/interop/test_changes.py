# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes that the real CLI makes in its modes auto and yolo are recorded; see test_changes.py beside this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from clis import QWEN
from stage import Stage
from test_changes import FREE_QWEN, three_turns


@pytest.mark.long
def test_three_turns_in_auto_are_recorded_as_they_were(stage: Stage, tmp_path: Path) -> None:
    three_turns(stage, tmp_path, "auto", QWEN, goes_on=True)


@pytest.mark.interop
def test_three_turns_in_yolo_are_recorded_as_they_were(stage: Stage, tmp_path: Path) -> None:
    three_turns(stage, tmp_path, "yolo", FREE_QWEN)
