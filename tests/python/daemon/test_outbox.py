# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import anyio
import pytest

from qwen_companion.base.errors import EmacsBusyError, EmacsGoneError
from qwen_companion.base.tasks import Tasks
from qwen_companion.daemon.messages import (
    Change,
    EndChange,
    Permission,
    Reset,
    SessionInfo,
    TextChange,
    ToolChange,
    Turns,
)
from qwen_companion.daemon.outbox import BATCH_CHANGES, BATCH_WEIGHT, GATHER_S, Outbox
from qwen_companion.wire.messages import Notification
from support import TIMEOUT_S

pytestmark = pytest.mark.anyio


def words(text: str, turn: str = "t", voice: str = "answer") -> TextChange:
    return TextChange(turn, voice=voice, text=text)


def tool(identifier: str, status: str) -> ToolChange:
    return ToolChange("t", id=identifier, status=status)


def end(turn: str = "t") -> EndChange:
    return EndChange(turn, outcome="done")


class Emacs:
    """The other end: a record of the messages it got, and a gate that holds them back."""

    def __init__(self) -> None:
        self.told: list[Notification] = []
        self.pauses: asyncio.Queue[float] = asyncio.Queue()
        self.gate = asyncio.Event()
        self.answer: Callable[[Notification], None] = lambda _message: None
        self.outbox = Outbox(self.send, self.pause)

    async def send(self, message: Notification) -> None:
        self.told.append(message)
        self.answer(message)

    async def pause(self, seconds: float) -> None:
        self.pauses.put_nowait(seconds)
        await self.gate.wait()
        self.gate.clear()

    async def gathered(self) -> None:
        """Wait until something is being gathered, and let that be over."""
        assert await asyncio.wait_for(self.pauses.get(), TIMEOUT_S) == GATHER_S
        self.gate.set()


@pytest.fixture
def emacs() -> Emacs:
    return Emacs()


def take(*changes: Change) -> list[Change]:
    outbox = Emacs().outbox
    for change in changes:
        outbox.change("s", change)
    return [change for message in outbox.drain() if isinstance(message, Turns) for change in message.changes]


async def test_a_stream_of_words_is_one_message(emacs: Emacs) -> None:
    async with Tasks() as tasks:
        tasks.start(emacs.outbox.run)
        emacs.outbox.change("s", words("Hel"))
        assert await asyncio.wait_for(emacs.pauses.get(), TIMEOUT_S) == GATHER_S
        for text in ("lo", " ", "there"):
            emacs.outbox.change("s", words(text))
        assert emacs.told == []
        emacs.gate.set()
        emacs.answer = lambda _message: emacs.outbox.change("s", end())
        await emacs.gathered()
        assert emacs.told[0] == Turns("s", (words("Hello there"),))


async def test_words_are_joined_only_where_they_go_on() -> None:
    assert take(words("a"), words("b"), words("c", voice="thought"), words("d"), words("e", turn="u")) == [
        words("ab"),
        words("c", voice="thought"),
        words("d"),
        words("e", turn="u"),
    ]
    assert take(words("a"), end(), words("b")) == [words("a"), end(), words("b")]


async def test_of_a_tool_only_its_last_state_is_told_and_its_place_is_the_first() -> None:
    changes = take(words("a"), tool("x", "pending"), words("b"), tool("y", "pending"), tool("x", "done"), words("c"))
    assert changes == [words("a"), tool("x", "done"), words("b"), tool("y", "pending"), words("c")]


async def test_eight_thousand_chunks_are_few_messages() -> None:
    outbox = Emacs().outbox
    for number in range(8000):
        outbox.change("s", words(f"{number} "))
    messages = outbox.drain()
    assert len(messages) <= 3
    changes = [change for message in messages if isinstance(message, Turns) for change in message.changes]
    text = "".join(change.text for change in changes if isinstance(change, TextChange))
    assert text == "".join(f"{number} " for number in range(8000))


