# SPDX-License-Identifier: GPL-3.0-or-later
"""Buffers follow what is written, with and without a review, and nothing that was typed is lost."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from editor import lisp_string
from sandbox import EDITED, GREETING, NEW_NOTES
from stage import Stage
from terminal import PATIENCE

pytestmark = pytest.mark.reuses_stage("client")

FILES = 2000
VISITED = 200
"""How many of them are visited: here, since TRAMP takes longer for each, a tenth there."""


def in_buffer(path: Path, form: str) -> str:
    """`form` to be evaluated in the buffer that visits `path`."""
    return f"(with-current-buffer {lisp_string(path.name)} {form})"


def wait_until_followed(stage: Stage, path: Path) -> None:
    """Wait until the file that the buffer of `path` was read from is known."""
    known = "qwen-companion-follow-far--base" if stage.far else "qwen-companion-follow--link"
    stage.emacs.wait_until(in_buffer(path, known))


def wait_for_text(stage: Stage, path: Path, text: str) -> None:
    """Wait until the buffer that visits `path` has `text`."""
    stage.screen.wait_until(lambda: stage.emacs.buffer_text(path.name) == text, f"{path.name} as it was written")


def git(stage: Stage, *arguments: str) -> None:
    """Run git in the project."""
    identity = ("-c", "user.name=Test", "-c", "user.email=test@localhost")
    subprocess.run(
        ["git", *identity, *arguments], cwd=stage.sandbox.project, env=stage.sandbox.environment(), check=True
    )


def windows(screen: str) -> list[str]:
    """Return the lines of `screen` without menu bar, mode lines and echo area."""
    return [line for line in screen.splitlines()[1:-1] if not re.match(r"-UU", line)]


def test_an_accepted_proposal_is_one_undo_step(stage: Stage) -> None:
    path = stage.sandbox.greeting
    new = "# New.\n" + EDITED.replace("world", "everybody")
    stage.start_emacs(path)
    client = stage.connect_client()
    stage.emacs.eval(
        in_buffer(
            path, '(progn (goto-char (point-min)) (set-window-point (get-buffer-window) (search-forward "def main")))'
        )
    )
    client.propose(path, new)
    stage.screen.wait_for("C-c C-c accept")
    stage.emacs.command("qwen-companion-diff-accept")
    assert client.write_accepted(path) == new
    wait_for_text(stage, path, new)
    before_point = in_buffer(path, "(buffer-substring 1 (window-point (get-buffer-window)))")
    assert stage.emacs.text(before_point).endswith("\ndef main")
    assert stage.emacs.eval(in_buffer(path, "(list (buffer-modified-p) (verify-visited-file-modtime))")) == "(nil t)"
    stage.emacs.eval(in_buffer(path, "(let (last-command this-command) (undo-boundary) (undo))"))
    assert stage.emacs.buffer_text(path.name) == GREETING
    assert stage.emacs.eval(in_buffer(path, "(buffer-modified-p)")) == "t"


def test_folds_windows_and_narrowing_stay(stage: Stage) -> None:
    book = stage.sandbox.project / "book.org"
    book.write_text("".join(f"* {n}\n" + "".join(f"line {n}.{m}\n" for m in range(20)) for n in range(10)))
    git(stage, "add", ".")
    git(stage, "commit", "--quiet", "-m", "A book")
    stage.start_emacs(stage.sandbox.notes)
    stage.connect_client()
    narrow = '(progn (search-forward "pears") (narrow-to-region (line-beginning-position) (point)))'
    stage.emacs.eval(in_buffer(stage.sandbox.notes, narrow))
    # One window shows the beginning, with one chapter unfolded, the other one the end.
    stage.emacs.eval(
        f"(progn (find-file {stage.emacs.lisp_name(book)}) (vc-refresh-state) (delete-other-windows) (org-overview)"
        ' (re-search-forward "^[*] 5") (org-cycle) (split-window-below)'
        " (with-selected-window (next-window) (goto-char (point-max)) (recenter -1)))"
    )
    before = stage.screen.wait_for(re.compile(r"book\.org .* Git-.*book\.org .* Git-", re.DOTALL))
    assert "line 5.7" in before
    assert "line 3" not in before
    text = book.read_text().replace("line 3.7\n", "line 3.7\nmore\n").replace("line 5.7", "line 5.seven")
    book.write_text(text)
    stage.sandbox.notes.write_text(NEW_NOTES)
    wait_for_text(stage, book, text)
    wait_for_text(stage, stage.sandbox.notes, NEW_NOTES)
    # The mode line says of both windows that the file is not what was committed.
    after = stage.screen.wait_for(re.compile(r"book\.org .* Git:.*book\.org .* Git:", re.DOTALL))
    assert windows(after) == [line.replace("line 5.7", "line 5.seven") for line in windows(before)]
    assert stage.emacs.text(in_buffer(stage.sandbox.notes, "(buffer-string)")) == "plums"
    follow_a_commit(stage, book)


def follow_a_commit(stage: Stage, book: Path) -> None:
    """Commit the changed `book`, which is shown in two windows: the mode line says so."""
    # A notification of another file comes with the change: Emacs takes it for input, and stays idle.
    git(stage, "commit", "--quiet", "--all", "-m", "Seven")
    is_back = re.compile(r"book\.org .* Git-.*book\.org .* Git-", re.DOTALL)
    if stage.far is not None:
        stage.screen.wait_for(is_back)
        return
    told = stage.sandbox.tmp / "told"
    refresh = in_buffer(book, "(qwen-companion-follow--refresh-vc-soon)")
    stage.emacs.eval(
        f"(progn (require 'filenotify) (file-notify-add-watch {lisp_string(str(told.parent))} '(change) #'ignore)"
        f' (make-process :name "tell" :noquery t :command \'("sh" "-c" "echo; : > {told}; cat")'
        f" :filter (lambda (&rest _) {refresh}))"
        f' (call-process "sh" nil nil nil "-c" "until [ -e {told} ]; do :; done"))'
    )
    stage.screen.wait_for(is_back)
    stage.emacs.eval('(delete-process "tell")')


def test_unsaved_text_is_merged(stage: Stage) -> None:
    path = stage.sandbox.greeting
    stage.start_emacs(path)
    stage.connect_client()
    wait_until_followed(stage, path)
    stage.emacs.eval(in_buffer(path, '(progn (goto-char (point-max)) (insert "# mine\\n"))'))
    path.write_text(EDITED)
    wait_for_text(stage, path, EDITED + "# mine\n")
    assert stage.emacs.eval(in_buffer(path, "(list (buffer-modified-p) (verify-visited-file-modtime))")) == "(t t)"
    assert path.read_text() == EDITED
    # The same line now.
    stage.emacs.eval(
        in_buffer(path, '(progn (goto-char (point-min)) (search-forward "good day") (replace-match "ahoy"))')
    )
    path.write_text(EDITED.replace("good day", "good evening"))
    stage.emacs.wait_until(in_buffer(path, "(bound-and-true-p smerge-mode)"))
    text = stage.emacs.buffer_text(path.name)
    for line in ("<<<<<<< yours\n", '"ahoy "', "||||||| before\n", '"good day "', "=======\n", '"good evening "'):
        assert line in text
    assert text.endswith("# mine\n")
    assert "ahoy" not in path.read_text()
    # The markers are not for the file, unless the user insists.
    stage.emacs.eval('(progn (select-window (get-buffer-window "greeting.py")) (goto-char (point-max)))')
    stage.screen.keys("C-x", "C-s")
    refusal = "greeting.py has 1 unresolved conflict with the file on disk: resolve first"
    # That the context is told takes its place on the screen: point moves to the conflict.
    stage.screen.wait_until(lambda: refusal in stage.emacs.buffer_text("*Messages*"), "the refusal")
    stage.emacs.wait_until(in_buffer(path, '(looking-at "<<<<<<< yours")'))
    assert "ahoy" not in path.read_text()
    stage.screen.keys("C-u", "C-x", "C-s")
    stage.emacs.wait_until(in_buffer(path, "(not (buffer-modified-p))"))
    assert path.read_text() == stage.emacs.buffer_text(path.name) == text


def test_a_file_written_slowly_is_followed_once(stage: Stage) -> None:
    """Emptied and filled later, and in ten pieces: places stay, and unsaved text gets no conflict."""
    old = [f"line {number} of the book\n" for number in range(200)]
    book = stage.sandbox.project / "book.txt"
    book.write_text("".join(old))
    stage.start_emacs(book)
    stage.connect_client()
    wait_until_followed(stage, book)
    # On a busy machine the pauses below are longer.
    idle = stage.emacs.eval("qwen-companion-disk-idle-writer")
    stage.emacs.eval(f"(setq qwen-companion-disk-idle-writer {PATIENCE})")
    stage.emacs.eval(
        in_buffer(
            book,
            "(progn (goto-char (point-min)) (forward-line 100)"
            " (setq-local texts nil) (add-hook 'after-change-functions (lambda (&rest _)"
            " (push (buffer-size) texts)) nil t))",
        )
    )
    new = ["line 7 of another book\n" if number == 7 else line for number, line in enumerate(old)]
    (stage.sandbox.tmp / "new").write_text("".join(new))
    script = ': > "$0"; sleep 0.7; cat "$1" > "$0"'
    subprocess.run(["sh", "-c", script, book, stage.sandbox.tmp / "new"], check=True)
    wait_for_text(stage, book, "".join(new))
    stage.emacs.eval(in_buffer(book, '(save-excursion (goto-char (point-max)) (insert "mine\\n"))'))
    new[50] = "line 50 is new\n"
    (stage.sandbox.tmp / "new").write_text("".join(new))
    script = ': > "$0"; for n in 0 1 2 3 4 5 6 7 8 9; do tail -n +$((20*n + 1)) "$1" | head -20 >> "$0"; sleep .2; done'
    subprocess.run(["sh", "-c", script, book, stage.sandbox.tmp / "new"], check=True)
    wait_for_text(stage, book, "".join(new) + "mine\n")
    assert stage.emacs.eval(in_buffer(book, "(line-number-at-pos)")) == "101"
    # No step of it emptied the buffer or brought markers into it.
    least = int(stage.emacs.eval(in_buffer(book, "(apply #'min texts)")))
    most = int(stage.emacs.eval(in_buffer(book, "(apply #'max texts)")))
    assert abs(most - least) < 100
    stage.emacs.eval(f"(setq qwen-companion-disk-idle-writer {idle})")


def test_a_branch_switch_is_followed(stage: Stage) -> None:
    project = stage.sandbox.project
    directory = project / "many"
    directory.mkdir()
    files = [directory / f"{number}.txt" for number in range(FILES)]

    for branch in ("after", "before"):
        git(stage, "checkout", "--quiet", "-b", branch)
        for file in files:
            file.write_text(f"line 1\n{file.stem} {branch}\nline 3\n")
        git(stage, "add", ".")
        git(stage, "commit", "--quiet", "-m", branch)
    stage.start_emacs(stage.sandbox.greeting)
    visited = VISITED // 10 if stage.far else VISITED
    # Without git's state of each, for which Emacs would start three programs.
    stage.emacs.eval(
        f"(let (vc-handled-backends) (dotimes (number {visited})"
        f" (find-file-noselect (format {stage.emacs.lisp_name(directory / '%d.txt')} (* 10 number)))))",
    )
    stage.connect_client()
    git(stage, "checkout", "--quiet", "after")
    stage.emacs.wait_until(
        "(cl-loop for buffer in (buffer-list)"
        ' always (or (not (string-match-p "/many/" (or (buffer-file-name buffer) "")))'
        " (with-current-buffer buffer"
        '  (and (equal (buffer-string) (format "line 1\\n%s after\\nline 3\\n" (file-name-base buffer-file-name)))'
        "   (not (buffer-modified-p)) (verify-visited-file-modtime)))))"
    )
