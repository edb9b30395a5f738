# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import inspect
import re
from typing import Any, TypeVar

import pytest
from pydantic.alias_generators import to_snake

from daemon_wire import (
    P1,
    P2,
    P3,
    SESSION,
    THEM,
    US,
    Json,
    complete,
    diff,
    echo,
    event,
    frame,
    live,
    load_reply,
    pending,
    permission,
    question,
    queue_done,
    queued,
    resolved,
    said,
    started,
    status_reply,
    thought,
    tool_call,
    tool_update,
    update,
    words,
)
from qwen_companion.base.local_ids import local_id
from qwen_companion.daemon import messages, models, session, session_facts, transcript, turns
from qwen_companion.daemon.errors import UnauthorizedError
from qwen_companion.daemon.interrupted_turns import InterruptedTurns, Output
from qwen_companion.daemon.models import LoadReply
from qwen_companion.daemon.session import DaemonSession
from qwen_companion.daemon.stream import Connected, Disconnected, Ended, ReplayDone, Resync, StreamItem

M = TypeVar("M", bound=Output)
CUT = Disconnected("cut", 0.5)
BACK: list[StreamItem] = [Connected(), ReplayDone()]


def turn(prompt: str) -> str:
    return local_id("turn", prompt)


class Seen:
    """A session, and all it has told."""

    def __init__(self, *loaded: Json, **reply: Any) -> None:
        self.session = DaemonSession(SESSION, US)
        self.outputs: list[Output] = []
        self.load(load_reply(*loaded, **reply))

    def load(self, reply: LoadReply, why: str | None = None) -> None:
        self.session, said = self.session.replayed(reply)
        self.outputs = self.session.loaded(reply, said, why)

    def take(self, *items: StreamItem | Json) -> Seen:
        for item in items:
            self.outputs += self.session.handle(frame(item) if isinstance(item, dict) else item)
        return self

    def go(self, *values: Json) -> Seen:
        return self.take(*live(*values))

    def status(self, *interactions: Json) -> Seen:
        asked_about = self.session.permissions.unanswered
        self.outputs += self.session.status(status_reply(*interactions), asked_about)
        return self

    @property
    def info(self) -> messages.SessionInfo:
        return self.session.info

    @property
    def state(self) -> str:
        return self.session.info.state

    def all(self, kind: type[M]) -> list[M]:
        """Return the outputs of `kind`."""
        return [item for item in self.outputs if isinstance(item, kind)]

    def text(self, voice: str = "answer", prompt: str = P1) -> str:
        return "".join(item.text for item in self.texts if item.voice == voice and item.turn == turn(prompt))

    @property
    def texts(self) -> list[messages.TextChange]:
        return self.all(messages.TextChange)

    @property
    def said(self) -> list[tuple[str | None, str]]:
        """Return turns and texts, in their order."""
        return [(item.turn, item.text) for item in self.texts]

    @property
    def ends(self) -> list[tuple[str | None, str]]:
        return [(item.turn, item.outcome) for item in self.all(messages.EndChange)]

    @property
    def tool(self) -> messages.ToolChange:
        return self.all(messages.ToolChange)[-1]

    def tool_text(self, tool: str, part: str, index: int) -> str | None:
        held = self.session.tool(tool)
        return None if held is None else held.text(part, index)

    @property
    def permissions(self) -> list[messages.Permission]:
        return self.all(messages.Permission)

    @property
    def permission_states(self) -> list[str]:
        return [item.state for item in self.permissions]

    @property
    def notes(self) -> list[tuple[str, str]]:
        return [(item.note, item.text) for item in self.all(messages.NoteChange)]


# --- Turns


def test_a_turn_from_its_prompt_to_its_end() -> None:
    seen = Seen()
    assert seen.state == "disconnected"
    seen.go()
    assert (seen.state, seen.info.turn) == ("idle", None)
    seen.take(echo(P1, "hello"), thought("hm"), words("Hello "), words("there."))
    assert (seen.state, seen.info.turn) == ("busy", turn(P1))
    usage = {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}
    seen.take(words("", usage=usage), complete(P1))
    assert (seen.state, seen.info.turn) == ("idle", None)
    assert seen.text("user") == "hello"
    assert seen.text("thought") == "hm"
    assert seen.text() == "Hello there."
    assert seen.ends == [(turn(P1), "done")]
    (cost,) = seen.all(messages.UsageChange)
    assert (cost.input, cost.output) == (1, 2)


def test_who_asks_is_told() -> None:
    seen = Seen().go(echo(P1, client=US), complete(P1), echo(P2, client=THEM))
    assert [item.by for item in seen.texts] == ["me", "other"]


def test_echo_before_202() -> None:
    seen = Seen().go(echo(P1))
    assert seen.session.turns.accept(P1) == turn(P1) == seen.info.turn
    assert seen.text("user") == "hello"
    # Even the whole turn may be over when the answer to the prompt comes.
    seen.take(complete(P1))
    seen.session.turns.accept(P1)
    assert seen.state == "idle"


def test_a_prompt_that_was_taken_is_a_running_turn_before_its_echo() -> None:
    seen = Seen().go()
    seen.session.turns.accept(P1)
    assert (seen.state, seen.info.turn) == ("busy", turn(P1))


def test_removed_prompt_turn_complete() -> None:
    seen = Seen().go(echo(P1), queued(P2, "later"))
    assert [(item.turn, item.text, item.by) for item in seen.info.queue] == [(turn(P2), "later", "me")]
    seen.take(queue_done(P2, "removed"), complete(P2, "cancelled"))
    assert seen.info.queue == ()
    assert (seen.state, seen.info.turn) == ("busy", turn(P1))
    assert seen.ends == [(turn(P2), "removed")]
    assert next(item.text for item in seen.all(messages.EndChange)) == "later"
    seen.take(words("still here"), complete(P1))
    assert seen.state == "idle"
    assert seen.ends[1:] == [(turn(P1), "done")]


def test_the_end_of_the_turn_of_another_client_is_not_the_end_of_ours() -> None:
    seen = Seen().go(echo(P1, client=THEM), queued(P2))
    seen.session.turns.accept(P2)
    seen.take(complete(P1), started(P2), echo(P2))
    assert (seen.state, seen.info.turn) == ("busy", turn(P2))


