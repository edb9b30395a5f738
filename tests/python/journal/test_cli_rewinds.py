# SPDX-License-Identifier: GPL-3.0-or-later
"""What a CLI's own rewind did to files is recorded: what it undid, and what it took of the edits of others."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime, timezone

import pytest

from journal_project import Project
from journal_site import Agent, Site, at_work, site
from qwen_companion.base.local_ids import local_id
from qwen_companion.doors.events import parse_event
from qwen_companion.doors.listeners import Report
from qwen_companion.journal.cli_rewinds import Restored
from qwen_companion.journal.store import HOOKS, REWIND, UNDO
from qwen_companion.wire.messages import (
    JournalBusy,
    JournalRewound,
    JournalSeen,
    Notice,
    RewindTook,
    TurnChanges,
)
from support import until

OLD = b"1\n2\n3\n4\n5\n6\n7\n8\n9\n"
AGENT = b"1\nagent\n3\n4\n5\n6\n7\n8\n9\n"
BOTH = b"1\nagent\n3\n4\n5\n6\n7\nmine\nand mine\n8\n9\n"
MINE = b"1\n2\n3\n4\n5\n6\n7\nmine\nand mine\n8\n9\n"


def rewound(project: Project, since: int, time: int = 9000) -> Restored:
    """Return what a rewind of the CLI to before the turn that began at `since` did, at `time`."""
    store = project.record.store
    rows = [turn for turn in store.turns() if turn.start >= since and turn.source == HOOKS and turn.session == "s"]
    restored = Restored(store, project.record.nets, project.record.look, "s", rows, time)
    restored.record()
    return restored


def taken_by(restored: Restored) -> int:
    """Return the turn of what a rewind took of the users'."""
    assert restored.turn is not None
    return restored.turn


def texts(project: Project, name: str, turn: int | None) -> tuple[bytes | None, bytes | None]:
    """Return the bytes of the file `name` before and after `turn`, which there is."""
    assert turn is not None
    return project.before(name, turn), project.after(name, turn)


@pytest.fixture
def turn(project: Project) -> int:
    """Return a turn in which the agent changed a file and made another; the user has edited the first since."""
    project.commit(a=OLD)
    turn = project.turn({"a": AGENT, "new": b"new\n"})
    project.edit(None, "a", BOTH)
    return turn


def test_what_it_took_of_the_users_own_is_a_turn_that_can_be_undone(project: Project, turn: int) -> None:
    project.write("a", OLD)
    (project.root / "new").unlink()
    restored = rewound(project, 1000)
    assert texts(project, "a", restored.turn) == (MINE, OLD)
    assert project.kinds(taken_by(restored)) == {"a": "modified"}
    summary = project.summary(taken_by(restored))
    assert (summary.turn.source, [file.deleted for file in summary.files.values()]) == (REWIND, [2])
    # What the agent did is undone, and can be brought back.
    told = project.summary(turn)
    (undo,) = (each for each in project.record.store.turns() if each.source == UNDO)
    assert told.turn.undone_by == (project.record.names.identifier(undo.id),)
    assert texts(project, "a", undo.id) == (BOTH, MINE)
    assert texts(project, "new", undo.id) == (b"new\n", None)
    assert restored.changed == {turn, undo.id, restored.turn}
    # Nothing is left to be found by a look.
    project.scan(None)
    assert project.record.store.writes(os.fsencode(project.root / "a"))[-1].turn == restored.turn
    assert not restored.record()


def test_a_rewind_that_takes_nothing_of_the_users_has_no_turn(project: Project) -> None:
    project.commit(a=OLD)
    for number in (1, 2):
        project.turn({"a": OLD + b"agent\n" * number}, start=1000 * number)
    project.write("a", OLD)
    restored = rewound(project, 1000)
    assert restored.turn is None
    assert [each.undone for each in project.record.store.turns() if each.source == UNDO] == [2, 1]


def test_a_file_that_somebody_else_has_written_is_left_alone(project: Project, turn: int) -> None:
    project.write("a", b"another\n")
    restored = rewound(project, 1000)
    assert (restored.turn, restored.changed) == (None, set())
    # The daemon writes it a moment after its record.
    project.write("a", OLD)
    assert restored.record()
    assert taken_by(restored) > turn
    assert texts(project, "a", restored.turn) == (MINE, OLD)


