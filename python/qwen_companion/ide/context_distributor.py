# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute the context of each CLI, here or at a place, from the newest snapshot, the settings and the rules.

A CLI is sent a file only once its process is known and no rule forbids it.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import anyio

from qwen_companion.base.errors import CompanionError
from qwen_companion.domain import HIDE, SHOW, Exclusion, Peer, PlaceNames, SessionState, Settings, Snapshot
from qwen_companion.ide.access import HIDDEN, Access, Exclusions
from qwen_companion.ide.context import ResolvedPath, describe, newest_times, own_root
from qwen_companion.ide.models import context_update

PATIENCE_S = 0.1
"""Seconds for which CLIs get the previous verdicts while rules are applied to new inputs."""

UNKNOWN = "not checked yet"
NOT_ON_DISK = "not on disk"


@dataclass(frozen=True)
class Job:
    """The inputs of one round; files have the names that CLIs know."""

    snapshot: Snapshot
    settings: Settings
    roots: tuple[str, ...]
    families: frozenset[str | None]
    """The families of the sessions' CLIs, and that of an unknown CLI."""

    directories: frozenset[str | None]
    """The directories the CLIs work in; None where unknown."""

    @cached_property
    def basis(self) -> tuple[object, ...]:
        """The inputs that decide the findings, in addition to the sessions and the disk; moves of the cursor do not."""
        files = frozenset((file.path, file.exposure) for file in self.snapshot.files)
        return files, self.roots, self.settings

    @property
    def ruled(self) -> list[str]:
        """The files to which the rules apply; the others are shown by choice of the user."""
        return [file.path for file in self.snapshot.files if file.exposure != SHOW]


@dataclass(frozen=True)
class Findings:
    """The findings about a job from the disk and the rules.

    `places`: the files with their real paths; `rules`: for each family, the rule that forbids each path, or None;
    `scopes`: for each directory of a CLI the roots whose files it is sent, or None for everywhere; `missing`: the paths
    that are not files.
    """

    job: Job
    places: Mapping[str, ResolvedPath]
    rules: Mapping[str | None, Mapping[str, str | None]]
    scopes: Mapping[str | None, tuple[ResolvedPath, ...] | None]
    missing: frozenset[str]

    def cover(self, job: Job) -> bool:
        """Return whether these findings suffice for `job`, which has the same basis."""
        return self.rules.keys() >= job.families and self.scopes.keys() >= job.directories


@dataclass(frozen=True)
class Reports:
    """Where contexts go.

    - `deliver` is called with the id of a session and its next context.
    - `context` is called while the user watches.  It gets the id of a session, the place of its files ("" for this
      machine), and their roots as Emacs names them (None for everywhere).  The time of the context follows, in ms since
      the epoch, and the context as JSON.
    - `exclusions` is called, while the user watches, when the files that are not sent have changed.
    """

    deliver: Callable[[str, bytes], None]
    context: Callable[[str, str, tuple[str, ...] | None, int, str], None]
    exclusions: Callable[[], None]


@dataclass
class _Session:
    """A session; `trusted` is constant once `known`, and `sent` its last context as (milliseconds, notification)."""

    peer: Peer | None
    trusted: bool | None = None
    known: bool = False
    scope: tuple[str, ...] | None = None
    sent: tuple[int, bytes] | None = None

    @property
    def family(self) -> str | None:
        return self.peer.family if self.peer else None

    @property
    def directory(self) -> str | None:
        return self.peer.directory if self.peer else None


