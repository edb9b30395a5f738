# SPDX-License-Identifier: GPL-3.0-or-later
"""Report the CLIs that call no hooks to the journal, which attributes their changes by watching the disk."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable

import anyio

from qwen_companion.domain import FAMILIES_WITH_HOOKS, KnownSession, SessionState
from qwen_companion.journal.journal import Journal

SILENCE_S = 2.0
"""Seconds after its connection at which a CLI without hook calls counts as silent: others call one at their start."""


class SilentClis:
    """The CLIs that call no hooks.  Call its methods on the event loop."""

    def __init__(
        self,
        load: Callable[[], Awaitable[Journal]],
        records: Callable[[], bool],
        silence_s: float,
    ) -> None:
        """`load` returns the journal, and `records` whether it should record.

        A CLI that has called no hook `silence_s` seconds after its connection is silent.
        """
        self._load = load
        self._records = records
        self._silence_s = silence_s
        self._clis: dict[tuple[int, str], tuple[KnownSession, float]] = {}
        """By process: a CLI may connect after it received a prompt, as another session.

        Each has the time of the event loop from which it is silent.
        """
        self._gone: list[KnownSession] = []
        """CLIs that have ended before they were reported as silent."""
        self._silent: set[tuple[int, str]] = set()
        """The processes of the CLIs that were reported as silent."""
        self._knows_any = False
        """Whether the journal was sent any CLIs, silent or possibly silent."""
        self._change = anyio.Event()

    def set_sessions(self, changed: Iterable[SessionState], gone: Iterable[str] = ()) -> None:
        """Update the connected CLIs: `changed` have new reports, `gone` are the ids of those that have ended."""
        before = set(self._clis)
        for identifier in gone:
            for process in [process for process, (session, _) in self._clis.items() if session.id == identifier]:
                session, _ = self._clis.pop(process)
                if process not in self._silent:
                    self._gone.append(session)
        for state in changed:
            peer = state.session.peer
            if peer is not None and peer.directory is not None and state.state is None:
                # The first change of a CLI that never calls hooks may come soon.
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
        """Report the silent CLIs soon; changes until then are reported together."""
        self._change.set()

    async def run(self) -> None:
        """Report the silent CLIs, and those that may be silent, until cancelled."""
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
