# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps with which tests of a chat begin."""

from __future__ import annotations

import re
from typing import Final

from stage import Stage

CHAT: Final = "*qwen-companion chat*"
FORMS: Final = (
    "(setq qwen-companion-daemon-enabled t)",
    "(require 'qwen-companion-chat)",
    # To suggest a shorter name, M-x tries all; that takes seconds, in which nothing that is reported is read.
    "(setq suggest-key-bindings nil)",
)


def open_chat(stage: Stage, forms: tuple[str, ...] = ()) -> None:
    """Start Emacs, which evaluates FORMS too, and a daemon; open a chat that fills the frame."""
    stage.start_emacs(stage.sandbox.greeting, forms=(*FORMS, *forms))
    stage.emacs.command("qwen-companion-daemon-start")
    stage.screen.wait_for(re.compile(r" Daemon(?!:)"))
    stage.emacs.command("qwen-companion-chat")
    wait_until_idle(stage)
    stage.screen.keys("C-x", "1")


def wait_until_idle(stage: Stage) -> None:
    """Wait until no turn runs in the chat."""
    mode_line = f'(buffer-local-value \'qwen-companion-chat--mode-line (get-buffer "{CHAT}"))'
    stage.emacs.wait_until(f'(string-suffix-p " idle" {mode_line})')


def send(stage: Stage, text: str) -> None:
    """Type TEXT into the prompt and send it."""
    stage.screen.type(text)
    stage.screen.keys("C-c", "C-c")


def answer(stage: Stage, label: str) -> None:
    """Press the key of the option LABEL of the question on the screen, once it takes keys."""
    screen = stage.screen.wait_for(label)
    number = re.search(rf"C-c (\d)  {re.escape(label)} *$", screen, re.MULTILINE)
    assert number is not None
    stage.emacs.wait_until(
        f'(with-current-buffer "{CHAT}" (ignore-errors'
        " (qwen-companion-chat-permissions--check (qwen-companion-chat-permissions--here)) t))"
    )
    stage.screen.keys("C-c", number[1])
