# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide which of the files in an answer one CLI may be sent."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from qwen_companion.domain import HIDE, SHOW, Peer, PlaceNames
from qwen_companion.ide.context import ResolvedPath
from qwen_companion.privacy.verdicts import Verdict

HIDDEN = "hidden by you"
"""The rule of a file that the user hides from all CLIs."""


class Exclusions(Protocol):
    """Judges files, see `privacy.exclusions`."""

    def check(self, paths: Sequence[str], roots: Sequence[str], family: str | None, /) -> Mapping[str, Verdict]:
        """Return the verdict on each of `paths`."""
        ...


def kind_of(path: str) -> str | None:
    """Return "directory" or "file" for a local `path`, or None if absent.  Blocks on disk I/O."""
    if os.path.isdir(path):
        return "directory"
    return "file" if os.path.exists(path) else None


@dataclass(frozen=True)
class Access:
    """The files that one CLI may be sent, by their names where it runs.

    It works in `directory`, None if unknown, and may be sent files below `scope`, None for everywhere, that no rule of
    `exclusions` excludes.  `exposures` are the user's choices for single files.  `trusted` is the trust in its
    workspace that it is sent.  `place` has Emacs's names of its files; `resolve` and `kind` inspect files there.
    """

    exclusions: Exclusions
    roots: tuple[str, ...]
    scope: tuple[ResolvedPath, ...] | None
    family: str | None
    directory: str | None
    exposures: Mapping[str, str | None]
    trusted: bool | None
    place: PlaceNames = PlaceNames()
    resolve: Callable[[str], ResolvedPath] = ResolvedPath.of
    kind: Callable[[str], str | None] = kind_of

    @property
    def directories(self) -> tuple[str, ...] | None:
        """The directories below which it may be sent files; None for everywhere."""
        return None if self.scope is None else tuple(root.path for root in self.scope)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names in Emacs of `directories`; None for everywhere on this machine."""
        if self.directories is not None:
            return tuple(self.place.file(path).name for path in self.directories)
        return (f"{self.place.place}/", *(each.here for each in self.place.shared)) if self.place.place else None

    def rules(self, paths: Iterable[str]) -> dict[str, str | None]:
        """Return for each of `paths` the rule that hides it from the CLI, or None.

        Blocks on disk I/O.
        """
        wanted = list(dict.fromkeys(paths))
        hidden = self._hidden()
        verdicts = self.exclusions.check(wanted, self.roots, self.family)
        rules: dict[str, str | None] = {}
        for path in wanted:
            place = self.resolve(path)
            if place.path in hidden or place.real in hidden:
                rules[path] = HIDDEN
            elif self.scope is not None and not any(place.is_below(root) for root in self.scope):
                rules[path] = f"it is outside of {os.pathsep.join(self.directories or ()) or 'every project'}"
            elif self.exposures.get(path) == SHOW:
                rules[path] = None
            else:
                verdict = verdicts[path]
                rules[path] = verdict.rule if verdict.excluded else None
        return rules

    def _hidden(self) -> set[str]:
        """Return all names of the files that the user hides: a link to one is hidden too."""
        names = [path for path, exposure in self.exposures.items() if exposure == HIDE]
        return {*names, *(self.resolve(name).real for name in names)}


def excluded(
    access: Callable[[Peer | None], Access | None], peer: Peer | None, paths: Sequence[str]
) -> Collection[str]:
    """Return the `paths` hidden from the CLI in the process `peer`.  Blocks on disk I/O.

    In a directory shared with its place, these are local names.  `access` returns the files it may be sent; None, while
    unknown, excludes all.
    """
    found = access(peer)
    if found is None or found.trusted is False:
        return paths
    there = {path: found.place.path(path) or path for path in paths}
    rules = found.rules(there.values())
    return [path for path in paths if rules[there[path]] is not None]
