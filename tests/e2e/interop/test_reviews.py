# SPDX-License-Identifier: GPL-3.0-or-later
"""Reviews that the hook before an edit holds, in each version of Qwen Code with a mode `auto`."""

from __future__ import annotations

import base64
import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from model_types import Answer, Call
from random_edits import RandomEdit, random_edits
from sandbox import EDITED, GREETING, NEW_NOTES, NOTES
from scripted_model import CLASSIFICATION, MAIN_TOOL
from stage import Stage
from test_auto_mode import begin, edit_review, result, review_edits, start_in_auto, wait_for_review

pytestmark = pytest.mark.interop

PROGRAMS = ("qwen-0.21.2", "qwen-0.21.10", "qwen-0.23.4", "qwen")


def start(stage: Stage, program: str, *forms: str, **rules: Sequence[str]) -> None:
    start_in_auto(stage, f'(setq qwen-companion-qwen-command (list "{program}"))', *forms, **rules)


def end_turn(stage: Stage, command: str, said: str) -> None:
    """Decide by `command`; the turn goes on, and ends with what the model has `said`."""
    stage.model.say(said)
    stage.emacs.eval(command)
    stage.screen.wait_for(said)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_decision_in_time_is_the_answer(stage: Stage, program: str) -> None:
    start(stage, program)
    greeting, notes = stage.sandbox.greeting, stage.sandbox.notes
    begin(stage, greeting, EDITED, "change the greeting")
    end_turn(stage, "(qwen-companion-diff-accept)", "All done.")
    assert greeting.read_text() == EDITED
    begin(stage, notes, NEW_NOTES, "plums please")
    end_turn(stage, '(qwen-companion-diff-reject nil "too sweet")', "No plums, then.")
    assert notes.read_text() == NOTES
    assert "too sweet" in result(stage)
    begin(stage, greeting, GREETING, "back again")
    edit_review(stage, greeting, "# by a person\n")
    end_turn(stage, "(qwen-companion-diff-accept)", "As you like it.")
    assert greeting.read_text() == GREETING + "# by a person\n"
    assert "+# by a person" in result(stage)
    # The model is told right: an edit without reading the file anew fails.
    stage.model.call("write_file", file_path=str(greeting), content=EDITED)
    stage.ask("once more")
    wait_for_review(stage)
    end_turn(stage, "(qwen-companion-diff-accept)", "It has changed.")
    assert greeting.read_text() == GREETING + "# by a person\n"


@pytest.mark.parametrize("key", ["(vterm-send-escape)", '(vterm-send-key "c" nil nil t)'])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_call_that_is_cancelled_in_the_terminal_is_withdrawn(stage: Stage, program: str, key: str) -> None:
    start(stage, program)
    begin(stage, stage.sandbox.notes, NEW_NOTES, "plums please")
    stage.emacs.eval(f'(with-current-buffer "*qwen: project*" {key})')
    stage.wait_until_said("notes.txt: the turn is over")
    assert stage.sandbox.notes.read_text() == NOTES


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_terminal_asks_after_50_seconds_and_takes_the_answer_from_emacs(stage: Stage, program: str) -> None:
    start(stage, program)
    notes = stage.sandbox.notes
    begin(stage, notes, NEW_NOTES, "plums please")
    stage.screen.wait_for(re.compile("is reviewing this change|Yes, allow once"))
    assert notes.read_text() == NOTES
    edit_review(stage, notes, "by hand\n")
    end_turn(stage, "(qwen-companion-diff-accept)", "As you like it.")
    stage.screen.wait_until(lambda: notes.read_text() == NEW_NOTES + "by hand\n", "the user's text")
    assert "+by hand" in result(stage)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("mode", ["auto-edit", "yolo"])
def test_edits_are_reviewed_in_all_modes_where_that_is_wanted(stage: Stage, program: str, mode: str) -> None:
    start(stage, program, f'(setq qwen-companion-approval-mode "{mode}")')
    review_edits(stage, "all-modes")
    stage.script_change(stage.sandbox.notes, NEW_NOTES)
    stage.screen.enter("plums please")
    wait_for_review(stage)
    assert stage.sandbox.notes.read_text() == NOTES
    end_turn(stage, "(qwen-companion-diff-reject)", "No plums, then.")
    assert stage.sandbox.notes.read_text() == NOTES


