# SPDX-License-Identifier: GPL-3.0-or-later
"""Prompts to a stand-in for a CLI that runs in this very process, and what its receipts and its record say."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream, TaskStatus

from limit import limit_s
from qwen_companion.conversations import messenger
from qwen_companion.conversations.controller import NONE, REVOKED, VALID, GrantError, add_grant, grant_file, read_grant
from qwen_companion.domain import CliState, KnownSession, RegisteredCli
from qwen_companion.wire.messages import (
    Notification,
    RegisteredClis,
    RegistryEnd,
    RegistryEnded,
    RegistryLook,
    RegistryPrompt,
    RegistryReceipt,
)
from qwen_companion.wire.registry_front import RegistryFront
from registry_records import values_of, write
from support import until

pytestmark = pytest.mark.anyio

SESSION = "a-conversation"
QWEN = f"""#!{sys.executable}
import hashlib, json, os, sys
assert sys.argv[1:3] == ["sessions", "controllers"], sys.argv
path = os.path.join(os.environ["QWEN_HOME"], "peer-controllers.json")
if sys.argv[3] == "remove":
    os.unlink(path)
    sys.exit()
assert sys.argv[3:] == ["add", "--label", "Emacs", "--json"], sys.argv
token = "qpc_" + "ab" * 32
controller = dict(id="c_1", label="Emacs", tokenHash=hashlib.sha256(token.encode()).hexdigest(), createdAt=1)
with open(path, "w") as file:
    json.dump(dict(schemaVersion=1, controllers=[controller]), file)
print(json.dumps(dict(id="c_1", label="Emacs", token=token, createdAt=1)))
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    home = tmp_path / "qwen"
    home.mkdir()
    return {"HOME": str(tmp_path), "QWEN_HOME": str(home), "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def qwen(tmp_path: Path) -> tuple[str, ...]:
    """Return a program that makes controllers as Qwen Code does."""
    path = tmp_path / "qwen-program"
    path.write_text(QWEN)
    path.chmod(0o700)
    return (str(path),)


def test_the_token_is_kept_for_the_user_alone_and_can_be_taken_back(
    environ: dict[str, str], qwen: tuple[str, ...]
) -> None:
    assert read_grant(environ)[0] == NONE
    grant = add_grant(environ, qwen)
    assert read_grant(environ)[0] == VALID
    path = Path(grant_file(environ))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert grant.token in path.read_text()
    assert list(path.parent.iterdir()) == [path]
    os.unlink(Path(environ["QWEN_HOME"]) / "peer-controllers.json")
    assert read_grant(environ)[0] == REVOKED
    # One that others can read is none.
    path.chmod(0o644)
    assert read_grant(environ)[0] == NONE


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("/not/there", "No such file"),
        ("#!/bin/sh\necho qpc_secret; exit 3\n", "exit status 3"),
        # As Qwen Code 0.21, which prints its help.
        ("#!/bin/sh\necho qwen sessions; echo qpc_secret\n", "0.23 and later do"),
    ],
)
def test_why_there_is_no_token_is_said(environ: dict[str, str], tmp_path: Path, program: str, said: str) -> None:
    path = tmp_path / "program"
    if program.startswith("#!"):
        path.write_text(program)
        path.chmod(0o700)
        program = str(path)
    with pytest.raises(GrantError, match=said) as raised:
        add_grant(environ, (program,))
    assert "qpc_" not in str(raised.value)
    assert read_grant(environ)[0] == NONE


def test_a_token_that_cannot_be_kept_is_taken_back_at_once(environ: dict[str, str], qwen: tuple[str, ...]) -> None:
    Path(grant_file(environ)).mkdir(parents=True)
    with pytest.raises(GrantError, match="cannot be kept"):
        add_grant(environ, qwen)
    assert not (Path(environ["QWEN_HOME"]) / "peer-controllers.json").exists()


