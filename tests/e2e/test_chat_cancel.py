# SPDX-License-Identifier: GPL-3.0-or-later
"""Cancelling in a chat, with the real `qwen serve` and a scripted model, in a terminal."""

from __future__ import annotations

import re
import threading

import pytest

from chat import CHAT, answer, converse, open_chat, send, wait_until_idle
from model_types import Answer
from stage import Stage

pytestmark = [pytest.mark.reuses_stage("chat"), pytest.mark.local("the daemon is of this machine")]


def test_what_runs_is_cancelled_and_what_waits_behind_it_begins(stage: Stage) -> None:
    open_chat(stage)
    stage.screen.keys("C-c", "C-k")
    stage.wait_until_said("Nothing to cancel: the session is idle")
    # A tool waits for an answer, and behind it another prompt.
    stage.model.call("run_shell_command", command="touch made", is_background=False)
    stage.model.say("The second is done.")
    send(stage, "make it")
    stage.screen.wait_for("Asks:1")
    send(stage, "do the second")
    stage.screen.wait_for("1 queued")
    stage.screen.keys("C-c", "C-k")
    stage.screen.wait_for("The second is done.")
    wait_until_idle(stage)
    stage.screen.wait_gone("Asks")
    stage.screen.wait_gone("queued")
    conversation = stage.emacs.buffer_text(CHAT)
    assert re.search(r"^failed +touch made.*^Cancelled$.*^do the second$", conversation, re.MULTILINE | re.DOTALL)
    assert "touch made: closed without an answer" in conversation
    assert not re.search(r"C-c \d", conversation)
    assert not (stage.sandbox.project / "made").exists()
    # A tool runs.
    stage.model.call("run_shell_command", command="mkfifo never; cat never", is_background=False)
    send(stage, "wait for ever")
    stage.screen.wait_for("Asks:1")
    answer(stage, "Allow")
    stage.screen.wait_for("running   mkfifo never; cat never")
    stage.screen.wait_until((stage.sandbox.project / "never").exists, "the command to run")
    stage.screen.keys("C-c", "C-k")
    stage.screen.wait_for("failed    mkfifo never; cat never")
    wait_until_idle(stage)
    # Text streams in.
    more = threading.Event()
    stage.model.answer(Answer("The beginning and the end.\n", halfway=more))
    send(stage, "tell me")
    stage.screen.wait_for("The beginning")
    stage.screen.keys("C-c", "C-k")
    wait_until_idle(stage)
    more.set()
    assert re.search(r"^The beginning.*\nCancelled$", stage.emacs.buffer_text(CHAT), re.MULTILINE)
    # It goes on.
    converse(stage, "do the third", "The third is done.")
    assert "the end" not in stage.emacs.buffer_text(CHAT)
