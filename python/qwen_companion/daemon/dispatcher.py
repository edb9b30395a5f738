# SPDX-License-Identifier: GPL-3.0-or-later
"""Carry out Emacs's `daemon-*` calls, and send their results.

Never sent to Emacs (spec A1, A8): the token, headers, any part of the URL but host and port, the daemon's ids and raw
answers.
"""

from __future__ import annotations

import base64
import logging
import mimetypes
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from weakref import WeakValueDictionary

import anyio

from qwen_companion.base.errors import CompanionError, MessageError, SpoolError
from qwen_companion.base.tasks import Tasks
from qwen_companion.base.threads import in_thread
from qwen_companion.daemon import errors, messages, models
from qwen_companion.daemon.connection import Daemon
from qwen_companion.daemon.conversation import Conversation, Host, Shared
from qwen_companion.daemon.memberships import Memberships
from qwen_companion.daemon.messages import Reply
from qwen_companion.daemon.outbox import Outbox
from qwen_companion.wire.messages import DaemonCall
from qwen_companion.wire.spool import Spool

_log = logging.getLogger(__name__)

LARGEST_IMAGE_BYTES = 7 * 1024 * 1024
"""Largest image file in bytes: a request may have 10 MB, and Base64 adds a third."""

_PROBLEMS: Mapping[type[Exception], str] = {
    errors.BusyError: "busy",
    errors.GoneError: "gone",
    errors.HostRefusedError: "refused",
    errors.InvalidRequestError: "invalid",
    MessageError: "invalid",
    errors.NotFoundError: "gone",
    errors.NotStartedError: "refused",
    errors.ServerFailedError: "unknown",
    errors.SettingsError: "refused",
    SpoolError: "invalid",
    errors.UnauthorizedError: "refused",
    errors.UnreachableError: "unreachable",
    errors.UnsafeUrlError: "refused",
    errors.UnsupportedError: "unsupported",
    errors.WrongWorkspaceError: "refused",
}

_CLIENTS_FILE = "daemon-clients"


@dataclass(frozen=True)
class _CallResult:
    """The result of a call."""

    session: str | None = None
    turn: str | None = None


