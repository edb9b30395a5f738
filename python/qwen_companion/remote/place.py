# SPDX-License-Identifier: GPL-3.0-or-later
"""One place whose CLIs are served: its pipe, its files, and requests about it."""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import anyio
from pydantic import Field

from qwen_companion.base.errors import CompanionError, first_error
from qwen_companion.base.file_names import FileNameError, file_name
from qwen_companion.base.threads import in_thread
from qwen_companion.domain import PlacedFile, PlaceNames, Settings
from qwen_companion.doors.door_settings import secrets_of
from qwen_companion.files.versions import digest_of
from qwen_companion.ide.context import ResolvedPath
from qwen_companion.ide.context_distributor import Reports
from qwen_companion.ide.guard import Keys
from qwen_companion.remote.commands import UnsupportedPlaceError, relay_command, relay_source, terminal_command
from qwen_companion.remote.context import PlaceContext
from qwen_companion.remote.laid_files import Callbacks, lay
from qwen_companion.remote.link import Answer, FileName, Greeting, Link, LinkError, RequestError
from qwen_companion.remote.mirrors import Copies
from qwen_companion.remote.streams import Streams
from qwen_companion.wire.messages import Notice, PlaceState, RunAt, RunCommand, WantedPlace

if TYPE_CHECKING:
    from qwen_companion.base.tasks import Task

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0
"""Longest pause in seconds before a broken pipe is opened again; each is twice the previous one."""

_PORTS = range(20000, 32000)
"""Ports outside of the range that systems assign automatically."""

FAREWELL_S = 3.0
"""Seconds that a relay with a broken pipe may take to start again, so that it can be told to end."""

LAST_FAREWELL_S = 30.0
"""The same limit once Emacs has exited."""


class Surroundings(Protocol):
    """What all places share, see `Places`."""

    token: str
    server_port: int
    environ: Mapping[str, str]
    spool: str
    reports: Reports
    callbacks: Callbacks

    def stir(self, name: str) -> None:
        """Report that files have changed in the root `name`."""
        ...

    def set_reachable(self, name: str, reachable: bool, /) -> None:
        """Record whether a line leads to the place `name`."""
        ...


class _Serving(Answer):
    port: Annotated[int, Field(gt=0, lt=65536)]


class _Project(Answer):
    root: FileName
    real: FileName


class _Missing(Answer):
    error: str


class _Projects(Answer):
    roots: list[_Project | _Missing]


