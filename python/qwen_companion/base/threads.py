# SPDX-License-Identifier: GPL-3.0-or-later
"""Run blocking work off the event loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, TypeVar

import anyio
from anyio import CancelScope, from_thread, to_thread

P = ParamSpec("P")
T = TypeVar("T")

# The default limit is forty: that many threads blocked on a dead network disk would stop all others.
_UNLIMITED = anyio.CapacityLimiter(math.inf)


async def in_thread(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Return `function(*arguments, **named)`, called in a thread.

    Cancelling this does not wait for the thread, whose result is then dropped.
    """
    return await to_thread.run_sync(partial(function, *arguments, **named), abandon_on_cancel=True, limiter=_UNLIMITED)


def on_event_loop(function: Callable[P, Coroutine[Any, Any, T]], *arguments: P.args, **named: P.kwargs) -> T:
    """Return `await function(*arguments, **named)`, called from a thread, on its event loop.

    It completes even for a thread whose result is dropped: cancellation is not passed on.
    """

    async def shielded() -> T:
        # When nobody waits for the thread, anyio would wait for a cancellation that never comes.
        with CancelScope(shield=True):
            return await function(*arguments, **named)
        raise AssertionError("nothing cancels the scope")

    return from_thread.run(shielded)
