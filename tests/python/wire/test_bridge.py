# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from qwen_companion.base.errors import EmacsBusyError, EmacsGoneError, EmacsRefusedError
from qwen_companion.wire import bridge as module
from qwen_companion.wire import messages
from qwen_companion.wire.bridge import Bridge
from qwen_companion.wire.spool import Spool
from support import SECRET, TIMEOUT_S, EpcPeer, no_answer, soon

pytestmark = pytest.mark.anyio


class Site:
    """A bridge, and the Emacs at its other end once `connect` was called."""

    def __init__(self, spool: Spool) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        self.bridge = Bridge(listener, SECRET, spool)
        self.received: asyncio.Queue[messages.Incoming] = asyncio.Queue()
        self.gone = asyncio.Event()
        self.peers: list[EpcPeer] = []
        self.bridge.start(self.received.put_nowait, self.gone.set)

    async def peer(self, secret: str = SECRET) -> EpcPeer:
        """Return a connection that has said nothing yet."""
        peer = await asyncio.to_thread(EpcPeer, self.port, secret)
        self.peers.append(peer)
        return peer

    async def connect(self) -> EpcPeer:
        peer = await self.peer()
        assert (await call(peer, "roots", "(:roots nil)"))[0] == "return"
        assert await soon(self.received.get()) == messages.Roots(())
        return peer


async def call(peer: EpcPeer, method: str, payload: str, secret: str | None = None) -> list[Any]:
    return await asyncio.to_thread(peer.call, method, payload, secret)


async def ended(peer: EpcPeer) -> bool:
    return await asyncio.to_thread(peer.ended.wait, TIMEOUT_S)


@pytest.fixture
async def site(spool: Spool) -> AsyncIterator[Site]:
    site = Site(spool)
    yield site
    site.bridge.close()
    for peer in site.peers:
        await asyncio.to_thread(peer.close)


@pytest.fixture
async def peer(site: Site) -> EpcPeer:
    """Return the connection of Emacs."""
    return await site.connect()


STOP = f'(call 1 stop ("{SECRET}" nil))'.encode()
STOP_FRAME = b"%06x" % len(STOP) + STOP


async def test_calls_arrive_in_order_and_are_answered_with_nil(site: Site, peer: EpcPeer) -> None:
    for number in range(200):
        assert await call(peer, "outcome", f'(:id "{number}" :outcome rejected)') == ["return", number + 2, []]
    for number in range(200):
        assert await soon(site.received.get()) == messages.ReviewOutcome(str(number), None)


@pytest.mark.parametrize("secret", ["", "wrong", SECRET[:-1], SECRET + "x"])
async def test_a_wrong_secret_is_refused_and_the_connection_dropped(site: Site, secret: str) -> None:
    stranger = await site.peer(secret)
    assert (await call(stranger, "roots", "(:roots nil)"))[0] == "epc-error"
    assert await ended(stranger)
    await site.connect()


async def test_a_wrong_secret_later_drops_the_connection(site: Site, peer: EpcPeer) -> None:
    peer.send('(call 9 stop ("wrong" nil))')
    assert await ended(peer)
    await soon(site.gone.wait())
    assert site.received.empty()


@pytest.mark.parametrize(
    "text",
    ["(methods 1)", "(return 1 nil)", "(call)", "(call 1 stop)", "(call 1 stop nil)", "nonsense", "(", "5", "()"],
)
async def test_whatever_else_a_stranger_says_drops_it(site: Site, text: str) -> None:
    stranger = await site.peer()
    stranger.send(text)
    assert await ended(stranger)
    assert not site.gone.is_set()
    await site.connect()


@pytest.mark.parametrize("raw", [b"zzzzzz", b"000000", b"ffffff" + b"x" * 100, b"000009(call 1\xff)", b"-00001"])
async def test_broken_frames_drop_the_connection(site: Site, raw: bytes) -> None:
    stranger = await site.peer()
    stranger.send_raw(raw)
    assert await ended(stranger)
    await site.connect()


async def test_a_silent_connection_does_not_keep_emacs_out(site: Site) -> None:
    await site.peer()
    await site.connect()


async def test_after_the_first_nobody_else_gets_in(site: Site) -> None:
    early = await site.peer()
    first = await site.connect()
    assert await ended(early)

    def listening() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", site.port), timeout=TIMEOUT_S) as late:
                return late.recv(1) != b""
        except OSError:
            return False

    assert not await asyncio.to_thread(listening)
    assert (await call(first, "roots", "(:roots nil)"))[0] == "return"


