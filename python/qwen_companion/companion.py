# SPDX-License-Identifier: GPL-3.0-or-later
"""Composition root: make the parts of the backend, connect them, and hand each call of Emacs to one of them."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from typing import Any, get_args

import anyio

from qwen_companion.base.ending import end_by_signal, limit_end
from qwen_companion.base.errors import first_error
from qwen_companion.clis import Clis
from qwen_companion.conversations.meter import Meter
from qwen_companion.daemon.front import DaemonFront
from qwen_companion.daemon.rewinds import Rewinds
from qwen_companion.discovery.files import Discovery, Publication
from qwen_companion.discovery.publisher import Publisher
from qwen_companion.domain import (
    HookAnswer,
    KnownProposal,
    KnownSession,
    Peer,
    Settings,
    Snapshot,
    WaitingProposal,
)
from qwen_companion.doors.door_settings import HOOK_PATH, TOOL_PATH
from qwen_companion.doors.hook_handler import HookHandler
from qwen_companion.doors.hook_watch import HookWatch
from qwen_companion.doors.hooks import Hooks
from qwen_companion.doors.layers import SettingsLayers
from qwen_companion.ide.access import Access, excluded
from qwen_companion.ide.context_distributor import Reports
from qwen_companion.ide.local_context import LocalContext
from qwen_companion.ide.models import told_context
from qwen_companion.ide.peers import Callers, ends_lines, keeps_edits
from qwen_companion.ide.proposals import FILE, HOOK_PREFIX, Decision, Proposal, Proposals
from qwen_companion.ide.server import Door, McpServer
from qwen_companion.ide.sessions import Sessions
from qwen_companion.ide.tools import DiffTools
from qwen_companion.remote.laid_files import Callbacks
from qwen_companion.remote.places import Places
from qwen_companion.tools.calls import Tools
from qwen_companion.tools.diagnostics import EDIT_S, Diagnostics
from qwen_companion.tools.server import ToolServer
from qwen_companion.wire import messages
from qwen_companion.wire.bridge import Bridge
from qwen_companion.wire.journal_front import JournalFront
from qwen_companion.wire.liveness import process_end, watch_input
from qwen_companion.wire.registry_front import RegistryFront
from qwen_companion.wire.request_queue import RequestQueue
from qwen_companion.wire.spool import Spool

_log = logging.getLogger(__name__)

STOP_S = 0.8
"""Seconds that the servers may take to stop."""

REMOVE_S = 5.0
"""Seconds that removing the discovery files may take; Emacs removes the rest."""

VISITED_S = 1.0
"""Seconds that Emacs may take to report whether a file is open, or to type a key."""

CLOSE_S = 60.0
"""Seconds that a CLI that closes a review waits for a busy Emacs; the CLI's own limit is ten minutes."""


class _Editor:
    """Emacs as the tools see it."""

    def __init__(self, bridge: Bridge, sessions: Sessions, places: Places) -> None:
        self._bridge = bridge
        self._sessions = sessions
        self._places = places

    async def open_review(self, proposal: Proposal, client: str, text: str) -> str | None:
        place = self._places.of_session(proposal.session) if proposal.kind == FILE else None
        path, copy_of = (proposal.path, None) if place is None else await place.copies.review_file(proposal.path)
        message = messages.ProposalOpen(
            proposal.id,
            proposal.session,
            client,
            path,
            proposal.digest,
            text,
            ends_lines(self._sessions.get(proposal.session)),
            held=proposal.id.startswith(HOOK_PREFIX),
            copy_of=copy_of,
            kind=proposal.kind,
            directory=proposal.directory,
            questions=proposal.questions,
        )
        return await self._bridge.call(message, timeout=None)

    async def close_review(self, proposal: Proposal) -> str | None:
        message = messages.ProposalClose(proposal.id, keeps_edits(self._sessions.get(proposal.session)))
        return await self._bridge.call(message, CLOSE_S)

    def abandon(self, proposal: Proposal, reason: str | None = None) -> None:
        self._bridge.notify(messages.ProposalOrphan(proposal.id, reason))

    def released(self, proposal: Proposal, reason: str, answerable: bool) -> None:
        self._bridge.notify(messages.ProposalReleased(proposal.id, reason, answerable))

    def written(self, proposal: Proposal, exactly: bool) -> None:
        self._bridge.notify(messages.ProposalWritten(proposal.id, exactly))

    def warn(self, text: str) -> None:
        self._bridge.notify(messages.Notice(text))

    async def type_key(self, proposal: Proposal, key: str, prompt: str | None = None) -> bool:
        return await self._bridge.call(messages.TypeKey(proposal.id, key, prompt), VISITED_S)

    def settled(self, identifier: str) -> None:
        self._bridge.notify(messages.Delivered(identifier))

    def hook_answers(self, session: str, answers: tuple[HookAnswer, ...]) -> None:
        self._bridge.notify(messages.HookAnswers(session, answers))

    async def silence(self) -> None:
        await self._bridge.silence()

    async def is_visited(self, path: str) -> bool:
        known = self._places.is_visited(path)
        return await self._bridge.call(messages.FileVisited(path), VISITED_S) if known is None else known


