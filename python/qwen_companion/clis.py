# SPDX-License-Identifier: GPL-3.0-or-later
"""The connected CLIs: the parts that send them context follow them, and Emacs and the journal get their states.

Reports are gathered if many CLIs change at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from qwen_companion.conversations.meter import Meter
from qwen_companion.domain import Peer, SessionState
from qwen_companion.doors.hook_watch import HookWatch
from qwen_companion.ide.local_context import LocalContext
from qwen_companion.ide.sessions import SessionListener, Sessions
from qwen_companion.remote.places import Places
from qwen_companion.wire.messages import Notification, SessionChanges
from qwen_companion.wire.silent_clis import SilentClis

FEW_SESSIONS = 10
SESSIONS_S = 0.05
"""Seconds for which changes are gathered if there are more than a few sessions; the first is reported at once."""


class Clis(SessionListener):
    """Follows `sessions`, see the top of this file.  Set the other parts before anything is reported."""

    hook_watch: HookWatch
    meter: Meter
    silent: SilentClis

    def __init__(
        self, sessions: Sessions, here: LocalContext, places: Places, tell: Callable[[Notification], None]
    ) -> None:
        """Begin with the present sessions, which Emacs remembers; `tell` sends it a message.

        CLIs get their context `here`, or at their one of `places`.
        """
        self._sessions = sessions
        self._here = here
        self._places = places
        self._tell = tell
        states = sessions.states()
        for state in states:
            self._place(state)
        self._reported: dict[str, SessionState | None] = {state.session.id: None for state in states}
        self._unreported = dict.fromkeys(self._reported)
        self._gathering: asyncio.TimerHandle | None = None

    def _place(self, state: SessionState) -> None:
        if not self._places.set_session(state):
            self._here.set_session(state)

    # --- What happens to sessions ---

    def session_changed(self, state: SessionState) -> None:
        """See `SessionListener`."""
        self._place(state)
        self.hook_watch.watch(state.session)
        self._report([state.session.id])

    def session_gone(self, session: str) -> None:
        """See `SessionListener`."""
        self._here.drop_session(session)
        self._places.drop_session(session)
        self._report([session])

    def context_sent(self, session: str, context: bytes) -> None:
        """See `SessionListener`."""
        if not self._places.sent(session, context):
            self._here.sent(session, context)

    def hooks_reported(self) -> None:
        """Update the states of CLIs after a hook, or after its consequences."""
        self.hook_watch.take_back()
        self._report(state.session.id for state in self._sessions.states())

    def local_peer(self, session: str) -> Peer | None:
        """Return the process of the connected CLI `session`, if it is local."""
        found = self._sessions.get(session)
        return None if found is None or found.peer is None or found.peer.place else found.peer

    # --- Reports ---

    def _report(self, sessions: Iterable[str]) -> None:
        """Report the current state of `sessions` soon."""
        self._unreported.update(dict.fromkeys(sessions))
        # A CLI that connects changes four times in a moment.
        if self._gathering is None or len(self._reported) <= FEW_SESSIONS:
            self._send_changes()

    def _send_changes(self) -> None:
        """Send Emacs and the journal the sessions that differ from their last report."""
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
        # The journal watches the files of CLIs without hooks.
        self.silent.set_sessions(map(self._places.named_session, changed.values()), gone)
        if changed or gone:
            self._tell(SessionChanges(tuple(changed.values()), gone))
            self._gathering = asyncio.get_running_loop().call_later(SESSIONS_S, self._send_changes)

    def _state_of(self, session: str) -> SessionState | None:
        """Return the state of `session`, None if its CLI has ended or most likely left."""
        state = self._sessions.reported(session)
        if state is None:
            return None
        peer = state.session.peer
        return replace(self.hook_watch.annotated(state), usage=() if peer is None else self.meter.total(peer.pid))
