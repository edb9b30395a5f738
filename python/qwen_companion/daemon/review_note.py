# SPDX-License-Identifier: GPL-3.0-or-later
"""The text for the model when the user has changed an edit before allowing it."""

from __future__ import annotations

import difflib

from qwen_companion.daemon.models import MID_TURN_CHARACTERS

_DIFFERENCE_CHARACTERS = MID_TURN_CHARACTERS - 2048
"""How much of a difference is told; names of files and our own words need the rest."""

NOT_APPLIED = "My change to your edit, of which I told you last, is not applied: another client answered in my place."
"""Follows a note that the model has read and that does not hold."""


def review_note(path: str, proposed: str, wanted: str) -> str | None:
    """Return the words of the user about `wanted`, put into the file `path` after the tool has written `proposed`.

    None when both are the same, but for the ends of their lines.
    """
    before, after = _lines(proposed), _lines(wanted)
    if before == after:
        return None
    changed = "\n".join(list(difflib.unified_diff(before, after, lineterm=""))[2:])
    if len(changed) > _DIFFERENCE_CHARACTERS:
        changed = changed[:_DIFFERENCE_CHARACTERS].rpartition("\n")[0] + "\n(the rest is left out)"
    return (
        f"I changed your edit of {path[-1024:]} in the review before I allowed it.  Your tool writes its own text "
        "first; my editor then puts my text in its place.  So the file differs from your edit by this:\n\n"
        f"```diff\n{changed}\n```\n\nKeep my changes, and read the file again before you edit it."
    )


def _lines(text: str) -> list[str]:
    return text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
