# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qwen_companion.domain import CliState, KnownSession, Peer, SessionState, Todo
from qwen_companion.doors.events import (
    AttentionRequest,
    Event,
    PermissionRequest,
    PostToolUse,
    PreToolUse,
    SessionEnd,
    SessionStart,
    Stop,
    StopFailure,
    SubagentStart,
    SubagentStop,
    UserPromptSubmit,
)
from qwen_companion.doors.states import States, first_words

PID = 7
START = SessionStart(permission_mode="auto", model="m")
PROMPT = UserPromptSubmit(permission_mode="auto", prompt="change\n  the greeting")
ASK = AttentionRequest(notification_type="permission_prompt", message="may I?")
IDLE = AttentionRequest(notification_type="idle_prompt")
STOP = Stop(context_usage=0.314, input_tokens=314)


def after(*events: Event) -> CliState:
    """Return the state after `events`, which came at 1, 2 and so on."""
    states = States()
    for now, event in enumerate(events, 1):
        states.note(PID, event, now)
    state = states.get(PID)
    assert state is not None
    return state


def test_a_turn() -> None:
    assert after(START) == CliState("idle", 1, mode="auto", model="m")
    working = CliState("working", 2, "change the greeting", None, "auto", "m")
    assert after(START, PROMPT) == working
    assert after(START, PROMPT, ASK) == CliState("asking", 2, "change the greeting", "may I?", "auto", "m")
    assert after(START, PROMPT, ASK, PreToolUse(tool_name="edit")) == working
    # A tool that only reads reports nothing before its result.
    assert after(START, PROMPT, ASK, UserPromptSubmit(prompt="")) == working
    # A turn goes on with an empty prompt.
    assert after(START, PROMPT, UserPromptSubmit(prompt="")) == working
    done = CliState("idle", 3, "change the greeting", None, "auto", "m", 314, 31)
    assert after(START, PROMPT, STOP) == done
    assert after(START, PROMPT, STOP, IDLE) == done
    assert after(START, PROMPT, IDLE).activity == "cancelled"
    assert after(START, PROMPT, ASK, IDLE).activity == "cancelled"


def test_a_turn_that_fails() -> None:
    failure = StopFailure(error="rate_limit")
    failed = CliState("failed", 3, "change the greeting", None, "auto", "m", failure="rate limit")
    assert after(START, PROMPT, failure) == failed
    # The CLI says that it is idle, before or after.
    assert after(START, PROMPT, failure, IDLE) == failed
    assert after(START, PROMPT, IDLE, failure) == replace(failed, since=4)
    # It is tried again by a key there, or another prompt follows.
    for again in (UserPromptSubmit(prompt=""), PreToolUse(tool_name="edit"), PROMPT):
        assert after(START, PROMPT, failure, again) == CliState("working", 4, "change the greeting", None, "auto", "m")
    assert after(START, PROMPT, failure, STOP).failure is None
    assert after(START, PROMPT, StopFailure()).failure == "unknown error"


def test_a_turn_that_we_end() -> None:
    states = States()
    states.note(PID, PROMPT, 1)
    states.stop(PID, "token limit", 2)
    states.note(PID, IDLE, 3)
    state = states.get(PID)
    assert state is not None
    assert (state.activity, state.since, state.failure) == ("failed", 2, "token limit")


def test_a_turn_that_seems_cancelled_and_has_failed() -> None:
    states = States()
    assert not states.fail(PID, "token limit", 1)
    for event, fails in ((PROMPT, False), (IDLE, True), (PROMPT, False), (STOP, False)):
        states.note(PID, event, 2)
        assert states.fail(PID, "token limit", 3) == fails
        state = states.get(PID)
        assert state is not None
        assert (state.activity == "failed", state.failure == "token limit") == (fails, fails)


