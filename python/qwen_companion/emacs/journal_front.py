# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal's interface to the rest of the backend: its modules are imported once there is something to record."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

import anyio
from anyio.abc import TaskGroup

from qwen_companion.domain import (
    ChatWork,
    CliRewind,
    KnownSession,
    Peer,
    Settings,
    Snapshot,
    TurnChange,
    Usage,
    WaitingProposal,
)
from qwen_companion.doors.listeners import Fitting, Report, Subscription, Words
from qwen_companion.emacs import messages
from qwen_companion.emacs.silent_clis import SILENCE_S, SilentClis
from qwen_companion.journal.subscriptions import SUBSCRIPTIONS
from qwen_companion.tasks import contained
from qwen_companion.threads import in_thread
from qwen_companion.transcripts.rewinds import RewindWatch

if TYPE_CHECKING:
    from qwen_companion.doors.events import Event
    from qwen_companion.journal.agents import MissedReview
    from qwen_companion.journal.answers import Summary
    from qwen_companion.journal.journal import Journal
    from qwen_companion.journal.sites import Site


_Call = messages.JournalCall | tuple[ChatWork, int]
"""A call of Emacs, or what the agent of a chat does, with the time when that was told, in ms since the epoch."""


class Elsewhere(Protocol):
    """The roots at other places."""

    @property
    def roots(self) -> Sequence[str]:
        """Return their names in Emacs."""
        ...

    def site(self, name: str) -> Site | None:
        """Return where the root `name` lies, None for one of this machine."""
        ...

    def named(self, report: Report) -> Report | None:
        """Return `report`, of a CLI at a place, with the names that Emacs has; None where it names nothing there."""
        ...


