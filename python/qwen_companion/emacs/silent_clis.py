# SPDX-License-Identifier: GPL-3.0-or-later
"""The CLIs that call no hooks: the journal is told of them, as it looks itself at what they change."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable

import anyio

from qwen_companion.domain import FAMILIES_WITH_HOOKS, KnownSession, SessionState
from qwen_companion.journal.journal import Journal

SILENCE_S = 2.0
"""How long after it has connected a CLI is taken for one that calls no hooks: it calls one when it starts."""


class SilentClis:
    """See the top of this file.  All methods are for the event loop."""

    def __init__(
        self,
        load: Callable[[], Awaitable[Journal]],
        records: Callable[[], bool],
        silence_s: float,
    ) -> None:
        """`load` returns the journal, and `records` whether it is to record.

        A CLI that has called no hook `silence_s` seconds after it has connected is silent.
        """
        self._load = load
        self._records = records
        self._silence_s = silence_s
        self._clis: dict[tuple[int, str], tuple[KnownSession, float]] = {}
        """By their processes: one may connect after it got a prompt, as another session.

        With each, from when on it is silent, as a time of the event loop.
        """
        self._gone: list[KnownSession] = []
        """CLIs that have gone before the journal took them for silent."""
        self._silent: set[tuple[int, str]] = set()
        """Those that the journal takes for silent."""
        self._knows_any = False
        """Whether the journal knows of CLIs that are silent, or may be."""
        self._change = anyio.Event()

    def set_sessions(self, changed: Iterable[SessionState], gone: Iterable[str] = ()) -> None:
        """Take the connected CLIs that have `changed`, with their reports, and the ids of those that are `gone`."""
        before = set(self._clis)
        for identifier in gone:
            for process in [process for process, (session, _) in self._clis.items() if session.id == identifier]:
                session, _ = self._clis.pop(process)
                if process not in self._silent:
                    self._gone.append(session)
        for state in changed:
            peer = state.session.peer
            if peer is not None and peer.directory is not None and state.state is None:
                # Of a CLI that never calls hooks, the first change may come soon.
                wait = self._silence_s if peer.family in FAMILIES_WITH_HOOKS else 0.0
                self._add(state.session, peer.process, wait)
            elif peer is not None:
                self._clis.pop(peer.process, None)
        if self._clis.keys() != before:
            self.changed()

    def prompt_sent(self, session: KnownSession, process: tuple[int, str]) -> None:
        """Note that the CLI of `session`, in `process` and not connected, is about to get a prompt."""
        if process not in self._clis:
            self._add(session, process, 0.0)
            self.changed()

    def _add(self, session: KnownSession, process: tuple[int, str], wait_s: float) -> None:
        _, moment = self._clis.get(process, (session, anyio.current_time() + wait_s))
        self._clis[process] = session, moment

    def changed(self) -> None:
        """Tell the journal soon which CLIs are silent; once of all that change until then."""
        self._change.set()

    async def run(self) -> None:
        """Tell the journal which CLIs are silent, and of the others that they may be, until cancelled."""
        while True:
            change = self._change = anyio.Event()
            now = anyio.current_time()
            await self._report(now)
            later = (moment for _, moment in self._clis.values() if moment > now)
            with anyio.CancelScope(deadline=min(later, default=math.inf)):
                await change.wait()

    async def _report(self, now: float) -> None:
        clis, gone = (dict(self._clis), self._gone) if self._records() else ({}, [])
        self._gone = []
        silent_processes = {process for process, (_, moment) in clis.items() if moment <= now}
        silent = [session for process, (session, _) in clis.items() if process in silent_processes]
        arriving = [session for process, (session, _) in clis.items() if process not in silent_processes]
        if clis or gone or self._knows_any:
            journal = await self._load()
            if gone:
                # They were silent to the end.
                await journal.set_silent([*silent, *gone], arriving)
            self._knows_any = bool(clis)
            await journal.set_silent(silent, arriving)
        self._silent = silent_processes
