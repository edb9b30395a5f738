# SPDX-License-Identifier: GPL-3.0-or-later
"""Reviews of edits that a hook holds; Emacs and the terminal are scripted."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import hypothesis
import pytest

from qwen_companion.base.errors import EmacsBusyError
from qwen_companion.domain import Peer
from qwen_companion.doors import events
from qwen_companion.doors.door_settings import ALL, ALL_MODES, OPEN
from qwen_companion.doors.events import Answer, PreToolUse, ask, refuse
from qwen_companion.doors.files import LocalFiles
from qwen_companion.doors.held import BUSY, Asker, Limits
from qwen_companion.doors.reviews import DROPPED, REJECTED, STILL_ASKING, STILL_REVIEWING, UNKNOWN_CLI, HookReviews
from qwen_companion.doors.terminal_files import TerminalFiles
from qwen_companion.ide.proposals import Decision, Proposal
from random_edits import random_edits
from support import FakeEditor, soon, until

pytestmark = pytest.mark.anyio

TEXT = "one\ntwo\n"
NEW = "one\nthree\n"
PID = 7
PEER = Peer(PID, "", None, "qwen", ())
SEED = int(os.environ.get("FUZZ_SEED", "1"))
EDITS = 5000 if hypothesis.settings().max_examples >= 1000 else 200
"""How many random edits are tried: more by make fuzz."""
ASKER = Asker(PEER, "session", "Qwen Code 0.24.4", LocalFiles())
AGENT = "subagent general-purpose"


class Site:
    """A project, the reviews of its files, and the terminal of its CLI, if it has one."""

    def __init__(self, tasks: anyio.abc.TaskGroup, directory: Path, terminal: bool = True, **limits: float) -> None:
        self.project = directory / "project"
        self.project.mkdir()
        self.file = self.project / "a.txt"
        self.file.write_text(TEXT)
        self.editor = FakeEditor()
        self.warnings = self.editor.warnings
        self.heard: list[tuple[str, str]] = []
        self.answers = directory / "answers"
        self.events = directory / "events"
        self.events.touch()
        files = TerminalFiles(str(directory), str(self.events), str(self.answers)) if terminal else None
        self.reviews = HookReviews(self.editor, lambda _: files, Limits(**limits))
        tasks.start_soon(self.reviews.tasks.run)
        self.reviews.scope = ALL
        self.gone = anyio.Event()

    def edit(self, tool: str = "edit", mode: str = "auto", call: str = "call_1", **tool_input: Any) -> PreToolUse:
        """Return the event before an edit, by default that of `TEXT` to `NEW`."""
        tool_input = {"file_path": str(self.file), **tool_input}
        if tool == "edit" and "old_string" not in tool_input:
            tool_input |= {"old_string": "two", "new_string": "three"}
        return PreToolUse(
            session_id="s",
            cwd=str(self.project),
            permission_mode=mode,
            prompt_id="p",
            timestamp="2026-01-01T00:00:01Z",
            tool_name=tool,
            tool_input=tool_input,
            tool_call_id=call,
        )

    async def answer(self, event: PreToolUse | None = None, agent: str | None = None, asker: Asker = ASKER) -> Answer:
        """Return the answer, after running the callback for a sent answer."""

        async def hear(heard: events.ToolEvent) -> str:
            self.heard.append((heard.name, self.file.read_text()))
            return "A listener's words." if heard.name == "PostToolUse" else ""

        reply = await soon(self.reviews.reply(event or self.edit(), asker, agent, hear, self.gone))
        if reply.after is not None:
            reply.after()
        return reply.answer

    async def open(
        self, event: PreToolUse | None = None, agent: str | None = None
    ) -> tuple[asyncio.Task[Answer], Proposal]:
        """Begin a review; return what is to be its answer, and the proposal."""
        answering = asyncio.create_task(self.answer(event, agent))
        return answering, await soon(self.editor.shown.get())

    async def reviewed(self, content: str | None, event: PreToolUse | None = None, reason: str | None = None) -> Answer:
        """Return the answer when the user accepts `content` in the review, or with None rejects for `reason`."""
        answering, proposal = await self.open(event)
        self.reviews.decide(proposal.id, Decision(content, reason))
        return await soon(answering)

    def terminal_asks(self, call: str = "call_1", request: str = "r") -> None:
        asked = {"tool_name": "edit", "tool_use_id": call}
        with self.events.open("a") as file:
            file.write(json.dumps({"type": "control_request", "request_id": request, "request": asked}) + "\n")

    def told(self) -> list[dict[str, Any]]:
        """Return what was written for the terminal."""
        return [json.loads(line) for line in self.answers.read_text().splitlines()] if self.answers.exists() else []

    async def wait_until_told(self, count: int = 1) -> list[dict[str, Any]]:
        with anyio.fail_after(30):
            while len(self.told()) < count:
                await anyio.sleep(0.01)
        return self.told()

    def run(self, call: str = "call_1", text: str = NEW) -> events.PostToolUse:
        """Return the event after the call, which has written `text`, by default what it proposed."""
        self.file.write_text(text)
        response = {"returnDisplay": {"newContent": text}}
        return events.PostToolUse(tool_name="edit", tool_call_id=call, tool_response=response)


@pytest.fixture
async def tasks() -> AsyncGenerator[anyio.abc.TaskGroup]:
    async with anyio.create_task_group() as group:
        yield group
        group.cancel_scope.cancel()


@pytest.fixture
async def site(tasks: anyio.abc.TaskGroup, tmp_path: Path) -> Site:
    return Site(tasks, tmp_path)


@pytest.fixture
async def hasty(tasks: anyio.abc.TaskGroup, tmp_path: Path) -> Site:
    """Return a site where no hook is held."""
    return Site(tasks, tmp_path, hold_s=0.01)


def idle(time: str = "2026-01-01T00:00:02Z") -> events.AttentionRequest:
    return events.AttentionRequest(notification_type="idle_prompt", timestamp=time)


def terminal_asks(tool: str = "edit") -> events.AttentionRequest:
    message = f"Qwen Code needs your permission to use {tool}"
    return events.AttentionRequest(notification_type="permission_prompt", message=message)


# --- The CLI goes on as without us ---


@pytest.mark.parametrize("scope", [ALL, OPEN, ALL_MODES, None])
async def test_what_the_cli_asks_about_itself_is_not_asked_again(site: Site, scope: str | None) -> None:
    site.reviews.scope = scope
    for mode in ("default", "plan"):
        assert await site.answer(site.edit(mode=mode)) == {}
    assert await site.answer(site.edit().model_copy(update={"permission_mode": None})) == {}
    # The user has just said yes in the terminal, or in the review by the IDE server.
    for _ in range(2):
        site.reviews.note(PEER, events.PermissionRequest(tool_name="edit", tool_input=site.edit().tool_input))
    for _ in range(2):
        assert await site.answer() == {}
    assert site.editor.log == []


@pytest.mark.parametrize("mode", ["auto_edit", "auto-edit", "yolo"])
async def test_in_other_modes_only_who_wants_it_reviews(site: Site, mode: str) -> None:
    assert await site.answer(site.edit(mode=mode)) == {}
    site.reviews.scope = ALL_MODES
    assert await site.reviewed(None, site.edit(mode=mode)) == refuse(REJECTED)


async def test_files_that_are_not_open_are_written(site: Site) -> None:
    site.reviews.scope = OPEN
    assert await site.answer() == {}
    site.reviews.scope = None
    assert await site.answer() == {}
    site.reviews.scope = OPEN
    site.editor.visited = (str(site.file),)
    assert await site.reviewed(None) == refuse(REJECTED)
    # Where Emacs does not say, the file is taken for open.
    site.editor.visited = None
    assert await site.reviewed(None) == refuse(REJECTED)


async def test_one_yes_is_for_one_call(site: Site) -> None:
    request = events.PermissionRequest(tool_name="edit", tool_input=site.edit().tool_input)
    site.reviews.note(PEER, request)
    other = site.edit(file_path=str(site.project / "b.txt"), old_string="", new_string="x\n")
    assert await site.reviewed(None, other) == refuse(REJECTED)
    assert await site.answer() == {}
    assert await site.reviewed(None) == refuse(REJECTED)
    # A turn that is over has no call left.
    site.reviews.note(PEER, request)
    site.reviews.note(PEER, idle())
    assert await site.reviewed(None) == refuse(REJECTED)


async def test_a_yes_in_another_mode_is_for_the_call_that_it_was_given_for(site: Site) -> None:
    """The user switches to `auto` while the turn goes on."""
    site.reviews.note(PEER, events.PermissionRequest(tool_name="edit", tool_input=site.edit().tool_input))
    assert await site.answer(site.edit(mode="default")) == {}
    assert await site.reviewed(None) == refuse(REJECTED)


# --- Decided in time ---


async def test_an_accepted_edit_is_made_by_the_cli(site: Site) -> None:
    assert await site.reviewed(NEW) == {}
    assert site.file.read_text() == TEXT
    ((proposal, client, text),) = site.editor.opened
    assert (proposal.path, client, text) == (str(site.file), "Qwen Code 0.24.4", NEW)
    assert site.editor.log[-1] == ("settled", proposal.id)


@pytest.mark.parametrize(("text", "how"), [(NEW, "exactly"), ("one\nthree", "otherwise")])
async def test_emacs_is_told_whether_the_cli_has_written_what_was_accepted(site: Site, text: str, how: str) -> None:
    await site.reviewed(NEW)
    event = site.run(text=text)
    assert site.reviews.awaits(PEER, event)
    assert await site.reviews.ran(PEER, event) == ""
    assert site.editor.log[-1] == ("written", how)
    assert not site.reviews.awaits(PEER, event)


async def test_a_rejected_edit_is_denied_with_the_users_reason(site: Site) -> None:
    assert await site.reviewed(None) == refuse(REJECTED)
    assert await site.reviewed(None, reason="not in this file") == refuse("not in this file")
    assert await site.reviewed(TEXT) == refuse(DROPPED)
    assert site.file.read_text() == TEXT


async def test_an_edit_with_changes_is_written_here_and_the_model_told(site: Site) -> None:
    site.file.chmod(0o640)
    answer = await site.reviewed("one\nfour\n")
    assert site.file.read_text() == "one\nfour\n"
    assert site.file.stat().st_mode & 0o777 == 0o640
    said = answer["hookSpecificOutput"]["permissionDecisionReason"]
    assert answer == refuse(said)
    assert "-three\n+four\n" in said
    assert said.endswith(f"Read {site.file} again before you edit it the next time.\n\nA listener's words.")
    # The journal has the text before and after.
    assert site.heard == [("PreToolUse", TEXT), ("PostToolUse", "one\nfour\n")]
    assert [path.name for path in site.project.iterdir()] == ["a.txt"]


async def test_a_long_difference_is_not_told(site: Site) -> None:
    answer = await site.reviewed("".join(f"{number}\n" for number in range(9999)))
    assert len(answer["hookSpecificOutput"]["permissionDecisionReason"]) < 1000


async def test_a_new_file_with_changes_is_written(site: Site) -> None:
    path = site.project / "new/b.txt"
    await site.reviewed("theirs\n", site.edit("write_file", file_path=str(path), content="mine\n"))
    assert path.read_text() == "theirs\n"


async def test_a_linked_file_is_not_cut_off_where_a_longer_text_has_no_room(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    old = b"old\n" * 200_000
    file.write_bytes(old)
    os.link(file, tmp_path / "b.txt")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            await LocalFiles().write(str(file), old, b"new\n" * 300_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == old
    await LocalFiles().write(str(file), old, b"new\n")
    assert (tmp_path / "b.txt").read_bytes() == b"new\n"


@pytest.mark.parametrize("content", [NEW, "one\nfour\n"])
async def test_nothing_is_made_of_a_file_that_has_changed_meanwhile(site: Site, content: str) -> None:
    answering, proposal = await site.open()
    site.file.write_text("other\n")
    site.reviews.decide(proposal.id, Decision(content))
    said = (await soon(answering))["hookSpecificOutput"]["permissionDecisionReason"]
    assert "it has changed on disk. Read the file again" in said
    assert site.file.read_text() == "other\n"
    # Emacs keeps the user's text.
    assert site.editor.log[-2:] == [("abandon", "it has changed on disk"), ("settled", proposal.id)]


async def test_several_reviews_are_held_at_once(site: Site) -> None:
    first, one = await site.open(site.edit(call="c1"))
    second, two = await site.open(site.edit(call="c2", old_string="one", new_string="1"))
    assert site.reviews.waiting() == [one, two]
    site.reviews.decide(two.id, Decision(None))
    assert site.reviews.waiting() == [one]
    assert await soon(second) == refuse(REJECTED)
    site.reviews.decide(one.id, Decision(NEW))
    assert await soon(first) == {}


# --- Only what is exact is shown ---


async def test_line_ends_and_marks_stay(site: Site) -> None:
    site.file.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert await site.reviewed("\ufeffone\r\nthree\r\n") == {}
    # The CLI tells the text without them.
    assert await site.reviews.ran(PEER, site.run()) == ""
    assert site.editor.log[-1] == ("written", "exactly")
    site.file.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    await site.reviewed("\ufeffone\r\nfour\r\n")
    assert site.file.read_bytes() == b"\xef\xbb\xbfone\r\nfour\r\n"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("five", "x", "occurs 0 times"),
        # The CLI would find it all the same.
        ("two ", "x", "occurs 0 times"),
        ("two\n\n", "x", "occurs 0 times"),
        ("o", "x", "occurs 2 times"),
        ("", "x", "occurs 0 times"),
        # And would take the line end along.
        ("two", "", "a line end"),
        ("two", "x\r\n", "carriage returns"),
    ],
)
async def test_the_terminal_asks_about_what_is_not_exact(site: Site, old: str, new: str, said: str) -> None:
    answer = await site.answer(site.edit(old_string=old, new_string=new))
    assert answer["hookSpecificOutput"]["permissionDecision"] == "ask"
    assert said in answer["hookSpecificOutput"]["permissionDecisionReason"]
    assert site.editor.log == []


@pytest.mark.parametrize(
    ("tool", "tool_input"),
    [
        ("notebook_edit", {"notebook_path": "/w/a.ipynb", "file_path": None}),
        ("write_file", {"content": None}),
        ("edit", {"old_string": 3}),
        ("edit", {"file_path": "a.txt"}),
        ("edit", {"file_path": ["x"]}),
        ("edit", {"file_path": "/"}),
    ],
)
async def test_the_terminal_asks_about_what_cannot_be_shown(site: Site, tool: str, tool_input: dict[str, Any]) -> None:
    answer = await site.answer(site.edit(tool, **tool_input))
    assert answer["hookSpecificOutput"]["permissionDecision"] == "ask"


async def test_the_terminal_asks_about_files_that_are_no_text(site: Site) -> None:
    for data in (b"one\ntwo\n\xff", b"\0two"):
        site.file.write_bytes(data)
        assert (await site.answer())["hookSpecificOutput"]["permissionDecision"] == "ask"


async def test_all_places_of_a_text_are_shown(site: Site) -> None:
    assert await site.reviewed("1ne\ntw1\n", site.edit(old_string="o", new_string="1", replace_all=True)) == {}


async def test_what_is_shown_is_what_the_cli_writes(site: Site) -> None:
    """Shown is what a random edit by the CLI's own rules makes of the file, or nothing."""
    shown = 0
    for number, edit in enumerate(random_edits(SEED, EDITS)):
        path = site.project / f"{number}{edit.suffix}"
        if edit.data is not None:
            path.write_bytes(edit.data)
        given = {"file_path": str(path), **edit.tool_input}
        event = {"hook_event_name": "PreToolUse", "permission_mode": "auto", "tool_name": edit.tool}
        parsed = events.parse_event(json.dumps({**event, "tool_input": given}).encode())
        assert isinstance(parsed, PreToolUse)
        answering = asyncio.create_task(site.answer(parsed))
        showing = asyncio.create_task(site.editor.shown.get())
        await soon(asyncio.wait([answering, showing], return_when=asyncio.FIRST_COMPLETED))
        if not showing.done():
            showing.cancel()
            assert answering.result()["hookSpecificOutput"]["permissionDecision"] == "ask"
            continue
        shown += 1
        assert site.editor.opened[-1][2].encode() == by_the_cli(edit.data, edit.tool, parsed.tool_input)
        site.reviews.decide(showing.result().id, Decision(None))
        await soon(answering)
    assert EDITS / 4 < shown < EDITS


