# SPDX-License-Identifier: GPL-3.0-or-later
"""The registered CLIs, for Emacs: their list, and prompts to them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import anyio

from qwen_companion.base.errors import CompanionError
from qwen_companion.base.processes import end
from qwen_companion.base.tasks import Tasks
from qwen_companion.base.threads import in_thread
from qwen_companion.conversations.controller import VALID, Grant, add_grant, read_grant
from qwen_companion.conversations.messenger import CLOSED, DELIVERED, HELD, UNANSWERED, Messenger
from qwen_companion.conversations.recorded_sessions import recordings
from qwen_companion.conversations.recording_watch import RecordingWatch
from qwen_companion.conversations.records import Record, RecordError
from qwen_companion.conversations.registry import Registry
from qwen_companion.conversations.transcript import Awaited, Transcript
from qwen_companion.domain import CliState, KnownSession, Peer, RegisteredCli, SessionState
from qwen_companion.doors.hook_handler import HookHandler
from qwen_companion.doors.states import WORKING
from qwen_companion.doors.user_settings import session_token_limit
from qwen_companion.wire.journal_front import JournalFront
from qwen_companion.wire.messages import (
    Notification,
    RegisteredClis,
    RegistryCall,
    RegistryEnd,
    RegistryEnded,
    RegistryPrompt,
    RegistryReceipt,
)

MODEL_S = 1.0
"""Seconds after its receipt by which an unqueued prompt is with the model; 0.1 are usual."""

MOST_FOLLOWED = 100
"""Most conversations to follow, besides those with a pending prompt."""

HOOK_S = 5.0
"""Seconds from the report of a prompt by a hook until the CLI has recorded it; some ms are usual."""

END_S = 10.0
"""Seconds a CLI may take to end; one is usual."""


class RegistryFront:
    """The registered CLIs, for Emacs.  Call its methods on the event loop."""

    def __init__(
        self,
        environ: Mapping[str, str],
        own_port: int,
        directory: str,
        tell: Callable[[Notification], None],
        hooks: HookHandler,
        journal: JournalFront,
        sessions: Callable[[], Iterable[SessionState]],
    ) -> None:
        """`own_port` is our server's, `directory` a private one; `tell` sends a message to Emacs.

        `hooks` and `journal` are notified of CLIs' work on socket prompts; `sessions` returns the connected CLIs.
        """
        self._environ = environ
        self._tell = tell
        self._hooks = hooks
        self._journal = journal
        self._sessions = sessions
        self._registry = Registry(environ, own_port, self._changed)
        self._messenger = Messenger(directory, lambda request, status: tell(RegistryReceipt(request, status)))
        self._granting = anyio.Lock()
        self._recordings = RecordingWatch()
        self._following: dict[str, Transcript] = {}
        """Transcripts by id of the CLI."""
        self._beginning = anyio.Lock()
        self._start = int(time.time() * 1000)
        self._tasks = Tasks()

    async def run(self) -> None:
        """Report the CLIs and carry out calls until cancelled."""
        async with self._tasks:
            self._tasks.start(self._recordings.run)
            await self._registry.run()

    def handle(self, call: RegistryCall) -> None:
        """Schedule `call`."""
        if isinstance(call, RegistryPrompt):
            self._tasks.start(self._prompt, call)
        elif isinstance(call, RegistryEnd):
            self._tasks.start(self._end, call.cli)
        else:
            self._registry.refresh()
            for transcript in self._following.values():
                self._tasks.start(self._recordings.read, transcript)

    async def _end(self, identifier: str) -> None:
        record = await self._registry.record(identifier)
        gone = record is None or await end(record.cli.pid, record.started, END_S)
        self._tell(RegistryEnded(identifier, gone))

    def _changed(self, clis: Collection[RegisteredCli], gone: Collection[str], controller: str) -> None:
        for identifier in (*gone, *(cli.id for cli in clis if cli.gone)):
            if identifier in self._following:
                self._recordings.forget(self._following.pop(identifier))
            self._journal.silent.set_sessions((), (identifier,))
        for cli in clis:
            if cli.session and not cli.gone and not self._follows(cli) and len(self._following) < MOST_FOLLOWED:
                self._tasks.start(self._transcript, cli, cli.session)
        self._tell(RegisteredClis(tuple(clis), tuple(gone), controller, self._registry.is_told))

    async def _grant(self, program: Sequence[str]) -> Grant | None:
        """Return the token, or None; `program` makes it if CLIs accept none.

        :raises GrantError: when it cannot be made
        """
        async with self._granting:
            state, grant = await in_thread(read_grant, self._environ)
            if state != VALID and program:
                state, grant = VALID, await in_thread(add_grant, self._environ, program)
                self._registry.refresh()
            return grant if state == VALID else None

    # --- Prompts ---

    async def _prompt(self, call: RegistryPrompt) -> None:
        try:
            self._tell(RegistryReceipt(call.id, await self._send(call)))
        except CompanionError as error:
            self._tell(RegistryReceipt(call.id, "failed", str(error)))
        except OSError as error:
            reason = f"no socket for its receipt can be made: {error.strerror or error}"
            self._tell(RegistryReceipt(call.id, "failed", reason))

    async def _send(self, call: RegistryPrompt) -> str:
        """Send the prompt of `call`; return the status, see `RegistryReceipt`.

        :raises RecordError, GrantError, OSError: when there is no usable record, token, or socket for the receipt
        """
        record = await self._registry.record(call.cli)
        if record is None:
            return "gone"
        if not record.cli.session:
            raise RecordError(record.cli.problem or "")
        if not record.socket:
            return CLOSED
        grant = await self._grant(call.program)
        if grant is None:
            return "no-token"
        if not self._messenger.serving:
            await self._messenger.open(self._tasks)
        transcript = await self._transcript(record.cli, call.session)
        # It may already contain an equal prompt.
        await self._recordings.read(transcript)
        awaited = transcript.expect(call.id, call.text, partial(self._reached, _session_of(record), call.session))
        self._note_prompt(record)
        status = await self._messenger.send(call.id, record, grant.token, call.session, call.text)
        if status == DELIVERED:
            with anyio.move_on_after(MODEL_S):
                await awaited.at_model.wait()
            await self._recordings.read(transcript)
            if awaited.at_model.is_set():
                return "model"
            # The user may have turned off the recording of conversations.
            awaited.queued = await in_thread(os.path.exists, transcript.path)
            return "queued" if awaited.queued else DELIVERED
        awaited.queued = status in (HELD, UNANSWERED)
        if not awaited.queued:
            transcript.forget(awaited)
        return status

    def _note_prompt(self, record: Record) -> None:
        """Record that the CLI of `record` is about to get a prompt, and may then write files."""
        process = record.cli.pid, record.started
        connected = {state.session.peer.process for state in self._sessions() if state.session.peer}
        if process not in connected and self._hooks.states.get(record.cli.pid) is None:
            self._journal.silent.prompt_sent(_session_of(record), process)

    # --- Conversations ---

    def _path(self, cli: RegisteredCli, conversation: str) -> str:
        """Return the file in which `cli` records `conversation`."""
        return os.path.join(recordings(self._environ, cli.directory or "/"), f"{conversation}.jsonl")

    def _follows(self, cli: RegisteredCli) -> bool:
        """Return whether the conversation of `cli` is followed."""
        known = self._following.get(cli.id)
        return known is not None and known.path == self._path(cli, cli.session)

    async def _transcript(self, cli: RegisteredCli, conversation: str) -> Transcript:
        """Return the follower of the `conversation` of `cli`, a new one if needed."""
        path = self._path(cli, conversation)
        async with self._beginning:
            known = self._following.get(cli.id)
            if known is not None and known.path == path:
                return known
            limit = await in_thread(session_token_limit, cli.directory or "/", self._environ)
            changed = partial(self._note_state, cli.id, conversation)
            transcript = await in_thread(Transcript, path, self._messenger.address, cli.start, limit, changed)
            if known is not None:
                self._recordings.forget(known)
                self._registry.note_state(cli.id, None)
            self._following[cli.id] = transcript
            self._recordings.follow(transcript)
            return transcript

    def _note_state(self, identifier: str, conversation: str, state: CliState) -> None:
        self._registry.note_state(identifier, state)
        if state.activity == WORKING and state.since is not None and state.since < self._start:
            self._tasks.start(self._note_missed_prompt, identifier, conversation, state.prompt or "", state.since)

    async def _note_missed_prompt(self, identifier: str, conversation: str, prompt: str, since: int) -> None:
        """Record `prompt` of the time before this process if the CLI calls hooks and no hook has reported it."""
        record = await self._registry.record(identifier)
        reported = None if record is None else self._hooks.states.get(record.cli.pid)
        if record and reported and (reported.since or 0) + 1000 * HOOK_S < since:
            self._prompted(_session_of(record), conversation, prompt, since)

    def _reached(self, session: KnownSession, conversation: str, awaited: Awaited, since: int) -> None:
        self._messenger.confirm(awaited.request)
        self._prompted(session, conversation, awaited.text, since)
        if awaited.queued:
            self._tell(RegistryReceipt(awaited.request, "model"))

    def _prompted(self, session: KnownSession, conversation: str, text: str, since: int) -> None:
        """Report to hooks and journal a prompt that no hook reports."""
        has_ended = session.peer is not None and self._hooks.prompted(session.peer.pid, text, since)
        self._tasks.start(self._journal.prompt_began, session, conversation, text, since, has_ended)


def _session_of(record: Record) -> KnownSession:
    """Return the CLI of `record` in the form of a session, connected or not."""
    cli = record.cli
    peer = Peer(cli.pid, record.started, cli.directory, "qwen", ())
    return KnownSession(cli.id, "", "Qwen Code", cli.version, peer)
