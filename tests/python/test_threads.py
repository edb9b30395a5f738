# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import asyncio
import threading

import anyio
import pytest
from anyio.lowlevel import checkpoint_if_cancelled

from qwen_companion.base.threads import in_thread, on_event_loop
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


async def test_a_thread_that_nobody_waits_for_any_more_is_answered() -> None:
    go, started, answered = threading.Event(), anyio.Event(), anyio.Event()
    loop = asyncio.get_running_loop()

    async def answer() -> None:
        await checkpoint_if_cancelled()
        answered.set()

    def work() -> None:
        loop.call_soon_threadsafe(started.set)
        go.wait(TIMEOUT_S)
        on_event_loop(answer)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(in_thread, work)
        await started.wait()
        tasks.cancel_scope.cancel()
    go.set()
    with anyio.fail_after(TIMEOUT_S):
        await answered.wait()
