# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute the context of each CLI from the newest snapshot, the settings and the rules.

A CLI is told of a file only once its process is known and no rule forbids it.
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
from qwen_companion.frozen import frozen
from qwen_companion.ide.access import HIDDEN, Access
from qwen_companion.ide.context import ResolvedPath, describe, newest_times, own_root
from qwen_companion.ide.models import context_update
from qwen_companion.threads import in_thread

if TYPE_CHECKING:
    from qwen_companion.privacy.exclusions import Exclusions
    from qwen_companion.privacy.watch import DiskWatch

PATIENCE_S = 0.1
"""Seconds for which the CLIs get the former verdicts while the rules are applied to something new."""

RULES_S = 2.0
"""How often it is looked whether a rule has changed while nothing else has, where the system does not tell."""

WATCHED_RULES_S = 60.0
"""The same where it does: a change of what is mounted, for one, is not told."""

WATCH_TRIES = 3
"""How often the disk is looked at anew that changes while it is looked at."""

NOT_ON_DISK = "not on disk"
UNKNOWN = "not checked yet"


@frozen
class _Job:
    """The inputs of one round."""

    snapshot: Snapshot
    settings: Settings
    roots: tuple[str, ...]
    families: frozenset[str | None]
    """Those of the sessions, and that of an unknown CLI."""

    directories: frozenset[str | None]
    """Where the CLIs work; None where that is unknown."""

    exclusions: Exclusions

    @cached_property
    def basis(self) -> tuple[object, ...]:
        """The inputs of findings, except the sessions and the disk; the cursor is not among them."""
        files = frozenset((file.path, file.exposure) for file in self.snapshot.files)
        return files, self.roots, self.settings.all_roots, self.exclusions


