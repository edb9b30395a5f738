# SPDX-License-Identifier: GPL-3.0-or-later
"""Composition root: makes the parts and connects them.  What they do is theirs."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from qwen_companion.discovery.editor_pids import ancestors
from qwen_companion.discovery.files import Discovery
from qwen_companion.domain import SessionState, Settings, Snapshot
from qwen_companion.emacs.bridge import Bridge
from qwen_companion.emacs.liveness import process_end, watch_input
from qwen_companion.emacs.messages import (
    Compare,
    Compared,
    ContextSent,
    DaemonCall,
    Delivered,
    DiffClose,
    DiffOpen,
    DiffOrphan,
    ExclusionList,
    FileList,
    Hello,
    Incoming,
    Merge,
    Merged,
    Notice,
    Published,
    ReviewOutcome,
    Roots,
    Serving,
    SessionList,
    Watch,
)
from qwen_companion.emacs.spool import Spool
from qwen_companion.errors import EmacsRefusedError, EmacsUnavailableError, MessageError
from qwen_companion.ide.context_distributor import ContextDistributor
from qwen_companion.ide.peers import ends_lines, find_caller, keeps_edits
from qwen_companion.ide.proposals import Decision, Proposal, Proposals
from qwen_companion.ide.sessions import Sessions
from qwen_companion.ide.tools import DiffTools
from qwen_companion.mailbox import Mailbox
from qwen_companion.processes import ended, start_of
from qwen_companion.threads import in_thread

if TYPE_CHECKING:
    from qwen_companion.daemon.dispatcher import CallDispatcher
    from qwen_companion.ide.server import McpServer

_log = logging.getLogger(__name__)

RENEW_S = 300.0
"""How often the discovery files are looked after, in seconds."""

ANCESTORS_S = 5.0
"""How often the processes above Emacs are looked at most, in seconds."""

WATCHED_ANCESTORS_S = 60.0
"""How often they are looked at least, in seconds: nobody tells when one of them executes another program."""

FEW_SESSIONS = 10
SESSIONS_S = 0.05
"""Of more than a few sessions, changes are gathered for so many seconds; the first is told at once."""

STOP_S = 0.8
"""How long stopping may take."""

CLOSE_S = 60.0
"""How long a CLI that closes a review waits for a busy Emacs, in seconds; by itself it would wait for ten minutes."""


class _Editor:
    """Emacs as the tools see it."""

    def __init__(self, bridge: Bridge, sessions: Sessions) -> None:
        self._bridge = bridge
        self._sessions = sessions

    async def open_review(self, proposal: Proposal, client: str, text: str) -> str | None:
        message = DiffOpen(
            proposal.id,
            proposal.session,
            client,
            proposal.path,
            proposal.digest,
            text,
            ends_lines(self._sessions.get(proposal.session)),
        )
        return await self._bridge.call(message, timeout=None)

    async def close_review(self, proposal: Proposal) -> str | None:
        message = DiffClose(proposal.id, keeps_edits(self._sessions.get(proposal.session)))
        return await self._bridge.call(message, CLOSE_S)

    def abandon(self, proposal: Proposal) -> None:
        self._bridge.tell(DiffOrphan(proposal.id))

    def settled(self, identifier: str) -> None:
        self._bridge.tell(Delivered(identifier))


class Companion:
    """The backend of one Emacs, from its hello to its end."""

    def __init__(self, hello: Hello, token: str, mcp_listener: socket.socket, epc_listener: socket.socket) -> None:
        """Both sockets listen already.  Must be made on the event loop.  SpoolError."""
        self._hello = hello
        self._token = token
        self._listener = mcp_listener
        self._port: int = mcp_listener.getsockname()[1]
        self._spool = Spool(hello.spool)
        self._bridge = Bridge(epc_listener, hello.secret, self._spool)
        self._discovery = Discovery(hello.emacs_pid, self._port, token, os.environ)
        self._distributor = ContextDistributor(
            os.environ,
            deliver=self._deliver_context,
            report_context=lambda session, roots, sent, text: self._bridge.tell(
                ContextSent(session, roots, sent, text)
            ),
            report_exclusions=lambda exclusions: self._bridge.tell(ExclusionList(exclusions)),
            warn=lambda text: self._bridge.tell(Notice("warning", text)),
        )
        self._sessions = Sessions(
            hello.sessions,
            changed=self._sessions_changed,
            gone=self._session_gone,
            went_out=self._went_out,
            told=self._distributor.sent,
            find_caller=lambda connection: find_caller(connection, hello.emacs_pid),
        )
        self._tools = DiffTools(
            Proposals(hello.proposals),
            _Editor(self._bridge, self._sessions),
            self._sessions,
            roots_of=self._distributor.review_roots,
        )
        self._distributor.set_sessions(self._sessions.states())
        # A proposal of a session nobody remembers can end in no other way.
        for session in {item.session for item in hello.proposals} - {item.id for item in hello.sessions}:
            self._tools.session_gone(session)
        self._untold: tuple[SessionState, ...] | None = None
        self._gathering: asyncio.TimerHandle | None = None
        self._roots: Mailbox[Roots] = Mailbox()
        self._files: tuple[str, ...] = ()
        self._requests: asyncio.Queue[Compare | Merge] = asyncio.Queue()
        self._server: McpServer | None = None
        self._text_limit: int | None = None
        self._daemon: asyncio.Task[None] | None = None
        self._daemon_calls: asyncio.Queue[DaemonCall] = asyncio.Queue()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._emacs_is_gone = False
        self._for_good = False

    async def run(self, input_descriptor: int) -> None:
        """Serve until told to stop, or until Emacs is gone: INPUT_DESCRIPTOR ends.

        Leaves no discovery file behind, and no spool when nobody is left to read it.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._end)
        watch_input(input_descriptor, self._emacs_gone)
        self._bridge.start(self._take, self._end)
        jobs = [
            asyncio.create_task(job)
            for job in (
                self._publish(),
                self._look_after_files(lambda: asyncio.sleep(RENEW_S), self._discovery.renew),
                self._look_after_files(self._wait_for_ancestors, self._discovery.follow_ancestors),
                self._distributor.run(),
                self._answer_requests(),
                self._watch_emacs(),
                self._serve(),
            )
        ]
        try:
            await asyncio.wait([self._ended, *jobs], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._leave(jobs)

    async def _leave(self, jobs: list[asyncio.Task[None]]) -> None:
        crashed = [job for job in jobs if job.done()]
        await in_thread(lambda _: self._discovery.remove(), None)
        if self._daemon is not None:
            self._daemon.cancel()
            await asyncio.wait([self._daemon], timeout=STOP_S)
        if self._server is not None:
            await self._server.stop(for_good=self._for_good)
            await asyncio.wait(jobs[-1:], timeout=STOP_S)
        self._bridge.close()
        if self._emacs_is_gone:
            self._spool.remove()
        for job in crashed:
            job.result()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _emacs_gone(self) -> None:
        self._emacs_is_gone = True
        self._end_for_good()

    def _end_for_good(self) -> None:
        """End, and no other process takes this one's place."""
        self._for_good = True
        self._end()

    def _take(self, message: Incoming) -> None:
        """A call by Emacs, in order."""
        if isinstance(message, Roots):
            self._roots.put(message)
            self._distributor.set_roots(message.roots)
        elif isinstance(message, Settings):
            self._sessions.offer_reviews(message.reviews)
            self._text_limit = message.size_limit
            if self._server is not None:
                self._server.limit_texts(self._text_limit)
            self._distributor.set_settings(message)
        elif isinstance(message, Snapshot):
            self._distributor.set_snapshot(message)
        elif isinstance(message, Watch):
            self._distributor.watch(message.on)
        elif isinstance(message, ReviewOutcome):
            self._tools.decide(message.id, Decision(message.content))
        elif isinstance(message, Compare | Merge):
            self._requests.put_nowait(message)
        elif isinstance(message, DaemonCall):
            self._take_daemon_call(message)
        else:
            self._end_for_good()

    def _take_daemon_call(self, call: DaemonCall) -> None:
        if self._daemon is None:
            self._daemon = asyncio.create_task(self._serve_daemon())
        self._daemon_calls.put_nowait(call)

    async def _serve_daemon(self) -> None:
        """Carry out what is about the daemon, until cancelled.  What that needs is imported now: most never use it."""
        try:
            dispatcher_type = await in_thread(_import_dispatcher, None)
        except ImportError as error:
            await self._refuse_daemon_calls(
                f"The client of qwen serve cannot be loaded ({error.name}): M-x qwen-companion-install-backend, "
                "and then turn qwen-companion-mode off and on."
            )
        dispatcher = dispatcher_type(self._bridge.call, self._spool, os.environ)
        try:
            while True:
                dispatcher.take(await self._daemon_calls.get())
        finally:
            await dispatcher.stop()

    async def _refuse_daemon_calls(self, text: str) -> NoReturn:
        """Answer each call about the daemon with TEXT, until cancelled."""
        # These need nothing that could be missing.
        from qwen_companion.daemon.messages import DaemonState, Reply, request_of

        while True:
            call = await self._daemon_calls.get()
            # Emacs forgets the state when it asks for another daemon.
            self._bridge.tell(DaemonState("refused", text=text))
            with suppress(MessageError):
                if (request := request_of(call)) is not None:
                    self._bridge.tell(Reply(request, text, "refused"))

    def _sessions_changed(self, states: tuple[SessionState, ...]) -> None:
        self._distributor.set_sessions(states)
        # All sessions are told each time, and a CLI that connects changes four times in a moment.
        self._untold = states
        if self._gathering is None or len(states) <= FEW_SESSIONS:
            self._tell_sessions()

    def _tell_sessions(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        if self._untold is not None:
            self._bridge.tell(SessionList(self._untold))
            self._untold = None
            self._gathering = asyncio.get_running_loop().call_later(SESSIONS_S, self._tell_sessions)

    # The sessions and those they work with know each other, so some have to be told of the others afterwards.

    def _deliver_context(self, session: str, context: bytes) -> None:
        self._sessions.set_context(session, context)

    def _session_gone(self, session: str) -> None:
        self._tools.session_gone(session)

    def _went_out(self, key: str) -> None:
        self._tools.went_out(key)

    async def _publish(self) -> None:
        while True:
            roots = await self._roots.take()
            done, files = await in_thread(
                lambda r: (self._discovery.publish(r.roots, r.imitate_vscode), self._discovery.paths()), roots
            )
            self._tell_files(files)
            self._bridge.tell(
                Published(
                    roots=roots.roots,
                    reachable=done.reachable,
                    port=self._port,
                    token=self._token,
                    environment=done.environment,
                    warnings=done.warnings,
                )
            )

    async def _wait_for_ancestors(self) -> None:
        """Return when a process above Emacs has ended, or when it is time to look."""
        # One may count as ended that is still above it.
        await asyncio.sleep(ANCESTORS_S)
        above = await in_thread(ancestors, self._hello.emacs_pid)
        waits = [asyncio.create_task(ended(pid, start_of(pid) or "", ANCESTORS_S)) for pid in above]
        waits.append(asyncio.create_task(asyncio.sleep(WATCHED_ANCESTORS_S)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _look_after_files(self, wait: Callable[[], Awaitable[None]], task: Callable[[], tuple[str, ...]]) -> None:
        while True:
            await wait()
            warnings, files = await in_thread(lambda _: (task(), self._discovery.paths()), None)
            for warning in warnings:
                self._bridge.tell(Notice("warning", warning))
            self._tell_files(files)

    def _tell_files(self, files: tuple[str, ...]) -> None:
        if files != self._files:
            self._files = files
            self._bridge.tell(FileList(files))

    async def _answer_requests(self) -> None:
        """Compare and merge texts, one request after the other."""
        while True:
            request = await self._requests.get()
            try:
                await self._bridge.call(await in_thread(_answer, request))
            except EmacsRefusedError:
                # Perhaps there is no room for a long answer on the disk.
                self._bridge.tell(request.failed())
            except EmacsUnavailableError:
                pass

    async def _watch_emacs(self) -> None:
        await process_end(self._hello.emacs_pid)
        self._emacs_gone()

    async def _serve(self) -> None:
        server_type = await in_thread(_import_server, None)
        server = self._server = server_type(self._listener, self._token, self._sessions, self._tools)
        server.limit_texts(self._text_limit)
        await server.serve(lambda: self._bridge.tell(Serving()))


def _answer(request: Compare | Merge) -> Compared | Merged:
    # What it takes is imported by the first request: many an Emacs never makes one.
    try:
        from qwen_companion.emacs.text_requests import answer
    except ImportError:
        _log.exception("texts can be neither compared nor merged")
        return request.failed()
    return answer(request)


def _import_server(_: None) -> type[McpServer]:
    from qwen_companion.ide.server import McpServer

    return McpServer


def _import_dispatcher(_: None) -> type[CallDispatcher]:
    from qwen_companion.daemon.dispatcher import CallDispatcher

    return CallDispatcher
