# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sexpdata import Symbol

import fake_daemon
from daemon_emacs import Chatting, Emacs, connected_emacs, lisp, part, text_part
from fake_daemon import ROOT, FakeDaemon, FakeSession, chunk, event
from qwen_companion.base.local_ids import local_id
from qwen_companion.daemon import conversation, messages
from qwen_companion.daemon import dispatcher as module
from qwen_companion.daemon import requests as requests_module
from qwen_companion.daemon import transcript as transcript_module
from qwen_companion.daemon.notes import marked, review_note, without_notes
from qwen_companion.daemon.outbox import BATCH_WEIGHT
from qwen_companion.daemon.sanitize import TextStream
from qwen_companion.daemon.stream import Backoff
from qwen_companion.wire.spool import Spool
from support import TIMEOUT_S, as_dict

pytestmark = pytest.mark.anyio

_A_MEGABYTE = bytes(1_000_000)
RECORDED_FILE = event("permission_request")["data"]["toolCall"]["content"][0]["path"]


# --- Turns


async def test_a_prompt_streams(emacs: Emacs, chatting: Chatting) -> None:
    session, _, chat = chatting
    reply = await emacs.turn(chatting, "answer", "Say hello")
    assert chat.ends == [(reply.turn, "done")]
    assert chat.text("user") == "Say hello"
    recorded = fake_daemon.turn("answer")
    updates = [item["data"]["update"] for item in recorded if item["type"] == "session_update"]
    said = "".join(item["content"]["text"] for item in updates if item["sessionUpdate"] == "agent_message_chunk")
    assert chat.text() == said != ""
    await emacs.state(session, "idle")


async def test_prompts_go_out_in_order_and_once(emacs: Emacs, daemon: FakeDaemon, chatting: Chatting) -> None:
    session, _, _ = chatting
    # The first ones take longer to be put together.
    requests = [
        emacs.ask("daemon-prompt", session=session, parts=[text_part(str(number))] * (30 - 7 * number))
        for number in range(5)
    ]
    for request in requests:
        assert (await emacs.reply(request)).error is None
    texts = [asked.body["prompt"][0]["text"] for asked in daemon.asked_for("/prompt")]
    assert texts == [str(number) for number in range(5)]


async def test_a_prompt_whose_answer_is_lost_is_not_sent_again(
    emacs: Emacs, daemon: FakeDaemon, chatting: Chatting
) -> None:
    session, _, _ = chatting
    daemon.break_off("/prompt")
    assert await emacs.refused("daemon-prompt", session=session, parts=[text_part("x")]) == "unsure"
    assert len(daemon.asked_for("/prompt")) == 1
    daemon.refuse("/prompt", "queue_full")
    assert await emacs.refused("daemon-prompt", session=session, parts=[text_part("y")]) == "busy"
    assert len(daemon.asked_for("/prompt")) == 2


async def test_images_and_links_are_sent(emacs: Emacs, daemon: FakeDaemon, chatting: Chatting, tmp_path: Path) -> None:
    session, _, _ = chatting
    image = tmp_path / "a.png"
    image.write_bytes(b"\x89PNG")
    parts = [text_part("look"), part("image", path=str(image)), part("link", path="/srv/a b%20ü#.py")]
    await emacs.call("daemon-prompt", session=session, parts=parts)
    assert daemon.asked_for("/prompt")[0].body["prompt"][1:] == [
        {"type": "image", "data": "iVBORw==", "mimeType": "image/png"},
        {"type": "resource_link", "uri": "file:///srv/a b%20ü#.py", "name": "a b%20ü#.py"},
    ]
    large = tmp_path / "b.png"
    large.write_bytes(bytes(module.LARGEST_IMAGE_BYTES + 1))
    for bad in (
        part("image", path=str(tmp_path / "none.png")),
        part("image", path="/etc/passwd"),
        part("image", path=str(large)),
        part("link", path="relative"),
        part("sound", path="/a"),
    ):
        assert await emacs.refused("daemon-prompt", session=session, parts=[bad]) == "invalid"
    assert len(daemon.asked_for("/prompt")) == 1


