# SPDX-License-Identifier: GPL-3.0-or-later
"""The main job on real parts: connect, know, propose, accept; and what happens when a part is killed."""

from __future__ import annotations

import json
import re
import signal

import pytest

from editor import lisp_string
from model_types import Answer, Call
from sandbox import EDITED, GREETING, NOTES
from stage import Stage
from test_arrival import wait_idle, wait_until

pytestmark = pytest.mark.reuses_stage("context")


def open_review(stage: Stage) -> None:
    """Connect, and let the model propose to change the greeting."""
    stage.start_emacs(stage.sandbox.greeting)
    stage.start_cli()
    stage.propose(stage.sandbox.greeting, EDITED, "change the greeting")


def test_the_cli_connects_without_a_question(stage: Stage) -> None:
    stage.start_emacs(stage.sandbox.notes, stage.sandbox.greeting)
    for file in stage.sandbox.discovery_files:
        # At a place there is a socket, too.
        assert file.stat().st_mode & 0o777 == (0o700 if file.is_socket() else 0o600)
    gemini = () if stage.far else stage.sandbox.tmp.glob("gemini/ide/gemini-*")
    for file in (*stage.sandbox.lock_files, *gemini):
        assert json.loads(file.read_text())["workspacePath"] == str(stage.sandbox.project)
    stage.start_cli()
    assert stage.emacs.visible_buffers() == ["greeting.py", "*qwen: project*"]
    stage.ask_command("/ide status")
    screen = stage.screen.wait_for("Connected to Emacs")
    assert "Disconnected" not in screen
    stage.screen.wait_for("greeting.py (active)")
    stage.screen.wait_for("notes.txt")


def test_cursor_and_selection_reach_the_model(stage: Stage) -> None:
    stage.start()
    stage.screen.keys("C-x", "o")
    # To line 5, "return", and over two words.
    stage.screen.keys("M-g", "g")
    stage.screen.type("5")
    stage.screen.keys("Enter", "M-m", "C-Space", "M-f", "M-f")
    stage.screen.wait_for("told: line 5, character 18")
    stage.screen.keys("C-x", "o")
    stage.converse("what is selected?", "It says hello.")
    prompt = stage.model.next_request().prompt
    assert f"Path: {stage.sandbox.greeting}" in prompt
    assert "Cursor: line 5, character 18" in prompt
    assert '```\nreturn "hello\n```' in prompt


def test_a_move_of_the_cursor_is_told_with_the_next_question(stage: Stage) -> None:
    stage.start()
    stage.converse("first question", "First answer.")
    stage.screen.keys("C-x", "o", "C-n", "C-n", "C-n", "C-f")
    stage.screen.wait_for("told: line 4, character 2")
    stage.screen.keys("C-x", "o")
    stage.converse("second question", "Second answer.")
    assert "Cursor: line 1, character 1" in stage.model.next_request().prompt
    assert "line 4, character 2" in stage.model.next_request().prompt


def test_a_proposal_is_edited_and_accepted(stage: Stage) -> None:
    open_review(stage)
    assert stage.emacs.visible_buffers() == [
        "*qwen-companion disk: greeting.py*",
        "*qwen-companion proposal: greeting.py*",
        "*Ediff Control Panel*",
        "*qwen: project*",
    ]
    stage.model.say("All done.")
    # The terminal is still selected; the proposal is two windows on.
    stage.screen.keys("C-x", "o", "C-x", "o", "e", "M->")
    stage.screen.type("# checked by a person")
    stage.screen.keys("C-c", "C-c")
    stage.screen.wait_for("All done.")
    assert stage.sandbox.greeting.read_text() == EDITED + "# checked by a person"
    results = [result for _ in range(3) for result in stage.model.next_request().tool_results]
    assert "User modified" in results[-1]
    assert "# checked by a person" in results[-1]
    # The CLI shows the line too: look into the buffer.
    wanted = EDITED + "# checked by a person"
    stage.screen.wait_until(lambda: stage.emacs.buffer_text("greeting.py") == wanted, "the buffer as on disk")
    assert stage.emacs.visible_buffers() == ["greeting.py", "*qwen: project*"]
    assert stage.emacs.eval('(buffer-modified-p (get-buffer "greeting.py"))') == "nil"
    assert stage.emacs.eval('(verify-visited-file-modtime (get-buffer "greeting.py"))') == "t"


