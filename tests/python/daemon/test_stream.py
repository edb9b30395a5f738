# SPDX-License-Identifier: GPL-3.0-or-later
"""The events of a session over connections that break: none twice, none missing, and an end where nothing helps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest

from fake_daemon import TOKEN, FakeDaemon, FakeSession, FakeStream, Json, chunk, event, frame, turn
from qwen_companion.daemon import requests as requests_module
from qwen_companion.daemon.client import DaemonClient
from qwen_companion.daemon.errors import (
    HostRefusedError,
    NotFoundError,
    UnauthorizedError,
    UnsupportedError,
)
from qwen_companion.daemon.models import AgentMessageChunk, Cursor, SessionSnapshot, TextBlock, Unknown
from qwen_companion.daemon.stream import (
    SILENCE_S,
    Backoff,
    Connected,
    Disconnected,
    Ended,
    EventStream,
    Frame,
    ReplayDone,
    Resync,
    StreamItem,
)
from support import TIMEOUT_S

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(daemon: FakeDaemon) -> AsyncIterator[DaemonClient]:
    async with DaemonClient(daemon.url, TOKEN) as connected:
        await connected.capabilities()
        yield connected


@pytest.fixture
def session(daemon: FakeDaemon) -> FakeSession:
    return daemon.add_session()


class Clock:
    """Time on the event loop."""

    def __init__(self) -> None:
        self.ahead_s = 0.0


@pytest.fixture
async def clock() -> AsyncIterator[Clock]:
    """Yield a clock for the whole test. Request it first: tasks begun under this clock have to end under it."""
    loop = asyncio.get_running_loop()
    clock = Clock()
    now = loop.time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "time", lambda: now() + clock.ahead_s)
        yield clock


class Listener:
    """A stream whose pauses take no time and are written down."""

    def __init__(self, client: DaemonClient, session: FakeSession, cursor: Cursor, silence_s: float) -> None:
        self.pauses: list[float] = []
        self.go = asyncio.Event()
        """Cleared, the next connection waits for it."""
        self.go.set()
        backoff = Backoff(lambda least, most: most)
        self.stream = EventStream(client, session.id, cursor, backoff=backoff, sleep=self._pause, silence_s=silence_s)
        self.items = aiter(self.stream)

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await self.go.wait()

    async def __aenter__(self) -> Listener:
        await self.stream.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stream.__aexit__()

    async def next(self) -> StreamItem:
        return await asyncio.wait_for(anext(self.items), TIMEOUT_S)

    async def until(self, kind: type[StreamItem]) -> list[StreamItem]:
        """All items up to the first of `kind`."""
        found = [await self.next()]
        while not isinstance(found[-1], kind):
            found.append(await self.next())
        return found

    async def until_text(self, text: str) -> list[StreamItem]:
        """All items up to the piece `text` of the model's answer."""
        found = [await self.next()]
        while texts(found[-1:]) != [text]:
            found.append(await self.next())
        return found

    async def ended(self) -> bool:
        """Whether nothing comes any more."""
        return await anext(self.items, None) is None


def listen(client: DaemonClient, session: FakeSession, cursor: int = 1, silence_s: float = SILENCE_S) -> Listener:
    """Listen from `cursor` on, the last id a load would have named."""
    return Listener(client, session, Cursor(cursor, session.epoch), silence_s)


def texts(items: list[StreamItem]) -> list[str]:
    payloads = [item.envelope.payload for item in items if isinstance(item, Frame)]
    return [payload.content.text for payload in payloads if isinstance(payload, AgentMessageChunk)]


def ids(items: list[StreamItem]) -> list[int | None]:
    return [item.envelope.id for item in items if isinstance(item, Frame)]


# --- A good connection


async def test_a_turn_comes_as_it_was_recorded(client: DaemonClient, daemon: FakeDaemon, session: FakeSession) -> None:
    async with listen(client, session) as listener:
        assert (await listener.until(ReplayDone)) == [Connected(), ReplayDone()]
        snapshot = await listener.next()
        assert isinstance(snapshot, Frame)
        assert isinstance(snapshot.envelope.payload, SessionSnapshot)
        session.script("answer")
        reply = await client.prompt(session.id, [TextBlock("hello")])
        items = [await listener.next() for _ in turn("answer")]
    assert "".join(texts(items)) == "Hello there, this is an answer."
    assert ids(items) == [2, 3, 4, 5, 6]
    assert all(isinstance(item, Frame) and not item.replayed for item in items)
    assert {item.envelope.prompt_id for item in items if isinstance(item, Frame)} == {reply.prompt_id}


