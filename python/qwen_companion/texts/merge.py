# SPDX-License-Identifier: GPL-3.0-or-later
"""Three-way merge of texts by lines; conflicts are marked, with the base, as in `smerge-mode` and git."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from merge3 import Merge3

from qwen_companion.texts.edits import Edit, find_edits, moved
from qwen_companion.texts.hunks import Budget, compare, matches, split_lines


class Labels(NamedTuple):
    """The labels of the three texts in a conflict; one line each."""

    mine: str
    base: str
    theirs: str


@dataclass(frozen=True)
class MergeResult:
    """The result `text`, the `edits` from "mine" to it, and the number of marked `conflicts`."""

    text: str
    edits: list[Edit]
    conflicts: int


class _Region(NamedTuple):
    """Lines of the three texts that belong together."""

    base: list[str]
    mine: list[str]
    theirs: list[str]


def merge(base: str, mine: str, theirs: str, labels: Labels, budget: Budget) -> MergeResult:
    """Return `mine` with the changes from `base` to `theirs`.

    A conflict arises if both have changed the same or adjacent lines differently.  It contains the lines of all three
    texts, except those at its ends on which mine and theirs agree.
    """
    if theirs in (base, mine):
        return MergeResult(mine, [], 0)
    if base == mine:
        return MergeResult(theirs, find_edits(mine, theirs, budget), 0)
    result = _Result(budget)
    for region in _regions(split_lines(base), split_lines(mine), split_lines(theirs)):
        if region.theirs in (region.base, region.mine):
            result.keep("".join(region.mine))
        elif region.mine == region.base:
            result.replace("".join(region.mine), "".join(region.theirs))
        else:
            _mark(region, labels, result)
    return MergeResult("".join(result.parts), result.edits, result.conflicts)


def combine(base: str, mine: str, theirs: str, budget: Budget) -> MergeResult | None:
    """Return `mine` with the changes from `base` to `theirs`, by characters; None if both changed the same ones.

    Finer than `merge`: two changes within one line are no conflict.  This is also the result of search-and-replace
    edits applied one after the other.
    """
    if theirs in (base, mine):
        return MergeResult(mine, [], 0)
    changes = {
        (edit.start, edit.end, text[edit.new_start : edit.new_end])
        for text in (mine, theirs)
        for edit in find_edits(base, text, budget)
    }
    parts: list[str] = []
    done, inserted = 0, False
    for start, end, new in sorted(changes):
        # The order of two texts inserted at one position is unknown.
        if start < done or (inserted and start == end == done):
            return None
        parts += [base[done:start], new]
        done, inserted = end, start == end
    text = "".join([*parts, base[done:]])
    return MergeResult(text, find_edits(mine, text, budget), 0)


class _Result:
    """The result so far."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.parts: list[str] = []
        self.edits: list[Edit] = []
        self.conflicts = 0
        self._mine = self._length = 0

    def keep(self, text: str) -> None:
        """Append `text`, the next piece of mine."""
        self._add(text)
        self._mine += len(text)

    def replace(self, old: str, new: str) -> None:
        """Replace `old`, the next piece of mine, by `new`."""
        self.edits += moved(find_edits(old, new, self._budget), self._mine, self._length)
        self._add(new)
        self._mine += len(old)

    def insert(self, text: str) -> None:
        """Append `text`, which is not in mine."""
        self.edits.append(Edit(self._mine, self._mine, self._length, self._length + len(text)))
        self._add(text)

    def _add(self, text: str) -> None:
        self.parts.append(text)
        self._length += len(text)


def _mark(region: _Region, labels: Labels, result: _Result) -> None:
    """Append the marked conflict `region` to `result`."""
    mine, theirs = region.mine, region.theirs
    same = _agreement(mine, theirs)
    result.keep("".join(mine[:same]))
    mine, theirs = mine[same:], theirs[same:]
    same = _agreement(mine[::-1], theirs[::-1])
    result.insert(f"<<<<<<< {labels.mine}\n")
    result.keep("".join(mine[: len(mine) - same]))
    result.insert(
        "".join(
            [
                _line_end(mine[: len(mine) - same]),
                f"||||||| {labels.base}\n",
                *region.base,
                _line_end(region.base),
                "=======\n",
                *theirs[: len(theirs) - same],
                _line_end(theirs[: len(theirs) - same]),
                f">>>>>>> {labels.theirs}\n",
            ]
        )
    )
    result.keep("".join(mine[len(mine) - same :]))
    result.conflicts += 1


def _line_end(lines: Sequence[str]) -> str:
    """Return the line end that `lines` lack before a marker on a line of its own, or an empty text."""
    return "\n" if lines and not lines[-1].endswith("\n") else ""


def _agreement(mine: Sequence[str], theirs: Sequence[str]) -> int:
    """Return the number of equal lines at the start."""
    for index, (left, right) in enumerate(zip(mine, theirs, strict=False)):
        if left != right:
            return index
    return min(len(mine), len(theirs))


class _Matcher:
    """Our comparison in the form required by merge3."""

    def __init__(self, isjunk: object = None, a: Sequence[str] = (), b: Sequence[str] = (), autojunk: bool = False):
        self._blocks = matches(compare(a, b, Budget()), len(a), len(b))

    def get_matching_blocks(self) -> list[tuple[int, int, int]]:
        """Return triples (i, j, n), the last one of size 0."""
        return self._blocks


def _regions(base: list[str], mine: list[str], theirs: list[str]) -> Iterator[_Region]:
    """Yield the whole texts in regions: those on which all three texts agree, and those between."""
    i = j = k = 0
    places = Merge3(base, mine, theirs, sequence_matcher=_Matcher).find_sync_regions()
    for base_from, base_to, mine_from, mine_to, theirs_from, theirs_to in places:
        yield _Region(base[i:base_from], mine[j:mine_from], theirs[k:theirs_from])
        yield _Region(base[base_from:base_to], mine[mine_from:mine_to], theirs[theirs_from:theirs_to])
        i, j, k = base_to, mine_to, theirs_to
