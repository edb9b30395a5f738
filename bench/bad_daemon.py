# SPDX-License-Identifier: GPL-3.0-or-later
"""Play a `qwen serve` that sends events which no daemon should, and count how often a chat goes on after one."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import random
import tempfile
from functools import partial
from typing import Any, cast

import anyio

from daemon_emacs import Chat, connected_emacs
from fake_daemon import RECORDED, FakeDaemon, FakeSession, chunk, event, frame
from loopback import Table
from qwen_companion.wire.spool import Spool
from test_robust import damaged, noise

BATCH = 100
"""How many events a session gets."""

HANG_S = 30.0

EVENTS: list[dict[str, Any]] = [found for events in RECORDED["turns"].values() for found in events]

WRONG: tuple[Any, ...] = (
    None, True, -1, 10**30, 1e308, "", "\0", "\ud800", "%s", "x" * 3000, "../..", [], {}, [[]], {"a": []}, "tool_call",
)  # fmt: skip
"""Wrong values for a part of an event."""


def bad_daemon(table: Table, cases: int, chance: random.Random) -> None:
    """Add the row of `cases` events."""
    errors = _Errors()
    logging.getLogger("qwen_companion").addHandler(errors)
    good = asyncio.run(_sent(cases, chance))
    logging.getLogger("qwen_companion").removeHandler(errors)
    table.count("3", "events of a daemon: the chat goes on", good, cases)
    table.add("3", "errors logged after them", str(errors.count), "0")


class _Errors(logging.Handler):
    """Counts the errors that are logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count `record`."""
        self.count += 1


async def _sent(cases: int, chance: random.Random) -> int:
    """Send so many hostile events, each before a good one; return after how many the good one was shown."""
    good = done = 0
    while done < cases:
        with tempfile.TemporaryDirectory() as directory:
            async with FakeDaemon() as daemon, connected_emacs(Spool(directory)) as emacs:
                await emacs.connect(daemon)
                chat = emacs.chats[await emacs.open()]
                session = list(daemon.sessions.values())[-1]
                for _ in range(min(BATCH, cases - done)):
                    done += 1
                    await _send(session, chance)
                    text = f"<{done}>"
                    session.emit(chunk(text))
                    with anyio.move_on_after(HANG_S) as waiting:
                        await emacs.until(partial(_shows, chat, text))
                    if waiting.cancelled_caught:
                        break
                    good += 1
                    if _ended(chat):
                        break
    return good


def _shows(chat: Chat, text: str) -> bool:
    return _ended(chat) or any(text in shown for shown in chat.texts.values())


def _ended(chat: Chat) -> bool:
    """Return whether the daemon has ended the session, as some of its events do."""
    return chat.state is not None and chat.state.state in ("closed", "dead")


async def _send(session: FakeSession, chance: random.Random) -> None:
    """Send a hostile event to the stream of `session`, or have it in what is loaded again."""
    while not session.streams:
        # It is being opened anew.
        await asyncio.sleep(0.001)
    stream, found = session.streams[-1], _changed(copy.deepcopy(chance.choice(EVENTS)), chance)
    # The ids of a stream that lies about them are of no use to itself.
    found.pop("id", None)
    way = chance.random()
    if way < 0.05:
        session.history.append(found)
        stream.send(frame(event("state_resync_required")))
    elif way < 0.6:
        stream.send(b"data: " + json.dumps(found).encode() + b"\n\n")
    else:
        whole = b"event: x\ndata: " + json.dumps(found).encode() + b"\n\n"
        pieces = (
            damaged(chance, whole),
            noise(chance, 200),
            b"data: " + b"[" * 50_000,
            b"data: \xff\xfe\ndata: {}",
            b"retry: 99999999999999\r\rid: \0\n: ping",
            b"data" * 1000,
        )
        stream.send(chance.choice(pieces) + b"\n\n")


def _changed(found: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Return the event `found` with one to three of its parts left out or wrong."""
    for _ in range(chance.randrange(1, 4)):
        place: Any = found
        while place:
            inside = cast("dict[Any, Any]", place)
            key: Any = chance.choice(list(inside) if isinstance(place, dict) else range(len(inside)))
            inner: Any = inside[key]
            if isinstance(inner, (dict, list)) and inner and chance.random() < 0.8:
                place = cast("Any", inner)
                continue
            if chance.random() < 0.3:
                del inside[key]
            else:
                inside[key] = chance.choice(WRONG)
            break
    return found
