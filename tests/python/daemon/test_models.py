# SPDX-License-Identifier: GPL-3.0-or-later
"""The wire, as it was recorded from a real daemon and as a newer or a broken one might have it."""

from __future__ import annotations

import itertools
import json
import logging
from typing import Any

import pytest

from fake_daemon import RECORDED, Json, chunk, event, reply, turn
from qwen_companion.daemon import models
from qwen_companion.daemon.errors import ProtocolViolationError


def read(found: Json) -> models.Envelope:
    return models.parse_frame(json.dumps(found))


@pytest.mark.parametrize("name", RECORDED["turns"])
def test_every_recorded_event_is_known(name: str) -> None:
    for found in turn(name):
        envelope = read(found)
        assert not isinstance(envelope.payload, models.Unknown), found
        assert (envelope.id, envelope.prompt_id) == (found.get("id"), found.get("promptId"))
        assert envelope.server_timestamp == found["_meta"]["serverTimestamp"]


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("capabilities", models.Capabilities),
        ("context", models.ContextReply),
        ("context_usage", models.ContextUsageReply),
        ("load", models.LoadReply),
        ("prompt", models.PromptReply),
        ("removed", models.RemovedReply),
        ("session", models.SessionReply),
        ("sessions", models.SessionsReply),
        ("status_ask", models.StatusReply),
        ("status_run", models.StatusReply),
        ("status_write", models.StatusReply),
        ("supported_commands", models.CommandsReply),
    ],
)
def test_every_recorded_answer_is_read_in_full(
    name: str, model: type[models.Wire], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    assert models.parse(model, reply(name), "An answer") != parse_empty(model)
    assert caplog.records == []


def parse_empty(model: type[models.Wire]) -> models.Wire | None:
    try:
        return models.parse(model, {}, "An answer")
    except ProtocolViolationError:
        return None


def test_a_load_gives_events_and_where_the_stream_begins() -> None:
    loaded = models.parse(models.LoadReply, reply("load"), "An answer")
    assert loaded.cursor == models.Cursor(reply("load")["lastEventId"], reply("load")["eventEpoch"])
    assert [event.type for event in loaded.compacted_replay if event.type == "turn_complete"] != []
    assert len(loaded.compacted_replay) == len(reply("load")["compactedReplay"])


def test_a_load_leaves_out_what_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    value = reply("load")
    count = len(value["compactedReplay"])
    value["compactedReplay"][1:1] = [{"v": 2, "text": "private"}, "private", None]
    assert len(models.parse(models.LoadReply, value, "An answer").compacted_replay) == count
    assert len(caplog.records) == 3
    assert "private" not in caplog.text


def test_what_waits_for_an_answer_is_the_same_in_the_event_and_in_the_status() -> None:
    for name in ("write", "run", "ask"):
        request = next(read(found).payload for found in turn(name) if found["type"] == "permission_request")
        assert isinstance(request, models.PermissionRequest)
        (waiting,) = models.parse(models.StatusReply, reply(f"status_{name}"), "An answer").pending_interactions
        assert waiting.request_id == request.request_id
        assert [option.option_id for option in waiting.options] == [option.option_id for option in request.options]
        assert [option.label for option in waiting.options] == [option.name for option in request.options]
        meta = request.tool_call.meta
        assert meta is not None
        assert (meta.qwen_interaction_kind == "user_question") == (name == "ask")
        assert [item.question for item in waiting.questions] == [item.question for item in meta.qwen_questions]
        if waiting.action is not None:
            assert waiting.action.content == request.tool_call.content
            assert waiting.action.input == request.tool_call.raw_input


def test_an_update_of_a_tool_tells_what_it_names() -> None:
    call, update = (
        next(payload for payload in map(payload_of, turn("write")) if isinstance(payload, kind))
        for kind in (models.ToolCall, models.ToolCallUpdate)
    )
    assert call.tool_call_id == update.tool_call_id
    assert {"title", "kind", "raw_input"} <= call.model_fields_set
    assert not {"title", "kind", "raw_input"} & update.model_fields_set
    assert update.status == "completed"
    assert update.content is not None
    assert (update.content[0].old_text, update.content[0].new_text) == ("", "one\ntwo\n")


def payload_of(found: Json) -> models.Payload:
    return read(found).payload


def test_a_session_update_without_its_envelope_is_read_as_in_a_transcript() -> None:
    found = event("agent_message_chunk")
    found["data"] = found["data"]["update"]
    assert isinstance(read(found).payload, models.AgentMessageChunk)


def test_lone_surrogates_and_line_separators_are_kept() -> None:
    text = "a\ud800b\u2028c\u2029d\x85e\x1b[31m\x00"
    payload = read(chunk(text)).payload
    assert isinstance(payload, models.AgentMessageChunk)
    assert payload.content.text == text


def test_a_newer_daemon_spoils_no_more_than_it_must() -> None:
    found = event("turn_complete")
    prompt = found["data"]["promptId"]
    found["data"] |= {"stopReason": {"new": "shape"}, "more": [1], "branchPoint": None}
    found["new"] = found["_meta"]["new"] = 1
    assert read(found).payload == models.TurnComplete(prompt_id=prompt)

    update = {"sessionUpdate": "current_mode_update"}
    mode = {**found, "type": "session_update", "data": {"update": update}}
    assert read(mode).payload == models.Unknown(kind="session_update/current_mode_update")
    update["currentModeId"] = "plan"
    assert read(mode).payload == models.CurrentModeUpdate(current_mode_id="plan")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"type": "something_new"}, "something_new"),
        ({"data": None}, "turn_complete"),
        ({"type": "session_update", "data": {"update": {"sessionUpdate": "new"}}}, "session_update/new"),
        ({"type": "session_update", "data": {}}, "session_update/None"),
    ],
)
def test_an_event_of_an_unknown_kind_is_named(change: Json, kind: str) -> None:
    payload = read({**event("turn_complete"), **change}).payload
    assert payload == (models.TurnComplete() if kind == "turn_complete" else models.Unknown(kind=kind))


@pytest.mark.parametrize(
    "text",
    ["", "private", '{"v": 1}', '{"v": 2, "type": "private"}', '["private"]', "null", '"' + "[" * 9, "[" * 100_000],
)
def test_what_is_no_event_is_said_without_quoting_it(text: str) -> None:
    with pytest.raises(ProtocolViolationError) as caught:
        models.parse_frame(text)
    assert "private" not in str(caught.value)
    assert "[[" not in str(caught.value)


def test_secrets_of_a_settings_change_are_not_read() -> None:
    found: Json = {"v": 1, "type": "settings_changed", "data": {"key": "model.baseUrl", "value": "http://u:hidden@h"}}
    assert "hidden" not in repr(read(found))


def all_members(model: type[Any]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def test_no_model_reads_what_must_not_leave() -> None:
    kinds = [value for value in vars(models).values() if isinstance(value, type) and issubclass(value, models.Wire)]
    members = set(itertools.chain.from_iterable(map(all_members, kinds)))
    assert not members & {"apiKey", "baseUrl", "envKey", "pid", "token", "authType"}
