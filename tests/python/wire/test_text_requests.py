# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests about texts, from Emacs to the process and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sexpdata import dumps

from qwen_companion.wire import text_requests as requests
from qwen_companion.wire.messages import Compare, Compared, Merge, Merged
from qwen_companion.wire.plists import INLINE_TEXT_BYTES, UNSPOOLED_TEXT_BYTES
from qwen_companion.wire.text_requests import answer
from support import Backend, Home, as_dict

LABELS = ("m", "b", "t")


def test_hunks_count_lines_from_one() -> None:
    assert answer(Compare(7, ("a\nb\n", "a\nB\nc"))) == Compared(7, [2, 1, 2, 2])
    assert answer(Compare(7, ("a\n", "x\na\n"))) == Compared(7, [1, 0, 1, 1])
    assert answer(Compare(7, ("a\n", ""))) == Compared(7, [1, 1, 1, 0])
    assert answer(Compare(7, ("a\n", "a\n"))) == Compared(7, [])


def test_without_a_base_the_result_is_theirs() -> None:
    assert answer(Merge(7, ("ab\n", "ac\n"), LABELS)) == Merged(7, [1, 2, 1, 2])


def test_a_result_that_is_theirs_is_not_sent() -> None:
    assert answer(Merge(7, ("a\n", "a\n", "b\n"), LABELS)) == Merged(7, [0, 1, 0, 1])
    merged = answer(Merge(7, ("a\nb\nc\n", "A\nb\nc\n", "a\nb\nC\n"), LABELS))
    assert merged == Merged(7, [4, 5, 4, 5], "A\nb\nC\n")


def test_without_labels_there_is_a_result_only_where_there_is_no_conflict() -> None:
    texts = ('say("hello", "world")\n', 'say("good day", "world")\n', 'say("hello", "moon")\n')
    merged = answer(Merge(7, texts, None))
    assert isinstance(merged, Merged)
    assert merged.result == 'say("good day", "moon")\n'
    conflict = Merge(7, ("a\n", "b\n", "c\n"), None)
    assert answer(conflict) == conflict.failed()


@pytest.mark.parametrize("request_", [Compare(7, None), Merge(7, None, LABELS)])
def test_a_text_that_was_lost_is_a_failure(request_: Compare | Merge) -> None:
    assert answer(request_) == request_.failed()


@pytest.mark.parametrize("request_", [Compare(7, ("a", "b")), Merge(7, ("a", "b"), LABELS)])
def test_whatever_goes_wrong_there_is_an_answer(request_: Compare | Merge, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise MemoryError

    monkeypatch.setattr(requests, "Budget", broken)
    assert answer(request_) == request_.failed()


def test_emacs_gets_no_more_edits_than_it_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_EDITS", 10)
    merged = answer(Merge(7, ("a\nb\n" * 100, "a\nc\n" * 100), LABELS))
    assert isinstance(merged, Merged) and merged.edits is not None
    assert len(merged.edits) == 40


def numbers(payload: Any, spool: Path) -> Sequence[int]:
    values = as_dict(payload)
    text = Path(values["text-file"]).read_text() if "text-file" in values else values["text"]
    return [int(number) for number in text.split()]


def test_the_process_answers_in_order_and_by_file_where_it_is_long(backend: Backend, home: Home) -> None:
    text = "é line\n" * 20_000
    file = home.spool / "old"
    file.write_text(text)
    backend.emacs.call("merge", f'(:id 1 :mine (:text-file "{file}") :theirs (:text "x") :labels ("" "" ""))')
    backend.emacs.call("compare", '(:id 2 :old (:text "a") :new (:text "b"))')
    merged = backend.emacs.wait_for("merged")
    assert (merged["id"], numbers(merged["edits"], home.spool)) == (1, [0, len(text), 0, 1])
    assert not file.exists()
    compared = backend.emacs.wait_for("compared")
    assert (compared["id"], numbers(compared["hunks"], home.spool)) == (2, [1, 1, 1, 1])


def test_a_text_that_is_not_there_is_answered_and_the_process_goes_on(backend: Backend, home: Home) -> None:
    missing = home.spool / "missing"
    backend.emacs.call("compare", f'(:id 1 :old (:text-file "{missing}") :new (:text "b"))')
    assert backend.emacs.wait_for("compared") == {"id": 1, "hunks": []}
    backend.emacs.call("compare", '(:id 2 :old (:text "a") :new (:text "a"))')
    assert numbers(backend.emacs.wait_for("compared")["hunks"], home.spool) == []


def test_an_answer_that_no_file_takes_goes_along_unless_it_is_too_long(backend: Backend, home: Home) -> None:
    home.spool.rmdir()
    old = "".join(f"{number}\n" for number in range(10_000))
    texts = f":mine (:text {dumps(old)}) :theirs (:text {dumps(old.replace('1', 'x'))})"
    backend.emacs.call("merge", f'(:id 1 {texts} :labels ("" "" ""))')
    merged = backend.emacs.wait_for("merged")
    assert merged["id"] == 1
    assert len(dumps(merged["edits"])) > INLINE_TEXT_BYTES
    texts = f':base (:text "") :mine (:text {dumps("a" * (UNSPOOLED_TEXT_BYTES + 1))}) :theirs (:text "")'
    backend.emacs.call("merge", f'(:id 2 {texts} :labels ("" "" ""))')
    assert backend.emacs.wait_for("merged") == {"id": 2, "edits": [], "result": [], "conflicts": 0}
