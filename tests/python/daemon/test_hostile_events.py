# SPDX-License-Identifier: GPL-3.0-or-later
"""Every string field of every event of a daemon with text that names no file, or one that nobody may touch."""

from __future__ import annotations

import copy
import itertools
import logging
import os
from collections.abc import Iterator
from typing import Any, cast

import pytest

from daemon_emacs import Chatting, Emacs
from fake_daemon import RECORDED, Json, chunk
from qwen_companion.daemon.messages import NoteChange, Turns
from qwen_companion.daemon.transcript import Transcript

pytestmark = pytest.mark.anyio

HOSTILE = (
    *("/w/a\0b", "\0", "/w/\ud800", "\udcff", "", "a", "~", "~/a", "..", "/proc/self/root/etc/passwd", "/dev/zero"),
    *("/ssh:x:/a", "/w/pipe\n", "%s%n", "\u202e"),
)

LONG = "/a" * 2**19
"""1 MB, with as many directories as can be."""

COUNT = len(HOSTILE) if "FUZZ_SEED" in os.environ else 1
"""How many texts each field gets; in `make fuzz' all of them, which takes 20 s."""

UPDATE = "sessionUpdate"

ENDING = ("session_died", "session_closed", "state_resync_required")
"""Events after which a session is loaded again, by the user or by itself."""


def events() -> Iterator[Json]:
    """Yield recorded events, no two of the same kind."""
    seen: set[tuple[str, ...]] = set()
    for event in (event for turn in RECORDED["turns"].values() for event in turn):
        update = event["data"].get("update", {})
        kind = (event["type"], update.get(UPDATE, ""), update.get("status", ""))
        if kind not in seen and event["type"] not in ENDING:
            seen.add(kind)
            yield event


def places(value: object, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys and indices that lead to each string in `value`."""
    if isinstance(value, str):
        yield before
    inner = cast("dict[Any, Any]", value).items() if isinstance(value, dict) else ()
    for key, part in enumerate(cast("list[Any]", value)) if isinstance(value, list) else inner:
        yield from places(part, (*before, key))


def changed(event: Json, place: tuple[Any, ...], text: str) -> Json:
    """Return `event` with `text` at `place`."""
    result = copy.deepcopy(event)
    inside: Any = result
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = text
    return result


def hostile_events(count: int) -> Iterator[Json]:
    """Yield the events that differ from what a daemon sends in one field: `count` for each, of all texts in turns."""
    texts = itertools.cycle(HOSTILE)
    for event in events():
        for place in places(event):
            if place != ("type",):
                yield from (changed(event, place, text) for text in itertools.islice(texts, count))


def long_events() -> Iterator[Json]:
    """Yield events with a name or a text of 1 MB."""
    for kind in ("agent_message_chunk", "permission_request"):
        event = next(
            found for found in events() if kind in (found["type"], found["data"].get("update", {}).get(UPDATE))
        )
        yield changed(event, list(places(event["data"], ("data",)))[-1], LONG)


async def test_no_text_in_an_event_ends_more_than_that_event(
    emacs: Emacs, chatting: Chatting, caplog: pytest.LogCaptureFixture
) -> None:
    opened, session, chat = chatting
    hostile = (*hostile_events(COUNT), *long_events())
    for event in hostile:
        session.emit(event)
    session.emit(chunk("<after them>"))
    await emacs.until(lambda: "<after them>" in chat.text())
    assert len(hostile) > 100 * COUNT
    assert chat.state is not None
    assert chat.state.state not in ("closed", "dead", "disconnected")
    # And all of them again, as a history.
    await emacs.call("daemon-load", session=opened)
    await emacs.until(lambda: len(chat.resets) == 2 and "<after them>" in chat.text())
    logged = [record for record in caplog.records if record.name.startswith("qwen_companion")]
    assert [record.getMessage() for record in logged if record.levelno >= logging.WARNING] == []


async def test_an_error_in_an_event_ends_only_that_event(
    emacs: Emacs, chatting: Chatting, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, session, chat = chatting

    def fail(*_arguments: object) -> None:
        raise ValueError("embedded null byte")

    monkeypatch.setattr(Transcript, "_user", fail)
    asked = next(found for found in events() if found["data"].get("update", {}).get(UPDATE) == "user_message_chunk")
    session.emit(asked, asked, chunk("<after it>"))
    await emacs.until(lambda: "<after it>" in chat.text())
    await emacs.call("daemon-load", session=opened)
    await emacs.until(lambda: len(chat.resets) == 2 and "<after it>" in chat.text())
    notes = [change for turns in emacs.all(Turns) for change in turns.changes if isinstance(change, NoteChange)]
    assert "unsupported" in {note.note for note in notes}
    assert [record.levelname for record in caplog.records if "failed" in record.getMessage()] == ["ERROR"]