async def test_the_daemon_is_asked_for_a_long_queue_and_a_snapshot(
    client: DaemonClient, daemon: FakeDaemon, session: FakeSession
) -> None:
    async with listen(client, session) as listener:
        await listener.until(ReplayDone)
    assert (await daemon.next_stream()).query == "snapshot=1&maxQueued=2048"
    daemon.capabilities["features"].remove("slow_client_warning")
    async with DaemonClient(daemon.url, TOKEN) as older:
        await older.capabilities()
        async with listen(older, session) as listener:
            await listener.until(ReplayDone)
    assert (await daemon.next_stream()).query == ""


async def test_what_was_missed_is_told_from_what_happens(client: DaemonClient, session: FakeSession) -> None:
    session.emit(chunk("missed"))
    async with listen(client, session) as listener:
        missed = (await listener.until(ReplayDone))[1:-1]
        session.emit(chunk("now"))
        now = (await listener.until_text("now"))[-1]
    assert [(texts([item]), isinstance(item, Frame) and item.replayed) for item in [*missed, now]] == [
        (["missed"], True),
        (["now"], False),
    ]


async def test_empty_data_events(
    client: DaemonClient, daemon: FakeDaemon, session: FakeSession, caplog: pytest.LogCaptureFixture
) -> None:
    async with listen(client, session) as listener:
        await listener.until(ReplayDone)
        stream = await daemon.next_stream()
        stream.send(b"retry: 3000\n\n: heartbeat\n\nid: 99\n\nevent: nothing\n\ndata:\n\nid: 100\ndata:\n\n")
        session.emit(chunk("next"))
        items = await listener.until_text("next")
        # The snapshot, and nothing else.
        assert len(items) == 2
        assert not [record for record in caplog.records if record.name.startswith("qwen_companion")]
        stream.cut()
        await listener.until(ReplayDone)
        assert (await daemon.next_stream()).headers["last-event-id"] == "2"


async def test_idless_frame_keeps_cursor(client: DaemonClient, daemon: FakeDaemon, session: FakeSession) -> None:
    async with listen(client, session) as listener:
        await listener.until(ReplayDone)
        session.emit(chunk("one"), event("session_snapshot"))
        await listener.until_text("one")
        snapshot = await listener.next()
        assert ids([snapshot]) == [None]
        # The id of the event is that in the JSON; the one that goes with the frame is not looked at.
        stream = await daemon.next_stream()
        stream.send(b"id: 77\n" + frame(event("session_snapshot")))
        assert ids([await listener.next()]) == [None]
        stream.cut()
        await listener.until(ReplayDone)
        assert (await daemon.next_stream()).headers["last-event-id"] == "2"


async def test_unknown_and_broken_events_harm_nothing(
    client: DaemonClient, daemon: FakeDaemon, session: FakeSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "qwen_companion")
    new: Json = {"v": 1, "type": "brand_new", "data": {"text": "private"}}
    async with listen(client, session) as listener:
        await listener.until(ReplayDone)
        session.emit(new)
        stream = await daemon.next_stream()
        for data in (b"private", b'["private"]', b'{"id":500,"v":9,"type":"private"}', b'{"id":501,"text":"private"'):
            stream.send(b"id: 500\ndata: " + data + b"\n\n")
        session.emit(chunk("next"))
        items = await listener.until_text("next")
    payloads = [item.envelope.payload for item in items if isinstance(item, Frame)]
    assert Unknown(kind="brand_new") in payloads
    assert ids(items)[-2:] == [2, 3]
    assert len([record for record in caplog.records if record.name.startswith("qwen_companion")]) == 4
    assert "private" not in caplog.text


async def test_a_frame_that_is_too_large_leads_to_a_load(
    client: DaemonClient, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "MAX_EVENT_BYTES", 100_000)
    async with listen(client, session) as listener:
        session.emit(chunk("x" * 200_000))
        assert (await listener.until(Resync))[-1] == Resync("frame_too_large")
        assert await listener.ended()


