# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare two sequences, such as the lines of two texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from patiencediff import unique_lcs

_PAIRS = 20_000
"""Largest product of lengths for which difflib compares a block; its work grows with that product."""

_DEPTH = 10
"""Depth of recursion between items that are unique in both texts."""


class Budget:
    """Limits the work for a finer result; once it is spent, results are coarser but still correct.

    Counted in steps of about a microsecond, so that equal texts always give equal results.
    """

    def __init__(self, steps: int = 3_000_000) -> None:
        self._left = steps

    def spend(self, steps: int) -> bool:
        """Spend `steps`; return False if the budget lacks them."""
        if steps > self._left:
            return False
        self._left -= steps
        return True


class Hunk(NamedTuple):
    """`old[old_start:old_end]` became `new[new_start:new_end]`; at most one of the two is empty."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int


def split_lines(text: str) -> list[str]:
    r"""Return the lines of `text`, each with its "\n"; the last one may lack it.

    Nothing else ends a line, as in Emacs.
    """
    lines = [line + "\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def compare(old: Sequence[Hashable], new: Sequence[Hashable], budget: Budget) -> list[Hunk]:
    """Return the hunks that turn `old` into `new`, in order, none touching the next.

    As in patience diff, items that occur once are matched first, so that frequent ones (braces, empty lines) are not
    matched across functions.  A block without such items is compared by difflib, unless that would take too much of
    `budget`.
    """
    least = min(len(old), len(new))
    head = next((index for index in range(least) if old[index] != new[index]), least)
    tail = next((index for index in range(least - head) if old[-1 - index] != new[-1 - index]), least - head)
    # Numbers compare faster than the items.
    numbers: dict[Hashable, int] = {}
    left, right = (
        [numbers.setdefault(item, len(numbers)) for item in items[head : len(items) - tail]] for items in (old, new)
    )
    found = _split(left, right, Hunk(0, len(left), 0, len(right)), budget, 0)
    return [Hunk(*(head + number for number in hunk)) for hunk in found]


def matches(hunks: Sequence[Hunk], old_length: int, new_length: int) -> list[tuple[int, int, int]]:
    """Return the equal blocks between `hunks`, in difflib's form: (OLD, NEW, SIZE), the last one of size 0."""
    blocks: list[tuple[int, int, int]] = []
    old = new = 0
    for hunk in [*hunks, Hunk(old_length, old_length, new_length, new_length)]:
        if hunk.old_start > old:
            blocks.append((old, new, hunk.old_start - old))
        old, new = hunk.old_end, hunk.new_end
    return [*blocks, (old_length, new_length, 0)]


def _split(old: Sequence[int], new: Sequence[int], block: Hunk, budget: Budget, depth: int) -> list[Hunk]:
    """Return the hunks in `block`, as patience diff finds them."""
    # Avoids patiencediff's own matcher, which panics beyond some depth.
    i, j, k, m = block
    while i < j and k < m and old[i] == new[k]:
        i, k = i + 1, k + 1
    while i < j and k < m and old[j - 1] == new[m - 1]:
        j, m = j - 1, m - 1
    if i == j or k == m:
        return [Hunk(i, j, k, m)] if i < j or k < m else []
    leading = unique_lcs(old[i:j], new[k:m]) if depth < _DEPTH else []
    if not leading:
        return _search(old, new, Hunk(i, j, k, m), budget)
    hunks: list[Hunk] = []
    old_end, new_end = i, k
    for old_start, new_start in [*leading, (j - i, m - k)]:
        between = Hunk(old_end, i + old_start, new_end, k + new_start)
        hunks += _split(old, new, between, budget, depth + 1)
        old_end, new_end = i + old_start + 1, k + new_start + 1
    return hunks


def _search(old: Sequence[int], new: Sequence[int], block: Hunk, budget: Budget) -> list[Hunk]:
    """Return the hunks in `block`, a block without unique items, as difflib finds them."""
    left, right = old[block.old_start : block.old_end], new[block.new_start : block.new_end]
    counts = Counter(right)
    pairs = sum(counts[item] for item in left)
    if not 0 < pairs <= _PAIRS or not budget.spend(pairs):
        return [block]
    return [
        Hunk(block.old_start + i, block.old_start + j, block.new_start + k, block.new_start + m)
        for tag, i, j, k, m in SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
        if tag != "equal"
    ]