def test_later_turns_of_other_agents_count_as_the_users_own(project: Project, turn: int) -> None:
    other = project.begin("another", start=3000)
    both = BOTH.replace(b"5\n", b"5\nother\n")
    project.edit(other, "a", both)
    project.end(other)
    project.write("a", OLD)
    restored = rewound(project, 1000)
    assert texts(project, "a", restored.turn) == (MINE.replace(b"5\n", b"5\nother\n"), OLD)
    assert project.summary(other).turn.undone_by == ()


def test_edits_that_touch_the_agents_come_with_these_and_that_is_said(project: Project, turn: int) -> None:
    touching = BOTH.replace(b"agent\n", b"agent and me\n")
    project.edit(None, "a", touching)
    project.edit(None, "new", b"new\nmine\n")
    project.write("a", OLD)
    (project.root / "new").unlink()
    restored = rewound(project, 1000)
    assert texts(project, "a", restored.turn) == (touching, OLD)
    assert texts(project, "new", restored.turn) == (b"new\nmine\n", None)
    assert [note.split(" that")[0] for note in project.notes(taken_by(restored))] == [
        "the lines of a",
        "the lines of new",
    ]


def test_a_file_that_only_a_kept_turn_has_written_is_put_back_too(project: Project, turn: int) -> None:
    project.turn({"b": b"later\n"}, start=5000)
    project.edit(None, "a", BOTH + b"also mine\n")
    # As it was at the prompt of the later turn.
    project.write("a", BOTH)
    restored = rewound(project, 5000)
    assert texts(project, "a", restored.turn) == (BOTH + b"also mine\n", BOTH)
    assert project.summary(turn).turn.undone_by == ()
    # Nothing was made to be rewound.
    project.write("a", OLD)
    rewound(project, 9500)
    assert project.record.store.turns()[-1].source == REWIND


def test_a_commit_between_changes_nothing(project: Project, turn: int) -> None:
    project.git("add", "--all")
    project.git("commit", "--quiet", "--message=both")
    project.scan(None)
    project.write("a", OLD)
    restored = rewound(project, 1000)
    assert texts(project, "a", restored.turn) == (MINE, OLD)


async def notice(place: Site, agent: Agent, age_ms: int) -> None:
    """Let the CLI record a rewind to before its first prompt, `age_ms` ago, and call a hook."""
    transcript = place.project.home / "s.jsonl"
    stamp = datetime.fromtimestamp(time.time() - age_ms / 1000, timezone.utc).isoformat()
    entry = {"uuid": "b", "parentUuid": None, "timestamp": stamp, "type": "system", "subtype": "rewind"}
    with transcript.open("a") as file:
        file.write(json.dumps(entry, separators=(",", ":")) + "\n")
    values = {"hook_event_name": "Stop", "session_id": "s", "cwd": agent.cwd, "transcript_path": str(transcript)}
    event = parse_event(json.dumps(values).encode())
    assert event is not None
    await place.front.rewinds.hear(Report(event, agent.peer, "Qwen Code 0.24.4", None, agent.time))


@pytest.mark.anyio
async def test_emacs_is_told_once_of_what_a_rewind_took(project: Project) -> None:
    project.commit(a=OLD)
    async with at_work(project) as (place, agent):
        await agent.turn("Do it", {"a": AGENT})
        [turn] = await place.until({"a": "modified"})
        await place.until_ended(turn.id)
        place.write("a", BOTH)
        await place.ask(lambda n: JournalBusy(n, (), wait=False))
        project.write("a", OLD)
        await notice(place, agent, 0)
        told = await place.until_told(RewindTook)
        assert (told.turn.turn.source, [file.deleted for file in told.turn.files]) == (REWIND, [2])
        # It is known by then.
        assert told.turn.turn.id in place.turns
        assert place.turns[turn.id].rewound
        # Our own note of the same, which comes later, adds the copy.
        place.say(JournalRewound(local_id("session", "s"), 0, "copy", False))
        await notice(place, agent, 0)
        await until(lambda: place.turns[turn.id].copy == "copy")
        assert len(place.told_of(RewindTook)) == 1


