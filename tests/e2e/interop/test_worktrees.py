# SPDX-License-Identifier: GPL-3.0-or-later
"""Three versions of Qwen Code in three worktrees, from review to removal; see test_worktrees.py beside this folder."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from editor import lisp_string
from sandbox import GREETING, NOTES
from stage import Stage
from test_changes import FREE, FREE_QWEN, shown
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


@pytest.mark.interop
@pytest.mark.parametrize("program", [PROGRAMS["older"], PROGRAMS["newest"]])
def test_worktrees_beside_a_project_below_its_repository(stage: Stage, program: str) -> None:
    sub = stage.sandbox.project / "sub"
    sub.mkdir()
    module = sub / "module.py"
    module.write_text(GREETING)
    git = ["git", "-c", "user.name=U", "-c", "user.email=u@example.org", "-C", str(stage.sandbox.project)]
    subprocess.run([*git, "add", "sub"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message=Module"], check=True)
    found = '(list (lambda (dir) (and (string-suffix-p "/sub/" dir) (cons \'transient dir))))'
    forms = (FREE, f"(setq project-find-functions {found} qwen-companion-qwen-command (list {lisp_string(program)}))")
    stage.start_emacs(module, forms=forms)
    stage.emacs.command("qwen-companion-run")
    stage.screen.wait_for("Type your message")
    stage.screen.wait_for("Qwen[1]")
    # It enters one by a tool.
    tree = stage.sandbox.project / ".qwen/worktrees/entered"
    stage.model.call("enter_worktree", name="entered")
    stage.script_change(tree / "sub/module.py", EDITED)
    stage.converse("greet in a worktree", "Done there.", FREE_QWEN)
    stage.emacs.command("qwen-companion-changes")
    shown(stage, re.compile(r"greet in a worktree.*\n.* sub/module\.py"))
    assert stage.emacs.eval("(qwen-companion-turn-root (car (qwen-companion-journal-turns)))") == lisp_string(str(tree))
    # One that is started there by hand connects.
    stage.open_shell("*by hand*")
    stage.screen.enter(f"cd {sub}; {program} --worktree=hand")
    stage.screen.wait_for(re.compile(r"VTerm Qwen\[2\]"))
