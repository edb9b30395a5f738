# SPDX-License-Identifier: GPL-3.0-or-later
"""The wire log: what is in it, what never is, and its limits."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from sexpdata import Symbol, dumps

from qwen_companion import wire_log
from qwen_companion.wire_log import NAME, Redactor, WireLog
from support import SECRET, TIMEOUT_S, Backend, Home

SELECTED = "the words nobody else may read"
PROPOSED = "a first line\nthe words of the model\n"


def recorded_session(home: Home, mode: str) -> str:
    """Record a CLI that connects, is told the context, and proposes a text that the user accepts; return the record."""
    path = home.work / "notes about a client.txt"
    path.write_text("before\n")
    with Backend(home, wire_log=Symbol(mode)) as backend:
        backend.serve()
        cli = backend.cli()
        with cli.stream() as stream:
            files = {"files": [{"path": str(path), "timestamp": 1000}], "active": str(path), "line": 1, "character": 1}
            told = backend.emacs.call("context", dumps({**files, "text": SELECTED}))
            assert told[0] == "return"
            while not stream.event()["params"]["workspaceState"]["openFiles"]:
                pass
            cli.tool("openDiff", filePath=str(path), newContent=PROPOSED)
            proposal = backend.emacs.wait_for("proposal-open")
            backend.emacs.call(
                "outcome", dumps({"id": proposal["id"], "outcome": Symbol("accepted"), "text": PROPOSED})
            )
            assert stream.event()["method"] == "ide/diffAccepted"
            backend.emacs.wait_for("delivered")
        assert backend.stopped() == ""
        record = (home.spool / NAME).read_text()
        assert backend.token not in record
        assert SECRET not in record
    return record


def test_a_record_has_what_was_said_and_no_text_or_name_of_a_file(home: Home) -> None:
    record = recorded_session(home, "redacted")
    for text in (SELECTED, "model", "notes", "client.txt", home.work.name + "/", "before"):
        assert text not in record
    assert stat.S_IMODE((home.spool / NAME).stat().st_mode) == 0o600
    # Whoever reads the report sees each message on both wires, and which texts are the same.
    entries = [json.loads(line) for line in record.splitlines()]
    assert entries[0]["wire"] == "start"
    calls = [(entry["to"], entry["method"]) for entry in entries if entry.get("kind") == "call"]
    flow = [("backend", "context"), ("emacs", "proposal-open"), ("backend", "outcome"), ("emacs", "delivered")]
    assert [call for call in calls if call in flow] == flow
    values = {entry["method"]: entry["value"] for entry in entries if entry.get("kind") == "call"}
    proposed = values["outcome"][":text"]
    assert proposed.startswith(f"‹text {len(PROPOSED)} 2 #")
    bodies = [entry["body"] for entry in entries if entry.get("body")]
    asked = [body["params"]["arguments"] for body in bodies if body.get("method") == "tools/call"]
    assert [arguments["newContent"] for arguments in asked] == [proposed]
    assert values["proposal-open"][":text"] == proposed
    told = [entry["event"]["method"] for entry in entries if "event" in entry]
    assert told[0] == "ide/contextUpdate"
    assert "ide/diffAccepted" in told


def test_texts_are_kept_on_request_and_secrets_are_not(home: Home) -> None:
    assert SELECTED in recorded_session(home, "texts")


def test_equal_texts_and_names_stay_equal_and_say_nothing() -> None:
    redactor = Redactor(("s3cret",), keep_texts=False)
    first = redactor.redact({"filePath": "/home/jo/diary.txt", "text": "Dear diary\nhello\n", "token": "s3cret"})
    assert first == {"filePath": "/aaaa/aa/aaaaaaaaa", "text": "‹text 17 2 #1›", "token": "‹secret›"}
    assert redactor.redact([Symbol(":text"), "Dear diary\nhello\n", Symbol(":path"), "/home/diary.txt"]) == {
        ":text": "‹text 17 2 #1›",
        ":path": "/aaaa/aaaaaaaaa",
    }
    # What a model writes has no words of a protocol in it, whatever it calls them; nor has a key.
    assert redactor.redact({"name": "openDiff", "arguments": {"name": "Jo", "my dear Jo": 1}}) == {
        "name": "openDiff",
        "arguments": {"name": "‹text 2 0 #2›", "‹text 10 0 #3›": 1},
    }
    kept = Redactor(("s3cret",), keep_texts=True)
    assert kept.redact({"text": "it is s3cret", "authorization": "x"}) == {
        "text": "it is ‹secret›",
        "authorization": "‹secret›",
    }


def entries(log: WireLog, count: int) -> None:
    for number in range(count):
        log.emacs("backend", "call", number, "roots", [Symbol(":roots"), ["/a"]])


def test_it_ends_before_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(wire_log, "MAX_BYTES", 1000)
    monkeypatch.setattr(wire_log, "_CLOSE_S", TIMEOUT_S)
    log = WireLog(str(tmp_path), (), keep_texts=False)
    entries(log, 100)
    log.close()
    lines = (tmp_path / NAME).read_text().splitlines()
    assert (tmp_path / NAME).stat().st_size <= 1000
    assert [json.loads(line)["uid"] for line in lines] == list(range(len(lines)))
    assert "the wire log has ended: it has reached 1000 bytes" in caplog.text
    # The next process does not go on with it either.
    log = WireLog(str(tmp_path), (), keep_texts=False)
    entries(log, 100)
    log.close()
    assert (tmp_path / NAME).stat().st_size <= 1000


@pytest.mark.parametrize("room", [0, 50])
def test_a_full_disk_ends_it_with_whole_lines(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    left = 150 + room
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(28, "No space left on device")
        written = real(descriptor, data[:left])
        left -= written
        return written

    log = WireLog(str(tmp_path), (), keep_texts=False)
    monkeypatch.setattr(wire_log, "_CLOSE_S", TIMEOUT_S)
    monkeypatch.setattr(os, "write", full)
    entries(log, 100)
    log.close()
    monkeypatch.undo()
    assert "the wire log has ended: No space left on device" in caplog.text
    for line in (tmp_path / NAME).read_text().splitlines():
        json.loads(line)


def test_without_the_option_there_is_none(backend: Backend, home: Home) -> None:
    backend.cli()
    backend.stopped()
    assert not (home.spool / NAME).exists()