class CallDispatcher:
    """Carries out calls while `run` is running.  Call its methods on the event loop."""

    def __init__(
        self,
        host: Host,
        spool: Spool,
        environ: Mapping[str, str],
        *,
        pause: Callable[[float], Awaitable[None]] = anyio.sleep,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        """`environ` may name the daemon and its token, and locates plans.

        `pause` waits while messages are gathered, `sleep` before a retry.
        """
        self._spool = spool
        self._outbox = Outbox(host.send, pause)
        self._tasks = Tasks()
        self._connecting: set[anyio.CancelScope] = set()
        # Each lock lives as long as a task waits for it.
        self._lanes: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        memberships = Memberships(os.path.join(spool.directory, _CLIENTS_FILE))
        self._daemon = Daemon(memberships, Shared(self._outbox, self._tasks, environ, host, sleep))
        self._tasks.start(self._outbox.run)

    async def run(self, leave_s: float) -> None:
        """Carry out calls until cancelled.  Then send Emacs nothing more, and leave the daemon.

        Leaving it, and ending a daemon started here, may take `leave_s` seconds.
        """
        try:
            await self._tasks.run()
        finally:
            with anyio.move_on_after(leave_s, shield=True):
                await self._daemon.leave()

    def handle(self, call: DaemonCall) -> None:
        """Carry out `call`.  Calls about one session run in order, and so do calls about no session."""
        try:
            request = messages.request_of(call)
        except MessageError as error:
            _log.warning("%s: %s", call.method, error)
            return
        try:
            wanted = messages.parse_call(call, self._spool)
        except Exception as error:  # noqa: BLE001 - each request gets one reply
            self._answer(call.method, request, error)
            return
        if isinstance(wanted, messages.SessionCall):
            lane = self._lanes.setdefault(wanted.session, anyio.Lock())
            self._tasks.start(self._carry_out, call.method, request, wanted, lane)
            return
        if isinstance(wanted, messages.Disconnect):
            for scope in self._connecting:
                scope.cancel()
        self._tasks.start(self._carry_out_once, call.method, request, wanted)

    async def _carry_out_once(self, method: str, request: str | None, call: messages.Call) -> None:
        """Carry out `call`, about no open session; cancel it if the daemon is left meanwhile."""
        with anyio.CancelScope() as scope:
            if not isinstance(call, messages.Disconnect):
                self._connecting.add(scope)
            try:
                await self._carry_out(method, request, call, self._daemon.lock)
            finally:
                self._connecting.discard(scope)
        if scope.cancelled_caught:
            self._answer(method, request, errors.UnreachableError("Disconnected from the daemon.", maybe_done=True))

    async def _carry_out(self, method: str, request: str | None, call: messages.Call, lane: anyio.Lock) -> None:
        async with lane:
            try:
                outcome = await self._do(call)
            except Exception as error:  # noqa: BLE001 - each request gets one reply
                self._answer(method, request, error)
            else:
                if request is not None:
                    self._outbox.queue(Reply(request, session=outcome.session, turn=outcome.turn))

    def _answer(self, method: str, request: str | None, error: Exception) -> None:
        """Report the failure of `method`; of a foreign `error` only the type, as its text may contain secrets."""
        if isinstance(error, errors.UnauthorizedError):
            self._daemon.reached(error)
        foreign = not isinstance(error, CompanionError)
        text = f"The companion failed: {type(error).__name__}" if foreign else str(error)
        if request is None or foreign:
            _log.warning("%s: %s", method, text)
        if request is not None:
            self._outbox.queue(Reply(request, text, _problem(error)))

    async def _do(self, call: messages.Call) -> _CallResult:
        match call:
            case messages.Connect():
                await self._daemon.connect(call)
            case messages.Start():
                await self._daemon.start(call.program, call.root)
            case messages.Disconnect():
                await self._daemon.disconnect()
            case messages.ListSessions():
                await self._daemon.list()
            case messages.Open():
                shared = call.scope == messages.SHARED
                return _CallResult(await self._daemon.open_new(call.root, shared=shared))
            case messages.Load():
                return _CallResult(await self._daemon.load(call))
            case messages.Fork():
                return _CallResult(await self._daemon.fork(call.session))
            case messages.Rewind():
                return _CallResult(await self._daemon.rewind(call.session, call.turn))
            case messages.Close():
                await self._daemon.close(call.session, end=call.end)
            case _:
                return await _do_in_session(self._daemon.conversation(call.session), call)
        return _CallResult()


def _problem(error: Exception) -> str:
    if isinstance(error, errors.UnreachableError) and error.maybe_done:
        return "unsure"
    return _PROBLEMS.get(type(error), "unknown")


async def _do_in_session(conversation: Conversation, call: messages.SessionCall) -> _CallResult:
    match call:
        case messages.Prompt():
            turn = await conversation.prompt([await in_thread(_part, part) for part in call.parts])
            return _CallResult(conversation.id, turn)
        case messages.Cancel():
            await conversation.cancel()
        case messages.SetModel():
            await conversation.set_model(call.model)
        case messages.SetMode():
            await conversation.set_mode(call.mode)
        case messages.Answer():
            await conversation.answer(call)
        case messages.RemovePrompt():
            await conversation.remove(call.turn)
        case messages.Fetch():
            await conversation.fetch(call.tool, call.part, call.index)
        case messages.AskCommands():
            await conversation.commands()
        case messages.AskUsage():
            await conversation.usage()
        case _:
            raise TypeError(f"{type(call).__name__} is not done inside of a session")
    return _CallResult(conversation.id)


def _part(part: messages.Part) -> models.PromptBlock:
    """Return `part` in the daemon's form.  Blocks on reading an image file; never call it on the event loop.

    :raises MessageError: for a file that cannot be sent
    """
    if isinstance(part, messages.TextPart):
        return models.TextBlock(part.text)
    name = os.path.basename(part.path)
    if isinstance(part, messages.LinkPart):
        if not os.path.isabs(part.path):
            raise MessageError("a link has no absolute file name")
        return models.LinkBlock(models.FILE_SCHEME + part.path, name)
    kind, _ = mimetypes.guess_type(name)
    if kind is None or not kind.startswith("image/"):
        raise MessageError(f"{name} is not named like an image")
    try:
        with open(part.path, "rb") as file:
            data = file.read(LARGEST_IMAGE_BYTES + 1)
    except OSError as error:
        raise MessageError(f"the image {name} cannot be read: {error.strerror}") from None
    if len(data) > LARGEST_IMAGE_BYTES:
        raise MessageError(f"the image {name} is larger than {LARGEST_IMAGE_BYTES // 1024 // 1024} MB")
    return models.ImageBlock(base64.b64encode(data).decode("ascii"), kind)
