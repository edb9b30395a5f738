# SPDX-License-Identifier: GPL-3.0-or-later
"""The CLIs that call no hooks: the journal is told of them, as it looks itself at what they change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from qwen_companion.domain import FAMILIES_WITH_HOOKS, KnownSession, SessionState

if TYPE_CHECKING:
    from qwen_companion.journal.journal import Journal

SILENCE_S = 2.0
"""How long after it has connected a CLI is taken for one that calls no hooks: it calls one when it starts."""


class SilentClis:
    """See the top of this file.  All methods are for the event loop."""

    def __init__(
        self,
        load: Callable[[], Awaitable[Journal]],
        loaded: Callable[[], Journal | None],
        records: Callable[[], bool],
        silence_s: float,
    ) -> None:
        """`load` returns the journal, `loaded` the same if it is loaded, and `records` whether it is to record.

        A CLI that has called no hook `silence_s` seconds after it has connected is silent.
        """
        self._load = load
        self._loaded = loaded
        self._records = records
        self._silence_s = silence_s
        self._silent: dict[tuple[int, str], KnownSession] = {}
        """By their processes: one may connect after it got a prompt, as another session."""
        self._gone: list[KnownSession] = []
        """Silent CLIs that have gone before the journal took them for silent."""
        self._prompted_here: set[tuple[int, str]] = set()
        """The processes of those silent CLIs that got a prompt before they connected."""
        self._untold = False
        """Whether the silent CLIs, or their treatment by the journal, have changed since the last report."""
        self._telling = False
        self._silent_told: set[tuple[int, str]] = set()
        self._told = False
        """Whether the journal knows of CLIs that are silent, or may be."""
        self._news = anyio.Event()
        self._tasks: TaskGroup | None = None

    def start(self, tasks: TaskGroup) -> None:
        """Tell the journal in `tasks` from now on."""
        self._tasks = tasks

    def set_sessions(self, changed: Iterable[SessionState], gone: Iterable[str] = ()) -> None:
        """Take the connected CLIs that have `changed`, with their reports, and the ids of those that are `gone`."""
        before = dict(self._silent)
        for identifier in gone:
            for process in [process for process, session in self._silent.items() if session.id == identifier]:
                session = self._silent.pop(process)
                self._prompted_here.discard(process)
                if process not in self._silent_told:
                    self._gone.append(session)
        for state in changed:
            peer = state.session.peer
            if peer is not None and peer.directory is not None and state.state is None:
                self._silent[peer.process] = state.session
            elif peer is not None:
                self._silent.pop(peer.process, None)
        if self._silent.keys() != before.keys():
            self.changed()

    def prompt_sent(self, session: KnownSession, process: tuple[int, str]) -> None:
        """Note that the CLI of `session`, in `process` and not connected, is about to get a prompt."""
        if process not in self._silent:
            self._silent[process] = session
            self._prompted_here.add(process)
            self.changed()

    def changed(self) -> None:
        """Tell the journal, in a moment, which CLIs are silent; once of all that change until then."""
        self._untold = True
        self._news.set()
        if self._tasks is not None and not self._telling:
            self._telling = True
            self._tasks.start_soon(self._tell)

    async def _tell(self) -> None:
        while self._untold:
            self._untold = False
            waited = anyio.CancelScope(deadline=anyio.current_time() + self._silence_s)
            while not waited.cancelled_caught:
                news = self._news = anyio.Event()
                await self._set_silent(self._is_surely_silent)
                waited = anyio.CancelScope(deadline=waited.deadline)
                with waited:
                    await news.wait()
            await self._set_silent(lambda _: True)
        self._telling = False

    def _is_surely_silent(self, process: tuple[int, str]) -> bool:
        # Of a CLI that never calls hooks, or calls none of ours, the first change may come soon.
        peer = self._silent[process].peer
        never_calls = peer is not None and peer.family not in FAMILIES_WITH_HOOKS
        return process in self._silent_told or never_calls or process in self._prompted_here

    async def _set_silent(self, is_silent: Callable[[tuple[int, str]], bool]) -> None:
        """Tell the journal which CLIs are silent, and of the others that they may be."""
        gone, self._gone = self._gone, []
        sessions = dict(self._silent) if self._records() else {}
        told = {process for process in sessions if is_silent(process)}
        silent = [session for process, session in sessions.items() if process in told]
        arriving = [session for process, session in sessions.items() if process not in told]
        journal = self._loaded()
        if gone and journal is not None and self._records():
            # They were silent to the end.
            await journal.set_silent([*silent, *gone], arriving)
        if sessions or self._told:
            self._told = bool(sessions)
            self._silent_told = told
            await (await self._load()).set_silent(silent, arriving)
