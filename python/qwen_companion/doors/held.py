# SPDX-License-Identifier: GPL-3.0-or-later
"""Calls of tools whose hook waits while the user decides in Emacs.

A CLI waits for a hook for a minute at most.  Before that, the hook is answered so that the terminal asks, which has no
limit.  It is answered at once if Emacs is frozen.  Then nobody reads the output of a CLI in a terminal of Emacs either,
so that it waits for that after some 4 s.  When it goes on after the minute, it runs the tool without reading an answer.

The backend answers the terminal by its files, see `terminal_files`, or by a key typed into a terminal of Emacs.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio

from qwen_companion.base.errors import CompanionError, EmacsUnavailableError, PromptError
from qwen_companion.base.tasks import Tasks
from qwen_companion.base.threads import in_thread
from qwen_companion.domain import Peer
from qwen_companion.doors import events
from qwen_companion.doors.door_settings import REVIEW_TIMEOUT_S
from qwen_companion.doors.files import Files
from qwen_companion.doors.terminal_files import TerminalFiles, append_prompt
from qwen_companion.ide.proposals import Decision, Proposal
from qwen_companion.ide.tools import Editor

HOLD_S = REVIEW_TIMEOUT_S - 10.0
"""Seconds that a hook is held: less than the CLI waits."""

POLL_S = 0.1

BUSY = "Emacs is busy and shows no review."


async def until_first(limit_s: float, *works: Callable[[], Awaitable[None]]) -> None:
    """Run `works` until one of them has ended, or `limit_s` seconds have passed."""

    async def run(work: Callable[[], Awaitable[None]]) -> None:
        await work()
        tasks.cancel_scope.cancel()

    with anyio.move_on_after(limit_s):
        async with anyio.create_task_group() as tasks:
            for work in works:
                tasks.start_soon(run, work)


@dataclass(frozen=True)
class Reply:
    """The reply to a call of a hook: the `answer`, and what to do `after` it has been sent."""

    answer: events.Answer = field(default_factory=events.NO_DECISION.copy)
    after: Callable[[], None] | None = None


@dataclass(frozen=True)
class Limits:
    """Time limits, in seconds.

    - `open_s`: until Emacs begins a review; after that the terminal asks.
    - `hold_s`: until a hook is answered.
    - `return_s`: until the model repeats its call.
    - `confirm_s`: until the terminal asks, after its hook was answered.
    - `key_s`: until the terminal reacts to a key.
    """

    open_s: float = 10.0
    hold_s: float = HOLD_S
    return_s: float = 600.0
    confirm_s: float = 15.0
    key_s: float = 3.0


@dataclass(frozen=True)
class Asker:
    """The CLI that asks: its process, and its `label` for the user; `session` is its id in Emacs.

    `files` are those of the machine where it runs, None if that is not served.
    """

    peer: Peer
    session: str
    label: str
    files: Files | None


@dataclass(eq=False)
class Held:
    """A call of `asker`, reported by its hook as `event`, and its `proposal` in Emacs.

    Its terminal is answered through `files`; it had already asked the requests with the ids `before`.  `decided` is set
    with the `decision`, or when the call is abandoned; `dialog` when a hook reports that the terminal asks.
    `is_asked`: the terminal asks, or is about to.  `is_answered`: the decision has reached the CLI.  `prompt` is a text
    for the model, sent as a prompt once the turn is over: answers to a terminal have no text.
    """

    proposal: Proposal
    asker: Asker
    event: events.ToolEvent
    files: TerminalFiles | None
    before: Collection[str] = ()
    decided: anyio.Event = field(default_factory=anyio.Event, kw_only=True)
    dialog: anyio.Event = field(default_factory=anyio.Event, kw_only=True)
    decision: Decision | None = field(default=None, kw_only=True)
    is_asked: bool = field(default=False, kw_only=True)
    is_answered: bool = field(default=False, kw_only=True)
    prompt: str | None = field(default=None, kw_only=True)

    @property
    def pid(self) -> int:
        """The process id."""
        return self.asker.peer.pid

    @property
    def by_keys(self) -> bool:
        """Whether its terminal can be answered by keys."""
        return self.asker.peer.terminal is not None

    @property
    def is_answerable(self) -> bool:
        """Whether its terminal can be answered from Emacs."""
        return self.files is not None or self.by_keys


HeldT = TypeVar("HeldT", bound=Held)


class HeldCalls(Generic[HeldT]):
    """The calls that are held.  `tasks` must run.  Call its methods on the event loop."""

    def __init__(
        self, editor: Editor, files_of: Callable[[Peer], TerminalFiles | None], limits: Limits | None = None
    ) -> None:
        """`files_of` returns, in a thread, the files of the terminal of a process."""
        self.tasks = Tasks()
        self._editor = editor
        self._files_of = files_of
        self._limits = limits or Limits()
        self._held: dict[str, HeldT] = {}
        """By the ids of their proposals."""

    def waiting(self) -> list[Proposal]:
        """Return the proposals that the user has not decided."""
        return [held.proposal for held in self._held.values() if held.decision is None]

    def _of(self, pid: int, event: events.Event | None = None) -> list[HeldT]:
        """Return the calls of process `pid`; with an `event` of the conversation, only those that it can concern."""
        found = [held for held in self._held.values() if held.pid == pid]
        if event is None:
            return found
        # Versions that name no turns do not name subagents either.
        conversation = [held for held in found if held.event.agent_id is None or held.event.prompt_id is None]
        return [held for held in conversation if not event.timestamp or event.timestamp >= held.event.timestamp]

    # --- Asking ---

    async def _begin_review(self, held: HeldT, label: str, text: str, gone: anyio.Event) -> str | None:
        """Show `text` of `held` in Emacs; return None, or the reason why it is not shown.

        The reason is `BUSY` if Emacs has not answered in time, or if `gone` was set first.
        """
        answers: list[str | None] = []

        async def ask_editor() -> None:
            try:
                answers.append(await self._editor.open_review(held.proposal, label, text))
            except EmacsUnavailableError as error:
                answers.append(str(error))

        self._held[held.proposal.id] = held
        await until_first(self._limits.open_s, ask_editor, gone.wait, self._editor.silence)
        refusal = answers[0] if answers else BUSY
        if refusal is not None:
            # Emacs may still show it later, and must close it then.
            self._end(held, refusal)
        return refusal

    async def _hold(self, held: HeldT, limit_s: float, gone: anyio.Event, repeated: bool = False) -> bool:
        """Wait at most `limit_s` seconds for the decision on `held`; return whether its call has not ended.

        `gone` is set when the caller no longer waits.  Stop waiting if Emacs is frozen, unless the call is `repeated`
        by a model, which would repeat it again at once.  In a terminal of Emacs it cannot: the CLI comes to a stop.
        """
        works = [held.decided.wait, gone.wait]
        if held.by_keys or not repeated:
            works.append(self._editor.silence)
        await until_first(limit_s, *works)
        if gone.is_set():
            self._end(held, "it was cancelled in the terminal")
        return held.proposal.id in self._held

    # --- Answering ---

    def decide(self, identifier: str, decision: Decision) -> bool:
        """Carry out the user's decision on the proposal `identifier`; return whether it is one of these calls."""
        held = self._held.get(identifier)
        if held is not None and held.decision is None:
            held.decision = decision
            held.decided.set()
            if held.is_asked:
                self._begin_answer(held)
        return held is not None

    def _begin_answer(self, held: HeldT) -> None:
        self.tasks.start(self._answer_terminal, held)

    async def _answer_terminal(self, held: HeldT) -> None:
        """Answer the terminal with the decision on `held`, once it asks."""
        try:
            request = await self._request(held)
            if held.proposal.id in self._held:
                await self._give_answer(held, request)
        except (CompanionError, OSError) as error:
            if held.proposal.id in self._held:
                self._editor.warn(f"{error}: answer in the terminal")
                self._end(held, "the terminal did not take the answer")
        else:
            self._settle(held)

    async def _give_answer(self, held: HeldT, request: str) -> None:
        """Answer the terminal, which asks about `held` by the request with the id `request`, see `_request`.

        :raises CompanionError: if it does not accept the answer
        :raises OSError: if a file cannot be written
        """
        raise NotImplementedError

    async def _request(self, held: HeldT) -> str:
        """Wait until the terminal asks about `held`; return the id of its request, "" if keys answer it.

        :raises PromptError: if it does not ask
        """
        with anyio.move_on_after(self._limits.confirm_s if held.is_answerable or held.dialog.is_set() else 0.0):
            # After an event of more than 1 MiB, such as a long plan, the CLI writes no more events.
            late = math.inf
            while held.files is not None and anyio.current_time() < late:
                if late == math.inf and held.by_keys and held.dialog.is_set():
                    late = anyio.current_time() + self._limits.key_s
                for request, asked in (await in_thread(held.files.awaited)).items():
                    is_same = asked.tool == held.event.tool_name and held.event.tool_call_id in (None, asked.call)
                    if is_same and request not in held.before:
                        return request
                await anyio.sleep(POLL_S)
            await held.dialog.wait()
            return ""
        raise PromptError("the terminal takes no answer from Emacs")

    # --- The ends of calls ---

    def awaits(self, peer: Peer, event: events.PostToolUse) -> bool:
        """Return whether the call in `event` of the process `peer`, which has run, is one of these."""
        raise NotImplementedError

    async def ran(self, peer: Peer, event: events.PostToolUse) -> str:
        """Note that the call in `event` of the process `peer` has run; return the text for its result, or ""."""
        raise NotImplementedError

    def _settle(self, held: HeldT) -> None:
        """Note that the decision on `held` has reached the CLI."""
        held.is_answered = True
        self._editor.settled(held.proposal.id)

    def _end(self, held: HeldT, reason: str) -> None:
        """End `held`: close its proposal for `reason`, or send the user's text if the terminal was answered."""
        if self._held.pop(held.proposal.id, None) is None:
            return
        if not held.is_answered:
            self._editor.abandon(held.proposal, reason)
            if held.decision is not None:
                self._editor.settled(held.proposal.id)
            held.decided.set()
        elif held.files is not None and held.prompt is not None:
            self.tasks.start(self._send_prompt, held.files, held.prompt)

    async def _send_prompt(self, files: TerminalFiles, prompt: str) -> None:
        """Send the user's text to the CLI with `files` as the next `prompt`."""
        try:
            await in_thread(append_prompt, files.directory, files.answers, prompt)
        except PromptError as error:
            self._editor.warn(f"{error}; the model has not got your text")

    def end_process(self, pid: int) -> None:
        """End the calls of the process `pid`."""
        for held in self._of(pid):
            self._end(held, "the CLI has ended")
