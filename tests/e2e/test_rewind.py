# SPDX-License-Identifier: GPL-3.0-or-later
"""Rewinding with the real Qwen Code: files by the journal, the conversation by `qwen serve`; the model is scripted."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

import pytest

from chat import NAMED, send, start_daemon, wait_until_ended, wait_until_recorded
from editor import lisp_string
from model_types import Answer
from sandbox import GREETING, NOTES
from stage import Stage
from test_changes import FREE, FREE_QWEN, ask, run
from test_chat_sessions import answer, begin, wait_until, wait_until_said, wait_until_state

AGENT: Final = GREETING.replace('"hello "', '"good day "')
PROMPT_BUFFER: Final = "*qwen prompt: project*"
TERMINAL: Final = "*qwen: project*"

pytestmark = pytest.mark.local("the daemon that rewinds a conversation is of this machine")

TURNS: Final = "(qwen-companion-journal-turns)"
_CONVERSATIONS: Final = (
    "(mapcar (lambda (session) (qwen-companion-cli-state-conversation (qwen-companion-session-state session)))"
    " (qwen-companion-backend-sessions))"
)


def user_adds(stage: Stage, line: str, path: Path | None = None) -> None:
    """Put `line` above the file `path`, by default the notes, in Emacs, and save it, as the user."""
    stage.emacs.eval(
        f"(with-current-buffer (find-file-noselect {stage.emacs.lisp_name(path or stage.sandbox.notes)})"
        f" (goto-char (point-min)) (insert {lisp_string(line)}) (save-buffer))"
    )


def at_turn(stage: Stage, text: str) -> None:
    """Put point in the buffer of changes, which is shown, on the first line with `text`, once it is there."""
    stage.emacs.wait_until(
        '(with-selected-window (get-buffer-window "*qwen-companion changes*")'
        f" (goto-char (point-min)) (and (search-forward {lisp_string(text)} nil t) (progn (beginning-of-line) t)))"
    )


def rewind_turn(stage: Stage, prompt: str) -> None:
    """Press R on the turn of `prompt` in the buffer of changes, and agree."""
    stage.emacs.command("qwen-companion-changes")
    stage.screen.wait_for(prompt)
    at_turn(stage, prompt)
    stage.screen.keys("R")
    stage.screen.wait_for("your own edits stay")
    stage.screen.keys("y")


def wait_until_it_goes_on(stage: Stage, prompt: str = "change a lot") -> None:
    """Wait until the CLI that goes on with the conversation of `prompt`, the newest such one, takes what is typed.

    It draws its prompt before, and tells of its conversation when it has started.
    """
    turn = f"(seq-find (lambda (turn) (equal {lisp_string(prompt)} (qwen-companion-turn-prompt turn))) {TURNS})"
    wait_until(stage, f"(member (qwen-companion-turn-session {turn}) {_CONVERSATIONS})")
    stage.screen.wait_until(lambda: "Type your message" in stage.emacs.buffer_text(TERMINAL), "the CLI's prompt")


def ask_on(stage: Stage) -> str:
    """Ask the CLI that goes on in its terminal, and return the request that its model got."""
    wait_until_it_goes_on(stage)
    stage.emacs.eval(f'(progn (pop-to-buffer "{TERMINAL}") (delete-other-windows))')
    stage.screen.wait_for("Type your message")
    stage.converse("what now", "Kept.", FREE_QWEN)
    return str(stage.model.bodies[-1])


@pytest.mark.reuses_stage("free")
@pytest.mark.ends_cli
def test_a_cli_in_a_terminal_goes_on_before_a_prompt(stage: Stage) -> None:
    project = stage.sandbox.project
    stage.start_emacs(stage.sandbox.greeting, forms=(FREE,))
    stage.start_cli()
    stage.model.call("write_file", file_path=str(project / "made.txt"), content="made\n")
    ask(stage, "make a file", "Made.", FREE_QWEN)
    stage.script_change(stage.sandbox.greeting, AGENT)
    run(stage, "printf 'plums\\n' >> notes.txt; echo more >> made.txt; echo new > other.txt")
    ask(stage, "change a lot", "Changed.", FREE_QWEN)
    user_adds(stage, "by the user\n")
    run(stage, "rm other.txt; echo again >> made.txt")
    ask(stage, "and once more", "Done.", FREE_QWEN)
    rewind_turn(stage, "change a lot")
    # The prompt comes back, to be edited, and the CLI goes on where it was.
    stage.wait_until_said("the prompt is in the prompt buffer")
    stage.screen.wait_for("Conversation rewound.")
    assert stage.emacs.buffer_text(PROMPT_BUFFER) == "change a lot"
    assert stage.sandbox.greeting.read_text() == GREETING
    assert stage.sandbox.notes.read_text() == "by the user\n" + NOTES
    assert (project / "made.txt").read_text() == "made\n"
    assert not (project / "other.txt").exists()
    stage.emacs.command("qwen-companion-changes")
    stage.screen.wait_for("rewound  change a lot")
    stage.screen.wait_for("rewound  and once more")
    # The model has only what was kept.
    said = ask_on(stage)
    assert "make a file" in said
    assert "what now" in said
    assert "change a lot" not in said
    assert "and once more" not in said
    # Nor is it told that something was undone of which it knows nothing.
    assert "other.txt" not in said


@pytest.mark.reuses_stage("free")
def test_a_second_cli_goes_on_from_a_turn(stage: Stage) -> None:
    project = stage.sandbox.project
    stage.start_emacs(stage.sandbox.greeting, forms=(FREE,))
    stage.start_cli()
    for number in ("one", "two"):
        stage.model.call("write_file", file_path=str(project / f"{number}.txt"), content="made\n")
        ask(stage, f"make {number}", f"Made {number}.", FREE_QWEN)
    stage.emacs.command("qwen-companion-changes")
    stage.screen.wait_for("make one")
    at_turn(stage, "make one")
    live = "(seq-filter #'get-buffer-process (qwen-companion-terminal-buffers))"
    first = stage.emacs.text(f"(buffer-name (car {live}))")
    stage.screen.keys("F")
    # The daemon that makes the copy is connected for a moment, too.
    stage.screen.wait_for("Conversation rewound.")
    stage.emacs.wait_until(f"(= 2 (length {live}))")
    second = stage.emacs.text(f"(car (remove {lisp_string(first)} (mapcar #'buffer-name {live})))")
    # Both go on, each with its own conversation.
    for buffer, has_second in ((second, False), (first, True)):
        stage.emacs.eval(f"(progn (pop-to-buffer {lisp_string(buffer)}) (delete-other-windows))")
        stage.screen.wait_for("Type your message")
        stage.converse("what now", f"Here, {has_second}.", FREE_QWEN)
        said = str(stage.model.bodies[-1])
        assert "make one" in said
        assert ("make two" in said) == has_second


@pytest.mark.reuses_stage("daemon")
def test_a_chat_goes_on_before_a_prompt(stage: Stage) -> None:
    project = stage.sandbox.project
    stage.start_emacs(stage.sandbox.greeting, forms=(*NAMED, "(setq qwen-companion-review-edits nil)"))
    start_daemon(stage)
    chat = begin(stage, ("tell one", "First."))
    stage.model.call("write_file", file_path=str(project / "made.txt"), content="made\n")
    stage.model.say("Second.")
    send(stage, "make a file")
    answer(stage, chat, "Allow")
    wait_until_said(stage, chat, "Second.")
    wait_until_state(stage, chat, "idle")
    # As nothing is changed in it, its end is seen only by who has seen it in the record.
    recorded = threading.Event()
    stage.model.answer(Answer("Third.", halfway=recorded))
    send(stage, "tell three")
    wait_until_recorded(stage, "tell three")
    recorded.set()
    wait_until_said(stage, chat, "Third.")
    wait_until_state(stage, chat, "idle")
    wait_until_ended(stage, "make a file")
    user_adds(stage, "by the user\n")
    # Half a prompt that was typed stays, below the one that comes back.
    stage.screen.type("half typed")
    stage.screen.keys("C-c", "C-p", "C-c", "C-p", "C-c", "C-r")
    stage.screen.wait_for('Rewind to before "make a file"; undo 1 turn (delete made.txt), your own edits stay')
    stage.screen.keys("y")
    wait_until_said(stage, chat, "rewound to the end of turn 1")
    wait_until(
        stage,
        f"(string-suffix-p {lisp_string('make a file' + chr(10) + 'half typed')}"
        f" (with-current-buffer {lisp_string(chat)} (buffer-string)))",
    )
    assert not (project / "made.txt").exists()
    assert stage.sandbox.notes.read_text() == "by the user\n" + NOTES
    stage.screen.keys("M->", "C-a", "C-k", "C-p", "C-k", "C-k")
    stage.model.say("Kept.")
    send(stage, "what now")
    wait_until_said(stage, chat, "Kept.")
    said = str(stage.model.bodies[-1])
    assert "tell one" in said
    assert "make a file" not in said
    assert "tell three" not in said
    # The conversation as it was is one key away.
    wait_until_state(stage, chat, "idle")
    stage.emacs.command("qwen-companion-changes")
    stage.screen.wait_for("rewound  make a file")
    # The daemon tells of the rewind before it has answered with the copy.
    stage.emacs.wait_until("(seq-some #'qwen-companion-turn-copy (qwen-companion-journal-turns))")
    at_turn(stage, "rewound")
    stage.screen.keys("R")
    stage.screen.wait_for("from before the rewind")
    stage.screen.keys("y")
    stage.screen.wait_for("Third.")
