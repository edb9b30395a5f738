# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files below a root are not recorded, beside those that git ignores."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping

from qwen_companion.errors import RuleFileError, UnknownNameError
from qwen_companion.privacy import options as user
from qwen_companion.privacy.ignore_files import ignore_files, load
from qwen_companion.privacy.names import names
from qwen_companion.privacy.options import Options, UserRules
from qwen_companion.privacy.patterns import read
from qwen_companion.privacy.rules import RULES, fragment, secret


class RecordRules:
    """The rules of one root.  All but the names of secrets are read anew by `refresh`."""

    def __init__(self, root: str, environ: Mapping[str, str]) -> None:
        """`root` is a true name."""
        self._root = root
        self._environ = environ
        self._user = UserRules(Options(), environ)
        self._hidden: frozenset[str] = frozenset()
        self.refresh()

    def set_options(self, options: Options, hidden: Iterable[str]) -> None:
        """Exclude files by `options`, and the files `hidden`."""
        self._user = UserRules(options, self._environ)
        self._hidden = frozenset(hidden)

    def refresh(self) -> None:
        """Look at the disk: where names lead, and what the ignore files of CLIs say."""
        links: dict[str, str | None] = {}
        try:
            self._spellings: tuple[str, ...] = names(self._root, links).spellings
        except UnknownNameError:
            self._spellings = (self._root,)
        self._settled = user.within(self._user.settle(links), self._spellings)
        files = (load(file) for file in ignore_files([self._spellings]))
        self._files = [file for file in files if file.patterns is not None or file.problem is not None]

    @property
    def problem(self) -> str | None:
        """The reason why an ignore file excludes every file, in words; None where none does."""
        return next((file.problem.rule for file in self._files if file.problem is not None), None)

    def lines(self) -> bytes:
        """Return the patterns of the ignore files, in the gitignore format for the root."""
        found: list[str] = []
        for file in self._files:
            try:
                found += [line.text for line in read(file.file.path) or ()]
            except RuleFileError:
                pass
        return "".join(f"{line}\n" for line in found).encode("utf-8", "surrogateescape")

    def excluded(self, files: Collection[bytes]) -> set[bytes]:
        """Return those of `files`, absolute and below the root, that must not be recorded."""
        paths = [os.fsdecode(file) for file in files]
        found = {path for path in paths if path in self._hidden} if self._hidden else set[str]()
        # Only a few of many names can be those of secrets, and to look closely takes 0.02 ms.
        all_names = "\n".join(paths).lower()
        likely = [fragment for fragment in _FRAGMENTS if fragment in all_names]
        if likely:
            found |= {path for path in paths if any(fragment in path.lower() for fragment in likely) and secret(path)}
        if self._settled or self._files:
            found |= {path for path in paths if self._is_excluded(path)}
        return set(map(os.fsencode, found))

    def _is_excluded(self, path: str) -> bool:
        below = path[len(self._root.rstrip("/")) :]
        spellings = [spelling.rstrip("/") + below for spelling in self._spellings]
        return user.match(self._settled, spellings) is not None or any(file.verdict(spellings) for file in self._files)


_FRAGMENTS = tuple(dict.fromkeys(fragment(pattern) for rule in RULES for pattern in rule.patterns))
"""In each name of a secret there is one of these."""
