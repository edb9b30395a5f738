# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans and questions, answered in Emacs and in a terminal; both are scripted."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from fake_clis import FakePlaces
from model_types import QUESTIONS
from qwen_companion.base.errors import EmacsBusyError
from qwen_companion.base.plan_files import kept_plans, plan_path, save_plan
from qwen_companion.domain import Peer
from qwen_companion.doors.events import (
    Answer,
    AttentionRequest,
    Event,
    PermissionRequest,
    PostToolUse,
    UserPromptSubmit,
)
from qwen_companion.doors.files import RemotePlaces
from qwen_companion.doors.held import Asker, Limits
from qwen_companion.doors.questions import Questions
from qwen_companion.doors.terminal_files import AskedCall, TerminalFiles, terminal_files
from qwen_companion.ide.proposals import Decision
from support import TIMEOUT_S, FakeEditor, soon, until

pytestmark = pytest.mark.anyio

PLAN = "# Fruit\n\n1. Buy plums.\n2. Bake.\n"
EDITED = PLAN.replace("plums", "pears")
PID = 7
PEER = Peer(PID, "", "/w", "qwen", ())
ASKER = Asker(PEER, "session", "Qwen Code 0.24.4", None)


class Site:
    """A CLI in a terminal, and Emacs."""

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        directory: Path,
        *,
        files: bool = True,
        places: RemotePlaces | None = None,
        **limits: float,
    ) -> None:
        self.environ = {"HOME": str(directory)}
        self.project = str(directory)
        self.events, self.answers = directory / "events-1", directory / "prompts-1"
        self.events.touch()
        self.files = TerminalFiles(str(directory), str(self.events), str(self.answers)) if files else None
        self.asker = ASKER
        self.editor = FakeEditor()
        self.warnings = self.editor.warnings
        self.questions = Questions(
            self.editor,
            lambda peer: self.files if peer.pid == PID else None,
            self.environ,
            places or FakePlaces(),
            Limits(**limits),
        )
        tasks.start_soon(self.questions.tasks.run)
        self.questions.wanted = True
        self.gone = anyio.Event()

    def plan(self, text: object = PLAN, **fields: Any) -> PermissionRequest:
        return self.request("exit_plan_mode", {"plan": text}, **fields)

    def request(self, tool: str, tool_input: dict[str, Any], **fields: Any) -> PermissionRequest:
        common = {"cwd": self.project, "session_id": "s-1", **fields}
        return PermissionRequest(tool_name=tool, tool_input=tool_input, **common)

    async def answer(self, request: PermissionRequest | None = None) -> Answer:
        """Return the answer to the hook, after what is done once it has been sent."""
        reply = await soon(self.questions.reply(request or self.plan(), self.asker, self.gone))
        if reply.after is not None:
            reply.after()
        return reply.answer

    async def decided(self, decision: Decision, request: PermissionRequest | None = None) -> Answer:
        answering = asyncio.create_task(self.answer(request))
        proposal = await soon(self.editor.shown.get())
        assert self.questions.decide(proposal.id, decision)
        return await soon(answering)

    def terminal_asks(self, identifier: str = "r-1", tool: str = "exit_plan_mode") -> None:
        request: dict[str, Any] = {"subtype": "can_use_tool", "tool_name": tool, "input": {}}
        self.write({"type": "control_request", "request_id": identifier, "request": request})

    def write(self, event: dict[str, Any]) -> None:
        with self.events.open("a") as file:
            file.write(json.dumps(event, separators=(",", ":")) + "\n")

    async def answered(self, count: int = 1) -> list[dict[str, Any]]:
        """Return the lines that the terminal gets, once there are `count`."""
        with anyio.fail_after(TIMEOUT_S):
            while True:
                lines = self.answers.read_text().splitlines() if self.answers.exists() else []
                if len(lines) >= count:
                    return [json.loads(line) for line in lines]
                await anyio.sleep(0.01)

    def hear(self, event: Event) -> None:
        self.questions.note(self.asker.peer, event)

    async def ran(self) -> str:
        event = PostToolUse(cwd=self.project, session_id="s-1", tool_name="exit_plan_mode", tool_input={"plan": PLAN})
        assert self.questions.awaits(self.asker.peer, event)
        return await soon(self.questions.ran(self.asker.peer, event))

    def kept(self) -> list[str]:
        return [Path(plan.path).read_text() for plan in kept_plans(self.environ, self.project)]


