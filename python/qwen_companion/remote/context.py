# SPDX-License-Identifier: GPL-3.0-or-later
"""The context of one place's CLIs: the open files of that place, filtered by the rules read there.

As for local files, a file is sent only after all rules were checked.  A file that the relay cannot inspect is excluded.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from qwen_companion.base.errors import CompanionError, RuleFileError
from qwen_companion.base.threads import in_thread, on_event_loop
from qwen_companion.domain import PlaceNames, Snapshot
from qwen_companion.ide.access import Exclusions
from qwen_companion.ide.context import ResolvedPath, newest_times
from qwen_companion.ide.context_distributor import NOT_ON_DISK, ContextDistributor, Findings, Job, Reports
from qwen_companion.privacy import options
from qwen_companion.privacy.ignore_files import IGNORE_FILES, IgnoreFile, Rules
from qwen_companion.privacy.options import Options, UserRules
from qwen_companion.privacy.patterns import Patterns, parse
from qwen_companion.privacy.rules import secret
from qwen_companion.privacy.verdicts import ALLOWED, Verdict, excluded
from qwen_companion.remote.link import Answer, Link, LinkError, RequestError, read_answer, read_look

LOOK_S = 5.0
"""Seconds that rules from there stay valid; after that they are read again before anything is sent."""

_UNKNOWN = excluded("its place does not say what it is")


class _Checked(Answer):
    files: list[dict[str, Any]]
    texts: list[dict[str, Any]]


@dataclass(frozen=True)
class Looked:
    """The `path` there: its `kind`, None if absent, and the `rule` that excludes it, or None."""

    path: ResolvedPath
    kind: str | None
    rule: str | None


class Looks:
    """Inspects each file once; call its methods in threads of the event loop."""

    def __init__(self, look: Callable[[Sequence[str]], Coroutine[Any, Any, Mapping[str, Looked]]]) -> None:
        self._look = look
        self._looked: dict[str, Looked | None] = {}

    def _find(self, paths: Sequence[str]) -> Sequence[Looked | None]:
        missing = [path for path in paths if path not in self._looked]
        if missing:
            found: Mapping[str, Looked] = {}
            with suppress(CompanionError):
                found = on_event_loop(self._look, missing)
            self._looked.update({path: found.get(path) for path in missing})
        return [self._looked[path] for path in paths]

    def check(self, paths: Sequence[str], _roots: Sequence[str], _family: str | None) -> Mapping[str, Verdict]:
        """Return for each of `paths` whether a rule there excludes it; a file that cannot be inspected is excluded."""
        verdicts = [
            _UNKNOWN if look is None else ALLOWED if look.rule is None else excluded(look.rule)
            for look in self._find(paths)
        ]
        return dict(zip(paths, verdicts, strict=True))

    def resolve(self, path: str) -> ResolvedPath:
        """Return `path` with its real path there."""
        (look,) = self._find([path])
        return look.path if look else ResolvedPath(path, path)

    def kind(self, path: str) -> str | None:
        """Return "file", "directory" or "other" for `path` there, or None if absent."""
        (look,) = self._find([path])
        return look.kind if look else None


class NoLinks(dict[str, "str | None"]):
    """Reports each file as no link: the user's patterns mean names there, not files here."""

    def __contains__(self, _key: object) -> bool:  # noqa: D105
        return True

    def __missing__(self, _key: str) -> None:  # noqa: D105
        return None


