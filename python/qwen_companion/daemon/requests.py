# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP requests to one daemon: each refusal is an exception of `errors`, each answer a type of `models`.

Requests are never repeated automatically: a prompt may run even if its answer was lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import anyio
import httpx2

from qwen_companion.base.json_objects import read_object
from qwen_companion.daemon import errors
from qwen_companion.daemon.address import clean_token, clean_url
from qwen_companion.daemon.memberships import Memberships
from qwen_companion.daemon.models import Cursor, W, parse

REQUEST_S = 30.0
"""Seconds an answer may take."""

_KEEPALIVE_S = 4.0
"""Seconds an idle connection is kept: less than the 5 after which the daemon closes it."""

MAX_EVENT_BYTES = 24 * 1024 * 1024
"""Largest event to read.  One of 9.9 MB was seen on 0.24.4; httpx2's default limit is 1 MB."""

_CLIENT_HEADER = "X-Qwen-Client-Id"
_EPOCH_HEADER = "X-Qwen-Event-Epoch"
_CODE = re.compile(r"[a-z_]{1,64}")
_SECONDS = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class EventSource:
    """An open event stream: the `epoch` of its ids, and its events' `data`, each a JSON text."""

    epoch: str
    data: AsyncIterator[str]


class Requests:
    """Requests to the daemon at a URL.  Close it after use."""

    def __init__(self, url: str, token: str | None, memberships: Memberships) -> None:
        """Prepare requests to `url`; `memberships` are this client's ids in sessions.

        :raises SettingsError: for a token that no header can carry
        :raises UnsafeUrlError: for an unusable URL
        """
        self.url = clean_url(url)
        self.stream_parameters: Mapping[str, str | int] = {}
        token = clean_token(token)
        self._has_token = token is not None
        self.memberships = memberships
        try:
            self._http = httpx2.AsyncClient(
                base_url=self.url,
                headers={"Authorization": f"Bearer {token}"} if token else None,
                limits=httpx2.Limits(keepalive_expiry=_KEEPALIVE_S),
                # Never send the token to a proxy or, by a redirect, to another host.
                trust_env=False,
                follow_redirects=False,
            )
        except httpx2.InvalidURL:
            raise errors.UnsafeUrlError("The URL of the daemon has no host that could be asked.") from None

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def ask(
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
        """Make a request, see `call`, and return its answer as a `model`.

        :raises ProtocolViolationError: for an answer of another shape
        """
        response = await self.call(method, path, session_id, body=body, parameters=parameters, limit_s=limit_s)
        try:
            value: object = json.loads(response.content)
        except (ValueError, RecursionError):
            raise errors.ProtocolViolationError(
                f"The server at {self.url} is not a daemon: it sends no JSON."
            ) from None
        return parse(model, value, "An answer")

    async def call(
        self,
        method: str,
        path: str,
        session_id: str | None = None,
        *,
        body: object = None,
        parameters: Mapping[str, str | int] | None = None,
        limit_s: float = REQUEST_S,
    ) -> httpx2.Response:
        """Send a request to `path`, with a session relative to its path; return the answer."""
        headers = self._identity(session_id)
        # Not `json=`, which fails on lone surrogates; a buffer in Emacs may have some.
        content = None if body is None else json.dumps(body).encode("ascii")
        if content is not None:
            headers["Content-Type"] = "application/json"
        try:
            # httpx2 limits each read only, so a slow trickle would never end.
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
        client_id = None if session_id is None else self.memberships.client_id(session_id)
        return {} if client_id is None else {_CLIENT_HEADER: client_id}

    def _no_answer(self, error: httpx2.HTTPError, limit_s: float) -> errors.UnreachableError:
        # httpx2's messages may quote headers.
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout):
            return errors.UnreachableError(f"Nobody answers at {self.url}.", maybe_done=False)
        if isinstance(error, httpx2.TimeoutException):
            return errors.UnreachableError(
                f"The daemon at {self.url} has not answered for {limit_s:g} s.", maybe_done=True
            )
        return errors.UnreachableError(f"The connection to the daemon at {self.url} broke.", maybe_done=True)

    def _too_slow(self, limit_s: float) -> errors.UnreachableError:
        return errors.UnreachableError(f"The daemon at {self.url} took longer than {limit_s:g} s.", maybe_done=True)

    def _refusal(self, response: httpx2.Response) -> errors.DaemonError:
        """Return the error for `response` (all statuses but 3xx seen on 0.24.4)."""
        status = response.status_code
        body = read_object(response.content) or {}
        code = _word(body.get("code"))
        if status == HTTPStatus.UNAUTHORIZED:
            what = "does not accept the token" if self._has_token else "wants a token"
            return errors.UnauthorizedError(f"The daemon at {self.url} {what}.", status, code)
        if status == HTTPStatus.FORBIDDEN:
            return errors.HostRefusedError(f"The daemon does not answer to the name in {self.url}.", status, code)
        if status == HTTPStatus.NOT_FOUND and _is_of_type(response, "application/json"):
            return errors.NotFoundError("The daemon no longer has that session or question.", status, code)
        if status == HTTPStatus.NOT_FOUND:
            return errors.UnsupportedError(f"The server at {self.url} does not know this request: another version?")
        if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            wait = _retry_after_s(response, body)
            return errors.BusyError(_BUSY.get(code or "", "The daemon has too much to do."), status, code, wait)
        if code == "workspace_mismatch":
            return errors.WrongWorkspaceError(f"The daemon at {self.url} works in another directory.", status, code)
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return errors.InvalidRequestError("The request is larger than the daemon accepts.", status, code)
        if response.is_server_error:
            return errors.ServerFailedError(f"The daemon failed (HTTP {status}).", status, code)
        if response.is_client_error:
            reason = f"HTTP {status}, {code}" if code else f"HTTP {status}"
            return errors.InvalidRequestError(f"The daemon rejects this request ({reason}).", status, code)
        return errors.ProtocolViolationError(f"The server at {self.url} is not a daemon (HTTP {status}).")

    @asynccontextmanager
    async def events(self, session_id: str, cursor: Cursor, silence_s: float) -> AsyncGenerator[EventSource]:
        """Yield the event stream of a session, from `cursor` on.

        :raises UnreachableError: when not even a heartbeat comes for `silence_s` seconds
        :raises FrameTooLargeError: for an event that is too large
        """
        headers = {
            **self._identity(session_id),
            "Accept": "text/event-stream",
            "Last-Event-ID": str(cursor.event_id),
            # Without an epoch, a restarted daemon silently replays from the wrong place.
            _EPOCH_HEADER: cursor.epoch,
        }
        timeout = httpx2.Timeout(REQUEST_S, read=silence_s)
        path = _path("/events", session_id)
        try:
            async with AsyncExitStack() as stack:
                with anyio.fail_after(REQUEST_S):
                    source = await stack.enter_async_context(
                        self._http.sse(
                            path,
                            params=self.stream_parameters,
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
                    raise errors.ProtocolViolationError(f"The answer of {self.url} is not an event stream.")
                yield EventSource(response.headers.get(_EPOCH_HEADER, ""), self._data(source))
        except httpx2.HTTPError as error:
            raise self._no_answer(error, silence_s) from None
        except TimeoutError:
            raise self._too_slow(REQUEST_S) from None

    async def _data(self, source: httpx2.EventSource) -> AsyncGenerator[str]:
        # Heartbeats are comments, which httpx2 drops; its `retry:` and an id alone are events without data.  It rightly
        # splits lines at CR and LF only: the daemon sends U+2028, U+2029 and U+0085 unescaped.  It gives the last id
        # seen instead of the event's, so use the one in the JSON.
        try:
            async for event in source:
                if event.data:
                    yield event.data
        except httpx2.SSEError:
            raise errors.FrameTooLargeError("An event of the daemon is larger than can be read.") from None


_BUSY = {
    "prompt_queue_full": "The queue of the session is full.",
    "rate_limit_exceeded": "The daemon asks for fewer requests.",
    "session_limit_exceeded": "The daemon has as many sessions as it allows.",
    "subscriber_limit_exceeded": "The session has as many listeners as the daemon allows.",
}


def _path(path: str, session_id: str | None) -> str:
    return path if session_id is None else f"/session/{quote(session_id, safe='')}{path}"


def _is_of_type(response: httpx2.Response, name: str) -> bool:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower() == name


def _word(code: object) -> str | None:
    """Return `code` if it is a plain word, safe to show."""
    return code if isinstance(code, str) and _CODE.fullmatch(code) else None


def _retry_after_s(response: httpx2.Response, body: Mapping[str, Any]) -> float:
    header = response.headers.get("retry-after", "")
    if _SECONDS.fullmatch(header):
        return float(header)
    milliseconds = body.get("retryAfterMs")
    return milliseconds / 1000 if isinstance(milliseconds, int) and milliseconds > 0 else 0.0
