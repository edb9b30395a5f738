# SPDX-License-Identifier: GPL-3.0-or-later
"""The daemon in use: connecting, starting one here, trying again, leaving, and the state that Emacs is told."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
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
from qwen_companion.frozen import frozen
from qwen_companion.tasks import Task, Tasks
from qwen_companion.threads import in_thread

SILENT_S = 5.0
"""How long a daemon may say nothing to the first request before the user is told, in seconds."""

_OFF = DaemonState("off")


@frozen
class UsedDaemon:
    """A daemon in use, for the workspace that is called `root` here and `workspace` there."""

    client: DaemonClient
    root: str
    workspace: str


class DaemonConnection:
    """The connection to the one daemon that Emacs uses.  All methods are for the event loop."""

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
        :param lane: return the lock that orders the calls about the connection
        :param leave_sessions: leave all open sessions, with true without telling Emacs
        :param prepare: return variables for a daemon that is about to be started here; called in a thread
        :param sleep: wait before something is tried again
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

        :raises DaemonError: when that cannot be
        """
        # What is left of an earlier connection was lost or refused; the user has left nothing.
        await self.leave(lost=True)
        try:
            address = find_address(call.url, call.token, self._environment, call.sources)
        except DaemonError as error:
            self._say(DaemonState("refused", text=str(error)))
            raise
        await self._use(address, call.root)

    async def start(self, program: Sequence[str], root: str) -> None:
        """Start a daemon with `program`, and use it.

        :raises DaemonError: when that cannot be
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
        """Tell when the daemon that was started here has ended by itself."""
        last = await daemon.ended()
        async with self._lane():
            if self._local is daemon:
                await self.leave(lost=True)
                text = f"qwen serve has ended: {line(last)}" if last else "qwen serve has ended."
                self._say(replace(self._state, state="refused", text=text))

    async def _use(self, address: DaemonAddress, root: str) -> None:
        """Use the daemon at `address`; go on trying in the background while nobody answers."""
        client = DaemonClient(address.url, address.token, self._memberships, self._progress)
        self._say(
            DaemonState("connecting", host=urlsplit(client.url).netloc, local=self._local is not None, workspace=root)
        )
        used = False
        silence = self._tasks.start(self._tell_silence, client)
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

    async def _tell_silence(self, client: DaemonClient) -> None:
        """Say that the daemon has not answered, when it is waited for too long."""
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
        """Report the thing that is waited for, None for nothing."""
        if self._used is not None and self._state.state == "connected":
            self._say(replace(self._state, text=text))

    def reached(self, trouble: DaemonError | str | None) -> None:
        """Tell that the daemon answers, or that it does not, because of `trouble`."""
        if self._used is None:
            return
        if isinstance(trouble, UnauthorizedError):
            # Only the next connect reads the token again.
            self._say(replace(self._state, state="refused", text=str(trouble)))
        elif self._state.state != "refused":
            state = "connected" if trouble is None else "unreachable"
            self._say(replace(self._state, state=state, text=None if trouble is None else str(trouble)))

    async def leave(self, *, lost: bool = False) -> None:
        """Leave the daemon without a word to Emacs about that; the sessions of one that was `lost` are not left."""
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
        """Leave the daemon, and say so."""
        await self.leave()
        self._say(_OFF)


def _workspace(found: models.Capabilities, root: str) -> str:
    """Return the daemon's name for `root`, which is one of its workspaces."""
    names = (os.path.normpath(root), os.path.realpath(root))
    known = [workspace.cwd for workspace in found.workspaces]
    return next((name for name in known if name in names), found.workspace_cwd or root)
