# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers to requests for permission; Emacs is scripted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from qwen_companion.domain import Peer
from qwen_companion.doors.events import Answer, PermissionRequest
from qwen_companion.doors.reviews import ALL, OPEN, STILL_REVIEWING, Asker, HookReviews
from qwen_companion.errors import EmacsBusyError
from qwen_companion.ide.proposals import Decision
from support import FakeEditor, soon

pytestmark = pytest.mark.anyio

TEXT = "one\ntwo\n"
PID = 7
PEER = Peer(PID, "", None, "qwen", ())
CONNECTED = Asker(PEER, "session", "Qwen Code 0.24.4", opens_reviews=True)
AGENT = "subagent general-purpose"


class Site:
    """A project, and the reviews of its files."""

    def __init__(self, directory: Path, **limits: float) -> None:
        self.project = directory / "project"
        self.project.mkdir()
        self.file = self.project / "a.txt"
        self.file.write_text(TEXT)
        self.editor = FakeEditor()
        environ = {"HOME": str(directory), "QWEN_CODE_SYSTEM_SETTINGS_PATH": str(directory / "settings.json")}
        self.reviews = HookReviews(self.editor, environ, **limits)
        self.reviews.scope = ALL
        self.gone = anyio.Event()

    def request(self, tool: str = "edit", mode: str = "auto", **tool_input: Any) -> PermissionRequest:
        tool_input = {"file_path": str(self.file), **tool_input}
        if tool == "edit" and "old_string" not in tool_input:
            tool_input |= {"old_string": "two", "new_string": "three"}
        return PermissionRequest(
            session_id="s", cwd=str(self.project), permission_mode=mode, tool_name=tool, tool_input=tool_input
        )

    async def answer(
        self, request: PermissionRequest | None = None, agent: str | None = None, asker: Asker = CONNECTED
    ) -> Answer:
        """Return the answer, after running the callback for a sent answer."""
        reply = await soon(self.reviews.reply(request or self.request(), asker, agent, self.gone))
        if reply.after is not None:
            reply.after()
        return reply.answer

    async def reviewed(self, content: str | None, request: PermissionRequest | None = None) -> Answer:
        """Return the answer to a subagent when the user accepts `content` in the review, or with None rejects."""
        answering = asyncio.create_task(self.answer(request, AGENT))
        proposal = await soon(self.editor.shown.get())
        self.reviews.decide(proposal.id, Decision(content))
        return await soon(answering)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def decision(answer: Answer) -> dict[str, Any]:
    assert answer["hookSpecificOutput"]["hookEventName"] == "PermissionRequest"
    return answer["hookSpecificOutput"]["decision"]


ALLOWED = {"behavior": "allow"}


# --- No decision: the CLI asks as it does without us ---


async def test_a_connected_cli_opens_its_review_itself(site: Site) -> None:
    assert await site.answer() == {}
    site.reviews.scope = OPEN
    site.editor.visited = (str(site.file),)
    assert await site.answer() == {}
    # Where Emacs does not say, the file is taken for open.
    site.editor.visited = None
    assert await site.answer() == {}
    assert site.editor.log == []


@pytest.mark.parametrize("scope", [ALL, OPEN, None])
@pytest.mark.parametrize("agent", [None, AGENT])
@pytest.mark.parametrize("mode", ["default", "plan", "auto-edit", "auto_edit", "yolo", ""])
async def test_other_modes_are_left_alone(site: Site, scope: str | None, agent: str | None, mode: str) -> None:
    site.reviews.scope = scope
    assert await site.answer(site.request(mode=mode), agent) == {}
    assert await site.answer(replace_mode(site.request()), agent) == {}
    assert site.editor.log == []


def replace_mode(request: PermissionRequest) -> PermissionRequest:
    return request.model_copy(update={"permission_mode": None})


@pytest.mark.parametrize("scope", [ALL, OPEN, None])
@pytest.mark.parametrize("agent", [None, AGENT])
async def test_other_tools_and_other_places_are_left_alone(site: Site, scope: str | None, agent: str | None) -> None:
    site.reviews.scope = scope
    outside = str(site.project.parent / "b.txt")
    # No command is ever permitted: the CLI decides by itself.
    for command in ("mkdir x", "rm -rf *", "echo x > .envrc", "touch a.txt"):
        assert await site.answer(site.request("run_shell_command", command=command), agent) == {}
    assert await site.answer(site.request("monitor", command="touch x"), agent) == {}
    assert await site.answer(site.request(file_path=outside), agent) == {}
    assert await site.answer(site.request(file_path=f"{site.project}/../b.txt"), agent) == {}
    assert await site.answer(site.request(file_path="a.txt"), agent) == {}
    assert await site.answer(site.request(file_path=["x"]), agent) == {}
    # The directory of the process is another one than it says.
    elsewhere = replace(CONNECTED, peer=replace(PEER, directory=str(site.project / "sub")))
    assert await site.answer(agent=agent, asker=elsewhere) == {}
    assert site.editor.log == []


# --- Permitted without a question ---


