# SPDX-License-Identifier: GPL-3.0-or-later
"""Exceptions about a daemon, grouped by how a caller can react.

Users may read their texts: these are written here and quote no body, header, token or session id, and of a URL only
scheme, host and port.  Status codes and `code` fields as seen on 0.24.4.
"""

from __future__ import annotations

from qwen_companion.base.errors import CompanionError


class DaemonError(CompanionError):
    """Root of the errors below."""


class SettingsError(DaemonError):
    """No daemon is named, or its token is missing or unusable.  The text says what to change."""


class NotStartedError(DaemonError):
    """A daemon started from here has failed to start.  The text has its last lines of output."""


class UnsafeUrlError(DaemonError):
    """The URL cannot be used: no http or https, no host, or plain HTTP to anything but loopback."""


class UnreachableError(DaemonError):
    """No answer: nobody listens, the connection broke, or it took too long.

    If `maybe_done`, the request may have been carried out.  Do not send such a prompt again before asking the daemon
    for its queue and current turn.
    """

    def __init__(self, text: str, *, maybe_done: bool) -> None:
        super().__init__(text)
        self.maybe_done = maybe_done


class RefusedError(DaemonError):
    """The daemon refused the request.  Root of the classes below, and raised itself for any other status.

    `status` is the HTTP status; `code` the daemon's word for the reason, if it looks like a word.
    """

    def __init__(self, text: str, status: int, code: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.code = code


class UnauthorizedError(RefusedError):
    """401: no token, or a wrong one.  A retry changes nothing."""


class HostRefusedError(RefusedError):
    """403: the daemon rejects this host name or origin.  A retry changes nothing."""


class WrongWorkspaceError(RefusedError):
    """400 workspace_mismatch, or `/capabilities` does not name the requested workspace."""


class NotFoundError(RefusedError):
    """404: no such session or permission.

    `load` may bring a session back; a permission was answered by another client or cancelled.
    """


class GoneError(DaemonError):
    """Emacs named an object that does not exist (any more); no request was sent."""


class BusyError(RefusedError):
    """429 or 503: the daemon is overloaded, and did nothing.

    `retry_after_s` is the wait in seconds that it asks for, 0 if none.
    """

    def __init__(self, text: str, status: int, code: str | None = None, retry_after_s: float = 0.0) -> None:
        super().__init__(text, status, code)
        self.retry_after_s = retry_after_s


class ServerFailedError(RefusedError):
    """Another 5xx: the daemon, or a proxy before it, failed."""


class InvalidRequestError(RefusedError):
    """Another 4xx: the daemon rejects this request.  A retry changes nothing.

    The code `invalid_client_id` means that the daemon has forgotten this client; `load` registers it again.
    """


class UnsupportedError(DaemonError):
    """The daemon speaks another protocol, or lacks a route or a needed feature."""


class ProtocolViolationError(DaemonError):
    """An invalid answer: not JSON, not the shape declared in `models`, or not an event stream."""


class FrameTooLargeError(DaemonError):
    """An event above the size limit; only `load` can fetch its content."""
