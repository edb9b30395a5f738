# SPDX-License-Identifier: GPL-3.0-or-later
"""Qwen Codes in terminals outside of Emacs: seen as they come and go, and prompted without a key typed there."""

from __future__ import annotations

import os
import re
import signal

import pytest

from clis import QWEN_SETTINGS
from sandbox import GREETING
from stage import Stage

pytestmark = [pytest.mark.reuses_stage("registry"), pytest.mark.local("about the Qwen Codes of this machine")]

AT_MODEL = "at the model"
QUEUED = "delivered; it runs after the current turn or question"
ROWS = """
(mapconcat (lambda (entry) (mapconcat #'identity (append (cadr entry) nil) "|"))
           (with-current-buffer "*qwen-companion sessions*" tabulated-list-entries) "\\n")
"""


def rows(stage: Stage) -> list[str]:
    """Return the rows of the list, without how long ago each began."""
    return [re.sub(r"\|\d+ (s|min)\|", "|N|", row) for row in stage.emacs.text(ROWS).splitlines()]


def wait_for_rows(stage: Stage, *patterns: str) -> None:
    """Wait until the list has a row for each of `patterns`, in their order, and no other."""

    def are_there() -> bool:
        found = rows(stage)
        matches = (re.search(pattern, row) for pattern, row in zip(patterns, found, strict=False))
        return len(found) == len(patterns) and all(matches)

    stage.screen.wait_until(are_there, f"the rows {patterns}")


def prompt(stage: Stage, text: str, go: str = "(goto-char (point-min)) (forward-line)") -> None:
    """Write the prompt `text` for the CLI to which `go` goes in the list, and send it."""
    stage.emacs.eval(f'(progn (pop-to-buffer "*qwen-companion sessions*") {go})')
    stage.screen.keys("r")
    stage.screen.wait_for("C-c C-c send")
    stage.screen.type(text)
    stage.screen.keys("C-c", "C-c")


def wait_for_outcomes(stage: Stage, *outcomes: str) -> None:
    """Wait until Emacs has said these `outcomes` of all prompts so far, in this order."""

    def are_said() -> bool:
        said = re.findall(r"^\w+-\w\w: (.*)", stage.emacs.buffer_text("*Messages*"), re.MULTILINE)
        # On a busy machine one may seem to wait for a moment, or its receipt come late.
        settled = [each for each in said if not each.startswith(("delivered", "sent, no receipt yet"))]
        waits = outcomes[-1] != QUEUED or said[-1:] == [QUEUED]
        return waits and settled == [each for each in outcomes if each != QUEUED]

    stage.screen.wait_until(are_said, f"the outcomes {outcomes}")


def test_clis_outside_are_listed_prompted_and_followed(stage: Stage) -> None:
    stage.sandbox.write_cli_settings({**QWEN_SETTINGS, "ide": {"enabled": False, "hasSeenNudge": True}})
    stage.start_emacs(stage.sandbox.greeting)
    stage.emacs.command("qwen-companion-sessions")
    with stage.outside() as terminal:
        version = r"Qwen Code 0\.\d+\.\d+\|project"
        wait_for_rows(stage, rf"{version}\|no editor\|N\|\|\|terminal project-\w\w\|.*/project$")

        # Nothing is made before the user has agreed.
        prompt(stage, "say hello")
        stage.screen.wait_for("Let Emacs send prompts")
        assert not (stage.sandbox.home / ".qwen/peer-controllers.json").exists()
        stage.model.say("Hello from outside.")
        # Half a line is typed there, and stays.
        terminal.type("half a thought")
        stage.screen.enter("yes")
        wait_for_outcomes(stage, AT_MODEL)
        terminal.wait_for("Hello from outside.")
        assert "half a thought" in terminal.capture()
        wait_for_rows(stage, rf"{version}\|done\|N\|\|[^|]*\|terminal project-\w\w\|Hello from outside\., .*/project$")
        assert "say hello" in stage.model.next_request().prompt
        token = stage.sandbox.home / ".local/state/qwen-companion/controller.json"
        assert token.stat().st_mode & 0o777 == 0o600

        # Behind a question of the CLI; its edit is recorded as of the prompt.
        stage.model.call("read_file", file_path=str(stage.sandbox.greeting))
        stage.model.call("write_file", file_path=str(stage.sandbox.greeting), content=GREETING + "# end\n")
        stage.model.say("Written.")
        prompt(stage, "add an end")
        terminal.wait_for("Yes, allow once")
        prompt(stage, "and now")
        wait_for_outcomes(stage, AT_MODEL, AT_MODEL, QUEUED)
        stage.model.say("After that.")
        terminal.keys("Enter")
        terminal.wait_for("After that.")
        wait_for_outcomes(stage, AT_MODEL, AT_MODEL, AT_MODEL)
        wait_for_rows(stage, rf"{version}\|done\|N\|1\|[^|]*\|terminal project-\w\w\|After that\., .*/project$")
        assert (
            stage.emacs.eval("(mapcar #'qwen-companion-turn-prompt (qwen-companion-journal-turns))") == '("add an end")'
        )

        prompt(stage, "/clear")
        stage.screen.wait_for("would reach the model")
        stage.screen.keys("C-x", "h", "C-w", "C-c", "C-k")

        # Killed, it leaves its record.
        [record] = (stage.sandbox.home / ".qwen/sessions").glob("*.json")
        os.kill(int(record.stem), signal.SIGKILL)
        wait_for_rows(stage, r"\|gone\|")

        # Its conversation goes on in Emacs, with all that was said.
        stage.emacs.eval('(progn (pop-to-buffer "*qwen-companion sessions*") (goto-char (point-min)) (forward-line))')
        stage.screen.keys("b")
        stage.screen.wait_for("Move project-")
        stage.screen.keys("t")
        stage.screen.wait_until(
            lambda: re.search(r"After that\.(?s:.*)Type your message", stage.emacs.buffer_text("*qwen: project*")),
            "the conversation in a terminal of Emacs",
        )
    stage.model.say("And on.")
    stage.emacs.eval('(select-window (get-buffer-window "*qwen: project*"))')
    stage.ask("go on")
    stage.screen.wait_for("And on.")
    *_, request = (stage.model.next_request() for _ in range(5))
    said = str(request.body)
    assert all(text in said for text in ("say hello", "Hello from outside.", "and now", "After that.", "go on"))
