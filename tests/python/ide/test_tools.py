# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from qwen_companion.base.errors import EmacsBusyError, EmacsGoneError, EmacsRefusedError, EmacsUnavailableError
from qwen_companion.domain import KnownProposal
from qwen_companion.ide.models import CONTENT_CHARACTERS
from qwen_companion.ide.proposals import Decision, Proposals, text_digest
from qwen_companion.ide.tools import DiffTools, ToolResult
from support import FakeEditor, FakeOutbox

pytestmark = pytest.mark.anyio


class Desk:
    """The tools between a scripted Emacs and a session."""

    def __init__(self) -> None:
        self.editor = FakeEditor()
        self.outbox = FakeOutbox("s", "t")
        self.proposals = Proposals([KnownProposal("old", "s", "/old", text_digest("old"))])
        self.roots: tuple[str, ...] | None = None
        self.tools = DiffTools(self.proposals, self.editor, self.outbox, roots_of=lambda _: self.roots, patience=0.01)
        self.running = asyncio.create_task(self.tools.run())

    async def open(self, path: str = "/nowhere/a", text: str = "new", session: str = "s") -> str:
        """Open a review; the proposal's id."""
        arguments = {"filePath": path, "newContent": text}
        assert await self.tools.call(session, "client", "openDiff", arguments) == ToolResult()
        return self.editor.opened[-1][0].id

    async def call(self, tool: str, **arguments: object) -> ToolResult:
        """Call `tool` for session `s`."""
        return await self.tools.call("s", "client", tool, arguments)

    async def refused(self, tool: str, damaged: bool = False, **arguments: object) -> str:
        """Call `tool` for session `s`, which is an error, and return what is said of it."""
        result = await self.tools.call("s", "client", tool, arguments, damaged=damaged)
        assert result.is_error
        return result.text or ""

    async def close(self, path: str = "/nowhere/a", **more: object) -> Any:
        """Return the content `closeDiff` answers with."""
        result = await self.call("closeDiff", filePath=path, **more)
        assert not result.is_error
        assert result.text is not None
        return json.loads(result.text)["content"]

    def notifications(self) -> list[tuple[str, dict[str, str]]]:
        return [(item[1]["method"], item[1]["params"]) for item in self.outbox.posted]


@pytest.fixture
async def desk() -> Desk:
    return Desk()


async def test_open_hands_the_text_to_emacs_and_answers_with_nothing(desk: Desk) -> None:
    await desk.open("/nowhere/é\n", "a\r\nb")
    proposal, client, text = desk.editor.opened[0]
    assert (proposal.session, proposal.path, client, text) == ("s", "/nowhere/é\n", "client", "a\r\nb")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"newContent": "x"}, "filePath"),
        ({"filePath": 5, "newContent": "x"}, "filePath"),
        ({"filePath": "/a"}, "newContent"),
        ({"filePath": "/a", "newContent": None}, "newContent"),
        ({"filePath": "a", "newContent": "x"}, "absolute"),
        ({"filePath": "", "newContent": "x"}, "empty"),
        ({"filePath": "~/a", "newContent": "x"}, "absolute"),
        ({"filePath": "/a\0b", "newContent": "x"}, "NUL"),
        ({"filePath": "/", "newContent": "x"}, "directory"),
    ],
)
async def test_what_cannot_be_reviewed_is_refused_with_a_reason(
    desk: Desk, arguments: dict[str, Any], reason: str
) -> None:
    assert reason in await desk.refused("openDiff", **arguments)
    assert desk.editor.opened == []


async def test_a_file_outside_the_roots_of_the_session_is_refused(desk: Desk) -> None:
    desk.roots = ("/nowhere/project",)
    assert "/nowhere/project" in await desk.refused("openDiff", filePath="/nowhere/else", newContent="x")
    await desk.open("/nowhere/project/new/file")


async def test_it_is_said_which_argument_is_no_unicode(desk: Desk) -> None:
    said = await desk.refused("openDiff", damaged=True, filePath="/nowhere/a", newContent="\ufffd")
    assert "newContent holds half a surrogate pair" in said
    said = await desk.refused("openDiff", damaged=True, filePath="/nowhere/\ufffd", newContent="x")
    assert "filePath holds half a surrogate pair" in said
    assert "newContent" not in said
    # What we do not read may be what it likes.
    arguments = {"filePath": "/nowhere/a", "newContent": "x", "more": "\ufffd"}
    assert not (await desk.tools.call("s", "client", "openDiff", arguments, damaged=True)).is_error


async def test_an_unknown_tool_is_an_error(desk: Desk) -> None:
    assert "openDiff" in await desk.refused("writeDiff", filePath="/a")


async def test_a_refusal_by_emacs_is_an_error_and_leaves_nothing_open(desk: Desk) -> None:
    desk.editor.refusal = "not now"
    assert await desk.call("openDiff", filePath="/nowhere/a", newContent="x") == ToolResult("not now", is_error=True)
    assert await desk.close() is None


