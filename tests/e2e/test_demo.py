# SPDX-License-Identifier: GPL-3.0-or-later
"""`make demo` and `make emacs`, as a newcomer tries them.

The guide can be read, what it says is what happens, and the user's own configuration is left alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from editor import PROGRAM
from sandbox import BUILD, CHECKOUT
from stage import READY, Stage
from terminal import Screen

pytestmark = [pytest.mark.long, pytest.mark.local("about a checkout on this machine")]

# The first and the last words of the guide: all of it is on the screen.
WHOLE_GUIDE = re.compile(r"What to try.*brings\s+it\s+back\.", re.DOTALL)


def make(stage: Stage, *arguments: str) -> None:
    """Run make with `arguments` in the terminal of `stage`."""
    stage.screen.start(["env", f"PATH={os.environ['PATH']}", "make", f"EMACS={PROGRAM}", *arguments], CHECKOUT)


@contextmanager
def demo(stage: Stage, columns: int, rows: int) -> Generator[Screen]:
    """Yield the demo in a terminal of `columns` x `rows`, ended as its guide says; it must leave nothing."""
    screen = stage.screen = Screen(stage.sandbox.run, stage.environment, columns, rows)
    make(stage, "demo")
    yield screen
    screen.keys("C-x", "C-c")
    stage.sandbox.wait_for_end(keep=("tmux: server", "tmux: client"))
    assert list((BUILD / "demo").iterdir()) == []


def test_the_demo_does_what_its_guide_says(stage: Stage) -> None:
    with demo(stage, 80, 24) as screen:
        screen.wait_for(WHOLE_GUIDE)
        # The CLI comes up without taking it away.
        assert WHOLE_GUIDE.search(screen.wait_for(re.compile(r"\*guide\*.*Qwen\[1\]")))
        # A prompt that is typed here changes nothing: `c' leaves View mode.
        screen.keys("c", "x")
        assert WHOLE_GUIDE.search(screen.wait_for("Buffer is read-only"))
        screen.keys("F5")
        screen.wait_for("Type your message")
        # The CLI is no wider than its window.
        assert not re.search(r"\$$", screen.wait_for("F5: the guide"), re.MULTILINE)
        stage.ask("what do you see")
        screen.wait_for("Cursor: line 1, character 1")
        stage.ask("greet politely")
        stage.wait_for_review()
        # Eight lines of a review at least, and the CLI beside it.
        lines = screen.wait_for("F5: the guide").splitlines()
        first, last = (
            next(number for number, line in enumerate(lines) if re.search(pattern, line))
            for pattern in (r"greeting\.py  by Qwen Code", r"^-UUU:.*\*qwen-companion hunks: greeting\.py")
        )
        assert last - first > 8
        screen.keys("F5")
        screen.wait_for(WHOLE_GUIDE)
        screen.keys("F5")
        # The guide has all the words of a review in it.
        screen.wait_for("F5: the guide")
        stage.wait_for_review()
        screen.keys("C-x", "o", "e")
        screen.wait_for("*qwen-companion edit")
        screen.keys("M->")
        screen.type("# mine")
        screen.keys("C-c", "C-c")
        screen.wait_for(re.compile(r"^\+.*# mine", re.MULTILINE))
        screen.keys("C-c", "C-c")
        screen.wait_for("It is written, with your changes")
        stage.ask("greet politely")
        stage.wait_for_review()
        screen.keys("C-x", "o", "C-c", "C-k")
        screen.wait_gone("Yes, allow once")
        stage.ask("sort the notes")
        stage.wait_for_review()
        screen.keys("Enter")
        screen.wait_for("It is written as I proposed it")


def test_a_review_leaves_the_guide_beside_it(stage: Stage) -> None:
    with demo(stage, 200, 50) as screen:
        screen.wait_for("Type your message")
        screen.wait_for(WHOLE_GUIDE)
        screen.wait_for("Qwen[1]")
        # What the companion then adds to the prompt has the word "greet" in it.
        screen.keys("C-x", "o")
        screen.type("mine")
        screen.keys("C-x", "o")
        stage.ask("what do you see")
        screen.wait_for("Cursor: line 1, character 5")
        screen.keys("C-x", "o", "C-x", "u")
        screen.wait_gone("mine# A small")
        screen.keys("C-x", "o")
        stage.ask("greet politely")
        screen.wait_for("Review in Ediff")
        screen.wait_for(WHOLE_GUIDE)


def test_make_emacs_leaves_the_users_configuration_alone(stage: Stage) -> None:
    home = stage.sandbox.home
    before = sorted(home.rglob("*"))
    make(stage, "emacs", "ARGS=README.org")
    stage.screen.wait_for("#+title: qwen-companion")
    stage.emacs.command("qwen-companion-mode")
    stage.screen.wait_for(READY)
    assert sorted(home.rglob("*")) == before
    stage.screen.keys("C-x", "C-c")
    stage.sandbox.wait_for_end(keep=("tmux: server", "tmux: client"))
    assert sorted(home.rglob("*")) == before
