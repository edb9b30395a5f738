# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from typing import Any

import pytest

from qwen_companion.doors.events import (
    AttentionRequest,
    Event,
    PermissionRequest,
    PreToolUse,
    Stop,
    UserPromptSubmit,
    parse_event,
)


def parsed(**fields: Any) -> Event | None:
    return parse_event(json.dumps(fields).encode())


def test_an_event_is_what_its_name_says() -> None:
    event = parsed(
        hook_event_name="PermissionRequest",
        session_id="s",
        cwd="/w",
        permission_mode="auto_edit",
        agent_id="a",
        tool_name="edit",
        tool_input={"file_path": "/w/x"},
        timestamp="now",
    )
    assert event == PermissionRequest(
        session_id="s",
        cwd="/w",
        permission_mode="auto_edit",
        agent_id="a",
        tool_name="edit",
        tool_input={"file_path": "/w/x"},
        timestamp="now",
    )
    assert event is not None
    assert event.mode == "auto-edit"
    assert parsed(hook_event_name="Notification", notification_type="idle_prompt") == AttentionRequest(
        notification_type="idle_prompt"
    )
    stop = parsed(hook_event_name="Stop", context_usage=0.5, input_tokens=3, usage={"new": 1})
    assert stop == Stop(context_usage=0.5, input_tokens=3)


@pytest.mark.parametrize(
    "fields",
    [
        {"hook_event_name": "SomethingNew", "session_id": "s", "what": [1]},
        {"session_id": "s"},
        # Of another shape than it was.
        {"hook_event_name": "UserPromptSubmit", "session_id": "s", "prompt": {"text": "x"}},
        {"hook_event_name": "PermissionRequest", "session_id": "s", "tool_input": "x"},
        {"hook_event_name": 5, "session_id": "s"},
    ],
)
def test_what_is_not_known_is_an_event_all_the_same(fields: dict[str, Any]) -> None:
    event = parsed(**fields)
    assert type(event) is Event
    assert event.session_id == "s"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"session_id": 5}', b"[" * 100_000])
def test_what_is_no_event_is_none(data: bytes) -> None:
    assert parse_event(data) is None


def test_a_large_event_is_read() -> None:
    text = "x" * 20_000_000
    event = parsed(hook_event_name="UserPromptSubmit", prompt=text)
    assert isinstance(event, UserPromptSubmit)
    assert event.prompt == text


def test_a_prompt_is_without_what_the_cli_puts_before_it() -> None:
    reminder = '<system-reminder>\nYou work in the worktree "feat".\n</system-reminder>\n\n'
    for prompt, wanted in ((f"{reminder}greet", "greet"), (reminder, reminder), ("<system-reminder> x", None)):
        event = parsed(hook_event_name="UserPromptSubmit", prompt=prompt)
        assert isinstance(event, UserPromptSubmit)
        assert event.prompt == (prompt if wanted is None else wanted)


def test_half_a_surrogate_pair_is_replaced_as_node_does_when_it_writes() -> None:
    found = parsed(
        hook_event_name="PreToolUse",
        session_id="s",
        tool_name="write_file",
        tool_input={"content": "half \ud83d of \U0001f600 \\ud83d", "other": ["\udc00"]},
    )
    assert isinstance(found, PreToolUse)
    assert found.tool_input == {"content": "half \ufffd of \U0001f600 \\ud83d", "other": ["\ufffd"]}
