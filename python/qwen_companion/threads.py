# SPDX-License-Identifier: GPL-3.0-or-later
"""Run blocking work off the event loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
from anyio import to_thread

P = ParamSpec("P")
T = TypeVar("T")

# By default, forty looks at a dead network disk would be the last ones.
_UNLIMITED = anyio.CapacityLimiter(math.inf)


async def in_thread(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Return `function(*arguments, **named)`, called in a thread.

    Cancelling this does not wait for the thread, whose result is dropped then.
    """
    return await to_thread.run_sync(partial(function, *arguments, **named), abandon_on_cancel=True, limiter=_UNLIMITED)
