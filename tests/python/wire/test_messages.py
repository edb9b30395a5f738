# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sexpdata import Symbol, dumps, loads

from qwen_companion.base.errors import HelloError, MessageError, SpoolError
from qwen_companion.domain import (
    HIDE,
    CliState,
    KnownProposal,
    KnownSession,
    Peer,
    SessionState,
    Settings,
    Snapshot,
    ToldContext,
    ToldFile,
    ToolArgument,
    ToolDefinition,
    ToolItem,
    VisitedFile,
)
from qwen_companion.wire import messages
from qwen_companion.wire.plists import INLINE_TEXT_BYTES, plist, read_sexp
from qwen_companion.wire.spool import Spool
from support import as_dict

SESSIONS = '((:id "i" :protocol "2025-11-25" :client "c" :version "1"))'
HELLO = (
    '(:protocol 1 :secret "s" :emacs-pid 7 :port 0 :token nil :spool "/spool/"'
    f" :sessions {SESSIONS}"
    ' :proposals ((:id "p" :session "i" :path "/a" :digest "d")))\n'
)


def incoming(method: str, payload: str, spool: Spool) -> object:
    return messages.parse_incoming(method, read_sexp(payload.encode()), spool)


def outgoing(message: messages.Outgoing[Any], spool: Spool) -> object:
    """Return the payload as Emacs would read it."""
    return loads(dumps(message.payload(spool)))


def test_hello_is_read_whole() -> None:
    assert messages.Hello.parse(HELLO.encode()) == messages.Hello(
        secret="s",
        emacs_pid=7,
        port=0,
        reserve=None,
        token="",
        spool="/spool/",
        sessions=(SessionState(KnownSession("i", "2025-11-25", "c", "1"), streaming=False),),
        proposals=(KnownProposal("p", "i", "/a", "d"),),
    )


PEER = Peer(7, "boot:25", "/d", "qwen", (7, 6))
FAR = Peer(-7, "", "/d", "qwen", (7, 6), "/ssh:far:", 3, prompts=True)


@pytest.mark.parametrize("reviews", [True, False])
@pytest.mark.parametrize("peer", [None, PEER, replace(PEER, directory=None, family=None, ancestors=()), FAR])
def test_a_session_comes_back_as_it_was_told(peer: Peer | None, reviews: bool, spool: Spool) -> None:
    session = KnownSession("i", "2025-11-25", "c", "1", peer, reviews)
    told = messages.SessionChanges((SessionState(session, True),)).payload(spool)
    # Emacs keeps the list as it is and puts it into the next hello.
    items = dumps(as_dict(told)["sessions"])
    assert messages.Hello.parse(HELLO.replace(SESSIONS, items).encode()).sessions == (SessionState(session, False),)


@pytest.mark.parametrize(("client", "version", "label"), [("c", "1", "c 1"), ("c", "", "c"), ("", "1", "")])
def test_a_client_without_name_is_called_nothing(client: str, version: str, label: str) -> None:
    assert KnownSession("i", "p", client, version).label == label


@pytest.mark.parametrize(
    "change",
    [
        (":port 0", ":port 70000"),
        (":port 0", ":port nan"),
        (':version "1"', ':version "1" :pid 7'),
        (':version "1"', ':version "1" :pid 7 :started "b:1" :ancestors (a)'),
        (":port 0", ""),
        (":emacs-pid 7", ":emacs-pid 0"),
        (":emacs-pid 7", ":emacs-pid t"),
        (':sessions ((:id "i"', ":sessions ((:id i"),
        (':secret "s"', ":secret s"),
        (":protocol 1", ":protocol 1 :odd"),
        (":protocol 1", '"protocol" 1'),
        (":proposals (", ":proposals 5 :x ("),
    ],
)
def test_a_hello_of_another_shape_is_refused(change: tuple[str, str]) -> None:
    with pytest.raises(HelloError):
        messages.Hello.parse(HELLO.replace(*change, 1).encode())


@pytest.mark.parametrize("text", ["", "(", ")", "(a))", '"', "'", '(a "b', "(" * 100_000, "1 2", "(a . ", "\\"])
def test_what_is_no_expression_is_a_message_error(text: str) -> None:
    with pytest.raises(MessageError, match="not one Lisp expression"):
        read_sexp(text.encode())


