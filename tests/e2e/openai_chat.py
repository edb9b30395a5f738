# SPDX-License-Identifier: GPL-3.0-or-later
"""OpenAI's chat completions, the part a CLI needs: requests read, answers written as JSON or as a stream of events."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from model_types import Answer, Message, ModelRequest, Role

CHAT_PATH: Final = "/v1/chat/completions"
MODELS_PATH: Final = "/v1/models"
MODEL_NAME: Final = "scripted"

_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
USAGE: Final = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
_numbers = itertools.count(1)


def _text(content: object) -> str:
    """Return the text of a message's content: a string, a list of parts, or nothing."""
    if isinstance(content, str):
        return content
    parts = cast("list[Mapping[str, Any]]", content) if isinstance(content, list) else []
    return "\n".join(part["text"] for part in parts if part.get("type") == "text")


def parse(body: Mapping[str, Any]) -> ModelRequest:
    """Read the body of a chat completion request."""
    tools = cast("list[Mapping[str, Any]]", body.get("tools") or [])
    response_format = cast("Mapping[str, Any]", body.get("response_format") or {})
    return ModelRequest(
        messages=tuple(Message(_ROLES[message["role"]], _text(message.get("content"))) for message in body["messages"]),
        tools=frozenset(tool["function"]["name"] for tool in tools),
        wants_json=response_format.get("type", "text") != "text",
        streaming=bool(body.get("stream")),
        body=body,
    )


def _tool_calls(answer: Answer) -> list[dict[str, Any]]:
    return [
        {
            "index": index,
            "id": f"call_{next(_numbers)}",
            "type": "function",
            "function": {"name": call.tool, "arguments": json.dumps(call.arguments)},
        }
        for index, call in enumerate(answer.calls)
    ]


def _finish_reason(answer: Answer) -> str:
    return "tool_calls" if answer.calls else "stop"


def _envelope(kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{next(_numbers)}", "object": kind, "created": 0, "model": MODEL_NAME}


def completion(answer: Answer) -> dict[str, Any]:
    """Return the whole answer as one object."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.calls:
        message["tool_calls"] = _tool_calls(answer)
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(answer)}
    return {**_envelope("chat.completion"), "choices": [choice], "usage": USAGE}


def stream(answer: Answer) -> Iterator[bytes]:
    """Yield the answer as server-sent events: the thought, pieces of text, each call's arguments in two, the end."""
    envelope = _envelope("chat.completion.chunk")

    def event(delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return _event({**envelope, "choices": [choice]})

    yield event({"role": "assistant", "content": ""})
    if answer.thought:
        yield event({"reasoning_content": answer.thought})
    for piece in answer.streamed():
        yield event({"content": piece})
    for call in _tool_calls(answer):
        arguments = call["function"]["arguments"]
        middle = len(arguments) // 2
        first = {**call, "function": {**call["function"], "arguments": arguments[:middle]}}
        rest = {"index": call["index"], "function": {"arguments": arguments[middle:]}}
        yield event({"tool_calls": [first]})
        yield event({"tool_calls": [rest]})
    yield event({}, _finish_reason(answer))
    yield _event({**envelope, "choices": [], "usage": USAGE})
    yield b"data: [DONE]\n\n"


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def models() -> dict[str, Any]:
    """Return the list of models."""
    return {"object": "list", "data": [{"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "tests"}]}
