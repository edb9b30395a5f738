# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path
from typing import cast

import anyio
import pytest

from qwen_companion.base.errors import PromptError
from qwen_companion.wire import messages
from qwen_companion.wire.bridge import Bridge
from qwen_companion.wire.request_queue import RequestQueue
from support import until

pytestmark = pytest.mark.anyio


class Emacs:
    """What the queue tells."""

    def __init__(self) -> None:
        self.told: list[messages.Notification] = []

    def notify(self, message: messages.Notification) -> None:
        self.told.append(message)


async def test_a_prompt_here_waits_for_none_that_a_place_does_not_take(tmp_path: Path) -> None:
    emacs, is_silent = Emacs(), anyio.Event()

    async def send_there(session: str, _text: str) -> None:
        if session == "silent":
            await is_silent.wait()
            raise PromptError("it may have been sent")

    queue = RequestQueue(cast("Bridge", emacs), str(tmp_path), send_there)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.run)
        file = tmp_path / "7.prompts"
        queue.handle(messages.Prompt("lost?", session="silent"))
        for number in range(20):
            queue.handle(messages.Prompt(str(number), file=str(file)))
        await until(lambda: file.exists() and len(file.read_text().splitlines()) == 20)
        assert [line.split('"')[-2] for line in file.read_text().splitlines()] == [str(each) for each in range(20)]
        is_silent.set()
        await until(lambda: bool(emacs.told))
        tasks.cancel_scope.cancel()
    queue.close()
    assert emacs.told == [messages.Notice("it may have been sent; the prompt is in the history")]
