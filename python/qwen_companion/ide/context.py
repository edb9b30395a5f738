# SPDX-License-Identifier: GPL-3.0-or-later
"""From what Emacs shows to what a CLI should be told (spec C3-C6)."""

from __future__ import annotations

import os
from collections.abc import Callable

from qwen_companion.emacs.messages import Snapshot
from qwen_companion.ide.models import Cursor, File, IdeContext, WorkspaceState

MAX_FILES = 10
MAX_SELECTION_UNITS = 16384
"""UTF-16 code units, the unit in which the CLI counts (spec C6)."""


def cut_utf16(text: str, units: int) -> str:
    """The longest start of TEXT that has at most UNITS UTF-16 code units and ends between two characters."""
    if len(text) * 2 <= units:
        return text
    encoded = text[:units].encode("utf-16-le")[: 2 * units]
    # "ignore" drops the first half of a character whose second half was cut off.
    return encoded.decode("utf-16-le", "ignore")


def normalise(snapshot: Snapshot, is_file: Callable[[str], bool] = os.path.isfile) -> IdeContext:
    """The context of SNAPSHOT: existing files only, the newest ten, the active one newest of all.

    A CLI takes the file with the newest timestamp for the active one, and no file when that one does not say so.  May
    wait for a disk: not for the event loop.
    """
    newest: dict[str, int] = {}
    for file in snapshot.files:
        newest[file.path] = max(file.timestamp, newest.get(file.path, file.timestamp))
    existing = [(path, stamp) for path, stamp in newest.items() if os.path.isabs(path) and is_file(path)]
    existing.sort(key=lambda item: item[1], reverse=True)
    if snapshot.active is None or all(path != snapshot.active for path, _ in existing):
        return _context([File(path, stamp) for path, stamp in existing])
    others = [File(path, stamp) for path, stamp in existing if path != snapshot.active]
    stamp = max(newest[snapshot.active], others[0].timestamp + 1 if others else 0)
    cursor = None
    if snapshot.line is not None and snapshot.character is not None:
        cursor = Cursor(max(1, snapshot.line), max(1, snapshot.character))
    selection = cut_utf16(snapshot.selection, MAX_SELECTION_UNITS) if snapshot.selection else None
    return _context([File(snapshot.active, stamp, True, cursor, selection), *others])


def _context(files: list[File]) -> IdeContext:
    return IdeContext(WorkspaceState(tuple(files[:MAX_FILES])))
