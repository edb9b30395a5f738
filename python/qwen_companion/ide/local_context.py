# SPDX-License-Identifier: GPL-3.0-or-later
"""The context of the CLIs of this machine: its files, and the rules on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from qwen_companion.base.threads import in_thread
from qwen_companion.domain import Settings
from qwen_companion.ide.access import kind_of
from qwen_companion.ide.context import ResolvedPath, newest_times
from qwen_companion.ide.context_distributor import NOT_ON_DISK, ContextDistributor, Findings, Job, Reports
from qwen_companion.privacy.exclusions import Exclusions, Options
from qwen_companion.privacy.watch import DiskWatch

RULES_S = 2.0
"""Seconds between checks of the rules when nothing else changes and the system does not report changes."""

WATCHED_RULES_S = 60.0
"""The same if it does: changes of mounts, for one, go unreported."""

WATCH_TRIES = 3
"""Number of scans of a disk that changes during each."""


class LocalContext(ContextDistributor):
    """Sends the CLIs of this machine their context."""

    _exclusions: Exclusions

    def __init__(self, environ: Mapping[str, str], reports: Reports, warn: Callable[[str], None]) -> None:
        """`warn` gets problems of the settings."""
        super().__init__(reports)
        self._environ = environ
        self._warn = warn
        self._watch: DiskWatch | None = None

    def set_settings(self, settings: Settings) -> None:
        """Set the settings; no CLI is sent anything before."""
        if self._watch is None:
            self._watch = DiskWatch(self.disk_changed)
        self._exclusions = Exclusions(self._environ, Options(settings.patterns, settings.auth_sources))
        for warning in self._exclusions.warnings:
            self._warn(warning)
        super().set_settings(settings)

    async def run(self) -> None:
        """Deliver context to the sessions until cancelled."""
        try:
            await super().run()
        finally:
            if self._watch is not None:
                self._watch.close()

    async def find(self, job: Job) -> tuple[Findings, float]:
        """See `ContextDistributor`."""
        return await in_thread(self._find_and_watch, job)

    async def extend(self, findings: Findings, job: Job) -> Findings:
        """See `ContextDistributor`."""
        return await in_thread(self._extend, findings, job)

    async def is_outdated(self, findings: Findings) -> bool:
        """See `ContextDistributor`."""
        return await in_thread(self._is_outdated, findings)

    def resolve(self, path: str) -> ResolvedPath:
        """See `ContextDistributor`."""
        return ResolvedPath.of(path)

    def view(self) -> tuple[Exclusions, Callable[[str], ResolvedPath], Callable[[str], str | None]]:
        """See `ContextDistributor`."""
        return self._exclusions, ResolvedPath.of, kind_of

    # --- In a thread

    def _find_and_watch(self, job: Job) -> tuple[Findings, float]:
        findings = self._find(job)
        for _ in range(WATCH_TRIES):
            dependencies = self._exclusions.dependencies(newest_times(job.snapshot), job.roots)
            if self._watch is None or not self._watch.cover(dependencies):
                break
            # Something may have changed before the watch began.
            if not self._is_outdated(findings):
                return findings, WATCHED_RULES_S
            findings = self._find(job)
        return findings, RULES_S

    def _find(self, job: Job) -> Findings:
        paths = newest_times(job.snapshot)
        places = {path: ResolvedPath.of(path) for path in paths}
        return self._extend(Findings(job, places, {}, {}, _missing(paths)), job)

    def _extend(self, findings: Findings, job: Job) -> Findings:
        rules = dict(findings.rules)
        for family in job.families - rules.keys():
            verdicts = self._exclusions.check(job.ruled, job.roots, family)
            rules[family] = {
                **{path: NOT_ON_DISK if path in findings.missing else None for path in findings.places},
                **{path: verdict.rule for path, verdict in verdicts.items() if verdict.excluded},
            }
        new = job.directories - findings.scopes.keys()
        scopes = {**findings.scopes, **{each: self.scope(each, job.roots, job.settings) for each in new}}
        return replace(findings, job=job, rules=rules, scopes=scopes)

    def _is_outdated(self, findings: Findings) -> bool:
        paths = newest_times(findings.job.snapshot)
        return self._exclusions.changed(paths, findings.job.roots) or _missing(paths) != findings.missing


def _missing(paths: Iterable[str]) -> frozenset[str]:
    return frozenset(path for path in paths if not (os.path.isabs(path) and os.path.isfile(path)))