async def test_an_image_is_refused_where_the_model_is_known_to_take_none(
    emacs: Emacs, daemon: FakeDaemon, chatting: Chatting, tmp_path: Path
) -> None:
    session, _, _ = chatting
    image = tmp_path / "a.png"
    image.write_bytes(b"\x89PNG")
    current = fake_daemon.reply("context")["state"]["models"]["currentModelId"]
    prompt = [text_part("look"), part("image", path=str(image))]
    model: dict[str, Any] = {"modelId": current, "name": "Plain", "modalities": {}}
    daemon.providers = [{"models": [{"modelId": "other", "modalities": {"image": True}}, model]}]
    assert await emacs.refused("daemon-prompt", session=session, parts=prompt) == "unsupported"
    assert daemon.asked_for("/prompt") == []
    # A text goes to every model, and so does an image where nothing is known.
    await emacs.call("daemon-prompt", session=session, parts=[text_part("look")])
    for known in ({"image": True}, None):
        daemon.providers = [{"models": [{**model, "modalities": known}]}]
        await emacs.call("daemon-prompt", session=session, parts=prompt)
    daemon.providers = []
    await emacs.call("daemon-prompt", session=session, parts=prompt)
    assert len(daemon.asked_for("/prompt")) == 4


async def test_a_long_prompt_comes_by_file(emacs: Emacs, daemon: FakeDaemon, chatting: Chatting) -> None:
    session, _, _ = chatting
    text = "x" * 100_000
    await emacs.call("daemon-prompt", session=session, parts=[part("text", text_file=emacs.spool.write(text))])
    assert daemon.asked_for("/prompt")[0].body["prompt"][0]["text"] == text


async def test_a_cancel_is_asked_for_only_while_something_runs(
    emacs: Emacs, daemon: FakeDaemon, chatting: Chatting
) -> None:
    session, _, chat = chatting
    await emacs.call("daemon-cancel", session=session)
    assert daemon.asked_for("/cancel") == []
    await emacs.asks(chatting, "write")
    daemon.refuse("/cancel", "queue_full")
    assert await emacs.refused("daemon-cancel", session=session) == "busy"
    await emacs.state(session, "waiting")
    await emacs.call("daemon-cancel", session=session)
    await emacs.until(lambda: chat.ends)
    assert [outcome for _, outcome in chat.ends] == ["cancelled"]
    assert [item.state for item in chat.permissions.values()] == ["closed"]
    await emacs.state(session, "idle")


async def test_a_queued_prompt_is_taken_back(emacs: Emacs, chatting: Chatting) -> None:
    session, theirs, chat = chatting
    theirs.script("write")
    first = await emacs.prompt(session)
    second = await emacs.prompt(session, "later")
    added = event("pending_prompt_added")
    added["promptId"] = added["data"]["promptId"] = theirs.prompts[1]
    theirs.emit(added)
    await emacs.until(lambda: chat.state and chat.state.queue)
    assert chat.state is not None
    assert [item.turn for item in chat.state.queue] == [second.turn]
    await emacs.call("daemon-remove-prompt", session=session, turn=second.turn)
    await emacs.until(lambda: (second.turn, "removed") in chat.ends)
    assert await emacs.refused("daemon-remove-prompt", session=session, turn=second.turn) == "gone"
    assert chat.state.turn == first.turn


async def test_what_another_process_has_shown_is_told_again(spool: Spool, daemon: FakeDaemon) -> None:
    # Of the turn that ran, the daemon has nothing when it is there again: mode off, mode on.
    async with connected_emacs(spool) as before:
        session, theirs, told = chatting = await before.chat(daemon)
        await before.turn(chatting, "read", "Read")
        shown = [change for frame in before.frames for change in _changes(frame) if "end" not in map(str, change)]
    theirs.history.clear()
    async with connected_emacs(spool) as emacs:
        await emacs.connect(daemon)
        await emacs.load(session, shown=shown)
        chat = emacs.chats[session]
        assert (chat.texts, chat.tools) == (told.texts, told.tools)
        assert chat.text()
        assert chat.tools
        assert [outcome for _, outcome in chat.ends] == ["failed"]
        # And it stays.
        await emacs.call("daemon-load", session=session)
        assert emacs.chats[session].texts == told.texts


