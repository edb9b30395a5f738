# SPDX-License-Identifier: GPL-3.0-or-later
"""The ignore files of CLIs, such as `.qwenignore`, in a root."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from qwen_companion.base.errors import RuleFileError
from qwen_companion.privacy.patterns import Patterns, read
from qwen_companion.privacy.verdicts import Verdict, excluded

IGNORE_FILES: Mapping[str, tuple[str, ...]] = {
    "qwen": (".qwenignore", ".agentignore", ".aiignore"),
    "gemini": (".geminiignore",),
}
"""The names of the files, by the family of CLIs that reads them."""


@dataclass(frozen=True)
class IgnoreFile:
    """The file `name`, existing or not, of the CLIs of `family` in the directory with the names `root`."""

    family: str
    name: str
    root: tuple[str, ...]

    @property
    def path(self) -> str:
        """The absolute name."""
        return os.path.join(self.root[0], self.name)


@dataclass(frozen=True)
class Rules:
    """The current rules of an ignore file; if it cannot be used, they exclude everything."""

    file: IgnoreFile
    patterns: Patterns | None
    problem: Verdict | None

    def verdict(self, spellings: Sequence[str]) -> Verdict | None:
        """Return the verdict that excludes a file with the absolute names `spellings`."""
        for root in self.file.root:
            below = root.rstrip("/") + "/"
            for spelling in spellings:
                # Some disks do not tell upper from lower case.
                if spelling[: len(below)].lower() != below.lower():
                    continue
                if self.problem is not None:
                    return self.problem
                line = self.patterns.match(spelling[len(below) :]) if self.patterns is not None else None
                if line is not None:
                    return excluded(f"{self.file.name}:{line.number}: {line.text}")
        return None


def ignore_files(roots: Iterable[tuple[str, ...]]) -> Iterator[IgnoreFile]:
    """Yield all ignore files that may exist in `roots`; each root is given by its names."""
    for root in roots:
        for family, file_names in IGNORE_FILES.items():
            for name in file_names:
                yield IgnoreFile(family, name, root)


def load(file: IgnoreFile) -> Rules:
    """Return the rules in `file`."""
    try:
        lines = read(file.path)
    except RuleFileError as error:
        return Rules(file, None, excluded(str(error)))
    return Rules(file, None if lines is None else Patterns(lines), None)
