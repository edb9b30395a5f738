# SPDX-License-Identifier: GPL-3.0-or-later
"""The context inspector on real parts: it shows the context that the model gets, and changes in it have effect."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import psutil
import pytest

from stage import Stage

pytestmark = pytest.mark.reuses_stage("context")

INSPECTOR = "*qwen-companion context*"
EXCLUDED = re.compile(r"\.env +environment variables, often secret")


def start(stage: Stage) -> None:
    """Start Emacs, in which the environment file was looked at first, then the notes and the greeting, and the CLI."""
    secret = stage.sandbox.project / ".env"
    secret.write_text("PASSWORD=tiger\n")
    name = stage.emacs.lisp_name(secret)
    stage.start_emacs(stage.sandbox.notes, stage.sandbox.greeting, forms=(f"(find-file {name})",))
    stage.start_cli()


def open_inspector(stage: Stage) -> None:
    """Do all that, and open the inspector, which takes the place of the terminal and is selected."""
    start(stage)
    stage.screen.keys("C-x", "o")
    stage.emacs.command("qwen-companion-context")
    stage.screen.wait_for(re.compile(r"greeting\.py .* active at "))
    stage.screen.wait_for(EXCLUDED)


def go_to(stage: Stage, pattern: str) -> None:
    """Put point in the inspector, in the selected window, on the line that matches `pattern`, by searching for it."""
    stage.screen.keys("M-<", "C-s")
    stage.screen.enter(pattern)


def pid_of(process: psutil.Process) -> int:
    """Return the number of `process` in its own container."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.findall(r"^NSpid:.*\s(\d+)$", status, re.MULTILINE)[0])


def prompt_after(stage: Stage, question: str, answer: str) -> str:
    """Ask the CLI `question`, select the inspector again, and return the prompt that the model received."""
    go_to(stage, "Qwen Code")
    stage.screen.keys("Enter")
    stage.screen.wait_for("Type your message")
    stage.converse(question, answer)
    stage.screen.keys("C-x", "o")
    return stage.model.next_request().prompt


def test_it_shows_what_the_model_is_told(stage: Stage) -> None:
    start(stage)
    stage.screen.keys("C-x", "o", "M-g", "g")
    stage.screen.type("5")
    stage.screen.keys("Enter", "M-m", "C-Space", "M-f", "M-f")
    stage.screen.wait_for("told: line 5, character 18")
    stage.screen.keys("C-x", "o")
    stage.emacs.wait_until("(with-current-buffer (window-buffer) (derived-mode-p 'vterm-mode))")
    # It takes the other window, and the terminal stays.
    stage.emacs.eval("(qwen-companion-context)")
    screen = stage.screen.wait_for("13 characters selected")
    stage.screen.wait_for("active at 5:18")
    stage.screen.wait_for(EXCLUDED)
    assert re.search(r"Qwen Code \d", screen)
    text = stage.emacs.buffer_text(INSPECTOR)
    where = f" at {stage.far.label}" if stage.far else ""
    (pid,) = re.findall(rf"^  Process +(\d+){where} in ", text, re.MULTILINE)
    assert int(pid) in {pid_of(process) for process in stage.sandbox.processes()}
    assert re.search(r"^  Terminal +\*qwen: project\*$", text, re.MULTILINE)
    assert re.search(rf"^  Workspace +{re.escape(f'{stage.label}{stage.sandbox.project}')}$", text, re.MULTILINE)
    assert re.search(r"^  Trust +not reported$", text, re.MULTILINE)
    assert re.search(r"^    greeting\.py +\d+ s  active at 5:18$", text, re.MULTILINE)
    assert 'characters selected\nreturn "hello\n' in text
    assert re.search(r"^    notes\.txt +\d+ s$", text, re.MULTILINE)
    assert re.search(r"^    \S+/\.env +environment variables, often secret \(\.env\*\)$", text, re.MULTILINE)
    prompt = prompt_after(stage, "what is selected?", "It says hello.")
    assert "Cursor: line 5, character 18" in prompt
    assert '```\nreturn "hello\n```' in prompt
    assert str(stage.sandbox.notes) in prompt
    assert "/.env" not in prompt


def test_a_file_hidden_there_is_not_told_any_more(stage: Stage) -> None:
    open_inspector(stage)
    go_to(stage, "notes.txt")
    stage.screen.keys("x")
    stage.screen.wait_for(re.compile(r"notes\.txt +hidden by you"))
    prompt = prompt_after(stage, "what is open?", "One file.")
    assert str(stage.sandbox.greeting) in prompt
    assert str(stage.sandbox.notes) not in prompt
    # And back, on the line where it is now.
    go_to(stage, "notes.txt")
    stage.screen.keys("x")
    stage.screen.wait_for(re.compile(r"notes\.txt +\d+ (s|min)"))
    assert str(stage.sandbox.notes) in prompt_after(stage, "and now?", "Two files.")


def test_an_excluded_file_is_shown_on_demand(stage: Stage) -> None:
    open_inspector(stage)
    go_to(stage, ".env")
    stage.screen.keys("x")
    stage.screen.wait_for(re.compile(r"^    \.env +\d+ s  shown by you", re.MULTILINE))
    assert "/.env" in prompt_after(stage, "what is open?", "Three files.")


def test_it_goes_on_with_a_new_backend_for_one_that_hangs(stage: Stage) -> None:
    open_inspector(stage)
    # Not the nine seconds that a user's Emacs waits.
    stage.emacs.eval("(setq qwen-companion-backend--ping-limit '(0.5 . 4))")
    stage.sandbox.backend().send_signal(signal.SIGSTOP)
    stage.screen.wait_until(
        lambda: stage.emacs.eval("(and (eq (qwen-companion-state) 'ready) qwen-companion-backend--restarts t)") == "t",
        "a new backend",
    )
    stage.emacs.eval('(with-current-buffer "notes.txt" (qwen-companion-toggle-exclusion))')
    stage.screen.wait_for(re.compile(r"notes\.txt +hidden by you"))
    # The CLI comes back within seconds, and hears of it.
    stage.screen.wait_until(
        lambda: not re.search(r"notes\.txt +\d+ (s|min)", stage.emacs.buffer_text(INSPECTOR)), "the file is not told"
    )


@pytest.mark.ends_stage
def test_it_follows_the_end_of_the_cli_and_of_the_mode(stage: Stage) -> None:
    open_inspector(stage)
    # The CLI ends; its section goes.
    stage.emacs.eval('(let (kill-buffer-query-functions) (kill-buffer "*qwen: project*"))')
    stage.screen.wait_for("No CLI is connected.")
    stage.emacs.command("qwen-companion-mode")
    stage.screen.wait_gone("Last update")
    assert INSPECTOR not in stage.emacs.eval("(mapcar #'buffer-name (buffer-list))")
    stage.emacs.command("qwen-companion-context")
    stage.wait_until_said("turn it on with M-x qwen-companion-mode")
