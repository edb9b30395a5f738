# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans of a chat: what is told of them, what the model reads with an approval, and which are kept."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from sexpdata import dumps

from daemon_emacs import Chatting, Emacs, connected_emacs, lisp
from fake_daemon import ROOT, FakeDaemon, event
from qwen_companion.base.plan_files import kept_plans
from qwen_companion.daemon import messages
from qwen_companion.wire.spool import Spool

pytestmark = pytest.mark.anyio

PLAN = "# Fruit\n\n1. Buy plums.\n"
MODES = {"restore_previous": "before", "proceed_always": "auto-edit", "proceed_once": "default", "cancel": None}


def asks_for(plan: object, kind: str = "switch_mode") -> dict[str, Any]:
    """Return the event by which the plan mode asks to be left, as seen on 0.24.4."""
    asked = event("permission_request")
    asked["data"]["toolCall"] |= {
        "_meta": {"toolName": "exit_plan_mode"},
        "content": [],
        "kind": kind,
        "locations": [],
        "rawInput": {"plan": plan},
        "title": "Plan",
    }
    asked["data"]["options"] = [
        {"kind": "reject_once" if name == "cancel" else "allow_once", "name": name, "optionId": name} for name in MODES
    ]
    return asked


class Site:
    """A chat in Emacs and its session."""

    def __init__(self, emacs: Emacs, daemon: FakeDaemon, chatting: Chatting, environ: dict[str, str]) -> None:
        self.emacs, self.daemon, self.environ = emacs, daemon, environ
        self.session, self.theirs, _ = chatting

    async def asked(self, plan: object = PLAN, **fields: str) -> messages.Permission:
        await self.emacs.prompt(self.session)
        self.theirs.emit(asks_for(plan, **fields))
        return await self.emacs.permission(self.session, "open")

    def answer(self, asked: messages.Permission, mode: str, **values: object) -> dict[str, object]:
        option = next(option for option in asked.options if option.label == mode)
        return {**self.emacs.answer(asked, option.id), **values}

    async def answered(self, asked: messages.Permission, mode: str, **values: object) -> messages.Permission:
        await self.emacs.call("daemon-answer", **self.answer(asked, mode, **values))
        return await self.emacs.permission(self.session, "closed")

    async def kept(self) -> list[str]:
        await self.emacs.call("daemon-list")
        return [Path(plan.path).read_text() for plan in kept_plans(self.environ, ROOT)]

    @property
    def told(self) -> list[str]:
        return [asked.body["message"] for asked in self.daemon.asked_for("/mid-turn-message")]


@pytest.fixture
async def site(spool: Spool, daemon: FakeDaemon, tmp_path: Path) -> AsyncGenerator[Site]:
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    async with connected_emacs(spool, environ) as emacs:
        yield Site(emacs, daemon, await emacs.chat(daemon), environ)


def comments(text: str) -> list[Any]:
    return list(lisp(dumps({"text": text})))


async def wait_until_kept(site: Site, text: str) -> None:
    while await site.kept() != [text]:
        pass


async def test_a_plan_is_told_with_its_modes_and_kept_once_it_is_approved(site: Site) -> None:
    asked = await site.asked()
    assert asked.plan is not None
    assert asked.plan.text == PLAN
    assert {option.label: option.mode for option in asked.options} == MODES
    assert await site.kept() == []
    closed = await site.answered(asked, "restore_previous")
    assert (closed.by, closed.plan) == ("me", None)
    await wait_until_kept(site, PLAN)
    assert site.told == []
    (kept,) = kept_plans(site.environ, ROOT)
    # Emacs, which does not know the daemon's name of the session, finds it too.
    found = kept_plans(site.environ, "/elsewhere", site.session)
    assert [plan.path for plan in found] == [kept.path] == [asked.plan.path]
    assert site.theirs.id in kept.path


async def test_the_model_reads_the_edited_plan_and_comments_before_it_goes_on(site: Site) -> None:
    asked = await site.asked()
    edited = f"{PLAN}2. Eat.\n"
    await site.answered(asked, "proceed_once", text=edited, comments=comments("Ripe ones."))
    (told,) = site.told
    assert told.endswith(f"in place of yours:\n\n{edited}\n\nRipe ones.")
    paths = [asked.path for asked in site.daemon.asked]
    assert next(i for i, path in enumerate(paths) if "mid-turn" in path) < next(
        i for i, path in enumerate(paths) if "/permission/" in path
    )
    await wait_until_kept(site, edited)


async def test_a_long_edited_plan_is_read_from_its_file(site: Site) -> None:
    asked = await site.asked()
    assert asked.plan is not None
    edited = PLAN + "2. Eat.\n" * 3000
    path = site.emacs.spool.write(edited)
    await site.answered(asked, "proceed_once", text_file=path)
    (told,) = site.told
    assert asked.plan.path in told
    assert len(told) < 1000
    await wait_until_kept(site, edited)


async def test_a_refused_plan_and_one_of_another_tool_are_not_kept(site: Site) -> None:
    await site.answered(await site.asked(), "cancel")
    assert await site.kept() == []
    assert site.told == []


async def test_the_answer_of_another_client_is_the_first_outcome(site: Site) -> None:
    asked = await site.asked()
    edited = PLAN + "2. Eat.\n" * 3000
    values = site.answer(asked, "proceed_once", text_file=site.emacs.spool.write(edited))
    site.daemon.refuse(f"/permission/{asks_for(PLAN)['data']['requestId']}", "late_vote")
    assert await site.emacs.refused("daemon-answer", **values) == "gone"
    assert (await site.emacs.permission(site.session, "closed")).by == "other"
    # Nothing is left of it, neither for the model nor on the disk.
    assert site.theirs.messages == {}
    assert await site.kept() == []


async def test_what_another_client_approves_is_kept_as_it_was(site: Site) -> None:
    await site.asked()
    site.theirs.vote({"outcome": "selected", "optionId": "proceed_once"}, "somebody")
    assert (await site.emacs.permission(site.session, "closed")).by == "other"
    await wait_until_kept(site, PLAN)


@pytest.mark.parametrize("plan", ["", " \n", 7, None])
async def test_what_is_no_plan_is_a_question_like_others(site: Site, plan: object) -> None:
    assert (await site.asked(plan)).plan is None


async def test_the_plan_of_another_tool_is_none_to_approve(site: Site) -> None:
    assert (await site.asked(kind="edit")).plan is None


@pytest.mark.parametrize(
    "plan", ["x" * 1_000_000, "one line", "\0\x1b[31m\u202e", "[x](http://y) [[file:/etc/passwd]]"], ids=len
)
async def test_odd_plans_come_as_they_are(site: Site, plan: str) -> None:
    asked = await site.asked(plan)
    assert asked.plan is not None
    assert asked.plan.text == plan


async def test_no_lone_surrogate_gets_into_a_file(site: Site) -> None:
    asked = await site.asked("a\ud800b")
    assert asked.plan is not None
    assert asked.plan.text == "a\ufffdb"
    await site.answered(asked, "proceed_once")
    await wait_until_kept(site, "a\ufffdb")
