# SPDX-License-Identifier: GPL-3.0-or-later
"""The discovery files and the settings layer: written for the roots of Emacs, and kept current."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import anyio

from qwen_companion.base.processes import ended, start_of
from qwen_companion.base.threads import in_thread
from qwen_companion.discovery.editor_pids import ancestors
from qwen_companion.discovery.files import Discovery, Publication

RENEW_S = 300.0
"""Seconds between checks of the discovery files and the settings layer."""

ANCESTORS_S = 5.0
"""Shortest time between two checks of the processes above Emacs, in seconds."""

WATCHED_ANCESTORS_S = 60.0
"""Longest time between two checks, in seconds: the system does not report that one of them executes a program."""


class Installed(Protocol):
    """The result of installing a layer."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment for terminals."""
        ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings for the user."""
        ...


class Layers(Protocol):
    """The settings layers that CLIs read; the methods block on disk I/O."""

    def install(self) -> Installed:
        """Write the layer of terminals."""
        ...

    def is_current(self) -> bool:
        """Return whether the layer need not be written again."""
        ...

    def remove(self) -> None:
        """Remove all layers."""
        ...


class Audience(Protocol):
    """Emacs as the publisher sees it."""

    def published(self, roots: Sequence[str], done: Publication) -> None:
        """Report that the files for `roots` are on disk."""
        ...

    def discovery_files(self, files: Sequence[str]) -> None:
        """Report the names of all present discovery files."""
        ...

    def warn(self, text: str) -> None:
        """Show the user the message `text`."""
        ...


class Publisher:
    """Writes the files by which CLIs find this backend, and sends Emacs their list."""

    def __init__(self, emacs_pid: int, discovery: Discovery, layers: Layers, audience: Audience) -> None:
        """Keep `discovery` and `layers` current; the processes above Emacs count."""
        self._emacs_pid = emacs_pid
        self._discovery = discovery
        self._layers = layers
        self._audience = audience
        self._roots: Sequence[str] | None = None
        self._changed = anyio.Event()
        self._files: tuple[str, ...] = ()
        self._files_lock = anyio.Lock()
        """Held from a change of the discovery files until it is sent to Emacs, to keep the order."""
        # The first check always follows: a process may have ended since the files were written.
        self._ancestors: tuple[int, ...] | None = None

    def set_roots(self, roots: Sequence[str]) -> None:
        """Publish for `roots` soon."""
        self._roots = roots
        self._changed.set()

    def publish_again(self) -> None:
        """Publish soon, if there are roots: the content of the layer has changed."""
        if self._roots is not None:
            self._changed.set()

    async def run(self) -> None:
        """Publish after each change, and keep the files current, until cancelled."""
        async with anyio.create_task_group() as jobs:
            jobs.start_soon(self._publish)
            jobs.start_soon(self._renew_files, partial(anyio.sleep, RENEW_S), self._discovery.renew)
            jobs.start_soon(self._renew_files, self._wait_for_ancestors, self._discovery.follow_ancestors)
            jobs.start_soon(self._renew_layer)

    async def remove(self) -> None:
        """Remove the layer and the discovery files."""
        await in_thread(self._layers.remove)
        await in_thread(self._discovery.remove)

    async def _publish(self) -> None:
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            # Set before the event: of several calls in a moment only the newest counts.
            roots = self._roots
            if roots is None:
                continue
            async with self._files_lock:
                done, files = await in_thread(self._write, roots)
                self._send_files(files)
            self._audience.published(roots, done)

    def _write(self, roots: Sequence[str]) -> tuple[Publication, tuple[str, ...]]:
        done, layer = self._discovery.publish(roots), self._layers.install()
        environment, warnings = {**done.environment, **layer.environment}, (*done.warnings, *layer.warnings)
        return replace(done, environment=environment, warnings=warnings), self._discovery.paths()

    async def _renew_layer(self) -> None:
        while True:
            await anyio.sleep(RENEW_S)
            if not await in_thread(self._layers.is_current):
                self.publish_again()

    async def _renew_files(self, wait: Callable[[], Awaitable[None]], task: Callable[[], tuple[str, ...]]) -> None:
        while True:
            await wait()
            async with self._files_lock:
                warnings = await in_thread(task)
                self._send_files(await in_thread(self._discovery.paths))
            for warning in warnings:
                self._audience.warn(warning)

    async def _wait_for_ancestors(self) -> None:
        """Return when a process above Emacs has ended, or when a check is due."""
        # A process that still lives may count as ended.
        await anyio.sleep(ANCESTORS_S)
        above = await in_thread(ancestors, self._emacs_pid)
        if above != self._ancestors:
            # A process has ended that was not awaited yet.
            self._ancestors = above
            return
        with anyio.move_on_after(WATCHED_ANCESTORS_S):
            async with anyio.create_task_group() as waits:

                async def wait(pid: int) -> None:
                    await ended(pid, start_of(pid) or "", ANCESTORS_S)
                    waits.cancel_scope.cancel()

                for pid in above:
                    waits.start_soon(wait, pid)
                await anyio.sleep_forever()

    def _send_files(self, files: tuple[str, ...]) -> None:
        if files != self._files:
            self._files = files
            self._audience.discovery_files(files)
