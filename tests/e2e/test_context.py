# SPDX-License-Identifier: GPL-3.0-or-later
"""The context that the model gets when Emacs shows a file, point or the region in more than one way."""

from __future__ import annotations

import threading
from typing import Final

import pytest

from clis import QWEN
from model_types import Answer
from stage import Stage

pytestmark = pytest.mark.reuses_stage("context")


def to_other_window(stage: Stage) -> None:
    stage.screen.keys("C-x", "o")


def press_until(stage: Stage, told: str, *keys: str) -> None:
    """Press `keys` in the file's window and wait until Emacs has told the place `told`."""
    stage.screen.keys(*keys)
    stage.screen.wait_for(f"told: {told}")


def test_places_in_narrowed_and_indirect_buffers_are_those_of_the_file(stage: Stage) -> None:
    stage.start_emacs(stage.sandbox.greeting, forms=("(put 'narrow-to-region 'disabled nil)",))
    stage.start_cli()
    to_other_window(stage)
    # Lines 4 and 5 only, point on the second.
    stage.screen.keys("M-g", "g")
    stage.screen.type("4")
    stage.screen.keys("Enter", "C-Space", "C-n", "C-n", "C-x", "n", "n")
    press_until(stage, "line 5, character 5", "C-p", "M-m")
    to_other_window(stage)
    prompt = stage.asked("one")
    assert f"Path: {stage.sandbox.greeting}" in prompt
    assert "Cursor: line 5, character 5" in prompt
    # Another buffer on the same text, shown instead of the first, then the terminal.
    to_other_window(stage)
    stage.emacs.eval('(make-indirect-buffer "greeting.py" "indirect" t)')
    stage.screen.keys("C-x", "b")
    stage.screen.type("indirect")
    stage.screen.keys("Enter", "C-x", "n", "w", "M-<")
    press_until(stage, "line 8, character 1", *["C-n"] * 7)
    to_other_window(stage)
    prompt = stage.asked("two")
    assert "line 8, character 1" in prompt
    assert "indirect" not in prompt


def test_a_rectangle_is_selected_and_kept_while_asking(stage: Stage) -> None:
    table = stage.sandbox.project / "table.txt"
    table.write_text("one 😀 first\ntwo 😀 second\nthree\n")
    stage.start_emacs(table)
    stage.start_cli()
    to_other_window(stage)
    # Behind "one ", then down and to the end of the second line.
    stage.screen.keys("M-f", "C-f", "C-x", "Space", "C-n", "M-f", "M-f")
    stage.screen.wait_for("told: line 2, character 14")
    to_other_window(stage)
    prompt = stage.asked("one")
    assert "Cursor: line 2, character 14" in prompt
    assert "```\n😀 first \n😀 second\n```" in prompt
    # Still selected: there is nothing new to tell.
    assert "Selection" not in stage.asked("two")
    to_other_window(stage)
    # Not C-g: it may end what emacsclient asks for instead.
    stage.screen.keys("C-Space", "C-Space")
    stage.screen.wait_until(
        lambda: stage.emacs.eval("(with-current-buffer (window-buffer) mark-active)") == "nil", "nothing selected"
    )
    press_until(stage, "line 3, character 1", "C-n", "C-a")
    to_other_window(stage)
    prompt = stage.asked("three")
    assert "Cursor moved:" in prompt
    assert "Selected text: (none)" in prompt


def test_unsaved_text_is_marked_in_every_mode_line(stage: Stage) -> None:
    stage.start()
    to_other_window(stage)
    stage.screen.keys("x")
    stage.screen.wait_until(lambda: stage.screen.capture().count("Qwen[1]*") == 2, "a star in both mode lines")
    to_other_window(stage)
    assert stage.screen.capture().count("Qwen[1]*") == 2
    stage.emacs.eval('(with-current-buffer "greeting.py" (save-buffer))')
    stage.screen.wait_gone("Qwen[1]*")


def test_help_is_no_file_and_a_closed_file_goes(stage: Stage) -> None:
    stage.start_emacs(stage.sandbox.notes, stage.sandbox.greeting)
    stage.start_cli()
    to_other_window(stage)
    press_until(stage, "line 2, character 1", "C-n")
    # In the file's own window.
    stage.emacs.eval('(push \'("[*]Help" display-buffer-same-window) display-buffer-alist)')
    stage.screen.keys("C-h", "m")
    stage.screen.wait_for("*Help*")
    assert stage.emacs.visible_buffers() == ["*Help*", "*qwen: project*"]
    to_other_window(stage)
    prompt = stage.asked("one")
    assert f"Path: {stage.sandbox.greeting}\n  Cursor: line 2, character 1" in prompt
    assert f"Other open files:\n  - {stage.sandbox.notes}\n" in prompt
    to_other_window(stage)
    stage.screen.keys("C-x", "k")
    stage.screen.enter("notes.txt")
    stage.screen.wait_until(lambda: stage.emacs.eval('(get-buffer "notes.txt")') == "nil", "the buffer gone")
    to_other_window(stage)
    prompt = stage.asked("two")
    assert f"Files closed:\n  - {stage.sandbox.notes}\n" in prompt
    assert "Active file" not in prompt