def _changes(frame: str) -> list[Any]:
    """Return the changes in a message, as Emacs reads them."""
    method, payload = lisp(frame)
    return payload[payload.index(Symbol(":changes")) + 1] if method == "daemon-turn" else []


# --- Permissions


async def test_a_permission_is_answered(emacs: Emacs, daemon: FakeDaemon, chatting: Chatting) -> None:
    session, _, chat = chatting
    asked = await emacs.asks(chatting, "write")
    tool = chat.tools[str(asked.tool)]
    assert len(tool.diffs) == 1
    allow = next(option for option in asked.options if option.allows and not option.lasting)
    await emacs.call("daemon-answer", **emacs.answer(asked, allow.id))
    closed = await emacs.permission(session, "closed")
    assert (closed.by, closed.label) == ("me", allow.label)
    await emacs.until(lambda: chat.ends)
    assert chat.tools[tool.id].status == "done"
    (asked_for,) = [item for item in daemon.asked if "/permission/" in item.path]
    assert asked_for.body == {"outcome": {"outcome": "selected", "optionId": "proceed_once"}}


async def test_what_has_changed_since_it_was_shown_is_not_allowed(
    emacs: Emacs, daemon: FakeDaemon, chatting: Chatting
) -> None:
    session, theirs, chat = chatting
    asked = await emacs.asks(chatting, "write")
    tool = str(asked.tool)
    *_, allow, reject = asked.options
    shown = emacs.answer(asked, allow.id)
    other = event("permission_request")
    other["type"] = "session_update"
    other["data"]["update"] = other["data"].pop("toolCall") | {"sessionUpdate": "tool_call_update"}
    other["data"]["update"]["content"][0]["newText"] = "two\none\n"
    theirs.emit(other)
    await emacs.until(lambda: chat.tools[tool].revision != shown["revision"])
    assert await emacs.refused("daemon-answer", **shown) == "gone"
    assert await emacs.refused("daemon-answer", **shown | {"revision": None}) == "gone"
    assert not any("/permission/" in item.path for item in daemon.asked)
    await emacs.call("daemon-answer", **shown | {"option": reject.id})
    assert (await emacs.permission(session, "closed")).label == reject.label


async def test_the_answers_to_questions_reach_the_daemon(emacs: Emacs, daemon: FakeDaemon, chatting: Chatting) -> None:
    asked = await emacs.asks(chatting, "ask")
    choices = [[question.choices[0].label] for question in asked.questions]
    await emacs.call("daemon-answer", **emacs.answer(asked, asked.options[0].id), answers=choices)
    (asked_for,) = [item for item in daemon.asked if "/permission/" in item.path]
    assert asked_for.body["answers"] == {str(index): choice[0] for index, choice in enumerate(choices)}


async def test_an_answer_that_comes_too_late_says_so_and_closes(
    emacs: Emacs, daemon: FakeDaemon, chatting: Chatting
) -> None:
    session, theirs, _ = chatting
    asked = await emacs.asks(chatting, "write")
    daemon.refuse(f"/permission/{theirs.permission['data']['requestId'] if theirs.permission else ''}", "late_vote")
    values = emacs.answer(asked, asked.options[0].id)
    assert await emacs.refused("daemon-answer", **values) == "gone"
    closed = await emacs.permission(session, "closed")
    assert closed.by == "other"
    assert await emacs.refused("daemon-answer", **values) == "gone"


