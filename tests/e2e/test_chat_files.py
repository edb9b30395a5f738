# SPDX-License-Identifier: GPL-3.0-or-later
"""Files in a chat, with the real `qwen serve` and a scripted model, in a terminal."""

from __future__ import annotations

from chat import open_chat, send, wait_until_idle
from stage import Stage


def test_the_file_of_a_tool_is_visited(stage: Stage) -> None:
    open_chat(stage)
    stage.model.call("read_file", file_path=str(stage.sandbox.notes), offset=2, limit=1)
    stage.model.say("It is a list.")
    send(stage, "what is in my notes?")
    stage.screen.wait_for("It is a list.")
    wait_until_idle(stage)
    # The search opens what is folded.
    stage.screen.keys("M-<", "C-s")
    stage.screen.type("File: /")
    stage.screen.keys("Enter", "Enter")
    stage.emacs.wait_until('(equal "notes.txt" (buffer-name (window-buffer)))')
    line = stage.emacs.eval('(with-current-buffer "notes.txt" (line-number-at-pos (window-point)))')
    assert f"File: {stage.sandbox.notes}:{line}" in stage.screen.capture().splitlines()
