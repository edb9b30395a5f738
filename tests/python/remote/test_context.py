# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files the CLIs at a place hear of, by what the relay says of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from fake_clis import FakeToolEmacs
from qwen_companion.domain import (
    HIDE,
    SHOW,
    KnownSession,
    Peer,
    PlaceNames,
    SessionState,
    Settings,
    SharedDirectory,
    Snapshot,
    ToolArgument,
    ToolDefinition,
    ToolItem,
    VisitedFile,
)
from qwen_companion.ide.context import ResolvedPath
from qwen_companion.ide.context_distributor import Reports
from qwen_companion.ide.peers import caller_at
from qwen_companion.remote.context import PlaceContext
from qwen_companion.remote.link import Link, LinkError
from qwen_companion.tools.calls import Tools
from qwen_companion.wire.messages import ToolAnswer, ToolCall
from support import TIMEOUT_S

pytestmark = pytest.mark.anyio

PLACE = "/ssh:far:"
ROOT = "/home/me/proj"
SESSION = SessionState(KnownSession("s", "1", "Qwen Code", "0.24.4", Peer(-1, "", ROOT, "qwen", (), PLACE)), True, True)


class Relay:
    """Answers as the relay does: all is a file that nothing excludes, but for `changes`; None fails."""

    def __init__(self, **changes: dict[str, Any] | None) -> None:
        self.changes = changes
        self.texts: dict[str, dict[str, str]] = {}
        self.may_answer = anyio.Event()
        self.may_answer.set()

    async def request(self, _name: str, *, paths: list[str], texts: list[str]) -> dict[str, Any]:
        if None in self.changes.values():
            raise LinkError("the connection has ended")
        answer = {
            "files": [
                {"spellings": [path], "kind": "file", "repository": ROOT, "ignored": False}
                | (self.changes.get(path.rpartition("/")[2].partition(".")[0]) or {})
                for path in paths
            ],
            "texts": [self.texts.get(path, {}) for path in texts],
        }
        await self.may_answer.wait()
        return answer


def reports(deliver: Callable[[str, bytes], None] = lambda _session, _context: None) -> Reports:
    return Reports(deliver, lambda _session, _place, _roots, _time, _text: None, lambda: None)


def begun(reports: Reports, relay: Relay, *files: VisitedFile) -> PlaceContext:
    """Return the context of a place with `relay`, where the user visits `files`."""
    context = PlaceContext(PlaceNames(PLACE), reports)
    context.set_snapshot(Snapshot(files, None, None, None, None))
    context.set_settings(Settings())
    context.set_resolved_roots([ResolvedPath(ROOT, ROOT)])
    context.set_link(cast("Link", relay), "/home/me")
    return context


async def told(
    relay: Relay,
    *names: str,
    settings: Settings = Settings(),  # noqa: B008
    exposure: str | None = None,
    shared: str | None = None,
    rules: dict[str, str | None] | None = None,
) -> list[str]:
    """Return the files of which a CLI in `ROOT` is told, [] also where it is told nothing; put into `rules` why."""
    contexts: list[bytes] = []
    delivered = anyio.Event()

    def deliver(_session: str, context: bytes) -> None:
        contexts.append(context)
        delivered.set()

    directories = () if shared is None else (SharedDirectory(ROOT, shared),)
    context = PlaceContext(PlaceNames(PLACE, directories), reports(deliver))
    files = tuple(VisitedFile(name, index, exposure) for index, name in enumerate(names))
    context.set_snapshot(Snapshot(files, None, None, None, None))
    context.set_settings(settings)
    context.set_resolved_roots([ResolvedPath(ROOT, ROOT)])
    context.set_session(SESSION)
    context.set_link(cast("Link", relay), "/home/me")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(context.run)
        with anyio.move_on_after(0.1 if None in relay.changes.values() else None):
            await delivered.wait()
        tasks.cancel_scope.cancel()
    if rules is not None:
        rules.update((name, context.rule(name, "a remote file")) for name in names)
        rules.update((each.path, f"{each.rule} for {each.session}") for each in context.exclusions if each.session)
    if not contexts:
        return []
    files_told = json.loads(contexts[-1])["params"]["workspaceState"]["openFiles"]
    return sorted(file["path"] for file in files_told)


