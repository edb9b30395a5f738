# SPDX-License-Identifier: GPL-3.0-or-later
"""Several CLIs propose at a time: the list, the next review, and the keys in their terminals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sandbox import EDITED, GREETING, NOTES
from stage import Stage

pytestmark = pytest.mark.reuses_stage("reviews")

LONGER = NOTES + "plums\ncherries\n"
OPEN = "C-c C-c accept"


def start_second_cli(stage: Stage, directory: Path) -> None:
    """Start a second CLI from Emacs, in `directory`, and go to it."""
    stage.screen.keys("C-u", "M-x")
    stage.screen.wait_for("C-u M-x")
    stage.screen.enter("qwen-companion-run")
    stage.screen.wait_for("Run Qwen Code in:")
    stage.screen.enter(f"{directory.name}/")
    stage.screen.wait_for("Qwen[2!1]")
    stage.screen.wait_for(re.compile(rf"Type your message(?s:.*)qwen: {directory.name}"))


def test_two_clis_wait_for_their_reviews(stage: Stage) -> None:
    other = stage.sandbox.project / "other"
    other.mkdir()
    notes = other / "notes.txt"
    notes.write_text(NOTES)
    # Nothing opens by itself: the order in which the CLIs are looked at is the test's.
    stage.start_emacs(stage.sandbox.greeting, forms=("(setq qwen-companion-diff-arrival 'command)",))
    stage.start_cli()
    stage.script_change(stage.sandbox.greeting, EDITED)
    stage.ask("change the greeting")
    stage.screen.wait_for("Qwen[1!1]")
    stage.screen.wait_for("Yes, allow once")
    stage.emacs.eval("(progn (switch-to-buffer \"greeting.py\") (delete-other-windows) nil)")  # fmt: skip
    start_second_cli(stage, other)
    stage.script_change(notes, LONGER)
    stage.ask("write more")
    stage.screen.wait_for("Qwen[2!2]")
    # The list, with sizes; it follows.
    stage.emacs.command("qwen-companion-diffs")
    stage.screen.wait_for(re.compile(r"greeting\.py +Qwen Code [\d.]+ +project +\+1 -1 +\d+ s +new"))
    stage.screen.wait_for(re.compile(r"other/notes\.txt +Qwen Code [\d.]+ +project +\+2 -0 +\d+ s +new"))
    # In its terminal the second CLI's comes first, though it came later.
    stage.emacs.eval("(progn (switch-to-buffer \"*qwen: other*\") (delete-other-windows) nil)")  # fmt: skip
    stage.screen.keys("C-c", ",", "r")
    stage.screen.wait_for("other/notes.txt: proposed")
    assert "*qwen: other*" in stage.emacs.visible_buffers()
    stage.screen.keys("q")
    stage.screen.wait_gone(OPEN)
    assert stage.emacs.visible_buffers() == ["*qwen: other*"]
    stage.model.say("More fruit.")
    stage.screen.keys("C-c", ",", "a")
    stage.screen.wait_for("More fruit.")
    assert notes.read_text() == LONGER
    stage.screen.keys("C-c", ",", "l")
    stage.screen.wait_for("Qwen[2!1]")
    stage.screen.wait_gone("other/notes.txt")
    stage.screen.keys("C-c", "C-k")
    stage.screen.wait_for("No open proposals")
    assert stage.sandbox.greeting.read_text() == GREETING
    # What the keys did not take, the CLI got: it is told to end by two C-c.
    stage.emacs.eval("(progn (switch-to-buffer \"*qwen: other*\") (delete-other-windows) nil)")  # fmt: skip
    stage.screen.keys("C-c", "C-c")
    stage.screen.wait_for("Press Ctrl+C again to exit")
