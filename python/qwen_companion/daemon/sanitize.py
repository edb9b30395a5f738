# SPDX-License-Identifier: GPL-3.0-or-later
"""Sanitise untrusted text by a model, a tool or the daemon for an Emacs buffer.

Three degrees: `clean` for reading; `reveal` for approval by the user, where nothing may vanish; `exact` for the texts
of a diff, which must not change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

_SURROGATE = re.compile("[\ud800-\udfff]")

# ECMA-48: control sequences, control strings with their terminator, and the short sequences.
_ESCAPE = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"
    "|(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f])[^\x00-\x1f\x7f-\x9f]*(?:\x07|\x1b\\\\|\x9c)"
    "|\x1b[ -/]*[0-OQ-WYZ\\\\`-~]"
)
# An escape sequence that may continue in the next piece, up to a limit.
_UNFINISHED = re.compile("(?:\x1b(?:\\[[0-?]*[ -/]*|[]PX^_][^\x00-\x1f\x7f-\x9f]*\x1b?|[ -/]*)|\x9b[0-?]*[ -/]*)\\Z")
_UNFINISHED_LIMIT = 256

_LINE_END = re.compile("\r\n?|\x85")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Explicit bidirectional embeddings, overrides and isolates, which change how a line reads; and the tag characters,
# which carry invisible text.  The marks U+200E, U+200F and U+061C are part of ordinary text.
_DECEIVING = re.compile("[\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
# `reveal` also names characters without a shape of their own: the general category Cf, the property
# Default_Ignorable_Code_Point, line ends that no program shows and blank Braille; but not those that turn a symbol into
# an emoji.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    "|(?<![\u2122-\u27bf\u2900-\u2bff\U0001f000-\U0001faff])\ufe0f"
)


PIECE_CHARACTERS = 1 << 15
"""Number of characters sanitised at once.

A regular expression holds the interpreter until it is done, also in a thread: 0.9 s for 10 MB, now 3 ms.
"""


class Capped(NamedTuple):
    """The beginning of a text, and the number of characters left out."""

    text: str
    more: int


def exact(text: str) -> str:
    """Return `text` with its lone surrogates, which no file can hold, replaced."""
    if not any(_SURROGATE.search(piece) for piece in _pieces(text)):
        return text
    return "".join(piece.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace") for piece in _pieces(text))


def _pieces(text: str) -> Iterator[str]:
    """Yield `text` in pieces that split no line end and no surrogate pair."""
    start = 0
    while start < len(text):
        end = start + PIECE_CHARACTERS
        if end < len(text) and (text[end - 1] == "\r" or "\ud800" <= text[end - 1] <= "\udbff"):
            end += 1
        yield text[start:end]
        start = end


def clean(text: str) -> str:
    """Return `text` without escape sequences and control characters, with line ends as newlines.

    Characters that change how text reads become visible, as `[U+202E]`.
    """
    stream = TextStream()
    return stream.feed(text) + stream.flush()


def _clean_piece(text: str) -> str:
    text = exact(text)
    if text.isascii() and text.isprintable():
        return text
    # In this order: text between CR and LF may come in another piece than either, see `TextStream`.
    text = _ESCAPE.sub("", _LINE_END.sub("\n", text))
    return _DECEIVING.sub(_name, _CONTROL.sub("", text))


def line(text: str, limit: int = 300) -> str:
    """Return `text` cleaned, on one line, of at most `limit` characters."""
    # Cut before cleaning: ten megabytes would take long for the one line shown.
    text = " ".join(clean(text[: 4 * limit]).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def reveal(text: str) -> str:
    """Return `text` with every invisible character named in its place, as `[U+001B]`; newlines and tabs stay."""
    return "".join(_UNSEEN.sub(_name, exact(piece).replace("\r\n", "\n")) for piece in _pieces(text))


def cap(text: str, limit: int, degree: Callable[[str], str]) -> Capped:
    """Return `text` or its first `limit` characters, sanitised by `degree`: `clean` or `reveal`."""
    return Capped(degree(text[:limit]), max(0, len(text) - limit))


def _name(match: re.Match[str]) -> str:
    return f"[U+{ord(match.group()):04X}]"


class TextStream:
    """Cleans a text that comes in pieces, which may split an escape sequence, a line end or a surrogate pair."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """Return the text that is complete after `piece`; its end may be held back."""
        return "".join(map(self._feed, _pieces(piece)))

    def _feed(self, piece: str) -> str:
        text = self._held + piece
        self._held = ""
        if text:
            cut = len(text)
            if (found := _UNFINISHED.search(text, max(0, cut - _UNFINISHED_LIMIT))) is not None:
                cut = found.start()
            elif "\ud800" <= text[-1] <= "\udbff" or text[-1] == "\r":
                cut -= 1
            self._held = text[cut:]
            text = text[:cut]
        return _clean_piece(text)

    def flush(self) -> str:
        """Return the text held back, at the end."""
        text, self._held = self._held, ""
        return _clean_piece(text)
