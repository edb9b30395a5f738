# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import asyncio
import threading

import pytest

from qwen_companion.threads import in_thread
from support import TIMEOUT_S

pytestmark = pytest.mark.anyio


async def test_the_result_comes_back_from_another_thread() -> None:
    here = threading.get_ident()
    assert await in_thread(threading.get_ident) != here


async def test_an_error_is_raised_where_the_result_is_awaited() -> None:
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 1, 0)


async def test_a_result_nobody_waits_for_any_more_is_dropped() -> None:
    go, started, done = threading.Event(), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(_: None) -> None:
        loop.call_soon_threadsafe(started.set)
        go.wait(TIMEOUT_S)
        loop.call_soon_threadsafe(done.set)

    waiting = asyncio.ensure_future(in_thread(work, None))
    # Cancelled before, it begins no thread.
    await asyncio.wait_for(started.wait(), TIMEOUT_S)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go.set()
    await asyncio.wait_for(done.wait(), TIMEOUT_S)
