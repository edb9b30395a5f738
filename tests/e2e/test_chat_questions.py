# SPDX-License-Identifier: GPL-3.0-or-later
"""What a chat asks, with the real `qwen serve` and a scripted model, in a terminal."""

from __future__ import annotations

import re

from stage import Stage

FORMS = ("(setq qwen-companion-daemon-enabled t)", "(require 'qwen-companion-chat)")
CHAT = "*qwen-companion chat*"
STATE = f"""(buffer-local-value 'qwen-companion-chat--mode-line (get-buffer "{CHAT}"))"""


def open_chat(stage: Stage) -> None:
    """Start Emacs and a daemon, and open a chat that fills the frame."""
    stage.start_emacs(stage.sandbox.greeting, forms=FORMS)
    stage.emacs.command("qwen-companion-daemon-start")
    stage.screen.wait_for(re.compile(r" Daemon(?!:)"))
    stage.emacs.command("qwen-companion-chat")
    wait_until_idle(stage)
    stage.screen.keys("C-x", "1")


def wait_until_idle(stage: Stage) -> None:
    stage.emacs.wait_until(f'(string-suffix-p " idle" {STATE})')


def send(stage: Stage, text: str) -> None:
    stage.screen.type(text)
    stage.screen.keys("C-c", "C-c")


def answer(stage: Stage, key: str) -> None:
    """Press C-c KEY once the question takes keys."""
    stage.emacs.wait_until(
        f'(with-current-buffer "{CHAT}" (ignore-errors'
        " (qwen-companion-chat-permissions--check (qwen-companion-chat-permissions--here)) t))"
    )
    stage.screen.keys("C-c", key)


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
    number = re.search(r"C-c (\d)  Allow *$", screen, re.MULTILINE)
    assert number is not None
    assert not file.exists()
    answer(stage, number[1])
    screen = stage.screen.wait_for("It is written.")
    assert 'you answered "Allow"' in screen
    assert "Asks" not in screen
    assert file.read_text() == "one\ntwo\n"
