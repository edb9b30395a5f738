# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from daemon_emacs import Chatting, Emacs, connected_emacs, lisp, text_part
from fake_daemon import ROOT, TOKEN, FakeDaemon, chunk
from qwen_companion.base.local_ids import local_id
from qwen_companion.daemon import connection, messages
from qwen_companion.daemon import dispatcher as module
from qwen_companion.daemon import requests as requests_module
from qwen_companion.daemon.client import DaemonClient
from qwen_companion.wire.messages import DaemonCall
from qwen_companion.wire.plists import Plist
from qwen_companion.wire.spool import Spool

pytestmark = pytest.mark.anyio


# --- The daemon


async def test_a_connection_says_where_everything_is(emacs: Emacs, daemon: FakeDaemon) -> None:
    await emacs.connect(daemon)
    states = emacs.all(messages.DaemonState)
    assert [state.state for state in states][-1] == "connected"
    state = states[-1]
    assert (state.host, state.workspace, state.local) == (daemon.url.removeprefix("http://"), ROOT, False)


async def test_a_daemon_that_is_not_there_yet_is_waited_for(emacs: Emacs, daemon: FakeDaemon) -> None:
    url = daemon.url
    await daemon.stop()
    assert await emacs.refused("daemon-connect", url=url, token=TOKEN, root=ROOT) == "unreachable"
    assert emacs.last(messages.DaemonState).state == "unreachable"
    assert await emacs.refused("daemon-list") == "unreachable"
    await daemon.start()
    await emacs.until(lambda: emacs.all(messages.DaemonState, state="connected"))
    await emacs.call("daemon-list")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"token": "wrong"}, "refused"),
        ({"root": "/elsewhere"}, "refused"),
        ({"url": "http://192.0.2.1:4170"}, "refused"),
        ({"url": "nonsense"}, "refused"),
        ({"url": None}, "refused"),
    ],
)
async def test_a_daemon_that_cannot_be_used_is_not_tried_again(
    emacs: Emacs, daemon: FakeDaemon, changes: dict[str, str], problem: str
) -> None:
    values = {"url": daemon.url, "token": TOKEN, "root": ROOT, **changes}
    assert await emacs.refused("daemon-connect", **values) == problem
    state = emacs.last(messages.DaemonState)
    assert state.state == "refused"
    assert state.text == emacs.last(messages.Reply).error
    asked = len(daemon.asked)
    assert await emacs.refused("daemon-open") == "unreachable"
    assert len(daemon.asked) == asked


