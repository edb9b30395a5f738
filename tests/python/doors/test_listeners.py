# SPDX-License-Identifier: GPL-3.0-or-later
"""Listeners hear of events, and their answers are sent in time; hooks are called by this test."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, cast

import anyio
import pytest

from fake_clis import FakePlaces, FakeSessions
from qwen_companion.base.processes import start_of
from qwen_companion.base.sockets import Connection
from qwen_companion.domain import KnownSession, Peer, SessionState, Settings, ToolDefinition
from qwen_companion.doors import hook_handler
from qwen_companion.doors.door_settings import ALL, HOOK_PATH
from qwen_companion.doors.events import Event, PostToolUse, PreToolUse, ask
from qwen_companion.doors.files import Files, LocalFiles, RemotePlaces
from qwen_companion.doors.held import Reply
from qwen_companion.doors.hook_handler import HookCall, HookHandler
from qwen_companion.doors.layers import SettingsLayers
from qwen_companion.doors.listeners import Block, Report, Subscription, Words
from qwen_companion.doors.reviews import UNKNOWN_CLI
from qwen_companion.doors.user_settings import SYSTEM_VARIABLE
from qwen_companion.ide.peers import Caller
from qwen_companion.ide.proposals import Decision
from support import TIMEOUT_S, FakeEditor, soon

pytestmark = pytest.mark.anyio

CONNECTION = Connection(("127.0.0.1", 1), ("127.0.0.1", 2))


class Listener:
    """Hears of everything that `subscriptions` say; one that `waits` answers once it is let."""

    def __init__(self, *subscriptions: Subscription, says: Words | None = None, waits: bool = False) -> None:
        self.subscriptions: Sequence[Subscription] = subscriptions
        self.says = says
        self.wants_wait = True
        self.heard: list[Report] = []
        self.may_answer = anyio.Event()
        self.has_ended = anyio.Event()
        if not waits:
            self.may_answer.set()

    def holds(self, event: Event) -> bool:
        return self.wants_wait

    async def hear(self, report: Report) -> Words | None:
        self.heard.append(report)
        await self.may_answer.wait()
        return self.says

    def ended(self, peer: Peer) -> None:
        self.has_ended.set()

    def names(self) -> list[str]:
        """Return the names of the events that it has heard of."""
        return [report.event.name for report in self.heard]


class Site:
    def __init__(self, handler: HookHandler, process: subprocess.Popen[bytes]) -> None:
        self.handler = handler
        self.process = process

    def call(
        self, name: str, *, shortened: bool = False, before_edit: bool = False, **fields: Any
    ) -> asyncio.Task[Reply]:
        """Call a hook; the task is its answering."""
        data = json.dumps({"hook_event_name": name, "session_id": "s", **fields}).encode()
        return asyncio.create_task(self.handler.reply(HookCall(data, shortened, CONNECTION, before_edit)))

    async def answer(self, name: str, **fields: Any) -> Any:
        """Call a hook; return the answer."""
        return await answer_of(self.call(name, **fields))


async def answer_of(call: asyncio.Task[Reply]) -> Any:
    return (await soon(call)).answer


def handler_of(
    tasks: anyio.abc.TaskGroup,
    listeners: Sequence[Listener],
    find_caller: Callable[[Connection], Caller | None],
    *sessions: SessionState,
    places: RemotePlaces | None = None,
    environ: Mapping[str, str] | None = None,
) -> HookHandler:
    """Return a handler that `tasks` run."""
    layers = SettingsLayers(4711, "token", "/w", environ or {"HOME": "/w"}, listeners)
    handler = HookHandler(
        layers,
        known=(),
        editor=FakeEditor(),
        sessions=FakeSessions(*sessions),
        places=places or FakePlaces(),
        listeners=listeners,
        find_caller=find_caller,
        changed=lambda: None,
    )
    tasks.start_soon(handler.run)
    return handler


def editor_of(handler: HookHandler) -> FakeEditor:
    return cast(FakeEditor, handler.reviews._editor)  # pyright: ignore[reportPrivateUsage]


@asynccontextmanager
async def site(*listeners: Listener) -> AsyncGenerator[Site]:
    """Yield a handler that is called by one process, which is connected."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        peer = Peer(process.pid, start_of(process.pid) or "", "/w", "qwen", ())
        state = SessionState(KnownSession("connected", "", "Qwen Code", "1", peer), streaming=True)
        async with anyio.create_task_group() as tasks:
            yield Site(handler_of(tasks, listeners, lambda _: Caller(peer, "Qwen Code", "1"), state), process)
            process.kill()
            tasks.cancel_scope.cancel()


