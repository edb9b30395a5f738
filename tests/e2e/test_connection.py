# SPDX-License-Identifier: GPL-3.0-or-later
"""How a CLI comes to be connected, and stays so."""

from __future__ import annotations

import json
import re

import pytest

from clis import QWEN_SETTINGS
from sandbox import EDITED, GREETING, NEW_NOTES
from stage import NO_SESSION, Stage

pytestmark = pytest.mark.reuses_stage("reviews")


def assert_context_and_review_work(stage: Stage) -> None:
    """Check that the CLI in the selected window gets the context, and that its proposal is reviewed and written."""
    stage.script_change(stage.sandbox.greeting, EDITED)
    stage.model.say("It is changed.")
    stage.ask("change the greeting")
    assert f"Path: {stage.sandbox.greeting}" in stage.model.next_request().prompt
    stage.wait_for_review()
    assert stage.sandbox.greeting.read_text() == GREETING
    stage.accept("It is changed.")
    assert stage.sandbox.greeting.read_text() == EDITED


@pytest.mark.ends_stage
def test_yes_to_the_nudge_connects(stage: Stage) -> None:
    """Without the settings layer the CLI asks."""
    settings = stage.sandbox.home / ".qwen" / "settings.json"
    stage.start_emacs(stage.sandbox.greeting, forms=("(customize-set-variable 'qwen-companion-settings-layer nil)",))
    stage.end_cli()
    stage.sandbox.write_cli_settings({name: value for name, value in QWEN_SETTINGS.items() if name != "ide"})
    stage.emacs.command("qwen-companion-run")
    stage.screen.wait_for("Do you want to connect Emacs to Qwen Code?")
    stage.screen.wait_for(NO_SESSION)
    # Without both, "Yes" would look for an extension to install.
    (lock,) = stage.sandbox.lock_files
    # A CLI of the test before may end only now: look at those in this terminal alone.
    terminal = int(stage.emacs.eval('(process-id (get-buffer-process "*qwen: project*"))'))
    started = [
        cli
        for cli in stage.sandbox.clis()
        if stage.far or terminal in {cli.pid, *(above.pid for above in cli.parents())}
    ]
    assert started
    for cli in started:
        assert cli.environ()["QWEN_CODE_IDE_SERVER_PORT"] == lock.stem
        # Projects in which a test before has started a CLI are told, too.
        assert str(stage.sandbox.project) in cli.environ()["QWEN_CODE_IDE_WORKSPACE_PATH"].split(":")
    stage.screen.wait_for("› 1. Yes")
    stage.screen.keys("Enter")
    stage.screen.wait_for("✓ Connected to Emacs")
    stage.screen.wait_for("Qwen[1]")
    assert json.loads(settings.read_text())["ide"] == {"enabled": True, "hasSeenNudge": True}
    stage.screen.wait_for("Type your message")
    assert_context_and_review_work(stage)


def test_disabled_and_enabled_again(stage: Stage) -> None:
    stage.start()
    stage.ask_command("/ide disable")
    stage.screen.wait_for("Disconnected: IDE integration disabled")
    stage.screen.wait_for(NO_SESSION)
    stage.screen.wait_for("Type your message")
    stage.ask_command("/ide enable")
    stage.screen.wait_for("✓ Connected to Emacs")
    stage.screen.wait_for("Qwen[1]")
    stage.screen.wait_for("Type your message")
    assert_context_and_review_work(stage)


