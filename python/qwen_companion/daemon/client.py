# SPDX-License-Identifier: GPL-3.0-or-later
"""One daemon over HTTP: every request is a method, every refusal an error of `errors`, every answer a type of `models`.

Nothing is ever asked twice by itself: a prompt that was sent may run even if its answer was lost.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Any, Literal, cast
from urllib.parse import quote

import anyio
import httpx2

from qwen_companion.daemon.address import clean_token, clean_url
from qwen_companion.daemon.errors import (
    BusyError,
    DaemonError,
    FrameTooLargeError,
    HostRefusedError,
    InvalidRequestError,
    NotFoundError,
    ProtocolViolationError,
    ServerFailedError,
    UnauthorizedError,
    UnreachableError,
    UnsafeUrlError,
    UnsupportedError,
    WrongWorkspaceError,
)
from qwen_companion.daemon.memberships import Memberships
from qwen_companion.daemon.models import (
    BRANCH_FEATURE,
    ENVELOPE_VERSION,
    MID_TURN_FEATURE,
    PROTOCOL,
    PROVIDERS_FEATURE,
    REQUIRED_FEATURES,
    SNAPSHOT_FEATURE,
    ApprovalModeReply,
    Capabilities,
    CommandsReply,
    ContextReply,
    ContextUsageReply,
    Cursor,
    LoadReply,
    MidTurnReply,
    PromptBlock,
    PromptReply,
    ProviderModel,
    ProvidersReply,
    RemovedReply,
    SessionReply,
    SessionsReply,
    SessionSummary,
    StatusReply,
    W,
    parse,
)
from qwen_companion.frozen import frozen

REQUEST_S = 30.0
"""How long an answer may take, in seconds."""

LOAD_S = 90.0
"""How long a session may take to start or to be loaded; the daemon itself gives up after 60 (0.24.4)."""

AGENT_STARTS = 5
"""How often a session is asked for while the daemon gives up because its agent is slow to start (HTTP 504)."""

_KEEPALIVE_S = 4.0
"""How long an idle connection is kept: less than the 5 s after which the daemon closes it."""

MAX_EVENT_BYTES = 24 * 1024 * 1024
"""Largest event that is read.  One of 9.9 MB was seen on 0.24.4; the limit of httpx2 would be 1 MB."""

_QUEUE_LENGTH = 2048
"""How many events the daemon shall keep for a slow reader before it cuts the stream: as many as it allows."""

_SESSIONS_LIMIT = 200
"""How many sessions of a workspace are asked for."""

_CLIENT_HEADER = "X-Qwen-Client-Id"
_EPOCH_HEADER = "X-Qwen-Event-Epoch"
_CODE = re.compile(r"[a-z_]{1,64}")
_SECONDS = re.compile(r"[0-9]{1,9}")

Scope = Literal["single", "thread"]
"""`single` takes part in the session of the workspace that all share, `thread` makes a new one."""


@frozen
class EventSource:
    """An open event stream: the `epoch` of its ids, and the `data` of its events, one JSON text each."""

    epoch: str
    data: AsyncIterator[str]


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
        :raises UnsafeUrlError:
        """
        self.url = clean_url(url)
        """Holds nothing secret."""
        token = clean_token(token)
        self._has_token = token is not None
        self._memberships = memberships or Memberships()
        self._progress = progress
        self._stream_parameters: Mapping[str, str | int] = {}
        self._takes_messages = False
        self._knows_providers = False
        self._forks = False
        try:
            self._http = httpx2.AsyncClient(
                base_url=self.url,
                headers={"Authorization": f"Bearer {token}"} if token else None,
                limits=httpx2.Limits(keepalive_expiry=_KEEPALIVE_S),
                # The token goes to no proxy and to no other place than the one that was named.
                trust_env=False,
                follow_redirects=False,
            )
        except httpx2.InvalidURL:
            raise UnsafeUrlError("The URL of the daemon has no host that could be asked.") from None

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

    async def capabilities(self, root: str | None = None) -> Capabilities:
        """Return the daemon's capabilities.  This is the first request (spec A3).

        UnsupportedError when it speaks another protocol or lacks a feature of `REQUIRED_FEATURES`, WrongWorkspaceError
        when `root`, a directory, is none of those it works in.
        """
        found = await self._ask(Capabilities, "GET", "/capabilities")
        if found.v != ENVELOPE_VERSION or PROTOCOL not in found.protocol_versions.supported:
            raise UnsupportedError(f"The daemon at {self.url} does not speak version {PROTOCOL} of the protocol.")
        if missing := sorted(REQUIRED_FEATURES - found.features):
            raise UnsupportedError(
                f"The daemon at {self.url} is too old for this: it lacks {', '.join(missing)}.", missing
            )
        if root is not None and not _works_in(found, root):
            raise WrongWorkspaceError(
                f"The daemon at {self.url} does not work in {root}; start one there.", HTTPStatus.OK
            )
        if SNAPSHOT_FEATURE in found.features:
            self._stream_parameters = {"snapshot": 1, "maxQueued": _QUEUE_LENGTH}
        self._takes_messages = MID_TURN_FEATURE in found.features
        self._knows_providers = PROVIDERS_FEATURE in found.features
        self._forks = BRANCH_FEATURE in found.features
        return found

    async def list_sessions(self, workspace: str) -> tuple[SessionSummary, ...]:
        """Return the sessions of `workspace`, live and on disk, newest first; `Capabilities` names the directory."""
        path = f"/workspace/{quote(workspace, safe='')}/sessions"
        reply = await self._ask(SessionsReply, "GET", path, parameters={"limit": _SESSIONS_LIMIT})
        return reply.sessions

    # --- Taking part in a session

    def client_id(self, session_id: str) -> str | None:
        """Return this client's id in the session, as in events; None when it takes no part."""
        return self._memberships.client_id(session_id)

    def is_mine(self, client_id: str) -> bool:
        """Return whether `client_id`, in any session, is this client or was."""
        return self._memberships.is_mine(client_id)

    async def create_or_attach(self, root: str, scope: Scope) -> SessionReply:
        """Take part in a session of the workspace `root`, new or shared.  WrongWorkspaceError, BusyError.

        No cursor comes with it: `load` gives one.
        """
        body = {"cwd": root, "sessionScope": scope}
        return self._joined(await self._ask_agent(SessionReply, "/session", None, body))

    async def load(self, session_id: str) -> LoadReply:
        """Take part in a session, live or only on disk, and get all of it; revives one that died.

        Under the identity from before, if there was one and the daemon still knows it.
        """
        reply = await self._ask_agent(LoadReply, "/load", session_id, {})
        self._joined(reply)
        return reply

    async def branch(self, session_id: str) -> SessionReply:
        """Fork a session at its last turn, and take part in the new one.

        UnsupportedError when the daemon cannot do this, InvalidRequestError when nothing was said in the session.
        """
        if not self._forks:
            raise UnsupportedError("The daemon cannot fork a conversation.")
        try:
            return self._joined(await self._ask(SessionReply, "POST", "/branch", session_id, body={}, limit_s=LOAD_S))
        except ServerFailedError as error:
            if error.status != HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            # "Source session not found or empty" (0.24.4)
            text = "The daemon did not fork the conversation; is there a finished turn in it?"
            raise InvalidRequestError(text, error.status, error.code) from None

    async def _ask_agent(self, model: type[W], path: str, session_id: str | None, body: Mapping[str, Any]) -> W:
        """POST a request to `path` that needs the daemon's agent; repeat it while that is slow to start (HTTP 504)."""
        try:
            for start in range(2, AGENT_STARTS + 1):
                try:
                    return await self._ask(model, "POST", path, session_id, body=body, limit_s=LOAD_S)
                except ServerFailedError as error:
                    if error.status != HTTPStatus.GATEWAY_TIMEOUT:
                        raise
                self._progress(f"The agent takes long to start; asked again ({start} of {AGENT_STARTS}).")
            return await self._ask(model, "POST", path, session_id, body=body, limit_s=LOAD_S)
        finally:
            self._progress(None)

    def _joined(self, reply: SessionReply) -> SessionReply:
        if reply.client_id is not None:
            self._memberships.joined(reply.session_id, reply.client_id)
        return reply

    async def detach(self, session_id: str) -> None:
        """Take no part any more.  A session that nobody takes part in closes after its turn, and stays on disk."""
        # The daemon counts: it wants to hear it once for each create and load under one identity (0.24.4).
        while self._memberships.count(session_id) > 0:
            await self._call("POST", "/detach", session_id)
            self._memberships.left_once(session_id)
        self._memberships.forget(session_id)

    async def close(self, session_id: str) -> None:
        """Close a session for everybody; it stays on disk."""
        await self._call("DELETE", "", session_id)
        self._memberships.forget(session_id)

    # --- Talking

    async def prompt(self, session_id: str, parts: Sequence[PromptBlock]) -> PromptReply:
        """Send a prompt; it runs, or waits behind the one that runs.  How it ends comes as an event.

        BusyError when the queue is full.  After UnreachableError with `maybe_done` only its echo tells whether it runs.
        """
        return await self._ask(
            PromptReply, "POST", "/prompt", session_id, body={"prompt": [part.to_wire() for part in parts]}
        )

    async def cancel(self, session_id: str) -> None:
        """Cancel the running turn, of any client; the queue goes on.  No error when nothing runs."""
        await self._call("POST", "/cancel", session_id)

    async def answer_permission(
        self, session_id: str, request_id: str, option_id: str | None, answers: Mapping[str, str] | None = None
    ) -> None:
        """Answer a permission by one of its options, or cancel it with None; `answers` fill in the form of a question.

        NotFoundError when it is settled already, InvalidRequestError with the code `invalid_option_id`.
        """
        outcome = {"outcome": "cancelled"} if option_id is None else {"outcome": "selected", "optionId": option_id}
        body = {"outcome": outcome} if answers is None else {"outcome": outcome, "answers": dict(answers)}
        await self._call("POST", f"/permission/{quote(request_id, safe='')}", session_id, body=body)

    async def send_mid_turn(self, session_id: str, message: str) -> str | None:
        """Give the model `message` in the running turn, with the next results of tools; return the id of the message.

        None when no turn runs, or the daemon cannot do this.
        """
        if not self._takes_messages:
            return None
        reply = await self._ask(MidTurnReply, "POST", "/mid-turn-message", session_id, body={"message": message})
        return reply.message_id if reply.accepted else None

    async def take_back_mid_turn(self, session_id: str, message_id: str) -> bool:
        """Take back a message for the running turn; false when the model has got it."""
        path = f"/mid-turn-messages/{quote(message_id, safe='')}"
        return (await self._ask(RemovedReply, "DELETE", path, session_id)).removed

    async def remove_pending_prompt(self, session_id: str, prompt_id: str) -> bool:
        """Take a prompt out of the queue; false when it runs already or is gone."""
        path = f"/pending-prompts/{quote(prompt_id, safe='')}"
        return (await self._ask(RemovedReply, "DELETE", path, session_id)).removed

    # --- What a session is set to

    async def set_model(self, session_id: str, model_id: str) -> None:
        """Switch the model, for all clients.  The daemon writes it into the user's settings too (0.24.4).

        InvalidRequestError with the code `model_switch_failed`; the reason comes as an event.
        """
        try:
            # The answer holds the base URL and a masked key, and is not read.
            await self._call("POST", "/model", session_id, body={"modelId": model_id})
        except ServerFailedError as error:
            text = "The daemon did not switch the model: it does not know it, or cannot use it."
            raise InvalidRequestError(text, error.status, "model_switch_failed") from None

    async def set_approval_mode(self, session_id: str, mode: str) -> ApprovalModeReply:
        """Set the approval mode, for all clients.  InvalidRequestError."""
        return await self._ask(ApprovalModeReply, "POST", "/approval-mode", session_id, body={"mode": mode})

    # --- How a session is

    async def status(self, session_id: str) -> StatusReply:
        """Return whether it is busy, and which permissions wait for an answer."""
        return await self._ask(StatusReply, "GET", "/status", session_id)

    async def context(self, session_id: str) -> ContextReply:
        """Models and approval modes."""
        return await self._ask(ContextReply, "GET", "/context", session_id)

    async def model_in_use(self, session_id: str) -> ProviderModel | None:
        """Return the session's model as the daemon's settings have it; None when they do not, or cannot be asked."""
        if not self._knows_providers:
            return None
        current = (await self.context(session_id)).state.models.current_model_id
        reply = await self._ask(ProvidersReply, "GET", "/workspace/providers")
        known = (model for provider in reply.providers for model in provider.models)
        return next((model for model in known if model.model_id == current), None)

    async def context_usage(self, session_id: str) -> ContextUsageReply:
        """Return how full the context window is."""
        return await self._ask(ContextUsageReply, "GET", "/context-usage", session_id)

    async def supported_commands(self, session_id: str) -> CommandsReply:
        """Return the slash commands."""
        return await self._ask(CommandsReply, "GET", "/supported-commands", session_id)

    # --- Events

    @asynccontextmanager
    async def events(self, session_id: str, cursor: Cursor | None, silence_s: float) -> AsyncGenerator[EventSource]:
        """The event stream of a session, from `cursor` on, or only what happens from now on.

        It breaks with UnreachableError when `silence_s` seconds long not even a heartbeat comes.  FrameTooLargeError.
        """
        headers = {**self._identity(session_id), "Accept": "text/event-stream"}
        if cursor is not None:
            # Without its epoch, a daemon that was restarted replays from the wrong place and does not say so.
            headers |= {"Last-Event-ID": str(cursor.event_id), _EPOCH_HEADER: cursor.epoch}
        timeout = httpx2.Timeout(REQUEST_S, read=silence_s)
        path = _path("/events", session_id)
        try:
            async with AsyncExitStack() as stack:
                with anyio.fail_after(REQUEST_S):
                    source = await stack.enter_async_context(
                        self._http.sse(
                            path,
                            params=self._stream_parameters,
                            headers=headers,
                            timeout=timeout,
                            max_event_size=MAX_EVENT_BYTES,
                        )
                    )
                    response = source.response
                    if response.status_code != HTTPStatus.OK:
                        await response.aread()
                        raise self._refusal(response)
                if not _is_of_type(response, "text/event-stream"):
                    raise ProtocolViolationError(f"What answers at {self.url} is no event stream.")
                yield EventSource(response.headers.get(_EPOCH_HEADER, ""), self._data(source))
        except httpx2.HTTPError as error:
            raise self._no_answer(error, silence_s) from None
        except TimeoutError:
            raise self._too_slow(REQUEST_S) from None

    async def _data(self, source: httpx2.EventSource) -> AsyncGenerator[str]:
        # Heartbeats are comments, which httpx2 keeps to itself; its `retry:` and an id alone are events without data.
        # It splits lines at CR and LF only, as it must: the daemon sends U+2028, U+2029 and U+0085 as they are.  The id
        # it gives is the last one seen and not that of the event, so the one in the JSON counts.
        try:
            async for event in source:
                if event.data:
                    yield event.data
        except httpx2.SSEError:
            raise FrameTooLargeError("An event of the daemon is larger than can be read.") from None

    # --- Requests

    async def _ask(
        self,
        model: type[W],
        method: str,
        path: str,
        session_id: str | None = None,
        *,
        body: object = None,
        parameters: Mapping[str, str | int] | None = None,
        limit_s: float = REQUEST_S,
    ) -> W:
        """As `_call`, with the answer as a `model`.  ProtocolViolationError."""
        response = await self._call(method, path, session_id, body=body, parameters=parameters, limit_s=limit_s)
        try:
            value: object = json.loads(response.content)
        except (ValueError, RecursionError):
            raise ProtocolViolationError(f"What answers at {self.url} is no daemon: it sends no JSON.") from None
        return parse(model, value, "An answer")

    async def _call(
        self,
        method: str,
        path: str,
        session_id: str | None = None,
        *,
        body: object = None,
        parameters: Mapping[str, str | int] | None = None,
        limit_s: float = REQUEST_S,
    ) -> httpx2.Response:
        """Return the answer to one request at `path`, below that of the session if there is one."""
        headers = self._identity(session_id)
        # Not `json=`: that fails on lone surrogates, which a buffer of Emacs may well have.
        content = None if body is None else json.dumps(body).encode("ascii")
        if content is not None:
            headers["Content-Type"] = "application/json"
        try:
            # The limit of httpx2 is for each read: an answer that drips would never end.
            with anyio.fail_after(limit_s):
                response = await self._http.request(
                    method,
                    _path(path, session_id),
                    headers=headers,
                    content=content,
                    params=parameters,
                    timeout=limit_s,
                )
        except httpx2.HTTPError as error:
            raise self._no_answer(error, limit_s) from None
        except TimeoutError:
            raise self._too_slow(limit_s) from None
        if not response.is_success:
            raise self._refusal(response)
        return response

    def _identity(self, session_id: str | None) -> dict[str, str]:
        client_id = None if session_id is None else self.client_id(session_id)
        return {} if client_id is None else {_CLIENT_HEADER: client_id}

    def _no_answer(self, error: httpx2.HTTPError, limit_s: float) -> UnreachableError:
        # Texts of httpx2 may quote headers.
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout):
            return UnreachableError(f"Nobody answers at {self.url}.", maybe_done=False)
        if isinstance(error, httpx2.TimeoutException):
            return UnreachableError(f"The daemon at {self.url} said nothing for {limit_s:g} s.", maybe_done=True)
        return UnreachableError(f"The connection to the daemon at {self.url} broke.", maybe_done=True)

    def _too_slow(self, limit_s: float) -> UnreachableError:
        return UnreachableError(f"The daemon at {self.url} took longer than {limit_s:g} s.", maybe_done=True)

    def _refusal(self, response: httpx2.Response) -> DaemonError:
        """Return the error that `response` stands for (all statuses but 3xx seen on 0.24.4)."""
        status = response.status_code
        body = _json_object(response)
        code = _word(body.get("code"))
        if status == HTTPStatus.UNAUTHORIZED:
            what = "does not accept the token" if self._has_token else "wants a token"
            return UnauthorizedError(f"The daemon at {self.url} {what}.", status, code)
        if status == HTTPStatus.FORBIDDEN:
            return HostRefusedError(f"The daemon does not answer to the name in {self.url}.", status, code)
        if status == HTTPStatus.NOT_FOUND and _is_of_type(response, "application/json"):
            return NotFoundError("The daemon no longer has that session or question.", status, code)
        if status == HTTPStatus.NOT_FOUND:
            return UnsupportedError(f"What answers at {self.url} does not know this request: another version?")
        if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            wait = _retry_after_s(response, body)
            return BusyError(_BUSY.get(code or "", "The daemon has too much to do."), status, code, wait)
        if code == "workspace_mismatch":
            return WrongWorkspaceError(f"The daemon at {self.url} works in another directory.", status, code)
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return InvalidRequestError("That is more than the daemon takes at once.", status, code)
        if response.is_server_error:
            return ServerFailedError(f"The daemon failed (HTTP {status}).", status, code)
        if response.is_client_error:
            reason = f"HTTP {status}, {code}" if code else f"HTTP {status}"
            return InvalidRequestError(f"The daemon does not take this request ({reason}).", status, code)
        return ProtocolViolationError(f"What answers at {self.url} is no daemon (HTTP {status}).")


