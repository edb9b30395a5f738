# SPDX-License-Identifier: GPL-3.0-or-later
"""Random edits of all shapes, as models make them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_WORDS = ("a", "b", "ab\n", "\n", " ", "\t", "é", "“", '"', "$&", "\\1", "\\n", "𝛼")
_RARE = ("\r", "\ud800", "\0")
_NOTEBOOK = b"""{"cells": [{"cell_type": "markdown", "id": "c", "metadata": {}, "source": []}],
 "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
"""


@dataclass(frozen=True)
class RandomEdit:
    """A call of `tool` with `tool_input`, which names no file; the file has `data`, None for no file."""

    data: bytes | None
    tool: str
    tool_input: dict[str, Any]
    suffix: str = ".txt"


def random_edits(seed: int, count: int) -> Iterator[RandomEdit]:
    """Yield `count` edits, always the same for a `seed`."""
    chooser = random.Random(seed)  # noqa: S311 - not for secrets

    def words(most: int) -> str:
        rare = _RARE if chooser.random() < 0.03 else ()
        return "".join(chooser.choice((*_WORDS, *rare)) for _ in range(chooser.randint(1, most)))

    for _ in range(count):
        text = "".join(words(9).replace("\ud800", "") + chooser.choice(("\n", "")) for _ in range(3))
        if chooser.random() < 0.05:
            yield RandomEdit(_NOTEBOOK, "notebook_edit", {"cell_id": "c", "new_source": words(4)}, ".ipynb")
        elif chooser.random() < 0.3:
            yield RandomEdit(_data(chooser, text), "write_file", {"content": chooser.choice((words(9), text, ""))})
        else:
            start = chooser.randrange(len(text))
            line = chooser.choice(text.split("\n"))
            found = text[start : start + chooser.randint(1, 9)]
            old = chooser.choice((found, found, found, line, f"{line}\n", f"{found} ", words(2), ""))
            given = {"old_string": old, "new_string": chooser.choice((words(4), words(4), "", old))}
            more = {"replace_all": chooser.random() < 0.8} if chooser.random() < 0.3 else {}
            yield RandomEdit(_data(chooser, text), "edit", {**given, **more})


def _data(chooser: random.Random, text: str) -> bytes | None:
    """Return the bytes of a file with `text`, in one of many codings; None for no file."""
    if chooser.random() < 0.05:
        return None
    if chooser.random() < 0.05:
        return text.replace("𝛼", "").replace("“", "").encode("latin-1")
    mark, ends = chooser.choice(("", "", "\ufeff")), chooser.choice(("\n", "\n", "\r\n"))
    return (mark + text.replace("\n", ends)).encode("utf-8")
