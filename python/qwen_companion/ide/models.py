# SPDX-License-Identifier: GPL-3.0-or-later
"""Every name and shape of the IDE companion interface over MCP (spec C3, F1-F5)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from qwen_companion.domain import ToldContext, ToldFile

CONTEXT_UPDATE = "ide/contextUpdate"
DIFF_ACCEPTED = "ide/diffAccepted"
DIFF_REJECTED = "ide/diffRejected"

OPEN_DIFF = "openDiff"
CLOSE_DIFF = "closeDiff"

CONTENT_CHARACTERS = 128 * 1024
"""Characters of a text that are converted to JSON at once."""

ANONYMOUS_CLIENT = "streamable-http-client"
"""The name that all CLIs seen so far use; it means nothing to the user."""

Json = dict[str, Any]


@dataclass(frozen=True)
class McpTool:
    """A tool as `tools/list` shows it."""

    name: str
    description: str
    input_schema: Json


TOOLS = (
    McpTool(
        OPEN_DIFF,
        "Show the user a proposed new content of a file, to edit, accept or reject. Returns at once; the decision "
        f"comes as {DIFF_ACCEPTED} or {DIFF_REJECTED}.",
        {
            "type": "object",
            "properties": {
                "filePath": {"type": "string", "description": "Absolute path of the file."},
                "newContent": {"type": "string", "description": "The whole proposed content."},
            },
            "required": ["filePath", "newContent"],
        },
    ),
    McpTool(
        CLOSE_DIFF,
        'End the review of a file. Answers {"content": the text as the user left it}, or null when none was open.',
        {
            "type": "object",
            "properties": {
                "filePath": {"type": "string", "description": "Absolute path of the file."},
                "suppressNotification": {"type": "boolean", "description": f"Send no {DIFF_REJECTED}."},
            },
            "required": ["filePath"],
        },
    ),
)


def open_file(path: str, timestamp: int) -> Json:
    """Return an open file (spec C3), last in focus at `timestamp`, in ms since the epoch."""
    return {"path": path, "timestamp": timestamp}


def active_file(path: str, timestamp: int, cursor: tuple[int, int] | None, selected_text: str | None) -> Json:
    """Return the open file in focus; `cursor` is line and character, from 1, in UTF-16 code units."""
    wire = {**open_file(path, timestamp), "isActive": True}
    if cursor is not None:
        wire["cursor"] = {"line": cursor[0], "character": cursor[1]}
    if selected_text is not None:
        wire["selectedText"] = selected_text
    return wire


def ide_context(open_files: Sequence[Json], is_trusted: bool | None) -> Json:
    """Return the context of the open files, newest first (spec C3).

    `is_trusted` must stay the same for the life of a connection: a CLI requests a restart when it changes.  None omits
    it.
    """
    trust = {} if is_trusted is None else {"isTrusted": is_trusted}
    return {"workspaceState": {"openFiles": open_files, **trust}}


def context_update(context: Json) -> bytes:
    """Return the notification of `context`."""
    return _notification(CONTEXT_UPDATE, context)


def told_context(text: str, place: str = "") -> ToldContext:
    """Return the content of `text`, the JSON of a `context_update`; its names are at `place`, "" for this machine."""
    update = json.loads(text)
    state = update["params"]["workspaceState"]
    trust = {None: None, True: "trusted", False: "untrusted"}[state.get("isTrusted")]
    files = (
        ToldFile(
            place + file["path"],
            file["timestamp"],
            file.get("isActive", False),
            **file.get("cursor", {}),
            selection=file.get("selectedText"),
        )
        for file in state["openFiles"]
    )
    return ToldContext(trust, tuple(files), json.dumps(update, ensure_ascii=False, indent=2))


class DiffAccepted:
    """The notification that a file was accepted with a text that includes the user's edits (spec F4).

    Its JSON is made in pieces while it is sent: for 10 MB at once, allocating memory takes 10 ms more.
    """

    def __init__(self, path: str, content: str) -> None:
        self._path = path
        self._content = content

    def __iter__(self) -> Iterator[bytes]:
        """Yield its JSON in pieces."""
        # Three times as fast as `json`.
        empty = to_json(_message(DIFF_ACCEPTED, {"filePath": self._path, "content": ""}))
        end = len(b'"}}')
        yield empty[:-end]
        for start in range(0, len(self._content), CONTENT_CHARACTERS):
            yield to_json(self._content[start : start + CONTENT_CHARACTERS])[1:-1]
        yield empty[-end:]


def diff_rejected(path: str) -> Sequence[bytes]:
    """Return the notification that the proposal for `path` was rejected (spec F5), in one piece."""
    return [_notification(DIFF_REJECTED, {"filePath": path})]


def close_result(content: str | None) -> str:
    """Return the text block of `closeDiff`'s answer; CLIs read it as JSON."""
    return json.dumps({"content": content}, ensure_ascii=False)


def _notification(method: str, params: Mapping[str, Any]) -> bytes:
    return json.dumps(_message(method, params), ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _message(method: str, params: Mapping[str, Any]) -> Json:
    return {"jsonrpc": "2.0", "method": method, "params": params}
