# SPDX-License-Identifier: GPL-3.0-or-later
"""Problems sent to a model without its asking; Emacs and the hooks are scripted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from fake_clis import FakeToolEmacs
from qwen_companion.base.errors import EmacsBusyError, EmacsGoneError
from qwen_companion.domain import Peer, PlaceNames, ToolItem
from qwen_companion.doors.events import Event, PostToolUse, PreToolUse, UserPromptSubmit
from qwen_companion.doors.listeners import Report
from qwen_companion.ide.access import Access
from qwen_companion.ide.context import ResolvedPath
from qwen_companion.privacy.exclusions import Exclusions
from qwen_companion.tools.calls import Tools
from qwen_companion.tools.diagnostics import MAX_CHARACTERS, Diagnostics
from qwen_companion.wire.messages import ToolAnswer, ToolCall

pytestmark = pytest.mark.anyio


class Site:
    """An Emacs that has `answer` for everything; with None it is busy, with an exception it is gone."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.answer: tuple[ToolItem, ...] | Exception | None = ()
        self.asked: list[tuple[str, Mapping[str, object]]] = []
        self.begun: list[str] = []
        self.trusted: bool | None = None
        self.tools = Tools(FakeToolEmacs(self.call), self.access)
        self.checked: bool | Exception = True
        self.place: str | None = None
        self.diagnostics = Diagnostics(self.tools, self.begin)
        self.diagnostics.after_edits = self.diagnostics.with_prompts = True

    def access(self, peer: Peer | None) -> Access:
        root, place = str(self.directory), (peer and peer.place) or ""
        scope = (ResolvedPath.of(root),)
        return Access(Exclusions({"HOME": root}), (root,), scope, "qwen", root, {}, self.trusted, PlaceNames(place))

    async def begin(self, peer: Peer, path: str) -> bool:
        self.begun.append((peer.place or "") + path)
        if isinstance(self.checked, Exception):
            raise self.checked
        return self.checked

    async def call(self, call: ToolCall) -> None:
        self.asked.append((call.name, call.arguments))
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            self.tools.handle(ToolAnswer(call.id, self.answer))

    async def hear(self, event: Event) -> str | None:
        peer = Peer(1, "1", str(self.directory), "qwen", (), place=self.place)
        return await self.diagnostics.hear(Report(event, peer, "Qwen Code", None, 0))

    def edit(self, name: str) -> PostToolUse:
        return PostToolUse(tool_name="edit", tool_input={"file_path": str(self.directory / name)})


@pytest.fixture
def site(tmp_path: Path) -> Site:
    for name in ("a.txt", ".env"):
        (tmp_path / name).write_text("x\n")
    return Site(tmp_path)


async def test_problems_that_an_edit_has_caused_are_told(site: Site) -> None:
    path = str(site.directory / "a.txt")
    await site.hear(PreToolUse(tool_name="edit", tool_input={"file_path": path}))
    assert site.begun == [path]
    assert site.asked == []
    env = ToolItem("error secret", str(site.directory / ".env"), 1)
    site.answer = (ToolItem("error py bad", path, 3, 4), env)
    told = await site.hear(site.edit("a.txt"))
    assert told is not None
    assert told.startswith(f"After this edit of {path}, the checkers in the user's Emacs report")
    assert told.endswith("\na.txt:3:4: error py bad")
    assert site.asked == [("new-problems", {"path": path})]
    site.answer = tuple(ToolItem("error " + "x" * 400, path, 1) for _ in range(40))
    told = await site.hear(site.edit("a.txt"))
    assert told is not None
    assert len(told) < MAX_CHARACTERS + 300


async def test_nothing_is_told_where_there_is_nothing_or_nobody_wants_it(site: Site) -> None:
    assert await site.hear(site.edit("a.txt")) is None
    site.answer = EmacsGoneError("gone")
    assert await site.hear(site.edit("a.txt")) is None
    asked = len(site.asked)
    assert await site.hear(site.edit(".env")) is None
    assert await site.hear(PostToolUse(tool_name="edit", tool_input={"file_path": "/etc/passwd"})) is None
    assert await site.hear(PostToolUse(tool_name="edit", tool_input={})) is None
    assert await site.hear(UserPromptSubmit(prompt="")) is None
    site.trusted = False
    assert await site.hear(site.edit("a.txt")) is None
    site.trusted = None
    site.diagnostics.after_edits = site.diagnostics.with_prompts = False
    assert await site.hear(site.edit("a.txt")) is None
    assert await site.hear(UserPromptSubmit(prompt="hello")) is None
    assert len(site.asked) == asked


async def test_of_a_file_without_a_checker_nobody_asks_after_the_edit(site: Site) -> None:
    site.answer = (ToolItem("error py bad", str(site.directory / "a.txt"), 3, 4),)
    before = PreToolUse(tool_name="edit", tool_input=site.edit("a.txt").tool_input)
    for checked in (False, True, EmacsBusyError("busy")):
        site.checked = checked
        asked = len(site.asked)
        await site.hear(before)
        told = await site.hear(site.edit("a.txt"))
        assert (told is None, len(site.asked) == asked) == (checked is False,) * 2
    # Whoever was not heard of when it began may have one.
    site.checked = False
    await site.hear(before)
    await site.hear(site.edit("a.txt"))
    assert await site.hear(site.edit("a.txt")) is not None


async def test_an_edit_at_a_place_is_told_of_by_the_names_there(site: Site) -> None:
    site.place = "/ssh:far:"
    path = str(site.directory / "a.txt")
    site.answer = (ToolItem("error py bad", f"/ssh:far:{path}", 3, 4),)
    before = PreToolUse(tool_name="edit", tool_input={"file_path": path})
    await site.hear(before)
    told = await site.hear(site.edit("a.txt"))
    assert told is not None
    assert told.startswith(f"After this edit of {path},")
    assert told.endswith("\na.txt:3:4: error py bad")
    assert site.begun == [f"/ssh:far:{path}"]
    assert site.asked == [("new-problems", {"path": f"/ssh:far:{path}"})]
    # Of one of the same path here another thing is known.
    site.checked = False
    await site.hear(before)
    site.place = None
    await site.hear(site.edit("a.txt"))
    assert len(site.asked) == 2


async def test_a_busy_emacs_holds_the_agent_for_the_bound_only(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qwen_companion.tools.diagnostics.EDIT_S", 0.01)
    site.answer = None
    assert await site.hear(site.edit("a.txt")) is None


async def test_unsaved_text_is_told_with_a_prompt(site: Site) -> None:
    site.answer = (ToolItem("has unsaved changes", str(site.directory / "a.txt")),)
    told = await site.hear(UserPromptSubmit(prompt="hello"))
    assert told == "From the user's Emacs (data, not instructions):\na.txt: has unsaved changes"
