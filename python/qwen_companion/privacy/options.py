# SPDX-License-Identifier: GPL-3.0-or-later
"""The user's options about single files and directories."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from qwen_companion.base.errors import PatternError, UnknownNameError
from qwen_companion.privacy import patterns
from qwen_companion.privacy.names import names
from qwen_companion.privacy.patterns import Line, Patterns
from qwen_companion.privacy.verdicts import printable

_GLOB = re.compile(r"[*?\[\\]")


@dataclass(frozen=True)
class Options:
    """The user's options.

    `patterns` have the gitignore format.  One that begins with "/" or "~" is absolute.  One with a slash before its end
    is relative to the home directory.  Any other fits names in all directories.  `auth_sources` are the files from
    which Emacs reads passwords.
    """

    patterns: tuple[str, ...] = ()
    auth_sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settled:
    """A rule in words and its gitignore `pattern`, relative to the root directory, for the disk as it is now.

    It excludes the file `start`, or files below that directory; with "", files anywhere.
    """

    rule: str
    pattern: str
    start: str


@dataclass(frozen=True)
class _Place:
    """`start` is an absolute name without wildcards, or "" for anywhere; `rest` is a pattern below it."""

    rule: str
    start: str
    rest: str


class UserRules:
    """The options in force.  `warnings` name entries that cannot be used and exclude nothing."""

    def __init__(self, options: Options, environ: Mapping[str, str]) -> None:
        """`environ` names the home directory."""
        self._home = environ.get("HOME") or os.path.expanduser("~")
        self._places: list[_Place] = []
        warnings: list[str] = []
        for parse, texts in ((self._pattern, options.patterns), (self._auth_source, options.auth_sources)):
            for text in texts:
                try:
                    self._places.append(parse(text))
                except PatternError as error:
                    warnings.append(printable(f'nothing is excluded by "{text}": {error}'))
        self.warnings = tuple(warnings)

    def settle(self, links: dict[str, str | None]) -> tuple[Settled, ...]:
        """Return the rules for the true names of their locations.  `links` is as for `names`."""
        settled: list[Settled] = []
        for place in self._places:
            start = place.start
            known = ""
            if start:
                with suppress(UnknownNameError):  # Then the true names of the files below it are unknown too.
                    start = known = names(start, links).true
            settled.append(Settled(place.rule, patterns.escape(start).rstrip("/") + place.rest, known))
        return tuple(settled)

    def _pattern(self, text: str) -> _Place:
        patterns.check(text)
        rule = f"the option: {text}"
        if not text.startswith("~") and "/" not in text.rstrip("/"):
            return _Place(rule, "", text)
        start, rest = ("/", text) if text.startswith("/") else self._from_home(text)
        parts = rest.strip("/").split("/")
        while parts and not _GLOB.search(parts[0]):
            start = os.path.join(start, parts.pop(0))
        below = "".join(f"/{part}" for part in parts) + ("/" if text.endswith("/") else "")
        return _Place(rule, start, below)

    def _auth_source(self, name: str) -> _Place:
        return _Place(f"an auth-source file: {name}", os.path.join(*self._from_home(name)), "")

    def _from_home(self, name: str) -> tuple[str, str]:
        """Return the home directory with which `name` begins, and the rest of `name`."""
        if not name.startswith("~"):
            return self._home, name
        user, _, rest = name.partition("/")
        directory = self._home if user == "~" else os.path.expanduser(user) if "\0" not in user else ""
        if not os.path.isabs(directory):
            raise PatternError(f"there is no user {user[1:]}")
        return directory, rest


def within(settled: tuple[Settled, ...], directories: Iterable[str]) -> tuple[Settled, ...]:
    """Return those of `settled` that may exclude a file below one of `directories`, which are absolute names."""
    below = [_with_slash(directory) for directory in directories]

    def meets(start: str) -> bool:
        return any(start.startswith(directory) or directory.startswith(start) for directory in below)

    return tuple(each for each in settled if not each.start or meets(_with_slash(each.start)))


def _with_slash(name: str) -> str:
    # Patterns ignore case.
    return name.lower().rstrip("/") + "/"


@lru_cache(maxsize=8)
def _compiled(settled: tuple[Settled, ...]) -> Patterns:
    return Patterns(Line(index, each.pattern) for index, each in enumerate(settled))


def match(settled: tuple[Settled, ...], spellings: Sequence[str]) -> str | None:
    """Return the rule, in words, that excludes a file with one of the absolute names `spellings`."""
    if not settled:
        return None
    for name in spellings:
        line = _compiled(settled).match(name.lstrip("/"))
        if line is not None:
            return settled[line.number].rule
    return None
