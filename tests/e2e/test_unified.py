# SPDX-License-Identifier: GPL-3.0-or-later
"""Reviews hunk by hunk: what is dropped is not written, and both front ends show one proposal."""

from __future__ import annotations

import pytest

from client import Client
from display import display
from editor import draws_windows
from sandbox import GREETING
from stage import Stage

pytestmark = pytest.mark.reuses_stage("client")

OLD = "".join(f"line {number}\n" for number in range(1, 41))
NEW = OLD.replace("line 5\n", "line five\n").replace("line 20\n", "").replace("line 35\n", "line 35\nline 35a\n")
UNIFIED = "(setq qwen-companion-diff-style 'unified)"
# What the mode line says of the companion to a pointer above it.
LIGHTER_HELP = """
(let* ((line (format-mode-line mode-line-modes)) (place (string-search "Qwen[" line)))
  (and (lookup-key (get-text-property place 'local-map line) [mode-line mouse-1])
       (funcall (get-text-property place 'help-echo line) nil line place)))
"""
HUNKS = "*qwen-companion hunks: list.txt*"


def open_review(stage: Stage) -> Client:
    """Propose three changes of a list, and go to the review."""
    path = stage.sandbox.project / "list.txt"
    path.write_text(OLD)
    stage.start_emacs(path, forms=(UNIFIED,))
    client = stage.connect_client()
    client.propose(path, NEW)
    stage.screen.wait_for("Qwen[1!1]")
    stage.screen.wait_for("3 of 3 hunks kept")
    # The file has stayed selected.
    assert stage.emacs.visible_buffers() == [HUNKS, "list.txt"]
    assert stage.emacs.eval("(buffer-name (window-buffer))") == '"list.txt"'
    stage.emacs.command("qwen-companion-diff-open")
    return client


def accept(stage: Stage, client: Client, expected: str) -> None:
    """Accept the proposal, whose text must be `expected`, by the keys; return when Emacs shows what is written."""
    stage.screen.keys("C-c", "C-c")
    assert client.write_accepted(stage.sandbox.project / "list.txt") == expected
    stage.screen.wait_until(lambda: stage.emacs.buffer_text("list.txt") == expected, "the buffer as on disk")
    assert stage.emacs.visible_buffers() == ["list.txt"]


def test_what_is_dropped_is_not_written(stage: Stage) -> None:
    client = open_review(stage)
    stage.screen.keys("n", "k")
    stage.screen.wait_for("2 of 3 hunks kept")
    stage.screen.wait_for("dropped, u brings it back")
    assert stage.emacs.text(LIGHTER_HELP).startswith("1 CLI is connected, 1 proposal waits\nmouse-1: menu")
    stage.screen.keys("o")
    stage.screen.wait_for("0 of 3 hunks kept")
    stage.screen.keys("C-_")
    stage.screen.wait_for("2 of 3 hunks kept")
    accept(stage, client, NEW.replace("line 19\n", "line 19\nline 20\n"))


def test_to_ediff_and_back_by_one_key(stage: Stage) -> None:
    client = open_review(stage)
    stage.screen.keys("k")
    stage.screen.wait_for("2 of 3 hunks kept")
    stage.screen.keys("Tab")
    stage.screen.wait_for("Review in Ediff")
    # The dropped one is none for Ediff; its second one is dropped there.
    stage.screen.keys("n", "a", "Tab")
    stage.screen.wait_for("1 of 2 hunks kept")
    stage.screen.keys("u")
    stage.screen.wait_for("2 of 2 hunks kept")
    accept(stage, client, NEW.replace("line 35a\n", ""))


def test_lines_are_edited_in_the_mode_of_the_file(stage: Stage) -> None:
    client = open_review(stage)
    stage.screen.keys("e")
    stage.screen.wait_for("put it into the proposal")
    stage.screen.type("first", seen="firstline 2")
    stage.screen.keys("C-c", "C-c")
    stage.screen.wait_for("+firstline 2")
    accept(stage, client, NEW.replace("line 2\n", "firstline 2\n", 1))


def test_it_is_answered_in_the_terminal(stage: Stage) -> None:
    """The review closes; what was dropped in it is kept, since the CLI writes its own text."""
    client = open_review(stage)
    path = stage.sandbox.project / "list.txt"
    stage.screen.keys("k")
    stage.screen.wait_for("2 of 3 hunks kept")
    kept = NEW.replace("line five\n", "line 5\n")
    assert client.close(path) == kept
    path.write_text(NEW)
    stage.screen.wait_gone("hunks kept")
    stage.screen.wait_until(lambda: stage.emacs.buffer_text("list.txt") == NEW, "the buffer as on disk")
    assert stage.emacs.visible_buffers() == ["list.txt"]
    assert stage.emacs.buffer_text("*qwen-companion kept: list.txt*") == kept
    stage.emacs.eval('(with-current-buffer "*qwen-companion kept: list.txt*" (qwen-companion-kept-discard))')


@pytest.mark.skipif(not draws_windows(), reason="this Emacs draws no windows: EMACS=/path/to/emacs names one that does")
@pytest.mark.fresh_stage
def test_in_a_window_with_colours(stage: Stage) -> None:
    """The keys do the same, and what is seen has the colours of the file's mode."""
    with display() as screen:
        stage.emacs.start(
            stage.sandbox.greeting, forms=(UNIFIED, "(external-debugging-output ?.)"), display=screen.name
        )
        window = stage.emacs.text("(frame-parameter nil 'outer-window-id)")
        stage.emacs.eval("(qwen-companion-mode 1)")
        stage.emacs.wait_until("(eq (qwen-companion-state) 'ready)")
        text = GREETING.replace('"hello "', '"good day "').replace("def main", "def start")
        lisp = text.replace("\\", "\\\\").replace('"', '\\"')
        payload = f'\'(:id "p" :session "s" :client "Qwen Code" :path "{stage.sandbox.greeting}" :text "{lisp}")'
        stage.emacs.eval(f"(qwen-companion-proposal-on-open {payload})")
        stage.emacs.eval("(qwen-companion-diff-open)")
        buffer = '(get-buffer "*qwen-companion hunks: greeting.py*")'
        stage.emacs.wait_until(f"(buffer-local-value 'qwen-companion-review-unified--hunks {buffer})")
        face = (
            f"(with-current-buffer {buffer} (save-excursion (goto-char (point-min))"
            ' (and (search-forward "+def start" nil t) (get-text-property (- (point) 7) \'face))))'
        )
        stage.emacs.wait_until(f"(memq 'font-lock-keyword-face (ensure-list {face}))")
        screen.keys(window, "k")
        stage.emacs.wait_until("(qwen-companion-proposal-edited-p (car (qwen-companion-proposals)))")
        screen.keys(window, "Tab")
        stage.emacs.wait_until('(get-buffer-window "*Ediff Control Panel*")')
        screen.keys(window, "Tab")
        stage.emacs.wait_until('(get-buffer-window "*qwen-companion hunks: greeting.py*")')
        screen.keys(window, "ctrl+c", "ctrl+k")
        stage.emacs.wait_until("(null (qwen-companion-proposals))")
        assert stage.emacs.visible_buffers() == ["greeting.py"]
        stage.end()
