# SPDX-License-Identifier: GPL-3.0-or-later
"""The context of one place's CLIs: the open files of that place, filtered by the rules read there.

As for local files, a file is sent only after all rules were checked.  A file that the relay cannot inspect is excluded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import anyio

from qwen_companion.domain import HIDE, SHOW, KnownSession, Peer, PlaceNames, Settings, Snapshot
from qwen_companion.errors import CompanionError, RuleFileError
from qwen_companion.ide.access import Access
from qwen_companion.ide.context import ResolvedPath, describe, newest_times, own_root
from qwen_companion.ide.models import context_update
from qwen_companion.privacy import options
from qwen_companion.privacy.ignore_files import IGNORE_FILES, IgnoreFile, Rules
from qwen_companion.privacy.options import Options, UserRules
from qwen_companion.privacy.patterns import Patterns, parse
from qwen_companion.privacy.rules import secret
from qwen_companion.privacy.verdicts import ALLOWED, Verdict, excluded
from qwen_companion.remote.link import Link, LinkError, RequestError, objects, read_look
from qwen_companion.threads import in_thread, on_event_loop

LOOK_S = 5.0
"""Seconds that rules from there stay valid; after that they are read again before anything is sent."""

_UNKNOWN = excluded("its place does not say what it is")
_OUTSIDE = "outside of the roots at its place"


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


class PlaceContext:
    """Sends context to the sessions of the place whose files have `names`."""

    def __init__(self, names: PlaceNames, deliver: Callable[[str, bytes], None]) -> None:
        """`deliver` is called with a session's id and its context."""
        self._names = names
        self._deliver = deliver
        self._sessions: dict[str, KnownSession] = {}
        self._trusted: dict[str, bool | None] = {}
        self._snapshot: Snapshot | None = None
        self._settings: Settings | None = None
        self._roots: tuple[ResolvedPath, ...] = ()
        self._link: Link | None = None
        self._home = ""
        self._changed = anyio.Event()
        self._basis: object = None
        self._allowed: dict[str, ResolvedPath] = {}
        self._looked: dict[str, Looked] = {}
        self._told: set[str] = set()
        """The files sent to a session."""
        self._look_again_at = 0.0

    def set_snapshot(self, snapshot: Snapshot) -> None:
        """Set the snapshot of all buffers, without those of other places."""
        path_of = self._names.path
        files = tuple(replace(file, path=path) for file in snapshot.files if (path := path_of(file.path)) is not None)
        active = None if snapshot.active is None else path_of(snapshot.active)
        if active is None:
            snapshot = Snapshot(files, None, None, None, None)
        self._snapshot = replace(snapshot, files=files, active=active)
        self._changed.set()

    def set_settings(self, settings: Settings) -> None:
        """Set the user's settings."""
        self._settings = settings
        self._changed.set()

    def set_session(self, session: KnownSession) -> None:
        """Add or update a session."""
        self._sessions[session.id] = session
        self._changed.set()

    def drop_session(self, identifier: str) -> None:
        """Remove an ended session."""
        self._sessions.pop(identifier, None)
        self._trusted.pop(identifier, None)

    def set_link(self, link: Link | None, home: str = "") -> None:
        """Set the pipe to the place, None without one, and the home directory there."""
        self._link, self._home, self._basis = link, home, None
        self._changed.set()

    def set_roots(self, roots: Sequence[ResolvedPath]) -> None:
        """Set the workspace roots there."""
        self._roots = tuple(roots)
        self._changed.set()

    def root_of(self, session: str) -> tuple[str, ...]:
        """Return Emacs's names of the roots below which `session` gets files."""
        return tuple(self._names.file(root.path).name for root in self._scope(self._peer(session)))

    def rule(self, name: str, rule: str) -> str | None:
        """Return why no CLI there gets the file with `name` in Emacs, or None if one does.

        It is `rule` for a file of elsewhere, or while no CLI is there.
        """
        path = self._names.path(name)
        if path is None or not self._sessions:
            return rule
        if path in self._told:
            return None
        if path in self._allowed:
            return _OUTSIDE
        return (self._looked[path].rule if path in self._looked else None) or rule

    async def run(self) -> None:
        """Update the sessions after each change, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            try:
                await self._update_sessions()
            except (LinkError, RequestError):
                # Nothing is sent before the rules are known.  A new pipe starts over.
                self._basis = None

    def _peer(self, session: str) -> Peer | None:
        return self._sessions[session].peer if session in self._sessions else None

    def _scope(self, peer: Peer | None) -> tuple[ResolvedPath, ...]:
        directory = None if peer is None else peer.directory
        return self._roots if directory is None else (own_root(ResolvedPath(directory, directory), self._roots),)

    async def _update_sessions(self) -> None:
        link, snapshot, settings = self._link, self._snapshot, self._settings
        if link is None or snapshot is None or settings is None or not self._sessions:
            return
        basis = (frozenset((file.path, file.exposure) for file in snapshot.files), self._roots, settings)
        if basis != self._basis or time.monotonic() > self._look_again_at:
            self._allowed = await self._check(link, snapshot, settings)
            self._basis, self._look_again_at = basis, time.monotonic() + LOOK_S
        times = newest_times(snapshot)
        self._told.clear()
        for identifier in self._sessions:
            scope = self._scope(self._peer(identifier))
            allowed = {
                path: times[path]
                for path, place in self._allowed.items()
                if settings.all_roots or any(place.is_below(root) for root in scope)
            }
            self._told.update(allowed)
            # Constant for the life of a connection.  Trusted directories are local ones.
            trusted = self._trusted.setdefault(identifier, settings.trust if isinstance(settings.trust, bool) else None)
            self._deliver(identifier, context_update(describe(snapshot, allowed, trusted)))

    async def _check(self, link: Link, snapshot: Snapshot, settings: Settings) -> dict[str, ResolvedPath]:
        """Return the files of `snapshot` that no rule excludes.

        :raises LinkError: when the pipe is broken
        :raises RequestError: when the relay fails
        """
        exposures = {file.path: file.exposure for file in snapshot.files if file.exposure != HIDE}
        self._looked = await self._inspect(link, settings, list(exposures))
        return {
            path: look.path
            for path, look in self._looked.items()
            if look.kind == "file" and (exposures[path] == SHOW or look.rule is None)
        }

    def access(self, peer: Peer) -> Access | None:
        """Return the access of the CLI in the process `peer` there, or None while unknown."""
        settings, snapshot = self._settings, self._snapshot
        if settings is None:
            return None
        looks = Looks(self.inspect)
        return Access(
            exclusions=looks,
            roots=tuple(root.path for root in self._roots),
            scope=None if settings.all_roots else self._scope(peer),
            family=peer.family,
            directory=peer.directory,
            exposures={file.path: file.exposure for file in snapshot.files} if snapshot else {},
            trusted=settings.trust if isinstance(settings.trust, bool) else None,
            place=self._names,
            resolve=looks.resolve,
            kind=looks.kind,
        )

    async def inspect(self, paths: Sequence[str]) -> Mapping[str, Looked]:
        """Inspect `paths` there; omit those that the relay cannot inspect.

        :raises LinkError: when the pipe is broken
        :raises RequestError: when the relay fails
        """
        if self._link is None or self._settings is None:
            raise LinkError("the connection has ended")
        return await self._inspect(self._link, self._settings, paths)

    async def _inspect(self, link: Link, settings: Settings, paths: Sequence[str]) -> dict[str, Looked]:
        files = [
            IgnoreFile("qwen", name, tuple(dict.fromkeys((root.path, root.real))))
            for root in self._roots
            for name in IGNORE_FILES["qwen"]
        ]
        found = await link.request("check", paths=list(paths), texts=[file.path for file in files])
        looks, texts = (objects(found.get(key)) for key in ("files", "texts"))
        if len(texts) != len(files):
            raise RequestError("the relay has not read all ignore files")
        rules = [rules_of(file, text) for file, text in zip(files, texts, strict=True)]
        user = UserRules(Options(settings.patterns, settings.auth_sources), {"HOME": self._home})
        settled = user.settle(NoLinks())
        outside = await in_thread(_lead_out, self._names, paths) if self._names.shared else ()
        looked: dict[str, Looked] = {}
        for path, look in zip(paths, map(read_look, looks), strict=False):
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