def test_a_prompt_taken_while_another_turn_runs_unseen_waits_for_it() -> None:
    # We attach in the middle of a turn; the queue event comes after the answer to the prompt.
    seen = Seen().go()
    seen.session.turns.accept(P2)
    seen.take(queued(P2), complete(P1))
    assert seen.state == "idle"
    seen.take(started(P2))
    assert seen.info.turn == turn(P2)


def test_cancel_keeps_queue() -> None:
    seen = Seen().go(echo(P1), queued(P2))
    seen.session.turns.cancelling = True
    assert seen.state == "cancelling"
    seen.take(event("prompt_cancelled", P1), complete(P1, "cancelled"))
    assert [item.turn for item in seen.info.queue] == [turn(P2)]
    seen.take(started(P2), echo(P2))
    assert (seen.state, seen.info.turn, seen.info.queue) == ("busy", turn(P2), ())
    assert seen.ends == [(turn(P1), "cancelled")]


def test_a_cancel_by_another_client_shows() -> None:
    assert Seen().go(echo(P1), event("prompt_cancelled", P1, THEM)).state == "cancelling"


def test_idle_cancel_ignored() -> None:
    seen = Seen().go(event("prompt_cancelled", None, THEM))
    assert (seen.state, seen.ends) == ("idle", [])
    seen.take(echo(P1), event("prompt_cancelled", None, THEM))
    assert seen.state == "busy"


@pytest.mark.parametrize("first", ["turn_error", "prompt_cancelled"])
def test_a_failed_turn_ends_once_in_either_order(first: str) -> None:
    error = event("turn_error", P1, message="401 fake upstream failure", code="-32603", promptId=P1)
    cancelled = event("prompt_cancelled", P1, reason="forward_failed")
    # Nobody has cancelled it.
    assert Seen().go(echo(P1), cancelled).state == "busy"
    seen = Seen().go(echo(P1), *((error, cancelled) if first == "turn_error" else (cancelled, error)))
    assert (seen.state, seen.ends) == ("idle", [(turn(P1), "failed")])
    (end,) = seen.all(messages.EndChange)
    assert end.text == "401 fake upstream failure"


def test_what_runs_in_a_turn_fails_with_it() -> None:
    seen = Seen().go(echo(P1), tool_call("call_1"), tool_update("call_1", status="in_progress"))
    seen.take(tool_call("call_2"), tool_update("call_2", status="completed"), tool_call("call_3", prompt=P2))
    seen.take(event("turn_error", P1, message="agent channel closed", promptId=P1))
    states = {item.id: item.status for item in seen.all(messages.ToolChange)}
    assert list(states.values()) == ["failed", "done", "preparing"]


def test_an_end_for_another_reason_says_it() -> None:
    seen = Seen().go(echo(P1), complete(P1, "max_tokens"))
    (end,) = seen.all(messages.EndChange)
    assert (end.outcome, end.text) == ("other", "max_tokens")


def test_chunk_after_turn_complete() -> None:
    seen = Seen().go(echo(P1), words("one"), complete(P1), words(" late"))
    assert seen.state == "idle"
    assert seen.text() == "one late"
    own = "6d0d5779########notification1"
    seen.take(
        words("The agent is done.", own, source="background_notification", qwenDiscreteMessage=True),
        event("background_notification_turn_complete", own, reason="end_turn", turnId=own),
    )
    assert seen.state == "idle"
    (message,) = [item for item in seen.texts if item.background]
    assert (message.text, message.turn) == ("The agent is done.", turn(own))


def test_the_end_of_something_in_the_background_is_told_once() -> None:
    meta = {"qwenDiscreteMessage": True, "backgroundTask": {"taskId": "bg_1", "status": "completed"}}
    text = 'Background shell "sleep 2" completed.'
    seen = Seen().go(
        words(text, None, source="background_task_completed", **meta),
        words("bg_1", P2, source="background_notification_turn_started", **meta),
        words(text, P2, source="background_notification", **meta),
        words("It has ended.", P2, source="background_notification_response", **meta),
    )
    assert [item.text for item in seen.texts] == [text, "It has ended."]
    other = {**meta, "backgroundTask": {"taskId": "bg_2"}}
    seen.take(words(text, P2, source="background_notification", **other))
    assert [item.text for item in seen.texts][2:] == [text]


# --- Text


def test_lone_surrogate() -> None:
    seen = Seen().go(echo(P1, "a\ud800"), words("b\ud800c"), complete(P1))
    assert seen.text("user") == "a\ufffd"
    assert seen.text() == "b\ufffdc"


def test_a_character_cut_in_two_by_chunks_is_whole() -> None:
    seen = Seen().go(echo(P1), words("x\ud83d"), words("\ude00 \x1b[3"), words("1my\r"), complete(P1))
    assert seen.text() == "x😀 y\n"


def test_words_of_an_agent_name_its_tool() -> None:
    seen = Seen().go(tool_call("call_7", name="agent"), words("sub", parentToolCallId="call_7"))
    (text,) = seen.texts
    assert text.parent == seen.tool.id


# --- Tools


def test_partial_tool_merge() -> None:
    seen = Seen().go(echo(P1), tool_call(title="Shell"))
    assert (seen.tool.status, seen.tool.title, seen.tool.input) == ("preparing", "Shell", None)
    raw = {"command": "echo hi", "description": "say hi"}
    seen.take(tool_update(status="in_progress", title="echo hi (say hi)", rawInput=raw))
    seen.take(tool_update(_meta={"toolName": "run_shell_command", "subagentSessionReady": True}))
    tool = seen.tool
    assert (tool.status, tool.name, tool.title) == ("running", "run_shell_command", "echo hi (say hi)")
    assert tool.command is not None
    assert tool.command.text == "echo hi"
    assert tool.input is not None
    assert tool.input.text == "command: echo hi\ndescription: say hi"
    seen.take(tool_update(status="completed", content=said("Output: hi"), rawOutput={"output": "hi"}))
    assert seen.tool.status == "done"
    assert seen.tool.output == ("Output: hi", 0)
    assert (seen.tool.title, seen.tool.started, seen.tool.ended) == (tool.title, 1795240443126, 1795240443126)
    # What comes late adds to it, and takes nothing away.
    seen.take(tool_update(status="in_progress", content=[], rawInput={}))
    assert (seen.tool.status, seen.tool.output, seen.tool.input) == ("done", ("Output: hi", 0), tool.input)
    assert len({item.id for item in seen.all(messages.ToolChange)}) == 1


