# SPDX-License-Identifier: GPL-3.0-or-later
"""Gather messages to Emacs for a moment, so that a stream of words becomes a few messages.

Only messages of one session keep their order.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from qwen_companion.base.errors import EmacsGoneError, EmacsUnavailableError
from qwen_companion.daemon.messages import Change, Reset, SessionInfo, TextChange, ToolChange, Turns
from qwen_companion.wire.messages import Notification

_log = logging.getLogger(__name__)

GATHER_S = 0.04
"""Seconds to gather."""

BATCH_WEIGHT = 32 * 1024
"""Approximate size of a message in characters; a text too long for a message travels in a file."""

BATCH_CHANGES = 16
"""Most changes in a message: more would block Emacs for over 5 ms in a long conversation."""


@dataclass
class _Run:
    """Consecutive changes of one session."""

    session: str
    changes: list[Change] = field(default_factory=list[Change])


class Outbox:
    """Filled on the event loop, emptied by `run`."""

    def __init__(
        self, send: Callable[[Notification], Awaitable[None]], pause: Callable[[float], Awaitable[None]] = anyio.sleep
    ) -> None:
        """`send` sends a message to Emacs and waits for its answer; `pause` waits for some seconds."""
        self._send = send
        self._pause = pause
        self._items: list[Notification | _Run] = []
        self._open: dict[str, _Run] = {}
        self._filled = anyio.Event()

    def change(self, session: str, change: Change) -> None:
        """Queue `change`, a step of the conversation of `session`."""
        run = self._open.get(session)
        if run is None:
            run = self._open[session] = _Run(session)
            self._items.append(run)
        run.changes.append(change)
        self._filled.set()

    def queue(self, message: Notification) -> None:
        """Queue `message`, after all changes before it."""
        if isinstance(message, SessionInfo):
            # Only the newest one matters.
            self._items = [
                item for item in self._items if not (isinstance(item, SessionInfo) and item.session == message.session)
            ]
        self._open.clear()
        self._items.append(message)
        self._filled.set()

    def reset(self, session: str, changes: Iterable[Change], text: str | None) -> None:
        """Queue `changes` as the whole of `session`, because of `text`."""
        self._items = [item for item in self._items if not (isinstance(item, _Run) and item.session == session)]
        batches = list(_batches(session, _joined(changes)))
        self.queue(Reset(session, len(batches), text))
        self._items += batches

    def drain(self) -> list[Notification]:
        """Remove and return all queued messages."""
        items, self._items = self._items, []
        self._open.clear()
        self._filled = anyio.Event()
        messages: list[Notification] = []
        for item in items:
            if isinstance(item, _Run):
                messages += _batches(item.session, _joined(item.changes))
            else:
                messages.append(item)
        return messages

    async def run(self) -> None:
        """Send messages until cancelled or Emacs is gone.  A slow Emacs gets fewer and larger ones."""
        while True:
            await self._filled.wait()
            await self._pause(GATHER_S)
            for message in self.drain():
                await checkpoint_if_cancelled()
                try:
                    await self._send(message)
                except EmacsGoneError:
                    return
                except EmacsUnavailableError as error:
                    _log.warning("%s: %s", message.method, error)


def _joined(changes: Iterable[Change]) -> list[Change]:
    """Return `changes` with adjacent texts joined and, of each tool, the last state at its first position."""
    result: list[Change] = []
    pieces: list[str] = []
    tools: dict[str, int] = {}

    def join() -> None:
        if len(pieces) > 1:
            result[-1] = replace(result[-1], text="".join(pieces))
        pieces.clear()

    for change in changes:
        if pieces and isinstance(change, TextChange) and isinstance(result[-1], TextChange):
            if result[-1].joins(change):
                pieces.append(change.text)
                continue
        join()
        if isinstance(change, ToolChange):
            if change.id in tools:
                result[tools[change.id]] = change
                continue
            tools[change.id] = len(result)
        elif isinstance(change, TextChange):
            pieces.append(change.text)
        result.append(change)
    join()
    return result


def _batches(session: str, changes: Sequence[Change]) -> Iterable[Turns]:
    """Split `changes` into batches that fit in a frame and that Emacs shows in a moment."""
    batch: list[Change] = []
    weight = 0
    for change in chain.from_iterable(map(_pieces, changes)):
        if batch and (weight + change.weight > BATCH_WEIGHT or len(batch) == BATCH_CHANGES):
            yield Turns(session, tuple(batch))
            batch, weight = [], 0
        batch.append(change)
        weight += change.weight
    if batch:
        yield Turns(session, tuple(batch))


def _pieces(change: Change) -> Iterable[Change]:
    """Yield `change`, split if it is a long text."""
    if not isinstance(change, TextChange) or change.background or change.weight <= BATCH_WEIGHT:
        return [change]
    size = BATCH_WEIGHT // 2
    return [replace(change, text=change.text[start : start + size]) for start in range(0, len(change.text), size)]
