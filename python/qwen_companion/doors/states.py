# SPDX-License-Identifier: GPL-3.0-or-later
"""The activity of each CLI, from the reports of its hooks.  Only what Emacs shows is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from qwen_companion.base.json_objects import as_object, valid_text
from qwen_companion.domain import CliState, SessionState, Todo
from qwen_companion.doors import events

IDLE = "idle"
WORKING = "working"
ASKING = "asking"
CANCELLED = "cancelled"
FAILED = "failed"
RETRYING = "retrying"

_MAX_TODOS = 100
"""Most items of a list that are shown."""

_STATUSES = {"pending": "pending", "in_progress": "working", "completed": "done"}
"""The CLI's words for the status of an item, and ours."""

_MAX_WORDS = 60
"""Most characters of a prompt or a question that are shown."""


@dataclass(frozen=True)
class _Agent:
    """A subagent of some kind, started in the turn `prompt_id`."""

    kind: str = ""
    prompt_id: str | None = None
    running: bool = True


@dataclass(frozen=True)
class _Known:
    state: CliState
    agents: Mapping[str, _Agent] = field(default_factory=dict[str, _Agent])
    """The subagents that have been started, by id, in the order of their starts."""
    settled: str = ""
    """The timestamp of the last event that determines the activity regardless of earlier ones."""


class States:
    """The states of all CLIs, by the number of their process."""

    def __init__(self, known: Iterable[SessionState] = ()) -> None:
        """`known` has the states from an earlier process; running subagents are unknown."""
        self._known = {
            item.session.peer.pid: _Known(replace(item.state, subagents=0))
            for item in known
            if item.session.peer and item.state
        }

    def get(self, pid: int) -> CliState | None:
        """Return the state of process `pid`; None if it has called no hook."""
        known = self._known.get(pid)
        return None if known is None else known.state

    def agent(self, pid: int, identifier: str) -> str:
        """Return the kind of the subagent `identifier`, in words for a person."""
        agent = self._agents(pid).get(identifier)
        return f"subagent {agent.kind}" if agent and agent.kind else "a subagent"

    def running_agent(self, pid: int) -> str | None:
        """Return the subagent of process `pid` that has started last; None if none is running."""
        running = [identifier for identifier, agent in self._agents(pid).items() if agent.running]
        return running[-1] if running else None

    def attribute(self, pid: int, event: events.Event) -> events.Event:
        """Return `event` of process `pid`, without the subagent that it names if that is wrong.

        Qwen Code 0.24 names a subagent also in turns of the conversation with the user, if these begin while the
        subagent does something, most often just after its end.
        """
        agent = self._agents(pid).get(event.agent_id or "")
        if agent is None or isinstance(event, events.SubagentStart | events.SubagentStop):
            return event
        same_turn = None in (agent.prompt_id, event.prompt_id) or agent.prompt_id == event.prompt_id
        return event if agent.running and same_turn else event.model_copy(update={"agent_id": None})

    def stop(self, pid: int, reason: str, now: int) -> None:
        """Note that the turn of process `pid` was ended at `now`, in ms since the epoch, for `reason`."""
        known = self._known.get(pid, _Known(CliState()))
        self._known[pid] = replace(known, state=_failed(known.state, reason, now))

    def fail(self, pid: int, reason: str, now: int) -> bool:
        """Note that the turn of process `pid` has failed for `reason`; return whether it counted as cancelled."""
        state = self.get(pid)
        if state is None or state.activity != CANCELLED:
            return False
        self.stop(pid, reason, now)
        return True

    def _agents(self, pid: int) -> Mapping[str, _Agent]:
        known = self._known.get(pid)
        return known.agents if known else {}

    def forget(self, pid: int) -> None:
        """Forget the process `pid`, which has ended."""
        self._known.pop(pid, None)

    def note(self, pid: int, event: events.Event, now: int) -> bool:
        """Note an `event` of process `pid` at `now`, in ms since the epoch; return whether its state has changed."""
        before = self._known.get(pid)
        after = _after(before or _Known(CliState()), event, now)
        conversation = event.session_id or (None if before is None else before.state.conversation)
        after = replace(after, state=replace(after.state, conversation=conversation))
        self._known[pid] = after
        return before is None or before.state != after.state

    def prompted(self, pid: int, prompt: str, time: int) -> bool:
        """Note that process `pid` began with `prompt` at `time`, in ms since the epoch, although no hook reported it.

        Return whether hooks have reported the end of that turn.
        """
        known = self._known.get(pid)
        if known is None:
            return False
        # A hook of that turn may have come first.
        is_known = known.state.activity == ASKING or (known.state.since or 0) >= time
        state = replace(known.state, prompt=first_words(prompt)) if is_known else _begun(known.state, prompt, time)
        self._known[pid] = replace(known, state=state)
        return state.activity in (IDLE, CANCELLED)


