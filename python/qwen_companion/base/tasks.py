# SPDX-License-Identifier: GPL-3.0-or-later
"""Background tasks that outlive the call that starts them, but have an owner."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

_log = logging.getLogger(__name__)

T = TypeVar("T")

_logged: set[tuple[str, str, str]] = set()
"""The failures logged so far: a model may cause the same one repeatedly."""


async def contained(work: Callable[..., Awaitable[T]], *arguments: object) -> T | None:
    """Return `await work(*arguments)`, or None after an error, which is logged and ends nothing else."""
    try:
        return await work(*arguments)
    except Exception as error:  # noqa: BLE001 - one call that fails must not end the others
        log_failure(work, error)
    return None


def contained_call(work: Callable[..., T], *arguments: object) -> T | None:
    """Return `work(*arguments)`, or None after an error, as `contained` does."""
    try:
        return work(*arguments)
    except Exception as error:  # noqa: BLE001 - one call that fails must not end the others
        log_failure(work, error)
    return None


def log_failure(work: Callable[..., object], error: Exception) -> None:
    """Log that `work` failed with `error`, once for each place in the code."""
    # The text of the error may quote anything.
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(place.filename)}:{place.lineno}"
    failure = (getattr(work, "__qualname__", "a task"), type(error).__name__, where)
    if failure not in _logged:
        _logged.add(failure)
        _log.error("%s failed: %s (%s)", *failure)


class Task:
    """One task of `Tasks`."""

    def __init__(self) -> None:
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()

    def cancel(self) -> None:
        """Cancel the task; does nothing when it has ended."""
        self._scope.cancel()

    async def stop(self) -> None:
        """Cancel the task and wait until it has ended."""
        self._scope.cancel()
        await self._ended.wait()

    async def run(self, work: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Run the task; for `Tasks`."""
        try:
            with self._scope:
                if not self._scope.cancel_called:
                    await contained(work, *arguments)
        finally:
            self._ended.set()


class Tasks:
    """Tasks that run in `async with`, and end with it.  One that fails is logged and ends no other."""

    def __init__(self) -> None:
        self._group: TaskGroup | None = None
        self._early: list[Callable[[TaskGroup], None]] = []

    async def __aenter__(self) -> Tasks:
        """Start the tasks requested so far."""
        self._group = await anyio.create_task_group().__aenter__()
        while self._early:
            self._early.pop(0)(self._group)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel the tasks and wait for their end."""
        group = self._group
        if group is not None:
            group.cancel_scope.cancel()
            try:
                # Raised through the group, an error of the body would become one of several.
                await group.__aexit__(None, None, None)
            finally:
                self._group = None

    def start(self, work: Callable[..., Awaitable[object]], *arguments: object) -> Task:
        """Start the task `work(*arguments)` now, or before `async with`, then."""
        task = Task()

        def start(group: TaskGroup) -> None:
            group.start_soon(task.run, work, *arguments)

        if self._group is None:
            self._early.append(start)
        else:
            start(self._group)
        return task

    async def run(self) -> None:
        """Run the tasks until cancelled, which cancels them and waits for their end."""
        async with self:
            await anyio.sleep_forever()
