# SPDX-License-Identifier: GPL-3.0-or-later
"""Sending text to a chat from other buffers, with the real `qwen serve` and a scripted model, in a terminal."""

from __future__ import annotations

from typing import Final

import pytest

from chat import CHAT, open_chat, wait_until_idle
from sandbox import GREETING, NOTES
from stage import Stage

pytestmark = [pytest.mark.reuses_stage("chat"), pytest.mark.local("the daemon is of this machine")]

# Made up, so that it is the same everywhere.
CHECKER: Final = """
(defun find-fault (report &rest _)
  (save-excursion
    (goto-char (point-min))
    (search-forward "hello")
    (funcall report (list (flymake-make-diagnostic (current-buffer) (match-beginning 0) (match-end 0)
                                                   :warning "Too short a greeting")))))
"""
CHECK: Final = """
(with-current-buffer "greeting.py"
  (setq-local flymake-diagnostic-functions '(find-fault))
  (flymake-mode 1)
  (flymake-start))
"""
REGION: Final = """\
greeting.py, lines 4-5:
```python
def greet(name: str) -> str:
    return "hello " + name
```
"""
FOUND: Final = """\
greeting.py:5:13: warning: Too short a greeting (find-fault)
"""
WHOLE: Final = f"""\
greeting.py (not saved):
```python
{GREETING}# not saved
```"""


def visit(stage: Stage, name: str) -> None:
    """Show the buffer `name` in the selected window."""
    stage.screen.keys("C-x", "b")
    stage.screen.wait_for("Switch to buffer")
    stage.screen.enter(name)
    stage.screen.wait_gone("Switch to buffer")


def put(stage: Stage, command: str, seen: str) -> None:
    """Put something into the prompt by `command`, so that `seen` is on the screen, and be in the prompt."""
    stage.emacs.command(command)
    stage.screen.wait_for(seen)
    stage.emacs.wait_until(f'(equal (buffer-name (window-buffer)) "{CHAT}")')


def test_texts_and_files_are_sent_with_what_the_user_says_of_them(stage: Stage) -> None:
    open_chat(stage, (CHECKER,))
    stage.emacs.eval(CHECK)
    visit(stage, "greeting.py")
    stage.screen.keys("M->")
    stage.screen.type("# not saved")
    stage.screen.keys("M-<", "C-n", "C-n", "C-n", "C-Space", "C-n", "C-n")
    put(stage, "qwen-companion-chat-send-region", "greeting.py, lines 4-5:")
    visit(stage, "greeting.py")
    put(stage, "qwen-companion-chat-send-problems", "greeting.py:5:13: warning:")
    visit(stage, "greeting.py")
    put(stage, "qwen-companion-chat-send-region", "greeting.py (not saved):")
    stage.model.say("That was a lot.")
    stage.screen.keys("C-c", "C-c")
    stage.screen.wait_for("That was a lot.")
    assert stage.model.next_request().prompt.endswith(REGION + FOUND + WHOLE)

    # Of a file the daemon reads what is on its disk, and the user is told that this is not all.
    visit(stage, "greeting.py")
    put(stage, "qwen-companion-chat-send-file", "@greeting.py")
    assert "unsaved text; the daemon will read the file on disk" in stage.emacs.buffer_text("*Messages*")
    stage.screen.type("what is it?")
    stage.model.say("A program.")
    stage.screen.keys("C-c", "C-c")
    stage.screen.wait_for("A program.")
    prompt = stage.model.next_request().prompt
    assert "@greeting.py what is it?\n" in prompt
    assert GREETING in prompt
    assert "# not saved" not in prompt
    # The conversation says which file it was.
    assert f"\n@greeting.py what is it?\n@{stage.sandbox.greeting}\n" in stage.emacs.buffer_text(CHAT)

    (stage.sandbox.project / "more größe.txt").write_text("large\n")
    stage.screen.keys("C-x", "d", "Enter")
    stage.screen.wait_for("notes.txt")
    stage.screen.keys("%", "m")
    stage.screen.enter(r"\.txt$")
    stage.screen.wait_for("2 matching files marked")
    put(stage, "qwen-companion-chat-send-file", r"@more\ größe.txt @notes.txt")
    stage.screen.type("and these?")
    stage.model.say("Lists.")
    stage.screen.keys("C-c", "C-c")
    stage.screen.wait_for("Lists.")
    prompt = stage.model.next_request().prompt
    assert NOTES in prompt
    assert "large\n" in prompt
    wait_until_idle(stage)
