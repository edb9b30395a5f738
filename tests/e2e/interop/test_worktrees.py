# SPDX-License-Identifier: GPL-3.0-or-later
"""Three versions of Qwen Code in three worktrees, from review to removal; see test_worktrees.py beside this folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from editor import lisp_string
from sandbox import GREETING, NOTES
from stage import Stage
from test_worktrees import (
    EDITED,
    LIST,
    NEW_NOTES,
    REVIEWED,
    accept,
    bring_home,
    open_review,
    remove,
    show,
    start_in_worktree,
)

PROGRAMS = {"oldest": "qwen-0.21.10", "older": "qwen-0.23.4", "newest": "qwen"}


@pytest.mark.interop
@pytest.mark.long
def test_three_versions_in_three_worktrees(stage: Stage) -> None:
    stage.start_emacs(stage.sandbox.greeting, stage.sandbox.notes, forms=(REVIEWED,))
    trees: dict[str, Path] = {}
    for number, (name, program) in enumerate(PROGRAMS.items(), 1):
        stage.emacs.eval(f"(setq qwen-companion-qwen-command (list {lisp_string(program)}))")
        trees[name] = tree = start_in_worktree(stage, name, number)
        for path, content, verb in ((tree / "greeting.py", EDITED, "greet"), (tree / "notes.txt", NEW_NOTES, "buy")):
            open_review(stage, path, content, f"{verb} in {name}")
            accept(stage, path, content, f"I {verb} in {name}.")
    assert (stage.sandbox.greeting.read_text(), stage.sandbox.notes.read_text()) == (GREETING, NOTES)
    for name, tree in trees.items():
        bring_home(stage, tree, name)
    stage.sandbox.greeting.write_text(GREETING.replace('"hello "', '"hi "'))
    show(stage, LIST)
    stage.screen.keys("g")
    for name in trees:
        stage.screen.wait_for(re.compile(rf"{name} +worktree-{name} +Qwen Code +done +2 +\+0 -0 +1 .*buy in {name}"))
    for tree in trees.values():
        remove(stage, tree, 2)
    stage.screen.wait_for(re.compile(r"^-UU.* Qwen(?![\[:])\b", re.MULTILINE))
