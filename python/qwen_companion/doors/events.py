# SPDX-License-Identifier: GPL-3.0-or-later
"""The events that a CLI reports to its hooks, and the possible answers."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from qwen_companion.base.json_objects import as_object

EDIT = "edit"
WRITE = "write_file"
EDIT_TOOLS = (EDIT, WRITE, "notebook_edit")
EXIT_PLAN = "exit_plan_mode"
QUESTION_TOOLS = (EXIT_PLAN, "ask_user_question")
TODO = "todo_write"

_REMINDER = re.compile(r"\s*<system-reminder>.*?</system-reminder>\s*(?=\S)", re.DOTALL)
"""Qwen Code puts this before the first prompt in a worktree."""


class Event(BaseModel):
    """The fields that all events have; an event of an unknown kind has no others.

    `transcript_path` is the file in which the CLI records the conversation.  `cwd` is the directory of the project,
    `timestamp` the time of the event as JavaScript writes it: a later one is the greater string.  All events of a turn
    have the same `prompt_id`.  `agent_id` names a subagent; it is None in the conversation with the user.

    Versions that send no `prompt_id`, such as 0.21.2, send `agent_id` only at the start and stop of a subagent.
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
        """The approval mode as spelled in the CLI's settings; None if the event does not contain it."""
        return None if self.permission_mode is None else self.permission_mode.replace("_", "-")

    @property
    def begins_turn(self) -> bool:
        """Whether this is a prompt of the user's."""
        return False


class SessionStart(Event):
    """A conversation begins: the CLI has started, or was told to clear the previous one."""

    name = "SessionStart"
    model: str | None = None


class SessionEnd(Event):
    """A conversation ends."""

    name = "SessionEnd"


def _without_reminder(prompt: str) -> str:
    found = _REMINDER.match(prompt)
    return prompt if found is None else prompt[found.end() :]


class UserPromptSubmit(Event):
    """A prompt goes to the model, without the text that the CLI puts before it.  It is "" if a turn only continues."""

    name = "UserPromptSubmit"
    prompt: Annotated[str, AfterValidator(_without_reminder)] = ""

    @property
    def begins_turn(self) -> bool:
        """Whether there is a prompt."""
        return bool(self.prompt.strip())


class Stop(Event):
    """The turn is over.  `context_usage` is a share of the context window; `input_tokens` are tokens.

    `last_assistant_message` is the model's last message.
    """

    name = "Stop"
    last_assistant_message: str | None = None
    context_usage: float | None = None
    input_tokens: int | None = None


class StopFailure(Event):
    """The turn has ended with an `error` of the model's service, or in a loop; no Stop follows."""

    name = "StopFailure"
    error: str = ""


class AttentionRequest(Event):
    """The CLI wants the user's attention.

    The CLI does not wait for an answer to this, so it may arrive after later events.
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
    """A call of a tool with `tool_input`.  `tool_call_id` identifies the call, None in older versions."""

    tool_name: str = ""
    tool_input: dict[str, Any] = {}
    tool_call_id: str | None = None


class PermissionRequest(ToolEvent):
    """A tool needs permission; the CLI asks its hooks before it asks the user."""

    name = "PermissionRequest"


class PreToolUse(ToolEvent):
    """A tool is about to run; the CLI has asked all its own questions."""

    name = "PreToolUse"


class EndedTool(ToolEvent):
    """A tool has ended after `duration_ms`, without the time spent in hooks; None in older versions."""

    duration_ms: float | None = None


class PostToolUse(EndedTool):
    """A tool has run."""

    name = "PostToolUse"
    tool_response: Any = None

    @property
    def new_content(self) -> str | None:
        """The text of the file after an edit, with LF and without a byte order mark; None for none."""
        found = as_object(as_object(self.tool_response).get("returnDisplay")).get("newContent")
        return found if isinstance(found, str) else None


class PostToolUseFailure(EndedTool):
    """A tool has failed with `error`.  Its effects until then remain."""

    name = "PostToolUseFailure"
    error: str = ""


class _EndedCall(BaseModel):
    tool_use_id: str = ""
    """The same as `tool_call_id` of other events."""
    status: str = ""


class PostToolBatch(Event):
    """All calls that the model made in one answer have ended."""

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
"""Matches an escape in JSON: a surrogate pair, half a pair (the group), or another escape."""


def parse_event(data: bytes) -> Event | None:
    """Return the event in the JSON `data`, a plain `Event` for an unknown or malformed one; None if it is no object.

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
"""The CLI continues as without hooks."""


def deny(message: str) -> Answer:
    """Return the answer to a permission request that denies the tool; the model reads `message`."""
    decision = {"behavior": "deny", "message": message}
    return {"hookSpecificOutput": {"hookEventName": PermissionRequest.name, "decision": decision}}


def ask(reason: str) -> Answer:
    """Return the answer that makes the terminal ask whether the tool may run; it shows `reason`.

    Without a user to ask, the tool does not run, and the model reads `reason`.
    """
    return _before_tool("ask", reason)


def refuse(reason: str) -> Answer:
    """Return the answer that stops the tool; the model reads `reason`."""
    return _before_tool("deny", reason)


def refuses(answer: Answer) -> bool:
    """Return whether `answer` was made by `refuse`."""
    return answer.get("hookSpecificOutput", {}).get("permissionDecision") == "deny"


def blocks(answer: Answer) -> bool:
    """Return whether `answer` was made by `block`."""
    return answer.get("decision") == "block"


def _before_tool(decision: str, reason: str) -> Answer:
    output = {"hookEventName": PreToolUse.name, "permissionDecision": decision, "permissionDecisionReason": reason}
    return {"hookSpecificOutput": output}


def add_context(event: Event, text: str) -> Answer:
    """Return the answer that adds `text` to `event` for the model; no decision if the CLI adds none to such events."""
    if event.name not in _TAKE_CONTEXT:
        return NO_DECISION
    return {"hookSpecificOutput": {"hookEventName": event.name, "additionalContext": text}}


def block(reason: str) -> Answer:
    """Return the answer that withholds a prompt from the model; the user reads `reason`."""
    return {"decision": "block", "reason": reason}


def describe(answer: Answer) -> str:
    """Describe `answer`, one of those above, for a person."""
    output = answer.get("hookSpecificOutput", {})
    decision = output.get("decision", {})
    if decision.get("behavior") == "deny":
        return f"denied: {decision['message']}"
    if before := output.get("permissionDecision"):
        return "asks in its terminal" if before == "ask" else "refused, with words for the model"
    if blocks(answer):
        return f"the turn ended: {answer['reason']}"
    if "additionalContext" in output:
        return "no decision, a text added for the model"
    return "no decision"
