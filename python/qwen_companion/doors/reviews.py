# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers to a CLI in its mode `auto` that asks whether it may edit a file.

Our settings layer makes it ask.  Where it is connected as an IDE client, the answer is no decision, and it opens a
review by `openDiff` as it does in its mode `default`: its terminal asks at the same time, and the answer there
counts.  A subagent has no terminal to ask in, and a CLI that is not connected has no `openDiff`: for these the request
is held while its review is open, and answered with the user's decision.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio

from qwen_companion.domain import Peer
from qwen_companion.doors import events
from qwen_companion.doors.calls import Reply, run_while_wanted
from qwen_companion.doors.conditions import is_inside, may_pass
from qwen_companion.doors.disk import Disk
from qwen_companion.doors.hook_settings import REVIEW_TIMEOUT_S
from qwen_companion.errors import EmacsUnavailableError
from qwen_companion.file_names import FileNameError, file_name
from qwen_companion.frozen import frozen
from qwen_companion.ide.proposals import HOOK_PREFIX, Decision, Proposal, text_digest
from qwen_companion.ide.targets import TargetError
from qwen_companion.ide.tools import Editor
from qwen_companion.threads import in_thread

ALL = "all"
OPEN = "open"
"""Which edits are reviewed: those of all files, or of the files that buffers visit."""

OPEN_S = 10.0
"""How long Emacs may take to begin a review; after that the CLI goes on as if it had not asked."""

HOLD_S = REVIEW_TIMEOUT_S - 10.0
"""How long one request is held: less than the CLI waits, so that it is answered."""

RETURN_S = 600.0
"""How long a review stays open after its subagent was told to ask again, and has not."""

BUSY = "Emacs is busy and shows no review."

STILL_REVIEWING = (
    "The user is still reviewing this change in Emacs and has not decided. "
    "Make exactly the same call again to wait for the decision."
)

_MAX_FILE_BYTES = 64 * 1024 * 1024


@frozen
class Asker:
    """The CLI that asks: its process, that of `peer`, its `label` for the user, its `session` for Emacs.

    `opens_reviews` says that it is connected and opens reviews by itself.  Its files are on `disk`, None for that
    of this machine.
    """

    peer: Peer
    session: str
    label: str
    opens_reviews: bool
    disk: Disk | None = None


@frozen
class _Facts:
    """An edit compared with the disk: the `text` there is, None where there is none, and the one that is `proposed`."""

    text: str | None
    proposed: str


class UnreviewableError(Exception):
    """There is no text to show; the text of this tells the model why."""


@dataclass(eq=False)
class _Held:
    """A review of what `asker` and AGENT proposed; `facts` are those of the time when it began.

    `decided` is set once there is a `decision`.
    """

    proposal: Proposal
    asker: Asker
    agent_id: str | None
    facts: _Facts
    decided: anyio.Event = field(default_factory=anyio.Event)
    decision: Decision | None = None
    abandonment: asyncio.TimerHandle | None = None
    """The timer that ends it while no request is held for it."""


