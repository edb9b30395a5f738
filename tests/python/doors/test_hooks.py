# SPDX-License-Identifier: GPL-3.0-or-later
"""The door of the hooks in a real backend process; the CLI is this process, and Emacs is scripted."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from sexpdata import Symbol, dumps

from qwen_companion.base.processes import start_of
from qwen_companion.doors.door_settings import NO_ANSWER
from qwen_companion.doors.events import ask, refuse
from qwen_companion.doors.layers import FILE_NAME
from qwen_companion.doors.reviews import REJECTED
from qwen_companion.doors.user_settings import VARIABLE
from support import TIMEOUT_S, Backend, Home, as_dict

TEXT = "one\ntwo\n"
PROPOSED = "one\nthree\n"


class Caller:
    """A CLI reduced to its hooks, which it reads from its settings layer."""

    def __init__(self, layer: Path) -> None:
        settings = json.loads(layer.read_text())
        (self.hook,) = settings["hooks"]["PermissionRequest"][0]["hooks"]
        self.port = int(self.hook["url"].split(":")[2].partition("/")[0])
        self.path = "/" + self.hook["url"].split("/", 3)[3]

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)

    def begin(self, connection: http.client.HTTPConnection, data: bytes | dict[str, Any], **changes: Any) -> None:
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        headers = {**self.hook["headers"], "Content-Type": "application/json", **changes.pop("headers", {})}
        connection.request(changes.get("method", "POST"), changes.get("path", self.path), body, headers)

    def call(self, data: bytes | dict[str, Any], **changes: Any) -> tuple[int, Any]:
        connection = self.connect()
        try:
            return self.call_over(connection, data, **changes)
        finally:
            connection.close()

    def call_over(
        self, connection: http.client.HTTPConnection, data: bytes | dict[str, Any], **changes: Any
    ) -> tuple[int, Any]:
        """As a CLI does, which keeps its connection: while that is open, its process can be found."""
        self.begin(connection, data, **changes)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


@pytest.fixture(autouse=True)
def working_directory(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect a CLI that works in its project."""
    monkeypatch.chdir(home.work)


@pytest.fixture
def backend(home: Home) -> Iterator[Backend]:
    """Yield a process whose terminals have the layer."""
    with Backend(home) as process:
        process.serve(settings(layer=True))
        yield process


@pytest.fixture
def layer(home: Home) -> Path:
    return home.spool / FILE_NAME


@pytest.fixture
def caller(backend: Backend, layer: Path) -> Caller:
    del backend
    return Caller(layer)


def settings(*, layer: bool, edits: str = "all", **more: object) -> str:
    options = {name.replace("_", "-"): value for name, value in more.items()}
    return dumps({"settings-layer": layer, "review-edits": Symbol(edits), **options})


def request(home: Home, **fields: Any) -> dict[str, Any]:
    """Return a request of this process for permission to edit a file."""
    path = home.work / "a.txt"
    path.write_text(TEXT)
    return {
        "hook_event_name": "PermissionRequest",
        "session_id": "s",
        "cwd": str(home.work),
        "permission_mode": "auto",
        "tool_name": "edit",
        "tool_input": {"file_path": str(path), "old_string": "two", "new_string": "three"},
        **fields,
    }


# --- The layer ---


def test_terminals_are_told_of_a_file_that_is_complete(home: Home, layer: Path) -> None:
    with Backend(home) as backend:
        environment = dict(backend.greet(settings(layer=True))["environment"])
        assert environment[VARIABLE] == str(layer)
        content = json.loads(layer.read_text())
        # Nothing is permitted, and nothing made ask, by rules.
        assert "permissions" not in content
        assert edit_hook(content)["type"] == "command"
        # A CLI that is started in a terminal of Emacs connects without a question.
        assert content["ide"] == {"enabled": True}
        assert backend.token not in layer.read_text() or not backend.token
        # The variable goes with the option, and the file with it.
        backend.emacs.call("settings", settings(layer=False))
        assert VARIABLE not in dict(backend.emacs.wait_for("published")["environment"])
        assert not layer.exists()
        backend.emacs.call("settings", settings(layer=True, edits="nil"))
        backend.emacs.wait_for("published")
        # Without reviews, no edit waits for Emacs.
        assert edit_hook(json.loads(layer.read_text()))["type"] == "http"
        backend.emacs.call("stop", "nil")
        backend.close_input()
        backend.exit_code()
    assert not layer.exists()


