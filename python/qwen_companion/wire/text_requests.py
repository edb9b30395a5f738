# SPDX-License-Identifier: GPL-3.0-or-later
"""Answer the requests of Emacs about texts."""

from __future__ import annotations

import logging

from qwen_companion.texts.edits import Edit, find_edits, joined
from qwen_companion.texts.hunks import Budget, compare, split_lines
from qwen_companion.texts.merge import Labels, combine, merge
from qwen_companion.wire.messages import Compare, Compared, Merge, Merged

_EDITS = 50_000
"""Most edits that are sent to Emacs, which takes about 5 microseconds for each."""

_log = logging.getLogger(__name__)


def answer(request: Compare | Merge) -> Compared | Merged:
    """Return the answer to `request`, or one that reports the failure: Emacs waits for it."""
    try:
        return _compare(request) if isinstance(request, Compare) else _merge(request)
    except Exception:  # noqa: BLE001 - whatever it is, the answer says that it failed
        _log.exception("a request about texts failed")
        return request.failed()


def _compare(request: Compare) -> Compared:
    """Return the hunks of lines between the two texts of `request`."""
    if request.texts is None:
        return request.failed()
    old, new = request.texts
    hunks = compare(split_lines(old), split_lines(new), Budget())
    return Compared(
        request.id,
        [
            number
            for hunk in hunks
            for number in (
                hunk.old_start + 1,
                hunk.old_end - hunk.old_start,
                hunk.new_start + 1,
                hunk.new_end - hunk.new_start,
            )
        ],
    )


def _merge(request: Merge) -> Merged:
    """Return the merge of the texts of `request`."""
    if request.texts is None:
        return request.failed()
    *base, mine, theirs = request.texts
    if not base:
        return Merged(request.id, _flat(find_edits(mine, theirs, Budget())))
    if request.labels is None:
        result = combine(base[0], mine, theirs, Budget())
        if result is None:
            return request.failed()
    else:
        result = merge(base[0], mine, theirs, Labels(*request.labels), Budget())
    text = None if result.text == theirs else result.text
    return Merged(request.id, _flat(result.edits), text, result.conflicts)


def _flat(edits: list[Edit]) -> list[int]:
    return [number for edit in joined(edits, _EDITS) for number in edit]
