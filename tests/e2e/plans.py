# SPDX-License-Identifier: GPL-3.0-or-later
"""What tests of plans share: a CLI in its mode `plan`, and its plan in Emacs."""

from __future__ import annotations

from typing import Final

from editor import lisp_string
from stage import Stage

PLAN: Final = "# Fruit\n\n1. Buy plums.\n2. Bake a cake.\n"


def start_planning(stage: Stage, program: str = "qwen") -> None:
    """Start Emacs, and `program` in its mode `plan`."""
    stage.start_emacs(
        stage.sandbox.greeting,
        forms=(f'(setq qwen-companion-approval-mode "plan" qwen-companion-qwen-command (list "{program}"))',),
    )
    stage.start_cli()


def plan(stage: Stage, prompt: str | None, text: str = PLAN) -> None:
    """Script the plan `text`, have it asked for by `prompt` unless it is None, and wait until Emacs shows it."""
    stage.model.call("exit_plan_mode", plan=text)
    if prompt is not None:
        stage.ask(prompt)
        wait_for_plan(stage)


def wait_for_plan(stage: Stage) -> None:
    """Wait until a plan is on the screen of Emacs."""
    stage.emacs.wait_until(
        "(let ((shown (qwen-companion-review-shown))) (and shown (eq 'plan (qwen-companion-proposal-kind shown))))"
    )


def comment(stage: Stage, line: str, text: str) -> None:
    """Note the comment `text` on the `line` of the plan that is shown."""
    stage.emacs.eval(f"""
        (with-current-buffer (qwen-companion-proposal-buffer (car (qwen-companion-proposals)))
          (goto-char (point-min))
          (search-forward {lisp_string(line)})
          (cl-letf (((symbol-function 'read-string) (lambda (&rest _) {lisp_string(text)})))
            (qwen-companion-diff-comment)))
    """)


def edit(stage: Stage, text: str) -> None:
    """Add `text` to the plan that is shown."""
    stage.emacs.eval(f"""
        (with-current-buffer (qwen-companion-proposal-buffer (car (qwen-companion-proposals)))
          (goto-char (point-max))
          (insert {lisp_string(text)}))
    """)


def results(stage: Stage) -> str:
    """Return the results of tools in the next request to the model."""
    return "\n".join(stage.model.next_request().tool_results)