def test_a_layer_that_is_not_as_it_should_be_is_written_again(home: Home, layer: Path) -> None:
    """As where a cleaner of temporary files took it, the disk was full, or the administrator has changed theirs."""
    theirs = home.home / "theirs.json"
    environ = {VARIABLE: str(theirs)}
    begin = f"import os; os.environ.update({environ}); import qwen_companion.discovery.publisher as c; c.RENEW_S = 0.01"
    with Backend(home, settings=begin) as backend:
        variable = [VARIABLE, str(layer)]
        assert variable in backend.greet(settings(layer=True))["environment"]
        layer.unlink()
        backend.emacs.wait_until("published", lambda _: layer.exists())
        theirs.write_text('{"ui": {"theme": "theirs"}}')
        backend.emacs.wait_until("published", lambda _: "theirs" in layer.read_text())
        # A directory in its place cannot be replaced, and then it is not named.
        while not layer.is_dir():
            # It may be written again in between.
            layer.unlink(missing_ok=True)
            with suppress(FileExistsError):
                layer.mkdir()
        backend.emacs.wait_until("published", lambda told: variable not in told["environment"])
        layer.rmdir()
        backend.emacs.wait_until("published", lambda told: variable in told["environment"])
        assert layer.exists()


def test_the_secret_is_the_same_after_a_restart(home: Home, backend: Backend, layer: Path, caller: Caller) -> None:
    backend.kill()
    with Backend(home, token=backend.token, port=backend.port) as other:
        other.serve(settings(layer=True))
        assert caller.call({"hook_event_name": "Stop", "session_id": "s"}) == (200, {})
        assert caller.hook["headers"] == Caller(layer).hook["headers"]


def test_a_review_that_a_hook_held_ends_with_its_process(home: Home) -> None:
    known = [{"id": "hook-1", "session": "i", "path": "/a", "digest": "d"}]
    with Backend(home, proposals=known) as backend:
        backend.connect()
        backend.emacs.call("ping", "nil")
        assert backend.emacs.wait_for("proposal-orphan")["id"] == "hook-1"
        # Emacs may have decided at that very moment.
        backend.emacs.call("outcome", '(:id "hook-1" :outcome rejected)')
        assert backend.emacs.wait_for("delivered") == {"id": "hook-1"}


# --- Who may call ---


def test_the_door_has_a_secret_of_its_own(backend: Backend, caller: Caller) -> None:
    event = {"hook_event_name": "Stop", "session_id": "s"}
    assert caller.call(event) == (200, {})
    for headers in ({"Authorization": f"Bearer {backend.token}"}, {"Authorization": ""}):
        assert caller.call(event, headers=headers)[0] == 401
    assert caller.call(event, path="/mcp")[0] == 401
    assert caller.call(event, headers={"Origin": "null"})[0] == 403
    assert caller.call(event, headers={"Host": "evil.example"})[0] == 421
    assert caller.call(event, method="PUT")[0] == 405


def test_whatever_is_reported_is_no_decision(home: Home, caller: Caller) -> None:
    for data in (
        b"",
        b"{",
        b"[]",
        b'{"hook_event_name": "New"}',
        b'"PermissionRequest"',
        b'{"a": "PermissionRequest"}',
    ):
        assert caller.call(data) == (200, {})
    assert caller.call({"hook_event_name": "PreToolUse", "tool_input": {"content": "x" * 20_000_000}}) == (200, {})
    large = request(home, tool_name="write_file", tool_input={"file_path": "x", "content": "x" * 70_000_000})
    assert caller.call(large) == (200, {})
    assert caller.call({"hook_event_name": "Stop"}) == (200, {})