def test_how_long_a_tool_took_is_not_made_up() -> None:
    # In a load all of a tool is in one event.
    tool = Seen(update("tool_call", P1, toolCallId="call_1", status="completed", title="Read")).tool
    assert (tool.status, tool.ended) == ("done", None)


def test_an_update_of_a_tool_that_never_began_is_shown() -> None:
    assert Seen().go(tool_update("call_9", title="Edit", status="failed")).tool.status == "failed"


def test_an_id_that_is_used_again_is_another_tool() -> None:
    seen = Seen().go(tool_call("call_0"), tool_update("call_0", status="completed"), tool_call("call_0", prompt=P2))
    first, second = {item.id: item for item in seen.all(messages.ToolChange)}.values()
    assert (first.status, second.status) == ("done", "preparing")


def test_a_rejected_tool_has_failed_and_the_turn_has_not() -> None:
    text = "[Operation Cancelled] Reason: was canceled by the user"
    seen = Seen().go(echo(P1), tool_call(), tool_update(status="failed", content=said(text)), complete(P1))
    assert (seen.tool.status, seen.ends) == ("failed", [(turn(P1), "done")])


def test_what_is_shown_of_an_odd_tool_hides_nothing() -> None:
    raw = {"command": "echo \u202efdp\x1b[2K", "list": [1, 2], "text": "a\nb"}
    tool = Seen().go(tool_call(), tool_update(rawInput=raw, title="a\nb")).tool
    assert tool.command == ("echo [U+202E]fdp[U+001B][2K", 0)
    assert tool.input is not None
    assert tool.input.text.endswith("list: [1, 2]\ntext:\na\nb")
    assert tool.title == "a b"


def test_the_difference_of_a_change_is_that_of_its_texts() -> None:
    seen = Seen().go(tool_call(), tool_update(content=diff("/w/a.txt", "one\ntwo", "one\n2\n")))
    cut = "\\ No newline at end of file"
    assert seen.tool_text(seen.tool.id, "diff", 0) == f"@@ -1,2 +1,2 @@\n one\n-two\n{cut}\n+2\n"
    assert seen.tool_text(seen.tool.id, "diff", 1) is None


def test_the_texts_of_old_tools_are_not_held_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qwen_companion.daemon.tools.HELD_CHARACTERS", 100)
    seen = Seen().go(tool_call("a"), tool_update("a", content=said("x" * 60)))
    first = seen.tool.id
    seen.take(tool_call("b"), tool_update("b", content=said("y" * 60)))
    # The user may be asked about one that has not ended, and needs all of it.
    assert seen.tool_text(first, "output", 0) == "x" * 60
    seen.take(tool_update("a", status="completed"))
    assert seen.tool_text(first, "output", 0) is None
    seen.take(tool_update("b", status="completed"))
    assert seen.tool_text(seen.tool.id, "output", 0) == "y" * 60


def old_sizes(*values: Json) -> list[int | None]:
    return [item.old_size for item in Seen().go(tool_call("call_1", name="edit"), *values).tool.diffs]


def test_a_new_file_is_one_the_daemon_says_was_not_there() -> None:
    created = tool_update(content=diff("/w/a", "", "x"), rawOutput={"originalContent": None, "newContent": "x"})
    assert old_sizes(created) == [None]
    replacing_nothing = {"file_path": "/w/a", "old_string": "", "new_string": "x"}
    asked = tool_update(_meta={"toolName": "edit"}, content=diff("/w/a", "", "x"), rawInput=replacing_nothing)
    assert old_sizes(asked) == [None]
    # What was known when it was asked for stays known.
    assert old_sizes(asked, tool_update(content=diff("/w/a", "", "x"))) == [None]
    assert old_sizes(tool_update(content=[{"type": "diff", "path": "/w/a", "oldText": None, "newText": "x"}])) == [None]


def test_of_a_file_that_was_empty_or_not_there_none_is_claimed() -> None:
    written = tool_update(content=diff("/w/a", "", "x"), rawOutput={"originalContent": "", "newContent": "x"})
    assert old_sizes(written) == [0]
    assert old_sizes(tool_update(content=diff("/w/a", "", "x"), rawInput={"file_path": "/w/a", "content": "x"})) == [0]
    # Another tool may call something else so.
    named = tool_update(_meta={"toolName": "mcp__x__edit"}, content=diff("/w/a", "", "x"), rawInput={"old_string": ""})
    assert old_sizes(named) == [0]
    emptied = tool_update(content=diff("/w/a", "old", ""), rawOutput={"originalContent": None})
    assert old_sizes(emptied) == [3]


def test_what_is_left_out_of_a_tool_is_counted() -> None:
    many = [piece for number in range(130) for piece in diff(f"/w/{number}", "a", "b")]
    places = [{"path": f"/w/{number}"} for number in range(110)]
    seen = Seen().go(tool_call(), tool_update(content=many, locations=places))
    assert (len(seen.tool.diffs), seen.tool.diffs_more) == (100, 30)
    assert (len(seen.tool.places), seen.tool.places_more) == (100, 10)
    assert seen.tool_text(seen.tool.id, "new", 129) == "b"
    unreadable = [{"type": "diff", "path": "/w/a", "newText": {"new": "shape"}}, {"type": "diff", "newText": "x"}]
    seen.take(tool_update(content=[*diff("/w/b", "a", "b"), *unreadable]))
    assert ([item.path for item in seen.tool.diffs], seen.tool.diffs_more) == (["/w/b"], 2)


def test_what_would_be_allowed_has_another_revision_when_it_is_another() -> None:
    seen = Seen().go(tool_call(), tool_update(content=diff("/w/a", "old", "one"), rawInput={"command": "x"}))
    before = seen.tool.revision
    held = seen.session.tool(seen.tool.id)
    assert held is not None
    assert held.revision == before
    for same in (
        tool_update(content=diff("/w/a", "old", "one"), rawInput={"command": "x"}),
        tool_update(status="in_progress", title="other"),
        tool_update(content=said("done"), status="completed"),
    ):
        assert seen.take(same).tool.revision == before
    others = (
        tool_update(content=diff("/w/a", "old", "two")),
        tool_update(content=diff("/w/a", "odd", "two")),
        tool_update(content=diff("/w/b", "odd", "two")),
        tool_update(content=[*diff("/w/b", "odd", "two"), {"type": "diff"}]),
        tool_update(rawInput={"command": "y"}),
    )
    revisions = [before, *(seen.take(other).tool.revision for other in others)]
    assert revisions == sorted(set(revisions))
    assert seen.session.tool("unknown") is None


