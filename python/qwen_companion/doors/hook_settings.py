# SPDX-License-Identifier: GPL-3.0-or-later
"""The hooks in our settings layer, and the rules by which a CLI asks."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Iterable

from qwen_companion.doors.calls import PERMISSION_REQUEST
from qwen_companion.doors.layer import JsonObject
from qwen_companion.doors.listeners import Subscription

PATH = "/hook"
"""Where hooks are answered, on the port of the MCP server."""

REVIEW_TIMEOUT_S = 60
"""How long a CLI waits for a decision: Qwen Code 0.24 gives up each hook then, whatever its settings say."""

_TIMEOUT_S = 5
"""How long it waits for any other answer.  Nobody thinks about those."""

_START_TIMEOUT_S = 2
"""The same when it starts, where its prompt comes that much later."""

_MARGIN_S = 3
"""How much longer it waits than a listener may hold it, so that it is answered."""

QUESTION_TOOLS = "exit_plan_mode|ask_user_question"
"""A regular expression for the tools by which a model asks the user."""

_EDIT_TOOLS = f"^(edit|write_file|notebook_edit|{QUESTION_TOOLS})$"

_ASK_FOR_EDITS = "Edit(/**/[^&]*)"
"""All edits in the project, by tool and by shell.  Those outside are asked for anyway.

No form of a rule covers the tools alone: a CLI matches what a command writes like a call of `edit` or `write_file`
with the same path.  It takes the `&1` of `2>&1` for a file, too.
"""

_ALL_BUT_READING = "^(?!(read_file|list_directory|glob|grep_search)$)"
"""All tools but those that only read: a model calls these most, and each hook costs the CLI some 3 ms.

They seldom ask.  That one was allowed shows in the event that comes with its result: `UserPromptSubmit` without a
prompt.
"""

QUESTION_ANSWER_S = 2.0
"""How long the result of a plan waits for the text that the user has edited it to."""

QUESTION_SUBSCRIPTIONS = (
    Subscription("PostToolUse", QUESTION_TOOLS, QUESTION_ANSWER_S),
    *(Subscription(name) for name in ("UserPromptSubmit", "Stop", "StopFailure", "Notification", "SessionEnd")),
)
"""What tells how the terminal has answered plans and questions."""

_EVENTS = (
    ("SessionStart", None, _START_TIMEOUT_S),
    ("SessionEnd", None, _START_TIMEOUT_S),
    ("UserPromptSubmit", None, _TIMEOUT_S),
    ("Stop", None, _TIMEOUT_S),
    ("StopFailure", None, _TIMEOUT_S),
    ("Notification", None, _TIMEOUT_S),
    ("SubagentStart", None, _TIMEOUT_S),
    ("SubagentStop", None, _TIMEOUT_S),
    ("PreToolUse", _ALL_BUT_READING, _TIMEOUT_S),
    ("PostToolUse", "^(todo_write)$", _TIMEOUT_S),
    (PERMISSION_REQUEST, _EDIT_TOOLS, REVIEW_TIMEOUT_S),
)


def door_secret(token: str) -> str:
    """Return the secret for the doors of the layer and nothing else, derived from `token`.

    `token`, which opens the IDE server, cannot be found from it.
    """
    return hmac.new(token.encode("utf-8"), b"hooks and tools", hashlib.sha256).hexdigest()


def hook_settings(port: int, secret: str, ask: bool, subscriptions: Iterable[Subscription] = ()) -> JsonObject:
    """Return the settings by which a CLI calls the hooks at `port` with `secret`, those of `subscriptions` too.

    With `ask` it asks for each edit.
    """
    hooks = {name: (matcher, timeout) for name, matcher, timeout in _EVENTS}
    for subscription in subscriptions:
        name, matcher = subscription.event, None if subscription.tools is None else f"^({subscription.tools})$"
        before, timeout = hooks.get(name, (matcher, _TIMEOUT_S))
        if matcher != before:
            matcher = f"{before}|{matcher}" if before and matcher else None
        hooks[name] = (matcher, max(timeout, math.ceil(subscription.hold_s) + _MARGIN_S))
    settings: JsonObject = {"hooks": {}}
    for name, (matcher, timeout) in hooks.items():
        hook = {
            "type": "http",
            "url": f"http://127.0.0.1:{port}{PATH}",
            "headers": {"Authorization": f"Bearer {secret}"},
            "timeout": timeout,
        }
        settings["hooks"][name] = [{**({} if matcher is None else {"matcher": matcher}), "hooks": [hook]}]
    if ask:
        settings["permissions"] = {"ask": [_ASK_FOR_EDITS]}
    return settings
