# SPDX-License-Identifier: GPL-3.0-or-later
"""Qwen Code's own rewind, in a terminal whose IDE is off and on a daemon by another client, is noticed."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any

import pytest

from chat import NAMED, connect_daemon, send
from clis import QWEN
from editor import lisp_string
from sandbox import NOTES
from serve import Serve
from stage import PATIENCE, Stage
from test_changes import FREE, FREE_QWEN
from test_chat_sessions import answer, begin, wait_until, wait_until_said, wait_until_state
from test_rewind import AGENT, at_turn, user_adds

pytestmark = pytest.mark.interop

PROGRAMS = ("qwen-0.21.10", "qwen-0.23.4", "qwen")
TERMINAL = "*qwen: project*"


def press(stage: Stage, key: str) -> None:
    """Press `key`, of which vterm has a command, in the terminal."""
    stage.emacs.eval(f'(with-current-buffer "{TERMINAL}" (vterm-send-{key}))')


def wait_for_line(stage: Stage, text: str) -> None:
    stage.emacs.wait_until(f'(with-current-buffer "{TERMINAL}" (string-search {lisp_string(text)} (buffer-string)))')


def take(stage: Stage, prompt: str, answer: str) -> None:
    """Send `prompt`, and wait until the turn is recorded to its end."""
    stage.converse(prompt, answer, FREE_QWEN)
    wait_until(
        stage,
        "(let ((turn (car (qwen-companion-journal-turns))))"
        f" (and turn (qwen-companion-turn-end turn) (equal {lisp_string(prompt)} (qwen-companion-turn-prompt turn))))",
    )


def recorded_writes(stage: Stage) -> int:
    """Return how many changes of the notes are recorded."""
    (path,) = stage.journal.glob("*/journal.sqlite")
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=PATIENCE)) as journal:
        (count,) = journal.execute(
            "select count(*) from writes where path = ?", (bytes(stage.sandbox.notes),)
        ).fetchone()
        return count


def ask_daemon(serve: Serve, method: str, path: str, body: object = None) -> Any:
    """Ask the daemon as another client, and return its answer."""
    headers = {"Authorization": f"Bearer {serve.token}", "Content-Type": "application/json"}
    with closing(HTTPConnection("127.0.0.1", serve.port)) as connection:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        reply = connection.getresponse()
        data = reply.read()
        assert reply.status == 200, data
        return json.loads(data)


@pytest.mark.parametrize("program", PROGRAMS)
def test_in_a_terminal_whose_ide_is_off(stage: Stage, program: str) -> None:
    stage.start_emacs(stage.sandbox.greeting, forms=(FREE, f'(setq qwen-companion-qwen-command \'("{program}"))'))
    stage.start_cli()
    stage.screen.type("/ide disable")
    stage.screen.wait_for("disable IDE integration")
    stage.screen.keys("Enter")
    stage.screen.wait_for("IDE integration disabled")
    stage.emacs.eval("(qwen-companion-journal-watch 'test t)")
    stage.script_change(stage.sandbox.greeting, AGENT)
    take(stage, "change one", "One done.")
    stage.script_change(stage.sandbox.notes, NOTES + "agent\n")
    take(stage, "change two", "Two done.")
    user_adds(stage, "by the user\nand again\n")
    wait_for_line(stage, "Type your message")
    press(stage, "escape")
    # Two at once are another key.
    time.sleep(0.5)
    press(stage, "escape")
    wait_for_line(stage, "Rewind Conversation (2 turns)")
    press(stage, "return")
    wait_for_line(stage, "Restore code and conversation")
    press(stage, "return")
    wait_for_line(stage, "Conversation rewound.")
    assert stage.sandbox.notes.read_text() == NOTES
    stage.screen.wait_for("rewind removed 2 of your lines from notes.txt; M-x qwen-companion-recover restores them")
    stage.emacs.command("qwen-companion-recover")
    stage.wait_until_said("Brought back")
    assert stage.sandbox.notes.read_text() == "by the user\nand again\n" + NOTES
    assert stage.sandbox.greeting.read_text() == AGENT
    stage.emacs.command("qwen-companion-changes")
    stage.screen.wait_for("rewound  change two")
    stage.screen.wait_for("undone  Your edits that the rewind")
    # What the agent did can be brought back, too.
    at_turn(stage, "rewound  change two")
    stage.screen.keys("u")
    stage.screen.wait_for("Bring back")
    stage.screen.keys("y")
    stage.screen.wait_for("rewound, files kept  change two")
    assert stage.sandbox.notes.read_text() == "by the user\nand again\n" + NOTES + "agent\n"


def test_on_a_daemon_by_another_client(stage: Stage, serve: Serve) -> None:
    connect_daemon(stage, serve, (*NAMED, "(setq qwen-companion-review-edits nil)"))
    chat = begin(stage, ("tell one", "First."))
    stage.script_change(stage.sandbox.notes, NOTES + "agent\n")
    stage.model.say("Second.")
    send(stage, "change two")
    answer(stage, chat, "Allow")
    wait_until_said(stage, chat, "Second.")
    wait_until_state(stage, chat, "idle")
    user_adds(stage, "by the user\n")
    # What is overwritten before it has been read is not known.
    stage.screen.wait_until(lambda: recorded_writes(stage) == 2, "the record of the user's edit")

    files = (stage.sandbox.home / ".qwen/projects").rglob("*.jsonl")
    session = next(path.stem for path in files if "change two" in path.read_text())
    points = ask_daemon(serve, "GET", f"/session/{session}/rewind/snapshots")["snapshots"]
    ask_daemon(serve, "POST", f"/session/{session}/rewind", {"promptId": points[-1]["promptId"]})
    assert stage.sandbox.notes.read_text() == NOTES
    stage.screen.wait_for("rewind removed 1 of your lines from notes.txt")
    stage.emacs.command("qwen-companion-recover")
    stage.wait_until_said("Brought back")
    assert stage.sandbox.notes.read_text() == "by the user\n" + NOTES


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_turn_goes_on_in_a_worktree(stage: Stage, program: str) -> None:
    cli = replace(QWEN, input_start=FREE_QWEN.input_start)
    stage.start_emacs(stage.sandbox.greeting, forms=(FREE, f'(setq qwen-companion-qwen-command \'("{program}"))'))
    stage.start_cli()
    stage.emacs.eval("(qwen-companion-journal-watch 'test t)")
    for number in ("one", "two"):
        stage.model.call("write_file", file_path=str(stage.sandbox.project / f"{number}.txt"), content="made\n")
        take(stage, f"make {number}", f"Made {number}.")
    stage.emacs.command("qwen-companion-changes")
    stage.screen.wait_for("make one")
    at_turn(stage, "make one")
    stage.screen.keys("C-u", "F")
    stage.screen.wait_for("Fork into the worktree:")
    stage.screen.type("beside")
    stage.screen.keys("Enter")
    tree = stage.sandbox.project / ".qwen/worktrees/beside"
    form = f"(seq-find #'get-buffer-process (qwen-companion-terminal-recent {lisp_string(str(tree))}))"
    stage.emacs.wait_until(form)
    stage.emacs.eval(f"(progn (pop-to-buffer {form}) (delete-other-windows))")
    stage.screen.wait_for("Type your message")
    stage.screen.wait_for("Made one.")
    stage.model.call("write_file", file_path=str(tree / "three.txt"), content="made\n")
    take(stage, "make three", "Made three.")
    said = str(stage.model.bodies[-1])
    assert "make one" in said
    assert "make two" not in said
    assert (tree / "three.txt").exists()
    assert not (tree / "two.txt").exists()
    # The first one is as it was.
    stage.emacs.eval(f'(progn (pop-to-buffer "{TERMINAL}") (delete-other-windows))')
    stage.converse("what now", "Here.", cli)
    assert "make two" in str(stage.model.bodies[-1])
