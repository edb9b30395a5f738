# SPDX-License-Identifier: GPL-3.0-or-later
"""Patterns of the gitignore format, for files outside of repositories too.

pathspec translates the patterns, but matches whole names.  Git, and the library of the CLIs, match each directory on
the way: what is in an excluded directory stays excluded.  So this module walks down the directories.  Like that
library, and unlike git, it ignores case.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from qwen_companion.base.errors import PatternError, RuleFileError
from qwen_companion.privacy.disk import read_start

_MAX_BYTES = 64 * 1024

_MAX_LINE = 1000

_MAX_DIRECTORIES = 5000
"""Most directories whose answers are cached: some 1 MB."""

# Most asterisks of a line whose extent is open.  Each multiplies the time of a match by the length of the name, and
# Python holds its lock meanwhile.
_MAX_FREEDOM = 3

_TOKEN = re.compile(r"\\.|\[[!^]?\]?(?:\[:\w*:\]|\\.|[^\]\\])*\]", re.DOTALL)
_STARS = re.compile(r"\\.|\*+", re.DOTALL)

# Syntax that a regular expression reads differently from git, or warns of.
_HARD = re.compile(r"\A\]|[\[\\/]|--|&&|\|\||~~")
_RANGE = re.compile(r"(.)-(.)", re.DOTALL)

# A character that no pattern contains: patterns have no line break, and the dot does not match it.
_LINE_BREAK = "\uffff"


@dataclass(frozen=True)
class Line:
    """A pattern as its author wrote it; `number` counts the lines of the file from 1."""

    number: int
    text: str


@dataclass(frozen=True)
class _Compiled:
    line: Line
    excludes: bool
    regex: re.Pattern[str]


class Patterns:
    """Lines of a gitignore file.  The last line that matches a name decides."""

    def __init__(self, lines: Iterable[Line]) -> None:
        """Compile `lines` without those that git would never apply."""
        self._compiled: list[_Compiled] = []
        for line in lines:
            try:
                compiled = _compile(line)
            except PatternError:
                continue
            self._compiled.insert(0, compiled)
        self._directories: dict[str, Line | None] = {}

    def match(self, name: str) -> Line | None:
        """Return the line that excludes the file `name`, which is relative to the directory of the patterns."""
        name = name.lower().replace("\n", _LINE_BREAK)
        return self._match_directory(name[: name.rfind("/") + 1]) or self._match_level(name)

    def _match_directory(self, name: str) -> Line | None:
        """Return the line that excludes the directory `name`, "" or with a slash at its end, or a parent of it.

        Cached, as thousands of files in a directory ask for the same.
        """
        if len(self._directories) > _MAX_DIRECTORIES:
            # Another thread may be using the old one.
            self._directories = {}
        known = self._directories
        unknown: list[str] = []
        while name and name not in known:
            unknown.append(name)
            name = name[: name.rfind("/", 0, -1) + 1]
        line = known.get(name)
        for directory in reversed(unknown):
            line = known[directory] = line or self._match_level(directory)
        return line

    def _match_level(self, name: str) -> Line | None:
        for compiled in self._compiled:
            if compiled.regex.fullmatch(name):
                return compiled.line if compiled.excludes else None
        return None


def check(text: str) -> None:
    """Check that `text` is a pattern, and not an exception from other patterns.

    :raises PatternError: if it is not
    """
    if not _compile(Line(1, text)).excludes:
        raise PatternError("an exception from other patterns is not possible here")


def escape(name: str) -> str:
    """Return the pattern that matches `name` only."""
    return re.sub(r"([\\\[\]*?!# ])", r"\\\1", name)


def read(path: str) -> list[Line] | None:
    """Return the lines of the file `path`, None if there is none.

    :raises RuleFileError: if it cannot be used
    """
    try:
        data = read_start(path, _MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RuleFileError(f"{path} cannot be read: {error.strerror}") from None
    return parse(path, data)


def parse(path: str, data: bytes) -> list[Line]:
    """Return the lines in `data`, the content of the file `path`.

    :raises RuleFileError: if it cannot be used
    """
    if len(data) > _MAX_BYTES:
        raise RuleFileError(f"{path} is longer than {_MAX_BYTES // 1024} KiB")
    text = os.fsdecode(data.removeprefix(b"\xef\xbb\xbf"))
    lines = [Line(number, line.removesuffix("\r")) for number, line in enumerate(text.split("\n"), 1)]
    for line in lines:
        if len(line.text) > _MAX_LINE:
            raise RuleFileError(f"{path} has a line of more than {_MAX_LINE} characters")
    return lines


def _compile(line: Line) -> _Compiled:
    """Return `line` compiled.

    :raises PatternError: for a comment, an empty line, and a pattern that matches nothing in git
    """
    # Imported late: that takes time, and most projects have no such file.
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    text = _trim(line.text)
    excludes = not text.startswith("!")
    if not excludes:
        text = text[1:]
        if text.startswith(("#", "!")):
            text = "\\" + text
    pattern, exact = _simplify(text.lower())
    if not exact and not excludes:
        raise PatternError("too complicated for an exception")
    try:
        translated, _ = GitIgnoreSpecPattern.pattern_to_regex(pattern)
        if translated is None:
            raise PatternError("it means no file")
        # In git, a set of characters never contains the slash.
        return _Compiled(line, excludes, re.compile(re.sub(r"\[\^(?!/)", "[^/", translated)))
    except (ValueError, re.error) as error:
        raise PatternError(str(error)) from None


def _trim(text: str) -> str:
    """Return `text` without trailing spaces, except for one after a backslash."""
    trimmed = text.rstrip(" ")
    backslashes = len(trimmed) - len(trimmed.rstrip("\\"))
    return trimmed + " " if backslashes % 2 and trimmed != text else trimmed


def _simplify(text: str) -> tuple[str, bool]:
    """Return a pattern for pathspec that matches the same files as `text`, and True; or one for more files, and False.

    The result has to match a name, that of a directory too, to its end.
    """
    exact = True

    def token(found: re.Match[str]) -> str:
        nonlocal exact
        text = found[0]
        if text.startswith("\\"):
            return "/" if text == "\\/" and found.start() else text
        inside = text[2:-1] if text[1] in "!^" else text[1:-1]
        if _HARD.search(inside) or any(low <= "/" <= high for low, high in _RANGE.findall(inside)):
            exact = False
            return "?"
        return text

    text = _TOKEN.sub(token, text)
    slash = "/" if text.endswith("/") else ""
    names: list[str] = []
    for name in text.removesuffix("/").split("/"):
        name = "**" if len(name) > 2 and set(name) == {"*"} else name
        if name != "**" or names[-1:] != ["**"]:
            names.append(name)
    freedom = 0
    for index, name in enumerate(names):
        stars = [star.end() for star in _STARS.finditer(name) if star[0].startswith("*")]
        allowed = _MAX_FREEDOM - freedom
        freedom += 1 if name == "**" else max(0, len(stars) - 1)
        if freedom > _MAX_FREEDOM:
            names[index:] = [name if name == "**" else name[: stars[allowed]]]
            exact, slash = False, ""
            break
    if names[-1] == "*" or names == ["**"]:
        names[-1] = "?*"
    elif names[-1] == "**":
        names.append("?*")
    return "/".join(names) + slash, exact