class _Terminals:
    """Emacs as the publisher sees it: its terminals get the variables by which CLIs find this backend."""

    def __init__(self, bridge: Bridge, port: int, token: str, layers: SettingsLayers) -> None:
        self._bridge = bridge
        self._port = port
        self._token = token
        self._layers = layers

    def published(self, roots: Sequence[str], done: Publication) -> None:
        self._bridge.notify(
            messages.Published(
                roots=roots,
                reachable=done.reachable,
                port=self._port,
                token=self._token,
                environment=done.environment,
                warnings=done.warnings,
                guarded=self._layers.guards,
            )
        )

    def discovery_files(self, files: Sequence[str]) -> None:
        self._bridge.notify(messages.FileList(files))

    def warn(self, text: str) -> None:
        self._bridge.notify(messages.Notice(text))


class Companion:
    """The backend of one Emacs, from its hello to its end."""

    def __init__(
        self, hello: messages.Hello, token: str, mcp_listener: socket.socket, epc_listener: socket.socket
    ) -> None:
        """Use two listening sockets.  Must be created on the event loop.

        :raises SpoolError: if the spool directory of `hello` is not private
        """
        self._hello = hello
        port: int = mcp_listener.getsockname()[1]
        self._spool = Spool(hello.spool)
        self._bridge = Bridge(epc_listener, hello.secret, self._spool)
        reports = Reports(self._deliver_context, self._report_context, self._report_exclusions)
        self._distributor = LocalContext(os.environ, reports, lambda text: self._bridge.notify(messages.Notice(text)))
        callbacks = Callbacks(
            layer_of=lambda keys, command: self._layers.content(keys, command),
            tell=self._bridge.notify,
            roots_changed=lambda: self._journal.update_roots(),
            set_reachable=lambda place, reachable: self._sessions.set_reachable(place, reachable),
        )
        self._places = Places(token, port, os.environ, self._spool.directory, reports, callbacks)
        callers = Callers(hello.emacs_pid, self._places.caller)
        self._sessions: Sessions = Sessions([item.session for item in hello.sessions], callers)
        self._clis = Clis(self._sessions, self._distributor, self._places, self._bridge.notify)
        editor = _Editor(self._bridge, self._sessions, self._places)
        self._diff_tools: DiffTools = DiffTools(
            Proposals(_without_hooks(hello.proposals)),
            editor,
            self._sessions,
            roots_of=self._distributor.review_roots,
            check_elsewhere=self._places.check_target,
        )
        self._take_over()
        self._tools = Tools(self._bridge, self._access)
        self._diagnostics = Diagnostics(
            self._tools,
            lambda peer, path: self._bridge.call(messages.EditBegins(self._places.name_of(peer, path)), EDIT_S),
        )
        tell = self._bridge.notify
        self._journal = JournalFront(
            os.environ, tell, self._places, partial(excluded, self._access), self._waiting, self._missed_review
        )
        self._meter = Meter(self._journal.journal.spent, self._clis.hooks_reported, self._places, os.environ)
        listeners = (self._diagnostics, self._journal, self._journal.rewinds, self._meter)
        self._layers: SettingsLayers = SettingsLayers(port, token, self._spool.directory, os.environ, listeners)
        self._hooks = HookHandler(
            self._layers,
            hello.sessions,
            editor,
            self._sessions,
            self._places,
            listeners,
            callers.find,
            self._clis.hooks_reported,
        )
        self._hook_watch = HookWatch(
            self._hooks.states, self._layers, editor, hello.sessions, self._clis.hooks_reported
        )
        self._clis.hook_watch, self._clis.meter, self._clis.silent = self._hook_watch, self._meter, self._journal.silent
        self._sessions.listeners = (self._clis, self._diff_tools)
        discovery = Discovery(hello.emacs_pid, port, token, os.environ)
        self._publisher = Publisher(
            hello.emacs_pid, discovery, self._layers, _Terminals(self._bridge, port, token, self._layers)
        )
        self._requests = RequestQueue(self._bridge, self._spool.directory, self._places.send_prompt)
        self._registry = RegistryFront(
            os.environ, port, self._spool.directory, tell, self._hooks, self._journal, self._sessions.states
        )
        self._services = anyio.create_task_group()
        self._daemon = DaemonFront(self._bridge, self._spool, self._services, self._journal, self._layers, STOP_S)
        self._rewinds = Rewinds(tell, self._services, self._clis.local_peer)
        doors = {
            HOOK_PATH: Door(Hooks(self._hooks), self._layers.keys.secrets[HOOK_PATH]),
            TOOL_PATH: Door(ToolServer(self._tools, callers.find), self._layers.keys.secrets[TOOL_PATH]),
        }
        self._server = McpServer(mcp_listener, token, self._sessions, self._diff_tools, doors, self._places.keys)
        self._ended = anyio.Event()
        self._emacs_is_gone = False
        self._for_good = False

    def _access(self, peer: Peer | None) -> Access | None:
        """Return which files may be reported to the CLI in the process `peer`; None while that is unknown."""
        return self._places.access(peer) if peer and peer.place else self._distributor.access(peer)

    def _missed_review(self, cli: KnownSession, path: str, is_open: bool) -> bool:
        """See `MissedReview`."""
        session = (cli.peer and self._sessions.of_process(cli.peer.pid)) or cli
        shown = self._diff_tools.was_shown(session.id, path)
        return not shown and self._hook_watch.missed_review(session, is_open)

    def _waiting(self) -> Iterator[WaitingProposal]:
        for proposal in (*self._diff_tools.waiting(), *self._hooks.reviews.waiting()):
            session = self._sessions.get(proposal.session)
            label, peer = ("", None) if session is None else (session.label, session.peer)
            yield WaitingProposal(proposal.session, label, peer and peer.pid, proposal.path)

    def _take_over(self) -> None:
        """Take over the proposals of an earlier process."""
        known = {item.session.id for item in self._hello.sessions}
        # A proposal of an unknown session can end in no other way.
        for session in {item.session for item in _without_hooks(self._hello.proposals)} - known:
            self._diff_tools.session_gone(session)
        # The request of a hook has ended with the process that held it.
        for item in self._hello.proposals:
            if item.id.startswith(HOOK_PREFIX):
                self._bridge.notify(messages.ProposalOrphan(item.id))

    # --- The calls of Emacs ---

    def _handle(self, message: messages.Incoming) -> None:
        """Handle a call by Emacs; they come in their order."""
        if isinstance(message, messages.Roots):
            self._publisher.set_roots(message.roots)
            self._distributor.set_roots(message.roots)
            self._journal.set_roots(message.roots)
        elif isinstance(message, Settings):
            self._set_settings(message)
        elif isinstance(message, Snapshot):
            self._distributor.set_snapshot(message)
            self._places.set_snapshot(message)
            self._journal.journal.roots.set_snapshot(message)
        elif isinstance(message, messages.Watch):
            self._distributor.watch(message.on)
            self._places.watch(message.on)
            self._hooks.watch(message.on)
            self._tools.watch(message.on)
        elif isinstance(message, messages.ReviewOutcome):
            holder = self._hooks if message.id.startswith(HOOK_PREFIX) else self._diff_tools
            holder.decide(message.id, Decision(message.content, message.reason, message.mode))
        else:
            self._handlers[type(message)](message)

    @cached_property
    def _handlers(self) -> Mapping[type[messages.Incoming], Callable[[Any], None]]:
        """The handlers of calls that one part alone handles."""
        return {
            **dict.fromkeys(get_args(messages.QueuedCall), self._requests.handle),
            **dict.fromkeys(get_args(messages.RegistryCall), self._registry.handle),
            **dict.fromkeys(get_args(messages.JournalCall), self._journal.handle),
            messages.ReviewRelease: lambda release: self._hooks.questions.release(release.id),
            messages.ToolsOffered: self._offer_tools,
            messages.ToolAnswer: self._tools.handle,
            messages.PlacesWanted: self._places.want,
            messages.RunAt: self._places.run_at,
            messages.ListPlaceFiles: self._places.list_files,
            messages.CheckPlace: self._places.check,
            messages.RewindRecorded: self._rewinds.handle,
            messages.DaemonCall: self._daemon.handle,
            messages.Stop: lambda _: self._end_for_good(),
        }

    def _offer_tools(self, message: messages.ToolsOffered) -> None:
        self._diagnostics.after_edits = message.after_edits
        self._diagnostics.with_prompts = message.with_prompts
        changed = message.tools != self._tools.definitions
        self._tools.offer(message.tools)
        self._layers.tools = message.tools
        if changed:
            self._publisher.publish_again()
            self._places.lay_again()

    def _set_settings(self, settings: Settings) -> None:
        self._hooks.set_settings(settings)
        if self._layers.set_settings(settings):
            self._publisher.publish_again()
        self._sessions.offers_reviews = not settings.no_reviews
        self._diff_tools.text_limit = settings.size_limit
        self._distributor.set_settings(settings)
        self._places.set_settings(settings)
        self._journal.set_settings(settings)
        self._meter.limit = settings.token_limit

    # --- Running ---

    async def run(self, input_descriptor: int) -> None:
        """Serve until told to stop or until `input_descriptor` ends, which means that Emacs has ended.

        Leave no discovery file behind, and no spool once Emacs has ended.  Raise the error of a part of the backend
        that fails.
        """
        end_by_signal(asyncio.get_running_loop(), self._ended.set)
        watch_input(input_descriptor, self._emacs_gone)
        try:
            with ExitStack() as stack:
                stack.callback(self._daemon.close)
                stack.callback(self._requests.close)
                await self._run_services()
        except BaseException as error:  # noqa: BLE001 - raised again
            # Emacs shows the last printed line, and that of an error group is empty.
            raise first_error(error) from None
        finally:
            self._bridge.close()
            if self._emacs_is_gone:
                self._spool.remove()

    async def _run_services(self) -> None:
        """Run the servers for CLIs and the daemon, which continue while the other jobs stop."""
        async with self._services:
            try:
                async with anyio.create_task_group() as jobs:
                    self._bridge.start(self._handle, self._ended.set)
                    jobs.start_soon(self._publisher.run)
                    jobs.start_soon(self._distributor.run)
                    jobs.start_soon(self._requests.run)
                    jobs.start_soon(self._journal.run)
                    jobs.start_soon(self._watch_emacs)
                    jobs.start_soon(self._hooks.run)
                    jobs.start_soon(self._hook_watch.run)
                    jobs.start_soon(self._places.run)
                    jobs.start_soon(self._registry.run)
                    self._services.start_soon(self._serve)
                    await self._ended.wait()
                    limit_end()
                    jobs.cancel_scope.cancel()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._stop_services()

    async def _stop_services(self) -> None:
        """Remove the discovery files and let the services end by themselves for up to `STOP_S`."""
        with anyio.move_on_after(REMOVE_S):
            await self._publisher.remove()
        self._daemon.stop()
        await self._server.stop(for_good=self._for_good)
        self._services.cancel_scope.deadline = anyio.current_time() + STOP_S

    def _emacs_gone(self) -> None:
        self._emacs_is_gone = True
        self._places.emacs_gone()
        self._end_for_good()

    def _end_for_good(self) -> None:
        """End without leaving anything for another process."""
        self._for_good = True
        self._ended.set()

    def _report_context(self, session: str, place: str, roots: tuple[str, ...] | None, sent: int, text: str) -> None:
        content = told_context(text, place)
        self._bridge.notify(messages.ContextSent(session, roots is None, roots or (), sent, text, content))

    def _report_exclusions(self) -> None:
        self._bridge.notify(messages.ExclusionList(self._places.exclusions(self._distributor.exclusions)))

    def _deliver_context(self, session: str, context: bytes) -> None:
        self._sessions.set_context(session, context)

    async def _watch_emacs(self) -> None:
        await process_end(self._hello.emacs_pid)
        self._emacs_gone()

    async def _serve(self) -> None:
        await self._server.serve(lambda: self._bridge.notify(messages.Serving()))
        self._ended.set()


def _without_hooks(proposals: Iterable[KnownProposal]) -> list[KnownProposal]:
    return [item for item in proposals if not item.id.startswith(HOOK_PREFIX)]
