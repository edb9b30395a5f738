# SPDX-License-Identifier: GPL-3.0-or-later
"""Prompts that wait for the tools, and those that do not; the hooks are scripted."""

from __future__ import annotations

import anyio
import pytest

from qwen_companion.domain import Peer, ToolDefinition
from qwen_companion.doors.events import Event, SessionStart, UserPromptSubmit
from qwen_companion.doors.listeners import Report
from qwen_companion.emacs.messages import ToolCall
from qwen_companion.ide.access import Access
from qwen_companion.tools import first_prompt
from qwen_companion.tools.calls import Tools
from qwen_companion.tools.first_prompt import FirstPrompt

pytestmark = pytest.mark.anyio

CLI = Peer(1, "a", "/", "qwen", ())
OTHER = Peer(2, "a", "/", "qwen", ())
START = SessionStart.model_validate({"session_id": "s"})
PROMPT = UserPromptSubmit.model_validate({"session_id": "s", "prompt": "hello"})


async def _asked(_call: ToolCall) -> None:
    raise AssertionError


class Site:
    """The prompts of CLIs that know the tools or not."""

    def __init__(self) -> None:
        self.tools = Tools(_asked, _no_access, lambda _: None)
        self.tools.offer((ToolDefinition("look", "Look."),))
        self.first_prompt = FirstPrompt(self.tools)

    async def waits(self, event: Event, peer: Peer = CLI) -> bool:
        """Return whether `event` is still held when others have run."""
        with anyio.move_on_after(0) as scope:
            await self.first_prompt.hear(Report(event, peer, "Qwen Code", None, 0))
        return self.first_prompt.holds(event) and scope.cancelled_caught


def _no_access(_peer: Peer | None) -> Access | None:
    return None


async def test_only_a_cli_that_begins_and_has_listed_none_waits() -> None:
    site = Site()
    # It began before this process: it knows the tools.
    assert not await site.waits(PROMPT)
    assert not await site.waits(START)
    assert await site.waits(PROMPT)
    assert not await site.waits(PROMPT, OTHER)
    site.first_prompt.listed(CLI)
    assert not await site.waits(PROMPT)
    # It may list them before it says that it begins.
    site.first_prompt.listed(OTHER)
    assert not await site.waits(START, OTHER)
    assert not await site.waits(PROMPT, OTHER)
    site.first_prompt.ended(OTHER)
    assert not await site.waits(START, OTHER)
    assert await site.waits(PROMPT, OTHER)


async def test_where_there_are_no_tools_nothing_waits() -> None:
    site = Site()
    site.tools.offer(())
    assert not await site.waits(START)
    assert not await site.waits(PROMPT)


async def test_it_waits_once_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_prompt, "WAIT_S", 0.01)
    site = Site()
    assert not await site.waits(START)
    await site.first_prompt.hear(Report(PROMPT, CLI, "Qwen Code", None, 0))
    assert not await site.waits(PROMPT)