class HookReviews:
    """The requests for permission, and the reviews that some become.

    A CLI waits for a minute only.  A subagent that has not got a decision by then is told to ask again; when it makes
    the same call, that is held for the same review.
    """

    def __init__(
        self,
        editor: Editor,
        environ: Mapping[str, str],
        open_s: float = OPEN_S,
        hold_s: float = HOLD_S,
        return_s: float = RETURN_S,
    ) -> None:
        """`environ` is the one that CLIs here find their settings by.  For the times in seconds see the constants."""
        self.scope: str | None = None
        self._editor = editor
        self._disk = Disk(environ)
        self._open_s = open_s
        self._hold_s = hold_s
        self._return_s = return_s
        self._held: dict[str, _Held] = {}

    def decide(self, identifier: str, decision: Decision) -> None:
        """Take the user's decision on the proposal `identifier`."""
        held = self._held.get(identifier)
        if held is None or held.decision is not None:
            self._editor.settled(identifier)
        else:
            held.decision = decision
            held.decided.set()

    def waiting(self) -> list[Proposal]:
        """Return the proposals on which the user has not decided."""
        return [held.proposal for held in self._held.values() if held.decision is None]

    def end_agent(self, pid: int, agent_id: str) -> None:
        """End the reviews of the subagent `agent_id` of process `pid`."""
        for held in list(self._held.values()):
            if (held.asker.peer.pid, held.agent_id) == (pid, agent_id):
                self._abandon(held)

    def end_process(self, pid: int) -> None:
        """End the reviews of the process `pid`."""
        for held in list(self._held.values()):
            if held.asker.peer.pid == pid:
                self._abandon(held)

    async def reply(
        self, request: events.PermissionRequest, asker: Asker, agent: str | None, gone: anyio.Event
    ) -> Reply:
        """Return the reply to `request` of `asker`.

        `agent` is the name of the subagent that asks, if it is one.  `gone` is set when nobody waits for the reply.
        """
        if request.mode != events.AUTO or request.tool_name not in events.EDIT_TOOLS:
            return Reply(events.NO_DECISION)
        disk = asker.disk or self._disk
        try:
            directories = [file_name(request.cwd), *([asker.peer.directory] if asker.peer.directory else [])]
            path = file_name(request.tool_input.get("file_path", request.tool_input.get("notebook_path")))
        except FileNameError:
            return Reply(events.NO_DECISION)
        opens = agent is None and asker.opens_reviews
        if (opens and self.scope == ALL) or not await in_thread(_is_in_all, path, directories, disk):
            return Reply(events.NO_DECISION)
        if not await self._is_reviewed(disk.name(path)):
            if await in_thread(may_pass, request.tool_name, path, request.cwd, disk):
                return Reply(events.allow())
            # A subagent cannot ask: no decision would be a no.
            if agent is None or self.scope is None:
                return Reply(events.NO_DECISION)
        elif opens:
            return Reply(events.NO_DECISION)
        try:
            return await self._review(request, path, disk, asker, agent, gone)
        except (UnreviewableError, TargetError) as error:
            return Reply(events.NO_DECISION if agent is None else events.deny(str(error)))

    async def _is_reviewed(self, path: str) -> bool:
        if self.scope != OPEN:
            return self.scope == ALL
        try:
            return await self._editor.is_visited(path)
        except EmacsUnavailableError:
            return True

    async def _review(
        self,
        request: events.PermissionRequest,
        path: str,
        disk: Disk,
        asker: Asker,
        agent: str | None,
        gone: anyio.Event,
    ) -> Reply:
        """Review the edit.

        :raises UnreviewableError, TargetError: where there is nothing to show
        """
        facts = await in_thread(_facts, request, path, await disk.review_file(path))
        held = self._find(request, path, asker, facts)
        if held is None:
            held = await self._begin(request, path, asker, agent, facts, gone)
        await run_while_wanted(held.decided.wait, self._hold_s, gone)
        if gone.is_set():
            self._abandon(held)
        elif held.decision is not None:
            del self._held[held.proposal.id]
            return Reply(_answer(request, held.facts, held.decision), lambda: self._editor.settled(held.proposal.id))
        elif agent is None:
            self._abandon(held)
        else:
            held.abandonment = asyncio.get_running_loop().call_later(self._return_s, self._abandon, held)
            return Reply(events.deny(STILL_REVIEWING))
        return Reply(events.NO_DECISION)

    def _find(self, request: events.PermissionRequest, path: str, asker: Asker, facts: _Facts) -> _Held | None:
        """Return the review of the same change by the same agent, if that was told to ask again."""
        for held in self._held.values():
            same = (held.asker.peer.pid, held.agent_id, held.proposal.path) == (asker.peer.pid, request.agent_id, path)
            if same and held.facts == facts and held.abandonment is not None:
                held.abandonment.cancel()
                held.abandonment = None
                return held
        return None

    async def _begin(
        self,
        request: events.PermissionRequest,
        path: str,
        asker: Asker,
        agent: str | None,
        facts: _Facts,
        gone: anyio.Event,
    ) -> _Held:
        """Have the review shown; `gone` is set when nobody waits for it.

        :raises UnreviewableError: when it is not shown
        """
        proposal = Proposal(HOOK_PREFIX + secrets.token_hex(8), asker.session, path, text_digest(facts.proposed))
        label = asker.label if agent is None else f"{agent} of {asker.label or 'the CLI'}"
        held = self._held[proposal.id] = _Held(proposal, asker, request.agent_id, facts)
        refusal = await begin_review(self._editor, proposal, label, facts.proposed, self._open_s, gone)
        if refusal == BUSY:
            # If it shows the review when it has time, it is told at once that it is over.
            self._abandon(held)
        elif refusal is None:
            return held
        else:
            del self._held[proposal.id]
        raise UnreviewableError(refusal)

    def _abandon(self, held: _Held) -> None:
        """Abandon the review `held`, which nobody waits for any more."""
        if self._held.pop(held.proposal.id, None) is not None:
            self._editor.abandon(held.proposal)
            if held.decision is not None:
                self._editor.settled(held.proposal.id)


