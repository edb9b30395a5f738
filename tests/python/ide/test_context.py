# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_companion.domain import Snapshot, VisitedFile
from qwen_companion.ide.context import (
    MAX_FILES,
    MAX_SELECTION_UNITS,
    ResolvedPath,
    cut_utf16,
    describe,
    newest_times,
    own_root,
)
from qwen_companion.ide.models import Json, active_file, context_update, open_file, told_context

UNICODE = st.text(st.characters(exclude_categories=["Cs"]))


def snapshot(*files: tuple[str, int], active: str | None = None, selection: str | None = None) -> Snapshot:
    return Snapshot(tuple(VisitedFile(*file) for file in files), active, 3, 7, selection)


def context(given: Snapshot, trusted: bool | None = None) -> Json:
    """Return the context of `given` when only files with "secret" in their names are not allowed."""
    allowed = {path: time for path, time in newest_times(given).items() if "secret" not in path}
    return describe(given, allowed, trusted)


def files(given: Snapshot) -> list[Json]:
    return context(given)["workspaceState"]["openFiles"]


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
    assert units(file["selectedText"]) == MAX_SELECTION_UNITS - 1
    assert file["selectedText"].endswith("😀")


def test_files_come_newest_first_and_at_most_ten() -> None:
    got = files(snapshot(*((f"/{number}", number) for number in range(30))))
    assert [file["timestamp"] for file in got] == list(range(29, 29 - MAX_FILES, -1))
    assert not any("isActive" in file for file in got)


def test_the_active_file_is_the_newest_whatever_its_time() -> None:
    got = files(snapshot(*((f"/{number}", number) for number in range(30)), active="/3"))
    assert len(got) == MAX_FILES
    assert got[0] == active_file("/3", 30, (3, 7), None)
    assert not any("cursor" in file for file in got[1:])


def test_times_stay_as_they_are_where_the_active_file_is_the_newest() -> None:
    assert files(snapshot(("/a", 5), ("/b", 9), active="/b")) == [
        active_file("/b", 9, (3, 7), None),
        open_file("/a", 5),
    ]


def test_two_files_of_the_same_time_leave_no_doubt() -> None:
    active, other = files(snapshot(("/a", 5), ("/b", 5), active="/a"))
    assert active["path"] == "/a"
    assert active["timestamp"] > other["timestamp"]


def test_what_is_not_allowed_is_left_out() -> None:
    assert files(snapshot(("/secret", 5), ("/b", 4))) == [open_file("/b", 4)]


def test_an_active_file_that_is_not_allowed_leaves_none_active() -> None:
    assert files(snapshot(("/secret", 5), ("/b", 4), active="/secret", selection="x")) == [open_file("/b", 4)]
    assert files(snapshot(("/b", 4), active="/elsewhere")) == [open_file("/b", 4)]


def test_a_file_named_twice_is_one() -> None:
    assert files(snapshot(("/a", 5), ("/a", 7), ("/a", 6))) == [open_file("/a", 7)]


def test_no_position_and_no_selection_are_left_out() -> None:
    bare = Snapshot((VisitedFile("/a", 1),), "/a", None, None, "")
    assert files(bare) == [active_file("/a", 1, None, None)]


@pytest.mark.parametrize("trusted", [True, False])
def test_trust_is_told_when_there_is_a_word_on_it(trusted: bool) -> None:
    told = context_update(context(snapshot(), trusted)).decode()
    assert json.loads(told)["params"] == {"workspaceState": {"openFiles": [], "isTrusted": trusted}}
    assert told_context(told).trust == ("trusted" if trusted else "untrusted")


def test_the_root_of_a_cli_is_the_innermost(tmp_path: Path) -> None:
    inner = tmp_path / "outer/inner"
    inner.mkdir(parents=True)
    (tmp_path / "outer/inner-not").mkdir()
    outer, nested, other = (ResolvedPath.of(str(tmp_path / name)) for name in ("outer", "outer/inner", "other"))
    roots = [nested, outer, other]
    assert own_root(ResolvedPath.of(str(inner)), roots) == nested
    assert own_root(ResolvedPath.of(str(inner / "deep")), roots) == nested
    assert own_root(ResolvedPath.of(str(tmp_path / "outer/inner-not")), roots) == outer
    assert own_root(ResolvedPath.of("/elsewhere"), roots) == ResolvedPath.of("/elsewhere")
    assert own_root(ResolvedPath.of("/elsewhere"), [ResolvedPath.of("/")]) == ResolvedPath.of("/")


def test_a_link_is_below_where_it_lies_and_where_it_leads(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "two/file").write_text("")
    (tmp_path / "one/link").symlink_to("../two/file")
    (tmp_path / "alias").symlink_to("two")
    link = ResolvedPath.of(str(tmp_path / "one/link"))
    assert link.is_below(ResolvedPath.of(str(tmp_path / "one")))
    assert link.is_below(ResolvedPath.of(str(tmp_path / "two")))
    assert link.is_below(ResolvedPath.of(str(tmp_path / "alias")))
    assert not link.is_below(ResolvedPath.of(str(tmp_path / "one/other")))


@given(text=UNICODE.filter(bool))
@pytest.mark.parametrize("path", ["/a", "/with\nnewline", "/é\u2028"])
def test_the_notification_is_one_line_with_everything_in_it(text: str, path: str) -> None:
    given = snapshot((path, 1), active=path, selection=text)
    wire = context_update(context(given))
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
    (told,) = told_context(wire.decode(), "/ssh:far:").files
    assert (told.path, told.selection) == (f"/ssh:far:{path}", text)


def test_nothing_open_is_told_as_such() -> None:
    assert json.loads(context_update(context(snapshot())))["params"] == {"workspaceState": {"openFiles": []}}
