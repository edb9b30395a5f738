# SPDX-License-Identifier: GPL-3.0-or-later
"""Which Emacs a CLI takes, and for which directories."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clis import GEMINI, QWEN, Cli
from daemon import MODE_ON, WAIT_UNTIL_READY, Daemon
from sandbox import EDITED
from stage import NO_SESSION, Stage

pytestmark = pytest.mark.reuses_stage("discovery")

CONNECTED = "(mapcar (lambda (session) (plist-get session :client)) (qwen-companion-backend-sessions))"


def workspace(stage: Stage) -> str:
    """Return the projects that CLIs are told."""
    (lock,) = stage.sandbox.lock_files
    return json.loads(lock.read_text())["workspacePath"]


@contextmanager
def another_emacs(stage: Stage, file: Path) -> Generator[Daemon]:
    """Yield a second Emacs, newer than the first if there is one, with `file` open and the mode on, and no frame."""
    daemon = Daemon(stage.sandbox, stage.screen, stage.environment)
    daemon.start_daemon(file, forms=(MODE_ON,))
    try:
        daemon.wait_until(WAIT_UNTIL_READY)
        yield daemon
    finally:
        daemon.quit()


@pytest.mark.local("about two Emacsen of this machine")
def test_the_environment_decides_inside_a_terminal_and_the_newest_outside(stage: Stage) -> None:
    two_emacsen(stage, QWEN)


def two_emacsen(stage: Stage, cli: Cli) -> None:
    """Start `cli` inside of the older Emacs, and outside of both; see which it takes."""
    stage.end_cli()
    stage.start_emacs(stage.sandbox.greeting)
    with another_emacs(stage, stage.sandbox.greeting) as newer:
        # Its projects change last, which makes it no newer.
        stage.emacs.eval(f'(find-file-noselect "{stage.sandbox.make_project("third") / "new.txt"}")')
        stage.emacs.wait_until('(string-match-p "third" (getenv "QWEN_CODE_IDE_WORKSPACE_PATH"))')
        stage.start_in_shell(cli)
        assert newer.eval(CONNECTED) == "nil"
        # Gemini takes that with the highest number for the newest, and numbers of processes begin again.
        wrapped = cli is GEMINI and int(newer.eval("(emacs-pid)")) < int(stage.emacs.eval("(emacs-pid)"))
        with stage.outside(cli):
            if wrapped:
                stage.screen.wait_for("Qwen[2]")
                assert newer.eval(CONNECTED) == "nil"
            else:
                newer.wait_until(f"(equal 1 (length {CONNECTED}))")
                assert "Qwen[1]" in stage.screen.capture()
    stage.end_cli()


def test_outside_of_emacs_in_a_directory_of_the_project(stage: Stage) -> None:
    outside_below_the_project(stage, QWEN)


def outside_below_the_project(stage: Stage, cli: Cli) -> None:
    """Start `cli` outside of Emacs, in a directory below its project: it is told of the file that Emacs shows."""
    below = stage.sandbox.project / "a b" / "ü"
    below.mkdir(parents=True)
    stage.end_cli()
    stage.start_emacs(stage.sandbox.greeting)
    with stage.outside(cli, below) as screen:
        stage.screen.wait_for("Qwen[1]")
        assert stage.emacs.eval("(length (qwen-companion-terminal-buffers))") == "0"
        # It is connected before it is known where it works, and told of files after that.
        stage.emacs.command("qwen-companion-context")
        stage.screen.wait_for(re.compile(r"greeting\.py .* active at "))
        stage.model.say("Nothing.")
        stage.ask("what do you see", cli, screen)
        screen.wait_for("Nothing.")
        # The file is in the project, but not below the directory of the CLI: its root is the project.
        assert str(stage.sandbox.greeting) in stage.model.next_request().prompt


def test_a_project_visited_through_a_link(stage: Stage) -> None:
    link = stage.sandbox.projects / "link"
    link.symlink_to(stage.sandbox.project)
    stage.end_cli()
    stage.start_emacs(link / "greeting.py")
    stage.start_in_shell(QWEN)
    stage.script_change(stage.sandbox.greeting, EDITED)
    stage.model.say("It is changed.")
    stage.ask("change the greeting")
    assert "Path: " in stage.model.next_request().prompt
    stage.wait_for_review()
    stage.accept("It is changed.")
    assert stage.sandbox.greeting.read_text() == EDITED


def test_a_directory_without_a_project(stage: Stage) -> None:
    plain = stage.sandbox.projects / "plain"
    plain.mkdir()
    (plain / "letter.txt").write_text("Dear reader,\n")
    stage.end_cli()
    stage.start_emacs(plain / "letter.txt")
    stage.emacs.command("qwen-companion-run")
    stage.screen.wait_for("Qwen[1]")
    stage.screen.wait_for("Type your message")
    stage.converse("what is it?", "A letter.")
    assert f"Path: {plain / 'letter.txt'}" in stage.model.next_request().prompt


@pytest.mark.fresh_stage
@pytest.mark.local("about the roots of this machine")
def test_nothing_open_means_no_cli_and_the_user_is_told(stage: Stage) -> None:
    stage.emacs.start()
    stage.emacs.command("qwen-companion-mode")
    stage.screen.wait_for("no CLI can connect: no file, Dired buffer or terminal is open")
    stage.screen.wait_for("Qwen:no-root")
    stage.emacs.eval(f"(find-file {stage.emacs.lisp_name(stage.sandbox.greeting)})")
    stage.screen.wait_for(NO_SESSION)


# The projects of earlier tests may still be told.
@pytest.mark.fresh_stage
def test_other_projects_come_and_go_without_disturbing_a_cli(stage: Stage) -> None:
    stage.start()
    (cli,) = {process.pid for process in stage.sandbox.clis() if not process.children()}
    other = stage.sandbox.make_project("other") / "new.txt"
    stage.emacs.eval(f"(find-file-noselect {stage.emacs.lisp_name(other)})")
    stage.screen.wait_until(lambda: "other" in workspace(stage), "the other project told")
    stage.emacs.eval('(kill-buffer "new.txt")')
    stage.emacs.eval('(kill-buffer "greeting.py")')
    # The project of the CLI stays although no file of it is open.
    stage.screen.wait_until(lambda: workspace(stage) == str(stage.sandbox.project), "one project told")
    stage.wait_for_status("Connected to Emacs")
    stage.propose(stage.sandbox.greeting, EDITED, "change the greeting")
    stage.model.say("It is changed.")
    stage.accept("It is changed.")
    assert stage.sandbox.greeting.read_text() == EDITED
    assert cli in {process.pid for process in stage.sandbox.clis()}