def test_a_prompt_that_no_hook_tells_of_is_a_turn() -> None:
    states = States()
    assert not states.prompted(PID, "from outside", 1)
    assert states.get(PID) is None
    states.note(PID, START, 1)
    assert not states.prompted(PID, "from\noutside", 2)
    assert states.get(PID) == CliState("working", 2, "from outside", None, "auto", "m")
    states.note(PID, STOP, 3)
    assert states.get(PID) == CliState("idle", 3, "from outside", None, "auto", "m", 314, 31)
    # One that is told of late, after the end of its turn.
    states.note(PID, PreToolUse(tool_name="edit"), 5)
    states.note(PID, STOP, 6)
    assert states.prompted(PID, "late", 4)
    assert states.get(PID) == CliState("idle", 6, "late", None, "auto", "m", 314, 31)


def at(second: int, event: Event) -> Event:
    """Return `event` as the CLI has reported it at `second`."""
    return event.model_copy(update={"timestamp": f"2026-01-01T00:00:{second:02}.000Z"})


@pytest.mark.parametrize("late", [IDLE, ASK, IDLE.model_copy(update={"permission_mode": "yolo"})])
def test_a_notification_that_comes_late_changes_nothing(late: Event) -> None:
    """The CLI waits for no answer to one, so what happens next may be reported first."""
    start, stop = at(1, START), at(2, STOP)
    prompt, tool = at(4, PROMPT), at(4, PreToolUse(tool_name="edit"))
    for events in ([prompt], [prompt, tool], [prompt, at(4, PermissionRequest(tool_name="edit"))], [stop]):
        before = [start, at(1, PROMPT), stop, *events]
        assert after(*before, at(1, late)) == after(*before)
    # What comes when nothing else has happened is no late one, nor is one of a version that does not tell the time.
    assert after(start, prompt, at(4, IDLE)).activity == "cancelled"
    assert after(start, prompt, IDLE).activity == "cancelled"
    # A turn that goes on has its answers.
    assert after(start, prompt, at(6, UserPromptSubmit(prompt="")), at(5, ASK)).activity == "working"
    assert after(start, prompt, at(6, UserPromptSubmit(prompt="")), at(7, ASK)).activity == "asking"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("I changed it.\n\nShall I  run the tests?\n", "Shall I run the tests?"),
        ("So:\n```\nmake test\n```\n", "make test"),
        ("word " * 1000, "word " * 11 + "word…"),
        ("\n---\n", None),
        ("", None),
        (None, None),
    ],
)
def test_the_last_line_of_an_answer_is_known_until_the_next_prompt(message: str | None, said: str | None) -> None:
    stop = STOP.model_copy(update={"last_assistant_message": message})
    assert after(START, PROMPT, stop).said == said
    assert after(START, PROMPT, stop, IDLE).said == said
    assert after(START, PROMPT, stop, PROMPT).said is None
    assert after(START, PROMPT, stop, SessionEnd()).said is None


def test_a_conversation_that_is_cleared_leaves_nothing() -> None:
    assert after(START, PROMPT, STOP, SessionEnd()) == CliState(mode="auto", model="m")
    assert after(START, PROMPT, SessionEnd(), START) == CliState("idle", 4, mode="auto", model="m")


def test_the_mode_is_the_one_reported_last() -> None:
    assert after(START, PreToolUse(permission_mode="yolo")).mode == "yolo"
    assert after(
        START, PreToolUse(permission_mode="auto_edit"), PROMPT.model_copy(update={"permission_mode": None})
    ).mode == ("auto-edit")


def test_subagents_are_counted_and_change_nothing_else() -> None:
    one = SubagentStart(agent_id="a", agent_type="general-purpose")
    assert after(START, PROMPT, one) == CliState("working", 2, "change the greeting", None, "auto", "m", subagents=1)
    assert after(START, PROMPT, one, one, SubagentStart(agent_id="b")).subagents == 2
    tool = PreToolUse(agent_id="a", permission_mode="yolo")
    stopped = Stop(agent_id="a", input_tokens=5)
    assert after(START, PROMPT, one, tool, stopped) == after(START, PROMPT, one)
    assert after(START, PROMPT, one, SubagentStop(agent_id="a")) == after(START, PROMPT)
    assert after(START, one, SessionEnd(), START).subagents == 0


def test_a_subagent_is_named_by_its_kind() -> None:
    states = States()
    assert states.agent(PID, "a") == "a subagent"
    states.note(PID, SubagentStart(agent_id="a", agent_type="explorer"), 1)
    assert states.agent(PID, "a") == "subagent explorer"
    assert states.agent(PID + 1, "a") == "a subagent"