def test_incoming_messages(spool: Spool) -> None:
    assert incoming("roots", '(:roots ("/a" "/b"))', spool) == messages.Roots(("/a", "/b"))
    assert incoming("settings", "nil", spool) == Settings()
    assert incoming(
        "settings", '(:all-roots t :trusted-directories ("/a") :patterns ("*.x") :auth-sources ("~/.authinfo"))', spool
    ) == Settings(True, False, ("/a",), ("*.x",), ("~/.authinfo",))
    assert incoming("settings", "(:trusted t)", spool) == Settings(trusted=True)
    assert incoming("settings", "(:no-reviews t)", spool) == Settings(no_reviews=True)
    told = incoming("settings", "(:journal t :tell-agents t :tell-changes t)", spool)
    assert told == Settings(journal=True, tell_agents=True, tell_changes=True)
    assert incoming("settings", "(:size-limit 1000)", spool) == Settings(size_limit=1000)
    assert incoming("settings", "(:settings-layer t :review-edits open)", spool) == Settings(
        layer=True, review_edits="open"
    )
    assert incoming("context", '(:files ((:path "/a" :timestamp 5 :exposure hide)))', spool) == Snapshot(
        (VisitedFile("/a", 5, HIDE),), None, None, None, None
    )
    assert incoming("roots", "(:roots nil)", spool) == messages.Roots(())
    assert incoming("stop", "nil", spool) == messages.Stop()
    assert incoming("outcome", '(:id "p" :outcome rejected)', spool) == messages.ReviewOutcome("p", None)
    assert incoming("outcome", '(:id "p" :outcome accepted :text "")', spool) == messages.ReviewOutcome("p", "")
    full = '(:files ((:path "/a" :timestamp 5.9)) :active "/a" :line 2 :character 3 :text "a\\"b\\\\n")'
    assert incoming("context", full, spool) == Snapshot((VisitedFile("/a", 5),), "/a", 2, 3, 'a"b\\n')
    assert incoming("context", "(:files nil :active nil)", spool) == Snapshot((), None, None, None, None)


def test_a_call_about_the_daemon_is_handed_on_and_shows_nothing_in_its_repr(spool: Spool) -> None:
    call = incoming("daemon-whatever", '(:token "a secret")', spool)
    assert isinstance(call, messages.DaemonCall)
    assert (call.method, call.values.string(":token")) == ("daemon-whatever", "a secret")
    assert "a secret" not in repr(call)


@pytest.mark.parametrize(
    ("method", "payload"),
    [
        ("nothing", "nil"),
        ("daemon-whatever", "5"),
        ("roots", '(:roots "/a")'),
        ("settings", "(:patterns t)"),
        ("context", '(:files ((:path "/a" :timestamp 5 :exposure sometimes)))'),
        ("roots", "(:roots (a))"),
        ("roots", "5"),
        ("outcome", '(:id "p" :outcome "accepted" :text "x")'),
        ("outcome", '(:id "p" :outcome perhaps)'),
        ("outcome", '(:id "p" :outcome accepted)'),
        ("outcome", "(:outcome rejected)"),
        ("compare", '(:id 1 :old (:text "a") :new nil)'),
        ("merge", '(:id 1 :mine (:text "a") :theirs (:text "b") :labels ("m" "t"))'),
        ("context", '(:files ((:path "/a" :timestamp "5")))'),
        ("context", '(:files ((:path "/a" :timestamp inf)))'),
    ],
)
def test_messages_of_another_shape_are_refused(method: str, payload: str, spool: Spool) -> None:
    with pytest.raises(MessageError):
        incoming(method, payload, spool)


def test_a_text_outside_the_spool_is_refused(spool: Spool) -> None:
    with pytest.raises(SpoolError):
        incoming("outcome", '(:id "p" :outcome accepted :text-file "/etc/passwd")', spool)


def test_emacs_leaves_crlf_to_this_process(spool: Spool) -> None:
    file = spool.write("\ufeffé\n\r\n")
    long = incoming("outcome", f'(:id "p" :outcome accepted :text-file "{file}" :crlf t)', spool)
    assert long == messages.ReviewOutcome("p", "\ufeffé\r\n\r\r\n")
    for text, crlf, content in (("one\n", "t", "one\r\n"), ("one\n", "nil", "one\n"), ("", "t", "")):
        payload = f'(:id "p" :outcome accepted :text "{text}" :crlf {crlf})'
        assert incoming("outcome", payload, spool) == messages.ReviewOutcome("p", content)
    assert messages.ProposalClose("p", True).parse_reply(loads('(:text "a\nb" :crlf t)'), spool) == "a\r\nb"
    spool.add_part(7, "one\n")
    parts = incoming("outcome", '(:id "p" :outcome accepted :text-parts 7 :crlf t)', spool)
    assert parts == messages.ReviewOutcome("p", "one\r\n")


