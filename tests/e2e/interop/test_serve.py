# SPDX-License-Identifier: GPL-3.0-or-later
"""The daemon client with the real `qwen serve`, in the newest version, the oldest that has it, and some between."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import anyio
import pytest

from model_types import Answer
from qwen_companion.daemon import models
from qwen_companion.daemon.address import DaemonAddress
from qwen_companion.daemon.client import DaemonClient
from qwen_companion.daemon.errors import (
    InvalidRequestError,
    NotFoundError,
    UnauthorizedError,
    WrongWorkspaceError,
)
from qwen_companion.daemon.rewinding import rewind_recorded
from qwen_companion.daemon.session import DaemonSession
from qwen_companion.daemon.stream import Disconnected, Ended, EventStream, Frame, ReplayDone, Resync, StreamItem
from qwen_companion.doors.user_settings import VARIABLE
from sandbox import NOTES, Sandbox
from scripted_model import ScriptedModel
from serve import Network, Serve
from terminal import PATIENCE

pytestmark = pytest.mark.anyio

P = TypeVar("P", bound=models.Payload)

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""A PNG image of one pixel, in Base64."""

NUMBERED = "".join(f"<{number:03}>" for number in range(400))
"""A text in which nothing can be missing, or be there twice, unseen."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass(frozen=True)
class Version:
    """A version of the daemon."""

    name: str
    program: str
    newest: bool = False
    """Whether `make test` tests it; `make test-interop` tests all."""
    changes_large_files: bool = True
    """Whether its agent changes files above 256 KB."""


VERSIONS = (
    Version("0.21.2", "qwen-0.21.2", changes_large_files=False),
    Version("0.21.10", "qwen-0.21.10"),
    Version("0.23.0", "qwen-0.23.0"),
    Version("0.23.4", "qwen-0.23.4"),
    Version("newest", "qwen", newest=True),
)


class House:
    """A real daemon with a scripted model, and a client of it."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.sandbox = Sandbox()
        self.model = ScriptedModel()
        # A reset leaves it alone, unlike the user's settings.
        defaults = self.sandbox.home / "system-defaults.json"
        defaults.write_text(json.dumps({"model": {"generationConfig": {"modalities": {"image": True}}}}))
        environment = {**self.sandbox.environment(), **self.model.environment(), VARIABLE: str(defaults)}
        self.serve = Serve(self.sandbox, environment, version.program)

    def reset(self) -> bool:
        """Make files and model as they were; return whether they are, and the daemon runs."""
        return self.serve.running and self.model.reset() and self.sandbox.reset_files()

    def close(self) -> None:
        """End the daemon; nothing may be left of it."""
        try:
            self.serve.close()
            self.sandbox.wait_for_end()
        finally:
            self.model.close()
            self.sandbox.remove()

    @property
    def project(self) -> str:
        return str(self.sandbox.project)

    def client(self, url: str | None = None) -> DaemonClient:
        return DaemonClient(url or self.serve.url, self.serve.token)

    @asynccontextmanager
    async def session(self, url: str | None = None) -> AsyncGenerator[Chat]:
        """Yield a new session, listened to by a client of its own, at `url` or directly."""
        async with self.client(url) as client:
            await client.capabilities(self.project)
            session = (await client.create_or_attach(self.project, "thread")).session_id
            async with listening(client, session, (await client.load(session)).cursor) as chat:
                yield chat


