# SPDX-License-Identifier: GPL-3.0-or-later
"""The events that a CLI reports to its hooks, and what it can be answered."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from qwen_companion.json_objects import as_object

EDIT = "edit"
WRITE = "write_file"
EDIT_TOOLS = (EDIT, WRITE, "notebook_edit")
EXIT_PLAN = "exit_plan_mode"
TODO = "todo_write"

_REMINDER = re.compile(r"\s*<system-reminder>.*?</system-reminder>\s*(?=\S)", re.DOTALL)
"""What Qwen Code puts before the first prompt in a worktree."""


class Event(BaseModel):
    """The members of all events; an event of an unknown kind has no others.

    `transcript_path` is the file in which the CLI records the conversation.
    `cwd` is the directory of the project, `timestamp` the time of the event as JavaScript writes it: a later one is the
    greater string.  `prompt_id` is the same for all events of one turn.  `agent_id` is that of a subagent, None for the
    conversation with the user.
    Versions that send no `prompt_id`, 0.21.2 for one, send `agent_id` only where a subagent starts and stops.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)
    name: ClassVar[str] = ""

    session_id: str = ""
    transcript_path: str = ""
    cwd: str = ""
    timestamp: str = ""
    permission_mode: str | None = None
    prompt_id: str | None = None
    agent_id: str | None = None

    @property
    def mode(self) -> str | None:
        """The approval mode as the CLI's settings spell it; None where the event does not tell."""
        return None if self.permission_mode is None else self.permission_mode.replace("_", "-")

    @property
    def begins_turn(self) -> bool:
        """Whether this is a prompt of the user's."""
        return False


class SessionStart(Event):
    """A conversation begins: the CLI has started, or was told to forget the one before."""

    name = "SessionStart"
    model: str | None = None


class SessionEnd(Event):
    """A conversation ends."""

    name = "SessionEnd"


def _without_reminder(prompt: str) -> str:
    found = _REMINDER.match(prompt)
    return prompt if found is None else prompt[found.end() :]


class UserPromptSubmit(Event):
    """A prompt goes to the model, here without what the CLI puts before it.  It is "" when only a turn goes on."""

    name = "UserPromptSubmit"
    prompt: Annotated[str, AfterValidator(_without_reminder)] = ""

    @property
    def begins_turn(self) -> bool:
        """Whether there is a prompt."""
        return bool(self.prompt.strip())


class Stop(Event):
    """The turn is over.  `context_usage` is a share of the context window; `input_tokens` are tokens.

    `last_assistant_message` is what the model said at the end.
    """

    name = "Stop"
    last_assistant_message: str | None = None
    context_usage: float | None = None
    input_tokens: int | None = None


class StopFailure(Event):
    """The turn has ended with an `error` of the model's service, or in a loop; there is no Stop."""

    name = "StopFailure"
    error: str = ""


class AttentionRequest(Event):
    """The CLI wants the user's attention.

    It waits for no answer to this, so an event that comes before may be a later one.
    """

    name = "Notification"
    notification_type: str = ""
    message: str = ""


class SubagentStart(Event):
    """A subagent begins."""

    name = "SubagentStart"
    agent_type: str = ""


class SubagentStop(Event):
    """A subagent has ended."""

    name = "SubagentStop"


class ToolEvent(Event):
    """A tool that is called with `tool_input`.  `tool_call_id` tells this call from others, None in older versions."""

    tool_name: str = ""
    tool_input: dict[str, Any] = {}
    tool_call_id: str | None = None


class PermissionRequest(ToolEvent):
    """A tool may run only if it is permitted; the CLI asks its hooks before it asks the user."""

    name = "PermissionRequest"


class PreToolUse(ToolEvent):
    """A tool is about to run; all questions of the CLI's own have been answered."""

    name = "PreToolUse"


class EndedTool(ToolEvent):
    """A tool has ended after `duration_ms`, without the time it waited for hooks; None in older versions."""

    duration_ms: float | None = None


class PostToolUse(EndedTool):
    """A tool has run."""

    name = "PostToolUse"
    tool_response: Any = None

    @property
    def new_content(self) -> str | None:
        """The text that an edit has left in its file, with LF and without a byte order mark; None for none."""
        found = as_object(as_object(self.tool_response).get("returnDisplay")).get("newContent")
        return found if isinstance(found, str) else None


