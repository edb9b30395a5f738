# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans and questions of Qwen Code in the versions that have hooks, a prompt file and events."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from chat import open_chat
from clis import QWEN_SETTINGS
from model_types import Answer, Call
from plans import (
    ANSWERS,
    PLAN,
    answer_questions,
    comment,
    commented_edited_and_approved_in_a_chat,
    edit,
    plan,
    results,
    start_planning,
    wait_for_plan,
)
from qwen_companion.base.plan_files import kept_plans
from qwen_companion.doors.held import HOLD_S
from stage import Stage
from terminal import PATIENCE

pytestmark = pytest.mark.interop

PROGRAMS = ("qwen-0.21.10", "qwen-0.23.4", "qwen")


def drain(stage: Stage) -> None:
    """Forget the request by which a prompt was sent."""
    stage.model.next_request()


def plan_again(stage: Stage) -> None:
    """Go back to the mode `plan`."""
    stage.emacs.eval("""
        (qwen-companion-backend-call
         'prompt (list :file (buffer-local-value 'qwen-companion-terminal-prompt-file (get-buffer "*qwen: project*"))
                       :text "/approval-mode plan"))
    """)
    stage.screen.wait_for("plan mode (shift")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_plan_is_commented_edited_and_approved(stage: Stage, program: str) -> None:
    start_planning(stage, program)
    plan(stage, "plan it")
    drain(stage)
    stage.screen.wait_for("C-c , r goes here")
    # The terminal shows no dialog meanwhile, and is selected.
    assert "Would you like to proceed" not in stage.screen.capture()
    assert "*qwen: project*" in stage.emacs.eval("(buffer-name (window-buffer))")
    comment(stage, "plums", "No plums")
    comment(stage, "cake", "A tart")
    better = PLAN.replace("plums", "pears")
    plan(stage, None, better)
    stage.emacs.command("qwen-companion-diff-reject")
    told = results(stage)
    assert "plan:3\n> 1. Buy plums.\nNo plums" in told
    assert "plan:4\n> 2. Bake a cake.\nA tart" in told
    wait_for_plan(stage)
    stage.screen.wait_for("+1. Buy pears.")
    stage.screen.wait_for("No plums")
    edit(stage, "3. Eat.\n")
    stage.model.say("All done.")
    stage.emacs.command("qwen-companion-diff-accept")
    stage.screen.wait_for("All done.")
    told = results(stage)
    assert "User approved" in told
    assert "3. Eat." in told
    (kept,) = kept_plans(stage.environment, str(stage.sandbox.project))
    assert Path(kept.path).read_text() == better + "3. Eat.\n"
    stage.emacs.wait_until("(null qwen-companion-proposal--undelivered)")
    # From the terminal, and after a restart of Emacs.
    stage.emacs.command("qwen-companion-plan")
    stage.screen.wait_for("Approved 20")
    stage.emacs.quit()
    with stage.beside() as other:
        other.start_emacs(other.sandbox.greeting)
        other.emacs.command("qwen-companion-plan")
        other.screen.wait_for("Approved 20")
        assert other.emacs.buffer_text("*qwen-companion plan*") == better + "3. Eat.\n"
        other.emacs.quit()


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_plan_is_answered_elsewhere(stage: Stage, program: str) -> None:
    start_planning(stage, program)
    # In the terminal, because the user goes there.
    plan(stage, "plan it")
    drain(stage)
    stage.emacs.eval("""
        (with-current-buffer (qwen-companion-proposal-buffer (car (qwen-companion-proposals)))
          (qwen-companion-plan-in-terminal))
    """)
    stage.screen.wait_for("Would you like to proceed")
    assert stage.emacs.eval("(length (qwen-companion-proposals))") == "1"
    stage.model.say("Here we go.")
    stage.screen.keys("Enter")
    stage.screen.wait_for("Here we go.")
    stage.emacs.wait_until("(null (qwen-companion-proposals))")
    assert "User approved" in results(stage)
    assert [kept.title for kept in kept_plans(stage.environment, str(stage.sandbox.project))] == ["Fruit"]
    # From Emacs, after the terminal has begun to ask.
    plan_again(stage)
    plan(stage, "once more")
    drain(stage)
    stage.emacs.eval("""
        (with-current-buffer (qwen-companion-proposal-buffer (car (qwen-companion-proposals)))
          (qwen-companion-plan-in-terminal))
    """)
    stage.screen.wait_for("Would you like to proceed")
    comment(stage, "plums", "No plums")
    stage.model.say("No plums then.")
    stage.emacs.command("qwen-companion-diff-reject")
    stage.screen.wait_for("No plums then.")
    assert "> 1. Buy plums.\nNo plums" in stage.model.next_request().prompt
    # Esc.
    plan(stage, "and again")
    drain(stage)
    edit(stage, "3. Eat.\n")
    stage.emacs.eval('(with-current-buffer "*qwen: project*" (qwen-companion-terminal-escape))')
    stage.emacs.wait_until("(null (qwen-companion-proposals))")
    assert "it was cancelled in the terminal" in stage.emacs.buffer_text("*Messages*")
    assert stage.emacs.eval("(length (qwen-companion-rescue-buffers))") == "1"


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_plan_outlives_no_process(stage: Stage, program: str) -> None:
    start_planning(stage, program)
    plan(stage, "plan it")
    drain(stage)
    edit(stage, "3. Eat.\n")
    stage.sandbox.backend().send_signal(signal.SIGKILL)
    # As the CLI alone.
    stage.screen.wait_for("Would you like to proceed")
    stage.emacs.wait_until("(and (eq (qwen-companion-state) 'ready) (null (qwen-companion-proposals)))")
    assert stage.emacs.eval("(length (qwen-companion-rescue-buffers))") == "1"
    stage.model.say("Here we go.")
    stage.screen.keys("Enter")
    stage.screen.wait_for("Here we go.")
    drain(stage)
    stage.emacs.wait_until("(qwen-companion-session-streaming (car (qwen-companion-backend-sessions)))")
    plan_again(stage)
    plan(stage, "once more")
    drain(stage)
    stage.sandbox.kill_clis()
    stage.emacs.wait_until("(null (qwen-companion-proposals))")


