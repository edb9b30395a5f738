# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies of files at a place are kept current, whatever the relay says of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from qwen_companion.emacs.messages import Notification, PlaceFile
from qwen_companion.remote.link import Link
from qwen_companion.remote.mirrors import Copies

pytestmark = pytest.mark.anyio


class Relay:
    """Says `times` of a file, one after the other."""

    def __init__(self, times: list[object]) -> None:
        self._times = times

    async def request(self, name: str, **_values: Any) -> dict[str, Any]:
        return {"files": [{"time": self._times.pop(0)}, {"time": 1}]} if name == "look" else {}

    async def read(self, _path: str, _limit: int) -> bytes:
        return f"{len(self._times)} left\n".encode()


async def test_what_a_relay_says_of_the_time_may_be_anything(tmp_path: Path) -> None:
    relay = Relay(["1", [], None, math.nan, math.inf, -math.inf, 10**400, 1e300, 5.5])
    told: list[Notification] = []
    seen = anyio.Event()

    def tell(message: Notification) -> None:
        told.append(message)
        seen.set()

    copies = Copies("/ssh:far:", str(tmp_path), lambda: cast("Link", relay), tell)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(copies.run)
        copies.set_visited(["/home/far/a.txt"])
        while not seen.is_set():
            copies.note_changes(["/home/far/a.txt"])
            await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    (message,) = told
    assert isinstance(message, PlaceFile)
    assert message.time == 5
