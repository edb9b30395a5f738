# SPDX-License-Identifier: GPL-3.0-or-later
"""The doors of one Emacs: its settings layer, and the hooks that it names."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio
import psutil
from anyio.abc import TaskGroup

from qwen_companion.domain import FAMILIES_WITH_HOOKS, CliState, HookAnswer, KnownSession, SessionState, Settings
from qwen_companion.doors.calls import Elsewhere
from qwen_companion.doors.hook_settings import (
    OPEN,
    QUESTION_SUBSCRIPTIONS,
    CommandHook,
    covers,
    door_secret,
    hook_settings,
)
from qwen_companion.doors.hooks import Hooks
from qwen_companion.doors.layer import DAEMON_FILE_NAME, VARIABLE, Installed, JsonObject, Layer, combine
from qwen_companion.doors.listeners import Listener
from qwen_companion.doors.user_settings import version_numbers, why_hooks_are_off
from qwen_companion.ide.peers import Caller
from qwen_companion.ide.proposals import Decision, Proposal
from qwen_companion.processes import start_of, started_before
from qwen_companion.programs import find_program
from qwen_companion.sockets import Connection
from qwen_companion.threads import in_thread

if TYPE_CHECKING:
    from qwen_companion.doors.hook_handler import HookHandler
    from qwen_companion.ide.tools import Editor

SILENCE_S = 5.0
"""Delay, in seconds, from the connection of a CLI to the report that a setting or an option turns its hooks off.

