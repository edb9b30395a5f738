# SPDX-License-Identifier: GPL-3.0-or-later
"""What the journal is told of the agent of a session."""

from __future__ import annotations

from dataclasses import replace

from qwen_companion.daemon.messages import EndChange, FilePosition, TextChange, ToolChange, UsageChange
from qwen_companion.daemon.work_reports import WorkReports
from qwen_companion.domain import ChatWork, Usage


def test_a_prompt_is_reported_once_however_often_it_is_told() -> None:
    reported: list[ChatWork] = []
    reports = WorkReports("session", "/project", reported.append)
    echo = [TextChange("turn", voice="user", text=text) for text in ("Fix ", "it")]
    reports.note_prompt("turn", "Fix it")
    for change in echo:
        reports.note(change)
    reports.report("turn")
    # It is loaded again.
    reports.begin_anew(echo)
    reports.report("turn")
    assert [work.prompt for work in reported] == ["Fix it"]


def test_what_the_agent_has_read_is_reported_once() -> None:
    reported: list[ChatWork] = []
    reports = WorkReports("session", "/project", reported.append)
    tool = ToolChange("turn", id="1", status="running", name="read_file", places=(FilePosition("/w/a", 3),))
    # What was read before the session was loaded may have changed since.
    reports.begin_anew([replace(tool, status="done")])
    for change in (
        tool,
        replace(tool, status="done"),
        replace(tool, id="2", status="failed"),
        replace(tool, id="3", status="done", name="edit"),
        replace(tool, id="4", status="done", parent="agent"),
        replace(tool, id="5", status="done", places=(FilePosition("b", None),)),
    ):
        reports.note(change)
    reports.report("turn")
    reports.report("turn")
    reports.report(None)
    assert [work.reads for work in reported] == [("/w/a", "b"), ()]


def test_what_each_answer_has_used_is_reported_once() -> None:
    reported: list[ChatWork] = []
    reports = WorkReports("session", "/project", reported.append)
    # It was counted when it came, if anybody was there.
    reports.begin_anew([UsageChange("turn", 100, 10)])
    reports.note(UsageChange("turn", 200, 20, 150))
    reports.note(UsageChange("turn", None, 3))
    reports.report("turn", "qwen3")
    reports.note(UsageChange("turn", 7, 1))
    reports.report(None, "qwen3")
    reports.report(None, "qwen3")
    assert [work.used for work in reported] == [
        (Usage("qwen3", 200, 20, 150), Usage("qwen3", 0, 3)),
        (Usage("qwen3", 7, 1),),
    ]


def test_a_prompt_is_reported_before_the_daemon_has_told_it() -> None:
    reported: list[ChatWork] = []
    reports = WorkReports("session", "/project", reported.append)
    reports.note_prompt("turn", "Fix it")
    reports.report("turn")
    reports.note(TextChange("turn", voice="user", text="Fix "))
    reports.report("turn")
    assert [work.prompt for work in reported] == ["Fix it"]


def test_when_a_prompt_began_is_reported_and_whether_more_may_come() -> None:
    reported: list[ChatWork] = []
    reports = WorkReports("session", "/project", reported.append)
    # Without a turn it does not matter.
    reports.report(None, is_lost=True)
    for text, time in ("Fix ", 1000), ("it", 1001):
        reports.note(TextChange("turn", voice="user", text=text, time=time))
    reports.report("turn", is_lost=True)
    reports.report("turn")
    reports.note(EndChange("turn", outcome="done"))
    reports.report(None, is_lost=True)
    assert [(work.turn, work.start, work.is_lost) for work in reported] == [
        ("turn", 1000, True),
        ("turn", 1000, False),
        (None, None, False),
    ]