async def test_without_emacs_open_is_an_error(desk: Desk) -> None:
    desk.editor.refusal = EmacsGoneError("Emacs has closed the connection")
    assert "has closed the connection" in await desk.refused("openDiff", filePath="/nowhere/a", newContent="x")


async def test_a_busy_emacs_will_show_it_later(desk: Desk) -> None:
    desk.editor.free.clear()
    identifier = await desk.open()
    desk.editor.free.set()
    desk.tools.decide(identifier, Decision("x"))
    assert desk.notifications() == [("ide/diffAccepted", {"filePath": "/nowhere/a", "content": "x"})]


@pytest.mark.parametrize("refusal", ["not now", EmacsGoneError("")])
async def test_what_a_busy_emacs_refuses_later_is_not_open(desk: Desk, refusal: str | Exception) -> None:
    desk.editor.free.clear()
    desk.editor.refusal = refusal
    await desk.open()
    desk.editor.free.set()
    while desk.proposals.find("s", "/nowhere/a"):
        await asyncio.sleep(0)
    assert await desk.close() is None


@pytest.mark.parametrize(
    ("content", "method", "params"),
    [
        ("edited", "ide/diffAccepted", {"filePath": "/nowhere/a", "content": "edited"}),
        ("", "ide/diffAccepted", {"filePath": "/nowhere/a", "content": ""}),
        (None, "ide/diffRejected", {"filePath": "/nowhere/a"}),
    ],
)
async def test_the_first_decision_goes_out_once(
    desk: Desk, content: str | None, method: str, params: dict[str, str]
) -> None:
    identifier = await desk.open()
    desk.tools.decide(identifier, Decision(content))
    desk.tools.decide(identifier, Decision("something else"))
    desk.tools.decide(identifier, Decision(None))
    assert desk.outbox.posted[0][0] == "s"
    assert desk.notifications() == [(method, params)]
    assert ("settled", identifier) not in desk.editor.log
    desk.tools.went_out(identifier)
    assert desk.editor.log[-1] == ("settled", identifier)


async def test_a_decision_on_nothing_is_settled_at_once(desk: Desk) -> None:
    desk.tools.decide("never-was", Decision("x"))
    assert desk.notifications() == []
    assert desk.editor.log == [("settled", "never-was")]


async def test_a_decision_that_an_earlier_process_has_sent_is_settled(desk: Desk) -> None:
    desk.tools.went_out("old")
    assert desk.editor.log == [("settled", "old")]
    # The CLI names it each time it comes back.
    desk.tools.went_out("old")
    assert desk.editor.log == [("settled", "old")]
    desk.tools.decide("old", Decision("x"))
    assert desk.notifications() == []


async def test_a_decision_on_a_review_of_an_earlier_process_goes_out(desk: Desk) -> None:
    desk.tools.decide("old", Decision("x"))
    assert desk.notifications() == [("ide/diffAccepted", {"filePath": "/old", "content": "x"})]


async def test_close_answers_with_the_text_as_it_is(desk: Desk) -> None:
    identifier = await desk.open()
    desk.editor.text = "with é and\nedits"
    assert await desk.close(suppressNotification=True) == "with é and\nedits"
    assert desk.notifications() == []
    # First outcome wins: what Emacs says now comes too late.
    desk.tools.decide(identifier, Decision("late"))
    assert desk.notifications() == []
    assert desk.editor.log[-1] == ("settled", identifier)


async def test_close_without_suppression_is_a_rejection(desk: Desk) -> None:
    await desk.open()
    assert await desk.close() is None
    assert desk.notifications() == [("ide/diffRejected", {"filePath": "/nowhere/a"})]


async def test_close_of_what_was_never_open_answers_null(desk: Desk) -> None:
    assert await desk.close("/never") is None
    await desk.open(session="t")
    assert await desk.close() is None
    assert desk.notifications() == []


@pytest.mark.parametrize("error", [EmacsBusyError("busy"), EmacsGoneError("gone"), EmacsRefusedError("failed")])
async def test_close_does_not_say_that_nothing_was_open_when_emacs_does_not_answer(
    desk: Desk, error: EmacsUnavailableError
) -> None:
    await desk.open()
    desk.editor.text = error
    assert str(error) in await desk.refused("closeDiff", filePath="/nowhere/a", suppressNotification=True)


@pytest.mark.parametrize("arguments", [{}, {"filePath": 5}, {"filePath": "a"}])
async def test_close_with_bad_arguments_is_an_error(desk: Desk, arguments: dict[str, Any]) -> None:
    await desk.refused("closeDiff", **arguments)


@pytest.mark.parametrize("answer", ["accepted", EmacsGoneError("")])
async def test_close_overtakes_a_decision_that_has_not_gone_out(desk: Desk, answer: str | Exception) -> None:
    """Emacs is told that its decision is void, and keeps the text that the CLI may not write."""
    identifier = await desk.open()
    desk.tools.decide(identifier, Decision("accepted"))
    desk.editor.text = answer
    assert await desk.close(suppressNotification=True) == "accepted"
    assert desk.notifications() == []
    assert desk.editor.log[-1] == ("close", identifier)


