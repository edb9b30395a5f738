# SPDX-License-Identifier: GPL-3.0-or-later
"""Rewinds in the transcripts of idle CLIs are noticed; the files are as Qwen Code 0.24.4 writes them."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from qwen_companion.conversations.recorded_sessions import recordings
from qwen_companion.conversations.recording import Recording
from qwen_companion.conversations.rewinds import RewindWatch
from qwen_companion.domain import ChatWork, CliRewind, Peer
from qwen_companion.doors.events import parse_event
from qwen_companion.doors.listeners import Report
from support import TIMEOUT_S

pytestmark = pytest.mark.anyio

PEER = Peer(7, "", "/w", "qwen", ())
START = 1_795_000_000_000


class Conversation:
    """A transcript that a CLI writes; its clock goes on by a second with each record."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.time = START
        self.last: str | None = None

    def write(self, kind: str, subtype: str | None = None, parent: str | None = "", **fields: object) -> str:
        """Append a record; its parent is the last one by default.  Return its name."""
        self.time += 1000
        name = str(uuid.uuid4())
        stamp = datetime.fromtimestamp(self.time / 1000, timezone.utc).isoformat(timespec="milliseconds")
        entry = {
            "uuid": name,
            "parentUuid": self.last if parent == "" else parent,
            "sessionId": "s",
            "timestamp": stamp.replace("+00:00", "Z"),
            "type": kind,
            **({} if subtype is None else {"subtype": subtype}),
            **fields,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(entry, separators=(",", ":")) + "\n")
        self.last = name
        return name

    def turn(self) -> tuple[str | None, int]:
        """Record a turn; return the name and the time of the record before it."""
        before = self.last, self.time
        self.write("user", message={"parts": [{"text": '"subtype":"rewind" "type":"user"'}]})
        self.write("assistant", message={"parts": [{"text": "x" * 70_000}]})
        self.write("system", "ui_telemetry")
        return before

    def rewind(self, kept: str | None) -> int:
        """Record a rewind that keeps what ends with the record `kept`; return its time."""
        self.write("system", "rewind", kept, systemPayload={"truncatedCount": 5})
        return self.time


@pytest.fixture
async def found() -> list[CliRewind]:
    return []


@pytest.fixture
async def watch(tmp_path: Path, found: list[CliRewind]) -> AsyncIterator[RewindWatch]:
    async def take(rewind: CliRewind) -> None:
        found.append(rewind)

    watch = RewindWatch({"HOME": str(tmp_path)}, take)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        await anyio.wait_all_tasks_blocked()
        yield watch
        tasks.cancel_scope.cancel()


async def report(watch: RewindWatch, path: Path, name: str, **fields: str) -> None:
    values = {"hook_event_name": name, "session_id": "s", "transcript_path": str(path), "cwd": "/w", **fields}
    event = parse_event(json.dumps(values).encode())
    assert event is not None
    await watch.hear(Report(event, PEER, "Qwen Code", None, START))


async def until(found: list[CliRewind], count: int) -> None:
    with anyio.fail_after(TIMEOUT_S):
        while len(found) < count:
            await anyio.sleep(0.01)


async def test_a_rewind_of_an_idle_cli_is_noticed_at_once(
    tmp_path: Path, watch: RewindWatch, found: list[CliRewind]
) -> None:
    conversation = Conversation(tmp_path / "chats/s.jsonl")
    conversation.write("system", "slash_command")
    first, second = conversation.turn(), conversation.turn()
    await report(watch, conversation.path, "Stop")
    time = conversation.rewind(second[0])
    await until(found, 1)
    assert found == [CliRewind("s", "/w", second[1], time)]
    conversation.turn()
    again = conversation.rewind(first[0])
    await until(found, 2)
    assert found[1:] == [CliRewind("s", "/w", first[1], again)]


async def test_one_to_before_the_first_prompt_keeps_nothing(
    tmp_path: Path, watch: RewindWatch, found: list[CliRewind]
) -> None:
    conversation = Conversation(tmp_path / "chats/s.jsonl")
    conversation.turn()
    time = conversation.rewind(None)
    # What a process before this one did not notice.
    await report(watch, conversation.path, "SessionStart")
    await until(found, 1)
    assert found == [CliRewind("s", "/w", 0, time)]


async def test_odd_records_are_no_rewinds(tmp_path: Path, watch: RewindWatch, found: list[CliRewind]) -> None:
    conversation = Conversation(tmp_path / "chats/s.jsonl")
    conversation.turn()
    odd: list[dict[str, object]] = [
        {"parentUuid": "of no line"},
        {"timestamp": 5},
        {"parentUuid": [1]},
        {"type": "user"},
    ]
    for fields in odd:
        conversation.write("system", "rewind", None, **fields)
    with conversation.path.open("ab") as file:
        file.write(b'{"subtype":"rewind"\n\xff"subtype":"rewind"}\n')
    time = conversation.rewind(None)
    await report(watch, conversation.path, "Stop")
    await until(found, 1)
    assert [rewind.time for rewind in found] == [time]


async def test_of_a_working_cli_it_is_noticed_with_the_end_of_its_turn_and_of_one_that_has_ended_never(
    tmp_path: Path, watch: RewindWatch, found: list[CliRewind]
) -> None:
    conversation = Conversation(tmp_path / "chats/s.jsonl")
    await report(watch, conversation.path, "UserPromptSubmit", prompt="Do it")
    time = conversation.rewind(None)
    await anyio.wait_all_tasks_blocked()
    assert found == []
    await report(watch, conversation.path, "Notification", notification_type="idle_prompt")
    await until(found, 1)
    assert found == [CliRewind("s", "/w", 0, time)]
    watch.ended(PEER)
    # Now a daemon of ours rewinds it.
    conversation.rewind(None)
    other = Conversation(tmp_path / "chats/t.jsonl")
    await report(watch, other.path, "Stop", session_id="t")
    other.rewind(None)
    await until(found, 2)
    assert [rewind.session for rewind in found] == ["s", "t"]


async def test_what_is_still_read_when_a_cli_has_ended_is_not_its(
    tmp_path: Path, watch: RewindWatch, found: list[CliRewind], monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = Conversation(tmp_path / "chats/s.jsonl")
    await report(watch, conversation.path, "Stop")
    reads, may_read = threading.Event(), threading.Event()
    read = Recording.read

    def read_late(recording: Recording) -> None:
        reads.set()
        may_read.wait(TIMEOUT_S)
        read(recording)

    monkeypatch.setattr(Recording, "read", read_late)
    conversation.turn()
    await to_thread.run_sync(reads.wait, TIMEOUT_S)
    watch.ended(PEER)
    conversation.rewind(None)
    may_read.set()
    other = Conversation(tmp_path / "chats/t.jsonl")
    await report(watch, other.path, "Stop", session_id="t")
    other.rewind(None)
    await until(found, 1)
    assert [rewind.session for rewind in found] == ["t"]


async def test_a_daemon_rewinds_for_another_client(tmp_path: Path, watch: RewindWatch, found: list[CliRewind]) -> None:
    conversation = Conversation(Path(recordings({"HOME": str(tmp_path)}, "/w")) / "s.jsonl")
    before = conversation.turn()
    watch.take_chat(ChatWork("s", "/w", "Qwen Code", "turn", "Do it"))
    watch.take_chat(ChatWork("s", "/w", "Qwen Code", None, ""))
    watch.take_chat(ChatWork("../s", "/w", "Qwen Code", None, ""))
    await anyio.wait_all_tasks_blocked()
    time = conversation.rewind(before[0])
    await until(found, 1)
    assert found == [CliRewind("s", "/w", 0, time)]
