# SPDX-License-Identifier: GPL-3.0-or-later
"""The conversation of a CLI in a terminal is rewound, or stays, whatever ends or fails on the way."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from fake_daemon import FakeDaemon, FakeSession, event
from qwen_companion.base.processes import start_of
from qwen_companion.conversations.recorded_sessions import recordings
from qwen_companion.daemon import rewinding, rewinds
from qwen_companion.domain import Peer
from qwen_companion.wire.messages import Notification, RecordedRewound, RewindRecorded

pytestmark = pytest.mark.anyio

RECORDED = "recorded"


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[FakeDaemon]:
    async with FakeDaemon(token=None) as daemon:
        daemon.capabilities["workspaceCwd"] = str(tmp_path)
        yield daemon


@pytest.fixture
def theirs(daemon: FakeDaemon) -> FakeSession:
    """Return the session that the CLI has recorded, with two prompts."""
    session = daemon.add_session(RECORDED)
    for number in (1, 2):
        update = {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": f"prompt {number}\nmore"}}
        stamp = {"serverTimestamp": 1000 * number}
        session.emit(
            {"v": 1, "type": "session_update", "promptId": f"p{number}", "data": {"update": update}, "_meta": stamp},
            event("turn_complete") | {"promptId": f"p{number}"},
        )
        session.points.append({"promptId": f"p{number}", "timestamp": f"1970-01-01T00:00:0{number}.009Z"})
    return session


class Cli:
    """A process in the place of the CLI; with `ignores`, one that SIGTERM does not end."""

    def __init__(self, ignores: bool = False) -> None:
        command = "trap '' TERM; echo; while :; do sleep 1000; done" if ignores else "echo; exec sleep 1000"
        self.process = subprocess.Popen(["/bin/sh", "-c", command], stdout=subprocess.PIPE, start_new_session=True)
        assert self.process.stdout is not None
        self.process.stdout.readline()
        self.peer = Peer(self.process.pid, start_of(self.process.pid) or "", None, None, ())

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        subprocess.run(["/bin/kill", "-KILL", "--", f"-{self.process.pid}"], check=False, capture_output=True)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def cli() -> Iterator[Cli]:
    cli = Cli()
    yield cli
    cli.close()


async def rewind(
    directory: Path,
    lines: str,
    cli: Cli | None,
    prompt: str = "prompt 2 more",
    session: str | None = "cli",
    tree: str | None = None,
) -> RecordedRewound:
    """Rewind to before `prompt` by a program of `lines` of shell, or copy without a `session`; return the answer."""
    program = directory / "fake-qwen"
    program.write_text(f"#!/bin/sh\n{lines}\n")
    program.chmod(0o700)
    answers: asyncio.Queue[Notification] = asyncio.Queue()
    call = RewindRecorded(1, (str(program),), str(directory), session, tree, RECORDED, 1500, prompt)
    async with anyio.create_task_group() as tasks:
        front = rewinds.Rewinds(answers.put_nowait, tasks, lambda _: None if cli is None else cli.peer)
        front.handle(call)
    answer = answers.get_nowait()
    assert answers.empty()
    assert isinstance(answer, RecordedRewound)
    return answer


def listening(daemon: FakeDaemon) -> str:
    return f'echo "qwen serve listening on {daemon.url} (mode=http-bridge)"; exec sleep 1000'


async def test_the_cli_ends_and_its_conversation_is_rewound(
    tmp_path: Path, daemon: FakeDaemon, theirs: FakeSession, cli: Cli
) -> None:
    answer = await rewind(tmp_path, listening(daemon), cli)
    assert (answer.error, answer.text) == (None, "prompt 2\nmore")
    assert answer.copy in daemon.sessions
    assert [point["promptId"] for point in theirs.points] == ["p1"]
    assert not cli.lives


async def test_the_cli_goes_on_where_nothing_can_be_rewound(
    tmp_path: Path, daemon: FakeDaemon, theirs: FakeSession, cli: Cli
) -> None:
    assert "Address in use" in ((await rewind(tmp_path, "echo Address in use", cli)).error or "")
    daemon.capabilities["features"].remove("session_rewind")
    assert "cannot rewind a conversation" in ((await rewind(tmp_path, listening(daemon), cli)).error or "")
    assert "not connected any more" in ((await rewind(tmp_path, listening(daemon), None)).error or "")
    assert cli.lives
    assert not daemon.asked_for("/load")


async def test_a_cli_that_does_not_end_keeps_its_conversation(
    tmp_path: Path, daemon: FakeDaemon, theirs: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewinds, "END_S", 0.1)
    cli = Cli(ignores=True)
    try:
        assert "does not end" in ((await rewind(tmp_path, listening(daemon), cli)).error or "")
        assert cli.lives
        # Two that write one conversation would lose the turns of one.
        assert not daemon.asked_for("/load")
    finally:
        cli.close()


@pytest.mark.parametrize("path", ["/load", "/rewind/snapshots", "/branch", "/rewind"])
async def test_a_daemon_that_dies_on_the_way_is_told_of(
    tmp_path: Path, daemon: FakeDaemon, theirs: FakeSession, cli: Cli, path: str
) -> None:
    daemon.break_off(path)
    answer = await rewind(tmp_path, listening(daemon), cli)
    assert not cli.lives
    if path == "/branch":
        # Without a copy it is rewound all the same.
        assert (answer.error, answer.copy) == (None, None)
    else:
        assert "look before you try again" in (answer.error or "")
        assert [point["promptId"] for point in theirs.points] == ["p1", "p2"]


async def test_a_prompt_that_is_not_there_changes_nothing(
    tmp_path: Path, daemon: FakeDaemon, theirs: FakeSession, cli: Cli
) -> None:
    answer = await rewind(tmp_path, listening(daemon), cli, "of another conversation")
    assert "not part of the conversation" in (answer.error or "")
    assert len(theirs.points) == 2


async def test_a_copy_for_a_worktree_is_recorded_there(
    tmp_path: Path, daemon: FakeDaemon, theirs: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("QWEN_HOME", raising=False)
    tree = str(tmp_path / "tree")
    copy: list[str] = []

    async def fork(*_where: object) -> str:
        path = Path(recordings(os.environ, str(tmp_path))) / "copy.jsonl"
        path.parent.mkdir(parents=True)
        lines = [{"cwd": str(tmp_path), "text": f'"cwd":"{tmp_path}"'}, {"cwd": "/elsewhere"}]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + "half a li")
        copy.append(str(path))
        return "copy"

    monkeypatch.setattr(rewinding, "fork_recorded", fork)
    answer = await rewind(tmp_path, listening(daemon), None, session=None, tree=tree)
    assert (answer.error, answer.copy) == (None, "copy")
    moved = Path(recordings(os.environ, tree)) / "copy.jsonl"
    first, second, rest = moved.read_text().split("\n")
    assert json.loads(first) == {"cwd": tree, "text": f'"cwd":"{tmp_path}"'}
    assert (json.loads(second), rest) == ({"cwd": "/elsewhere"}, "half a li")
    assert not Path(copy[0]).exists()
    assert [path.name for path in moved.parent.iterdir()] == ["copy.jsonl"]


async def test_a_copy_that_cannot_be_recorded_in_the_worktree_stays_where_it_is(
    tmp_path: Path, daemon: FakeDaemon, theirs: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(recordings(os.environ, str(tmp_path))) / "copy.jsonl"

    async def fork(*_where: object) -> str:
        return "copy"

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(rewinding, "fork_recorded", fork)
    monkeypatch.setattr(rewinds, "move_recording", full)
    answer = await rewind(tmp_path, listening(daemon), None, session=None, tree=str(tmp_path / "tree"))
    assert answer.error == f"{path}: No space left on device"


async def test_a_daemon_that_refuses_is_quoted(
    tmp_path: Path, daemon: FakeDaemon, theirs: FakeSession, cli: Cli
) -> None:
    body = json.dumps({"error": "no", "code": "invalid_rewind_target"})
    daemon.refuse("/rewind", "no_session", status=400, body=body)
    answer = await rewind(tmp_path, listening(daemon), cli)
    assert "was compressed since" in (answer.error or "")
    assert [point["promptId"] for point in theirs.points] == ["p1", "p2"]
