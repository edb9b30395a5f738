# SPDX-License-Identifier: GPL-3.0-or-later
"""Carry out the `daemon-*` calls of Emacs, and send their results.

What stays on this side (spec A1, A8): the token, headers, whatever of the URL is more than host and port, the daemon's
ids and its raw answers.
"""

from __future__ import annotations

import base64
import logging
import mimetypes
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import anyio

from qwen_companion.daemon import messages, models
from qwen_companion.daemon.client import DaemonClient
from qwen_companion.daemon.conversation import Conversation
from qwen_companion.daemon.errors import (
    BusyError,
    DaemonError,
    GoneError,
    HostRefusedError,
    InvalidRequestError,
    NotFoundError,
    NotStartedError,
    ServerFailedError,
    SettingsError,
    UnauthorizedError,
    UnreachableError,
    UnsafeUrlError,
    UnsupportedError,
    WrongWorkspaceError,
)
from qwen_companion.daemon.ids import local_id
from qwen_companion.daemon.interrupted_turns import InterruptedTurns
from qwen_companion.daemon.local_daemon import LocalDaemon, start_local
from qwen_companion.daemon.memberships import Memberships
from qwen_companion.daemon.messages import DaemonSessions, DaemonState, ListedSession, Reply
from qwen_companion.daemon.outbox import Outbox
from qwen_companion.daemon.sanitize import line
from qwen_companion.daemon.settings import DaemonAddress, find_address
from qwen_companion.daemon.stream import Backoff
from qwen_companion.domain import ChatWork
from qwen_companion.emacs.messages import DaemonCall, Notification
from qwen_companion.emacs.spool import Spool
from qwen_companion.errors import CompanionError, MessageError, SpoolError
from qwen_companion.frozen import frozen
from qwen_companion.tasks import Task, Tasks
from qwen_companion.threads import in_thread

_log = logging.getLogger(__name__)

OPTIONAL_FEATURES = (
    "session_approval_mode_control",
    "session_close",
    "session_context",
    "session_list",
    "session_supported_commands",
)
"""Optional features; the user is told when the daemon lacks one."""

LARGEST_IMAGE_BYTES = 7 * 1024 * 1024
"""Largest image file: a request may have 10 MB, and Base64 makes it a third longer."""

LEAVE_S = 2.0
"""How long leaving the sessions may take, in seconds."""

SILENT_S = 5.0
"""How long a daemon may say nothing to the first request before the user is told, in seconds."""

_PROBLEMS: Mapping[type[Exception], str] = {
    BusyError: "busy",
    GoneError: "gone",
    HostRefusedError: "refused",
    InvalidRequestError: "invalid",
    MessageError: "invalid",
    NotFoundError: "gone",
    NotStartedError: "refused",
    ServerFailedError: "unknown",
    SettingsError: "refused",
    SpoolError: "invalid",
    UnauthorizedError: "refused",
    UnreachableError: "unreachable",
    UnsafeUrlError: "refused",
    UnsupportedError: "unsupported",
    WrongWorkspaceError: "refused",
}

_OFF = DaemonState("off")

_CONNECTION = "connection"
_CLIENTS_FILE = "daemon-clients"


@dataclass
class _Connection:
    """A daemon in use, for the workspace that is called `root` here and `workspace` there."""

    client: DaemonClient
    root: str
    workspace: str


@frozen
class _CallResult:
    """The result of a call."""

    session: str | None = None
    turn: str | None = None