async def test_files_that_are_not_open_are_written_unasked(site: Site) -> None:
    site.reviews.scope = OPEN
    assert decision(await site.answer()) == ALLOWED
    assert decision(await site.answer(agent=AGENT)) == ALLOWED
    # With what a CLI was told when it started.
    site.reviews.scope = None
    assert decision(await site.answer()) == ALLOWED
    assert site.editor.log == []


async def test_what_the_classifier_would_have_seen_is_not(site: Site) -> None:
    site.reviews.scope = OPEN
    protected = site.request("write_file", file_path=str(site.project / "package.json"), content="{}")
    assert await site.answer(protected) == {}
    notebook = PermissionRequest(
        cwd=str(site.project),
        permission_mode="auto",
        tool_name="notebook_edit",
        tool_input={"notebook_path": str(site.project / "a.ipynb")},
    )
    assert await site.answer(notebook) == {}
    # A subagent would be refused: it is the user who is asked.
    assert decision(await site.reviewed("{}", protected)) == ALLOWED


# --- Held until the user has decided ---


async def test_a_subagents_edit_is_reviewed(site: Site) -> None:
    answer = await site.reviewed("one\nthree\n")
    assert decision(answer) == ALLOWED
    ((proposal, client, text),) = site.editor.opened
    assert (proposal.session, proposal.path, text) == ("session", str(site.file), "one\nthree\n")
    assert client == "subagent general-purpose of Qwen Code 0.24.4"
    assert site.editor.log == [("open", str(site.file)), ("settled", proposal.id)]


async def test_edits_in_the_review_are_what_is_written(site: Site) -> None:
    long = "x" * 100_000
    answer = decision(
        await site.reviewed(f"one\n{long}\n", site.request(old_string="two", new_string="3", replace_all=True))
    )
    assert answer["behavior"] == "allow"
    assert answer["updatedInput"] == {
        "file_path": str(site.file),
        "old_string": TEXT,
        "new_string": f"one\n{long}\n",
        "replace_all": False,
    }
    whole = site.request("write_file", content="new\n")
    answer = decision(await site.reviewed("newer\n", whole))
    assert answer["updatedInput"] == {"file_path": str(site.file), "content": "newer\n"}
    assert decision(await site.reviewed("new\n", whole)) == ALLOWED


async def test_a_new_file_is_reviewed(site: Site) -> None:
    new = str(site.project / "sub/new.txt")
    request = site.request("write_file", file_path=new, content="text\n")
    assert decision(await site.reviewed("text\n", request)) == ALLOWED
    request = site.request(file_path=new, old_string="", new_string="text\n")
    assert decision(await site.reviewed("other\n", request))["updatedInput"]["new_string"] == "other\n"
    # Emptied, which is not the same as nothing changed.
    assert decision(await site.reviewed("", request))["updatedInput"]["new_string"] == ""


async def test_a_rejected_change_is_denied_and_the_model_told(site: Site) -> None:
    assert decision(await site.reviewed(None)) == {"behavior": "deny", "message": "The user rejected this change."}
    assert decision(await site.reviewed(TEXT))["message"] == "The user dropped all of this change."


async def test_line_ends_and_marks_are_what_the_cli_makes_of_them(site: Site) -> None:
    site.file.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert decision(await site.reviewed("one\nthree\n")) == ALLOWED


@pytest.mark.parametrize(
    ("old", "said"), [("missing", "occurs 0 times"), ("o", "occurs 2 times"), ("", "is there already")]
)
async def test_what_cannot_be_shown_is_refused_to_a_subagent(site: Site, old: str, said: str) -> None:
    answer = decision(await site.answer(site.request(old_string=old, new_string="x"), AGENT))
    assert answer["behavior"] == "deny"
    assert said in answer["message"]
    # All of them can.
    every = site.request(old_string="o", new_string="0", replace_all=True)
    if old == "o":
        assert decision(await site.reviewed("0ne\ntw0\n", every)) == ALLOWED


async def test_files_that_are_no_text_are_refused_to_a_subagent(site: Site) -> None:
    for content in (b"\xff\xfe\x00", b"one\ntw\xf6\n"):
        site.file.write_bytes(content)
        assert decision(await site.answer(agent=AGENT))["behavior"] == "deny"
    site.file.unlink()
    site.file.mkdir()
    assert decision(await site.answer(agent=AGENT))["behavior"] == "deny"
    assert site.editor.log == []


async def test_a_cli_that_is_not_connected_is_reviewed_too(site: Site) -> None:
    answering = asyncio.create_task(site.answer(asker=Asker(PEER, "process 7", "Qwen Code", opens_reviews=False)))
    proposal = await soon(site.editor.shown.get())
    assert proposal.session == "process 7"
    site.reviews.decide(proposal.id, Decision(None))
    assert decision(await soon(answering))["behavior"] == "deny"


