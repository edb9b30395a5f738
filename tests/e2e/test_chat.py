# SPDX-License-Identifier: GPL-3.0-or-later
"""A chat in Emacs in a terminal, with the real `qwen serve`; the model is scripted."""

from __future__ import annotations

import re
import threading

from chat import CHAT, open_chat, send, wait_until_idle
from model_types import Answer
from stage import Stage

RESETS = (
    "(defvar resets nil)",
    "(add-hook 'qwen-companion-chat-reset-hook (lambda () (push t resets)))",
)


def test_an_answer_streams_in_and_is_read_again(stage: Stage) -> None:
    open_chat(stage, RESETS)
    stage.model.say("It *greets*:\n\n```python\nimport os\n```\n\n" + "A line.\n" * 80 + "The end.")
    send(stage, "what does it do?")
    # The window is at the end and follows, and says whose files these are.
    screen = stage.screen.wait_for("The end.")
    assert "(this machine)" in screen
    assert "what does it do?" in stage.model.next_request().prompt
    wait_until_idle(stage)
    shown = stage.emacs.buffer_text(CHAT)
    assert shown.count("what does it do?") == 1
    stage.emacs.eval("(setq resets nil)")
    stage.screen.keys("C-c", "C-l")
    stage.emacs.wait_until(
        f'(and resets (zerop (buffer-local-value \'qwen-companion-chat--awaited (get-buffer "{CHAT}"))))'
    )
    assert stage.emacs.buffer_text(CHAT) == shown


def test_who_reads_above_is_left_alone(stage: Stage) -> None:
    open_chat(stage)
    more = threading.Event()
    text = "".join(f"line {number}\n" for number in range(400))
    stage.model.answer(Answer(text + "The end.", pieces=20, halfway=more))
    send(stage, "count")
    stage.screen.wait_for("line 199")
    stage.screen.keys("M-v", "M-v")
    before = stage.screen.wait_gone("line 199")
    more.set()
    wait_until_idle(stage)
    assert "The end." in stage.emacs.buffer_text(CHAT)
    seen = re.findall(r"^line \d+$", before, re.MULTILINE)
    assert len(seen) > 20
    assert re.findall(r"^line \d+$", stage.screen.capture(), re.MULTILINE) == seen
    stage.screen.keys("M->")
    stage.screen.wait_for("The end.")
