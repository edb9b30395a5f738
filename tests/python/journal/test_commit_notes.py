# SPDX-License-Identifier: GPL-3.0-or-later
"""Notes on commits say which lines agents have written, also in a clone; nothing else of the repository is written."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from journal_project import Project, text
from journal_site import ON, Agent, site
from qwen_companion.base.plan_files import plan_path, save_plan
from qwen_companion.domain import AGENT, LineOrigin, TurnOrigin, Usage
from qwen_companion.journal.commit_notes import REF, CommitNotes
from qwen_companion.wire.messages import JournalOrigins, JournalPrompts, JournalPrune, JournalWrote

START = 1_700_000_000_000
OLD = [f"line {number}" for number in range(1, 7)]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    found = Project(tmp_path)
    found.git("config", "user.name", "U")
    found.git("config", "user.email", "u@example.org")
    return found


def notes(project: Project, root: Path | None = None) -> CommitNotes:
    return CommitNotes(os.path.realpath(root or project.root), project.environ)


def note(project: Project, commit: str = "HEAD") -> dict[str, Any]:
    return json.loads(project.git("notes", f"--ref={REF}", "show", commit))


def agent(project: Project, name: str, *lines: str, end: str = "\n") -> int:
    return project.turn({name: text(*lines, end=end)}, start=START)


def written(project: Project, before: dict[str, tuple[bytes, int]]) -> set[str]:
    """Return the first two parts of the names of files in the repository that are not as `before`."""
    state = project.repository_state()
    changed = [name for name in {*state, *before} if state.get(name, (b"",))[0] != before.get(name, (b"",))[0]]
    return {"/".join(name.split("/")[:2]) if name.startswith("refs") else name.split("/")[0] for name in changed}


def authors(found: CommitNotes, path: Path, data: bytes | None = None) -> dict[int, str]:
    lines: dict[int, str] = {}
    for first, count, origin in found.origins(str(path), data):
        assert (origin.who, origin.turn is None) == (AGENT, False)
        prompt = found.prompt(origin.turn or "")
        assert prompt is not None
        lines |= dict.fromkeys(range(first, first + count), prompt[1])
    return lines


def test_a_note_holds_in_a_clone_and_nothing_else_is_written(project: Project) -> None:
    project.commit(a=text(*OLD), other=b"x\n")
    first = project.git("rev-parse", "HEAD").strip()
    turn = agent(project, "a", *OLD[:2], "agent one", "agent two", "agent three", *OLD[2:])
    project.record.store.set_usage("s", START, [Usage("qwen3", 1, 1)])
    # The user's line over the last one.
    project.write("a", text("mine", *OLD[:2], "agent one", "agent two", "changed", *OLD[2:]))
    project.commit()
    before, disk = project.repository_state(), project.tree()
    notes(project).write(project.record)
    assert note(project) == {
        "version": 1,
        "turns": [{"session": "s", "client": "Qwen Code", "models": ["qwen3"], "start": START, "prompt": "do it"}],
        "files": {"a": [[4, 2, 0], [6, 1, 0, True]]},
    }
    assert written(project, before) <= {"objects", "refs/notes", "logs"}
    assert project.tree() == disk
    assert project.git("notes", f"--ref={REF}", "list").count("\n") == 1
    # Not a second time.
    before = project.repository_state()
    notes(project).write(project.record)
    assert project.repository_state() == before
    # A clone, in which the file is changed and renamed.
    clone = project.home / "clone"
    project.git("clone", "--quiet", str(project.root), str(clone))
    assert authors(notes(project, clone), clone / "a") == {}
    project.git("fetch", "--quiet", "origin", f"{REF}:{REF}", cwd=clone)
    assert authors(notes(project, clone), clone / "a") == {4: "do it", 5: "do it"}
    project.git("mv", "a", "b", cwd=clone)
    (clone / "b").write_bytes(text("new", "mine", *OLD[:2], "agent one", "agent two", *OLD[2:]))
    project.git("commit", "--quiet", "--all", "--message=x", cwd=clone)
    found = notes(project, clone)
    assert authors(found, clone / "b") == {5: "do it", 6: "do it"}
    assert authors(found, clone / "b", text("agent one")) == {1: "do it"}
    ((_, _, origin), *_) = found.origins(str(clone / "b"), None)
    assert origin.turn is not None
    assert found.prompt(origin.turn) == (
        TurnOrigin(origin.turn, "s", "Qwen Code", START, ("qwen3",)),
        "do it",
    )
    assert found.prompt(origin.turn[:-1] + "7") is None
    assert found.prompt(f"note-{first}-0") is None
    assert project.record.answers.prompt(project.record.names.identifier(turn), project.environ) is not None


def test_foreign_notes_commits_of_others_and_amends(project: Project) -> None:
    project.commit(a=text(*OLD))
    agent(project, "a", *OLD, "agent one")
    project.commit()
    project.git("notes", f"--ref={REF}", "add", "--message=of another tool", "HEAD")
    agent(project, "a", *OLD, "agent one", "agent two")
    project.git("commit", "--quiet", "--all", "--message=y")
    project.git("-c", "user.email=somebody@example.org", "commit", "--quiet", "--amend", "--no-edit")
    notes(project).write(project.record)
    assert project.git("notes", f"--ref={REF}", "list").count("\n") == 1
    assert project.git("notes", f"--ref={REF}", "show", "HEAD~1") == "of another tool\n"
    # What another tool says is nothing to us.
    assert authors(notes(project), project.root / "a") == {}
    project.git("commit", "--quiet", "--amend", "--message=z")
    notes(project).write(project.record)
    assert note(project)["files"] == {"a": [[7, 1, 0], [8, 1, 1]]}
    assert authors(notes(project), project.root / "a") == {8: "do it"}


def test_binaries_submodules_and_shallow_clones(project: Project) -> None:
    module = project.home / "module"
    project.git("init", "--quiet", str(module), cwd=project.home)
    (module / "c").write_bytes(text(*OLD))
    project.git("add", "--all", cwd=module)
    project.git("commit", "--quiet", "--message=c", cwd=module)
    project.git("submodule", "--quiet", "add", module.as_uri(), "module")
    project.commit(a=text(*OLD), b=b"\0\1")
    turn = project.begin(start=START)
    for name, data in (("a", text(*OLD, "agent one")), ("b", b"\0\2"), ("module/c", text(*OLD, "agent two"))):
        project.edit(turn, name, data)
    project.end(turn)
    project.git("commit", "--quiet", "--all", "--message=d", cwd=project.root / "module")
    project.commit()
    notes(project).write(project.record)
    assert note(project)["files"] == {"a": [[7, 1, 0]]}
    clone = project.home / "clone"
    project.git("clone", "--quiet", "--depth=1", project.root.as_uri(), str(clone), cwd=project.home)
    project.git("fetch", "--quiet", "origin", f"{REF}:{REF}", cwd=clone)
    found = notes(project, clone)
    assert authors(found, clone / "a") == {7: "do it"}
    assert authors(found, clone / "b") == authors(found, clone / "module") == {}


@pytest.mark.parametrize(
    "content",
    [
        "[1]",
        "{",
        '{"version": 2, "files": {"a": [[1, 1, 0]]}}',
        '{"version": 1, "files": {"a": [[1, 1], [0, 1, 0], ["1", 1, 0], [1, -1, 0], 7, [true, 1, 0, 4, 5]]}}',
        '{"version": 1, "files": [], "turns": {}}',
        "[" * 100_000,
    ],
)
def test_hostile_notes_are_nothing(project: Project, content: str) -> None:
    project.commit(a=text(*OLD))
    (project.home / "note").write_text(content)
    project.git("notes", f"--ref={REF}", "add", f"--file={project.home / 'note'}", "HEAD")
    assert list(notes(project).origins(str(project.root / "a"), None)) == []


def test_words_of_a_hostile_note_are_printable(project: Project) -> None:
    project.commit(a=text(*OLD))
    turn = {"session": 7, "client": "c\33[0m", "models": ["m" * 999, None], "start": "x", "prompt": "p\0q\u202e"}
    content = json.dumps({"version": 1, "files": {"a": [[1, 2**30, 0], [1, 1, 9]]}, "turns": [turn]})
    project.git("notes", f"--ref={REF}", "add", f"--message={content}", "HEAD")
    found = list(notes(project).origins(str(project.root / "a"), None))
    assert [(line, count) for line, count, _ in found] == [(1, 6), (1, 1)]
    origin, prompt = notes(project).prompt(found[0][2].turn or "") or (None, "")
    assert origin is not None
    assert (origin.session, len(origin.models[0]), origin.models[1], origin.start) == ("", 200, "", 0)
    assert not {"\33", "\0", "\u202e"} & {*origin.client, *prompt}
    assert notes(project).prompt(found[1][2].turn or "") is None


def test_line_ends_that_git_converts_and_no_repository(project: Project, tmp_path: Path) -> None:
    project.git("config", "core.autocrlf", "true")
    project.commit(a=text(*OLD, end="\r\n"))
    agent(project, "a", *OLD, "agent one", end="\r\n")
    project.commit()
    notes(project).write(project.record)
    assert note(project)["files"] == {"a": [[7, 1, 0]]}
    assert authors(notes(project), project.root / "a") == {7: "do it"}
    bare = Project(tmp_path / "bare", git=False)
    bare.write("a", b"1\n")
    agent(bare, "a", "2")
    notes(bare).write(bare.record)
    assert list(notes(bare).origins(str(bare.root / "a"), None)) == []


@pytest.mark.anyio
async def test_who_wrote_lines_is_answered_where_a_name_is_not_utf8(project: Project) -> None:
    path = str(project.root / "caf\udce9")
    project.write("caf\udce9", text(*OLD))
    project.commit()
    async with site(project) as place:
        place.front.set_settings(replace(ON, commit_notes=True))
        agents = Agent(place.front, project)
        call = await agents.begin("run_shell_command", command="ed")
        project.write("caf\udce9", text("agent one", *OLD))
        await agents.done(call)
        (turn,) = await place.until({"caf\udce9": "modified"})
        reply = await place.ask(lambda number: JournalOrigins(number, path))
        assert reply.error is None
        assert (list(reply.origins or ()), list(reply.runs)) == ([LineOrigin(AGENT, turn.id)], [1, 1, 0])


@pytest.mark.anyio
async def test_who_wrote_lines_is_answered_from_notes_where_the_journal_knows_nothing(project: Project) -> None:
    path = str(project.root / "a")
    project.commit(a=text(*OLD))
    async with site(project) as place:
        place.front.set_settings(replace(ON, commit_notes=True))
        agents = Agent(place.front, project)
        call = await agents.begin("edit", file_path=path)
        project.write("a", text("agent one", *OLD))
        await agents.done(call)
        (turn,) = await place.until({"a": "modified"})
        reply = await place.ask(lambda number: JournalOrigins(number, path))
        assert (list(reply.origins or ()), list(reply.runs)) == ([LineOrigin(AGENT, turn.id)], [1, 1, 0])
        # As it would be saved, in two ways.
        for more in (("mine\nagent one\n", False), ("bWluZQphZ2VudCBvbmUK", True)):
            reply = await place.ask(lambda number, more=more: JournalOrigins(number, path, *more))
            assert list(reply.runs) == [1, 1, 0, 2, 1, 1]
        project.git("commit", "--quiet", "--all", "--message=x")
        place.say(JournalWrote((), None, None, "commit"))
        # What was wanted when the user committed is done.
        place.front.set_settings(ON)
        # Of the plans of that conversation, the last one that was approved in the turn.
        assert turn.end is None
        for session, time in (("s", turn.start - 1), ("s", turn.start), ("s", turn.start + 1), ("t", turn.start + 2)):
            save_plan(plan_path(project.environ, str(project.root), session, time), "# Plan")
        prompts = await place.ask(lambda number: JournalPrompts(number, (turn.id, "unknown-1")))
        plan = plan_path(project.environ, str(project.root), "s", turn.start + 1)
        assert [(each.turn, each.plan) for each in prompts.turns or ()] == [(turn.id, plan)]
        # The turn is forgotten once the note is written.
        await agents.report("Stop")
        await place.until_ended(turn.id)
        await place.ask(lambda number: JournalPrune(number, str(project.root), (turn.id,)))
        reply = await place.ask(lambda number: JournalOrigins(number, path))
        (origin,) = list(reply.origins or ())
        assert (origin.turn or "").startswith("note-")
        assert list(reply.runs) == [1, 1, 0]
        prompts = await place.ask(lambda number: JournalPrompts(number, (origin.turn or "",)))
        assert [each.session for each in prompts.turns or ()] == ["s"]
        assert prompts.prompts == ""
