# SPDX-License-Identifier: GPL-3.0-or-later
"""A rewind in a terminal over what lies between: a compressed conversation, a commit, the turns of another CLI."""

from __future__ import annotations

import subprocess

import pytest

import openai_chat
from sandbox import GREETING, NOTES
from stage import Stage
from test_changes import FREE, FREE_QWEN, ask, run
from test_chat_sessions import wait_until
from test_rewind import AGENT, TERMINAL, ask_on, at_turn, rewind_turn, user_adds

pytestmark = [pytest.mark.interop, pytest.mark.parametrize("program", ["qwen-0.23.4", "qwen"])]


def start(stage: Stage, program: str, lines: int = 1) -> None:
    """Start Emacs and `program` in it, which writes a file of some `lines` in its first turn."""
    stage.start_emacs(stage.sandbox.greeting, forms=(FREE, f'(setq qwen-companion-qwen-command \'("{program}"))'))
    stage.start_cli()
    stage.model.call("write_file", file_path=str(stage.sandbox.project / "made.txt"), content="made\n" * lines)
    ask(stage, "make a file", "Made.")
    stage.script_change(stage.sandbox.greeting, AGENT)
    ask(stage, "change a lot", "Changed.")


def test_a_commit_and_another_cli(stage: Stage, program: str) -> None:
    start(stage, program)
    options = ("-c", "user.name=Test", "-c", "user.email=test@localhost")
    for arguments in (("add", "."), (*options, "commit", "--quiet", "-m", "All")):
        subprocess.run(["git", *arguments], cwd=stage.sandbox.project, env=stage.environment, check=True)
    user_adds(stage, "by the user\n")
    # Another CLI in the same directory changes the same file.
    stage.emacs.command("qwen-companion-run", prefix=True)
    stage.screen.wait_for("Run Qwen Code in:")
    stage.screen.keys("Enter")
    stage.screen.wait_for("Qwen[2]")
    stage.screen.wait_until(lambda: "Type your message" in stage.emacs.buffer_text(f"{TERMINAL}<2>"), "its prompt")
    run(stage, "printf '# by another\\n' >> greeting.py")
    stage.converse("of another", "Added.", FREE_QWEN)
    stage.emacs.eval("(qwen-companion-journal-watch 'test t)")
    wait_until(
        stage,
        "(let ((turn (car (qwen-companion-journal-turns))))"
        ' (and turn (qwen-companion-turn-end turn) (equal "of another" (qwen-companion-turn-prompt turn))))',
    )
    rewind_turn(stage, "change a lot")
    stage.screen.wait_for("the prompt is in the prompt buffer")
    assert stage.sandbox.greeting.read_text() == GREETING + "# by another\n"
    assert stage.sandbox.notes.read_text() == "by the user\n" + NOTES
    # What was undone can be brought back.
    stage.emacs.command("qwen-companion-changes")
    stage.screen.wait_for("rewound  change a lot")
    at_turn(stage, "rewound  change a lot")
    stage.screen.keys("u")
    stage.screen.wait_for("Bring back")
    stage.screen.keys("y")
    stage.screen.wait_for("rewound, files kept  change a lot")
    assert stage.sandbox.greeting.read_text() == AGENT + "# by another\n"
    # The other one goes on, and so does this one without the turn.
    said = ask_on(stage)
    assert "make a file" in said
    assert "change a lot" not in said


def test_a_compressed_conversation(stage: Stage, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A shorter conversation is not compressed.
    monkeypatch.setitem(openai_chat.USAGE, "prompt_tokens", 50_000)
    monkeypatch.setitem(openai_chat.USAGE, "total_tokens", 50_001)
    start(stage, program, 20_000)
    stage.model.say("<state_snapshot>A file was made, and another one changed.</state_snapshot>")
    stage.ask("/compress", FREE_QWEN)
    stage.screen.wait_for("compressed")
    ask(stage, "and now", "So be it.")
    rewind_turn(stage, "change a lot")
    stage.screen.wait_for("Rewinding the conversation failed: Qwen Code keeps no point before this prompt")
    assert stage.sandbox.greeting.read_text() == GREETING
    # The conversation goes on as it is.
    assert "and now" in ask_on(stage)