def test_requests_about_texts(spool: Spool) -> None:
    file = spool.write("b")
    assert incoming("compare", f'(:id 1 :old (:text "") :new (:text-file "{file}"))', spool) == messages.Compare(
        1, ("", "b")
    )
    labels = ("m", "b", "t")
    two = '(:id 2 :mine (:text "a") :theirs (:text "b") :labels ("m" "b" "t"))'
    assert incoming("merge", two, spool) == messages.Merge(2, ("a", "b"), labels)
    three = two.replace(":mine", ':base (:text "") :mine')
    assert incoming("merge", three, spool) == messages.Merge(2, ("", "a", "b"), labels)
    assert incoming("merge", two.replace('("m" "b" "t")', "nil"), spool) == messages.Merge(2, ("a", "b"), None)


def test_a_request_whose_text_is_lost_is_read_all_the_same_and_leaves_no_other_text(spool: Spool) -> None:
    lost, file = spool.write("a"), spool.write("b")
    spool.discard(lost)
    request = incoming("compare", f'(:id 1 :old (:text-file "{lost}") :new (:text-file "{file}"))', spool)
    assert request == messages.Compare(1, None)
    assert list(Path(spool.directory).iterdir()) == []


def test_answers_about_texts(spool: Spool) -> None:
    def answer(message: messages.Compared | messages.Merged) -> dict[str, Any]:
        return as_dict(outgoing(message, spool))

    assert answer(messages.Compared(1, None)) == {"id": 1, "hunks": []}
    assert as_dict(answer(messages.Compared(1, []))["hunks"]) == {"text": ""}
    assert as_dict(answer(messages.Compared(1, [1, 2, 3, 4]))["hunks"]) == {"text": "1 2 3 4"}
    assert answer(messages.Merged(1, None)) == {"id": 1, "edits": [], "result": [], "conflicts": 0}
    merged = answer(messages.Merged(1, [0] * INLINE_TEXT_BYTES, "", 2))
    assert spool.read(as_dict(merged["edits"])["text-file"]).split() == ["0"] * INLINE_TEXT_BYTES
    assert (as_dict(merged["result"]), merged["conflicts"]) == ({"text": ""}, 2)


def test_outgoing_messages(spool: Spool) -> None:
    session = KnownSession("i", "2025-11-25", "c", "1")
    published = outgoing(messages.Published(("/r",), True, 1, "t", {"A": "b"}, ["w"], guarded=True), spool)
    assert as_dict(published) == {
        "roots": ["/r"],
        "reachable": True,
        "port": 1,
        "token": "t",
        "environment": [["A", "b"]],
        "warnings": ["w"],
        "guarded": True,
    }
    assert outgoing(messages.Serving(), spool) == []
    sessions = as_dict(
        outgoing(messages.SessionChanges((SessionState(session, True), SessionState(session, False))), spool)
    )
    assert [as_dict(item)["streaming"] for item in sessions["sessions"]] == [True, []]
    told = SessionState(session, True, state=CliState("asking", 5, question="why"), no_hooks="off")
    (item,) = as_dict(outgoing(messages.SessionChanges((told,)), spool))["sessions"]
    assert messages.Hello.parse(HELLO.replace(SESSIONS, dumps([item])).encode()).sessions == (
        replace(told, streaming=False),
    )
    state = as_dict(as_dict(item)["state"])
    assert (str(state["activity"]), state["since"], state["question"], state["mode"]) == ("asking", 5, "why", [])
    assert as_dict(item)["no-hooks"] == "off"
    assert messages.FileVisited("/a").parse_reply(read_sexp(b"t"), spool)
    assert not messages.FileVisited("/a").parse_reply([], spool)
    file = plist(path="/a", time=5, active=True, line=1, character=2, selection="x")
    context = ToldContext("untrusted", (ToldFile("/a", 5, True, 1, 2, "x"),), "{\n}")
    assert as_dict(outgoing(messages.ContextSent("i", False, ("/r",), 5, "{}", context), spool)) == {
        "session": "i",
        "everywhere": [],
        "roots": ["/r"],
        "sent": 5,
        "text": "{}",
        "context": plist(trust=Symbol("untrusted"), files=[file], text="{\n}"),
    }
    assert as_dict(outgoing(messages.ContextSent("i", True, (), 5, "{}", context), spool))["everywhere"] is True