async def test_a_message_of_another_shape_is_answered_with_an_error(site: Site, peer: EpcPeer) -> None:
    for method, payload in (("nothing", "nil"), ("roots", "5"), ("outcome", "nil")):
        kind, _, text = await call(peer, method, payload)
        assert kind == "return-error"
        assert method in text
    assert (await call(peer, "stop", "nil"))[0] == "return"


async def test_a_call_returns_the_answer(site: Site, peer: EpcPeer) -> None:
    peer.handlers["proposal-close"] = lambda values: ["x"][:0] if values["id"] == "a" else None
    assert await soon(site.bridge.call(messages.ProposalClose("a", keeps_edits=True))) is None
    peer.handlers["proposal-open"] = lambda values: "no: " + values["path"]
    assert await soon(site.bridge.call(messages.ProposalOpen("i", "s", "c", '/a\n"b\\', "d", "text"))) == 'no: /a\n"b\\'


async def test_calls_before_the_connection_wait_for_it(site: Site) -> None:
    waiting = asyncio.create_task(site.bridge.call(messages.Delivered("early")))
    site.bridge.notify(messages.Serving())
    peer = await site.connect()
    await soon(waiting)
    assert await asyncio.to_thread(peer.wait_for, "delivered") == {"id": "early"}
    assert await asyncio.to_thread(peer.wait_for, "serving") == {}


async def test_no_answer_in_time_is_emacs_busy(site: Site, peer: EpcPeer) -> None:
    peer.handlers["delivered"] = no_answer
    with pytest.raises(EmacsBusyError, match="delivered"):
        await site.bridge.call(messages.Delivered("a"), timeout=0.01)
    # An answer that comes after all disturbs nothing.
    peer.send("(return 1 nil)")
    peer.send("(return 77 nil)")
    await soon(site.bridge.call(messages.Serving()))


async def test_a_call_that_could_not_be_sent_in_time_is_sent_later(site: Site) -> None:
    """Emacs does not read, and the CLI has heard that it will show the review."""
    with socket.create_connection(("127.0.0.1", site.port)) as busy:
        busy.sendall(STOP_FRAME)
        for _ in range(8):
            site.bridge.notify(messages.Notice("x" * 1_000_000))
        with pytest.raises(EmacsBusyError):
            await site.bridge.call(messages.Delivered("the last"), timeout=0.01)
        site.bridge.notify(messages.Serving())

        def read() -> list[bytes]:
            with busy.makefile("rb") as file:
                frames: list[bytes] = []
                while not frames or b"serving" not in frames[-1]:
                    frames.append(file.read(int(file.read(6), 16)))
                return frames

        frames = await soon(asyncio.to_thread(read))
    assert sum(b"the last" in frame for frame in frames) == 1


async def test_a_ping_is_answered_by_the_event_loop(site: Site, peer: EpcPeer) -> None:
    # Not by `to_thread`: the loop stands still.
    peer.send(f'(call 2 ping ("{SECRET}" nil))')
    peer.send(f'(call 3 stop ("{SECRET}" nil))')
    first = peer.next_reply()
    assert (first, await asyncio.to_thread(peer.next_reply)) == (["return", 3, []], ["return", 2, []])
    assert await soon(site.received.get()) == messages.Stop()
    assert site.received.empty()


async def test_an_error_in_emacs_is_told(site: Site, peer: EpcPeer) -> None:
    peer.handlers["delivered"] = no_answer
    for kind in ("return-error", "epc-error"):
        task = asyncio.create_task(site.bridge.call(messages.Delivered("a")))
        await asyncio.to_thread(peer.wait_for, "delivered")
        peer.send(f'({kind} {1 if kind == "return-error" else 2} "kaputt")')
        with pytest.raises(EmacsRefusedError, match="kaputt"):
            await soon(task)


async def test_an_answer_of_another_shape_is_told(site: Site, peer: EpcPeer) -> None:
    peer.handlers["proposal-open"] = lambda _values: 5
    with pytest.raises(EmacsRefusedError, match="proposal-open"):
        await soon(site.bridge.call(messages.ProposalOpen("i", "s", "c", "/a", "d", "text")))


