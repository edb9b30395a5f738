# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files one CLI may be told of, asked for the files that an answer is about."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from qwen_companion.domain import HIDE, SHOW
from qwen_companion.frozen import frozen
from qwen_companion.ide.context import ResolvedPath

if TYPE_CHECKING:
    from qwen_companion.privacy.exclusions import Exclusions

HIDDEN = "hidden by you"
"""The rule of a file that the user keeps from all CLIs."""


@frozen
class Access:
    """The files that one CLI may be told of.

    It works in `directory`, None where that is not known, and may be told of files below `scope`, None for everywhere,
    that no rule of `exclusions` excludes.  `exposures` are the user's words on single files.  `trusted` is what it is
    told of the trust in its workspace.
    """

    exclusions: Exclusions
    roots: tuple[str, ...]
    scope: tuple[ResolvedPath, ...] | None
    family: str | None
    directory: str | None
    exposures: Mapping[str, str | None]
    trusted: bool | None

    @property
    def directories(self) -> tuple[str, ...] | None:
        """Those below which it may be told of files; None for everywhere."""
        return None if self.scope is None else tuple(root.path for root in self.scope)

    def rules(self, paths: Iterable[str]) -> dict[str, str | None]:
        """Return for each of `paths` the rule that keeps it from the CLI, None for one it may be told of.

        Waits for the disk.
        """
        wanted = list(dict.fromkeys(paths))
        hidden = self._hidden()
        verdicts = self.exclusions.check(wanted, self.roots, self.family)
        rules: dict[str, str | None] = {}
        for path in wanted:
            place = ResolvedPath.of(path)
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
        """Return all names of the files that the user hides: a link to one is no way round that."""
        names = [path for path, exposure in self.exposures.items() if exposure == HIDE]
        return {*names, *(os.path.realpath(name) for name in names)}