# What is in the selected window whenever Emacs draws: that is where the next key goes.
RECORD_SELECTED = """
(progn
  (defvar drawn-selected nil)
  (setq drawn-selected nil)
  (defun record-selected (_)
    (cl-pushnew (buffer-name (window-buffer (selected-window))) drawn-selected :test #'equal))
  (add-hook 'pre-redisplay-functions #'record-selected))
"""


def test_from_one_change_of_a_turn_to_the_next(stage: Stage) -> None:
    """Five edits in one answer of the model come one after the other; no key goes to the terminal meanwhile."""
    stage.start()
    paths = [stage.sandbox.project / f"part{number}.txt" for number in range(1, 6)]
    for path in paths:
        path.write_text("before\n")
    stage.model.calls(*(Call("read_file", {"file_path": str(path)}) for path in paths))
    stage.model.calls(*(Call("write_file", {"file_path": str(path), "content": "after\n"}) for path in paths))
    stage.model.say("All five are done.")
    stage.ask("change them all")
    stage.wait_for_review()
    stage.screen.keys("C-c", ",", "r", "Tab")
    stage.screen.wait_for("1 of 1 hunk kept")
    stage.emacs.eval(RECORD_SELECTED)
    places = set[str]()
    for path in paths:
        hunks = f"*qwen-companion hunks: {path.name}*"
        stage.emacs.wait_until(f"(equal {lisp_string(hunks)} (buffer-name (window-buffer)))")
        stage.screen.wait_for("1 of 1 hunk kept")
        places.add(stage.emacs.text('(format "%S" (window-edges))'))
        assert "*qwen: project*" not in stage.emacs.eval("drawn-selected")
        stage.screen.keys("A")
    assert len(places) == 1
    stage.screen.wait_for("All five are done.")
    stage.screen.wait_for("Type your message")
    # The turn has ended: all is as it was.
    stage.emacs.wait_until('(equal "*qwen: project*" (buffer-name (window-buffer)))')
    assert stage.emacs.visible_buffers() == ["greeting.py", "*qwen: project*"]
    assert [path.read_text() for path in paths] == ["after\n"] * 5
    stage.emacs.eval("(remove-hook 'pre-redisplay-functions #'record-selected)")


def test_a_proposal_is_rejected(stage: Stage) -> None:
    open_review(stage)
    # To the proposal, then to the control panel.
    stage.screen.keys("C-x", "o", "C-x", "o", "M-g", "g")
    stage.screen.type("5")
    stage.screen.keys("Enter", "C-c", "C-r")
    stage.screen.wait_for("Comment on line 5:")
    stage.screen.enter("Too formal.")
    stage.screen.wait_for("1 comment goes to the CLI")
    stage.screen.keys("C-x", "o")
    # The comments come when the turn is over, which is cancelled by the rejection.
    stage.model.say("Less formal then.")
    stage.screen.keys("C-c", "C-k")
    # The CLI marks a tool that was cancelled with a dash.
    stage.screen.wait_for(re.compile("^ *- WriteFile", re.MULTILINE))
    stage.screen.wait_gone("Yes, allow once")
    assert stage.sandbox.greeting.read_text() == GREETING
    assert stage.emacs.visible_buffers() == ["greeting.py", "*qwen: project*"]
    stage.screen.wait_for("Less formal then.")
    *_, request = (stage.model.next_request() for _ in range(3))
    assert "I have rejected your change, for these reasons:" in request.prompt
    assert 'greeting.py:5\n>     return "good day " + name\nToo formal.' in request.prompt
    stage.screen.wait_for("Qwen[1] ")


def test_the_review_is_put_aside_and_comes_back(stage: Stage) -> None:
    open_review(stage)
    # It is on the screen already: this goes there.
    stage.emacs.command("qwen-companion-diff-open")
    assert stage.emacs.eval("(length ediff-session-registry)") == "1"
    assert "*qwen: project*" in stage.emacs.visible_buffers()
    stage.screen.keys("q")
    stage.screen.wait_gone("C-c C-c accept")
    stage.screen.wait_for("Qwen[1!1]")
    assert stage.emacs.visible_buffers() == ["greeting.py", "*qwen: project*"]
    stage.emacs.command("qwen-companion-diff-open")
    stage.screen.wait_for("C-c C-c accept")
    stage.model.say("All done.")
    stage.screen.keys("C-c", "C-c")
    stage.screen.wait_gone("C-c C-c accept")
    stage.screen.wait_for("All done.")
    assert stage.sandbox.greeting.read_text() == EDITED
    assert stage.emacs.visible_buffers() == ["greeting.py", "*qwen: project*"]


