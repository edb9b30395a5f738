# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans and questions of CLIs, shown in Emacs and answered there or in the terminal, whichever comes first.

The hook by which a CLI asks is held for the better part of a minute, longer it does not wait.  Meanwhile a refusal,
with the user's comments, and the answers to questions go to the model as the message of a denial: that is the one way
for a text.  A plan is approved by letting the terminal ask, and answering there: by the key for the mode that the user
wants, or else by the files of `terminal_files`.  After the hold the terminal is answered too: a text then goes as the
next prompt.  An edited plan goes with the tool's result.  In a terminal of Emacs whose CLI runs at another place, and
has no files here, keys answer all that, once a hook has told that the terminal asks.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup
from pydantic import BaseModel, Field, ValidationError

from qwen_companion.domain import AskedQuestion, Peer, QuestionChoice
from qwen_companion.doors import events
from qwen_companion.doors.calls import Elsewhere, Reply, run_while_wanted
from qwen_companion.doors.hook_settings import QUESTION_SUBSCRIPTIONS
from qwen_companion.doors.listeners import Report, Subscription
from qwen_companion.doors.prompt_files import append_prompt
from qwen_companion.doors.reviews import HOLD_S, OPEN_S, Asker, begin_review
from qwen_companion.doors.terminal_files import TerminalFiles, terminal_files
from qwen_companion.errors import CompanionError, EmacsUnavailableError, PromptError
from qwen_companion.file_names import FileNameError, file_name
from qwen_companion.ide.proposals import HOOK_PREFIX, PLAN, QUESTION, Decision, Proposal, text_digest
from qwen_companion.ide.tools import Editor
from qwen_companion.plan_files import now, plan_path, save_plan, words_for_model
from qwen_companion.threads import in_thread

CONFIRM_S = 15.0
"""How long the terminal may take to ask after its hook was answered, in seconds."""

KEY_S = 3.0
"""How long it may take to react to a key, in seconds."""

_POLL_S = 0.1

_MODE_KEYS = {None: "1", "auto-edit": "2"}
"""The keys by which the terminal approves a plan, by the mode that follows; None for the one before.

`default` has another number in a folder that is not trusted.
"""

_DEFAULT_KEYS = "\x1b[A\x1b[A\r"
"""Those for the mode `default`: it is the last but one, and up from the first leads to the last."""

_ESCAPE = "\x1b"

_CONTEXT_LIMIT = 10_000
"""Characters of the longest text that a CLI adds to the result of a tool."""

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
class _Held:
    """What the process `pid` asks by its tool `tool` since `time`, the timestamp of its event; `text` is the plan.

    `files` answer in its terminal, or `by_keys` keys do, where that is possible; `before` are the ids of its questions
    before this one.  `decided` is set once there is a `decision`, `asked` when the terminal asks and keys answer.
    """

    proposal: Proposal
    pid: int
    tool: str
    time: str
    text: str
    files: TerminalFiles | None
    before: Collection[str]
    by_keys: bool
    place: str | None
    file: str
    """From which the model reads a plan that is too long for its tool's result."""
    decided: anyio.Event = field(default_factory=anyio.Event)
    asked: anyio.Event = field(default_factory=anyio.Event)
    decision: Decision | None = None
    released: bool = False
    prompt: str | None = None
    """A text for the model, sent as a prompt once the turn is over."""

    @property
    def answerable(self) -> bool:
        """Whether its terminal can be answered from Emacs."""
        return self.files is not None or self.by_keys

    @property
    def allowed(self) -> bool:
        """Whether the decision lets the tool run: it approves a plan."""
        return self.proposal.kind == PLAN and self.decision is not None and self.decision.content is not None

    @property
    def context(self) -> str | None:
        """What the model reads with its approved plan: the text that the user has edited it to, and comments."""
        if not self.allowed or self.decision is None:
            return None
        return words_for_model(self.text, self.decision.content, self.decision.reason, self.file, _CONTEXT_LIMIT)

    def message(self) -> str:
        """Return what the model reads where the tool does not run."""
        content, reason = (None, None) if self.decision is None else (self.decision.content, self.decision.reason)
        if self.proposal.kind == QUESTION:
            answer = _DECLINED if content is None else _ANSWERED + content
            return answer if reason is None else f"{answer}\n\n{reason}"
        return reason or _REFUSED