def by_the_cli(data: bytes | None, tool: str, given: Mapping[str, Any]) -> bytes:
    """Return what Qwen Code makes of a file with `data`, as its source has it; the interoperability tests compare."""
    data = data or b""
    mark, text = (b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""), data.decode("utf-8-sig")
    ends, text = "\r\n" if "\r\n" in text else "\n", text.replace("\r\n", "\n")
    if tool == "edit":
        old, new = given["old_string"], given["new_string"]
        assert old in text
        assert given.get("replace_all") or text.count(old) == 1 or not text
        if not new and not old.endswith("\n") and f"{old}\n" in text:
            old += "\n"
        text = new.join(text.split(old)) if old else new
    else:
        text = given["content"]
    return mark + text.replace("\n", ends).encode()


# --- Not decided in time ---


async def test_the_terminal_asks_and_is_answered_from_emacs(hasty: Site) -> None:
    assert await hasty.answer() == ask(STILL_ASKING)
    proposal = await soon(hasty.editor.shown.get())
    assert hasty.editor.log[-1] == ("released", "its terminal asks as well")
    hasty.terminal_asks("another", "q")
    hasty.reviews.decide(proposal.id, Decision(NEW))
    hasty.terminal_asks()
    assert await hasty.wait_until_told() == [{"type": "confirmation_response", "request_id": "r", "allowed": True}]
    assert await hasty.reviews.ran(PEER, hasty.run()) == ""
    assert hasty.editor.log[-2:] == [("settled", proposal.id), ("written", "exactly")]