async def test_a_cli_at_another_place_is_decided_on_by_its_own_files(tmp_path: Path) -> None:
    """While they are known, and it is connected."""
    environ = {"HOME": str(tmp_path), "PATH": "/bin", SYSTEM_VARIABLE: str(tmp_path / "none.json")}
    peer = Peer(-2, "", str(tmp_path), "qwen", (), "/ssh:far:")
    state = SessionState(KnownSession("connected", "", "Qwen Code", "1", peer), streaming=True)

    class Far(FakePlaces):
        """A place with the files of this machine."""

        served: ClassVar[list[Files | None]] = [LocalFiles(), None]

        def caller(self, _connection: Connection) -> Caller:
            return Caller(peer, "Qwen Code", "1")

        def files(self, _peer: Peer) -> Files | None:
            return self.served.pop(0)

    async with anyio.create_task_group() as tasks:
        handler = handler_of(tasks, (), lambda _: None, state, places=Far(), environ=environ)
        editor = editor_of(handler)
        place = Site(handler, cast(Any, None))
        handler.reviews.scope = ALL
        values = {"file_path": f"{tmp_path}/x", "old_string": "", "new_string": "y"}
        edit: Any = {"permission_mode": "auto", "tool_name": "edit", "tool_input": values, "before_edit": True}
        reviewing = place.call("PreToolUse", cwd=str(tmp_path), **edit)
        proposal = await asyncio.wait_for(editor.shown.get(), TIMEOUT_S)
        handler.reviews.decide(proposal.id, Decision("y"))
        assert await answer_of(reviewing) == {}
        # Its place is not served any more.
        for _ in range(2):
            assert await place.answer("PreToolUse", cwd=str(tmp_path), **edit) == ask(UNKNOWN_CLI)
            cast(FakeSessions, handler._sessions).connected.clear()  # pyright: ignore[reportPrivateUsage]
        handler.questions.wanted = True
        asks: Any = {"tool_name": "ask_user_question", "tool_input": {"questions": [{"question": "Why?"}]}}
        asking = place.call("PermissionRequest", cwd=str(tmp_path), **asks)
        proposal = await asyncio.wait_for(editor.shown.get(), TIMEOUT_S)
        assert proposal.directory == f"/ssh:far:{tmp_path}"
        handler.questions.decide(proposal.id, Decision("So."))
        assert "So." in (await answer_of(asking))["hookSpecificOutput"]["decision"]["message"]
        tasks.cancel_scope.cancel()


async def test_a_text_that_fits_gets_the_room_that_others_leave_and_only_in_time() -> None:
    rooms: list[int] = []

    def fitting(room: int) -> str:
        rooms.append(room)
        return "two"

    first = Listener(Subscription("UserPromptSubmit", hold_s=TIMEOUT_S), says=fitting)
    second = Listener(Subscription("UserPromptSubmit", hold_s=TIMEOUT_S), says="one \U0001f600")
    late = Listener(Subscription("UserPromptSubmit", hold_s=0.01), says=fitting, waits=True)
    async with site(first, second, late) as place:
        added = {"hookEventName": "UserPromptSubmit", "additionalContext": "one \U0001f600\n\ntwo"}
        assert await place.answer("UserPromptSubmit", prompt="x") == {"hookSpecificOutput": added}
        late.may_answer.set()
    assert rooms == [9900 - 8]


async def test_a_prompt_is_kept_from_the_model() -> None:
    listener = Listener(Subscription("UserPromptSubmit", hold_s=TIMEOUT_S), says=Block("enough"))
    other = Listener(Subscription("UserPromptSubmit", hold_s=TIMEOUT_S), says="a text")
    async with site(listener, other) as place:
        assert await place.answer("UserPromptSubmit", prompt="") == {"decision": "block", "reason": "enough"}