async def until_recorded(place: Site, turn: str, seen: bool) -> None:
    """Wait until all is recorded that was said before, by marking `turn`, which has changed one file."""
    place.say(JournalSeen(turn, None, (), seen))
    await until(lambda: [file.seen for file in place.files[turn].values()] == [seen])


@pytest.mark.anyio
@pytest.mark.parametrize("end", ["killed", "rewound", "another prompt"])
async def test_a_rewind_that_has_begun_and_not_ended_is_told_of_at_the_next_start(project: Project, end: str) -> None:
    project.commit(a=OLD)
    async with at_work(project) as (place, agent):
        for number in (1, 2):
            await agent.turn(f"Do {number}", {"a": b"%d\n" % number})
        turns = await place.until_turns(("Do 1", {"a": "modified"}), ("Do 2", {"a": "modified"}))
        conversation = local_id("session", "s")
        place.say(JournalRewound(conversation, turns[1].start, None, True))
        await until_recorded(place, turns[0].id, True)
        if end == "rewound":
            place.say(JournalRewound(conversation, turns[1].start, "copy", False))
        elif end == "another prompt":
            # The user goes on with the conversation as it is.
            await agent.prompt("Do 3")
        await until_recorded(place, turns[0].id, False)
    async with site(project) as place:
        # All turns are told at once.
        told = await place.until_told(TurnChanges)
        assert [change.turn.prompt for change in told.turns] == ["Do 1", "Do 2"]
        notices = [notice.text for notice in place.told_of(Notice)]
    wanted = f'The rewind to before "Do 2" in {project.root} has not ended: M-x qwen-companion-rewind there goes on'
    assert notices == ([wanted] if end == "killed" else [])


@pytest.mark.anyio
async def test_what_a_second_rewind_takes_at_once_is_a_turn_of_its_own(project: Project) -> None:
    project.commit(a=OLD, b=OLD)
    async with at_work(project) as (place, agent):
        for name in ("a", "b"):
            await agent.turn(f"Do {name}", {name: AGENT})
        for turn in await place.until({"a": "modified"}, {"b": "modified"}):
            await place.until_ended(turn.id)
        for count, name in enumerate(("b", "a"), 1):
            place.write(name, BOTH)
            await place.ask(lambda n: JournalBusy(n, (), wait=False))
            project.write(name, OLD)
            await notice(place, agent, 0)
            await until(lambda count=count: len(place.told_of(RewindTook)) >= count)
        taken = [took.turn for took in place.told_of(RewindTook)]
        assert [[os.path.basename(file.path) for file in each.files] for each in taken] == [["b"], ["a"]]


@pytest.mark.anyio
async def test_a_rewind_that_nobody_could_notice_then_is_marked_and_no_file_is_taken_for_its_own(
    project: Project,
) -> None:
    project.commit(a=OLD)
    async with at_work(project) as (place, agent):
        agent.ago = 200_000
        await agent.turn("Do it", {"a": AGENT})
        [turn] = await place.until({"a": "modified"})
        agent.ago = 20_000
        await agent.turn("Go on", {"b": b"b\n"})
        [_, later] = await place.until({"a": "modified"}, {"b": "added"})
        await place.until_ended(later.id)
        project.write("a", OLD)
        # Emacs was killed before it had heard of it; its next one reads the record with the next hook.
        await notice(place, agent, 100_000)
        await until(lambda: place.turns[turn.id].rewound)
        assert not place.turns[later.id].rewound
        assert place.kinds() == [{"a": "modified"}, {"b": "added"}]


def test_a_file_that_was_gone_and_is_there_again_is_nothing_that_was_taken(project: Project) -> None:
    project.commit(a=OLD)
    project.turn({"a": AGENT})
    project.edit(None, "a", None)
    project.write("a", OLD)
    assert rewound(project, 1000).turn is None


def test_edits_come_back_after_a_rewind_that_undoes_the_deletion_of_their_file_and_one_to_before(
    project: Project,
) -> None:
    project.commit(a=OLD)
    project.turn({"a": AGENT})
    project.edit(None, "a", BOTH)
    project.turn({"a": None}, start=5000, end=6000)
    project.write("a", BOTH)
    assert rewound(project, 5000).turn is None
    project.write("a", OLD)
    restored = rewound(project, 1000)
    assert texts(project, "a", restored.turn) == (MINE, OLD)