@pytest.mark.parametrize("text", ["", "a", "x" * INLINE_TEXT_BYTES, "é" * (INLINE_TEXT_BYTES // 2)])
def test_a_text_up_to_the_limit_goes_inside(text: str, spool: Spool) -> None:
    assert as_dict(outgoing(messages.ProposalOpen("p", "i", "c", "/a", "d", text), spool))["text"] == text


@pytest.mark.parametrize("text", ["x" * (INLINE_TEXT_BYTES + 1), "é" * (INLINE_TEXT_BYTES // 2 + 1)])
def test_a_text_over_the_limit_goes_by_file(text: str, spool: Spool) -> None:
    payload = as_dict(outgoing(messages.ProposalOpen("p", "i", "c", "/a", "d", text), spool))
    assert "text" not in payload
    assert spool.read(payload["text-file"]) == text


def test_replies(spool: Spool) -> None:
    opened = messages.ProposalOpen("p", "i", "c", "/a", "d", "x")
    assert opened.parse_reply([], spool) is None
    assert opened.parse_reply("why not", spool) == "why not"
    with pytest.raises(MessageError):
        opened.parse_reply(5, spool)
    closed = messages.ProposalClose("p", keeps_edits=False)
    assert closed.parse_reply([], spool) is None
    assert closed.parse_reply(read_sexp(b'(:text "x")'), spool) == "x"
    assert closed.parse_reply(["x"][:0], spool) is None
    with pytest.raises(MessageError):
        closed.parse_reply("x", spool)
    messages.Delivered("p").parse_reply("whatever", spool)


def test_requests_about_the_journal(spool: Spool) -> None:
    def parsed(method: str, payload: str) -> object:
        return messages.parse_incoming(f"journal-{method}", read_sexp(payload.encode()), spool)

    scope = messages.ChangeScope("/r", "turn", "t", None)
    assert parsed("files", '(:id 1 :root "/r" :scope turn :turn "t")') == messages.JournalFiles(1, scope)
    assert parsed(
        "texts", '(:id 1 :root "/r" :scope turn :turn "t" :files ((:path "/r/a") (:path "/r/b" :previous "/r/c")))'
    ) == messages.JournalTexts(1, scope, (messages.WantedFile("/r/a"), messages.WantedFile("/r/b", "/r/c")))
    wrote = parsed("wrote", '(:paths ("/a") :turn "t" :label "l" :action bring-back)')
    assert wrote == messages.JournalWrote(("/a",), "t", "l", "bring-back")
    for wrong in ("turn", 'session :turn "t"', "other"):
        with pytest.raises(MessageError):
            parsed("files", f'(:id 1 :root "/r" :scope {wrong})')


def test_messages_about_tools(spool: Spool) -> None:
    tools = """(:tools ((:name "n" :description "d" :unasked t :paged nil :arguments
               ((:name "a" :kind path :description "f" :required t :choices ("x"))))))"""
    argument = ToolArgument("a", "path", "f", required=True, choices=("x",))
    offered = messages.ToolsOffered((ToolDefinition("n", "d", (argument,), unasked=True),))
    assert messages.parse_incoming("tools", read_sexp(tools.encode()), spool) == offered
    answer = b'(:id 3 :items ((:text "t" :path "/a" :line 1 :column 2 :block t) (:text "u")) :more 4 :hidden 5)'
    items = (ToolItem("t", "/a", 1, 2, block=True), ToolItem("u"))
    assert messages.parse_incoming("tool-answer", read_sexp(answer), spool) == messages.ToolAnswer(3, items, 4, 5)
    assert messages.parse_incoming("tool-answer", read_sexp(b'(:id 3 :error "e")'), spool) == messages.ToolAnswer(
        3, error="e"
    )
    with pytest.raises(MessageError):
        messages.parse_incoming("tool-answer", read_sexp(b"(:id 3 :items ((:path 7)))"), spool)
    call = as_dict(outgoing(messages.ToolCall(3, "n", {"a": "/a", "l": 2, "b": False}, False, ("/r",), 9), spool))
    assert (call["arguments"], call["everywhere"], call["roots"]) == ([["a", "/a"], ["l", 2], ["b", []]], [], ["/r"])


def test_texts_of_the_journal_go_as_bytes(spool: Spool) -> None:
    texts = messages.Texts("/r/a", messages.FileVersion(b"\xff\r\n", 0o755), None, "/r/old", mixed=True)
    others = messages.Texts("/r/b", messages.FileVersion(b"", 0o644), messages.FileVersion(b"link", None))
    reply = as_dict(loads(dumps(messages.JournalReply(3, texts=[texts, others]).payload(spool))))
    payload, other = map(as_dict, reply["texts"])
    file = Path(str(reply["texts-file"]))
    assert file.read_bytes() == b"\xff\r\nlink"
    assert file.parent == Path(spool.directory)
    assert file.stat().st_mode & 0o777 == 0o600
    assert (payload["before"], payload["before-mode"]) == ([0, 3], 0o755)
    assert (payload["after"], payload["after-mode"]) == ([], [])
    assert (other["before"], other["after"], other["after-mode"]) == ([3, 3], [3, 7], Symbol("link"))
    assert (payload["path"], payload["from"], payload["mixed"]) == ("/r/a", "/r/old", True)
