# SPDX-License-Identifier: GPL-3.0-or-later
"""The registered CLIs, for Emacs: which there are, and prompts to them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

import anyio

from qwen_companion.domain import KnownSession, Peer, RegisteredCli
from qwen_companion.emacs.messages import (
    Notification,
    RegisteredClis,
    RegistryCall,
    RegistryEnd,
    RegistryEnded,
    RegistryPrompt,
    RegistryReceipt,
)
from qwen_companion.errors import CompanionError
from qwen_companion.processes import ended, has_ended
from qwen_companion.registry.controller import VALID, Grant, add_grant, grant_state, read_grant
from qwen_companion.registry.messenger import CLOSED, DELIVERED, HELD, UNANSWERED, Messenger
from qwen_companion.registry.records import Record
from qwen_companion.registry.registry import Registry
from qwen_companion.tasks import Task, Tasks
from qwen_companion.threads import in_thread
from qwen_companion.transcripts.recorded_sessions import recordings

if TYPE_CHECKING:
    from qwen_companion.registry.transcript import Awaited, Transcript

MODEL_S = 1.0
"""How soon after its receipt a prompt is with the model if nothing is before it, in seconds; 0.1 s are usual."""


OTHER_EMACS_S = 0.5
"""How long another Emacs of the user takes at most to keep a token that was made for it, in seconds."""

END_S = 10.0
"""How long a CLI may take to end, in seconds; one is usual."""


class Follower(Protocol):
    """Hears what CLIs do with prompts sent over their sockets."""

    def prompt_sent(self, session: KnownSession) -> None:
        """Note that the CLI of `session` is about to get a prompt; it may be connected to this Emacs or not."""
        ...

    def prompt_began(self, session: KnownSession, conversation: str, prompt: str) -> None:
        """Note that the model of the CLI of `session` has got `prompt` in `conversation`."""
        ...

    def prompted_cli_ended(self, identifier: str) -> None:
        """Note that the session `identifier` of a CLI that got a prompt has ended, if it did."""
        ...


class RegistryFront:
    """See the top of this file.  All methods are for the event loop."""

    def __init__(
        self,
        environ: Mapping[str, str],
        own_port: int,
        directory: str,
        tell: Callable[[Notification], None],
        follower: Follower,
    ) -> None:
        """`own_port` is that of our server, `directory` a private one; `tell` sends a message to Emacs."""
        self._environ = environ
        self._tell = tell
        self._follower = follower
        self._registry = Registry(environ, own_port, self._changed, self._controllers_changed)
        self._messenger = Messenger(directory, lambda request, status: tell(RegistryReceipt(request, status)))
        self._controller = ""
        self._granting = anyio.Lock()
        self._following: dict[str, tuple[Transcript, Task]] = {}
        """By the ids of the CLIs."""
        self._tasks = Tasks()

    async def run(self) -> None:
        """Tell of the CLIs and carry out calls until cancelled."""
        async with self._tasks:
            self._controller = await in_thread(grant_state, self._environ)
            await self._registry.run()

    def take(self, call: RegistryCall) -> None:
        """Carry `call` out soon."""
        if isinstance(call, RegistryPrompt):
            self._tasks.start(self._prompt, call)
        elif isinstance(call, RegistryEnd):
            self._tasks.start(self._end, call.cli)
        else:
            self._tasks.start(self._registry.look)

    async def _end(self, identifier: str) -> None:
        record = await self._registry.record(identifier)
        if record is not None:
            with suppress(OSError):
                os.kill(record.cli.pid, signal.SIGTERM)
            with anyio.move_on_after(END_S):
                await ended(record.cli.pid, record.started, 0.2)
        gone = record is None or has_ended(record.cli.pid, record.started)
        self._tell(RegistryEnded(identifier, gone))

    def _changed(self, clis: Collection[RegisteredCli], gone: Collection[str]) -> None:
        for identifier in (*gone, *(cli.id for cli in clis if cli.gone)):
            if identifier in self._following:
                self._following.pop(identifier)[1].cancel()
            self._follower.prompted_cli_ended(identifier)
        self._tell(RegisteredClis(tuple(clis), tuple(gone), self._controller))

    # --- The token ---

    def _controllers_changed(self) -> None:
        self._tasks.start(self._look_at_controllers, OTHER_EMACS_S)

    async def _look_at_controllers(self, wait_s: float = 0.0) -> None:
        await anyio.sleep(wait_s)
        before, self._controller = self._controller, await in_thread(grant_state, self._environ)
        if self._controller != before:
            self._changed((), ())

    async def _grant(self, program: Sequence[str]) -> Grant | None:
        """Return the token; made by `program` if there is none that CLIs take, None without one.

        :raises GrantError: when it cannot be made
        """
        async with self._granting:
            if await in_thread(grant_state, self._environ) == VALID:
                return await in_thread(read_grant, self._environ)
            if not program:
                return None
            grant = await in_thread(add_grant, self._environ, program)
            await self._look_at_controllers()
            return grant

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

        :raises GrantError, OSError: when there is no token or no socket for the receipt
        """
        record = await self._registry.record(call.cli)
        if record is None:
            return "gone"
        if not record.socket:
            return CLOSED
        grant = await self._grant(call.program)
        if grant is None:
            return await in_thread(grant_state, self._environ)
        if not self._messenger.serving:
            await self._messenger.open(self._tasks)
        transcript = await self._transcript(record, call.session)
        awaited = transcript.expect(call.id, call.text)
        self._follower.prompt_sent(_session_of(record))
        status = await self._messenger.send(call.id, record, grant.token, call.session, call.text)
        if status == DELIVERED:
            with anyio.move_on_after(MODEL_S):
                await awaited.at_model.wait()
                return "model"
            # A user may have turned the recording of conversations off.
            awaited.queued = await in_thread(os.path.exists, transcript.path)
            return "queued" if awaited.queued else DELIVERED
        if status not in (HELD, UNANSWERED):
            transcript.forget(awaited)
        return status

    async def _transcript(self, record: Record, conversation: str) -> Transcript:
        """Return what follows the `conversation` of the CLI of `record`, made if need be."""
        path = os.path.join(recordings(self._environ, record.cli.directory or "/"), f"{conversation}.jsonl")
        identifier = record.cli.id
        known = self._following.get(identifier)
        if known is not None:
            if known[0].path == path:
                return known[0]
            known[1].cancel()
        session = _session_of(record)
        # It imports pydantic.
        await in_thread(import_module, "qwen_companion.registry.transcript")
        from qwen_companion.registry.transcript import Transcript

        transcript = await in_thread(
            Transcript,
            path,
            self._messenger.address,
            partial(self._reached, session, conversation),
            partial(self._registry.note_state, identifier),
        )
        self._following[identifier] = transcript, self._tasks.start(self._follow, identifier, transcript)
        return transcript

    def _reached(self, session: KnownSession, conversation: str, awaited: Awaited) -> None:
        self._follower.prompt_began(session, conversation, awaited.text)
        if awaited.queued:
            self._tell(RegistryReceipt(awaited.request, "model"))

    async def _follow(self, identifier: str, transcript: Transcript) -> None:
        await transcript.follow()
        if (known := self._following.get(identifier)) is not None and known[0] is transcript:
            del self._following[identifier]


def _session_of(record: Record) -> KnownSession:
    """Return the CLI of `record` as a session, which it may not be."""
    cli = record.cli
    peer = Peer(cli.pid, record.started, cli.directory, "qwen", ())
    return KnownSession(cli.id, "", "Qwen Code", cli.version, peer)