@pytest.mark.parametrize("program", PROGRAMS)
def test_questions_are_answered_in_emacs(stage: Stage, program: str) -> None:
    start_planning(stage, program)
    answer_questions(stage)
    stage.model.next_request()
    told = results(stage)
    assert "this is no refusal" in told
    assert ANSWERS in told


@pytest.mark.parametrize("program", PROGRAMS[1:])
def test_a_plan_of_a_chat_is_commented_edited_and_approved(stage: Stage, program: str) -> None:
    open_chat(stage, (f'(setq qwen-companion-qwen-command (list "{program}"))',))
    commented_edited_and_approved_in_a_chat(stage)


def test_no_plan_of_a_subagent_comes_to_emacs(stage: Stage) -> None:
    # To start one is not asked about in this mode.
    stage.start_emacs(stage.sandbox.greeting, forms=('(setq qwen-companion-approval-mode "yolo")',))
    stage.start_cli()
    stage.model.start_subagent(
        Answer(calls=(Call("exit_plan_mode", {"plan": PLAN}),)),
        Answer("The subagent is done."),
    )
    stage.model.say("It works for me.")
    stage.model.say("It has worked.")
    stage.screen.enter("let somebody plan it")
    stage.screen.wait_for("It has worked.")
    assert stage.emacs.eval("(qwen-companion-proposals)") == "nil"
    assert kept_plans(stage.environment, str(stage.sandbox.project)) == ()


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_mode_after_an_approval_is_the_one_before_or_the_one_chosen(stage: Stage, program: str) -> None:
    stage.start_emacs(
        stage.sandbox.greeting,
        forms=(f'(setq qwen-companion-approval-mode "yolo" qwen-companion-qwen-command (list "{program}"))',),
    )
    stage.start_cli()
    stage.model.say("Hello.")
    stage.screen.enter("hello")
    stage.screen.wait_for("Hello.")
    for chosen, mode in (("nil", "yolo"), ("'auto-edit", "auto-edit"), ("'default", "default")):
        plan_again(stage)
        stage.model.call("exit_plan_mode", plan=PLAN)
        stage.screen.enter(f"plan for {mode}")
        wait_for_plan(stage)
        stage.model.say(f"All done in {mode}.")
        stage.emacs.eval(f"(setf (qwen-companion-proposal-mode (car (qwen-companion-proposals))) {chosen})")
        stage.emacs.command("qwen-companion-diff-accept")
        stage.screen.wait_for(f"All done in {mode}.")
        state = "(qwen-companion-session-state (car (qwen-companion-backend-sessions)))"
        stage.emacs.wait_until(f'(equal "{mode}" (qwen-companion-cli-state-mode {state}))')


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_list_of_the_cli_is_shown(stage: Stage, program: str) -> None:
    tools = {**QWEN_SETTINGS["tools"], "todoWrite": {"enabled": True}}
    stage.sandbox.write_cli_settings({**QWEN_SETTINGS, "tools": tools})
    stage.start_emacs(stage.sandbox.greeting, forms=(f'(setq qwen-companion-qwen-command (list "{program}"))',))
    stage.start_cli()
    steps = [("1", "read", "completed"), ("2", "write", "in_progress"), ("3", "test", "pending")]
    stage.model.call(
        "todo_write", todos=[{"id": number, "content": text, "status": status} for number, text, status in steps]
    )
    stage.converse("what will you do", "That is the plan.")
    stage.emacs.wait_until('(string-search "1/3 to-dos done" (or (qwen-companion-layer-lines) ""))')
    assert "[x] read\\n  [-] write\\n  [ ] test" in stage.emacs.eval("(qwen-companion-layer-help)")
    stage.emacs.command("qwen-companion-sessions")
    stage.screen.wait_for("done 1/3")


def test_after_the_time_limit_the_terminal_asks_and_emacs_still_answers(stage: Stage) -> None:
    start_planning(stage)
    plan(stage, "plan it")
    drain(stage)
    # It waits for the better part of a minute.
    stage.screen.wait_for("Would you like to proceed", timeout=HOLD_S + PATIENCE)
    stage.screen.wait_for("its terminal asks now")
    edit(stage, "3. Eat.\n")
    stage.model.say("All done.")
    stage.emacs.command("qwen-companion-diff-accept")
    stage.screen.wait_for("All done.")
    assert "3. Eat." in results(stage)