class PostToolUseFailure(EndedTool):
    """A tool has failed with `error`.  What it had done by then stays done."""

    name = "PostToolUseFailure"
    error: str = ""


class _EndedCall(BaseModel):
    tool_use_id: str = ""
    """The same as `tool_call_id` of other events."""
    status: str = ""


class PostToolBatch(Event):
    """All calls that the model has made in one answer have ended."""

    name = "PostToolBatch"
    tool_calls: list[_EndedCall] = []

    def status(self, call: str | None) -> str | None:
        """Return how `call` has ended: `success`, `error` or `cancelled`; None if it is none of these."""
        return next((each.status for each in self.tool_calls if each.tool_use_id == call), None)


_KINDS: tuple[type[Event], ...] = (
    *(SessionStart, SessionEnd, UserPromptSubmit, Stop, StopFailure, AttentionRequest),
    *(SubagentStart, SubagentStop, PermissionRequest),
    *(PreToolUse, PostToolUse, PostToolUseFailure, PostToolBatch),
)
_BY_NAME: dict[str, type[Event]] = {kind.name: kind for kind in _KINDS}


class _Name(BaseModel):
    hook_event_name: str = ""


_SURROGATES = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)|\\.")
"""Matches an escape in JSON: a pair of surrogates, half a pair, which is the group, or another one."""


def parse_event(data: bytes) -> Event | None:
    """Return the event in the JSON `data`, a plain `Event` for an unknown or malformed one; None for no object.

    Half a surrogate pair is replaced by U+FFFD, as Node.js does when it writes it to a file.
    """
    if b"\\ud" in data:
        data = _SURROGATES.sub(lambda match: b"\\ufffd" if match[1] else match[0], data)
    try:
        kind = _BY_NAME.get(_Name.model_validate_json(data).hook_event_name, Event)
        return kind.model_validate_json(data)
    except ValidationError:
        pass
    try:
        return Event.model_validate_json(data)
    except ValidationError:
        return None


_TAKE_CONTEXT = frozenset(kind.name for kind in (SessionStart, UserPromptSubmit, PostToolUse, PostToolBatch))

Answer = dict[str, Any]

NO_DECISION: Answer = {}
"""The CLI goes on as if it had not asked."""


def deny(message: str) -> Answer:
    """Return the answer to a request for permission that the tool may not run; the model reads `message`."""
    decision = {"behavior": "deny", "message": message}
    return {"hookSpecificOutput": {"hookEventName": PermissionRequest.name, "decision": decision}}


def ask(reason: str) -> Answer:
    """Return the answer that the terminal asks whether the tool may run, and shows `reason`.

    Where there is nobody to ask, the tool does not run, and the model reads `reason`.
    """
    return _before_tool("ask", reason)


def refuse(reason: str) -> Answer:
    """Return the answer that the tool does not run; the model reads `reason`."""
    return _before_tool("deny", reason)


def refuses(answer: Answer) -> bool:
    """Return whether `answer` is one of `refuse`."""
    return answer.get("hookSpecificOutput", {}).get("permissionDecision") == "deny"


def _before_tool(decision: str, reason: str) -> Answer:
    output = {"hookEventName": PreToolUse.name, "permissionDecision": decision, "permissionDecisionReason": reason}
    return {"hookSpecificOutput": output}


def add_context(event: Event, text: str) -> Answer:
    """Return the answer that has the model read `text` with `event`; no decision where the CLI adds nothing to it."""
    if event.name not in _TAKE_CONTEXT:
        return NO_DECISION
    return {"hookSpecificOutput": {"hookEventName": event.name, "additionalContext": text}}


def block(reason: str) -> Answer:
    """Return the answer that a prompt does not go to the model; the user reads `reason`."""
    return {"decision": "block", "reason": reason}


def describe(answer: Answer) -> str:
    """Return `answer`, one of those above, in words for a person."""
    output = answer.get("hookSpecificOutput", {})
    decision = output.get("decision", {})
    if decision.get("behavior") == "deny":
        return f"denied: {decision['message']}"
    if before := output.get("permissionDecision"):
        return "asks in its terminal" if before == "ask" else "refused, with words for the model"
    if answer.get("decision") == "block":
        return f"the turn ended: {answer['reason']}"
    if "additionalContext" in output:
        return "no decision, a text added for the model"
    return "no decision"
