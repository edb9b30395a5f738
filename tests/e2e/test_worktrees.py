# SPDX-License-Identifier: GPL-3.0-or-later
"""Real CLIs in worktrees of one project: reviewed, recorded, seen beside each other, brought home and removed."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from clis import GEMINI, QWEN, Cli
from editor import lisp_string
from sandbox import EDITED, GREETING, NEW_NOTES, NOTES
from scripted_model import MAIN_TOOL
from stage import Stage
from test_changes import CHANGES, FREE, FREE_QWEN, at, go_to, holds, run, shown

pytestmark = [pytest.mark.reuses_stage("free"), pytest.mark.local("worktrees at other places are not shown")]

REVIEWED = '(setq qwen-companion-approval-mode "default")'
OTHER_CLIS = '(setq qwen-companion-ask-clis \'(("gemini" "env" {} "gemini" "--yolo")))'.format(
    " ".join(lisp_string(f"{name}={value}") for name, value in GEMINI.variables.items())
)
LIST = "*qwen-companion worktrees*"


def show(stage: Stage, buffer: str) -> None:
    """Show `buffer` alone, and select it."""
    stage.emacs.eval(f"(progn (pop-to-buffer {lisp_string(buffer)}) (delete-other-windows) nil)")


def start_in_worktree(stage: Stage, name: str, connected: int) -> Path:
    """Start another CLI in the new worktree `name`, and go to its terminal; return the worktree's directory."""
    show(stage, "greeting.py")
    stage.screen.keys("M-x")
    stage.screen.wait_for("M-x")
    stage.screen.enter("qwen-companion-run-in-worktree")
    stage.screen.wait_for("Worktree (empty")
    stage.screen.enter(name)
    stage.screen.wait_for(re.compile(rf"Qwen\[{connected}\](?s:.*)Type your message"))
    return stage.sandbox.project / ".qwen/worktrees" / name


def open_review(stage: Stage, path: Path, content: str, prompt: str, cli: Cli = QWEN) -> None:
    """Let the CLI whose terminal is selected propose `content` for `path`, and wait for the review."""
    stage.script_change(path, content)
    stage.ask(prompt, cli)
    stage.screen.wait_for(re.compile(r"Qwen\[\d!1\]"))
    stage.screen.wait_for("C-c C-c accept")
    stage.emacs.wait_until(
        "(eq 'asking (qwen-companion-cli-state-activity (qwen-companion-session-state"
        " (cl-find (qwen-companion-proposal-session (car (qwen-companion-proposals)))"
        " (qwen-companion-backend-sessions) :key #'qwen-companion-session-id :test #'equal))))"
    )
    stage.screen.wait_gone("comparing...")


def accept(stage: Stage, path: Path, content: str, answer: str) -> None:
    """Accept the proposal, and wait until it is in `path` and the CLI has said `answer`."""
    stage.model.say(answer)
    stage.accept(answer)
    assert path.read_text() == content


def test_agents_in_worktrees(stage: Stage) -> None:
    stage.start_emacs(stage.sandbox.greeting, stage.sandbox.notes, forms=(FREE, OTHER_CLIS))
    stage.start_cli()
    # The CLI of the project enters a worktree by a tool.
    stage.model.call("enter_worktree", name="entered")
    entered = stage.sandbox.project / ".qwen/worktrees/entered"
    run(stage, f"echo made > {entered}/made.txt")
    stage.script_change(entered / "greeting.py", EDITED)
    stage.converse("greet in a worktree", "Done there.", FREE_QWEN)
    # Another one is started in a worktree, and reviewed.
    stage.emacs.eval(REVIEWED)
    tree = start_in_worktree(stage, "feat", 2)
    open_review(stage, tree / "greeting.py", EDITED, "greet in feat")
    accept(stage, tree / "greeting.py", EDITED, "Done here.")
    stage.emacs.command("qwen-companion-changes")
    shown(stage, "greet in feat  feat")
    shown(stage, "greet in a worktree  entered")
    # The turn that came first is unfolded.
    if "made.txt" not in stage.emacs.buffer_text(CHANGES):
        at(stage, "greet in a worktree  entered")
        stage.screen.keys("Tab")
    shown(stage, "made.txt  new")
    if "greeting.py  +1 -1  write_file" not in stage.emacs.buffer_text(CHANGES).split("greet in a worktree")[0]:
        at(stage, "greet in feat")
        stage.screen.keys("Tab")
    shown(stage, re.compile(r"greet in feat  feat .*\n  ▸ greeting\.py"))
    at(stage, "greet in feat", "greeting.py")
    stage.screen.keys("k")
    holds(stage, tree / "greeting.py", GREETING)
    assert stage.sandbox.greeting.read_text() == GREETING
    stage.screen.keys("u")
    holds(stage, tree / "greeting.py", EDITED)
    merge_a_file(stage)
    work_on_one_file(stage, tree)
    stage.emacs.eval(FREE)
    third = ask_in_a_new_worktree(stage, "qwen", "Done by the third.")
    ask_in_a_new_worktree(stage, "gemini", "Done by the fourth.")
    look_at_all_worktrees(stage, tree, third)


