# SPDX-License-Identifier: GPL-3.0-or-later
"""Reviews where users are: a CLI that works in its mode `auto`, as it does when nobody has said otherwise."""

from __future__ import annotations

import copy
import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clis import QWEN_SETTINGS
from model_types import Answer, Call
from sandbox import EDITED, GREETING, NEW_NOTES, NOTES
from stage import Stage

pytestmark = pytest.mark.reuses_stage("reviews")


def start_in_auto(stage: Stage, *forms: str, **rules: Sequence[str]) -> None:
    """Start Emacs with `forms` and a CLI without an approval mode in its settings, with the user's `rules`."""
    settings: dict[str, Any] = copy.deepcopy(dict(QWEN_SETTINGS))
    settings["tools"] = {"useRipgrep": False}
    settings["permissions"] = rules
    stage.sandbox.write_cli_settings(settings)
    stage.start_emacs(stage.sandbox.greeting, forms=forms)
    stage.end_cli()
    stage.start_cli()


def begin(stage: Stage, path: Path, content: str, prompt: str) -> None:
    """Have the CLI begin to write `content`, and wait for the review; its terminal shows nothing of it."""
    stage.script_change(path, content)
    stage.ask(prompt)
    wait_for_review(stage)


def wait_for_review(stage: Stage) -> None:
    stage.screen.wait_for("Qwen[1!1]")
    stage.screen.wait_for("C-c C-c accept")
    stage.screen.wait_gone("comparing...")


def edit_review(stage: Stage, path: Path, text: str) -> None:
    """Insert `text` at the end of the review of `path`."""
    stage.emacs.eval(f"""
        (with-current-buffer "*qwen-companion proposal: {path.name}*"
          (goto-char (point-max))
          (let ((inhibit-read-only t))
            (insert {json.dumps(text)})))
    """)


def result(stage: Stage) -> str:
    """Return what the model has read last as the result of a tool."""
    return json.dumps(next(each for each in reversed(stage.model.bodies[-1]["messages"]) if each["role"] == "tool"))


# It turns the mode off.
@pytest.mark.ends_stage
def test_edits_are_reviewed_and_commands_run(stage: Stage) -> None:
    start_in_auto(stage)
    greeting, notes = stage.sandbox.greeting, stage.sandbox.notes
    begin(stage, greeting, EDITED, "change the greeting")
    assert greeting.read_text() == GREETING
    stage.model.say("All done.")
    stage.accept("All done.")
    assert greeting.read_text() == EDITED
    # With changes: they are written, and the model is told.
    begin(stage, greeting, GREETING, "back again")
    edit_review(stage, greeting, "# by a person\n")
    stage.model.say("As you like it.")
    stage.accept("As you like it.")
    assert greeting.read_text() == GREETING + "# by a person\n"
    assert "+# by a person" in result(stage)
    # A rejection ends no turn.
    begin(stage, notes, NEW_NOTES, "plums please")
    stage.model.say("No plums, then.")
    stage.emacs.eval('(qwen-companion-diff-reject nil "too sweet")')
    stage.screen.wait_for("No plums, then.")
    assert notes.read_text() == NOTES
    assert "too sweet" in result(stage)
    # What is cancelled in the terminal cannot be accepted any more.
    begin(stage, notes, NEW_NOTES, "plums again")
    stage.emacs.eval('(with-current-buffer "*qwen: project*" (vterm-send-escape))')
    stage.screen.wait_for("Qwen[1]")
    stage.wait_until_said("notes.txt: the turn is over")
    assert notes.read_text() == NOTES
    # No command is ours to ask about, or to permit.
    for command in ("mkdir made", "touch made/a.txt", "python3 -c 'print(6 * 7)' 2>&1 | tail > made/b.txt"):
        stage.model.call("run_shell_command", command=command, description="make")
    stage.converse("make some files", "Made them.")
    assert (stage.sandbox.project / "made/b.txt").read_text() == "42\n"
    edit_by_a_subagent(stage)
    edit_what_is_not_open(stage)
    assert "mode auto, model scripted" in stage.emacs.eval("(qwen-companion-layer-help)")
    work_in_yolo(stage)
    turn_it_off(stage)