class CallDispatcher:
    """Carries out calls while `run` is running.  All methods are for the event loop."""

    def __init__(
        self,
        send: Callable[[Notification], Awaitable[None]],
        spool: Spool,
        environment: Mapping[str, str],
        worked: Callable[[ChatWork], None] = lambda _work: None,
        *,
        prepare: Callable[[], Mapping[str, str]] = dict,
        pause: Callable[[float], Awaitable[None]] = anyio.sleep,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        """`send` gives a message to Emacs and waits for its answer.  `environment` may name the daemon and its token.

        `worked` gets the activity of the agents of open sessions.  `prepare`, called in a thread, returns variables
        for a daemon that is about to be started here.  `pause` waits while messages are gathered, `sleep` before
        something is tried again.
        """
        self._spool = spool
        self._worked = worked
        self._environment = environment
        self._prepare = prepare
        self._outbox = Outbox(send, pause)
        self._sleep = sleep
        self._state = _OFF
        self._connection: _Connection | None = None
        self._local: LocalDaemon | None = None
        self._conversations: dict[str, Conversation] = {}
        self._interrupted: dict[str, InterruptedTurns] = {}
        self._session_ids: dict[str, str] = {}
        self._background: Task | None = None
        self._connecting: set[anyio.CancelScope] = set()
        # Each is held by the tasks that wait for it and by nothing else, and goes with the last of them.
        self._lanes: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._memberships = Memberships(os.path.join(spool.directory, _CLIENTS_FILE))
        self._tasks = Tasks()
        self._tasks.start(self._outbox.run)

    async def run(self, leave_s: float) -> None:
        """Carry out calls until cancelled.  Then tell Emacs nothing more, and leave the daemon.

        That, and ending a daemon that was started here, may take `leave_s` seconds.
        """
        try:
            await self._tasks.run()
        finally:
            with anyio.move_on_after(leave_s, shield=True):
                await self._leave()

    def take(self, call: DaemonCall) -> None:
        """Carry out `call`.  Calls about one session are carried out in order, and so are those about none."""
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
            self._tasks.start(self._carry_out, call.method, request, wanted, self._lane(wanted.session))
            return
        if isinstance(wanted, messages.Disconnect):
            for scope in self._connecting:
                scope.cancel()
        self._tasks.start(self._carry_out_once, call.method, request, wanted)

    def _lane(self, name: str) -> anyio.Lock:
        """Return the lock that orders the calls about the session `name`, or about the connection."""
        return self._lanes.setdefault(name, anyio.Lock())

    async def _carry_out_once(self, method: str, request: str | None, call: messages.Call) -> None:
        """Carry out `call`, about no open session, unless the daemon is left before."""
        with anyio.CancelScope() as scope:
            if not isinstance(call, messages.Disconnect):
                self._connecting.add(scope)
            try:
                await self._carry_out(method, request, call, self._lane(_CONNECTION))
            finally:
                self._connecting.discard(scope)
        if scope.cancelled_caught:
            self._answer(method, request, UnreachableError("Disconnected from the daemon.", maybe_done=True))

    async def _carry_out(self, method: str, request: str | None, call: messages.Call, lane: anyio.Lock) -> None:
        async with lane:
            try:
                outcome = await self._do(call)
            except Exception as error:  # noqa: BLE001 - each request gets one reply
                self._answer(method, request, error)
            else:
                if request is not None:
                    self._outbox.tell(Reply(request, session=outcome.session, turn=outcome.turn))

    def _answer(self, method: str, request: str | None, error: Exception) -> None:
        """Tell that `method` has failed; of an `error` that is not ours only its kind, since its text may be secret."""
        if isinstance(error, UnauthorizedError):
            self._reached(error)
        foreign = not isinstance(error, CompanionError)
        text = f"The companion failed: {type(error).__name__}" if foreign else str(error)
        if request is None or foreign:
            _log.warning("%s: %s", method, text)
        if request is not None:
            self._outbox.tell(Reply(request, text, _problem(error)))

    async def _do(self, call: messages.Call) -> _CallResult:
        match call:
            case messages.Connect():
                await self._connect(call)
            case messages.Start():
                await self._start_daemon(call.program, call.root)
            case messages.Disconnect():
                await self._leave()
                self._say(_OFF)
            case messages.ListSessions():
                await self._list(self._connected())
            case messages.Open():
                return await self._open_new(self._connected(), call.root, shared=call.scope == messages.SHARED)
            case messages.Load():
                return await self._load(self._connected(), call)
            case messages.Fork():
                return await self._fork(self._connected(), call.session)
            case messages.Close():
                await self._close(call.session, end=call.end)
            case _:
                return await _do_in_session(self._conversation(call.session), call)
        return _CallResult()

    # --- The daemon

    def _say(self, state: DaemonState) -> None:
        if state != self._state:
            self._state = state
            self._outbox.tell(state)

    def _connected(self) -> _Connection:
        if self._connection is None:
            raise UnreachableError(self._state.text or "No daemon is connected.", maybe_done=False)
        return self._connection

    async def _connect(self, call: messages.Connect) -> None:
        # What is left of an earlier connection was lost or refused; the user has left nothing.
        await self._leave(lost=True)
        try:
            address = find_address(call.url, call.token, self._environment, call.sources)
        except DaemonError as error:
            self._say(DaemonState("refused", text=str(error)))
            raise
        await self._use(address, call.root)

    async def _start_daemon(self, program: Sequence[str], root: str) -> None:
        await self._leave()
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
                await self._leave()
            raise

    async def _watch(self, daemon: LocalDaemon) -> None:
        """Tell when the daemon that was started here has ended by itself."""
        last = await daemon.ended()
        async with self._lane(_CONNECTION):
            if self._local is daemon:
                await self._leave(lost=True)
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
            while self._connection is None:
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
            if self._connection is None:
                with anyio.CancelScope(shield=True):
                    await client.aclose()

    async def _greet(self, client: DaemonClient, root: str) -> None:
        found = await client.capabilities(root)
        workspace = _workspace(found, root)
        self._connection = _Connection(client, root, workspace)
        self._say(
            replace(
                self._state,
                state="connected",
                text=None,
                workspace=workspace,
                version=None if found.qwen_code_version is None else line(found.qwen_code_version),
                missing=tuple(name for name in OPTIONAL_FEATURES if name not in found.features),
            )
        )

    def _progress(self, text: str | None) -> None:
        """Report the thing that is waited for, None for nothing."""
        if self._connection is not None and self._state.state == "connected":
            self._say(replace(self._state, text=text))

    def _reached(self, trouble: DaemonError | str | None) -> None:
        """Tell that the daemon answers, or that it does not, because of `trouble`."""
        if self._connection is None:
            return
        if isinstance(trouble, UnauthorizedError):
            # Only the next connect reads the token again.
            self._say(replace(self._state, state="refused", text=str(trouble)))
        elif self._state.state != "refused":
            state = "connected" if trouble is None else "unreachable"
            self._say(replace(self._state, state=state, text=None if trouble is None else str(trouble)))

    async def _leave(self, *, lost: bool = False) -> None:
        """Leave the daemon without a word to Emacs about that; the sessions of one that was `lost` are not left."""
        background, self._background = self._background, None
        if background is not None:
            await background.stop()
        conversations, self._conversations = list(self._conversations.values()), {}
        local, self._local = self._local, None
        connection, self._connection = self._connection, None
        self._session_ids.clear()
        # The daemon need not hear of it: whether it does must not hold up anything.
        with anyio.move_on_after(LEAVE_S):
            async with anyio.create_task_group() as leaving:
                for conversation in conversations:
                    leaving.start_soon(_leave_session, conversation, lost)
        if connection is not None:
            await connection.client.aclose()
        if local is not None:
            await local.stop()

    # --- Sessions

    async def _list(self, connection: _Connection) -> None:
        found = await connection.client.list_sessions(connection.workspace)
        for item in found:
            name = local_id("session", item.session_id)
            self._session_ids[name] = item.session_id
            if name in self._conversations:
                self._conversations[name].named(item.display_name)
        self._outbox.tell(
            DaemonSessions(
                tuple(
                    ListedSession(
                        id=local_id("session", item.session_id),
                        title=line(item.display_name or ""),
                        updated=_milliseconds(item.updated_at or item.created_at),
                        clients=item.client_count,
                        open=local_id("session", item.session_id) in self._conversations,
                        busy=item.has_active_prompt,
                    )
                    for item in found
                    if not item.is_archived
                )
            )
        )

    async def _open_new(self, connection: _Connection, root: str | None, *, shared: bool) -> _CallResult:
        scope = "single" if shared else "thread"
        reply = await connection.client.create_or_attach(root or connection.workspace, scope)
        return await self._open(connection, reply.session_id, root)

    async def _load(self, connection: _Connection, call: messages.Load) -> _CallResult:
        session_id = self._session_ids.get(call.session)
        if session_id is None:
            # Known to an Emacs whose backend was another process then.
            await self._list(connection)
            session_id = self._session_ids.get(call.session)
        if session_id is None:
            raise GoneError("The daemon no longer has that session.")
        self._interrupted.setdefault(call.session, InterruptedTurns(call.shown))
        return await self._open(connection, session_id)

    async def _fork(self, connection: _Connection, session: str) -> _CallResult:
        reply = await connection.client.branch(self._conversation(session).session.session_id)
        name = local_id("session", reply.session_id)
        self._session_ids[name] = reply.session_id
        return _CallResult(session=name)

    async def _open(self, connection: _Connection, session_id: str, root: str | None = None) -> _CallResult:
        name = local_id("session", session_id)
        self._session_ids[name] = session_id
        conversation = self._conversations.get(name)
        if conversation is None:
            conversation = Conversation(
                connection.client,
                session_id,
                self._outbox,
                self._tasks,
                root or connection.root,
                worked=self._worked,
                interrupted=self._interrupted.setdefault(name, InterruptedTurns()),
                reached=self._reached,
                sleep=self._sleep,
            )
            self._conversations[name] = conversation
        await conversation.open()
        return _CallResult(session=name)

    async def _close(self, session: str, *, end: bool) -> None:
        if end and session not in self._conversations and session in self._session_ids:
            await self._connected().client.close(self._session_ids[session])
            return
        conversation = self._conversation(session)
        del self._conversations[session]
        self._interrupted.pop(session, None)
        await conversation.close(end=end)

    def _conversation(self, session: str) -> Conversation:
        conversation = self._conversations.get(session)
        if conversation is None:
            raise GoneError("That session is not open.")
        return conversation


async def _leave_session(conversation: Conversation, lost: bool) -> None:
    """Leave the session of `conversation`; do not say so to Emacs if the daemon was `lost`."""
    with suppress(DaemonError):
        await (conversation.detach() if lost else conversation.close(end=False))


def _problem(error: Exception) -> str:
    if isinstance(error, UnreachableError) and error.maybe_done:
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
            await conversation.answer(call.permission, call.option, call.revision, call.answers, call.text)
        case messages.RemovePrompt():
            await conversation.remove(call.turn)
        case _:
            await _ask(conversation, call)
    return _CallResult(conversation.id)


async def _ask(conversation: Conversation, call: messages.SessionCall) -> None:
    match call:
        case messages.Fetch():
            await conversation.fetch(call.tool, call.part, call.index)
        case messages.AskCommands():
            await conversation.commands()
        case messages.AskUsage():
            await conversation.usage()
        case _:
            raise TypeError(f"{type(call).__name__} is not done inside of a session")


def _part(part: messages.Part) -> models.PromptBlock:
    """`part` as it is sent.  Reads the file of an image: not for the event loop."""
    if isinstance(part, messages.TextPart):
        return models.TextBlock(part.text)
    name = os.path.basename(part.path)
    if isinstance(part, messages.LinkPart):
        if not os.path.isabs(part.path):
            raise MessageError("a link leads to no absolute name of a file")
        return models.LinkBlock(models.FILE_SCHEME + part.path, name)
    kind, _ = mimetypes.guess_type(name)
    if kind is None or not kind.startswith("image/"):
        raise MessageError(f"{name} does not have the name of an image")
    try:
        with open(part.path, "rb") as file:
            data = file.read(LARGEST_IMAGE_BYTES + 1)
    except OSError as error:
        raise MessageError(f"the image {name} cannot be read: {error.strerror}") from None
    if len(data) > LARGEST_IMAGE_BYTES:
        raise MessageError(f"the image {name} is larger than {LARGEST_IMAGE_BYTES // 1024 // 1024} MB")
    return models.ImageBlock(base64.b64encode(data).decode("ascii"), kind)


def _workspace(found: models.Capabilities, root: str) -> str:
    """Return the daemon's name for `root`, which is one of its workspaces."""
    names = (os.path.normpath(root), os.path.realpath(root))
    known = [workspace.cwd for workspace in found.workspaces]
    return next((name for name in known if name in names), found.workspace_cwd or root)


def _milliseconds(time: str | None) -> int | None:
    """`time`, in ISO 8601, in ms since the epoch; None when it is nothing of the kind."""
    with suppress(ValueError):
        # Python 3.10 does not know Z.
        return round(datetime.fromisoformat((time or "").replace("Z", "+00:00")).timestamp() * 1000)
    return None
