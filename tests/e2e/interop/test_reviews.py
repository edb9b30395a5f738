# SPDX-License-Identifier: GPL-3.0-or-later
"""Reviews that the hook before an edit holds, in each version of Qwen Code with a mode `auto`."""

from __future__ import annotations

import re

import pytest

from sandbox import EDITED, GREETING, NEW_NOTES, NOTES
from stage import Stage
from test_auto_mode import begin, edit_review, result, review_edits, start_in_auto, wait_for_review

pytestmark = pytest.mark.interop

PROGRAMS = ("qwen-0.21.2", "qwen-0.21.10", "qwen-0.23.4", "qwen")


def start(stage: Stage, program: str, *forms: str) -> None:
    start_in_auto(stage, f'(setq qwen-companion-qwen-command (list "{program}"))', *forms)


def end_turn(stage: Stage, command: str, said: str) -> None:
    """Decide by `command`; the turn goes on, and ends with what the model has `said`."""
    stage.model.say(said)
    stage.emacs.eval(command)
    stage.screen.wait_for(said)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_decision_in_time_is_the_answer(stage: Stage, program: str) -> None:
    start(stage, program)
    greeting, notes = stage.sandbox.greeting, stage.sandbox.notes
    begin(stage, greeting, EDITED, "change the greeting")
    end_turn(stage, "(qwen-companion-diff-accept)", "All done.")
    assert greeting.read_text() == EDITED
    begin(stage, notes, NEW_NOTES, "plums please")
    end_turn(stage, '(qwen-companion-diff-reject nil "too sweet")', "No plums, then.")
    assert notes.read_text() == NOTES
    assert "too sweet" in result(stage)
    begin(stage, greeting, GREETING, "back again")
    edit_review(stage, greeting, "# by a person\n")
    end_turn(stage, "(qwen-companion-diff-accept)", "As you like it.")
    assert greeting.read_text() == GREETING + "# by a person\n"
    assert "+# by a person" in result(stage)
    # The model is told right: an edit without reading the file anew fails.
    stage.model.call("write_file", file_path=str(greeting), content=EDITED)
    stage.ask("once more")
    wait_for_review(stage)
    end_turn(stage, "(qwen-companion-diff-accept)", "It has changed.")
    assert greeting.read_text() == GREETING + "# by a person\n"


@pytest.mark.parametrize("key", ["(vterm-send-escape)", '(vterm-send-key "c" nil nil t)'])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_call_that_is_cancelled_in_the_terminal_is_withdrawn(stage: Stage, program: str, key: str) -> None:
    start(stage, program)
    begin(stage, stage.sandbox.notes, NEW_NOTES, "plums please")
    stage.emacs.eval(f'(with-current-buffer "*qwen: project*" {key})')
    stage.wait_until_said("notes.txt: the turn is over")
    assert stage.sandbox.notes.read_text() == NOTES


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_terminal_asks_after_50_seconds_and_takes_the_answer_from_emacs(stage: Stage, program: str) -> None:
    start(stage, program)
    notes = stage.sandbox.notes
    begin(stage, notes, NEW_NOTES, "plums please")
    stage.screen.wait_for(re.compile("is reviewing this change|Yes, allow once"))
    assert notes.read_text() == NOTES
    edit_review(stage, notes, "by hand\n")
    end_turn(stage, "(qwen-companion-diff-accept)", "As you like it.")
    stage.screen.wait_until(lambda: notes.read_text() == NEW_NOTES + "by hand\n", "the user's text")
    assert "+by hand" in result(stage)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("mode", ["auto-edit", "yolo"])
def test_edits_are_reviewed_in_all_modes_where_that_is_wanted(stage: Stage, program: str, mode: str) -> None:
    start(stage, program, f'(setq qwen-companion-approval-mode "{mode}")')
    review_edits(stage, "all-modes")
    stage.script_change(stage.sandbox.notes, NEW_NOTES)
    stage.screen.enter("plums please")
    wait_for_review(stage)
    assert stage.sandbox.notes.read_text() == NOTES
    end_turn(stage, "(qwen-companion-diff-reject)", "No plums, then.")
    assert stage.sandbox.notes.read_text() == NOTES
