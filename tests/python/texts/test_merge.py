# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_companion.texts.hunks import Budget, split_lines
from qwen_companion.texts.merge import Labels, MergeResult, combine, merge

LABELS = Labels("mine", "base", "theirs")

LINES = ["a\n", "b\n", "c\n", "d\n", "\n", "x\r\n", "\u2028\f\n", "\U0001f600\n"]


def joined(lines: list[str], last: str) -> str:
    return "".join(lines) + last


TEXTS = st.builds(joined, st.lists(st.sampled_from(LINES), max_size=12), st.sampled_from(["", "", "e"]))


def merged(base: str, mine: str, theirs: str) -> MergeResult:
    result = merge(base, mine, theirs, LABELS, Budget())
    text, end = "", 0
    for edit in result.edits:
        assert end <= edit.start
        text += mine[end : edit.start]
        assert len(text) == edit.new_start
        text += result.text[edit.new_start : edit.new_end]
        end = edit.end
    assert text + mine[end:] == result.text
    return result


@given(TEXTS, TEXTS, TEXTS)
def test_edits_make_the_result_of_mine(base: str, mine: str, theirs: str) -> None:
    merged(base, mine, theirs)


@given(TEXTS, TEXTS)
def test_what_only_one_has_changed_is_taken(base: str, other: str) -> None:
    assert merged(base, base, other) == MergeResult(other, merged(base, base, other).edits, 0)
    assert merged(base, other, base) == MergeResult(other, [], 0)
    assert merged(base, other, other) == MergeResult(other, [], 0)


@given(TEXTS, TEXTS, TEXTS)
def test_mine_and_theirs_get_the_same_result_but_for_the_order(base: str, mine: str, theirs: str) -> None:
    one, other = merged(base, mine, theirs), merged(base, theirs, mine)
    assert one.conflicts == other.conflicts
    assert one.conflicts or one.text == other.text


@given(TEXTS, TEXTS, TEXTS)
def test_no_line_that_one_of_the_two_has_added_is_lost(base: str, mine: str, theirs: str) -> None:
    def lines(text: str) -> set[str]:
        return {line.removesuffix("\n") for line in split_lines(text)}

    result = merged(base, mine, theirs)
    assert (lines(mine) | lines(theirs)) - lines(base) <= lines(result.text)
    assert result.text.count("<<<<<<< mine\n") == result.text.count(">>>>>>> theirs\n") == result.conflicts


@pytest.mark.parametrize(
    ("base", "mine", "theirs", "text"),
    [
        ("a\nb\nc\n", "A\nb\nc\n", "a\nb\nC\n", "A\nb\nC\n"),
        ("a\nb\nc\n", "a\nb\nc\nd\n", "b\nc\n", "b\nc\nd\n"),
        ("a\nb\nc\nd\n", "a\nX\nc\nd\n", "a\nX\nc\nD\n", "a\nX\nc\nD\n"),
        ("a\nb\nc\n", "a\nc\n", "a\nc\n", "a\nc\n"),
        ("a\r\nb\r\nc\r\n", "A\r\nb\r\nc\r\n", "a\r\nb\r\nC\r\n", "A\r\nb\r\nC\r\n"),
        ("a\nb\nc", "A\nb\nc", "a\nb\nC", "A\nb\nC"),
        ("a\n\u2028b\fc\nd\n", "A\n\u2028b\fc\nd\n", "a\n\u2028b\fc\nD\n", "A\n\u2028b\fc\nD\n"),
    ],
)
def test_changes_at_different_places_are_both_kept(base: str, mine: str, theirs: str, text: str) -> None:
    result = merged(base, mine, theirs)
    assert (result.text, result.conflicts) == (text, 0)


@pytest.mark.parametrize(
    ("base", "mine", "theirs", "text"),
    [
        (
            "a\nb\nc\n",
            "a\nB\nc\n",
            "a\n\U0001f600\nc\n",
            "a\n<<<<<<< mine\nB\n||||||| base\nb\n=======\n\U0001f600\n>>>>>>> theirs\nc\n",
        ),
        # No final newline: the markers stand on lines of their own.
        ("a", "b", "c", "<<<<<<< mine\nb\n||||||| base\na\n=======\nc\n>>>>>>> theirs\n"),
        # One has removed what the other has changed.
        ("a\nb\n", "a\n", "a\nB\n", "a\n<<<<<<< mine\n||||||| base\nb\n=======\nB\n>>>>>>> theirs\n"),
        # What both have changed alike at the ends is no part of the conflict.
        (
            "a\nb\nc\nd\n",
            "A\nB\nC\nd\n",
            "A\nX\nC\nd\n",
            "A\n<<<<<<< mine\nB\n||||||| base\na\nb\nc\n=======\nX\n>>>>>>> theirs\nC\nd\n",
        ),
    ],
)
def test_a_conflict_is_marked_with_all_three_parts(base: str, mine: str, theirs: str, text: str) -> None:
    result = merged(base, mine, theirs)
    assert (result.text, result.conflicts) == (text, 1)


def numbered_lines(*changed: int) -> str:
    return "".join(f"{number}{' changed' if number in changed else ''}\n" for number in range(30))


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [((1,), (20,)), ((1, 10), (5, 29)), ((0,), (29,)), ((4, 5), (4, 5)), ((4, 5), (5,)), ((3,), (4,))],
)
def test_git_says_the_same(mine: tuple[int, ...], theirs: tuple[int, ...], tmp_path: Path) -> None:
    texts = {"base": numbered_lines(), "mine": numbered_lines(*mine), "theirs": numbered_lines(*theirs)}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    git = subprocess.run(
        ["git", "merge-file", "-p", "--zdiff3", "-L", "mine", "-L", "base", "-L", "theirs", "mine", "base", "theirs"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    result = merged(**texts)
    assert (result.text, result.conflicts) == (git.stdout, git.returncode)


@given(TEXTS, st.sampled_from(["", "x", "x\n", "one two"]), st.sampled_from(["", "y", "\ny", "two one"]))
def test_edits_one_after_the_other_come_to_what_combine_says(text: str, first: str, second: str) -> None:
    base = f"{text}<here> and <there>{text}"
    mine, theirs = base.replace("<here>", first), base.replace("<there>", second)
    combined = combine(base, mine, theirs, Budget())
    assert combined is not None
    assert combined.text == mine.replace("<there>", second)


def test_changes_of_the_same_words_cannot_be_combined() -> None:
    assert combine("a b c\n", "a x c\n", "a y c\n", Budget()) is None
    assert combine("a c\n", "a x c\n", "a y c\n", Budget()) is None
    same = combine("a b c\n", "a x c\n", "a x c\n", Budget())
    assert same is not None
    assert same.text == "a x c\n"