def test_edits_of_a_file_whose_deletion_was_undone_are_told_from_the_agents(project: Project, turn: int) -> None:
    project.turn({"a": None, "new": None}, start=5000, end=6000)
    project.write("a", BOTH)
    project.write("new", b"new\n")
    rewound(project, 5000)
    project.edit(None, "a", BOTH + b"also mine\n")
    project.edit(None, "new", b"mine\n")
    project.write("a", OLD)
    (project.root / "new").unlink()
    restored = rewound(project, 1000)
    assert texts(project, "a", restored.turn) == (MINE + b"also mine\n", OLD)
    assert [note.split(" that")[0] for note in project.notes(taken_by(restored))] == ["the lines of new"]


def test_a_file_of_the_users_in_the_place_of_one_that_was_rewound_comes_back(project: Project, turn: int) -> None:
    (project.root / "new").unlink()
    project.write("a", OLD)
    rewound(project, 1000)
    project.edit(None, "new", b"mine\n")
    (project.root / "new").unlink()
    restored = rewound(project, 1000)
    assert texts(project, "new", restored.turn) == (b"mine\n", None)
    assert project.summary(taken_by(restored)).turn.notes == ()


def test_a_look_before_the_news_of_a_rewind_hides_nothing_of_what_it_took(project: Project, turn: int) -> None:
    project.write("a", OLD)
    (project.root / "new").unlink()
    project.scan(None)
    restored = rewound(project, 1000, int(time.time() * 1000))
    assert texts(project, "a", restored.turn) == (MINE, OLD)
    assert project.kinds(taken_by(restored)) == {"a": "modified"}
    (undo,) = (each for each in project.record.store.turns() if each.source == UNDO)
    assert texts(project, "new", undo.id) == (b"new\n", None)


def test_what_the_user_wrote_long_before_a_rewind_stays_the_users(project: Project, turn: int) -> None:
    project.edit(None, "a", OLD)
    restored = rewound(project, 1000, int(time.time() * 1000) + 10_000)
    assert (restored.turn, restored.changed) == (None, set())


def test_a_turn_whose_lines_a_later_one_replaced_is_undone_but_once(project: Project) -> None:
    project.commit(a=OLD)
    for number in (1, 2):
        project.turn({"a": OLD.replace(b"2\n", b"agent %d\n" % number)}, start=1000 * number)
    project.edit(None, "a", OLD.replace(b"2\n", b"agent 2\n") + b"mine\n")
    project.write("a", OLD)
    first = rewound(project, 1000)
    assert first.turn is not None
    project.edit(None, "a", OLD + b"mine\n")
    # The turns before are undone, and so is this one.
    project.turn({"a": b"agent 3\n" + OLD + b"mine\n"}, start=3000)
    project.write("a", OLD)
    second = rewound(project, 1000)
    assert second.turn is not None
    assert texts(project, "a", second.turn) == (OLD + b"mine\n", OLD)
    assert project.summary(second.turn).turn.notes == ()


def test_what_the_user_brings_back_at_once_is_not_taken_for_a_part_of_the_rewind(project: Project, turn: int) -> None:
    project.write("a", OLD)
    restored = rewound(project, 1000)
    project.write("a", MINE)
    restored.record()
    assert texts(project, "a", restored.turn) == (MINE, OLD)


def test_what_was_brought_back_after_a_rewind_is_told_from_the_agents_at_the_next_one(project: Project) -> None:
    project.commit(a=OLD)

    def text(number: int) -> bytes:
        return b"".join(b"%d%d\n" % (line, number) for line in range(3)) + OLD[6:]

    for number in (1, 2, 3):
        project.turn({"a": text(number)}, start=1000 * number)
    project.edit(None, "a", text(3) + b"mine\n")
    # The CLI has kept the file only from the second turn on.
    project.write("a", text(2))
    first = rewound(project, 2000)
    assert first.turn is not None
    project.write("a", text(1) + b"mine\n")
    assert project.record.undo(first.turn, "Bring back", [os.fsencode(project.root / "a")], 9000) is not None
    project.turn({"a": text(1) + b"mine\nagent\n"}, start=9500)
    project.write("a", text(2))
    second = rewound(project, 1000)
    assert second.turn is not None
    assert texts(project, "a", second.turn) == (OLD + b"mine\n", text(2))
