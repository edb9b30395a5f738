# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell the model that the user has changed an edit before allowing it."""

from __future__ import annotations

import difflib
from contextlib import suppress

from qwen_companion.daemon.client import DaemonClient
from qwen_companion.daemon.errors import DaemonError
from qwen_companion.daemon.models import MID_TURN_CHARACTERS

_DIFFERENCE_CHARACTERS = MID_TURN_CHARACTERS - 2048
"""How much of a difference is told; names of files and our own words need the rest."""

_NOT_APPLIED = "My change to your edit, of which I told you last, is not applied: another client answered in my place."
"""Follows a note that the model has read and that does not hold."""


class ReviewNotes:
    """The notes on reviews for the model of one session; what it cannot be told now is held for the next prompt."""

    def __init__(self, client: DaemonClient, session_id: str) -> None:
        self._client = client
        self._session_id = session_id
        self._held: list[str] = []

    @property
    def held(self) -> tuple[str, ...]:
        """The notes to send with the next prompt."""
        return tuple(self._held)

    def drop(self, count: int) -> None:
        """Note that the first `count` of the held notes were sent."""
        del self._held[:count]

    async def tell(self, note: str) -> str | None:
        """Tell the model `note` during its turn, and return the id of the message; else hold the note."""
        message = None
        with suppress(DaemonError):
            message = await self._client.send_mid_turn(self._session_id, note)
        if message is None:
            self._held.append(note)
        return message

    async def take_back(self, note: str, message: str | None) -> None:
        """Tell the model nothing of `note`, which went out as `message`, or say that it does not hold."""
        if message is None:
            self._held.remove(note)
            return
        with suppress(DaemonError):
            if await self._client.take_back_mid_turn(self._session_id, message):
                return
        await self.tell(_NOT_APPLIED)


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
