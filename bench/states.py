# SPDX-License-Identifier: GPL-3.0-or-later
"""Time how long after a hook, a prompt and an answer Emacs has the state of the real CLI.

    .build/venv/bin/python bench/states.py [PROMPTS]

Begins when the backend takes the hook, which is the time of the state; when each of the PROMPTS (20) is entered; and
when the model sends the last half of its answer.  Ends when Emacs has handled the message with the state.  The last two
have in them what the CLI itself does before it calls the hook.  Prints the median and the longest in ms, and the goal
of what is ours.  Asserts nothing.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT / name) for name in ("tests/e2e", "tests/helpers", "python")]

from model_types import Answer  # noqa: E402  the path is set first
from stage import Stage  # noqa: E402

GOAL_MS = 500

# Each new state, newest first: its name, when Emacs had it, and when the backend took the hook.
NOTE = """
(progn
  (setq bench-states nil)
  (advice-add 'qwen-companion-backend-on-sessions :after
              (lambda (&rest _)
                (let* ((state (plist-get (car (qwen-companion-backend-sessions)) :state))
                       (activity (plist-get state :activity)))
                  (unless (eq activity (caar bench-states))
                    (push (list activity (float-time) (/ (plist-get state :since) 1000.0)) bench-states)))))
  t)
"""

NOTED = """(apply #'format "%.6f %.6f" (cdar bench-states))"""


def state_at(stage: Stage, activity: str) -> tuple[float, float]:
    """Wait until Emacs has `activity`; return when it came and when its hook did, in seconds since the epoch."""
    stage.emacs.wait_until(f"(eq '{activity} (caar bench-states))")
    came, hook = map(float, stage.emacs.text(NOTED).split())
    return came, hook


def main(prompts: int = 20) -> None:
    """Print a line for each of the three ways."""
    hooks: list[float] = []
    working: list[float] = []
    done: list[float] = []
    with Stage() as stage:
        stage.start_emacs(stage.sandbox.greeting)
        stage.start_cli()
        stage.emacs.eval(NOTE)
        for number in range(prompts):
            halfway = threading.Event()
            stage.model.answer(Answer(f"Answer {number} has ended.", halfway=halfway))
            stage.screen.type(f"prompt {number}")
            # Closer together the CLI may take both for a paste.
            time.sleep(0.5)
            began = time.time()
            stage.screen.keys("Enter")
            came, hook = state_at(stage, "working")
            working.append(1000 * (came - began))
            hooks.append(1000 * (came - hook))
            ended = time.time()
            halfway.set()
            came, hook = state_at(stage, "idle")
            done.append(1000 * (came - ended))
            hooks.append(1000 * (came - hook))
    rows = {
        f"a state, after its hook (goal: under {GOAL_MS} ms)": hooks,
        "working, after the prompt": working,
        "done, after the answer": done,
    }
    for name, times in rows.items():
        print(f"{name}: {statistics.median(times):.0f} ms, at most {max(times):.0f} ms, of {len(times)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
