# SPDX-License-Identifier: GPL-3.0-or-later
"""The tools `openDiff` and `closeDiff` (spec F1-F5), and the return of a decision to the CLI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import anyio

from qwen_companion.base.errors import EmacsUnavailableError
from qwen_companion.base.file_names import FileNameError, file_name
from qwen_companion.base.tasks import Tasks
from qwen_companion.base.threads import in_thread
from qwen_companion.domain import HookAnswer
from qwen_companion.ide.models import CLOSE_DIFF, OPEN_DIFF, DiffAccepted, close_result, diff_rejected
from qwen_companion.ide.proposals import Decision, Proposal, Proposals
from qwen_companion.ide.sessions import SessionListener
from qwen_companion.ide.targets import TargetError, check_target

OPEN_S = 1.0
"""Seconds that `openDiff` waits for Emacs to show the review.  A busy Emacs shows it later."""


@dataclass(frozen=True)
class ToolResult:
    """The answer to a tool call: one text block, or empty content if `text` is None."""

    text: str | None = None
    is_error: bool = False


class Editor(Protocol):
    """Emacs as reviews, plans and questions need it."""

    async def open_review(self, proposal: Proposal, client: str, text: str) -> str | None:
        """Show `text` as soon as Emacs can; return the reason if it refuses, or None.

        :raises EmacsUnavailableError: if Emacs does not answer
        """
        ...

    async def close_review(self, proposal: Proposal) -> str | None:
        """End the review; return its present text, None if it was not open.

        :raises EmacsUnavailableError: if Emacs does not answer
        """
        ...

    def abandon(self, proposal: Proposal, reason: str | None = None) -> None:
        """Tell Emacs that `proposal` is abandoned, for `reason`; if it was decided, `settled` follows."""
        ...

    def settled(self, identifier: str) -> None:
        """Tell Emacs to drop the decision on that proposal."""
        ...

    def released(self, proposal: Proposal, reason: str, answerable: bool) -> None:
        """Tell Emacs that the terminal asks about `proposal` now, and whether it is still `answerable` in Emacs."""
        ...

    def written(self, proposal: Proposal, exactly: bool) -> None:
        """Tell Emacs that the CLI has written the accepted text of `proposal`, `exactly` or a different one."""
        ...

    def warn(self, text: str) -> None:
        """Show the user the message `text`."""
        ...

    async def type_key(self, proposal: Proposal, key: str, prompt: str | None = None) -> bool:
        """Type `key` into the terminal of the CLI of `proposal`; return whether that is a terminal of Emacs.

        The `prompt` is sent there once the turn is over.

        :raises EmacsUnavailableError: if Emacs does not answer
        """
        ...

    def hook_answers(self, session: str, answers: tuple[HookAnswer, ...]) -> None:
        """Tell Emacs the answers to the hooks of `session`, the newest first."""
        ...

    async def silence(self) -> None:
        """Wait until Emacs is frozen."""
        ...

    async def is_visited(self, path: str) -> bool:
        """Return whether a buffer visits the file `path`.

        :raises EmacsUnavailableError: when Emacs does not answer
        """
        ...


class SessionNotifier(Protocol):
    """The sessions as the tools need them: they keep notifications until these are sent."""

    def post(self, session: str, notification: Iterable[bytes], key: str | None = None) -> bool:
        """Send `notification`, in pieces, now or when the stream opens; return False if there is no such session."""
        ...

    def withdraw(self, session: str, key: str) -> None:
        """Do not send the notification posted under `key`, if it was not sent yet."""
        ...


class ArgumentError(Exception):
    """Invalid arguments of a tool; the message tells the caller what to change."""


class _Opening:
    """A review that Emacs should open; `refusal` is valid once `answered`."""

    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.refusal: str | None = "The review could not be opened. Decide in the terminal instead."


class DiffTools(SessionListener):
    """The two tools, and the ends of a proposal they share with Emacs.  Reviews are opened while `run` runs."""

    def __init__(
        self,
        proposals: Proposals,
        editor: Editor,
        notifier: SessionNotifier,
        roots_of: Callable[[str], Sequence[str] | None],
        patience: float = OPEN_S,
        check_elsewhere: Callable[[str, str], Awaitable[bool]] | None = None,
    ) -> None:
        """Let a session propose changes in the directories that `roots_of` returns; None for anywhere.

        `check_elsewhere` checks the file of a session that is not on this machine, as `check_target` does, and returns
        whether it is one.
        `patience` is how long `openDiff` waits for Emacs, in seconds.
        """
        self.text_limit: int | None = None
        """Size of the largest text that is kept for a review, in UTF-8 bytes; None for any."""
        self._proposals = proposals
        self._editor = editor
        self._notifier = notifier
        self._roots_of = roots_of
        self._patience = patience
        self._check_elsewhere = check_elsewhere
        self._tasks = Tasks()

    async def run(self) -> None:
        """Open reviews, until cancelled."""
        await self._tasks.run()

    async def call(
        self, session: str, client: str, name: str, arguments: Mapping[str, object], *, damaged: bool = False
    ) -> ToolResult:
        """Call the tool `name` for `session`.

        `client` is the CLI's name for a person, "" when it is not known.  `damaged` says that the request held text
        that is no Unicode and was replaced by U+FFFD.
        """
        try:
            if name == OPEN_DIFF:
                path, content = _path(arguments), _string(arguments, "newContent")
                if damaged:
                    _check_unicode(filePath=path, newContent=content)
                if self._check_elsewhere is None or not await self._check_elsewhere(session, path):
                    roots = self._roots_of(session)
                    await in_thread(check_target, path, roots)
                return await self._open(session, client, path, content)
            if name == CLOSE_DIFF:
                suppress = arguments.get("suppressNotification") is True
                return await self._close(session, _path(arguments), suppress=suppress)
        except (ArgumentError, TargetError) as error:
            return ToolResult(str(error), is_error=True)
        return ToolResult(f"There is no tool {name}. Use {OPEN_DIFF} or {CLOSE_DIFF}.", is_error=True)

    def waiting(self) -> Sequence[Proposal]:
        """Return the proposals that the user has not decided."""
        return self._proposals.waiting()

    def was_shown(self, session: str, path: str) -> bool:
        """See `Proposals.was_shown`."""
        return self._proposals.was_shown(session, path)

    def decide(self, identifier: str, decision: Decision) -> None:
        """Send the user's decision to the CLI, unless the proposal has ended."""
        proposal = self._proposals.decide(identifier, decision)
        if proposal is None:
            if self._proposals.get(identifier) is None:
                self._editor.settled(identifier)
            return
        notification = (
            diff_rejected(proposal.path) if decision.content is None else DiffAccepted(proposal.path, decision.content)
        )
        if not self._notifier.post(proposal.session, notification, proposal.id):
            self._proposals.drop(proposal.id)
            self._abandon(proposal)

    def went_out(self, key: str) -> None:
        """Note that the decision on the proposal `key` went to the CLI, by this process or an earlier one."""
        if self._proposals.drop(key) is not None:
            self._editor.settled(key)

    def session_gone(self, session: str) -> None:
        """End the proposals of `session`, whose CLI has ended."""
        for proposal in self._proposals.end_session(session):
            self._abandon(proposal)

    def _abandon(self, proposal: Proposal) -> None:
        self._editor.abandon(proposal)
        if proposal.decision is not None:
            self._editor.settled(proposal.id)

    async def _open(self, session: str, client: str, path: str, content: str) -> ToolResult:
        proposal, replaced = self._proposals.begin(session, path, content)
        if proposal.decision is not None:
            # The user has decided about this very text, and the decision is being sent.
            return ToolResult()
        if replaced is not None:
            # The CLI matches an outcome by path: it would mistake the old one for that of the new proposal.  By the new
            # proposal Emacs sees that the decision on the old one is void.
            self._notifier.withdraw(session, replaced.id)
        opening = _Opening()
        self._tasks.start(self._show, opening, proposal, client, content)
        with anyio.move_on_after(self._patience):
            await opening.answered.wait()
        # A busy Emacs has queued the request.  A later refusal cannot reach the CLI, which then asks in its terminal.
        refusal = opening.refusal if opening.answered.is_set() else None
        return ToolResult() if refusal is None else ToolResult(refusal, is_error=True)

    async def _show(self, opening: _Opening, proposal: Proposal, client: str, content: str) -> None:
        """Open the review of `opening`; forget `proposal` if that fails."""
        try:
            opening.refusal = await self._editor.open_review(proposal, client, content)
        except EmacsUnavailableError as error:
            opening.refusal = f"The review could not be opened: {error}. Decide in the terminal instead."
        finally:
            if opening.refusal is not None:
                self._proposals.drop(proposal.id)
            opening.answered.set()

    async def _close(self, session: str, path: str, *, suppress: bool) -> ToolResult:
        proposal = self._proposals.find(session, path)
        if proposal is None:
            return ToolResult(close_result(None))
        decision = proposal.decision
        if decision is not None and not suppress:
            return ToolResult(close_result(decision.content))
        self._proposals.drop(proposal.id)
        self._notifier.withdraw(session, proposal.id)
        try:
            content = await self._editor.close_review(proposal)
        except EmacsUnavailableError as error:
            if decision is None:
                # Not null, which would mean that the user has changed nothing.
                return ToolResult(f"The text of the review is not known: {error}.", is_error=True)
            content = decision.content
        if not suppress:
            self._notifier.post(session, diff_rejected(path))
        return ToolResult(close_result(content))


def _check_unicode(**arguments: str) -> None:
    damaged = [name for name, value in arguments.items() if "\ufffd" in value]
    if damaged:
        raise ArgumentError(
            f"{' and '.join(damaged)} holds half a surrogate pair, which is not valid Unicode. Propose valid Unicode."
        )


def _string(arguments: Mapping[str, object], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise ArgumentError(f"{name} must be a string.")
    return value


def _path(arguments: Mapping[str, object]) -> str:
    try:
        return file_name(arguments.get("filePath"))
    except FileNameError as error:
        raise ArgumentError(f"filePath cannot be used: {error}. Give the full path.") from None