class Chat:
    """A session, and all that has been heard of it."""

    def __init__(self, client: DaemonClient, session: str, stream: EventStream) -> None:
        self.client = client
        self.session = session
        self.stream = stream
        self.items: list[StreamItem] = []
        self._iterator = aiter(stream)

    async def until(self, wanted: Callable[[StreamItem], bool]) -> StreamItem:
        """Listen until an item is `wanted`; return it."""
        with anyio.fail_after(PATIENCE):
            async for item in self._iterator:
                self.items.append(item)
                if wanted(item):
                    return item
        raise AssertionError(f"the stream has ended with {self.items[-1]}")

    async def event(self, kind: type[P], wanted: Callable[[P], bool] = lambda _: True) -> P:
        """Listen until an event of `kind` is `wanted`; return its payload."""

        def is_it(item: StreamItem) -> bool:
            return isinstance(item, Frame) and isinstance(item.envelope.payload, kind) and wanted(item.envelope.payload)

        item = await self.until(is_it)
        assert isinstance(item, Frame)
        assert isinstance(item.envelope.payload, kind)
        return item.envelope.payload

    async def prompt(self, text: str) -> str:
        return (await self.client.prompt(self.session, [models.TextBlock(text)])).prompt_id

    async def turn(self, prompt_id: str) -> str | None:
        """Listen to the end of a turn; return why it has ended."""
        return (await self.event(models.TurnComplete, lambda payload: payload.prompt_id == prompt_id)).stop_reason

    @property
    def envelopes(self) -> list[models.Envelope]:
        return [item.envelope for item in self.items if isinstance(item, Frame)]

    def payloads(self, kind: type[P]) -> list[P]:
        return [envelope.payload for envelope in self.envelopes if isinstance(envelope.payload, kind)]

    def text(self, prompt_id: str) -> str:
        """Return the model's text in a turn."""
        return "".join(
            envelope.payload.content.text
            for envelope in self.envelopes
            if envelope.prompt_id == prompt_id and isinstance(envelope.payload, models.AgentMessageChunk)
        )


@asynccontextmanager
async def listening(client: DaemonClient, session: str, cursor: models.Cursor) -> AsyncGenerator[Chat]:
    """Yield a chat that has heard all until now."""
    async with EventStream(client, session, cursor) as stream:
        chat = Chat(client, session, stream)
        await chat.until(is_(ReplayDone))
        yield chat


def told(loaded: models.LoadReply) -> tuple[list[str], str]:
    """Return what was asked in a session that was loaded, and all that the model has said."""
    events = [envelope.payload for envelope in (*loaded.compacted_replay, *loaded.live_journal)]
    asked = [event.content.text for event in events if isinstance(event, models.UserMessageChunk)]
    return asked, "".join(event.content.text for event in events if isinstance(event, models.AgentMessageChunk))


@pytest.fixture(scope="module")
def kept_houses() -> Iterator[dict[Version, House]]:
    """Yield the houses that tests have left for the next ones."""
    houses: dict[Version, House] = {}
    yield houses
    for house in houses.values():
        house.close()


@pytest.fixture(
    params=[
        pytest.param(version, id=version.name, marks=() if version.newest else pytest.mark.interop)
        for version in VERSIONS
    ]
)
def house(request: pytest.FixtureRequest, kept_houses: dict[Version, House]) -> Iterator[House]:
    """Yield a house, in which earlier tests may have had sessions."""
    version: Version = request.param
    failures = request.session.testsfailed
    house = kept_houses.pop(version, None)
    if house is None:
        house = House(version)
        house.serve.start()
    try:
        yield house
    finally:
        if request.session.testsfailed == failures and house.reset():
            kept_houses[version] = house
        else:
            house.close()


def is_(kind: type[StreamItem]) -> Callable[[StreamItem], bool]:
    return lambda item: isinstance(item, kind)


# --- Talking


async def test_a_prompt_streams(house: House) -> None:
    house.model.answer(Answer(NUMBERED, pieces=20))
    async with house.session() as chat:
        prompt = await chat.prompt("count")
        assert await chat.turn(prompt) == "end_turn"
        assert chat.text(prompt) == NUMBERED
        assert [echo.content.text for echo in chat.payloads(models.UserMessageChunk)] == ["count"]
        assert len([chunk for chunk in chat.payloads(models.AgentMessageChunk) if chunk.content.text]) == 20
    assert "count" in house.model.next_request().prompt


