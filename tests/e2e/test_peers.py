# SPDX-License-Identifier: GPL-3.0-or-later
"""Emacs knows the connected CLIs: their processes, their directories, and when they have gone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import psutil
import pytest

from clis import QWEN
from editor import CLIENT, lisp_string
from qwen_companion.base.processes import start_of
from sandbox import BUILD, EDITED
from stage import Stage
from terminal import PATIENCE, Screen

pytestmark = [pytest.mark.reuses_stage("peers"), pytest.mark.relaunches_cli]

VERSION = json.loads((BUILD / "node/node_modules/@qwen-code/qwen-code/package.json").read_text())["version"]

# The only session as JSON, with its buffer, once its process is known and the CLI has connected to the end.
SESSION = f"""
(progn
  (with-timeout ({PATIENCE} (error "Its process is not known"))
    (while (not (and (plist-get (car (qwen-companion-backend-sessions)) :pid)
                     (plist-get (car (qwen-companion-backend-sessions)) :streaming)))
      (accept-process-output nil 0.05)))
  (let* ((session (car (qwen-companion-backend-sessions)))
         (buffer (qwen-companion-terminal-session-buffer session)))
    (json-serialize
     (list :count (length (qwen-companion-backend-sessions))
           :pid (plist-get session :pid)
           :started (plist-get session :started)
           :directory (plist-get session :directory)
           :client (plist-get session :client)
           :version (plist-get session :version)
           :family (symbol-name (plist-get session :family))
           :ancestors (vconcat (plist-get session :ancestors))
           :buffer (if buffer (buffer-name buffer) :null)))))
"""


def session(stage: Stage) -> dict[str, Any]:
    return json.loads(stage.emacs.text(SESSION))


def cli(stage: Stage) -> psutil.Process:
    """Return the process of the only CLI that does its work: the others only wait for it."""
    (found,) = (process for process in stage.sandbox.clis() if not process.children())
    return found


def assert_session_is(stage: Stage, process: psutil.Process, directory: Path, buffer: str | None) -> None:
    found = session(stage)
    assert found["count"] == 1
    assert (found["pid"], found["directory"]) == (process.pid, str(directory))
    assert found["started"] == start_of(process.pid)
    assert (found["client"], found["version"], found["family"]) == ("Qwen Code", VERSION, "qwen")
    assert found["buffer"] == buffer


@pytest.mark.local("about processes of this machine")
def test_a_cli_in_a_terminal_of_emacs(stage: Stage) -> None:
    stage.start()
    process = cli(stage)
    assert_session_is(stage, process, stage.sandbox.project, "*qwen: project*")
    assert stage.emacs.process.pid not in session(stage)["ancestors"]
    stage.propose(stage.sandbox.greeting, EDITED, "change the greeting")
    assert f"Qwen Code {VERSION} proposes a change" in stage.emacs.buffer_text("*Messages*")
    header = stage.emacs.text(
        '(with-current-buffer "*qwen-companion proposal: greeting.py*"'
        " (format-mode-line header-line-format nil (get-buffer-window) (current-buffer)))"
    )
    assert header == " greeting.py: proposed  by Qwen Code  C-c , r goes here"
    stage.model.say("All done.")
    stage.accept("All done.")


@pytest.mark.local("about processes of this machine")
def test_a_restarted_backend_still_knows_the_process(stage: Stage) -> None:
    stage.start()
    before = session(stage)
    stage.emacs.eval("(put 'qwen-companion-mode 'before-the-kill (qwen-companion-backend-sessions))")
    stage.sandbox.backend().kill()
    # The new one tells them when the CLI is back.
    stage.emacs.wait_until("(not (eq (get 'qwen-companion-mode 'before-the-kill) (qwen-companion-backend-sessions)))")
    assert session(stage) == before
    assert_session_is(stage, cli(stage), stage.sandbox.project, "*qwen: project*")


def test_a_killed_cli_is_gone_and_leaves_its_proposal_in_a_buffer(stage: Stage) -> None:
    stage.start()
    stage.propose(stage.sandbox.greeting, EDITED, "change the greeting")
    stage.sandbox.kill_clis()
    stage.screen.wait_gone("Qwen[1!1]")
    stage.screen.wait_gone("Qwen[1]")
    stage.screen.wait_gone("C-c C-c accept")
    assert stage.emacs.buffer_text("*qwen-companion kept: greeting.py*") == EDITED
    assert f"Qwen Code {VERSION} disconnected" in stage.emacs.buffer_text("*Messages*")


@pytest.mark.local("about processes of this machine")
def test_a_cli_outside_of_emacs(stage: Stage) -> None:
    stage.end_cli()
    stage.start_emacs(stage.sandbox.greeting)
    # Its terminal is no child of Emacs.
    with stage.outside(QWEN, None, "--approval-mode", "default") as outside:
        stage.screen.wait_for("Qwen[1]")
        process = cli(stage)
        assert_session_is(stage, process, stage.sandbox.project, None)
        assert session(stage)["ancestors"][0] == process.pid
        # Its review opens where the user is.
        stage.script_change(stage.sandbox.greeting, EDITED)
        stage.ask("change the greeting", screen=outside)
        stage.screen.wait_for("C-c C-c accept")
        outside.wait_for("Yes, allow once")
        stage.model.say("All done.")
        stage.emacs.command("qwen-companion-diff-accept")
        outside.wait_for("All done.")
        assert stage.sandbox.greeting.read_text() == EDITED
    stage.screen.wait_gone("Qwen[1]")


@pytest.mark.local("about processes of this machine")
def test_a_cli_in_a_shell_of_another_frame_and_directory(stage: Stage) -> None:
    below = stage.sandbox.project / "below"
    below.mkdir()
    letter = below / "letter.txt"
    letter.write_text("Dear all,\n")
    stage.end_cli()
    stage.start_emacs(stage.sandbox.greeting, forms=("(setq qwen-companion-diff-arrival 'command)",))
    stage.emacs.eval(f"(progn (require 'vterm) (setq vterm-shell {lisp_string('/bin/sh')}))")
    place = stage.sandbox.run / "second"
    place.mkdir()
    second = Screen(place, stage.environment)
    try:
        # A frame on another terminal, and in it a CLI that no command of ours has started.
        second.start([CLIENT, "-t", "-s", str(stage.sandbox.run / "server")], stage.sandbox.project)
        second.wait_for("File Edit Options")
        second.keys("M-x")
        second.type("vterm")
        second.keys("Enter")
        second.wait_for(re.compile(r"^[$#] ?$", re.MULTILINE))
        second.type(f"cd {below}; qwen --approval-mode default")
        second.keys("Enter")
        second.wait_for("Type your message")
        stage.screen.wait_for("Qwen[1]")
        assert_session_is(stage, cli(stage), below, "*vterm*")
        stage.script_change(letter, "Dear all of you,\n")
        second.type("a friendlier letter", seen=re.compile("^> +a friendlier letter", re.MULTILINE))
        second.keys("Enter")
        stage.screen.wait_for("Qwen[1!1]")
        # The user goes to the first frame.
        stage.screen.keys("M->")
        stage.screen.type("# here")
        stage.emacs.eval("(progn (setq qwen-companion-diff-arrival 'idle) (qwen-companion-review-schedule))")
        # The review opens in the frame of its terminal.
        second.wait_for("C-c C-c accept")
        assert "C-c C-c accept" not in stage.screen.capture()
        stage.emacs.command("qwen-companion-diff-reject")
        second.wait_gone("C-c C-c accept")
        stage.emacs.eval('(with-current-buffer "greeting.py" (set-buffer-modified-p nil))')
    finally:
        second.close()
