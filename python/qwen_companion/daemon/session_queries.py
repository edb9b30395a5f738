# SPDX-License-Identifier: GPL-3.0-or-later
"""Questions about a session that the daemon or its history answers."""

from __future__ import annotations

from collections.abc import Callable

from qwen_companion.daemon import models
from qwen_companion.daemon.client import DaemonClient
from qwen_companion.daemon.errors import GoneError, UnsupportedError
from qwen_companion.daemon.events import slash_commands
from qwen_companion.daemon.messages import Choice, ContextUsageReport, SessionChoices, ToolText
from qwen_companion.daemon.outbox import Outbox
from qwen_companion.daemon.sanitize import clean, line
from qwen_companion.daemon.session import DaemonSession
from qwen_companion.local_ids import local_id
from qwen_companion.threads import in_thread

_MODEL_WRITES = "user"
"""The settings there that a change of the model rewrites: the user's."""


class SessionQueries:
    """Queries about one session.  Its methods raise `DaemonError`s."""

    def __init__(self, client: DaemonClient, outbox: Outbox, session: Callable[[], DaemonSession]) -> None:
        """`session` returns the session of the last load."""
        self._client = client
        self._outbox = outbox
        self._session = session

    async def choices(self) -> SessionChoices:
        """Return the available models and modes, and record those in use."""
        session = self._session()
        state = (await self._client.context(session.session_id)).state
        self._session().facts.choose(state)
        return _choices(session.id, state)

    async def check_images(self) -> None:
        """Check that the model accepts images.

        :raises UnsupportedError: when it is known to accept none
        """
        # Without this check the daemon silently replaces the image by "[image: image/png]" (0.24.4).
        model = await self._client.model_in_use(self._session().session_id)
        if model is not None and model.modalities is not None and not model.modalities.image:
            raise UnsupportedError(f"The model {line(model.name or model.model_id)} takes no images.")

    async def fetch(self, tool: str, part: str, index: int) -> None:
        """Send a whole text of `tool`."""
        while True:
            held = self._session().tool(tool)
            revision = None if held is None else held.revision
            # Sanitising 10 MB would block the event loop.
            text = None if held is None else await in_thread(held.text, part, index)
            # Emacs must not mistake it for a text of a later revision, which may be on its way by now.
            now = self._session().tool(tool)
            if revision == (None if now is None else now.revision):
                break
        if text is None:
            raise GoneError("That text is no longer available; load the session again.")
        self._outbox.queue(ToolText(self._session().id, tool, part, index, text))

    async def commands(self) -> None:
        """Send the slash commands."""
        reply = await self._client.supported_commands(self._session().session_id)
        self._outbox.queue(slash_commands(self._session().id, reply.available_commands))

    async def usage(self) -> None:
        """Send the report on the context window."""
        reply = await self._client.context_usage(self._session().session_id)
        if not reply.formatted_text:
            raise UnsupportedError("The daemon does not say what fills the context window.")
        self._outbox.queue(ContextUsageReport(self._session().id, clean(reply.formatted_text)))


def _choices(session: str, state: models.ContextState) -> SessionChoices:
    return SessionChoices(
        session,
        tuple(
            _choice(local_id("model", item.model_id), item.name or item.model_id, item.description)
            for item in state.models.available_models
        ),
        tuple(_choice(item.id, item.name or item.id, item.description) for item in state.modes.available_modes),
        _MODEL_WRITES,
    )


def _choice(identifier: str, name: str, description: str | None) -> Choice:
    return Choice(identifier, line(name), None if description is None else line(description))
