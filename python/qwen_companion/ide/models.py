# SPDX-License-Identifier: GPL-3.0-or-later
"""Every name and shape of the IDE companion interface that goes over MCP, once (spec C3, F1-F5)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qwen_companion.frozen import frozen

CONTEXT_UPDATE = "ide/contextUpdate"
DIFF_ACCEPTED = "ide/diffAccepted"
DIFF_REJECTED = "ide/diffRejected"

OPEN_DIFF = "openDiff"
CLOSE_DIFF = "closeDiff"

ANONYMOUS_CLIENT = "streamable-http-client"
"""The name that all CLIs seen so far give; it tells the user nothing."""

Json = dict[str, Any]


@frozen
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


@frozen
class Cursor:
    """Both count from 1; `character` in UTF-16 code units."""

    line: int
    character: int


@frozen
class File:
    """An open file (spec C3): `timestamp` in ms since the epoch; the active one has `cursor` and `selected_text`."""

    path: str
    timestamp: int
    is_active: bool = False
    cursor: Cursor | None = None
    selected_text: str | None = None

    def to_wire(self) -> Json:
        """Return the JSON object without fields that are None."""
        wire: Json = {"path": self.path, "timestamp": self.timestamp}
        if self.is_active:
            wire["isActive"] = True
        if self.cursor is not None:
            wire["cursor"] = {"line": self.cursor.line, "character": self.cursor.character}
        if self.selected_text is not None:
            wire["selectedText"] = self.selected_text
        return wire


@frozen
class WorkspaceState:
    """The open files, newest first.

    `is_trusted` must stay the same for the life of a connection: at a change of it the CLI asks for a restart.  None
    says nothing of it.
    """

    open_files: tuple[File, ...] = ()
    is_trusted: bool | None = None

    def to_wire(self) -> Json:
        """Return the JSON object."""
        wire: Json = {"openFiles": [file.to_wire() for file in self.open_files]}
        if self.is_trusted is not None:
            wire["isTrusted"] = self.is_trusted
        return wire


@frozen
class IdeContext:
    """The open files and the place of the user (spec C3)."""

    workspace_state: WorkspaceState

    def to_wire(self) -> Json:
        """Return the params of `CONTEXT_UPDATE`."""
        return {"workspaceState": self.workspace_state.to_wire()}


def context_update(context: IdeContext) -> bytes:
    """Return the notification that tells `context`."""
    return _notification(CONTEXT_UPDATE, context.to_wire())


def diff_accepted(path: str, content: str) -> bytes:
    """Return the notification that `path` was accepted with `content`, the text with the user's edits (spec F4)."""
    return _notification(DIFF_ACCEPTED, {"filePath": path, "content": content})


def diff_rejected(path: str) -> bytes:
    """Return the notification that the proposal for `path` was rejected (spec F5)."""
    return _notification(DIFF_REJECTED, {"filePath": path})


def close_result(content: str | None) -> str:
    """Return the text block `closeDiff` answers with; CLIs read it as JSON."""
    return json.dumps({"content": content}, ensure_ascii=False)


def _notification(method: str, params: Mapping[str, Any]) -> bytes:
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
