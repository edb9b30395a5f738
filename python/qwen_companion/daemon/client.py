# SPDX-License-Identifier: GPL-3.0-or-later
"""One daemon's routes, a method for each request.  See `requests` for answers and errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import quote

from qwen_companion.daemon import models
from qwen_companion.daemon.errors import (
    BusyError,
    InvalidRequestError,
    ServerFailedError,
    UnsupportedError,
    WrongWorkspaceError,
)
from qwen_companion.daemon.memberships import Memberships
from qwen_companion.daemon.requests import Requests

LOAD_S = 90.0
"""Seconds that starting or loading a session may take; the daemon itself gives up after 60 (0.24.4)."""

AGENT_STARTS = 5
"""Number of attempts when the daemon gives up because its agent starts slowly (HTTP 504)."""

_QUEUE_LENGTH = 2048
"""Number of events the daemon queues for a slow reader before it cuts the stream: its maximum."""

_SESSIONS_LIMIT = 200
"""Most sessions of a workspace to list."""

CANNOT_REWIND = "This version of Qwen Code cannot rewind a conversation from outside."

Scope = Literal["single", "thread"]
"""`single` joins the session that all clients of the workspace share, `thread` makes a new one."""


class DaemonClient(Requests):
    """A client of the daemon at a URL, to be closed after use.  All methods raise `DaemonError`s."""

    def __init__(
        self,
        url: str,
        token: str | None,
        memberships: Memberships | None = None,
        progress: Callable[[str | None], None] = lambda _text: None,
    ) -> None:
        """Prepare requests to `url`; `memberships` may come from an earlier process.

        `progress` is called with the reason for a long wait, and with None after it.

        :raises SettingsError: for a token that no header can carry
        :raises UnsafeUrlError: for an unusable URL
        """
        super().__init__(url, token, memberships or Memberships())
        self._progress = progress
        self._features: frozenset[str] = frozenset()

    async def __aenter__(self) -> DaemonClient:
        """Return the client itself, to be closed with the context."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.aclose()

    # --- The daemon

    async def capabilities(self, root: str | None = None) -> models.Capabilities:
        """Return the daemon's capabilities.  Must be the first request (spec A3).

        :raises UnsupportedError: when it speaks another protocol or lacks a feature of `REQUIRED_FEATURES`
        :raises WrongWorkspaceError: when the directory `root` is not one of its workspaces
        """
        found = await self.ask(models.Capabilities, "GET", "/capabilities")
        if found.v != models.ENVELOPE_VERSION or models.PROTOCOL not in found.protocol_versions.supported:
            raise UnsupportedError(
                f"The daemon at {self.url} does not speak version {models.PROTOCOL} of the protocol."
            )
        if missing := sorted(models.REQUIRED_FEATURES - found.features):
            raise UnsupportedError(f"The daemon at {self.url} is too old for this: it lacks {', '.join(missing)}.")
        if root is not None and not _works_in(found, root):
            raise WrongWorkspaceError(
                f"The daemon at {self.url} does not work in {root}; start one there.", HTTPStatus.OK
            )
        if models.SNAPSHOT_FEATURE in found.features:
            self.stream_parameters = {"snapshot": 1, "maxQueued": _QUEUE_LENGTH}
        self._features = found.features
        return found

    async def list_sessions(self, workspace: str) -> tuple[models.SessionSummary, ...]:
        """Return the sessions of directory `workspace` of `Capabilities`, live and on disk, newest first."""
        path = f"/workspace/{quote(workspace, safe='')}/sessions"
        reply = await self.ask(models.SessionsReply, "GET", path, parameters={"limit": _SESSIONS_LIMIT})
        return reply.sessions

    # --- Joining and leaving sessions

    async def create_or_attach(self, root: str, scope: Scope) -> models.SessionReply:
        """Join a session of the workspace `root`, new or shared.

        The reply has no cursor: `load` returns one.

        :raises WrongWorkspaceError: when the daemon does not work in `root`
        :raises BusyError: when the daemon has its maximum of sessions
        """
        body = {"cwd": root, "sessionScope": scope}
        return self._joined(await self._ask_agent(models.SessionReply, "/session", None, body))

    async def load(self, session_id: str) -> models.LoadReply:
        """Join a session and return all of it; revive one that is dead or only on disk.

        Reuses the previous client id if there was one and the daemon still knows it.
        """
        reply = await self._ask_agent(models.LoadReply, "/load", session_id, {})
        self._joined(reply)
        return reply

    async def branch(self, session_id: str) -> models.SessionReply:
        """Fork a session at its last turn, and join the new one.

        :raises UnsupportedError: when the daemon has no such route
        :raises InvalidRequestError: when the session is empty
        """
        if models.BRANCH_FEATURE not in self._features:
            raise UnsupportedError("The daemon cannot fork a conversation.")
        try:
            return self._joined(
                await self.ask(models.SessionReply, "POST", "/branch", session_id, body={}, limit_s=LOAD_S)
            )
        except ServerFailedError as error:
            if error.status != HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            # The daemon's message: "Source session not found or empty" (0.24.4).
            text = "The daemon did not fork the conversation; is there a finished turn in it?"
            raise InvalidRequestError(text, error.status, error.code) from None

    async def rewind_points(self, session_id: str) -> tuple[models.RewindPoint, ...]:
        """Return the points to which a loaded session can be rewound.

        :raises UnsupportedError: when the daemon has no such route
        """
        if models.REWIND_FEATURE not in self._features:
            raise UnsupportedError(CANNOT_REWIND)
        reply = await self.ask(models.RewindPointsReply, "GET", "/rewind/snapshots", session_id)
        return reply.snapshots

    async def rewind(self, session_id: str, prompt_id: str) -> None:
        """Rewind a session to before the prompt `prompt_id`, one of its points; change no file.

        :raises BusyError: when a turn runs
        :raises InvalidRequestError: when the conversation was compressed after the prompt
        """
        body = {"promptId": prompt_id, "rewindFiles": False}
        try:
            await self.call("POST", "/rewind", session_id, body=body)
        except InvalidRequestError as error:
            if error.code == "session_busy":
                raise BusyError("A turn of this conversation still runs.", error.status, error.code) from None
            if error.code == "invalid_rewind_target":
                text = "The conversation was compressed since, so Qwen Code cannot rewind it that far."
                raise InvalidRequestError(text, error.status, error.code) from None
            raise

    async def _ask_agent(
        self, model: type[models.W], path: str, session_id: str | None, body: Mapping[str, Any]
    ) -> models.W:
        """POST a request that needs the daemon's agent to `path`; retry while the agent starts slowly (HTTP 504)."""
        try:
            for start in range(2, AGENT_STARTS + 1):
                try:
                    return await self.ask(model, "POST", path, session_id, body=body, limit_s=LOAD_S)
                except ServerFailedError as error:
                    if error.status != HTTPStatus.GATEWAY_TIMEOUT:
                        raise
                self._progress(f"The agent takes long to start; asked again ({start} of {AGENT_STARTS}).")
            return await self.ask(model, "POST", path, session_id, body=body, limit_s=LOAD_S)
        finally:
            self._progress(None)

    def _joined(self, reply: models.SessionReply) -> models.SessionReply:
        if reply.client_id is not None:
            self.memberships.joined(reply.session_id, reply.client_id)
        return reply

    async def detach(self, session_id: str) -> None:
        """Leave a session.  Without clients it closes after its turn and stays on disk."""
        # The daemon expects a detach for each create and load under one identity (0.24.4).
        while self.memberships.count(session_id) > 0:
            await self.call("POST", "/detach", session_id)
            self.memberships.left_once(session_id)
        self.memberships.forget(session_id)

    async def close(self, session_id: str) -> None:
        """Close a session for all clients; it stays on disk."""
        await self.call("DELETE", "", session_id)
        self.memberships.forget(session_id)

    # --- Talking

    async def prompt(self, session_id: str, parts: Sequence[models.PromptBlock]) -> models.PromptReply:
        """Send a prompt, which runs now or after those before it.  An event reports its end.

        :raises BusyError: when the queue is full
        :raises UnreachableError: if `maybe_done`, only its echo shows whether it runs
        """
        return await self.ask(
            models.PromptReply, "POST", "/prompt", session_id, body={"prompt": [part.to_wire() for part in parts]}
        )

    async def cancel(self, session_id: str) -> None:
        """Cancel the running turn, of any client; the queue continues.  No error when nothing runs."""
        await self.call("POST", "/cancel", session_id)

    async def answer_permission(
        self, session_id: str, request_id: str, option_id: str | None, answers: Mapping[str, str] | None = None
    ) -> None:
        """Answer a permission by one of its options, or cancel it with None; `answers` fill in a question's form.

        :raises NotFoundError: when it is already settled
        :raises InvalidRequestError: for an unknown option (code `invalid_option_id`)
        """
        outcome = {"outcome": "cancelled"} if option_id is None else {"outcome": "selected", "optionId": option_id}
        body = {"outcome": outcome} if answers is None else {"outcome": outcome, "answers": dict(answers)}
        await self.call("POST", f"/permission/{quote(request_id, safe='')}", session_id, body=body)

    async def send_mid_turn(self, session_id: str, message: str) -> str | None:
        """Send the model `message` in the running turn, with the next tool results; return the message's id.

        Return None when no turn runs, or the daemon has no such route.
        """
        if models.MID_TURN_FEATURE not in self._features:
            return None
        reply = await self.ask(models.MidTurnReply, "POST", "/mid-turn-message", session_id, body={"message": message})
        return reply.message_id if reply.accepted else None

    async def withdraw_mid_turn(self, session_id: str, message_id: str) -> bool:
        """Withdraw a message for the running turn; return False when the model has read it."""
        path = f"/mid-turn-messages/{quote(message_id, safe='')}"
        return (await self.ask(models.RemovedReply, "DELETE", path, session_id)).removed

    async def remove_pending_prompt(self, session_id: str, prompt_id: str) -> bool:
        """Remove a prompt from the queue; return False when it already runs or is gone."""
        path = f"/pending-prompts/{quote(prompt_id, safe='')}"
        return (await self.ask(models.RemovedReply, "DELETE", path, session_id)).removed

    # --- Settings of a session

    async def set_model(self, session_id: str, model_id: str) -> None:
        """Switch the model, for all clients.  The daemon also writes it to the user's settings (0.24.4)."""
        try:
            # The answer is not read: it has the base URL and a masked key.
            await self.call("POST", "/model", session_id, body={"modelId": model_id})
        except ServerFailedError as error:
            text = "The daemon did not switch the model: it does not know it, or cannot use it."
            raise InvalidRequestError(text, error.status, "model_switch_failed") from None

    async def set_approval_mode(self, session_id: str, mode: str) -> None:
        """Set the approval mode, for all clients.

        :raises InvalidRequestError: for a mode unknown to the daemon
        """
        await self.call("POST", "/approval-mode", session_id, body={"mode": mode})

    # --- State of a session

    async def status(self, session_id: str) -> models.StatusReply:
        """Return whether the session is busy, and its pending permissions."""
        return await self.ask(models.StatusReply, "GET", "/status", session_id)

    async def context(self, session_id: str) -> models.ContextReply:
        """Return the models and approval modes."""
        return await self.ask(models.ContextReply, "GET", "/context", session_id)

    async def model_in_use(self, session_id: str) -> models.ProviderModel | None:
        """Look up the session's model in the daemon's settings; return None if it or they are unavailable."""
        if models.PROVIDERS_FEATURE not in self._features:
            return None
        current = (await self.context(session_id)).state.models.current_model_id
        reply = await self.ask(models.ProvidersReply, "GET", "/workspace/providers")
        known = (model for provider in reply.providers for model in provider.models)
        return next((model for model in known if model.model_id == current), None)

    async def context_usage(self, session_id: str) -> models.ContextUsageReply:
        """Return the daemon's report on the context window."""
        return await self.ask(models.ContextUsageReply, "GET", "/context-usage", session_id)

    async def supported_commands(self, session_id: str) -> models.CommandsReply:
        """Return the slash commands."""
        return await self.ask(models.CommandsReply, "GET", "/supported-commands", session_id)


def _works_in(capabilities: models.Capabilities, root: str) -> bool:
    """Return whether `root` is a workspace; the daemon resolves links, but rejects subdirectories (0.24.4)."""
    known = {workspace.cwd for workspace in capabilities.workspaces} | {capabilities.workspace_cwd}
    return not known.isdisjoint({os.path.normpath(root), os.path.realpath(root)})