@pytest.mark.parametrize("program", PROGRAMS)
def test_two_edits_of_one_message_are_reviewed_one_after_the_other(stage: Stage, program: str) -> None:
    start(stage, program)
    greeting, notes = stage.sandbox.greeting, stage.sandbox.notes
    stage.model.calls(*(Call("read_file", {"file_path": str(path)}) for path in (greeting, notes)))
    stage.model.calls(
        Call("write_file", {"file_path": str(greeting), "content": EDITED}),
        Call("edit", {"file_path": str(notes), "old_string": "pears", "new_string": "plums"}),
    )
    stage.ask("two changes")
    wait_for_review(stage)
    stage.emacs.eval('(qwen-companion-diff-reject nil "not this one")')
    stage.emacs.wait_until('(get-buffer "*qwen-companion proposal: notes.txt*")')
    wait_for_review(stage)
    end_turn(stage, "(qwen-companion-diff-accept)", "One of two.")
    assert (greeting.read_text(), notes.read_text()) == (GREETING, NEW_NOTES)


@pytest.mark.parametrize("waits", [False, True], ids=["background", "foreground"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_subagent_reads_what_the_user_decides(stage: Stage, program: str, waits: bool) -> None:
    start(stage, program)
    notes = str(stage.sandbox.notes)
    plums = Answer(calls=(Call("edit", {"file_path": notes, "old_string": "pears", "new_string": "plums"}),))
    read = Answer(calls=(Call("read_file", {"file_path": notes}),))
    stage.model.start_subagent(read, plums, plums, Answer("The subagent is done."), waits=waits)
    if not waits:
        stage.model.say("It works for me.")
    stage.model.say("It has worked.")
    stage.ask("let somebody do it")
    wait_for_review(stage)
    stage.emacs.eval('(qwen-companion-diff-reject nil "are you sure")')
    # It makes the same call once more.
    stage.emacs.wait_until("(null (qwen-companion-proposals))")
    wait_for_review(stage)
    assert stage.sandbox.notes.read_text() == NOTES
    assert any("are you sure" in json.dumps(body) for body in list(stage.model.bodies))
    stage.accept("It has worked.")
    assert stage.sandbox.notes.read_text() == NEW_NOTES


def classified(stage: Stage) -> int:
    """Return how often the model was asked as the classifier."""
    return sum(CLASSIFICATION in json.dumps(body) for body in list(stage.model.bodies))


@pytest.mark.parametrize("program", PROGRAMS)
def test_files_outside_and_protected_ones_are_reviewed_once(stage: Stage, program: str) -> None:
    start(stage, program)
    outside, protected = stage.sandbox.root / "outside.txt", stage.sandbox.project / "package.json"
    for path, text in ((outside, "out\n"), (protected, "{}\n")):
        before = classified(stage)
        stage.model.call("write_file", file_path=str(path), content=text)
        stage.ask(f"make {path.name}")
        if program in ("qwen", "qwen-0.23.4") and path == outside:
            # The CLI asks by itself, and Emacs does not ask once more.
            stage.screen.wait_for("Yes, allow once")
            assert (classified(stage), path.exists()) == (before, False)
            stage.model.say(f"Made {path.name}.")
            stage.screen.keys("Enter")
            stage.screen.wait_for(f"Made {path.name}.")
        else:
            wait_for_review(stage)
            # The classifier comes first.
            assert classified(stage) > before
            assert not path.exists()
            end_turn(stage, "(qwen-companion-diff-accept)", f"Made {path.name}.")
        assert path.read_text() == text


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_the_users_own_rule_asks_about_is_asked_once(stage: Stage, program: str) -> None:
    start(stage, program, ask=["Edit"])
    notes = stage.sandbox.notes
    begin(stage, notes, NEW_NOTES, "plums please")
    # The CLI asks, and shows its own question meanwhile.
    stage.screen.wait_for("Yes, allow once")
    end_turn(stage, "(qwen-companion-diff-accept)", "All done.")
    assert notes.read_text() == NEW_NOTES


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_cli_without_a_terminal_reads_what_the_user_decides(stage: Stage, program: str) -> None:
    start(stage, program)
    review_edits(stage, "all-modes")
    stage.script_change(stage.sandbox.notes, NEW_NOTES)
    stage.model.say("No plums, then.")
    stage.open_shell("*shell*")
    stage.screen.enter(f"{program} -p --yolo 'plums please'; echo ended $?")
    stage.emacs.wait_until("(qwen-companion-proposals)")
    stage.emacs.eval('(qwen-companion-diff-reject "notes.txt" "too sweet")')
    stage.screen.wait_for("ended 0")
    assert stage.sandbox.notes.read_text() == NOTES
    assert "too sweet" in result(stage)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_terminal_asks_when_the_backend_stands_still(stage: Stage, program: str) -> None:
    start(stage, program)
    notes = stage.sandbox.notes
    begin(stage, notes, NEW_NOTES, "plums please")
    # Emacs starts another one, and the connection of the hook ends.
    stage.sandbox.backend().send_signal(signal.SIGSTOP)
    stage.screen.wait_for("Emacs does not answer")
    assert notes.read_text() == NOTES
    stage.model.say("All done.")
    stage.emacs.eval('(with-current-buffer "*qwen: project*" (vterm-send-return))')
    stage.screen.wait_for("All done.")
    assert notes.read_text() == NEW_NOTES
    stage.emacs.wait_until("(null (qwen-companion-proposals))")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_frozen_emacs_lets_no_edit_through(stage: Stage, program: str) -> None:
    """It reads no output of the CLI either, which waits for that."""
    start(stage, program)
    notes = stage.sandbox.notes
    begin(stage, notes, NEW_NOTES, "plums please")
    # Once the CLI has drawn its smaller window: what nobody reads then holds it up at once.
    stage.emacs.eval('(run-at-time 4 nil (lambda () (call-process "sleep" nil nil nil "75")))')
    stage.screen.wait_for("Yes, allow once")
    assert notes.read_text() == NOTES
    end_turn(stage, "(qwen-companion-diff-accept)", "Late, but well.")
    assert notes.read_text() == NEW_NOTES


@pytest.mark.parametrize("moment", ["held", "rejected", "accepted"])
@pytest.mark.parametrize("victim", ["Emacs", "backend", "CLI"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_is_lost_or_written_when_one_is_killed(stage: Stage, program: str, victim: str, moment: str) -> None:
    start(stage, program)
    notes = stage.sandbox.notes
    begin(stage, notes, NEW_NOTES, "plums please")
    if moment != "accepted":
        edit_review(stage, notes, "by hand\n")
    stage.model.say("All done.")
    if moment != "held":
        # The answer of Emacs is not waited for.
        stage.emacs.send(f'(qwen-companion-diff-{moment.removesuffix("ed")} "notes.txt")')
    if victim == "Emacs":
        stage.emacs.process.kill()
        stage.screen.wait_until(lambda: not stage.sandbox.clis(), "the end of the CLI")
    elif victim == "backend":
        stage.sandbox.backend().kill()
    else:
        stage.sandbox.kill_clis()
    if victim != "Emacs" and moment == "held":
        stage.emacs.wait_until('(get-buffer "*qwen-companion kept: notes.txt*")')
        assert "by hand" in stage.emacs.buffer_text("*qwen-companion kept: notes.txt*")
    if victim == "backend" and moment != "accepted":
        stage.screen.wait_for(re.compile("Emacs does not answer|All done"))
    if victim == "backend":
        stage.emacs.wait_until("(and qwen-companion-backend--restarts (eq (qwen-companion-state) 'ready))")
    assert notes.read_text() in (NOTES, NEW_NOTES if moment == "accepted" else NOTES)


@pytest.mark.parametrize("victim", ["Emacs", "backend", "CLI"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_is_lost_or_written_when_one_is_killed_while_the_terminal_asks(
    stage: Stage, program: str, victim: str
) -> None:
    start(stage, program)
    notes = stage.sandbox.notes
    begin(stage, notes, NEW_NOTES, "plums please")
    edit_review(stage, notes, "by hand\n")
    stage.screen.wait_for(re.compile("is reviewing this change|Yes, allow once"))
    if victim == "Emacs":
        stage.emacs.send('(qwen-companion-diff-reject "notes.txt")')
        stage.emacs.process.kill()
        stage.screen.wait_until(lambda: not stage.sandbox.clis(), "the end of the CLI")
        assert notes.read_text() == NOTES
        return
    if victim == "CLI":
        stage.sandbox.kill_clis()
        stage.emacs.wait_until('(get-buffer "*qwen-companion kept: notes.txt*")')
        assert "by hand" in stage.emacs.buffer_text("*qwen-companion kept: notes.txt*")
        assert notes.read_text() == NOTES
        return
    kill_backend(stage)
    assert "by hand" in stage.emacs.buffer_text("*qwen-companion kept: notes.txt*")
    stage.emacs.eval('(with-current-buffer "*qwen: project*" (vterm-send-escape))')
    stage.screen.wait_gone("Yes, allow once")
    assert notes.read_text() == NOTES
    # Accepted with changes: where its answer has reached the terminal, the text of the model may stay.
    begin(stage, notes, NEW_NOTES, "plums again")
    edit_review(stage, notes, "once more\n")
    stage.screen.wait_for(re.compile("is reviewing this change|Yes, allow once"))
    stage.model.say("All done.")
    stage.emacs.send('(qwen-companion-diff-accept "notes.txt")')
    kill_backend(stage)
    kept = '(mapconcat (lambda (buffer) (with-current-buffer buffer (buffer-string))) (buffer-list) "")'
    assert "once more" in notes.read_text() or "once more" in stage.emacs.text(kept)


def kill_backend(stage: Stage) -> None:
    """Kill the backend, and wait for the next one."""
    before = stage.emacs.eval("qwen-companion-backend--restarts")
    stage.sandbox.backend().kill()
    ready = "(eq (qwen-companion-state) 'ready)"
    stage.emacs.wait_until(f"(and (not (equal '{before} qwen-companion-backend--restarts)) {ready})")


ACCEPT_ALL = """
    (add-hook 'qwen-companion-proposal-begun-functions
              (lambda (proposal)
                (let* ((text (qwen-companion-proposal-buffer-text proposal))
                       (name (file-name-nondirectory (qwen-companion-proposal-path proposal)))
                       (line (concat name " " (base64-encode-string (encode-coding-string text 'utf-8) t) "\\n")))
                  (write-region line nil {log} t 'silent)
                  (run-at-time 0 nil #'qwen-companion-proposal-decide proposal 'accepted text))))
"""
"""Has Emacs accept each proposal, and write what it shows, by its file, into a `log`."""


def make_edits(stage: Stage, edits: Sequence[RandomEdit]) -> set[str]:
    """Have the model read the files of `edits` and make these; say yes where the terminal asks, and return where."""
    paths = [stage.sandbox.project / f"{number:03}{edit.suffix}" for number, edit in enumerate(edits)]
    for path, edit in zip(paths, edits, strict=True):
        if edit.data is not None:
            path.write_bytes(edit.data)
    for start_at in range(0, len(paths), 20):
        stage.model.calls(*(Call("read_file", {"file_path": str(path)}) for path in paths[start_at : start_at + 20]))
    for path, edit in zip(paths, edits, strict=True):
        key = "notebook_path" if edit.tool == "notebook_edit" else "file_path"
        stage.model.call(edit.tool, **{key: str(path)}, **edit.tool_input)
    stage.model.say("All made.")
    reads = -(-len(paths) // 20)

    def ended() -> int:
        bodies = list(stage.model.bodies)
        return sum(f'"{MAIN_TOOL}"' in json.dumps(body.get("tools")) for body in bodies) - reads - 1

    asked: set[str] = set()
    stage.ask("make them")
    for number, path in enumerate(paths):

        def asks() -> bool:
            return "Yes, allow once" in stage.screen.capture()

        stage.screen.wait_until(lambda n=number: ended() > n or asks(), f"the edit of {path.name}, or a question")
        while ended() <= number:
            if asks():
                asked.add(path.name)
                stage.screen.keys("Enter")
                stage.screen.wait_until(lambda n=number: ended() > n or not asks(), "the answer to be taken")
    stage.screen.wait_for("All made.")
    return asked


def unix(data: bytes) -> bytes:
    return data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")


@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_shown_of_random_edits_is_what_is_written(stage: Stage, tmp_path: Path, program: str) -> None:
    start(stage, program, "(setq qwen-companion-diff-arrival 'command)")
    log = tmp_path / "shown"
    stage.emacs.eval(ACCEPT_ALL.replace("{log}", json.dumps(str(log))))
    edits = list(random_edits(seed=2, count=200 if program == "qwen" else 50))
    asked = make_edits(stage, edits)
    lines = (line.partition(" ") for line in log.read_text().splitlines())
    shown = {name: text for name, _, text in lines}
    assert not asked & shown.keys()
    for name, text in shown.items():
        edit = edits[int(name[:3])]
        written = (stage.sandbox.project / name).read_bytes()
        assert unix(written) == base64.b64decode(text), (name, edit)
        if edit.data is not None and written:
            assert written.startswith(b"\xef\xbb\xbf") == edit.data.startswith(b"\xef\xbb\xbf"), (name, edit)
    print(f"{program}: of {len(edits)} edits, {len(shown)} shown and {len(asked)} asked about in the terminal")
    assert "does not have the accepted text" not in stage.emacs.buffer_text("*Messages*")
    assert len(shown) > len(edits) / 4
