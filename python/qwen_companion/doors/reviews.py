# SPDX-License-Identifier: GPL-3.0-or-later
"""Reviews of the edits that a CLI would make without asking.

The CLI calls a hook before each edit and waits for the answer.  If the user accepts the edit, the CLI makes it.  If
they reject it, the model reads their reason.  If they accept it with changes, the backend writes the text, and the
model reads how it differs from its own.

If the hook cannot wait longer, see `held`, the terminal asks.  A subagent, or a CLI without a terminal, is told to
repeat the call, which is held for the same review.

The review shows exactly the bytes that the CLI would write.  If these are not certain, the terminal asks.  Commands,
and edits about which the CLI asks by itself, are not reviewed here.  No answer permits anything.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio

from qwen_companion.base.errors import EmacsUnavailableError, PromptError
from qwen_companion.base.file_names import FileNameError, file_name
from qwen_companion.base.threads import in_thread
from qwen_companion.domain import Peer
from qwen_companion.doors import events
from qwen_companion.doors.door_settings import OPEN, covers
from qwen_companion.doors.files import CHANGED, Files
from qwen_companion.doors.held import Asker, Held, HeldCalls, Limits, Reply
from qwen_companion.doors.terminal_files import TerminalFiles
from qwen_companion.ide.proposals import HOOK_PREFIX, Proposal, text_digest
from qwen_companion.ide.targets import TargetError
from qwen_companion.ide.tools import Editor
from qwen_companion.texts.unified import unified

_YES_KEY, _NO_KEY = "1", "\x1b"

UNKNOWN_CLI = "Emacs does not know the program that wants to make this change."

STILL_ASKING = (
    "The user is reviewing this change in Emacs and has not decided. Answer there or here. "
    "If you are the model that reads this, make exactly the same call again to wait for the decision."
)

STILL_REVIEWING = (
    "The user is still reviewing this change in Emacs and has not decided. "
    "Make exactly the same call again to wait for the decision."
)

REJECTED = "The user rejected this change."
DROPPED = "The user dropped all of this change."

_CHANGED = (
    "The user accepted this change{edits}, but it is not made: {path}: {reason}. Read the file again, and propose the "
    "change anew."
)

_WRITTEN_HERE = (
    "The user accepted this change with edits of their own, and the result is in {path} already. Nothing is left to do "
    "for this call: do not repeat it, and do not take the user's edits back. {difference}Read {path} again before you "
    "edit it the next time."
)

_WRITTEN_OVER = (
    "The user accepted this change with edits of their own, which have just replaced your text in {path}. Do not take "
    "them back. {difference}Read {path} again before you edit it the next time."
)

_DIFFERENCE = "How the file differs from what you proposed (- proposed, + in the file):\n\n{}\n"

_MOST_DIFFERENCE = 8000
"""Most characters of a difference that is sent to a model; a CLI cuts the text of a hook at 10,000."""

_MAX_FILE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class _Facts:
    """The `data` of a file, None without one, and the text that a CLI would write, as `proposed`."""

    data: bytes | None
    proposed: str

    @property
    def text(self) -> str | None:
        """The text of the file."""
        return None if self.data is None else self.data.decode("utf-8")


@dataclass(eq=False)
class _Held(Held):
    """A review of a call that writes `path` of `target`; `facts` are from its beginning.

    `is_held`: the hook waits.  If it does not and the terminal does not ask, the model should repeat its call.
    """

    path: str = field(kw_only=True)
    target: Files = field(kw_only=True)
    facts: _Facts = field(kw_only=True)
    is_held: bool = True
    abandonment: asyncio.TimerHandle | None = None
    """The timer that ends the review if the model does not repeat its call."""

    @property
    def content(self) -> str | None:
        """The accepted text, or None."""
        return None if self.decision is None else self.decision.content

    @property
    def is_allowed(self) -> bool:
        """Whether the user has accepted a change of the file."""
        return self.content is not None and self.content != self.facts.text

    @property
    def is_edited(self) -> bool:
        """Whether the user has accepted a text other than the proposed one."""
        return self.content not in (None, self.facts.proposed)

    @property
    def reason(self) -> str | None:
        """The user's reason for a rejection, or None."""
        return None if self.decision is None or self.content is not None else self.decision.reason

    def words(self, template: str) -> str:
        """Return `template` with the path, and the difference between the proposed and the accepted text."""
        proposed, written = (_unix(text) for text in (self.facts.proposed, self.content or ""))
        difference = unified(proposed, written)
        shown = _DIFFERENCE.format(difference) if len(difference) <= _MOST_DIFFERENCE else ""
        return template.format(path=self.path, difference=shown)


