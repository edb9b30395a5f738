# SPDX-License-Identifier: GPL-3.0-or-later
"""Several proposals in one turn, and the other ways in which a review ends."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from model_types import Call
from sandbox import EDITED, GREETING, NEW_NOTES, NOTES, has_ended
from stage import NO_SESSION, Stage
from terminal import PATIENCE, ScreenTimeoutError

pytestmark = pytest.mark.reuses_stage("reviews")

EDITED_AGAIN = EDITED.replace('"world"', '"everybody"')
EDIT = "# by hand"
KEPT = "*qwen-companion kept: greeting.py*"

ASKS_S = 2.0
"""Seconds for which the CLI asks whether it is to end, and one more."""

# Counts what Emacs tells the backend of decisions, in the order in which it does.
RECORD_OUTCOMES = """
(progn
  (defvar test-outcomes)
  (setq test-outcomes nil)
  (advice-add 'qwen-companion-backend-call :before
              (lambda (method payload)
                (when (eq method 'outcome)
                  (setq test-outcomes (append test-outcomes (list (plist-get payload :outcome))))))))
"""


def open_review(stage: Stage) -> None:
    """Connect, and let the model propose to change the greeting."""
    stage.start_emacs(stage.sandbox.greeting, forms=(RECORD_OUTCOMES,))
    stage.start_cli()
    stage.propose(stage.sandbox.greeting, EDITED, "change the greeting")


def edit_proposal(stage: Stage) -> None:
    """Add a comment to the end of the proposal; the terminal is selected before and after."""
    stage.screen.keys("C-x", "o", "C-x", "o", "e", "M->")
    stage.screen.type(EDIT)
    stage.screen.keys("C-x", "o", "C-x", "o")
    stage.emacs.wait_until("(with-current-buffer (window-buffer) (derived-mode-p 'vterm-mode))")


def wait_for_kept_edits(stage: Stage) -> None:
    """Wait until the text that `edit_proposal` left is in a buffer of its own, and the user is told."""
    stage.screen.wait_until(lambda: stage.emacs.buffer_text(KEPT) == EDITED + EDIT, "the kept text")
    assert f"the proposed text is kept in {KEPT}" in stage.emacs.buffer_text("*Messages*")


def press_escape(stage: Stage) -> None:
    """Press Esc in the CLI; as a key of the outer terminal it would begin a key sequence of Emacs."""
    stage.emacs.eval('(with-current-buffer "*qwen: project*" (vterm-send-key "<escape>"))')


def press_until_it_ends(stage: Stage, clis: list[psutil.Process]) -> None:
    """Press C-c until the processes `clis` of the CLI have ended, each time when it has taken the one before.

    It says for a second that another one ends it; on a busy machine that may be over before the next key comes.
    """
    deadline = time.monotonic() + PATIENCE
    asks = "Press Ctrl+C again to exit"
    while not all(has_ended(cli, 0) for cli in clis):
        assert time.monotonic() < deadline, stage.screen.capture()
        asked = asks in stage.screen.capture()
        stage.screen.keys("C-c", "C-c")

        def has_taken_it(asked: bool = asked) -> bool:
            return (asks in stage.screen.capture()) != asked or all(has_ended(cli, 0) for cli in clis)

        # A key that comes when it has just ceased to ask makes it ask again, which looks the same.
        with suppress(ScreenTimeoutError):
            stage.screen.wait_until(has_taken_it, "the key taken", ASKS_S)


def assert_review_gone(stage: Stage) -> None:
    assert stage.emacs.visible_buffers() == ["greeting.py", "*qwen: project*"]
    assert stage.emacs.eval("(length ediff-session-registry)") == "0"
    assert '"*qwen-companion disk: ' not in stage.emacs.eval("(mapcar #'buffer-name (buffer-list))")
    assert '"*qwen-companion proposal: ' not in stage.emacs.eval("(mapcar #'buffer-name (buffer-list))")


def assert_text_is_in_the_buffer(stage: Stage) -> None:
    """Check that the kept text is in the file's buffer, shown and not saved, and nowhere else."""
    stage.screen.wait_until(lambda: stage.emacs.buffer_text("greeting.py") == EDITED + EDIT, "the text in the buffer")
    assert stage.emacs.eval('(buffer-modified-p (get-buffer "greeting.py"))') == "t"
    assert "greeting.py" in stage.emacs.visible_buffers()
    assert stage.emacs.eval(f'(get-buffer "{KEPT}")') == "nil"


def test_a_proposal_is_rejected_in_the_terminal(stage: Stage) -> None:
    open_review(stage)
    # In `emacs -nw' the key Esc does not get there; the mode line has the key that does.
    stage.screen.wait_for("Esc:C-c , i")
    stage.screen.keys("C-c", ",", "i")
    stage.screen.wait_for(re.compile("^ *- WriteFile", re.MULTILINE))
    stage.screen.wait_gone("C-c C-c accept")
    stage.screen.wait_for("Qwen[1] ")
    assert_review_gone(stage)
    assert stage.sandbox.greeting.read_text() == GREETING
    assert stage.emacs.buffer_text("greeting.py") == GREETING
    # It was the CLI that ended it: Emacs has nothing to tell, and the next proposal's answer is its own.
    assert stage.emacs.eval("test-outcomes") == "nil"
    stage.propose(stage.sandbox.greeting, EDITED_AGAIN, "again please")
    stage.model.say("Better so.")
    stage.accept("Better so.")
    assert stage.sandbox.greeting.read_text() == EDITED_AGAIN
    assert stage.emacs.eval("test-outcomes") == "(accepted)"


def test_edits_of_a_proposal_rejected_in_the_terminal_are_kept(stage: Stage) -> None:
    open_review(stage)
    edit_proposal(stage)
    press_escape(stage)
    wait_for_kept_edits(stage)
    stage.screen.wait_for("Qwen[1] ")
    assert_review_gone(stage)
    assert stage.sandbox.greeting.read_text() == GREETING
    assert stage.emacs.eval("test-outcomes") == "nil"


def test_edits_that_the_cli_drops_are_said_kept_and_applied(stage: Stage) -> None:
    open_review(stage)
    edit_proposal(stage)
    stage.model.say("All done.")
    stage.screen.keys("Enter")
    stage.screen.wait_for("All done.")
    assert stage.sandbox.greeting.read_text() == EDITED
    stage.screen.wait_until(
        lambda: "written without your edits" in stage.emacs.buffer_text("*Messages*"), "the offer to apply the edits"
    )
    said = r"in the terminal, where Qwen Code \S+ writes its own text without your edits"
    assert re.search(said, stage.emacs.buffer_text("*Messages*"))
    assert stage.emacs.buffer_text(KEPT) == EDITED + EDIT
    assert stage.emacs.buffer_text("greeting.py") == EDITED
    stage.emacs.command("qwen-companion-kept-apply")
    assert_text_is_in_the_buffer(stage)
    assert stage.sandbox.greeting.read_text() == EDITED
    # One change to undo, and then the file is as the CLI wrote it.
    stage.screen.keys("C-_")
    stage.screen.wait_until(lambda: stage.emacs.buffer_text("greeting.py") == EDITED, "the edits undone")


def test_a_new_file_in_a_new_directory_is_accepted(stage: Stage) -> None:
    new_file = stage.sandbox.project / "doc" / "plans" / "first.txt"
    stage.start_emacs(stage.sandbox.greeting)
    stage.model.call("write_file", file_path=str(new_file), content="one\ntwo\n")
    stage.model.say("All done.")
    stage.start_cli()
    stage.ask("make a plan")
    stage.wait_for_review()
    assert stage.emacs.buffer_text("*qwen-companion disk: first.txt*") == ""
    assert not new_file.parent.parent.exists()
    edit_proposal(stage)
    stage.accept("All done.")
    assert new_file.read_text() == "one\ntwo\n" + EDIT
    assert_review_gone(stage)


def test_the_second_file_of_a_turn_comes_after_the_first_is_answered(stage: Stage) -> None:
    greeting, notes = str(stage.sandbox.greeting), str(stage.sandbox.notes)
    stage.start_emacs(stage.sandbox.greeting)
    stage.model.calls(Call("read_file", {"file_path": greeting}), Call("read_file", {"file_path": notes}))
    stage.model.calls(
        Call("write_file", {"file_path": greeting, "content": EDITED}),
        Call("write_file", {"file_path": notes, "content": NEW_NOTES}),
    )
    stage.model.say("Both done.")
    stage.start_cli()
    stage.ask("change both")
    stage.wait_for_review()
    assert "*qwen-companion proposal: greeting.py*" in stage.emacs.visible_buffers()
    assert stage.emacs.eval("(length (qwen-companion-proposals))") == "1"
    stage.accept("proposal: notes.txt")
    stage.wait_for_review()
    assert stage.emacs.buffer_text("*qwen-companion disk: notes.txt*") == NOTES
    stage.accept("Both done.")
    assert stage.sandbox.greeting.read_text() == EDITED
    assert stage.sandbox.notes.read_text() == NEW_NOTES
    assert_review_gone(stage)
    *_, request = (stage.model.next_request() for _ in range(3))
    assert len(request.tool_results) == 2


def test_the_same_file_twice_in_a_turn(stage: Stage) -> None:
    greeting = str(stage.sandbox.greeting)
    stage.start_emacs(stage.sandbox.greeting)
    stage.model.call("read_file", file_path=greeting)
    stage.model.calls(
        Call("write_file", {"file_path": greeting, "content": EDITED}),
        Call("write_file", {"file_path": greeting, "content": EDITED_AGAIN}),
    )
    stage.model.say("Twice done.")
    stage.start_cli()
    stage.ask("change it twice")
    stage.wait_for_review()
    assert stage.emacs.buffer_text("*qwen-companion disk: greeting.py*") == GREETING
    edit_proposal(stage)
    stage.accept('"everybody"')
    stage.wait_for_review()
    # The CLI writes when the whole turn is decided.
    assert stage.sandbox.greeting.read_text() == GREETING
    assert stage.emacs.buffer_text("*qwen-companion disk: greeting.py*") == GREETING
    stage.screen.wait_for("lacks accepted changes")
    stage.accept("Twice done.")
    assert stage.sandbox.greeting.read_text() == EDITED_AGAIN
    assert_review_gone(stage)
    # The second text is a whole one, without what was edited in the first.
    wait_for_kept_edits(stage)
    assert "replaced it and your edits" in stage.emacs.buffer_text("*Messages*")
    stage.emacs.eval("(qwen-companion-kept-discard)")
    stage.screen.wait_until(lambda: stage.emacs.buffer_text("greeting.py") == EDITED_AGAIN, "the buffer as on disk")


def test_a_proposal_that_is_refused_is_decided_in_the_terminal(stage: Stage) -> None:
    """Half of a surrogate pair is no Unicode, so the companion refuses it; Node.js writes another character for it."""
    new_file = stage.sandbox.project / "half.txt"
    stage.start_emacs(stage.sandbox.greeting)
    stage.model.call("write_file", file_path=str(new_file), content="half \ud83d of it\n")
    stage.model.say("All done.")
    stage.start_cli()
    stage.ask("write half a character")
    stage.screen.wait_for("Yes, allow once")
    stage.screen.keys("Enter")
    stage.screen.wait_for("All done.")
    assert new_file.read_text() == "half \N{REPLACEMENT CHARACTER} of it\n"
    assert stage.emacs.visible_buffers() == ["greeting.py", "*qwen: project*"]
    assert "proposes" not in stage.emacs.buffer_text("*Messages*")
    # The next one is reviewed as ever.
    stage.propose(stage.sandbox.greeting, EDITED, "change the greeting")
    stage.model.say("Whole again.")
    stage.accept("Whole again.")
    assert stage.sandbox.greeting.read_text() == EDITED


@pytest.mark.ends_cli
def test_a_cli_killed_in_a_review_leaves_the_text(stage: Stage) -> None:
    open_review(stage)
    edit_proposal(stage)
    proposal = '(get-buffer "*qwen-companion proposal: greeting.py*")'
    assert stage.emacs.eval(f"(buffer-local-value 'font-lock-mode {proposal})") == "t"
    # The proposal is selected when its review ends: the key comes too late for it, and nothing else gets it.
    stage.screen.keys("C-x", "o", "C-x", "o")
    stage.emacs.wait_until(f"(eq (window-buffer) {proposal})")
    stage.emacs.eval("(setq qwen-companion-review--late-key-seconds 600)")
    stage.sandbox.kill_clis()
    wait_for_kept_edits(stage)
    stage.screen.keys("C-c", "C-c")
    stage.wait_until_said("greeting.py ended before your answer")
    stage.emacs.eval("(setq qwen-companion-review--late-key-seconds 1.5)")
    stage.screen.wait_for(NO_SESSION)
    assert_review_gone(stage)
    assert stage.sandbox.greeting.read_text() == GREETING
    assert "disconnected before it could write" in stage.emacs.buffer_text("*Messages*")
    assert stage.emacs.eval("test-outcomes") == "nil"
    # It is put into the file's buffer, shown and not saved, and is nowhere else.
    stage.screen.keys("C-x", "b")
    stage.screen.enter(KEPT)
    screen = stage.screen.wait_for("C-c C-c put into the file's buffer")
    assert "C-c C-k discard" in screen
    stage.screen.keys("C-c", "C-c")
    assert_text_is_in_the_buffer(stage)
    assert stage.sandbox.greeting.read_text() == GREETING


@pytest.mark.ends_cli
def test_a_terminal_killed_in_a_review_leaves_the_edits(stage: Stage) -> None:
    """The CLI is hung up on: sometimes it still closes its diff, as with an answer in the terminal, sometimes not."""
    open_review(stage)
    edit_proposal(stage)
    clis = stage.sandbox.clis()
    stage.emacs.eval('(let (kill-buffer-query-functions) (kill-buffer "*qwen: project*"))')
    wait_for_kept_edits(stage)
    stage.screen.wait_for(NO_SESSION)
    stage.screen.wait_gone("C-c C-c accept")
    assert all(has_ended(cli, PATIENCE) for cli in clis)
    assert stage.emacs.eval("(length ediff-session-registry)") == "0"
    assert stage.sandbox.greeting.read_text() == GREETING


@pytest.mark.ends_cli
def test_quitting_the_cli_in_a_review_rejects_first(stage: Stage) -> None:
    open_review(stage)
    # The terminal is selected: the key may be meant for the review.
    stage.screen.keys("C-c", "C-c")
    # Newer Emacs shows the key of an answer in brackets.
    stage.screen.wait_for(re.compile(r"send C-(c|\[C\]) to Qwen Code"))
    # In vterm this is one C-c for the CLI, which takes the first as the answer no.
    stage.screen.keys("c")
    stage.screen.wait_gone("Yes, allow once")
    stage.screen.wait_gone("C-c C-c accept")
    stage.screen.wait_for("Qwen[1] ")
    stage.screen.wait_for("Type your message")
    assert_review_gone(stage)
    clis = stage.sandbox.clis()
    # Two within a second end it.
    press_until_it_ends(stage, clis)
    stage.screen.wait_for(NO_SESSION)
    assert stage.sandbox.greeting.read_text() == GREETING
    assert stage.emacs.eval("test-outcomes") == "nil"
    assert "kept" not in stage.emacs.buffer_text("*Messages*")


@pytest.mark.ends_stage
def test_mode_off_in_a_review_leaves_the_edits_and_the_terminals_question(stage: Stage) -> None:
    open_review(stage)
    edit_proposal(stage)
    backend = stage.sandbox.backend()
    stage.emacs.command("qwen-companion-mode")
    wait_for_kept_edits(stage)
    assert has_ended(backend, PATIENCE)
    assert "qwen-companion: the companion was turned off" in stage.emacs.buffer_text("*Messages*")
    stage.screen.wait_gone("C-c C-c accept")
    assert_review_gone(stage)
    stage.model.say("All done.")
    stage.screen.wait_for("Yes, allow once")
    stage.screen.keys("Enter")
    stage.screen.wait_for("All done.")
    assert stage.sandbox.greeting.read_text() == EDITED
    stage.wait_for_status("Disconnected")
    assert stage.emacs.eval("test-outcomes") == "nil"
    stage.sandbox.assert_no_files()
    ours = '(cl-remove-if-not (lambda (p) (string-prefix-p "qwen-c" (process-name p))) (process-list))'
    assert stage.emacs.eval(ours) == "nil"


def edit(path: Path, old: str, new: str) -> Call:
    return Call("edit", {"file_path": str(path), "old_string": old, "new_string": new})


def test_several_edits_of_one_file_in_one_message(stage: Stage) -> None:
    # The CLI asks about all of them before it writes, has made each from the text on disk, and then applies one after
    # the other.  The second message is for what it says when one of them cannot be applied.
    greeting, notes, todo = stage.sandbox.greeting, stage.sandbox.notes, stage.sandbox.project / "todo.txt"
    todo.write_text("sleep\n")
    edits = (
        (greeting, '"hello "', '"good day "'),
        (notes, "pears", "plums"),
        (greeting, '"world"', '"moon"'),
        (todo, "sleep", "eat"),
        (notes, "apples", "figs"),
    )
    stage.start_emacs(greeting)
    # A CLI on a busy machine is not to be taken for one that writes nothing.
    patience = stage.emacs.eval("qwen-companion-disk--patience")
    stage.emacs.eval(f"(setq qwen-companion-disk--patience {PATIENCE})")
    stage.model.calls(*(Call("read_file", {"file_path": str(path)}) for path in (greeting, notes, todo)))
    stage.model.calls(*(edit(*values) for values in edits))
    stage.model.say("All done.")
    stage.start_cli()
    stage.ask("change five things")
    accepted = set[Path]()
    for path, _, _ in edits:
        # Each is compared with the text from which it was made: only its own change is one.
        stage.screen.wait_for(f"Review in Ediff: {stage.label}{path.name}, change 1 of 1")
        if path in accepted:
            stage.screen.wait_for("lacks accepted changes")
        accepted.add(path)
        stage.emacs.eval("(progn (qwen-companion-diff-accept) nil)")
    stage.screen.wait_for("All done.")
    stage.emacs.wait_until("(null qwen-companion-disk--writes)")
    assert greeting.read_text() == GREETING.replace('"hello "', '"good day "').replace('"world"', '"moon"')
    assert notes.read_text() == NOTES.replace("pears", "plums").replace("apples", "figs")
    assert todo.read_text() == "eat\n"
    messages = stage.emacs.buffer_text("*Messages*")
    assert not re.search("not hold|not written|is kept", messages), messages
    assert stage.emacs.visible_buffers() == ["greeting.py", "*qwen: project*"]
    stage.screen.wait_until(
        lambda: stage.emacs.buffer_text("greeting.py") == greeting.read_text(), "the buffer as on disk"
    )

    # Edits of the second one: the CLI looks for the whole text on disk in its place, which is not there any more.
    before = greeting.read_text()
    stage.model.calls(edit(greeting, '"good day "', '"hi "'), edit(greeting, '"moon"', '"sun"'))
    stage.model.say("Half done.")
    stage.ask("change two things")
    stage.screen.wait_for(f"Review in Ediff: {stage.label}greeting.py")
    stage.emacs.eval("(progn (qwen-companion-diff-accept) nil)")
    stage.screen.wait_for("lacks accepted changes")
    stage.emacs.eval(
        "(with-current-buffer (qwen-companion-proposal-buffer (car (qwen-companion-proposals)))"
        ' (setq buffer-read-only nil) (goto-char (point-max)) (insert "# mine\\n"))'
    )
    stage.emacs.eval("(progn (qwen-companion-diff-accept) nil)")
    stage.screen.wait_for("Half done.")
    # The CLI will write no more.
    stage.emacs.eval("(mapc #'qwen-companion-disk--give-up (copy-sequence qwen-companion-disk--writes))")
    stage.emacs.eval(f"(setq qwen-companion-disk--patience {patience})")
    assert greeting.read_text() == before.replace('"good day "', '"hi "')
    assert "has the change accepted before, but not this one" in stage.emacs.buffer_text("*Messages*")
    kept = stage.emacs.buffer_text("*qwen-companion kept: greeting.py*")
    assert kept == before.replace('"good day "', '"hi "').replace('"moon"', '"sun"') + "# mine\n"
    stage.emacs.eval("(qwen-companion-kept-discard)")


# It needs a CLI of its own.
@pytest.mark.ends_cli
def test_no_reviews_at_all(stage: Stage) -> None:
    """The CLI asks in its terminal only, and writes its text after an answer there."""
    stage.start_emacs(stage.sandbox.greeting, forms=("(setq qwen-companion-diff-style nil)",))
    stage.script_change(stage.sandbox.greeting, EDITED)
    stage.start_cli()
    stage.ask("change the greeting")
    stage.screen.wait_for("Yes, allow once")
    assert stage.emacs.eval("(qwen-companion-proposals)") == "nil"
    stage.model.say("All done.")
    stage.screen.keys("Enter")
    stage.screen.wait_for("All done.")
    assert stage.sandbox.greeting.read_text() == EDITED
    assert stage.emacs.visible_buffers() == ["greeting.py", "*qwen: project*"]


@pytest.mark.ends_stage
def test_emacs_ends_in_a_review_and_the_terminals_question_stays(stage: Stage) -> None:
    stage.start_emacs(stage.sandbox.greeting)
    stage.end_cli()
    with stage.outside() as outside:
        stage.screen.wait_for("Qwen[1]")
        stage.script_change(stage.sandbox.greeting, EDITED)
        stage.ask("change the greeting", screen=outside)
        stage.screen.wait_for("C-c C-c accept")
        outside.wait_for("Yes, allow once")
        backend = stage.sandbox.backend()
        # Nothing was edited, so nothing is asked.
        stage.screen.keys("C-x", "C-c")
        assert has_ended(stage.emacs.process, PATIENCE)
        assert has_ended(backend, PATIENCE)
        stage.model.say("All done.")
        outside.keys("Enter")
        outside.wait_for("All done.")
        assert stage.sandbox.greeting.read_text() == EDITED
    stage.sandbox.assert_no_files()