async def test_text_of_all_kinds_arrives_as_it_was(house: House) -> None:
    text = "a\u2028b\u2029c\x85d\x1b[31me\x00f\u202eg\ufeffh\U0001f600i"
    house.model.answer(Answer(text, pieces=1))
    async with house.session() as chat:
        prompt = await chat.prompt(text)
        await chat.turn(prompt)
        assert chat.text(prompt) == text


async def test_cancelling_ends_the_turn_and_leaves_the_queue(house: House) -> None:
    gate = threading.Event()
    house.model.answer(Answer(NUMBERED, pieces=4, halfway=gate))
    house.model.say("Next.")
    async with house.session() as chat:
        first = await chat.prompt("count")
        await chat.event(models.AgentMessageChunk)
        second = await chat.prompt("go on")
        await chat.client.cancel(chat.session)
        assert await chat.turn(first) == "cancelled"
        assert await chat.turn(second) == "end_turn"
        gate.set()
        assert NUMBERED.startswith(chat.text(first))
        assert chat.text(second) == "Next."


async def test_a_prompt_is_taken_out_of_the_queue(house: House) -> None:
    gate = threading.Event()
    house.model.answer(Answer(NUMBERED, pieces=4, halfway=gate))
    async with house.session() as chat:
        first = await chat.prompt("count")
        await chat.event(models.AgentMessageChunk)
        second = await chat.prompt("never mind")
        assert await chat.client.remove_pending_prompt(chat.session, second)
        assert await chat.turn(second) == "cancelled"
        gate.set()
        assert await chat.turn(first) == "end_turn"
        assert chat.text(first) == NUMBERED


async def test_an_image_reaches_a_model_that_takes_it(house: House) -> None:
    house.model.say("A dot.")
    async with house.session() as chat:
        parts = [models.TextBlock("what is it?"), models.ImageBlock(DOT, "image/png")]
        prompt = (await chat.client.prompt(chat.session, parts)).prompt_id
        assert await chat.turn(prompt) == "end_turn"
        # The daemon lists no model that only a name stands for.
        assert await chat.client.model_in_use(chat.session) is None
    assert f"data:image/png;base64,{DOT}" in json.dumps(house.model.next_request().body)


async def test_a_conversation_is_forked(house: House) -> None:
    house.model.say("First.")
    house.model.say("In the fork.")
    async with house.session() as chat:
        await chat.turn(await chat.prompt("one"))
        fork = await chat.client.branch(chat.session)
        assert fork.session_id != chat.session
        loaded = await chat.client.load(fork.session_id)
        assert told(loaded)[0] == ["one"]
        async with listening(chat.client, fork.session_id, loaded.cursor) as forked:
            assert await forked.turn(await forked.prompt("two")) == "end_turn"
        await chat.client.detach(fork.session_id)
        house.model.next_request()
        assert "First." in json.dumps(house.model.next_request().body)
        # The other goes on without it.
        assert told(await chat.client.load(chat.session))[0] == ["one"]


async def test_a_recorded_conversation_is_rewound_and_its_copy_is_whole(house: House) -> None:
    async with house.session() as chat:
        for number in (1, 2, 3):
            house.model.say(f"Answer {number}.")
            await chat.turn(await chat.prompt(f"prompt {number}"))
        await chat.client.close(chat.session)

    async def ended() -> None:
        """Do nothing: no CLI has it open."""

    address = DaemonAddress(house.serve.url, house.serve.token)
    done = await rewind_recorded(address, house.project, chat.session, lambda prompts: prompts[1], ended)
    assert done.prompt == "prompt 2"
    assert done.copy is not None
    kept = {chat.session: ["prompt 1"], done.copy: ["prompt 1", "prompt 2", "prompt 3"]}
    async with house.client() as client:
        await client.capabilities(house.project)
        for session, prompts in kept.items():
            loaded = DaemonSession(session, None).replayed(await client.load(session))[0]
            assert [prompt.text for prompt in loaded.prompts] == prompts
            await client.close(session)


