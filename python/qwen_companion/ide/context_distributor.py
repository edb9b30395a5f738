# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute each CLI's context from the newest snapshot, the settings and the rules.

A CLI is sent a file only once its process is known and no rule forbids it.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import anyio

from qwen_companion.domain import HIDE, SHOW, Exclusion, Peer, SessionState, Settings, Snapshot
from qwen_companion.ide.access import HIDDEN, Access
from qwen_companion.ide.context import ResolvedPath, describe, newest_times, own_root
from qwen_companion.ide.models import context_update
from qwen_companion.threads import in_thread

if TYPE_CHECKING:
    from qwen_companion.privacy.exclusions import Exclusions
    from qwen_companion.privacy.watch import DiskWatch

PATIENCE_S = 0.1
"""Seconds for which CLIs get the previous verdicts while rules are applied to new inputs."""

RULES_S = 2.0
"""Seconds between checks of the rules when nothing else changes and the system does not report changes."""

WATCHED_RULES_S = 60.0
"""The same if it does: changes of mounts, for one, go unreported."""

WATCH_TRIES = 3
"""Number of scans of a disk that changes during each."""

NOT_ON_DISK = "not on disk"
UNKNOWN = "not checked yet"


@dataclass(frozen=True)
class _Job:
    """The inputs of one round."""

    snapshot: Snapshot
    settings: Settings
    roots: tuple[str, ...]
    families: frozenset[str | None]
    """The families of the sessions' CLIs, and that of an unknown CLI."""

    directories: frozenset[str | None]
    """The directories the CLIs work in; None where unknown."""

    exclusions: Exclusions

    @cached_property
    def basis(self) -> tuple[object, ...]:
        """The inputs of findings, except the sessions and the disk; the cursor is not among them."""
        files = frozenset((file.path, file.exposure) for file in self.snapshot.files)
        return files, self.roots, self.settings.all_roots, self.exclusions


@dataclass(frozen=True)
class _Findings:
    """The findings about a job from the disk and the rules.

    `rules`: for each family, the rule that forbids each path, or None; `scopes`: for each directory of a CLI the roots
    whose files it is sent, or None for everywhere; `missing`: the paths that are not files.
    """

    job: _Job
    places: Mapping[str, ResolvedPath]
    rules: Mapping[str | None, Mapping[str, str | None]]
    scopes: Mapping[str | None, tuple[ResolvedPath, ...] | None]
    missing: frozenset[str]

    def cover(self, job: _Job) -> bool:
        """Return whether these findings suffice for `job`, which has the same basis."""
        return self.rules.keys() >= job.families and self.scopes.keys() >= job.directories


@dataclass
class _Listener:
    """One session: `trusted` is decided once, `sent` is its last context as (milliseconds, notification)."""

    trusted: bool | None
    scope: tuple[str, ...] | None = None
    sent: tuple[int, bytes] | None = None


class _Sessions:
    """The sessions whose processes were looked up, by id.

    Families and directories are counted as sessions come and go, so that many open ones do not slow down a new one.
    """

    def __init__(self) -> None:
        self._peers: dict[str, Peer | None] = {}
        self._families: Counter[str | None] = Counter()
        self._directories: Counter[str | None] = Counter()

    def __bool__(self) -> bool:
        return bool(self._peers)

    def __contains__(self, session: object) -> bool:
        return session in self._peers

    def __iter__(self) -> Iterator[str]:
        return iter(self._peers)

    def peer(self, session: str) -> Peer | None:
        """Return the process of `session`; None if either is unknown."""
        return self._peers.get(session)

    @property
    def families(self) -> frozenset[str | None]:
        """Return the families of the CLIs."""
        return frozenset(self._families)

    @property
    def directories(self) -> frozenset[str | None]:
        """Return the directories the CLIs work in."""
        return frozenset(self._directories)

    def put(self, session: str, peer: Peer | None) -> None:
        """Add `session`, or change its process."""
        self.drop(session)
        self._peers[session] = peer
        self._families[_family(peer)] += 1
        self._directories[_directory(peer)] += 1

    def drop(self, session: str) -> None:
        """Remove `session` if it is there."""
        if session not in self._peers:
            return
        peer = self._peers.pop(session)
        for counter, key in ((self._families, _family(peer)), (self._directories, _directory(peer))):
            counter[key] -= 1
            if not counter[key]:
                del counter[key]


@dataclass
class _Inputs:
    roots: tuple[str, ...] = ()
    sessions: _Sessions = field(default_factory=_Sessions)
    settings: Settings | None = None
    snapshot: Snapshot | None = None
    exclusions: Exclusions | None = None
    changed: anyio.Event = field(default_factory=anyio.Event)


