# SPDX-License-Identifier: GPL-3.0-or-later
"""All places whose CLIs are served, with their connections and sessions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from qwen_companion.base.errors import CompanionError, PromptError
from qwen_companion.base.sockets import Connection
from qwen_companion.base.tasks import Tasks
from qwen_companion.domain import Exclusion, Peer, SessionState, Settings, Snapshot
from qwen_companion.doors.terminal_files import submission
from qwen_companion.ide.access import HIDDEN
from qwen_companion.ide.peers import Caller, caller_at
from qwen_companion.ide.targets import TargetError
from qwen_companion.remote.link import LinkError, UncertainError
from qwen_companion.wire.messages import (
    CheckPlace,
    ListPlaceFiles,
    PlaceChecks,
    PlacesWanted,
    RunAt,
    RunCommand,
)

if TYPE_CHECKING:
    from qwen_companion.doors.listeners import Report
    from qwen_companion.ide.access import Access
    from qwen_companion.ide.context_distributor import Reports
    from qwen_companion.ide.guard import Keys
    from qwen_companion.remote.far import FarSite
    from qwen_companion.remote.laid_files import Callbacks
    from qwen_companion.remote.place import Place


_PATHS = ("file_path", "notebook_path", "directory")
"""Arguments of tools that are names of files."""


class Places:
    """Serves the places that Emacs wants, while `run` runs."""

    def __init__(
        self,
        token: str,
        server_port: int,
        environ: Mapping[str, str],
        spool: str,
        reports: Reports,
        callbacks: Callbacks,
    ) -> None:
        """Carry connections to the local port `server_port`, which `token` opens; keep copies of files below `spool`.

        Programs that lead to places have the variables `environ`.
        """
        self.token = token
        self.server_port = server_port
        self.environ = environ
        self.spool = spool
        self.reports = reports
        self.callbacks = callbacks
        self._sites: dict[str, FarSite] = {}
        self._open: dict[str, Place] = {}
        self._sessions: dict[str, SessionState] = {}
        self._snapshot: Snapshot | None = None
        self._settings: Settings | None = None
        self._watched = False
        self._tasks = Tasks()

    async def run(self) -> None:
        """Serve the places until cancelled."""
        await self._tasks.run()

    # --- Calls of Emacs

    def want(self, message: PlacesWanted) -> None:
        """Serve the places of `message`, and no others."""
        # Most users have no place, so import this only when needed.
        from qwen_companion.remote.place import Place

        wanted = {place.name: place for place in message.places}
        for name, place in list(self._open.items()):
            if name not in wanted or wanted[name].names != place.names:
                del self._open[name]
                if place.task is not None:
                    place.task.cancel()
        for name, item in wanted.items():
            if name in self._open:
                self._open[name].want(item)
            else:
                self._begin(Place(item, self))
            self._open[name].copies.set_visited(item.files)
        for name in {self._name(session) for session in self._sessions} - wanted.keys():
            self.set_reachable(name, False)

    def set_reachable(self, name: str, reachable: bool, /) -> None:
        """Record whether a line leads to the place `name`."""
        # The CLIs of an abandoned place do not come back.
        self.callbacks.set_reachable(name, reachable or name not in self._open)

    def _begin(self, place: Place) -> None:
        if self._snapshot is not None:
            place.context.set_snapshot(self._snapshot)
        if self._settings is not None:
            place.set_settings(self._settings)
        place.context.watch(self._watched)
        self._open[place.wanted.name] = place
        place.task = self._tasks.start(place.run)
        for state in self._sessions.values():
            self.set_session(state)

    def run_at(self, request: RunAt) -> None:
        """Answer how to run a program at a place, once known."""
        if request.place in self._open:
            self._tasks.start(self._open[request.place].run_at, request)
        else:
            self.callbacks.tell(RunCommand(request.terminal, None, error=f"{request.place} is not served"))

    async def read_more(self, name: str, path: str, offset: int) -> bytes:
        """Return a piece of the file `path` at the place `name` from `offset` on; empty if it cannot be read."""
        with suppress(CompanionError):
            return (await self.place(name).link().ask("read", path=path, offset=offset))[1]
        return b""

    async def send_prompt(self, session: str, text: str) -> None:
        """Make the CLI of `session`, at a place, read the prompt `text`.

        :raises PromptError: when that fails
        """
        state = self._sessions.get(session)
        pid = next(iter(state.session.peer.ancestors), None) if state and state.session.peer else None
        try:
            await self.place(self._name(session)).link().request("prompt", pid=pid, text=submission(text))
        except UncertainError as error:
            # It is not sent later either.
            raise PromptError(f"the prompt may have been sent ({error}): look at its terminal first") from None
        except CompanionError as error:
            raise PromptError(f"the prompt was not sent: {error}") from None

    def list_files(self, message: ListPlaceFiles) -> None:
        """Answer with the files below a directory of a place."""
        if message.place in self._open:
            self._tasks.start(self._open[message.place].copies.list_files, message)

    def check(self, message: CheckPlace) -> None:
        """Answer with the checks of the doctor at a place."""
        self._tasks.start(self._check, message)

    async def _check(self, message: CheckPlace) -> None:
        from qwen_companion.remote.checks import checks

        place = self._open.get(message.place)
        lines = [] if place is None else [check.line() for check in await checks(place, message.program)]
        self.callbacks.tell(PlaceChecks(message.id, tuple(lines)))

    def set_snapshot(self, snapshot: Snapshot) -> None:
        """Set the snapshot of all buffers."""
        self._snapshot = snapshot
        for place in self._open.values():
            place.context.set_snapshot(snapshot)

    def set_settings(self, settings: Settings) -> None:
        """Set the user's settings."""
        self._settings = settings
        for place in self._open.values():
            place.set_settings(settings)
        self.lay_again()

    def lay_again(self) -> None:
        """Write the files at each place again after a change of settings or tools."""
        for place in self._open.values():
            place.lay_again()

    def emacs_gone(self) -> None:
        """Allow more time to end relays, now that Emacs is gone."""
        from qwen_companion.remote.place import LAST_FAREWELL_S

        for place in self._open.values():
            place.farewell_s = LAST_FAREWELL_S

    # --- Roots

    @property
    def roots(self) -> Sequence[str]:
        """Return the names in Emacs of the projects at all places."""
        return [root.name for place in self._open.values() for root in place.roots]

    def site(self, name: str) -> FarSite | None:
        """Return the site of the root `name`, None if local.  Callable in any thread."""
        from qwen_companion.remote.far import FarSite

        roots = (root for place in tuple(self._open.values()) for root in place.roots)
        root = next((root for root in roots if root.place and root.name == name), None)
        if root is not None and name not in self._sites:
            self._sites[name] = FarSite(root, self.place(root.place).home, lambda: self.place(root.place).link())
        return self._sites.get(name)

    def stir(self, name: str) -> None:
        """Tell the site of the root `name`, if any, that files have changed there."""
        if name in self._sites:
            self._sites[name].stir()

    def name_of(self, peer: Peer, path: str) -> str:
        """Return Emacs's name of the file that the CLI in the process `peer` calls `path`."""
        place = self._open.get(peer.place or "")
        return (peer.place or "") + path if place is None else place.name(path) or ""

    def files(self, peer: Peer) -> Place | None:
        """Return the files of the CLI in the process `peer` at a place; None if that is not served."""
        return self._open.get(peer.place or "")

    def is_visited(self, name: str) -> bool | None:
        """Return whether a buffer visits the file `name` of a place; None for a local file."""
        for place in self._open.values():
            path = place.names.path(name)
            if path is not None and place.names.file(path).place:
                return path in place.wanted.files
        return None

    async def lay_plan(self, place: str, text: str) -> str:
        """Write the plan `text` to a temporary file at `place`, which must be served; return its name there.

        :raises LinkError, RequestError: when it cannot be written
        """
        from qwen_companion.remote.laid_files import Laid

        return (await self.place(place).link().fetch(Laid, "lay", kind="md", port=0, text=text)).path

    def place(self, name: str) -> Place:
        """Return the place `name`.

        :raises LinkError: when it is not served
        """
        if name not in self._open:
            raise LinkError(f"{name} is not served")
        return self._open[name]

    def named(self, report: Report) -> Report | None:
        """Return `report`, of a CLI at a place, with Emacs's names; None if it names nothing there."""
        place = self._open.get(report.peer.place or "")
        return None if place is None else named_by(report, place.name)

    def named_session(self, state: SessionState) -> SessionState:
        """Return `state`, for a CLI at a place with Emacs's name of its directory, None while unknown."""
        peer = state.session.peer
        if peer is None or peer.place is None:
            return state
        place = self._open.get(peer.place)
        directory = place and peer.directory and place.name(peer.directory)
        return replace(state, session=replace(state.session, peer=replace(peer, directory=directory or None)))

    # --- Connections and sessions

    def keys(self, port: int) -> Keys | None:
        """Return the keys that admit the connection from local `port`, None if no relay carries it."""
        return next((keys for place in self._open.values() if (keys := place.keys(port)) is not None), None)

    def access(self, peer: Peer) -> Access | None:
        """Return the access of the CLI in the process `peer` of a place, or None while unknown."""
        place = self._open.get(peer.place or "")
        return None if place is None else place.context.access(peer)

    def caller(self, connection: Connection) -> Caller | None:
        """Return the CLI whose `connection` a relay carries, or None.  Callable in any thread."""
        for name, place in tuple(self._open.items()):
            who = place.who(connection.client[1])
            if who is not None:
                return caller_at(name, who)
        return None

    def set_session(self, state: SessionState) -> bool:
        """Add or update a session; return whether it is at a place."""
        peer = state.session.peer
        if peer is None or peer.place is None:
            return False
        self._sessions[state.session.id] = state
        if peer.place in self._open:
            self._open[peer.place].context.set_session(state)
        return True

    def drop_session(self, session: str) -> None:
        """Remove an ended session."""
        self._sessions.pop(session, None)
        for place in self._open.values():
            place.context.drop_session(session)

    def of_session(self, session: str) -> Place | None:
        """Return the place of `session`; None if local, or if the place is abandoned."""
        return self._open.get(self._name(session))

    # --- What CLIs there are sent

    def watch(self, on: bool) -> None:
        """Start or stop reporting contexts."""
        self._watched = on
        for place in self._open.values():
            place.context.watch(on)

    def sent(self, session: str, context: bytes) -> bool:
        """Record that `context` went out to `session`; return whether it is at a place."""
        place = self.of_session(session)
        if place is not None:
            place.context.sent(session, context)
        return self.is_elsewhere(session)

    def exclusions(self, here: Iterable[Exclusion]) -> tuple[Exclusion, ...]:
        """Return the exclusions `here`, by the rules of places for their files, and those of single CLIs there."""
        contexts = [place.context for place in self._open.values()]
        found = [each for context in contexts for each in context.exclusions if each.session is not None]
        for each in here:
            rule: str | None = each.rule
            for context in contexts if each.session is None and each.rule != HIDDEN else ():
                rule = rule and context.rule(each.path, rule)
            if rule is not None:
                found.append(replace(each, rule=rule))
        return tuple(found)

    def is_elsewhere(self, session: str) -> bool:
        """Return whether `session` is at a place."""
        return session in self._sessions

    def _name(self, session: str) -> str:
        state = self._sessions.get(session)
        return (state.session.peer.place if state and state.session.peer else None) or ""

    async def check_target(self, session: str, path: str) -> bool:
        """Check the file `path` of a proposal by `session`; return whether it is at a place.

        :raises TargetError: when it cannot be reviewed
        """
        if not self.is_elsewhere(session):
            return False
        place = self.of_session(session)
        if place is None:
            raise TargetError("Emacs does not serve this place any more. Decide in the terminal instead.")
        await place.check_target(path)
        return True


def named_by(report: Report, name: Callable[[object], str | None]) -> Report | None:
    """Return `report` with each file name mapped by `name`; None if its directory maps to None."""
    event = report.event
    directory = name(event.cwd)
    if directory is None:
        return None
    changes: dict[str, object] = {"cwd": directory, "session_id": report.peer.conversation(event.session_id)}
    values: object = getattr(event, "tool_input", None)
    if isinstance(values, dict):
        call = cast("dict[str, object]", values)
        paths = {key: call[key] for key in _PATHS if isinstance(call.get(key), str)}
        there = {key: name(os.path.join(event.cwd, str(path))) or "" for key, path in paths.items()}
        changes["tool_input"] = {**call, **there}
    return replace(report, event=event.model_copy(update=changes))