async def test_a_lost_connection_fails_what_waits_and_what_comes(site: Site, peer: EpcPeer) -> None:
    peer.handlers["delivered"] = no_answer
    waiting = [asyncio.create_task(site.bridge.call(messages.Delivered(str(number)))) for number in range(3)]
    await asyncio.to_thread(peer.wait_for, "delivered")
    await asyncio.to_thread(peer.close)
    for task in waiting:
        with pytest.raises(EmacsGoneError):
            await soon(task)
    await soon(site.gone.wait())
    with pytest.raises(EmacsGoneError):
        await soon(site.bridge.call(messages.Serving()))
    site.bridge.notify(messages.Serving())


async def test_a_message_too_large_for_a_frame_fails_alone(site: Site) -> None:
    await site.connect()
    with pytest.raises(EmacsRefusedError, match="too large"):
        await soon(site.bridge.call(messages.Notice("x" * module.MAX_FRAME_BYTES)))
    await soon(site.bridge.call(messages.Serving()))


@pytest.mark.parametrize("size", [1, 5000, 20_000])
async def test_a_message_with_half_a_surrogate_pair_fails_alone(site: Site, size: int) -> None:
    await site.connect()
    text = "\ud800" * size
    with pytest.raises(EmacsRefusedError, match="surrogates"):
        await soon(site.bridge.call(messages.ProposalOpen("i", "s", "c", "/a", "d", text)))
    await soon(site.bridge.call(messages.Serving()))


async def test_a_text_that_cannot_be_spooled_goes_inside_the_call(site: Site, peer: EpcPeer, spool: Spool) -> None:
    spool.remove()
    await soon(site.bridge.call(messages.ProposalOpen("i", "s", "c", "/a", "d", "é" * 100_000)))
    assert peer.calls("proposal-open").get_nowait()["text"] == "é" * 100_000


async def test_a_very_long_text_that_cannot_be_spooled_fails_alone(site: Site, spool: Spool) -> None:
    await site.connect()
    spool.remove()
    with pytest.raises(EmacsRefusedError, match="spool"):
        await soon(site.bridge.call(messages.ProposalOpen("i", "s", "c", "/a", "d", "x" * 10_000_000)))
    await soon(site.bridge.call(messages.Serving()))


async def test_a_text_that_emacs_could_not_spool_comes_in_parts(site: Site, peer: EpcPeer) -> None:
    for part in ("one\n", "naïve "):
        assert (await call(peer, "text-part", f'(:id 7 :text "{part}")'))[0] == "return"
    assert (await call(peer, "outcome", '(:id "p" :outcome accepted :text-parts 7)'))[0] == "return"
    assert await soon(site.received.get()) == messages.ReviewOutcome("p", "one\nnaïve ")
    # They are there once only.
    assert (await call(peer, "outcome", '(:id "p" :outcome accepted :text-parts 7)'))[0] == "return-error"
    assert site.received.empty()


async def test_what_was_said_before_the_end_still_goes_out(
    site: Site, peer: EpcPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LAST_WORDS_S", TIMEOUT_S)
    for number in range(20):
        site.bridge.notify(messages.Delivered(str(number)))
    site.bridge.close()
    assert await ended(peer)
    calls = peer.calls("delivered")
    assert [calls.get_nowait()["id"] for _ in range(20)] == [str(number) for number in range(20)]


async def test_an_emacs_that_does_not_read_blocks_only_the_writer(site: Site) -> None:
    with socket.create_connection(("127.0.0.1", site.port)) as deaf:
        deaf.sendall(STOP_FRAME)
        await soon(site.received.get())
        for _ in range(20):
            site.bridge.notify(messages.Notice("x" * 1_000_000))
        # The loop goes on, and so does the reader.
        deaf.sendall(STOP_FRAME)
        await soon(site.received.get())
        site.bridge.close()
        await soon(site.gone.wait())


async def test_the_secret_is_never_logged(
    site: Site, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    caplog.set_level("DEBUG")
    stranger = await site.peer()
    stranger.send(f'(call 1 {SECRET.replace(" ", "-")} ("{SECRET}x"))')
    assert await ended(stranger)
    peer = await site.connect()
    await call(peer, "roots", f'(:roots "{SECRET}")')
    await soon(site.bridge.call(messages.Serving()))
    written = capfd.readouterr()
    assert SECRET not in caplog.text + written.out + written.err


async def test_an_emacs_that_pings_no_more_is_frozen(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE_S", 0.05)
    peer = await site.connect()
    silence = asyncio.create_task(site.bridge.silence())
    # Before the first ping it is only busy with its start.
    assert (await asyncio.wait([silence], timeout=0.2))[0] == set()
    await call(peer, "ping", "nil")
    await soon(silence)