def test_the_review_waits_for_the_tab_of_its_terminal(stage: Stage) -> None:
    stage.start()
    before = stage.emacs.visible_buffers()
    stage.emacs.eval("(progn (tab-bar-new-tab) (switch-to-buffer (messages-buffer)) (delete-other-windows))")
    stage.script_change(stage.sandbox.greeting, EDITED)
    stage.emacs.eval('(with-current-buffer "*qwen: project*" (vterm-send-string "change the greeting"))')
    said = '(with-current-buffer "*qwen: project*" (string-match-p "{}" (buffer-string)))'
    wait_until(stage.emacs, said.format("> +change the greeting"))
    stage.emacs.eval('(with-current-buffer "*qwen: project*" (vterm-send-return))')
    stage.screen.wait_for("Qwen[1!1]")
    wait_idle(stage.emacs)
    assert stage.emacs.visible_buffers() == ["*Messages*"]
    stage.screen.keys("C-x", "t", "o")
    stage.screen.wait_for("C-c C-c accept")
    assert "*qwen: project*" in stage.emacs.visible_buffers()
    # Accepted from the other tab: both are as they were.
    stage.screen.keys("C-x", "t", "o")
    stage.screen.wait_gone("C-c C-c accept")
    stage.model.say("All done.")
    stage.emacs.command("qwen-companion-diff-accept")
    wait_until(stage.emacs, said.format("All done"))
    assert stage.emacs.visible_buffers() == ["*Messages*"]
    stage.screen.keys("C-x", "t", "o")
    stage.screen.wait_for("All done.")
    assert stage.emacs.visible_buffers() == before
    assert stage.sandbox.greeting.read_text() == EDITED
    # For the next test.
    stage.emacs.eval("(progn (tab-bar-close-other-tabs) (tab-bar-mode -1) nil)")


def test_unsaved_text_is_shown_beside_the_proposal(stage: Stage) -> None:
    stage.start_emacs(stage.sandbox.greeting)
    stage.script_change(stage.sandbox.greeting, EDITED)
    stage.model.say("All done.")
    stage.start_cli()
    stage.screen.keys("C-x", "o", "M->")
    stage.screen.type("# not saved")
    stage.screen.keys("C-x", "o")
    stage.ask("change the greeting")
    stage.wait_for_review()
    # In the header lines of both sides, and in the control panel.
    stage.screen.wait_until(lambda: len(re.findall("C-u unsaved|your unsaved", stage.screen.capture())) == 3, "all")
    # To the proposal.
    stage.screen.keys("C-x", "o", "C-x", "o", "C-c", "C-u")
    stage.screen.wait_for("yours: greeting.py")
    assert stage.emacs.visible_buffers() == [
        "*qwen-companion disk: greeting.py*",
        "*qwen-companion proposal: greeting.py*",
        "*qwen-companion yours: greeting.py*",
        "*Ediff Control Panel*",
        "*qwen: project*",
    ]
    assert stage.emacs.buffer_text("*qwen-companion yours: greeting.py*") == GREETING + "# not saved"
    stage.screen.keys("e", "M->")
    stage.screen.type("# in the proposal")
    stage.screen.keys("C-c", "C-u")
    stage.screen.wait_gone("yours: greeting.py")
    stage.screen.keys("C-c", "C-c")
    stage.screen.wait_for("All done.")
    assert stage.sandbox.greeting.read_text() == EDITED + "# in the proposal"
    assert stage.emacs.visible_buffers() == ["greeting.py", "*qwen: project*"]
    assert "# not saved" in stage.emacs.buffer_text("greeting.py")


