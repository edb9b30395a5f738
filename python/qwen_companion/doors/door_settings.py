# SPDX-License-Identifier: GPL-3.0-or-later
"""The hooks and the tools in our settings layer, and the secrets of their endpoints."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from qwen_companion.base.state import write_private
from qwen_companion.domain import ToolDefinition
from qwen_companion.doors.events import EDIT_TOOLS, QUESTION_TOOLS, TODO, PermissionRequest, PreToolUse, ask
from qwen_companion.doors.listeners import Subscription
from qwen_companion.doors.user_settings import JsonObject
from qwen_companion.ide.guard import Keys

HOOK_PATH, TOOL_PATH = "/hook", "/tools"
"""The paths of the hooks and the tools on the port of the MCP server."""

SERVER_NAME = "emacs"
"""The name of the tools' server in a CLI: the names of its tools begin with `mcp__emacs__`."""

CALL_TIMEOUT_MS = 15_000
"""Milliseconds a CLI waits for the answer of a tool: longer than Emacs may take, so that it always gets one."""

DISCOVERY_TIMEOUT_MS = 15_000
"""Milliseconds a CLI waits for the tool list, in the background.  Its default is 5 s."""

EDIT_QUERY = "edit"
"""The query of the hook before edits."""

ALL, OPEN, ALL_MODES = "all", "open", "all-modes"
"""The edits to review: all in mode `auto`, those of visited files in mode `auto`, or all in all modes."""

REVIEW_TIMEOUT_S = 60
"""Seconds that a CLI waits for the user's decision.  Qwen Code 0.24 ignores longer settings."""

_CURL_TIMEOUT_S = 55
"""Seconds that the command hook waits: fewer, so that the CLI still reads its answer."""

_TIMEOUT_S = 5
"""Seconds that a CLI waits for any other answer."""

_START_TIMEOUT_S = 2
"""Seconds that a CLI waits at its start, which delays its prompt."""

_MARGIN_S = 3
"""Seconds added to the time that a listener may need."""

_QUESTIONS = "|".join(QUESTION_TOOLS)
"""A regular expression for the tools with which a model asks the user."""

_EDITS = "|".join(EDIT_TOOLS)
"""A regular expression for the tools that edit files."""

_OTHER_TOOLS = f"^(?!({_EDITS}|read_file|list_directory|glob|grep_search)$)"
"""All tools except those that edit, which have their own hook, and those that only read.

A model calls the reading tools most, and each hook costs the CLI some 3 ms.  If a reading tool had to ask, a
`UserPromptSubmit` without a prompt, sent with the tool's result, shows that the question is over.
"""

_EVENTS: dict[str, tuple[str | None, int]] = {
    **dict.fromkeys(("SessionStart", "SessionEnd"), (None, _START_TIMEOUT_S)),
    **dict.fromkeys(("UserPromptSubmit", "Stop", "StopFailure", "Notification"), (None, _TIMEOUT_S)),
    **dict.fromkeys(("SubagentStart", "SubagentStop", "PostToolBatch"), (None, _TIMEOUT_S)),
    PreToolUse.name: (_OTHER_TOOLS, _TIMEOUT_S),
    "PostToolUse": (f"^({TODO}|{_EDITS}|{_QUESTIONS})$", _TIMEOUT_S),
    "PostToolUseFailure": (f"^({_EDITS})$", _TIMEOUT_S),
    PermissionRequest.name: (f"^({_EDITS}|{_QUESTIONS})$", REVIEW_TIMEOUT_S),
}
"""The hooks of reviews and states, each with its matcher and its timeout."""

NO_ANSWER = "Emacs does not answer, so it does not review this change."
"""The message in the terminal, or to the model, when the command hook gets no answer."""


@dataclass(frozen=True)
class CommandHook:
    """The command that a CLI runs before edits: `curl`, with the secret in the file `header`.

    A CLI treats the failure of an HTTP hook as consent; this command makes it ask.
    """

    curl: str
    header: str

    def install(self, keys: Keys) -> None:
        """Write the header file, if that is possible.  Blocks on disk I/O."""
        with suppress(OSError):
            write_private(self.header, header_line(keys).encode("ascii"))

    def remove(self) -> None:
        """Remove the header file.  Blocks on disk I/O."""
        with suppress(OSError):
            os.unlink(self.header)

    def command(self, port: int) -> str:
        """Return the command that calls the hook at `port`."""
        # The user's own settings of curl could add to its output.
        options = ("-q", "-fs", "--noproxy", "*", "--max-time", str(_CURL_TIMEOUT_S), "--data-binary", "@-")
        headers = ("-H", f"@{self.header}", "-H", "Content-Type: application/json", "-H", "Expect:")
        call = shlex.join((self.curl, *options, *headers, _edit_url(port)))
        # In mode default the user was just asked.  Search only before "tool_input": the model writes what follows.
        asked = """case ${event%%'"tool_input"'*} in *'"permission_mode":"default"'*)"""
        no_answer = f"{asked} none={{}} ;; *) none={shlex.quote(json.dumps(ask(NO_ANSWER)))} ;; esac"
        # A CLI that ends kills its hooks.  If a hook was killed, the CLI reads its standard error.
        first = 'printf %s "$none" >&2'
        return f'event=$(cat); {no_answer}; {first}; printf %s "$event" | {call} || printf %s "$none"'