@pytest.mark.parametrize("place", ["parse_call", "list_sessions"])
async def test_a_call_is_answered_whatever_is_raised(
    emacs: Emacs, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    await emacs.connect(daemon)

    def broken(*_arguments: object) -> object:
        raise ValueError("secret text")

    with monkeypatch.context() as patch:
        patch.setattr(*((module.messages, place) if place == "parse_call" else (DaemonClient, "list_sessions")), broken)
        assert await emacs.refused("daemon-list") == "unknown"
    assert emacs.last(messages.Reply).error == "The companion failed: ValueError"
    await emacs.call("daemon-list")


@pytest.mark.parametrize("version", ["0.0.1", "99.0.0", None])
async def test_no_daemon_is_judged_by_its_version(emacs: Emacs, daemon: FakeDaemon, version: str | None) -> None:
    daemon.capabilities["qwenCodeVersion"] = version
    await emacs.connect(daemon)
    assert emacs.last(messages.DaemonState).state == "connected"


async def test_a_daemon_that_is_too_old_is_refused_by_what_it_lacks(emacs: Emacs, daemon: FakeDaemon) -> None:
    daemon.capabilities["features"].remove("non_blocking_prompt")
    assert await emacs.refused("daemon-connect", url=daemon.url, token=TOKEN, root=ROOT) == "unsupported"
    assert "non_blocking_prompt" in str(emacs.last(messages.DaemonState).text)


async def test_the_environment_names_daemon_and_token(spool: Spool, daemon: FakeDaemon) -> None:
    environment = {"QWEN_IDE_DAEMON_URL": daemon.url, "QWEN_SERVER_TOKEN": TOKEN}
    async with connected_emacs(spool, environment) as emacs:
        await emacs.call("daemon-connect", root=ROOT)
        assert emacs.last(messages.DaemonState).state == "connected"


async def test_a_rotated_token_is_refused_and_read_again(emacs: Emacs, daemon: FakeDaemon, tmp_path: Path) -> None:
    file = tmp_path / "authinfo"

    def write(token: str) -> None:
        file.write_text(f"machine 127.0.0.1 port {daemon.url.rpartition(':')[2]} login qwen password {token}\n")

    async def connect() -> None:
        await emacs.call("daemon-connect", url=daemon.url, root=ROOT, sources=[str(file)])

    write(TOKEN)
    await connect()
    session = await emacs.open()
    (theirs,) = daemon.sessions.values()
    daemon.token = "rotated"
    # Seen by the stream, and by what the user does.
    theirs.streams[0].cut()
    await emacs.until(lambda: emacs.last(messages.DaemonState).state == "refused")
    assert "does not accept the token" in str(emacs.last(messages.DaemonState).text)
    write("rotated")
    await connect()
    # Nobody has left the session.
    state = emacs.chats[session].state
    assert state is not None
    assert (state.state, state.text) != ("closed", "The session has been left.")
    await emacs.load(session)
    assert emacs.last(messages.DaemonState).state == "connected"
    daemon.token = "rotated again"
    assert await emacs.refused("daemon-list") == "refused"
    assert emacs.last(messages.DaemonState).state == "refused"
    assert "rotated" not in "".join(emacs.frames)


async def test_a_daemon_that_cannot_be_started_says_why(emacs: Emacs, tmp_path: Path) -> None:
    program = [str(tmp_path / "no-such-qwen")]
    assert await emacs.refused("daemon-start", root=str(tmp_path), program=program) == "refused"
    states = [state.state for state in emacs.all(messages.DaemonState)]
    assert states == ["starting", "refused"]


async def test_leaving_takes_part_in_nothing_any_more(emacs: Emacs, daemon: FakeDaemon, chatting: Chatting) -> None:
    session, _, chat = chatting
    await emacs.asks(chatting, "write")
    await emacs.call("daemon-disconnect")
    assert emacs.last(messages.DaemonState).state == "off"
    # The turn goes on there, and somebody else may answer.
    assert chat.state is not None
    assert (chat.state.state, chat.state.text) == ("closed", "The session has been left.")
    assert ([item.state for item in chat.permissions.values()], chat.ends) == (["held"], [])
    assert daemon.asked_for("/detach")
    assert await emacs.refused("daemon-prompt", session=session, parts=[text_part("x")]) == "gone"
    assert await emacs.refused("daemon-list") == "unreachable"


async def test_the_end_of_the_backend_takes_part_in_nothing_any_more(spool: Spool, daemon: FakeDaemon) -> None:
    async with connected_emacs(spool) as emacs:
        _, theirs, _ = await emacs.chat(daemon)
        assert theirs.members
    assert not theirs.members
    assert not theirs.streams


async def test_a_daemon_that_does_not_answer_does_not_keep_us(
    emacs: Emacs, daemon: FakeDaemon, chatting: Chatting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(_client: DaemonClient, _session: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(DaemonClient, "detach", deaf)
    monkeypatch.setattr(connection, "LEAVE_S", 0.01)
    await emacs.call("daemon-disconnect")


@asynccontextmanager
async def silent_daemon() -> AsyncGenerator[tuple[str, asyncio.Event]]:
    """Yield the URL of a server that answers nothing, and an event that is set once it was asked."""
    asked, over = asyncio.Event(), asyncio.Event()

    async def say_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await over.wait()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
        over.set()


async def test_a_connect_under_way_ends_with_disconnect(emacs: Emacs, daemon: FakeDaemon) -> None:
    async with silent_daemon() as (url, asked):
        connecting = emacs.ask("daemon-connect", url=url, token=TOKEN, root=ROOT)
        await asked.wait()
        waiting = emacs.ask("daemon-list")
        started = anyio.current_time()
        await emacs.call("daemon-disconnect")
        assert anyio.current_time() - started < requests_module.REQUEST_S / 3
        assert (await emacs.reply(connecting)).problem == "unsure"
        assert (await emacs.reply(waiting)).problem in ("unsure", "unreachable")
        assert emacs.last(messages.DaemonState).state == "off"
    await emacs.connect(daemon)


async def test_a_daemon_that_says_nothing_is_named(emacs: Emacs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SILENT_S", 0.01)
    async with silent_daemon() as (url, _):
        emacs.ask("daemon-connect", url=url, token=TOKEN, root=ROOT)
        await emacs.until(lambda: emacs.all(messages.DaemonState, state="unreachable"))
        said = str(emacs.last(messages.DaemonState).text)
        assert "has not answered for" in said
        assert "M-x qwen-companion-daemon-stop" in said
        await emacs.call("daemon-disconnect")


async def test_a_slow_agent_is_said_until_it_is_there(emacs: Emacs, daemon: FakeDaemon) -> None:
    await emacs.connect(daemon)
    daemon.refuse("/session", "no_route", times=2, status=504)
    await emacs.open()
    told = [(state.state, state.text) for state in emacs.all(messages.DaemonState)]
    slow = "The agent takes long to start; asked again"
    assert told[-3:] == [
        ("connected", f"{slow} (2 of 5)."),
        ("connected", f"{slow} (3 of 5)."),
        ("connected", None),
    ]


# --- Sessions


async def test_sessions_are_listed_and_opened_by_names_of_ours(emacs: Emacs, daemon: FakeDaemon) -> None:
    theirs = daemon.add_session()
    theirs.emit(chunk("Hi"))
    await emacs.connect(daemon)
    await emacs.call("daemon-list")
    (row,) = emacs.last(messages.DaemonSessions).sessions
    assert row.id == local_id("session", theirs.id)
    assert row.updated is not None
    assert row.updated > 1_700_000_000_000
    await emacs.load(row.id)
    assert emacs.chats[row.id].text() == "Hi"
    await emacs.call("daemon-list")
    # Its title is known from now on.
    assert emacs.chats[row.id].state == emacs.last(messages.SessionInfo)
    assert emacs.last(messages.SessionInfo).title == row.title != ""


async def test_a_session_known_from_before_is_found_again(emacs: Emacs, daemon: FakeDaemon) -> None:
    # The backend was another process when Emacs heard of it.
    name = local_id("session", daemon.add_session().id)
    await emacs.connect(daemon)
    assert (await emacs.call("daemon-load", session=name)).session == name
    assert await emacs.refused("daemon-load", session="0123456789abcdef") == "gone"


async def test_the_shared_session_is_shared(emacs: Emacs, daemon: FakeDaemon) -> None:
    shared = daemon.add_session()
    await emacs.connect(daemon)
    reply = await emacs.call("daemon-open", scope=lisp("shared"))
    assert reply.session == local_id("session", shared.id)
    assert (await emacs.call("daemon-open")).session != reply.session


async def test_a_conversation_is_forked(emacs: Emacs, daemon: FakeDaemon, chatting: Chatting) -> None:
    session, theirs, _ = chatting
    theirs.emit(chunk("Said before."))
    fork = (await emacs.call("daemon-fork", session=session)).session
    assert fork is not None
    assert fork != session
    await emacs.call("daemon-load", session=fork)
    changes = [change for turns in emacs.all(messages.Turns) if turns.session == fork for change in turns.changes]
    assert [change.text for change in changes if isinstance(change, messages.TextChange)] == ["Said before."]
    assert theirs.alive
    # A session in which nothing was said cannot be forked.
    daemon.refuse("/branch", "bad_model")
    assert await emacs.refused("daemon-fork", session=session) == "invalid"
    daemon.capabilities["features"].remove("session_branch")
    await emacs.connect(daemon)
    await emacs.call("daemon-load", session=session)
    assert await emacs.refused("daemon-fork", session=session) == "unsupported"


async def test_an_open_session_tells_what_can_be_chosen(emacs: Emacs, chatting: Chatting) -> None:
    await emacs.until(lambda: emacs.all(messages.SessionChoices))
    choices = emacs.last(messages.SessionChoices)
    assert [mode.id for mode in choices.modes] == ["plan", "default", "auto-edit", "auto", "yolo"]
    assert choices.modes[-1].description == "Automatically approve all tools"
    assert [model.name for model in choices.models] == ["scripted"]
    assert choices.model_writes == "user"
    await emacs.until(lambda: chatting[2].state and chatting[2].state.model == "scripted")
    assert chatting[2].state is not None
    assert (chatting[2].state.clients, chatting[2].state.mode) == (1, "default")
    assert emacs.last(messages.SlashCommands).commands


async def test_a_session_is_left_or_ended(emacs: Emacs, daemon: FakeDaemon, chatting: Chatting) -> None:
    session, theirs, _ = chatting
    theirs.members["another"] = 1
    await emacs.call("daemon-close", session=session)
    assert theirs.alive
    assert await emacs.refused("daemon-cancel", session=session) == "gone"
    await emacs.call("daemon-load", session=session)
    await emacs.call("daemon-close", session=session, end=True)
    assert not theirs.alive


async def test_a_session_that_only_others_have_open_is_ended(emacs: Emacs, daemon: FakeDaemon) -> None:
    theirs = daemon.add_session()
    session = local_id("session", theirs.id)
    await emacs.connect(daemon)
    assert await emacs.refused("daemon-close", session=session, end=True) == "gone"
    await emacs.call("daemon-list")
    assert await emacs.refused("daemon-close", session=session) == "gone"
    assert theirs.alive
    await emacs.call("daemon-close", session=session, end=True)
    assert not theirs.alive


# --- Calls


async def test_nothing_is_kept_of_sessions_that_are_asked_for(emacs: Emacs, chatting: Chatting) -> None:
    session, _, _ = chatting
    for name in (session, *map(str, range(20))):
        await emacs.reply(emacs.ask("daemon-cancel", session=name))
    await emacs.call("daemon-close", session=session)
    assert not vars(emacs.dispatcher)["_lanes"]


async def test_models_and_modes_are_set(emacs: Emacs, daemon: FakeDaemon, chatting: Chatting) -> None:
    session, _, chat = chatting
    await emacs.until(lambda: emacs.all(messages.SessionChoices))
    (model,) = emacs.last(messages.SessionChoices).models
    await emacs.call("daemon-model", session=session, model=model.id)
    assert daemon.asked_for("/model")[0].body["modelId"].endswith("scripted(openai)")
    assert await emacs.refused("daemon-model", session=session, model="nothing") == "gone"
    await emacs.call("daemon-mode", session=session, mode="yolo")
    await emacs.until(lambda: chat.state and chat.state.mode == "yolo")
    assert await emacs.refused("daemon-mode", session=session, mode="bold") == "invalid"


@pytest.mark.parametrize(
    ("method", "payload"),
    [
        ("daemon-nonsense", '(:request "r")'),
        ("daemon-connect", '(:request "r")'),
        ("daemon-connect", '(:request "r" :root 5)'),
        ("daemon-prompt", '(:request "r" :session "s" :parts ((:kind text)))'),
        ("daemon-prompt", '(:request "r" :session "s" :parts ((:kind text :text-file "/etc/passwd")))'),
        ("daemon-open", '(:request "r" :scope some)'),
        ("daemon-fetch", '(:request "r" :session "s" :tool "t" :part whole)'),
    ],
)
async def test_a_call_of_another_shape_is_refused(emacs: Emacs, method: str, payload: str) -> None:
    emacs.dispatcher.handle(DaemonCall(method, Plist(lisp(payload))))
    assert (await emacs.reply("r")).problem == "invalid"


async def test_a_call_without_request_that_fails_is_logged(emacs: Emacs, caplog: pytest.LogCaptureFixture) -> None:
    emacs.dispatcher.handle(DaemonCall("daemon-cancel", Plist(lisp('(:session "s")'))))
    emacs.dispatcher.handle(DaemonCall("daemon-cancel", Plist(lisp("(:request 5)"))))
    await emacs.refused("daemon-list")
    assert [record.getMessage() for record in caplog.records] == [
        "daemon-cancel: :request is not a string",
        "daemon-cancel: That session is not open.",
    ]
