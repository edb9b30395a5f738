# SPDX-License-Identifier: GPL-3.0-or-later
"""A place for the newest value of something; older ones nobody took are dropped."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """One-place mailbox between the event loop and one slower worker on the same loop."""

    def __init__(self) -> None:
        self._values: list[T] = []
        self._filled = asyncio.Event()

    def put(self, value: T) -> None:
        """Make VALUE the newest one."""
        self._values[:] = [value]
        self._filled.set()

    async def take(self) -> T:
        """The newest value not taken yet; waits for one."""
        await self._filled.wait()
        self._filled.clear()
        return self._values.pop()