def test_a_plan_takes_the_place_of_the_one_before() -> None:
    entries = [{"content": "one", "status": "in_progress"}, {"content": "two"}]
    (plan,) = [
        item for item in Seen().go(update("plan", P1, entries=entries)).outputs if isinstance(item, messages.PlanChange)
    ]
    assert [(step.text, step.status) for step in plan.steps] == [("one", "running"), ("two", "pending")]


# --- Permissions


def test_a_permission_is_asked_and_answered() -> None:
    seen = Seen().go(echo(P1), tool_call(), permission())
    (asked,) = seen.permissions
    assert (asked.state, asked.title, asked.tool) == ("open", "touch x (say hi)", seen.tool.id)
    assert seen.tool.command == ("touch x", 0)
    assert seen.state == "waiting"
    allow = asked.options[2]
    vote = seen.session.permissions.vote(asked.permission, allow.id, ())
    assert vote is not None
    assert (vote.request_id, vote.option_id, vote.answers) == ("r1", "proceed_once", None)
    seen.take(resolved())
    closed = seen.permissions[-1]
    assert (closed.state, closed.by, closed.label) == ("closed", "me", "Allow")
    assert seen.state == "busy"
    assert seen.session.permissions.vote(asked.permission, allow.id, ()) is None


def test_a_tool_that_was_allowed_runs_from_then_on() -> None:
    allowed = resolved()
    allowed["_meta"]["serverTimestamp"] += 5000
    seen = Seen().go(echo(P1), tool_call(), permission())
    waiting = seen.tool
    seen.take(allowed)
    assert (waiting.status, seen.tool.status) == ("pending", "running")
    assert (waiting.started, seen.tool.started) == (1795240443126, 1795240448126)
    seen.take(tool_update(status="completed", content=said("done")))
    assert seen.tool.status == "done"
    # A late word of it changes nothing any more.
    seen.take(event("permission_already_resolved", P1, requestId="r1", outcome=allowed["data"]["outcome"]))
    assert seen.tool.status == "done"


def test_a_tool_that_was_not_allowed_does_not_run() -> None:
    for answer in (resolved(option="cancel"), resolved(option=None)):
        assert Seen().go(echo(P1), tool_call(), permission(), answer).tool.status == "pending"


def test_what_an_answer_writes_is_said_before() -> None:
    value = permission()
    value["data"]["options"] += [{"kind": "allow_always", "name": "New", "optionId": "something_new"}]
    value["data"]["options"] += [{"kind": "allow_always", "name": "Allow All Edits", "optionId": "proceed_always"}]
    value["data"]["options"] += [{"kind": "permit", "name": "Of a new sort", "optionId": "x"}, {"optionId": "y"}]
    (asked,) = Seen().go(value).permissions
    assert [(option.writes, option.lasting, option.allows) for option in asked.options] == [
        ("project", True, True),
        ("user", True, True),
        (None, False, True),
        (None, False, False),
        ("unknown", True, True),
        (None, True, True),
        # Whatever such an option does, it is not taken for a harmless one.
        ("unknown", False, True),
        ("unknown", False, True),
    ]


def test_what_the_daemon_says_to_a_question_is_not_what_the_tool_has_said() -> None:
    value = permission()
    value["data"]["toolCall"]["content"] = [
        *said("This writes\u202e outside."),
        *said("touch x"),
        *diff("/w/x", "", "x"),
    ]
    seen = Seen().go(echo(P1), tool_call(), value)
    (asked,) = seen.permissions
    # What the tool is given is there to be read anyhow.
    assert asked.message == "This writes[U+202E] outside."
    assert seen.tool.output is None
    assert len(seen.tool.diffs) == 1
    interaction = pending()
    interaction["action"]["content"] = said("x" * 3000)
    (asked,) = Seen(hasActivePrompt=True).go().status(interaction).permissions
    assert asked.message == "x" * 2000 + "…"
    assert Seen().go(permission()).permissions[0].message is None


def test_what_cannot_be_shown_of_a_question_is_named() -> None:
    value = permission()
    value["data"]["toolCall"]["content"] = [{"type": "terminal", "terminalId": "t"}]
    assert Seen().go(value).notes == [("unsupported", "tool_call/terminal")]


def test_other_client_voted() -> None:
    seen = Seen().go(echo(P1), permission(), resolved(option="cancel", voter=THEM))
    assert [(item.state, item.by, item.label) for item in seen.permissions] == [
        ("open", None, None),
        ("closed", "other", "Reject"),
    ]


def test_an_answer_that_came_too_late_closes_it() -> None:
    seen = Seen().go(echo(P1), permission())
    seen.outputs += seen.session.answered_elsewhere("r1")
    seen.take(event("permission_already_resolved", P1, requestId="r1", outcome={"outcome": "cancelled"}))
    assert [(item.state, item.by) for item in seen.permissions] == [("open", None), ("closed", "other")]


def test_cancel_with_pending_permission() -> None:
    seen = Seen().go(echo(P1), tool_call(), permission())
    seen.session.turns.cancelling = True
    seen.take(event("prompt_cancelled", P1), resolved(option=None, voter=None))
    assert (seen.permissions[-1].state, seen.permissions[-1].by) == ("closed", "nobody")
    assert seen.state == "cancelling"
    seen.take(tool_update(status="failed", content=said("Tool call was cancelled")), complete(P1, "cancelled"))
    assert (seen.state, seen.tool.status, seen.ends) == ("idle", "failed", [(turn(P1), "cancelled")])


def test_a_permission_answered_while_the_connection_was_lost_closes() -> None:
    seen = Seen().go(echo(P1), permission()).take(CUT, *BACK).status()
    assert seen.permission_states == ["open", "held", "closed"]


def test_replayed_permission_not_asked_again() -> None:
    seen = Seen().go(echo(P1), tool_call()).take(CUT, Connected())
    seen.take(frame(permission(), replayed=True), frame(resolved(), replayed=True), ReplayDone()).status()
    assert seen.permissions == []
    # And none that was answered before we came.
    loaded = Seen(echo(P1), tool_call(), permission(), resolved(), complete(P1)).go().status()
    assert loaded.permissions == []


