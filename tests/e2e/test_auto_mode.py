# SPDX-License-Identifier: GPL-3.0-or-later
"""Reviews where users are: a CLI that works in its mode `auto`, as it does when nobody has said otherwise."""

from __future__ import annotations

import copy
import json
import re

import pytest

from clis import QWEN_SETTINGS
from model_types import Answer, Call
from sandbox import EDITED, GREETING, NEW_NOTES, NOTES
from stage import Stage

pytestmark = pytest.mark.reuses_stage("reviews")


def start_in_auto(stage: Stage) -> None:
    """Start Emacs and a CLI without an approval mode in its settings."""
    settings = copy.deepcopy(dict(QWEN_SETTINGS))
    settings["tools"] = {"useRipgrep": False}
    stage.sandbox.write_cli_settings(settings)
    stage.start_emacs(stage.sandbox.greeting)
    stage.end_cli()
    stage.start_cli()


# It turns the mode off.
@pytest.mark.ends_stage
def test_edits_are_reviewed_and_commands_run(stage: Stage) -> None:
    start_in_auto(stage)
    stage.propose(stage.sandbox.greeting, EDITED, "change the greeting")
    stage.model.say("All done.")
    stage.screen.keys("C-x", "o", "C-x", "o", "e", "M->")
    stage.screen.type("# checked by a person")
    assert stage.sandbox.greeting.read_text() == GREETING
    stage.screen.keys("C-c", "C-c")
    stage.screen.wait_for("All done.")
    assert stage.sandbox.greeting.read_text() == EDITED + "# checked by a person"
    stage.propose(stage.sandbox.notes, NEW_NOTES, "plums please")
    stage.emacs.command("qwen-companion-diff-reject")
    stage.screen.wait_gone("Yes, allow once")
    stage.screen.wait_for("Type your message")
    assert stage.sandbox.notes.read_text() == NOTES
    stage.model.call("run_shell_command", command="python3 -c 'print(6 * 7)'", description="count")
    stage.converse("count", "It is 42.")
    # The rule by which edits are asked for takes no descriptor for a file.
    stage.model.call("run_shell_command", command="python3 -c 'print(6 * 7)' 2>&1 | tail", description="count")
    stage.converse("count again", "It is 42 again.")
    edit_by_a_subagent(stage)
    edit_what_is_not_open(stage)
    assert "mode auto, model scripted" in stage.emacs.eval("(qwen-companion-layer-help)")
    # The user's own word: it is not fought, but said.
    stage.screen.keys("BTab")
    stage.screen.wait_for("YOLO mode")
    # Qwen Code 0.21 to 0.23.0 tells its mode with tools only.
    stage.model.call("run_shell_command", command="mkdir made", description="make")
    stage.model.say("Very well.")
    # It shows another sign before what is typed.
    stage.screen.enter("as you like")
    stage.screen.wait_for("no reviews: yolo")
    stage.screen.wait_for("Very well.")
    assert (stage.sandbox.project / "made").is_dir()
    layer = stage.layer
    (hook,) = json.loads(layer.read_text())["hooks"]["Stop"][0]["hooks"]
    secret = hook["headers"]["Authorization"].split()[1]
    files = [path for path in stage.sandbox.root.rglob("*") if path.is_file() and path != layer]
    assert not [path for path in files if secret.encode() in path.read_bytes()]
    assert secret not in stage.emacs.eval("process-environment")
    stage.emacs.command("qwen-companion-mode")
    stage.screen.wait_until(lambda: not layer.exists(), "the layer gone")
    assert stage.emacs.eval('(getenv "QWEN_CODE_SYSTEM_DEFAULTS_PATH")') == "nil"


def edit_by_a_subagent(stage: Stage) -> None:
    """Review the edit of a subagent, which cannot ask in the terminal."""
    notes = str(stage.sandbox.notes)
    stage.model.start_subagent(
        Answer(calls=(Call("read_file", {"file_path": notes}),)),
        Answer(calls=(Call("edit", {"file_path": notes, "old_string": "pears", "new_string": "plums"}),)),
        Answer("The subagent is done."),
    )
    stage.model.say("It works for me.")
    stage.model.say("It has worked.")
    stage.ask("let somebody do it")
    stage.screen.wait_for("It works for me.")
    stage.screen.wait_for("Qwen[1!1]")
    stage.screen.wait_for("C-c C-c accept")
    said = r"subagent general-purpose of Qwen Code [\d.]+ proposes a change"
    assert re.search(said, stage.emacs.buffer_text("*Messages*"))
    # It waits for a minute only.
    stage.emacs.eval("""
        (with-current-buffer "*qwen-companion proposal: notes.txt*"
          (goto-char (point-max))
          (insert "by hand\\n"))
    """)
    stage.accept("It has worked.")
    assert stage.sandbox.notes.read_text() == NEW_NOTES + "by hand\n"
    # A hook tells of its end, a moment later.
    stage.emacs.wait_until('(not (string-search "subagent" (qwen-companion-layer-help)))')


def edit_what_is_not_open(stage: Stage) -> None:
    """Review only edits of files that are open in Emacs."""
    stage.emacs.eval("(progn (setq qwen-companion-review-edits 'open) (qwen-companion-privacy-update))")
    stage.script_change(stage.sandbox.notes, f"{NOTES}figs\n")
    stage.converse("figs please", "Figs, too.")
    assert stage.sandbox.notes.read_text() == f"{NOTES}figs\n"
    stage.propose(stage.sandbox.greeting, GREETING, "hello again")
    stage.emacs.command("qwen-companion-diff-reject")
    stage.screen.wait_gone("Yes, allow once")
    assert stage.sandbox.greeting.read_text() == EDITED + "# checked by a person"
