# SPDX-License-Identifier: GPL-3.0-or-later
"""Who wrote which line: what the record knows of one file, case by case; `test_two_hands` does it at random."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import hypothesis
import pytest

from journal_project import Project, text, turn_row
from qwen_companion.domain import AGENT, USER
from qwen_companion.journal.answers import RecordError
from qwen_companion.journal.store import MAX_AGE_MS

FUZZES = hypothesis.settings().max_examples >= 1000
BLOCK = [f"agent wrote line {number}" for number in range(4)]
OTHERS = [f"somebody's line {number}" for number in range(12)]


def authors(project: Project, name: str = "a", data: bytes | None = None) -> list[str]:
    """Return the author of each line of `name`: "" for nobody, "T" for a turn, "you", or "you T" over a line of it."""
    runs, origins = project.record.answers.line_origins(str(project.root / name), data)
    count = len((project.root / name).read_bytes() if data is None else data)
    found = [""] * count
    for line, size, index in runs:
        origin = origins[index]
        turn = "" if origin.turn is None else str(project.record.names.number(origin.turn))
        words = {AGENT: turn, USER: f"you {turn}".strip()}[origin.who]
        found[line - 1 : line - 1 + size] = [words] * size
    data = (project.root / name).read_bytes() if data is None else data
    return found[: data.count(b"\n")]


def write(project: Project, lines: Sequence[str], name: str = "a") -> int:
    """Have an agent write `lines` in a turn, and return its number."""
    return project.turn({name: text(*lines)})


def test_lines_of_an_agent_the_user_and_others(project: Project) -> None:
    project.commit(a=text(*OTHERS))
    turn = write(project, [*OTHERS[:6], *BLOCK, *OTHERS[6:]])
    assert authors(project) == [""] * 6 + [str(turn)] * 4 + [""] * 6
    # Unsaved, then saved: the user's, with the agent named behind where its line was.
    mine = text("mine", *OTHERS[:6], BLOCK[0], "changed", *BLOCK[2:], *OTHERS[6:])
    wanted = ["you", *[""] * 6, str(turn), f"you {turn}", *[str(turn)] * 2, *[""] * 6]
    assert authors(project, data=mine) == wanted
    project.write("a", mine)
    assert authors(project) == wanted
    project.reopen()
    assert authors(project) == wanted
    # Another line end of all of it is a change of all of it.
    assert authors(project, data=mine.replace(b"\n", b"\r\n")).count("") == 0


def test_what_is_moved_or_comes_back_keeps_its_author(project: Project) -> None:
    project.commit(a=text(*OTHERS))
    turn = str(write(project, [*OTHERS[:6], *BLOCK, *OTHERS[6:]]))
    moved = text(*BLOCK, *OTHERS)
    assert authors(project, data=moved) == [turn] * 4 + [""] * 12
    # A copy is the user's.
    assert authors(project, data=text(*OTHERS[:6], *BLOCK, *OTHERS[6:], *BLOCK))[-4:] == ["you"] * 4
    # Put aside, with a commit of an agent between.
    project.edit(None, "a", text(*OTHERS))
    assert authors(project) == [""] * 12
    other = str(write(project, ["the other turn's first line", *OTHERS]))
    back = text("the other turn's first line", *OTHERS[:6], *BLOCK, *OTHERS[6:])
    assert authors(project, data=back) == [other, *[""] * 6, *[turn] * 4, *[""] * 6]
    # An agent that moves lines of the user's has not written them.
    project.edit(None, "a", text("the user's own line", *OTHERS))
    write(project, [*OTHERS, "the user's own line"])
    assert authors(project) == [""] * 12 + [f"you {other}"]


def test_a_line_written_anew_is_of_the_turn_that_wrote_it_last(project: Project) -> None:
    old, new = text(*OTHERS[:6]), [*OTHERS[:6], BLOCK[0]]
    project.commit(a=old)
    write(project, new)
    mine = text(*new, "by hand")
    project.edit(None, "a", mine)
    # All of it is taken back, and another turn writes the same.
    project.edit(None, "a", old)
    second = str(write(project, new))
    # What the user writes makes it the same text as before, also unrecorded: nothing of it is the first turn's again.
    project.write("a", mine)
    assert authors(project) == [""] * 6 + [second, "you"]
    project.edit(None, "a", mine)
    assert authors(project) == [""] * 6 + [second, "you"]


def test_equal_lines_side_by_side_are_not_called_the_agents(project: Project) -> None:
    project.commit(a=text("f {", "}", "g {", "}"))
    turn = str(write(project, ["f {", "}", "x {", "}", "g {", "}"]))
    # Either brace may be the one that was there.
    assert authors(project) == ["", "", turn, "", "", ""]


@pytest.mark.parametrize(
    "writes",
    [
        # Of two blank lines, the user moves the one before the block; it may be the agent's behind it for a comparison.
        [
            ("you", ["0", "", *OTHERS]),
            ("agent", ["0", "", *OTHERS[:4], "", *OTHERS[4:]]),
            ("you", ["0", "", *OTHERS[4:10], "", *OTHERS[:4], *OTHERS[10:]]),
        ],
        # An agent moves a block that ends in a line of which there is another one before it, and deletes the one above.
        [
            ("you", ["0", "#", *OTHERS[:2], "#", *OTHERS[2:]]),
            ("agent", ["#", *OTHERS[2:6], *OTHERS[:2], "#", *OTHERS[6:]]),
        ],
        # Both have written the same two lines; those of the user come back.
        [
            ("you", [*OTHERS[:3], "pass", "return", *OTHERS[3:7]]),
            ("agent", [*OTHERS[:3], "pass", "return", *OTHERS[3:7], "pass", "return", BLOCK[0]]),
            ("you", [*OTHERS[:3], *OTHERS[4:7], "pass", "return", BLOCK[0]]),
            ("you", [*OTHERS[:3], *OTHERS[4:7]]),
            ("you", [*OTHERS[:3], "pass", "return", *OTHERS[3:7], "mine"]),
        ],
    ],
)
def test_no_agent_is_named_for_what_the_user_wrote(project: Project, writes: Sequence[tuple[str, list[str]]]) -> None:
    (_, first), *rest = writes
    project.commit(a=text(*first))
    for who, lines in rest:
        if who == "agent":
            write(project, lines)
        else:
            project.edit(None, "a", text(*lines))
    assert {author for author in authors(project) if author.isdigit()} == set()


def test_renamed_files(project: Project) -> None:
    project.commit(a=text(*OTHERS))
    turn = str(write(project, [*OTHERS[:6], *BLOCK, *OTHERS[6:]]))
    os.rename(project.root / "a", project.root / "b")
    assert authors(project, "b") == [""] * 6 + [turn] * 4 + [""] * 6
    project.write("b", text(*OTHERS[:6], *BLOCK, *OTHERS[6:], "mine"))
    assert authors(project, "b") == [""] * 6 + [turn] * 4 + [""] * 6 + ["you"]
    # Also once an agent goes on with it, and when it renames it itself.
    later = project.begin()
    os.rename(project.root / "b", project.root / "c")
    project.write("c", text("new", *OTHERS[:6], *BLOCK, *OTHERS[6:], "mine"))
    project.scan(later)
    project.end(later)
    assert authors(project, "c") == [str(later), *[""] * 6, *[turn] * 4, *[""] * 6, "you"]


def test_an_undo_is_of_those_who_wrote_it_first(project: Project) -> None:
    project.commit(a=text(*OTHERS))
    first = str(write(project, [*OTHERS[:6], *BLOCK, *OTHERS[6:]]))
    turn = write(project, [*OTHERS[:6], *OTHERS[6:]])
    project.edit(None, "a", text(*OTHERS[:6], *BLOCK, *OTHERS[6:]))
    project.record.undo(turn, "Undo", [os.fsencode(project.root / "a")], 3000)
    assert authors(project) == [""] * 6 + [first] * 4 + [""] * 6


def test_what_cannot_be_known(project: Project) -> None:
    project.commit(a=text(*OTHERS), binary=b"\0\1")
    first = write(project, [*OTHERS, "first"])
    second = write(project, [*OTHERS, "first", "second"])
    project.record.store.end(first, 0)
    assert project.record.store.forget_old(MAX_AGE_MS) == [first]
    # The turn is forgotten, and its line is nobody's.
    assert authors(project) == [""] * 13 + [str(second)]
    project.record.store.drop([])
    with project.record.store.database.transaction() as db:
        db.execute("delete from origins")
    assert authors(project) == [""] * 13 + [str(second)]
    # A text that was not one for a while.
    project.edit(write(project, ["x"], "binary"), "binary", b"\0\2")
    with pytest.raises(RecordError, match="not a text"):
        authors(project, "binary")
    project.write("binary", text("now a text"))
    assert authors(project, "binary") == [""]
    for name in ("gone", "../outside"):
        with pytest.raises(RecordError, match="not there"):
            project.record.answers.line_origins(str(project.root / name), None)
    # A file that no agent has touched.
    project.write("mine", text("1", "2"))
    assert authors(project, "mine") == ["", ""]


@pytest.mark.parametrize("kind", ["no git", "shallow", "submodule"])
def test_odd_repositories(tmp_path: Path, kind: str) -> None:
    project = Project(tmp_path, git=kind != "no git")
    if kind == "no git":
        project.write("a", text(*OTHERS, end="\r\n"))
    else:
        project.commit(a=text(*OTHERS, end="\r\n"))
        origin, project.root = project.root.as_uri(), tmp_path / "clone"
        if kind == "shallow":
            project.git("clone", "--quiet", "--depth=1", origin, str(project.root), cwd=tmp_path)
        else:
            project.git("init", "--quiet", str(project.root), cwd=tmp_path)
            project.git("submodule", "--quiet", "add", origin, "module")
    name = "module/a" if kind == "submodule" else "a"
    turn = project.turn({name: text(*OTHERS[:6], *BLOCK, *OTHERS[6:], end="\r\n")})
    project.write(name, text("mine", *OTHERS[:6], *BLOCK, *OTHERS[6:], end="\r\n"))
    assert authors(project, name) == ["you", *[""] * 6, *[str(turn)] * 4, *[""] * 6]


def test_many_turns_in_one_file_and_a_long_file(project: Project) -> None:
    project.commit(a=text(*OTHERS))
    project.begin()
    lines = list(OTHERS)
    turns: list[int] = []
    for number in range(1000 if FUZZES else 300):
        turns.append(project.record.store.begin(turn_row()).id)
        lines.insert(6, f"turn number {number} wrote this")
        project.edit(turns[-1], "a", text(*lines))
    assert authors(project) == [""] * 6 + [str(turn) for turn in reversed(turns)] + [""] * 6
    project.record.answers.origins.trace_long(turns[-1])
    # As many lines as a file may have; a larger one is not compared.
    many = [f"{number}" for number in range(200_000)]
    project.commit(long=text(*many))
    turn = write(project, [*many[:100_000], *BLOCK, *many[100_000:]], "long")
    assert authors(project, "long")[99_999:100_005] == ["", *[str(turn)] * 4, ""]
    with pytest.raises(RecordError, match="larger than 8 MiB"):
        authors(project, "long", b"1234567\n" * 1024 * 1025)
