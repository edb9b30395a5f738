# SPDX-License-Identifier: GPL-3.0-or-later
"""What turns have used is told, and a turn above the limit ends; the hooks are called by this test."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from qwen_companion.conversations.meter import Meter
from qwen_companion.domain import Peer, Usage
from qwen_companion.doors.events import parse_event
from qwen_companion.doors.listeners import Block, Failure, Report, Words

pytestmark = pytest.mark.anyio

PEER = Peer(7, "", "/w", "qwen", ())
FAR = Peer(-7, "", "/w", "qwen", (), "/ssh:far:")


class Cli:
    """A CLI whose clock goes on by a second with each event."""

    def __init__(self, directory: Path) -> None:
        self.told: list[tuple[str, int, Sequence[Usage]]] = []
        self.meter = Meter(self._take, lambda: None, self, {"HOME": str(directory)}, settle_s=0)
        self.peer = PEER
        self.clock_delay = 0
        self.session = "s"
        self._directory = directory
        self._now = 1_795_000_000

    def _take(self, session: str, start: int, usage: Sequence[Usage]) -> None:
        self.told.append((session, start, usage))

    async def read_more(self, name: str, path: str, offset: int) -> bytes:
        assert name == FAR.place
        # A piece may end anywhere.
        return Path(path).read_bytes()[offset : offset + 50] if Path(path).is_file() else b""

    def answer(self, tokens: int, session: str | None = None, **others: str) -> None:
        """Record an answer of the model, which took `tokens`."""
        self._now += 1
        event = {
            "event.name": "qwen-code.api_response",
            "event.timestamp": datetime.fromtimestamp(self._now - self.clock_delay, timezone.utc).isoformat(),
            "model": "m",
            "input_token_count": tokens,
            **others,
        }
        self.record(session or self.session, systemPayload={"uiEvent": event})

    def record(self, session: str, **entry: Any) -> None:
        """Add `entry` to the transcript of `session`."""
        with (self._directory / f"{session}.jsonl").open("a") as file:
            file.write(f"{json.dumps(entry, separators=(',', ':'))}\n")

    def made(self, name: str, **fields: Any) -> Report:
        """Return the report of an event that comes now."""
        self._now += 1
        path = str(self._directory / f"{self.session}.jsonl")
        time = datetime.fromtimestamp(self._now - self.clock_delay, timezone.utc).isoformat()
        values = {
            "hook_event_name": name,
            "timestamp": time,
            "session_id": self.session,
            "transcript_path": path,
            **fields,
        }
        event = parse_event(json.dumps(values).encode())
        assert event is not None
        return Report(event, self.peer, "Qwen Code", "id", 1000 * self._now)

    async def report(self, name: str, **fields: Any) -> Words | None:
        """Report an event, and return what is answered, None where the CLI does not wait."""
        report = self.made(name, **fields)
        holds = name == "UserPromptSubmit" and self.meter.holds(report.event)
        words = await self.meter.hear(report)
        assert holds or words is None or isinstance(words, Failure)
        return words

    async def prompt(self) -> Words | None:
        return await self.report("UserPromptSubmit", prompt="Do it")

    async def goes_on(self) -> Words | None:
        return await self.report("UserPromptSubmit", prompt="")


@pytest.fixture(params=[PEER, FAR])
def cli(tmp_path: Path, request: pytest.FixtureRequest) -> Cli:
    """Return a CLI here, and one at a place whose clock is a day behind."""
    cli = Cli(tmp_path)
    cli.peer = request.param
    cli.clock_delay = 86_400 if cli.peer.place else 0
    return cli


async def test_each_turn_and_the_whole_conversation_are_told(cli: Cli) -> None:
    # It is resumed: what it has used before counts for the conversation.
    cli.answer(1000)
    await cli.report("SessionStart")
    assert cli.meter.total(cli.peer.pid) == (Usage("m", 1000),)
    await cli.prompt()
    cli.answer(5)
    await cli.goes_on()
    cli.answer(6)
    # The last request is written when the hook has been called.
    await cli.report("Stop")
    await cli.prompt()
    cli.answer(3)
    await cli.report("Notification", notification_type="idle_prompt")
    assert {session for session, _, _ in cli.told} == {cli.peer.conversation("s")}
    times = sorted({start for _, start, _ in cli.told})
    assert [(times.index(start), [usage.input for usage in used]) for _, start, used in cli.told] == [
        (0, [5]),
        (0, [11]),
        (1, [3]),
    ]
    assert cli.meter.total(cli.peer.pid) == (Usage("m", 1014),)
    # `/clear` begins another conversation.
    cli.session = "other"
    await cli.report("SessionStart")
    assert cli.meter.total(cli.peer.pid) == ()
    cli.meter.ended(cli.peer)
    assert cli.meter.total(cli.peer.pid) == ()


async def test_the_last_request_may_be_written_late(cli: Cli) -> None:
    await cli.prompt()
    cli.answer(5)
    await cli.goes_on()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cli.report, "Stop")
        await anyio.wait_all_tasks_blocked()
        cli.answer(6)
    assert [[usage.input for usage in used] for _, _, used in cli.told] == [[5], [11]]


async def test_a_request_that_is_written_after_all_is_told_with_the_next_prompt(cli: Cli) -> None:
    await cli.prompt()
    cli.answer(5)
    await cli.report("Stop")
    cli.answer(6)
    await cli.prompt()
    assert [[usage.input for usage in used] for _, _, used in cli.told] == [[5], [11]]
    assert len({start for _, start, _ in cli.told}) == 1


async def test_a_turn_whose_requests_were_read_before_its_prompt_was_heard_is_told(cli: Cli) -> None:
    await cli.prompt()
    reports = [cli.made("Notification"), cli.made("UserPromptSubmit", prompt="Do it")]
    # Events of another CLI were being handled meanwhile.
    cli.answer(5)
    for report in reports:
        await cli.meter.hear(report)
    await cli.report("Stop")
    told = {start: [usage.input for usage in used] for _, start, used in cli.told}
    assert list(told.values()) == [[], [5]]
    assert list(told)[1] == reports[1].time


async def test_a_turn_above_the_limit_ends_and_the_model_is_told_once(cli: Cli) -> None:
    cli.meter.limit = 100
    cli.answer(1000)
    await cli.prompt()
    cli.answer(60)
    assert await cli.goes_on() is None
    cli.answer(40)
    assert await cli.goes_on() is None
    cli.answer(1)
    block = await cli.goes_on()
    assert isinstance(block, Block)
    assert "has used 101 tokens, more than qwen-companion-token-limit (100)" in block.reason
    words = await cli.prompt()
    assert callable(words)
    assert "Those tools did run" in (words(9900) or "")
    cli.answer(60)
    assert await cli.goes_on() is None
    assert await cli.prompt() is None


async def test_a_request_that_is_written_a_moment_later_counts(cli: Cli) -> None:
    cli.meter.limit = 100
    await cli.prompt()
    words: list[Words | None] = []

    async def go_on() -> None:
        words.append(await cli.goes_on())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go_on)
        await anyio.wait_all_tasks_blocked()
        cli.answer(101)
    assert isinstance(words[0], Block)


async def test_a_subagent_is_never_stopped_and_no_limit_holds_nobody(cli: Cli) -> None:
    await cli.prompt()
    cli.answer(10**6)
    assert await cli.goes_on() is None
    cli.meter.limit = 100
    assert await cli.report("UserPromptSubmit", prompt="", agent_id="explorer-1") is None
    assert isinstance(await cli.goes_on(), Block)
    # The text is made when the model gets it, and else the next time.
    assert callable(await cli.prompt())
    assert callable(await cli.prompt())
    # Another conversation has nothing to do with that.
    cli.session = "other"
    assert await cli.prompt() is None


async def test_a_cli_that_names_no_transcript_is_left_alone(cli: Cli) -> None:
    cli.meter.limit = 0
    await cli.report("UserPromptSubmit", prompt="Do it", transcript_path="")
    assert await cli.report("UserPromptSubmit", prompt="", transcript_path="") is None
    for path in ("\0", "/dev/zero", "relative", "x" * 5000):
        assert await cli.report("UserPromptSubmit", prompt="", transcript_path=path) is None


@pytest.mark.parametrize(("name", "fields"), [("Stop", {}), ("Notification", {"notification_type": "idle_prompt"})])
async def test_the_last_request_of_a_cli_that_ends_meanwhile_counts(
    cli: Cli, name: str, fields: dict[str, str]
) -> None:
    await cli.prompt()
    await cli.goes_on()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(cli.report, name, **fields))
        await anyio.wait_all_tasks_blocked()
        cli.meter.ended(cli.peer)
        cli.answer(5)
        cli.answer(6)
    assert [usage.input for usage in cli.told[-1][2]] == [11]


async def test_a_turn_that_ends_at_the_limit_of_the_cli_has_failed(cli: Cli, tmp_path: Path) -> None:
    # The settings of another place are not read.
    failure = None if cli.peer.place else Failure("token limit")
    (tmp_path / ".qwen").mkdir()
    (tmp_path / ".qwen/settings.json").write_text('{"model": {"sessionTokenLimit": 10}}')

    async def idle() -> Words | None:
        return await cli.report("Notification", notification_type="idle_prompt")

    await cli.prompt()
    cli.answer(10)
    await cli.goes_on()
    # The user has stopped the second request.
    assert await idle() is None
    await cli.prompt()
    cli.answer(11)
    # And here a tool.
    assert await idle() is None
    await cli.prompt()
    assert await idle() == failure
    # The user stops the first request after a compression.
    cli.record("s", subtype="chat_compression")
    await cli.prompt()
    assert await idle() is None
    cli.session = "other"
    await cli.report("SessionStart")
    await cli.prompt()
    cli.answer(9)
    cli.answer(11, subagent_id="x")
    await cli.goes_on()
    # And the second one, in a turn with a subagent.
    assert await idle() is None
    cli.answer(5, subagent_name="y")
    await cli.goes_on()
    found: list[Words | None] = []

    async def hear() -> None:
        found.append(await idle())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hear)
        await anyio.wait_all_tasks_blocked()
        # The request before is written late.
        cli.answer(11)
    assert found == [failure]
