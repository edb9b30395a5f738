# SPDX-License-Identifier: GPL-3.0-or-later
"""The client ids of this Emacs in the daemon's sessions, past and present; they outlive a killed backend."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

_log = logging.getLogger(__name__)


@dataclass
class Membership:
    """This client's id in a session, and the number of creates and loads under it."""

    client_id: str
    count: int = 0


@dataclass
class _Kept:
    """The file's content: memberships by session, and all past client ids."""

    current: dict[str, Membership] = field(default_factory=dict[str, Membership])
    ever: set[str] = field(default_factory=set[str])


_KEPT = TypeAdapter(_Kept)


class Memberships:
    """The memberships, in a file if one is given: the next process of this Emacs is the same client."""

    def __init__(self, file: str | None = None) -> None:
        """`file` is in a private directory; without it nothing outlives this process."""
        self._file = file
        self._kept = self._read()

    def client_id(self, session_id: str) -> str | None:
        """Return this client's id in the session, as in events; None when it is not a member."""
        membership = self._kept.current.get(session_id)
        return membership.client_id if membership else None

    def is_mine(self, client_id: str) -> bool:
        """Return whether `client_id` belongs, or belonged, to this client."""
        return client_id in self._kept.ever

    def joined(self, session_id: str, client_id: str) -> None:
        """Record that this client joined the session as `client_id`, anew or once more."""
        membership = self._kept.current.get(session_id)
        if membership is None or membership.client_id != client_id:
            membership = self._kept.current[session_id] = Membership(client_id)
        membership.count += 1
        self._kept.ever.add(client_id)
        self._write()

    def count(self, session_id: str) -> int:
        """Return how many detaches of this client the daemon expects."""
        membership = self._kept.current.get(session_id)
        return membership.count if membership else 0

    def left_once(self, session_id: str) -> None:
        """Record one detach of this client."""
        if membership := self._kept.current.get(session_id):
            membership.count -= 1
            self._write()

    def forget(self, session_id: str) -> None:
        """Record that this client is no longer a member of the session."""
        if self._kept.current.pop(session_id, None) is not None:
            self._write()

    def _read(self) -> _Kept:
        if self._file is not None:
            try:
                with open(self._file, "rb") as file:
                    return _KEPT.validate_json(file.read())
            except FileNotFoundError:
                pass
            except (OSError, ValidationError) as error:
                _log.warning("the client ids cannot be read: %s", type(error).__name__)
        return _Kept()

    def _write(self) -> None:
        if self._file is None:
            return
        new = f"{self._file}.new"
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(_KEPT.dump_json(self._kept))
            os.replace(new, self._file)
        except OSError as error:
            with suppress(OSError):
                os.unlink(new)
            _log.warning("the client ids cannot be saved: %s", error.strerror)
