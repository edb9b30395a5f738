# SPDX-License-Identifier: GPL-3.0-or-later
"""Which Emacs Gemini CLI takes; for Qwen Code, see test_discovery.py beside this folder."""

from __future__ import annotations

import pytest

from clis import GEMINI
from stage import Stage
from test_discovery import outside_below_the_project, two_emacsen

pytestmark = pytest.mark.interop


def test_the_environment_decides_inside_a_terminal_and_the_newest_outside(stage: Stage) -> None:
    two_emacsen(stage, GEMINI)


def test_outside_of_emacs_in_a_directory_of_the_project(stage: Stage) -> None:
    outside_below_the_project(stage, GEMINI)