@pytest.fixture
async def tasks() -> AsyncGenerator[anyio.abc.TaskGroup]:
    async with anyio.create_task_group() as group:
        yield group
        group.cancel_scope.cancel()


@pytest.fixture
async def site(tasks: anyio.abc.TaskGroup, tmp_path: Path) -> Site:
    return Site(tasks, tmp_path)


def message(answer: Answer) -> str:
    decision = answer["hookSpecificOutput"]["decision"]
    assert decision["behavior"] == "deny"
    return decision["message"]


async def test_a_plan_is_approved_where_the_terminal_asks(site: Site) -> None:
    # What it has asked before is none of this.
    site.terminal_asks("r-0")
    assert await site.decided(Decision(PLAN)) == {}
    site.terminal_asks()
    assert await site.answered() == [{"type": "confirmation_response", "request_id": "r-1", "allowed": True}]
    assert await site.ran() == ""
    assert site.kept() == [PLAN]
    # The terminal may read its answer before Emacs is told.
    await until(lambda: site.editor.log[-1][0] == "settled")
    assert site.warnings == []


async def test_the_mode_before_is_restored_by_a_key(tasks: anyio.abc.TaskGroup, tmp_path: Path) -> None:
    site = Site(tasks, tmp_path, key_s=0.01)
    site.editor.types = True
    # The terminal takes no key: its file does.
    await site.decided(Decision(PLAN))
    site.terminal_asks()
    assert (await site.answered())[0]["request_id"] == "r-1"
    assert ("key", "1") in site.editor.log
    await site.ran()
    # Another dialog is there, which would take the key.
    await site.decided(Decision(PLAN, mode="auto-edit"))
    site.terminal_asks("r-2")
    assert (await site.answered(2))[1]["request_id"] == "r-2"
    assert ("key", "2") not in site.editor.log
    await site.ran()
    site.write({"type": "assistant"})
    site.questions = Questions(site.editor, lambda _: site.files, site.environ, FakePlaces())
    tasks.start_soon(site.questions.tasks.run)
    site.questions.wanted = True
    await site.decided(Decision(PLAN, mode="auto-edit"))
    site.terminal_asks("r-3")
    await until(lambda: ("key", "2") in site.editor.log)
    site.write({"type": "control_response", "response": {"request_id": "r-3"}})
    await until(lambda: site.editor.log[-1][0] == "settled")
    assert len(await site.answered(2)) == 2
    # In the mode `default` it is not needed.
    await site.ran()
    await site.decided(Decision(PLAN, mode="default"))
    site.terminal_asks("r-4")
    assert (await site.answered(3))[2]["request_id"] == "r-4"


async def test_an_edited_plan_reaches_the_model_and_is_kept(site: Site) -> None:
    assert await site.decided(Decision(EDITED)) == {}
    site.terminal_asks()
    await site.answered()
    told = await site.ran()
    assert told.endswith(f"in place of yours:\n\n{EDITED}")
    assert site.kept() == [EDITED]