A CLI with hooks calls one when it starts.
"""

UNEXPLAINED_SILENCE_S = 60.0
"""The same where nothing turns them off, in seconds: on a busy machine the first hook may come late."""

_HEADER_FILE = "qwen-hook-header"

_UNEXPLAINED = "no setting tells why"

_START_HOOK_SINCE = (0, 21)
"""The first version of Qwen Code that is known to call a hook when it starts.  0.15 does so with the first prompt."""


class Doors:
    """See the top of this file.  All methods but `install` and `remove` are for the event loop."""

    def __init__(
        self,
        port: int,
        token: str,
        directory: str,
        environ: Mapping[str, str],
        editor: Editor,
        find_caller: Callable[[Connection], Caller | None],
        known: Sequence[SessionState],
        sessions: Callable[[], Iterable[SessionState]],
        changed: Callable[[], None],
        report_answers: Callable[[str, tuple[HookAnswer, ...]], None],
        listeners: Sequence[Listener] = (),
        added: Callable[[], JsonObject] = dict,
        silence_s: float = SILENCE_S,
        unexplained_silence_s: float = UNEXPLAINED_SILENCE_S,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """Take a private `directory` for the layer, and the environment `environ` for terminals that have none.

        `known` has the states of sessions from an earlier process; `sessions` returns the connected CLIs.  `changed` is
        called when `annotated` would return another result, `report_answers`, while watched, with the answers to the
        hooks of a session.  `listeners` hear the events that hooks report, `added` returns more settings for the layer.
        `elsewhere` has the CLIs of other places.
        """
        self.secret = door_secret(token)
        self._port = port
        self._directory = directory
        self._layer = Layer(directory, environ)
        self._daemon_layer = Layer(directory, environ, DAEMON_FILE_NAME)
        self._serves_daemon = False
        curl = find_program("curl", environ)
        self._command = CommandHook(curl, os.path.join(directory, _HEADER_FILE)) if curl else None
        self._environ = environ
        self._editor = editor
        self._find_caller = find_caller
        self._elsewhere = elsewhere
        self._sessions = sessions
        self._changed = changed
        self._report_answers = report_answers
        self._is_watched = False
        self._silence_s = silence_s
        self._unexplained_silence_s = unexplained_silence_s
        self._settings = Settings()
        self._listeners = listeners
        self._added = added
        heard = (item for listener in listeners for item in listener.subscriptions)
        self._subscriptions = [*heard, *QUESTION_SUBSCRIPTIONS]
        held = {item.event for item in self._subscriptions if item.hold_s > 0}
        self.hooks = Hooks(self._load, held)
        self._handler: HookHandler | None = None
        self._known = {item.session.id: item.state for item in known if item.state is not None}
        # Those that are there already have called their first hook before.
        self._watched = {item.session.id for item in known}
        self._unwatched, self._unwatched_left = anyio.create_memory_object_stream[KnownSession](math.inf)
        self._silent = {item.session.id: item.no_hooks for item in known if item.no_hooks is not None}
        self._started = start_of(os.getpid()) or ""

    # --- The layer ---

    @property
    def guards(self) -> bool:
        """Whether CLIs ask before edits when this process does not answer."""
        return self._command is not None

    def set_settings(self, settings: Settings) -> bool:
        """Take the user's `settings`; return whether `install` has to be called."""
        before, self._settings = self._settings, settings
        self._apply_settings()
        return self._layer_settings(before) != self._layer_settings(settings)

    def _layer_settings(self, settings: Settings) -> JsonObject | None:
        """Return the content of the layer for `settings`; None for no layer."""
        return self.settings_at(self._port, self.secret, self._command, self._added(), settings)

    def settings_at(
        self, port: int, secret: str, command: CommandHook | None, added: JsonObject, settings: Settings | None = None
    ) -> JsonObject | None:
        """Return the content of the layer for CLIs that reach the hooks at `port` by `secret`; None for no layer.

        They run `command` before edits, None where there is none; it has the settings `added` too.  Without `settings`,
        those of the user hold.
        """
        settings = settings or self._settings
        if not settings.layer:
            return None
        # What does not wait for a review is not to wait for Emacs.
        command = None if _scope(settings) is None else command
        return combine(hook_settings(port, secret, command, self._subscriptions), added)

    def _daemon_settings(self) -> JsonObject | None:
        """Return the content of a daemon's layer; None for no layer.

        It has no hooks: the edits of a chat are reviewed in the chat.
        """
        added = self._added() if self._serves_daemon and self._settings.layer else {}
        return added or None

    def install(self) -> Installed:
        """Write the layer, or remove it if the user wants none.  Waits for the disk."""
        self._install_for_daemon()
        ours = self._layer_settings(self._settings)
        if ours is None:
            self._remove_layer()
            return Installed()
        if self._command is not None:
            self._command.install(self.secret)
        return self._layer.install(ours)

    def is_current(self) -> bool:
        """Return whether the disk has what `install` would write.  Waits for the disk.

        The file may have been removed by a cleaner of temporary files, or the administrator's have changed.
        """
        both = (self._layer, self._layer_settings(self._settings)), (self._daemon_layer, self._daemon_settings())
        has_header = self._command is None or os.path.exists(self._command.header)
        return has_header and all(ours is None or layer.is_current(ours) for layer, ours in both)

    def install_for_daemon(self) -> Mapping[str, str]:
        """Write the layer of daemons that Emacs starts, and keep it current.

        Return the variables that name it to a daemon, none where there is nothing to say.  Waits for the disk.
        """
        self._serves_daemon = True
        return self._install_for_daemon()

    def _install_for_daemon(self) -> Mapping[str, str]:
        ours = self._daemon_settings()
        if ours is None:
            self._daemon_layer.remove()
            return {}
        # The user is warned of the same by the layer of terminals.
        return self._daemon_layer.install(ours).environment

    def remove(self) -> None:
        """Remove the layers.  Waits for the disk."""
        self._remove_layer()
        self._daemon_layer.remove()

    def _remove_layer(self) -> None:
        self._layer.remove()
        if self._command is not None:
            self._command.remove()

    # --- The hooks ---

    async def run(self) -> None:
        """Take the reports of hooks, and watch whether they are called, until cancelled."""
        async with anyio.create_task_group() as tasks, self._unwatched, self._unwatched_left:
            tasks.start_soon(self.hooks.run)
            async for session in self._unwatched_left:
                tasks.start_soon(self._watch, session)

    async def _load(self, tasks: TaskGroup) -> HookHandler:
        if self._handler is None:
            self._handler = await in_thread(self._import, tasks)
            self._apply_settings()
        return self._handler

    def _apply_settings(self) -> None:
        if self._handler is not None:
            self._handler.reviews.scope = _scope(self._settings)
            self._handler.questions.wanted = self._settings.questions

    def _import(self, tasks: TaskGroup) -> HookHandler:
        from qwen_companion.doors.hook_handler import HookHandler
        from qwen_companion.doors.questions import Questions
        from qwen_companion.doors.reviews import HookReviews
        from qwen_companion.doors.states import States
        from qwen_companion.doors.terminal_files import terminal_files

        states = States(
            {
                state.session.peer.pid: self._known[state.session.id]
                for state in self._sessions()
                if state.session.peer is not None and state.session.id in self._known
            }
        )
        files_of = partial(terminal_files, self._directory)
        return HookHandler(
            tasks,
            states,
            HookReviews(tasks, self._editor, files_of),
            Questions(tasks, self._editor, files_of, self._environ, elsewhere=self._elsewhere),
            self._listeners,
            self._find_caller,
            self._sessions,
            self._states_changed,
            self._answered,
            self._elsewhere,
        )

    def decide(self, identifier: str, decision: Decision) -> None:
        """Take the user's decision on the proposal `identifier`, which came by a hook."""
        handler = self._handler
        if not handler or not any(held.decide(identifier, decision) for held in (handler.questions, handler.reviews)):
            self._editor.settled(identifier)

    def waiting(self) -> Sequence[Proposal]:
        """Return the proposals that came by a hook and on which the user has not decided."""
        return () if self._handler is None else self._handler.reviews.waiting()

    def release(self, identifier: str) -> None:
        """Have the terminal ask about the plan or the questions `identifier`."""
        if self._handler is not None:
            self._handler.questions.release(identifier)

    def calls_hooks(self, pid: int) -> bool:
        """Return whether the CLI in process `pid` has called a hook of ours."""
        return self._handler is not None and self._handler.states.get(pid) is not None

    def prompted(self, pid: int, prompt: str, time: int) -> bool:
        """Note that the CLI in process `pid` has begun with `prompt`, see `States.prompted`."""
        return self._handler is not None and self._handler.prompted(pid, prompt, time)

    def watch(self, on: bool) -> None:
        """Note whether the user looks at the answers to hooks."""
        self._is_watched = on
        for state in self._sessions():
            self._tell_answers(state.session)

    def _answered(self, pid: int) -> None:
        for state in self._sessions():
            if state.session.peer is not None and state.session.peer.pid == pid:
                self._tell_answers(state.session)

    def _tell_answers(self, session: KnownSession) -> None:
        if self._is_watched and self._handler is not None and session.peer is not None:
            self._report_answers(session.id, self._handler.answers.get(session.peer.pid))

    # --- What is known of the CLIs ---

    def annotated(self, state: SessionState) -> SessionState:
        """Return `state` with the reports of the hooks."""
        reported = self._state(state.session)
        silent = None if reported is not None else self._silent.get(state.session.id)
        return replace(state, state=reported, no_hooks=silent)

    def _state(self, session: KnownSession) -> CliState | None:
        if self._handler is None or session.peer is None:
            return self._known.get(session.id)
        return self._handler.states.get(session.peer.pid)

    def look_after(self, session: KnownSession) -> None:
        """Begin to watch whether `session` calls its hooks, if it is new."""
        if session.peer is not None and session.id not in self._watched:
            self._watched.add(session.id)
            if self._has_hooks(session):
                with suppress(anyio.ClosedResourceError):
                    self._unwatched.send_nowait(session)

    def _states_changed(self) -> None:
        """Take back, of each CLI that now calls hooks, that it calls none."""
        if self._silent:
            for state in self._sessions():
                session = state.session
                if session.id in self._silent and self._state(session) is not None:
                    del self._silent[session.id]
                    self._editor.warn(f"{session.label} calls its hooks after all")
        self._changed()

    async def _watch(self, session: KnownSession) -> None:
        await anyio.sleep(self._silence_s)
        reason = await self._silence(session)
        if reason == _UNEXPLAINED:
            await anyio.sleep(self._unexplained_silence_s - self._silence_s)
            reason = await self._silence(session)
        if reason is not None:
            self._silent[session.id] = reason
            self._editor.warn(
                f"{session.label} calls no hooks ({reason}): edits about which it does not ask are not reviewed"
            )
            self._changed()

    async def _silence(self, session: KnownSession) -> str | None:
        """Return why the CLI of `session` has called no hook, in words; None where it has, or need not."""
        if self._state(session) is not None:
            return None
        reason = await in_thread(self._why_silent, session)
        return reason if self._state(session) is None else None

    def _has_hooks(self, session: KnownSession) -> bool:
        """Return whether the CLI of `session` is of a kind that calls a hook when it starts, and has started since."""
        peer = session.peer
        # One that is older than this process has called its first hook before, if it has.
        return (
            peer is not None
            and peer.place is None
            and peer.family in FAMILIES_WITH_HOOKS
            and version_numbers(session.version) >= _START_HOOK_SINCE
            and not started_before(peer.started, self._started)
        )

    def is_unreviewed(self, session: KnownSession, is_open: bool) -> bool:
        """Return whether a change by `session` that no hook announced was to be reviewed.  Blocks on disk I/O."""
        scope = _scope(self._settings)
        if scope is None or (scope == OPEN and not is_open):
            return False
        if (state := self._state(session)) is not None:
            # The terminal asks where the command gets no answer; a hook of HTTP then lets the edit run.
            return not self.guards and covers(scope, state.mode)
        return session.id in self._silent or (self._has_hooks(session) and self._why_silent(session) is not None)

    def _why_silent(self, session: KnownSession) -> str | None:
        """Return why the CLI of `session` calls no hooks, in words; None where it need not."""
        peer = session.peer
        if peer is None:
            return None
        try:
            process = psutil.Process(peer.pid)
            if process.environ().get(VARIABLE) != self._layer.path:
                return None
            options = [argument for argument in process.cmdline() if argument in ("--bare", "--safe-mode")]
        except (psutil.Error, OSError):
            return None
        if options:
            return f"it was started with {options[0]}"
        directory = peer.directory
        found = why_hooks_are_off(directory, self._environ, session.version) if directory else None
        return found or _UNEXPLAINED


def _scope(settings: Settings) -> str | None:
    """Return the edits that are reviewed by way of the layer."""
    return settings.review_edits if settings.layer and not settings.no_reviews else None