async def test_events_are_read_while_nobody_takes_them(
    client: DaemonClient, daemon: FakeDaemon, session: FakeSession
) -> None:
    async with listen(client, session) as listener:
        await listener.until(ReplayDone)
        # More than any buffer on the way holds; the end can only be sent when all before was read.
        session.emit(*(chunk("x" * 100_000) for _ in range(200)))
        (await daemon.next_stream()).end()
        while session.streams:
            await client.context(session.id)
        assert len(texts(await listener.until(Disconnected))) == 200


# --- Connections that break


async def test_what_comes_twice_is_given_once(client: DaemonClient, daemon: FakeDaemon, session: FakeSession) -> None:
    async with listen(client, session) as listener:
        (sent,) = session.emit(chunk("once"))
        await listener.until_text("once")
        (await daemon.next_stream()).send(frame(sent))
        session.emit(chunk("next"))
        assert texts(await listener.until_text("next")) == ["next"]


@pytest.mark.parametrize("how", [FakeStream.cut, FakeStream.end])
async def test_eviction_looks_like_eof(
    client: DaemonClient, daemon: FakeDaemon, session: FakeSession, how: Callable[[FakeStream], None]
) -> None:
    async with listen(client, session) as listener:
        for number in range(3):
            await listener.until(ReplayDone)
            session.emit(chunk(f"{number}"))
            how(await daemon.next_stream())
            assert texts(await listener.until(Disconnected)) == [f"{number}"]
        await listener.until(ReplayDone)
    # Each connection brought something, so no pause is longer than the first.
    assert listener.pauses == [1.0, 1.0, 1.0]


async def test_daemon_down_at_start(client: DaemonClient, daemon: FakeDaemon, session: FakeSession) -> None:
    await daemon.stop()
    async with listen(client, session) as listener:
        for _ in range(6):
            item = await listener.next()
            assert isinstance(item, Disconnected)
            assert "Nobody answers" in item.reason
        assert listener.pauses == [1.0, 2.0, 4.0, 8.0, 15.0]
        await daemon.start()
        assert (await listener.until(ReplayDone))[-2:] == [Connected(), ReplayDone()]
        assert listener.pauses[-1] == 15.0
        # A good frame, and the next pause is short again.
        session.emit(chunk("good"))
        await listener.until_text("good")
        (await daemon.next_stream()).cut()
        (*_, lost) = await listener.until(Disconnected)
        assert isinstance(lost, Disconnected)
        assert lost.retry_in_s == 1.0


async def test_heartbeat_watchdog(clock: Clock, client: DaemonClient, daemon: FakeDaemon, session: FakeSession) -> None:
    async with listen(client, session) as listener:
        await listener.until(ReplayDone)
        await listener.next()
        stream = await daemon.next_stream()
        waiting = asyncio.ensure_future(anext(listener.items))
        # Three minutes with nothing but heartbeats, as while a model is asked again and again.
        for _ in range(12):
            clock.ahead_s += 15
            stream.send(b": heartbeat\n\n")
            await client.status(session.id)
            assert not waiting.done()
        while not waiting.done():
            clock.ahead_s += SILENCE_S
            await client.status(session.id)
        item = await waiting
    assert isinstance(item, Disconnected)
    assert "has not answered for 45 s" in item.reason


# --- No way on


async def test_stale_cursor_without_epoch(client: DaemonClient, daemon: FakeDaemon, session: FakeSession) -> None:
    session.emit(chunk("1"), chunk("2"))
    async with listen(client, session, cursor=3) as listener:
        await listener.until(ReplayDone)
        listener.go.clear()
        (await daemon.next_stream()).cut()
        await listener.until(Disconnected)
        # Restarted, and already as far as before: by the id alone the replay would seem to fit.
        session.die()
        session.revive()
        session.emit(chunk("a"), chunk("b"), chunk("c"), chunk("d"))
        listener.go.set()
        assert texts(items := await listener.until(Resync)) == []
        assert items[-1] == Resync("epoch_reset")
        assert await listener.ended()


async def test_an_epoch_that_only_the_header_tells_is_noticed(
    client: DaemonClient, daemon: FakeDaemon, session: FakeSession
) -> None:
    async with Listener(client, session, Cursor(1, ""), SILENCE_S) as listener:
        # The daemon was asked without an epoch, so it does not complain.
        assert await listener.next() == Resync("epoch_reset")