def test_what_the_user_asks_for_is_no_subagents_doing() -> None:
    """Qwen Code 0.24 names a finished subagent in later events of the user's conversation too."""
    states = States()
    start = SubagentStart(agent_id="a", agent_type="explorer", prompt_id="s#3")
    request = PermissionRequest(agent_id="a", prompt_id="s#3")
    later = PermissionRequest(agent_id="a", prompt_id="s#4")
    assert states.attribute(PID, request) == request
    states.note(PID, start, 1)
    assert states.attribute(PID, request) == request
    assert states.attribute(PID, request.model_copy(update={"prompt_id": None})).agent_id == "a"
    # While it is running in the background, the user has asked for something else.
    assert states.attribute(PID, later) == PermissionRequest(prompt_id="s#4")
    stop = SubagentStop(agent_id="a", prompt_id="s#3")
    assert states.attribute(PID, stop) == stop
    states.note(PID, stop, 2)
    assert states.attribute(PID, request).agent_id is None
    assert states.attribute(PID, later).agent_id is None
    # It was resumed.
    states.note(PID, start.model_copy(update={"prompt_id": "s#4"}), 3)
    assert states.attribute(PID, later) == later


def test_the_state_that_an_earlier_process_knew_goes_on() -> None:
    known = after(START, PROMPT, SubagentStart(agent_id="a"))
    session = KnownSession("1", "", "Qwen Code", "0.24.4", Peer(PID, "", "/w", "qwen", ()))
    states = States([SessionState(session, streaming=True, state=known)])
    assert states.get(PID) == replace(known, subagents=0)
    states.note(PID, STOP.model_copy(update={"permission_mode": None}), 9)
    assert states.get(PID) == CliState("idle", 9, "change the greeting", None, "auto", "m", 314, 31)


def test_only_a_change_is_one() -> None:
    states = States()
    assert states.note(PID, START, 1)
    assert states.note(PID, PROMPT, 2)
    assert not states.note(PID, PreToolUse(permission_mode="auto", tool_name="edit"), 3)
    assert not states.note(PID, Event(), 4)
    states.forget(PID)
    assert states.get(PID) is None
    states.forget(PID)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\tb\n\nc ", "a b c"), ("x" * 60, "x" * 60), ("y" * 100_000, "y" * 59 + "…"), (" \n", ""), ("\ud83d", "?")],
)
def test_the_first_words_are_one_short_line(text: str, shown: str) -> None:
    assert first_words(text) == shown


def test_the_list_of_a_cli_is_kept_until_all_of_it_is_done() -> None:
    def write(*statuses: object) -> PostToolUse:
        todos = [
            {"id": str(number), "content": f"step\n {number}", "status": status}
            for number, status in enumerate(statuses)
        ]
        return PostToolUse(tool_name="todo_write", tool_input={"todos": todos})

    state = after(START, PROMPT, write("completed", "in_progress", "pending"))
    assert state.todos == (Todo("step 0", "done"), Todo("step 1", "working"), Todo("step 2", "pending"))
    assert state.activity == "working"
    assert after(START, write("completed", "pending"), PROMPT).todos == (
        Todo("step 0", "done"),
        Todo("step 1", "pending"),
    )
    assert after(START, write("completed"), STOP).todos == (Todo("step 0", "done"),)
    assert after(START, write("completed"), PROMPT).todos == ()
    assert after(START, write("pending"), START).todos == ()
    assert len(after(START, write(*["pending"] * 1000)).todos) == 100
    for odd in ({}, {"todos": "x"}, {"todos": None}):
        assert after(START, write("pending"), PostToolUse(tool_name="todo_write", tool_input=odd)).todos != ()
    odd_items: dict[str, Any] = {
        "todos": [1, None, {}, {"content": 1, "status": "pending"}, {"content": "x", "status": []}]
    }
    assert after(START, PostToolUse(tool_name="todo_write", tool_input=odd_items)).todos == ()
    assert after(START, PostToolUse(tool_name="edit", tool_input={"todos": []})).todos == ()
