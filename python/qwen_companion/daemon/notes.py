# SPDX-License-Identifier: GPL-3.0-or-later
"""Notes that a model reads beside the prompts, such as the user's change to an edit before allowing it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from qwen_companion.daemon.client import DaemonClient
from qwen_companion.daemon.errors import DaemonError
from qwen_companion.daemon.models import FILE_SCHEME, MID_TURN_CHARACTERS, LinkBlock, PromptBlock, TextBlock
from qwen_companion.domain import NEWS_UNITS

_DIFFERENCE_CHARACTERS = MID_TURN_CHARACTERS - 2048
"""Longest part of a difference that is sent, in characters; names of files and our own words need the rest."""

_NOT_APPLIED = "My change to your edit, of which I told you last, is not applied: another client answered in my place."
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


class Notes:
    """The notes for one session's model; a note that cannot be sent now is held for the next prompt."""

    def __init__(
        self,
        client: DaemonClient,
        session_id: str,
        news: Callable[[Sequence[str]], Awaitable[Callable[[int], str | None] | None]],
    ) -> None:
        """`news` returns text to send with a prompt that has links to some files, see `Conversation`."""
        self._client = client
        self._session_id = session_id
        self._news = news
        self._held: list[str] = []

    async def before(self, parts: Sequence[PromptBlock]) -> list[TextBlock]:
        """Return the notes to send before `parts`; they are held until `drop`."""
        links = [part.uri.removeprefix(FILE_SCHEME) for part in parts if isinstance(part, LinkBlock)]
        if (news := await self._news(links)) and (text := news(NEWS_UNITS)):
            self._held.append(text)
        return [TextBlock(marked(note)) for note in self._held]

    def drop(self, count: int) -> None:
        """Drop the first `count` held notes, which were sent."""
        del self._held[:count]

    async def send(self, note: str) -> str | None:
        """Send the model `note` during its turn and return the message's id; outside of a turn hold the note."""
        message = None
        with suppress(DaemonError):
            message = await self._client.send_mid_turn(self._session_id, note)
        if message is None:
            self._held.append(note)
        return message

    async def withdraw(self, note: str, message: str | None) -> None:
        """Withdraw `note`, sent as `message`; if the model has read it, hold a correction."""
        if message is None:
            self._held.remove(note)
            return
        with suppress(DaemonError):
            if await self._client.withdraw_mid_turn(self._session_id, message):
                return
        await self.send(_NOT_APPLIED)


def review_note(path: str, proposed: str, wanted: str) -> str | None:
    """Return the user's words about `wanted`, put into the file `path` after the tool has written `proposed`.

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