async def test_the_text_of_the_user_replaces_what_the_cli_has_written(hasty: Site) -> None:
    await hasty.answer()
    proposal = await soon(hasty.editor.shown.get())
    hasty.terminal_asks()
    hasty.reviews.decide(proposal.id, Decision("one\nfour\n"))
    await hasty.wait_until_told()
    event = hasty.run()
    assert hasty.reviews.awaits(PEER, event)
    assert "-three\n+four\n" in await hasty.reviews.ran(PEER, event)
    assert hasty.file.read_text() == "one\nfour\n"
    assert not hasty.reviews.awaits(PEER, event)


async def test_what_the_cli_has_written_otherwise_is_left(hasty: Site) -> None:
    await hasty.answer()
    proposal = await soon(hasty.editor.shown.get())
    hasty.terminal_asks()
    hasty.reviews.decide(proposal.id, Decision("one\nfour\n"))
    await hasty.wait_until_told()
    event = hasty.run()
    hasty.file.write_text("other\n")
    assert await hasty.reviews.ran(PEER, event) == ""
    assert hasty.file.read_text() == "other\n"


async def test_a_reason_is_sent_once_the_turn_is_over(hasty: Site) -> None:
    await hasty.answer()
    proposal = await soon(hasty.editor.shown.get())
    hasty.terminal_asks()
    hasty.reviews.decide(proposal.id, Decision(None, "not here"))
    assert [each["allowed"] for each in await hasty.wait_until_told()] == [False]
    hasty.reviews.note(PEER, idle())
    assert (await hasty.wait_until_told(2))[1] == {"type": "submit", "text": f"{REJECTED} not here"}


