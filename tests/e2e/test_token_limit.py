# SPDX-License-Identifier: GPL-3.0-or-later
"""A turn that a real CLI ends at its own limit of tokens has failed, and Emacs says so."""

from __future__ import annotations

import threading

import pytest

import openai_chat
from clis import QWEN, QWEN_SETTINGS
from model_types import Answer
from stage import Stage
from test_registry import wait_for_rows

SETTINGS = {**QWEN_SETTINGS, "model": {**QWEN_SETTINGS["model"], "sessionTokenLimit": 40}}
STATE = "(qwen-companion-session-state (car (qwen-companion-backend-sessions)))"
RECORD_EVENTS = """
(progn
  (defvar test-events nil)
  (setq qwen-companion-attention-functions
        (list (lambda (event) (push (qwen-companion-event-text event) test-events))))
  ;; The user looks at something else.
  (advice-add 'qwen-companion-attention--selected-p :override #'ignore))
"""
FAILED = '"Qwen Code in project failed: token limit"'


def wait_for_state(stage: Stage, activity: str, prompt: str) -> None:
    for slot, value in (("prompt", f'"{prompt}"'), ("activity", activity)):
        stage.emacs.wait_until(f"(equal '{value} (qwen-companion-cli-state-{slot} {STATE}))")


def test_a_turn_at_the_limit_of_the_cli_has_failed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(openai_chat.USAGE, "prompt_tokens", 50)
    stage.sandbox.write_cli_settings(SETTINGS)
    stage.start_emacs(stage.sandbox.greeting)
    stage.start_cli()
    stage.emacs.eval(RECORD_EVENTS)
    # It runs the tool, and does not send its result.
    stage.model.call("list_directory", path=str(stage.sandbox.project))
    stage.ask("list the files")
    stage.screen.wait_for("Session token limit exceeded: 50 tokens > 40")
    wait_for_state(stage, "failed", "list the files")
    stage.emacs.wait_until(f"(equal '({FAILED}) test-events)")
    # Nor does it send another prompt.
    stage.ask("another")
    wait_for_state(stage, "failed", "another")
    stage.emacs.wait_until(f"(equal '({FAILED} {FAILED}) test-events)")
    # The user stops a turn of an empty conversation.
    stage.ask_command("/clear")
    held = threading.Event()
    stage.model.answer(Answer("It takes long.", halfway=held))
    stage.ask("a third")
    stage.screen.wait_for("It take")
    stage.emacs.eval('(with-current-buffer "*qwen: project*" (vterm-send-key "<escape>"))')
    wait_for_state(stage, "cancelled", "a third")
    held.set()


@pytest.mark.local("about the Qwen Codes of this machine")
def test_so_has_one_outside_of_emacs(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(openai_chat.USAGE, "prompt_tokens", 50)
    stage.sandbox.write_cli_settings({**SETTINGS, "ide": {"enabled": False, "hasSeenNudge": True}})
    stage.start_emacs(stage.sandbox.greeting)
    stage.emacs.command("qwen-companion-sessions")
    with stage.outside() as terminal:
        stage.model.say("Hello.")
        stage.ask("hello", QWEN, terminal)
        wait_for_rows(stage, r"\|done\|")
        stage.ask("another", QWEN, terminal)
        wait_for_rows(stage, r"\|failed: token limit\|")