class JournalFront:
    """See the top of this file.  All methods are for the event loop."""

    def __init__(
        self,
        environ: Mapping[str, str],
        tell: Callable[[messages.Notification], None],
        elsewhere: Elsewhere | None = None,
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
        self._missed_review = missed_review
        self._excluded = excluded
        self._waiting = waiting
        self._elsewhere = elsewhere
        self._environ = environ
        self._tell = tell
        self._settings = Settings()
        self._snapshot: Snapshot | None = None
        self._roots_here: tuple[str, ...] = ()
        self._roots: tuple[str, ...] = ()
        self._watching = False
        self._journal: Journal | None = None
        self._loading = anyio.Lock()
        self._tasks: TaskGroup | None = None
        self._calls, self._calls_left = anyio.create_memory_object_stream[_Call](math.inf)
        self._started = anyio.Event()
        self.silent = SilentClis(self._load, lambda: self._settings.journal, silence_s)
        self.rewinds = RewindWatch(environ, self._handle_rewind)
        """Listens to hooks, as this does."""

    async def run(self) -> None:
        """Record, tell and answer, until cancelled."""
        with self._calls, self._calls_left:
            async with anyio.create_task_group() as self._tasks:
                self._started.set()
                self._tasks.start_soon(self.silent.run)
                self._tasks.start_soon(self.rewinds.run)
                async for call in self._calls_left:
                    await contained(self._carry_out, call)

    async def _load(self) -> Journal:
        """Return the journal, which is imported the first time."""
        if self._journal is not None:
            return self._journal
        await self._started.wait()
        async with self._loading:
            if self._journal is None:
                self._journal = await self._begin(cast("TaskGroup", self._tasks))
        return self._journal

    async def _begin(self, tasks: TaskGroup) -> Journal:
        # That imports the journal.
        await in_thread(import_module, "qwen_companion.emacs.journal_requests")
        from qwen_companion.journal.journal import Journal

        journal = Journal(
            self._environ,
            self._send_turns,
            lambda text: self._tell(messages.Notice(text)),
            lambda reasons, crowded: self._tell(messages.Unrecorded(reasons, crowded)),
            lambda name: None if self._elsewhere is None else self._elsewhere.site(name),
            self._excluded,
            self._waiting,
            self._send_taken,
            self._missed_review,
        )
        journal.roots.set_settings(self._settings)
        if self._snapshot is not None:
            journal.roots.set_snapshot(self._snapshot)
        await tasks.start(journal.run)
        await journal.roots.set_roots(self._roots)
        journal.telling.watch(self._watching)
        return journal

    def _send_taken(self, taken: Summary) -> None:
        self._tell(messages.RewindTook(TurnChange(taken.turn, tuple(taken.files.values()))))

    def _send_turns(self, turns: Sequence[TurnChange], gone: Sequence[str], reset: bool) -> None:
        self._tell(messages.TurnChanges(tuple(turns), tuple(gone), reset))

    # --- What Emacs says ---

    def set_settings(self, settings: Settings) -> None:
        """Take the user's `settings`."""
        before, self._settings = self._settings, settings
        if self._journal is not None:
            self._journal.roots.set_settings(settings)
        self._load_known()
        if before.journal != settings.journal:
            self.silent.changed()

    def set_snapshot(self, snapshot: Snapshot) -> None:
        """Take the files that the user looks at."""
        self._snapshot = snapshot
        if self._journal is not None:
            self._journal.roots.set_snapshot(snapshot)

    def set_roots(self, roots: Sequence[str]) -> None:
        """Take the open workspace roots."""
        self._roots_here = tuple(roots)
        self.update_roots()

    def update_roots(self) -> None:
        """Note that there are other roots at other places."""
        self._roots = (*self._roots_here, *(self._elsewhere.roots if self._elsewhere is not None else ()))
        if self._journal is not None and self._tasks is not None:
            self._tasks.start_soon(contained, self._journal.roots.set_roots, self._roots)
        self._load_known()
        self.silent.changed()

    def _load_known(self) -> None:
        """Load the journal where a root has a record: it may have turns that go on, or that the user asks for."""
        if self._journal is None and self._settings.journal and self._tasks is not None and self._watching:
            self._tasks.start_soon(contained, self._load_if_recorded, self._roots)

    async def _load_if_recorded(self, roots: Sequence[str]) -> bool:
        found = await in_thread(_any_is_recorded, roots, self._environ)
        if found:
            await self._load()
        return found

    async def _begin_watch(self, roots: Sequence[str]) -> None:
        if not (self._settings.journal and await self._load_if_recorded(roots)) and self._journal is None:
            # Nothing has been recorded yet.
            self._tell(messages.TurnChanges((), reset=True))

    def handle(self, call: messages.JournalCall) -> None:
        """Carry out `call` after the earlier ones."""
        self._calls.send_nowait(call)

    async def _carry_out(self, call: _Call) -> None:
        if isinstance(call, tuple):
            if self._settings.journal:
                await (await self._load()).take_chat(*call)
        elif isinstance(call, messages.JournalWatch):
            self._watching = call.on
            if self._journal is not None:
                self._journal.telling.watch(call.on)
            elif call.on and self._tasks is not None:
                self._tasks.start_soon(contained, self._begin_watch, self._roots)
        elif isinstance(call, messages.JournalWrote | messages.JournalSeen | messages.JournalRewound):
            if self._journal is not None:
                await self._answer(call)
        elif self._tasks is not None:
            # The others of its kind do not wait for it.
            self._tasks.start_soon(contained, self._answer, call)

    async def _answer(self, call: messages.JournalRequest) -> None:
        if self._journal is None:
            await in_thread(import_module, "qwen_companion.emacs.journal_requests")
        from qwen_companion.emacs.journal_requests import answer

        reply = await answer(self._load, self._environ, call)
        if reply is not None:
            self._tell(reply)

    # --- What else tells of agents ---

    async def prompt_began(
        self, session: KnownSession, conversation: str, prompt: str, since: int, has_ended: bool = False
    ) -> None:
        """Note that the CLI of `session` has begun with `prompt`, see `Journal.prompted`."""
        if self._settings.journal:
            await (await self._load()).prompted(session, conversation, prompt, since, has_ended)

    async def _handle_rewind(self, rewind: CliRewind) -> None:
        if self._settings.journal:
            await (await self._load()).rewinds.take(rewind)

    def take_chat(self, work: ChatWork) -> None:
        """Take what an agent of `qwen serve` is doing."""
        self.rewinds.take_chat(work)
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._calls.send_nowait((work, int(time.time() * 1000)))

    def spent(self, session: str, start: int, usage: Sequence[Usage]) -> None:
        """Take what the turn of `session` that began at `start`, in ms since the epoch, has used so far."""
        if self._journal is not None:
            self._journal.spent(session, start, usage)

    async def news_for_chat(self, session: str, directory: str, attached: Sequence[str]) -> Fitting | None:
        """See `Journal.news_for_chat`."""
        return None if self._journal is None else await self._journal.news_for_chat(session, directory, attached)

    # --- What hooks say ---

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """Return the hooks that the journal hears of."""
        return SUBSCRIPTIONS

    def holds(self, event: Event) -> bool:
        """Return whether the CLI has to wait for the journal before it goes on after `event`."""
        if not self._settings.journal:
            return False
        if event.name == "PostToolUse":
            return self._journal is not None and self._journal.hooks.has_others(event.session_id)
        return event.begins_turn or event.name == "PreToolUse"

    async def hear(self, report: Report) -> Words | None:
        """Handle the report of a hook; return a text for the agent, or None."""
        if not self._settings.journal:
            return None
        named = self._elsewhere.named(report) if report.peer.place and self._elsewhere is not None else report
        return None if named is None else await (await self._load()).hooks.hear(named)

    def ended(self, peer: Peer) -> None:
        """Note that the process of a CLI has ended."""
        if self._journal is not None:
            self._journal.ended(peer)


def _any_is_recorded(roots: Sequence[str], environ: Mapping[str, str]) -> bool:
    from qwen_companion.journal.worktrees import any_is_recorded

    return any_is_recorded(roots, environ)
