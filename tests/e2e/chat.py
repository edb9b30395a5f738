# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps with which tests of a chat and of its daemon begin."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path
from typing import Final

import psutil

from editor import lisp_string
from sandbox import has_ended
from serve import Serve
from stage import Stage
from terminal import PATIENCE

CHAT: Final = "*qwen chat*"
NAMED: Final = (
    "(setq qwen-companion-daemon-enabled t)",
    "(require 'qwen-companion-chat)",
    # To suggest a shorter name, M-x tries all; that takes seconds, in which nothing that is reported is read.
    "(setq suggest-key-bindings nil)",
    # An earlier test on the same stage may have kept its buffer's name.
    "(advice-remove 'qwen-companion-chat--rename #'ignore)",
)
"""With buffers that are named after their sessions."""

FORMS: Final = (*NAMED, "(advice-add 'qwen-companion-chat--rename :override #'ignore)")
"""With a buffer that is found by its name whatever was said."""

# A command that was typed may have its buffer later than this is asked for.
MODE_LINE: Final = (
    f'(if (get-buffer "{CHAT}") (buffer-local-value \'qwen-companion-chat--mode-line (get-buffer "{CHAT}")) "")'
)


def takes_answers(chat: str) -> str:
    """Return the form that is true while the oldest question of the buffer `chat` takes all keys and clicks.

    It has been there long enough to be read, and what would be changed has been compared and is shown.
    """
    return (
        f"(with-current-buffer {lisp_string(chat)} (ignore-errors"
        " (let ((item (qwen-companion-chat-permissions--item-here)))"
        " (qwen-companion-chat-permissions--check item)"
        ' (not (equal "the change is not shown here" (qwen-companion-chat-permissions--unseen-reason item))))))'
    )


TAKES_ANSWERS: Final = takes_answers(CHAT)


def daemons(stage: Stage) -> list[psutil.Process]:
    """Return the daemon that Emacs started and its supervisor; empty when there is none."""
    others = [stage.serve.pid] if stage.serve.running else []
    found = [process for process in _serving(stage.sandbox.processes()) if process.pid not in others]
    return sorted(found, key=lambda process: process.create_time())


