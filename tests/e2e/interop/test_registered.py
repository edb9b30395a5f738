# SPDX-License-Identifier: GPL-3.0-or-later
"""Each version of Qwen Code with a registry: listed and prompted in each of its states, and brought home and back."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chat import CHAT, FORMS, start_daemon, wait_until_idle
from clis import QWEN, QWEN_SETTINGS, Cli
from editor import lisp_string
from model_types import Answer
from stage import Stage
from terminal import Screen
from test_registry import AT_MODEL, QUEUED, prompt, wait_for_outcomes, wait_for_rows

pytestmark = pytest.mark.interop

VERSIONS = (QWEN, Cli("qwen-0.23.4", "qwen-0.23.4", input_start="^> +"))

each_version = pytest.mark.parametrize("cli", [pytest.param(cli, id=cli.name) for cli in VERSIONS])


def open_list(stage: Stage, *forms: str, mode: str = "default", **agents: Any) -> None:
    """Start Emacs with the list of CLIs; these have the settings `agents` for prompts of others and the `mode`."""
    tools = {**QWEN_SETTINGS["tools"], "approvalMode": mode}
    stage.sandbox.write_cli_settings(
        {**QWEN_SETTINGS, "tools": tools, "agents": {"crossSessionMessaging": True, **agents}}
    )
    stage.start_emacs(stage.sandbox.greeting, forms=forms)
    stage.emacs.command("qwen-companion-sessions")


def to_list(stage: Stage) -> None:
    """Go to the first CLI in the list."""
    stage.emacs.eval('(progn (pop-to-buffer "*qwen-companion sessions*") (goto-char (point-min)) (forward-line))')


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
    inside = r"^Qwen Code \d.*\|project\|(done|ready|connected)\|.*\|\*qwen: project\*\|"
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
        # To the one outside that is connected, also while its model answers.
        going = threading.Event()
        stage.model.answer(Answer("From beside, and more from beside. ", halfway=going))
        to_one = "(progn (goto-char (point-min)) (forward-line 2))"
        prompt(stage, "you too", to_one)
        one.wait_for("From beside")
        wait_for_outcomes(stage, *[AT_MODEL] * 4)
        prompt(stage, "you again", to_one)
        wait_for_outcomes(stage, *[AT_MODEL] * 4, QUEUED)
        stage.model.say("Then that.")
        going.set()
        one.wait_for("Then that.")
        wait_for_outcomes(stage, *[AT_MODEL] * 5)
        two.keys(*["BSpace"] * len("half a thought"))
        two.wait_for("Type your message")
        # A turn that is cancelled there is begun anew.
        forever = threading.Event()
        stage.model.answer(Answer("First half here. Second half there. ", halfway=forever, pieces=4))
        prompt(stage, "never mind", "(test-go)")
        two.wait_for("First half")
        stage.model.answer(Answer("Again half here. Second half there. ", halfway=forever, pieces=4))
        two.keys("Escape")
        two.wait_for("Again half")
        working = r"\|elsewhere\|working\|.*\|never mind, "
        wait_for_rows(stage, inside, outside, working)
        stage.model.say("At last.")
        two.keys("Escape")
        two.wait_for("At last.")
        wait_for_rows(stage, inside, outside, r"\|elsewhere\|done\|.*\|At last\., ")
        forever.set()
        wait_for_outcomes(stage, *[AT_MODEL] * 6)
        texts = ("first", "wait", "wait", "after", "you too", "you again", *["never mind"] * 3)
        assert all(text in stage.model.next_request().prompt for text in texts)
        two.type("/quit", seen=re.compile("^> +/quit", re.MULTILINE))
        two.keys("Enter")
        wait_for_rows(stage, inside, outside)
    wait_for_rows(stage, inside)


@each_version
def test_the_cli_of_another_emacs(stage: Stage, cli: Cli) -> None:
    """A second Emacs lists it with the editor that has it, and sends it a prompt."""
    open_list(stage, f"(setq qwen-companion-qwen-command (list {lisp_string(cli.program)}))")
    stage.start_cli()
    elsewhere = stage.sandbox.make_project("elsewhere")
    with stage.beside() as other:
        other.start_emacs(elsewhere / "new.py")
        other.emacs.command("qwen-companion-sessions")
        wait_for_rows(other, r"\|project\|elsewhere\|.*\|terminal project-\w\w\|.*Emacs")
        stage.model.say("To another Emacs.")
        prompt(other, "from the other")
        other.screen.wait_for("Let Emacs send prompts")
        other.screen.enter("yes")
        stage.screen.wait_for("To another Emacs.")
        wait_for_outcomes(other, AT_MODEL)
        wait_for_rows(stage, r"\|project\|(done|ready|connected)\|.*\|\*qwen: project\*\|")
        other.emacs.quit()
        wait_for_rows(stage, r"\|project\|(done|ready|connected)\|.*\|\*qwen: project\*\|")


@each_version
@pytest.mark.parametrize(
    ("agents", "outcome"),
    [
        ({"crossSessionInbound": "hold"}, r"held until you allow it"),
        ({"crossSessionInbound": "refuse"}, r"Not sent to project-\w\w: its settings refuse prompts"),
        (
            {"crossSessionMessaging": False},
            r"does not accept prompts from other programs \(agents.crossSessionMessaging is off",
        ),
    ],
    ids=["hold", "refuse", "off"],
)
def test_what_its_settings_say(stage: Stage, cli: Cli, agents: dict[str, Any], outcome: str) -> None:
    open_list(stage, **agents)
    with stage.outside(cli):
        wait_for_rows(stage, r"\|terminal project-|outside Emacs")
        if "crossSessionMessaging" in agents:
            to_list(stage)
            stage.screen.keys("r")
        else:
            prompt(stage, "do it")
            stage.screen.wait_for("Let Emacs send prompts")
            stage.screen.enter("yes")
        stage.screen.wait_until(
            lambda: re.search(outcome, stage.emacs.buffer_text("*Messages*")), f"the outcome {outcome}"
        )
    assert not stage.model.bodies


MEASURE = """
(progn
  (defvar test-longest 0)
  (defvar test-told nil)
  (advice-add 'qwen-companion-registry-on-registered :around
              (lambda (function &rest arguments)
                (let ((start (get-internal-run-time)))
                  (prog1 (apply function arguments)
                    (setq test-told (or test-told (float-time))
                          test-longest (max test-longest (float-time (time-subtract (get-internal-run-time)
                                                                                    start)))))))))