def test_a_permission_that_was_missed_is_asked_when_the_daemon_says_it_is_open() -> None:
    seen = Seen().go(echo(P1)).take(CUT, Connected(), frame(permission(), replayed=True), ReplayDone())
    assert seen.permissions == []
    assert seen.status(pending()).permission_states == ["open"]


def test_a_permission_open_before_we_came_is_asked() -> None:
    seen = Seen(journal=(echo(P1), tool_call(), permission())).go()
    assert seen.permissions == []
    (asked,) = seen.status(pending()).permissions
    assert (asked.state, asked.tool, seen.state) == ("open", seen.tool.id, "waiting")


def test_a_permission_only_the_status_knows_shows_what_it_is_about() -> None:
    seen = Seen(hasActivePrompt=True).go().status(pending())
    (asked,) = seen.permissions
    assert (asked.tool, seen.tool.command) == (seen.tool.id, ("touch x", 0))
    assert [option.label for option in asked.options][2:] == ["Allow", "Reject"]


def test_a_status_that_is_older_than_the_events_undoes_nothing() -> None:
    seen = Seen().go(echo(P1))
    asked_about = seen.session.permissions.unanswered
    seen.take(permission("r1"), permission("r2"), resolved("r2"))
    seen.outputs += seen.session.status(status_reply(pending("r2")), asked_about)
    assert [(item.state, item.permission) for item in seen.permissions] == [
        ("open", local_id("permission", "r1")),
        ("open", local_id("permission", "r2")),
        ("closed", local_id("permission", "r2")),
    ]


def test_without_a_status_what_was_held_is_asked() -> None:
    seen = Seen().go(echo(P1), permission()).take(CUT, *BACK)
    seen.outputs += seen.session.status(None, seen.session.permissions.unanswered)
    assert seen.permission_states == ["open", "held", "open"]


def test_question_answers() -> None:
    seen = Seen().go(echo(P1), tool_call("call_2", name="ask_user_question"), question())
    (asked,) = seen.permissions
    first, second = asked.questions
    assert (first.text, first.header, first.multiple, second.multiple) == ("Which db?", "DB", False, True)
    assert [(choice.label, choice.description) for choice in first.choices] == [("sqlite", "small"), ("pg", "big")]
    submit, _cancel = asked.options
    vote = seen.session.permissions.vote
    answer = vote(asked.permission, submit.id, (("sqlite",), ("a", "b")))
    assert answer is not None
    assert (answer.option_id, answer.answers) == ("proceed_once", {"0": "sqlite", "1": "a, b"})
    dismissed = vote(asked.permission, None, (("sqlite",),))
    assert dismissed is not None
    assert (dismissed.option_id, dismissed.answers) == (None, None)
    assert vote(asked.permission, "nothing of that kind", ()) is None
    assert vote("nor that", submit.id, ()) is None


# --- The connection


def test_silent_retry_still_busy() -> None:
    # The daemon may say nothing for minutes while it tries the model again; only an end ends a turn.
    seen = Seen().go(echo(P1)).take(CUT, *BACK)
    assert (seen.state, seen.info.turn) == ("busy", turn(P1))
    assert seen.status().state == "busy"


def test_session_died_then_load() -> None:
    seen = Seen().go(echo(P1), words("half"), permission())
    seen.take(event("prompt_cancelled", P1), event("session_died", None, None, reason="channel_closed"))
    assert (seen.state, seen.info.text) == ("dead", "The agent of the session has ended.")
    assert (seen.ends, seen.permission_states) == ([(turn(P1), "failed")], ["open", "closed"])
    seen.session.reloading()
    assert seen.state == "loading"
    seen.load(load_reply(echo(P1), words("half")))
    assert seen.text() == "half"
    seen.go(echo(P2), complete(P2))
    assert seen.state == "idle"


def test_daemon_shutdown() -> None:
    seen = Seen().go(echo(P1))
    seen.take(event("turn_error", P1, message="Daemon shutting down", promptId=P1), event("prompt_cancelled", P1))
    seen.take(event("session_died", None, None, reason="daemon_shutdown"))
    # It is not dead: it is loaded as soon as a daemon is there again.
    assert (seen.state, seen.info.text) == ("disconnected", "The daemon has shut down.")
    assert not seen.session.dead
    assert seen.ends == [(turn(P1), "failed")]


def test_a_session_somebody_closed_is_closed() -> None:
    seen = Seen().go(event("session_closed", None, None, reason="client_close"))
    assert (seen.state, seen.session.dead) == ("closed", True)


def test_an_end_of_the_stream_says_why() -> None:
    seen = Seen().go(echo(P1)).take(Ended(UnauthorizedError("The token is wrong.", 401)))
    assert (seen.state, seen.info.text) == ("dead", "The token is wrong.")


def test_lost_events_are_not_taken_for_silence() -> None:
    assert Seen().go(echo(P1), permission()).take(Resync("ring_evicted")).state == "disconnected"


def test_a_load_tells_the_whole_conversation_and_what_runs() -> None:
    seen = Seen(
        echo(P1, "one"),
        words("first"),
        complete(P1),
        journal=(echo(P2, "two"), words("sec", P2)),
    )
    assert (seen.text("user"), seen.text(), seen.text("user", P2)) == ("one", "first", "two")
    assert seen.ends == [(turn(P1), "done")]
    seen.go(words("ond", P2))
    assert (seen.state, seen.info.turn, seen.text("answer", P2)) == ("busy", turn(P2), "second")


def test_the_same_things_have_the_same_names_after_a_load() -> None:
    said_before = (echo(P1), tool_call(), permission())
    first, second = Seen().go(*said_before), Seen(journal=said_before).go().status(pending())
    assert first.tool.id == second.tool.id
    assert first.permissions[0] == second.permissions[0]
    assert first.info.session == second.info.session


def disk(kind: str, text: str, prompt: str | None = None) -> Json:
    """Return a chunk as it is read from the disk, where only that of the user names the `prompt`."""
    meta = {} if prompt is None else {"_meta": {"promptId": prompt}}
    return update(kind, None, None, content={"type": "text", "text": text}, **meta)


def load_again(seen: Seen, *replay: Json, why: str | None = None, **terminals: str) -> None:
    """Let `seen` report the loaded session; `terminals` maps prompts to how their turns ended."""
    listed = [{"promptId": prompt, "terminal": terminal} for prompt, terminal in terminals.items()]
    seen.load(load_reply(*replay, promptTerminals=listed), why)