def _begun(state: CliState, prompt: str, now: int) -> CliState:
    if all(item.status == "done" for item in state.todos):
        state = replace(state, todos=())
    return replace(
        state, activity=WORKING, since=now, prompt=first_words(prompt), question=None, said=None, failure=None
    )


def _failed(state: CliState, reason: str, now: int) -> CliState:
    return replace(state, activity=FAILED, since=now, question=None, failure=reason)


def _after(known: _Known, event: events.Event, now: int) -> _Known:
    if event.agent_id is not None:
        return _with_agent(known, event.agent_id, event)
    if isinstance(event, events.AttentionRequest) and event.timestamp and event.timestamp < known.settled:
        return known
    if _settles(event):
        known = replace(known, settled=event.timestamp)
    state = known.state if event.mode is None else replace(known.state, mode=event.mode)
    if isinstance(event, events.SessionStart):
        return _Known(CliState(IDLE, now, mode=state.mode, model=event.model or state.model), settled=known.settled)
    if isinstance(event, events.SessionEnd):
        return _Known(CliState(mode=state.mode, model=state.model), settled=known.settled)
    return replace(known, state=_state_after(state, event, now))


def _with_agent(known: _Known, identifier: str, event: events.Event) -> _Known:
    """Return the state after an `event` of the subagent `identifier`."""
    agents = dict(known.agents)
    if isinstance(event, events.SubagentStart):
        agents.pop(identifier, None)
        agents[identifier] = _Agent(first_words(event.agent_type), event.prompt_id)
    elif isinstance(event, events.SubagentStop) and identifier in agents:
        agents[identifier] = replace(agents[identifier], running=False)
    running = sum(agent.running for agent in agents.values())
    return replace(known, state=replace(known.state, subagents=running), agents=agents)


def _settles(event: events.Event) -> bool:
    """Return whether the activity after `event` is independent of an earlier notification."""
    return isinstance(
        event,
        events.SessionStart
        | events.SessionEnd
        | events.UserPromptSubmit
        | events.PreToolUse
        | events.PermissionRequest
        | events.Stop
        | events.StopFailure,
    )


def _state_after(state: CliState, event: events.Event, now: int) -> CliState:
    if isinstance(event, events.UserPromptSubmit) and event.begins_turn:
        return _begun(state, event.prompt, now)
    if isinstance(event, events.PostToolUse):
        todos = _todos(event.tool_input) if event.tool_name == events.TODO else None
        return state if todos is None else replace(state, todos=todos)
    # Without a prompt the turn goes on, with the results of its tools.
    goes_on = isinstance(event, events.UserPromptSubmit | events.PreToolUse | events.PermissionRequest)
    if goes_on and state.activity in (ASKING, FAILED):
        # The user can retry a failed turn by a key in the terminal.
        since = state.since if state.activity == ASKING else now
        return replace(state, activity=WORKING, since=since, question=None, failure=None)
    if isinstance(event, events.Stop):
        used = None if event.context_usage is None else round(100 * event.context_usage)
        said = last_line(event.last_assistant_message or "")
        state = replace(state, activity=IDLE, since=now, question=None, failure=None)
        return replace(state, tokens=event.input_tokens, context=used, said=said)
    if isinstance(event, events.StopFailure):
        return _failed(state, first_words(event.error.replace("_", " ")) or "unknown error", now)
    if isinstance(event, events.AttentionRequest):
        if event.notification_type == "permission_prompt":
            return replace(state, activity=ASKING, question=first_words(event.message))
        if event.notification_type == "idle_prompt" and state.activity in (WORKING, ASKING):
            # A cancelled turn is the only one without `Stop`.
            return replace(state, activity=CANCELLED, since=now, question=None)
    return state


def _todos(tool_input: Mapping[str, Any]) -> tuple[Todo, ...] | None:
    """Return the list that a CLI writes by its todo tool; None if it has another shape."""
    items = tool_input.get("todos")
    if not isinstance(items, list):
        return None
    known = [
        (item.get("content"), _STATUSES.get(str(item.get("status"))))
        for item in map(as_object, cast("list[object]", items))
    ]
    return tuple(Todo(first_words(text), status) for text, status in known if isinstance(text, str) and status)[
        :_MAX_TODOS
    ]


def last_line(text: str) -> str | None:
    """Return the beginning of the last line of `text` with a letter or digit; None without one.

    Lines that close a block of code do not count.
    """
    lines = reversed(text[-10 * _MAX_WORDS :].splitlines())
    return next((first_words(line) for line in lines if any(map(str.isalnum, line))), None)


def first_words(text: str) -> str:
    """Return the beginning of `text` on one line, as valid Unicode."""
    words = valid_text(" ".join(text[: 10 * _MAX_WORDS].split()))
    return words if len(words) <= _MAX_WORDS else words[: _MAX_WORDS - 1] + "…"
