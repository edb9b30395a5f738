# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest

from fake_clis import FakeCallers
from qwen_companion.base.processes import start_of
from qwen_companion.base.sockets import Connection
from qwen_companion.domain import KnownSession, Peer, SessionState
from qwen_companion.ide.peers import Caller
from qwen_companion.ide.sessions import HIDDEN_S, LEFT_S, RETRY_MS, SessionListener, Sessions, Timing
from support import TIMEOUT_S, soon

pytestmark = pytest.mark.anyio

AT_ONCE = 0.01
NEVER = 1000.0


@pytest.fixture
async def forward(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let it look to the event loop as if so many seconds had passed."""
    loop = asyncio.get_running_loop()
    real = loop.time
    passed = 0.0

    def forward(seconds: float) -> None:
        nonlocal passed
        passed += seconds

    monkeypatch.setattr(loop, "time", lambda: real() + passed)
    return forward


class Table(SessionListener):
    """Sessions, with a record of their reports."""

    def __init__(self, known: tuple[KnownSession, ...] = (), **timing: float) -> None:
        limits = {field.name: NEVER for field in fields(Timing)} | timing
        self.states: list[SessionState] = []
        self.changed = asyncio.Event()
        self.gone: asyncio.Queue[str] = asyncio.Queue()
        self.out: asyncio.Queue[str] = asyncio.Queue()
        self.told: list[tuple[str, bytes]] = []
        self.callers: dict[int, Caller] = {}
        """By port."""

        self.asked: asyncio.Queue[int] = asyncio.Queue()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._loop = asyncio.get_running_loop()
        self.sessions = Sessions(known, FakeCallers(self._find_caller), Timing(**limits))
        self.sessions.listeners = [self]
        self.running = asyncio.create_task(self.sessions.run())

    def tell(self, context: bytes) -> None:
        """Make `context` that of every session."""
        for state in self.sessions.states():
            self.sessions.set_context(state.session.id, context)

    def session_changed(self, state: SessionState) -> None:
        self.states.append(state)
        self.changed.set()

    def session_gone(self, session: str) -> None:
        self.gone.put_nowait(session)

    def context_sent(self, session: str, context: bytes) -> None:
        self.told.append((session, context))

    def went_out(self, key: str) -> None:
        self.out.put_nowait(key)

    def _find_caller(self, connection: Connection) -> Caller | None:
        port = connection.client[1]
        self._loop.call_soon_threadsafe(self.asked.put_nowait, port)
        self.may_answer.wait(2 * TIMEOUT_S)
        return self.callers.get(port)

    def open(self) -> str:
        return self.sessions.open("c", "1", "2025-11-25").id


@pytest.fixture
async def table() -> Table:
    return Table()


class Get:
    """A GET by a client that reads the stream until `stall`ed."""

    def __init__(self, table: Table, session: str, last_received: str | None = None) -> None:
        self.sent: asyncio.Queue[bytes] = asyncio.Queue()
        self.start: dict[str, Any] = {}
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._lost = False
        self._tell_loss: Callable[[], None]
        self.task = asyncio.create_task(
            table.sessions.serve_stream(session, self._when_lost, self._send, last_received)
        )

    def stall(self) -> None:
        self.flowing.clear()

    def lose(self) -> None:
        """Break the connection; from now on a send does nothing, as with the real one."""
        self._lost = True
        self.flowing.set()
        self._tell_loss()

    async def end(self) -> None:
        """Break the connection, and wait until the stream has ended."""
        self.lose()
        await soon(self.task)

    async def next(self) -> bytes:
        """Return the next piece that is more than nothing."""
        while not (piece := await soon(self.sent.get())):
            pass
        return piece

    async def ready(self) -> Get:
        assert await self.next() == b"retry: 1500\n\n"
        return self

    def _when_lost(self, listener: Callable[[], None]) -> None:
        self._tell_loss = listener

    async def _send(self, message: Any) -> None:
        if self._lost:
            return
        if message["type"] == "http.response.start":
            self.start = message
        else:
            self.sent.put_nowait(message["body"])
            await self.flowing.wait()


def event(data: bytes, key: bytes = b"") -> bytes:
    return b"event: message\n" + (b"id: " + key + b"\n" if key else b"") + b"data: " + data + b"\n\n"


async def test_a_stream_begins_with_the_time_to_come_back_and_the_context(table: Table) -> None:
    session = table.open()
    table.tell(b"context")
    get = await Get(table, session).ready()
    assert await get.next() == event(b"context")
    assert table.told == [(session, b"context")]
    assert get.start["status"] == 200
    headers = dict(get.start["headers"])
    assert headers[b"connection"] == b"close"
    assert b"content-length" not in headers
    get.lose()
    assert await soon(get.task)


async def test_a_context_that_comes_later_is_sent_and_the_same_one_is_not(table: Table) -> None:
    get = await Get(table, table.open()).ready()
    table.tell(b"one")
    assert await get.next() == event(b"one")
    table.tell(b"one")
    table.tell(b"two")
    assert await get.next() == event(b"two")
    await get.end()


async def test_silent_streams_are_spoken_to_at_the_same_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each of fifty idle CLIs would wake the process by itself."""
    loop = asyncio.get_running_loop()
    real = loop.time
    shift = 1000 - real()
    monkeypatch.setattr(loop, "time", lambda: real() + shift)
    table = Table(keep_alive=6000.0)
    first = await Get(table, table.open()).ready()
    shift += 3000
    second = await Get(table, table.open()).ready()
    shift += 2000
    for get in (first, second):
        assert (await get.next()).startswith(b":")
        await get.end()


async def test_a_long_sleep_of_the_machine_ends_no_stream(forward: Callable[[float], None]) -> None:
    """As where the clock of the limits goes on meanwhile; on Linux it stands still."""
    table = Table(**{field.name: getattr(Timing(), field.name) for field in fields(Timing)})
    session = table.open()
    get = await Get(table, session).ready()
    forward(8 * 3600.0)
    assert (await get.next()).startswith(b":")
    table.tell(b"context")
    assert await get.next() == event(b"context")
    assert table.gone.empty()
    assert [state.session.id for state in table.sessions.states()] == [session]
    await get.end()


async def test_what_is_posted_waits_for_the_stream_and_is_confirmed_once_out(table: Table) -> None:
    session = table.open()
    assert table.sessions.post(session, [b"one"], "1")
    assert table.sessions.post(session, [b"two"])
    assert table.out.empty()
    get = await Get(table, session).ready()
    assert [await get.next(), await get.next()] == [event(b"one", b"1"), event(b"two")]
    assert await soon(table.out.get()) == "1"
    assert table.sessions.post(session, [b"three"], "3")
    assert await get.next() == event(b"three", b"3")
    assert await soon(table.out.get()) == "3"
    await get.end()
    assert not table.sessions.post("never", [b"x"])


async def test_what_is_withdrawn_does_not_go_out(table: Table) -> None:
    session = table.open()
    table.sessions.post(session, [b"one"], "1")
    table.sessions.post(session, [b"two"], "2")
    table.sessions.withdraw(session, "1")
    table.sessions.withdraw("never", "1")
    get = await Get(table, session).ready()
    assert await get.next() == event(b"two", b"2")
    assert await soon(table.out.get()) == "2"
    await get.end()


async def test_what_a_client_has_received_is_not_sent_again(table: Table) -> None:
    """A process was killed before it told Emacs that it was out, so Emacs has the next one send it."""
    session = table.open()
    table.sessions.post(session, [b"one"], "1")
    table.sessions.post(session, [b"two"], "2")
    get = await Get(table, session, "1").ready()
    assert await soon(table.out.get()) == "1"
    assert await get.next() == event(b"two", b"2")
    await get.end()


async def test_a_stalled_client_holds_up_nobody_and_gets_the_newest_context_later(table: Table) -> None:
    slow = await Get(table, table.open()).ready()
    fast = await Get(table, table.open()).ready()
    slow.stall()
    table.tell(b"0")
    assert await slow.next() == event(b"0")
    assert await fast.next() == event(b"0")
    for number in range(1, 400):
        table.tell(b"%d" % number)
        assert await fast.next() == event(b"%d" % number)
    slow.flowing.set()
    assert await slow.next() == event(b"399")
    for get in (slow, fast):
        await get.end()


async def test_a_second_stream_takes_the_place_of_the_first(table: Table) -> None:
    session = table.open()
    first = await Get(table, session).ready()
    second = await Get(table, session).ready()
    assert await soon(first.task)
    table.tell(b"context")
    assert await second.next() == event(b"context")
    assert [state.streaming for state in table.sessions.states()] == [True]
    await second.end()


async def test_a_session_whose_cli_has_ended_the_stream_is_not_reported(forward: Callable[[float], None]) -> None:
    """As `/ide disable` does, which the user is to see after two seconds; but a CLI that comes back has its time."""
    # It takes up to two tenths of a second more to the screen, and more on a busy machine.
    assert HIDDEN_S < 1.3
    assert RETRY_MS / 1000 + 0.5 < LEFT_S
    table = Table(hidden=10.0)
    session = table.open()
    get = await Get(table, session).ready()
    await get.end()
    table.changed.clear()
    assert table.sessions.reported(session) is not None
    forward(11.0)
    await soon(table.changed.wait())
    assert table.sessions.reported(session) is None
    assert table.sessions.get(session) is not None
    # Its stream has ended by mistake.
    again = await Get(table, session).ready()
    assert table.sessions.reported(session) is not None
    await again.end()
    once_more = await Get(table, session).ready()
    later = asyncio.Event()
    asyncio.get_running_loop().call_later(11.0, later.set)
    forward(12.0)
    await soon(later.wait())
    assert table.sessions.reported(session) is not None
    table.sessions.close(session)
    await soon(once_more.task)


async def test_a_session_whose_cli_has_ended_the_stream_is_given_up_soon() -> None:
    table = Table(left=AT_ONCE)
    session = table.open()
    get = await Get(table, session).ready()
    assert table.gone.empty()
    get.lose()
    assert await soon(table.gone.get()) == session
    assert table.sessions.get(session) is None
    assert table.sessions.states() == ()


async def test_a_session_that_comes_back_is_kept(forward: Callable[[float], None]) -> None:
    table = Table(left=10.0)
    session = table.open()
    get = await Get(table, session).ready()
    await get.end()
    again = await Get(table, session).ready()
    other = table.open()
    lost = await Get(table, other).ready()
    await lost.end()
    # The other one's time, which began later, runs out; the first is still there.
    forward(11.0)
    assert await soon(table.gone.get()) == other
    assert table.sessions.get(session) is not None
    await again.end()


async def test_a_session_that_never_opens_a_stream_is_given_up() -> None:
    table = Table(first_stream=AT_ONCE)
    session = table.open()
    assert await soon(table.gone.get()) == session


async def test_requests_keep_a_session_without_stream(forward: Callable[[float], None]) -> None:
    table = Table(first_stream=10.0)
    session, other = table.open(), table.open()
    forward(5.0)
    table.sessions.touch(session)
    table.sessions.touch("never")
    forward(6.0)
    assert await soon(table.gone.get()) == other
    assert table.sessions.get(session) is not None
    forward(5.0)
    assert await soon(table.gone.get()) == session


async def test_sessions_of_an_earlier_process_are_known_and_given_up_if_they_stay_away() -> None:
    known = KnownSession("old", "2025-11-25", "c", "1")
    table = Table((known,), give_up=AT_ONCE)
    assert table.sessions.get("old") == known
    assert await soon(table.gone.get()) == "old"


async def test_a_session_of_a_place_is_kept_as_long_as_no_line_leads_there(forward: Callable[[float], None]) -> None:
    """What a broken line ends, the CLI has not left: it waits there."""
    known, other = (
        KnownSession(name, "2025-11-25", "c", "1", peer=Peer(-7, "", None, None, (), place=place))
        for name, place in (("far", "/ssh:far:"), ("other", "/ssh:other:"))
    )
    table = Table((known, other), left=1.0, hidden=1.0, give_up=2.0)
    # It has not said yet which places are served, and then leaves one.
    forward(10.0)
    table.sessions.set_reachable("/ssh:other:", True)
    forward(3.0)
    assert await soon(table.gone.get()) == "other"
    table.sessions.set_reachable("/ssh:far:", True)
    get = await Get(table, "far").ready()
    for lose_first in (True, False):
        if lose_first:
            await get.end()
        table.sessions.set_reachable("/ssh:far:", False)
        await get.end()
        forward(100.0)
        closed = table.open()
        table.sessions.close(closed)
        assert await soon(table.gone.get()) == closed
        assert table.sessions.reported("far") is not None
        table.sessions.set_reachable("/ssh:far:", True)
        get = await Get(table, "far").ready()
    await get.end()
    forward(3.0)
    assert await soon(table.gone.get()) == "far"


async def test_every_change_is_told(table: Table) -> None:
    session = table.open()
    get = await Get(table, session).ready()
    await get.end()
    table.sessions.close(session)
    table.sessions.close(session)
    assert [state.streaming for state in table.states] == [False, True, False]
    assert table.gone.qsize() == 1
    assert table.sessions.states() == ()


async def test_a_change_of_one_session_tells_of_no_other(table: Table) -> None:
    first, second = table.open(), table.open()
    get = await Get(table, second).ready()
    assert [(state.session.id, state.streaming) for state in table.states] == [
        (first, False),
        (second, False),
        (second, True),
    ]
    await get.end()


async def test_all_streams_end_in_good_order_and_no_session_is_given_up() -> None:
    table = Table(give_up=AT_ONCE)
    gets = [await Get(table, table.open()).ready() for _ in range(3)]
    await soon(table.sessions.end_streams(NEVER, for_good=True))
    for get in gets:
        assert await soon(get.task)
    assert table.gone.empty()


async def test_a_stalled_stream_does_not_hold_up_the_end(table: Table) -> None:
    get = await Get(table, table.open()).ready()
    get.stall()
    table.tell(b"context")
    await soon(table.sessions.end_streams(AT_ONCE, for_good=True))
    await get.end()


# --- Processes ---


class Child:
    """A process that stands for a CLI."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        started = start_of(self.process.pid)
        assert started is not None
        self.peer = Peer(self.process.pid, started, "/d", "qwen", (self.process.pid,))


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child()
    with child.process:
        yield child
        child.process.kill()


def connection(port: int) -> Connection:
    return Connection(("127.0.0.1", port), ("127.0.0.1", 1))


async def told(table: Table, session: str) -> SessionState:
    """Return the state of `session` told last, once it has a process."""
    while True:
        table.changed.clear()
        for state in reversed(table.states):
            if state.session.id == session and state.session.peer is not None:
                return state
        await soon(table.changed.wait())


async def test_a_session_is_there_at_once_and_whose_it_is_is_told_later(table: Table, child: Child) -> None:
    table.callers[7] = Caller(child.peer, "Qwen Code", "0.24.4")
    table.may_answer.clear()
    session = table.open()
    table.sessions.identify(session, connection(7))
    assert await soon(table.asked.get()) == 7
    known = table.sessions.get(session)
    assert known is not None
    assert (known.label, known.peer) == ("c 1", None)
    table.may_answer.set()
    state = await told(table, session)
    assert state.session == table.sessions.get(session)
    assert (state.session.label, state.session.peer) == ("Qwen Code 0.24.4", child.peer)
    table.sessions.identify(session, connection(8))
    assert table.asked.empty()


async def test_a_process_that_was_not_found_is_looked_for_again(table: Table, child: Child) -> None:
    table.callers[8] = Caller(child.peer, "", "")
    table.may_answer.clear()
    session = table.open()
    table.sessions.identify(session, connection(7))
    assert await soon(table.asked.get()) == 7
    # The stream opens before that has been answered.
    table.sessions.identify(session, connection(8))
    table.may_answer.set()
    state = await told(table, session)
    # What it said itself stays where its process does not tell.
    assert (state.session.label, state.session.peer) == ("c 1", child.peer)


async def test_a_client_that_nobody_knows_stays_unknown(table: Table) -> None:
    session = table.open()
    for port in (7, 8):
        table.sessions.identify(session, connection(port))
        assert await soon(table.asked.get()) == port
    known = table.sessions.get(session)
    assert known is not None
    assert known.peer is None
    get = await Get(table, session).ready()
    await get.end()


async def test_a_process_found_later_is_watched_as_well(child: Child) -> None:
    table = Table(lost_watch=AT_ONCE)
    table.callers[7] = Caller(child.peer, "Qwen Code", "")
    session = table.open()
    table.sessions.identify(session, connection(7))
    await told(table, session)
    child.process.kill()
    assert await soon(table.gone.get()) == session


def known_session(child: Child) -> KnownSession:
    return KnownSession("old", "2025-11-25", "c", "1", child.peer)


async def test_a_session_whose_stream_and_process_end_is_given_up_at_once(child: Child) -> None:
    # Until the stream ends nobody looks.
    table = Table((known_session(child),), lost_watch=AT_ONCE)
    get = await Get(table, "old").ready()
    await get.end()
    assert table.sessions.get("old") is not None
    # Killed, and nobody has waited for it yet.
    child.process.kill()
    assert await soon(table.gone.get()) == "old"
    assert table.sessions.states() == ()


async def test_a_session_whose_process_ends_is_given_up_though_its_stream_is_open(child: Child) -> None:
    table = Table((known_session(child),), watch=AT_ONCE)
    get = await Get(table, "old").ready()
    child.process.kill()
    assert await soon(table.gone.get()) == "old"
    assert await soon(get.task)


async def test_a_session_whose_process_lives_is_waited_for(child: Child) -> None:
    table = Table((known_session(child),), left=0.2, lost_watch=AT_ONCE)
    get = await Get(table, "old").ready()
    began = asyncio.get_running_loop().time()
    get.lose()
    assert await soon(table.gone.get()) == "old"
    assert asyncio.get_running_loop().time() - began > 0.1


async def test_another_process_of_the_same_number_does_not_keep_a_session(child: Child) -> None:
    earlier = Peer(child.peer.pid, "an earlier boot:1", None, None, (child.peer.pid,))
    table = Table((KnownSession("old", "2025-11-25", "c", "1", earlier),))
    assert await soon(table.gone.get()) == "old"


@pytest.mark.parametrize("end", ["of a session", "of this process"])
async def test_nothing_goes_on_after_the_end(child: Child, end: str) -> None:
    before = asyncio.all_tasks()
    table = Table((known_session(child),), watch=AT_ONCE, lost_watch=AT_ONCE)
    sought = table.open()
    table.may_answer.clear()
    table.sessions.identify(sought, connection(7))
    await soon(table.asked.get())
    if end == "of this process":
        await soon(table.sessions.end_streams(NEVER, for_good=False))
        assert table.gone.empty()
    else:
        for session in ("old", sought):
            table.sessions.close(session)
    left = asyncio.all_tasks() - before - {table.running}
    await soon(asyncio.gather(*left, return_exceptions=True))
    table.may_answer.set()