async def test_a_text_is_added_to_what_the_model_reads() -> None:
    first = Listener(Subscription("PostToolUse", "edit|write_file", hold_s=TIMEOUT_S), says="one")
    both = Subscription("PostToolUse", hold_s=TIMEOUT_S), Subscription("PreToolUse", hold_s=1)
    second = Listener(*both, says="two", waits=True)
    async with site(first, second) as place:
        call = place.call("PostToolUse", tool_name="edit")
        await anyio.wait_all_tasks_blocked()
        assert not call.done()
        second.may_answer.set()
        added = {"hookEventName": "PostToolUse", "additionalContext": "one\n\ntwo"}
        assert await answer_of(call) == {"hookSpecificOutput": added}
        (report,) = first.heard
        assert isinstance(report.event, PostToolUse)
        assert (report.session, report.cli, report.peer.pid) == ("connected", "Qwen Code 1", place.process.pid)
        # Another tool, and an event to which a CLI adds nothing.
        answer = await place.answer("PostToolUse", tool_name="edits")
        assert answer["hookSpecificOutput"]["additionalContext"] == "two"
        assert await place.answer("PreToolUse", tool_name="edit") == {}
        assert first.names() == ["PostToolUse"]
        # The texts of this one were too long to be kept.
        assert await place.answer("PostToolUse", shortened=True) == {}


async def test_listeners_hear_of_an_edit_once_it_is_decided_on(tmp_path: Path) -> None:
    """What they keep is the text from just before it is made, and of one that is not made they hear nothing."""
    subscriptions = Subscription("PreToolUse", "edit", TIMEOUT_S), Subscription("PostToolUse", "edit", TIMEOUT_S)
    listener = Listener(*subscriptions, says="a text")
    file = tmp_path / "a.txt"
    file.write_text("one\n")
    async with site(listener) as place:
        place.handler.reviews.scope = ALL
        editor = editor_of(place.handler)
        values = {"file_path": str(file), "old_string": "one", "new_string": "two"}
        edit: Any = {"permission_mode": "auto", "tool_name": "edit", "tool_input": values, "before_edit": True}
        for content, names in ((None, []), ("two\n", ["PreToolUse"]), ("2\n", ["PreToolUse", "PostToolUse"])):
            call = place.call("PreToolUse", **edit)
            proposal = await soon(editor.shown.get())
            assert listener.names() == []
            place.handler.reviews.decide(proposal.id, Decision(content))
            await answer_of(call)
            assert listener.names() == names
            listener.heard.clear()


async def test_what_is_no_edit_is_no_answer_before_one() -> None:
    """The command of the hook fails then, and the CLI asks."""
    async with site() as place:
        for name in ("PostToolUse", "none"):
            with pytest.raises(ValueError, match="no edit"):
                await place.call(name, before_edit=True)


async def test_an_edit_that_is_too_large_to_be_kept_is_asked_about() -> None:
    async with site() as place:
        place.handler.reviews.scope = ALL
        call: Any = {"permission_mode": "auto", "tool_name": "write_file", "tool_input": {"file_path": "/w/x"}}
        answer = await place.answer("PreToolUse", before_edit=True, shortened=True, **call)
        assert answer["hookSpecificOutput"]["permissionDecision"] == "ask"


async def test_no_listener_holds_a_cli_longer_than_it_said() -> None:
    subscriptions = Subscription("PostToolUse", hold_s=0.05), Subscription("UserPromptSubmit")
    slow = Listener(*subscriptions, says="late", waits=True)
    async with site(slow) as place:
        assert await place.answer("UserPromptSubmit", prompt="x") == {}
        assert await place.answer("PostToolUse", tool_name="edit") == {}
        # One report after the other, and none is lost.
        await anyio.wait_all_tasks_blocked()
        assert slow.names() == ["UserPromptSubmit"]
        slow.may_answer.set()
        await anyio.wait_all_tasks_blocked()
        assert slow.names() == ["UserPromptSubmit", "PostToolUse"]
        # It can tell that the CLI has gone on.
        assert slow.heard[1].waits_until <= anyio.current_time()