def test_a_prompt_is_written_from_the_file(stage: Stage) -> None:
    """It goes to the CLI, with the lines quoted, and the window of the file stays selected."""
    stage.start()
    to_other_window(stage)
    stage.screen.keys("M-<", "C-Space", "C-n", "C-n")
    stage.emacs.command("qwen-companion-ask")
    stage.screen.wait_for("*qwen prompt: project*")
    stage.screen.type("What is this?")
    stage.model.say("A greeting.")
    stage.screen.keys("C-c", "C-c")
    stage.screen.wait_for("Sent to *qwen: project*")
    stage.screen.wait_for("A greeting.")
    prompt = stage.model.next_request().prompt
    assert "greeting.py, lines 1-2:\n```python\n# A small program to talk about.\n" in prompt
    assert "What is this?" in prompt
    assert stage.emacs.eval("(buffer-name (window-buffer (selected-window)))") == '"greeting.py"'


WATCH: Final = """
(setq test-events nil
      qwen-companion-attention-seconds 0
      qwen-companion-attention-functions
      (list (lambda (event) (setq test-events (append test-events (list (qwen-companion-event-kind event)))))))
"""


def test_a_read_that_was_allowed_is_work_again(stage: Stage) -> None:
    """Of tools that only read no hook tells before their result."""
    stage.start()
    elsewhere = stage.sandbox.home / "elsewhere.txt"
    elsewhere.write_text("not in the project\n")
    working = threading.Event()
    stage.model.call("read_file", file_path=str(elsewhere))
    stage.model.answer(Answer("I have read it.", halfway=working))
    stage.screen.enter("read it")
    stage.screen.wait_for(QWEN.confirmation)
    state = "(plist-get (plist-get (car (qwen-companion-backend-sessions)) :state) :activity)"
    stage.emacs.wait_until(f"(eq 'asking {state})")
    stage.screen.keys("Enter")
    stage.emacs.wait_until(f"(eq 'working {state})")
    stage.model.next_request()
    assert stage.model.next_request().tool_results == ["not in the project\n"]
    working.set()
    stage.emacs.wait_until(f"(eq 'idle {state})")


def send(stage: Stage, prompt: str) -> None:
    """Send `prompt` from the buffer that is shown: a form alone may be evaluated in a directory of this machine."""
    stage.emacs.eval(f'(with-current-buffer (window-buffer) (qwen-companion-ask-send "{prompt}"))')


def test_prompts_while_it_works_come_in_their_order(stage: Stage) -> None:
    """Each is a turn of its own; a waiting one can be taken back; text half typed in the terminal stays."""
    stage.start_emacs(stage.sandbox.greeting, forms=(f"(progn {WATCH})",))
    stage.start_cli()
    working = threading.Event()
    stage.model.answer(Answer("I began and ended.", halfway=working))
    # Typed at once: it may not watch its file yet.
    to_other_window(stage)
    send(stage, "begin")
    assert "begin" in stage.model.next_request().prompt
    # It says so before it asks the model.
    assert stage.emacs.eval("(qwen-companion-layer-activity)") == "working"
    stage.screen.wait_for(" working")
    half = "half a thought"
    to_other_window(stage)
    stage.screen.type(half)
    to_other_window(stage)
    numbers = ("one", "two", "three", "four", "five")
    for number in (*numbers, "six"):
        send(stage, f"number {number}")
    stage.screen.wait_for("6 prompts wait until its turn is over")
    stage.emacs.command("qwen-companion-ask-take-back")
    stage.screen.wait_for("Take back:")
    stage.screen.type("6")
    stage.screen.keys("Tab", "Enter")
    stage.screen.wait_for("*qwen prompt: project*")
    assert "number six" in stage.emacs.buffer_text("*qwen prompt: project*")
    for number in numbers:
        stage.model.say(f"Number {number}, I see.")
    working.set()
    for number in numbers:
        prompt = stage.model.next_request().prompt
        assert f"number {number}" in prompt
        assert [other for other in (*numbers, "six") if f"number {other}" in prompt] == [number]
    stage.screen.wait_for("Number five, I see.")
    stage.screen.wait_for(half)
    # The user has not looked at the terminal; between two prompts that waited it has not called for attention.
    stage.emacs.wait_until("(null (qwen-companion-layer-activity))")
    assert stage.emacs.eval("test-events") == "(done)"
    # Now at the terminal: nothing calls for attention.
    stage.emacs.eval('(progn (setq test-events nil) (select-window (get-buffer-window "*qwen: project*")) nil)')
    stage.model.say("A whole one now.")
    whole = half or "a whole thought"
    stage.screen.type(whole[len(half) :])
    stage.screen.keys("Enter")
    assert whole in stage.model.next_request().prompt
    stage.screen.wait_for("A whole one now.")
    stage.emacs.wait_until("(null (qwen-companion-layer-activity))")
    assert stage.emacs.eval("test-events") == "nil"
