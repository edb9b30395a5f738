# SPDX-License-Identifier: GPL-3.0-or-later
"""Write how two texts differ as a unified diff."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qwen_companion.texts.hunks import Budget, Hunk, compare, split_lines

CONTEXT = 3
"""Unchanged lines before and after a change."""

_STEPS = 300_000
"""Budget for comparing two texts, in steps of a microsecond."""


def unified(before: str, after: str) -> str:
    """Return the hunks from `before` to `after` as `diff -u` writes them, without the header that names files."""
    old, new = split_lines(before), split_lines(after)
    groups: list[list[Hunk]] = []
    for hunk in compare(old, new, Budget(_STEPS)):
        if groups and hunk.old_start - groups[-1][-1].old_end <= 2 * CONTEXT:
            groups[-1].append(hunk)
        else:
            groups.append([hunk])
    return "".join(line for group in groups for line in _lines(old, new, group))


def _lines(old: Sequence[str], new: Sequence[str], group: Sequence[Hunk]) -> Iterator[str]:
    """Yield the lines of `group`, the changes of one hunk."""
    first, last = group[0], group[-1]
    start = max(0, first.old_start - CONTEXT)
    end = min(len(old), last.old_end + CONTEXT)
    new_start, new_end = first.new_start - (first.old_start - start), last.new_end + (end - last.old_end)
    yield f"@@ -{_range(start, end)} +{_range(new_start, new_end)} @@\n"
    for hunk in group:
        yield from _marked(" ", old[start : hunk.old_start])
        yield from _marked("-", old[hunk.old_start : hunk.old_end])
        yield from _marked("+", new[hunk.new_start : hunk.new_end])
        start = hunk.old_end
    yield from _marked(" ", old[start:end])


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"


def _range(start: int, end: int) -> str:
    """Return the range of the lines from `start` to `end`, counted from 0, for the header of a hunk."""
    length = end - start
    return f"{start + 1}" if length == 1 else f"{start + 1 if length else start},{length}"
