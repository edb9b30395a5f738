# SPDX-License-Identifier: GPL-3.0-or-later
"""The work on the record of one root: who works there, what was changed, and jobs done one after the other."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ParamSpec, TypeVar

import anyio

from qwen_companion.base.local_ids import local_id
from qwen_companion.base.threads import in_thread
from qwen_companion.domain import KnownSession, Peer, Usage
from qwen_companion.files.versions import Loaded, TooLargeError
from qwen_companion.journal.activity import Activity, Probe
from qwen_companion.journal.answers import Summary
from qwen_companion.journal.baselines import FAILURES
from qwen_companion.journal.database import StoreError
from qwen_companion.journal.record import Cause, Chooser, Record
from qwen_companion.journal.sites import Watch
from qwen_companion.journal.store import CHAT, DISK, HOOKS, TurnRow
from qwen_companion.journal.subscriptions import SHELL_TOOL
from qwen_companion.journal.witness import Witness

P = ParamSpec("P")
T = TypeVar("T")

PAST_S = 60.0
"""Seconds for which workers that have ended are remembered."""

_SHARED = 'what this or another agent has changed is in a turn "One of: ..."'
"""The note of a turn whose changes may be in a shared turn instead."""

MOST_OF_PROMPT = 10_000
"""Most characters of a prompt that are recorded."""


@dataclass(frozen=True)
class Call:
    """A running tool of `session`; `path` is the file that it writes, None if that is unknown, or not below the root.

    It began at the time `begin`, in seconds since the epoch.
    """

    session: str
    tool: str
    agent: str
    path: bytes | None
    begin: float = -math.inf

    @property
    def is_command(self) -> bool:
        """Return whether it may write any file."""
        return self.tool == SHELL_TOOL


@dataclass
class Running:
    """A running turn.  `ready` is set after the first scan; then `number` is that of the record."""

    row: TurnRow
    ready: anyio.Event = field(default_factory=anyio.Event)
    number: int | None = None
    begin: float = -math.inf
    """When it began, in seconds since the epoch."""
    waited: bool = False
    """Whether a tool has waited for `ready` as long as one may."""
    end: int | None = None
    """When it ended, in ms since the epoch."""
    prompt: str | None = None
    """The id of its prompt, if the CLI marks the processes of its commands with that."""
    left: list[int] = field(default_factory=list[int])
    """Processes that its commands have left behind."""
    told: set[bytes] = field(default_factory=set[bytes])
    """Files about which its model was told that another agent works on them."""


@dataclass(frozen=True)
class Worker:
    """Somebody who may write, for `session`, by `tool`, from `begin` to `end`, in seconds since the epoch.

    With a `probe`, only while that is active.
    """

    session: str
    tool: str
    running: Running | None
    probe: Probe | None = None
    agent: str = ""
    runs_tool: bool = False
    cli: SilentCli | None = None
    serves_chats: bool = False
    """Whether it may be an agent of a daemon, which reports its work in a chat."""
    is_lost: bool = False
    """Whether it may have a tool running that is not reported before the daemon answers again."""
    is_resumed: bool = False
    """Whether its turn was running while no backend received its hooks."""
    begin: float = -math.inf
    end: float = math.inf

    @property
    def writes_by_itself(self) -> bool:
        """Return whether it may write without a hook that reports the file."""
        return self.runs_tool or self.cli is not None or self.is_lost

    @property
    def number(self) -> int | None:
        """Return the number of its turn, None before that has begun."""
        return None if self.running is None else self.running.number


@dataclass
class SilentCli:
    """A CLI that calls no hooks.  `turn` is its last turn, in which it wrote last at the time `written`.

    Changes after `since`, in seconds since the epoch, may be its own; those before it was `seen` are more likely
    another's.
    """

    session: KnownSession
    peer: Peer
    since: float
    seen: float
    root: Root | None = None
    turn: TurnRow | None = None
    written: int = 0
    done: int | None = None
    """The bytes that its process had written in total at the last sample."""
    prompt: str = ""
    """A prompt that it has received from outside of its terminal, until the turn for that begins."""
    conversation: str = ""
    """The id of its conversation, once known from such a prompt."""


class Root:
    """The work on the record of one root: jobs in a thread, one after the other."""

    def __init__(self, record: Record, activity: Activity, warn: Callable[[str], None]) -> None:
        """Work on `record`; `warn` shows the user a message."""
        self.record = record
        self._warn = warn
        self.watch: Watch | None = None
        self.write_notes: Callable[[], None] | None = None
        """Writes notes on the user's new commits; None if none are wanted."""
        self.witness = Witness(activity)
        self.stirred = anyio.Event()
        self.news: float | None = None
        """When the last event of the disk since the last scan came, in seconds since the epoch."""
        self.looked = -math.inf
        """When the last scan of the files began, in seconds since the epoch."""
        self.failed = False
        """Whether the last scan of the files could not be recorded; it is repeated."""
        self.running: dict[str, Running] = {}
        self.left: list[Running] = []
        """Turns that have ended and left running processes."""
        self.past: list[Worker] = []
        """Commands, turns and CLIs that have ended recently: a scan may still find their writes."""
        self.calls: dict[str, Call] = {}
        self.reserved: Counter[bytes] = Counter()
        self._shared: dict[frozenset[int], int] = {}
        """Turns of several agents, by those of each."""
        self.told: dict[int, Summary] = {}
        self.changed: set[int] = set()
        self.jobs, self.jobs_left = anyio.create_memory_object_stream[Callable[[], object]](math.inf)

    def do(self, job: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> None:
        """Schedule the job `job(*arguments, **named)` after those before it."""
        self.jobs.send_nowait(partial(job, *arguments, **named))

    async def done(self, job: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | None:
        """Wait until the job `job(*arguments, **named)` is done; return its result, None if it has failed."""
        results: list[T] = []
        self.do(lambda: results.append(job(*arguments, **named)))
        await self.done_so_far()
        return results[-1] if results else None

    async def done_so_far(self) -> None:
        """Wait until the current jobs are done."""
        done = anyio.Event()

        def tell() -> None:
            # The event loop may have ended.
            with suppress(RuntimeError):
                anyio.from_thread.run_sync(done.set)

        self.do(tell)
        await done.wait()

    def is_reserved(self, path: bytes) -> bool:
        """Return whether another part will report the author of a write to `path`."""
        return path in self.reserved

    def has_call_of(self, session: str) -> bool:
        """Return whether a tool of `session` is running."""
        return any(call.session == session for call in self.calls.values())

    def remember(self, worker: Worker) -> None:
        """Remember `worker`, who has ended, for a while."""
        now = time.time()
        self.past = [*(each for each in self.past if each.end > now - PAST_S), worker]

    def begins(self, session: str, begin: float) -> None:
        """Note that a turn of `session` begins at `begin`: no later change belongs to an earlier turn."""
        self.past = [
            replace(each, end=min(each.end, begin)) if each.session == session and each.cli is None else each
            for each in self.past
        ]

    def others_at(self, path: bytes, session: str) -> list[Running]:
        """Return the running turns of other sessions in which `path` was changed.  Blocks on disk I/O."""
        others = [running for key, running in self.running.items() if key != session and running.number is not None]
        return [each for each in others if path in self.record.store.paths([each.number or 0])]

    # --- Recording, by jobs ---

    def keep(
        self,
        path: bytes,
        found: Loaded | TooLargeError | OSError | None,
        cause: Cause | Chooser,
    ) -> None:
        """Record that `cause` wrote `found` to `path`."""
        if isinstance(found, TooLargeError):
            if isinstance(cause, Cause) and cause.turn is not None:
                self.record.store.add_note(cause.turn, f"not recorded: {os.fsdecode(path)}: larger than 64 MiB")
        elif not isinstance(found, OSError) and self.record.observe(path, found, cause) and isinstance(cause, Cause):
            self.changed.update(filter(None, [cause.turn]))

    def note(self, running: Running, text: str) -> None:
        """Show the user `text` with the turn `running`, if that has begun."""
        if running.number is not None:
            self.record.store.add_note(running.number, text)

    def claim(self, path: bytes, loaded: Loaded | None) -> None:
        """Record that Emacs has written `loaded` to `path`."""
        self.record.claim(path, loaded)
        self.changed.update(running.number for running in self.running.values() if running.number is not None)

    def mark(self, number: int, path: str | None, hunks: Sequence[str], seen: bool) -> None:
        """Record what the user has `seen` of the turn `number`, see `Answers.mark`."""
        self.record.answers.mark(number, path, hunks, seen)
        self.changed.add(number)

    def prune(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Forget those turns of `numbers` that have ended; return the sizes of the others, see `Store`."""
        sizes = self.record.store.sizes()
        gone = [number for number, _ in sizes if number in numbers]
        if gone:
            self.record.store.drop(gone)
            self.changed.update(gone)
        return [(number, size) for number, size in sizes if number not in gone]

    def undo(self, undone: int, label: str, paths: Sequence[bytes], bring_back: bool) -> None:
        """Record that the user has undone a part of the turn `undone` in `paths`, or restored it."""
        turn = self.record.undo(undone, shortened(label), paths, now_ms(), bring_back)
        self.changed.add(undone)
        if turn is not None:
            # Before a restoration, an undo that Emacs may not have known of.
            self.changed.update(number for number in (turn.id, turn.undone) if number is not None)

    def _turns_of(self, conversation: str, since: int, until: float = math.inf) -> list[TurnRow]:
        """Return the turns of `conversation` that began from `since` on and before `until`, in ms since the epoch."""
        return [
            turn
            for turn in self.record.store.turns()
            if local_id("session", turn.session) == conversation
            and turn.source in (HOOKS, CHAT)
            and since <= turn.start < until
        ]

    def rewinding(self, conversation: str, since: int) -> None:
        """Record the start of a rewind of `conversation` to just before its turn that began at `since`."""
        for turn in self._turns_of(conversation, since)[:1]:
            self.record.store.note_rewinding(turn.id)

    def rewound(self, conversation: str, since: int, copy: str | None, until: float = math.inf) -> list[TurnRow]:
        """Record that turns of `conversation`, see `_turns_of`, are no longer part of it; return them."""
        store = self.record.store
        rewound = self._turns_of(conversation, since, until)
        for session in {turn.session for turn in rewound if not store.rewound(turn.id)[0]}:
            self.record.unseen.forget(session, since)
        turns = [turn.id for turn in rewound]
        store.note_rewound(turns, copy)
        self.changed.update(turns)
        return rewound

    def merge(self, of: TurnRow | None, label: str, paths: Sequence[bytes]) -> None:
        """Record that the user has merged parts of the turn `of`, one in a worktree, or of none, into `paths`."""
        turn = self.record.merge(of, shortened(label), paths, now_ms())
        if turn is not None:
            self.changed.add(turn.id)

    def spent(self, session: str, start: int, usage: Sequence[Usage]) -> None:
        """Record the tokens that the turn of `session` begun at `start`, in ms since the epoch, has used so far."""
        self.changed.update(self.record.store.set_usage(session, start, usage))

    def count(self, session: str, used: Sequence[Usage]) -> None:
        """Record that the running turn of `session` has `used` more tokens."""
        running = self.running.get(session)

        def count() -> None:
            if running is not None and running.number is not None:
                self.record.store.add_usage(running.number, used)
                self.changed.add(running.number)

        if used:
            self.do(count)

    def begin(self, running: Running) -> int:
        """Record that the turn `running` has begun, unless that is done; return its number.

        A turn whose changes have all been attributed to others is no longer recorded, and begins again.
        """
        if running.number is None or not self.record.store.has(running.number, running.row):
            running.number = self.record.store.begin(running.row).id
            if running.end is not None:
                self.record.store.end(running.number, running.end)
        return running.number

    def shared(self, turns: Collection[int]) -> int:
        """Return the turn for changes that were made in one of `turns`, nobody knows which; add a note to these."""
        rows = [row for number in sorted(turns) if (row := self.record.store.turn(number)) is not None]
        for row in rows:
            self.record.store.add_note(row.id, _SHARED)
        clients = " or ".join(dict.fromkeys(row.client for row in rows))
        prompts = " / ".join(shortened(row.prompt, 80 // len(rows)) or row.client for row in rows)
        start = max(row.start for row in rows)
        number = self._shared.get(frozenset(turns), 0)
        if self.record.store.turn(number) is None:
            new = TurnRow(0, "", clients, DISK, f"One of: {prompts}", start, now_ms(), None, (), None, None)
            number = self._shared[frozenset(turns)] = self.record.store.begin(new).id
        self.record.store.end(number, now_ms())
        self.changed.add(number)
        return number

    def withdraw_shared(self) -> None:
        """Remove the note of `shared` from turns without a shared turn; forget those that have ended empty."""
        store = self.record.store
        left = {turns: shared for turns, shared in self._shared.items() if store.turn(shared) is not None}
        freed = {number for turns in self._shared.keys() - left.keys() for number in turns}.difference(*left)
        self._shared = left
        self.changed |= freed
        for number in freed:
            store.remove_note(number, _SHARED)
            if (row := store.turn(number)) is not None and row.end is not None:
                self.record.end(number, row.end)

    def end(self, running: Running) -> None:
        """Record that the turn `running` has ended."""
        if running.number is not None and running.end is not None and not self.finish(running.number, running.end):
            # Processes that it has left behind may begin it again.
            running.number = None

    def finish(self, number: int, time: int) -> bool:
        """Record that the turn `number` ended at `time`, in ms since the epoch; return whether it is kept."""
        is_kept = self.record.end(number, time)
        self.changed.add(number)
        self.forget_old()
        self.record.answers.origins.trace_long(number)
        if self.write_notes is not None:
            self.write_notes()
        return is_kept

    def forget_old(self) -> None:
        """Forget turns that ended too long ago."""
        self.changed.update(self.record.store.forget_old(now_ms()))

    def begun_anew(self, news: str) -> None:
        """Note that the record has begun anew, and show the user the `news`."""
        for running in self.running.values():
            running.number = None
        self._shared.clear()
        self.changed.update(self.told)
        self._warn(news)

    def summaries(self, numbers: set[int] | None) -> dict[int, Summary]:
        """Return the turns of `numbers`, or with None all, that have changes."""
        try:
            wanted = self.record.answers.turns() if numbers is None else sorted(numbers)
            return {number: found for number in wanted if (found := self.record.answers.summary(number)) is not None}
        except FAILURES as error:
            # A job reports this, and begins anew if the record is damaged.
            if isinstance(error, StoreError):
                anyio.from_thread.run_sync(self.do, partial(_fail, error))
            return {}

    # --- Files that others record ---

    async def read(self, path: bytes) -> Loaded | TooLargeError | OSError | None:
        """Return the file at `path`, or the reason why it cannot be read."""
        try:
            return await in_thread(self.record.look, path)
        except (TooLargeError, OSError) as error:
            return error

    def release(self, path: bytes) -> None:
        """Let scans include `path` again, once its last contents are recorded."""

        def release() -> None:
            self.reserved[path] -= 1
            if self.reserved[path] <= 0:
                del self.reserved[path]

        self.do(release)


def _fail(error: Exception) -> None:
    raise error


def row_of(session: str, client: str, source: str, prompt: str, start: int, peer: Peer | None) -> TurnRow:
    """Return a turn that begins."""
    line = shortened(next(iter(prompt.splitlines()), ""))
    # The processes of remote CLIs are not examined.
    pid, started = (None, None) if peer is None or peer.place else (peer.pid, peer.started)
    return TurnRow(0, session, client, source, line, start, None, None, (), pid, started, prompt[:MOST_OF_PROMPT])


def key_of(peer: Peer) -> str:
    """Return an id for the conversation of a CLI that does not report its own."""
    return f"process {peer.pid} {peer.started}"


def shortened(text: str, most: int = 80) -> str:
    """Return `text` as one line of at most `most` characters."""
    words = " ".join(text[:800].split())
    return words if len(words) <= most else words[: most - 1] + "…"


def now_ms() -> int:
    """Return the time in ms since the epoch."""
    return int(time.time() * 1000)
