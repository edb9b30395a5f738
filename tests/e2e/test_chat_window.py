# SPDX-License-Identifier: GPL-3.0-or-later
"""A chat in an Emacs with a window of its own, used with the mouse; with the real `qwen serve` and a scripted model."""

from __future__ import annotations

import threading

import pytest

from chat import CHAT, FORMS, TAKES_ANSWERS
from editor import lisp_string
from model_types import Answer, Call
from stage import Stage
from window import needs_windows, open_window

pytestmark = pytest.mark.local("the daemon is of this machine")

MANUAL = "https://example.org/manual"
ANSWER = f"""\
As [the manual]({MANUAL}) has it:

```python
import os
```

{"And so on. " * 20}
"""
BROWSER = """
(progn (defvar browsed nil)
       (setq browse-url-browser-function (lambda (url &rest _) (push url browsed))))
"""
# Where on the screen the second character behind point is, in pixels: what a click there would find counts, since
# `posn-at-point' says it in another way where there is a header line.
PIXEL = """
(let* ((place (1+ (point)))
       (window (get-buffer-window))
       (edges (window-inside-pixel-edges window))
       (x (+ 2 (car edges) (car (posn-x-y (posn-at-point place window))))))
  (cl-loop for y from (nth 1 edges) below (nth 3 edges) by 4
           when (eq place (posn-point (posn-at-x-y x y (window-frame window))))
           return (cons (+ x (nth 0 (frame-edges nil 'native-edges)))
                        (+ y (nth 1 (frame-edges nil 'native-edges))))))
"""
# Such an Emacs draws nothing on the terminal it was started in: let it write a dot there whenever something happens.
TELL = "(add-hook 'post-command-hook (lambda () (external-debugging-output ?.)))"


@needs_windows
def test_a_chat_with_the_mouse(stage: Stage) -> None:
    with open_window(stage, *FORMS, BROWSER, TELL) as window:

        def in_chat(form: str) -> str:
            return f'(with-current-buffer "{CHAT}" (save-excursion {form}))'

        def at(text: str, form: str) -> str:
            """`form` with point at the beginning of `text`, where that is there."""
            place = f"(goto-char 1) (when (search-forward {lisp_string(text)} nil t) (goto-char (match-beginning 0))"
            return in_chat(f"{place} {form})")

        def click(text: str) -> None:
            stage.emacs.eval("(redisplay t)")
            x, y = stage.emacs.eval(at(text, PIXEL)).strip("()").split(" . ")
            window.click(int(x), int(y))

        window.command("qwen-companion-daemon-start")
        window.wait_until("(eq (qwen-companion-daemon-state) 'connected)")
        window.command("qwen-companion-chat")
        window.wait_until(f"(get-buffer {lisp_string(CHAT)})")
        window.wait_until(in_chat("(eq 'idle (plist-get qwen-companion-chat-session :state))"))
        window.keys("ctrl+x", "1")

        file = stage.sandbox.project / "new.txt"
        rest = threading.Event()
        write = Call("write_file", {"file_path": str(file), "content": "one\ntwo\n"})
        stage.model.answer(Answer(ANSWER, (write,), thought="It wants a file.", pieces=20, halfway=rest))
        stage.model.say("It is written.")
        window.type("write it")
        window.keys("ctrl+c", "ctrl+c")
        # It is drawn, and in the colours of its language, before the answer is all there.
        window.wait_until(
            at("import os", "(memq 'font-lock-keyword-face (ensure-list (get-text-property (point) 'face)))")
        )
        rest.set()
        window.wait_until(TAKES_ANSWERS)
        window.wait_until(at("+two", "t"))

        click("the manual")
        window.wait_until("browsed")
        assert stage.emacs.eval("browsed") == f'("{MANUAL}")'
        assert stage.emacs.eval(at("wants a file", "(invisible-p (point))")) != "nil"
        click("Thought")
        window.wait_until(at("wants a file", "(not (invisible-p (point)))"))
        click("Allow\n")
        window.wait_until(at("It is written.", "t"))
        assert file.read_text() == "one\ntwo\n"
        assert 'you answered "Allow"' in stage.emacs.buffer_text(CHAT)
        stage.end()
