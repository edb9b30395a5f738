# SPDX-License-Identifier: GPL-3.0-or-later
"""What a chat asks, with the real `qwen serve` and a scripted model, in a terminal."""

from __future__ import annotations

from chat import answer, open_chat, send
from stage import Stage


def test_a_change_is_seen_and_allowed(stage: Stage) -> None:
    open_chat(stage)
    file = stage.sandbox.project / "new.txt"
    stage.model.call("write_file", file_path=str(file), content="one\ntwo\n")
    stage.model.say("It is written.")
    send(stage, "write it")
    screen = stage.screen.wait_for("+two")
    assert f"{file}\n" in screen
    assert "Wrote" not in screen
    assert "Asks:1" in screen
    assert not file.exists()
    answer(stage, "Allow")
    screen = stage.screen.wait_for("It is written.")
    assert 'you answered "Allow"' in screen
    assert "Asks" not in screen
    assert file.read_text() == "one\ntwo\n"