async def test_the_model_is_told_what_the_user_has_changed(
    emacs: Emacs, daemon: FakeDaemon, chatting: Chatting
) -> None:
    session, theirs, chat = chatting
    theirs.script("write", "answer")
    await emacs.prompt(session)
    values, proposed = await _allowing(emacs, session)
    await emacs.call("daemon-answer", **values, text=f"{proposed}mine\n")
    await emacs.until(lambda: chat.ends)
    (told,) = theirs.messages.values()
    assert "+mine\n" in told
    assert RECORDED_FILE in told
    # Before the answer: the tool goes on with that, and the model with the tool.
    (message,) = daemon.asked_for("/mid-turn-message")
    (answer,) = [asked for asked in daemon.asked if "/permission/" in asked.path]
    assert daemon.asked.index(message) < daemon.asked.index(answer)
    await emacs.prompt(session, "next")
    assert daemon.asked_for("/prompt")[-1].body["prompt"] == [{"type": "text", "text": "next"}]


def test_the_model_is_told_of_no_difference_and_of_a_long_one_in_part() -> None:
    assert review_note("/a", "one\ntwo\n", "\ufeffone\r\ntwo\r\n") is None
    told = review_note("/a" * 5000, "one\n", "".join(f"line {number}\n" for number in range(5000)))
    assert told is not None
    assert 12_000 < len(told) < 16 * 1024
    assert "\n(the rest is left out)\n```\n" in told


async def test_news_of_files_go_along_with_a_prompt(spool: Spool, daemon: FakeDaemon) -> None:
    asked: list[tuple[str, str, tuple[str, ...]]] = []

    async def news(session_id: str, directory: str, links: Sequence[str]) -> Callable[[int], str | None]:
        asked.append((session_id, directory, tuple(links)))
        return lambda room: f"news {len(asked)}, at most {room}" if len(asked) < 3 else None

    async with connected_emacs(spool, news=news) as emacs:
        session, theirs, _ = await emacs.chat(daemon)
        # They are not lost with a prompt that is not taken.
        daemon.refuse("/prompt", "queue_full")
        assert await emacs.refused("daemon-prompt", session=session, parts=[text_part("x")]) == "busy"
        await emacs.call("daemon-prompt", session=session, parts=[text_part("y"), part("link", path="/w/a b")])
        await emacs.prompt(session, "z")
    assert asked == [(theirs.id, ROOT, links) for links in ((), ("/w/a b",), ())]
    sent = [[block.get("text") for block in request.body["prompt"]] for request in daemon.asked_for("/prompt")]
    news_of = [marked(f"news {number}, at most 9900") for number in (1, 2)]
    assert sent[1:] == [[*news_of, "y", None], ["z"]]
    assert without_notes("".join(news_of) + "y") == "y"
    assert without_notes("a\n" + news_of[0]) == "a\n" + news_of[0]


async def test_without_messages_in_a_turn_the_next_prompt_tells_it(emacs: Emacs, daemon: FakeDaemon) -> None:
    daemon.capabilities["features"].remove("session_mid_turn_message_mutation")
    session, theirs, _ = await emacs.chat(daemon)
    theirs.script("write", "answer")
    await emacs.prompt(session)
    values, proposed = await _allowing(emacs, session)
    await emacs.call("daemon-answer", **values, text=f"{proposed}mine\n")
    await emacs.until(lambda: emacs.chats[session].ends)
    assert daemon.asked_for("/mid-turn-message") == []
    # It is not lost with a prompt that is not taken.
    daemon.refuse("/prompt", "queue_full")
    assert await emacs.refused("daemon-prompt", session=session, parts=[text_part("x")]) == "busy"
    await emacs.prompt(session, "next")
    note, next_ = (block["text"] for block in daemon.asked_for("/prompt")[-1].body["prompt"])
    assert "+mine\n" in note
    assert next_ == "next"
    await emacs.prompt(session, "last")
    assert len(daemon.asked_for("/prompt")[-1].body["prompt"]) == 1


