# SPDX-License-Identifier: GPL-3.0-or-later
"""Unified diffs, compared with those of `diff` and applied by `patch`."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from qwen_companion.texts.hunks import split_lines
from qwen_companion.texts.unified import unified

LINES = st.lists(st.sampled_from("abc\r"), max_size=25)


def diff(old: str, new: str, directory: Path) -> str:
    """Return what `diff -u` prints, without the names of the files."""
    for name, text in (("old", old), ("new", new)):
        (directory / name).write_text(text, newline="")
    done = subprocess.run(["diff", "-u", "old", "new"], cwd=directory, capture_output=True, check=False)
    return "".join(done.stdout.decode().split("\n", 2)[2:])


def test_it_is_what_diff_prints_where_only_one_is_shortest(tmp_path: Path) -> None:
    chance = random.Random(43)  # noqa: S311 - the same each time
    for number in range(60):
        old = [f"line {line}\n" for line in range(chance.randint(0, 60))]
        # A line that is put in, left out or put in another's place: no line is there twice, and none is moved.
        kinds = [chance.choices(("", "-", "+", "!"), (12, 1, 1, 1))[0] for _ in old]
        kept = {"": "{0}", "-": "", "+": "{1}{0}", "!": "{1}"}
        new = [
            kept[kind].format(line, f"new {place}\n") for place, (kind, line) in enumerate(zip(kinds, old, strict=True))
        ]
        texts = ["".join(lines).removesuffix(chance.choice(("\n", "none"))) for lines in (old, new)]
        assert unified(texts[0], texts[1]) == diff(texts[0], texts[1], tmp_path), number


@given(LINES, LINES, st.booleans(), st.booleans())
def test_it_makes_the_new_text_of_the_old_one(old: list[str], new: list[str], old_ends: bool, new_ends: bool) -> None:
    before, after = ("\n".join(lines) + "\n" * ends for lines, ends in ((old, old_ends), (new, new_ends)))
    assert applied(before, unified(before, after)) == after


def applied(before: str, patch: str) -> str:
    """Return `before` with `patch`, each line of which is checked."""
    old, new, place = split_lines(before), "", 0
    for hunk in patch.split("@@ -")[1:]:
        head, _, body = hunk.partition(" @@\n")
        start, _, length = head.partition(" ")[0].partition(",")
        first = int(start) - (length != "0")
        new += "".join(old[place:first])
        place = first
        for line in body.replace("\n\\ No newline at end of file\n", "\\\n").split("\n"):
            if not line:
                continue
            text = line[1:-1] if line.endswith("\\") else f"{line[1:]}\n"
            if line[0] in " -":
                assert old[place] == text
                place += 1
            new += text if line[0] in " +" else ""
    return new + "".join(old[place:])
