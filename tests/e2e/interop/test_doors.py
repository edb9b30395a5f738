# SPDX-License-Identifier: GPL-3.0-or-later
"""Properties of the real CLIs with a mode `auto` that the settings layer and the hooks rest on."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from clis import GEMINI, QWEN_SETTINGS
from model_types import Answer, Call
from qwen_companion.doors.held import HOLD_S
from qwen_companion.doors.layers import FILE_NAME
from qwen_companion.doors.reviews import STILL_REVIEWING
from qwen_companion.doors.user_settings import VARIABLE
from sandbox import EDITED, GREETING, NEW_NOTES, NOTES
from stage import Stage
from test_auto_mode import begin, edit_review, wait_for_review

pytestmark = pytest.mark.interop

VERSIONS = {"qwen": "0.24.4", "qwen-0.21.2": "0.21.2"}
HELP = "(qwen-companion-layer-help)"


def start(stage: Stage, *forms: str, program: str = "qwen", **settings: Any) -> None:
    """Start Emacs and `program` in the mode that it has of its own, with `settings` of the user's."""
    own = copy.deepcopy(dict(QWEN_SETTINGS))
    own["tools"] = {"useRipgrep": False}
    for key, value in settings.items():
        own[key] = {**own[key], **value} if isinstance(own.get(key), Mapping) else value
    stage.sandbox.write_cli_settings(own)
    command = f'(setq qwen-companion-qwen-command (list "{program}"))'
    stage.start_emacs(stage.sandbox.greeting, forms=(command, *forms))
    stage.start_cli()


def layer_of(stage: Stage) -> Path:
    (layer,) = stage.sandbox.tmp.glob(f"*/{FILE_NAME}")
    return layer


def script_subagent(stage: Stage, *turns: Answer) -> None:
    """Script a subagent that reads the notes, does `turns` and ends."""
    read = Answer(calls=(Call("read_file", {"file_path": str(stage.sandbox.notes)}),))
    stage.model.start_subagent(read, *turns, Answer("The subagent is done."))
    stage.model.say("It works for me.")
    stage.model.say("It has worked.")


def plums(stage: Stage) -> Answer:
    """Return the turn in which a subagent edits the notes."""
    notes = str(stage.sandbox.notes)
    return Answer(calls=(Call("edit", {"file_path": notes, "old_string": "pears", "new_string": "plums"}),))


def wait_for_held_review(stage: Stage) -> None:
    """Wait until the review of a subagent's edit is open; the terminal shows nothing of it."""
    stage.screen.wait_for("Qwen[1!1]")
    stage.screen.wait_for("C-c C-c accept")


def wait_for_text(stage: Stage, path: Path, text: str) -> None:
    stage.screen.wait_until(lambda: path.read_text() == text, f"the new text of {path.name}")


