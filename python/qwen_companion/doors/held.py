# SPDX-License-Identifier: GPL-3.0-or-later
"""Calls of tools whose hook waits while the user decides in Emacs.

A hook is held for the better part of a minute; longer no CLI waits.  Then its terminal asks, for as long as it takes,
and is answered from here: by its files, see `terminal_files`, or by a key typed into a terminal of Emacs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from qwen_companion.domain import Peer
from qwen_companion.doors import events
from qwen_companion.doors.calls import run_while_wanted
from qwen_companion.doors.files import Files
from qwen_companion.doors.hook_settings import REVIEW_TIMEOUT_S
from qwen_companion.doors.prompt_files import append_prompt
from qwen_companion.doors.terminal_files import TerminalFiles
from qwen_companion.errors import EmacsUnavailableError, PromptError
from qwen_companion.ide.proposals import Decision, Proposal
from qwen_companion.ide.tools import Editor
from qwen_companion.threads import in_thread

HOLD_S = REVIEW_TIMEOUT_S - 10.0
"""How long a hook is held: less than the CLI waits, so that it is answered."""

POLL_S = 0.1

BUSY = "Emacs is busy and shows no review."


@dataclass(frozen=True)
class Limits:
    """How long, in seconds, to wait at most.

    - `open_s`: for Emacs to begin a review; after that the terminal asks.
    - `hold_s`: with the answer to a hook.
    - `return_s`: for a model to make its call again.
    - `confirm_s`: for the terminal to ask after its hook was answered.
    - `key_s`: for the terminal to react to a key.
    """

    open_s: float = 10.0
    hold_s: float = HOLD_S
    return_s: float = 600.0
    confirm_s: float = 15.0
    key_s: float = 3.0


@dataclass(frozen=True)
class Asker:
    """The CLI that asks: the process of `peer`, its `label` for the user, its `session` for Emacs.

    `files` are those where it runs, None where that place is not served.
    """

    peer: Peer
    session: str
    label: str
    files: Files | None


@dataclass(eq=False)
class Held:
    """A call of `asker`, which its hook reports by `event`, and its `proposal` in Emacs.

    `files` answer in its terminal; `before` are the ids of the questions there before this one.  `decided` is set once
    there is a `decision`, `dialog` when a hook tells that the terminal asks.  `is_asked` says that the terminal
    asks, or is about to.
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

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self.asker.peer.pid

    @property
    def by_keys(self) -> bool:
        """Whether keys reach its terminal."""
        return self.asker.peer.terminal is not None

    @property
    def is_answerable(self) -> bool:
        """Whether its terminal can be answered from Emacs."""
        return self.files is not None or self.by_keys

    def is_request(self, tool: str, call: str) -> bool:
        """Return whether the terminal asks about this call where it asks about `call` of `tool`."""
        return tool == self.event.tool_name and call == (self.event.tool_call_id or call)


HeldT = TypeVar("HeldT", bound=Held)


class HeldCalls(Generic[HeldT]):
    """Calls that are held, by the ids of their proposals.  The methods are for the event loop."""

    def __init__(
        self,
        tasks: TaskGroup,
        editor: Editor,
        files_of: Callable[[Peer], TerminalFiles | None],
        limits: Limits | None = None,
    ) -> None:
        """`files_of` returns, in a thread, the files of the terminal of a process."""
        self._tasks = tasks
        self._editor = editor
        self._files_of = files_of
        self._limits = limits or Limits()
        self._held: dict[str, HeldT] = {}

    async def _begin_review(self, held: HeldT, label: str, text: str, gone: anyio.Event) -> str | None:
        """Have `text` of `held` shown; return None, or why it is not, after which it is not held.

        That is `BUSY` where Emacs has not answered in time, or `gone` was set before.
        """
        answers: list[str | None] = []

        async def ask_editor() -> None:
            try:
                answers.append(await self._editor.open_review(held.proposal, label, text))
            except EmacsUnavailableError as error:
                answers.append(str(error))

        self._held[held.proposal.id] = held
        await run_while_wanted(ask_editor, self._limits.open_s, gone)
        return answers[0] if answers else BUSY

    def decide(self, identifier: str, decision: Decision) -> bool:
        """Take the user's decision on the proposal `identifier`; return whether it is known here."""
        held = self._held.get(identifier)
        if held is not None and held.decision is None:
            held.decision = decision
            held.decided.set()
            if held.is_asked:
                self._begin_answer(held)
        return held is not None

    def _begin_answer(self, held: HeldT) -> None:
        self._tasks.start_soon(self._answer_terminal, held)

    async def _answer_terminal(self, held: HeldT) -> None:
        """Answer what the terminal asks with the decision on `held`."""
        raise NotImplementedError

    async def _request(self, held: HeldT) -> str:
        """Return the id under which the terminal asks about `held`, once it does; "" where keys answer.

        :raises PromptError: if it does not ask
        """
        with anyio.move_on_after(self._limits.confirm_s if held.is_answerable or held.dialog.is_set() else 0.0):
            # After an event of more than 1 MiB, as a long plan is, the CLI writes no events any more.
            late = math.inf
            while held.files is not None and anyio.current_time() < late:
                if late == math.inf and held.by_keys and held.dialog.is_set():
                    late = anyio.current_time() + self._limits.key_s
                for request, asked in (await in_thread(held.files.awaited)).items():
                    if request not in held.before and held.is_request(asked.tool, asked.call):
                        return request
                await anyio.sleep(POLL_S)
            await held.dialog.wait()
            return ""
        raise PromptError("the terminal takes no answer from Emacs")

    async def _send_prompt(self, files: TerminalFiles, prompt: str) -> None:
        """Give the CLI with `files` the words of the user's as the next `prompt`."""
        try:
            await in_thread(append_prompt, files.directory, files.answers, prompt)
        except PromptError as error:
            self._editor.warn(f"{error}; the model has not got your text")

    def _abandon(self, held: HeldT, reason: str) -> None:
        """Tell Emacs that nobody waits for `held` any more, for `reason`."""
        self._editor.abandon(held.proposal, reason)
        if held.decision is not None:
            self._editor.settled(held.proposal.id)
        held.decided.set()