async def begin_review(
    editor: Editor, proposal: Proposal, label: str, text: str, limit_s: float, gone: anyio.Event
) -> str | None:
    """Have `text` of `proposal` shown; return None, or why it is not.

    That is `BUSY` where Emacs has not answered within `limit_s` seconds, or `gone` was set before.
    """
    answers: list[str | None] = []

    async def ask() -> None:
        try:
            answers.append(await editor.open_review(proposal, label, text))
        except EmacsUnavailableError as error:
            answers.append(str(error))

    await run_while_wanted(ask, limit_s, gone)
    return answers[0] if answers else BUSY


def _answer(request: events.PermissionRequest, facts: _Facts, decision: Decision) -> events.Answer:
    if decision.content is None:
        return events.deny("The user rejected this change.")
    if decision.content == (facts.text or "") and facts.text is not None:
        return events.deny("The user dropped all of this change.")
    if decision.content == facts.proposed:
        return events.allow()
    if request.tool_name == events.WRITE:
        return events.allow({**request.tool_input, "content": decision.content})
    # The whole text for the whole text.  Should the file have changed meanwhile, the CLI does not find the old one.
    changed = {**request.tool_input, "old_string": facts.text or "", "new_string": decision.content}
    return events.allow({**changed, "replace_all": False} if "replace_all" in changed else changed)


def _is_in_all(path: str, directories: list[str], disk: Disk) -> bool:
    """Return whether `path` lies in each of `directories` of `disk`; it is no where that cannot be found out."""
    try:
        disk.expect([path, *directories], ())
        return all(is_inside(path, directory, disk) for directory in directories)
    except OSError:
        return False


def _facts(request: events.PermissionRequest, path: str, file: str) -> _Facts:
    """Return the facts that a review of `path` needs, whose text the `file` of this machine has.

    :raises UnreviewableError: where there is nothing to show
    """
    text = _read(path, file)
    tool_input = request.tool_input
    if request.tool_name == events.WRITE:
        return _Facts(text, _string(tool_input, "content"))
    if request.tool_name != events.EDIT:
        raise UnreviewableError(f"{request.tool_name} of a subagent cannot be reviewed in Emacs.")
    old, new = _string(tool_input, "old_string"), _string(tool_input, "new_string")
    if old == "":
        if text is None:
            return _Facts(None, new)
        raise UnreviewableError(f"{path} is there already.")
    count = (text or "").count(old)
    if text is None or count == 0 or (count > 1 and tool_input.get("replace_all") is not True):
        raise UnreviewableError(
            f"old_string occurs {count} times in {path}, so the change cannot be shown to the user. "
            "Read the file again and give a text that occurs exactly once."
        )
    return _Facts(text, text.replace(old, new))


def _read(path: str, file: str) -> str | None:
    """Return the text of `file` as the CLI sees it, which calls it `path`, None where there is no file."""
    try:
        with open(file, "rb") as opened:
            data = opened.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreviewableError(f"{path} cannot be read: {error.strerror}.") from None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise UnreviewableError(f"{path} is not UTF-8, so the change cannot be shown to the user.") from None
    if len(data) > _MAX_FILE_BYTES:
        raise UnreviewableError(f"{path} is too large to be shown to the user.")
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def _string(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    if not isinstance(value, str):
        raise UnreviewableError(f"{key} must be a string.")
    return value
