# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal's interface to the rest of the backend.  Records are opened once there is something to record or show."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import anyio

from qwen_companion.base.tasks import Tasks, contained
from qwen_companion.conversations.rewinds import RewindWatch
from qwen_companion.domain import ChatWork, CliRewind, KnownSession, Peer, Settings, TurnChange, WaitingProposal
from qwen_companion.doors.events import Event
from qwen_companion.doors.listeners import Report, Subscription, Words
from qwen_companion.journal.agents import MissedReview
from qwen_companion.journal.answers import Summary
from qwen_companion.journal.journal import Journal
from qwen_companion.journal.sites import Site
from qwen_companion.journal.subscriptions import SUBSCRIPTIONS
from qwen_companion.wire import messages
from qwen_companion.wire.journal_requests import answer, note
from qwen_companion.wire.silent_clis import SILENCE_S, SilentClis

_Call = messages.JournalCall | tuple[ChatWork, int]
"""A call of Emacs, or the activity of a chat's agent, with the time of its report, in ms since the epoch."""


class Elsewhere(Protocol):
    """The roots on other machines."""

    @property
    def roots(self) -> Sequence[str]:
        """Return their names in Emacs."""
        ...

    def site(self, name: str) -> Site | None:
        """Return the site of the root `name`, None for a local one."""
        ...

    def named(self, report: Report) -> Report | None:
        """Return `report`, of a remote CLI, with Emacs's names of files; None if it names nothing there."""
        ...


class JournalFront:
    """The interface of the journal, see the top of this file.  Call its methods on the event loop."""

    def __init__(
        self,
        environ: Mapping[str, str],
        tell: Callable[[messages.Notification], None],
        elsewhere: Elsewhere,
        excluded: Callable[[Peer | None, Sequence[str]], Collection[str]] = lambda _peer, _paths: (),
        waiting: Callable[[], Iterable[WaitingProposal]] = tuple,
        missed_review: MissedReview = lambda _session, _path, _is_open: False,
        silence_s: float = SILENCE_S,
    ) -> None:
        """`tell` sends a message to Emacs.

        `excluded` returns the files hidden from a CLI, and is called in a thread.  `waiting` returns the open proposals
        of all CLIs.  `missed_review` returns whether a CLI has changed a file without a wanted review, and is called in
        a thread.
        """
        self._elsewhere = elsewhere
        self._environ = environ
        self._tell = tell
        self._roots_here: tuple[str, ...] = ()
        self._roots: tuple[str, ...] = ()
        self._watching = False
        self._opening = anyio.Lock()
        self._tasks = Tasks()
        self._calls, self._calls_left = anyio.create_memory_object_stream[_Call](math.inf)
        self.journal = Journal(
            environ,
            self._send_turns,
            lambda text: tell(messages.Notice(text)),
            lambda reasons, crowded: tell(messages.Unrecorded(reasons, crowded)),
            elsewhere.site,
            excluded,
            waiting,
            self._send_taken,
            missed_review,
        )
        self.silent = SilentClis(self._opened, lambda: self._records, silence_s)
        self.rewinds = RewindWatch(environ, self._handle_rewind)
        """The parts that listen to hooks, including this one."""

    async def run(self) -> None:
        """Record, report and answer, until cancelled."""
        with self._calls, self._calls_left:
            async with anyio.create_task_group() as group:
                await group.start(self.journal.run)
                group.start_soon(self.silent.run)
                group.start_soon(self.rewinds.run)
                async with self._tasks:
                    async for call in self._calls_left:
                        await contained(self._carry_out, call)

    @property
    def _records(self) -> bool:
        return self.journal.roots.settings.journal

    async def _opened(self) -> Journal:
        """Return the journal, with the records of the roots open."""
        async with self._opening:
            if self._records and self.journal.roots.names != self._roots:
                await self.journal.roots.set_roots(self._roots)
        return self.journal

    def _send_taken(self, taken: Summary) -> None:
        self._tell(messages.RewindTook(TurnChange(taken.turn, tuple(taken.files.values()))))

    def _send_turns(self, turns: Sequence[TurnChange], gone: Sequence[str], reset: bool) -> None:
        self._tell(messages.TurnChanges(tuple(turns), tuple(gone), reset))

    # --- Calls of Emacs ---

    def set_settings(self, settings: Settings) -> None:
        """Set the user's `settings`."""
        before = self._records
        self.journal.roots.set_settings(settings)
        if before != settings.journal:
            self._update_roots_in_use()

    def set_roots(self, roots: Sequence[str]) -> None:
        """Set the open workspace roots."""
        self._roots_here = tuple(roots)
        self.update_roots()

    def update_roots(self) -> None:
        """Note that the remote roots have changed."""
        self._roots = (*self._roots_here, *self._elsewhere.roots)
        self._update_roots_in_use()

    def _update_roots_in_use(self) -> None:
        if self._watching or self.journal.roots.names:
            self._tasks.start(self._opened)
        self.silent.changed()

    def handle(self, call: messages.JournalCall) -> None:
        """Carry out `call` after the earlier ones."""
        self._calls.send_nowait(call)

    async def _carry_out(self, call: _Call) -> None:
        if isinstance(call, tuple):
            if self._records:
                await (await self._opened()).take_chat(*call)
        elif isinstance(call, messages.JournalWatch):
            self._watching = call.on
            self._tasks.start(self._watch)
        elif isinstance(call, messages.JournalNote):
            await note(self.journal, call)
        else:
            # Other calls of its kind do not wait for it.
            self._tasks.start(self._answer, call)

    async def _watch(self) -> None:
        """Report turns to Emacs while the user views them; begin with the recorded ones."""
        if self._watching:
            await self._opened()
        self.journal.telling.watch(self._watching)

    async def _answer(self, call: messages.JournalRequest) -> None:
        self._tell(await answer(self._opened, self._environ, call))

    # --- Other reports of agents ---

    async def prompt_began(
        self, session: KnownSession, conversation: str, prompt: str, since: int, has_ended: bool = False
    ) -> None:
        """Note that the CLI of `session` has begun with `prompt`, see `Journal.prompted`."""
        if self._records:
            await (await self._opened()).prompted(session, conversation, prompt, since, has_ended)

    async def _handle_rewind(self, rewind: CliRewind) -> None:
        if self._records:
            await (await self._opened()).rewinds.take(rewind)

    def take_chat(self, work: ChatWork) -> None:
        """Handle the activity of an agent of `qwen serve`."""
        self.rewinds.take_chat(work)
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._calls.send_nowait((work, int(time.time() * 1000)))

    # --- Hooks ---

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """Return the hooks to which the journal subscribes."""
        return SUBSCRIPTIONS

    def holds(self, event: Event) -> bool:
        """Return whether the CLI has to wait for the journal after `event`."""
        if not self._records:
            return False
        if event.name == "PostToolUse":
            return self.journal.hooks.has_others(event.session_id)
        return event.begins_turn or event.name == "PreToolUse"

    async def hear(self, report: Report) -> Words | None:
        """Handle the report of a hook; return a text for the agent, or None."""
        named = self._elsewhere.named(report) if report.peer.place else report
        return None if named is None or not self._records else await (await self._opened()).hooks.hear(named)

    def ended(self, peer: Peer) -> None:
        """Note that the process of a CLI has ended."""
        self.journal.ended(peer)
