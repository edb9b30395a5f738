# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts around the product work by themselves: the real CLI, in a terminal, with the scripted model."""

from __future__ import annotations

from stage import Stage


def test_the_cli_talks_to_the_scripted_model_and_writes_after_a_yes_in_the_terminal(stage: Stage) -> None:
    stage.model.say("Good morning to you.")
    stage.screen.start(["qwen"], stage.sandbox.project)
    stage.screen.wait_for("Type your message")
    stage.ask("good morning")
    stage.screen.wait_for("Good morning to you.")
    assert "good morning" in stage.model.next_request().prompt

    new_file = stage.sandbox.project / "new.txt"
    stage.model.call("write_file", file_path=str(new_file), content="fresh\n")
    stage.model.say("Written.")
    stage.screen.wait_for("Type your message")
    stage.ask("write a file")
    stage.screen.wait_for("Yes, allow once")
    stage.screen.keys("Enter")
    stage.screen.wait_for("Written.")
    assert new_file.read_text() == "fresh\n"
    assert stage.model.next_request().tool_results == []
    (result,) = stage.model.next_request().tool_results
    assert "new.txt" in result