# --- Permissions


def script_writing(house: House) -> Path:
    """Let the model write a new file, which has to be allowed."""
    path = house.sandbox.project / "new.txt"
    house.model.call("write_file", file_path=str(path), content="new\n")
    return path


def once(request: models.PermissionRequest | models.PendingInteraction) -> str:
    """Return the option that allows the call this time."""
    (option,) = (option.option_id for option in request.options if option.kind == "allow_once")
    return option


async def test_a_permission_is_given(house: House) -> None:
    path = script_writing(house)
    house.model.say("Written.")
    async with house.session() as chat:
        prompt = await chat.prompt("write")
        request = await chat.event(models.PermissionRequest)
        assert not path.exists()
        with pytest.raises(InvalidRequestError) as caught:
            await chat.client.answer_permission(chat.session, request.request_id, "no-such-option")
        assert caught.value.code == "invalid_option_id"
        await chat.client.answer_permission(chat.session, request.request_id, once(request))
        resolved = await chat.event(models.PermissionResolved)
        assert resolved.outcome.option_id == once(request)
        assert resolved.voter_client_id == chat.client.memberships.client_id(chat.session)
        assert await chat.turn(prompt) == "end_turn"
        assert path.read_text() == "new\n"
        with pytest.raises(NotFoundError):
            await chat.client.answer_permission(chat.session, request.request_id, once(request))


async def test_a_permission_is_refused(house: House) -> None:
    path = script_writing(house)
    async with house.session() as chat:
        prompt = await chat.prompt("write")
        request = await chat.event(models.PermissionRequest)
        await chat.client.answer_permission(chat.session, request.request_id, None)
        update = await chat.event(models.ToolCallUpdate, lambda update: update.status == "failed")
        assert update.tool_call_id == request.tool_call.tool_call_id
        assert await chat.turn(prompt) == "end_turn"
        assert not path.exists()


async def test_another_client_answers(house: House) -> None:
    path = script_writing(house)
    house.model.say("Written.")
    async with house.session() as chat, house.client() as other:
        await other.load(chat.session)
        prompt = await chat.prompt("write")
        await chat.event(models.PermissionRequest)
        # It was not there when the question came.
        (waiting,) = (await other.status(chat.session)).pending_interactions
        await other.answer_permission(chat.session, waiting.request_id, once(waiting))
        resolved = await chat.event(models.PermissionResolved)
        assert (
            resolved.voter_client_id
            == other.memberships.client_id(chat.session)
            != chat.client.memberships.client_id(chat.session)
        )
        await chat.turn(prompt)
        assert path.exists()


# --- The network


async def test_a_connection_cut_in_the_middle_of_a_turn_loses_and_doubles_nothing(house: House) -> None:
    gate = threading.Event()
    house.model.answer(Answer(NUMBERED, pieces=400, halfway=gate))
    async with Network(house.serve.port) as network, house.session(network.url) as chat:
        network.cut_at(b"<150>")
        prompt = await chat.prompt("count")
        await chat.until(is_(Disconnected))
        network.cut_at(b"<250>")
        gate.set()
        assert await chat.turn(prompt) == "end_turn"
        assert network.cuts == 2
        assert sum(isinstance(item, Disconnected) for item in chat.items) == 2
        assert chat.text(prompt) == NUMBERED
        assert len(chat.payloads(models.UserMessageChunk)) == 1
        ids = [envelope.id for envelope in chat.envelopes if envelope.id is not None]
        assert ids == list(range(ids[0], ids[0] + len(ids)))
        assert not any(isinstance(item, Resync) for item in chat.items)


