# SPDX-License-Identifier: GPL-3.0-or-later
"""Reduce Emacs's snapshot to the context of one CLI (spec C3-C6)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qwen_companion.base.file_names import LONGEST_BYTES
from qwen_companion.domain import Snapshot
from qwen_companion.ide.models import Json, active_file, ide_context, open_file

MAX_FILES = 10
MAX_SELECTION_UNITS = 16384
"""UTF-16 code units, the unit in which the CLI counts (spec C6)."""


@dataclass(frozen=True)
class ResolvedPath:
    """A path as given, and its real path."""

    path: str
    real: str

    @classmethod
    def of(cls, path: str) -> ResolvedPath:
        """Resolve `path`; leave an impossible file name as given.  May block on disk I/O."""
        possible = "\0" not in path and len(path) < LONGEST_BYTES
        return cls(path, os.path.realpath(path) if possible else path)

    def is_below(self, root: ResolvedPath) -> bool:
        """Return whether this is `root` or below it, by either name: a link in a project belongs to the project."""
        return any(
            name == top or name.startswith(top.rstrip(os.sep) + os.sep)
            for name, top in ((self.path, root.path), (self.real, root.real))
        )


def own_root(directory: ResolvedPath, roots: Sequence[ResolvedPath]) -> ResolvedPath:
    """Return the root of a CLI working in `directory`: the innermost of `roots` around it, or else `directory`."""
    return max((root for root in roots if directory.is_below(root)), key=lambda r: len(r.real), default=directory)


def cut_utf16(text: str, units: int) -> str:
    """Return the longest start of `text` that has at most `units` UTF-16 code units and ends between two characters."""
    if len(text) * 2 <= units:
        return text
    encoded = text[:units].encode("utf-16-le")[: 2 * units]
    # "ignore" drops the first half of a character whose second half was cut off.
    return encoded.decode("utf-16-le", "ignore")


def newest_times(snapshot: Snapshot) -> dict[str, int]:
    """Return the files of `snapshot` with the newest time of each."""
    newest: dict[str, int] = {}
    for file in snapshot.files:
        newest[file.path] = max(file.timestamp, newest.get(file.path, file.timestamp))
    return newest


def describe(snapshot: Snapshot, allowed: Mapping[str, int], trusted: bool | None) -> Json:
    """Return the context of `snapshot` with the ten newest of the files `allowed`, path to time; the active one first.

    A CLI regards the file with the newest timestamp as the active one, or no file if that one is not marked active.  So
    when the active file is not allowed, none is active.
    """
    files = sorted(allowed.items(), key=lambda item: item[1], reverse=True)
    entries = [open_file(path, stamp) for path, stamp in files if path != snapshot.active]
    if snapshot.active is not None and snapshot.active in allowed:
        cursor = None
        if snapshot.line is not None and snapshot.character is not None:
            cursor = max(1, snapshot.line), max(1, snapshot.character)
        selection = cut_utf16(snapshot.selection, MAX_SELECTION_UNITS) if snapshot.selection else None
        stamp = max(allowed[snapshot.active], entries[0]["timestamp"] + 1 if entries else 0)
        entries.insert(0, active_file(snapshot.active, stamp, cursor, selection))
    return ide_context(entries[:MAX_FILES], trusted)
