# SPDX-License-Identifier: GPL-3.0-or-later
"""The hooks to which the journal subscribes, and how long a CLI waits for it."""

from __future__ import annotations

from qwen_companion.domain import READ_TOOL
from qwen_companion.doors.listeners import Subscription

EDIT_TOOLS = {"edit": "file_path", "write_file": "file_path", "notebook_edit": "notebook_path"}
"""The tools that write one file, with the key of its name in their input."""

SHELL_TOOL = "run_shell_command"

ENTER_TOOL, EXIT_TOOL = "enter_worktree", "exit_worktree"
"""The tools by which an agent enters a worktree and leaves it."""

HOLD_S = 1.0
"""Seconds that a tool waits at most until the files that it may change are recorded."""

PROMPT_HOLD_S = 1.0
"""Seconds that a prompt waits at most for the text about changed files."""

_TOOLS = "|".join((*EDIT_TOOLS, SHELL_TOOL))

SUBSCRIPTIONS = (
    Subscription("UserPromptSubmit", hold_s=PROMPT_HOLD_S),
    Subscription("PreToolUse", _TOOLS, hold_s=HOLD_S),
    # Held only for a text: the next `PreToolUse` of the CLI is handled after these, and waits for them.
    Subscription("PostToolUse", "|".join(EDIT_TOOLS), hold_s=HOLD_S),
    Subscription("PostToolUse", "|".join((SHELL_TOOL, ENTER_TOOL, EXIT_TOOL, READ_TOOL))),
    Subscription("PostToolUseFailure", _TOOLS),
    Subscription("Stop"),
    Subscription("StopFailure"),
    Subscription("Notification"),
    Subscription("SessionEnd"),
)
