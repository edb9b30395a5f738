# SPDX-License-Identifier: GPL-3.0-or-later
"""Each CLI, in each version that differs in how it works with its editor: connect, know, propose, accept, reject.

What a CLI needs for that, and why, is in clis.py.
"""

from __future__ import annotations

import re

import pytest

from clis import CLIS, GEMINI, QWEN, Cli
from editor import lisp_string
from sandbox import EDITED, GREETING, NEW_NOTES, NOTES
from stage import Stage
from test_changes import shown

pytestmark = pytest.mark.reuses_stage("shell")


# True once the files below a root are recorded as they are.
LOOKED_AT = """
(ignore-error user-error
  (qwen-companion-journal-await 'journal-files (list :root %s :scope 'commit :turn nil :session nil)))
"""
FILES_OF_GEMINI = """
(mapcar (lambda (file) (list (file-name-nondirectory (qwen-companion-changed-file-path file))
                             (qwen-companion-changed-file-added file) (qwen-companion-changed-file-deleted file)))
        (seq-mapcat (lambda (turn) (and (string-prefix-p "Gemini CLI" (qwen-companion-turn-client turn))
                                        (qwen-companion-turn-files turn)))
                    (qwen-companion-journal-turns)))
"""

each_cli = pytest.mark.parametrize(
    "cli", [pytest.param(cli, id=cli.name, marks=() if cli.newest else pytest.mark.interop) for cli in CLIS]
)


def start(stage: Stage, cli: Cli) -> None:
    """Connect; the cursor is in the terminal of `cli`, with the greeting in the window above."""
    stage.start_emacs(stage.sandbox.notes, stage.sandbox.greeting)
    stage.start_in_shell(cli)


def open_review(stage: Stage, cli: Cli) -> None:
    """Connect, and let the model propose to change the greeting."""
    start(stage, cli)
    stage.script_change(stage.sandbox.greeting, EDITED, cli)
    stage.ask("change the greeting", cli)
    stage.wait_for_review(cli)


@each_cli
def test_it_connects_and_context_reaches_the_model(stage: Stage, cli: Cli) -> None:
    start(stage, cli)
    stage.screen.keys("C-x", "o")
    # To line 4, and over "def greet".
    stage.screen.keys("M-g", "g")
    stage.screen.type("4")
    stage.screen.keys("Enter", "C-Space", "M-f", "M-f")
    stage.screen.wait_for("told: line 4, character 10")
    stage.screen.keys("C-x", "o")
    stage.converse("say what is selected", "It defines greet.", cli)
    prompt = stage.model.next_request().prompt
    assert "say what is selected" in prompt
    # Some versions write JSON, others sentences.
    assert str(stage.sandbox.greeting) in prompt
    assert str(stage.sandbox.notes) in prompt
    assert re.search(r'"?line"?:? 4,\s+"?character"?:? 10\b', prompt)
    assert re.search(r'"def greet"|```\ndef greet\n```', prompt)
    # Not at once: some versions can be typed to before they know their commands.
    stage.ask("/ide status", cli)
    assert "Disconnected" not in stage.screen.wait_for("Connected to Emacs")
    stage.screen.wait_for("greeting.py (active)")
    stage.screen.wait_for("- notes.txt")


@each_cli
def test_a_proposal_is_edited_and_accepted(stage: Stage, cli: Cli) -> None:
    open_review(stage, cli)
    stage.model.say("All done.")
    if cli == GEMINI:
        # It calls no hooks: the disk tells what it writes from now on.
        stage.emacs.wait_until(LOOKED_AT % lisp_string(str(stage.sandbox.project)))
    # The terminal is selected; the proposal is two windows on.
    stage.screen.keys("C-x", "o", "C-x", "o", "e", "M->")
    stage.screen.type("# checked by a person")
    assert stage.sandbox.greeting.read_text() == GREETING
    stage.screen.keys("C-c", "C-c")
    stage.screen.wait_for("All done.")
    assert stage.sandbox.greeting.read_text() == EDITED + "# checked by a person"
    *_, request = (stage.model.next_request() for _ in range(3))
    (result,) = request.tool_results
    assert ("# checked by a person" in result) == cli.tells_edits
    stage.screen.wait_for("Qwen[1] ")
    assert stage.emacs.visible_buffers() == ["greeting.py", f"*{cli.name}*"]
    stage.screen.wait_until(
        lambda: stage.emacs.buffer_text("greeting.py") == EDITED + "# checked by a person", "the buffer as on disk"
    )
    if cli == GEMINI:
        stage.emacs.command("qwen-companion-changes")
        stage.emacs.wait_until(f'(member \'("greeting.py" 2 1) {FILES_OF_GEMINI})')
        shown(stage, "Gemini CLI  ")