class ContextDistributor:
    """Sends each session its context.  Call its methods on the event loop."""

    def __init__(
        self,
        environ: Mapping[str, str],
        deliver: Callable[[str, bytes], None],
        report_context: Callable[[str, tuple[str, ...] | None, int, str], None],
        report_exclusions: Callable[[tuple[Exclusion, ...]], None],
        warn: Callable[[str], None],
    ) -> None:
        """Distribute context through callbacks.

        - `deliver` gets the id of a session and its next context.
        - `report_context` is called while the user watches.  Its arguments are the id of a session, the roots of its
          files (None for everywhere), the time of its context in ms since the epoch, and that context as JSON.
        - `report_exclusions` gets, while the user watches, all excluded files.
        - `warn` gets problems of the settings.
        """
        self._environ = environ
        self._deliver = deliver
        self._report_context = report_context
        self._report_exclusions = report_exclusions
        self._warn = warn
        self._inputs = _Inputs()
        self._newcomers: set[str] | None = None
        """Sessions that were sent nothing yet; None to update all."""
        self._listeners: dict[str, _Listener] = {}
        self._last: _Findings | None = None
        self._check_again_at = 0.0
        self._interval = RULES_S
        self._watch: DiskWatch | None = None
        self._disk_changes = 0
        self._exclusions: tuple[Exclusion, ...] = ()
        self._watched = False

    # --- Inputs ---

    def set_settings(self, settings: Settings) -> None:
        """Set the settings; no CLI is sent anything before."""
        # Imported late: the start does not need them, and they take time.
        from qwen_companion.privacy.exclusions import Exclusions, Options
        from qwen_companion.privacy.watch import DiskWatch

        if self._watch is None:
            self._watch = DiskWatch(self._disk_changed)
        self._inputs.settings = settings
        self._inputs.exclusions = Exclusions(self._environ, Options(settings.patterns, settings.auth_sources))
        for warning in self._inputs.exclusions.warnings:
            self._warn(warning)
        self._last = None
        self._update_all()

    def set_roots(self, roots: tuple[str, ...]) -> None:
        """Set the workspace roots."""
        self._inputs.roots = roots
        self._update_all()

    def set_snapshot(self, snapshot: Snapshot) -> None:
        """Set the snapshot of the user's buffers."""
        self._inputs.snapshot = snapshot
        self._update_all()

    def set_session(self, state: SessionState) -> None:
        """Add or update a session."""
        sessions, identifier, peer = self._inputs.sessions, state.session.id, state.session.peer
        if not state.identified or (identifier in sessions and sessions.peer(identifier) == peer):
            return
        sessions.put(identifier, peer)
        if self._newcomers is not None:
            self._newcomers.add(identifier)
        self._inputs.changed.set()

    def drop_session(self, session: str) -> None:
        """Remove an ended session."""
        self._inputs.sessions.drop(session)
        self._listeners.pop(session, None)
        if self._watched:
            self._update_all()

    def _update_all(self) -> None:
        self._newcomers = None
        self._inputs.changed.set()

    def sent(self, session: str, notification: bytes) -> None:
        """Record that the context `notification` went out to `session`."""
        listener = self._listeners.get(session)
        if listener is not None:
            listener.sent = (int(time.time() * 1000), notification)
            if self._watched:
                self._report_sent(session, listener)

    def watch(self, on: bool) -> None:
        """Start or stop reporting each change; start with the present state."""
        job = self._job()
        last = self._last
        if on and job is not None and last is not None and last.job.basis == job.basis and last.cover(job):
            # Sessions that came unwatched are not known yet.
            self._send(job, last)
        self._watched = on
        if on:
            self._report_exclusions(self._exclusions)
            for session, listener in self._listeners.items():
                self._report_sent(session, listener)
            if not self._inputs.sessions:
                # Exclusions were not updated without a CLI or a watching user.
                self._update_all()

    # --- Reviews ---

    def review_roots(self, session: str) -> tuple[str, ...] | None:
        """Return the directories in which `session` may propose changes for review; None for anywhere, () for nowhere.

        All workspace roots and its directory: a proposal is no secret, so not only its own root.
        """
        inputs = self._inputs
        if inputs.settings is not None and inputs.settings.all_roots:
            return None
        directory = _directory(inputs.sessions.peer(session))
        return tuple(dict.fromkeys((*inputs.roots, *([directory] if directory else ()))))

    # --- Tools ---

    def access(self, peer: Peer | None) -> Access | None:
        """Return the access of the CLI in the process `peer`, or None while unknown.

        Blocks on disk I/O.
        """
        inputs = self._inputs
        if inputs.settings is None or inputs.exclusions is None:
            return None
        scope = _scope(_directory(peer), [ResolvedPath.of(root) for root in inputs.roots], inputs.settings)
        roots = inputs.roots if scope is None else tuple(root.path for root in scope)
        return Access(
            exclusions=inputs.exclusions,
            roots=inputs.roots,
            scope=scope,
            family=_family(peer),
            directory=_directory(peer),
            exposures={file.path: file.exposure for file in inputs.snapshot.files} if inputs.snapshot else {},
            trusted=_trusted(roots, inputs.settings.trust),
        )

    # --- Work ---

    async def run(self) -> None:
        """Deliver context to the sessions until cancelled."""
        try:
            while True:
                await self._inform_next()
        finally:
            if self._watch is not None:
                self._watch.close()

    async def _inform_next(self) -> None:
        changed = self._inputs.changed
        # Rules matter only while a CLI is connected or the user watches.
        delay = None if self._job() is None else self._check_again_at - time.monotonic()
        with anyio.move_on_after(delay):
            await changed.wait()
        if not changed.is_set():
            changes = self._disk_changes
            if self._last is not None:
                if not await in_thread(_are_outdated, self._last):
                    self._check_later(changes)
                    return
            self._check_again_at = 0.0
            self._newcomers = None
        self._inputs.changed = anyio.Event()
        job = self._job()
        if job is not None:
            newcomers, self._newcomers = self._newcomers, set()
            await self._inform(job, newcomers)

    def _disk_changed(self) -> None:
        self._disk_changes += 1
        self._check_again_at = 0.0
        self._update_all()

    def _check_later(self, changes: int) -> None:
        """Schedule a check of the disk after the interval, unless it has changed since there were `changes` changes."""
        if changes == self._disk_changes:
            self._check_again_at = time.monotonic() + self._interval

    def _job(self) -> _Job | None:
        inputs = self._inputs
        if inputs.settings is None or inputs.snapshot is None or inputs.exclusions is None:
            return None
        sessions = inputs.sessions
        if not sessions and not self._watched:
            return None
        return _Job(
            snapshot=inputs.snapshot,
            settings=inputs.settings,
            roots=inputs.roots,
            families=sessions.families | {None},
            directories=sessions.directories,
            exclusions=inputs.exclusions,
        )

    async def _inform(self, job: _Job, newcomers: set[str] | None) -> None:
        """Send context to `newcomers`, or with None to all sessions."""
        last = self._last
        is_current = last is not None and last.job.basis == job.basis and time.monotonic() < self._check_again_at
        if last is not None and is_current and last.cover(job):
            # Most often a move of the cursor.
            self._send(job, last, newcomers)
            return
        changes = self._disk_changes
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_meanwhile, job)
            if last is not None and is_current:
                # Only the sessions have changed, so the verdicts on files hold.
                self._last = await in_thread(_extend, last, job)
            else:
                found = await in_thread(_find_and_watch, job, self._watch)
                self._last, watched = found
                self._interval = WATCHED_RULES_S if watched else RULES_S
                self._check_later(changes)
            tasks.cancel_scope.cancel()
            self._send(job, self._last, newcomers)

    async def _send_meanwhile(self, job: _Job) -> None:
        """Send the context allowed by the previous findings if new ones take long."""
        await anyio.sleep(PATIENCE_S)
        if self._last is not None:
            self._send(job, self._last)

    def _send(self, job: _Job, findings: _Findings, newcomers: set[str] | None = None) -> None:
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
        exclusions = [Exclusion(path, rule) for path, rule in common.items()]
        # Most sessions are sent the same, and there may be many.
        contexts: dict[object, tuple[bytes, dict[str, str]]] = {}
        sessions = self._inputs.sessions
        for identifier in sessions if newcomers is None else newcomers:
            peer = sessions.peer(identifier)
            family, directory = _family(peer), _directory(peer)
            # The next round handles sessions gone or changed since the job began.
            if identifier not in sessions or family not in rules or directory not in findings.scopes:
                continue
            scope = findings.scopes[directory]
            listener = self._listener(identifier, scope, job)
            group = (family, scope, listener.trusted)
            if group not in contexts:
                kept = {
                    path: rule for path in times if (rule := _rule(path, rules[family], scope, findings)) is not None
                }
                allowed = {path: stamp for path, stamp in times.items() if path not in kept}
                context = context_update(describe(job.snapshot, allowed, listener.trusted))
                contexts[group] = context, {path: rule for path, rule in kept.items() if path not in common}
            context, kept = contexts[group]
            exclusions += [Exclusion(path, rule, identifier) for path, rule in kept.items()]
            self._deliver(identifier, context)
        if newcomers is None and tuple(exclusions) != self._exclusions:
            self._exclusions = tuple(exclusions)
            if self._watched:
                self._report_exclusions(self._exclusions)

    def _listener(self, identifier: str, scope: tuple[ResolvedPath, ...] | None, job: _Job) -> _Listener:
        listener = self._listeners.get(identifier)
        if listener is None:
            roots = tuple(root.path for root in scope) if scope is not None else job.roots
            listener = self._listeners[identifier] = _Listener(_trusted(roots, job.settings.trust))
        listener.scope = None if scope is None else tuple(root.path for root in scope)
        return listener

    def _report_sent(self, session: str, listener: _Listener) -> None:
        if listener.sent is not None:
            stamp, notification = listener.sent
            self._report_context(session, listener.scope, stamp, notification.decode("utf-8"))


