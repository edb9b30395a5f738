# SPDX-License-Identifier: GPL-3.0-or-later
"""Exceptions about a daemon, grouped by how a caller can react.

The texts are fit for the user.  They are written here and hold no word of an answer's body, no header, no token, no
session id and no URL but for its scheme, host and port.  Status codes and `code` fields as seen on 0.24.4.
"""

from __future__ import annotations

from qwen_companion.errors import CompanionError


class DaemonError(CompanionError):
    """Root of the errors below."""


class SettingsError(DaemonError):
    """No daemon is named, or its token is missing or unusable.  The text says what to change."""


class NotStartedError(DaemonError):
    """A daemon of our own did not come up.  The text has the last lines that it printed."""


class UnsafeUrlError(DaemonError):
    """The URL cannot be used: no http or https, no host, or plain HTTP to anything but loopback."""


class UnreachableError(DaemonError):
    """No answer: nobody listens, the connection broke, or it took too long.

    `maybe_done` tells whether the request may have been carried out nevertheless.  Such a prompt must not be sent again
    before the daemon was asked for its queue and its current turn.
    """

    def __init__(self, text: str, *, maybe_done: bool) -> None:
        super().__init__(text)
        self.maybe_done = maybe_done


class RefusedError(DaemonError):
    """An answer that says no.  Root of the ways this happens; as such one with a status that has no class of its own.

    `status` is the HTTP status; `code` the daemon's word for the reason, if it gave one that looks like a word.
    """

    def __init__(self, text: str, status: int, code: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.code = code


class UnauthorizedError(RefusedError):
    """401: no token, or a wrong one.  Asking again changes nothing."""


class HostRefusedError(RefusedError):
    """403: the daemon does not answer to this host name or to this origin.  Asking again changes nothing."""


class WrongWorkspaceError(RefusedError):
    """400 workspace_mismatch, or `/capabilities` names no workspace that is the one asked for."""


class NotFoundError(RefusedError):
    """404: the session or the permission is not there.

    A session comes back by `load`; a permission has been answered by another client or cancelled.
    """


class GoneError(DaemonError):
    """Emacs names what is not there, or not any more; the daemon was not asked."""


class BusyError(RefusedError):
    """429 or 503: too much at once.  `retry_after_s` is the wait in seconds that the daemon asks for, 0 if none.

    The request was not carried out.
    """

    def __init__(self, text: str, status: int, code: str | None = None, retry_after_s: float = 0.0) -> None:
        super().__init__(text, status, code)
        self.retry_after_s = retry_after_s


class ServerFailedError(RefusedError):
    """Another 5xx: the daemon, or a proxy before it, is in trouble."""


class InvalidRequestError(RefusedError):
    """Another 4xx: the daemon does not take this request.  Asking again changes nothing.

    CODE `invalid_client_id` means that the daemon has forgotten this client; `load` makes it known again.
    """


class UnsupportedError(DaemonError):
    """The daemon speaks another protocol, lacks a route, or lacks features that are needed."""


class ProtocolViolationError(DaemonError):
    """An answer that cannot be read: not JSON, not the shape `models` declares, or not an event stream."""


class FrameTooLargeError(DaemonError):
    """An event above the size limit; only `load` can fetch it."""