def test_two_emacsen_that_ask_in_one_moment_share_a_controller(environ: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "program"
    made = f"os.urandom(32).hex(); open('{tmp_path}/made' + token, 'x').close()"
    program.write_text(QWEN.replace('"ab" * 32', made))
    program.chmod(0o700)
    with ThreadPoolExecutor() as threads:
        grants = [threads.submit(add_grant, environ, (str(program),)) for _ in range(2)]
    tokens = {grant.result().token for grant in grants}
    assert len(tokens) == 1
    assert tokens == {path.name.removeprefix("made") for path in tmp_path.glob("madeqpc_*")}
    assert read_grant(environ)[0] == VALID


class Cli:
    """A stand-in for a CLI: its record, its socket, and what it has got."""

    def __init__(self, environ: dict[str, str], tmp_path: Path) -> None:
        self.home = Path(environ["QWEN_HOME"])
        self.project = tmp_path / "project"
        self.project.mkdir()
        self.socket = tmp_path / "cli.sock"
        self.status: str | None = "delivered"
        self.wrong_secret = False
        self.is_idle = False
        """Whether its model gets a message at once."""
        self.got: list[dict[str, Any]] = []
        name = "".join(letter if letter.isalnum() else "-" for letter in str(self.project))
        self.transcript = self.home / "projects" / name / "chats" / f"{SESSION}.jsonl"
        write(self.home, values_of(os.getpid(), self.project, ipcPath=str(self.socket)))

    async def serve(self, *, task_status: TaskStatus[None]) -> None:
        async with await anyio.create_unix_listener(self.socket) as listener:
            task_status.started()
            await listener.serve(self._take)

    async def _take(self, stream: SocketStream) -> None:
        data = b""
        async with stream:
            async for part in stream:
                data += part
        auth, frame = (json.loads(line) for line in data.splitlines())
        controllers = json.loads((self.home / "peer-controllers.json").read_text())["controllers"]
        assert hashlib.sha256(auth["token"].encode()).hexdigest() == controllers[0]["tokenHash"]
        assert (frame["toSessionId"], frame["type"]) == (SESSION, "user")
        assert "fromMode" not in frame
        self.got.append(frame)
        if self.is_idle:
            self.reach_model(frame)
        if self.status is not None:
            await self.answer(frame, self.status)

    async def answer(self, frame: dict[str, Any], status: str) -> None:
        """Send the receipt `status` for `frame`."""
        secret = "x" if self.wrong_secret else frame["replyToken"]
        receipt = {"type": "control", "action": "delivery_status", "status": status, "origMsgId": frame["msgId"]}
        async with await anyio.connect_unix(frame["from"]) as stream:
            lines = ({"type": "auth", "token": secret}, {"msgV": 1, "msgId": "r", **receipt})
            await stream.send("".join(json.dumps(line) + "\n" for line in lines).encode())

    def record(self, kind: str, text: str, **others: Any) -> None:
        """Add an entry to the record of the conversation."""
        self.transcript.parent.mkdir(parents=True, exist_ok=True)
        with self.transcript.open("a") as file:
            file.write(json.dumps({"type": kind, "message": {"parts": [{"text": text}]}, **others}) + "\n")

    def reach_model(self, frame: dict[str, Any]) -> None:
        """Record that the model has got `frame`."""
        content = frame["message"]["content"].replace("<", "&lt;")
        text = f'<cross_session_message from="{frame["from"]}" name="Emacs">\n{content}\n</cross_session_message>\n\nx'
        self.record("user", text, subtype="notification")


class Scene:
    """A registry with a CLI in it; what Emacs was told, and what is followed."""

    def __init__(self, environ: dict[str, str], tmp_path: Path) -> None:
        self.cli = Cli(environ, tmp_path)
        self.told: list[Notification] = []
        self.followed: list[tuple[str, ...]] = []
        self._news = anyio.Event()
        self.spool = tmp_path / "spool"
        self.spool.mkdir(mode=0o700)
        self.reported: dict[int, CliState] = {}
        """What hooks have reported of each process."""
        hooks: Any = SimpleNamespace(states=self.reported, prompted=self.prompted)
        journal: Any = self
        self.front = RegistryFront(environ, 1, str(self.spool), self._tell, hooks, journal, tuple)
        self._requests = 0
        self.silent = self
        """The journal's part that follows CLIs without hooks."""

    def _tell(self, message: Notification) -> None:
        self.told.append(message)
        self._news.set()
        self._news = anyio.Event()

    def prompt_sent(self, session: KnownSession, _process: tuple[int, str]) -> None:
        self.followed.append(("sent", session.id))

    async def prompt_began(
        self, session: KnownSession, conversation: str, prompt: str, _since: int, _ended: bool
    ) -> None:
        self.followed.append(("began", session.label, conversation, prompt))

    def set_sessions(self, _changed: object, gone: Sequence[str]) -> None:
        self.followed += [("ended", identifier) for identifier in gone]

    def prompted(self, pid: int, prompt: str, time: int) -> bool:
        self.followed.append(("hooks", prompt))
        if pid in self.reported:
            self.reported[pid] = CliState("working", time, prompt)
        return False

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(limit_s()):
            while not condition():
                await self._news.wait()

    def statuses(self, request: int) -> list[str]:
        return [item.status for item in self.told if isinstance(item, RegistryReceipt) and item.id == request]

    def controllers(self) -> list[str]:
        return [item.controller for item in self.told if isinstance(item, RegisteredClis)]

    def clis(self) -> list[RegisteredCli]:
        return [cli for item in self.told if isinstance(item, RegisteredClis) for cli in item.clis]

    def states(self) -> list[tuple[str | None, str | None, str | None]]:
        states = [cli.state for cli in self.clis() if cli.state is not None]
        return [(state.activity, state.prompt, state.said) for state in states]

    async def prompt(self, text: str, program: tuple[str, ...] = (), cli: str = str(os.getpid())) -> str:
        """Send a prompt; return what is said of it at first."""
        self._requests += 1
        request = self._requests
        self.front.handle(RegistryPrompt(request, cli, SESSION, text, program))
        await self.until(lambda: bool(self.statuses(request)))
        return self.statuses(request)[0]


@pytest.fixture
async def scene(environ: dict[str, str], tmp_path: Path) -> Any:
    scene = Scene(environ, tmp_path)
    async with anyio.create_task_group() as tasks:
        await tasks.start(scene.cli.serve)
        tasks.start_soon(scene.front.run)
        await scene.until(lambda: bool(scene.told))
        yield scene
        tasks.cancel_scope.cancel()


async def test_a_prompt_reaches_the_model_and_is_followed(scene: Scene, qwen: tuple[str, ...]) -> None:
    # Without the user's word nothing is made, and nothing sent.
    assert await scene.prompt("first") == "no-token"
    assert not scene.cli.got
    scene.cli.is_idle = True
    assert await scene.prompt("Do it\nnow", qwen) == "model"
    assert scene.cli.got[0]["message"]["content"] == "Do it\nnow"
    address = Path(scene.cli.got[0]["from"])
    assert stat.S_IMODE(address.stat().st_mode) == 0o600
    assert address.parent == scene.spool
    await scene.until(lambda: scene.states()[-1:] == [("working", "Do it now", None)])
    scene.cli.record("assistant", "", message={"parts": [{"functionCall": {"name": "x"}}]})
    scene.cli.record("system", "", systemPayload={"uiEvent": {"event.name": "qwen-code.api_response"}})
    scene.cli.record("assistant", "Well.\nDone.")
    await scene.until(lambda: scene.states()[-1:] == [("idle", "Do it now", "Done.")])
    # The user refuses a tool of the next turn.
    assert await scene.prompt("More") == "model"
    response = {"error": "[Operation Cancelled] Reason: User did not allow tool call"}
    scene.cli.record("tool_result", "", message={"parts": [{"functionResponse": {"response": response}}]})
    await scene.until(lambda: scene.states()[-1:] == [("cancelled", "More", None)])
    assert scene.followed[:3] == [
        ("sent", str(os.getpid())),
        ("hooks", "Do it\nnow"),
        ("began", "Qwen Code 0.24.4", SESSION, "Do it\nnow"),
    ]
    assert "qpc_" not in repr(scene.told)
    # Emacs need not ask again.
    await scene.until(lambda: scene.controllers()[-1] == VALID)


async def test_a_turn_that_the_user_cancels_is_followed_as_it_begins_anew(
    scene: Scene, qwen: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CLI (0.23.4, 0.24.4) records what had come of the answer, if anything, and then our message once more."""
    monkeypatch.setattr("qwen_companion.wire.registry_front.MODEL_S", 0.05)
    scene.cli.record("user", "typed in the terminal")
    assert await scene.prompt("Is 1 < 2?", qwen) == "queued"
    first = scene.cli.got[0]
    scene.cli.reach_model(first)
    await scene.until(lambda: scene.states()[-1:] == [("working", "Is 1 < 2?", None)])
    assert await scene.prompt("And then?") == "queued"
    scene.cli.record("assistant", "Half an")
    await scene.until(lambda: scene.states()[-1:] == [("cancelled", "Is 1 < 2?", "Half an")])
    scene.cli.reach_model(first)
    await scene.until(lambda: scene.states()[-1:] == [("working", "Is 1 < 2?", None)])
    # The one behind it waits still.
    assert scene.statuses(2) == ["queued"]
    scene.cli.record("assistant", "Yes.", usageMetadata={})
    await scene.until(lambda: scene.states()[-1:] == [("idle", "Is 1 < 2?", "Yes.")])
    scene.cli.record("user", "typed again")
    await scene.until(lambda: scene.states()[-1:] == [("working", "typed again", None)])
    scene.cli.reach_model(scene.cli.got[1])
    await scene.until(lambda: scene.statuses(2) == ["queued", "model"])
    assert [item[-1] for item in scene.followed if item[0] == "began"] == ["Is 1 < 2?", "And then?"]


async def test_what_is_typed_there_is_followed_too(scene: Scene) -> None:
    """A CLI to which no prompt was sent, whose requests fail and which asks in its terminal."""

    def request(name: str, **event: Any) -> None:
        scene.cli.record("system", "", systemPayload={"uiEvent": {"event.name": f"qwen-code.{name}", **event}})

    def last() -> CliState:
        return scene.clis()[-1].state or CliState()

    scene.cli.record("user", "of an earlier process", timestamp="2001-01-01T00:00:00.000Z")
    parts = [{"text": "<system-reminder>x</system-reminder>"}, {"text": "Do it\nnow"}]
    scene.cli.record("user", "", message={"parts": parts})
    await scene.until(lambda: scene.states()[-1:] == [("working", "Do it now", None)])
    request("api_error", status_code=429, error_message="too many requests")
    await scene.until(lambda: (last().activity, last().failure) == ("retrying", "too many requests"))
    request("api_error", status_code=500, error_message="of a subagent", subagent_id="x")
    request("api_response", input_token_count=70)
    scene.cli.record("assistant", "", message={"parts": [{"functionCall": {"id": "1"}}, {"functionCall": {"id": "2"}}]})
    await scene.until(lambda: last().tool_since is not None)
    assert (last().activity, last().failure, last().tokens) == ("working", None, 70)
    results = [{"functionResponse": {"id": number, "response": {"output": "x"}}} for number in "12"]
    scene.cli.record("tool_result", "", message={"parts": results[:1]})
    scene.cli.record("tool_result", "", message={"parts": results[1:]})
    await scene.until(lambda: last().activity == "working" and last().tool_since is None)
    request("api_error", status_code=401, error_message="no such key")
    await scene.until(lambda: (last().activity, last().failure) == ("failed", "no such key"))
    request("api_response", input_token_count=80)
    scene.cli.record("assistant", "Well.\nDone.")
    await scene.until(lambda: (last().activity, last().said, last().tokens) == ("idle", "Done.", 80))
    # Another conversation begins in it.
    write(scene.cli.home, values_of(os.getpid(), scene.cli.project, sessionId="another"))
    await scene.until(lambda: scene.clis()[-1].session == "another" and scene.clis()[-1].state is None)


async def test_one_at_its_limit_of_tokens_has_failed(scene: Scene) -> None:
    """Nothing in its record tells that it sends no request."""

    def use(tokens: int) -> None:
        event = {"event.name": "qwen-code.api_response", "input_token_count": tokens}
        scene.cli.record("system", "", systemPayload={"uiEvent": event})

    def is_failed(prompt: str) -> bool:
        state = scene.clis()[-1].state
        return state is not None and (state.prompt, state.activity, state.failure) == (prompt, "failed", "token limit")

    (scene.cli.home / "settings.json").write_text('{"model": {"sessionTokenLimit": 10}}')
    write(scene.cli.home, values_of(os.getpid(), scene.cli.project, sessionId="another"))
    await scene.until(lambda: scene.clis()[-1].session == "another")
    scene.cli.transcript = scene.cli.transcript.with_name("another.jsonl")
    scene.cli.record("user", "one")
    use(10)
    scene.cli.record("assistant", "", message={"parts": [{"functionCall": {"id": "1"}}]})
    scene.cli.record("tool_result", "", message={"parts": [{"functionResponse": {"id": "1"}}]})
    use(11)
    scene.cli.record("assistant", "", message={"parts": [{"functionCall": {"id": "2"}}]})
    await scene.until(lambda: scene.states()[-1:] == [("working", "one", None)])
    scene.cli.record("tool_result", "", message={"parts": [{"functionResponse": {"id": "2"}}]})
    await scene.until(lambda: is_failed("one"))
    scene.cli.record("user", "two")
    await scene.until(lambda: is_failed("two"))
    scene.cli.record("system", "", subtype="chat_compression")
    scene.cli.record("user", "three")
    await scene.until(lambda: scene.states()[-1:] == [("working", "three", None)])


async def test_a_prompt_that_came_while_no_backend_ran_is_told_once(scene: Scene) -> None:
    """Its hook found nobody; what came later, or what a hook has reported, is not told."""
    now = time.time()
    scene.reported[os.getpid()] = CliState("idle", round(1000 * (now - 60)))
    for text, moment in (("Reported", now - 61), ("Missed", now - 30), ("Later", now + 1)):
        scene.cli.record("user", text, timestamp=datetime.fromtimestamp(moment, timezone.utc).isoformat())
        await scene.until(lambda text=text: scene.states()[-1:] == [("working", text, None)])
        scene.cli.record("assistant", "Well.", message={"parts": [{"functionCall": {"id": "1"}}]})
        await scene.until(lambda: (scene.clis()[-1].state or CliState()).tool_since is not None)
    began = [("hooks", "Missed"), ("began", "Qwen Code 0.24.4", SESSION, "Missed")]
    await until(lambda: scene.followed == began)


async def test_where_the_system_tells_of_no_changes_a_look_does(
    scene: Scene, qwen: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receipt of a prompt needs none."""
    monkeypatch.setattr("qwen_companion.wire.registry_front.MODEL_S", 0.05)
    monkeypatch.setattr("qwen_companion.journal.tree_watch.open_inotify", lambda: None)
    scene.cli.is_idle = True
    assert await scene.prompt("one", qwen) == "model"
    scene.cli.record("assistant", "Done.", usageMetadata={})
    scene.front.handle(RegistryLook())
    await scene.until(lambda: scene.states()[-1:] == [("idle", "one", "Done.")])


async def test_one_that_waits_behind_a_turn_says_so(
    scene: Scene, qwen: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qwen_companion.wire.registry_front.MODEL_S", 0.05)
    # Where conversations are not recorded nobody knows.
    assert await scene.prompt("one", qwen) == "delivered"
    scene.cli.record("user", "typed in the terminal")
    assert await scene.prompt("two") == "queued"
    scene.cli.reach_model(scene.cli.got[1])
    await scene.until(lambda: scene.states()[-1:] == [("working", "two", None)])
    assert scene.statuses(2) == ["queued", "model"]
    # The first was lost.
    assert [item[-1] for item in scene.followed if item[0] == "began"] == ["two"]


@pytest.mark.parametrize("status", ["held", "refused", "misaddressed", "dropped"])
async def test_what_the_receipt_says_is_told(scene: Scene, qwen: tuple[str, ...], status: str) -> None:
    scene.cli.status = status
    assert await scene.prompt("one", qwen) == status
    # One that was held may be allowed or lost later.
    await scene.cli.answer(scene.cli.got[0], "expired")
    await scene.until(lambda: scene.statuses(1) == [status, "expired"])


async def test_a_socket_that_never_answers_is_given_up(
    scene: Scene, qwen: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messenger, "ANSWER_S", 0.2)
    monkeypatch.setattr(messenger, "SOON_S", 0.1)
    scene.cli.status = None
    assert await scene.prompt("one", qwen) == "sent"
    await scene.until(lambda: scene.statuses(1) == ["sent", "unanswered"])
    # Nor does a receipt count that does not show the secret of the message.
    scene.cli.status = "delivered"
    scene.cli.wrong_secret = True
    assert await scene.prompt("two") == "sent"
    await scene.until(lambda: scene.statuses(2) == ["sent", "unanswered"])
    scene.cli.wrong_secret = False
    await scene.cli.answer(scene.cli.got[0], "delivered")
    await scene.until(lambda: scene.statuses(1) == ["sent", "unanswered", "delivered"])
    scene.cli.reach_model(scene.cli.got[0])
    await scene.until(lambda: scene.statuses(1) == ["sent", "unanswered", "delivered", "model"])


@pytest.mark.parametrize("by_receipt", [True, False])
async def test_one_that_arrives_late_is_not_said_to_be_lost(
    scene: Scene, qwen: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, by_receipt: bool
) -> None:
    """The first prompt of a CLI does, by up to 3 s; the receipt may come after the model has got it."""
    monkeypatch.setattr(messenger, "SOON_S", 0.05)
    scene.cli.record("user", "typed in the terminal")
    scene.cli.status = None
    assert await scene.prompt("one", qwen) == "sent"
    scene.cli.reach_model(scene.cli.got[0])
    if by_receipt:
        await scene.cli.answer(scene.cli.got[0], "delivered")
    await scene.until(lambda: scene.statuses(1) == ["sent", "model"])


async def test_each_of_many_prompts_at_once_is_told_of(
    scene: Scene, qwen: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qwen_companion.wire.registry_front.MODEL_S", 0.05)
    scene.cli.record("user", "typed in the terminal")
    assert await scene.prompt("first", qwen) == "queued"
    monkeypatch.setattr(messenger, "SOON_S", 0.05)
    # A busy CLI answers when it has got all of them.
    scene.cli.status = None
    for number in range(2, 202):
        scene.front.handle(RegistryPrompt(number, str(os.getpid()), SESSION, f"prompt {number}", ()))
    await scene.until(lambda: all(scene.statuses(number) == ["sent"] for number in range(2, 202)))
    for frame in scene.cli.got[1:]:
        await scene.cli.answer(frame, "delivered")
    await scene.until(lambda: all(scene.statuses(number) == ["sent", "queued"] for number in range(2, 202)))
    for frame in scene.cli.got:
        scene.cli.reach_model(frame)
    await scene.until(lambda: all(scene.statuses(number)[-1:] == ["model"] for number in range(2, 202)))


async def test_prompts_that_cannot_go_out(scene: Scene, qwen: tuple[str, ...], environ: dict[str, str]) -> None:
    assert await scene.prompt("x", qwen, cli="1234567890") == "gone"
    assert await scene.prompt("x" * messenger.MAX_FRAME, qwen) == "too-long"
    (scene.cli.home / "peer-controllers.json").unlink()
    await scene.until(lambda: scene.controllers()[-1] == REVOKED)
    assert await scene.prompt("x") == "no-token"
    assert await scene.prompt("x", ("/not/there",)) == "failed"
    add_grant(environ, qwen)
    write(scene.cli.home, values_of(os.getpid(), scene.cli.project, ipcPath="/not/there.sock"))
    assert await scene.prompt("x") == "closed"
    values = values_of(os.getpid(), scene.cli.project)
    write(scene.cli.home, {key: value for key, value in values.items() if key != "ipcPath"})
    assert await scene.prompt("x") == "closed"
    write(scene.cli.home, "{", f"{os.getpid()}.json")
    assert await scene.prompt("x") == "failed"
    assert any("its record cannot be used" in str(getattr(item, "reason", "")) for item in scene.told)
    assert not scene.cli.got


async def test_another_emacs_makes_the_token(scene: Scene, qwen: tuple[str, ...], environ: dict[str, str]) -> None:
    """Then this one need not ask."""
    assert scene.controllers() == [NONE]
    add_grant(environ, qwen)
    await scene.until(lambda: scene.controllers()[-1] == VALID)
    assert await scene.prompt("x") == "delivered"


async def test_a_cli_is_ended_and_its_end_is_told(scene: Scene) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        write(scene.cli.home, values_of(process.pid, scene.cli.project))
        scene.front.handle(RegistryEnd(str(process.pid)))
        await scene.until(lambda: RegistryEnded(str(process.pid), True) in scene.told)
    scene.front.handle(RegistryEnd("1234567890"))
    await scene.until(lambda: RegistryEnded("1234567890", True) in scene.told)


async def test_the_token_goes_to_no_other_process(scene: Scene, qwen: tuple[str, ...], tmp_path: Path) -> None:
    """A record may name the socket of another program."""
    code = f"import socket; s = socket.socket(socket.AF_UNIX); s.bind({str(tmp_path / 'x')!r}); s.listen(); print(); "
    code += "s.settimeout(60); c, _ = s.accept(); print(len(c.recv(9)))"
    async with await anyio.open_process([sys.executable, "-u", "-c", code]) as other:
        assert other.stdout is not None
        await other.stdout.receive()
        write(scene.cli.home, values_of(os.getpid(), scene.cli.project, ipcPath=str(tmp_path / "x")))
        assert await scene.prompt("x", qwen) == "closed"
        assert (await other.stdout.receive()).startswith(b"0")
