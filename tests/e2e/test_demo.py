# SPDX-License-Identifier: GPL-3.0-or-later
"""`make demo` and `make emacs`, as a newcomer tries them.

What the guide says is what happens, and the user's own configuration is left alone.
"""

from __future__ import annotations

import os
import re

from editor import PROGRAM
from sandbox import BUILD, CHECKOUT
from stage import Stage


def make(stage: Stage, *arguments: str) -> None:
    """Run make with ARGUMENTS in the terminal of STAGE."""
    stage.screen.start(["env", f"PATH={os.environ['PATH']}", "make", f"EMACS={PROGRAM}", *arguments], CHECKOUT)


def test_the_demo_does_what_its_guide_says(stage: Stage) -> None:
    screen = stage.screen
    make(stage, "demo")
    screen.wait_for("Type your message", timeout=120)
    screen.wait_for("Qwen[1]")
    stage.ask("what do you see")
    screen.wait_for("The CLI has told me this about your editor")
    stage.ask("greet politely")
    stage.wait_for_review()
    screen.keys("C-x", "o", "C-x", "o", "M->")
    screen.type("# mine")
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
    screen.keys("C-x", "C-c")
    stage.sandbox.wait_for_end(keep=("tmux: server", "tmux: client"))
    assert list((BUILD / "demo").iterdir()) == []


def test_make_emacs_leaves_the_users_configuration_alone(stage: Stage) -> None:
    home = stage.sandbox.home
    before = sorted(home.rglob("*"))
    make(stage, "emacs", "ARGS=README.org")
    stage.screen.wait_for("#+title: qwen-companion", timeout=120)
    stage.emacs.command("qwen-companion-mode")
    stage.screen.wait_for(re.compile(r" Qwen(?!:)\b"))
    assert sorted(home.rglob("*")) == before
    stage.screen.keys("C-x", "C-c")
    stage.sandbox.wait_for_end(keep=("tmux: server", "tmux: client"))
    assert sorted(home.rglob("*")) == before
