# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide which files a CLI may be sent: all rules together, with verdicts cached until a rule changes.

The first rule that excludes a file is reported, in this order: no file here, secret by name, the user's options, the
ignore files of the CLI, git.  Every name that leads to the file counts.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from qwen_companion.base.errors import UnknownNameError
from qwen_companion.privacy import options as user
from qwen_companion.privacy.disk import Signature, signature
from qwen_companion.privacy.git import RETRY_S, TIMEOUT_S, IgnoreRules, repository, work_tree_files
from qwen_companion.privacy.ignore_files import IGNORE_FILES, ignore_files, load
from qwen_companion.privacy.names import Names, names, non_local_reason
from qwen_companion.privacy.options import Options, Settled, UserRules
from qwen_companion.privacy.rules import secret
from qwen_companion.privacy.verdicts import ALLOWED, Verdict, excluded
from qwen_companion.privacy.watch import Dependencies

_MAX_REMEMBERED = 1000


@dataclass(frozen=True)
class _Basis:
    """The names and rules that a cached verdict depends on; computed again before each use, to compare."""

    names: Names | str
    settled: tuple[Settled, ...]
    roots: tuple[tuple[str, ...], ...]
    program: str | None


@dataclass
class _Record:
    """Verdicts on one file by family, and their basis; `retry_at` is in seconds of the clock."""

    roots: tuple[str, ...]
    basis: _Basis
    verdicts: dict[str | None, Verdict]
    watched: dict[str, Signature] = field(default_factory=dict[str, Signature])
    retry_at: float | None = None


@dataclass
class _Look:
    """The findings on the disk during one call."""

    settled: tuple[Settled, ...]
    roots: tuple[tuple[str, ...], ...]
    program: str | None
    links: dict[str, str | None]
    signatures: dict[str, Signature] = field(default_factory=dict[str, Signature])

    def basis(self, path: str) -> _Basis:
        found = non_local_reason(path)
        if found is None:
            try:
                return _Basis(names(path, self.links), self.settled, self.roots, self.program)
            except UnknownNameError as error:
                found = f"its true name is unknown: {error}"
        return _Basis(found, self.settled, self.roots, self.program)

    def signature(self, path: str) -> Signature:
        if path not in self.signatures:
            self.signatures[path] = signature(path)
        return self.signatures[path]