def _rule(
    path: str, rules: Mapping[str, str | None], scope: tuple[ResolvedPath, ...] | None, findings: _Findings
) -> str | None:
    """Return why a session with `scope` and the `rules` of its family is not sent `path`; None if it is."""
    rule = rules.get(path, UNKNOWN)
    if rule is None and scope is not None and not any(findings.places[path].is_below(root) for root in scope):
        return f"outside {os.pathsep.join(root.path for root in scope) or 'every root'}"
    return rule


def _family(peer: Peer | None) -> str | None:
    return peer.family if peer else None


def _directory(peer: Peer | None) -> str | None:
    return peer.directory if peer else None


def _trusted(roots: Sequence[str], trust: bool | tuple[str, ...] | None) -> bool | None:
    """Return the trust sent to a CLI working in `roots`."""
    if trust is None or isinstance(trust, bool):
        return trust
    places = [ResolvedPath.of(os.path.expanduser(directory)) for directory in trust]
    return bool(roots) and all(any(ResolvedPath.of(root).is_below(place) for place in places) for root in roots)


def _are_outdated(findings: _Findings) -> bool:
    """Return whether the disk or a rule has changed since.  Blocks on disk I/O."""
    job = findings.job
    paths = newest_times(job.snapshot)
    return job.exclusions.changed(paths, job.roots) or _missing(paths) != findings.missing


