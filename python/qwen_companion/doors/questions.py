# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans and questions of CLIs, shown in Emacs and answered there or in the terminal, whichever comes first.

While the hook is held, see `held`, only a denial can carry a text to the model: the answers to questions, and the
comments on a rejected plan.  To approve a plan, the backend lets the terminal ask and answers it: by the key for the
mode that the user wants, or else by its files.  After the hold it answers everything in this way, and sends a text as
the next prompt.  An edited plan goes to the model with the result of the tool.  A remote CLI in a terminal of Emacs has
no files here: it is answered by keys, once a hook reports that the terminal asks.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from pydantic import BaseModel, Field, ValidationError

from qwen_companion.base.errors import EmacsUnavailableError, PromptError
from qwen_companion.base.file_names import FileNameError, file_name
from qwen_companion.base.plan_files import now, plan_path, save_plan, words_for_model
from qwen_companion.base.threads import in_thread
from qwen_companion.domain import AskedQuestion, Peer, QuestionChoice
from qwen_companion.doors import events
from qwen_companion.doors.files import RemotePlaces
from qwen_companion.doors.held import POLL_S, Asker, Held, HeldCalls, Limits, Reply
from qwen_companion.doors.terminal_files import TerminalFiles
from qwen_companion.ide.proposals import HOOK_PREFIX, PLAN, QUESTION, Proposal, text_digest
from qwen_companion.ide.tools import Editor

_MODE_KEYS = {None: "1", "auto-edit": "2"}
"""The keys that approve a plan, by the mode that follows; None is the previous mode.

`default` has another number in a folder that is not trusted.
"""

_DEFAULT_KEYS = "\x1b[A\x1b[A\r"
"""The keys for `default`, the second last choice: up from the first choice wraps to the last."""

_ESCAPE = "\x1b"

_CONTEXT_LIMIT = 10_000
"""Most characters that a CLI adds to the result of a tool."""

_ANSWERED = "The user has answered your questions in the editor; this is no refusal. The answers:\n\n"
_DECLINED = "The user does not want to answer these questions."
_REFUSED = "The user rejected this plan."


class _Choice(BaseModel):
    label: str
    description: str | None = None


class _Question(BaseModel):
    question: str
    header: str | None = None
    options: list[_Choice] = []
    multiple: bool = Field(default=False, alias="multiSelect")


class _Questions(BaseModel):
    questions: list[_Question] = Field(min_length=1)


@dataclass(eq=False)
class _Held(Held):
    """A plan, with its `text`, or questions.

    The model reads an edited plan from `file` if it is too long for the result of its tool.
    """

    text: str = field(kw_only=True)
    file: str = field(kw_only=True)

    @property
    def allowed(self) -> bool:
        """Whether the decision approves a plan, so that the tool may run."""
        return self.proposal.kind == PLAN and self.decision is not None and self.decision.content is not None

    @property
    def context(self) -> str | None:
        """The text that the model reads with its approved plan: the user's edited plan and comments."""
        if not self.allowed or self.decision is None:
            return None
        return words_for_model(self.text, self.decision.content, self.decision.reason, self.file, _CONTEXT_LIMIT)

    def message(self) -> str:
        """Return the text that the model reads if the tool does not run."""
        content, reason = (None, None) if self.decision is None else (self.decision.content, self.decision.reason)
        if self.proposal.kind == QUESTION:
            answer = _DECLINED if content is None else _ANSWERED + content
            return answer if reason is None else f"{answer}\n\n{reason}"
        return reason or _REFUSED