def covers(scope: str | None, mode: str | None) -> bool:
    """Return whether edits of `scope` are reviewed in the approval `mode`, in which the CLI does not ask about them."""
    if scope == ALL_MODES:
        return mode not in (None, "default", "plan")
    return scope is not None and mode == "auto"


def _edit_url(port: int) -> str:
    return f"http://127.0.0.1:{port}{HOOK_PATH}?{EDIT_QUERY}"


def header_line(keys: Keys) -> str:
    """Return the content of the header file of `CommandHook`."""
    return f"Authorization: {_authorization(keys, HOOK_PATH)['Authorization']}\n"


def _authorization(keys: Keys, path: str) -> dict[str, str]:
    """Return the headers that admit a request to `path`."""
    return {"Authorization": f"Bearer {keys.secrets[path]}"}


def secrets_of(token: str) -> dict[str, str]:
    """Return the secrets for the hooks only and for the tools only, by their paths, derived from `token`.

    Neither `token`, which opens the IDE server, nor the other one can be derived from one of them.
    """
    return {
        path: hmac.new(token.encode("utf-8"), path.encode("ascii"), hashlib.sha256).hexdigest()
        for path in (HOOK_PATH, TOOL_PATH)
    }


def hook_settings(keys: Keys, command: CommandHook | None, subscriptions: Iterable[Subscription]) -> JsonObject:
    """Return the settings by which a CLI connects and calls hooks by `keys`.

    They include hooks for `subscriptions`.  Before edits the CLI runs `command`, or calls an HTTP hook if that is None.
    """
    hooks = dict(_EVENTS)
    for subscription in subscriptions:
        name, matcher = subscription.event, None if subscription.tools is None else f"^({subscription.tools})$"
        before, timeout = hooks.get(name, (matcher, _TIMEOUT_S))
        if name == PreToolUse.name:
            # Its two hooks together are called before all tools except those that only read.
            matcher = before
        elif matcher != before:
            matcher = f"{before}|{matcher}" if before and matcher else None
        hooks[name] = (matcher, max(timeout, math.ceil(subscription.hold_s) + _MARGIN_S))

    def entry(matcher: str | None, timeout: int) -> JsonObject:
        hook = {
            "type": "http",
            "url": f"http://127.0.0.1:{keys.port}{HOOK_PATH}",
            "headers": _authorization(keys, HOOK_PATH),
            "timeout": timeout,
        }
        return {**({} if matcher is None else {"matcher": matcher}), "hooks": [hook]}

    found = {name: [entry(*what)] for name, what in hooks.items()}
    edits = entry(f"^({_EDITS})$", REVIEW_TIMEOUT_S)
    edits["hooks"][0]["url"] = _edit_url(keys.port)
    if command is not None:
        # Without a timeout it is a minute; Qwen Code before 0.23 read it in milliseconds.
        edits["hooks"] = [{"type": "command", "command": command.command(keys.port)}]
    found[PreToolUse.name].append(edits)
    # A terminal of Emacs is meant to connect, and in a low window the CLI's question whether to connect is cut off.
    return {"ide": {"enabled": True}, "hooks": found}


def tool_settings(keys: Keys, definitions: Iterable[ToolDefinition]) -> JsonObject:
    """Return the settings by which a CLI finds the tools of `definitions` by `keys`; {} without tools."""
    offered = tuple(definitions)
    if not offered:
        return {}
    unasked = [f"mcp__{SERVER_NAME}__{tool.name}" for tool in offered if tool.unasked]
    server: dict[str, Any] = {
        "httpUrl": f"http://127.0.0.1:{keys.port}{TOOL_PATH}",
        "headers": _authorization(keys, TOOL_PATH),
        "timeout": CALL_TIMEOUT_MS,
        # A CLI that has stopped waiting has no tools until it is restarted.
        "discoveryTimeoutMs": DISCOVERY_TIMEOUT_MS,
    }
    if len(unasked) == len(offered):
        # Versions before 0.15 have no rules for tools; they can only trust whole servers.
        server["trust"] = True
    return {"mcpServers": {SERVER_NAME: server}, "permissions": {"allow": unasked}}