def _missing(paths: Iterable[str]) -> frozenset[str]:
    return frozenset(path for path in paths if not (os.path.isabs(path) and os.path.isfile(path)))


def _find_and_watch(job: _Job, watch: DiskWatch | None) -> tuple[_Findings, bool]:
    """Return the findings of `_find`, and whether `watch` will report that they are outdated."""
    findings = _find(job)
    for _ in range(WATCH_TRIES):
        dependencies = job.exclusions.dependencies(newest_times(job.snapshot), job.roots)
        if watch is None or not watch.cover(dependencies):
            break
        # Something may have changed before the watch began.
        if not _are_outdated(findings):
            return findings, True
        findings = _find(job)
    return findings, False


def _find(job: _Job) -> _Findings:
    """Inspect the disk and the rules.  Blocks on disk I/O; never call it on the event loop."""
    paths = newest_times(job.snapshot)
    places = {path: ResolvedPath.of(path) for path in paths}
    return _extend(_Findings(job=job, missing=_missing(paths), places=places, rules={}, scopes={}), job)


def _extend(findings: _Findings, job: _Job) -> _Findings:
    """Return `findings` completed for `job`, which has the same basis.  Blocks as `_find` does."""
    exposures = {file.path: file.exposure for file in job.snapshot.files}
    asked = [path for path, exposure in exposures.items() if exposure != SHOW]
    rules, scopes = dict(findings.rules), dict(findings.scopes)
    for family in job.families - rules.keys():
        verdicts = job.exclusions.check(asked, job.roots, family)
        rules[family] = {
            **{path: NOT_ON_DISK if path in findings.missing else None for path in exposures},
            **{path: verdict.rule for path, verdict in verdicts.items() if verdict.excluded},
        }
    if new := job.directories - scopes.keys():
        roots = [ResolvedPath.of(root) for root in job.roots]
        scopes.update((directory, _scope(directory, roots, job.settings)) for directory in new)
    return replace(findings, job=job, rules=rules, scopes=scopes)


def _scope(directory: str | None, roots: Sequence[ResolvedPath], settings: Settings) -> tuple[ResolvedPath, ...] | None:
    """Return the roots whose files a CLI in `directory` is sent: all if that is unknown."""
    if settings.all_roots:
        return None
    return tuple(roots) if directory is None else (own_root(ResolvedPath.of(directory), roots),)