class Questions(HeldCalls[_Held]):
    """The plans and questions, see the top of this file; one of each process."""

    def __init__(
        self,
        editor: Editor,
        files_of: Callable[[Peer], TerminalFiles | None],
        environ: Mapping[str, str],
        places: RemotePlaces,
        limits: Limits | None = None,
    ) -> None:
        """Keep plans in the directory of `environ`; for the other arguments see `HeldCalls`."""
        super().__init__(editor, files_of, limits)
        self.wanted = False
        """Whether plans and questions are shown in Emacs."""
        self._environ = environ
        self._places = places

    # --- Asking ---

    async def reply(self, request: events.PermissionRequest, asker: Asker, gone: anyio.Event) -> Reply:
        """Return the reply to `request` of `asker`; `gone` is set when the caller no longer waits."""
        held = await self._begin(request, asker, gone) if self.wanted else None
        if held is None:
            return Reply()
        if not held.is_answerable and held.proposal.kind == PLAN:
            self._release(held, "this CLI takes the answer in its terminal only")
            return Reply()
        if not await self._hold(held, self._limits.hold_s, gone):
            return Reply()
        if held.decision is None:
            self._release(held, "its terminal asks now")
            return Reply()
        if held.allowed:
            held.is_asked = True
            return Reply(after=partial(self._begin_answer, held))
        del self._held[held.proposal.id]
        return Reply(events.deny(held.message()), lambda: self._editor.settled(held.proposal.id))

    async def _begin(self, request: events.PermissionRequest, asker: Asker, gone: anyio.Event) -> _Held | None:
        """Show the plan or questions of `request` in Emacs; return None if they are not shown."""
        asked = _parse(request.tool_name, request.tool_input)
        peer = asker.peer
        try:
            project = self._places.name_of(peer, file_name(request.cwd))
        except FileNameError:
            return None
        if asked is None:
            return None
        text, questions = asked
        for earlier in self._of(peer.pid):
            self._end(earlier, "it asks anew")
        proposal = Proposal(
            HOOK_PREFIX + secrets.token_hex(8),
            asker.session,
            await in_thread(plan_path, self._environ, project, peer.conversation(request.session_id), now()),
            text_digest(text),
            kind=QUESTION if questions else PLAN,
            directory=project,
            questions=questions,
        )
        files = await in_thread(self._files_of, peer)
        before = () if files is None else await in_thread(files.awaited)
        held = _Held(proposal, asker, request, files, before, text=text, file=proposal.path)
        return held if await self._begin_review(held, asker.label, text, gone) is None else None

    def _release(self, held: _Held, reason: str) -> None:
        held.is_asked = True
        self._editor.released(held.proposal, reason, held.is_answerable)

    # --- Answering ---

    def release(self, identifier: str) -> None:
        """Have the terminal ask about the proposal `identifier`."""
        held = self._held.get(identifier)
        if held is not None and not held.is_asked:
            held.decided.set()

    async def _give_answer(self, held: _Held, request: str) -> None:
        """See `HeldCalls`."""
        if held.allowed and held.decision is not None:
            await self._save(held, held.decision.content or "")
        elif held.proposal.kind == QUESTION or held.message() != _REFUSED:
            held.prompt = held.message()
        if held.files is None or not request:
            await self._answer_by_keys(held)
        elif not (held.allowed and await self._approve_by_key(held, held.files, request)):
            await in_thread(held.files.answer, request, held.allowed)

    async def _save(self, held: _Held, plan: str) -> None:
        """Save the approved `plan` of `held`, also in a file that its CLI can read.

        :raises OSError: if it cannot be written
        :raises CompanionError: if it cannot be written for a remote CLI
        """
        await in_thread(save_plan, held.proposal.path, plan)
        place = held.asker.peer.place
        if place is not None and held.file in (held.context or ""):
            held.file = await self._places.lay_plan(place, plan)

    async def _answer_by_keys(self, held: _Held) -> None:
        """Answer the terminal about `held` by keys.

        :raises PromptError: if it does not accept them
        """
        mode = None if held.decision is None else held.decision.mode
        key = _MODE_KEYS.get(mode, _DEFAULT_KEYS) if held.allowed else _ESCAPE
        with suppress(EmacsUnavailableError):
            if await self._editor.type_key(held.proposal, key, held.prompt):
                held.prompt, held.is_answered = None, True
                with anyio.move_on_after(self._limits.confirm_s):
                    while held.proposal.id in self._held:
                        await anyio.sleep(POLL_S)
                    return
                held.is_answered = False
        raise PromptError("the terminal takes no answer from Emacs")

    async def _approve_by_key(self, held: _Held, files: TerminalFiles, request: str) -> bool:
        """Approve the plan `held` by the key for the mode that the user wants; return whether the terminal accepted it.

        In the file of answers, no mode but `default` can be named.
        """
        mode = None if held.decision is None else held.decision.mode
        # Another dialog would take the key.
        if mode not in _MODE_KEYS or list(await in_thread(files.awaited)) != [request]:
            return False
        with suppress(EmacsUnavailableError):
            if await self._editor.type_key(held.proposal, _MODE_KEYS[mode]):
                with anyio.move_on_after(self._limits.key_s):
                    while request in await in_thread(files.awaited):
                        await anyio.sleep(POLL_S)
                    return True
        return False

    # --- What the terminal has answered ---

    def note(self, peer: Peer, event: events.Event) -> None:
        """Update the call of the process `peer` by `event`."""
        if isinstance(event, events.UserPromptSubmit) and event.begins_turn:
            self.tasks.start(in_thread, self._trim, peer)
        is_over = isinstance(event, events.UserPromptSubmit | events.Stop | events.StopFailure | events.SessionEnd)
        for held in self._of(peer.pid, event):
            if isinstance(event, events.AttentionRequest):
                is_over = event.notification_type == "idle_prompt"
                if event.notification_type == "permission_prompt" and held.event.tool_name in event.message:
                    held.dialog.set()
            if is_over and held.is_asked:
                self._end(held, "it was answered in the terminal")

    def _trim(self, peer: Peer) -> None:
        """Trim the files of the terminal of `peer`.  Blocks on disk I/O."""
        if files := self._files_of(peer):
            files.trim()

    def awaits(self, peer: Peer, event: events.PostToolUse) -> bool:
        """Return whether the call in `event` of the process `peer`, which has run, asked the user."""
        del peer
        return event.tool_name in events.QUESTION_TOOLS

    async def ran(self, peer: Peer, event: events.PostToolUse) -> str:
        """Note that a call of the process `peer` has run; return the edited plan for its result, or ""."""
        held = next((held for held in self._of(peer.pid) if held.event.tool_name == event.tool_name), None)
        if event.tool_name == events.EXIT_PLAN and not (held and held.allowed):
            self.tasks.start(self._keep, event, peer)
        if held is None:
            return ""
        if held.allowed and not held.is_answered:
            self._settle(held)
        self._end(held, "it was answered in the terminal")
        return held.context or ""

    async def _keep(self, event: events.PostToolUse, peer: Peer) -> None:
        """Save the plan that was approved in the terminal of `peer`."""
        asked = _parse(event.tool_name, event.tool_input)
        try:
            if asked is not None:
                project = self._places.name_of(peer, file_name(event.cwd))
                path = await in_thread(plan_path, self._environ, project, peer.conversation(event.session_id), now())
                await in_thread(save_plan, path, asked[0])
        except (FileNameError, OSError) as error:
            self._editor.warn(f"the approved plan cannot be kept: {error}")


def _parse(tool: str, tool_input: Mapping[str, Any]) -> tuple[str, tuple[AskedQuestion, ...]] | None:
    """Return the plan or the questions in the input of `tool`; None if there is nothing to show."""
    if tool == events.EXIT_PLAN:
        plan = tool_input.get("plan")
        return (plan, ()) if isinstance(plan, str) and plan.strip() else None
    try:
        questions = _Questions.model_validate(tool_input).questions
    except ValidationError:
        return None
    return "", tuple(
        AskedQuestion(
            item.question,
            item.header,
            item.multiple,
            tuple(QuestionChoice(option.label, option.description) for option in item.options),
        )
        for item in questions
    )