def merge_a_file(stage: Stage) -> None:
    """Merge the change of `greet in feat`, as a file, undo that, and merge it where the user's text contradicts it."""
    at(stage, "greet in feat", "greeting.py")
    stage.screen.keys("m")
    holds(stage, stage.sandbox.greeting, EDITED)
    shown(stage, 'From feat: "greet in feat"  project')
    at(stage, "From feat")
    stage.screen.keys("k")
    stage.screen.wait_for("(y or n)")
    stage.screen.keys("y")
    holds(stage, stage.sandbox.greeting, GREETING)
    stage.emacs.eval('(with-current-buffer "greeting.py" (erase-buffer) (insert "mine\n"))')
    # What was brought back is told of a moment later.
    shown(stage, "Qwen Code  greet in feat")
    at(stage, "Qwen Code  greet in feat", "greeting.py")
    stage.screen.keys("m")
    assert "<<<<<<< yours\nmine" in wait_for_conflict(stage)
    stage.emacs.eval('(with-current-buffer "greeting.py" (revert-buffer t t))')


def wait_for_conflict(stage: Stage) -> str:
    """Wait until the buffer of the greeting has a conflict with a worktree; return its text."""

    def look() -> str | None:
        text = stage.emacs.buffer_text("greeting.py")
        return text if ">>>>>>> in the worktree" in text else None

    return stage.screen.wait_until(look, "the conflict")


def work_on_one_file(stage: Stage, tree: Path) -> None:
    """Let the CLI of the project change a file of `tree` in a turn that goes on, and the one there propose another."""
    notes, shared = tree / "notes.txt", NOTES + "shared\n"
    stage.script_change(notes, shared)
    run(stage, "until [ -e go ]; do sleep 0.1; done")
    show(stage, "*qwen: project*")
    stage.ask("share the notes", FREE_QWEN)
    holds(stage, notes, shared)
    # Else the other one may get the next answer of the model.
    stage.screen.wait_for("until [ -e go ]")
    show(stage, "*qwen: feat*")
    wanted = NEW_NOTES + "shared\n"
    open_review(stage, notes, wanted, "plums in feat")
    # Both have the same name.
    stage.screen.wait_for("Qwen Code in project is als")
    accept(stage, notes, wanted, "Both are in.")
    told = "Another agent works on"
    # Once, in the result of the tool that wrote the file.
    assert [told in json.dumps(body) for body in conversation(stage)][-2:] == [False, True]
    stage.model.say("All shared.")
    (stage.sandbox.project / "go").touch()
    show(stage, "*qwen: project*")
    stage.screen.wait_for("All shared.")


def conversation(stage: Stage) -> list[Mapping[str, object]]:
    """Return the requests so far that are none of the CLI's own."""
    return [body for body in stage.model.bodies if f'"{MAIN_TOOL}"' in json.dumps(body.get("tools"))]


def ask_in_a_new_worktree(stage: Stage, cli: str, answer: str) -> Path:
    """Write a prompt for a new `cli`, which starts in a worktree of its own; return that."""
    show(stage, "greeting.py")
    stage.emacs.eval("(progn (qwen-companion-ask t) nil)")
    stage.screen.wait_for("qwen prompt")
    stage.screen.type(f"greet by {cli}")
    run(stage, "printf 'by another\\n' > third.txt")
    stage.model.say(answer)
    stage.screen.keys("C-u", "C-c", "C-c")
    stage.screen.wait_for("one for each new worktree")
    stage.screen.enter(cli)
    stage.screen.wait_for(answer)
    (tree,) = (stage.sandbox.project / ".qwen/worktrees").glob(f"greet-by-{cli}-*-1")
    holds(stage, tree / "third.txt", "by another\n")
    return tree


