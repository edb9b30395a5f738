# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans and questions of the real CLI, read, edited, commented and answered in Emacs."""

from __future__ import annotations

from pathlib import Path

import pytest

from plans import ANSWERS, PLAN, answer_questions, comment, edit, plan, results, start_planning, wait_for_plan
from qwen_companion.base.plan_files import kept_plans
from sandbox import NOTES
from stage import Stage

pytestmark = pytest.mark.reuses_stage("reviews")


# Its CLI works in another mode than that of the other tests.
@pytest.mark.ends_cli
def test_a_plan_is_commented_edited_and_approved_and_questions_answered(stage: Stage) -> None:
    start_planning(stage)
    plan(stage, "plan it")
    stage.model.next_request()
    stage.screen.wait_for("C-c , r goes here")
    # The user is still in the terminal, which shows no dialog.
    assert stage.emacs.eval("(buffer-name (window-buffer))") == '"*qwen: project*"'
    assert "Would you like to proceed" not in stage.screen.capture()
    comment(stage, "plums", "No plums")
    better = PLAN.replace("plums", "pears")
    plan(stage, None, better)
    if stage.far is not None:
        # A line that breaks meanwhile costs nothing.
        for link in stage.far.links():
            link.kill()
    stage.emacs.command("qwen-companion-diff-reject")
    assert "plan:3\n> 1. Buy plums.\nNo plums" in results(stage)
    wait_for_plan(stage)
    # The difference to the one before, with the comment.
    stage.screen.wait_for("Buy pears.")
    stage.screen.wait_for("No plums")
    edit(stage, "3. Eat.\n")
    # The turn goes on with the work, in a mode in which it is reviewed.
    stage.script_change(stage.sandbox.notes, NOTES.replace("pears", "plums"))
    stage.emacs.command("qwen-companion-diff-accept")
    told = results(stage)
    assert "User approved" in told
    assert "3. Eat." in told
    (kept,) = kept_plans(stage.here, stage.emacs.name(stage.sandbox.project))
    assert Path(kept.path).read_text() == better + "3. Eat.\n"
    stage.wait_for_review()
    stage.model.say("All done.")
    stage.accept("All done.")
    # The turn leads to its plan.
    stage.emacs.command("qwen-companion-changes")
    stage.screen.wait_for("▸ notes.txt")
    # Point stays at the turn of the test before.
    stage.emacs.eval('(with-selected-window (get-buffer-window "*qwen-companion changes*") (goto-char (point-min)))')
    stage.screen.keys("v", "p")
    stage.screen.wait_for("Approved 20")
    assert stage.emacs.buffer_text("*qwen-companion plan*") == better + "3. Eat.\n"
    stage.emacs.eval('(switch-to-buffer "*qwen: project*")')
    for _ in range(2):
        stage.model.next_request()
    answer_questions(stage)
    stage.model.next_request()
    assert ANSWERS in results(stage)
