# SPDX-License-Identifier: GPL-3.0-or-later
"""The proposals under review: each ends exactly once, whoever is first.

A decision stays here until it has gone out to its CLI, so it survives a broken stream, and Emacs keeps it until it is
told so, so it survives this process.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from qwen_companion.domain import KnownProposal

HOOK_PREFIX = "hook-"
"""Begins the ids of proposals that came by a hook of the CLI, and end with its request."""


def text_digest(text: str) -> str:
    """What tells TEXT from others: the SHA-256 of its UTF-8, in hexadecimal digits.  Emacs computes it too."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


@dataclass(frozen=True)
class Decision:
    """What the user decided: CONTENT is the accepted text, None a rejection."""

    content: str | None


@dataclass
class Proposal:
    """A text a CLI proposed for PATH, which is exactly what the CLI said; DECISION is None while under review.

    DIGEST is that of the text as it was proposed, whatever the user has made of it since.
    """

    id: str
    session: str
    path: str
    digest: str
    decision: Decision | None = None


class Proposals:
    """All proposals of all sessions.  At most one for a session and path: a CLI knows them by path only."""

    def __init__(self, known: Iterable[KnownProposal] = ()) -> None:
        """KNOWN are those an earlier process of this Emacs left."""
        self._by_id: dict[str, Proposal] = {}
        for item in known:
            self._by_id[item.id] = Proposal(item.id, item.session, item.path, item.digest)

    def begin(self, session: str, path: str, text: str) -> tuple[Proposal, Proposal | None]:
        """The proposal of TEXT, and the one it takes the place of; one of the same text goes on instead."""
        digest = text_digest(text)
        found = self.find(session, path)
        if found is not None and found.digest == digest:
            return found, None
        if found is not None:
            self.drop(found.id)
        proposal = Proposal(secrets.token_hex(8), session, path, digest)
        self._by_id[proposal.id] = proposal
        return proposal, found

    def decide(self, identifier: str, decision: Decision) -> Proposal | None:
        """Record DECISION if it is the first; the proposal, or None when it has ended or never was."""
        proposal = self._by_id.get(identifier)
        if proposal is None or proposal.decision is not None:
            return None
        proposal.decision = decision
        return proposal

    def get(self, identifier: str) -> Proposal | None:
        """The proposal, also a decided one that has not gone out yet."""
        return self._by_id.get(identifier)

    def find(self, session: str, path: str) -> Proposal | None:
        """The proposal of SESSION for PATH, also a decided one that has not gone out yet."""
        return next((item for item in self._by_id.values() if (item.session, item.path) == (session, path)), None)

    def drop(self, identifier: str) -> Proposal | None:
        """Forget a proposal and return it."""
        return self._by_id.pop(identifier, None)

    def end_session(self, session: str) -> list[Proposal]:
        """Forget all proposals of SESSION and return them."""
        ended = [item for item in self._by_id.values() if item.session == session]
        for item in ended:
            del self._by_id[item.id]
        return ended
