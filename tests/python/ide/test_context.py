# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_companion.emacs.messages import Snapshot, VisitedFile
from qwen_companion.ide.context import MAX_FILES, MAX_SELECTION_UNITS, cut_utf16, normalise
from qwen_companion.ide.models import Cursor, File, context_update

UNICODE = st.text(st.characters(exclude_categories=["Cs"]))


def snapshot(*files: tuple[str, int], active: str | None = None, selection: str | None = None) -> Snapshot:
    return Snapshot(tuple(VisitedFile(*file) for file in files), active, 3, 7, selection)


def files(given: Snapshot) -> tuple[File, ...]:
    return normalise(given, is_file=lambda path: "virtual" not in path).workspace_state.open_files


def units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


@given(text=UNICODE, limit=st.integers(0, 40))
def test_a_cut_text_is_the_longest_start_that_fits(text: str, limit: int) -> None:
    cut = cut_utf16(text, limit)
    assert text.startswith(cut)
    assert units(cut) <= limit
    assert cut == text or units(text[: len(cut) + 1]) > limit


def test_the_selection_is_cut_between_characters() -> None:
    (file,) = files(snapshot(("/a", 1), active="/a", selection="x" + "😀" * MAX_SELECTION_UNITS))
    assert file.selected_text is not None
    assert units(file.selected_text) == MAX_SELECTION_UNITS - 1
    assert file.selected_text.endswith("😀")


def test_files_come_newest_first_and_at_most_ten() -> None:
    got = files(snapshot(*((f"/{number}", number) for number in range(30))))
    assert [file.timestamp for file in got] == list(range(29, 29 - MAX_FILES, -1))
    assert not any(file.is_active for file in got)


def test_the_active_file_is_the_newest_whatever_its_time() -> None:
    got = files(snapshot(*((f"/{number}", number) for number in range(30)), active="/3"))
    assert len(got) == MAX_FILES
    assert got[0] == File("/3", 30, True, Cursor(3, 7))
    assert [file.cursor for file in got[1:]] == [None] * (MAX_FILES - 1)


def test_times_stay_as_they_are_where_the_active_file_is_the_newest() -> None:
    assert files(snapshot(("/a", 5), ("/b", 9), active="/b")) == (File("/b", 9, True, Cursor(3, 7)), File("/a", 5))


def test_two_files_of_the_same_time_leave_no_doubt() -> None:
    active, other = files(snapshot(("/a", 5), ("/b", 5), active="/a"))
    assert active.path == "/a"
    assert active.timestamp > other.timestamp


def test_what_is_not_on_disk_is_left_out() -> None:
    assert files(snapshot(("/virtual", 5), ("relative", 6), ("/b", 4))) == (File("/b", 4),)


def test_an_active_file_that_is_not_on_disk_leaves_none_active() -> None:
    assert files(snapshot(("/virtual", 5), ("/b", 4), active="/virtual", selection="x")) == (File("/b", 4),)
    assert files(snapshot(("/b", 4), active="/elsewhere")) == (File("/b", 4),)


def test_a_file_named_twice_is_one() -> None:
    assert files(snapshot(("/a", 5), ("/a", 7), ("/a", 6))) == (File("/a", 7),)


def test_no_position_and_no_selection_are_left_out() -> None:
    bare = Snapshot((VisitedFile("/a", 1),), "/a", None, None, "")
    assert normalise(bare, is_file=lambda _: True).workspace_state.open_files == (File("/a", 1, True),)


def test_files_are_looked_for_on_the_disk(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    names = ("file", "directory", "missing")
    given = snapshot(*((str(tmp_path / name), 1) for name in names))
    assert [file.path for file in normalise(given).workspace_state.open_files] == [str(tmp_path / "file")]


@given(text=UNICODE.filter(bool))
@pytest.mark.parametrize("path", ["/a", "/with\nnewline", "/é\u2028"])
def test_the_notification_is_one_line_with_everything_in_it(text: str, path: str) -> None:
    given = snapshot((path, 1), active=path, selection=text)
    wire = context_update(normalise(given, is_file=lambda _: True))
    assert b"\n" not in wire
    assert b"\r" not in wire
    assert json.loads(wire) == {
        "jsonrpc": "2.0",
        "method": "ide/contextUpdate",
        "params": {
            "workspaceState": {
                "openFiles": [
                    {
                        "path": path,
                        "timestamp": 1,
                        "isActive": True,
                        "cursor": {"line": 3, "character": 7},
                        "selectedText": text,
                    }
                ]
            }
        },
    }


def test_nothing_open_is_told_as_such() -> None:
    assert json.loads(context_update(normalise(snapshot())))["params"] == {"workspaceState": {"openFiles": []}}
