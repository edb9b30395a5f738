# SPDX-License-Identifier: GPL-3.0-or-later
"""The daemon in use: connect, start one locally, retry, leave, and report the state to Emacs."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import anyio

from qwen_companion.daemon import messages, models
from qwen_companion.daemon.address import DaemonAddress, find_address
from qwen_companion.daemon.client import DaemonClient
from qwen_companion.daemon.errors import (
    BusyError,
    DaemonError,
    ServerFailedError,
    UnauthorizedError,
    UnreachableError,
)
from qwen_companion.daemon.local_daemon import LocalDaemon, start_local
from qwen_companion.daemon.memberships import Memberships
from qwen_companion.daemon.messages import DaemonState
from qwen_companion.daemon.sanitize import line
from qwen_companion.daemon.stream import Backoff
from qwen_companion.tasks import Task, Tasks
from qwen_companion.threads import in_thread

SILENT_S = 5.0
"""Seconds without an answer to the first request before the user is informed."""

_OFF = DaemonState("off")


@dataclass(frozen=True)
class UsedDaemon:
    """A daemon in use, for a workspace whose path is `root` here and `workspace` on its host."""

    client: DaemonClient
    root: str
    workspace: str


class DaemonConnection:
    """The connection to Emacs's one daemon.  Call its methods on the event loop."""

    def __init__(
        self,
        environment: Mapping[str, str],
        memberships: Memberships,
        tasks: Tasks,
        lane: Callable[[], anyio.Lock],
        leave_sessions: Callable[[bool], Awaitable[None]],
        tell: Callable[[DaemonState], None],
        *,
        prepare: Callable[[], Mapping[str, str]],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        """Begin with no daemon.

        :param environment: may name the daemon and its token
        :param tasks: own the work in the background
        :param lane: return the lock that orders calls about the connection
        :param leave_sessions: leave all open sessions, with true without informing Emacs
        :param prepare: return variables for a daemon about to be started here; called in a thread
        :param sleep: wait before a retry
        """
        self._environment = environment
        self._memberships = memberships
        self._tasks = tasks
        self._lane = lane
        self._leave_sessions = leave_sessions
        self._tell = tell
        self._prepare = prepare
        self._sleep = sleep
        self._state = _OFF
        self._used: UsedDaemon | None = None
        self._local: LocalDaemon | None = None
        self._background: Task | None = None

    @property
    def used(self) -> UsedDaemon:
        """The daemon in use.

        :raises UnreachableError: when there is none
        """
        if self._used is None:
            raise UnreachableError(self._state.text or "No daemon is connected.", maybe_done=False)
        return self._used

    def _say(self, state: DaemonState) -> None:
        if state != self._state:
            self._state = state
            self._tell(state)

    async def connect(self, call: messages.Connect) -> None:
        """Use the daemon that `call` names.

        :raises DaemonError: when it cannot be used
        """
        # Clean up after a lost or refused connection; the user left nothing.
        await self.leave(lost=True)
        try:
            address = find_address(call.url, call.token, self._environment, call.sources)
        except DaemonError as error:
            self._say(DaemonState("refused", text=str(error)))
            raise
        await self._use(address, call.root)

    async def start(self, program: Sequence[str], root: str) -> None:
        """Start a daemon with `program`, and use it.

        :raises DaemonError: when it does not start or cannot be used
        """
        await self.leave()
        self._say(DaemonState("starting", workspace=root, local=True))
        try:
            environment = await in_thread(self._prepare)
            self._local = await start_local(program, root, environment)
        except DaemonError as error:
            self._say(DaemonState("refused", text=str(error), workspace=root, local=True))
            raise
        self._tasks.start(self._watch, self._local)
        try:
            await self._use(self._local.address, root)
        except DaemonError:
            if self._background is None:
                await self.leave()
            raise

    async def _watch(self, daemon: LocalDaemon) -> None:
        """Report when the daemon started here ends by itself."""
        last = await daemon.ended()
        async with self._lane():
            if self._local is daemon:
                await self.leave(lost=True)
                text = f"qwen serve has ended: {line(last)}" if last else "qwen serve has ended."
                self._say(replace(self._state, state="refused", text=text))

    async def _use(self, address: DaemonAddress, root: str) -> None:
        """Use the daemon at `address`; retry in the background while it is unreachable."""
        client = DaemonClient(address.url, address.token, self._memberships, self._progress)
        self._say(
            DaemonState("connecting", host=urlsplit(client.url).netloc, local=self._local is not None, workspace=root)
        )
        used = False
        silence = self._tasks.start(self._report_silence, client)
        try:
            await self._greet(client, root)
            used = True
        except (UnreachableError, BusyError, ServerFailedError) as error:
            self._say(replace(self._state, state="unreachable", text=str(error)))
            self._background = self._tasks.start(self._try_again, client, root)
            used = True
            raise
        except DaemonError as error:
            self._say(replace(self._state, state="refused", text=str(error)))
            raise
        finally:
            silence.cancel()
            if not used:
                with anyio.CancelScope(shield=True):
                    await client.aclose()

    async def _report_silence(self, client: DaemonClient) -> None:
        """Report a daemon that has not answered for `SILENT_S`."""
        await anyio.sleep(SILENT_S)
        text = (
            f"The daemon at {client.url} has said nothing for {SILENT_S:g} s and is waited for; "
            "M-x qwen-companion-daemon-stop gives it up."
        )
        self._say(replace(self._state, state="unreachable", text=text))

    async def _try_again(self, client: DaemonClient, root: str) -> None:
        backoff = Backoff()
        ordered = 0.0
        try:
            while self._used is None:
                await self._sleep(backoff.next(ordered))
                try:
                    await self._greet(client, root)
                except (UnreachableError, ServerFailedError) as error:
                    self._say(replace(self._state, state="unreachable", text=str(error)))
                except BusyError as error:
                    ordered = error.retry_after_s
        except DaemonError as error:
            self._say(replace(self._state, state="refused", text=str(error)))
        finally:
            if self._used is None:
                with anyio.CancelScope(shield=True):
                    await client.aclose()

    async def _greet(self, client: DaemonClient, root: str) -> None:
        found = await client.capabilities(root)
        workspace = _workspace(found, root)
        self._used = UsedDaemon(client, root, workspace)
        self._say(replace(self._state, state="connected", text=None, workspace=workspace))

    def _progress(self, text: str | None) -> None:
        """Report `text`, the thing waited for, or None for nothing."""
        if self._used is not None and self._state.state == "connected":
            self._say(replace(self._state, text=text))

    def reached(self, trouble: DaemonError | str | None) -> None:
        """Report that the daemon answers, or that it does not, because of `trouble`."""
        if self._used is None:
            return
        if isinstance(trouble, UnauthorizedError):
            # The token is read again only by the next connect.
            self._say(replace(self._state, state="refused", text=str(trouble)))
        elif self._state.state != "refused":
            state = "connected" if trouble is None else "unreachable"
            self._say(replace(self._state, state=state, text=None if trouble is None else str(trouble)))

    async def leave(self, *, lost: bool = False) -> None:
        """Disconnect without informing Emacs; leave the daemon's sessions unless it was `lost`."""
        background, self._background = self._background, None
        if background is not None:
            await background.stop()
        local, self._local = self._local, None
        used, self._used = self._used, None
        await self._leave_sessions(lost)
        if used is not None:
            await used.client.aclose()
        if local is not None:
            await local.stop()

    async def disconnect(self) -> None:
        """Disconnect, and report it."""
        await self.leave()
        self._say(_OFF)


def _workspace(found: models.Capabilities, root: str) -> str:
    """Return the daemon's name for `root`, one of its workspaces."""
    names = (os.path.normpath(root), os.path.realpath(root))
    known = [workspace.cwd for workspace in found.workspaces]
    return next((name for name in known if name in names), found.workspace_cwd or root)