class ContextDistributor(ABC):
    """Sends each session of this machine, or of a place, its context.  Call its methods on the event loop."""

    names = PlaceNames()
    """Emacs's names of the files."""
    checks_disk = True
    """Whether to look for changes on the disk while the inputs are the same.

    If not, nothing is sent by earlier findings while the files are inspected again.
    """

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._roots: tuple[str, ...] = ()
        self.settings: Settings | None = None
        self._snapshot: Snapshot | None = None
        self._sessions: dict[str, _Session] = {}
        self._newcomers: set[str] | None = None
        """Sessions that were sent nothing yet; None to update all."""
        self._changed = anyio.Event()
        self._last: Findings | None = None
        self._check_again_at = 0.0
        self._interval = 0.0
        self._disk_changes = 0
        self._starts = 0
        self._watched = False
        self._had_sessions = False
        """Whether there were sessions when the exclusions were reported last."""
        self.exclusions: tuple[Exclusion, ...] = ()
        """The files not sent, as Emacs names them."""

    # --- Files ---

    @abstractmethod
    async def find(self, job: Job) -> tuple[Findings, float]:
        """Inspect the files and the rules; return also after how many seconds they are to be inspected again.

        :raises CompanionError: if that is impossible now
        """

    async def extend(self, _findings: Findings, job: Job) -> Findings:
        """Return the findings completed for `job`, which has the same basis.  Raises as `find` does."""
        return (await self.find(job))[0]

    async def is_outdated(self, _findings: Findings) -> bool:
        """Return whether a file or a rule has changed since."""
        return False

    @abstractmethod
    def resolve(self, path: str) -> ResolvedPath:
        """Return the root or directory of a CLI `path` with its real path.  Callable in any thread; may block."""

    @abstractmethod
    def view(self) -> tuple[Exclusions, Callable[[str], ResolvedPath], Callable[[str], str | None]]:
        """Return the fields `exclusions`, `resolve` and `kind` of an `Access`."""

    def scope(self, directory: str | None, roots: Sequence[str], settings: Settings) -> tuple[ResolvedPath, ...] | None:
        """Return the roots whose files a CLI in `directory` is sent: all if that is unknown, None for everywhere."""
        if settings.all_roots:
            return None
        known = tuple(map(self.resolve, roots))
        return known if directory is None else (own_root(self.resolve(directory), known),)

    # --- Inputs ---

    def set_settings(self, settings: Settings) -> None:
        """Set the settings; no CLI is sent anything before."""
        self.settings = settings
        self.start_over()

    def set_roots(self, roots: tuple[str, ...]) -> None:
        """Set the workspace roots."""
        self._roots = roots
        self._update_all()

    def set_snapshot(self, snapshot: Snapshot) -> None:
        """Set the snapshot of the user's buffers, with the names that the CLIs have for the files."""
        self._snapshot = snapshot
        self._update_all()

    def set_session(self, state: SessionState) -> None:
        """Add or update a session."""
        identifier, peer = state.session.id, state.session.peer
        if not state.identified or (identifier in self._sessions and self._sessions[identifier].peer == peer):
            return
        self._sessions.setdefault(identifier, _Session(peer)).peer = peer
        if self._newcomers is not None:
            self._newcomers.add(identifier)
        self._changed.set()

    def drop_session(self, session: str) -> None:
        """Remove an ended session."""
        self._sessions.pop(session, None)
        # Not left to the next round: without a line to a place there is none.
        self._set_exclusions(tuple(each for each in self.exclusions if each.session != session))
        if self._watched:
            self._update_all()

    def start_over(self) -> None:
        """Inspect all again before anything is sent."""
        self._starts += 1
        self._last = None
        self._update_all()

    def disk_changed(self) -> None:
        """Inspect the files again soon: one of them, or a rule, has changed."""
        self._disk_changes += 1
        self._check_again_at = 0.0
        self._update_all()

    def _update_all(self) -> None:
        self._newcomers = None
        self._changed.set()

    @property
    def has_sessions(self) -> bool:
        """Return whether a CLI is connected."""
        return bool(self._sessions)

    def sent(self, session: str, notification: bytes) -> None:
        """Record that the context `notification` went out to `session`."""
        if session in self._sessions:
            self._sessions[session].sent = (int(time.time() * 1000), notification)
            if self._watched:
                self._report_sent(session)

    def watch(self, on: bool) -> None:
        """Start or stop reporting each change; start with the present state."""
        job, last = self._job(None), self._last
        if on and job is not None and last is not None and self._is_current(last, job) and last.cover(job):
            # Sessions that came unwatched are not known yet.
            self._send(job, last)
        elif on:
            self._update_all()
        self._watched = on
        if on:
            self._reports.exclusions()
            for session in self._sessions:
                self._report_sent(session)

    # --- Reviews ---

    def review_roots(self, session: str) -> tuple[str, ...] | None:
        """Return the directories in which `session` may propose changes for review; None for anywhere, () for nowhere.

        All workspace roots and its directory: a proposal is no secret, so not only its own root.
        """
        if self.settings is not None and self.settings.all_roots:
            return None
        directory = self._sessions[session].directory if session in self._sessions else None
        return tuple(dict.fromkeys((*self._roots, *([directory] if directory else ()))))

    # --- Tools ---

    def access(self, peer: Peer | None) -> Access | None:
        """Return the access of the CLI in the process `peer`, or None while unknown.

        Blocks on disk I/O.
        """
        if self.settings is None:
            return None
        session, snapshot = _Session(peer), self._snapshot
        scope = self.scope(session.directory, self._roots, self.settings)
        exclusions, resolve, kind = self.view()
        return Access(
            exclusions=exclusions,
            roots=self._roots,
            scope=scope,
            family=session.family,
            directory=session.directory,
            exposures={file.path: file.exposure for file in snapshot.files} if snapshot else {},
            trusted=self._trusted(scope, self.settings),
            place=self.names,
            resolve=resolve,
            kind=kind,
        )

    # --- Work ---

    async def run(self) -> None:
        """Deliver context to the sessions until cancelled."""
        while True:
            await self._inform_next()

    async def _inform_next(self) -> None:
        changed = self._changed
        # Rules matter only while a CLI is connected or the user watches.
        is_idle = not self._is_needed or not self.checks_disk
        with anyio.move_on_after(None if is_idle else self._check_again_at - time.monotonic()):
            await changed.wait()
        if not changed.is_set():
            changes = self._disk_changes
            if self._last is not None and not await self.is_outdated(self._last):
                self._check_later(changes, self._interval)
                return
            self._check_again_at = 0.0
            self._newcomers = None
        self._changed = anyio.Event()
        job = self._job(self._newcomers)
        if job is not None:
            newcomers, self._newcomers = self._newcomers, set()
            await self._inform(job, newcomers)

    def _check_later(self, changes: int, interval: float) -> None:
        """Schedule a check of the disk after the interval, unless it has changed since there were `changes` changes."""
        self._interval = interval
        if changes == self._disk_changes:
            self._check_again_at = time.monotonic() + interval

    @property
    def _is_needed(self) -> bool:
        return self.settings is not None and self._snapshot is not None and bool(self._sessions or self._watched)

    def _job(self, newcomers: Collection[str] | None) -> Job | None:
        """Return the inputs of a round for `newcomers`, besides the sessions of the last one, or with None for all."""
        if self.settings is None or self._snapshot is None or not self._is_needed:
            return None
        families: set[str | None] = {None}
        directories: set[str | None] = set()
        if newcomers is not None and self._last is not None:
            families.update(self._last.rules)
            directories.update(self._last.scopes)
        for identifier in self._sessions if newcomers is None or self._last is None else newcomers:
            if identifier in self._sessions:
                families.add(self._sessions[identifier].family)
                directories.add(self._sessions[identifier].directory)
        return Job(self._snapshot, self.settings, self._roots, frozenset(families), frozenset(directories))

    def _is_current(self, findings: Findings, job: Job) -> bool:
        """Return whether `findings` hold for the files of `job`."""
        return findings.job.basis == job.basis and time.monotonic() < self._check_again_at

    async def _inform(self, job: Job, newcomers: set[str] | None) -> None:
        """Send context to `newcomers`, or to all sessions with None or after new findings about the files."""
        last = self._last if self._last is not None and self._is_current(self._last, job) else None
        if last is not None and last.cover(job):
            # Most often a move of the cursor.
            self._send(job, last, newcomers)
            return
        changes, starts = self._disk_changes, self._starts
        async with anyio.create_task_group() as tasks:
            if self.checks_disk:
                tasks.start_soon(self._send_meanwhile, job)
            try:
                if last is not None:
                    # Only the sessions have changed, so the verdicts on files hold.
                    found, interval = await self.extend(last, job), None
                else:
                    found, interval = await self.find(job)
                    newcomers = None
                if starts == self._starts:
                    self._last = found
                    if interval is not None:
                        self._check_later(changes, interval)
                    self._send(job, found, newcomers)
            except CompanionError:
                # Nothing is sent before the rules are known.
                self._last = self._newcomers = None
            tasks.cancel_scope.cancel()

    async def _send_meanwhile(self, job: Job) -> None:
        """Send the context allowed by the previous findings if new ones take long."""
        await anyio.sleep(PATIENCE_S)
        if self._last is not None:
            self._send(job, self._last)

    def _send(self, job: Job, findings: Findings, newcomers: set[str] | None = None) -> None:
        """Send all sessions, or `newcomers`, the files that `findings` allow, and no others."""
        if self._watched:
            # A newcomer may change the set of files excluded for all.
            newcomers = None
        times = newest_times(job.snapshot)
        # The user's choice counts at once.
        hidden = {file.path: HIDDEN for file in job.snapshot.files if file.exposure == HIDE}
        rules = {family: {**findings.rules.get(family, {}), **hidden} for family in job.families}
        # The ignore file of one CLI is not another's, so a file that one family is sent is not excluded for all.
        common = {
            path: rule
            for path in times
            if (rule := rules[None].get(path, UNKNOWN)) is not None
            and all(rules[family].get(path, UNKNOWN) is not None for family in job.families)
        }
        name = self.names.file
        exclusions = [Exclusion(name(path).name, rule) for path, rule in common.items()]
        # Most sessions are sent the same, and there may be many.
        contexts: dict[object, tuple[bytes, dict[str, str]]] = {}
        for identifier in self._sessions if newcomers is None else newcomers & self._sessions.keys():
            session = self._sessions[identifier]
            # The next round handles sessions changed since the job began.
            if session.family not in rules or session.directory not in findings.scopes:
                continue
            scope = findings.scopes[session.directory]
            if not session.known:
                session.known, session.trusted = True, self._trusted(scope, job.settings)
            session.scope = None if scope is None else tuple(name(root.path).name for root in scope)
            group = (session.family, scope, session.trusted)
            if group not in contexts:
                kept = {
                    path: rule
                    for path in times
                    if (rule := _rule(path, rules[session.family], scope, findings)) is not None
                }
                allowed = {path: stamp for path, stamp in times.items() if path not in kept}
                context = context_update(describe(job.snapshot, allowed, session.trusted))
                contexts[group] = context, {path: rule for path, rule in kept.items() if path not in common}
            context, kept = contexts[group]
            exclusions += [Exclusion(name(path).name, rule, identifier) for path, rule in kept.items()]
            self._reports.deliver(identifier, context)
        if newcomers is None:
            self._set_exclusions(tuple(exclusions))

    def _set_exclusions(self, exclusions: tuple[Exclusion, ...]) -> None:
        if (exclusions, self.has_sessions) != (self.exclusions, self._had_sessions):
            self.exclusions, self._had_sessions = exclusions, self.has_sessions
            if self._watched:
                self._reports.exclusions()

    def _trusted(self, scope: tuple[ResolvedPath, ...] | None, settings: Settings) -> bool | None:
        """Return the trust sent to a CLI working in `scope`."""
        trust = settings.trust
        if trust is None or isinstance(trust, bool):
            return trust
        if self.names.place:
            # Trusted directories are local ones.
            return None
        places = [ResolvedPath.of(os.path.expanduser(directory)) for directory in trust]
        roots = [ResolvedPath.of(path) for path in (self._roots if scope is None else [root.path for root in scope])]
        return bool(roots) and all(any(root.is_below(place) for place in places) for root in roots)

    def _report_sent(self, identifier: str) -> None:
        session = self._sessions[identifier]
        if session.sent is not None:
            stamp, notification = session.sent
            self._reports.context(identifier, self.names.place, session.scope, stamp, notification.decode("utf-8"))


def _rule(
    path: str, rules: Mapping[str, str | None], scope: tuple[ResolvedPath, ...] | None, findings: Findings
) -> str | None:
    """Return why a session with `scope` and the `rules` of its family is not sent `path`; None if it is."""
    rule = rules.get(path, UNKNOWN)
    if rule is None and scope is not None and not any(findings.places[path].is_below(root) for root in scope):
        return f"outside {os.pathsep.join(root.path for root in scope) or 'every root'}"
    return rule