@frozen
class _Findings:
    """The findings about a job from the disk and the rules.

    `rules`: for each family, what forbids each path, or None; `scopes`: for each directory in which a CLI works the
    roots below which it hears of files, or None for everywhere; `missing`: the paths that are no files.
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
    """The sessions whose process has been looked for, by id.

    What rounds ask of them is counted as they come and go, since one that comes must not cost more with many open.
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
        """Return the process of `session`; None where it is unknown, or where there is no such session."""
        return self._peers.get(session)

    @property
    def families(self) -> frozenset[str | None]:
        """Return the families of the CLIs."""
        return frozenset(self._families)

    @property
    def directories(self) -> frozenset[str | None]:
        """Return where the CLIs work."""
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
    """Gives each session its context.  All methods are for the event loop."""

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
        - `report_context` gets, while the user watches, the id of a session, the roots below which it hears of files
          (None for everywhere), when its context went out in ms since the epoch, and that context as JSON.
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
        """Sessions that have been told nothing yet; None when all are to be told."""
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
        """Take the settings; no CLI is told anything before."""
        # Not needed for the start, and it takes time.
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
        """Take the workspace roots."""
        self._inputs.roots = roots
        self._update_all()

    def set_snapshot(self, snapshot: Snapshot) -> None:
        """Take the snapshot of the buffers that the user looks at."""
        self._inputs.snapshot = snapshot
        self._update_all()

    def set_session(self, state: SessionState) -> None:
        """Take a session that is new or has changed."""
        sessions, identifier, peer = self._inputs.sessions, state.session.id, state.session.peer
        if not state.identified or (identifier in sessions and sessions.peer(identifier) == peer):
            return
        sessions.put(identifier, peer)
        if self._newcomers is not None:
            self._newcomers.add(identifier)
        self._inputs.changed.set()

    def drop_session(self, session: str) -> None:
        """Note that a session has ended."""
        self._inputs.sessions.drop(session)
        self._listeners.pop(session, None)
        if self._watched:
            self._update_all()

    def _update_all(self) -> None:
        self._newcomers = None
        self._inputs.changed.set()

    def sent(self, session: str, notification: bytes) -> None:
        """Note that the context `notification` has gone out to `session`."""
        listener = self._listeners.get(session)
        if listener is not None:
            listener.sent = (int(time.time() * 1000), notification)
            if self._watched:
                self._report_sent(session, listener)

    def watch(self, on: bool) -> None:
        """Begin to report each change, with the present state first, or cease to."""
        job = self._job()
        last = self._last
        if on and job is not None and last is not None and last.job.basis == job.basis and last.cover(job):
            # Those of sessions that came while nobody looked are not known yet.
            self._send(job, last)
        self._watched = on
        if on:
            self._report_exclusions(self._exclusions)
            for session, listener in self._listeners.items():
                self._report_sent(session, listener)
            if not self._inputs.sessions:
                # What is excluded was not followed while no CLI was there and nobody looked.
                self._update_all()

    # --- Reviews ---

    def review_roots(self, session: str) -> tuple[str, ...] | None:
        """Return the directories in which `session` may propose changes for review; None for anywhere, () for nowhere.

        All workspace roots, and where it works: a proposal is no secret, so not only its own root.
        """
        inputs = self._inputs
        if inputs.settings is not None and inputs.settings.all_roots:
            return None
        directory = _directory(inputs.sessions.peer(session))
        return tuple(dict.fromkeys((*inputs.roots, *([directory] if directory else ()))))

    # --- Tools ---

    def access(self, peer: Peer | None) -> Access | None:
        """Return the access of the CLI in the process `peer`; None as long as it is not known.

        Waits for the disk.
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
        # Rules matter only while there is somebody to tell.
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
        """Look at the disk after the interval, unless it has changed since there had been that many `changes` of it."""
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
        """Tell `newcomers`, or with None all sessions."""
        last = self._last
        is_current = last is not None and last.job.basis == job.basis and time.monotonic() < self._check_again_at
        if last is not None and is_current and last.cover(job):
            # A move of the cursor, most often.
            self._send(job, last, newcomers)
            return
        changes = self._disk_changes
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_meanwhile, job)
            if last is not None and is_current:
                # Only the sessions have changed, so the verdicts on the files hold.
                self._last = await in_thread(_extend, last, job)
            else:
                found = await in_thread(_find_and_watch, job, self._watch)
                self._last, watched = found
                self._interval = WATCHED_RULES_S if watched else RULES_S
                self._check_later(changes)
            tasks.cancel_scope.cancel()
            self._send(job, self._last, newcomers)

    async def _send_meanwhile(self, job: _Job) -> None:
        """Deliver the context that the former findings allow if finding new ones takes long."""
        await anyio.sleep(PATIENCE_S)
        if self._last is not None:
            self._send(job, self._last)

    def _send(self, job: _Job, findings: _Findings, newcomers: set[str] | None = None) -> None:
        """Deliver the files that `findings` allow to all sessions or to `newcomers`, and no others."""
        if self._watched:
            # A new one may change the set of files excluded for all.
            newcomers = None
        times = newest_times(job.snapshot)
        # The user's word counts at once.
        hidden = {file.path: HIDDEN for file in job.snapshot.files if file.exposure == HIDE}
        rules = {family: {**findings.rules.get(family, {}), **hidden} for family in job.families}
        # The ignore file of one CLI says nothing of another, so a file that a family hears of is not excluded for all.
        common = {
            path: rule
            for path in times
            if (rule := rules[None].get(path, UNKNOWN)) is not None
            and all(rules[family].get(path, UNKNOWN) is not None for family in job.families)
        }
        exclusions = [Exclusion(path, rule) for path, rule in common.items()]
        # Most sessions hear the same, and there may be many.
        contexts: dict[object, tuple[bytes, dict[str, str]]] = {}
        sessions = self._inputs.sessions
        for identifier in sessions if newcomers is None else newcomers:
            peer = sessions.peer(identifier)
            family, directory = _family(peer), _directory(peer)
            # What has gone or changed since the job began is for the next round.
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
    """Return why a session with `scope` and the `rules` of its family is not told of `path`; None if it is."""
    rule = rules.get(path, UNKNOWN)
    if rule is None and scope is not None and not any(findings.places[path].is_below(root) for root in scope):
        return f"outside {os.pathsep.join(root.path for root in scope) or 'every root'}"
    return rule


def _family(peer: Peer | None) -> str | None:
    return peer.family if peer else None


def _directory(peer: Peer | None) -> str | None:
    return peer.directory if peer else None


def _trusted(roots: Sequence[str], trust: bool | tuple[str, ...] | None) -> bool | None:
    """Return the trust that a CLI working in `roots` is told."""
    if trust is None or isinstance(trust, bool):
        return trust
    places = [ResolvedPath.of(os.path.expanduser(directory)) for directory in trust]
    return bool(roots) and all(any(ResolvedPath.of(root).is_below(place) for place in places) for root in roots)


def _are_outdated(findings: _Findings) -> bool:
    """Return whether the disk or a rule says something else by now.  Waits for the disk."""
    job = findings.job
    paths = newest_times(job.snapshot)
    return job.exclusions.changed(paths, job.roots) or _missing(paths) != findings.missing


def _missing(paths: Iterable[str]) -> frozenset[str]:
    return frozenset(path for path in paths if not (os.path.isabs(path) and os.path.isfile(path)))


def _find_and_watch(job: _Job, watch: DiskWatch | None) -> tuple[_Findings, bool]:
    """Return the findings of `_find`, and whether `watch` will tell when they are outdated."""
    findings = _find(job)
    for _ in range(WATCH_TRIES):
        dependencies = job.exclusions.dependencies(newest_times(job.snapshot), job.roots)
        if watch is None or not watch.cover(dependencies):
            break
        # Something may have changed before it was watched.
        if not _are_outdated(findings):
            return findings, True
        findings = _find(job)
    return findings, False


def _find(job: _Job) -> _Findings:
    """Ask the disk and the rules.  Takes as long as they do: not for the event loop."""
    paths = newest_times(job.snapshot)
    places = {path: ResolvedPath.of(path) for path in paths}
    return _extend(_Findings(job=job, missing=_missing(paths), places=places, rules={}, scopes={}), job)


def _extend(findings: _Findings, job: _Job) -> _Findings:
    """Return `findings` completed for `job`, which has the same basis.  Takes as long as `_find`."""
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
    """Return the roots below which a CLI in `directory` hears of files: all of them where that is unknown."""
    if settings.all_roots:
        return None
    return tuple(roots) if directory is None else (own_root(ResolvedPath.of(directory), roots),)
