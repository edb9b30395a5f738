# SPDX-License-Identifier: GPL-3.0-or-later
"""The files below a root that are not recorded, in addition to those that git ignores."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping

from qwen_companion.base.errors import RuleFileError, UnknownNameError
from qwen_companion.privacy import options as user
from qwen_companion.privacy.ignore_files import ignore_files, load
from qwen_companion.privacy.names import names
from qwen_companion.privacy.options import Options, UserRules
from qwen_companion.privacy.patterns import read
from qwen_companion.privacy.rules import RULES, fragment, secret

OWN = frozenset((".git", ".hg", ".jj", ".sl", ".svn", ".bzr", "_darcs", ".pijul", ".fslckout", "_FOSSIL_", "CVS"))
"""Names of private directories and files of version control systems in a work tree."""


class RecordRules:
    """The rules of one root.  `refresh` reads all of them anew, except the names of secrets."""

    def __init__(self, root: str, environ: Mapping[str, str]) -> None:
        """`root` is a true name."""
        self._root = root
        self._environ = environ
        self._user = UserRules(Options(), environ)
        self._hidden: frozenset[str] = frozenset()
        self._own: dict[str, str | None] = {}
        """The results of `own_directory` for directories since the last `refresh`."""
        self.refresh()

    def set_options(self, options: Options, hidden: Iterable[str]) -> None:
        """Exclude files by `options`, and the files `hidden`."""
        self._user = UserRules(options, self._environ)
        self._hidden = frozenset(hidden)

    def refresh(self) -> None:
        """Read from the disk: true names, repositories, and the ignore files of CLIs."""
        self._own.clear()
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
        """The reason why an ignore file excludes every file, in words; None if none does."""
        return next((file.problem.rule for file in self._files if file.problem is not None), None)

    def patterns(self, is_root: bool) -> list[str]:
        """Return gitignore patterns of files that are not recorded in a repository; `is_root`: in that of the root."""
        found: list[str] = sorted(OWN - {".git"})
        # The patterns of CLIs' ignore files are relative to the root.
        for file in self._files if is_root else ():
            try:
                found += [line.text for line in read(file.file.path) or ()]
            except RuleFileError:
                pass
        return found

    def excluded(self, files: Collection[bytes]) -> set[bytes]:
        """Return those of `files`, absolute and below the root, that must not be recorded."""
        paths = [os.fsdecode(file) for file in files]
        found = {path for path in paths if self.own_directory(path) is not None}
        if self._hidden:
            found |= {path for path in paths if path in self._hidden}
        # Only a few of many names can be those of secrets, and a full check takes 0.02 ms.
        all_names = "\n".join(paths).lower()
        likely = [fragment for fragment in _FRAGMENTS if fragment in all_names]
        if likely:
            found |= {path for path in paths if any(fragment in path.lower() for fragment in likely) and secret(path)}
        if self._settled or self._files:
            found |= {path for path in paths if self._is_excluded(path)}
        return set(map(os.fsencode, found))

    def own_directory(self, path: str) -> str | None:
        """See the function of that name.  The answer for a directory is cached until the next `refresh`."""
        return own_directory(self._root, path, self._own)

    def _is_excluded(self, path: str) -> bool:
        below = path[len(self._root.rstrip("/")) :]
        spellings = [spelling.rstrip("/") + below for spelling in self._spellings]
        return user.match(self._settled, spellings) is not None or any(file.verdict(spellings) for file in self._files)


def own_directory(root: str, path: str, known: dict[str, str | None]) -> str | None:
    """Return the private directory of a repository that contains, or is, `path`, a true name below `root`.

    None for all other files, also those of a work tree within such a directory.  `known` caches the results for
    directories.  Blocks on disk I/O.
    """
    directory, name = os.path.split(path)
    if name in OWN:
        return path
    new: list[str] = []
    while directory not in known:
        new.append(directory)
        is_below = directory.startswith(f"{root.rstrip('/')}/")
        # A bare repository may have any name.
        is_bare = all(os.path.exists(os.path.join(directory, part)) for part in ("HEAD", "objects", "refs"))
        if is_bare or (is_below and os.path.basename(directory) in OWN):
            known[directory] = directory
        elif not is_below or os.path.lexists(os.path.join(directory, ".git")):
            known[directory] = None
        else:
            directory = os.path.dirname(directory)
    known.update(dict.fromkeys(new, known[directory]))
    return known[directory]


_FRAGMENTS = tuple(dict.fromkeys(fragment(pattern) for rule in RULES for pattern in rule.patterns))
"""Each name of a secret contains one of these."""
