# SPDX-License-Identifier: GPL-3.0-or-later
"""A call of a hook on its way from the server to what answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio

from qwen_companion.sockets import Connection

PERMISSION_REQUEST = "PermissionRequest"
"""The event that is answered with a decision."""


@dataclass(eq=False)
class HookCall:
    """One call of a hook: what it reports, and the answer once there is one.

    `shortened`: long texts of the report are missing.  `gone` is set when nobody waits for the answer.  `after` is
    called once the answer has been sent.
    """

    data: bytes
    shortened: bool
    connection: Connection
    gone: anyio.Event = field(default_factory=anyio.Event)
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: dict[str, Any] = field(default_factory=dict[str, Any])
    after: Callable[[], None] | None = None

    def reply(self, answer: dict[str, Any], after: Callable[[], None] | None = None) -> None:
        """Give the answer."""
        self.answer, self.after = answer, after
        self.answered.set()