def test_a_turn_that_broke_off_with_its_agent_is_not_lost() -> None:
    seen = Seen().go(echo(P1), tool_call(), tool_update(status="completed"), words("half"))
    seen.take(event("turn_error", P1, message="channel closed", promptId=P1))
    seen.take(event("session_died", None, None, reason="channel_closed"))
    told = seen.outputs
    load_again(seen, disk("user_message_chunk", "hello", P1), **{P1: "error"})
    assert (seen.text("user"), seen.text(), seen.ends) == ("hello", "half", [(turn(P1), "failed")])
    assert seen.all(messages.ToolChange) == [told[2]]
    assert [item.text for item in seen.all(messages.EndChange)] == ["channel closed"]


def test_a_turn_that_broke_off_with_the_daemon_stays_where_it_was() -> None:
    seen = Seen().go(echo(P1), words("half")).take(CUT)
    first = disk("user_message_chunk", "hello", P1)
    load_again(seen, first, why="Restarted.")
    assert (seen.text("user"), seen.text(), seen.ends) == ("hello", "half", [(turn(P1), "failed")])
    seen.go(echo(P2), words("whole", P2), complete(P2))
    load_again(seen, first, disk("user_message_chunk", "hello", P2), disk("agent_message_chunk", "whole"))
    assert seen.said == [(turn(P1), "hello"), (turn(P1), "half"), (turn(P2), "hello"), (turn(P2), "whole")]
    assert [(item.turn, item.text) for item in seen.all(messages.EndChange)] == [(turn(P1), "Restarted.")]


def test_a_prompt_that_was_not_even_written_down_is_not_lost() -> None:
    seen = Seen().go(echo(P1))
    load_again(seen)
    assert (seen.text("user"), seen.ends) == ("hello", [(turn(P1), "failed")])


def test_a_turn_that_broke_off_is_not_lost_when_a_prompt_runs_already() -> None:
    # It was sent while the daemon was away, and came to it before the session was loaded.
    seen = Seen().go(echo(P1), words("half")).take(CUT)
    seen.load(
        load_reply(disk("user_message_chunk", "hello", P1), journal=(echo(P2, "next"),), eventEpoch="another"), "Gone."
    )
    assert (seen.text(), seen.ends) == ("half", [(turn(P1), "failed")])
    assert (seen.text("user", P2), seen.info.turn) == ("next", turn(P2))
    seen.go(words("whole", P2)).take(CUT)
    load_again(seen)
    assert seen.said == [(turn(P1), "hello"), (turn(P1), "half"), (turn(P2), "next"), (turn(P2), "whole")]


def test_a_turn_that_broke_off_is_not_lost_when_a_prompt_runs_that_is_not_told_yet() -> None:
    seen = Seen().go(echo(P1), words("half")).take(CUT)
    reply = load_reply(disk("user_message_chunk", "hello", P1), hasActivePrompt=True, eventEpoch="another")
    seen.load(reply)
    assert (seen.text(), seen.ends) == ("half", [(turn(P1), "failed")])


def test_a_turn_that_broke_off_is_known_by_its_texts_where_prompts_have_no_ids() -> None:
    # As on the disk of 0.21.2.
    seen = Seen().go(echo(P1, "one"), words("whole"), complete(P1), echo(P2, "two"), words("half", P2)).take(CUT)
    parts = [disk("user_message_chunk", "one"), disk("agent_message_chunk", "whole"), disk("user_message_chunk", "two")]
    for _ in range(2):
        load_again(seen, *parts)
        told = [item.text for item in seen.texts]
        assert told == ["one", "whole", "two", "half"]
        assert seen.ends == [(turn(P2), "failed")]


def test_a_turn_that_runs_on_has_not_broken_off() -> None:
    seen = Seen().go(echo(P1), words("half")).take(Resync("ring_evicted"))
    seen.load(load_reply(journal=(echo(P1), words("half"))))
    assert (seen.text(), seen.ends, seen.info.turn) == ("half", [], turn(P1))


def test_every_turn_that_broke_off_unwritten_stays_in_its_place() -> None:
    seen = Seen()
    for prompt in (P1, P2):
        seen.go(echo(prompt, prompt), words("half", prompt)).take(CUT)
        load_again(seen)
    seen.go(echo(P3, "three"), words("whole", P3), complete(P3))
    load_again(seen, disk("user_message_chunk", "three", P3), disk("agent_message_chunk", "whole"))
    assert seen.said == [
        *((turn(P1), text) for text in (P1, "half")),
        *((turn(P2), text) for text in (P2, "half")),
        *((turn(P3), text) for text in ("three", "whole")),
    ]
    assert seen.ends == [(turn(P1), "failed"), (turn(P2), "failed")]


def test_what_another_process_has_told_is_not_lost() -> None:
    before = Seen().go(echo(P1), words("half"), tool_call())
    interrupted = InterruptedTurns(item for item in before.outputs if isinstance(item, messages.Change))
    seen = Seen()
    seen.session = DaemonSession(SESSION, US, interrupted=interrupted)
    load_again(seen, disk("user_message_chunk", "hello", P1))
    assert (seen.text("user"), seen.text(), seen.ends) == ("hello", "half", [(turn(P1), "failed")])
    assert seen.tool == before.tool


@pytest.mark.parametrize("terminals", [{P1: "completed"}, {}], ids=["told", "an older daemon"])
def test_a_turn_that_came_to_its_end_unseen_is_whole(terminals: dict[str, str]) -> None:
    seen = Seen().go(echo(P1), words("ha")).take(CUT)
    load_again(seen, disk("user_message_chunk", "hello", P1), disk("agent_message_chunk", "half"), **terminals)
    assert (seen.text(), seen.ends) == ("half", [])


def test_how_turns_ended_is_read_from_the_disk_too() -> None:
    seen = Seen()
    parts = (disk("user_message_chunk", "a", P1), disk("agent_message_chunk", "A"), disk("user_message_chunk", "b", P2))
    load_again(seen, *parts, **{P1: "cancelled", P2: "completed"})
    assert seen.ends == [(turn(P1), "cancelled")]
    kinds = [type(item).__name__ for item in seen.outputs]
    assert kinds == ["TextChange", "TextChange", "EndChange", "TextChange"]


