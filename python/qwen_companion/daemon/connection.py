# SPDX-License-Identifier: GPL-3.0-or-later
"""Connect to a daemon, or start one here; list, open, fork, rewind and leave its sessions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import anyio

from qwen_companion.base.local_ids import local_id
from qwen_companion.base.tasks import Task
from qwen_companion.base.threads import in_thread
from qwen_companion.base.times import milliseconds
from qwen_companion.daemon import messages, models
from qwen_companion.daemon.address import DaemonAddress, find_address
from qwen_companion.daemon.client import DaemonClient
from qwen_companion.daemon.conversation import Conversation, Shared
from qwen_companion.daemon.errors import (
    BusyError,
    DaemonError,
    GoneError,
    ServerFailedError,
    UnauthorizedError,
    UnreachableError,
)
from qwen_companion.daemon.interrupted_turns import InterruptedTurns
from qwen_companion.daemon.local_daemon import LocalDaemon, start_local
from qwen_companion.daemon.memberships import Memberships
from qwen_companion.daemon.messages import DaemonSessions, DaemonState, ListedSession
from qwen_companion.daemon.rewinding import NO_PROMPT, copy_and_rewind
from qwen_companion.daemon.sanitize import line
from qwen_companion.daemon.stream import Backoff

SILENT_S = 5.0
"""Seconds without an answer to the first request before the user is informed."""

LEAVE_S = 2.0
"""Seconds that leaving the sessions may take."""

_OFF = DaemonState("off")


@dataclass(frozen=True)
class UsedDaemon:
    """A daemon in use, for a workspace whose path is `root` here and `workspace` on its host."""

    client: DaemonClient
    root: str
    workspace: str


class Daemon:
    """Emacs's one daemon, and its sessions that are open in Emacs.  Call its methods on the event loop."""

    def __init__(self, memberships: Memberships, shared: Shared) -> None:
        """Begin with no daemon."""
        self._memberships = memberships
        self._shared = shared
        self.lock = anyio.Lock()
        """Orders the calls about no open session, and the handling of a daemon's end."""
        self._state = _OFF
        self._used: UsedDaemon | None = None
        self._local: LocalDaemon | None = None
        self._background: Task | None = None
        self._conversations: dict[str, Conversation] = {}
        self._interrupted: dict[str, InterruptedTurns] = {}
        self._session_ids: dict[str, str] = {}
        """Map Emacs's ids of sessions to the daemon's."""

    @property
    def _in_use(self) -> UsedDaemon:
        """The daemon in use.

        :raises UnreachableError: when there is none
        """
        if self._used is None:
            raise UnreachableError(self._state.text or "No daemon is connected.", maybe_done=False)
        return self._used

    def _say(self, state: DaemonState) -> None:
        if state != self._state:
            self._state = state
            self._shared.outbox.queue(state)

    async def connect(self, call: messages.Connect) -> None:
        """Use the daemon that `call` names.

        :raises DaemonError: when it cannot be used
        """
        # Clean up after a lost or refused connection, without leaving its sessions.
        await self.leave(lost=True)
        try:
            address = find_address(call.url, call.token, self._shared.environ, call.sources)
        except DaemonError as error:
            self._say(DaemonState("refused", text=str(error)))
            raise
        await self._use(address, call.root)

    async def start(self, program: Sequence[str], root: str) -> None:
        """Start a daemon with `program`, and use it.

        :raises DaemonError: when it does not start or cannot be used
        """
        await self.leave()
        self._say(DaemonState("starting", workspace=root, local=True))
        try:
            environment = await in_thread(self._shared.host.prepare)
            self._local = await start_local(program, root, environment)
        except DaemonError as error:
            self._say(DaemonState("refused", text=str(error), workspace=root, local=True))
            raise
        self._shared.tasks.start(self._watch, self._local)
        try:
            await self._use(self._local.address, root)
        except DaemonError:
            if self._background is None:
                await self.leave()
            raise

    async def _watch(self, daemon: LocalDaemon) -> None:
        """Report when the daemon started here ends by itself."""
        last = await daemon.ended()
        async with self.lock:
            if self._local is daemon:
                await self.leave(lost=True)
                text = f"qwen serve has ended: {line(last)}" if last else "qwen serve has ended."
                self._say(replace(self._state, state="refused", text=text))

    async def _use(self, address: DaemonAddress, root: str) -> None:
        """Use the daemon at `address`; retry in the background while it is unreachable."""
        client = DaemonClient(address.url, address.token, self._memberships, self._progress)
        self._say(
            DaemonState("connecting", host=urlsplit(client.url).netloc, local=self._local is not None, workspace=root)
        )
        used = False
        silence = self._shared.tasks.start(self._report_silence, client)
        try:
            await self._greet(client, root)
            used = True
        except (UnreachableError, BusyError, ServerFailedError) as error:
            self._say(replace(self._state, state="unreachable", text=str(error)))
            self._background = self._shared.tasks.start(self._try_again, client, root)
            used = True
            raise
        except DaemonError as error:
            self._say(replace(self._state, state="refused", text=str(error)))
            raise
        finally:
            silence.cancel()
            if not used:
                with anyio.CancelScope(shield=True):
                    await client.aclose()

    async def _report_silence(self, client: DaemonClient) -> None:
        """Report a daemon that has not answered for `SILENT_S`."""
        await anyio.sleep(SILENT_S)
        text = (
            f"The daemon at {client.url} has not answered for {SILENT_S:g} s; "
            "M-x qwen-companion-daemon-stop stops waiting."
        )
        self._say(replace(self._state, state="unreachable", text=text))

    async def _try_again(self, client: DaemonClient, root: str) -> None:
        backoff = Backoff()
        ordered = 0.0
        try:
            while self._used is None:
                await self._shared.sleep(backoff.next(ordered))
                try:
                    await self._greet(client, root)
                except (UnreachableError, ServerFailedError) as error:
                    self._say(replace(self._state, state="unreachable", text=str(error)))
                except BusyError as error:
                    ordered = error.retry_after_s
        except DaemonError as error:
            self._say(replace(self._state, state="refused", text=str(error)))
        finally:
            if self._used is None:
                with anyio.CancelScope(shield=True):
                    await client.aclose()

    async def _greet(self, client: DaemonClient, root: str) -> None:
        found = await client.capabilities(root)
        workspace = _workspace(found, root)
        self._used = UsedDaemon(client, root, workspace)
        self._say(replace(self._state, state="connected", text=None, workspace=workspace))

    def _progress(self, text: str | None) -> None:
        """Report `text`, the reason for a long wait; None when it is over."""
        if self._used is not None and self._state.state == "connected":
            self._say(replace(self._state, text=text))

    def reached(self, trouble: DaemonError | str | None) -> None:
        """Report that the daemon answers, or, with `trouble`, why it does not."""
        if self._used is None:
            return
        if isinstance(trouble, UnauthorizedError):
            # Only the next connect reads the token again.
            self._say(replace(self._state, state="refused", text=str(trouble)))
        elif self._state.state != "refused":
            state = "connected" if trouble is None else "unreachable"
            self._say(replace(self._state, state=state, text=None if trouble is None else str(trouble)))

    async def leave(self, *, lost: bool = False) -> None:
        """Disconnect without informing Emacs; leave the daemon's sessions unless it was `lost`."""
        background, self._background = self._background, None
        if background is not None:
            await background.stop()
        local, self._local = self._local, None
        used, self._used = self._used, None
        await self._leave_sessions(lost=lost)
        if used is not None:
            await used.client.aclose()
        if local is not None:
            await local.stop()

    async def disconnect(self) -> None:
        """Disconnect, and report it."""
        await self.leave()
        self._say(_OFF)

    # --- Sessions

    async def _leave_sessions(self, *, lost: bool) -> None:
        """Leave all sessions; do not inform Emacs if the daemon was `lost`."""
        conversations, self._conversations = list(self._conversations.values()), {}
        self._session_ids.clear()
        # Informing the daemon is optional and must not delay anything.
        with anyio.move_on_after(LEAVE_S):
            async with anyio.create_task_group() as leaving:
                for conversation in conversations:
                    leaving.start_soon(_leave_session, conversation, lost)

    async def list(self) -> None:
        """Send Emacs the sessions of the workspace."""
        found = await self._in_use.client.list_sessions(self._in_use.workspace)
        for item in found:
            name = self._named(item.session_id)
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

    async def open_new(self, root: str | None, *, shared: bool) -> str:
        """Open a new session that works in `root`, or the `shared` one; return its id in Emacs."""
        scope = "single" if shared else "thread"
        reply = await self._in_use.client.create_or_attach(root or self._in_use.workspace, scope)
        return await self._open(reply.session_id, root)

    async def load(self, call: messages.Load) -> str:
        """Open the session that `call` names; return its id in Emacs.

        :raises GoneError: when the daemon does not know it
        """
        session_id = self._session_ids.get(call.session)
        if session_id is None:
            # Emacs may know the session from an earlier backend process.
            await self.list()
            session_id = self._session_ids.get(call.session)
        if session_id is None:
            raise GoneError("The daemon no longer has that session.")
        self._interrupted.setdefault(call.session, InterruptedTurns(call.shown))
        return await self._open(session_id)

    async def fork(self, session: str) -> str:
        """Fork `session`; return the id of the new session in Emacs."""
        reply = await self._in_use.client.branch(self.conversation(session).session.session_id)
        return self._named(reply.session_id)

    async def rewind(self, session: str, turn: str) -> str | None:
        """Rewind `session` to before the prompt of `turn`; return Emacs's id of a copy from before, or None.

        :raises BusyError: when a turn runs
        :raises GoneError: when it cannot be rewound that far
        """
        opened = self.conversation(session).session
        prompt = next((prompt for prompt in opened.prompts if prompt.turn == turn), None)
        if prompt is None:
            raise GoneError(NO_PROMPT)
        copy = await copy_and_rewind(self._in_use.client, opened.session_id, opened.prompts, prompt)
        return None if copy is None else self._named(copy)

    async def _open(self, session_id: str, root: str | None = None) -> str:
        name, used = self._named(session_id), self._in_use
        conversation = self._conversations.get(name)
        if conversation is None:
            interrupted = self._interrupted.setdefault(name, InterruptedTurns())
            conversation = Conversation(
                used.client, session_id, root or used.root, self._shared, interrupted, self.reached
            )
            self._conversations[name] = conversation
        await conversation.open()
        return name

    async def close(self, session: str, *, end: bool) -> None:
        """Leave `session`; `end` ends it for all clients."""
        if end and session not in self._conversations and session in self._session_ids:
            await self._in_use.client.close(self._session_ids[session])
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

    def _named(self, session_id: str) -> str:
        """Return Emacs's id of a session, and remember the daemon's."""
        name = local_id("session", session_id)
        self._session_ids[name] = session_id
        return name


def _workspace(found: models.Capabilities, root: str) -> str:
    """Return the daemon's name for `root`, one of its workspaces."""
    names = (os.path.normpath(root), os.path.realpath(root))
    known = [workspace.cwd for workspace in found.workspaces]
    return next((name for name in known if name in names), found.workspace_cwd or root)


async def _leave_session(conversation: Conversation, lost: bool) -> None:
    """Leave the session of `conversation`; do not inform Emacs if the daemon was `lost`."""
    with suppress(DaemonError):
        await (conversation.detach() if lost else conversation.close(end=False))
