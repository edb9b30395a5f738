# SPDX-License-Identifier: GPL-3.0-or-later
"""The proposals under review.  Each ends exactly once.

A decision stays here until it has gone out to its CLI, so that it survives a broken stream.  Emacs stores it until that
is confirmed, so that it survives this process.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from qwen_companion.domain import AskedQuestion, KnownProposal

HOOK_PREFIX = "hook-"
"""Prefix of the ids of proposals by a CLI's hook, which end with its request."""


def text_digest(text: str) -> str:
    """Return the SHA-256 of `text` in UTF-8, in hexadecimal digits.  Emacs computes it too."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


FILE, PLAN, QUESTION = "file", "plan", "question"
"""Kinds of proposals: a text for a file, a plan, or questions with the text of the answers."""


@dataclass(frozen=True)
class Decision:
    """The user's decision: `content` is the accepted text, None for a rejection.

    For a plan or questions it may have a `reason`; `mode` is the one to use after a plan, None for the previous one.
    """

    content: str | None
    reason: str | None = None
    mode: str | None = None


@dataclass
class Proposal:
    """A text that a CLI proposes for `path`, its exact words; `decision` is None while under review.

    `digest` is that of the proposed text, without edits of the user.  `kind` is one of those above.  A plan and
    questions are of the project `directory`; `questions` are the latter.
    """

    id: str
    session: str
    path: str
    digest: str
    decision: Decision | None = None
    kind: str = FILE
    directory: str | None = None
    questions: tuple[AskedQuestion, ...] = ()


class Proposals:
    """All proposals of all sessions.  At most one for a session and path, as a CLI identifies them by path."""

    def __init__(self, known: Iterable[KnownProposal] = ()) -> None:
        """`known` are the proposals of an earlier process of this Emacs."""
        self._by_id: dict[str, Proposal] = {}
        self._shown: set[tuple[str, str]] = set()
        """The sessions and files of shown proposals, until `was_shown` is called."""
        for item in known:
            self._by_id[item.id] = Proposal(item.id, item.session, item.path, item.digest)

    def begin(self, session: str, path: str, text: str) -> tuple[Proposal, Proposal | None]:
        """Return the proposal of `text`, known or new, and the one it replaces, or None."""
        digest = text_digest(text)
        found = self.find(session, path)
        if found is not None and found.digest == digest:
            return found, None
        if found is not None:
            self.drop(found.id)
        proposal = Proposal(secrets.token_hex(8), session, path, digest)
        self._by_id[proposal.id] = proposal
        self._shown.add((session, path))
        return proposal, found

    def decide(self, identifier: str, decision: Decision) -> Proposal | None:
        """Record `decision` if it is the first and return the proposal; None if it has ended or is unknown."""
        proposal = self._by_id.get(identifier)
        if proposal is None or proposal.decision is not None:
            return None
        proposal.decision = decision
        return proposal

    def get(self, identifier: str) -> Proposal | None:
        """Return the proposal, also one whose decision is not sent yet, or None."""
        return self._by_id.get(identifier)

    def find(self, session: str, path: str) -> Proposal | None:
        """Return the proposal of `session` for `path`, also one whose decision is not sent yet, or None."""
        return next((item for item in self._by_id.values() if (item.session, item.path) == (session, path)), None)

    def waiting(self) -> list[Proposal]:
        """Return the undecided proposals."""
        return [item for item in self._by_id.values() if item.decision is None]

    def drop(self, identifier: str) -> Proposal | None:
        """Forget a proposal and return it."""
        return self._by_id.pop(identifier, None)

    def was_shown(self, session: str, path: str) -> bool:
        """Return whether a proposal of `session` for `path` was shown since the last call.

        Blocks on disk I/O; callable in any thread.
        """
        true = os.path.realpath(path)
        found = {shown for shown in list(self._shown) if shown[0] == session and os.path.realpath(shown[1]) == true}
        self._shown -= found
        return bool(found)

    def end_session(self, session: str) -> list[Proposal]:
        """Forget all proposals of `session` and return them."""
        ended = [item for item in self._by_id.values() if item.session == session]
        for item in ended:
            del self._by_id[item.id]
        self._shown = {shown for shown in self._shown if shown[0] != session}
        return ended
