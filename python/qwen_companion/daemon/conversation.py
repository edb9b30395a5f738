# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow one session, reload it when events were lost, and carry out the user's actions on it."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from qwen_companion.base.local_ids import local_id
from qwen_companion.base.plan_files import plan_path
from qwen_companion.base.tasks import Task, Tasks
from qwen_companion.base.threads import in_thread
from qwen_companion.daemon import models
from qwen_companion.daemon.client import DaemonClient
from qwen_companion.daemon.errors import (
    BusyError,
    DaemonError,
    GoneError,
    NotFoundError,
    ProtocolViolationError,
    ServerFailedError,
    UnauthorizedError,
    UnreachableError,
    UnsupportedError,
)
from qwen_companion.daemon.interrupted_turns import InterruptedTurns, Output
from qwen_companion.daemon.messages import (
    NEW,
    Answer,
    Change,
    Choice,
    ContextUsageReport,
    EndChange,
    SessionChoices,
    ToolText,
)
from qwen_companion.daemon.notes import NOT_APPLIED, marked, review_note
from qwen_companion.daemon.outbox import Outbox
from qwen_companion.daemon.permissions import OTHER
from qwen_companion.daemon.plans import Plans
from qwen_companion.daemon.sanitize import clean, line
from qwen_companion.daemon.session import DaemonSession, slash_commands
from qwen_companion.daemon.stream import (
    FRAME_TOO_LARGE,
    Backoff,
    Connected,
    Disconnected,
    Ended,
    EventStream,
    ReplayDone,
    Resync,
    StreamItem,
)
from qwen_companion.daemon.tools import HeldTool
from qwen_companion.daemon.work_reports import WorkReports
from qwen_companion.domain import NEWS_UNITS, ChatWork
from qwen_companion.wire.messages import Notification

_log = logging.getLogger(__name__)

COUNT_S = 30.0
"""Seconds between two requests for the number of clients."""

_MODEL_WRITES = "user"
"""The settings on the daemon's machine that a change of the model rewrites."""

_LOST_EVENTS = "Some events were missed."
_RESTARTED = "The daemon has been restarted."


Fitting = Callable[[int], str | None]
"""Returns a text of at most the given number of UTF-16 units."""


class Host(Protocol):
    """The rest of the backend, as the client of the daemon needs it."""

    async def send(self, message: Notification) -> None:
        """Send `message` to Emacs and wait for its answer."""

    def prepare(self) -> Mapping[str, str]:
        """Return variables for a daemon about to be started here; called in a thread."""
        ...

    def worked(self, work: ChatWork) -> None:
        """Handle the activity of an agent, after each change of it."""

    async def news(self, session: str, directory: str, attached: Sequence[str]) -> Fitting | None:
        """Return a text for the model to read with a prompt to a session in `directory`, with links to `attached`."""


@dataclass(frozen=True)
class Shared:
    """The part that all sessions share.  `tasks` own background work; `environ` locates plans."""

    outbox: Outbox
    tasks: Tasks
    environ: Mapping[str, str]
    host: Host
    sleep: Callable[[float], Awaitable[None]]