async def test_what_does_not_fit_into_a_message_goes_into_the_next() -> None:
    outbox = Emacs().outbox
    for number in range(10):
        outbox.change("s", words("x" * (BATCH_WEIGHT // 3), turn=str(number)))
    messages = outbox.drain()
    assert len(messages) == 5
    assert all(isinstance(item, Turns) and sum(c.weight for c in item.changes) <= BATCH_WEIGHT for item in messages)


async def test_a_long_text_that_goes_on_is_several_messages() -> None:
    outbox = Emacs().outbox
    text = "".join(f"{number} " for number in range(BATCH_WEIGHT))
    alone = replace(words(text), background=True)
    outbox.reset("s", [words(text), alone], None)
    reset, *messages = outbox.drain()
    assert reset == Reset("s", len(messages), None)
    *pieces, last = [change for item in messages if isinstance(item, Turns) for change in item.changes]
    assert max(piece.weight for piece in pieces) <= BATCH_WEIGHT
    assert "".join(piece.text for piece in pieces if isinstance(piece, TextChange)) == text
    # Each of these begins a paragraph of its own.
    assert last == alone


async def test_many_small_changes_are_several_messages() -> None:
    outbox = Emacs().outbox
    changes = [words("x", turn=str(number)) for number in range(2 * BATCH_CHANGES + 1)]
    outbox.reset("s", changes, None)
    reset, *messages = outbox.drain()
    assert reset == Reset("s", 3, None)
    assert [len(item.changes) for item in messages if isinstance(item, Turns)] == [BATCH_CHANGES, BATCH_CHANGES, 1]
    assert [change for item in messages if isinstance(item, Turns) for change in item.changes] == changes


async def test_the_order_of_changes_and_messages_of_a_session_is_kept(emacs: Emacs) -> None:
    asked = Permission("s", "p", "open")
    emacs.outbox.change("s", words("a"))
    emacs.outbox.queue(asked)
    emacs.outbox.change("s", words("b"))
    assert emacs.outbox.drain() == [Turns("s", (words("a"),)), asked, Turns("s", (words("b"),))]
    assert emacs.outbox.drain() == []


async def test_of_the_state_of_a_session_only_the_newest_is_told(emacs: Emacs) -> None:
    emacs.outbox.queue(SessionInfo("s", "busy"))
    emacs.outbox.queue(SessionInfo("other", "busy"))
    emacs.outbox.change("s", words("a"))
    emacs.outbox.queue(SessionInfo("s", "idle"))
    assert emacs.outbox.drain() == [SessionInfo("other", "busy"), Turns("s", (words("a"),)), SessionInfo("s", "idle")]


async def test_a_reset_says_how_much_comes_and_drops_what_it_tells_anew(emacs: Emacs) -> None:
    emacs.outbox.change("s", words("old"))
    emacs.outbox.change("other", words("kept"))
    history = [words("x" * (BATCH_WEIGHT - 100), turn=str(number)) for number in range(3)]
    emacs.outbox.reset("s", history, "why")
    emacs.outbox.change("s", words("new"))
    assert emacs.outbox.drain() == [
        Turns("other", (words("kept"),)),
        Reset("s", 3, "why"),
        *(Turns("s", (change,)) for change in history),
        Turns("s", (words("new"),)),
    ]


async def test_an_empty_conversation_is_a_reset_too(emacs: Emacs) -> None:
    emacs.outbox.reset("s", [], None)
    assert emacs.outbox.drain() == [Reset("s", 0, None)]


async def test_a_slow_emacs_misses_nothing(emacs: Emacs, caplog: pytest.LogCaptureFixture) -> None:
    sent: asyncio.Queue[Notification] = asyncio.Queue()

    def busy(message: Notification) -> None:
        sent.put_nowait(message)
        raise EmacsBusyError("Emacs did not answer daemon-turn within 10 s")

    emacs.answer = busy
    async with Tasks() as tasks:
        tasks.start(emacs.outbox.run)
        for change in (words("a"), end()):
            emacs.outbox.change("s", change)
            await emacs.gathered()
            assert await asyncio.wait_for(sent.get(), TIMEOUT_S) == Turns("s", (change,))
    assert "daemon-turn" in caplog.text


async def test_it_ends_with_emacs(emacs: Emacs) -> None:
    def gone(_message: Notification) -> None:
        raise EmacsGoneError("Emacs has closed the connection")

    emacs.answer = gone
    emacs.outbox.change("s", words("a"))
    job = asyncio.create_task(emacs.outbox.run())
    await emacs.gathered()
    await asyncio.wait_for(job, TIMEOUT_S)


async def test_nothing_more_is_sent_when_an_answer_comes_as_it_is_cancelled(emacs: Emacs) -> None:
    emacs.outbox.change("s", words("a"))
    emacs.outbox.queue(SessionInfo("s", "idle"))
    async with Tasks() as tasks:
        job = tasks.start(emacs.outbox.run)
        told = anyio.Event()

        def answer(_message: Notification) -> None:
            job.cancel()
            told.set()

        emacs.answer = answer
        await emacs.gathered()
        with anyio.fail_after(TIMEOUT_S):
            await told.wait()
            await job.stop()
    assert emacs.told == [Turns("s", (words("a"),))]
