# SPDX-License-Identifier: GPL-3.0-or-later
"""Count what is redrawn and what jumps while the real CLI streams a long answer in each terminal of Emacs.

    .build/venv/bin/python bench/terminals.py [ROUNDS]

The model streams 120 lines, a line of a paragraph, a list or code each 40 ms.  Each row is the median of ROUNDS runs
(3): redisplays of the terminal's window, how many of them showed at least five lines fewer than those before and after
it (a flicker), how often the window's start went back and how many lines at most (a scroll jump), how many left the
end of the text below the window, and the processor time of Emacs, in ms for each second of the answer.  "As it
comes" is without `qwen-companion-terminal-coalesce-screen-updates`.  Asserts nothing.  Eat has to be installed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT / name) for name in ("tests/e2e", "tests/helpers", "python")]

from model_types import Answer  # noqa: E402  the path is set first
from stage import Stage  # noqa: E402

LINES = 120
SHRUNK = 5
"""Lines fewer than before and after that count as a flicker."""

AS_IT_COMES = (
    "(let ((p (get-buffer-process (current-buffer)))) (set-process-filter p (advice--cd*r (process-filter p))))"
)
"""Give the terminal its output in the pieces in which Emacs reads it."""

ROWS = {
    "vterm, as it comes": ("vterm", AS_IT_COMES),
    "vterm": ("vterm", ""),
    "Eat, as it comes": ("eat", AS_IT_COMES),
    "Eat": ("eat", ""),
    "term, as it comes": ("term", AS_IT_COMES),
    "term": ("term", ""),
}

IDLE = "(eq 'idle (plist-get (plist-get (car (qwen-companion-backend-sessions)) :state) :activity))"

FRAMES = """(mapconcat (lambda (frame) (apply #'format "%d %d %d" frame)) (reverse bench-frames) "\\n")"""

# Where the window begins, how many of its lines are not blank, and whether it shows the end.
WATCH = """
(with-current-buffer "*qwen: project*"
  (setq bench-frames nil)
  (add-hook 'pre-redisplay-functions
            (lambda (window)
              (when (eq (window-buffer window) (current-buffer))
                (save-excursion
                  (let ((start (window-start window)) (shown 0) (rows 0))
                    (goto-char start)
                    (while (and (< rows (window-body-height window)) (not (eobp)))
                      (unless (looking-at-p "[ \\t]*$") (setq shown (1+ shown)))
                      (setq rows (1+ rows))
                      (forward-line 1))
                    (skip-chars-forward " \\t\\n")
                    (push (list (line-number-at-pos start) shown (if (eobp) 0 1)) bench-frames)))))
            nil t)
  t)
"""


@dataclass(frozen=True)
class SlowAnswer(Answer):
    """An answer whose lines come one by one."""

    def streamed(self) -> Iterator[str]:
        """Yield the lines of the text, each after 40 ms."""
        for line in self.text.splitlines(keepends=True):
            time.sleep(0.04)
            yield line


def answer() -> str:
    """Return a long answer in Markdown."""
    block = ["Some words of a paragraph that is wider than most and goes on.\n", "\n", "- one\n", "- another\n", "\n"]
    code = ["```python\n", "def f(x):\n", "    return x + 1\n", "```\n", "\n"]
    return "".join((block + code) * (LINES // 10))


def ask(stage: Stage, text: str) -> None:
    """Type `text` and Enter; in Eat the line of the prompt is indented."""
    stage.screen.type(text)
    # Closer together the CLI may take both for a paste.
    time.sleep(0.5)
    stage.screen.keys("Enter")


def run(terminal: str, form: str) -> tuple[float, ...]:
    """Let the CLI stream an answer in `terminal`, after `form`; return the numbers of a row."""
    with Stage() as stage:
        load = f"(progn (require 'vterm) (require 'eat nil t) (setq qwen-companion-terminal '{terminal}))"
        stage.start_emacs(stage.sandbox.greeting, forms=(load,))
        stage.start_cli()
        stage.emacs.eval('(delete-other-windows (get-buffer-window "*qwen: project*"))')
        # It fills the screen, so that all that comes scrolls.
        stage.model.answer(SlowAnswer(answer()))
        stage.model.answer(SlowAnswer(answer() + "That was it.\n"))
        ask(stage, "first")
        stage.model.next_request()
        stage.emacs.wait_until(IDLE)
        stage.emacs.eval(f'(with-current-buffer "*qwen: project*" (select-window (get-buffer-window)) {form} t)')
        stage.emacs.eval(WATCH)
        ask(stage, "second")
        stage.model.next_request()
        before, began = stage.emacs.process.cpu_times(), time.perf_counter()
        stage.screen.wait_for("That was it.")
        seconds, after = time.perf_counter() - began, stage.emacs.process.cpu_times()
        printed = stage.emacs.text(FRAMES)
        frames = [tuple(map(int, line.split())) for line in printed.split("\n")]
        shown = [frame[1] for frame in frames]
        back = [one[0] - two[0] for one, two in zip(frames, frames[1:], strict=False) if two[0] < one[0]]
        flickers = sum(
            min(max(shown[max(0, n - 3) : n]), max(shown[n + 1 : n + 4])) - shown[n] >= SHRUNK
            for n in range(1, len(shown) - 1)
        )
        busy = after.user + after.system - before.user - before.system
        stage.screen.keys("C-c")
        return (
            len(frames) / seconds,
            flickers,
            len(back),
            max(back, default=0),
            sum(frame[2] for frame in frames),
            1000 * busy / seconds,
        )


def main(rounds: int = 3) -> None:
    """Print a row for each terminal."""
    print(f"{'':18} {'redisplays/s':>12} {'flickers':>9} {'back':>6} {'lines':>6} {'end hidden':>11} {'ms/s':>6}")
    for name, (terminal, form) in ROWS.items():
        rows = [run(terminal, form) for _ in range(rounds)]
        frames, *counts, busy = [statistics.median(column) for column in zip(*rows, strict=True)]
        flickers, back, lines, hidden = counts
        print(f"{name:18} {frames:12.1f} {flickers:9} {back:6} {lines:6} {hidden:11} {busy:6.0f}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