async def test_a_terminal_that_asks_nothing_is_told_to_the_user(tasks: anyio.abc.TaskGroup, tmp_path: Path) -> None:
    site = Site(tasks, tmp_path, hold_s=0.01, confirm_s=0.01)
    await site.answer()
    proposal = await soon(site.editor.shown.get())
    site.reviews.decide(proposal.id, Decision(NEW))
    with anyio.fail_after(30):
        while not site.warnings:
            await anyio.sleep(0.01)
    assert site.warnings == ["the terminal takes no answer from Emacs: answer in the terminal"]
    assert site.editor.log[-2:] == [("abandon", "the terminal did not take the answer"), ("settled", proposal.id)]


async def test_a_terminal_at_another_place_is_answered_by_keys(tasks: anyio.abc.TaskGroup, tmp_path: Path) -> None:
    site = Site(tasks, tmp_path, terminal=False, hold_s=0.01)
    site.editor.types = True
    asker = replace(ASKER, peer=replace(PEER, terminal=1))
    for decision, key in ((Decision(NEW), "1"), (Decision(None), "\x1b")):
        await site.answer(asker=asker)
        proposal = await soon(site.editor.shown.get())
        site.reviews.decide(proposal.id, decision)
        # A command that a subagent runs meanwhile is the user's to allow.
        site.reviews.note(PEER, terminal_asks("run_shell_command"))
        await anyio.wait_all_tasks_blocked()
        assert "key" not in [kind for kind, _ in site.editor.log[-2:]]
        site.reviews.note(PEER, terminal_asks())
        with anyio.fail_after(30):
            while site.editor.log[-1] != ("settled", proposal.id):
                await anyio.sleep(0.01)
        assert site.editor.log[-2] == ("key", key)
        site.reviews.note(PEER, idle())