@each_cli
def test_a_proposal_is_rejected(stage: Stage, cli: Cli) -> None:
    open_review(stage, cli)
    # To the control panel.
    stage.screen.keys("C-x", "o", "C-x", "o", "C-x", "o")
    stage.screen.keys("C-c", "C-k")
    stage.screen.wait_for(re.compile(cli.cancelled, re.MULTILINE))
    stage.screen.wait_gone(cli.confirmation)
    stage.screen.wait_for("Qwen[1] ")
    assert stage.sandbox.greeting.read_text() == GREETING
    assert stage.emacs.visible_buffers() == ["greeting.py", f"*{cli.name}*"]
    stage.screen.wait_for("Type your message")
    stage.converse("leave it", "As you wish.", cli)
    *_, request = (stage.model.next_request() for _ in range(3))
    told = any("cancelled" in message.text.lower() for message in request.messages if message.role == "tool")
    assert told == cli.tells_rejection
    assert stage.sandbox.greeting.read_text() == GREETING


# Two of Qwen Code have the same in `make test`, see test_connection.py and test_many.py.
@pytest.mark.interop
def test_qwen_and_gemini_at_once(stage: Stage) -> None:
    stage.start_emacs(stage.sandbox.notes, stage.sandbox.greeting)
    stage.start_in_shell(QWEN)
    stage.start_in_shell(GEMINI, connected=2)
    stage.script_change(stage.sandbox.greeting, EDITED, GEMINI)
    stage.ask("change the greeting", GEMINI)
    assert str(stage.sandbox.greeting) in stage.model.next_request().prompt
    stage.screen.wait_for("Qwen[2!1]")
    stage.screen.wait_for("C-c C-c accept")
    stage.screen.wait_for(GEMINI.confirmation)
    # The other proposes while that review is open: its own has to wait.
    stage.screen.keys("C-x", "b")
    stage.screen.wait_for("Switch to buffer")
    stage.screen.enter(f"*{QWEN.name}*")
    stage.screen.wait_for(re.compile(QWEN.input_start, re.MULTILINE))
    stage.script_change(stage.sandbox.notes, NEW_NOTES)
    stage.ask("plums please")
    stage.screen.wait_for("Qwen[2!2]")
    stage.screen.wait_for(QWEN.confirmation)
    assert "*qwen-companion proposal: greeting.py*" in stage.emacs.visible_buffers()
    stage.model.say("The greeting is new.")
    # The first in its review, two windows on; the second, now the only one, by name.
    stage.screen.keys("C-x", "o", "C-x", "o", "C-c", "C-c")
    stage.screen.wait_for("proposal: notes.txt")
    stage.screen.wait_for("Qwen[2!1]")
    stage.screen.wait_until(
        lambda: "The greeting is new." in stage.emacs.buffer_text(f"*{GEMINI.name}*"), "the end of Gemini's turn"
    )
    assert stage.sandbox.greeting.read_text() == EDITED
    assert stage.sandbox.notes.read_text() == NOTES
    stage.model.say("The list is new.")
    stage.emacs.command("qwen-companion-diff-accept")
    stage.screen.wait_gone("C-c C-c accept")
    stage.screen.wait_until(
        lambda: "The list is new." in stage.emacs.buffer_text(f"*{QWEN.name}*"), "the end of Qwen's turn"
    )
    assert stage.sandbox.notes.read_text() == NEW_NOTES
    assert stage.sandbox.greeting.read_text() == EDITED
    stage.screen.wait_for("Qwen[2])")
