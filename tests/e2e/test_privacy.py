# SPDX-License-Identifier: GPL-3.0-or-later
"""Excluded files, and those of other projects, never reach the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from stage import Stage

pytestmark = pytest.mark.reuses_stage("context")


def visit(stage: Stage, path: Path) -> None:
    """Visit `path` by its name in the first window, select its first line, and go back to the terminal."""
    stage.screen.keys("C-x", "o", "C-x", "C-f")
    stage.screen.wait_for("Find file: ")
    stage.screen.keys("C-a", "C-k")
    stage.screen.enter(stage.emacs.name(path))
    stage.screen.wait_until(lambda: path.name in stage.emacs.visible_buffers(), f"{path.name} in a window")
    stage.screen.keys("M-<", "C-Space", "C-n")
    # Of a file that was selected so before, no key need change what is told.
    told = (
        "(let ((context qwen-companion-context--sent))"
        f" (and (equal (plist-get context :active) {stage.emacs.lisp_name(path)})"
        " (equal (plist-get context :line) 2) (plist-get context :text) t))"
    )
    stage.screen.wait_until(lambda: stage.emacs.eval(told) == "t", "the selected line told")
    stage.screen.keys("C-x", "o")


def make(path: Path) -> Path:
    """Return a file at `path` with a first line that must not be told."""
    path.write_text("PASSWORD=secret\nmore\n")
    return path


def test_a_secret_in_focus_is_not_told_and_no_other_file_is_active(stage: Stage) -> None:
    project = stage.sandbox.project
    (project / ".gitignore").write_text("build/\n")
    (project / ".qwenignore").write_text("private.txt\n")
    (project / "build").mkdir()
    stage.start_emacs(stage.sandbox.notes)
    stage.start_cli()
    assert f"Path: {stage.sandbox.notes}" in stage.asked("one")
    secrets = [make(project / ".env"), make(project / "build" / "out.txt"), make(project / "private.txt")]
    for number, secret in enumerate(secrets):
        visit(stage, secret)
        prompt = stage.asked(f"secret {number}")
        assert "PASSWORD" not in prompt
        assert secret.name not in prompt
    visit(stage, stage.sandbox.greeting)
    assert f"{stage.sandbox.greeting}" in stage.asked("the rest")


def test_a_file_of_another_project_is_not_told(stage: Stage) -> None:
    other = make(stage.sandbox.make_project("other") / "theirs.txt")
    stage.start_emacs(stage.sandbox.notes)
    stage.start_cli()
    visit(stage, other)
    prompt = stage.asked("one")
    assert "theirs.txt" not in prompt
    assert "PASSWORD" not in prompt
    assert str(stage.sandbox.notes) in prompt
    assert "Active file" not in prompt
    stage.emacs.eval("(setq qwen-companion-tell-all-roots t)")
    visit(stage, stage.sandbox.greeting)
    visit(stage, other)
    prompt = stage.asked("two")
    assert f"Path: {other}" in prompt