async def test_a_reason_that_was_typed_is_not_sent_again(tasks: anyio.abc.TaskGroup, tmp_path: Path) -> None:
    """The terminal writes no events any more, see `held`, so that it is answered by keys."""
    site = Site(tasks, tmp_path, hold_s=0.01, key_s=0.01)
    site.editor.types = True
    await site.answer(asker=replace(ASKER, peer=replace(PEER, terminal=1)))
    proposal = await soon(site.editor.shown.get())
    site.reviews.decide(proposal.id, Decision(None, "not here"))
    site.reviews.note(PEER, terminal_asks())
    await until(lambda: site.editor.log[-1] == ("settled", proposal.id))
    assert ("prompt", f"{REJECTED} not here") in site.editor.log
    site.reviews.note(PEER, idle())
    await anyio.wait_all_tasks_blocked()
    assert site.told() == []


async def test_an_unknown_terminal_is_the_only_one_to_answer(tasks: anyio.abc.TaskGroup, tmp_path: Path) -> None:
    site = Site(tasks, tmp_path, terminal=False, hold_s=0.01)
    await site.answer()
    assert site.editor.log[-1][0] == "open"
    site.reviews.note(PEER, terminal_asks())
    assert site.editor.log[-1] == ("shown", "its terminal asks now")


