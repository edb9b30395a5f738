# SPDX-License-Identifier: GPL-3.0-or-later
"""A session in an Emacs with a window of its own, typed into as a person does."""

from __future__ import annotations

import pytest

from display import display
from editor import draws_windows
from sandbox import GREETING
from stage import Stage

EDITED = GREETING.replace('"hello "', '"good day "')

# Such an Emacs draws nothing on the terminal it was started in: let it write a dot there whenever something happens.
TELL = """
(let ((tell (lambda (&rest _) (external-debugging-output ?.))))
  (dolist (hook '(qwen-companion-state-functions window-state-change-functions after-revert-hook))
    (add-hook hook tell))
  (dolist (function '(vterm--delayed-redraw qwen-companion-backend-on-sessions qwen-companion-disk-follow))
    (advice-add function :after tell))
  ;; It is up.
  (funcall tell))
"""


@pytest.mark.skipif(not draws_windows(), reason="this Emacs draws no windows: EMACS=/path/to/emacs names one that does")
def test_a_proposal_is_edited_and_accepted_in_a_window(stage: Stage) -> None:
    with display() as screen:
        stage.emacs.start(stage.sandbox.greeting, forms=("(require 'vterm)", TELL), display=screen.name)
        window = stage.emacs.text("(frame-parameter nil 'outer-window-id)")

        def wait_until(form: str) -> None:
            stage.screen.wait_until(lambda: stage.emacs.eval(form) != "nil", form)

        def command(name: str) -> None:
            screen.keys(window, "alt+x")
            screen.type(window, name)
            screen.keys(window, "Return")

        command("qwen-companion-mode")
        wait_until("(eq (qwen-companion-state) 'ready)")
        stage.script_change(stage.sandbox.greeting, EDITED)
        command("qwen-companion-run")
        wait_until("(qwen-companion-backend-sessions)")
        terminal = '(with-current-buffer "*qwen: project*" (string-match-p "{}" (buffer-string)))'
        wait_until(terminal.format("Type your message"))
        screen.type(window, "change the greeting")
        wait_until(terminal.format("> +change the greeting"))
        screen.keys(window, "Return")
        wait_until('(get-buffer-window "*Ediff Control Panel*")')
        wait_until(terminal.format("Yes, allow once"))
        assert stage.emacs.visible_buffers() == [
            "*qwen-companion disk: greeting.py*",
            "*qwen-companion proposal: greeting.py*",
            "*Ediff Control Panel*",
            "*qwen: project*",
        ]
        assert stage.emacs.eval("(length (frame-list))") == "1"
        assert stage.emacs.eval("(buffer-name (window-buffer))") == '"*qwen: project*"'
        stage.model.say("All done.")
        screen.keys(window, "ctrl+x", "o", "ctrl+x", "o", "alt+greater")
        screen.type(window, "# mine")
        screen.keys(window, "ctrl+c", "ctrl+c")
        wait_until(terminal.format("All done"))
        assert stage.sandbox.greeting.read_text() == EDITED + "# mine"
        assert stage.emacs.visible_buffers() == ["greeting.py", "*qwen: project*"]
        wait_until('(with-current-buffer "greeting.py" (string-match-p "# mine" (buffer-string)))')
        stage.end()
