# SPDX-License-Identifier: GPL-3.0-or-later
"""The user's text is kept when a review ends otherwise than by an answer in Emacs."""

from __future__ import annotations

import re

import pytest

from sandbox import GREETING, has_ended
from stage import Stage
from terminal import PATIENCE

pytestmark = pytest.mark.reuses_stage("reviews")

EDITED = GREETING.replace('"hello "', '"good day "')
EDIT = "# by hand"
KEPT = "*qwen-companion kept: greeting.py*"


def open_edited_review(stage: Stage, *forms: str) -> None:
    """Connect, let the model propose to change the greeting, and add a comment to its end; the terminal is selected."""
    stage.start_emacs(stage.sandbox.greeting, forms=forms)
    stage.script_change(stage.sandbox.greeting, EDITED)
    stage.start_cli()
    stage.ask("change the greeting")
    stage.wait_for_review()
    stage.screen.keys("C-x", "o", "C-x", "o", "M->")
    stage.screen.type(EDIT)
    stage.screen.keys("C-x", "o", "C-x", "o")


def assert_text_is_in_the_buffer(stage: Stage) -> None:
    """The kept text is in the file's buffer, shown and not saved, and nowhere else."""
    stage.screen.wait_until(lambda: stage.emacs.buffer_text("greeting.py") == EDITED + EDIT, "the text in the buffer")
    assert stage.emacs.eval('(buffer-modified-p (get-buffer "greeting.py"))') == "t"
    assert "greeting.py" in stage.emacs.visible_buffers()
    assert stage.emacs.eval(f'(get-buffer "{KEPT}")') == "nil"


def test_edits_that_the_cli_drops_are_said_kept_and_applied(stage: Stage) -> None:
    open_edited_review(stage)
    stage.model.say("All done.")
    stage.screen.keys("Enter")
    stage.screen.wait_for("All done.")
    assert stage.sandbox.greeting.read_text() == EDITED
    stage.screen.wait_until(
        lambda: "your edits are not in it" in stage.emacs.buffer_text("*Messages*"), "the offer to apply the edits"
    )
    said = r"in the terminal, where Qwen Code \S+ writes its own text without your edits"
    assert re.search(said, stage.emacs.buffer_text("*Messages*"))
    assert stage.emacs.buffer_text(KEPT) == EDITED + EDIT
    assert stage.emacs.buffer_text("greeting.py") == EDITED
    stage.emacs.command("qwen-companion-kept-apply")
    assert_text_is_in_the_buffer(stage)
    assert stage.sandbox.greeting.read_text() == EDITED
    # One change to undo, and then the file is as the CLI wrote it.
    stage.screen.keys("C-_")
    stage.screen.wait_until(lambda: stage.emacs.buffer_text("greeting.py") == EDITED, "the edits undone")


@pytest.mark.ends_stage
def test_emacs_ends_in_a_review_and_the_terminals_question_stays(stage: Stage) -> None:
    stage.start_emacs(stage.sandbox.greeting)
    stage.end_cli()
    with stage.outside() as outside:
        stage.screen.wait_for("Qwen[1]")
        stage.script_change(stage.sandbox.greeting, EDITED)
        stage.ask("change the greeting", screen=outside)
        stage.screen.wait_for("C-c C-c accept")
        outside.wait_for("Yes, allow once")
        backend = stage.sandbox.backend()
        # Nothing was edited, so nothing is asked.
        stage.screen.keys("C-x", "C-c")
        assert has_ended(stage.emacs.process, PATIENCE)
        assert has_ended(backend, PATIENCE)
        stage.model.say("All done.")
        outside.keys("Enter")
        outside.wait_for("All done.")
        assert stage.sandbox.greeting.read_text() == EDITED
    stage.sandbox.assert_no_files()