class PlaceContext(ContextDistributor):
    """Sends the CLIs of the place whose files have `names` their context."""

    checks_disk = False

    def __init__(self, names: PlaceNames, reports: Reports) -> None:
        super().__init__(reports)
        self.names = names
        self._resolved: Mapping[str, ResolvedPath] = {}
        self._link: Link | None = None
        self._home = ""

    def set_snapshot(self, snapshot: Snapshot) -> None:
        """Set the snapshot of all buffers, without those of other places."""
        path_of = self.names.path
        files = tuple(replace(file, path=path) for file in snapshot.files if (path := path_of(file.path)) is not None)
        active = None if snapshot.active is None else path_of(snapshot.active)
        if active is None:
            snapshot = Snapshot(files, None, None, None, None)
        super().set_snapshot(replace(snapshot, files=files, active=active))

    def set_link(self, link: Link | None, home: str = "") -> None:
        """Set the pipe to the place, None without one, and the home directory there."""
        self._link, self._home = link, home
        self.start_over()

    def set_resolved_roots(self, roots: Sequence[ResolvedPath]) -> None:
        """Set the workspace roots there."""
        self._resolved = {root.path: root for root in roots}
        self.set_roots(tuple(self._resolved))
        self.start_over()

    def rule(self, name: str, rule: str) -> str | None:
        """Return why no CLI there gets the file with `name` in Emacs, or None if one may.

        It is `rule` for a file of elsewhere, or while no CLI is there.
        """
        if self.names.path(name) is None or not self.has_sessions:
            return rule
        return next((each.rule for each in self.exclusions if each.path == name and each.session is None), None)

    async def find(self, job: Job) -> tuple[Findings, float]:
        """See `ContextDistributor`."""
        looked = await self.inspect(list(newest_times(job.snapshot)))
        missing = frozenset(path for path, look in looked.items() if look.kind != "file")
        rules: dict[str, str | None] = {path: NOT_ON_DISK if path in missing else None for path in looked}
        for path in job.ruled:
            rules[path] = looked[path].rule or rules[path] if path in looked else _UNKNOWN.rule
        scopes = {each: self.scope(each, job.roots, job.settings) for each in job.directories}
        places = {path: look.path for path, look in looked.items()}
        return Findings(job, places, dict.fromkeys(job.families, rules), scopes, missing), LOOK_S

    def resolve(self, path: str) -> ResolvedPath:
        """See `ContextDistributor`."""
        return self._resolved.get(path) or ResolvedPath(path, path)

    def view(self) -> tuple[Exclusions, Callable[[str], ResolvedPath], Callable[[str], str | None]]:
        """See `ContextDistributor`."""
        looks = Looks(self.inspect)
        return looks, looks.resolve, looks.kind

    async def inspect(self, paths: Sequence[str]) -> Mapping[str, Looked]:
        """Inspect `paths` there; omit those that the relay cannot inspect.

        :raises LinkError: when the pipe is broken
        :raises RequestError: when the relay fails
        """
        if self._link is None or self.settings is None:
            raise LinkError("the connection has ended")
        files = [
            IgnoreFile("qwen", name, tuple(dict.fromkeys((root.path, root.real))))
            for root in self._resolved.values()
            for name in IGNORE_FILES["qwen"]
        ]
        texts = [file.path for file in files]
        found = read_answer(_Checked, await self._link.request("check", paths=list(paths), texts=texts))
        if len(found.texts) != len(files):
            raise RequestError("the relay has not read all ignore files")
        rules = [rules_of(file, text) for file, text in zip(files, found.texts, strict=True)]
        user = UserRules(Options(self.settings.patterns, self.settings.auth_sources), {"HOME": self._home})
        settled = user.settle(NoLinks())
        outside = await in_thread(_lead_out, self.names, paths) if self.names.shared else ()
        looked: dict[str, Looked] = {}
        for path, look in zip(paths, map(read_look, found.files), strict=False):
            if look is None:
                continue
            names = look.spellings
            verdicts = (rule.verdict(names) for rule in rules)
            reasons = (
                *map(secret, names),
                options.match(settled, names),
                "ignored by git" if look.repository and look.ignored is not False else None,
                *(verdict.rule for verdict in verdicts if verdict is not None),
                "a link that leads out of a shared directory" if path in outside else None,
            )
            rule = next((reason for reason in reasons if reason is not None), None)
            looked[path] = Looked(ResolvedPath(path, names[-1]), look.kind, rule)
        return looked


def _lead_out(names: PlaceNames, paths: Sequence[str]) -> set[str]:
    """Return the `paths` in shared directories that lead out of them by links on this machine."""
    files = {path: names.file(path) for path in paths}
    here = {path: ResolvedPath.of(file.path).real for path, file in files.items() if not file.place}
    tops = [ResolvedPath.of(each.here).real for each in names.shared] if here else []
    return {
        path
        for path, real in here.items()
        if not any(ResolvedPath(real, real).is_below(ResolvedPath(top, top)) for top in tops)
    }


def rules_of(file: IgnoreFile, found: Mapping[str, Any]) -> Rules:
    """Return the rules in `file`, by the relay's answer `found`."""
    if not found:
        return Rules(file, None, None)
    try:
        return Rules(file, Patterns(parse(file.path, str(found["text"]).encode("utf-8", "surrogatepass"))), None)
    except KeyError:
        return Rules(file, None, excluded(f"{file.path} cannot be read"))
    except RuleFileError as error:
        return Rules(file, None, excluded(str(error)))
