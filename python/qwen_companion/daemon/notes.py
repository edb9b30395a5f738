# SPDX-License-Identifier: GPL-3.0-or-later
"""Notes that a model reads beside the prompts, such as the user's change to an edit before allowing it."""

from __future__ import annotations

import difflib
import re

from qwen_companion.daemon.models import MID_TURN_CHARACTERS

_DIFFERENCE_CHARACTERS = MID_TURN_CHARACTERS - 2048
"""Most characters of a difference to send; the rest of the limit is for the file name and our own words."""

NOT_APPLIED = "My change to your edit, of which I told you last, is not applied: another client answered in my place."
"""Follows a note that the model has read but that no longer holds."""


_BEGIN, _END = "<editor-note>\n", "\n</editor-note>\n\n"

_NOTES = re.compile(f"(?:{_BEGIN}.*?{_END})+", re.DOTALL)


def marked(note: str) -> str:
    """Return `note` so that `without_notes` finds it before a prompt; no line of it may equal the end mark."""
    return f"{_BEGIN}{note}{_END}"


def without_notes(prompt: str) -> str:
    """Return the user's part of `prompt`, as it was sent."""
    notes = _NOTES.match(prompt)
    return prompt if notes is None else prompt[notes.end() :]


def review_note(path: str, proposed: str, wanted: str) -> str | None:
    """Return a note on `wanted`, the user's text of the file `path`, which replaces the tool's, `proposed`.

    None when the two differ at most in line ends.
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
