# SPDX-License-Identifier: GPL-3.0-or-later
"""Rewinding a conversation: the point that is chosen, the copy, and what a daemon may refuse."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from daemon_emacs import Chatting, Emacs
from fake_daemon import ROOT, TOKEN, FakeDaemon, FakeSession, chunk, event
from qwen_companion.base.local_ids import local_id
from qwen_companion.daemon import messages
from qwen_companion.daemon.address import DaemonAddress
from qwen_companion.daemon.errors import GoneError, UnsupportedError
from qwen_companion.daemon.models import KEPT_REWIND_POINTS, RewindPoint
from qwen_companion.daemon.rewinding import fork_recorded, point_before, prompt_of_turn, rewind_recorded
from qwen_companion.daemon.transcript import PastPrompt

pytestmark = pytest.mark.anyio

PROMPTS = [PastPrompt("a", 1000, "one"), PastPrompt("b", 2000, "two\nlines"), PastPrompt("c", 3000, "two\nlines")]


def time_of(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).isoformat().replace("+00:00", "Z")


def points(*times: int) -> list[RewindPoint]:
    return [RewindPoint(prompt_id=str(time), timestamp=time_of(time)) for time in times]


def test_prompts_may_come_one_upon_the_other() -> None:
    prompts = [PastPrompt(str(time), time, "a prompt") for time in (1000, 1085, 1132)]
    found = [point_before(points(1006, 1086, 1137), prompts, prompt).prompt_id for prompt in prompts]
    assert found == ["1006", "1086", "1137"]


@pytest.mark.parametrize(("index", "wanted"), [(0, "1009"), (1, "2018"), (2, "2990")])
def test_the_point_of_a_prompt_is_stamped_with_it(index: int, wanted: str) -> None:
    assert point_before(points(1009, 2018, 2990), PROMPTS, PROMPTS[index]).prompt_id == wanted


@pytest.mark.parametrize("times", [(), (1009, 3010), (1009,)])
def test_a_prompt_without_a_point_is_not_rewound_to_another(times: tuple[int, ...]) -> None:
    with pytest.raises(GoneError, match="keeps no point before this prompt"):
        point_before(points(*times), PROMPTS, PROMPTS[1])


def test_so_many_points_that_the_daemon_counts_wrong_are_refused() -> None:
    many = points(*range(1009, 1009 + 10 * KEPT_REWIND_POINTS, 10))
    with pytest.raises(GoneError, match=f"{KEPT_REWIND_POINTS} prompts or more"):
        point_before(many, PROMPTS, PROMPTS[0])


@pytest.mark.parametrize(
    ("start", "words", "wanted"), [(1990, "two lines", "b"), (3500, "two lin…", "c"), (0, "one", "a")]
)
def test_the_prompt_of_a_turn_is_the_next_one_with_its_words(start: int, words: str, wanted: str) -> None:
    assert prompt_of_turn(PROMPTS, start, words).turn == wanted


def test_a_turn_whose_prompt_is_gone_is_refused() -> None:
    with pytest.raises(GoneError, match="not part of the conversation any more"):
        prompt_of_turn(PROMPTS, 1000, "three")


def echo(prompt: str, time: int) -> dict[str, object]:
    """Return the echo of the prompt that has its id for a text, at `time`."""
    update = {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": prompt}}
    data = {"update": {**update, "_meta": {"source": "bridge-echo"}}}
    return {"v": 1, "type": "session_update", "promptId": prompt, "data": data, "_meta": {"serverTimestamp": time}}


def prompt_twice(session: FakeSession) -> FakeSession:
    """Let `session` have two prompts with points before them."""
    session.emit(echo("first", 1000), chunk("Said."), echo("second", 2000))
    session.points = [{"promptId": f"p{number}", "timestamp": time_of(number * 1000 + 1)} for number in (1, 2)]
    return session


async def test_a_copy_is_made_and_the_session_rewound(emacs: Emacs, daemon: FakeDaemon, chatting: Chatting) -> None:
    session, theirs, _ = chatting
    prompt_twice(theirs)
    await emacs.until(lambda: "second" in str(emacs.all(messages.Turns)))
    reply = await emacs.call("daemon-rewind", session=session, turn=local_id("turn", "second"))
    copies = [found for found in daemon.sessions.values() if found is not theirs]
    assert [local_id("session", copy.id) for copy in copies] == [reply.session]
    assert [point["promptId"] for point in theirs.points] == ["p1"]
    await emacs.until(lambda: "rewound" in str(emacs.all(messages.Turns)))
    # The copy is left again, and can be opened.
    assert not copies[0].members
    assert (await emacs.call("daemon-load", session=reply.session)).session == reply.session


async def test_what_cannot_be_rewound_is_refused(emacs: Emacs, daemon: FakeDaemon, chatting: Chatting) -> None:
    session, theirs, _ = chatting
    theirs.emit(echo("first", 1000), echo("second", 2000), event("turn_complete"))
    theirs.points = [{"promptId": "p1", "timestamp": time_of(1001)}]
    await emacs.until(lambda: "second" in str(emacs.all(messages.Turns)))
    first, second = (local_id("turn", name) for name in ("first", "second"))
    assert await emacs.refused("daemon-rewind", session=session, turn="0123456789abcdef") == "gone"
    # It was rewound already, or another client has cleared the session.
    assert await emacs.refused("daemon-rewind", session=session, turn=second) == "gone"
    theirs.prompts.append("runs")
    assert await emacs.refused("daemon-rewind", session=session, turn=first) == "busy"
    theirs.prompts.clear()
    daemon.refuse("/branch", "bad_model")
    assert (await emacs.call("daemon-rewind", session=session, turn=first)).session is None
    assert theirs.points == []
    daemon.capabilities["features"].remove("session_rewind")
    await emacs.connect(daemon)
    await emacs.call("daemon-load", session=session)
    assert await emacs.refused("daemon-rewind", session=session, turn=first) == "unsupported"


async def test_a_fork_ends_with_the_turn_and_leaves_the_session_alone(daemon: FakeDaemon) -> None:
    theirs = prompt_twice(daemon.add_session("recorded"))
    address = DaemonAddress(daemon.url, TOKEN)
    for index, kept in ((0, ["p1"]), (1, ["p1", "p2"])):
        copy = await fork_recorded(address, ROOT, "recorded", lambda prompts, index=index: prompts[index])
        assert [point["promptId"] for point in daemon.sessions[copy].points] == kept
        assert not daemon.sessions[copy].alive
        assert [point["promptId"] for point in theirs.points] == ["p1", "p2"]


async def test_a_recorded_session_is_rewound_once_its_cli_has_ended(daemon: FakeDaemon) -> None:
    theirs = prompt_twice(daemon.add_session("recorded"))
    order: list[str] = []

    async def end_cli() -> None:
        assert not daemon.asked_for("/load")
        order.append("ended")

    address = DaemonAddress(daemon.url, TOKEN)
    done = await rewind_recorded(address, ROOT, "recorded", lambda prompts: prompts[1], end_cli)
    assert (done.prompt, order) == ("second", ["ended"])
    assert done.copy is not None
    assert [point["promptId"] for point in theirs.points] == ["p1"]
    assert not theirs.alive
    # Nothing is done to the CLI where it would be in vain.
    daemon.capabilities["features"].remove("session_rewind")
    with pytest.raises(UnsupportedError, match="cannot rewind a conversation from outside"):
        await rewind_recorded(address, ROOT, "recorded", lambda prompts: prompts[0], end_cli)
    assert order == ["ended"]
