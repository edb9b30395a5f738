# SPDX-License-Identifier: GPL-3.0-or-later
"""A chat in Emacs in a terminal, with the real `qwen serve`; the model is scripted."""

from __future__ import annotations

import threading

import pytest

from chat import CHAT, open_chat, press_on, send, wait_until_idle
from clis import QWEN_SETTINGS
from model_types import Answer, Call
from stage import Stage

pytestmark = [pytest.mark.reuses_stage("chat"), pytest.mark.local("the daemon is of this machine")]

RESETS = (
    "(defvar resets nil)",
    "(add-hook 'qwen-companion-daemon-functions"
    " (lambda (method &rest _) (when (eq method 'daemon-reset) (push t resets))) 90)",
)

SHOWN = f"""
(with-selected-window (get-buffer-window "{CHAT}")
  (redisplay t)
  (buffer-substring-no-properties (window-start) (1- (window-end nil t))))
"""
"""The form for the lines of the conversation that are shown."""


def test_an_answer_streams_in_and_is_read_again(stage: Stage) -> None:
    open_chat(stage, RESETS)
    stage.model.say("It *greets*:\n\n```python\nimport os\n```\n\n" + "A line.\n" * 80 + "The **very** end.")
    send(stage, "what does it do?")
    # The window is at the end and follows, hides markup and says whose files these are.
    screen = stage.screen.wait_for("The very end.")
    assert "On this machine (127.0.0.1:" in screen
    assert "what does it do?" in stage.model.next_request().prompt
    wait_until_idle(stage)
    shown = stage.emacs.buffer_text(CHAT)
    assert shown.count("what does it do?") == 1
    stage.emacs.eval("(setq resets nil)")
    stage.screen.keys("C-c", "C-l")
    stage.emacs.wait_until(
        f'(and resets (zerop (buffer-local-value \'qwen-companion-chat--batches-left (get-buffer "{CHAT}"))))'
    )
    assert stage.emacs.buffer_text(CHAT) == shown


def test_keys_typed_while_code_is_fontified_arrive(stage: Stage) -> None:
    open_chat(stage)
    stage.model.say("```python\nimport os\n```\n")
    stage.emacs.type_into("font-lock-ensure", "typed at once", lambda: send(stage, "which code?"))
    wait_until_idle(stage)
    stage.emacs.wait_until(
        f'(with-current-buffer "{CHAT}" (save-excursion (goto-char (point-min)) (search-forward "import os")'
        " (memq 'font-lock-keyword-face (ensure-list (get-text-property (match-beginning 0) 'face)))))"
    )
    assert stage.emacs.buffer_text(CHAT).count("typed at once") == 1


def test_who_reads_above_is_left_alone(stage: Stage) -> None:
    open_chat(stage)
    more = threading.Event()
    text = "".join(f"line {number}\n" for number in range(400))
    stage.model.answer(Answer(text + "The end.", pieces=20, halfway=more))
    send(stage, "count")
    stage.screen.wait_for("line 199")
    stage.screen.keys("M-v")
    stage.screen.wait_gone("line 199")
    before = stage.emacs.text(SHOWN)
    assert before.count("\nline ") > 20
    more.set()
    wait_until_idle(stage)
    assert "The end." in stage.emacs.buffer_text(CHAT)
    assert stage.emacs.text(SHOWN) == before
    # What Emacs takes for shown is on the screen, too.
    stage.screen.wait_until(lambda: before in stage.screen.capture(), "what was shown before")
    stage.screen.keys("M->")
    stage.screen.wait_for("The end.")


def test_thoughts_and_tools_are_folded_and_the_plan_is_kept(stage: Stage) -> None:
    # Off unless it is asked for.
    stage.sandbox.write_cli_settings(
        {**QWEN_SETTINGS, "tools": {**QWEN_SETTINGS["tools"], "todoWrite": {"enabled": True}}}
    )
    open_chat(stage)

    def plan(*states: str) -> Call:
        steps = [
            {"id": str(number), "content": f"Step {number}", "status": state}
            for number, state in enumerate(states, start=1)
        ]
        return Call("todo_write", {"todos": steps})

    more = threading.Event()
    stage.model.answer(Answer(thought="First I look.\nThen I act.", calls=(plan("in_progress", "pending"),)))
    stage.model.answer(
        Answer("Now I look.", calls=(Call("run_shell_command", {"command": "pwd", "is_background": False}),))
    )
    stage.model.answer(Answer("I have seen it.", halfway=more, calls=(plan("completed", "in_progress"),)))
    stage.model.say("The end.")
    send(stage, "do it by a plan")
    screen = stage.screen.wait_for("I have s")
    assert "Plan\n[-] Step 1\n[ ] Step 2\n" in screen
    more.set()
    screen = stage.screen.wait_for("The end.")
    wait_until_idle(stage)
    assert "Plan\n[x] Step 1\n[-] Step 2\n" in screen
    assert screen.count("Plan") == 1
    assert "Then I act." not in screen
    assert "Directory:" not in screen
    press_on(stage, "Tab", "Thought")
    stage.screen.wait_for("Then I act.")
    press_on(stage, "Tab", "Thought")
    stage.screen.wait_gone("Then I act.")
    press_on(stage, "Tab", "pwd")
    stage.screen.wait_for("Directory:")
