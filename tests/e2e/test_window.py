# SPDX-License-Identifier: GPL-3.0-or-later
"""A session in an Emacs with a window of its own, typed into as a person does."""

from __future__ import annotations

import pytest

from sandbox import EDITED
from stage import Stage
from window import needs_windows, open_window

pytestmark = pytest.mark.local("about frames of Emacs")


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


# What calls for attention, newest first.
WATCH = """
(setq test-events nil
      qwen-companion-attention-seconds 0
      qwen-companion-attention-functions
      (list (lambda (event) (push (qwen-companion-event-kind event) test-events))))
"""


@needs_windows
def test_a_proposal_is_edited_and_accepted_in_a_window(stage: Stage) -> None:
    """Nothing calls for attention while the user looks at the terminal; without the focus, the end of a turn does."""
    with open_window(stage, "(require 'vterm)", TELL, WATCH) as window:
        stage.script_change(stage.sandbox.greeting, EDITED)
        window.command("qwen-companion-run")
        window.wait_until("(qwen-companion-backend-sessions)")
        terminal = '(with-current-buffer "*qwen: project*" (string-match-p "{}" (buffer-string)))'
        window.wait_until(terminal.format("Type your message"))
        window.type("change the greeting")
        window.wait_until(terminal.format("> +change the greeting"))
        window.keys("Return")
        window.wait_until('(get-buffer-window "*Ediff Control Panel*")')
        window.wait_until(terminal.format("Yes, allow once"))
        assert stage.emacs.visible_buffers() == [
            "*qwen-companion disk: greeting.py*",
            "*qwen-companion proposal: greeting.py*",
            "*Ediff Control Panel*",
            "*qwen: project*",
        ]
        assert stage.emacs.eval("(length (frame-list))") == "1"
        # In the few lines of the panel a scroll bar is only in the way.
        width = '(= 0 (window-scroll-bar-width (get-buffer-window "{}")))'
        assert stage.emacs.eval(width.format("*Ediff Control Panel*")) == "t"
        assert stage.emacs.eval(width.format("*qwen-companion disk: greeting.py*")) == "nil"
        assert stage.emacs.eval("(buffer-name (window-buffer))") == '"*qwen: project*"'
        assert stage.emacs.eval("test-events") == "nil"
        stage.model.say("All done.")
        window.keys("ctrl+x", "o", "ctrl+x", "o", "e", "alt+greater")
        window.type("# mine")
        window.keys("ctrl+c", "ctrl+c")
        window.wait_until(terminal.format("All done"))
        assert stage.sandbox.greeting.read_text() == EDITED + "# mine"
        assert stage.emacs.visible_buffers() == ["greeting.py", "*qwen: project*"]
        window.wait_until('(with-current-buffer "greeting.py" (string-match-p "# mine" (buffer-string)))')

        idle = "(null (qwen-companion-layer-activity))"
        stage.emacs.wait_until(idle)
        stage.emacs.eval('(progn (setq test-events nil) (select-window (get-buffer-window "*qwen: project*")) nil)')
        stage.model.say("Done once more.")
        window.type("again")
        window.wait_until(terminal.format("> +again"))
        window.keys("Return")
        window.wait_until(terminal.format("Done once more"))
        stage.emacs.wait_until(idle)
        assert stage.emacs.eval("test-events") == "nil"
        window.leave()
        stage.model.say("Done at last.")
        stage.emacs.eval('(qwen-companion-ask-send "at last")')
        window.wait_until(terminal.format("Done at last"))
        stage.emacs.wait_until(idle)
        assert stage.emacs.eval("test-events") == "(done)"
        stage.end()
