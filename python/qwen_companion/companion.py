# SPDX-License-Identifier: GPL-3.0-or-later
"""Composition root: make the parts of the backend and connect them."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio
from anyio import to_thread

from qwen_companion.discovery.editor_pids import ancestors
from qwen_companion.discovery.files import Discovery, Publication
from qwen_companion.domain import SessionState, Settings, Snapshot
from qwen_companion.doors.doors import Doors
from qwen_companion.doors.hook_settings import PATH as HOOK_PATH
from qwen_companion.doors.hook_settings import door_secret
from qwen_companion.doors.layer import Installed
from qwen_companion.doors.prompt_files import append_prompt
from qwen_companion.doors.recorded_sessions import recorded_sessions
from qwen_companion.emacs.bridge import Bridge
from qwen_companion.emacs.journal_front import JournalFront
from qwen_companion.emacs.liveness import process_end, watch_input
from qwen_companion.emacs.messages import (
    Compare,
    Compared,
    ContextSent,
    DaemonCall,
    Delivered,
    EditBegins,
    ExclusionList,
    FileList,
    FileVisited,
    Hello,
    HookAnswers,
    Incoming,
    JournalCall,
    ListRecorded,
    Merge,
    Merged,
    Notice,
    Prompt,
    ProposalClose,
    ProposalOpen,
    ProposalOrphan,
    Published,
    RecordedSessions,
    ReviewOutcome,
    Roots,
    Serving,
    SessionChanges,
    Stop,
    ToolAnswer,
    ToolCall,
    ToolCalled,
    ToolsOffered,
    Watch,
)
from qwen_companion.emacs.spool import Spool
from qwen_companion.errors import EmacsRefusedError, EmacsUnavailableError, MessageError, PromptError
from qwen_companion.ide.context_distributor import ContextDistributor
from qwen_companion.ide.peers import ends_lines, find_caller, keeps_edits
from qwen_companion.ide.proposals import HOOK_PREFIX, Decision, Proposal, Proposals
from qwen_companion.ide.sessions import Sessions
from qwen_companion.ide.tools import DiffTools
from qwen_companion.processes import ended, start_of
from qwen_companion.tools.calls import Called, EmacsAnswer, Tools
from qwen_companion.tools.diagnostics import EDIT_S, Diagnostics
from qwen_companion.tools.server import ToolServer
from qwen_companion.tools.settings import PATH as TOOL_PATH
from qwen_companion.tools.settings import tool_secret, tool_settings

if TYPE_CHECKING:
    from qwen_companion.daemon.dispatcher import CallDispatcher
    from qwen_companion.ide.server import Door, McpServer
    from qwen_companion.wire_log import WireLog

_log = logging.getLogger(__name__)

RENEW_S = 300.0
"""How often the discovery files and the settings layer are looked after, in seconds."""

ANCESTORS_S = 5.0
"""Shortest time between two checks of the processes above Emacs, in seconds."""

WATCHED_ANCESTORS_S = 60.0
"""Longest time between two checks, in seconds: the system does not report that one of them executes a program."""

FEW_SESSIONS = 10
SESSIONS_S = 0.05
"""Of more than a few sessions, changes are gathered for so many seconds; the first is told at once."""

STOP_S = 0.8
"""How long the servers may take to stop, in seconds."""

REMOVE_S = 5.0
"""How long removing the discovery files may take, in seconds; Emacs removes the rest."""

VISITED_S = 1.0
"""How long Emacs may take to say whether a file is open."""

CLOSE_S = 60.0
"""How long a CLI that closes a review waits for a busy Emacs, in seconds; by itself it would wait for ten minutes."""


class _Editor:
    """Emacs as the tools see it."""

    def __init__(self, bridge: Bridge, sessions: Sessions) -> None:
        self._bridge = bridge
        self._sessions = sessions

    async def open_review(self, proposal: Proposal, client: str, text: str) -> str | None:
        message = ProposalOpen(
            proposal.id,
            proposal.session,
            client,
            proposal.path,
            proposal.digest,
            text,
            ends_lines(self._sessions.get(proposal.session)),
            held=proposal.id.startswith(HOOK_PREFIX),
        )
        return await self._bridge.call(message, timeout=None)

    async def close_review(self, proposal: Proposal) -> str | None:
        message = ProposalClose(proposal.id, keeps_edits(self._sessions.get(proposal.session)))
        return await self._bridge.call(message, CLOSE_S)

    def abandon(self, proposal: Proposal) -> None:
        self._bridge.tell(ProposalOrphan(proposal.id))

    def settled(self, identifier: str) -> None:
        self._bridge.tell(Delivered(identifier))

    async def is_visited(self, path: str) -> bool:
        return await self._bridge.call(FileVisited(path), VISITED_S)

    async def call_tool(
        self,
        identifier: int,
        name: str,
        arguments: Mapping[str, str | int | bool],
        directories: tuple[str, ...] | None,
        deadline: int,
    ) -> None:
        await self._bridge.call(
            ToolCall(identifier, name, arguments, directories is None, directories or (), deadline), timeout=None
        )


class Companion:
    """The backend of one Emacs, from its hello to its end."""

    def __init__(self, hello: Hello, token: str, mcp_listener: socket.socket, epc_listener: socket.socket) -> None:
        """Take two listening sockets.  Must be made on the event loop.

        :raises SpoolError: when the spool directory of `hello` is not private
        """
        self._hello = hello
        self._token = token
        self._listener = mcp_listener
        self._port: int = mcp_listener.getsockname()[1]
        self._spool = Spool(hello.spool)
        self._wire_log = _wire_log(hello, token, self._spool.directory)
        self._bridge = Bridge(epc_listener, hello.secret, self._spool, self._wire_log)
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
            [item.session for item in hello.sessions],
            changed=self._session_changed,
            gone=self._session_gone,
            went_out=self._went_out,
            told=self._distributor.sent,
            find_caller=lambda connection: find_caller(connection, hello.emacs_pid),
        )
        editor = _Editor(self._bridge, self._sessions)
        proposals = [item for item in hello.proposals if not item.id.startswith(HOOK_PREFIX)]
        self._diff_tools = DiffTools(
            Proposals(proposals),
            editor,
            self._sessions,
            roots_of=self._distributor.review_roots,
        )
        for state in self._sessions.states():
            self._distributor.set_session(state)
        # A proposal of a session nobody remembers can end in no other way.
        for session in {item.session for item in proposals} - {item.session.id for item in hello.sessions}:
            self._diff_tools.session_gone(session)
        # The request of a hook has ended with the process that held it.
        for item in hello.proposals:
            if item not in proposals:
                self._bridge.tell(ProposalOrphan(item.id))
        self._tools = Tools(editor, self._distributor.access, self._tell_call)
        self._diagnostics = Diagnostics(self._tools, lambda path: self._bridge.call(EditBegins(path), EDIT_S))
        self._tool_server = ToolServer(
            self._tools, find_caller=lambda connection: find_caller(connection, hello.emacs_pid)
        )
        self._journal = JournalFront(os.environ, self._bridge.tell)
        self._doors = Doors(
            self._port,
            token,
            self._spool.directory,
            os.environ,
            editor,
            find_caller=lambda connection: find_caller(connection, hello.emacs_pid),
            known=hello.sessions,
            sessions=self._sessions.states,
            changed=self._hooks_reported,
            report_answers=lambda session, answers: self._bridge.tell(HookAnswers(session, answers)),
            warn=lambda text: self._bridge.tell(Notice("warning", text)),
            records=self._journal.records,
            listeners=[self._diagnostics, self._journal],
            additions=[self._tool_settings],
        )
        self._told_sessions: dict[str, SessionState | None] = {item.session.id: None for item in hello.sessions}
        self._untold_sessions = dict.fromkeys(self._told_sessions)
        self._gathering: asyncio.TimerHandle | None = None
        self._roots: Roots | None = None
        self._roots_changed = anyio.Event()
        self._files: tuple[str, ...] = ()
        self._files_lock = anyio.Lock()
        """Held from a change of the discovery files until Emacs is told, so that the newest are told last."""
        # The first look always follows: one may have ended since the files were written.
        self._ancestors: tuple[int, ...] | None = None
        self._requests, self._requests_left = anyio.create_memory_object_stream[Compare | Merge](math.inf)
        self._terminal_calls, self._terminal_calls_left = anyio.create_memory_object_stream[Prompt | ListRecorded](
            math.inf
        )
        self._server: McpServer | None = None
        self._text_limit: int | None = None
        self._services = anyio.create_task_group()
        self._daemon: anyio.CancelScope | None = None
        self._daemon_calls, self._daemon_calls_left = anyio.create_memory_object_stream[DaemonCall](math.inf)
        self._ended = anyio.Event()
        self._emacs_is_gone = False
        self._for_good = False

    async def run(self, input_descriptor: int) -> None:
        """Serve until told to stop or until `input_descriptor` ends, which means that Emacs is gone.

        Leave no discovery file behind, and no spool when Emacs is gone.  Raise the error of a part of the backend that
        fails.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._ended.set)
        watch_input(input_descriptor, self._emacs_gone)
        streams = (
            *(self._requests, self._requests_left),
            *(self._terminal_calls, self._terminal_calls_left),
            *(self._daemon_calls, self._daemon_calls_left),
        )
        try:
            with ExitStack() as stack:
                for stream in streams:
                    stack.enter_context(stream)
                await self._run_services()
        except BaseException as error:  # noqa: BLE001 - raised again
            # Emacs shows the last line that was printed, and a group's says nothing.
            raise _first_error(error) from None
        finally:
            self._bridge.close()
            if self._wire_log is not None:
                self._wire_log.close()
            if self._emacs_is_gone:
                self._spool.remove()

    async def _run_services(self) -> None:
        """Run the servers for CLIs and the daemon, which outlive the other jobs while these stop."""
        async with self._services:
            try:
                async with anyio.create_task_group() as jobs:
                    self._bridge.start(self._take, self._ended.set)
                    jobs.start_soon(self._publish)
                    jobs.start_soon(self._look_after_files, partial(anyio.sleep, RENEW_S), self._discovery.renew)
                    jobs.start_soon(self._look_after_files, self._wait_for_ancestors, self._discovery.follow_ancestors)
                    jobs.start_soon(self._look_after_layer)
                    jobs.start_soon(self._distributor.run)
                    jobs.start_soon(self._answer_requests)
                    jobs.start_soon(self._serve_terminals)
                    jobs.start_soon(self._journal.run)
                    jobs.start_soon(self._watch_emacs)
                    jobs.start_soon(self._doors.run)
                    self._services.start_soon(self._serve)
                    await self._ended.wait()
                    jobs.cancel_scope.cancel()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._stop_services()

    async def _stop_services(self) -> None:
        """Remove the discovery files and let the services end by themselves for up to `STOP_S`."""
        with anyio.move_on_after(REMOVE_S):
            await to_thread.run_sync(self._doors.remove, abandon_on_cancel=True)
            await to_thread.run_sync(self._discovery.remove, abandon_on_cancel=True)
        if self._daemon is not None:
            self._daemon.cancel()
        if self._server is None:
            self._services.cancel_scope.cancel()
        else:
            await self._server.stop(for_good=self._for_good)
            self._services.cancel_scope.deadline = anyio.current_time() + STOP_S

    def _emacs_gone(self) -> None:
        self._emacs_is_gone = True
        self._end_for_good()

    def _end_for_good(self) -> None:
        """End; no other process will take over."""
        self._for_good = True
        self._ended.set()

    def _take(self, message: Incoming) -> None:
        """Handle a call by Emacs; called in their order."""
        if isinstance(message, Roots):
            self._roots = message
            self._roots_changed.set()
            self._distributor.set_roots(message.roots)
            self._journal.set_roots(message.roots)
        elif isinstance(message, Settings):
            self._take_settings(message)
        elif isinstance(message, Snapshot):
            self._distributor.set_snapshot(message)
            self._journal.set_snapshot(message)
        elif isinstance(message, Watch):
            self._distributor.watch(message.on)
            self._doors.watch(message.on)
            self._tools.watch(message.on)
        elif isinstance(message, ReviewOutcome):
            self._take_outcome(message)
        elif isinstance(message, Stop):
            self._end_for_good()
        else:
            self._take_request(message)

    def _take_request(self, message: Incoming) -> None:
        """A call by Emacs that one part of the backend answers, or that is the answer to one."""
        if isinstance(message, Compare | Merge):
            self._requests.send_nowait(message)
        elif isinstance(message, JournalCall):
            self._journal.take(message)
        elif isinstance(message, Prompt | ListRecorded):
            self._terminal_calls.send_nowait(message)
        elif isinstance(message, ToolsOffered):
            self._offer_tools(message)
        elif isinstance(message, ToolAnswer):
            self._tools.take(message.id, EmacsAnswer(message.items, message.more, message.hidden, message.error))
        elif isinstance(message, DaemonCall):
            self._take_daemon_call(message)

    def _tool_settings(self, _settings: Settings, port: int, _secret: str) -> dict[str, Any]:
        return tool_settings(port, tool_secret(self._token), self._tools.definitions)

    def _offer_tools(self, message: ToolsOffered) -> None:
        self._diagnostics.after_edits = message.after_edits
        self._diagnostics.with_prompts = message.with_prompts
        changed = message.tools != self._tools.definitions
        self._tools.offer(message.tools)
        if changed and self._roots is not None:
            self._roots_changed.set()

    def _tell_call(self, call: Called) -> None:
        size = len(call.text.encode("utf-8"))
        message = ToolCalled(call.client, call.request, size, call.ms, call.called, call.failed, call.text)
        self._bridge.tell(message)

    def _take_settings(self, settings: Settings) -> None:
        if self._doors.set_settings(settings) and self._roots is not None:
            self._roots_changed.set()
        self._sessions.offer_reviews(settings.reviews)
        self._text_limit = settings.size_limit
        if self._server is not None:
            self._server.limit_texts(self._text_limit)
        self._distributor.set_settings(settings)
        self._journal.set_settings(settings)

    def _take_outcome(self, outcome: ReviewOutcome) -> None:
        holder = self._doors if outcome.id.startswith(HOOK_PREFIX) else self._diff_tools
        holder.decide(outcome.id, Decision(outcome.content))

    def _take_daemon_call(self, call: DaemonCall) -> None:
        if self._daemon is None:
            self._daemon = anyio.CancelScope()
            self._services.start_soon(self._serve_daemon, self._daemon)
        self._daemon_calls.send_nowait(call)

    async def _serve_daemon(self, scope: anyio.CancelScope) -> None:
        """Carry out the calls about the daemon, until `scope` is cancelled.

        Import its client now: most users never need it.
        """
        with scope:
            try:
                dispatcher_type = await to_thread.run_sync(_import_dispatcher, abandon_on_cancel=True)
            except ImportError as error:
                await self._refuse_daemon_calls(
                    f"The client of qwen serve cannot be loaded ({error.name}): M-x qwen-companion-install-backend, "
                    "and then turn qwen-companion-mode off and on."
                )
                return
            dispatcher = dispatcher_type(
                self._bridge.call,
                self._spool,
                os.environ,
                self._journal.take_chat,
                prepare=self._doors.install_for_daemon,
            )
            async with anyio.create_task_group() as group:
                group.start_soon(dispatcher.run, STOP_S)
                async for call in self._daemon_calls_left:
                    dispatcher.take(call)

    async def _refuse_daemon_calls(self, text: str) -> None:
        """Answer each call about the daemon with `text`, until cancelled."""
        # These need nothing that could be missing.
        from qwen_companion.daemon.messages import DaemonState, Reply, request_of

        async for call in self._daemon_calls_left:
            # Emacs forgets the state when it asks for another daemon.
            self._bridge.tell(DaemonState("refused", text=text))
            with suppress(MessageError):
                if (request := request_of(call)) is not None:
                    self._bridge.tell(Reply(request, text, "refused"))

    def _session_changed(self, state: SessionState) -> None:
        self._distributor.set_session(state)
        self._doors.look_after(state.session)
        self._tell_state(state.session.id)

    def _hooks_reported(self) -> None:
        self._untold_sessions.update(dict.fromkeys(state.session.id for state in self._sessions.states()))
        self._tell_sessions_soon()

    def _tell_state(self, session: str) -> None:
        self._untold_sessions[session] = None
        self._tell_sessions_soon()

    def _tell_sessions_soon(self) -> None:
        # A CLI that connects changes four times in a moment.
        if self._gathering is None or len(self._told_sessions) <= FEW_SESSIONS:
            self._tell_sessions()

    def _tell_sessions(self) -> None:
        """Tell Emacs of those sessions that are not as they were told last."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        untold = {identifier: self._sessions.reported(identifier) for identifier in self._untold_sessions}
        self._untold_sessions.clear()
        states = {state.session.id: self._doors.annotated(state) for state in untold.values() if state is not None}
        changed = {key: state for key, state in states.items() if self._told_sessions.get(key) != state}
        gone = tuple(key for key, state in untold.items() if state is None and key in self._told_sessions)
        self._told_sessions.update(changed)
        for key in gone:
            del self._told_sessions[key]
        self._journal.set_sessions(changed.values(), gone)
        if changed or gone:
            self._bridge.tell(SessionChanges(tuple(changed.values()), gone))
            self._gathering = asyncio.get_running_loop().call_later(SESSIONS_S, self._tell_sessions)

    # The sessions and those they work with know each other, so some have to be told of the others afterwards.

    def _deliver_context(self, session: str, context: bytes) -> None:
        self._sessions.set_context(session, context)

    def _session_gone(self, session: str) -> None:
        self._distributor.drop_session(session)
        self._tell_state(session)
        self._diff_tools.session_gone(session)

    def _went_out(self, key: str) -> None:
        self._diff_tools.went_out(key)

    async def _publish(self) -> None:
        while True:
            await self._roots_changed.wait()
            self._roots_changed = anyio.Event()
            # Set before the event: of several in a moment only the newest counts.
            roots = cast("Roots", self._roots)
            async with self._files_lock:
                done, layer, files = await to_thread.run_sync(self._write_files, roots, abandon_on_cancel=True)
                self._tell_files(files)
            self._bridge.tell(
                Published(
                    roots=roots.roots,
                    reachable=done.reachable,
                    port=self._port,
                    token=self._token,
                    environment={**done.environment, **layer.environment},
                    warnings=(*done.warnings, *layer.warnings),
                )
            )

    def _write_files(self, roots: Roots) -> tuple[Publication, Installed, tuple[str, ...]]:
        done = self._discovery.publish(roots.roots)
        return done, self._doors.install(), self._discovery.paths()

    async def _look_after_layer(self) -> None:
        while True:
            await anyio.sleep(RENEW_S)
            current = await to_thread.run_sync(self._doors.is_current, abandon_on_cancel=True)
            if not current and self._roots is not None:
                self._roots_changed.set()

    async def _wait_for_ancestors(self) -> None:
        """Return when a process above Emacs has ended, or when it is time to look."""
        # One may count as ended that is still above it.
        await anyio.sleep(ANCESTORS_S)
        above = await to_thread.run_sync(ancestors, self._hello.emacs_pid, abandon_on_cancel=True)
        if above != self._ancestors:
            # One has ended that was not waited for yet.
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

    async def _look_after_files(self, wait: Callable[[], Awaitable[None]], task: Callable[[], tuple[str, ...]]) -> None:
        while True:
            await wait()
            async with self._files_lock:
                warnings = await to_thread.run_sync(task, abandon_on_cancel=True)
                self._tell_files(await to_thread.run_sync(self._discovery.paths, abandon_on_cancel=True))
            for warning in warnings:
                self._bridge.tell(Notice("warning", warning))

    def _tell_files(self, files: tuple[str, ...]) -> None:
        if files != self._files:
            self._files = files
            self._bridge.tell(FileList(files))

    async def _answer_requests(self) -> None:
        """Compare and merge texts, one request after the other."""
        async for request in self._requests_left:
            try:
                await self._bridge.call(await to_thread.run_sync(_answer, request, abandon_on_cancel=True))
            except EmacsRefusedError:
                # Perhaps there is no room for a long answer on the disk.
                self._bridge.tell(request.failed())
            except EmacsUnavailableError:
                pass

    async def _serve_terminals(self) -> None:
        """Hand prompts over and list recorded conversations, one after the other."""
        async for call in self._terminal_calls_left:
            if isinstance(call, Prompt):
                try:
                    await to_thread.run_sync(
                        append_prompt, self._spool.directory, call.file, call.text, abandon_on_cancel=True
                    )
                except PromptError as error:
                    self._bridge.tell(Notice("warning", f"{error}; the prompt is in the history"))
            else:
                found = await to_thread.run_sync(recorded_sessions, os.environ, call.directory, abandon_on_cancel=True)
                self._bridge.tell(RecordedSessions(call.id, found))

    async def _watch_emacs(self) -> None:
        await process_end(self._hello.emacs_pid)
        self._emacs_gone()

    async def _serve(self) -> None:
        server_type, door_type = await to_thread.run_sync(_import_server, abandon_on_cancel=True)
        doors = {
            HOOK_PATH: door_type(self._doors.hooks, self._doors.secret),
            TOOL_PATH: door_type(self._tool_server, tool_secret(self._token)),
        }
        server = self._server = server_type(
            self._listener, self._token, self._sessions, self._diff_tools, doors, self._wire_log
        )
        server.limit_texts(self._text_limit)
        await server.serve(lambda: self._bridge.tell(Serving()))
        self._ended.set()


def _wire_log(hello: Hello, token: str, directory: str) -> WireLog | None:
    """Return the record of the wires in `directory`, with the start in it, if Emacs asks for one."""
    if hello.wire_log is None:
        return None
    from qwen_companion.wire_log import WireLog

    log = WireLog(directory, (token, hello.secret, door_secret(token), tool_secret(token)), hello.wire_log == "texts")
    sessions = [item.session for item in hello.sessions]
    log.start(
        sessions=[{name: getattr(item, name) for name in ("id", "protocol", "client", "version")} for item in sessions],
        proposals=[{name: getattr(item, name) for name in ("id", "session", "path")} for item in hello.proposals],
    )
    return log


def _first_error(error: BaseException) -> BaseException:
    """Return `error`, or if it is a group, the first error in it that is not a group."""
    # Python 3.10 has no name for a group.
    while members := getattr(error, "exceptions", ()):
        error = members[0]
    return error


def _answer(request: Compare | Merge) -> Compared | Merged:
    # What it takes is imported by the first request: many an Emacs never makes one.
    try:
        from qwen_companion.emacs.text_requests import answer
    except ImportError:
        _log.exception("texts can be neither compared nor merged")
        return request.failed()
    return answer(request)


def _import_server() -> tuple[type[McpServer], type[Door]]:
    from qwen_companion.ide.server import Door, McpServer

    return McpServer, Door


def _import_dispatcher() -> type[CallDispatcher]:
    from qwen_companion.daemon.dispatcher import CallDispatcher

    return CallDispatcher