"""
"""Keeps when Emacs got news of CLIs first, and how long it took for any at most, in seconds of processor time."""


@each_version
def test_bad_input_gets_a_clear_word_and_holds_up_nothing(stage: Stage, cli: Cli) -> None:
    """Before there is a folder, with records that cannot be used, and while the CLI does not answer."""
    folder = stage.sandbox.home / ".qwen/sessions"
    open_list(stage, MEASURE, f"(setq qwen-companion-qwen-command (list {lisp_string(cli.program)}))")
    assert not folder.exists()
    stage.screen.wait_for("No CLI is connected")
    elsewhere = stage.sandbox.make_project("elsewhere")
    stage.emacs.eval("(setq test-told nil)")
    with beside(stage, cli, elsewhere) as terminal:
        wait_for_rows(stage, r"\|no editor\|")
        [path] = folder.glob("*.json")
        assert float(stage.emacs.eval("test-told")) < path.stat().st_mtime + 1
        record = path.read_text()
        values = json.loads(record)
        link = folder / "x.tmp"

        def put(content: str) -> None:
            link.write_text(content)
            link.replace(path)

        def times_said(words: str) -> int:
            return len(re.findall(words, stage.emacs.buffer_text("*Messages*")))

        def press(key: str, said: str) -> None:
            to_list(stage)
            before = times_said(said)
            stage.screen.keys(key)
            stage.screen.wait_until(lambda: times_said(said) > before, said)

        for content, problem in (
            (json.dumps({**values, "schemaVersion": 2}), "a form of a newer Qwen Code"),
            (record[:-9], "it is not a JSON object"),
            (json.dumps({**values, "pid": 1}), "it names another process"),
        ):
            put(content)
            wait_for_rows(stage, rf"\|unusable\|.*its record cannot be used: .*{problem}")
            for key in ("r", "b"):
                press(key, problem)
        (folder / "moved").write_text(record)
        link.symlink_to(folder / "moved")
        link.replace(path)
        wait_for_rows(stage, r"\|unusable\|.*symbolic link")
        if os.geteuid() == 0:
            put(record)
            wait_for_rows(stage, r"\|no editor\|")
            os.chown(path, 12345, 12345)
            (folder / "stir").touch()
            wait_for_rows(stage, r"\|unusable\|.*another user")
            os.chown(path, 0, 0)
        # The number of its process is used again.
        put(json.dumps({**values, "procStart": "1:2"}))
        wait_for_rows(stage, r"\|gone\|")
        press("r", "has ended")
        put(record)
        wait_for_rows(stage, r"\|no editor\|")

        # Ten thousand that were left behind.
        for number in range(10_000):
            (folder / f"{4_000_000 + number}.json").write_text(record)
        stage.model.say("Among many.")
        prompt(stage, "first")
        stage.screen.wait_for("Let Emacs send prompts")
        stage.screen.enter("yes")
        wait_for_outcomes(stage, AT_MODEL)
        terminal.wait_for("Among many.")

        # It stands still; what it was sent it does when it goes on.
        os.kill(int(path.stem), signal.SIGSTOP)
        silent, late = "no receipt has come in", "(delivered|at the model); it is no longer in the prompt buffer"
        before = times_said(silent), times_said(late)
        prompt(stage, "are you there")
        stage.screen.wait_until(lambda: times_said(silent) > before[0], silent)
        stage.model.say("Here.")
        os.kill(int(path.stem), signal.SIGCONT)
        terminal.wait_for("Here.")
        stage.screen.wait_until(lambda: times_said(late) > before[1], late)

        # Its directory goes, and then the token.
        shutil.rmtree(elsewhere)
        for number in range(10_000):
            (folder / f"{4_000_000 + number}.json").unlink()
        wait_for_rows(stage, r"\|its directory is gone")
        press("b", "its directory is gone")
        kept = json.loads((stage.sandbox.home / ".local/state/qwen-companion/controller.json").read_text())
        command = [cli.program, "sessions", "controllers", "remove", kept["id"]]
        subprocess.run(command, check=True, env=stage.environment, cwd=stage.sandbox.home, capture_output=True)
        stage.emacs.wait_until("(eq 'revoked qwen-companion-registry--controller)")
        prompt(stage, "and now")
        stage.screen.wait_for("You have revoked the token of Emacs")
        stage.screen.enter("no")
        stage.wait_until_said("Not sent: without a token")
        assert not [body for body in stage.model.bodies if "and now" in str(body)]
        stage.emacs.eval("(setq test-told nil)")
        ended = time.time()
        os.kill(int(path.stem), signal.SIGKILL)
        wait_for_rows(stage, r"\|gone\|")
        assert float(stage.emacs.eval("test-told")) < ended + 1
    assert float(stage.emacs.eval("test-longest")) < 0.05


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
    # Its terminal shows the answer before its hook tells the end of the turn.
    wait_for_rows(stage, r"^[^|]*\|[^|]*\|done\|")


TURNS = """
(mapcar (lambda (turn)
          (list (qwen-companion-turn-prompt turn)
                (mapcar (lambda (file) (file-name-nondirectory (qwen-companion-changed-file-path file)))
                        (qwen-companion-turn-files turn))
                (length (delete-dups (mapcar #'qwen-companion-turn-session (qwen-companion-journal-turns))))))
        (reverse (qwen-companion-journal-turns)))
"""


@each_version
def test_a_conversation_walks_from_a_terminal_to_a_chat_and_back(stage: Stage, cli: Cli) -> None:
    """No turn is lost, and each stays a turn of this conversation in the journal, with what it has written."""
    said: list[tuple[str, str]] = []

    def script(prompt: str) -> str:
        answer = f"Written in {prompt}."
        stage.model.call("write_file", file_path=str(stage.sandbox.project / f"{prompt}.txt"), content=prompt)
        stage.model.say(answer)
        said.extend([("user", prompt), ("assistant", answer)])
        return answer

    def wait_for_turns(*prompts: str) -> None:
        turns = " ".join(f'("{each}" ("{each}.txt") 1)' for each in prompts)
        stage.emacs.wait_until(f"(equal '({turns}) {TURNS})")
        stage.screen.wait_until(lambda: conversation(stage) == said, "the whole conversation")

    open_list(stage, *FORMS, f"(setq qwen-companion-qwen-command (list {lisp_string(cli.program)}))", mode="yolo")
    with stage.outside(cli) as terminal:
        wait_for_rows(stage, "outside Emacs")
        answer = script("one")
        prompt(stage, "one")
        stage.screen.wait_for("Let Emacs send prompts")
        stage.screen.enter("yes")
        terminal.wait_for(answer)
        wait_for_turns("one")
        start_daemon(stage)
        to_list(stage)
        stage.screen.keys("b")
        stage.screen.wait_for("Move project-")
        stage.screen.keys("c")
        stage.screen.wait_for("Quit it there")
        stage.screen.enter("yes")
        stage.screen.wait_until(lambda: answer in stage.emacs.buffer_text(CHAT), "the conversation in a chat")
    wait_until_idle(stage)
    answer = script("two")
    stage.screen.type("two")
    stage.screen.keys("C-c", "C-c")
    stage.screen.wait_for(answer)
    wait_until_idle(stage)
    wait_for_turns("one", "two")
    to_list(stage)
    stage.screen.keys("r")
    stage.wait_until_said("runs in a daemon; send the prompt in a chat")
    # As `D' in the list of chats does.
    stage.emacs.command("qwen-companion-chats")
    stage.screen.keys("D")
    stage.screen.wait_for("End this session for all its clients?")
    stage.screen.keys("y")
    stage.emacs.wait_until(
        "(not (seq-find (lambda (cli) (eq 'serve (plist-get cli :kind))) (qwen-companion-registry-sessions)))"
    )
    stage.emacs.command("qwen-companion-resume")
    stage.screen.wait_for("Continue conversation:")
    stage.screen.keys("Tab", "Enter")
    stage.screen.wait_until(
        lambda: answer in (text := stage.emacs.buffer_text("*qwen: project*")) and "Type your message" in text,
        "the conversation in a terminal of Emacs",
    )
    answer = script("three")
    # In yolo its prompt begins with a star.
    stage.ask("three", replace(cli, input_start=r"^[>*] +"))
    stage.screen.wait_for(answer)
    wait_for_turns("one", "two", "three")
