# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import asyncio

import pytest

from qwen_companion.mailbox import Mailbox
from support import TIMEOUT_S

pytestmark = pytest.mark.anyio


async def test_the_newest_value_is_taken_and_only_once() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put(1)
    mailbox.put(2)
    assert await mailbox.take() == 2
    waiting = asyncio.create_task(mailbox.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    mailbox.put(3)
    assert await asyncio.wait_for(waiting, TIMEOUT_S) == 3