def test_a_turn_that_broke_off_is_not_lost_with_the_connection() -> None:
    interrupted = InterruptedTurns()
    before = Seen()
    before.session = DaemonSession(SESSION, US, interrupted=interrupted)
    load_again(before)
    before.go(echo(P1), words("half"))
    seen = Seen()
    seen.session = DaemonSession(SESSION, US, interrupted=interrupted)
    load_again(seen, disk("user_message_chunk", "hello", P1))
    assert (seen.text("user"), seen.text(), seen.ends) == ("hello", "half", [(turn(P1), "failed")])


@pytest.mark.parametrize("reason", ["channel_closed", "daemon_shutdown"])
def test_a_session_that_was_loaded_lives_although_it_died_before(reason: str) -> None:
    seen = Seen(echo(P1), event("session_died", None, None, reason=reason))
    assert (seen.state, seen.info.text, seen.ends) == ("disconnected", None, [(turn(P1), "failed")])
    assert seen.go().state == "idle"


def test_a_turn_that_broke_off_before_a_load_does_not_run() -> None:
    assert Seen(echo(P1), words("half")).go().state == "idle"


def test_a_session_read_from_the_disk_has_turns_although_it_names_no_prompts() -> None:
    parts = [disk("user_message_chunk", "a"), disk("agent_message_chunk", "A")]
    seen = Seen(*parts, disk("user_message_chunk", "b"), disk("agent_message_chunk", "B"))
    texts = seen.texts
    assert [(item.text, item.by) for item in texts] == [("a", None), ("A", None), ("b", None), ("B", None)]
    first, second = texts[0].turn, texts[2].turn
    assert first is not None
    assert [item.turn for item in texts] == [first, first, second, second]
    assert first != second
    seen = Seen(disk("user_message_chunk", "c", P1), disk("agent_message_chunk", "C"))
    assert (seen.text("user"), seen.text()) == ("c", "C")


def test_in_a_session_read_from_the_disk_the_user_said_only_what_the_user_said() -> None:
    def old(kind: str, text: str, **meta: Any) -> Json:
        return update(kind, None, None, content={"type": "text", "text": text}, _meta=meta)

    seen = Seen(
        old("user_message_chunk", "a", promptId=P1),
        old("user_message_chunk", "The agent is done.", source="background_notification", qwenDiscreteMessage=True),
        old("agent_message_chunk", "A"),
        old("user_message_chunk", "also X", source="mid_turn_message_injected", qwenDiscreteMessage=True),
        old("agent_message_chunk", "B"),
    )
    texts = seen.texts
    assert [(item.voice, item.background, item.text) for item in texts] == [
        ("user", False, "a"),
        ("answer", True, "The agent is done."),
        ("answer", False, "A"),
        ("answer", False, "B"),
    ]
    assert {item.turn for item in texts} == {turn(P1)}
    assert seen.notes == [("injected", "also X")]


def test_a_queue_is_lost_with_its_agent_and_with_its_daemon() -> None:
    ended = Seen().go(echo(P1), queued(P2, "then\nthis"))
    ended.outputs += ended.session.lost("The agent has ended.")
    restarted = Seen().go(echo(P1), queued(P2, "then\nthis"), queued(P3, "the last"))
    # What has become a turn meanwhile is not lost, nor what waits on while the daemon lives.
    again = load_reply(disk("user_message_chunk", "the last", P3), eventEpoch="another")
    restarted.load(again, "Gone.")
    followed = Seen().go(echo(P1), queued(P2))
    followed.load(load_reply(echo(P1)))
    for seen, lost in ((ended, "then this"), (restarted, "then this"), (followed, None)):
        texts = [item.text for item in seen.outputs if isinstance(item, messages.EndChange) and item.outcome == "lost"]
        assert texts == ([] if lost is None else [lost])
        assert seen.info.queue == ()


def test_a_running_turn_nothing_is_known_of_is_busy_until_one_ends() -> None:
    seen = Seen(hasActivePrompt=True).go()
    assert (seen.state, seen.info.turn) == ("busy", None)
    seen.take(queued(P2), queue_done(P2, "removed"), complete(P2, "cancelled"))
    assert seen.state == "busy"
    assert seen.take(complete(P1)).state == "idle"


def test_a_turn_the_load_says_is_over_does_not_run() -> None:
    over = [{"v": 1, "promptId": P1, "terminal": "failed"}]
    seen = Seen(echo(P1), hasActivePrompt=True, promptTerminals=over).go()
    assert (seen.state, seen.info.turn) == ("busy", None)


# --- What it is set to


def test_model_mode_title_and_usage_follow_the_daemon() -> None:
    seen = Seen()
    state: Json = {
        "models": {"currentModelId": "a(openai)", "availableModels": [{"modelId": "b(openai)", "name": "Bee"}]},
        "modes": {"currentModeId": "default", "availableModes": []},
    }
    seen.session.facts.choose(models.ContextState.model_validate(state))
    seen.go(event("session_snapshot", None, None, currentModelId="a(openai)", currentApprovalMode="auto"))
    assert (seen.info.model, seen.info.mode) == ("a(openai)", "auto")
    seen.take(
        event("model_switched", None, None, modelId="b(openai)"),
        event("approval_mode_changed", previous="auto", next="yolo", persisted=False),
        update("usage_update", P1, used=1234, size=200000),
        update("session_info_update", None, None, title="My\nTitle"),
    )
    info = seen.info
    assert (info.model, info.mode, info.used, info.size, info.title) == ("Bee", "yolo", 1234, 200000, "My Title")
    seen.take(
        update("current_mode_update", P1, currentModeId="default"),
        event("session_metadata_updated", None, None, displayName="Another"),
    )
    assert (seen.info.mode, seen.info.title) == ("default", "Another")
    assert seen.session.facts.model_id(local_id("model", "b(openai)")) == "b(openai)"
    assert seen.session.facts.model_id("nonsense") is None


def test_without_a_title_it_is_called_by_what_was_asked_first() -> None:
    assert Seen().info.title is None
    seen = Seen(echo(P1, "fix\nthe parser"), complete(P1)).go(echo(P2, "and test it"))
    assert seen.info.title == "fix the parser"
    seen.take(event("session_metadata_updated", None, None, displayName="Parser"))
    assert seen.info.title == "Parser"