def edit_by_a_subagent(stage: Stage) -> None:
    """Review the edit of a subagent, which cannot ask in the terminal; its commands run."""
    notes = str(stage.sandbox.notes)
    stage.model.start_subagent(
        Answer(calls=(Call("read_file", {"file_path": notes}),)),
        Answer(calls=(Call("run_shell_command", {"command": "mkdir another", "description": "make"}),)),
        Answer(calls=(Call("edit", {"file_path": notes, "old_string": "pears", "new_string": "plums"}),)),
        Answer("The subagent is done."),
    )
    stage.model.say("It works for me.")
    stage.model.say("It has worked.")
    stage.ask("let somebody do it")
    stage.screen.wait_for("It works for me.")
    wait_for_review(stage)
    said = r"subagent general-purpose of Qwen Code [\d.]+ proposes a change"
    assert re.search(said, stage.emacs.buffer_text("*Messages*"))
    stage.accept("It has worked.")
    assert stage.sandbox.notes.read_text() == NEW_NOTES
    assert (stage.sandbox.project / "another").is_dir()
    # A hook tells of its end, a moment later.
    stage.emacs.wait_until('(not (string-search "subagent" (qwen-companion-layer-help)))')


def edit_what_is_not_open(stage: Stage) -> None:
    """Review only edits of files that are open in Emacs."""
    review_edits(stage, "open")
    stage.script_change(stage.sandbox.notes, f"{NOTES}figs\n")
    stage.converse("figs please", "Figs, too.")
    assert stage.sandbox.notes.read_text() == f"{NOTES}figs\n"
    before = stage.sandbox.greeting.read_text()
    begin(stage, stage.sandbox.greeting, EDITED, "hello again")
    stage.model.say("Not again.")
    stage.emacs.command("qwen-companion-diff-reject")
    stage.screen.wait_for("Not again.")
    assert stage.sandbox.greeting.read_text() == before


def work_in_yolo(stage: Stage) -> None:
    """Write unreviewed in `yolo`, which is said, until edits are reviewed in all modes."""
    stage.screen.keys("BTab")
    stage.screen.wait_for("YOLO mode")
    # Qwen Code 0.21 to 0.23.0 tells its mode with tools only.
    stage.model.call("run_shell_command", command="rm made/b.txt", description="clean up")
    stage.model.say("Very well.")
    # It shows another sign before what is typed.
    stage.screen.enter("as you like")
    stage.screen.wait_for("edits not reviewed: yolo")
    stage.screen.wait_for("Very well.")
    assert not (stage.sandbox.project / "made/b.txt").exists()
    review_edits(stage, "all-modes")
    stage.screen.wait_gone("edits not reviewed")
    stage.script_change(stage.sandbox.notes, NOTES)
    stage.model.say("Nothing but the list.")
    stage.screen.enter("the list again")
    wait_for_review(stage)
    stage.accept("Nothing but the list.")
    assert stage.sandbox.notes.read_text() == NOTES


def review_edits(stage: Stage, which: str) -> None:
    """Set which edits are reviewed, as by the menu."""
    stage.emacs.eval(f"(progn (setq qwen-companion-review-edits '{which}) (qwen-companion-privacy-update))")


def turn_it_off(stage: Stage) -> None:
    """Turn the mode off; nothing of the layer is left, and its secret was nowhere else."""
    layer = stage.layer
    (hook,) = json.loads(layer.read_text())["hooks"]["Stop"][0]["hooks"]
    secret = hook["headers"]["Authorization"].split()[1]
    header = layer.with_name("qwen-hook-header")
    files = [path for path in stage.sandbox.root.rglob("*") if path.is_file() and path not in (layer, header)]
    assert not [path for path in files if secret.encode() in path.read_bytes()]
    assert secret not in stage.emacs.eval("process-environment")
    stage.emacs.command("qwen-companion-mode")
    stage.screen.wait_until(lambda: not layer.exists() and not header.exists(), "the layer gone")
    assert stage.emacs.eval('(getenv "QWEN_CODE_SYSTEM_DEFAULTS_PATH")') == "nil"


def test_a_dead_backend_asks_in_the_terminal(stage: Stage) -> None:
    start_in_auto(stage)
    notes = stage.sandbox.notes
    begin(stage, notes, NEW_NOTES, "plums please")
    edit_review(stage, notes, "by hand\n")
    stage.sandbox.backend().send_signal(signal.SIGKILL)
    stage.screen.wait_for("Emacs does not answer")
    assert notes.read_text() == NOTES
    # The user's text is not lost.
    stage.emacs.wait_until('(get-buffer "*qwen-companion kept: notes.txt*")')
    stage.model.say("All done.")
    stage.emacs.eval('(with-current-buffer "*qwen: project*" (vterm-send-return))')
    stage.screen.wait_for("All done.")
    assert notes.read_text() == NEW_NOTES
