# SPDX-License-Identifier: GPL-3.0-or-later
"""Time the undo of a turn that has changed many files, in a real Emacs in a terminal, and the list that shows it.

    .build/venv/bin/python bench/undo.py [FILES [ROUNDS]]

A scripted agent changes a line of each of FILES files of 1 KB (3,000) with one command.  Its turn is undone by the key,
and beside that Emacs alone writes the same bytes into the same files.  A timer that is due all the time tells for how
long none could run, by the time of the processor, which a busy machine does not change.  Emacs has its default
`gc-cons-threshold`.  Medians of ROUNDS (5).  Asserts nothing.
"""

from __future__ import annotations

import re
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, cast

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT / name) for name in ("tests/e2e", "tests/helpers", "tests/fuzz", "python")]

from sexpdata import loads  # noqa: E402  the path is set first

from random_turns import Action, Agent  # noqa: E402  the path is set first
from stage import ROOTS_TOLD, Stage  # noqa: E402
from table import ROUNDS, compare  # noqa: E402

PROMPT = "change them all"

SETUP = f"""
(progn
  (setq gc-cons-threshold 800000
        bench-done nil bench-last nil bench-longest 0)
  (advice-add 'y-or-n-p :override #'always)
  (defun bench-tick ()
    (let ((now (float-time (get-internal-run-time))))
      (setq bench-longest (max bench-longest (- now bench-last))
            bench-last now)))
  (defun bench-time (function)
    (let* ((start (float-time))
           (timer (run-at-time 0 0.001 #'bench-tick)))
      (setq bench-last (float-time (get-internal-run-time)) bench-longest 0)
      (funcall function)
      (cancel-timer timer)
      (bench-tick)
      (list (* 1000 (- (float-time) start)) (* 1000 bench-longest))))
  (defun bench-later (function)
    (setq bench-done nil)
    (run-at-time 0 nil (lambda () (setq bench-done (bench-time function))))
    t)
  (defun bench-press (key)
    (with-current-buffer (window-buffer)
      (goto-char (point-min))
      (re-search-forward "[^\\"]{PROMPT}$")
      (call-interactively (key-binding (kbd key)))))
  (defun bench-texts (directory)
    (mapcar (lambda (file)
              (cons file (with-temp-buffer
                           (set-buffer-multibyte nil)
                           (insert-file-contents-literally file)
                           (buffer-string))))
            (directory-files-recursively directory "\\\\.py\\\\'")))
  (defun bench-write (texts)
    (let ((coding-system-for-write 'no-conversion)
          (create-lockfiles nil)
          (write-region-inhibit-fsync t))
      (pcase-dolist (`(,file . ,text) texts)
        (write-region text nil file nil 0))))
  t)
"""

DOOR = """
(let ((published qwen-companion-roots--answer))
  (list (cadr (assoc "QWEN_CODE_SYSTEM_DEFAULTS_PATH" (qwen-companion-published-environment published)))
        (qwen-companion-published-port published)
        (qwen-companion-published-token published)))
"""


def measure(stage: Stage, function: str) -> tuple[float, float]:
    """Call `function` in Emacs; return how long it took, and the longest time of work in which no timer ran, in ms."""
    stage.emacs.eval(f"(bench-later {function})")
    # Emacs answers in between, but asking takes its time.
    stage.screen.wait_until(lambda: stage.emacs.eval("bench-done") != "nil", function)
    took, longest = cast("list[float]", loads(stage.emacs.eval("bench-done")))
    return took, longest


def make_turn(stage: Stage, files: int) -> Agent:
    """Let an agent change `files` files in one turn."""
    for number in range(files):
        path = stage.sandbox.project / f"src/{number % 50}/{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"line {line} of {number}\n" for line in range(60)))
    stage.start_emacs(stage.sandbox.notes)
    stage.emacs.eval(SETUP)
    stage.emacs.wait_until(ROOTS_TOLD)
    layer, port, token = cast("list[Any]", loads(stage.emacs.eval(DOOR)))
    agent = Agent(stage.sandbox.project, stage.environment, layer, int(port), str(token))
    agent.hook("UserPromptSubmit", prompt=PROMPT)
    agent.act(Action("sed -i -e '5s/line/LINE/' src/*/*.py"))
    agent.hook("Stop")
    return agent


def main(files: int = 3000, rounds: int = ROUNDS) -> None:
    """Measure all and print a row for each."""
    with Stage() as stage, closing(make_turn(stage, files)):
        stage.emacs.command("qwen-companion-changes")
        stage.screen.wait_for(re.compile(rf"{files} files .*{PROMPT}"))
        pairs: list[tuple[float, float]] = []
        stretches: list[tuple[float, float]] = []
        for _ in range(rounds):
            lines = "(with-current-buffer (window-buffer) (count-lines (point-min) (point-max)))"
            stage.emacs.wait_until(f"(<= {files} {lines})")
            texts = "(setq bench-changed (bench-texts default-directory))"
            stage.emacs.eval(f"(with-current-buffer (window-buffer) {texts} t)")
            took, stretch = measure(stage, '(lambda () (bench-press "k"))')
            stretches.append((stretch, measure(stage, "(lambda () (garbage-collect))")[1]))
            pairs.append((took, measure(stage, "(lambda () (bench-write bench-changed))")[0]))
        compare(f"undo of a turn of {files:,} files, beside Emacs writing these files alone", pairs, "5 s")
        compare("the same: longest work in which no timer runs, beside collecting garbage once", stretches, "50 ms")
        stage.emacs.quit()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