async def test_only_files_of_the_place_and_the_root_are_told_without_the_place() -> None:
    names = (f"{PLACE}{ROOT}/a.txt", "/home/me/proj/local.txt", "/ssh:other:/home/me/proj/b.txt", f"{PLACE}/etc/hosts")
    assert await told(Relay(), *names) == [f"{ROOT}/a.txt"]
    everywhere = Settings(all_roots=True)
    assert await told(Relay(), *names, settings=everywhere) == ["/etc/hosts", f"{ROOT}/a.txt"]


async def test_it_is_known_why_a_file_is_not_told() -> None:
    there = [f"{PLACE}{ROOT}/{name}" for name in ("a.txt", "ignored.txt")] + [f"{PLACE}/etc/hosts"]
    names, rules = (*there, "/ssh:other:/b.txt"), dict[str, str | None]()
    await told(Relay(ignored={"ignored": True}), *names, rules=rules)
    assert list(rules.values()) == [None, "ignored by git", f"outside {ROOT} for s", "a remote file"]
    await told(Relay(a={"error": "EACCES"}), *names, rules=rules)
    assert rules[there[0]] == "its place does not say what it is"


async def test_files_of_a_shared_directory_are_told_by_their_names_there(tmp_path: Path) -> None:
    """Those of the buffers here, once; none that a link leads out to."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "secret").write_text("1")
    (tmp_path / "shared/link.txt").symlink_to(tmp_path / "secret")
    here = str(tmp_path / "shared")
    names = (f"{here}/a.txt", f"{PLACE}{ROOT}/a.txt", f"{PLACE}{ROOT}/b.txt", f"{here}/link.txt", f"{here}y/c.txt")
    assert await told(Relay(), *names, shared=here) == [f"{ROOT}/a.txt"]


@pytest.mark.parametrize(
    "said",
    [
        {"error": "EACCES"},
        {"kind": None},
        {"kind": "directory"},
        {"ignored": True},
        {"ignored": None},
        {"ignored": "no"},
        {"spellings": []},
        {"spellings": [f"{ROOT}/odd.txt", "/home/me/.ssh/id_rsa"]},
        {"spellings": [f"{ROOT}/odd.txt", "/etc/elsewhere"], "kind": "other"},
    ],
)
async def test_what_the_relay_does_not_say_excludes_a_file(said: dict[str, Any]) -> None:
    names = (f"{PLACE}{ROOT}/odd.txt", f"{PLACE}{ROOT}/a.txt")
    assert await told(Relay(odd=said), *names) == [f"{ROOT}/a.txt"]


async def test_rules_are_those_of_the_place_and_the_user() -> None:
    names = tuple(f"{PLACE}{ROOT}/{name}" for name in (".env", "a.txt", "b.txt", "c.txt"))
    relay = Relay()
    relay.texts[f"{ROOT}/.qwenignore"] = {"text": "b.*\n"}
    settings = Settings(patterns=("~/proj/c.txt",))
    assert await told(relay, *names, settings=settings) == [f"{ROOT}/a.txt"]
    assert await told(relay, *names, exposure=SHOW) == [
        f"{ROOT}/{name}" for name in (".env", "a.txt", "b.txt", "c.txt")
    ]
    assert await told(relay, *names, exposure=HIDE) == []
    relay.texts[f"{ROOT}/.qwenignore"] = {"error": "EACCES"}
    assert await told(relay, *names) == []


async def test_nothing_is_told_by_rules_that_may_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qwen_companion.remote.context.LOOK_S", 0)
    monkeypatch.setattr("qwen_companion.ide.context_distributor.PATIENCE_S", 0)
    contexts, receive = anyio.create_memory_object_stream[bytes](10)
    relay, files = Relay(), (VisitedFile(f"{PLACE}{ROOT}/a.txt", 0, None),)
    context = begun(reports(lambda _session, text: contexts.send_nowait(text)), relay, *files)
    context.set_session(SESSION)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(context.run)
        assert b"a.txt" in await receive.receive()
        relay.changes["a"], relay.may_answer = {"ignored": True}, anyio.Event()
        context.set_snapshot(Snapshot(files, files[0].path, None, None, None))
        await anyio.wait_all_tasks_blocked()
        relay.may_answer.set()
        assert b"a.txt" not in await receive.receive()
        tasks.cancel_scope.cancel()
    contexts.close()
    receive.close()


@pytest.mark.parametrize("look_s", [0, 100])
async def test_nothing_is_told_by_rules_that_are_being_read_again(
    monkeypatch: pytest.MonkeyPatch, look_s: float
) -> None:
    """Nor if the user begins to watch meanwhile, or they are to be read once more."""
    monkeypatch.setattr("qwen_companion.remote.context.LOOK_S", look_s)
    contexts, receive = anyio.create_memory_object_stream[bytes](10)
    relay, files = Relay(), (VisitedFile(f"{PLACE}{ROOT}/a.txt", 0, None),)
    context = begun(reports(lambda _session, text: contexts.send_nowait(text)), relay, *files)
    context.set_session(SESSION)
    async with contexts, receive, anyio.create_task_group() as tasks:
        tasks.start_soon(context.run)
        assert b"a.txt" in await receive.receive()
        relay.may_answer = anyio.Event()
        if look_s:
            context.start_over()
            await anyio.wait_all_tasks_blocked()
            relay.changes["a"] = {"ignored": True}
            context.start_over()
        else:
            relay.changes["a"] = {"ignored": True}
            context.set_snapshot(Snapshot(files, files[0].path, None, None, "selected"))
            await anyio.wait_all_tasks_blocked()
            context.watch(True)
        relay.may_answer.set()
        assert b"a.txt" not in await receive.receive()
        tasks.cancel_scope.cancel()


async def test_each_cli_is_told_what_is_found_when_another_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qwen_companion.remote.context.LOOK_S", 0)
    contexts, receive = anyio.create_memory_object_stream[tuple[str, bytes]](10)
    relay, file = Relay(), VisitedFile(f"{PLACE}{ROOT}/a.txt", 0, None)
    context = begun(reports(lambda session, text: contexts.send_nowait((session, text))), relay, file)
    context.set_session(SESSION)
    async with contexts, receive, anyio.create_task_group() as tasks:
        tasks.start_soon(context.run)
        await receive.receive()
        relay.changes["a"] = {"ignored": True}
        context.set_session(replace(SESSION, session=replace(SESSION.session, id="another")))
        with anyio.fail_after(TIMEOUT_S):
            told = dict([await receive.receive(), await receive.receive()])
        assert {session: b"a.txt" in text for session, text in told.items()} == {"s": False, "another": False}
        tasks.cancel_scope.cancel()


async def test_the_first_cli_and_the_end_of_the_last_change_the_exclusions() -> None:
    rules: list[str | None] = []
    name = f"{PLACE}{ROOT}/a.txt"
    context = begun(
        Reports(
            lambda _session, _context: None,
            lambda _session, _place, _roots, _time, _text: None,
            lambda: rules.append(context.rule(name, "a remote file")),
        ),
        Relay(),
        VisitedFile(name, 0, None),
    )
    context.watch(True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(context.run)
        await anyio.wait_all_tasks_blocked()
        context.set_session(SESSION)
        await anyio.wait_all_tasks_blocked()
        context.drop_session("s")
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert rules == ["a remote file", None, "a remote file"]


async def test_the_exclusions_of_a_cli_that_ends_without_a_line_end_with_it() -> None:
    """The user is told at once, also that no CLI is left there."""
    told: list[tuple[list[str | None], str | None]] = []
    name, relay = f"{PLACE}/etc/hosts", Relay()
    context = begun(
        Reports(
            lambda _session, _context: None,
            lambda _session, _place, _roots, _time, _text: None,
            lambda: told.append(([each.session for each in context.exclusions], context.rule(name, "a remote file"))),
        ),
        relay,
        VisitedFile(name, 0, None),
    )
    context.watch(True)
    context.set_session(SESSION)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(context.run)
        await anyio.wait_all_tasks_blocked()
        assert told[-1] == (["s"], None)
        relay.changes["hosts"] = None
        context.set_link(None)
        context.drop_session("s")
        await anyio.wait_all_tasks_blocked()
        assert told[-1] == ([], "a remote file")
        tasks.cancel_scope.cancel()


async def test_nothing_is_told_while_the_relay_does_not_answer() -> None:
    assert await told(Relay(a=None), f"{PLACE}{ROOT}/a.txt") == []


async def test_a_tool_is_asked_with_names_of_emacs_and_answers_with_those_there(tmp_path: Path) -> None:
    relay = Relay(key={"ignored": True}, dir={"kind": "directory"})
    context = PlaceContext(PlaceNames(PLACE), reports())
    context.set_settings(Settings())
    context.set_resolved_roots([ResolvedPath(ROOT, ROOT)])
    context.set_link(cast("Link", relay), "/home/me")
    calls: list[ToolCall] = []

    async def answer(call: ToolCall) -> None:
        calls.append(call)
        paths = [f"{PLACE}{ROOT}/a.py", f"{PLACE}{ROOT}/key.txt", "/home/me/proj/a.py", f"{PLACE}/etc/passwd"]
        items = [ToolItem(f"found {path}", path, 1) for path in paths]
        text = ToolItem(f"No problems in {PLACE}{ROOT}/a.py.")
        tools.handle(ToolAnswer(call.id, (text, *items)))

    tools = Tools(FakeToolEmacs(answer), lambda peer: context.access(peer) if peer else None)
    tools.offer((ToolDefinition("look", "", (ToolArgument("path", "path", "", required=True),)),))
    caller = caller_at(PLACE, {"pids": [7], "directory": ROOT})
    said = await tools.call("look", {"path": "a.py"}, caller)
    assert (calls[0].arguments, calls[0].roots) == ({"path": f"{PLACE}{ROOT}/a.py"}, (f"{PLACE}{ROOT}",))
    assert said.text.splitlines() == [
        f"No problems in {ROOT}/a.py.",
        f"a.py:1: found {ROOT}/a.py",
        "(3 in files that Emacs does not show, not listed.)",
    ]
    for path, reason in (
        ("key.txt", "ignored by git"),
        ("dir", "a directory"),
        (f"{PLACE}{ROOT}/a.py", "outside of"),
        ("../../../etc/passwd", "outside of"),
        ("/etc/passwd", "outside of"),
    ):
        refused = await tools.call("look", {"path": path}, caller)
        assert (refused.failed, reason in refused.text) == (True, True), refused
    # A directory that is shared has its names of here in Emacs.
    names = PlaceNames(PLACE, (SharedDirectory(ROOT, str(tmp_path)),))
    shared = PlaceContext(names, reports())
    shared.set_settings(Settings())
    shared.set_resolved_roots([ResolvedPath(ROOT, ROOT)])
    shared.set_link(cast("Link", relay), "/home/me")
    here = f"{tmp_path}/a.py"

    async def answer_here(call: ToolCall) -> None:
        calls.append(call)
        tools_here.handle(ToolAnswer(call.id, (ToolItem(f"No problems in {here}."), ToolItem("found", here, 1))))

    tools_here = Tools(FakeToolEmacs(answer_here), lambda peer: shared.access(peer) if peer else None)
    tools_here.offer(tools.definitions)
    said = await tools_here.call("look", {"path": "a.py"}, caller)
    assert (calls[-1].arguments, calls[-1].roots) == ({"path": here}, (str(tmp_path),))
    assert said.text.splitlines() == [f"No problems in {ROOT}/a.py.", "a.py:1: found"]
    # Without the relay nothing is told.
    context.set_link(None)
    assert "does not say" in (await tools.call("look", {"path": "a.py"}, caller)).text