def _serving(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return those of `processes` that run `qwen serve`; some may end meanwhile."""
    found: list[psutil.Process] = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if "serve" in process.cmdline():
                found.append(process)
    return found


def leave_daemon(stage: Stage) -> None:
    """Let Emacs forget the daemon of an earlier test; returns when one of its own has ended."""
    own = _serving(stage.emacs.process.children(recursive=True))
    stage.emacs.eval(
        "(progn (require 'qwen-companion-daemon) (require 'auth-source) (auth-source-forget-all-cached)"
        " (unless (eq (qwen-companion-daemon-state) 'off) (qwen-companion-daemon-stop)))"
    )
    for process in own:
        assert has_ended(process, PATIENCE)


def start_daemon(stage: Stage) -> None:
    """Let Emacs have a daemon of its own, unless an earlier test has left it one."""
    own = "(eq (car (qwen-companion-daemon-reconnect-form)) 'qwen-companion-daemon-start)"
    if (
        stage.emacs.eval(f"(and (require 'qwen-companion-daemon) (eq (qwen-companion-daemon-state) 'connected) {own})")
        == "nil"
    ):
        # It may have left somebody else's, connected or not.
        leave_daemon(stage)
        stage.emacs.command("qwen-companion-daemon-start")
    stage.screen.wait_for(re.compile(r" Daemon(?!:)"))


def connect_daemon(stage: Stage, serve: Serve, forms: tuple[str, ...], port: int | None = None) -> None:
    """Start Emacs, evaluate `forms` in it, and connect it to `serve` at `port`, by default that of `serve`."""
    serve.write_authinfo(port=port)
    url = lisp_string(f"http://127.0.0.1:{port or serve.port}")
    stage.start_emacs(stage.sandbox.greeting, forms=(*forms, f"(setq qwen-companion-daemon-url {url})"))
    leave_daemon(stage)
    stage.emacs.command("qwen-companion-daemon-connect")
    stage.screen.wait_for(re.compile(r" Daemon(?!:)"))


def open_chat(stage: Stage, forms: tuple[str, ...] = ()) -> None:
    """Start Emacs, which evaluates `forms` too, and a daemon; open a chat that fills the frame."""
    stage.start_emacs(stage.sandbox.greeting, forms=(*FORMS, *forms))
    start_daemon(stage)
    begin_chat(stage)


def begin_chat(stage: Stage) -> None:
    """Open a chat that fills the frame, as soon as Emacs is connected to a daemon."""
    stage.emacs.command("qwen-companion-chat")
    stage.emacs.wait_until(f'(string-match-p " \\\\(?:idle\\\\|off\\\\)\\\\b" {MODE_LINE})')
    if stage.emacs.eval(f'(string-prefix-p " off" {MODE_LINE})') == "t":
        # On a busy machine an agent may take longer to start than the daemon waits.  The chat says what to do then.
        stage.screen.wait_for("M-x qwen-companion-chat here tries again")
        stage.emacs.command("qwen-companion-chat")
        wait_until_idle(stage)
    stage.screen.keys("C-x", "1")


def wait_until_idle(stage: Stage) -> None:
    """Wait until no turn runs in the chat."""
    stage.emacs.wait_until(f'(string-match-p " idle\\\\b" {MODE_LINE})')


def wait_until_recorded(stage: Stage, prompt: str) -> None:
    """Wait until the turn that `prompt` began is in the record: what its agent changes from then on is its."""
    _wait_for_record(stage, "select 1 from turns where prompt = ?", prompt)


def wait_until_ended(stage: Stage, prompt: str) -> None:
    """Wait until the turn that `prompt` began has ended in the record, as all others: it can be undone then."""
    query = "select 1 from turns where prompt = ? and not exists (select 1 from turns where end is null)"
    _wait_for_record(stage, query, prompt)


def wait_until_read(stage: Stage, file: Path) -> None:
    """Wait until it is recorded what the model has read in `file`, and no turn runs: a change is the user's then."""
    query = "select 1 from views where path = ? and not exists (select 1 from turns where end is null)"
    _wait_for_record(stage, query, bytes(file))


def _wait_for_record(stage: Stage, query: str, value: str | bytes) -> None:
    def is_recorded() -> bool:
        for path in stage.sandbox.home.rglob("journal.sqlite"):
            with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as record:
                if record.execute(query, (value,)).fetchone() is not None:
                    return True
        return False

    stage.screen.wait_until(is_recorded, f"{value!r} to be recorded")


def send(stage: Stage, text: str) -> None:
    """Type `text` into the prompt and send it."""
    stage.screen.type(text)
    stage.screen.keys("C-c", "C-c")


def converse(stage: Stage, text: str, answer: str) -> None:
    """Send `text`, and wait until the model's `answer` is shown."""
    stage.model.say(answer)
    send(stage, text)
    stage.screen.wait_for(answer)


def press_on(stage: Stage, key: str, text: str, *, last: bool = False) -> None:
    """Press `key` on the first `text` in the conversation, or on the `last` one, after searching for it."""
    start, search, prompt = ("M->", "C-r", "I-search backward:") if last else ("M-<", "C-s", "I-search:")
    stage.screen.keys(start, search)
    stage.screen.wait_for(prompt)
    stage.screen.type(text, seen=f"{prompt} {text}")
    stage.screen.keys("Enter", key)


def wait_until_askable(stage: Stage) -> None:
    """Wait until the oldest question of the chat takes keys: one that has just come up does not."""
    stage.emacs.wait_until(TAKES_ANSWERS)


def option_key(stage: Stage, label: str) -> str:
    """Return the key behind C-c C-a that chooses the option with `label`, as soon as the screen shows it."""
    option = re.compile(rf"C-c C-a (\S)  {re.escape(label)}(?:  .*)?$", re.MULTILINE)
    return stage.screen.wait_until(lambda: option.search(stage.screen.capture()), f"the option {label}")[1]


def answer(stage: Stage, label: str, reason: str = "") -> None:
    """Choose the option with `label` of the question on the screen by its key, once it takes keys.

    A rejection gives `reason`, and a rule is agreed to.
    """
    key = option_key(stage, label)
    wait_until_askable(stage)
    stage.screen.keys("C-c", "C-a", key)
    if key == "n" and label != "Cancel":
        stage.screen.wait_for("Reason for the model")
        stage.screen.enter(reason)
    elif key in "WU":
        stage.screen.wait_for("write this rule into")
        stage.screen.keys("y")