@pytest.mark.ends_stage
def test_a_cli_started_before_the_mode_connects_when_started_again(stage: Stage) -> None:
    stage.start_emacs(stage.sandbox.greeting)
    stage.end_cli()
    stage.emacs.command("qwen-companion-mode")
    stage.emacs.wait_until("(not qwen-companion-mode)")
    stage.open_shell("*shell*")
    stage.screen.enter("qwen --approval-mode default")
    stage.screen.wait_for("Type your message")
    stage.emacs.command("qwen-companion-mode")
    stage.screen.wait_for(NO_SESSION)
    # There, it does not offer the status.
    stage.ask_command("/ide", " status")
    stage.screen.wait_for("IDE integration is not supported in your current environment")
    if stage.far is not None:
        stage.emacs.wait_until(stage.far.ready)
    files = stage.sandbox.discovery_files
    assert files
    # It goes on by itself, and nothing of it reaches Emacs.
    new_file = stage.sandbox.project / "new.txt"
    stage.model.call("write_file", file_path=str(new_file), content="fresh\n")
    stage.model.say("Written.")
    stage.screen.wait_for("Type your message")
    stage.ask("write a file")
    stage.screen.wait_for("Yes, allow once")
    stage.screen.keys("Enter")
    stage.screen.wait_for("Written.")
    assert new_file.read_text() == "fresh\n"
    request = stage.model.next_request()
    assert "write a file" in request.prompt
    assert request.tool_results == []
    (result,) = stage.model.next_request().tool_results
    assert "new.txt" in result
    stage.script_change(stage.sandbox.notes, NEW_NOTES)
    stage.model.say("The list is new.")
    stage.screen.wait_for("Type your message")
    stage.ask("plums please")
    stage.screen.wait_for("Yes, allow once")
    stage.screen.keys("Enter")
    stage.screen.wait_for("The list is new.")
    prompt, *_ = (stage.model.next_request().prompt for _ in range(3))
    assert str(stage.sandbox.greeting) not in prompt
    assert stage.sandbox.notes.read_text() == NEW_NOTES
    stage.screen.wait_for(NO_SESSION)
    # The CLI has deleted none of them.
    assert stage.sandbox.discovery_files == files
    # In the same shell, whose environment still knows nothing of the companion.
    stage.screen.wait_for("Type your message")
    stage.ask("/quit")
    stage.screen.wait_until(lambda: not stage.sandbox.clis(), "the end of the CLI")
    stage.emacs.eval("(vterm-clear)")
    stage.screen.enter("qwen --approval-mode default")
    stage.screen.wait_for("Qwen[1]")
    stage.screen.wait_for("Type your message")
    (*_, cli) = stage.sandbox.clis()
    assert "QWEN_CODE_IDE_SERVER_PORT" not in cli.environ()
    assert_context_and_review_work(stage)


def switch_to_terminal(stage: Stage, project: str) -> None:
    """Show the terminal of `project` in the selected window."""
    stage.screen.keys("C-x", "b")
    stage.screen.wait_for("Switch to buffer")
    stage.screen.enter(f"*qwen: {project}*")
    stage.screen.wait_gone("Switch to buffer")


# The projects of earlier tests may still be told.
@pytest.mark.fresh_stage
def test_two_clis_in_two_projects(stage: Stage) -> None:
    other = stage.sandbox.make_project("other")
    letter = other / "letter.txt"
    letter.write_text("Dear all,\n")
    stage.start()
    stage.emacs.eval(f"(progn (find-file-other-window {stage.emacs.lisp_name(letter)}) nil)")
    stage.screen.wait_for("Dear all")
    stage.emacs.command("qwen-companion-run")
    stage.screen.wait_for("Qwen[2]")
    stage.screen.wait_for(re.compile(r"\*qwen: other\*"))
    stage.screen.wait_for("Type your message")
    (lock,) = stage.sandbox.lock_files
    assert json.loads(lock.read_text())["workspacePath"] == f"{other}:{stage.sandbox.project}"
    # The second asks first.
    stage.script_change(letter, "Dear all of you,\n")
    stage.ask("a friendlier letter")
    stage.screen.wait_for("Qwen[2!1]")
    stage.screen.wait_for("proposal: letter.txt")
    stage.screen.wait_for("Yes, allow once")
    assert stage.emacs.buffer_text("*qwen-companion disk: letter.txt*") == "Dear all,\n"
    assert f"Path: {letter}" in stage.model.next_request().prompt
    # The first asks while that review is open: its own has to wait.
    switch_to_terminal(stage, "project")
    stage.script_change(stage.sandbox.greeting, EDITED)
    stage.ask("change the greeting")
    stage.screen.wait_for("Qwen[2!2]")
    stage.screen.wait_for("Yes, allow once")
    assert "*qwen-companion proposal: letter.txt*" in stage.emacs.visible_buffers()
    assert "*qwen-companion proposal: greeting.py*" not in stage.emacs.visible_buffers()
    stage.model.say("A letter to all of you.")
    stage.emacs.eval(f"(qwen-companion-diff-accept {stage.emacs.lisp_name(letter)})")
    stage.screen.wait_for("proposal: greeting.py")
    stage.screen.wait_for("Qwen[2!1]")
    stage.screen.wait_until(lambda: letter.read_text() == "Dear all of you,\n", "the letter")
    assert stage.sandbox.greeting.read_text() == GREETING
    stage.screen.wait_until(
        lambda: "A letter to all of you." in stage.emacs.buffer_text("*qwen: other*"), "the second CLI's answer"
    )
    stage.model.say("A better greeting.")
    stage.emacs.command("qwen-companion-diff-accept")
    stage.screen.wait_gone("C-c C-c accept")
    switch_to_terminal(stage, "project")
    stage.screen.wait_for("A better greeting.")
    stage.screen.wait_for("Qwen[2]")
    assert stage.sandbox.greeting.read_text() == EDITED
    assert stage.emacs.eval("(length ediff-session-registry)") == "0"
