# SPDX-License-Identifier: GPL-3.0-or-later
"""Each version of Qwen Code with a registry: listed and prompted in each of its states, and brought home and back."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chat import CHAT, FORMS, start_daemon, wait_until_idle
from clis import QWEN, QWEN_SETTINGS, Cli
from editor import lisp_string
from stage import Stage
from terminal import Screen
from test_registry import AT_MODEL, QUEUED, prompt, rows, wait_for_outcomes, wait_for_rows

pytestmark = pytest.mark.interop

VERSIONS = (QWEN, Cli("qwen-0.23.4", "qwen-0.23.4", input_start="^> +"))

each_version = pytest.mark.parametrize("cli", [pytest.param(cli, id=cli.name) for cli in VERSIONS])


def open_list(stage: Stage, *forms: str, **agents: Any) -> None:
    """Start Emacs with the list of CLIs; these have the settings `agents` for prompts of others."""
    stage.sandbox.write_cli_settings({**QWEN_SETTINGS, "agents": {"crossSessionMessaging": True, **agents}})
    stage.start_emacs(stage.sandbox.greeting, forms=forms)
    stage.emacs.command("qwen-companion-sessions")


@contextmanager
def beside(stage: Stage, cli: Cli, directory: Path) -> Generator[Screen]:
    """Start `cli` in `directory`, in a second terminal outside of Emacs."""
    place = stage.sandbox.run / "second"
    place.mkdir(exist_ok=True)
    screen = Screen(place, {**stage.environment, **cli.variables})
    screen.start([cli.program], directory)
    try:
        screen.wait_for("Type your message")
        yield screen
    finally:
        screen.close()


def conversation(stage: Stage) -> list[tuple[str, str]]:
    """Return what is recorded of the only conversation: who has said what."""
    # Beside it a daemon keeps a `.ledger.jsonl'.
    [path] = (stage.sandbox.home / ".qwen/projects").glob("*/chats/*[!r].jsonl")
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    said = [(entry["type"], _text(entry)) for entry in entries if entry["type"] in ("user", "assistant")]
    return [(who, text) for who, text in said if text]


def _text(entry: Mapping[str, Any]) -> str:
    text = "".join(part.get("text", "") for part in entry["message"]["parts"])
    framed = re.match(r"<cross_session_message [^\n]*\n(.*)\n</cross_session_message>", text, re.DOTALL)
    return framed[1] if framed else text


@each_version
def test_two_outside_and_one_inside(stage: Stage, cli: Cli) -> None:
    """Each is listed once, with what it is connected to, and goes; a prompt comes to each state of a CLI outside."""
    elsewhere = stage.sandbox.make_project("elsewhere")
    open_list(stage, f"(setq qwen-companion-qwen-command (list {lisp_string(cli.program)}))")
    stage.start_cli()
    inside = r"^Qwen Code \d.*\|project\|(done|connected)\|.*\|\*qwen: project\*\|"
    with stage.outside(cli) as one, beside(stage, cli, elsewhere) as two:
        outside = r"^Qwen Code \d.*\|project\|\w+\|.*\|outside Emacs\|"
        unconnected = r"^Qwen Code \d.*\|elsewhere\|no editor\|.*\|terminal elsewhere-\w\w\|.*/elsewhere$"
        wait_for_rows(stage, inside, outside, unconnected)
        # To the one that is not connected.
        stage.emacs.eval("(defun test-go () (goto-char (point-max)) (forward-line -1))")
        stage.model.say("From elsewhere.")
        two.type("half a thought")
        prompt(stage, "first", "(test-go)")
        stage.screen.wait_for("Let Emacs send prompts")
        stage.screen.enter("yes")
        two.wait_for("From elsewhere.")
        wait_for_outcomes(stage, AT_MODEL)
        assert "half a thought" in two.capture()
        # While its model works, and while it asks.
        stage.model.call("run_shell_command", command="sleep 1", is_background=False, description="Wait")
        stage.model.say("Waited.")
        stage.model.say("Then this.")
        prompt(stage, "wait", "(test-go)")
        two.wait_for("allow once")
        prompt(stage, "after", "(test-go)")
        wait_for_outcomes(stage, AT_MODEL, AT_MODEL, QUEUED)
        two.keys("Enter")
        two.wait_for("Then this.")
        wait_for_outcomes(stage, AT_MODEL, AT_MODEL, AT_MODEL)
        # To the one outside that is connected.
        stage.model.say("From beside.")
        prompt(stage, "you too", "(progn (goto-char (point-min)) (forward-line 1))")
        one.wait_for("From beside.")
        wait_for_outcomes(stage, AT_MODEL, AT_MODEL, AT_MODEL, AT_MODEL)
        prompts = [stage.model.next_request().prompt for _ in range(5)]
        assert all(
            text in got for text, got in zip(("first", "wait", "wait", "after", "you too"), prompts, strict=True)
        )
        two.keys(*["BSpace"] * len("half a thought"))
        two.wait_for("Type your message")
        two.type("/quit", seen=re.compile("^> +/quit", re.MULTILINE))
        two.keys("Enter")
        wait_for_rows(stage, inside, outside)
    wait_for_rows(stage, inside)


@each_version
@pytest.mark.parametrize(
    ("agents", "outcome"),
    [
        ({"crossSessionInbound": "hold"}, r"held there until you allow it"),
        ({"crossSessionInbound": "refuse"}, r"Not sent to project-\w\w: its settings take no prompts"),
        (
            {"crossSessionMessaging": False},
            r"takes no prompts from other programs \(agents.crossSessionMessaging is off",
        ),
    ],
    ids=["hold", "refuse", "off"],
)
def test_what_its_settings_say(stage: Stage, cli: Cli, agents: dict[str, Any], outcome: str) -> None:
    open_list(stage, **agents)
    with stage.outside(cli):
        wait_for_rows(stage, r"\|terminal project-|outside Emacs")
        prompt(stage, "do it")
        if "crossSessionMessaging" not in agents:
            stage.screen.wait_for("Let Emacs send prompts")
            stage.screen.enter("yes")
        stage.screen.wait_until(
            lambda: re.search(outcome, stage.emacs.buffer_text("*Messages*")), f"the outcome {outcome}"
        )
    assert not stage.model.bodies


def test_a_cli_that_a_shell_of_emacs_has_started(stage: Stage) -> None:
    """With a token it gets prompts over its socket, not by keys; its hooks and the journal know whose turn it is."""
    open_list(stage)
    stage.start_in_shell(QWEN)
    stage.screen.type("half a thought")
    stage.emacs.eval("(setq qwen-companion-registry--controller 'none)")
    new = stage.sandbox.project / "new.txt"
    stage.model.call("write_file", file_path=str(new), content="new\n")
    stage.model.say("Written.")
    stage.emacs.eval(
        "(cl-letf (((symbol-function 'qwen-companion-registry-open-p) #'always)"
        " ((symbol-function 'yes-or-no-p) #'always))"
        ' (message "%s" (qwen-companion-prompts-send (car (qwen-companion-backend-sessions))'
        f' {lisp_string(str(stage.sandbox.project))} "write it")))'
    )
    stage.screen.wait_for("Qwen[1!1]")
    stage.emacs.command("qwen-companion-diff-accept")
    stage.screen.wait_until(lambda: "Written." in stage.emacs.buffer_text(f"*{QWEN.name}*"), "the answer")
    assert "half a thought" in stage.emacs.buffer_text(f"*{QWEN.name}*")
    assert new.read_text() == "new\n"
    stage.emacs.wait_until(
        "(equal '(\"write it\") (mapcar #'qwen-companion-turn-prompt (qwen-companion-journal-turns)))"
    )
    assert [row.split("|")[2] for row in rows(stage)] == ["done"]


def test_a_conversation_walks_from_a_terminal_to_a_chat_and_back(stage: Stage) -> None:
    open_list(stage, *FORMS)
    said = [("user", "one"), ("assistant", "First.")]
    with stage.outside() as terminal:
        wait_for_rows(stage, "outside Emacs")
        stage.model.say("First.")
        stage.ask("one", screen=terminal)
        terminal.wait_for("First.")
        start_daemon(stage)
        stage.emacs.eval('(pop-to-buffer "*qwen-companion sessions*")')
        stage.screen.keys("b")
        stage.screen.wait_for("Bring project-")
        stage.screen.keys("c")
        stage.screen.wait_for("End it there first")
        stage.screen.enter("yes")
        stage.screen.wait_until(lambda: "First." in stage.emacs.buffer_text(CHAT), "the conversation in a chat")
    wait_until_idle(stage)
    assert conversation(stage) == said
    stage.model.say("Second.")
    stage.screen.type("two")
    stage.screen.keys("C-c", "C-c")
    stage.screen.wait_for("Second.")
    wait_until_idle(stage)
    said += [("user", "two"), ("assistant", "Second.")]
    assert conversation(stage) == said
    # As `D' in the list of chats does.
    stage.emacs.command("qwen-companion-chats")
    stage.screen.keys("D")
    stage.screen.wait_for("End this session for all its clients?")
    stage.screen.keys("y")
    stage.emacs.wait_until(
        "(not (seq-find (lambda (cli) (eq 'serve (plist-get cli :kind))) (qwen-companion-registry-clis)))"
    )
    stage.emacs.command("qwen-companion-resume")
    stage.screen.wait_for("Go on with:")
    stage.screen.keys("Tab", "Enter")
    stage.screen.wait_until(
        lambda: re.search(r"Second\.(?s:.*)Type your message", stage.emacs.buffer_text("*qwen: project*")),
        "the conversation in a terminal of Emacs",
    )
    stage.model.say("Third.")
    stage.ask("three")
    stage.screen.wait_for("Third.")
    said += [("user", "three"), ("assistant", "Third.")]
    stage.screen.wait_until(lambda: conversation(stage) == said, "the whole conversation")