async def test_several_reviews_are_held_at_once(site: Site) -> None:
    first = asyncio.create_task(site.answer(agent=AGENT))
    one = await soon(site.editor.shown.get())
    second = asyncio.create_task(site.answer(agent=AGENT))
    two = await soon(site.editor.shown.get())
    assert one.id != two.id
    assert site.reviews.waiting() == [one, two]
    site.reviews.decide(two.id, Decision(None))
    assert site.reviews.waiting() == [one]
    assert decision(await soon(second))["behavior"] == "deny"
    site.reviews.decide(one.id, Decision("one\nthree\n"))
    assert decision(await soon(first)) == ALLOWED


# --- Nobody waits for ever ---


async def test_a_cli_that_is_gone_ends_the_review(site: Site) -> None:
    answering = asyncio.create_task(site.answer(agent=AGENT))
    proposal = await soon(site.editor.shown.get())
    site.gone.set()
    await soon(answering)
    assert site.editor.log[-1] == ("abandon", proposal.id)
    # What is decided then has nobody to go to, and Emacs need not keep it.
    site.reviews.decide(proposal.id, Decision("x"))
    assert site.editor.log[-1] == ("settled", proposal.id)


async def test_a_busy_emacs_holds_nobody(tmp_path: Path) -> None:
    site = Site(tmp_path, open_s=0.01)
    site.editor.free.clear()
    answer = decision(await site.answer(agent=AGENT))
    assert answer == {"behavior": "deny", "message": "Emacs is busy and shows no review."}
    assert await site.answer(asker=replace(CONNECTED, opens_reviews=False)) == {}
    # It shows it when it has time, and is told at once that it is over.
    assert [kind for kind, _ in site.editor.log] == ["open", "abandon"] * 2


@pytest.mark.parametrize("refusal", ["too large", EmacsBusyError("gone")])
async def test_what_emacs_does_not_show_is_not_waited_for(site: Site, refusal: str | Exception) -> None:
    site.editor.refusal = refusal
    assert decision(await site.answer(agent=AGENT)) == {"behavior": "deny", "message": str(refusal)}
    assert await site.answer(asker=replace(CONNECTED, opens_reviews=False)) == {}


async def test_a_subagent_is_told_to_ask_again_and_finds_its_review(tmp_path: Path) -> None:
    site = Site(tmp_path, hold_s=0.01)
    request = site.request().model_copy(update={"agent_id": "a"})
    for _ in range(2):
        answer = decision(await site.answer(request, AGENT))
        assert answer == {"behavior": "deny", "message": STILL_REVIEWING}
    proposal = await soon(site.editor.shown.get())
    assert site.editor.shown.empty()
    # Another one's is another.
    await site.answer(request.model_copy(update={"agent_id": "b"}), AGENT)
    assert (await soon(site.editor.shown.get())).id != proposal.id
    # What is decided meanwhile waits for it.
    site.reviews.decide(proposal.id, Decision("one\nthree\n"))
    assert decision(await site.answer(request, AGENT)) == ALLOWED
    assert site.editor.log[-1] == ("settled", proposal.id)
    # And then it is over: the same again is a new one.
    await site.answer(request, AGENT)
    assert (await soon(site.editor.shown.get())).id != proposal.id


async def test_a_file_that_has_changed_meanwhile_is_another_review(tmp_path: Path) -> None:
    site = Site(tmp_path, hold_s=0.01)
    await site.answer(agent=AGENT)
    one = await soon(site.editor.shown.get())
    site.file.write_text("zero\n" + TEXT)
    await site.answer(agent=AGENT)
    assert (await soon(site.editor.shown.get())).id != one.id


async def test_a_review_to_which_nobody_comes_back_ends(tmp_path: Path) -> None:
    site = Site(tmp_path, hold_s=0.0, return_s=0.0)
    await site.answer(agent=AGENT)
    proposal = await soon(site.editor.shown.get())
    while site.editor.log[-1] != ("abandon", proposal.id):
        await asyncio.sleep(0)


async def test_a_subagent_that_ends_takes_its_reviews_along(tmp_path: Path) -> None:
    site = Site(tmp_path, hold_s=0.01)
    request = site.request().model_copy(update={"agent_id": "a"})
    await site.answer(request, AGENT)
    proposal = await soon(site.editor.shown.get())
    site.reviews.end_agent(PID, "b")
    site.reviews.end_agent(PID + 1, "a")
    assert site.editor.log[-1][0] == "open"
    site.reviews.end_agent(PID, "a")
    assert site.editor.log[-1] == ("abandon", proposal.id)
    await site.answer(request, AGENT)
    proposal = await soon(site.editor.shown.get())
    # Decided, but there is nobody to be told.
    site.reviews.decide(proposal.id, Decision(None))
    site.reviews.end_process(PID)
    assert site.editor.log[-2:] == [("abandon", proposal.id), ("settled", proposal.id)]


async def test_the_terminal_asks_when_a_review_takes_too_long(tmp_path: Path) -> None:
    site = Site(tmp_path, hold_s=0.01)
    assert await site.answer(asker=replace(CONNECTED, opens_reviews=False)) == {}
    assert site.editor.log[-1][0] == "abandon"


async def test_a_decision_about_nothing_is_settled(site: Site) -> None:
    site.reviews.decide("hook-0", Decision(None))
    assert site.editor.log == [("settled", "hook-0")]