def test_what_emacs_saves_under_a_review_stays(stage: Stage) -> None:
    """It is merged into the proposal, and where the CLI writes no file that has changed, the merged text is kept."""
    path = stage.sandbox.greeting
    open_review(stage)
    stage.emacs.eval("(progn (setq auto-save-visited-interval 0.1) (auto-save-visited-mode 1) nil)")
    stage.emacs.eval(f'(with-current-buffer "{path.name}" (goto-char (point-max)) (insert "# mine\\n") nil)')
    # It saves when Emacs is idle after a key.
    stage.screen.keys("C-x", "o")
    stage.screen.wait_for("merged with later writes")
    stage.emacs.eval("(progn (auto-save-visited-mode -1) nil)")
    assert path.read_text() == GREETING + "# mine\n"
    stage.model.say("All done.")
    stage.accept("All done.")
    stage.screen.wait_for("has been modified since you last read it")
    stage.wait_until_said("has not written")
    assert path.read_text() == GREETING + "# mine\n"
    stage.emacs.command("qwen-companion-kept-apply")
    wait_until(stage.emacs, f'(string-suffix-p "# mine\\n" (with-current-buffer "{path.name}" (buffer-string)))')
    assert stage.emacs.buffer_text(path.name) == EDITED + "# mine\n"
    stage.emacs.eval(f'(with-current-buffer "{path.name}" (save-buffer) nil)')


def test_a_proposal_is_accepted_in_the_terminal(stage: Stage) -> None:
    open_review(stage)
    stage.model.say("All done.")
    stage.screen.keys("Enter")
    stage.screen.wait_for("All done.")
    assert stage.sandbox.greeting.read_text() == EDITED
    stage.screen.wait_gone("C-c C-c accept")
    stage.screen.wait_for("Qwen[1] ")
    assert stage.emacs.visible_buffers() == ["greeting.py", "*qwen: project*"]
    stage.screen.wait_until(lambda: stage.emacs.buffer_text("greeting.py") == EDITED, "the buffer as on disk")
    assert stage.emacs.eval('(buffer-modified-p (get-buffer "greeting.py"))') == "nil"


def test_the_command_from_outside_accepts_the_only_proposal(stage: Stage) -> None:
    open_review(stage)
    stage.model.say("All done.")
    stage.emacs.eval("(qwen-companion-diff-accept)")
    stage.screen.wait_for("All done.")
    assert stage.sandbox.greeting.read_text() == EDITED


@pytest.mark.ends_stage
def test_it_works_in_term_too(stage: Stage) -> None:
    stage.start_emacs(stage.sandbox.greeting, forms=("(setq qwen-companion-terminal 'term)",))
    stage.script_change(stage.sandbox.greeting, EDITED)
    stage.model.say("All done.")
    stage.start_cli()
    assert stage.emacs.eval('(with-current-buffer "*qwen: project*" major-mode)') == "term-mode"
    stage.ask("change the greeting")
    stage.wait_for_review()
    stage.screen.keys("Enter")
    stage.screen.wait_for("All done.")
    stage.screen.wait_gone("C-c C-c accept")
    assert stage.sandbox.greeting.read_text() == EDITED


def test_a_killed_backend_is_replaced_unnoticed_with_a_review_open(stage: Stage) -> None:
    open_review(stage)
    killed = stage.sandbox.backend()
    killed.send_signal(signal.SIGKILL)

    def replaced() -> bool:
        others = [process for process in stage.sandbox.backends() if process.pid != killed.pid]
        return bool(others) and "Qwen[1!1]" in stage.screen.capture()

    stage.screen.wait_until(replaced, "a new backend with the review still open")
    stage.model.say("All done.")
    stage.accept("All done.")
    assert stage.sandbox.greeting.read_text() == EDITED
    stage.wait_for_status("Connected to Emacs")
    # And it goes on: the next proposal.
    stage.propose(stage.sandbox.notes, NOTES.replace("pears", "plums"), "plums please")
    stage.model.say("The list is new.")
    stage.accept("The list is new.")
    assert stage.sandbox.notes.read_text() == NOTES.replace("pears", "plums")


def test_a_turn_that_fails_is_said_and_sent_again(stage: Stage) -> None:
    stage.start_emacs(stage.sandbox.greeting)
    stage.end_cli()
    stage.start_cli()
    stage.emacs.command("qwen-companion-sessions")
    stage.screen.wait_for(re.compile(r"project +ready "))
    stage.emacs.eval('(select-window (get-buffer-window "*qwen: project*"))')
    stage.model.answer(Answer(refusal=400))
    stage.ask("say hello")
    stage.screen.wait_for(re.compile(r"project +failed: invalid.* invalid request"))
    stage.screen.wait_for("Qwen[1] failed")
    stage.model.say("Hello at last.")
    stage.emacs.eval('(select-window (get-buffer-window "*qwen-companion sessions*"))')
    stage.screen.keys("y")
    stage.screen.wait_for("Hello at last.")
    stage.screen.wait_for(re.compile(r"project +done "))