def test_commands_are_told_whole() -> None:
    commands = [
        {"name": "status", "description": "show version info", "input": {"hint": ""}},
        {"name": "bug", "description": "submit\na bug", "input": {"hint": "<description>"}},
        {"name": "tasks", "description": "list", "input": None, "_meta": {"supportedModes": ["interactive", "acp"]}},
        # It wants a terminal.
        {"name": "vim", "description": "keys", "input": None, "_meta": {"supportedModes": ["interactive"]}},
    ]
    value = update("available_commands_update", P1, availableCommands=commands)
    (told,) = [item for item in Seen().go(value).outputs if isinstance(item, messages.SlashCommands)]
    assert [(item.name, item.description, item.hint) for item in told.commands] == [
        ("status", "show version info", ""),
        ("bug", "submit a bug", "<description>"),
        ("tasks", "list", ""),
    ]


def test_notes_say_what_happens_beside_the_turn() -> None:
    seen = Seen().go(
        event("model_switch_failed", requestedModelId="nope", error="Model 'nope' not found"),
        event("settings_changed", key="model.name", value="private"),
        event("mid_turn_message_injected", P1, messages=["also X"], messageIds=["m"]),
        event("followup_suggestion", None, None, suggestion="Plain answer.", promptId=f"{SESSION}########1"),
    )
    assert seen.notes == [
        ("model-failed", "Model 'nope' not found"),
        ("setting", "model.name"),
        ("injected", "also X"),
        ("suggestion", "Plain answer."),
    ]
    assert "private" not in repr(seen.outputs)


def test_what_was_put_into_a_turn_waits_no_more() -> None:
    seen = Seen().go(echo(P1), queued(P2, "also X"), queued(P3, "later"))
    seen.take(event("mid_turn_message_injected", P1, messages=["also X"], messageIds=[P2]))
    assert [item.text for item in seen.info.queue] == ["later"]


# --- What is not known


def test_unknown_event_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    strange = event("weather_changed", P1, secret="CONTENT")
    seen = Seen().go(strange, strange, update("mood_update", P1, mood="CONTENT"), event("a b\nCONTENT", P1))
    assert seen.outputs == []
    assert caplog.messages == [
        "unknown event: weather_changed",
        "unknown event: session_update/mood_update",
        "unknown event: (with an odd name)",
    ]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (event("session_branched", None), "session_branched"),
        (event("user_shell_command", None, command="ls", cwd="/w"), "user_shell_command"),
        (event("session_cwd_changed", None, cwd="/v"), "session_cwd_changed"),
        (event("session_rewound", None), "session_rewound"),
        (event("permission_request", P1, options=5), "permission_request"),
        (update("plan", P1, entries="none"), "plan"),
        (update("agent_message_chunk", P1, content={"type": "image", "data": "AAAA"}), "answer/image"),
        (update("agent_message_chunk", P1, content={"type": "audio", "data": "AAAA"}), "answer/audio"),
        (update("agent_thought_chunk", P1, content={"type": "resource", "resource": {}}), "thought/resource"),
        (update("agent_message_chunk", P1, content={"type": "resource_link", "uri": "x"}), "answer/resource_link"),
        (tool_update(content=[{"type": "terminal", "terminalId": "t"}]), "tool_call/terminal"),
        (tool_update(content=[{"type": "content", "content": {"type": "image", "data": "A"}}]), "tool_call/image"),
        (tool_update(content=[{"type": "content"}]), "tool_call/content"),
    ],
)
def test_what_cannot_be_shown_is_named_once(value: Json, name: str) -> None:
    assert Seen().go(value, value).notes == [("unsupported", name)]


def test_what_cannot_be_shown_is_named_in_each_turn() -> None:
    def image(prompt: str) -> Json:
        return update("agent_message_chunk", prompt, content={"type": "image", "data": "AAAA"})

    seen = Seen().go(echo(P1), image(P1), image(P1), complete(P1), echo(P2), image(P2))
    notes = [(item.turn, item.text) for item in seen.all(messages.NoteChange)]
    assert notes == [(turn(P1), "answer/image"), (turn(P2), "answer/image")]


def test_a_conversation_that_is_not_all_there_says_so() -> None:
    truncated = event(
        "history_truncated", None, None, reason="replay_window_exceeded", truncatedEvents=120, retainedEvents=5
    )
    rewound = event("session_rewound", None, US, promptId=f"{SESSION}########2", targetTurnIndex=1, filesChanged=[])
    seen = Seen(truncated, echo(P1), complete(P1), echo(P2), complete(P2), rewound)
    assert seen.notes == [("truncated", "120"), ("rewound", "1")]


def test_what_is_about_the_workspace_is_no_part_of_a_conversation() -> None:
    shell = update("shell_output", None, output="hi")
    assert Seen().go(event("git_branch_changed", None), event("mcp_server_added", None), shell).outputs == []


def test_an_image_in_a_prompt_is_mentioned() -> None:
    seen = Seen().go(update("user_message_chunk", P1, content={"type": "image", "data": "AAAA"}))
    assert seen.text("user") == "[image]\n"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("file:///project/a b%41.py", "@/project/a b%41.py"),
        ("file:///project/a\nb\u202e.py", "@/project/a b[U+202E].py"),
        ("https://example.org/a%20b", "@https://example.org/a%20b"),
    ],
)
def test_a_link_in_a_prompt_is_shown_as_it_is_written_there(uri: str, shown: str) -> None:
    link = {"type": "resource_link", "uri": uri, "name": "a"}
    seen = Seen().go(echo(P1, "see "), update("user_message_chunk", P1, content=link), echo(P1, " again"))
    assert seen.text("user") == f"see {shown} again"


def test_a_link_in_a_session_read_from_the_disk_is_behind_the_text() -> None:
    contents = ({"type": "text", "text": "see  again"}, {"type": "resource_link", "uri": "file:///project/a.py"})
    seen = Seen(
        *(update("user_message_chunk", None, None, content=content, _meta={"promptId": P1}) for content in contents)
    )
    assert seen.text("user") == "see  again\n@/project/a.py"


def test_every_event_the_models_know_has_its_handler() -> None:
    source = "".join(inspect.getsource(module) for module in (session, session_facts, transcript, turns))
    handled = {to_snake(name) for name in re.findall(r"(?:case|\|) models\.(\w+)\(", source)}
    assert models.SHOWN == handled - {models.Unknown.KIND}
