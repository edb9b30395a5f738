# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any, cast

import pytest

from daemon_emacs import lisp
from qwen_companion.daemon import messages
from qwen_companion.daemon.sanitize import Capped
from qwen_companion.domain import AskedQuestion, QuestionChoice
from qwen_companion.wire.messages import DaemonCall, parse_incoming
from qwen_companion.wire.plists import INLINE_TEXT_BYTES, to_plist
from qwen_companion.wire.spool import Spool
from support import as_dict


def call_of(method: str, payload: str, spool: Spool) -> DaemonCall:
    call = parse_incoming(method, lisp(payload), spool)
    assert isinstance(call, DaemonCall)
    return call


@pytest.mark.parametrize(
    ("method", "payload", "call"),
    [
        ("open", "nil", messages.Open(None, "new")),
        ("open", '(:root "/r" :scope shared)', messages.Open("/r", "shared")),
        ("close", '(:session "s" :end t)', messages.Close("s", end=True)),
        (
            "prompt",
            '(:session "s" :parts ((:kind text :text "a") (:kind image :path "/i.png") (:kind link :path "/f")))',
            messages.Prompt("s", (messages.TextPart("a"), messages.ImagePart("/i.png"), messages.LinkPart("/f"))),
        ),
        (
            "answer",
            '(:session "s" :permission "p" :option "o" :revision 2 :answers (("a") ("b" "c")))',
            messages.Answer("s", "p", "o", 2, (("a",), ("b", "c"))),
        ),
        ("answer", '(:session "s" :permission "p")', messages.Answer("s", "p", None, None, ())),
        ("fetch", '(:session "s" :tool "t" :part new :index 2)', messages.Fetch("s", "t", "new", 2)),
        ("fetch", '(:session "s" :tool "t" :part output)', messages.Fetch("s", "t", "output", 0)),
    ],
)
def test_calls(method: str, payload: str, call: messages.Call, spool: Spool) -> None:
    assert messages.parse_call(call_of(f"daemon-{method}", payload, spool), spool) == call


def test_a_call_says_how_its_answer_is_to_be_known(spool: Spool) -> None:
    assert messages.request_of(call_of("daemon-list", '(:request "7")', spool)) == "7"
    assert messages.request_of(call_of("daemon-list", "nil", spool)) is None


def test_no_repr_shows_a_secret_or_a_text(spool: Spool) -> None:
    for method, payload in (
        ("connect", '(:url "http://HIDDEN@h" :token "HIDDEN" :root "/r")'),
        ("prompt", '(:session "s" :parts ((:kind text :text "HIDDEN")))'),
        ("answer", '(:session "s" :permission "p" :answers (("HIDDEN")))'),
    ):
        call = call_of(f"daemon-{method}", payload, spool)
        assert "HIDDEN" not in repr(call) + repr(messages.parse_call(call, spool))


def plain(value: object) -> Any:
    """`value` with property lists as dictionaries and symbols as strings."""
    if not isinstance(value, list):
        return value if isinstance(value, bool | int | None) else str(value)
    items = cast("list[object]", value)
    if items and str(items[0]).startswith(":"):
        return {key: plain(item) for key, item in as_dict(items).items()}
    return [plain(item) for item in items]


def test_a_tool_with_all_it_has(spool: Spool) -> None:
    change = messages.ToolChange(
        None,
        id="i",
        status="running",
        command=Capped("ls", 0),
        output=Capped("out", 7),
        revision=2,
        diffs=(messages.DiffInfo(0, "/a", None, 3), messages.DiffInfo(1, "/b", 2, 4)),
        diffs_more=1,
        places=(messages.FilePosition("/a", 3),),
        places_more=5,
    )
    shape = plain(to_plist(change, spool))
    assert [shape[key] for key in ("command", "command-more", "output", "output-more")] == ["ls", None, "out", 7]
    assert "input" not in shape
    assert [shape[key] for key in ("revision", "diffs-more", "places-more")] == [2, 1, 5]
    assert shape["places"] == [{"path": "/a", "line": 3}]
    assert shape["diffs"] == [
        {"index": 0, "path": "/a", "old-size": None, "new-size": 3},
        {"index": 1, "path": "/b", "old-size": 2, "new-size": 4},
    ]


def test_a_message_has_the_keys_of_its_fields(spool: Spool) -> None:
    asked = messages.Permission(
        *("s", "p", "open", "t", "i", "title"),
        (messages.Option("o", "Always", allows=True, lasting=True, writes="project"),),
        "beware",
        (AskedQuestion("q?", "Q", multiple=True, choices=(QuestionChoice("a", None),)),),
    )
    assert plain(asked.payload(spool)) == {
        **{"session": "s", "permission": "p", "state": "open", "turn": "t", "tool": "i", "title": "title"},
        "message": "beware",
        "options": [{"id": "o", "label": "Always", "allows": True, "lasting": True, "writes": "project", "mode": None}],
        "questions": [
            {"text": "q?", "header": "Q", "multiple": True, "choices": [{"label": "a", "description": None}]}
        ],
        **{"plan": None, "by": None, "label": None},
    }
    said = messages.TextChange("t", voice="user", text="a", by="me")
    assert plain(messages.Turns("s", (said,)).payload(spool)) == {
        "session": "s",
        "changes": [
            {
                **{"turn": "t", "kind": "text", "voice": "user", "text": "a", "by": "me"},
                **{"parent": None, "background": False, "time": None},
            }
        ],
    }


def test_a_long_text_of_a_conversation_goes_by_file(spool: Spool) -> None:
    text = "x" * (INLINE_TEXT_BYTES + 1)
    shape = plain(to_plist(messages.TextChange("t", voice="answer", text=text), spool))
    assert "text" not in shape
    assert spool.read(shape["text-file"]) == text
