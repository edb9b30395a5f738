# SPDX-License-Identifier: GPL-3.0-or-later
"""A chat hides no character of an answer that CommonMark shows."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from limit import limit_s

CHECKOUT = Path(__file__).parents[2]

_PARSER = MarkdownIt("commonmark").enable(["strikethrough", "table"])

# Without fences, which are tested one by one.
_ATOMS = (
    *r"* * ** _ __ ` `` ~~ [ ] ( ) < \ | . - / a b é 2 foo ![ ](u) <b> http://e.org/a_b_ *.o **k a*. b* *a .*b".split(),
    *("\n", "\n\n", " ", " ", "x y", "- ", "1. ", "> ", "# ", "    "),
)


def _answer(chance: random.Random) -> str:
    while True:
        text = "".join(chance.choices(_ATOMS, k=chance.randint(2, 24)))
        if "```" not in text and "~~~" not in text and text.strip():
            return text


def _inline(tokens: list[Token]) -> str:
    return "".join(token.content for token in tokens if token.type in ("text", "code_inline", "html_inline"))


def _parsed(answer: str) -> str:
    """Return the text that CommonMark makes of `answer`."""
    return "\n".join(
        _inline(token.children or []) if token.type == "inline" else token.content for token in _PARSER.parse(answer)
    )


def _markup(text: str) -> list[str]:
    return [character for character in text if character in "*_~`"]


def _is_contained(part: list[str], whole: list[str]) -> bool:
    rest = iter(whole)
    return all(each in rest for each in part)


def test_no_character_is_hidden_that_commonmark_shows() -> None:
    chance = random.Random(int(os.environ.get("FUZZ_SEED", "1")))  # noqa: S311 - repeatable answers
    answers = [_answer(chance) for _ in range(4000)]
    done = subprocess.run(
        [os.environ.get("EMACS", "emacs"), "-Q", "--batch", "-l", "scripts/checkout.el", "-L", "tests/elisp"]
        + ["-l", "shown", "-f", "shown-main"],
        cwd=CHECKOUT,
        input=json.dumps(answers) + "\n",
        capture_output=True,
        encoding="utf-8",
        timeout=limit_s(),
        check=True,
    )
    shown: list[str] = json.loads(done.stdout)
    wrong = [
        (answer, text)
        for answer, text in zip(answers, shown, strict=True)
        if not _is_contained(_markup(_parsed(answer)), _markup(text))
    ]
    assert wrong == []
    # It hides what it should, too.
    hidden = sum(len(_markup(answer)) - len(_markup(text)) for answer, text in zip(answers, shown, strict=True))
    assert hidden > 400
