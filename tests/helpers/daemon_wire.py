# SPDX-License-Identifier: GPL-3.0-or-later
"""Events as the daemon sends them, in few words; their shapes are those of recorded ones."""

from __future__ import annotations

import itertools
from typing import Any

from qwen_companion.daemon.models import Envelope, LoadReply, StatusReply
from qwen_companion.daemon.stream import Connected, Frame, ReplayDone, StreamItem

SESSION = "6d0d5779-6ad0-4202-bb30-fc81b06e730a"
US = "client_c87191e2-caf9-444c-a24e-a6af8d0298f7"
THEM = "client_8c9bcee3-b3fd-4715-81c0-a178411fec04"
EPOCH = "259a2628-4cc9-4be8-9d23-ca7dd7a54718"
P1, P2, P3 = (f"{n}c169471-7b2e-4c0a-9d43-1f6cf9fa0d6{n}" for n in (1, 2, 3))

_ids = itertools.count(1)

Json = dict[str, Any]


def event(kind: str, prompt: str | None = None, client: str | None = US, /, **data: Any) -> Json:
    """Return an event of `kind` that belongs to `prompt`, caused by `client`."""
    value: Json = {"id": next(_ids), "v": 1, "type": kind, "data": {"sessionId": SESSION, **data}}
    value["_meta"] = {"serverTimestamp": 1795240443126}
    if prompt is not None:
        value["promptId"] = prompt
    if client is not None:
        value["originatorClientId"] = client
    return value


def update(kind: str, prompt: str | None = None, client: str | None = US, /, **fields: Any) -> Json:
    """Return a session update of `kind`."""
    return event("session_update", prompt, client, update={"sessionUpdate": kind, **fields})


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def echo(prompt: str, text: str = "hello", client: str = US) -> Json:
    meta = {"serverTimestamp": 1795240443126, "source": "bridge-echo"}
    return update("user_message_chunk", prompt, client, content=_text(text), _meta=meta)


def words(text: str, prompt: str | None = P1, **meta: Any) -> Json:
    return update("agent_message_chunk", prompt, content=_text(text), **({"_meta": meta} if meta else {}))


def thought(text: str, prompt: str = P1) -> Json:
    return update("agent_thought_chunk", prompt, content=_text(text))


def tool_call(call: str = "call_1", prompt: str = P1, name: str = "run_shell_command", title: str = "Shell") -> Json:
    return update(
        "tool_call",
        prompt,
        _meta={"toolName": name, "provenance": "builtin", "phase": "preparing"},
        content=[],
        kind="execute",
        locations=[],
        rawInput={},
        status="pending",
        title=title,
        toolCallId=call,
    )


def tool_update(call: str = "call_1", prompt: str = P1, **fields: Any) -> Json:
    return update("tool_call_update", prompt, toolCallId=call, **fields)


def said(text: str) -> list[Json]:
    """Return `text` as the content of a tool call."""
    return [{"type": "content", "content": _text(text)}]


def diff(path: str, old: str, new: str) -> list[Json]:
    return [{"type": "diff", "path": path, "oldText": old, "newText": new}]


OPTIONS = [
    {"kind": "allow_always", "name": "Always Allow in project: touch *", "optionId": "proceed_always_project"},
    {"kind": "allow_always", "name": "Always Allow for user: touch *", "optionId": "proceed_always_user"},
    {"kind": "allow_once", "name": "Allow", "optionId": "proceed_once"},
    {"kind": "reject_once", "name": "Reject", "optionId": "cancel"},
]


def permission(request: str = "r1", call: str = "call_1", prompt: str = P1, **tool: Any) -> Json:
    return event(
        "permission_request",
        prompt,
        requestId=request,
        toolCall={
            "_meta": {"toolName": "run_shell_command"},
            "content": [],
            "kind": "execute",
            "locations": [],
            "rawInput": {"command": "touch x", "description": "say hi"},
            "status": "pending",
            "title": "touch x (say hi)",
            "toolCallId": call,
            **tool,
        },
        options=list(OPTIONS),
    )


QUESTIONS = [
    {
        "question": "Which db?",
        "header": "DB",
        "options": [{"label": "sqlite", "description": "small"}, {"label": "pg", "description": "big"}],
        "multiSelect": False,
    },
    {"question": "Which tests?", "header": "Tests", "options": [{"label": "a"}, {"label": "b"}], "multiSelect": True},
]


def question(request: str = "q1", call: str = "call_2", prompt: str = P1) -> Json:
    value = permission(
        request,
        call,
        prompt,
        _meta={"toolName": "ask_user_question", "qwenInteractionKind": "user_question", "qwenQuestions": QUESTIONS},
        kind="think",
        rawInput={"questions": QUESTIONS},
        title="Ask user 2 questions",
    )
    value["data"]["options"] = [
        {"kind": "allow_once", "name": "Submit", "optionId": "proceed_once"},
        {"kind": "reject_once", "name": "Cancel", "optionId": "cancel"},
    ]
    return value


def resolved(
    request: str = "r1", option: str | None = "proceed_once", voter: str | None = US, prompt: str = P1
) -> Json:
    outcome = {"outcome": "cancelled"} if option is None else {"outcome": "selected", "optionId": option}
    voted = {} if voter is None else {"voterClientId": voter}
    return event("permission_resolved", P1, voter, requestId=request, outcome=outcome, **voted)


def complete(prompt: str = P1, reason: str = "end_turn") -> Json:
    cancelled = {"promptCancelled": {"cancelledAt": 1795240443665, "elapsedMs": 61}} if reason == "cancelled" else {}
    return event("turn_complete", prompt, stopReason=reason, promptId=prompt, **cancelled)


def queued(prompt: str, text: str = "next", client: str = US) -> Json:
    return event("pending_prompt_added", prompt, client, promptId=prompt, text=text, queuedAt=1795240835723)


def started(prompt: str, text: str = "next") -> Json:
    return event("pending_prompt_started", prompt, promptId=prompt, text=text)


def queue_done(prompt: str, state: str) -> Json:
    return event("pending_prompt_completed", prompt, promptId=prompt, state=state)


def frame(value: Json, *, replayed: bool = False) -> Frame:
    return Frame(Envelope.model_validate(value), replayed)


def live(*values: Json) -> list[StreamItem]:
    """Return a stream that has been taken up, and `values`."""
    return [Connected(), ReplayDone(), *map(frame, values)]


def load_reply(*replay: Json, journal: tuple[Json, ...] = (), **fields: Any) -> LoadReply:
    return LoadReply.model_validate(
        {
            "sessionId": SESSION,
            "clientId": US,
            "hasActivePrompt": bool(journal),
            "compactedReplay": list(replay),
            "liveJournal": list(journal),
            "lastEventId": 100,
            "eventEpoch": EPOCH,
            **fields,
        }
    )


def pending(request: str = "r1") -> Json:
    """Return a permission as the status tells it."""
    return {
        "requestId": request,
        "kind": "permission",
        "action": {
            "type": "execute",
            "title": "touch x (say hi)",
            "content": [],
            "locations": [],
            "input": {"command": "touch x", "description": "say hi"},
        },
        "options": [{"optionId": o["optionId"], "label": o["name"], "kind": o["kind"]} for o in OPTIONS],
    }


def status_reply(*interactions: Json, clients: int = 1) -> StatusReply:
    return StatusReply.model_validate(
        {"clientCount": clients, "hasActivePrompt": bool(interactions), "pendingInteractions": list(interactions)}
    )