class Questions:
    """See the top of this file.  One plan or form of questions of a process at a time; a listener of hooks."""

    def __init__(
        self,
        tasks: TaskGroup,
        editor: Editor,
        directory: str,
        environ: Mapping[str, str],
        warn: Callable[[str], None],
        hold_s: float = HOLD_S,
        confirm_s: float = CONFIRM_S,
        key_s: float = KEY_S,
        files_of: Callable[[Peer, str], TerminalFiles | None] = terminal_files,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """`directory` has the files of terminals; plans are kept where `environ` says.  `warn` tells the user."""
        self.wanted = False
        """Whether plans and questions are shown in Emacs."""
        self._tasks = tasks
        self._editor = editor
        self._directory = directory
        self._environ = environ
        self._warn = warn
        self._hold_s = hold_s
        self._confirm_s = confirm_s
        self._key_s = key_s
        self._files_of = files_of
        self._elsewhere = elsewhere
        self._held: dict[int, _Held] = {}

    # --- Asking ---

    async def reply(self, request: events.PermissionRequest, asker: Asker, gone: anyio.Event) -> Reply:
        """Return the reply to `request` of `asker`; `gone` is set when nobody waits for it."""
        held = await self._begin(request, asker, gone) if self.wanted else None
        if held is None:
            return Reply()
        if not held.answerable and held.proposal.kind == PLAN:
            self._release(held, "this CLI takes the answer in its terminal only")
            return Reply()
        await run_while_wanted(held.decided.wait, self._hold_s, gone)
        if self._held.get(held.pid) is not held:
            return Reply()
        if gone.is_set():
            self._end(held, "it was cancelled in the terminal")
            return Reply()
        if held.decision is None:
            self._release(held, "its terminal asks now")
            return Reply()
        if held.allowed:
            held.released = True
            return Reply(after=partial(self._begin_answer, held))
        del self._held[held.pid]
        return Reply(events.deny(held.message()), lambda: self._editor.settled(held.proposal.id))

    async def _begin(self, request: events.PermissionRequest, asker: Asker, gone: anyio.Event) -> _Held | None:
        """Have what `request` asks shown; return None where there is nothing to show, or it cannot be."""
        asked = _parse(request.tool_name, request.tool_input)
        peer = asker.peer
        try:
            project = self._project(peer, request.cwd)
        except FileNameError:
            return None
        if asked is None:
            return None
        text, questions = asked
        if earlier := self._held.get(peer.pid):
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
        files = await in_thread(self._files_of, peer, self._directory)
        before = () if files is None else await in_thread(files.awaited)
        held = self._held[peer.pid] = _Held(
            *(proposal, peer.pid, request.tool_name, request.timestamp, text, files, before),
            by_keys=peer.terminal is not None,
            place=peer.place,
            file=proposal.path,
        )
        if await begin_review(self._editor, proposal, asker.label, text, OPEN_S, gone) is None:
            return held
        # If it shows it when it has time, it is told at once that it is over.
        self._end(held, "Emacs was busy; answer in the terminal")
        return None

    def _project(self, peer: Peer, directory: str) -> str:
        """Return the name in Emacs of the working `directory` of the process `peer`.

        :raises FileNameError: when it can be no name
        """
        name = file_name(directory)
        return name if self._elsewhere is None else self._elsewhere.name_of(peer, name)

    def _release(self, held: _Held, reason: str) -> None:
        held.released = True
        self._editor.released(held.proposal, reason, held.answerable)

    def _end(self, held: _Held, reason: str) -> None:
        """End `held`, for which nobody waits any more."""
        if self._held.get(held.pid) is held:
            del self._held[held.pid]
        self._editor.abandon(held.proposal, reason)
        if held.decision is not None:
            self._editor.settled(held.proposal.id)
        held.decided.set()

    # --- Answering ---

    def decide(self, identifier: str, decision: Decision) -> bool:
        """Take the user's decision on the proposal `identifier`; return whether it is known here."""
        held = self._find(identifier)
        if held is None:
            return False
        if held.decision is None:
            held.decision = decision
            if held.released:
                self._begin_answer(held)
            held.decided.set()
        return True

    def release(self, identifier: str) -> None:
        """Have the terminal ask about the proposal `identifier`."""
        held = self._find(identifier)
        if held is not None and not held.released:
            held.decided.set()

    def _find(self, identifier: str) -> _Held | None:
        return next((held for held in self._held.values() if held.proposal.id == identifier), None)

    def _begin_answer(self, held: _Held) -> None:
        self._tasks.start_soon(self._answer_in_terminal, held)

    async def _answer_in_terminal(self, held: _Held) -> None:
        """Answer what the terminal asks with the decision on `held`."""
        try:
            request = await self._awaited_request(held)
            if self._held.get(held.pid) is not held:
                return
            if held.allowed and held.decision is not None:
                await self._save(held, held.decision.content or "")
            elif held.proposal.kind == QUESTION or held.message() != _REFUSED:
                held.prompt = held.message()
            if held.files is None or not request:
                await self._answer_by_keys(held)
            elif not (held.allowed and await self._approve_by_key(held, held.files, request)):
                await in_thread(held.files.answer, request, held.allowed)
        except (CompanionError, OSError) as error:
            if self._held.get(held.pid) is held:
                self._warn(f"{error}: answer in the terminal")
                self._end(held, "the terminal did not take the answer")
        else:
            self._editor.settled(held.proposal.id)

    async def _save(self, held: _Held, plan: str) -> None:
        """Keep the approved `plan` of `held`, also where its CLI can read it.

        :raises OSError: when it cannot be written
        :raises CompanionError: when it cannot be written at the place of the CLI
        """
        await in_thread(save_plan, held.proposal.path, plan)
        if held.place is not None and self._elsewhere is not None and held.file in (held.context or ""):
            held.file = await self._elsewhere.lay_plan(held.place, plan)

    async def _awaited_request(self, held: _Held) -> str:
        """Return the id under which the terminal asks about `held`, once it does; "" where keys answer.

        :raises PromptError: if it does not ask
        """
        with anyio.move_on_after(self._confirm_s if held.answerable else 0.0):
            # After an event of more than 1 MiB, as a long plan is, the CLI writes no events any more.
            late = math.inf
            while held.files is not None and anyio.current_time() < late:
                if late == math.inf and held.by_keys and held.asked.is_set():
                    late = anyio.current_time() + self._key_s
                for request, asked in (await in_thread(held.files.awaited)).items():
                    if asked.tool == held.tool and request not in held.before:
                        return request
                await anyio.sleep(_POLL_S)
            await held.asked.wait()
            return ""
        raise PromptError("the terminal takes no answer from Emacs")

    async def _answer_by_keys(self, held: _Held) -> None:
        """Answer what the terminal asks about `held` by keys.

        :raises PromptError: when the terminal does not take them
        """
        mode = None if held.decision is None else held.decision.mode
        key = _MODE_KEYS.get(mode, _DEFAULT_KEYS) if held.allowed else _ESCAPE
        with suppress(EmacsUnavailableError):
            if await self._editor.type_key(held.proposal, key, held.prompt):
                held.prompt = None
                with anyio.move_on_after(self._confirm_s):
                    while self._held.get(held.pid) is held:
                        await anyio.sleep(_POLL_S)
                    return
        raise PromptError("the terminal takes no answer from Emacs")

    async def _approve_by_key(self, held: _Held, files: TerminalFiles, request: str) -> bool:
        """Approve the plan `held` by the key for the mode that the user wants; return whether the terminal took it.

        The file of answers has no word for another mode than `default`.
        """
        mode = None if held.decision is None else held.decision.mode
        # Another dialog would take the key.
        if mode not in _MODE_KEYS or list(await in_thread(files.awaited)) != [request]:
            return False
        with suppress(EmacsUnavailableError):
            if await self._editor.type_key(held.proposal, _MODE_KEYS[mode]):
                with anyio.move_on_after(self._key_s):
                    while request in await in_thread(files.awaited):
                        await anyio.sleep(_POLL_S)
                    return True
        return False

    # --- What the terminal has answered ---

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """The hooks that it subscribes to."""
        return QUESTION_SUBSCRIPTIONS

    def holds(self, event: events.Event) -> bool:
        """Return whether the model may have to read an edited plan with this `event`."""
        return isinstance(event, events.PostToolUse) and any(held.context for held in self._held.values())

    async def hear(self, report: Report) -> str | None:
        """Take `report`; return the edited plan with the result of its tool."""
        event, held = report.event, self._held.get(report.peer.pid)
        if isinstance(event, events.PostToolUse):
            return await self._ran(event, report.peer, held)
        if isinstance(event, events.UserPromptSubmit) and event.begins_turn:
            files = await in_thread(self._files_of, report.peer, self._directory)
            if files is not None:
                await in_thread(files.trim)
        if held is not None and _begins_question(event, held):
            held.asked.set()
        if held is not None and held.released and _ends_question(event, held.time):
            await self._ended_in_terminal(held)
        return None

    async def _ran(self, event: events.PostToolUse, peer: Peer, held: _Held | None) -> str | None:
        """Note that a plan was approved or questions were answered, with what is `held` for the process of `peer`."""
        if held is None or held.tool != event.tool_name:
            held = None
        else:
            del self._held[held.pid]
        if event.tool_name == events.EXIT_PLAN and not (held and held.allowed):
            await self._keep(event, peer)
        if held is None:
            return None
        if held.decision is None or not held.allowed:
            self._end(held, "it was answered in the terminal")
        return held.context

    async def _keep(self, event: events.PostToolUse, peer: Peer) -> None:
        """Keep the plan that was approved in the terminal of `peer`."""
        asked = _parse(event.tool_name, event.tool_input)
        try:
            if asked is not None:
                project = self._project(peer, event.cwd)
                path = await in_thread(plan_path, self._environ, project, peer.conversation(event.session_id), now())
                await in_thread(save_plan, path, asked[0])
        except (FileNameError, OSError) as error:
            self._warn(f"the approved plan cannot be kept: {error}")

    async def _ended_in_terminal(self, held: _Held) -> None:
        """Note that the turn of `held` is over without its tool."""
        del self._held[held.pid]
        if held.decision is None:
            self._end(held, "it was answered in the terminal")
        elif held.prompt is not None and held.files is not None:
            try:
                await in_thread(append_prompt, self._directory.rstrip("/"), held.files.answers, held.prompt)
            except PromptError as error:
                self._warn(f"{error}; the model has not got your text")
        elif held.allowed:
            self._warn("the plan was refused in the terminal before it could be approved from Emacs")

    def ended(self, peer: Peer) -> None:
        """End what is held for the process of `peer`."""
        if held := self._held.pop(peer.pid, None):
            self._end(held, "the CLI has ended")


def _begins_question(event: events.Event, held: _Held) -> bool:
    """Return whether `event` tells that the terminal asks about `held`."""
    if not isinstance(event, events.AttentionRequest) or (event.timestamp and event.timestamp < held.time):
        return False
    return event.notification_type == "permission_prompt" and held.tool in event.message


def _ends_question(event: events.Event, since: str) -> bool:
    """Return whether after `event` the terminal does not ask any more what it has asked at `since`, a timestamp."""
    if event.timestamp and event.timestamp < since:
        return False
    if isinstance(event, events.AttentionRequest):
        return event.notification_type == "idle_prompt"
    return isinstance(event, events.UserPromptSubmit | events.Stop | events.StopFailure | events.SessionEnd)


def _parse(tool: str, tool_input: Mapping[str, Any]) -> tuple[str, tuple[AskedQuestion, ...]] | None:
    """Return the plan or the questions in the input of `tool`; None where there is nothing to show."""
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
