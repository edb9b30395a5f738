# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the reports that Emacs gets of a real daemon's recorded events, for the tests of the chat: `make reports`.

Each turn and each load of recorded_daemon.json goes through the client's own code, one event at a time, and all that
would cross EPC for it is written to tests/elisp/recorded-reports.eld.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from sexpdata import Symbol, dumps

from fake_daemon import Json, reply, turn
from qwen_companion.daemon.interrupted_turns import Output
from qwen_companion.daemon.messages import DIFF, Change, Permission, ToolChange, ToolText
from qwen_companion.daemon.models import LoadReply, StatusReply, parse, parse_frame
from qwen_companion.daemon.outbox import Outbox
from qwen_companion.daemon.permissions import OPEN
from qwen_companion.daemon.session import DaemonSession
from qwen_companion.daemon.stream import Connected, Frame, ReplayDone, StreamItem
from qwen_companion.wire.messages import Notification
from qwen_companion.wire.spool import Spool

TARGET: Final = Path(__file__).resolve().parents[1] / "elisp/recorded-reports.eld"

HEAD: Final = """\
;;; What a chat is told of recorded turns and loads  -*- mode: lisp-data; lexical-binding: t -*-

;; Made by `make reports' of tests/helpers/recorded_daemon.json, which
;; tests/e2e/record_serve.py records from the real daemon.  Not to be edited.
;; Each entry is (NAME REPORT...), each report (METHOD PAYLOAD) as in EPC.

"""

SESSIONS: Final = (
    ("start", "answer", "write", "ask", "run", "reject", "cancel", "settings", "closed"),
    ("think", "read", "edit", "create", "plan", "agent", "background", "inject", "fail"),
    ("killed",),
    ("died",),
)
"""The turns of each session, in order."""

LOADS: Final = {"load": "status", "load_waiting": "status_waiting", "load_live": "status", "load_disk": "status"}
"""Recorded loads, and the recorded status of each."""

BACK: Final[tuple[StreamItem, ...]] = (Connected(), ReplayDone())


async def _never(_message: Notification) -> None:
    raise NotImplementedError


class Telling:
    """A session as `Conversation` has it, without a daemon: its reports are collected after each step."""

    def __init__(self, session_id: str, client_id: str | None) -> None:
        self.session = DaemonSession(session_id, client_id)
        self._outbox = Outbox(_never)
        self._told = self.session.info
        self._tools: dict[str, ToolChange] = {}

    def load(self, found: LoadReply) -> list[Notification]:
        """Load `found`."""
        self.session, said = self.session.replayed(found)
        outputs = self.session.loaded(found, said)
        self._tools = {item.id: item for item in outputs if isinstance(item, ToolChange)}
        self._outbox.reset(self.session.id, [item for item in outputs if isinstance(item, Change)], None)
        return self._tell(item for item in outputs if not isinstance(item, Change))

    def take(self, *items: StreamItem) -> list[Notification]:
        """Take `items` of the stream."""
        return self._tell([output for item in items for output in self.session.handle(item)])

    def status(self, found: StatusReply) -> list[Notification]:
        """Take the status `found`."""
        return self._tell(self.session.status(found, self.session.permissions.unanswered))

    def _tell(self, outputs: Iterable[Output]) -> list[Notification]:
        asked: list[Permission] = []
        for output in outputs:
            if isinstance(output, Change):
                self._outbox.change(self.session.id, output)
            else:
                self._outbox.queue(output)
            if isinstance(output, ToolChange):
                self._tools[output.id] = output
            elif isinstance(output, Permission) and output.state == OPEN:
                asked.append(output)
        if self._told != self.session.info:
            self._told = self.session.info
            self._outbox.queue(self._told)
        for permission in asked:
            self._tell_changes(permission)
        return self._outbox.drain()

    def _tell_changes(self, permission: Permission) -> None:
        """Tell the texts of the changes that `permission` is about, which a chat asks for at once, in its order."""
        held = self.session.tool(str(permission.tool))
        assert held is not None
        for index in range(len(self._tools[held.id].diffs)):
            self._outbox.queue(ToolText(self.session.id, held.id, DIFF, index, str(held.text(DIFF, index))))


def _session_of(names: Iterable[str]) -> Telling:
    """Return the session of the turns `names`, in which nothing has been said yet, as its first client sees it."""
    events = [event for name in names for event in turn(name)]
    session = next(event["data"]["sessionId"] for event in events if "sessionId" in event["data"])
    client = next((event["originatorClientId"] for event in events if "originatorClientId" in event), None)
    telling = Telling(session, client)
    telling.load(parse(LoadReply, {"sessionId": session, "lastEventId": 0}, "A load"))
    telling.take(*BACK)
    return telling


def _frame(event: Json) -> Frame:
    return Frame(parse_frame(json.dumps(event)), replayed=False)


def _entries() -> Iterator[tuple[str, list[Notification]]]:
    for names in SESSIONS:
        telling = _session_of(names)
        for name in names:
            yield name, [message for event in turn(name) for message in telling.take(_frame(event))]
    for name, status in LOADS.items():
        found = parse(LoadReply, reply(name), "A load")
        telling = Telling(found.session_id, found.client_id)
        told = [*telling.load(found), *telling.take(*BACK)]
        yield name, told + telling.status(parse(StatusReply, reply(status), "A status"))


def reports() -> str:
    """Return the contents of the file."""
    with TemporaryDirectory() as directory:
        spool = Spool(directory)
        entries = ["\n ".join([f'("{name}"', *(_printed(item, spool) for item in told)]) for name, told in _entries()]
        # A long text would go by a file, which nobody has then.
        assert not any(Path(directory).iterdir())
    return HEAD + "(" + ")\n".join(entries) + "))\n"


def _printed(message: Notification, spool: Spool) -> str:
    return dumps([Symbol(message.method), message.payload(spool)])


if __name__ == "__main__":
    TARGET.write_text(reports(), encoding="utf-8")