@pytest.mark.parametrize("read", [False, True])
async def test_the_model_is_told_nothing_of_an_answer_that_came_too_late(
    read: bool, emacs: Emacs, daemon: FakeDaemon, chatting: Chatting, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, theirs, _ = chatting
    theirs.script("write")
    await emacs.prompt(session)
    values, proposed = await _allowing(emacs, session)
    assert theirs.permission is not None
    daemon.refuse(f"/permission/{theirs.permission['data']['requestId']}", "late_vote")
    if read:
        # The tool has run, and the model has the message.
        monkeypatch.setattr(theirs, "messages", _Forgetful())
    assert await emacs.refused("daemon-answer", **values, text=f"{proposed}mine\n") == "gone"
    assert (await emacs.permission(session, "closed")).by == "other"
    told = [asked.body["message"] for asked in daemon.asked_for("/mid-turn-message")]
    assert [text.startswith("My change to your edit") for text in told[1:]] == [True] * read
    assert theirs.messages == {}


class _Forgetful(dict[str, str]):
    """Keeps nothing."""

    def __setitem__(self, key: str, value: str) -> None:
        pass


async def _allowing(emacs: Emacs, session: str) -> tuple[dict[str, object], str]:
    """Return the answer that allows the requested change, and the text of the change."""
    asked = await emacs.permission(session, "open")
    tool = str(asked.tool)
    allow = next(option for option in asked.options if option.allows and not option.lasting)
    await emacs.call("daemon-fetch", session=session, tool=tool, part=lisp("new"), index=0)
    return emacs.answer(asked, allow.id), emacs.all(messages.ToolText, tool=tool)[-1].text


async def test_a_permission_waits_while_the_connection_is_lost(
    emacs: Emacs, daemon: FakeDaemon, chatting: Chatting
) -> None:
    session, theirs, chat = chatting
    asked = await emacs.asks(chatting, "write")
    for stream in theirs.streams:
        stream.cut()
    await emacs.until(lambda: len(emacs.all(messages.Permission)) == 3)
    assert [item.state for item in emacs.all(messages.Permission)] == ["open", "held", "open"]
    await emacs.state(session, "waiting")
    assert chat.permissions[asked.permission] == asked


# --- What can go wrong


async def test_drop_mid_turn_no_dup_in_emacs(emacs: Emacs, daemon: FakeDaemon, chatting: Chatting) -> None:
    session, theirs, chat = chatting
    await emacs.prompt(session)
    words = [f"{number} " for number in range(200)]
    for number, word in enumerate(words):
        theirs.emit(chunk(word))
        if number % 40 == 20:
            stream = theirs.streams[-1] if theirs.streams else None
            if stream is not None:
                stream.cut()
            await asyncio.sleep(0)
    await emacs.until(lambda: chat.text().endswith(words[-1]))
    assert chat.text() == "".join(words)
    assert len(chat.resets) == 1


async def test_a_daemon_restart_is_survived(emacs: Emacs, daemon: FakeDaemon, chatting: Chatting) -> None:
    session, theirs, chat = chatting
    await emacs.turn(chatting, "answer")
    before = chat.text()
    await daemon.stop()
    theirs.die()
    await emacs.until(lambda: emacs.last(messages.DaemonState).state == "unreachable")
    await emacs.state(session, "disconnected")
    await daemon.start()
    await emacs.state(session, "idle")
    assert [reset.text for reset in chat.resets] == [None, "The daemon has been restarted."]
    assert chat.text() == before
    assert emacs.last(messages.DaemonState).state == "connected"
    theirs.script("answer")
    await emacs.prompt(session)
    await emacs.until(lambda: chat.text() == before * 2)


async def test_lost_events_are_loaded(emacs: Emacs, chatting: Chatting) -> None:
    _, theirs, chat = chatting
    theirs.emit(chunk("one "))
    await emacs.until(lambda: chat.text() == "one ")
    theirs.miss(chunk("two "), chunk("three"))
    await emacs.until(lambda: chat.text() == "one two three")
    assert chat.resets[-1].text == "Some events were missed."


async def test_a_line_without_end_is_waited_out_in_little_memory(
    spool: Spool, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(conversation, "Backoff", lambda: Backoff(lambda _least, most: most))
    async with connected_emacs(spool, sleep=sleep) as emacs:
        session, theirs, chat = await emacs.chat(daemon)
        tracemalloc.start()
        try:
            for _ in range(3):
                stream = await daemon.next_stream()
                stream.send(b"data: ")
                for _ in range(requests_module.MAX_EVENT_BYTES // 1_000_000 + 2):
                    stream.send(_A_MEGABYTE)
            await daemon.next_stream()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 80_000_000
        assert pauses[:3] == [1.0, 2.0, 4.0]
        # It is well again.
        theirs.emit(chunk("and on"))
        await emacs.until(lambda: chat.text().endswith("and on"))
        await emacs.state(session, "idle")


async def test_a_page_in_place_of_an_answer_is_waited_out(emacs: Emacs, daemon: FakeDaemon, chatting: Chatting) -> None:
    session, theirs, chat = chatting
    daemon.refuse("/load", "no_route", status=200, times=3)
    theirs.miss(chunk("missed"))
    await emacs.until(lambda: chat.text() == "missed")
    await emacs.state(session, "idle")
    assert len(daemon.asked_for("/load")) == 5


async def test_a_dead_session_is_loaded_when_the_user_wants_it(
    emacs: Emacs, daemon: FakeDaemon, chatting: Chatting
) -> None:
    session, theirs, chat = chatting
    await emacs.turn(chatting, "answer")
    before = chat.text()
    theirs.die(event("session_died") | {"data": {"sessionId": theirs.id, "reason": "channel_closed"}})
    await emacs.state(session, "dead")
    loads_before = len(daemon.asked_for("/load"))
    assert await emacs.refused("daemon-prompt", session=session, parts=[text_part("x")]) == "gone"
    await emacs.load(session)
    assert len(daemon.asked_for("/load")) == loads_before + 1
    assert chat.text() == before


async def test_a_session_that_cannot_be_loaded_says_why(emacs: Emacs, daemon: FakeDaemon, chatting: Chatting) -> None:
    session, theirs, chat = chatting
    daemon.refuse("/load", "unauthorized")
    assert await emacs.refused("daemon-load", session=session) == "refused"
    await emacs.state(session, "dead")
    assert chat.state is not None
    assert "token" in str(chat.state.text)
    await emacs.load(session)
    assert len(theirs.streams) == 1


async def test_loading_again_tells_all_once_more(emacs: Emacs, daemon: FakeDaemon, chatting: Chatting) -> None:
    session, theirs, chat = chatting
    theirs.emit(chunk("a"), chunk("b"))
    await emacs.until(lambda: chat.text() == "ab")
    await emacs.load(session)
    theirs.emit(chunk("c"))
    await emacs.until(lambda: chat.text() == "abc")
    assert len(theirs.streams) == 1


async def test_a_daemon_without_a_context_can_be_talked_to(emacs: Emacs, daemon: FakeDaemon) -> None:
    daemon.refuse("/context", "no_route")
    daemon.refuse("/status", "no_route")
    await emacs.connect(daemon)
    await emacs.open()
    assert emacs.all(messages.SessionChoices) == []


# --- Large texts


async def test_10mb_frame_trimmed_before_it_crosses(emacs: Emacs, chatting: Chatting) -> None:
    session, theirs, chat = chatting
    old, new, output = "o\n" * 2_500_000, "n\n" * 2_500_000, "x" * 100_000
    written = event("tool_call_update")
    written["data"]["update"] |= {
        "toolCallId": "call_1",
        "status": "completed",
        "content": [
            {"type": "diff", "path": f"{ROOT}/a.txt", "oldText": old, "newText": new},
            {"type": "content", "content": {"type": "text", "text": output}},
        ],
        "rawOutput": {"originalContent": old, "newContent": new},
    }
    before = len(emacs.frames)
    theirs.emit(written)
    await emacs.until(lambda: chat.tools)
    assert sum(map(len, emacs.frames[before:])) < 32 * 1024
    (tool,) = chat.tools.values()
    assert (tool.diffs[0].old_size, tool.diffs[0].new_size) == (len(old), len(new))
    assert tool.output is not None
    assert (len(tool.output.text), tool.output.more) == (16 * 1024, 100_000 - 16 * 1024)
    for name, whole in (("old", old), ("output", output)):
        await emacs.call("daemon-fetch", session=session, tool=tool.id, part=lisp(name), index=0)
        assert emacs.last(messages.ToolText).text == whole
    await emacs.call("daemon-fetch", session=session, tool=tool.id, part=lisp("new"), index=0)
    assert emacs.last(messages.ToolText).text == new
    # The session may tell of itself meanwhile.
    fetched = next(frame for frame in reversed(emacs.frames) if ":text-file" in frame)
    assert len(fetched) < 1000
    payload = as_dict(lisp(fetched)[1])
    assert emacs.spool.read(payload["text-file"]) == new
    for odd in ({"index": 7}, {"index": -1}, {"part": lisp("input")}, {"tool": "?"}):
        values = {"session": session, "tool": tool.id, "part": lisp("old"), "index": 0, **odd}
        assert await emacs.refused("daemon-fetch", **values) == "gone"


async def test_a_text_that_changes_while_it_is_fetched_is_fetched_again(
    emacs: Emacs, chatting: Chatting, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, theirs, chat = chatting
    texts = ["one", "two", "three"]

    def propose(text: str) -> None:
        proposed = event("tool_call_update")
        proposed["data"]["update"] = {
            "sessionUpdate": "tool_call_update",
            "toolCallId": "call_1",
            "content": [{"type": "diff", "path": f"{ROOT}/a.txt", "oldText": "", "newText": text}],
        }
        theirs.emit(proposed)

    async def in_thread(work: Callable[..., str | None], *arguments: object) -> str | None:
        text = work(*arguments)
        if text in texts[:2]:
            before = chat.tools[tool.id].revision
            propose(texts[texts.index(text) + 1])
            await emacs.until(lambda: chat.tools[tool.id].revision != before)
        return text

    propose("one")
    await emacs.until(lambda: chat.tools)
    (tool,) = chat.tools.values()
    monkeypatch.setattr(conversation, "in_thread", in_thread)
    await emacs.call("daemon-fetch", session=session, tool=tool.id, part=lisp("new"), index=0)
    # In Emacs it comes after the revision of the tool that it is of.
    assert [item.text for item in emacs.all(messages.ToolText)] == ["three"]


async def test_a_chat_streams_on_while_megabytes_of_another_are_sanitised(
    emacs: Emacs, daemon: FakeDaemon, chatting: Chatting, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, streaming, chat = chatting
    long = daemon.add_session()
    slow = SlowLoads(monkeypatch, long)
    loaded = local_id("session", long.id)
    request = emacs.ask("daemon-load", session=loaded)
    await slow.until_reached()
    streaming.emit(chunk("It goes on."))
    await emacs.until(lambda: chat.text() == "It goes on.")
    slow.may_go_on.set()
    assert (await emacs.reply(request)).error is None
    await emacs.until(lambda: loaded in emacs.chats and emacs.chats[loaded].text() == slow.TEXT)


class SlowLoads:
    """A text of a session that takes long to sanitise when it is loaded."""

    TEXT = "word " * 300_000

    def __init__(self, monkeypatch: pytest.MonkeyPatch, theirs: FakeSession) -> None:
        reached, may_go_on = threading.Event(), threading.Event()
        self.reached, self.may_go_on = reached, may_go_on

        class Slow(TextStream):
            def feed(self, piece: str) -> str:
                if len(piece) > 1_000_000:
                    reached.set()
                    assert may_go_on.wait(TIMEOUT_S), "another chat stands still"
                return super().feed(piece)

        monkeypatch.setattr(transcript_module, "TextStream", Slow)
        theirs.miss(chunk(self.TEXT), event("turn_complete"))

    async def until_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, TIMEOUT_S)


async def test_what_is_learnt_while_a_large_session_is_loaded_again_is_kept(
    emacs: Emacs, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = daemon.add_session()
    await emacs.connect(daemon)
    session = local_id("session", theirs.id)
    await emacs.load(session)
    slow = SlowLoads(monkeypatch, theirs)
    await slow.until_reached()
    chat = emacs.chats[session]
    await emacs.call("daemon-list")
    await emacs.until(lambda: chat.state is not None and chat.state.title == "hello")
    reply = await emacs.prompt(session)
    await emacs.until(lambda: chat.state is not None and chat.state.turn == reply.turn)
    slow.may_go_on.set()
    await emacs.until(lambda: chat.text() == slow.TEXT)
    await emacs.state(session, "busy")
    assert chat.state is not None
    assert (chat.state.title, chat.state.turn) == ("hello", reply.turn)


async def test_a_session_that_is_left_while_it_is_loaded_stays_left(
    emacs: Emacs, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = daemon.add_session()
    await emacs.connect(daemon)
    slow = SlowLoads(monkeypatch, theirs)
    session = local_id("session", theirs.id)
    request = emacs.ask("daemon-load", session=session)
    await slow.until_reached()
    await emacs.call("daemon-disconnect")
    slow.may_go_on.set()
    assert (await emacs.reply(request)).problem == "gone"
    assert (emacs.last(messages.SessionInfo).state, emacs.chats[session].resets) == ("closed", [])
    assert not theirs.streams


async def test_a_long_history_comes_in_small_messages(emacs: Emacs, daemon: FakeDaemon) -> None:
    theirs = daemon.add_session()
    for _ in range(20):
        theirs.emit(chunk("word " * 2000), event("tool_call"), event("turn_complete"))
    await emacs.connect(daemon)
    session = local_id("session", theirs.id)
    await emacs.call("daemon-load", session=session)
    await emacs.until(lambda: len(emacs.all(messages.Turns, session=session)) == emacs.last(messages.Reset).batches)
    assert emacs.last(messages.Reset).batches > 1
    assert max(map(len, emacs.frames)) < 2 * BATCH_WEIGHT
    assert emacs.chats[session].text() == "word " * 40_000


async def test_who_takes_part_is_asked_when_others_speak_and_when_a_turn_ends(
    emacs: Emacs, daemon: FakeDaemon, chatting: Chatting
) -> None:
    _, theirs, chat = chatting

    def clients(count: int) -> bool:
        return chat.state is not None and chat.state.clients == count

    await emacs.until(lambda: clients(1))
    theirs.members["client of somebody else"] += 1
    theirs.emit(event("user_message_chunk") | {"originatorClientId": "client of somebody else"})
    await emacs.until(lambda: clients(2))
    del theirs.members["client of somebody else"]
    theirs.emit(event("turn_complete"))
    await emacs.until(lambda: clients(1))
    assert len(daemon.asked_for("/status")) == 3


async def test_who_takes_part_is_asked_now_and_then(
    emacs: Emacs, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "COUNT_S", 0.01)
    session, theirs, _ = await emacs.chat(daemon)
    theirs.members["client of somebody else"] += 1
    await emacs.until(lambda: emacs.all(messages.SessionInfo, session=session, clients=2))


async def test_usage_and_commands_are_told(emacs: Emacs, chatting: Chatting) -> None:
    session, _, _ = chatting
    await emacs.call("daemon-usage", session=session)
    assert "Context Usage" in emacs.last(messages.ContextUsageReport).text
    told = len(emacs.all(messages.SlashCommands))
    await emacs.call("daemon-commands", session=session)
    assert len(emacs.all(messages.SlashCommands)) == told + 1
