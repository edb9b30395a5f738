# SPDX-License-Identifier: GPL-3.0-or-later
"""The main job in some of the configurations through which `make configurations` goes."""

from __future__ import annotations

import pytest

from configurations import HERE, read_configuration, start
from main_job import MainJob
from stage import Stage

pytestmark = pytest.mark.local("about configurations of Emacs")


@pytest.mark.parametrize("name", ["evil.el", "pop-up-frames.el", "usual-terminal.sh"])
def test_the_main_job_in(stage: Stage, name: str) -> None:
    start(stage, read_configuration(HERE / name))
    for act in MainJob(stage).steps.values():
        act()