# --- What is told to Emacs ---


def test_the_state_of_a_connected_cli_is_told(backend: Backend, caller: Caller) -> None:
    with backend.cli().stream(), closing(caller.connect()) as connection:
        found = backend.emacs.wait_until("sessions", lambda told: "pid" in as_dict(told["sessions"][0]))
        assert as_dict(found["sessions"][0])["pid"] == os.getpid()
        start = {"hook_event_name": "SessionStart", "session_id": "s", "model": "m", "permission_mode": "auto"}
        caller.call_over(connection, start)
        prompt = {"hook_event_name": "UserPromptSubmit", "session_id": "s", "prompt": "do this\n" + "x" * 1000}
        caller.call_over(connection, prompt)

        def works(told: dict[str, Any]) -> bool:
            session = as_dict(told["sessions"][0])
            return "state" in session and str(as_dict(session["state"])["activity"]) == "working"

        state = as_dict(as_dict(backend.emacs.wait_until("sessions", works)["sessions"][0])["state"])
        assert (state["mode"], state["model"]) == ("auto", "m")
        # No more of the prompt than is shown.
        assert state["prompt"].startswith("do this x")
        assert len(state["prompt"]) == 60


def test_what_was_answered_is_told_while_it_is_looked_at(home: Home, backend: Backend, caller: Caller) -> None:
    with backend.cli().stream(), closing(caller.connect()) as connection:
        told = backend.emacs.wait_until("sessions", lambda told: "pid" in as_dict(told["sessions"][0]))
        caller.call_over(connection, {"hook_event_name": "PreToolUse", "session_id": "s", "tool_name": "edit"})
        outside = {"file_path": "/x", "content": "secret words"}
        caller.call_over(connection, request(home, tool_name="write_file", tool_input=outside))
        assert backend.emacs.calls("hook-answers").empty()
        backend.emacs.call("watch", "(:on t)")
        answers = backend.emacs.wait_for("hook-answers")
        assert answers["session"] == as_dict(told["sessions"][0])["id"]
        expected = ["PermissionRequest write_file", "PreToolUse edit"]
        items = [as_dict(item) for item in answers["answers"]]
        assert [f"{item['event']} {item['tool']}" for item in items] == expected
        assert {item["answer"] for item in items} == {"no decision"}
        assert "secret words" not in str(answers)
        caller.call_over(connection, {"hook_event_name": "PreToolUse", "session_id": "s", "tool_name": "edit"})
        (first, _) = backend.emacs.wait_for("hook-answers")["answers"]
        assert (as_dict(first)["event"], as_dict(first)["count"]) == ("PreToolUse", 2)
        backend.emacs.call("watch", "(:on nil)")
        caller.call_over(connection, {"hook_event_name": "Stop", "session_id": "s"})
        assert caller.call_over(connection, request(home)) == (200, {})
        assert backend.emacs.calls("hook-answers").empty()