class Place:
    """One of `places`, which is `wanted`.

    Call its methods on the event loop; `run` keeps the pipe open until cancelled.  It has the files of CLIs there, see
    `Files`.
    """

    def __init__(self, wanted: WantedPlace, places: Surroundings) -> None:
        self.farewell_s = FAREWELL_S
        self.names = wanted.names
        self.context = PlaceContext(self.names, places.reports)
        self.wanted = wanted
        self._places = places
        # The token of this machine's server is not told there: the place has its own, derived from it.
        self._token = hmac.new(
            places.token.encode("utf-8"), b"place " + wanted.name.encode("utf-8"), hashlib.sha256
        ).hexdigest()
        self._streams = Streams(places.server_port)
        self._tell = places.callbacks.tell
        self.copies = Copies(self.names, places.spool, self.link, self._tell)
        self.task: Task | None = None
        self._link: Link | None = None
        self._greeting: Greeting | None = None
        self._keys: Keys | None = None
        self._variables = ""
        """The file of terminals' variables there."""
        self._environment: Mapping[str, str] = {}
        self._roots: tuple[ResolvedPath, ...] = ()
        self._extra: dict[str, None] = {}
        self._laying = anyio.Lock()
        self._again = anyio.Event()
        self._settled = anyio.Event()
        """Set when the pipe is open, or cannot be opened."""
        self._failure = ""
        self._is_left = False
        """Whether a relay runs there without a pipe."""

    # --- For others

    def keys(self, port: int) -> Keys | None:
        """Return the keys that admit the connection from local `port`, or None if it is not from this place."""
        return None if self._streams.who(port) is None else self._keys

    def who(self, port: int) -> Mapping[str, Any] | None:
        """Return the relay's description of the CLI whose connection comes from local `port`."""
        return self._streams.who(port)

    def want(self, wanted: WantedPlace) -> None:
        """Set Emacs's description of the place; retry at once if it was unreachable."""
        before, self.wanted = self.wanted, wanted
        if self._link is None or replace(wanted, files=()) != replace(before, files=()):
            self._again.set()

    def set_settings(self, settings: Settings) -> None:
        """Set the user's settings."""
        self.copies.size_limit = settings.size_limit
        self.context.set_settings(settings)

    def lay_again(self) -> None:
        """Write the files there again after a change of settings or tools; a closed pipe does so when it opens."""
        if self._link is not None:
            self._again.set()

    @property
    def roots(self) -> Sequence[PlacedFile]:
        """Return the projects there."""
        return [self.names.file(root.path) for root in self._roots]

    @property
    def home(self) -> str:
        """Return the home directory there, "" while unknown."""
        return self._greeting.home if self._greeting else ""

    def name(self, path: object) -> str | None:
        """See `name_at`."""
        return name_at(self.names, self._roots, path)

    async def check_target(self, path: str) -> None:
        """Check that the file `path` there can be given a new text in a review.

        :raises TargetError: otherwise
        """
        await self.copies.check_target(path, self._roots)

    async def review_file(self, path: str) -> str:
        """See `Files`: it is a copy.

        :raises TargetError: when it cannot be reviewed
        """
        await self.check_target(path)
        return (await self.copies.review_file(path))[0]

    async def write(self, path: str, expected: bytes | None, data: bytes) -> None:
        """See `Files`.

        :raises OSError: when its text is not the expected one, or it cannot be written
        """
        projects = [name for root in self._roots for name in (root.path, root.real)]
        root = max((name for name in projects if path.startswith(f"{name.rstrip('/')}/")), key=len, default=None)
        if root is None:
            raise OSError(errno.EACCES, "it lies outside of the projects there")
        digest, file = None if expected is None else digest_of(expected), os.path.relpath(path, root)
        try:
            await self.link().ask("replace", data, root=root, file=file, expected=digest, remove=False, link=False)
        except (LinkError, RequestError) as error:
            raise OSError(errno.EIO, str(error)) from None

    async def run_at(self, request: RunAt) -> None:
        """Answer `request` once the discovery file there contains its directory."""
        try:
            directory = file_name(request.directory)
            if self._link is None and self._settled.is_set():
                self._settled = anyio.Event()
                self._again.set()
            await self._settled.wait()
            link = self.link()
            if request.project:
                found = await self._projects(link, [directory])
                if not found:
                    raise RequestError(f"there is no directory {directory}")
                directory = found[0].path
            self._extra[directory] = None
            await self._lay(link)
            command = terminal_command(
                *(self.wanted.hops, self.wanted.control, directory, self._variables),
                *(request.terminal, request.command),
            )
            answer = RunCommand(request.terminal, PlacedFile(request.place, directory).name, tuple(command))
        except CompanionError as error:
            answer = RunCommand(request.terminal, None, error=str(error))
        self._tell(answer)

    # --- Life

    async def run(self) -> None:
        """Keep the pipe open until cancelled."""
        try:
            await self._run()
        finally:
            if self._is_left:
                await self._say_farewell()

    async def _run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._streams.run)
            tasks.start_soon(self.context.run)
            tasks.start_soon(self.copies.run)
            pause, control = FIRST_PAUSE_S, self.wanted.control
            while True:
                self._again = anyio.Event()
                if self._settled.is_set():
                    self._settled = anyio.Event()
                self._report("connecting")
                try:
                    lasting, was_open = await self._run_once(control)
                except UnsupportedPlaceError as error:
                    self._failure, lasting, was_open = str(error), True, False
                # The connection of TRAMP may be dead for a long time, and one of our own may lack a password.
                lasting = lasting and control == self.wanted.control
                control = None if control and not lasting else self.wanted.control
                self._settled.set()
                pause = FIRST_PAUSE_S if was_open else min(2 * pause, LONGEST_PAUSE_S)
                if lasting:
                    self._report("failed", self._failure)
                else:
                    self._report("lost", self._failure, int(1000 * (time.time() + pause)))
                with anyio.move_on_after(None if lasting else pause):
                    await self._again.wait()

    async def _run_once(self, control: str | None) -> tuple[bool, bool]:
        """Open the pipe until it breaks; return whether the reason is lasting, and whether it was open.

        For `control` see `relay_command`.

        :raises UnsupportedPlaceError: when no command can open it
        """
        link = await self._new_link(control)
        greeted = anyio.Event()
        lasting = was_open = False

        def ready(greeting: Greeting) -> None:
            self._greeting = greeting
            greeted.set()

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(link.run, ready)
                await greeted.wait()
                await self._settle(link)
                while True:
                    await self._again.wait()
                    self._again = anyio.Event()
                    await self._lay(link)
        except BaseException as error:  # noqa: BLE001 - raised again
            found = first_error(error)
            if not isinstance(found, (LinkError, RequestError)):
                raise found from None
            self._failure = str(found)
            self._places.set_reachable(self.wanted.name, False)
            # A relay that cannot write its files cannot do so a moment later either.
            lasting, was_open = isinstance(found, RequestError) or found.lasting, self._link is not None
        finally:
            if greeted.is_set():
                self._is_left = link.is_left
            self._link = None
            self.context.set_link(None)
        return lasting, was_open

    async def _new_link(self, control: str | None) -> Link:
        return Link(
            relay_command(self.wanted.hops, control),
            self._places.environ,
            await in_thread(relay_source, self._token[:16], self.wanted.keep_s),
            self._streams,
            self._note_changes,
        )

    async def _say_farewell(self) -> None:
        """Tell a relay with a broken pipe to end: an ssh connection shared with TRAMP breaks with Emacs."""
        with anyio.move_on_after(self.farewell_s, shield=True) as scope, suppress(CompanionError):
            link = await self._new_link(None)
            await link.run(lambda _greeting: scope.cancel())

    def _report(self, state: str, reason: str | None = None, retry_at: int | None = None) -> None:
        roots = tuple(root.path for root in self._roots)
        self._tell(PlaceState(self.wanted.name, state, reason, roots, self.home or None, self._environment, retry_at))

    def _warn(self, text: str) -> None:
        self._tell(Notice(f"{self.wanted.name}: {text}"))

    def _note_changes(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._places.stir(self.names.file(path).name)
        self.copies.note_changes(paths)

    def link(self) -> Link:
        """Return the pipe.

        :raises LinkError: when it is not open
        """
        if self._link is None:
            raise LinkError(f"{self.wanted.name} cannot be reached: {self._failure or 'it is being connected'}")
        return self._link

    # --- What is laid down there

    async def _settle(self, link: Link) -> None:
        """Listen there, write the files, and report the place as ready."""
        # The same port after a restart of this process lets CLIs reconnect.
        preferred = _PORTS[int(self._token[:8], 16) % len(_PORTS)]
        secrets = secrets_of(self._token)
        serving = await link.fetch(_Serving, "serve", port=preferred, tokens=[self._token, *secrets.values()])
        self._keys = Keys(serving.port, self._token, secrets)
        self._link = link
        self._places.set_reachable(self.wanted.name, True)
        self._streams.admit()
        await self._lay(link)
        await link.request("watch", paths=list(self.copies.paths))
        self._note_changes(self.copies.paths)
        self.context.set_link(link, self.home)
        self._failure = ""
        self._settled.set()

    async def _lay(self, link: Link) -> None:
        """Write the discovery file for the roots, the layer, and the terminals' variables."""
        async with self._laying:
            keys, greeting = self._keys, self._greeting
            if keys is None or greeting is None:
                return
            found = await self._projects(link, [*self.wanted.directories, *self._extra])
            self._roots = tuple(dict.fromkeys(root for root in found if os.pathsep not in root.path))
            paths = [root.path for root in self._roots]
            layer_of = self._places.callbacks.layer_of
            self._variables, self._environment = await lay(link, greeting, keys, paths, layer_of, self._warn)
            self.context.set_resolved_roots(self._roots)
            self._places.callbacks.roots_changed()
            self._report("ready")

    async def _projects(self, link: Link, directories: Sequence[str]) -> list[ResolvedPath]:
        """Return the projects that `directories` belong to; omit missing ones.

        :raises RequestError: when the relay fails
        """
        found = await link.fetch(_Projects, "projects", paths=list(directories))
        return [ResolvedPath(item.root, item.real) for item in found.roots if isinstance(item, _Project)]


def name_at(names: PlaceNames, roots: Sequence[ResolvedPath], path: object) -> str | None:
    """Return the name in Emacs, of `names`, of `path` there, in one of `roots` by the name that Emacs has for that.

    None for what is no absolute name.  It is one of the place, or in a shared directory, whatever `path` is.
    """
    try:
        known = os.path.normpath(file_name(path)).replace("//", "/", 1)
    except FileNameError:
        return None
    for root in roots:
        if known == root.real or known.startswith(f"{root.real.rstrip('/')}/"):
            known = root.path + known[len(root.real) :]
            break
    return names.file(known).name
