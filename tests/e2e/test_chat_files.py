# SPDX-License-Identifier: GPL-3.0-or-later
"""Files in a chat, with the real `qwen serve` and a scripted model, in a terminal."""

from __future__ import annotations

import pytest

from chat import CHAT, converse, open_chat, wait_until_idle, wait_until_read
from sandbox import NOTES
from stage import Stage

pytestmark = [pytest.mark.reuses_stage("chat"), pytest.mark.local("the daemon is of this machine")]


def test_the_file_of_a_tool_is_visited(stage: Stage) -> None:
    open_chat(stage)
    stage.model.call("read_file", file_path=str(stage.sandbox.notes), offset=2, limit=1)
    converse(stage, "what is in my notes?", "It is a list.")
    wait_until_idle(stage)
    # The search opens what is folded.
    stage.screen.keys("M-<", "C-s")
    stage.screen.type("File: /")
    stage.screen.keys("Enter", "Enter")
    stage.emacs.wait_until('(equal "notes.txt" (buffer-name (window-buffer)))')
    line = stage.emacs.eval('(with-current-buffer "notes.txt" (line-number-at-pos (window-point)))')
    stage.screen.wait_for(f"File: {stage.sandbox.notes}:{line}\n")


def test_a_name_with_blanks_is_completed_and_sent(stage: Stage) -> None:
    file = stage.sandbox.project / "my notes/shopping list.txt"
    file.parent.mkdir()
    file.write_text("quinces\n")
    (stage.sandbox.project / "ignored.log").write_text("medlars\n")
    (stage.sandbox.project / ".gitignore").write_text("*.log\n")
    open_chat(stage)
    stage.screen.type("what is in @my")
    stage.screen.keys("Tab")
    stage.screen.wait_for(r"what is in @my\ notes/shopping\ list.txt")
    converse(stage, " please", "Fruit.")
    # The daemon has read the file; what was typed is all there.
    prompt = stage.model.next_request().prompt
    assert "quinces" in prompt
    assert r"what is in @my\ notes/shopping\ list.txt please" in prompt
    assert f"what is in @my\\ notes/shopping\\ list.txt please\n@{file}\n" in stage.emacs.buffer_text(CHAT)
    # Nor is there a gap where the daemon reads no file.
    converse(stage, "what is in @ignored.log then", "I may not.")
    prompt = stage.model.next_request().prompt
    assert "medlars" not in prompt
    assert "what is in @ignored.log then" in prompt


def test_the_model_is_told_what_has_changed_since_it_read_a_file(stage: Stage) -> None:
    notes = stage.sandbox.notes
    open_chat(stage)
    stage.model.call("read_file", file_path=str(notes))
    converse(stage, "what is in my notes?", "It is a list.")
    wait_until_read(stage, notes)
    notes.write_text(NOTES.replace("pears", "plums"))
    converse(stage, "and now?", "Plums.")
    while "and now?" not in (prompt := stage.model.next_request().prompt):
        pass
    assert "-pears\n+plums\n" in prompt
    # The user has not written that.
    assert "+plums" not in stage.emacs.buffer_text(CHAT)