def test_a_model_is_told_that_a_proposal_of_another_cli_waits_for_its_file(
    home: Home, backend: Backend, caller: Caller
) -> None:
    backend.emacs.call("settings", settings(layer=True, journal=True, tell_agents=True))
    path = home.work / "a.txt"
    path.write_text("one\n")
    tool = {"tool_name": "write_file", "tool_input": {"file_path": str(path), "content": "two\n"}}

    def call(connection: http.client.HTTPConnection, name: str, **fields: Any) -> str:
        event = {"hook_event_name": name, "session_id": "s", "cwd": str(home.work), **fields}
        return str(caller.call_over(connection, event))

    with backend.cli().stream(), closing(caller.connect()) as connection:
        backend.emacs.wait_until("sessions", lambda told: "pid" in as_dict(told["sessions"][0]))
        other = backend.cli()
        with other.stream():
            other.tool("openDiff", filePath=str(path), newContent="three\n")
            opened = backend.emacs.wait_for("proposal-open")
            for prompt, is_told in (("first", True), ("second", False)):
                call(connection, "UserPromptSubmit", prompt=prompt)
                call(connection, "PreToolUse", **tool, tool_call_id=prompt)
                path.write_text(prompt)
                told = call(connection, "PostToolUse", **tool, tool_call_id=prompt)
                assert ("has proposed a change of it, on which the user has not decided" in told) == is_told
                backend.emacs.call("outcome", f'(:id "{opened["id"]}" :outcome rejected)')
                backend.emacs.wait_for("delivered")


def test_a_state_outlives_the_backend(home: Home) -> None:
    state = [Symbol(":activity"), Symbol("idle"), Symbol(":since"), 5, Symbol(":mode"), "yolo"]
    common = {"protocol": "2025-11-25", "client": "Qwen Code", "version": "1"}
    peer = {"pid": os.getpid(), "started": start_of(os.getpid())}
    sessions = [{**common, **peer, "id": "i", "state": state}, {**common, "id": "silent", "no-hooks": "why"}]
    with Backend(home, sessions=sessions) as backend:
        backend.greet()
        restored: dict[str, dict[str, Any]] = {}
        with backend.cli().stream():
            while not {"i", "silent"} <= restored.keys():
                told = backend.emacs.wait_for("sessions")["sessions"]
                restored.update((item["id"], item) for item in map(as_dict, told))
    assert as_dict(restored["i"]["state"])["mode"] == "yolo"
    assert "no-hooks" not in restored["i"]
    assert restored["silent"]["no-hooks"] == "why"


def test_an_edit_is_reviewed(home: Home, backend: Backend, layer: Path) -> None:
    """By the command in the layer, which a shell of this process runs as that of a CLI does."""
    backend.emacs.call("ping", "nil")
    for outcome, answer in (
        ({"outcome": Symbol("accepted"), "text": PROPOSED}, {}),
        ({"outcome": Symbol("rejected"), "reason": {"text": "not here"}}, refuse("not here")),
        ({"outcome": Symbol("rejected")}, refuse(REJECTED)),
    ):
        with before_edit(layer, edit(home)) as hook:
            review = backend.emacs.wait_for("proposal-open")
            assert (review["path"], review["text"]) == (str(home.work / "a.txt"), PROPOSED)
            assert review["held"] is True
            # The process that has called is the CLI, not the program that it runs for that.
            assert review["session"] == f"process {os.getpid()}"
            backend.emacs.call("outcome", dumps({"id": review["id"], **outcome}))
            assert answer_of(hook) == answer
            assert backend.emacs.wait_for("delivered") == {"id": review["id"]}
    assert (home.work / "a.txt").read_text() == TEXT
    with before_edit(layer, edit(home)) as hook:
        review = backend.emacs.wait_for("proposal-open")
        backend.emacs.call("outcome", dumps({"id": review["id"], "outcome": Symbol("accepted"), "text": "by hand\n"}))
        assert "-three\n" in answer_of(hook)["hookSpecificOutput"]["permissionDecisionReason"]
    assert (home.work / "a.txt").read_text() == "by hand\n"
    with before_edit(layer, edit(home, permission_mode="default")) as hook:
        assert answer_of(hook) == {}


