# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of one daemon: every request is a method.  For answers and errors see `requests`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
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
from qwen_companion.daemon.requests import EventSource, Requests

LOAD_S = 90.0
"""How long a session may take to start or to be loaded; the daemon itself gives up after 60 (0.24.4)."""

AGENT_STARTS = 5
"""How often a session is asked for while the daemon gives up because its agent is slow to start (HTTP 504)."""

_QUEUE_LENGTH = 2048
"""How many events the daemon shall keep for a slow reader before it cuts the stream: as many as it allows."""

_SESSIONS_LIMIT = 200
"""How many sessions of a workspace are asked for."""

CANNOT_REWIND = "This version of Qwen Code cannot rewind a conversation from outside."

Scope = Literal["single", "thread"]
"""`single` takes part in the session of the workspace that all share, `thread` makes a new one."""


class DaemonClient:
    """The daemon at a URL.  Must be closed.  All methods raise `DaemonError`s."""

    def __init__(
        self,
        url: str,
        token: str | None,
        memberships: Memberships | None = None,
        progress: Callable[[str | None], None] = lambda _text: None,
    ) -> None:
        """Prepare to ask the daemon at `url`; `memberships` may be known from before.

        `progress` is called with the thing waited for, when that takes long, and with None after that.

        :raises SettingsError: for a token that no header can carry
        :raises UnsafeUrlError: for a URL that cannot be asked
        """
        self._memberships = memberships or Memberships()
        self._http = Requests(url, token, self._memberships.client_id)
        self.url = self._http.url
        """Holds nothing secret."""
        self._progress = progress
        self._stream_parameters: Mapping[str, str | int] = {}
        self._features: frozenset[str] = frozenset()

    async def __aenter__(self) -> DaemonClient:
        """Return the client itself, to be closed with the context."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections.  Sessions go on."""
        await self._http.aclose()

    # --- The daemon

    async def capabilities(self, root: str | None = None) -> models.Capabilities:
        """Return the daemon's capabilities.  This is the first request (spec A3).

        :raises UnsupportedError: when it speaks another protocol or lacks a feature of `REQUIRED_FEATURES`
        :raises WrongWorkspaceError: when `root`, a directory, is none of those it works in
        """
        found = await self._http.ask(models.Capabilities, "GET", "/capabilities")
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
            self._stream_parameters = {"snapshot": 1, "maxQueued": _QUEUE_LENGTH}
        self._features = found.features
        return found

    async def list_sessions(self, workspace: str) -> tuple[models.SessionSummary, ...]:
        """Return the sessions of `workspace`, live and on disk, newest first; `Capabilities` names the directory."""
        path = f"/workspace/{quote(workspace, safe='')}/sessions"
        reply = await self._http.ask(models.SessionsReply, "GET", path, parameters={"limit": _SESSIONS_LIMIT})
        return reply.sessions

    # --- Taking part in a session

    def client_id(self, session_id: str) -> str | None:
        """Return this client's id in the session, as in events; None when it takes no part."""
        return self._memberships.client_id(session_id)

    def is_mine(self, client_id: str) -> bool:
        """Return whether `client_id`, in any session, is this client or was."""
        return self._memberships.is_mine(client_id)

    async def create_or_attach(self, root: str, scope: Scope) -> models.SessionReply:
        """Take part in a session of the workspace `root`, new or shared.

        No cursor comes with it: `load` gives one.

        :raises WrongWorkspaceError: when the daemon does not work in `root`
        :raises BusyError: when the daemon has as many sessions as it allows
        """
        body = {"cwd": root, "sessionScope": scope}
        return self._joined(await self._ask_agent(models.SessionReply, "/session", None, body))

    async def load(self, session_id: str) -> models.LoadReply:
        """Take part in a session, live or only on disk, and get all of it; revives one that died.

        Under the identity from before, if there was one and the daemon still knows it.
        """
        reply = await self._ask_agent(models.LoadReply, "/load", session_id, {})
        self._joined(reply)
        return reply

    async def branch(self, session_id: str) -> models.SessionReply:
        """Fork a session at its last turn, and take part in the new one.

        :raises UnsupportedError: when the daemon cannot do this
        :raises InvalidRequestError: when nothing was said in the session
        """
        if models.BRANCH_FEATURE not in self._features:
            raise UnsupportedError("The daemon cannot fork a conversation.")
        try:
            return self._joined(
                await self._http.ask(models.SessionReply, "POST", "/branch", session_id, body={}, limit_s=LOAD_S)
            )
        except ServerFailedError as error:
            if error.status != HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            # "Source session not found or empty" (0.24.4)
            text = "The daemon did not fork the conversation; is there a finished turn in it?"
            raise InvalidRequestError(text, error.status, error.code) from None

    async def rewind_points(self, session_id: str) -> tuple[models.RewindPoint, ...]:
        """Return the points to which a session, one that was loaded, can be rewound.

        :raises UnsupportedError: when the daemon cannot do this
        """
        if models.REWIND_FEATURE not in self._features:
            raise UnsupportedError(CANNOT_REWIND)
        reply = await self._http.ask(models.RewindPointsReply, "GET", "/rewind/snapshots", session_id)
        return reply.snapshots

    async def rewind(self, session_id: str, prompt_id: str) -> None:
        """Let a session go on before a prompt, that of one of its points; no file is changed.

        :raises BusyError: when a turn runs
        :raises InvalidRequestError: when the conversation was compressed after the prompt
        """
        body = {"promptId": prompt_id, "rewindFiles": False}
        try:
            await self._http.call("POST", "/rewind", session_id, body=body)
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
        """POST a request to `path` that needs the daemon's agent; repeat it while that is slow to start (HTTP 504)."""
        try:
            for start in range(2, AGENT_STARTS + 1):
                try:
                    return await self._http.ask(model, "POST", path, session_id, body=body, limit_s=LOAD_S)
                except ServerFailedError as error:
                    if error.status != HTTPStatus.GATEWAY_TIMEOUT:
                        raise
                self._progress(f"The agent takes long to start; asked again ({start} of {AGENT_STARTS}).")
            return await self._http.ask(model, "POST", path, session_id, body=body, limit_s=LOAD_S)
        finally:
            self._progress(None)

    def _joined(self, reply: models.SessionReply) -> models.SessionReply:
        if reply.client_id is not None:
            self._memberships.joined(reply.session_id, reply.client_id)
        return reply

    async def detach(self, session_id: str) -> None:
        """Leave a session.  One that nobody takes part in closes after its turn, and stays on disk."""
        # The daemon counts: it wants to hear it once for each create and load under one identity (0.24.4).
        while self._memberships.count(session_id) > 0:
            await self._http.call("POST", "/detach", session_id)
            self._memberships.left_once(session_id)
        self._memberships.forget(session_id)

    async def close(self, session_id: str) -> None:
        """Close a session for everybody; it stays on disk."""
        await self._http.call("DELETE", "", session_id)
        self._memberships.forget(session_id)

    # --- Talking

    async def prompt(self, session_id: str, parts: Sequence[models.PromptBlock]) -> models.PromptReply:
        """Send a prompt; it runs, or waits behind the one that runs.  How it ends comes as an event.

        :raises BusyError: when the queue is full
        :raises UnreachableError: with `maybe_done` only its echo tells whether it runs
        """
        return await self._http.ask(
            models.PromptReply, "POST", "/prompt", session_id, body={"prompt": [part.to_wire() for part in parts]}
        )

    async def cancel(self, session_id: str) -> None:
        """Cancel the running turn, of any client; the queue goes on.  No error when nothing runs."""
        await self._http.call("POST", "/cancel", session_id)

    async def answer_permission(
        self, session_id: str, request_id: str, option_id: str | None, answers: Mapping[str, str] | None = None
    ) -> None:
        """Answer a permission by one of its options, or cancel it with None; `answers` fill in the form of a question.

        :raises NotFoundError: when it is settled already
        :raises InvalidRequestError: with the code `invalid_option_id`
        """
        outcome = {"outcome": "cancelled"} if option_id is None else {"outcome": "selected", "optionId": option_id}
        body = {"outcome": outcome} if answers is None else {"outcome": outcome, "answers": dict(answers)}
        await self._http.call("POST", f"/permission/{quote(request_id, safe='')}", session_id, body=body)

    async def send_mid_turn(self, session_id: str, message: str) -> str | None:
        """Give the model `message` in the running turn, with the next results of tools; return the id of the message.

        None when no turn runs, or the daemon cannot do this.
        """
        if models.MID_TURN_FEATURE not in self._features:
            return None
        reply = await self._http.ask(
            models.MidTurnReply, "POST", "/mid-turn-message", session_id, body={"message": message}
        )
        return reply.message_id if reply.accepted else None

    async def take_back_mid_turn(self, session_id: str, message_id: str) -> bool:
        """Take back a message for the running turn; false when the model has got it."""
        path = f"/mid-turn-messages/{quote(message_id, safe='')}"
        return (await self._http.ask(models.RemovedReply, "DELETE", path, session_id)).removed

    async def remove_pending_prompt(self, session_id: str, prompt_id: str) -> bool:
        """Take a prompt out of the queue; false when it runs already or is gone."""
        path = f"/pending-prompts/{quote(prompt_id, safe='')}"
        return (await self._http.ask(models.RemovedReply, "DELETE", path, session_id)).removed

    # --- What a session is set to

    async def set_model(self, session_id: str, model_id: str) -> None:
        """Switch the model, for all clients.  The daemon writes it into the user's settings too (0.24.4).

        :raises InvalidRequestError: with the code `model_switch_failed`; the reason comes as an event
        """
        try:
            # The answer holds the base URL and a masked key, and is not read.
            await self._http.call("POST", "/model", session_id, body={"modelId": model_id})
        except ServerFailedError as error:
            text = "The daemon did not switch the model: it does not know it, or cannot use it."
            raise InvalidRequestError(text, error.status, "model_switch_failed") from None

    async def set_approval_mode(self, session_id: str, mode: str) -> None:
        """Set the approval mode, for all clients.

        :raises InvalidRequestError: for a mode that the daemon does not know
        """
        await self._http.call("POST", "/approval-mode", session_id, body={"mode": mode})

    # --- How a session is

    async def status(self, session_id: str) -> models.StatusReply:
        """Return whether it is busy, and which permissions wait for an answer."""
        return await self._http.ask(models.StatusReply, "GET", "/status", session_id)

    async def context(self, session_id: str) -> models.ContextReply:
        """Return the models and approval modes."""
        return await self._http.ask(models.ContextReply, "GET", "/context", session_id)

    async def model_in_use(self, session_id: str) -> models.ProviderModel | None:
        """Return the session's model as the daemon's settings have it; None when they do not, or cannot be asked."""
        if models.PROVIDERS_FEATURE not in self._features:
            return None
        current = (await self.context(session_id)).state.models.current_model_id
        reply = await self._http.ask(models.ProvidersReply, "GET", "/workspace/providers")
        known = (model for provider in reply.providers for model in provider.models)
        return next((model for model in known if model.model_id == current), None)

    async def context_usage(self, session_id: str) -> models.ContextUsageReply:
        """Return how full the context window is."""
        return await self._http.ask(models.ContextUsageReply, "GET", "/context-usage", session_id)

    async def supported_commands(self, session_id: str) -> models.CommandsReply:
        """Return the slash commands."""
        return await self._http.ask(models.CommandsReply, "GET", "/supported-commands", session_id)

    # --- Events

    def events(
        self, session_id: str, cursor: models.Cursor, silence_s: float
    ) -> AbstractAsyncContextManager[EventSource]:
        """Return the event stream of a session, from `cursor` on.

        :raises UnreachableError: when `silence_s` seconds long not even a heartbeat comes
        :raises FrameTooLargeError: for an event that is too large
        """
        return self._http.events(session_id, self._stream_parameters, cursor, silence_s)


def _works_in(capabilities: models.Capabilities, root: str) -> bool:
    """Return whether `root` is a workspace; the daemon resolves links, but takes no directory inside one (0.24.4)."""
    known = {workspace.cwd for workspace in capabilities.workspaces} | {capabilities.workspace_cwd}
    return not known.isdisjoint({os.path.normpath(root), os.path.realpath(root)})
