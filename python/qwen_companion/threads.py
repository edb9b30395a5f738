# SPDX-License-Identifier: GPL-3.0-or-later
"""Run blocking work off the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
A = TypeVar("A")


async def in_thread(function: Callable[[A], T], argument: A) -> T:
    """`function(argument)` in a thread of its own.

    Unlike `asyncio.to_thread` nothing waits for the thread when the process ends, be it in an import that takes a
    second or in a look at a file on a dead network disk.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # pyright: ignore[reportArgumentType]

    def work() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = function(argument)
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            failure = error
        with suppress(RuntimeError):  # The loop has closed: the process is ending.
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, daemon=True).start()
    return await future
