# SPDX-License-Identifier: GPL-3.0-or-later
"""Check file names that arrive as text: models, CLIs, daemons and Emacs may send anything."""

from __future__ import annotations

import os

from qwen_companion.base.errors import CompanionError

LONGEST_BYTES = 4096
"""Longest accepted name, the limit of Linux.  Resolving the links of a longer one can take minutes."""


class FileNameError(CompanionError):
    """A text is not a file name; the message has the reason and does not repeat the text."""


def file_name(text: object, directory: str = "", raw: bool = False) -> str:
    """Return the absolute name of the file that `text` denotes in `directory`.

    Every text from a wire passes here before the system is asked about it.  Does not access the disk, and removes
    neither `..` nor a slash at the end.  With `raw`, bytes that are not UTF-8 are allowed, in the form of
    `os.fsdecode`.

    :raises FileNameError: for a text that cannot be a file name
    """
    if not isinstance(text, str) or not text:
        raise FileNameError("it is empty" if text == "" else "it is not a string")
    name = os.path.join(directory, text)
    if not os.path.isabs(name):
        raise FileNameError("it is not an absolute file name")
    if "\0" in name:
        raise FileNameError("it holds a NUL character")
    try:
        text.encode("utf-8", "surrogateescape" if raw else "strict")
    except UnicodeEncodeError:
        raise FileNameError("it holds half a surrogate pair, which is not valid Unicode") from None
    if len(os.fsencode(name)) >= LONGEST_BYTES:
        raise FileNameError(f"it is longer than {LONGEST_BYTES - 1} bytes")
    return name
