# SPDX-License-Identifier: GPL-3.0-or-later
"""Gemini's API, the part a CLI needs: requests read, answers written as JSON or as a stream of events.

https://ai.google.dev/api/generate-content
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from model_types import Answer, Message, ModelRequest, Role

_METHOD: Final = re.compile(r"/v1beta/models/[^/]+:(streamGenerateContent|generateContent|countTokens)(?:\?.*)?")
_ROLES: Final[dict[str, Role]] = {"user": "user", "model": "assistant"}
_USAGE: Final = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
_numbers = itertools.count(1)


def method(path: str) -> str | None:
    """Return the method that a request's `path` names: streamGenerateContent, generateContent or countTokens."""
    found = _METHOD.fullmatch(path)
    return found[1] if found else None


def _messages(content: Mapping[str, Any]) -> Iterator[Message]:
    """Yield the messages in one content, in which results of tools and the user's own words may stand together."""
    parts = cast("Sequence[Mapping[str, Any]]", content.get("parts") or [])
    for part in parts:
        if "functionResponse" in part:
            result = part["functionResponse"]["response"]
            yield Message("tool", result.get("output") or json.dumps(result, ensure_ascii=False))
    texts = [part["text"] for part in parts if "text" in part]
    if texts or not any("functionResponse" in part for part in parts):
        yield Message(_ROLES[content.get("role", "user")], "\n".join(texts))


def parse(body: Mapping[str, Any], *, streaming: bool) -> ModelRequest:
    """Read the body of a request to generate; `streaming` is not said in there."""
    instruction = cast("Mapping[str, Any]", body.get("systemInstruction") or {})
    system = "\n".join(part["text"] for part in instruction.get("parts", []))
    tools = cast("Sequence[Mapping[str, Any]]", body.get("tools") or [])
    config = cast("Mapping[str, Any]", body.get("generationConfig") or {})
    conversation = (message for content in body["contents"] for message in _messages(content))
    return ModelRequest(
        messages=(Message("system", system), *conversation),
        tools=frozenset(declaration["name"] for tool in tools for declaration in tool.get("functionDeclarations", ())),
        wants_json=config.get("responseMimeType") == "application/json",
        streaming=streaming,
        body=body,
    )


def _response(parts: Sequence[Mapping[str, Any]], finish_reason: str | None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": parts}}
    if finish_reason:
        candidate["finishReason"] = finish_reason
    return {"candidates": [candidate], "usageMetadata": _USAGE}


def _parts(answer: Answer) -> list[dict[str, Any]]:
    """Return the text in two parts, and each call in one of its own."""
    middle = len(answer.text) // 2
    texts = [{"text": piece} for piece in (answer.text[:middle], answer.text[middle:]) if piece]
    calls = [
        {"functionCall": {"id": f"call_{next(_numbers)}", "name": call.tool, "args": call.arguments}}
        for call in answer.calls
    ]
    return texts + calls


def response(answer: Answer) -> dict[str, Any]:
    """Return the whole answer as one object."""
    return _response(_parts(answer), "STOP")


def stream(answer: Answer) -> Iterator[bytes]:
    """Yield the answer as server-sent events: one for each part, then the end."""
    for part in _parts(answer):
        yield _event(_response([part], None))
    yield _event(_response([], "STOP"))


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\r\n\r\n"


def token_count() -> dict[str, Any]:
    """Return the number of tokens of any request."""
    return {"totalTokens": 1}
