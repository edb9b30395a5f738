# SPDX-License-Identifier: GPL-3.0-or-later
"""Check which files a review may change.  All functions block on disk I/O; never call them on the event loop."""

from __future__ import annotations

import codecs
import os
import re
import stat
from collections.abc import Sequence
from functools import partial
from itertools import chain

from qwen_companion.base.errors import CompanionError
from qwen_companion.ide.context import ResolvedPath

_PIECE_BYTES = 64 * 1024
_UTF16_AND_32_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
_NO_TEXT = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
"""Control characters that occur in no text in an 8-bit encoding; an escape may be one of ISO 2022."""


class TargetError(CompanionError):
    """A file cannot be reviewed; the message tells the CLI, and its user, what to do."""


def check_target(path: str, roots: Sequence[str] | None) -> None:
    """Check that `path`, absolute, can be given a new text in a review.

    It has to be in one of the directories `roots`, by its name or its true name; None for anywhere.  The file and
    directories above it need not exist.

    :raises TargetError: if it cannot
    """
    if roots is not None:
        _check_place(path, roots)
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        if path.endswith("/"):
            raise TargetError(f"{path} names a directory. Name a file.") from None
        return
    except OSError as error:
        raise TargetError(f"{path} cannot be inspected: {error.strerror}.") from None
    if stat.S_ISDIR(mode):
        raise TargetError(f"{path} is a directory. Name a file.")
    if not stat.S_ISREG(mode):
        raise TargetError(f"{path} is not a regular file and cannot be reviewed.")
    try:
        holds_text = is_text(path)
    except OSError as error:
        raise TargetError(f"{path} cannot be read: {error.strerror}. Decide in the terminal instead.") from None
    if not holds_text:
        raise TargetError(f"{path} is not a text file and cannot be reviewed. Decide in the terminal instead.")


def _check_place(path: str, roots: Sequence[str]) -> None:
    if not roots:
        raise TargetError(
            f"Emacs knows no workspace root, so it does not review {path}. Open a file of the project in Emacs, or "
            "decide in the terminal instead."
        )
    real = os.path.realpath(path)
    # A link in a root belongs to it by its name, and Emacs shows its target; but not a name that leads out of the root.
    place = ResolvedPath(path if os.path.normpath(path) == path else real, real)
    if not any(place.is_below(ResolvedPath.of(root)) for root in roots):
        raise TargetError(
            f"{path} lies outside the workspace roots of Emacs ({', '.join(roots)}). Decide in the terminal instead."
        )


def is_text(path: str) -> bool:
    """Return whether the file `path` holds text: UTF-8, UTF-16 or UTF-32 with its mark, or maybe an older encoding.

    :raises OSError: when it cannot be read
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open(path, "rb") as file:
        pieces = iter(partial(file.read, _PIECE_BYTES), b"")
        first = next(pieces, b"")
        if first.startswith(_UTF16_AND_32_MARKS):
            return True
        try:
            for piece in chain((first,), pieces):
                if b"\0" in piece:
                    return False
                decoder.decode(piece)
        except UnicodeDecodeError:
            file.seek(0)
            return not any(_NO_TEXT.search(piece) for piece in iter(partial(file.read, _PIECE_BYTES), b""))
    return True