Notify = Callable[[events.ToolEvent], Awaitable[str]]
"""Passes an event to the listeners; returns their texts for the model, or ""."""


class HookReviews(HeldCalls[_Held]):
    """The reviews of edits, see the top of this file."""

    def __init__(
        self, editor: Editor, files_of: Callable[[Peer], TerminalFiles | None], limits: Limits | None = None
    ) -> None:
        """See `HeldCalls`."""
        super().__init__(editor, files_of, limits)
        self.scope: str | None = None
        self._asked: dict[int, list[tuple[str | None, str, object]]] = {}
        """By process, the edits about which its CLI has asked by itself and that have not begun."""

    # --- A call ---

    def reply_to_unknown(self, event: events.PreToolUse) -> Reply:
        """Return the reply to `event` of an unknown CLI."""
        return Reply(events.ask(UNKNOWN_CLI)) if covers(self.scope, event.mode) else Reply()

    async def reply(
        self, event: events.PreToolUse, asker: Asker, agent: str | None, notify: Notify, gone: anyio.Event
    ) -> Reply:
        """Return the reply to `event` of `asker`.

        `agent` is the name of the subagent that makes the call, or None.  `gone` is set when the caller no longer
        waits.
        """
        ends = anyio.current_time() + self._limits.hold_s
        target = asker.files
        if self._was_asked(asker.peer.pid, event) or not covers(self.scope, event.mode):
            return Reply()
        if target is None:
            return Reply(events.ask(UNKNOWN_CLI))
        try:
            path = file_name(_path(event))
            if not await self._is_in_scope(target.name(path) or path):
                return Reply()
            facts = await in_thread(_facts, event, path, await target.review_file(path))
            held = self._find(event, path, asker, facts)
            repeated = held is not None
            if held is None:
                proposal = Proposal(
                    HOOK_PREFIX + secrets.token_hex(8), asker.session, path, text_digest(facts.proposed)
                )
                files = None if agent else await in_thread(self._files_of, asker.peer)
                held = _Held(proposal, asker, event, files, path=path, target=target, facts=facts)
                await self._begin(held, agent, gone)
        except (FileNameError, TargetError) as error:
            return Reply(events.ask(str(error)))
        is_waiting = await self._hold(held, ends - anyio.current_time(), gone, repeated)
        held.is_held = False
        if not is_waiting:
            # The turn is over; nobody reads this.
            return Reply(events.refuse(REJECTED))
        if held.decision is not None:
            return await self._carry_out(held, notify)
        if agent is None:
            held.is_asked = True
            if held.is_answerable:
                self._editor.released(held.proposal, "its terminal asks as well", answerable=True)
            return Reply(events.ask(STILL_ASKING))
        self._await_same_call(held)
        return Reply(events.refuse(STILL_REVIEWING))

    def _was_asked(self, pid: int, event: events.PreToolUse) -> bool:
        """Return whether the CLI of process `pid` has asked about this call by itself."""
        asked = self._asked.get(pid, [])
        call = (event.agent_id, event.tool_name, _path(event))
        if call not in asked:
            return False
        asked.remove(call)
        return True

    async def _is_in_scope(self, name: str) -> bool:
        if self.scope != OPEN:
            return True
        try:
            return await self._editor.is_visited(name)
        except EmacsUnavailableError:
            return True

    def _find(self, event: events.PreToolUse, path: str, asker: Asker, facts: _Facts) -> _Held | None:
        """Return the waiting review of the same change by the same agent, and continue it; None without one."""
        for held in self._held.values():
            same = (held.pid, held.event.agent_id, held.path) == (asker.peer.pid, event.agent_id, path)
            if same and held.facts == facts and not held.is_held and not held.is_answered:
                held.event, held.is_held, held.is_asked = event, True, False
                if held.abandonment is not None:
                    held.abandonment.cancel()
                return held
        return None

    async def _begin(self, held: _Held, agent: str | None, gone: anyio.Event) -> None:
        """Show the review `held` of `agent` in Emacs; `gone` is set when the caller no longer waits.

        :raises TargetError: if it is not shown
        """
        label = held.asker.label if agent is None else f"{agent} of {held.asker.label or 'the CLI'}"
        refusal = await self._begin_review(held, label, held.facts.proposed, gone)
        if refusal is not None:
            raise TargetError(refusal)

    def _await_same_call(self, held: _Held) -> None:
        held.is_asked = False
        if held.abandonment is not None:
            held.abandonment.cancel()
        loop = asyncio.get_running_loop()
        held.abandonment = loop.call_later(self._limits.return_s, self._end, held, "the model has not come back to it")

    # --- The decision ---

    async def _carry_out(self, held: _Held, notify: Notify) -> Reply:
        """Carry out the decision on `held`, whose hook waits, and return the reply."""
        content = held.content
        if content is None:
            answer = events.refuse(held.reason or REJECTED)
        elif not held.is_allowed:
            answer = events.refuse(DROPPED)
        else:
            try:
                answer = await (_write(held, content, notify) if held.is_edited else _pass(held))
            except OSError as error:
                reason = error.strerror or str(error)
                self._editor.abandon(held.proposal, reason)
                edits = " with edits" if held.is_edited else ""
                answer = events.refuse(_CHANGED.format(edits=edits, path=held.path, reason=reason))
        if answer == events.NO_DECISION:
            held.is_answered = True
        else:
            del self._held[held.proposal.id]
        return Reply(answer, lambda: self._editor.settled(held.proposal.id))

    async def _answer_terminal(self, held: _Held) -> None:
        """See `HeldCalls`."""
        if held.is_answerable or held.dialog.is_set():
            await super()._answer_terminal(held)
        else:
            # Apparently nobody is asked there.
            self._await_same_call(held)

    async def _give_answer(self, held: _Held, request: str) -> None:
        """See `HeldCalls`."""
        held.prompt = held.reason and f"{REJECTED} {held.reason}"
        if held.files is not None and request:
            await in_thread(held.files.answer, request, held.is_allowed)
        elif await self._editor.type_key(held.proposal, _YES_KEY if held.is_allowed else _NO_KEY, held.prompt):
            held.prompt = None
        else:
            raise PromptError("the terminal takes no answer from Emacs")

    # --- The ends of calls ---

    def note(self, peer: Peer, event: events.Event) -> None:
        """Update the calls of the process `peer` by `event`."""
        pid = peer.pid
        if isinstance(event, events.PermissionRequest) and event.tool_name in events.EDIT_TOOLS:
            self._asked.setdefault(pid, []).append((event.agent_id, event.tool_name, _path(event)))
        elif isinstance(event, events.PostToolBatch):
            self._note_batch(pid, event)
        elif isinstance(event, events.AttentionRequest) and event.notification_type == "permission_prompt":
            self._note_dialog(pid, event)
        elif _ends_turn(event):
            self._asked[pid] = [call for call in self._asked.get(pid, []) if call[0] is not None]
            for held in self._of(pid, event):
                self._end(held, "the turn is over")
        elif isinstance(event, events.PostToolUseFailure):
            for held in self._of_call(pid, event.tool_call_id):
                self._end(held, "the CLI could not make the change")

    def _note_dialog(self, pid: int, event: events.AttentionRequest) -> None:
        for held in self._of(pid, event):
            is_same = held.event.tool_name in event.message
            if held.is_asked and is_same and not held.dialog.is_set():
                held.dialog.set()
                if not held.is_answerable:
                    self._editor.released(held.proposal, "its terminal asks now", answerable=False)

    def _note_batch(self, pid: int, event: events.PostToolBatch) -> None:
        for held in self._of(pid):
            status = event.status(held.event.tool_call_id)
            if status == "error" and held.is_asked and held.decision is None:
                # Nobody was asked, and the model was told to repeat its call.
                self._await_same_call(held)
            elif status in ("success", "cancelled"):
                self._end(held, "it was answered in the terminal")

    def awaits(self, peer: Peer, event: events.PostToolUse) -> bool:
        """Return whether the call in `event` of the process `peer`, which has run, was reviewed."""
        return bool(self._of_call(peer.pid, event.tool_call_id))

    async def ran(self, peer: Peer, event: events.PostToolUse) -> str:
        """Note that a call of the process `peer` has run; return the text for the model with its result, or "".

        A text that the user has accepted with changes is written over that of the call.
        """
        for held in self._of_call(peer.pid, event.tool_call_id):
            content = held.content
            if content is not None and not held.is_answered:
                self._settle(held)
            # A CLI that a frozen Emacs held up for a minute asks nobody.
            asked = held.dialog.is_set()
            self._end(held, f"it was {'accepted in the terminal' if asked else 'written, and not accepted in Emacs'}")
            if content is not None and not held.is_edited and event.new_content is not None:
                self._editor.written(held.proposal, exactly=event.new_content == _unix(content.removeprefix("\ufeff")))
            elif content is not None and held.is_edited:
                try:
                    proposed = held.facts.proposed.encode("utf-8")
                    await held.target.write(held.path, proposed, content.encode("utf-8"))
                except OSError:
                    # Emacs waits for the accepted text, and warns if the file does not have it.
                    return ""
                return held.words(_WRITTEN_OVER)
        return ""

    def end_agent(self, pid: int, agent_id: str) -> None:
        """End the reviews of the subagent `agent_id` of process `pid`."""
        self._asked[pid] = [call for call in self._asked.get(pid, []) if call[0] != agent_id]
        for held in self._of(pid):
            if held.event.agent_id == agent_id:
                self._end(held, "the subagent has ended")

    def end_process(self, pid: int) -> None:
        """See `HeldCalls`."""
        self._asked.pop(pid, None)
        super().end_process(pid)

    def _of_call(self, pid: int, call: str | None) -> list[_Held]:
        return [held for held in self._of(pid) if call is not None and held.event.tool_call_id == call]


