# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_companion.texts.edits import Edit, find_edits, joined
from qwen_companion.texts.hunks import Budget

PIECES = ["a", "b", "foo", " ", "  ", "\t", "\n", "\r\n", "\r", "\f", "\u2028", "\U0001f600", "}"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


def apply(old: str, new: str, edits: list[Edit]) -> str:
    """Apply `edits` to `old`, as Emacs does; check that they are in order, in place and not empty."""
    result = ""
    end = 0
    for edit in edits:
        assert end <= edit.start <= edit.end
        assert edit.start < edit.end or edit.new_start < edit.new_end
        result += old[end : edit.start]
        assert len(result) == edit.new_start
        result += new[edit.new_start : edit.new_end]
        end = edit.end
    return result + old[end:]


def changes(old: str, new: str, budget: int = 1_000_000) -> list[tuple[str, str]]:
    """Return the changed pieces, each as its old and its new text."""
    edits = find_edits(old, new, Budget(budget))
    assert apply(old, new, edits) == new
    return [(old[edit.start : edit.end], new[edit.new_start : edit.new_end]) for edit in edits]


@given(TEXTS, TEXTS, st.integers(0, 200))
def test_edits_make_the_new_text_exactly(old: str, new: str, budget: int) -> None:
    assert apply(old, new, find_edits(old, new, Budget(budget))) == new


@given(TEXTS, TEXTS, st.integers(1, 5))
def test_joined_edits_are_few_and_come_to_the_same(old: str, new: str, limit: int) -> None:
    edits = joined(find_edits(old, new, Budget()), limit)
    assert len(edits) <= limit
    assert apply(old, new, edits) == new


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("same\n", "same\n", []),
        ("", "a\n", [("", "a\n")]),
        ("a", "", [("a", "")]),
        ("a", "a\n", [("", "\n")]),
        # Indented: only blanks are inserted, before the text of each line.
        ("if x:\n    a\n    b\n", "    if x:\n        a\n        b\n", [("", "    ")] * 3),
        ("a\n}\nb\n}\n", " a\n }\n b\n }\n", [("", " ")] * 4),
        ("\ta\n", "        a\n", [("\t", "        ")]),
        ("a  \nb\n", "a\nb\n", [("  ", "")]),
        # A word that was renamed in each line.
        ("x = foo(1)\ny = foo(2)\n", "x = bar(1)\ny = bar(2)\n", [("foo", "bar")] * 2),
        ("a = foo(foo)\n", "a = bar(bar)\n", [("foo", "bar"), ("foo", "bar")]),
        # Both at a time, and other lines moved in.
        ("call(a, b)\n", "new\n  call(a, c)\n", [("", "new\n  "), ("b", "c")]),
        ("a\r\nb\r\n", "a\nb\n", [("\r", ""), ("\r", "")]),
        ("a\u2028b\n", "a\u2028c\n", [("b", "c")]),
        ("\U0001f600 a\n", "\U0001f600 b\n", [("a", "b")]),
        # Lines that have next to nothing in common are not taken apart.
        ("return one(two)\n", "while True: pass\n", [("return one(two)", "while True: pass")]),
    ],
)
def test_edits_are_as_small_as_what_changed(old: str, new: str, expected: list[tuple[str, str]]) -> None:
    assert changes(old, new) == expected


def test_without_effort_a_line_is_still_trimmed() -> None:
    assert changes("a = foo(1, foo)\n", "a = bar(1, bar)\n", budget=0) == [("foo(1, foo", "bar(1, bar")]
