# SPDX-License-Identifier: GPL-3.0-or-later
"""The tools in our settings layer: their address, and which of them a CLI may call unasked."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Any

from qwen_companion.domain import ToolDefinition

TOOL_PATH = "/tools"
"""The path of the tools' endpoint, on the port of the MCP server."""

SERVER_NAME = "emacs"
"""The server's name in a CLI: the names of its tools begin with `mcp__emacs__`."""

CALL_TIMEOUT_MS = 15_000
"""Milliseconds a CLI waits for an answer: longer than Emacs may take, so that it always gets one."""

DISCOVERY_TIMEOUT_MS = 15_000
"""Milliseconds a CLI waits for the tool list, in the background.  Its default is 5 s."""


def tool_secret(token: str) -> str:
    """Return the secret for the tools only, derived from `token`.

    Neither `token` nor the secret of the hooks can be derived from it.
    """
    return hmac.new(token.encode("utf-8"), b"tools", hashlib.sha256).hexdigest()


def tool_settings(port: int, secret: str, definitions: Iterable[ToolDefinition]) -> dict[str, Any]:
    """Return the settings by which a CLI finds the tools of `definitions` at `port` with `secret`; {} without tools."""
    offered = tuple(definitions)
    if not offered:
        return {}
    unasked = [f"mcp__{SERVER_NAME}__{tool.name}" for tool in offered if tool.unasked]
    server: dict[str, Any] = {
        "httpUrl": f"http://127.0.0.1:{port}{TOOL_PATH}",
        "headers": {"Authorization": f"Bearer {secret}"},
        "timeout": CALL_TIMEOUT_MS,
        # A CLI that has stopped waiting has no tools until it is restarted.
        "discoveryTimeoutMs": DISCOVERY_TIMEOUT_MS,
    }
    if len(unasked) == len(offered):
        # Versions before 0.15 have no rules for tools; they can only trust whole servers.
        server["trust"] = True
    return {"mcpServers": {SERVER_NAME: server}, "permissions": {"allow": unasked}}