async def test_a_permission_that_waits_is_still_known_after_the_connection_was_cut(house: House) -> None:
    path = script_writing(house)
    house.model.say("Written.")
    async with Network(house.serve.port) as network, house.session(network.url) as chat:
        network.cut_at(b'"type":"permission_request"')
        prompt = await chat.prompt("write")
        request = await chat.event(models.PermissionRequest)
        assert network.cuts == 1
        (waiting,) = (await chat.client.status(chat.session)).pending_interactions
        assert waiting.request_id == request.request_id
        await chat.client.answer_permission(chat.session, request.request_id, once(request))
        await chat.turn(prompt)
        assert len(chat.payloads(models.PermissionRequest)) == 1
        assert path.exists()


@asynccontextmanager
async def stalled_chat(house: House, pieces: int) -> AsyncGenerator[tuple[Chat, str, str]]:
    """Yield a chat that could not read while the model said 4 kB in each of `pieces`; also its prompt and the text."""
    text = "".join(f"<{number:04}{'x' * 4000}>" for number in range(pieces))
    house.model.answer(Answer(text, pieces=pieces))
    async with Network(house.serve.port) as network, house.session(network.url) as chat, house.client() as other:
        await other.load(chat.session)
        network.stall()
        prompt = (await other.prompt(chat.session, [models.TextBlock("say a lot")])).prompt_id
        while (await other.status(chat.session)).has_active_prompt:
            await asyncio.sleep(0.1)
        assert re.search("(client|subscriber) evicted", house.serve.log)
        network.flow()
        yield chat, prompt, text


async def test_a_slow_reader_is_cut_off_and_gets_everything_all_the_same(house: House) -> None:
    # 8 MB: the daemon keeps 2 MB for a reader, and the kernel some.
    async with stalled_chat(house, 2000) as (chat, prompt, text):
        assert await chat.turn(prompt) == "end_turn"
        assert sum(isinstance(item, Disconnected) for item in chat.items) == 1
        assert chat.text(prompt) == text


async def test_a_reader_that_missed_too_much_is_told_so(house: House) -> None:
    # 20 MB: no more than 8 MB are sent again.
    async with stalled_chat(house, 5000) as (chat, prompt, text):
        assert await chat.until(is_(Resync)) == Resync("replay_budget_exceeded")
        assert text.startswith(chat.text(prompt))
        loaded = await chat.client.load(chat.session)
        assert [
            event.payload.stop_reason
            for event in loaded.compacted_replay
            if isinstance(event.payload, models.TurnComplete)
        ]
        assert told(loaded)[1] == text
        house.model.say("Short.")
        async with listening(chat.client, chat.session, loaded.cursor) as again:
            assert await again.turn(await again.prompt("shorter")) == "end_turn"


async def test_an_event_of_ten_megabytes(house: House) -> None:
    # Three times the text: in the diff, and in two parts of what the tool says.
    text = f"{'x' * 50_000}\n" * 75
    large = house.sandbox.project / "large.txt"
    house.model.call("write_file", file_path=str(large), content=text)
    house.model.say("Written.")
    async with house.session() as chat:
        await chat.client.set_approval_mode(chat.session, "yolo")
        await chat.turn(await chat.prompt("write"))
        assert large.read_text() == text
        (update,) = (update for update in chat.payloads(models.ToolCallUpdate) if update.status == "completed")
        assert [part.new_text for part in update.content or () if part.type == "diff"] == [text]
        assert len(json.dumps(update.model_dump())) > 10_000_000
        assert not any(isinstance(item, Disconnected) for item in chat.items)


async def test_a_large_file_is_changed(house: House) -> None:
    text = "".join(f"line {number} before\n" for number in range(20_000))
    changed = text.replace("line 7 before", "line 7 after")
    large = house.sandbox.project / "large.txt"
    large.write_text(text)
    house.model.call("read_file", file_path=str(large), limit=9)
    house.model.call("write_file", file_path=str(large), content=changed)
    house.model.say("Written.")
    async with house.session() as chat:
        await chat.client.set_approval_mode(chat.session, "yolo")
        await chat.turn(await chat.prompt("write"))
        *_, last = (update for update in chat.payloads(models.ToolCallUpdate) if update.status)
    if house.version.changes_large_files:
        assert (last.status, large.read_text() == changed) == ("completed", True)
    else:
        # The agent reads no file above 256 KB for the daemon.
        assert (last.status, large.read_text() == text) == ("failed", True)


