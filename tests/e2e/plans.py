# SPDX-License-Identifier: GPL-3.0-or-later
"""What tests of plans share: a CLI in its mode `plan`, and its plan in Emacs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from chat import CHAT, send, wait_until_askable
from editor import lisp_string
from model_types import QUESTIONS
from qwen_companion.base.plan_files import kept_plans
from stage import Stage

ANSWERS: Final = "Which database?\nsqlite\n\nWhich colours?\nred, blue\n\nWhich name?\nmy own"
PLAN: Final = "# Fruit\n\n1. Buy plums.\n2. Bake a cake.\n"


def start_planning(stage: Stage, program: str = "qwen") -> None:
    """Start Emacs, and `program` in its mode `plan`."""
    forms = ['(setq qwen-companion-approval-mode "plan")']
    if program != "qwen":
        forms.append(f'(setq qwen-companion-qwen-command (list "{program}"))')
    stage.start_emacs(stage.sandbox.greeting, forms=tuple(forms))
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


def answer_questions(stage: Stage) -> None:
    """Have the model ask `QUESTIONS`, and give `ANSWERS` in Emacs."""
    stage.model.call("ask_user_question", questions=list(QUESTIONS))
    stage.ask("what do you need")
    stage.screen.wait_for("goes here")
    stage.model.say("Thank you.")
    stage.emacs.eval("""
        (let ((answers '("sqlite" ("red" "blue") "my own")))
          (cl-letf (((symbol-function 'completing-read) (lambda (&rest _) (pop answers)))
                    ((symbol-function 'completing-read-multiple) (lambda (&rest _) (pop answers))))
            (qwen-companion-diff-accept)))
    """)
    stage.screen.wait_for("Thank you.")


def results(stage: Stage) -> str:
    """Return the results of tools in the next request to the model."""
    return "\n".join(stage.model.next_request().tool_results)


def commented_edited_and_approved_in_a_chat(stage: Stage) -> None:
    """Have a plan in the open chat, comment it, and approve the next one with an edit."""
    # With the names, all there is to choose has been told.
    stage.screen.wait_for(" idle scripted Default")
    stage.screen.keys("C-c", "C-m")
    stage.screen.wait_for("Approval mode (default Default):")
    stage.screen.enter("plan")
    stage.screen.wait_for(" idle scripted Plan")
    stage.model.call("exit_plan_mode", plan=PLAN)
    send(stage, "plan it")
    wait_for_plan(stage)
    stage.screen.wait_for("M-x qwen-companion-review goes here")
    assert stage.emacs.eval("(buffer-name (window-buffer))") == f'"{CHAT}"'
    comment(stage, "plums", "No plums")
    wait_until_askable(stage)
    # The comments are the next prompt.
    better = PLAN.replace("plums", "pears")
    stage.model.call("exit_plan_mode", plan=better)
    stage.emacs.command("qwen-companion-diff-reject")
    while "> 1. Buy plums.\nNo plums" not in stage.model.next_request().prompt:
        pass
    wait_for_plan(stage)
    stage.screen.wait_for("Buy pears.")
    stage.screen.wait_for("No plums")
    edit(stage, "3. Eat.\n")
    wait_until_askable(stage)
    stage.model.say("All done.")
    stage.emacs.command("qwen-companion-diff-accept")
    stage.screen.wait_for("All done.")
    # It reads the edited plan before it goes on.
    assert "3. Eat." in stage.model.next_request().prompt
    # As before the plan.
    stage.screen.wait_for(" idle scripted Default")
    assert "Sent during the turn: The user has edited the plan" in stage.emacs.buffer_text(CHAT)
    (kept,) = kept_plans(stage.environment, str(stage.sandbox.project))
    assert Path(kept.path).read_text() == better + "3. Eat.\n"
    stage.emacs.command("qwen-companion-plan")
    stage.screen.wait_for("Approved 20")
    stage.emacs.eval('(progn (switch-to-buffer "*qwen chat*") (delete-other-windows))')