async def test_where_nobody_is_asked_the_same_call_meets_its_review(tasks: anyio.abc.TaskGroup, tmp_path: Path) -> None:
    """As with `qwen -p` or `--acp`, whose model reads the question as a refusal."""
    site = Site(tasks, tmp_path, terminal=False, hold_s=0.01)
    await site.answer()
    proposal = await soon(site.editor.shown.get())
    failed = events.PostToolBatch.model_validate({"tool_calls": [{"tool_use_id": "call_1", "status": "error"}]})
    site.reviews.note(PEER, failed)
    site.reviews.decide(proposal.id, Decision(NEW))
    assert await site.answer(site.edit(call="call_2")) == {}
    assert site.editor.log[-1] == ("settled", proposal.id)


async def test_a_subagent_is_told_to_make_its_call_again_and_finds_its_review(hasty: Site) -> None:
    edit = hasty.edit().model_copy(update={"agent_id": "a"})
    for _ in range(2):
        assert await hasty.answer(edit, AGENT) == refuse(STILL_REVIEWING)
    proposal = await soon(hasty.editor.shown.get())
    assert hasty.editor.shown.empty()
    assert hasty.editor.opened[0][1] == "subagent general-purpose of Qwen Code 0.24.4"
    # Another one's is another.
    await hasty.answer(edit.model_copy(update={"agent_id": "b"}), AGENT)
    assert (await soon(hasty.editor.shown.get())).id != proposal.id
    # The batch of its calls has ended, as has a turn of the conversation.
    failed = events.PostToolBatch.model_validate({"tool_calls": [{"tool_use_id": "call_1", "status": "error"}]})
    hasty.reviews.note(PEER, failed)
    hasty.reviews.note(PEER, idle())
    # What is decided meanwhile waits for it.
    hasty.reviews.decide(proposal.id, Decision(NEW))
    assert await hasty.answer(edit, AGENT) == {}
    # And then it is over: the same again is a new one.
    await hasty.answer(edit, AGENT)
    assert (await soon(hasty.editor.shown.get())).id != proposal.id


