# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute small edits between two texts, so that point and markers stay with their words.

Changed lines are paired, and the words of each pair compared.  If a block is too large for that, the result is coarser
but still correct.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from qwen_companion.texts.hunks import Budget, Hunk, compare, split_lines

_WORDS = re.compile(r"\w+|\n|[^\S\n]+|[^\w\s]")
"""Words, line ends, other blanks, and all other characters one by one; together they match every character."""

_ALIKE = 3
"""Two lines are versions of one line if this part, 1/3, of the shorter one is the same in both."""


class Edit(NamedTuple):
    """`old[start:end]` became `new[new_start:new_end]`, in characters (code points)."""

    start: int
    end: int
    new_start: int
    new_end: int


def find_edits(old: str, new: str, budget: Budget) -> list[Edit]:
    """Return the edits that turn `old` into `new`, in order and without overlap."""
    if old == new:
        return []
    old_lines, new_lines = split_lines(old), split_lines(new)
    old_offsets, new_offsets = _offsets(old_lines), _offsets(new_lines)
    edits: list[Edit] = []
    for i, j, k, m in compare(old_lines, new_lines, budget):
        edits += moved(_refine_block(old_lines[i:j], new_lines[k:m], budget), old_offsets[i], new_offsets[k])
    return edits


def joined(edits: Sequence[Edit], limit: int) -> list[Edit]:
    """Return `edits` joined into at most `limit` larger ones with the same result."""
    size = -(-len(edits) // limit)
    if size < 2:
        return list(edits)
    groups = (edits[index : index + size] for index in range(0, len(edits), size))
    return [Edit(group[0].start, group[-1].end, group[0].new_start, group[-1].new_end) for group in groups]


def _offsets(parts: Sequence[str]) -> list[int]:
    return list(accumulate(map(len, parts), initial=0))


def moved(edits: Sequence[Edit], old: int, new: int) -> list[Edit]:
    """Return `edits` with their positions increased by `old` and `new`."""
    return [Edit(edit.start + old, edit.end + old, edit.new_start + new, edit.new_end + new) for edit in edits]


def _refine_block(old: Sequence[str], new: Sequence[str], budget: Budget) -> list[Edit]:
    """Return the edits in a block of changed lines; lines that differ only in blanks are paired first."""
    if not old or not new:
        return _trimmed("".join(old), "".join(new))
    old_offsets, new_offsets = _offsets(old), _offsets(new)
    edits: list[Edit] = []
    i = k = 0
    old_stripped, new_stripped = ([line.strip() for line in lines] for lines in (old, new))
    end = Hunk(len(old), len(old), len(new), len(new))
    for hunk in [*compare(old_stripped, new_stripped, budget), end]:
        while i < hunk.old_start:
            edits += moved(_refine_blanks(old[i], new[k]), old_offsets[i], new_offsets[k])
            i, k = i + 1, k + 1
        between = _refine_rest(old[i : hunk.old_end], new[k : hunk.new_end], budget)
        edits += moved(between, old_offsets[i], new_offsets[k])
        i, k = hunk.old_end, hunk.new_end
    return edits


def _refine_blanks(old: str, new: str) -> list[Edit]:
    """Return the edits between two lines that are equal but for the blanks around them."""
    text = old.strip()
    old_text, new_text = old.index(text), new.index(text)
    head = _trimmed(old[:old_text], new[:new_text])
    old_text, new_text = old_text + len(text), new_text + len(text)
    return head + moved(_trimmed(old[old_text:], new[new_text:]), old_text, new_text)


def _refine_rest(old: Sequence[str], new: Sequence[str], budget: Budget) -> list[Edit]:
    """Return the edits in a block without equal lines; if both sides have as many lines, these are paired in order."""
    if len(old) != len(new):
        return _refine_words("".join(old), "".join(new), budget)
    edits: list[Edit] = []
    old_offset = new_offset = 0
    for old_line, new_line in zip(old, new, strict=True):
        edits += moved(_refine_words(old_line, new_line, budget), old_offset, new_offset)
        old_offset, new_offset = old_offset + len(old_line), new_offset + len(new_line)
    return edits


def _refine_words(old: str, new: str, budget: Budget) -> list[Edit]:
    """Return the edits between two pieces of text; by words, if enough of them are equal."""
    whole = _trimmed(old, new)
    if not whole or _is_simple(old, new, whole[0]) or not budget.spend(len(old) + len(new)):
        return whole
    old_words, new_words = _WORDS.findall(old), _WORDS.findall(new)
    old_offsets, new_offsets = _offsets(old_words), _offsets(new_words)
    edits: list[Edit] = []
    for i, j, k, m in compare(old_words, new_words, budget):
        here = Edit(old_offsets[i], old_offsets[j], new_offsets[k], new_offsets[m])
        if edits and _is_filler(old[edits[-1].end : here.start]):
            last = edits.pop()
            here = Edit(last.start, here.end, last.new_start, here.new_end)
        edits.append(here)
    kept = len(old) - sum(edit.end - edit.start for edit in edits)
    if kept * _ALIKE < min(len(old), len(new)):
        return whole
    return [
        trimmed
        for edit in edits
        for trimmed in moved(
            _trimmed(old[edit.start : edit.end], new[edit.new_start : edit.new_end]), edit.start, edit.new_start
        )
    ]


def _is_simple(old: str, new: str, edit: Edit) -> bool:
    """Return whether the only edit from `old` to `new`, `edit`, cannot be refined: it is in a word, or one-sided."""
    left, right = old[edit.start : edit.end], new[edit.new_start : edit.new_end]
    return not left or not right or (left.isalnum() and right.isalnum())


def _is_filler(text: str) -> bool:
    """Return whether `text`, equal in both texts, is too little to separate the edits around it."""
    return text.isspace() and "\n" not in text


def _trimmed(old: str, new: str) -> list[Edit]:
    """Return one edit from `old` to `new` without their common beginning and end; none if they are equal.

    The common end is removed first.  So a line that is indented further gets its new blanks at its beginning.
    """
    if old == new:
        return []
    tail = _common_suffix(old, new)
    head = _common_prefix(old[: len(old) - tail], new[: len(new) - tail])
    return [Edit(head, len(old) - tail, head, len(new) - tail)]


def _common_prefix(a: str, b: str) -> int:
    """Return the length of the common prefix of `a` and `b`."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_suffix(a: str, b: str) -> int:
    """Return the length of the common suffix of `a` and `b`."""
    return _common_prefix(a[::-1], b[::-1])