async def test_a_cli_does_not_wait_where_a_listener_need_not() -> None:
    busy = Listener(Subscription("PostToolUse", hold_s=TIMEOUT_S), says="unused", waits=True)
    busy.wants_wait = False
    holding = Listener(Subscription("PostToolUse", "edit", hold_s=TIMEOUT_S), says="used", waits=True)
    async with site(busy, holding) as place:
        assert await place.answer("PostToolUse", tool_name="write_file") == {}
        await anyio.wait_all_tasks_blocked()
        assert len(busy.heard) == 1
        # Its process ends while the other one is waited for; it hears of this nevertheless.
        call = place.call("PostToolUse", tool_name="edit")
        place.process.kill()
        await soon(holding.has_ended.wait())
        holding.may_answer.set()
        busy.may_answer.set()
        assert (await answer_of(call))["hookSpecificOutput"]["additionalContext"] == "used"
        await anyio.wait_all_tasks_blocked()
        assert len(busy.heard) == 2


class Faulty(Listener):
    """Fails in each of its methods."""

    def holds(self, event: Event) -> bool:
        raise ValueError("holds")

    async def hear(self, report: Report) -> str | None:
        raise ValueError("hear")

    def ended(self, peer: Peer) -> None:
        raise ValueError("ended")


class FaultyHearer(Listener):
    """Has the CLI wait, and fails."""

    async def hear(self, report: Report) -> str | None:
        raise ValueError(f"of the model: {report.event}")


async def test_a_listener_that_fails_ends_only_its_own_call(caplog: pytest.LogCaptureFixture) -> None:
    every = Subscription("PostToolUse", hold_s=TIMEOUT_S)
    good = Listener(every, says="good")
    async with site(Faulty(every), FaultyHearer(every), good) as place:
        for _ in range(2):
            answer = await place.answer("PostToolUse", tool_name="edit")
            assert answer["hookSpecificOutput"]["additionalContext"] == "good"
        place.process.kill()
        await soon(good.has_ended.wait())
    # Each failure once, and nothing of a report.
    places = sorted(message.partition(" (")[0] for message in caplog.messages)
    assert places == [
        *("Faulty.ended failed: ValueError", "Faulty.hear failed: ValueError", "Faulty.holds failed: ValueError"),
        "FaultyHearer.hear failed: ValueError",
    ]


async def test_a_listener_is_told_that_the_process_has_ended() -> None:
    listener = Listener(Subscription(PreToolUse.name))
    async with site(listener) as place:
        place.call("PreToolUse", tool_name="edit")
        place.process.kill()
        await soon(listener.has_ended.wait())


async def test_what_a_process_said_last_is_heard_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(*_: object) -> None:
        pass

    monkeypatch.setattr(hook_handler, "ended", at_once)
    listener = Listener(Subscription(PreToolUse.name), waits=True)
    async with site(listener) as place:
        place.call("PreToolUse", tool_name="edit")
        await soon(listener.has_ended.wait())
        await anyio.wait_all_tasks_blocked()
        listener.may_answer.set()
        await anyio.wait_all_tasks_blocked()
        assert listener.names() == ["PreToolUse"]