# --- A crash of the daemon


async def test_killed_and_restarted_in_the_middle_of_a_turn(house: House) -> None:
    gate = threading.Event()
    house.model.say("First.")
    house.model.answer(Answer(NUMBERED, pieces=4, halfway=gate))
    house.model.say("Third.")
    async with house.session() as chat:
        await chat.turn(await chat.prompt("one"))
        await chat.prompt("two")
        await chat.event(models.AgentMessageChunk)
        stale = (await chat.client.load(chat.session)).cursor
        await asyncio.to_thread(house.serve.kill)
        await chat.until(is_(Disconnected))
        gate.set()
        await asyncio.to_thread(house.serve.start)
        # The daemon of today does not know the session.
        ended = await chat.until(is_(Ended))
        assert isinstance(ended, Ended)
        assert isinstance(ended.error, NotFoundError)
        # Loading brings it back, once.
        loaded = await chat.client.load(chat.session)
        asked, said = told(loaded)
        assert asked == ["one", "two"]
        assert said.count("First.") == 1
        # What was known of the time before is of no use, and that is noticed.
        assert loaded.cursor.epoch != stale.epoch
        async with EventStream(chat.client, chat.session, stale) as old:
            assert [item async for item in old] == [Resync("epoch_reset")]
        async with listening(chat.client, chat.session, loaded.cursor) as again:
            third = await again.prompt("three")
            assert await again.turn(third) == "end_turn"
            assert again.text(third) == "Third."


# --- Refusals


async def test_a_wrong_token_is_refused(house: House) -> None:
    async with house.session() as chat:
        for token in ("wrong", None):
            async with DaemonClient(house.serve.url, token) as stranger:
                with pytest.raises(UnauthorizedError):
                    await stranger.capabilities()
                with pytest.raises(UnauthorizedError):
                    await stranger.load(chat.session)
                async with EventStream(stranger, chat.session, models.Cursor(0, "epoch")) as stream:
                    (item,) = [item async for item in stream]
                assert isinstance(item, Ended)
                assert isinstance(item.error, UnauthorizedError)


async def test_a_wrong_workspace_is_refused(house: House) -> None:
    other = str(house.sandbox.make_project("other"))
    async with house.client() as client:
        for root in (other, f"{house.project}/inside"):
            with pytest.raises(WrongWorkspaceError):
                await client.capabilities(root)
            with pytest.raises(WrongWorkspaceError):
                await client.create_or_attach(root, "thread")


async def test_a_model_that_is_not_there_is_refused(house: House) -> None:
    async with house.session() as chat:
        with pytest.raises(InvalidRequestError) as caught:
            await chat.client.set_model(chat.session, "no-such-model")
        assert caught.value.code == "model_switch_failed"


async def test_what_a_chat_asks_for_is_there(house: House) -> None:
    house.model.say("Hello.")
    async with house.session() as chat:
        await chat.turn(await chat.prompt("hello"))
        context = await chat.client.context(chat.session)
        assert context.state.models.available_models
        assert {"default", "plan"} <= {mode.id for mode in context.state.modes.available_modes}
        assert (await chat.client.supported_commands(chat.session)).available_commands
        assert (await chat.client.context_usage(chat.session)).formatted_text
        assert chat.session in {item.session_id for item in await chat.client.list_sessions(house.project)}
        assert NOTES in house.sandbox.notes.read_text()


# --- The end


# The last, since no test after it finds its daemon.
async def test_told_to_end_it_says_so(house: House) -> None:
    async with house.session() as chat:
        ending = asyncio.create_task(asyncio.to_thread(house.serve.close))
        died = await chat.event(models.SessionDied)
        assert died.reason == "daemon_shutdown"
        await ending