class Exclusions:
    """Decides which files are excluded.

    `check` and `changed` block on the disk, and `check` on git: call them in a thread.  They are thread-safe; a `check`
    waits until another has ended.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        options: Options = Options(),  # noqa: B008 - it is frozen
        git_timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`environ` locates the home directory and git.  `clock` returns seconds."""
        self._git = IgnoreRules(environ, git_timeout_s, clock)
        self._user = UserRules(options, environ)
        self._clock = clock
        self._lock = threading.Lock()
        self._records: dict[str, _Record] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for the user about options that cannot be used and exclude nothing."""
        return self._user.warnings

    def check(self, paths: Iterable[str], roots: Sequence[str], family: str | None) -> dict[str, Verdict]:
        """Return the verdicts on `paths`, absolute names, for a CLI of `family`, with its ignore files in `roots`.

        `family` is a key of `IGNORE_FILES`; for any other the files of all of them count.
        """
        with self._lock:
            look = self._inspect(roots)
            wanted = list(dict.fromkeys(paths))
            found = {path: self._records.get(path) for path in wanted}
            unknown = [path for path, record in found.items() if not self._is_valid(path, record, roots, look)]
            judged = self._judge(unknown, roots, look)
            records = {**found, **judged}
            self._records.update(judged)
            if len(self._records) > _MAX_REMEMBERED:
                self._records = dict(judged)
        return {path: _verdict(record, family) for path, record in records.items() if record is not None}

    def changed(self, paths: Iterable[str], roots: Sequence[str]) -> bool:
        """Return whether a new `check` of `paths` could differ from the last one.  Does not ask git."""
        look = self._inspect(roots)
        return any(not self._is_valid(path, self._records.get(path), roots, look) for path in paths)

    def dependencies(self, paths: Iterable[str], roots: Sequence[str]) -> Dependencies:
        """Return the dependencies of the verdicts on `paths`, except the git program.  Blocks on disk I/O."""
        look = self._inspect(roots)
        contents: set[str] = set()
        lasting = True
        for path in paths:
            look.basis(path)
            record = self._records.get(path)
            if record is not None:
                contents.update(record.watched)
                lasting = lasting and record.retry_at is None
        for file in contents:
            with suppress(UnknownNameError):  # There is no file, so it has no content.
                names(file, look.links)
        return Dependencies(frozenset(look.links), frozenset(contents), lasting)

    def _inspect(self, roots: Sequence[str]) -> _Look:
        links: dict[str, str | None] = {}
        every: list[tuple[str, ...]] = []
        for root in roots:
            try:
                every.append(names(root, links).spellings)
            except UnknownNameError:
                every.append((root,))
        return _Look(self._user.settle(links), tuple(every), self._git.program(), links)

    def _is_valid(self, path: str, record: _Record | None, roots: Sequence[str], look: _Look) -> bool:
        return (
            record is not None
            and record.roots == tuple(roots)
            and record.basis == look.basis(path)
            and all(look.signature(file) == seen for file, seen in record.watched.items())
            and (record.retry_at is None or self._clock() < record.retry_at)
        )

    def _judge(self, paths: Iterable[str], roots: Sequence[str], look: _Look) -> dict[str, _Record]:
        records: dict[str, _Record] = {}
        on_disk: dict[str, Names] = {}
        for path in paths:
            basis = look.basis(path)
            by_name = _by_name(basis)
            records[path] = _Record(tuple(roots), basis, dict.fromkeys((*IGNORE_FILES, None), by_name or ALLOWED))
            if by_name is None and isinstance(basis.names, Names):
                on_disk[path] = basis.names
        self._apply_git(on_disk, records, look)
        if on_disk:
            _apply_ignore_files(on_disk, records, look)
        return records

    def _apply_git(self, on_disk: Mapping[str, Names], records: Mapping[str, _Record], look: _Look) -> None:
        """Record git's verdict on each of the files `on_disk`, and on the links that lead to it."""
        repositories: dict[str, str | None] = {}
        for path, its in on_disk.items():
            for name in (its.true, *its.links):
                repositories[name] = repository(name)
                records[path].watched.update((file, look.signature(file)) for file in work_tree_files(name))
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for name, top in repositories.items():
            if top is not None:
                groups[top].append(name)
        # Signatures first: a file that changes meanwhile then counts as changed.
        outside = {top: {file: look.signature(file) for file in self._git.rule_files(top)} for top in groups}
        answers = {name: answer for top, group in groups.items() for name, answer in self._git.ask(top, group).items()}
        for path, its in on_disk.items():
            record = records[path]
            verdicts: list[Verdict] = []
            for name in (its.true, *its.links):
                top = repositories[name]
                if top is not None:
                    record.watched.update(outside[top])
                    verdicts.append(answers[name])
            verdict = next((each for each in verdicts if each.excluded), None)
            verdict = verdict or next((each for each in verdicts if each.rule), ALLOWED)
            record.verdicts = dict.fromkeys(record.verdicts, verdict)
            if not all(each.lasting for each in verdicts):
                record.retry_at = self._clock() + RETRY_S


def _by_name(basis: _Basis) -> Verdict | None:
    """Return the verdict that excludes a file for its name alone."""
    if isinstance(basis.names, str):
        return excluded(basis.names)
    spellings = basis.names.spellings
    rule = next(filter(None, map(secret, spellings)), None) or user.match(basis.settled, spellings)
    return None if rule is None else excluded(rule)


def _apply_ignore_files(on_disk: Mapping[str, Names], records: Mapping[str, _Record], look: _Look) -> None:
    """Record the verdict of the ignore files on each of the files `on_disk`."""
    for file in ignore_files(look.roots):
        seen = look.signature(file.path)
        rules = load(file)
        for path, its in on_disk.items():
            record = records[path]
            record.watched[file.path] = seen
            verdict = rules.verdict(its.spellings)
            if verdict is not None:
                for family in (file.family, None):
                    record.verdicts[family] = verdict


def _verdict(record: _Record, family: str | None) -> Verdict:
    return record.verdicts[family if family in IGNORE_FILES else None]
