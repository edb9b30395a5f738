# SPDX-License-Identifier: GPL-3.0-or-later
"""The connected CLIs and the remote places, as the hooks see them, scripted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from qwen_companion.base.sockets import Connection
from qwen_companion.domain import KnownSession, Peer, SessionState
from qwen_companion.doors.files import Files
from qwen_companion.ide.peers import Caller, Callers
from qwen_companion.ide.sessions import Sessions
from qwen_companion.wire.messages import ToolCall, ToolCalled


class FakeSessions(Sessions):
    """The sessions in `connected`."""

    def __init__(self, *connected: SessionState) -> None:
        self.connected = [*connected]

    def states(self) -> tuple[SessionState, ...]:
        return tuple(self.connected)

    def of_process(self, pid: int) -> KnownSession | None:
        found = (state.session for state in self.connected)
        return next((session for session in found if session.peer and session.peer.pid == pid), None)


class FakeCallers(Callers):
    """Callers as `find` finds them, all on this machine."""

    def __init__(self, find: Callable[[Connection], Caller | None]) -> None:
        super().__init__(0, lambda _connection: None)
        self._find = find

    def find(self, connection: Connection) -> Caller | None:
        return self._find(connection)


class FakeToolEmacs:
    """Emacs as the tools see it: each call goes to `answer`."""

    def __init__(self, answer: Callable[[ToolCall], Awaitable[None]]) -> None:
        self._answer = answer

    async def call(self, message: ToolCall, timeout: float | None) -> None:
        assert timeout is None
        await self._answer(message)

    def notify(self, message: ToolCalled) -> None:
        raise AssertionError


class FakePlaces:
    """Remote places, of which there are none."""

    def caller(self, _connection: Connection) -> Caller | None:
        return None

    def files(self, _peer: Peer) -> Files | None:
        raise AssertionError

    def name_of(self, peer: Peer, path: str) -> str:
        return f"{peer.place or ''}{path}"

    async def lay_plan(self, place: str, text: str) -> str:
        raise AssertionError
