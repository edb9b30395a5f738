# SPDX-License-Identifier: GPL-3.0-or-later
"""A CLI on another host is served as if it were here."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from glob import glob
from pathlib import Path

import psutil
import pytest

from clis import QWEN
from editor import lisp_string
from far import PLACE, Far
from plans import ANSWERS, answer_questions
from sandbox import GREETING
from stage import Stage

pytestmark = [pytest.mark.long, pytest.mark.at("ssh")]

PASTE_IMAGE = r"""
  (cl-letf (((symbol-function 'gui-get-selection) (lambda (&rest _) "\211PNG\r\n")))
    (with-current-buffer (car (qwen-companion-terminal-buffers)) (qwen-companion-paste-image)))"""

FIND_NUMBERS = r"""
(with-current-buffer (get-file-buffer "NAME")
  (defun find-numbers (report &rest _)
    (save-excursion
      (goto-char (point-min))
      (funcall report (when (re-search-forward "# [0-9]+" nil t)
                        (list (flymake-make-diagnostic (current-buffer) (match-beginning 0) (match-end 0)
                                                       :error (concat "found " (match-string 0))))))))
  (setq-local flymake-diagnostic-functions '(find-numbers))
  (flymake-mode 1)
  (flymake-start)
  nil)"""

NOTE_HANDLED = """
(progn
  (setq far-handled nil far-polls 0)
  (defun far-note (operation &rest _)
    (let (ours cause)
      (mapbacktrace
       (lambda (_evald function &rest _)
         (cond (cause)
               ;; What a command or a test does may wait for the host.
               ((or (memq function '(command-execute read-from-minibuffer))
                    (string-prefix-p "server-" (format "%s" function)))
                (setq cause 'user))
               ;; The mode line of Emacs marks remote buffers.
               ((string-prefix-p "redisplay_internal" (format "%s" function))
                (setq cause (if ours 'redisplay 'user)))
               ((memq function '(timer-event-handler epc:process-filter file-notify-handle-event))
                (setq cause function))
               ((string-prefix-p "qwen-companion" (format "%s" function))
                (push function ours)))))
      (when (and ours (not (eq 'user cause)))
        (push (list cause operation ours) far-handled))))
  (advice-add 'tramp-file-name-handler :before #'far-note)
  (advice-add 'qwen-companion-follow--poll :before (lambda () (setq far-polls (1+ far-polls))))
  nil)"""
"""Notes the file name handlers that our timers, messages and signs in the mode line call."""

EDITED = GREETING.replace("hello", "good morning")

NOT_ASKED = "(setq qwen-companion-remote-places nil)"


@pytest.fixture
def far(stage: Stage) -> Iterator[Far]:
    """Return the place of the stage."""
    assert stage.far is not None
    yield stage.far
    # The relay there can be told to end only while the server runs.
    if stage.emacs.running:
        stage.emacs.eval("(when qwen-companion-mode (qwen-companion-mode -1))")
        stage.screen.wait_until(lambda: not stage.sandbox.discovery_files, "nothing laid there")


def start_emacs(stage: Stage, *forms: str) -> None:
    """Start Emacs with a file of this machine and `forms`."""
    here = stage.sandbox.here / "here.txt"
    here.write_text("not there\n")
    stage.start_emacs(forms=(*forms, f'(find-file "{here}")'))


def visit(stage: Stage, far: Far, path: Path) -> None:
    """Visit the file `path` there."""
    stage.emacs.eval(f"(progn (find-file {stage.emacs.lisp_name(path)}) nil)")


def start_cli(stage: Stage, far: Far) -> None:
    """Start the CLI there by typing the command's name in a buffer of a file there."""
    visit(stage, far, far.file)
    stage.emacs.command("qwen-companion-run")
    if stage.emacs.eval("qwen-companion-remote-places") == "nil":
        stage.screen.wait_for(f"Serve the CLIs at {far.label}?")
        stage.screen.enter("yes")
    stage.screen.wait_for("Type your message")
    stage.screen.wait_for("Qwen[1]")
    stage.screen.wait_gone("IDE connecting")
    # A reply of the terminal ("[?1;2c") that comes too late for the CLI is in its prompt, as if it had been typed.
    stage.screen.keys("C-a", "C-k")


def propose(stage: Stage, far: Far, content: str) -> None:
    """Have the CLI propose `content` for the file there, and wait for the review."""
    stage.model.call("read_file", file_path=str(far.file))
    stage.model.call("write_file", file_path=str(far.file), content=content)
    stage.ask("please")
    stage.wait_for_review()


def kill_and_wait(stage: Stage, far: Far, process: psutil.Process) -> None:
    """Kill `process`, which ends the line to the place, and wait until the CLI there is back."""
    before = far.links()
    process.kill()
    # Else the state is still that of before.
    stage.screen.wait_until(lambda: bool(set(far.links()) - set(before)), "another line")
    stage.emacs.wait_until(
        "(and (qwen-companion-backend-sessions) (plist-get (car (qwen-companion-backend-sessions)) :streaming)"
        f" (eq 'ready (qwen-companion-place-state (qwen-companion-places-message {json.dumps(PLACE)}))))"
    )


def ask_from_emacs(stage: Stage, far: Far) -> None:
    """Send the CLI there a region of the file, whose model asks Emacs for the text."""
    stage.model.call("mcp__emacs__buffer_text", path=str(far.file))
    stage.model.say("Explained.")
    stage.emacs.eval(
        f'(with-current-buffer (get-file-buffer "{far.name(far.file)}") (goto-char (point-min))'
        " (push-mark (line-end-position) t t) (let ((transient-mark-mode t)) (qwen-companion-ask-send "
        '"explain")))'
    )
    stage.screen.wait_for("Explained.")
    found = f'(nth 2 (qwen-companion-prompt-completion-file "{far.name(far.project)}" 1))'
    stage.emacs.wait_until(f'(with-temp-buffer (insert "@gr") (member "greeting.py" (all-completions "gr" {found})))')
    # After the three of the review, and two each of the questions and the command.
    *_, answers, _, _, request, answered = (stage.model.next_request() for _ in range(9))
    assert ANSWERS in "".join(answers.tool_results)
    assert "greeting.py, line 1:\n```" in request.prompt
    # What was undone is told, by the names that it knows.
    assert "--- greeting.py\n+++ greeting.py\n@@ " in request.prompt
    assert "\n-added\n" in request.prompt
    assert "\n- new.txt: deleted\n" in request.prompt
    assert "| # A small program" in "".join(answered.tool_results)


def paste_image(stage: Stage) -> None:
    """Paste an image of this machine into the prompt there, and close the terminal, with which the copy goes."""
    before = set(glob("/tmp/qwen-*.png"))
    stage.emacs.eval(PASTE_IMAGE)
    stage.screen.wait_for("Attachments: [")
    (copy,) = set(glob("/tmp/qwen-*.png")) - before
    stage.emacs.eval("(let (kill-buffer-query-functions) (kill-buffer (car (qwen-companion-terminal-buffers))))")
    assert not Path(copy).exists()


def change_by_command(stage: Stage, far: Far) -> None:
    """Have the agent change files by a command; its turns are shown with the name of the place."""
    command = "printf 'added\\n' >> greeting.py; rm old.bin; printf 'KEY=2\\n' > .env; printf 'new\\n' > new.txt"
    stage.model.call("run_shell_command", command=command, is_background=False)
    stage.model.say("All done.")
    stage.ask("by a command")
    stage.screen.wait_for("Yes, allow once")
    stage.screen.enter("")
    stage.screen.wait_for("All done.")
    stage.emacs.eval("(save-window-excursion (qwen-companion-changes) nil)")
    stage.emacs.wait_until(
        "(and (length= (qwen-companion-journal-turns) 2)"
        " (cl-every #'qwen-companion-turn-end (qwen-companion-journal-turns)))"
    )
    prompt = f"please  {far.label}:"
    for line in ("greeting.py  +1 -0  run_shell_command", "new.txt  new  +1 -0", "old.bin  deleted", prompt):
        # It is drawn a moment after Emacs knows.
        stage.screen.wait_until(lambda text=line: text in stage.emacs.buffer_text("*qwen-companion changes*"), line)
    assert ".env" not in stage.emacs.buffer_text("*qwen-companion changes*")
    stage.emacs.wait_until("(qwen-companion-session-usage (car (qwen-companion-backend-sessions)))")
    stage.emacs.eval(
        '(with-current-buffer "*qwen-companion changes*" (goto-char (point-min))'
        " (cl-letf (((symbol-function 'y-or-n-p) (lambda (_) t))) (qwen-companion-changes-undo)))"
    )
    assert far.file.read_text() == EDITED + "# edited\n"
    assert (far.project / "old.bin").read_bytes() == b"\0\xff"
    assert not (far.project / "new.txt").exists()
    assert (far.project / ".env").read_text() == "KEY=2\n"
    assert stage.emacs.eval(f'(buffer-modified-p (get-file-buffer "{far.name(far.file)}"))') == "nil"


def follow(stage: Stage, far: Far) -> None:
    """Write the file there: its buffer follows, with unsaved text merged, one undo step and no word to TRAMP."""
    buffer = f'(with-current-buffer (get-file-buffer "{far.name(far.file)}")'
    stage.emacs.eval(
        "(progn (setq far-sent 0) (advice-add 'tramp-send-command :before (lambda (&rest _)"
        " (setq far-sent (1+ far-sent)))) nil)"
    )

    def written(text: str, is_modified: str) -> None:
        stage.emacs.eval("(setq far-sent 0)")
        far.file.write_text(text)
        stage.emacs.wait_until(
            f'{buffer} (and (string-prefix-p "# {text[2:7]}" (buffer-string)) (eq {is_modified} (buffer-modified-p))))'
        )
        assert stage.emacs.eval("far-sent") == "0"

    text = far.file.read_text()
    written("# first\n" + text, "nil")
    stage.emacs.eval(f'{buffer} (goto-char (point-max)) (insert "# mine\\n"))')
    written("# again\n" + text, "t")
    both = "# again\n" + text + "# mine\n"
    assert stage.emacs.eval(f"{buffer} (buffer-substring-no-properties (point-min) (point-max)))") == json.dumps(both)
    stage.emacs.eval(f"{buffer} (deactivate-mark) (undo-boundary) (let ((last-command nil)) (undo 1)))")
    assert stage.emacs.eval(f"{buffer} (buffer-substring-no-properties 1 8))") == '"# first"'
    stage.emacs.eval(f"{buffer} (undo-boundary) (let ((last-command nil)) (undo 1)) (save-buffer))")
    assert far.file.read_text() == both
    stage.emacs.eval("(setq far-sent 0)")
    far.file.unlink()
    for shown in (" deleted", "nil"):
        stage.emacs.wait_until(
            f'(with-current-buffer "{far.file.name}" (equal {json.dumps(shown) if shown != "nil" else shown}'
            " (and (qwen-companion-follow-lighter) (substring-no-properties (qwen-companion-follow-lighter)))))"
        )
        assert stage.emacs.eval("far-sent") == "0"
        far.file.write_text(both)


def test_the_main_job(stage: Stage, far: Far) -> None:
    """Context, a review with edits and the turn's end, as here; nothing is left there."""
    do_everything(stage, far)
    paste_image(stage)
    stage.emacs.command("qwen-companion-mode")
    stage.screen.wait_until(lambda: not far.laid, "nothing laid there")


def do_everything(stage: Stage, far: Far) -> None:
    """Do all that is the same at each kind of place."""
    do_the_main_job(stage, far)
    answer_questions(stage)
    change_by_command(stage, far)
    ask_from_emacs(stage, far)
    follow(stage, far)
    review_in_auto(stage, far)
    stage.emacs.eval("(setq far-polls 0)")
    stage.emacs.wait_until("(> far-polls 2)")
    assert stage.emacs.eval("(delete-dups far-handled)") == "nil"


def review_in_auto(stage: Stage, far: Far) -> None:
    """Review an edit that the CLI would make unasked, and accept it with changes: the relay writes."""
    stage.emacs.eval('(pop-to-buffer "*qwen: project*")')
    for mode in ("auto-accept edits", "Auto mode"):
        stage.screen.keys("BTab")
        stage.screen.wait_for(mode)
    before = far.file.read_text()
    stage.script_change(far.file, before + "# more\n")
    stage.ask("in auto")
    stage.screen.wait_for("C-c C-c accept")
    stage.screen.wait_gone("comparing...")
    stage.emacs.eval(
        "(with-current-buffer (qwen-companion-proposal-buffer (car (qwen-companion-proposals)))"
        ' (setq buffer-read-only nil) (goto-char (point-max)) (insert "# by hand\\n"))'
    )
    stage.model.say("As you like it.")
    stage.accept("As you like it.")
    assert far.file.read_text() == before + "# more\n# by hand\n"
    stage.emacs.wait_until("(null qwen-companion-proposal--awaiting-write)")


def do_the_main_job(stage: Stage, far: Far, *forms: str) -> None:
    """Start Emacs with `forms` and the CLI there; have it told of files, and an edit reviewed, edited and accepted."""
    start_emacs(stage, NOT_ASKED, *forms)
    (far.project / ".env").write_text("KEY=1\n")
    (far.project / "old.bin").write_bytes(b"\0\xff")
    (far.project / "built.txt").write_text("built\n")
    (far.project / ".gitignore").write_text("built.txt\n")
    for name in (".env", "built.txt"):
        visit(stage, far, far.project / name)
    start_cli(stage, far)
    stage.emacs.eval(NOTE_HANDLED)
    assert sorted(path.suffix for path in far.laid) == [".header", ".json", ".lock", ".sh", ".sock"]
    assert not any(path.stat().st_mode & 0o077 for path in (*far.laid, far.laid[0].parent))
    prompt = stage.asked("one")
    assert f"Path: {far.file}" in prompt
    assert not any(f"/{name}" in prompt for name in ("here.txt", ".env", "built.txt"))
    propose(stage, far, EDITED)
    stage.screen.wait_for(f"{far.label}:")
    stage.emacs.eval(
        "(with-current-buffer (qwen-companion-proposal-buffer (car (qwen-companion-proposals)))"
        ' (setq buffer-read-only nil) (goto-char (point-max)) (insert "# edited\\n"))'
    )
    stage.model.say("Done.")
    stage.accept("Done.")
    stage.screen.wait_until(lambda: far.file.read_text() == EDITED + "# edited\n", "the edited text there")
    assert stage.emacs.eval(
        "(qwen-companion-session-list--project (car (qwen-companion-backend-sessions)))"
    ) == json.dumps(f"{far.label}:{far.project}", ensure_ascii=False)
    stage.emacs.wait_until("(null qwen-companion-proposal--awaiting-write)")
    assert stage.emacs.eval("(qwen-companion-rescue-buffers)") == "nil"


def test_a_broken_line_and_a_killed_backend_cost_nothing(stage: Stage, far: Far) -> None:
    """The CLI goes on without noticing, the model is told of problems; what a killed Emacs has laid there goes too."""
    start_emacs(stage)
    start_cli(stage, far)
    stage.emacs.eval(FIND_NUMBERS.replace("NAME", far.name(far.file)))
    (socket,) = (path for path in far.laid if path.suffix == ".sock")
    for kill in (far.links()[-1], stage.sandbox.backend()):
        kill_and_wait(stage, far, kill)
        propose(stage, far, f"# {kill.pid}\n")
        stage.model.say(f"Wrote {kill.pid}.")
        stage.accept(f"Wrote {kill.pid}.")
        stage.screen.wait_until(lambda text=f"# {kill.pid}\n": far.file.read_text() == text, "the text there")
        assert socket in far.laid
    # On a busy machine a checker may report later than the CLI waits.
    results = "".join(text for _ in range(6) for text in stage.model.next_request().tool_results)
    assert "greeting.py:1:1: error: found # " in results
    stage.sandbox.kill_clis()
    stage.emacs.wait_until("(null (qwen-companion-backend-sessions))")
    assert socket in far.laid
    # With Emacs ends the connection of TRAMP, which the line to the relay shares.
    stage.emacs.process.kill()
    stage.screen.wait_until(lambda: not far.laid, "nothing laid there")


def test_a_cli_that_is_started_by_hand_is_served(stage: Stage, far: Far) -> None:
    """In a terminal that TRAMP opens there, it finds Emacs, and the tools of Emacs."""
    stage.start_emacs(stage.sandbox.greeting)
    stage.start_in_shell(QWEN)
    stage.model.call("mcp__emacs__buffer_text", path=str(far.file))
    stage.converse("read it", "Read it.")
    request, answered = stage.model.next_request(), stage.model.next_request()
    assert f"Path: {far.file}" in request.prompt
    assert "| # A small program" in "".join(answered.tool_results)
    terminal = "(qwen-companion-terminal-session-buffer (car (qwen-companion-backend-sessions)))"
    assert stage.emacs.eval(f"(eq (window-buffer) {terminal})") == "t"
    stage.emacs.eval(f'(with-current-buffer "{far.file.name}" (save-window-excursion (qwen-companion-doctor)))')
    report = '(with-current-buffer "*qwen-companion doctor*" (buffer-string))'
    stage.screen.wait_until(lambda: "forwarding" in stage.emacs.text(report), "the place is checked")
    names = ("reach", "shell", "PATH", "Node.js", "CLI", "home", "files", "forwarding", "clock")
    checks = re.findall(r"^(pass|warn|fail) +far ([\w.]+):", stage.emacs.text(report), re.MULTILINE)
    assert checks == [("pass", name) for name in names]
    stage.sandbox.kill_clis()
    stage.emacs.command("qwen-companion-mode")
    stage.screen.wait_until(lambda: not far.laid, "nothing laid there")
    left = stage.emacs.eval("(list connection-local-profile-alist connection-local-criteria-alist)")
    assert "qwen-companion" not in left


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
@pytest.mark.at("docker-shared")
def test_a_dev_container_of_the_project(stage: Stage, far: Far) -> None:
    """It is offered; the CLI there works with the buffers of this machine, and its turn is recorded once."""
    there = far.mounted / far.file.name
    (far.project / ".devcontainer.json").write_text('{"image": "none", // a comment\n}')
    stage.start_emacs(forms=(NOT_ASKED, f"(find-file {lisp_string(str(far.file))})"))
    stage.emacs.command("qwen-companion-run")
    stage.screen.wait_for("Run Qwen Code in it?")
    stage.screen.enter("yes")
    stage.screen.wait_for("Type your message")
    stage.screen.wait_for("Qwen[1]")
    stage.screen.wait_gone("IDE connecting")
    assert stage.asked("one").count(f"Path: {there}\n") == 1
    stage.model.call("read_file", file_path=str(there))
    stage.model.call("write_file", file_path=str(there), content="# new\n")
    stage.ask("please")
    stage.wait_for_review()
    stage.model.call("mcp__emacs__buffer_text", path=str(there))
    stage.model.say("Done.")
    stage.accept("Done.")
    stage.screen.wait_until(lambda: far.file.read_text() == "# new\n", "the text")
    stage.screen.wait_until(lambda: stage.emacs.buffer_text(far.file.name) == "# new\n", "its buffer to follow")
    assert stage.emacs.eval("(hash-table-count qwen-companion-places--copies)") == "0"
    stage.emacs.eval("(save-window-excursion (qwen-companion-changes) nil)")
    turns = "(cl-remove-if-not #'qwen-companion-turn-end (qwen-companion-journal-turns))"
    stage.emacs.wait_until(f"(length= {turns} 1)")
    assert stage.emacs.eval(f"(qwen-companion-turn-root (car {turns}))") == lisp_string(str(far.project))
    *_, answered = (stage.model.next_request() for _ in range(4))
    assert "| # new" in "".join(answered.tool_results)
    # In the project, the same command goes back to it without a question.
    stage.emacs.eval(f'(switch-to-buffer (get-file-buffer "{far.file}"))')
    stage.emacs.command("qwen-companion-run")
    stage.emacs.wait_until("(memq (window-buffer) (qwen-companion-terminal-buffers))")


def test_what_is_wrong_is_told_with_the_way_out(stage: Stage, far: Far) -> None:
    """Nothing is asked in the middle, and the next attempt works."""
    start_emacs(stage)
    far.trust(far.root / "user.pub")
    run = f'(progn (qwen-companion-start-cli "{far.name(far.project)}/" nil nil nil) nil)'
    stage.emacs.eval(run)
    stage.screen.wait_for("another one than before")
    far.trust(far.root / "host.pub")
    far.stop()
    stage.emacs.eval(run)
    stage.screen.wait_for("no ssh server answers there")
    # Before it answers: Emacs may try again by itself.
    far.want_password(is_logged_in=False)
    far.start()
    stage.emacs.eval(run)
    stage.screen.wait_for("ssh needs a password")
    far.want_password(is_logged_in=True)
    stage.emacs.eval(run)
    stage.screen.wait_for("Type your message")
    stage.screen.wait_for("Qwen[1]")