def test_a_subagents_edit_is_reviewed_under_its_name(home: Home, backend: Backend, layer: Path, caller: Caller) -> None:
    with closing(caller.connect()) as connection:
        start = {"hook_event_name": "SubagentStart", "session_id": "s", "agent_id": "a", "agent_type": "explorer"}
        caller.call_over(connection, start)
        # Versions that do not say who calls: while a subagent is running, it may be that one.
        for fields in ({"agent_id": "a", "prompt_id": "p"}, {}):
            with before_edit(layer, edit(home, **fields)) as hook:
                review = backend.emacs.wait_for("proposal-open")
                assert review["client"].startswith("subagent explorer of ")
                backend.emacs.call("outcome", dumps({"id": review["id"], "outcome": Symbol("rejected")}))
                assert answer_of(hook) == refuse(REJECTED)


def test_a_caller_that_gives_up_ends_its_review(home: Home, backend: Backend, layer: Path) -> None:
    with before_edit(layer, edit(home)) as hook:
        review = backend.emacs.wait_for("proposal-open")
        # As a CLI does that ends, and then goes on with the answer.
        os.killpg(hook.pid, signal.SIGKILL)
        assert answer_of(hook) == ask(NO_ANSWER)
    assert backend.emacs.wait_for("proposal-orphan")["id"] == review["id"]


@pytest.mark.parametrize("failure", ["dead", "killed", "garbage", "secret", "program"])
def test_an_edit_that_cannot_be_reviewed_is_asked_about(
    home: Home, backend: Backend, layer: Path, failure: str
) -> None:
    event = edit(home)
    command = edit_hook(json.loads(layer.read_text()))["command"]
    if failure == "dead":
        backend.kill()
    elif failure == "garbage":
        event = {"hook_event_name": "PreToolUse", "tool_input": 3}
    elif failure == "secret":
        (home.spool / "qwen-hook-header").unlink()
    elif failure == "program":
        command = command.replace("/curl", "/no-curl")
    with before_edit(layer, event, command) as hook:
        if failure == "killed":
            backend.emacs.wait_for("proposal-open")
            backend.kill()
        assert answer_of(hook) == ask(NO_ANSWER)


def test_without_an_answer_only_what_the_user_was_not_asked_about_is_asked(
    home: Home, backend: Backend, layer: Path
) -> None:
    """In the mode `default` the terminal has just asked; a model cannot claim that mode."""
    backend.kill()
    for event, answer in (
        (edit(home, permission_mode="default"), {}),
        (edit(home, permission_mode="auto"), ask(NO_ANSWER)),
        (edit(home, permission_mode="yolo"), ask(NO_ANSWER)),
    ):
        event["tool_input"]["permission_mode"] = "default"
        with before_edit(layer, event) as hook:
            assert answer_of(hook) == answer


def edit_hook(layer: dict[str, Any]) -> dict[str, Any]:
    """Return the hook in `layer` that is called before edits."""
    (hook,) = layer["hooks"]["PreToolUse"][1]["hooks"]
    return hook


def edit(home: Home, **fields: Any) -> dict[str, Any]:
    """Return what a CLI reports before an edit."""
    return request(home, hook_event_name="PreToolUse", tool_call_id="c", **fields)


@contextmanager
def before_edit(layer: Path, event: dict[str, Any], command: str = "") -> Generator[subprocess.Popen[bytes]]:
    """Run the command in `layer`, or that one, as a CLI does before `event`."""
    command = command or edit_hook(json.loads(layer.read_text()))["command"]
    arguments = ["/bin/sh", "-c", command]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True) as process:
        assert process.stdin is not None
        # The program may have failed already.
        with suppress(BrokenPipeError):
            # As Qwen Code writes it.
            ordered = sorted(event.items(), key=lambda item: item[0].startswith("tool_"))
            process.stdin.write(json.dumps(dict(ordered), separators=(",", ":")).encode())
            process.stdin.close()
        yield process


def answer_of(hook: subprocess.Popen[bytes]) -> Any:
    """Return the answer of `hook`, which a CLI reads from its errors where its output is empty."""
    assert hook.stdout is not None
    assert hook.stderr is not None
    return json.loads(hook.stdout.read() or hook.stderr.read())