async def test_two_clis_of_one_conversation_are_told_apart() -> None:
    """It is resumed in a second CLI while the first still has it."""
    looked: list[Connection] = []
    listener = Listener()
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as first,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as second,
    ):
        callers = {
            Connection(("127.0.0.1", process.pid), ("127.0.0.1", 2)): Caller(
                Peer(process.pid, start_of(process.pid) or "", "/w", "qwen", ()), "Qwen Code", "1"
            )
            for process in (first, second)
        }

        def find_caller(connection: Connection) -> Caller:
            looked.append(connection)
            return callers[connection]

        async with anyio.create_task_group() as tasks:
            handler = handler_of(tasks, [listener], find_caller)
            of_first, of_second = callers

            async def call(connection: Connection, name: str, **fields: str) -> None:
                body = {"hook_event_name": name, "session_id": "s", **fields}
                await handler.reply(HookCall(json.dumps(body).encode(), False, connection))

            def activity(process: subprocess.Popen[bytes]) -> str | None:
                state = handler.states.get(process.pid)
                return state and state.activity

            await call(of_first, "SessionStart")
            await call(of_first, "UserPromptSubmit", prompt="x")
            # Its process is looked for as seldom as can be.
            assert looked == [of_first]
            assert (activity(first), activity(second)) == ("working", None)
            await call(of_second, "SessionStart")
            assert (activity(first), activity(second)) == ("working", "idle")
            await call(of_first, "Stop")
            await call(of_second, "UserPromptSubmit", prompt="y")
            assert (activity(first), activity(second)) == ("idle", "working")
            first.kill()
            await soon(listener.has_ended.wait())
            looked.clear()
            await call(of_second, "Stop")
            assert looked == []
            assert activity(second) == "idle"
            second.kill()
            tasks.cancel_scope.cancel()


def test_the_layer_names_the_hooks_of_listeners_and_the_tools(tmp_path: Path) -> None:
    listeners = (
        Listener(Subscription("PostToolUse", "edit", hold_s=9.5), Subscription("PreToolUse", "edit")),
        Listener(Subscription("PostToolUse", "write_file"), Subscription("PostToolBatch")),
    )
    layers = SettingsLayers(4711, "token", str(tmp_path), {"PATH": os.defpath}, listeners)
    settings = Settings(layer=True, review_edits="all")
    assert layers.set_settings(settings)
    assert not layers.set_settings(settings)
    layers.install()
    header, path = sorted(tmp_path.iterdir())
    assert header.read_text() == f"Authorization: Bearer {layers.keys.secrets[HOOK_PATH]}\n"
    assert header.stat().st_mode & 0o777 == 0o600
    layer = json.loads(path.read_text())
    assert "mcpServers" not in layer
    (entry,) = layer["hooks"]["PostToolUse"]
    of_ours = "todo_write|edit|write_file|notebook_edit|exit_plan_mode|ask_user_question"
    matchers = (of_ours, "edit", "write_file")
    assert entry["matcher"] == "|".join(f"^({matcher})$" for matcher in matchers)
    assert entry["hooks"][0]["timeout"] == 13
    assert "matcher" not in layer["hooks"]["PostToolBatch"][0]
    # The state of the CLI needs all tools but those that only read; of edits, a failure is no consent.
    tools = ("edit", "run_shell_command", "mcp__emacs__read_file", "read_file_twice", "read_file", "glob")
    others, edits = layer["hooks"]["PreToolUse"]
    assert [tool for tool in tools if re.search(others["matcher"], tool)] == list(tools[1:4])
    assert [tool for tool in tools if re.search(edits["matcher"], tool)] == ["edit"]
    assert [hook["type"] for hook in (*others["hooks"], *edits["hooks"])] == ["http", "command"]
    assert layers.keys.secrets[HOOK_PATH] not in str(edits)
    assert layers.is_current()
    layers.tools = (ToolDefinition("problems", "What is wrong.", unasked=True),)
    assert not layers.is_current()
    layers.install()
    layer = json.loads(path.read_text())
    assert layer["mcpServers"]["emacs"]["httpUrl"] == "http://127.0.0.1:4711/tools"
    assert layer["permissions"]["allow"] == ["mcp__emacs__problems"]
    # A daemon has what was added and no hooks; its file is there once there is one.
    (name,) = layers.install_for_daemons().values()
    file = Path(name)
    assert file.parent == tmp_path
    assert file not in (path, header)
    served = json.loads(file.read_text())
    assert served["mcpServers"] == layer["mcpServers"]
    assert "hooks" not in served
    assert layers.is_current()
    file.unlink()
    assert not layers.is_current()
    layers.install()
    assert json.loads(file.read_text()) == served
    layers.set_settings(Settings(layer=False))
    layers.install()
    assert list(tmp_path.iterdir()) == []
    assert layers.install_for_daemons() == {}
