# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports of connected CLIs to Emacs and the journal, gathered if many change at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from qwen_companion.domain import SessionState
from qwen_companion.emacs.messages import Notification, SessionChanges

FEW_SESSIONS = 10
SESSIONS_S = 0.05
"""Seconds for which changes are gathered if there are more than a few sessions; the first is reported at once."""


class SessionReports:
    """Reports the sessions that have changed since their last report."""

    def __init__(
        self,
        known: Iterable[str],
        state_of: Callable[[str], SessionState | None],
        record: Callable[[Iterable[SessionState], tuple[str, ...]], None],
        tell: Callable[[Notification], None],
    ) -> None:
        """Begin with the `known` sessions, which Emacs remembers.

        :param state_of: return the state of a session, None if it has ended
        :param record: called with the changed states and the ended sessions when Emacs gets them
        :param tell: send a message to Emacs
        """
        self._state_of = state_of
        self._record = record
        self._tell = tell
        self._reported: dict[str, SessionState | None] = dict.fromkeys(known)
        self._unreported = dict.fromkeys(self._reported)
        self._gathering: asyncio.TimerHandle | None = None

    def report(self, sessions: Iterable[str]) -> None:
        """Report the current state of `sessions` soon."""
        self._unreported.update(dict.fromkeys(sessions))
        # A CLI that connects changes four times in a moment.
        if self._gathering is None or len(self._reported) <= FEW_SESSIONS:
            self._send_changes()

    def _send_changes(self) -> None:
        """Send Emacs the sessions that differ from their last report."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        states = {session: self._state_of(session) for session in self._unreported}
        self._unreported.clear()
        changed = {
            session: state
            for session, state in states.items()
            if state is not None and self._reported.get(session) != state
        }
        gone = tuple(session for session, state in states.items() if state is None and session in self._reported)
        self._reported.update(changed)
        for session in gone:
            del self._reported[session]
        self._record(changed.values(), gone)
        if changed or gone:
            self._tell(SessionChanges(tuple(changed.values()), gone))
            self._gathering = asyncio.get_running_loop().call_later(SESSIONS_S, self._send_changes)