@contextmanager
def http_server(silent: bool = False) -> Generator[tuple[int, threading.Event]]:
    """Yield a server of the user's own, which refuses, or if `silent` never answers: its port, and if it was asked."""
    asked, over = threading.Event(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.set()
            if silent:
                over.wait()
            else:
                self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port, asked
        over.set()
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("program", VERSIONS)
def test_ten_edits_are_reviewed_and_the_users_own_settings_hold(stage: Stage, program: str) -> None:
    log = stage.sandbox.home / "hook.log"
    hook = {"type": "command", "command": f"echo ran >> {log}"}
    with http_server() as (port, asked):
        start(
            stage,
            program=program,
            permissions={"allow": ["Edit"], "deny": ["Bash(rm *)"]},
            hooks={"PostToolUse": [{"matcher": "^write_file$", "hooks": [hook]}]},
            mcpServers={"mine": {"httpUrl": f"http://127.0.0.1:{port}/mcp"}},
        )
        stage.screen.wait_until(asked.is_set, "the user's own MCP server asked")
    layer = layer_of(stage).read_bytes()
    greeting = stage.sandbox.greeting
    texts = [f"{GREETING}# {number}\n" for number in range(10)]
    for text in texts:
        stage.script_change(greeting, text)
    stage.model.say("Ten times.")
    stage.ask("ten changes")
    proposal = '"*qwen-companion proposal: greeting.py*"'
    for number, text in enumerate(texts):
        stage.screen.wait_until(
            lambda number=number: f"# {number}\n" in stage.emacs.buffer_text(proposal.strip('"')), f"review {number}"
        )
        wait_for_review(stage)
        if number == 3:
            edit_review(stage, greeting, "# by hand\n")
        stage.emacs.command("qwen-companion-diff-accept")
        wait_for_text(stage, greeting, text + "# by hand\n" * (number == 3))
    stage.screen.wait_for("Ten times.")
    # One has been written by Emacs, which calls no hooks of the user's.
    assert log.read_text() == "ran\n" * 9
    # A command by itself, and one that the user's own rule forbids.
    stage.model.call("run_shell_command", command="python3 -c 'print(6 * 7)'", description="count")
    stage.model.call("run_shell_command", command=f"rm {stage.sandbox.notes}", description="remove")
    stage.converse("count", "It is 42.")
    assert stage.sandbox.notes.exists()
    script_subagent(stage, plums(stage))
    stage.ask("let somebody do it")
    wait_for_held_review(stage)
    said = f"subagent general-purpose of Qwen Code {VERSIONS[program]} proposes a change"
    assert said in stage.emacs.buffer_text("*Messages*")
    stage.accept("It has worked.")
    assert stage.sandbox.notes.read_text() == NEW_NOTES
    begin(stage, greeting, GREETING, "back again")
    stage.model.say("Not back.")
    stage.emacs.command("qwen-companion-diff-reject")
    stage.screen.wait_for("Not back.")
    assert greeting.read_text() == texts[-1]
    # Only what is open in Emacs; the notes are not.
    stage.emacs.eval("(progn (setq qwen-companion-review-edits 'open) (qwen-companion-privacy-update))")
    stage.script_change(stage.sandbox.notes, NOTES)
    stage.converse("pears please", "Pears again.")
    assert stage.sandbox.notes.read_text() == NOTES
    # The CLI has written nothing into it.
    assert layer_of(stage).read_bytes() == layer


def test_the_backend_is_killed_while_an_edit_is_held(stage: Stage) -> None:
    start(stage)
    stage.converse("hello", "Hello.")
    script_subagent(stage, plums(stage))
    stage.ask("let somebody do it")
    wait_for_held_review(stage)
    before = time.monotonic()
    stage.sandbox.backend().send_signal(signal.SIGKILL)
    stage.emacs.wait_until("(and qwen-companion-backend--restarts (eq (qwen-companion-state) 'ready))")
    print(f"ready {time.monotonic() - before:.2f} s after the backend was killed")
    # What was known is still shown.
    assert "mode auto" in stage.emacs.eval(HELP)
    # As the CLI alone: nobody can be asked, so it is not written.
    stage.screen.wait_for("It has worked.")
    assert stage.sandbox.notes.read_text() == NOTES
    stage.emacs.wait_until("(qwen-companion-session-streaming (car (qwen-companion-backend-sessions)))")
    print(f"connected {time.monotonic() - before:.2f} s after the backend was killed")
    begin(stage, stage.sandbox.greeting, EDITED, "change the greeting")
    stage.model.say("All done.")
    stage.accept("All done.")
    assert stage.sandbox.greeting.read_text() == EDITED


def test_what_is_written_while_the_backend_is_dead_is_known_as_unreviewed(stage: Stage, tmp_path: Path) -> None:
    """Without `curl`, the CLI takes the end of its hook for consent."""
    for directory in stage.environment["PATH"].split(os.pathsep):
        for program in Path(directory).glob("*"):
            if program.name != "curl" and not (tmp_path / program.name).is_symlink():
                (tmp_path / program.name).symlink_to(program)
    start(stage, f'(setenv "PATH" "{tmp_path}")')
    stage.converse("hello", "Hello.")
    begin(stage, stage.sandbox.greeting, EDITED, "change the greeting")
    stage.model.say("All done.")
    stage.sandbox.backend().send_signal(signal.SIGKILL)
    stage.screen.wait_for("All done.")
    assert stage.sandbox.greeting.read_text() == EDITED
    stage.emacs.command("qwen-companion-changes")
    stage.screen.wait_for(re.compile("greeting.py .* written unreviewed"))


def test_a_subagent_makes_its_call_again_while_the_review_is_open(stage: Stage) -> None:
    start(stage)
    script_subagent(stage, plums(stage), plums(stage))
    stage.ask("let somebody do it")
    wait_for_held_review(stage)

    def was_told() -> bool:
        return any(STILL_REVIEWING in json.dumps(body) for body in stage.model.bodies)

    # It waits for the better part of a minute.
    stage.screen.wait_until(was_told, "the subagent told to make the same call again")
    assert "Qwen[1!1]" in stage.screen.capture()
    assert stage.sandbox.notes.read_text() == NOTES
    stage.accept("It has worked.")
    assert stage.sandbox.notes.read_text() == NEW_NOTES


@pytest.mark.parametrize(
    ("reason", "settings"),
    [
        ("disableAllHooks in ", {"disableAllHooks": True}),
        ("security.allowedHttpHookUrls in ", {"security": {"allowedHttpHookUrls": ["https://hooks.example/*"]}}),
    ],
)
def test_hooks_that_are_off_are_said_to_be(stage: Stage, reason: str, settings: dict[str, Any]) -> None:
    start(stage, **settings)
    said = f"Qwen Code 0.24.4 calls no hooks ({reason}{stage.sandbox.home}/.qwen/settings.json)"
    stage.screen.wait_until(lambda: said in stage.emacs.buffer_text("*Messages*"), "the reason")
    assert f"calls no hooks: {reason}" in stage.emacs.eval(HELP)
    # Its edits are not reviewed, and the mode line says so; but a command it calls also where it may call no URL.
    stage.screen.wait_for("edits not reviewed: no hooks")
    if settings.get("disableAllHooks"):
        stage.script_change(stage.sandbox.greeting, EDITED)
        stage.converse("change the greeting", "All done.")
        stage.emacs.command("qwen-companion-changes")
        stage.screen.wait_for(re.compile("greeting.py .* written unreviewed"))
    else:
        begin(stage, stage.sandbox.greeting, EDITED, "change the greeting")
        stage.model.say("All done.")
        stage.accept("All done.")
    assert stage.sandbox.greeting.read_text() == EDITED
    assert stage.emacs.buffer_text("*Messages*").count(said) == 1


def write_project_settings(stage: Stage, **settings: Any) -> Path:
    file = stage.sandbox.project / ".qwen/settings.json"
    file.parent.mkdir()
    file.write_text(json.dumps(settings))
    return file


@pytest.mark.parametrize(
    ("program", "event", "off"),
    [("qwen-0.21.10", "UserPromptSubmit", True), ("qwen-0.23.4", "Stop", True), ("qwen", "Stop", False)],
)
def test_hooks_in_both_files_switch_ours_off_in_older_clis(stage: Stage, program: str, event: str, off: bool) -> None:
    log = stage.sandbox.home / "hook.log"
    hook = {"hooks": [{"type": "command", "command": f"echo ran >> {log}"}]}
    project = write_project_settings(stage, hooks={event: [hook]})
    start(stage, program=program, hooks={"PreToolUse": [hook]})
    said = "switch off all others: move them into one of the files, or update Qwen Code"
    if off:
        stage.screen.wait_until(lambda: said in stage.emacs.buffer_text("*Messages*"), "the reason")
        both = f"{stage.sandbox.home}/.qwen/settings.json and in {project}"
        assert f"calls no hooks: hooks in {both}" in stage.emacs.eval(HELP)
    stage.converse("hello", "Hello.")
    stage.screen.wait_until(log.exists, "a hook of the project called")
    assert ("mode auto" in stage.emacs.eval(HELP)) != off
    assert (said in stage.emacs.buffer_text("*Messages*")) == off


@pytest.mark.parametrize(("program", "where"), [("qwen-0.21.10", "user"), ("qwen-0.23.4", "project")])
def test_hooks_in_one_file_leave_ours_on(stage: Stage, program: str, where: str) -> None:
    hooks = {"UserPromptSubmit": [{"hooks": [{"type": "command", "command": "true"}]}]}
    if where == "project":
        write_project_settings(stage, hooks=hooks)
    start(stage, program=program, **({"hooks": hooks} if where == "user" else {}))
    stage.converse("hello", "Hello.")
    assert "mode auto" in stage.emacs.eval(HELP)


def test_a_broken_file_of_the_administrators_and_a_proxy(stage: Stage) -> None:
    system = stage.sandbox.root / "etc"
    system.mkdir()
    (system / "system-defaults.json").write_text('{"ui": ')
    proxy = "http://127.0.0.1:9"
    start(
        stage,
        f'(setenv "QWEN_CODE_SYSTEM_SETTINGS_PATH" "{system}/settings.json")',
        f'(progn (setenv "http_proxy" "{proxy}") (setenv "https_proxy" "{proxy}") (setenv "NO_PROXY" nil))',
    )
    assert "system-defaults.json is not valid JSON" in stage.emacs.buffer_text("*Warnings*") + stage.emacs.buffer_text(
        "*Messages*"
    )
    assert stage.emacs.eval('(getenv "NO_PROXY")') == '"127.0.0.1,localhost"'
    begin(stage, stage.sandbox.greeting, EDITED, "change the greeting")
    stage.model.say("All done.")
    stage.accept("All done.")
    # Its hooks have come through too.
    assert "mode auto" in stage.emacs.eval(HELP)


def test_a_folder_that_is_not_trusted(stage: Stage) -> None:
    settings = copy.deepcopy(dict(QWEN_SETTINGS))
    settings["tools"] = {"useRipgrep": False}
    settings["security"] = {**settings["security"], "folderTrust": {"enabled": True}}
    stage.sandbox.write_cli_settings(settings)
    (stage.sandbox.home / ".qwen/trustedFolders.json").write_text(
        json.dumps({str(stage.sandbox.project): "DO_NOT_TRUST"})
    )
    stage.start()
    stage.propose(stage.sandbox.greeting, EDITED, "change the greeting")
    stage.model.say("All done.")
    stage.accept("All done.")
    assert stage.sandbox.greeting.read_text() == EDITED
    # It is in the mode default there, and calls the hooks of the layer.
    assert "mode default" in stage.emacs.eval(HELP)


def test_gemini_asks_in_yolo_where_a_policy_says_so(stage: Stage) -> None:
    policy = stage.sandbox.home / "policy.toml"
    policy.write_text('[[rule]]\ntoolName = ["replace", "write_file"]\ndecision = "ask_user"\npriority = 900\n')
    stage.start_emacs(stage.sandbox.greeting)
    stage.open_shell("*gemini*", GEMINI.variables)
    stage.screen.enter(f"gemini --yolo --policy {policy}")
    stage.screen.wait_for("Qwen[1]")
    stage.screen.wait_for("YOLO")
    stage.script_change(stage.sandbox.greeting, EDITED, GEMINI)
    # It shows another sign before what is typed.
    stage.ask("change the greeting", replace(GEMINI, input_start=r"^ *\* +"))
    stage.wait_for_review(GEMINI)
    stage.model.say("All done.")
    stage.accept("All done.")
    assert stage.sandbox.greeting.read_text() == EDITED


def test_without_a_terminal_no_edit_is_offered_in_auto(stage: Stage) -> None:
    """`qwen -p` has nobody to ask: with the layer as without it, the model gets no tool that edits."""
    start(stage)
    stage.open_shell("*shell*")
    stage.screen.enter("qwen -p 'change the greeting'; echo ended $?")
    stage.screen.wait_for("ended 0")
    offered = {tool["function"]["name"] for tool in stage.model.bodies[-1]["tools"]}
    assert "read_file" in offered
    assert not offered & {"edit", "write_file", "notebook_edit"}


def test_a_layer_that_is_not_json_keeps_every_cli_from_starting(stage: Stage) -> None:
    """Hence it is read back before any terminal has its name, and never written in place."""
    broken = stage.sandbox.root / "broken.json"
    broken.write_text('{"hooks": ')
    stage.start_emacs(stage.sandbox.greeting)
    stage.open_shell("*shell*", {VARIABLE: str(broken)})
    stage.screen.enter("qwen; echo ended $?")
    stage.screen.wait_for(re.compile(r"ended [1-9]"))


def test_a_hook_is_given_up_after_a_minute_whatever_its_timeout_says(stage: Stage) -> None:
    """Hence a review of a hook is held for less, and the subagent then told to make its call again."""
    with http_server(silent=True) as (port, asked):
        hook = {"type": "http", "url": f"http://127.0.0.1:{port}/", "timeout": 600}
        start(stage, hooks={"PreToolUse": [{"matcher": "^read_file$", "hooks": [hook]}]})
        stage.model.call("read_file", file_path=str(stage.sandbox.notes))
        stage.model.say("Read at last.")
        stage.ask("read the notes")
        stage.screen.wait_until(asked.is_set, "the hook asked")
        began = time.monotonic()
        stage.screen.wait_for("Read at last.")
        assert HOLD_S < time.monotonic() - began < 90