async def test_ring_evicted_reload(client: DaemonClient, session: FakeSession) -> None:
    session.emit(chunk("lost"), chunk("kept"))
    session.forget(2)
    async with listen(client, session) as listener:
        assert (await listener.until(Resync)) == [Connected(), Resync("ring_evicted")]
        assert await listener.ended()
    loaded = await client.load(session.id)
    async with Listener(client, session, loaded.cursor, SILENCE_S) as listener:
        assert (await listener.until(ReplayDone)) == [Connected(), ReplayDone()]


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        ("unauthorized", UnauthorizedError),
        ("host", HostRefusedError),
        ("no_session", NotFoundError),
        ("no_route", UnsupportedError),
    ],
)
async def test_401_stops(
    client: DaemonClient, daemon: FakeDaemon, session: FakeSession, refusal: str, error: type[Exception]
) -> None:
    daemon.refuse("/events", refusal)
    async with listen(client, session) as listener:
        item = await listener.next()
        assert isinstance(item, Ended)
        assert type(item.error) is error
        assert await listener.ended()
    assert listener.pauses == []
    assert len(daemon.asked_for("/events")) == 1


async def test_a_page_in_place_of_a_stream_is_waited_out(
    client: DaemonClient, daemon: FakeDaemon, session: FakeSession
) -> None:
    daemon.refuse("/events", "no_route", times=4, status=200)
    async with listen(client, session) as listener:
        reasons = [item.reason for _ in range(4) if isinstance(item := await listener.next(), Disconnected)]
        assert len(reasons) == 4
        assert "not an event stream" in reasons[0]
        session.emit(chunk("well again"))
        assert texts(await listener.until_text("well again")) == ["well again"]
    assert listener.pauses == [1.0, 2.0, 4.0, 8.0]


async def test_a_stream_that_breaks_before_any_event_is_no_better(
    client: DaemonClient, daemon: FakeDaemon, session: FakeSession
) -> None:
    # What each connection begins with does not count.
    async with listen(client, session) as listener:
        for _ in range(3):
            await listener.until(ReplayDone)
            (await daemon.next_stream()).cut()
            await listener.until(Disconnected)
        await listener.until(ReplayDone)
        session.emit(chunk("an event"))
        await listener.until_text("an event")
        (await daemon.next_stream()).cut()
        await listener.until(Disconnected)
        await listener.until(ReplayDone)
    assert listener.pauses == [1.0, 2.0, 4.0, 1.0]


# --- Waiting


@pytest.mark.parametrize("wait_s", [5, 60, 100_000])
async def test_subscriber_limit_429(
    client: DaemonClient, daemon: FakeDaemon, session: FakeSession, wait_s: int
) -> None:
    headers = {"content-type": "application/json", "retry-after": str(wait_s)}
    daemon.refuse("/events", "subscriber_limit", headers=headers)
    daemon.refuse("/events", "bad_model")
    async with listen(client, session) as listener:
        first, second = await listener.next(), await listener.next()
        assert isinstance(first, Disconnected)
        assert "as many listeners as the daemon allows" in first.reason
        assert isinstance(second, Disconnected)
        assert "HTTP 500" in second.reason
        await listener.until(ReplayDone)
    # As long as the daemon asks, but not for ever; the other trouble has its own time.
    assert listener.pauses == [min(wait_s, 300), 2.0]


def test_the_pause_is_drawn_from_a_growing_range() -> None:
    drawn: list[tuple[float, float]] = []

    def draw(least: float, most: float) -> float:
        drawn.append((least, most))
        return least

    backoff = Backoff(draw)
    assert [backoff.next() for _ in range(7)] == [0.5] * 7
    assert drawn == [(0.5, most) for most in (1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0)]
    backoff.reset()
    backoff.next()
    assert drawn[-1] == (0.5, 1.0)
    assert 0.5 <= Backoff().next() <= 1.0


async def test_a_stream_that_is_left_leaves_nothing_behind(
    client: DaemonClient, daemon: FakeDaemon, session: FakeSession
) -> None:
    before = len(asyncio.all_tasks())
    async with listen(client, session) as listener:
        session.emit(chunk("not taken"))
        await listener.until(ReplayDone)
        assert len(asyncio.all_tasks()) > before
    while session.streams:
        await client.status(session.id)
    assert len(asyncio.all_tasks()) <= before
