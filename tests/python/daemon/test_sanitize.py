# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qwen_companion.daemon import sanitize
from qwen_companion.daemon.sanitize import TextStream, cap, clean, exact, line, reveal

ANY_TEXT = st.text(alphabet=st.characters(codec=None, exclude_categories=[]))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, élan, 日本語, \u200f\u200eשלום", "plain, élan, 日本語, \u200f\u200eשלום"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("\x1b[1;31mred\x1b[0m and \x9b2Kgone", "red and gone"),
        ("\x1b]0;a title\x07a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "alink"),
        ("\x1bPq data\x1b\\a\x1b(Bb\x1b7c", "abc"),
        ("cut short \x1b[12", "cut short [12"),
        ("nul\x00 bell\x07 back\x08 delete\x7f", "nul bell back delete"),
        ("one\r\ntwo\rthree\x85four", "one\ntwo\nthree\nfour"),
        ("if admin \u202e} \u2066 begin", "if admin [U+202E]} [U+2066] begin"),
        ("seen\U000e0068\U000e0069", "seen[U+E0068][U+E0069]"),
    ],
)
def test_text_is_fit_to_be_read(text: str, shown: str) -> None:
    assert clean(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rm -rf a\x1b[2K\rls", "rm -rf a[U+001B][2K[U+000D]ls"),
        ("cat a\u200bb \u202eexe\n\tc\r\nd", "cat a[U+200B]b [U+202E]exe\n\tc\nd"),
        ("a\ufeff\u2028b", "a[U+FEFF][U+2028]b"),
        ("echo ⚠\ufe0f a\ufe0f", "echo ⚠\ufe0f a[U+FE0F]"),
    ],
)
def test_nothing_vanishes_from_what_is_to_be_approved(text: str, shown: str) -> None:
    assert reveal(text) == shown


def test_every_character_without_a_shape_is_named() -> None:
    ignorable = "\u034f\u115f\u1160\u17b4\u180b\u180f\u2065\u2800\u3164\ufe00\ufe0f\uffa0\ufff0\U000e0100\U000e0fff"
    formats = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) == "Cf"]
    for character in [*ignorable, *formats]:
        assert reveal(f"a{character}b") == f"a[U+{ord(character):04X}]b"


def test_lone_surrogate() -> None:
    assert exact("a\ud800b") == clean("a\ud800b") == reveal("a\ud800b") == "a\ufffdb"
    assert exact("\udc00\ud83d") == "\ufffd\ufffd"
    assert exact("\ud83d\ude00") == "😀"


def test_a_text_of_a_diff_stays_what_it_is() -> None:
    text = "a\x1b[0m\r\n\x00\u202e\u2028"
    assert exact(text) == text


def test_a_line_is_one_line_and_short() -> None:
    assert line(" a\r\n\tb\x1b[0m ") == "a b"
    assert line("x" * 20, 10) == "x" * 9 + "…"
    assert line("x" * 10, 10) == "x" * 10


def test_a_cap_tells_how_much_more_there_is() -> None:
    assert cap("abc", 3, clean) == ("abc", 0)
    assert cap("a\x07bcd", 3, clean) == ("ab", 2)
    assert cap("\x07bcd", 1, reveal) == ("[U+0007]", 3)


@given(ANY_TEXT)
def test_whatever_comes_can_be_shown(text: str) -> None:
    for shown in (clean(text), reveal(text)):
        shown.encode("utf-8")
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)
    exact(text).encode("utf-8")


PIECES = ["a", "\r", "\n", "\ud83d", "\ude00", "\x1b", "[3", "1m", "]0;t", "\x07", "\\", "é"]


@given(st.lists(st.sampled_from(PIECES)))
@example(["\r", "\x1b", "a", "\n"])
def test_pieces_say_what_the_whole_says(pieces: list[str]) -> None:
    stream = TextStream()
    told = "".join([stream.feed(piece) for piece in pieces])
    assert told + stream.flush() == clean("".join(pieces))


def test_an_endless_escape_sequence_is_not_held_back_for_ever() -> None:
    stream = TextStream()
    told = stream.feed("\x1b]0;" + "x" * 1000) + stream.feed("y") + stream.flush()
    assert told.endswith("y")
    assert "x" in told


class Counted:
    """A regular expression that notes how long the texts are that it is applied to."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self.lengths: list[int] = []

    def sub(self, replacement: Any, text: str) -> str:
        self.lengths.append(len(text))
        return self._pattern.sub(replacement, text)

    def search(self, text: str) -> re.Match[str] | None:
        self.lengths.append(len(text))
        return self._pattern.search(text)


@pytest.mark.parametrize(
    ("degree", "part", "shown"),
    [
        (clean, "a\x1b[31mb\r\nc\ud83d\ude00\u202e", "ab\nc\U0001f600[U+202E]"),
        (reveal, "a\x1b[31mb\r\nc\ud83d\ude00", "a[U+001B][31mb\nc\U0001f600"),
        (exact, "a\r\n\ud83d\ude00\ud800.", "a\r\n\U0001f600\ufffd."),
        (exact, "as it was\r\n", "as it was\r\n"),
    ],
)
def test_a_long_text_does_not_hold_the_interpreter(
    degree: Callable[[str], str], part: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patterns = {name: Counted(getattr(sanitize, name)) for name in ("_SURROGATE", "_LINE_END", "_ESCAPE", "_UNSEEN")}
    for name, counted in patterns.items():
        monkeypatch.setattr(sanitize, name, counted)
    count = 300_000 // len(part)
    assert degree(part * count) == shown * count
    lengths = [length for counted in patterns.values() for length in counted.lengths]
    assert lengths
    # One more where a line end would be cut, and what was held back of the piece before.
    assert max(lengths) <= sanitize.PIECE_CHARACTERS + 1 + 256