class Conversation:
    """A session of the daemon that is open in Emacs.  Its methods raise `DaemonError`s."""

    def __init__(
        self,
        client: DaemonClient,
        session_id: str,
        directory: str,
        shared: Shared,
        interrupted: InterruptedTurns,
        reached: Callable[[DaemonError | str | None], None],
    ) -> None:
        """Begin a session whose agent works in `directory`; `interrupted` are its interrupted turns.

        `reached` gets None when the daemon answers, else the error.
        """
        self._client = client
        self._directory = directory
        self._shared = shared
        self._reached = reached
        self._outbox = shared.outbox
        self._tasks = shared.tasks
        self._backoff = Backoff()
        self.session = DaemonSession(
            session_id, client.memberships.client_id(session_id), client.memberships.is_mine, interrupted
        )
        self._told = None
        self._work = WorkReports(session_id, directory, shared.host.worked)
        self._plans = Plans(partial(plan_path, shared.environ, os.path.realpath(directory), session_id), shared.tasks)
        self._notes: list[str] = []
        """Notes for the model that could not be sent, held for the next prompt."""
        self._opening = anyio.CancelScope()
        self._following: Task | None = None
        self._checking: Task | None = None
        self._counting: Task | None = None
        self._moved = anyio.Event()

    @property
    def id(self) -> str:
        """Emacs's id of the session."""
        return self.session.id

    def named(self, title: str | None) -> None:
        """Use `title`, the daemon's name for the session."""
        self.session.facts.rename(title)
        self._report_state()

    # --- Following

    async def open(self) -> None:
        """Load the session, send all of it to Emacs and follow it, even if it is already open, or dead.

        :raises GoneError: if it is left meanwhile
        """
        await self._stop_following()
        self.session.reloading()
        self._report_state()
        with anyio.CancelScope() as self._opening:
            try:
                reply = await self._client.load(self.session.session_id)
            except DaemonError as error:
                self._put(self.session.lost(str(error)))
                raise
            await self._rebuild(reply, None)
            self._following = self._tasks.start(self._follow, reply.cursor)
            self._counting = self._tasks.start(self._count)
            return
        raise GoneError("The session has been left.")

    async def close(self, *, end: bool) -> None:
        """Leave the session; `end` ends it for all clients.  Stop following it even when that fails."""
        await self._stop_following()
        self._put(self.session.left())
        if end:
            await self._client.close(self.session.session_id)
        else:
            await self.detach()

    async def detach(self) -> None:
        """Leave the session without informing Emacs."""
        await self._stop_following()
        # A daemon that is gone, or has forgotten the session, needs no request.
        with suppress(NotFoundError, UnreachableError):
            await self._client.detach(self.session.session_id)

    async def _stop_following(self) -> None:
        self._opening.cancel()
        tasks = [task for task in (self._following, self._checking, self._counting) if task is not None]
        self._following = self._checking = self._counting = None
        for task in tasks:
            task.cancel()
        for task in tasks:
            await task.stop()

    async def _follow(self, cursor: models.Cursor) -> None:
        """Follow the session until only the user can continue; send them the reason."""
        try:
            await self._follow_streams(cursor)
        except Exception:
            self._put(self.session.lost("An unexpected error occurred; load the session again."))
            raise

    async def _follow_streams(self, cursor: models.Cursor) -> None:
        """Handle the events from `cursor` on; reload the session where they cannot be resumed."""
        why: str | None = None
        while True:
            async with EventStream(
                self._client, self.session.session_id, cursor, backoff=self._backoff, sleep=self._shared.sleep
            ) as stream:
                async for item in stream:
                    why = _reload_reason(item)
                    if isinstance(item, Resync) and item.reason == FRAME_TOO_LARGE:
                        await self._wait("The daemon sends more than can be read.")
                    if why is None:
                        self._handle(item)
                    if why is not None or self.session.dead:
                        break
            if why is None:
                return
            reply = await self._load_again()
            if reply is None:
                return
            await self._rebuild(reply, why)
            cursor = reply.cursor

    async def _load_again(self) -> models.LoadReply | None:
        """Load the session, however long that takes; if it is unavailable, report that and return None."""
        while True:
            try:
                return await self._client.load(self.session.session_id)
            except (UnreachableError, BusyError, ServerFailedError, ProtocolViolationError) as error:
                await self._wait(str(error), error.retry_after_s if isinstance(error, BusyError) else 0.0)
            except DaemonError as error:
                self._handle(Ended(error))
                return None

    async def _wait(self, reason: str, ordered_s: float = 0.0) -> None:
        """Report the connection as lost because of `reason`; wait before a retry, at least `ordered_s` seconds."""
        wait = self._backoff.next(ordered_s)
        self._handle(Disconnected(reason, wait))
        await self._shared.sleep(wait)

    async def _rebuild(self, reply: models.LoadReply, why: str | None) -> None:
        before = self.session.snapshot()
        # Sanitising 10 MB would block the event loop.
        session, said = await in_thread(before.replayed, reply)
        await checkpoint_if_cancelled()
        outputs = session.loaded(reply, said, why)
        session.catch_up(before, self.session)
        self.session = session
        self._work.begin_anew(outputs)
        self._outbox.reset(self.id, [item for item in outputs if isinstance(item, Change)], why)
        self._put(item for item in outputs if not isinstance(item, Change))

    def _handle(self, item: StreamItem) -> None:
        self._put(self.session.handle(item))
        if isinstance(item, Connected):
            self._reached(None)
        elif isinstance(item, Disconnected):
            self._reached(item.reason)
        elif isinstance(item, Ended) and isinstance(item.error, UnauthorizedError):
            self._reached(item.error)
        elif isinstance(item, ReplayDone):
            if self._checking is not None:
                self._checking.cancel()
            self._checking = self._tasks.start(self._check)

    async def _check(self) -> None:
        """Request the open permissions and the available settings, which the stream lacks."""
        asked_about = self.session.permissions.unanswered
        try:
            status = await self._client.status(self.session.session_id)
        except DaemonError as error:
            _log.warning("the status of a session is unavailable: %s", error)
            status = None
        self._put(self.session.status(status, asked_about))
        try:
            state = (await self._client.context(self.session.session_id)).state
        except DaemonError as error:
            _log.info("the models of a session are unavailable: %s", error)
            return
        self.session.facts.choose(state)
        self._put([_choices(self.id, state)])

    async def _count(self) -> None:
        """Keep the number of clients current.

        No event reports clients that come and go, so ask after each action of others, each turn, and `COUNT_S`.
        """
        while not self.session.dead:
            with anyio.move_on_after(COUNT_S):
                await self._moved.wait()
            self._moved = anyio.Event()
            # `_follow` notices and reports a failure.
            with suppress(DaemonError):
                self.session.facts.clients = (await self._client.status(self.session.session_id)).client_count
                self._report_state()

    def _put(self, outputs: Iterable[Output | SessionChoices]) -> None:
        for output in map(self._plans.located, outputs):
            if isinstance(output, EndChange) or getattr(output, "by", None) == OTHER:
                self._moved.set()
            self._work.note(output)
            if isinstance(output, Change):
                self._outbox.change(self.id, output)
            else:
                self._outbox.queue(output)
        self._report_state()

    def _report_state(self) -> None:
        info = self.session.info
        turn = None if self.session.dead else info.turn
        self._work.report(turn, info.model, is_lost=not self.session.connected)
        if info != self._told:
            self._told = info
            self._outbox.queue(info)

    # --- Acting

    async def prompt(self, parts: Sequence[models.PromptBlock]) -> str:
        """Send the notes for the model and `parts`, without retry; return the new turn's id.

        :raises UnsupportedError: for an image, when the model is known to accept none
        """
        if any(isinstance(part, models.ImageBlock) for part in parts):
            await self._check_images()
        links = [part.uri.removeprefix(models.FILE_SCHEME) for part in parts if isinstance(part, models.LinkBlock)]
        news = await self._shared.host.news(self.session.session_id, self._directory, links)
        if news is not None and (text := news(NEWS_UNITS)):
            self._notes.append(text)
        notes = [models.TextBlock(marked(note)) for note in self._notes]
        reply = await self._client.prompt(self.session.session_id, [*notes, *parts])
        del self._notes[: len(notes)]
        turn = self.session.turns.accept(reply.prompt_id)
        self._work.note_prompt(turn, next((part.text for part in parts if isinstance(part, models.TextBlock)), ""))
        self._report_state()
        return turn

    async def cancel(self) -> None:
        """End the running turn, if one runs."""
        if not self.session.busy:
            return
        self.session.turns.cancelling = True
        self._report_state()
        try:
            await self._client.cancel(self.session.session_id)
        except DaemonError:
            self.session.turns.cancelling = False
            self._report_state()
            raise

    async def answer(self, call: Answer) -> None:
        """Answer a permission; send the model the user's comments and changes to its tool's proposal.

        :raises GoneError: when it is no longer open, or the tool differs from the one shown
        :raises NotFoundError: when another client answered first
        """
        vote = self.session.permissions.vote(call.permission, call.option, call.answers)
        if vote is None:
            raise GoneError("That question is no longer open, or has no such answer.")
        tool = None if vote.allowed is None else self.session.tool(vote.allowed)
        if vote.allowed is not None and call.revision != (None if tool is None else tool.revision):
            raise GoneError("The action has changed since it was shown.")
        note = None if vote.allowed is None else await in_thread(self._note, call, tool)
        # Send the note first: the tool runs as soon as it is allowed, and the model reads the note with its result.
        message = None if note is None else await self._send_note(note)
        try:
            await self._client.answer_permission(self.session.session_id, vote.request_id, vote.option_id, vote.answers)
        except DaemonError as error:
            if note is not None:
                await in_thread(self._plans.discard, call.permission)
                await self._withdraw_note(note, message)
            if isinstance(error, NotFoundError):
                self._put(self.session.answered_elsewhere(vote.request_id))
            raise

    def _note(self, call: Answer, tool: HeldTool | None) -> str | None:
        """Return the note for the model that goes with `call`, an answer that allows `tool`; None for no note."""
        path, proposed = (None, None) if tool is None else (tool.first_path, tool.text(NEW, 0))
        if call.text is None or path is None or proposed is None:
            return self._plans.note(call)
        return review_note(path, proposed, call.text)

    async def _send_note(self, note: str) -> str | None:
        """Send the model `note` during its turn and return the message's id; outside of a turn hold the note."""
        message = None
        with suppress(DaemonError):
            message = await self._client.send_mid_turn(self.session.session_id, note)
        if message is None:
            self._notes.append(note)
        return message

    async def _withdraw_note(self, note: str, message: str | None) -> None:
        """Withdraw `note`, sent as `message`; if the model has read it, correct it."""
        if message is None:
            self._notes.remove(note)
            return
        with suppress(DaemonError):
            if await self._client.withdraw_mid_turn(self.session.session_id, message):
                return
        await self._send_note(NOT_APPLIED)

    async def set_model(self, model: str) -> None:
        """Use the model that Emacs calls `model`."""
        model_id = self.session.facts.model_id(model)
        if model_id is None:
            raise GoneError("The daemon does not offer that model.")
        await self._client.set_model(self.session.session_id, model_id)

    async def set_mode(self, mode: str) -> None:
        """Use the approval mode `mode`."""
        await self._client.set_approval_mode(self.session.session_id, mode)

    async def remove(self, turn: str) -> None:
        """Remove the prompt of `turn` from the queue."""
        prompt_id = self.session.turns.queued_prompt(turn)
        if prompt_id is None or not await self._client.remove_pending_prompt(self.session.session_id, prompt_id):
            raise GoneError("That prompt is no longer queued.")

    # --- Asking

    async def _check_images(self) -> None:
        """Check that the model accepts images.

        :raises UnsupportedError: when it is known to accept none
        """
        # Without this check the daemon silently replaces the image by "[image: image/png]" (0.24.4).
        model = await self._client.model_in_use(self.session.session_id)
        if model is not None and model.modalities is not None and not model.modalities.image:
            raise UnsupportedError(f"The model {line(model.name or model.model_id)} takes no images.")

    async def fetch(self, tool: str, part: str, index: int) -> None:
        """Send Emacs the whole text `part` of `tool`."""
        while True:
            held = self.session.tool(tool)
            revision = None if held is None else held.revision
            # Sanitising 10 MB would block the event loop.
            text = None if held is None else await in_thread(held.text, part, index)
            # Emacs must not mistake it for the text of a later revision, reported meanwhile.
            now = self.session.tool(tool)
            if revision == (None if now is None else now.revision):
                break
        if text is None:
            raise GoneError("That text is no longer available; load the session again.")
        self._outbox.queue(ToolText(self.id, tool, part, index, text))

    async def commands(self) -> None:
        """Send the slash commands."""
        reply = await self._client.supported_commands(self.session.session_id)
        self._outbox.queue(slash_commands(self.id, reply.available_commands))

    async def usage(self) -> None:
        """Send the report on the context window."""
        reply = await self._client.context_usage(self.session.session_id)
        if not reply.formatted_text:
            raise UnsupportedError("The daemon does not say what fills the context window.")
        self._outbox.queue(ContextUsageReport(self.id, clean(reply.formatted_text)))


def _choices(session: str, state: models.ContextState) -> SessionChoices:
    """Return the available models and modes."""
    return SessionChoices(
        session,
        tuple(
            _choice(local_id("model", item.model_id), item.name or item.model_id, item.description)
            for item in state.models.available_models
        ),
        tuple(_choice(item.id, item.name or item.id, item.description) for item in state.modes.available_modes),
        _MODEL_WRITES,
    )


def _choice(identifier: str, name: str, description: str | None) -> Choice:
    return Choice(identifier, line(name), None if description is None else line(description))


def _reload_reason(item: StreamItem) -> str | None:
    """Return why the session has to be reloaded after `item`, or None."""
    if isinstance(item, Resync):
        return _RESTARTED if item.reason == "epoch_reset" else _LOST_EVENTS
    # A restarted daemon has the session on its disk only.
    return _RESTARTED if isinstance(item, Ended) and isinstance(item.error, NotFoundError) else None
