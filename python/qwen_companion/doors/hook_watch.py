# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the CLIs that should call their hooks and do not, with the reason."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import anyio
import psutil

from qwen_companion.base.processes import start_of, started_before
from qwen_companion.base.tasks import Tasks
from qwen_companion.base.threads import in_thread
from qwen_companion.domain import FAMILIES_WITH_HOOKS, CliState, KnownSession, SessionState
from qwen_companion.doors.door_settings import OPEN, covers
from qwen_companion.doors.layers import SettingsLayers
from qwen_companion.doors.states import States
from qwen_companion.doors.user_settings import VARIABLE, version_numbers, why_hooks_are_off
from qwen_companion.ide.tools import Editor

DELAYS_S = (5.0, 60.0)
"""Seconds from the connection of a CLI to the report that it calls no hooks: with a known reason, and without.

A CLI with hooks calls one when it starts, which may be late on a busy machine.
"""

_UNEXPLAINED = "no setting tells why"

_START_HOOK_SINCE = (0, 21)
"""The first version of Qwen Code known to call a hook when it starts.  0.15 does so with the first prompt."""


class HookWatch:
    """Watches whether CLIs call their hooks, while `run` runs.  Call its methods on the event loop."""

    def __init__(
        self,
        states: States,
        layers: SettingsLayers,
        editor: Editor,
        known: Sequence[SessionState],
        changed: Callable[[], None],
        delays_s: tuple[float, float] = DELAYS_S,
    ) -> None:
        """`known` has the sessions of an earlier process; `changed` is called when `annotated` has another result."""
        self._states = states
        self._layers = layers
        self._editor = editor
        self._changed = changed
        self._delays_s = delays_s
        # The sessions that exist already have called their first hook before.
        self._watched = {item.session.id for item in known}
        self._silent = {item.session.id: (item.session, item.no_hooks) for item in known if item.no_hooks}
        """The sessions that should call hooks and do not, with the reason, by id."""
        self._started = start_of(os.getpid()) or ""
        self._tasks = Tasks()

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._tasks.run()

    def annotated(self, state: SessionState) -> SessionState:
        """Return `state` with the reports of the hooks."""
        reported = self._state(state.session)
        silent = None if reported else self._silent.get(state.session.id)
        return replace(state, state=reported, no_hooks=silent and silent[1])

    def _state(self, session: KnownSession) -> CliState | None:
        return self._states.get(session.peer.pid) if session.peer else None

    def watch(self, session: KnownSession) -> None:
        """Watch whether `session` calls its hooks, if it is new and its process is known."""
        if session.peer is not None and session.id not in self._watched:
            self._watched.add(session.id)
            if self._has_hooks(session):
                self._tasks.start(self._watch, session)

    async def _watch(self, session: KnownSession) -> None:
        explained_s, unexplained_s = self._delays_s
        await anyio.sleep(explained_s)
        reason = await self._silence(session)
        if reason == _UNEXPLAINED:
            await anyio.sleep(unexplained_s - explained_s)
            reason = await self._silence(session)
        if reason is not None:
            self._silent[session.id] = session, reason
            self._editor.warn(
                f"{session.label} calls no hooks ({reason}): edits about which it does not ask are not reviewed"
            )
            self._changed()

    async def _silence(self, session: KnownSession) -> str | None:
        """Return the reason why the CLI of `session` has called no hook; None if it has, or need not."""
        if self._state(session) is not None:
            return None
        reason = await in_thread(self._why_silent, session)
        return reason if self._state(session) is None else None

    def take_back(self) -> None:
        """Withdraw the warning about each CLI that now calls hooks."""
        for session, _ in list(self._silent.values()):
            if self._state(session) is not None:
                del self._silent[session.id]
                self._editor.warn(f"{session.label} calls its hooks after all")

    def _has_hooks(self, session: KnownSession) -> bool:
        """Return whether `session` must have called a hook: its CLI has started after us, and does so at its start."""
        peer = session.peer
        # A CLI that is older than this process has called its first hook before.
        return (
            peer is not None
            and peer.place is None
            and peer.family in FAMILIES_WITH_HOOKS
            and version_numbers(session.version) >= _START_HOOK_SINCE
            and not started_before(peer.started, self._started)
        )

    def missed_review(self, session: KnownSession, is_open: bool) -> bool:
        """Return whether a change by `session` that no hook announced should have been reviewed.  Blocks on disk I/O.

        `is_open` says whether a buffer visits the file.
        """
        scope = self._layers.settings.reviewed
        if scope is None or (scope == OPEN and not is_open):
            return False
        if (state := self._state(session)) is not None:
            # If the command gets no answer, the terminal asks; an HTTP hook lets the edit run.
            return not self._layers.guards and covers(scope, state.mode)
        return session.id in self._silent or (self._has_hooks(session) and self._why_silent(session) is not None)

    def _why_silent(self, session: KnownSession) -> str | None:
        """Return the reason why the CLI of `session` calls no hooks; None if it need not."""
        peer = session.peer
        if peer is None:
            return None
        try:
            process = psutil.Process(peer.pid)
            if process.environ().get(VARIABLE) != self._layers.terminals.path:
                return None
            options = [argument for argument in process.cmdline() if argument in ("--bare", "--safe-mode")]
        except (psutil.Error, OSError):
            return None
        if options:
            return f"it was started with {options[0]}"
        environ, version = self._layers.environ, session.version
        found = why_hooks_are_off(peer.directory, environ, version) if peer.directory else None
        return found or _UNEXPLAINED
