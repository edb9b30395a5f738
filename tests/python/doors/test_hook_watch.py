# SPDX-License-Identifier: GPL-3.0-or-later
"""CLIs that should call their hooks and do not; each is played by a process that does nothing."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from fake_clis import FakePlaces, FakeSessions
from qwen_companion.base.processes import start_of
from qwen_companion.base.sockets import Connection
from qwen_companion.domain import CliState, KnownSession, Peer, SessionState, Settings
from qwen_companion.doors.hook_handler import HookHandler
from qwen_companion.doors.hook_watch import HookWatch
from qwen_companion.doors.hooks import Hooks
from qwen_companion.doors.layers import FILE_NAME, SettingsLayers
from qwen_companion.doors.user_settings import VARIABLE
from qwen_companion.ide.peers import Caller
from qwen_companion.ide.proposals import Decision
from support import TIMEOUT_S, FakeEditor

if TYPE_CHECKING:
    from starlette.types import Message

pytestmark = pytest.mark.anyio


@contextmanager
def cli(directory: Path, *arguments: str, layer: bool = True) -> Generator[Peer]:
    """Yield a process in `directory`, in a terminal that has the `layer` or not."""
    script = "import sys; print(flush=True); sys.stdin.read()"
    environ = {**os.environ, **({VARIABLE: str(directory / FILE_NAME)} if layer else {})}
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        yield Peer(process.pid, "", str(directory), "qwen", (process.pid,))
        process.stdin.close()


class Site:
    def __init__(
        self,
        directory: Path,
        known: tuple[SessionState, ...] = (),
        unexplained_silence_s: float = 0,
        path: str = os.defpath,
    ) -> None:
        self.sessions = FakeSessions()

        def find_caller(_: Connection) -> Caller | None:
            (state,) = self.sessions.connected
            assert state.session.peer is not None
            return Caller(state.session.peer, "Qwen Code", "0.24.4")

        self.warnings: asyncio.Queue[str] = asyncio.Queue()
        self.editor = FakeEditor()
        self.editor.warn = lambda text: self.warnings.put_nowait(text)
        self.changes = anyio.Event()
        self.layers = SettingsLayers(4711, "token", str(directory), {"HOME": str(directory), "PATH": path}, ())
        self.handler = HookHandler(
            self.layers, known, self.editor, self.sessions, FakePlaces(), (), find_caller, self.changed
        )
        delays = 0, unexplained_silence_s
        self.watch = HookWatch(self.handler.states, self.layers, self.editor, known, self.changed, delays)

    def changed(self) -> None:
        self.watch.take_back()
        self.changes.set()

    async def reason(self, peer: Peer, version: str = "0.24.4") -> str:
        """Why the CLI at `peer` calls no hooks, as the user is told; then the same for the list of sessions."""
        session = KnownSession(f"{peer.pid}", "", "Qwen Code", version, peer)
        self.watch.watch(session)
        self.watch.watch(session)
        warning = await self.warning()
        annotated = self.watch.annotated(SessionState(session, streaming=True))
        assert annotated.no_hooks is not None
        assert f"({annotated.no_hooks})" in warning
        assert warning.startswith(f"Qwen Code {version} calls no hooks")
        return annotated.no_hooks

    async def warning(self) -> str:
        return await asyncio.wait_for(self.warnings.get(), TIMEOUT_S)

    async def call_hook(self, session: KnownSession) -> None:
        """Have the CLI of `session` call its first hook; return when its state has been told."""
        self.sessions.connected = [SessionState(session, streaming=True)]
        body = json.dumps({"hook_event_name": "SessionStart", "session_id": "s"}).encode()

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(_: Message) -> None:
            pass

        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "headers": [],
            "query_string": b"",
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        await Hooks(self.handler)(scope, receive, send)
        with anyio.fail_after(TIMEOUT_S):
            await self.changes.wait()


def session_of(peer: Peer) -> KnownSession:
    return KnownSession(f"{peer.pid}", "", "Qwen Code", "0.24.4", peer)


@asynccontextmanager
async def running(site: Site) -> AsyncGenerator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(site.handler.run)
        tasks.start_soon(site.watch.run)
        yield
        tasks.cancel_scope.cancel()


async def test_what_a_cli_without_hooks_writes_is_unreviewed_where_reviews_are_wanted(tmp_path: Path) -> None:
    site = Site(tmp_path)
    wanted = Settings(layer=True, review_edits="open")
    unwanted = (Settings(layer=True), replace(wanted, no_reviews=True))
    async with running(site):
        with cli(tmp_path) as peer, cli(tmp_path, layer=False) as other:
            for settings in (*unwanted, wanted):
                site.layers.set_settings(settings)
                assert site.watch.missed_review(session_of(peer), is_open=True) == (settings is wanted)
            assert not site.watch.missed_review(session_of(peer), is_open=False)
            # One that was started without the layer.
            assert not site.watch.missed_review(session_of(other), is_open=True)


@pytest.mark.parametrize("curl", [False, True])
async def test_what_is_not_heard_of_a_cli_with_hooks_is_unreviewed_where_these_let_edits_run(
    tmp_path: Path, curl: bool
) -> None:
    """Without `curl`, a hook that nobody answers counts as consent."""
    (tmp_path / "curl").write_text("#!/bin/sh\n")
    (tmp_path / "curl").chmod(0o700)
    modes = ("default", "plan", "auto", "auto-edit", None)
    sessions = [session_of(Peer(number, "", str(tmp_path), "qwen", (number,))) for number in range(len(modes))]
    states = [
        SessionState(session, True, state=CliState("working", 5, mode=mode))
        for session, mode in zip(sessions, modes, strict=True)
    ]
    site = Site(tmp_path, tuple(states), path=str(tmp_path) if curl else "/nowhere")
    async with running(site):
        for scope, unreviewed in (("all", ["auto"]), ("all-modes", ["auto", "auto-edit"]), (None, [])):
            site.layers.set_settings(Settings(layer=True, review_edits=scope))
            found = [
                state.state.mode for state in states if state.state and site.watch.missed_review(state.session, True)
            ]
            assert found == ([] if curl else unreviewed)


async def test_a_decision_about_nothing_is_settled(tmp_path: Path) -> None:
    """Also once a hook was called."""
    site = Site(tmp_path)
    async with running(site):
        with cli(tmp_path) as peer:
            site.handler.decide("hook-0", Decision(None))
            await anyio.wait_all_tasks_blocked()
            await site.call_hook(session_of(peer))
            site.handler.decide("hook-1", Decision(None))
    assert site.editor.log == [("settled", "hook-0"), ("settled", "hook-1")]


async def test_a_cli_that_calls_no_hooks_is_noticed_once_with_the_reason(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with running(site):
        await notice_silence(site, tmp_path)


async def test_a_cli_whose_first_hook_came_late_is_not_called_silent(tmp_path: Path) -> None:
    session = KnownSession("1", "", "Qwen Code", "0.24.4", Peer(1, "", str(tmp_path), "qwen", (1,)))
    late = SessionState(session, True, state=CliState("idle", 5), no_hooks="no setting tells why")
    silent = replace(late, session=replace(session, id="2", peer=Peer(2, "", "/w", "qwen", (2,))), state=None)
    site = Site(tmp_path, (late, silent))
    async with running(site):
        assert site.watch.annotated(SessionState(late.session, True)).no_hooks is None
        assert site.watch.annotated(SessionState(silent.session, True)).no_hooks == "no setting tells why"


async def test_a_cli_that_may_call_its_hooks_is_given_time(tmp_path: Path) -> None:
    site = Site(tmp_path, unexplained_silence_s=math.inf)
    async with running(site):
        with cli(tmp_path) as slow, cli(tmp_path, "--safe-mode") as silent:
            site.watch.watch(session_of(slow))
            # By now it has been silent for as long as one that cannot call hooks.
            assert await site.reason(silent) == "it was started with --safe-mode"
            assert site.watch.annotated(SessionState(session_of(slow), streaming=True)).no_hooks is None
            site.changes = anyio.Event()
            await site.call_hook(session_of(slow))
    assert site.warnings.empty()


async def test_the_warning_is_taken_back_when_a_hook_comes_after_all(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with running(site):
        with cli(tmp_path) as late:
            assert await site.reason(late) == "no setting tells why"
            site.changes = anyio.Event()
            await site.call_hook(session_of(late))
            assert await site.warning() == "Qwen Code 0.24.4 calls its hooks after all"
            assert site.watch.annotated(SessionState(session_of(late), streaming=True)).no_hooks is None
    assert site.warnings.empty()


async def notice_silence(site: Site, tmp_path: Path) -> None:
    with cli(tmp_path) as peer:
        assert await site.reason(peer) == "no setting tells why"
    with cli(tmp_path, "--safe-mode") as peer:
        assert await site.reason(peer) == "it was started with --safe-mode"
    (tmp_path / ".qwen").mkdir()
    (tmp_path / ".qwen/settings.json").write_text('{"disableAllHooks": true}')
    # Those of which nothing is expected: without the layer, too old, started before this process.
    with cli(tmp_path, layer=False) as peer, cli(tmp_path) as old, cli(tmp_path) as last:
        earlier = replace(old, started=start_of(1) or "")
        for session, version in ((peer, "0.24.4"), (old, "0.15.10"), (old, ""), (earlier, "0.24.4")):
            site.watch.watch(KnownSession(f"{session.pid}{version}", "", "Qwen Code", version, session))
        assert await site.reason(last) == f"disableAllHooks in {tmp_path}/.qwen/settings.json"
    # The file of the project and, since its directory is the home directory here, that of the user.
    (tmp_path / ".qwen/settings.json").write_text('{"hooks": {}}')
    with cli(tmp_path) as peer:
        assert "move them into one of the files" in await site.reason(peer, "0.23.4")
    with cli(tmp_path) as peer:
        assert await site.reason(peer) == "no setting tells why"
    assert site.warnings.empty()