async def test_a_decision_under_way_when_the_cli_closes_is_void(desk: Desk) -> None:
    """Accepted in Emacs, answered in the terminal: the text goes back with the answer, and nothing else goes out."""
    identifier = await desk.open()
    desk.editor.text = "accepted with edits"
    assert await desk.close(suppressNotification=True) == "accepted with edits"
    desk.tools.decide(identifier, Decision("accepted with edits"))
    assert desk.notifications() == []
    assert desk.editor.log[-1] == ("settled", identifier)


async def test_close_without_suppression_lets_a_decision_go_out(desk: Desk) -> None:
    identifier = await desk.open()
    desk.tools.decide(identifier, Decision("accepted"))
    assert await desk.close() == "accepted"
    assert [method for method, _ in desk.notifications()] == ["ide/diffAccepted"]


async def test_a_second_proposal_for_a_path_takes_the_place_of_the_first(desk: Desk) -> None:
    first = await desk.open(text="one")
    second = await desk.open(text="two")
    desk.tools.decide(first, Decision("one"))
    desk.tools.decide(second, Decision("two"))
    assert desk.notifications() == [("ide/diffAccepted", {"filePath": "/nowhere/a", "content": "two"})]


async def test_a_decision_that_has_not_gone_out_is_not_taken_for_the_next_ones(desk: Desk) -> None:
    """Emacs, which has not been told that it has gone out, learns from the new proposal that it is void."""
    first = await desk.open(text="one")
    desk.tools.decide(first, Decision("one"))
    second = await desk.open(text="two")
    assert desk.notifications() == []
    assert ("settled", first) not in desk.editor.log
    desk.tools.decide(second, Decision("two"))
    assert desk.notifications() == [("ide/diffAccepted", {"filePath": "/nowhere/a", "content": "two"})]


async def test_the_same_text_again_is_the_same_review(desk: Desk) -> None:
    first = await desk.open(text="one")
    assert await desk.open(text="one") == first
    assert await desk.open(text="one", session="t") != first
    desk.tools.decide(first, Decision("edited"))
    assert desk.notifications() == [("ide/diffAccepted", {"filePath": "/nowhere/a", "content": "edited"})]


async def test_the_same_text_again_with_the_decision_on_its_way(desk: Desk) -> None:
    """One decision, and it answers."""
    first = await desk.open(text="one")
    desk.tools.decide(first, Decision(None))
    assert await desk.open(text="one") == first
    assert len(desk.editor.opened) == 1
    assert desk.notifications() == [("ide/diffRejected", {"filePath": "/nowhere/a"})]
    desk.tools.went_out(first)
    assert await desk.open(text="one") != first


async def test_the_same_text_again_after_a_restart(desk: Desk) -> None:
    assert await desk.open("/old", "old") == "old"
    assert await desk.open("/old", "other") != "old"


async def test_two_sessions_review_the_same_path(desk: Desk) -> None:
    one, two = await desk.open(session="s"), await desk.open(session="t")
    desk.tools.decide(two, Decision(None))
    desk.tools.decide(one, Decision("x"))
    assert [(item[0], item[1]["method"]) for item in desk.outbox.posted] == [
        ("t", "ide/diffRejected"),
        ("s", "ide/diffAccepted"),
    ]


async def test_the_reviews_of_a_gone_session_are_abandoned(desk: Desk) -> None:
    open_one, decided = await desk.open("/nowhere/a"), await desk.open("/nowhere/b")
    other = await desk.open(session="t")
    desk.tools.decide(decided, Decision("x"))
    desk.editor.log.clear()
    desk.tools.session_gone("s")
    assert sorted(desk.editor.log) == sorted(
        [("abandon", "old"), ("abandon", open_one), ("abandon", decided), ("settled", decided)]
    )
    desk.tools.decide(other, Decision("x"))
    assert desk.outbox.posted[-1][0] == "t"


async def test_a_decision_for_a_session_that_has_just_gone_is_abandoned(desk: Desk) -> None:
    identifier = await desk.open()
    desk.outbox.sessions.clear()
    desk.tools.decide(identifier, Decision("x"))
    assert desk.editor.log[-2:] == [("abandon", identifier), ("settled", identifier)]


async def test_an_accepted_text_that_is_told_in_pieces_is_exact(desk: Desk) -> None:
    line = 'a "line" \\ of \x01 \u00e9 \U0001f600\r\n'
    text = line * (3 * CONTENT_CHARACTERS // len(line))
    desk.tools.decide(await desk.open(text=text), Decision(text))
    ((_, notification, _),) = desk.outbox.posted
    assert notification["params"] == {"filePath": "/nowhere/a", "content": text}
