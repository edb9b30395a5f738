# SPDX-License-Identifier: GPL-3.0-or-later
"""Questions in a chat, with the real `qwen serve` and a scripted model, in a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from chat import CHAT, answer, open_chat, press_on, send, wait_until_askable, wait_until_idle
from clis import QWEN_SETTINGS_FILE
from model_types import QUESTIONS
from plans import commented_edited_and_approved_in_a_chat
from sandbox import GREETING
from stage import Stage

pytestmark = [pytest.mark.reuses_stage("chat"), pytest.mark.local("the daemon is of this machine")]


def test_a_file_that_is_written(stage: Stage) -> None:
    open_chat(stage)
    file = stage.sandbox.project / "new.txt"
    stage.model.call("write_file", file_path=str(file), content="one\ntwo\n")
    stage.model.say("It is written.")
    send(stage, "write it")
    stage.screen.wait_for("+two")
    # The question may come a moment after its tool.
    screen = stage.screen.wait_for("Asks:1")
    assert str(file) in screen
    assert "Wrote" not in screen
    assert not file.exists()
    answer(stage, "Allow")
    screen = stage.screen.wait_for("It is written.")
    assert 'you answered "Allow"' in screen
    assert "Asks" not in screen
    assert file.read_text() == "one\ntwo\n"

    # One that is there is reviewed; what is changed in the review gets into the file, and the model is told.
    new = GREETING.replace('"hello "', '"good day "')
    stage.script_change(stage.sandbox.greeting, new)
    stage.model.say("It is changed.")
    send(stage, "change it")
    stage.screen.wait_for('+    return "good day " + name')
    stage.screen.keys("C-c", "C-v")
    stage.screen.wait_for("1 of 1 hunk kept")
    stage.screen.keys("e")
    stage.screen.wait_for("apply to the proposal")
    # Point is at the change.
    stage.screen.type("# Mine.")
    stage.screen.keys("Enter", "C-c", "C-c")
    stage.screen.wait_for("+# Mine.")
    assert stage.sandbox.greeting.read_text() == GREETING
    wait_until_askable(stage)
    stage.screen.keys("C-c", "C-c")
    stage.screen.wait_for("It is changed.")
    wanted = new.replace('    return "good day', '# Mine.\n    return "good day')
    stage.screen.wait_until(lambda: stage.sandbox.greeting.read_text() == wanted, "the reviewed text on disk")
    assert stage.emacs.visible_buffers() == [CHAT]
    assert stage.emacs.eval('(buffer-modified-p (get-buffer "greeting.py"))') == "nil"
    while "I changed your edit" not in (prompt := stage.model.next_request().prompt):
        pass
    assert "\n+# Mine.\n" in prompt
    assert f"Sent during the turn: I changed your edit of {stage.sandbox.greeting} " in stage.emacs.buffer_text(CHAT)

    # Rejected in the review.
    stage.script_change(stage.sandbox.greeting, wanted.replace("Mine", "Yours"))
    send(stage, "change it again")
    stage.screen.wait_for("+# Yours.")
    stage.screen.keys("C-c", "C-v")
    stage.screen.wait_for("1 of 1 hunk kept")
    wait_until_askable(stage)
    stage.screen.keys("C-c", "C-k")
    stage.screen.wait_for('Writing to greeting.py: you answered "Reject"')
    wait_until_idle(stage)
    assert stage.sandbox.greeting.read_text() == wanted


def test_a_command_that_is_run(stage: Stage) -> None:
    open_chat(stage)
    of_workspace = stage.sandbox.project / ".qwen/settings.json"
    of_user = stage.sandbox.home / QWEN_SETTINGS_FILE

    def allowed(settings: Path) -> object:
        # The daemon adds the version of their form.
        return json.loads(settings.read_text()).get("permissions")

    stage.model.call("run_shell_command", command="touch one\ntouch two", is_background=False)
    stage.model.say("They are made.")
    send(stage, "make two")
    screen = stage.screen.wait_for("Asks:1")
    assert re.search(r"^ +touch one\n +touch two$", screen, re.MULTILINE)
    label = "Always Allow in project: touch *"
    assert f"{label}  writes a rule into .qwen/settings.json of the workspace\n" in screen
    answer(stage, label)
    stage.screen.wait_for("They are made.")
    assert (allowed(of_workspace), allowed(of_user)) == ({"allow": ["Bash(touch *)"]}, None)
    assert (stage.sandbox.project / "two").exists()

    stage.model.call("run_shell_command", command="cp one five", is_background=False)
    stage.model.say("It is copied.")
    send(stage, "copy one")
    label = "Always Allow for user: cp *"
    stage.screen.wait_for(f"{label}  writes a rule into ~/.qwen/settings.json\n")
    answer(stage, label)
    stage.screen.wait_for("It is copied.")
    assert (allowed(of_workspace), allowed(of_user)) == ({"allow": ["Bash(touch *)"]}, {"allow": ["Bash(cp *)"]})

    # Refused.
    stage.model.call("run_shell_command", command="mkdir three", is_background=False)
    send(stage, "make a directory")
    stage.screen.wait_for("Asks:1")
    stage.model.say("Then not.")
    answer(stage, "Reject", "not that name")
    stage.screen.wait_for('mkdir three: you answered "Reject"')
    stage.screen.wait_for("Then not.")
    wait_until_idle(stage)
    conversation = stage.emacs.buffer_text(CHAT)
    assert "\nnot that name\n" in conversation
    assert re.search("^failed +mkdir three", conversation, re.MULTILINE)
    assert "Cancelled" not in conversation
    assert not (stage.sandbox.project / "three").exists()

    # Longer than what is shown in a chat: the end, which counts, is not.
    command = "".join(f": {number}\n" for number in range(3000)) + "mkdir four"
    stage.model.call("run_shell_command", command=command, is_background=False)
    stage.model.say("It is made.")
    send(stage, "make it at length")
    stage.screen.wait_for("Asks:1")
    answer(stage, "Allow")
    screen = stage.screen.wait_for("Not allowed yet: the tool's input is cut off here; C-c C-v shows it")
    assert re.search(r"\d+ characters more  C-c C-v shows all$", screen, re.MULTILINE)
    stage.screen.keys("C-c", "C-v")
    stage.screen.wait_for("*qwen-companion chat: input of")
    chat, whole = stage.emacs.visible_buffers()
    assert chat == CHAT
    assert f"command:\n{command}\n" in stage.emacs.buffer_text(whole)
    answer(stage, "Allow")
    stage.screen.wait_for("It is made.")
    assert (stage.sandbox.project / "four").exists()


def test_a_form_is_filled_in(stage: Stage) -> None:
    open_chat(stage)
    stage.model.call("ask_user_question", questions=QUESTIONS)
    stage.model.say("I see.")
    send(stage, "ask me")
    stage.screen.wait_for("Asks:1")
    press_on(stage, "Enter", "sqlite", last=True)
    stage.screen.wait_for("(x) sqlite")
    press_on(stage, "Enter", "postgres", last=True)
    screen = stage.screen.wait_for("(x) postgres")
    assert "( ) sqlite" in screen
    answer(stage, "Submit")
    stage.wait_until_said("Question 2 has no answer yet; choose one with RET")
    assert not stage.model.next_request().tool_results
    press_on(stage, "Enter", "red", last=True)
    stage.screen.wait_for("[x] red")
    press_on(stage, "Enter", "blue", last=True)
    stage.screen.wait_for("[x] blue")
    # The last of these lines is that of the last question.
    press_on(stage, "Enter", "an answer of your own", last=True)
    stage.screen.wait_for("Your answer:")
    stage.screen.enter("Carla, or so")
    stage.screen.wait_for("(x) Carla, or so")
    answer(stage, "Submit")
    stage.screen.wait_for("I see.")
    (answers,) = stage.model.next_request().tool_results
    assert answers.endswith("\n**Database**: postgres\n**Colours**: red, blue\n**Name**: Carla, or so")

    # Dismissed.
    stage.model.call("ask_user_question", questions=QUESTIONS[:1])
    stage.screen.keys("M->")
    send(stage, "ask me again")
    stage.screen.wait_for("Asks:1")
    answer(stage, "dismiss without an answer")
    stage.screen.wait_for("Ask user 1 question: you dismissed it")
    wait_until_idle(stage)
    assert re.search("^failed +Ask user 1 question", stage.emacs.buffer_text(CHAT), re.MULTILINE)

    # A plan.
    commented_edited_and_approved_in_a_chat(stage)
