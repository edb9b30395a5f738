# SPDX-License-Identifier: GPL-3.0-or-later
"""A proposal arrives while the user is busy: no key is stolen, no window changes, and it opens when there is time.

The keys and the Emacs are real; where the CLI itself does not matter, its proposal is handed to Emacs directly.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from display import display
from editor import Emacs, draws_windows, lisp_string
from limit import stretched
from sandbox import GREETING
from stage import Stage
from support import Cli
from terminal import PATIENCE
from test_daemon import end_shell, start_daemon

pytestmark = [pytest.mark.reuses_stage("arrival"), pytest.mark.local("proposals are handed to Emacs directly")]

EDITED = GREETING.replace('"hello "', '"good day "')
OPEN = "C-c C-c accept"
WORKING_S = 1.5
"""How long the user is kept busy: three times as long as a review waits for a pause."""
PAUSE_S = stretched(5)
"""How long keys must not come for a pause, where keys do come."""
KEY_S = 0.2
"""How long a typist takes for a key."""


def propose(emacs: Emacs, path: Path, identifier: str = "p1") -> None:
    text, name = lisp_string(EDITED), lisp_string(str(path))
    form = f'\'(:id {lisp_string(identifier)} :session "s1" :client "Qwen Code" :path {name} :text {text})'
    assert emacs.eval(f"(qwen-companion-proposal-on-open {form})") == "nil"


def close(emacs: Emacs, identifier: str = "p1") -> None:
    """Let the CLI say that it was answered in the terminal."""
    emacs.eval(f"(progn (qwen-companion-proposal-on-close '(:id {lisp_string(identifier)})) nil)")


def wait_idle(emacs: Emacs) -> None:
    """Return when no key has come for long enough, and timers have had their chance."""
    idle = f"(and (current-idle-time) (> (float-time (current-idle-time)) {WORKING_S}))"
    emacs.screen.wait_until(lambda: emacs.eval(idle) != "nil", "a pause")


def test_a_cli_is_answered_while_emacs_is_busy(stage: Stage) -> None:
    """A proposal is taken at once, and closing it tells its text, not that there was none."""
    stage.start_emacs(stage.sandbox.greeting)
    (lock,) = (stage.sandbox.home / ".qwen/ide").glob("*.lock")
    cli = Cli(int(lock.stem), json.loads(lock.read_text())["authToken"])
    cli.initialize()
    path = str(stage.sandbox.greeting)
    busy, go = stage.sandbox.run / "busy", stage.sandbox.run / "go"
    wait = f"touch {busy}; until [ -e {go} ]; do sleep 0.1; done"
    stage.emacs.eval(f'(run-at-time 0 nil (lambda () (call-process "/bin/sh" nil nil nil "-c" {lisp_string(wait)})))')
    stage.screen.wait_until(busy.exists, "a busy Emacs")
    try:
        assert cli.tool("openDiff", filePath=path, newContent=EDITED)["content"] == []
        with ThreadPoolExecutor() as pool:
            closed = pool.submit(cli.tool, "closeDiff", filePath=path)
            go.touch()
            (answer,) = closed.result(PATIENCE)["content"]
    finally:
        go.touch()
    # Else Emacs shows a session for a minute.
    cli.post(b"", method="DELETE")
    assert json.loads(answer["text"]) == {"content": EDITED}
    assert stage.emacs.eval("(qwen-companion-proposals)") == "nil"


def test_nothing_opens_while_keys_come(stage: Stage) -> None:
    # A slow machine must not look like a pause, nor a hint about a key hide what is announced.
    stage.start_emacs(stage.sandbox.greeting, forms=("(setq suggest-key-bindings nil)",))
    delay = stage.emacs.eval("qwen-companion-review--idle-delay")
    stage.emacs.eval(f"(setq qwen-companion-review--idle-delay {PAUSE_S})")
    # Emacs may have been idle for long by now.
    stage.screen.type("x", seen="x#")
    stage.screen.wait_for("told: line 1, character 2")
    propose(stage.emacs, stage.sandbox.greeting)
    stage.screen.wait_for("Qwen Code proposes a change of")
    stage.screen.wait_for("Qwen[0!1]")
    end = time.monotonic() + 1.5 * PAUSE_S
    while time.monotonic() < end:
        time.sleep(KEY_S)
        stage.screen.keys("BSpace")
        stage.screen.wait_gone("x#")
        time.sleep(KEY_S)
        stage.screen.type("x", seen="x#")
        assert OPEN not in stage.screen.capture()
    stage.screen.keys("BSpace")
    stage.screen.wait_for(OPEN)
    # The cursor is where it was.
    stage.screen.type("y", seen="y#")
    stage.emacs.eval("(qwen-companion-diff-reject)")
    stage.screen.wait_gone(OPEN)
    assert stage.emacs.visible_buffers() == ["greeting.py"]
    assert stage.emacs.buffer_text("greeting.py") == f"y{GREETING}"
    assert stage.emacs.buffer_text("*Messages*").count("proposes a change") == 1
    stage.emacs.eval(f"(setq qwen-companion-review--idle-delay {delay})")


# Each with the keys that begin it, a form that is true then, and the keys that leave it.  Not all is on the screen for
# long: a message that comes just then takes the place of the echo.  What is left by C-g may be left too early: in the
# middle of what emacsclient asked for, that key ends only this.
BUSY: Sequence[tuple[str, Sequence[str], str, Sequence[str]]] = (
    ("minibuffer", ("M-x",), "(active-minibuffer-window)", ("C-]",)),
    ("key sequence", ("C-x",), '(equal (key-description (this-command-keys)) "C-x")', ("=",)),
    ("argument", ("C-u",), "prefix-arg", ("C-]",)),
    ("search", ("C-s",), "(buffer-local-value 'isearch-mode (window-buffer))", ("C-a",)),
    ("question", ("M-%", "a", "Enter", "b", "Enter"), "(ignore-errors (overlay-buffer replace-overlay))", ("q",)),
    ("macro", ("C-x", "("), "defining-kbd-macro", ("C-x", ")")),
)


def test_it_waits_for_whatever_the_user_is_at(stage: Stage) -> None:
    stage.start_emacs(stage.sandbox.greeting)
    for name, enter, begun, leave in BUSY:
        stage.screen.keys(*enter)
        wait_until(stage.emacs, begun)
        propose(stage.emacs, stage.sandbox.greeting, name)
        wait_idle(stage.emacs)
        assert stage.emacs.visible_buffers() == ["greeting.py"], name
        stage.screen.keys(*leave)
        stage.screen.wait_for(OPEN)
        close(stage.emacs, name)
        stage.screen.wait_gone(OPEN)
        assert stage.emacs.visible_buffers() == ["greeting.py"], name


def test_it_waits_for_a_recursive_edit_and_a_macro_that_runs(stage: Stage) -> None:
    # The macro lasts: it waits for input that a timer gives.
    stage.start_emacs(stage.sandbox.greeting)
    stage.emacs.command("recursive-edit")
    stage.screen.wait_for("[(")
    propose(stage.emacs, stage.sandbox.greeting)
    wait_idle(stage.emacs)
    assert stage.emacs.visible_buffers() == ["greeting.py"]
    stage.screen.keys("C-M-c")
    stage.screen.wait_for(OPEN)
    close(stage.emacs)
    stage.emacs.eval("(defun wait-a-little () (interactive) (sit-for 1.5 t) (message \"visible: %s\""
                     " (length (window-list))))")  # fmt: skip
    stage.emacs.eval('(fset \'my-macro (kbd "M-x wait-a-little RET"))')
    stage.emacs.eval("(setq qwen-companion-diff-arrival 'now)")
    stage.emacs.command("my-macro")
    propose(stage.emacs, stage.sandbox.greeting, "p2")
    stage.screen.wait_for(OPEN)
    assert "visible: 1" in stage.emacs.buffer_text("*Messages*")
    close(stage.emacs, "p2")


def test_what_is_typed_into_the_minibuffer_stays_there(stage: Stage) -> None:
    """The CLI is answered in its terminal while the user is in the middle of a file name."""
    stage.start_emacs(stage.sandbox.greeting)
    hook = stage.emacs.eval("minibuffer-exit-hook")
    propose(stage.emacs, stage.sandbox.greeting)
    stage.screen.wait_for(OPEN)
    stage.screen.keys("C-x", "b")
    stage.screen.type("note")
    close(stage.emacs)
    stage.screen.wait_gone(OPEN)
    stage.screen.enter("book", seen="notebook")
    stage.screen.wait_for(re.compile(r"notebook +All"))
    assert stage.emacs.visible_buffers() == ["notebook"]
    assert stage.emacs.eval("minibuffer-exit-hook") == hook


def test_a_question_in_the_minibuffer_is_left_when_an_edited_proposal_closes(stage: Stage) -> None:
    """So is one where no other could be asked meanwhile."""
    stage.start_emacs(stage.sandbox.greeting, forms=("(setq enable-recursive-minibuffers nil)",))
    propose(stage.emacs, stage.sandbox.greeting)
    stage.screen.wait_for(OPEN)
    stage.emacs.eval(
        '(with-current-buffer "*qwen-companion proposal: greeting.py*"'
        ' (let ((inhibit-read-only t)) (insert "# by hand\\n")))'
    )
    stage.screen.keys("C-x", "C-f")
    stage.screen.type("half-typed", seen="half-typed")
    close(stage.emacs)
    stage.screen.wait_gone(OPEN)
    # What is said about it stands behind the question until the next key.
    stage.screen.type(" name", seen=re.compile("^Find file: .*half-typed name", re.MULTILINE))
    # Not C-g: during redisplay it would end only that.
    stage.screen.keys("C-]")
    stage.screen.wait_gone("half-typed")
    assert stage.emacs.visible_buffers() == ["greeting.py"]


def wait_until(emacs: Emacs, form: str) -> None:
    """Wait until `form` is true; Emacs goes on taking keys and the mouse."""
    emacs.screen.wait_until(lambda: emacs.eval(form) != "nil", form)


@pytest.mark.fresh_stage
def test_it_waits_for_the_first_frame(stage: Stage) -> None:
    daemon = start_daemon(stage)
    propose(daemon, stage.sandbox.greeting)
    assert daemon.eval("(get-buffer-window \"*qwen-companion proposal: greeting.py*\" t)") == "nil"  # fmt: skip
    daemon.open_frame(stage.sandbox.notes)
    stage.screen.wait_for(OPEN)
    close(daemon)
    stage.screen.wait_gone(OPEN)
    assert daemon.visible_buffers() == ["notes.txt"]
    daemon.close_frame()
    end_shell(stage)


@pytest.mark.fresh_stage
@pytest.mark.skipif(not draws_windows(), reason="this Emacs draws no windows: EMACS=/path/to/emacs names one that does")
def test_mouse_and_focus_stay_with_the_user(stage: Stage) -> None:
    """Nothing opens in the middle of a drag, and a control panel with a frame of its own takes no focus."""
    with display() as screen:
        # It draws nothing on the terminal it was started in: the dot says that it is up.
        panel = "(progn (setq qwen-companion-ediff-control 'frame) (external-debugging-output ?.))"
        stage.emacs.start(stage.sandbox.greeting, forms=(panel,), display=screen.name)
        window = stage.emacs.text("(frame-parameter nil 'outer-window-id)")

        def mouse(*arguments: str) -> str:
            return subprocess.run(
                ["xdotool", *arguments], env={**stage.environment, "DISPLAY": screen.name}, check=True,
                capture_output=True, text=True, timeout=PATIENCE,
            ).stdout  # fmt: skip

        stage.emacs.eval("(qwen-companion-mode 1)")
        wait_until(stage.emacs, "(eq (qwen-companion-state) 'ready)")
        mouse("windowfocus", "--sync", window, "mousemove", "100", "100", "mousedown", "1", "mousemove", "180", "140")
        wait_until(stage.emacs, "track-mouse")
        propose(stage.emacs, stage.sandbox.greeting)
        wait_idle(stage.emacs)
        assert stage.emacs.visible_buffers() == ["greeting.py"]
        mouse("mouseup", "1")
        where = mouse("getmouselocation")
        wait_until(stage.emacs, '(get-buffer-window "*qwen-companion proposal: greeting.py*")')
        wait_until(stage.emacs, "(= 2 (length (visible-frame-list)))")
        assert stage.emacs.visible_buffers()[:2] == [
            "*qwen-companion disk: greeting.py*",
            "*qwen-companion proposal: greeting.py*",
        ]
        assert "*Ediff Control Panel*" not in stage.emacs.visible_buffers()
        assert mouse("getwindowfocus").strip() == window
        assert mouse("getmouselocation") == where
        stage.emacs.eval("(qwen-companion-diff-reject)")
        assert stage.emacs.eval("(length (frame-list))") == "1"
        assert stage.emacs.visible_buffers() == ["greeting.py"]
        assert mouse("getmouselocation") == where
        stage.end()