async def test_a_file_that_has_changed_meanwhile_is_another_review(hasty: Site) -> None:
    await hasty.answer(agent=AGENT)
    one = await soon(hasty.editor.shown.get())
    hasty.file.write_text("zero\n" + TEXT)
    await hasty.answer(agent=AGENT)
    assert (await soon(hasty.editor.shown.get())).id != one.id


# --- Withdrawn ---


@pytest.mark.parametrize(
    "event",
    [
        idle(),
        events.UserPromptSubmit(prompt="go on", timestamp="2026-01-01T00:00:02Z"),
        events.Stop(),
        events.SessionEnd(),
        events.PostToolBatch.model_validate({"tool_calls": [{"tool_use_id": "call_1", "status": "cancelled"}]}),
        events.PostToolUseFailure(tool_name="edit", tool_call_id="call_1", error="not read"),
    ],
)
@pytest.mark.parametrize("hold_s", [30.0, 0.0])
async def test_no_review_of_a_call_that_is_over_can_be_accepted(
    tasks: anyio.abc.TaskGroup, tmp_path: Path, event: events.Event, hold_s: float
) -> None:
    """As with Esc, which leaves the connection open, while the hook is held or the terminal asks."""
    site = Site(tasks, tmp_path, hold_s=hold_s)
    answering, proposal = await site.open()
    if not hold_s:
        await soon(answering)
    # A notification of before.
    site.reviews.note(PEER, idle("2026-01-01T00:00:00Z"))
    site.reviews.note(replace(PEER, pid=PID + 1), event)
    assert site.reviews.waiting() == [proposal]
    site.reviews.note(PEER, event)
    assert site.reviews.waiting() == []
    assert [kind for kind, _ in site.editor.log][-1] == "abandon"
    assert not site.reviews.decide(proposal.id, Decision("one\nfour\n"))
    await soon(answering)
    assert site.file.read_text() == TEXT


@pytest.mark.parametrize(
    ("asks", "said"),
    [(True, "it was accepted in the terminal"), (False, "it was written, and not accepted in Emacs")],
)
async def test_what_was_written_after_the_hook_is_withdrawn(hasty: Site, asks: bool, said: str) -> None:
    """A CLI that a frozen Emacs held up for a minute runs the tool without asking anybody."""
    await hasty.answer()
    if asks:
        hasty.reviews.note(PEER, terminal_asks())
    await hasty.reviews.ran(PEER, hasty.run())
    assert hasty.editor.log[-1] == ("abandon", said)


async def test_a_cli_that_is_gone_ends_the_review(site: Site) -> None:
    answering, proposal = await site.open()
    site.gone.set()
    await soon(answering)
    assert site.editor.log[-1] == ("abandon", "it was cancelled in the terminal")
    # What is decided then has nobody to go to.
    assert not site.reviews.decide(proposal.id, Decision("x"))