def _ends_turn(event: events.Event) -> bool:
    """Return whether `event` ends all calls of the conversation with the user."""
    if event.agent_id is not None:
        return False
    if isinstance(event, events.AttentionRequest):
        return event.notification_type == "idle_prompt"
    return event.begins_turn or isinstance(event, events.Stop | events.StopFailure | events.SessionEnd)


async def _pass(held: _Held) -> events.Answer:
    """Let the CLI make the edit `held`.

    :raises OSError: if the file is not as the user has seen it
    """
    try:
        data = await in_thread(_read, held.path, await held.target.review_file(held.path))
    except TargetError as error:
        raise OSError(str(error)) from None
    if data != held.facts.data:
        raise OSError(CHANGED)
    return events.NO_DECISION


async def _write(held: _Held, content: str, notify: Notify) -> events.Answer:
    """Write `content`, the accepted text of `held`, in place of the CLI; return the answer.

    :raises OSError: if that fails
    """
    await notify(held.event)
    await held.target.write(held.path, held.facts.data, content.encode("utf-8"))
    said = await notify(events.PostToolUse.model_validate(held.event.model_dump()))
    return events.refuse("\n\n".join(filter(None, (held.words(_WRITTEN_HERE), said))))


def _path(event: events.ToolEvent) -> object:
    return event.tool_input.get("file_path", event.tool_input.get("notebook_path"))


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n")


