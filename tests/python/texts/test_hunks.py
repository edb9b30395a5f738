# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_companion.texts.hunks import Budget, Hunk, compare, matches, split_lines

ITEMS = st.lists(st.integers(0, 5), max_size=30)


@given(st.text(st.sampled_from("ab\n\r\f\u2028\u0085\U0001f600")))
def test_lines_are_split_at_line_feeds_only_and_come_back_whole(text: str) -> None:
    lines = split_lines(text)
    assert "".join(lines) == text
    assert all(line.endswith("\n") for line in lines[:-1])
    assert not any("\n" in line[:-1] or not line for line in lines)


@given(ITEMS, ITEMS)
def test_hunks_make_the_new_sequence_of_the_old_one(old: list[int], new: list[int]) -> None:
    result: list[int] = []
    end = 0
    for hunk in compare(old, new, Budget()):
        assert hunk.old_start > end or end == 0
        assert hunk.old_start < hunk.old_end or hunk.new_start < hunk.new_end
        result += old[end : hunk.old_start]
        assert len(result) == hunk.new_start
        result += new[hunk.new_start : hunk.new_end]
        end = hunk.old_end
    assert result + old[end:] == new


def nested(leaf: int, levels: int) -> list[int]:
    """Return a sequence of two equal halves around a unique item, each half built in the same way."""
    items = [leaf]
    for level in range(1, levels + 1):
        items = [*items, level, *items]
    return items


def test_items_that_lead_only_inside_of_pieces_are_found_at_any_depth() -> None:
    # The matcher of patiencediff itself panics at this depth.
    hunks = compare(nested(-1, 12), nested(-2, 12), Budget())
    assert hunks == [Hunk(at, at + 1, at, at + 1) for at in range(0, 2**13, 2)]


@given(ITEMS, ITEMS)
def test_matches_are_what_the_hunks_leave(old: list[int], new: list[int]) -> None:
    *blocks, last = matches(compare(old, new, Budget()), len(old), len(new))
    assert last == (len(old), len(new), 0)
    assert all(size and old[i : i + size] == new[j : j + size] for i, j, size in blocks)


def lines(text: str) -> list[str]:
    return text.split()


@pytest.mark.parametrize(
    ("old", "new", "hunks"),
    [
        ("a b c", "a b c", []),
        ("", "a b", [Hunk(0, 0, 0, 2)]),
        ("a b", "", [Hunk(0, 2, 0, 0)]),
        ("a b c", "a x c", [Hunk(1, 2, 1, 2)]),
        # Nothing here is the only one of its kind, so patience alone would replace all between the ends.
        ("s { } { } e", "t { } x { } f", [Hunk(0, 1, 0, 1), Hunk(3, 3, 3, 4), Hunk(5, 6, 6, 7)]),
        # The braces are not matched across functions.
        ("f { a }", "f { a } g { b }", [Hunk(4, 4, 4, 8)]),
    ],
)
def test_hunks_are_those_a_person_would_see(old: str, new: str, hunks: list[Hunk]) -> None:
    assert compare(lines(old), lines(new), Budget()) == hunks


def test_without_effort_the_result_is_coarser() -> None:
    old, new = lines("s { } { } e"), lines("t { } x { } f")
    assert compare(old, new, Budget(0)) == [Hunk(0, 6, 0, 7)]


def test_a_block_with_too_many_pairs_is_left_whole() -> None:
    old, new = [1, 2, *[0] * 200, 3], [4, *[0] * 200, 5, 6]
    assert len(compare(old, new, Budget())) == 1