def look_at_all_worktrees(stage: Stage, tree: Path, third: Path) -> None:
    """See who works where and a conflict that a merge would have; bring all of one home, and remove it."""
    bring_home(stage, tree, "feat")
    stage.sandbox.greeting.write_text(GREETING.replace('"hello "', '"hi "'))
    show(stage, LIST)
    stage.screen.keys("g")
    stage.screen.wait_for(re.compile(r"feat +worktree-feat +Qwen Code +done +2 +\+0 -0 +1 .*plums in feat"))
    stage.screen.wait_for(re.compile(r"entered +worktree-entered +Qwen Code +done +2 +\+0 -0 +1 .*greet in a worktree"))
    stage.screen.wait_for(re.compile(r"greet-by-qwen.* Qwen Code +done +1 +\+0 -0 .*greet by qwen"))
    stage.screen.wait_for(re.compile(r"greet-by-gemini.* Gemini CLI +.* +1 +\+0 -0"))
    # Git merges commits, and says what stays behind.
    git = ["git", "-c", "user.name=U", "-c", "user.email=u@example.org", "-C", str(third)]
    subprocess.run([*git, "add", "third.txt"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message=Third"], check=True)
    (third / "left.txt").write_text("left behind\n")
    stage.screen.keys("g")
    stage.screen.wait_for(re.compile(r"greet-by-qwen.* 2 +\+1 -0 "))
    at_worktree(stage, "greet by qwen")
    stage.screen.keys("M")
    stage.screen.wait_for("Merge without 1 uncommitted file?")
    stage.screen.keys("y")
    stage.screen.wait_for("git merge worktree-greet")
    stage.screen.keys("Enter")
    holds(stage, stage.sandbox.project / "third.txt", "by another\n")
    assert not (stage.sandbox.project / "left.txt").exists()
    show(stage, LIST)
    at_worktree(stage, "worktree-feat")
    stage.screen.keys("d")
    shown(stage, "What a merge would change in the main tree")
    shown(stage, re.compile(r"notes\.txt +\+\d+ -1"))
    at(stage, "greeting.py  +1 -1  conflicts with the main tree")
    stage.screen.keys("Tab")
    shown(stage, '+    return "good day " + name')
    at(stage, '+    return "good day " + name')
    stage.screen.keys("m")
    wait_for_conflict(stage)
    stage.emacs.eval('(with-current-buffer "greeting.py" (set-buffer-modified-p nil) (kill-buffer))')
    show(stage, LIST)
    # The results of two agents, compared.
    stage.screen.keys("C-u", "d")
    stage.screen.wait_for("Compare with:")
    stage.screen.enter("entered")
    shown(stage, "Differences from entered")
    shown(stage, "made.txt  deleted")
    show(stage, LIST)
    stage.screen.keys("Enter")
    stage.screen.wait_for("Turns  in feat")
    assert "entered" not in stage.emacs.buffer_text(CHANGES)
    show(stage, LIST)
    remove(stage, tree, 2)
    stage.screen.wait_for("Qwen[3]")
    stage.screen.wait_gone("worktree-feat  ")


def bring_home(stage: Stage, tree: Path, name: str) -> None:
    """Merge all of the worktree `tree` into the project as git does, beside text that is not saved; then drop it."""
    mine = {"greeting.py": GREETING + "# mine\n", "notes.txt": "mine\n" + NOTES}
    for file, text in mine.items():
        stage.emacs.eval(f"(with-current-buffer {lisp_string(file)} (erase-buffer) (insert {lisp_string(text)}))")
    show(stage, "greeting.py")
    stage.emacs.command("qwen-companion-worktrees")
    stage.screen.wait_for(re.compile(rf"{name} +worktree-{name} .* 2 +\+0 -0 "))
    at_worktree(stage, f"worktree-{name}")
    stage.screen.keys("m")
    stage.screen.wait_for(re.compile(rf"Merge {name} into .*\(change 2 files\).*\(y or n\)", re.DOTALL))
    stage.screen.keys("y")
    base = {"greeting.py": GREETING, "notes.txt": NOTES}
    expected = {file: merged(stage, text, base[file], (tree / file).read_text()) for file, text in mine.items()}
    have_texts(stage, expected)
    assert {file: (stage.sandbox.project / file).read_text() for file in base} == base
    for file in mine:
        stage.emacs.eval(f"(with-current-buffer {lisp_string(file)} (revert-buffer t t))")


def merged(stage: Stage, mine: str, base: str, theirs: str) -> str:
    """Return what git merges `mine` and `theirs` to."""
    names = [stage.sandbox.tmp / name for name in ("mine", "base", "theirs")]
    for path, text in zip(names, (mine, base, theirs), strict=True):
        path.write_text(text)
    return subprocess.run(["git", "merge-file", "-p", *names], capture_output=True, text=True, check=True).stdout


def have_texts(stage: Stage, expected: Mapping[str, str]) -> None:
    """Wait until the buffers have the texts `expected`."""
    stage.screen.wait_until(
        lambda: {file: stage.emacs.buffer_text(file) for file in expected} == expected, f"the texts {expected}"
    )


def remove(stage: Stage, tree: Path, files: int) -> None:
    """Remove the worktree `tree`, in which `files` are not committed, in the list, which is shown."""
    at_worktree(stage, f"worktree-{tree.name}")
    stage.screen.keys("k")
    stage.screen.wait_for(
        re.compile(rf"End Qwen Code there\.\s+Remove worktree {tree.name} and lose uncommitted changes in {files}")
    )
    stage.screen.enter("yes")
    stage.screen.wait_until(lambda: not tree.exists(), "the worktree gone")
    stage.wait_until_said(f"branch worktree-{tree.name} stays")


def at_worktree(stage: Stage, text: str) -> None:
    """Go to the line with `text` in the list of worktrees, which is selected."""
    go_to(stage, LIST, text)