_BUSY = {
    "prompt_queue_full": "The queue of the session is full.",
    "rate_limit_exceeded": "The daemon wants fewer requests.",
    "session_limit_exceeded": "The daemon has as many sessions as it allows.",
    "subscriber_limit_exceeded": "The session has as many listeners as the daemon allows.",
}


def _path(path: str, session_id: str | None) -> str:
    return path if session_id is None else f"/session/{quote(session_id, safe='')}{path}"


def _works_in(capabilities: Capabilities, root: str) -> bool:
    """Return whether `root` is a workspace; the daemon resolves links, but takes no directory inside one (0.24.4)."""
    known = {workspace.cwd for workspace in capabilities.workspaces} | {capabilities.workspace_cwd}
    return not known.isdisjoint({os.path.normpath(root), os.path.realpath(root)})


def _is_of_type(response: httpx2.Response, name: str) -> bool:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower() == name


def _json_object(response: httpx2.Response) -> Mapping[str, Any]:
    try:
        value: object = json.loads(response.content)
    except (ValueError, RecursionError):
        return {}
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _word(code: object) -> str | None:
    """`code` if it is a plain word, which may be shown."""
    return code if isinstance(code, str) and _CODE.fullmatch(code) else None


def _retry_after_s(response: httpx2.Response, body: Mapping[str, Any]) -> float:
    header = response.headers.get("retry-after", "")
    if _SECONDS.fullmatch(header):
        return float(header)
    milliseconds = body.get("retryAfterMs")
    return milliseconds / 1000 if isinstance(milliseconds, int) and milliseconds > 0 else 0.0
