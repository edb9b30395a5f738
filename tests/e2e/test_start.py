# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts that fail say why and leave nothing; so does going on and off."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from clis import QWEN_SETTINGS
from editor import EMACS, QUIET, lisp_string
from sandbox import CHECKOUT, Sandbox
from stage import NO_SESSION, Stage
from terminal import PATIENCE

pytestmark = pytest.mark.local("about the start of Emacs")

# Python without its site-packages: the standard library only.
BARE_PYTHON = f'exec {sys.executable} -S "$@"'
# A real one that calls itself 3.8.
OLD_PYTHON = f"""exec {sys.executable} -c '
import runpy, sys
sys.version_info = (3, 8, 20, "final", 0)
sys.path.insert(0, sys.argv[-2])
runpy.run_module("qwen_companion", run_name="__main__", alter_sys=True)
' "$@" """
# Emacs writes to it first, as to a real one: it does not learn the status of a process that ends before that.
CRASHING_PYTHON = "read -r hello; echo 'ImportError: libfoo.so not found' >&2; exit 1"


def make_python(sandbox: Sandbox, script: str) -> Path:
    """Return a program that stands in for a Python interpreter."""
    python = sandbox.run / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return python


@pytest.mark.parametrize(
    ("script", "message"),
    [
        pytest.param(BARE_PYTHON, "lacks a package .*qwen-companion-install-backend", id="no-packages"),
        pytest.param(OLD_PYTHON, r"too old .*3\.8.*3\.10", id="too-old"),
        pytest.param(CRASHING_PYTHON, r"status 1 .*libfoo\.so", id="crash"),
        pytest.param(None, "no Python found as .*install Python", id="no-python"),
    ],
)
def test_a_start_that_fails_says_why_and_leaves_nothing(stage: Stage, script: str | None, message: str) -> None:
    python = stage.sandbox.run / "nowhere" if script is None else make_python(stage.sandbox, script)
    stage.emacs.start(stage.sandbox.greeting, forms=(f"(setq qwen-companion-python {lisp_string(str(python))})",))
    stage.emacs.command("qwen-companion-mode")
    stage.screen.wait_for(" Qwen:error ")
    said = [line for line in stage.emacs.buffer_text("*Messages*").splitlines() if line.startswith("qwen-companion: ")]
    assert len(said) == 1
    assert re.search(message, said[0])
    assert stage.sandbox.backends() == []
    stage.sandbox.assert_no_files()
    # A CLI is not started without a companion; turned off, the mode is as if it had never been on.
    stage.emacs.command("qwen-companion-mode")
    stage.screen.wait_gone("Qwen:error")
    assert stage.emacs.eval("(qwen-companion-state)") == "off"
    assert stage.emacs.eval("(process-list)").count("qwen") == 0


def test_a_start_that_failed_can_be_tried_again(stage: Stage) -> None:
    python = make_python(stage.sandbox, CRASHING_PYTHON)
    stage.emacs.start(stage.sandbox.greeting, forms=(f"(setq qwen-companion-python {lisp_string(str(python))})",))
    stage.emacs.command("qwen-companion-mode")
    stage.screen.wait_for(" Qwen:error ")
    make_python(stage.sandbox, f'exec {sys.executable} "$@"')
    stage.emacs.command("qwen-companion-mode")
    stage.screen.wait_gone("Qwen:error")
    stage.emacs.command("qwen-companion-mode")
    stage.screen.wait_for(NO_SESSION)
    assert stage.sandbox.lock_files


@pytest.mark.parametrize("forms", [(), ("(qwen-companion-mode 1)",)], ids=["by-hand", "by-init-file"])
def test_the_first_start_says_what_is_on_and_leaves_the_keys_to_the_cli(stage: Stage, forms: tuple[str, ...]) -> None:
    (stage.sandbox.here / ".local/state/qwen-companion").rmdir()
    # Of somebody who has never connected a CLI, and is not asked whether to.
    stage.sandbox.write_cli_settings({name: value for name, value in QWEN_SETTINGS.items() if name != "ide"})
    stage.emacs.start(stage.sandbox.greeting, forms=forms)
    stage.emacs.command("qwen-companion-run")
    stage.screen.wait_for("Type your message")
    stage.screen.wait_for("Qwen[1]")
    stage.screen.wait_for("t on   Tools for the model")
    stage.converse("hello", "How do you do.")
    stage.screen.wait_for("t on   Tools for the model")


def test_on_and_off_again_and_again_leaves_nothing(stage: Stage) -> None:
    result = subprocess.run(
        [
            *(*EMACS, "-Q", "--batch", *QUIET, "-l", str(CHECKOUT / "scripts/checkout.el")),
            *("-l", str(CHECKOUT / "tests/e2e/leftovers.el"), str(stage.sandbox.greeting), "-f", "leftovers-main"),
        ],
        cwd=stage.sandbox.project,
        env=stage.sandbox.environment(),
        capture_output=True,
        encoding="utf-8",
        timeout=5 * PATIENCE,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    stage.sandbox.wait_for_end()
    stage.sandbox.assert_no_files()
