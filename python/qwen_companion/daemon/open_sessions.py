# SPDX-License-Identifier: GPL-3.0-or-later
"""The sessions of a daemon: list, open, fork and leave them."""

from __future__ import annotations

from contextlib import suppress

import anyio

from qwen_companion.daemon import messages
from qwen_companion.daemon.connection import DaemonConnection, UsedDaemon
from qwen_companion.daemon.conversation import Conversation, Shared
from qwen_companion.daemon.errors import DaemonError, GoneError
from qwen_companion.daemon.interrupted_turns import InterruptedTurns
from qwen_companion.daemon.messages import DaemonSessions, ListedSession
from qwen_companion.daemon.rewinding import NO_PROMPT, copy_and_rewind
from qwen_companion.daemon.sanitize import line
from qwen_companion.local_ids import local_id
from qwen_companion.times import milliseconds

LEAVE_S = 2.0
"""Seconds that leaving the sessions may take."""


class OpenSessions:
    """The sessions that are open in Emacs, and the ids that Emacs knows."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._conversations: dict[str, Conversation] = {}
        self._interrupted: dict[str, InterruptedTurns] = {}
        self._session_ids: dict[str, str] = {}

    async def leave(self, lost: bool) -> None:
        """Leave all sessions; do not inform Emacs if the daemon was `lost`."""
        conversations, self._conversations = list(self._conversations.values()), {}
        self._session_ids.clear()
        # Informing the daemon is optional and must not delay anything.
        with anyio.move_on_after(LEAVE_S):
            async with anyio.create_task_group() as leaving:
                for conversation in conversations:
                    leaving.start_soon(_leave_session, conversation, lost)

    async def list(self, daemon: UsedDaemon) -> None:
        """Send Emacs the sessions of the workspace."""
        found = await daemon.client.list_sessions(daemon.workspace)
        for item in found:
            name = local_id("session", item.session_id)
            self._session_ids[name] = item.session_id
            if name in self._conversations:
                self._conversations[name].named(item.display_name)
        self._shared.outbox.queue(
            DaemonSessions(
                tuple(
                    ListedSession(
                        id=local_id("session", item.session_id),
                        title=line(item.display_name or ""),
                        updated=milliseconds(item.updated_at or item.created_at),
                        clients=item.client_count,
                        busy=item.has_active_prompt,
                    )
                    for item in found
                    if not item.is_archived
                )
            )
        )

    async def open_new(self, daemon: UsedDaemon, root: str | None, *, shared: bool) -> str:
        """Open a new session that works in `root`, or the `shared` one; return its id in Emacs."""
        scope = "single" if shared else "thread"
        reply = await daemon.client.create_or_attach(root or daemon.workspace, scope)
        return await self._open(daemon, reply.session_id, root)

    async def load(self, daemon: UsedDaemon, call: messages.Load) -> str:
        """Open the session that `call` names; return its id in Emacs.

        :raises GoneError: when the daemon does not know it
        """
        session_id = self._session_ids.get(call.session)
        if session_id is None:
            # The Emacs may know the session from an earlier backend process.
            await self.list(daemon)
            session_id = self._session_ids.get(call.session)
        if session_id is None:
            raise GoneError("The daemon no longer has that session.")
        self._interrupted.setdefault(call.session, InterruptedTurns(call.shown))
        return await self._open(daemon, session_id)

    async def fork(self, daemon: UsedDaemon, session: str) -> str:
        """Fork `session`; return the id of the new session in Emacs."""
        reply = await daemon.client.branch(self.conversation(session).session.session_id)
        name = local_id("session", reply.session_id)
        self._session_ids[name] = reply.session_id
        return name

    async def rewind(self, daemon: UsedDaemon, session: str, turn: str) -> str | None:
        """Rewind `session` to before the prompt of `turn`; return Emacs's id of a copy from before, or None.

        :raises BusyError: when a turn runs
        :raises GoneError: when it cannot be rewound that far
        """
        opened = self.conversation(session).session
        prompt = next((prompt for prompt in opened.prompts if prompt.turn == turn), None)
        if prompt is None:
            raise GoneError(NO_PROMPT)
        copy = await copy_and_rewind(daemon.client, opened.session_id, opened.prompts, prompt)
        if copy is None:
            return None
        name = local_id("session", copy)
        self._session_ids[name] = copy
        return name

    async def _open(self, daemon: UsedDaemon, session_id: str, root: str | None = None) -> str:
        name = local_id("session", session_id)
        self._session_ids[name] = session_id
        conversation = self._conversations.get(name)
        if conversation is None:
            interrupted = self._interrupted.setdefault(name, InterruptedTurns())
            conversation = Conversation(daemon.client, session_id, root or daemon.root, self._shared, interrupted)
            self._conversations[name] = conversation
        await conversation.open()
        return name

    async def close(self, daemon: DaemonConnection, session: str, *, end: bool) -> None:
        """Leave `session`; `end` ends it for all clients."""
        if end and session not in self._conversations and session in self._session_ids:
            await daemon.used.client.close(self._session_ids[session])
            return
        conversation = self.conversation(session)
        del self._conversations[session]
        self._interrupted.pop(session, None)
        await conversation.close(end=end)

    def conversation(self, session: str) -> Conversation:
        """Return the conversation of an open session.

        :raises GoneError: when it is not open
        """
        conversation = self._conversations.get(session)
        if conversation is None:
            raise GoneError("That session is not open.")
        return conversation


async def _leave_session(conversation: Conversation, lost: bool) -> None:
    """Leave the session of `conversation`; do not inform Emacs if the daemon was `lost`."""
    with suppress(DaemonError):
        await (conversation.detach() if lost else conversation.close(end=False))