async def test_a_long_edited_plan_is_read_from_its_file(site: Site) -> None:
    long = PLAN + "3. Eat.\n" * 2000
    await site.decided(Decision(long))
    site.terminal_asks()
    await site.answered()
    told = await site.ran()
    (plan,) = kept_plans(site.environ, site.project)
    assert plan.path in told
    assert len(told) < 1000
    assert Path(plan.path).read_text() == long
    assert (Path(plan.path).stat().st_mode & 0o777, Path(plan.path).parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("reason", [None, "I refuse this plan.\n\nplan:3\n> 1. Buy plums.\nNo plums\n"])
async def test_a_refusal_goes_with_its_reason(site: Site, reason: str | None) -> None:
    assert message(await site.decided(Decision(None, reason))) == (reason or "The user rejected this plan.")
    assert site.editor.log[-1][0] == "settled"
    assert site.kept() == []


async def test_questions_are_answered_by_a_denial(site: Site) -> None:
    asked = site.request("ask_user_question", {"questions": list(QUESTIONS)})
    said = message(await site.decided(Decision("Which database? sqlite"), asked))
    assert said.endswith("this is no refusal. The answers:\n\nWhich database? sqlite")
    (proposal, _, text) = site.editor.opened[0]
    assert [question.multiple for question in proposal.questions] == [False, True, False]
    assert proposal.questions[0].choices[0].description == "one file"
    assert text == ""
    assert "does not want" in message(await site.decided(Decision(None), asked))


async def test_after_the_time_limit_the_answer_goes_to_the_terminal(tasks: anyio.abc.TaskGroup, tmp_path: Path) -> None:
    site = Site(tasks, tmp_path, hold_s=0.01)
    assert await site.answer() == {}
    assert site.editor.log[-1] == ("released", "its terminal asks now")
    site.terminal_asks()
    proposal = site.editor.opened[0][0]
    site.questions.decide(proposal.id, Decision(None, "No plums."))
    assert (await site.answered())[0]["allowed"] is False
    # The turn ends with it, and the reason is the next prompt.
    site.hear(AttentionRequest(notification_type="idle_prompt"))
    assert (await site.answered(2))[1] == {"type": "submit", "text": "No plums."}
    assert await site.answer() == {}
    site.terminal_asks("r-2")
    site.questions.decide(site.editor.opened[1][0].id, Decision(EDITED))
    assert (await site.answered(3))[2] == {"type": "confirmation_response", "request_id": "r-2", "allowed": True}
    told = await site.ran()
    assert EDITED in told


async def test_keys_answer_at_another_place(tasks: anyio.abc.TaskGroup, tmp_path: Path) -> None:
    """Nothing of its CLI is in files here; what its hooks tell says when its terminal asks, and of what."""
    site = Site(tasks, tmp_path, files=False)
    site.editor.types = True
    site.asker = replace(ASKER, peer=replace(PEER, place="/ssh:far:", terminal=1))
    asks = AttentionRequest(notification_type="permission_prompt", message="needs permission to use exit_plan_mode")
    for mode, keys in ((None, "1"), ("auto-edit", "2"), ("default", "\x1b[A\x1b[A\r")):
        assert await site.decided(Decision(EDITED, mode=mode)) == {}
        # Another dialog would take the key.
        site.hear(asks.model_copy(update={"message": "needs permission to use run_shell_command"}))
        assert site.editor.log[-1][0] != "key"
        site.hear(asks)
        await until(lambda keys=keys: site.editor.log[-1] == ("key", keys))
        told = await site.ran()
        assert EDITED in told
        await until(lambda: site.editor.log[-1][0] == "settled")
    assert site.warnings == []
    assert kept_plans(site.environ, site.project, "s-1") == ()
    assert len(kept_plans(site.environ, site.project, "s-1 /ssh:far:")) == 3


async def test_keys_answer_after_the_time_limit_too(tasks: anyio.abc.TaskGroup, tmp_path: Path) -> None:
    site = Site(tasks, tmp_path, files=False, hold_s=0.01, confirm_s=0.3)
    site.editor.types = True
    site.asker = replace(ASKER, peer=replace(PEER, place="/ssh:far:", terminal=1))
    asks = AttentionRequest(notification_type="permission_prompt", message="needs permission to use exit_plan_mode")
    assert await site.answer() == {}
    assert site.editor.log[-1] == ("released", "its terminal asks now")
    site.hear(asks)
    site.questions.decide(site.editor.opened[0][0].id, Decision(None, "No plums."))
    await until(lambda: ("prompt", "No plums.") in site.editor.log)
    assert ("key", "\x1b") in site.editor.log
    site.hear(AttentionRequest(notification_type="idle_prompt"))
    await until(lambda: site.editor.log[-1][0] == "settled")
    # Its dialog takes no key.
    assert await site.answer() == {}
    site.hear(asks)
    site.questions.decide(site.editor.opened[1][0].id, Decision(EDITED))
    await until(lambda: site.warnings == ["the terminal takes no answer from Emacs: answer in the terminal"])


async def test_a_long_edited_plan_is_read_at_its_place(tasks: anyio.abc.TaskGroup, tmp_path: Path) -> None:
    laid: list[tuple[str, str]] = []

    class Far(FakePlaces):
        """A place that takes plans."""

        async def lay_plan(self, place: str, text: str) -> str:
            laid.append((place, text))
            return "/home/far/plan.md"

    site = Site(tasks, tmp_path, files=False, places=Far())
    site.editor.types = True
    site.asker = replace(ASKER, peer=replace(PEER, place="/ssh:far:", terminal=1))
    for plan in (EDITED, EDITED + "3. Eat.\n" * 2000):
        await site.decided(Decision(plan))
        site.hear(AttentionRequest(notification_type="permission_prompt", message="to use exit_plan_mode"))
        await until(lambda: site.editor.log[-1] == ("key", "1"))
        told = await site.ran()
        assert (len(told) < 1000, "/home/far/plan.md" in told) == (True, plan != EDITED)
        await until(lambda: site.editor.log[-1][0] == "settled")
    assert laid == [("/ssh:far:", plan)]


async def test_the_user_leaves_the_answer_to_the_terminal(site: Site) -> None:
    answering = asyncio.create_task(site.answer())
    proposal = await soon(site.editor.shown.get())
    site.questions.release(proposal.id)
    assert await soon(answering) == {}
    assert site.editor.log[-1][0] == "released"
    assert await site.ran() == ""
    assert site.editor.log[-1] == ("abandon", "it was answered in the terminal")
    # It is kept, whoever has approved it.
    await until(lambda: site.kept() == [PLAN])
    assert not site.questions.decide(proposal.id, Decision(EDITED))


async def test_a_cli_without_files_asks_in_its_terminal_and_the_plan_is_shown(
    tasks: anyio.abc.TaskGroup, tmp_path: Path
) -> None:
    site = Site(tasks, tmp_path, files=False)
    assert await site.answer() == {}
    assert site.editor.log[-1] == ("shown", "this CLI takes the answer in its terminal only")
    site.questions.decide(site.editor.opened[0][0].id, Decision(PLAN))
    await until(lambda: site.warnings)
    assert site.warnings == ["the terminal takes no answer from Emacs: answer in the terminal"]
    # Questions it can be answered, by the hook.
    asked = site.request("ask_user_question", {"questions": list(QUESTIONS)})
    site.editor.shown.get_nowait()
    assert "sqlite" in message(await site.decided(Decision("sqlite"), asked))


async def test_a_terminal_that_writes_no_events_any_more_is_answered_by_keys(
    tasks: anyio.abc.TaskGroup, tmp_path: Path
) -> None:
    """Qwen Code 0.24 writes none after one of more than 1 MiB, as that of a long plan."""
    site = Site(tasks, tmp_path, key_s=0.05)
    site.editor.types = True
    site.asker = replace(ASKER, peer=replace(PEER, terminal=1))
    assert await site.decided(Decision(PLAN)) == {}
    site.hear(AttentionRequest(notification_type="permission_prompt", message="permission to use exit_plan_mode"))
    await until(lambda: ("key", "1") in site.editor.log)
    assert await site.ran() == ""
    assert not site.warnings


async def test_a_terminal_that_does_not_ask_is_said(tasks: anyio.abc.TaskGroup, tmp_path: Path) -> None:
    site = Site(tasks, tmp_path, confirm_s=0.01)
    await site.decided(Decision(EDITED))
    await until(lambda: len(site.editor.log) >= 3)
    assert [word for word, _ in site.editor.log] == ["open", "abandon", "settled"]
    assert "answer in the terminal" in site.warnings[0]


async def test_what_ends_a_held_plan(site: Site) -> None:
    answering = asyncio.create_task(site.answer())
    await soon(site.editor.shown.get())
    site.gone.set()
    assert await soon(answering) == {}
    assert site.editor.log[-1] == ("abandon", "it was cancelled in the terminal")
    site.gone = anyio.Event()
    answering = asyncio.create_task(site.answer())
    await soon(site.editor.shown.get())
    site.questions.end_process(PID)
    assert await soon(answering) == {}
    assert site.editor.log[-1] == ("abandon", "the CLI has ended")
    # The same plan asked twice, and a review that Emacs refuses or has no time for.
    first = asyncio.create_task(site.answer())
    await soon(site.editor.shown.get())
    second = asyncio.create_task(site.answer())
    await soon(site.editor.shown.get())
    assert await soon(first) == {}
    assert ("abandon", "it asks anew") in site.editor.log
    site.gone.set()
    assert await soon(second) == {}
    site.gone = anyio.Event()
    for refusal in ("too large", EmacsBusyError("busy")):
        site.editor.refusal = refusal
        assert await site.answer() == {}
        assert site.editor.log[-1] == ("abandon", str(refusal))


async def test_what_ends_a_plan_that_the_terminal_asks_about(tasks: anyio.abc.TaskGroup, tmp_path: Path) -> None:
    site = Site(tasks, tmp_path, hold_s=0.01)
    await site.answer(site.plan(timestamp="2026-11-26T12:00:00.000Z"))
    # That of the turn before comes late.
    site.hear(AttentionRequest(notification_type="idle_prompt", timestamp="2026-11-26T11:59:59.000Z"))
    site.hear(AttentionRequest(notification_type="permission_prompt", timestamp="2026-11-26T12:00:01.000Z"))
    assert site.editor.log[-1][0] == "released"
    site.hear(UserPromptSubmit(prompt="go on", timestamp="2026-11-26T12:00:02.000Z"))
    assert site.editor.log[-1] == ("abandon", "it was answered in the terminal")


@pytest.mark.parametrize("plan", [None, "", " \n\t", 7, ["x"]])
async def test_a_plan_without_text_is_left_to_the_terminal(site: Site, plan: object) -> None:
    assert await site.answer(site.plan(plan)) == {}
    assert site.editor.log == []


@pytest.mark.parametrize("questions", [None, [], "x", [{}], [{"question": "?", "options": [1]}]])
async def test_questions_of_another_shape_are_left_to_the_terminal(site: Site, questions: object) -> None:
    assert await site.answer(site.request("ask_user_question", {"questions": questions})) == {}
    assert await site.answer(site.plan(cwd="\0")) == {}
    # Without its fields.
    for fields in ({}, {"tool_name": "exit_plan_mode"}, {"tool_name": "exit_plan_mode", "tool_input": {"plan": PLAN}}):
        assert await site.answer(PermissionRequest.model_validate(fields)) == {}
    site.questions.wanted = False
    assert await site.answer() == {}
    assert site.editor.log == []


async def test_odd_plans_are_shown_as_they_are(site: Site) -> None:
    for plan in ("x" * 1_000_000, "one line", "\0\x1b[31m\u202e", "[x](http://y) [[file:/etc/passwd]]"):
        assert message(await site.decided(Decision(None), site.plan(plan)))
        assert site.editor.opened[-1][2] == plan


def test_the_files_of_a_cli_are_those_in_the_directory(tmp_path: Path) -> None:
    def files(*arguments: str) -> TerminalFiles | None:
        process = psutil.Popen([sys.executable, "-c", "input()", *arguments], stdin=-1)
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while process.cmdline()[1:2] != ["-c"] and time.monotonic() < deadline:
                pass
            return terminal_files(f"{tmp_path}/", replace(PEER, pid=process.pid))
        finally:
            process.communicate()

    found = files("--json-file", f"{tmp_path}/e", "--input-file", f"{tmp_path}/p")
    assert found == TerminalFiles(str(tmp_path), f"{tmp_path}/e", f"{tmp_path}/p")
    assert files("--json-file", "/elsewhere/e", "--input-file", f"{tmp_path}/p") is None
    assert files("--input-file", f"{tmp_path}/p") is None


def test_many_events_are_forgotten(tmp_path: Path) -> None:
    events = tmp_path / "e"
    files = TerminalFiles(str(tmp_path), str(events), str(tmp_path / "p"))
    assert files.awaited() == {}
    with events.open("wb") as file:
        file.write(b"x" * 5_000_000)
        file.flush()
        files.trim()
        assert events.stat().st_size == 0
        # It goes on where it was.
        request = {
            "type": "control_request",
            "request_id": "r",
            "request": {"tool_name": "exit_plan_mode", "tool_use_id": "c"},
        }
        file.write(b"\n" + json.dumps(request).encode() + b"\n" + b'{"half')
        file.flush()
        files.trim()
    assert files.awaited() == {"r": AskedCall("exit_plan_mode", "c")}


def test_a_long_plan_hides_no_question(tmp_path: Path) -> None:
    events = tmp_path / "e"
    files = TerminalFiles(str(tmp_path), str(events), str(tmp_path / "p"))
    request = {"subtype": "can_use_tool", "tool_name": "exit_plan_mode", "input": {"plan": "x" * 3_000_000}}
    asked = {"type": "control_request", "request_id": "r", "request": request}
    other = {"type": "control_request", "request_id": "old", "request": {"tool_name": "edit"}}
    for entry in (other, {"type": "assistant"}, asked):
        with events.open("ab") as file:
            file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
    assert files.awaited() == {"r": AskedCall("exit_plan_mode", "")}


def test_the_last_hundred_plans_of_a_project_are_kept(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    assert kept_plans(environ, "/w") == ()
    for number in range(103):
        save_plan(plan_path(environ, "/w", "../a b", number), f"\n## Plan {number}\ntext")
    other = plan_path(environ, "/other", "s-2", 7)
    save_plan(other, "")
    (Path(other).parent / "notes.md").touch()
    plans = kept_plans(environ, "/w")
    assert [plan.time for plan in plans] == list(range(102, 2, -1))
    assert plans[0].title == "Plan 102"
    assert len(kept_plans(environ, "/w", "../a b")) == 100
    # Wherever its directory is.
    assert [plan.path for plan in kept_plans(environ, "/w", "s-2")] == [other]