async def test_a_review_to_which_nobody_comes_back_ends(tasks: anyio.abc.TaskGroup, tmp_path: Path) -> None:
    site = Site(tasks, tmp_path, hold_s=0.0, return_s=0.0)
    await site.answer(agent=AGENT)
    while site.editor.log[-1] != ("abandon", "the model has not come back to it"):
        await asyncio.sleep(0)


async def test_a_subagent_or_a_cli_that_ends_takes_its_reviews_along(hasty: Site) -> None:
    edit = hasty.edit().model_copy(update={"agent_id": "a"})
    await hasty.answer(edit, AGENT)
    hasty.reviews.end_agent(PID, "b")
    hasty.reviews.end_agent(PID + 1, "a")
    assert hasty.editor.log[-1][0] == "open"
    hasty.reviews.end_agent(PID, "a")
    assert hasty.editor.log[-1] == ("abandon", "the subagent has ended")
    await soon(hasty.editor.shown.get())
    await hasty.answer(edit, AGENT)
    proposal = await soon(hasty.editor.shown.get())
    # Decided, but there is nobody to be told.
    hasty.reviews.decide(proposal.id, Decision(None))
    hasty.reviews.end_process(PID)
    assert hasty.editor.log[-2:] == [("abandon", "the CLI has ended"), ("settled", proposal.id)]


# --- What fails asks ---


async def test_a_busy_emacs_holds_nobody(tasks: anyio.abc.TaskGroup, tmp_path: Path) -> None:
    site = Site(tasks, tmp_path, open_s=0.01)
    site.editor.free.clear()
    assert await site.answer() == ask(BUSY)
    # It shows it when it has time, and is told at once that it is over.
    assert [kind for kind, _ in site.editor.log] == ["open", "abandon"]


async def test_a_frozen_emacs_holds_nobody(site: Site) -> None:
    answering, proposal = await site.open()
    site.editor.frozen.set()
    assert await soon(answering) == ask(STILL_ASKING)
    # It may decide on it later, and shows no other.
    site.editor.free.clear()
    assert await site.answer(site.edit(call="call_2", old_string="one", new_string="1")) == ask(BUSY)
    site.terminal_asks()
    site.reviews.decide(proposal.id, Decision(NEW))
    assert [each["allowed"] for each in await site.wait_until_told()] == [True]


@pytest.mark.parametrize("agent", [AGENT, None])
async def test_a_model_that_repeats_its_call_waits_for_a_frozen_emacs(site: Site, agent: str | None) -> None:
    """It would repeat it again at once, until Emacs goes on."""
    answering, proposal = await site.open(agent=agent)
    site.editor.frozen.set()
    assert await soon(answering) == (refuse(STILL_REVIEWING) if agent else ask(STILL_ASKING))
    again = asyncio.create_task(site.answer(site.edit(call="call_2"), agent))
    assert (await asyncio.wait([again], timeout=0.2))[0] == set()
    site.reviews.decide(proposal.id, Decision(NEW))
    assert await soon(again) == {}


@pytest.mark.parametrize("refusal", ["too large", EmacsBusyError("gone")])
async def test_what_emacs_does_not_show_is_asked_about(site: Site, refusal: str | Exception) -> None:
    site.editor.refusal = refusal
    assert await site.answer() == ask(str(refusal))


async def test_the_edit_of_an_unknown_program_is_asked_about(site: Site) -> None:
    assert site.reviews.reply_to_unknown(site.edit()).answer == ask(UNKNOWN_CLI)
    assert await site.answer(asker=replace(ASKER, files=None)) == ask(UNKNOWN_CLI)
    assert site.reviews.reply_to_unknown(site.edit(mode="default")).answer == {}


async def test_a_decision_about_nothing_is_not_known(site: Site) -> None:
    assert not site.reviews.decide("hook-0", Decision(None))