def _facts(event: events.PreToolUse, path: str, file: str) -> _Facts:
    """Return the facts about `path`, whose text is in the local `file`, for a review.

    :raises TargetError: if it is uncertain what the CLI would write
    """
    data = _read(path, file)
    text = "" if data is None else data.decode("utf-8")
    proposed = _proposed(event, path, None if data is None else _unix(text.removeprefix("\ufeff")))
    if "\r" in proposed:
        raise TargetError(f"The text for {path} has carriage returns, so Emacs cannot show it.")
    # The CLI keeps carriage returns.
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    return _Facts(data, mark + (proposed.replace("\n", "\r\n") if "\r\n" in text else proposed))


def _proposed(event: events.PreToolUse, path: str, text: str | None) -> str:
    """Return `text`, None without a file, after the edit that the CLI would make.

    :raises TargetError: if that is uncertain
    """
    if event.tool_name == events.WRITE:
        return _string(event.tool_input, "content")
    if event.tool_name != events.EDIT:
        raise TargetError(f"Emacs cannot show what {event.tool_name} changes.")
    old, new = _string(event.tool_input, "old_string"), _string(event.tool_input, "new_string")
    if old == "" and text is None:
        return new
    count = text.count(old) if text and old else 0
    if text is None or count == 0 or (count > 1 and event.tool_input.get("replace_all") is not True):
        raise TargetError(
            f"Emacs cannot show this change: old_string occurs {count} times in {path}. "
            "Read the file again and give a text that occurs exactly once."
        )
    if not new and not old.endswith("\n") and f"{old}\n" in text:
        raise TargetError(f"Emacs cannot show this change: whether a line end of {path} goes with it is open.")
    return text.replace(old, new)


def _read(path: str, file: str) -> bytes | None:
    """Return the bytes of `file`, the CLI's `path`, or None without a file.

    :raises TargetError: if they are not a text that can be shown
    """
    try:
        with open(file, "rb") as opened:
            data = opened.read(_MAX_FILE_BYTES + 1)
        data.decode("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TargetError(f"Emacs cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise TargetError(f"{path} is not UTF-8, so Emacs cannot show the change.") from None
    if len(data) > _MAX_FILE_BYTES:
        raise TargetError(f"{path} is too large to be shown in Emacs.")
    return data


def _string(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    if not isinstance(value, str):
        raise TargetError(f"{key} is not a string.")
    return value
