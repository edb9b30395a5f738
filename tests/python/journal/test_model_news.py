# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model is told with a prompt of changes in the files that it has seen; the hooks are called by this test."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import subprocess
import threading
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import hypothesis
import pytest

from journal_project import Project
from journal_site import ON, Agent, Site, an_hour_ahead, site
from qwen_companion.domain import ChatWork, Peer
from qwen_companion.doors.listeners import Words
from qwen_companion.files.stamps import clock_ns
from qwen_companion.files.versions import Loaded
from qwen_companion.journal import model_news, views
from qwen_companion.journal.root import Root
from qwen_companion.journal.sites import ThisMachine
from qwen_companion.journal.unseen import Unseen
from qwen_companion.wire.messages import JournalBusy
from support import until

pytestmark = pytest.mark.anyio

FUZZES = hypothesis.settings().max_examples >= 1000
SEED = int(os.environ.get("FUZZ_SEED", "43"))
TELLS = replace(ON, tell_changes=True)
ROOM = 9900
LONG = b"".join(b"line %d\n" % number for number in range(30))
LATER = LONG.replace(b"line 15\n", b"fifteen\n")


def text_of(words: Words | None, room: int = ROOM) -> str:
    """Return what the model reads of `words`, "" for nothing."""
    return (words(room) or "") if callable(words) else ""


class Reader(Agent):
    """An agent that reads."""

    def __init__(self, place: Site, session: str = "s") -> None:
        super().__init__(place.front, place.project, session)
        self._place = place

    async def asked(self, text: str = "Go on", room: int = ROOM) -> str:
        """Return what the model reads with the prompt `text`; it answers at once."""
        read = text_of(await self.prompt(text), room)
        await self.stop()
        return read

    async def read(self, name: str, agent: str | None = None) -> None:
        call = {"tool_name": "read_file", "tool_input": {"file_path": f"{self.cwd}/{name}"}, "agent_id": agent}
        await self.report("PostToolUse", **call)

    async def stop(self) -> None:
        """End the turn, and wait until it is recorded."""
        await self.report("Stop")
        await self._place.until_done(self.cwd)


@asynccontextmanager
async def reader_of(
    project: Project, *names: str, cwd: Path | None = None, stops: bool = True
) -> AsyncGenerator[tuple[Site, Reader]]:
    """Yield a journal of `project` and an agent there, or in `cwd`, that has read the files `names` in a turn.

    The turn has ended, unless it is told not to stop.
    """
    async with site(project, TELLS) as place:
        agent = Reader(place)
        agent.cwd = str(cwd or project.root)
        await agent.prompt("Fix it")
        for name in names:
            await agent.read(name)
        if stops:
            await agent.stop()
        yield place, agent


def hunks_of(text: str) -> dict[str, str]:
    """Return the hunks of each file in `text`."""
    parts = re.split(r"^--- (.+)\n\+\+\+ .+\n", text, flags=re.MULTILINE)[1:]
    return {
        name: re.sub(r"^- .*\n?", "", hunks, flags=re.MULTILINE).strip("\n")
        for name, hunks in zip(parts[::2], parts[1::2], strict=True)
    }


def diff(old: bytes, new: bytes, directory: Path) -> str:
    for name, data in (("old", old), ("new", new)):
        (directory / name).write_bytes(data)
    done = subprocess.run(["diff", "-u", "old", "new"], cwd=directory, capture_output=True, check=False)
    return "".join(done.stdout.decode().split("\n", 2)[2:]).strip("\n")


class TwoHands:
    """An agent and the user write the same files at random, each line only once; `seen` is what the model knows."""

    def __init__(self, project: Project, place: Site) -> None:
        self.names = [f"{name}.txt" for name in "vwxyz"]
        self.seen: dict[str, bytes] = {}
        self.chance = random.Random(SEED)  # noqa: S311 - not for secrets
        self.agent = Reader(place)
        self._project = project
        self._place = place
        self._unique = itertools.count()
        for name in self.names:
            project.write(name, b"".join(b"%d\n" % next(self._unique) for _ in range(40)))

    def there(self, name: str) -> bytes:
        return (self._project.root / name).read_bytes()

    def changed(self, name: str) -> bytes:
        """Return the file `name` with up to two lines replaced by one or two others."""
        lines = self.there(name).splitlines(keepends=True)
        place = self.chance.randrange(len(lines))
        new = [b"new %d\n" % next(self._unique) for _ in range(self.chance.randint(1, 2))]
        lines[place : place + self.chance.randint(0, 2)] = new
        return b"".join(lines)

    def write(self, name: str) -> None:
        self._project.write(name, self.changed(name))

    async def act(self, name: str) -> None:
        """Have the agent or the user do something with the file `name`."""
        kind = self.chance.choice(("read", "edit", "command", "read by a subagent", "saved"))
        if kind == "read":
            await self.agent.read(name)
        elif kind == "edit":
            call = await self.agent.begin("edit", file_path=str(self._project.root / name))
            self.write(name)
            await self.agent.done(call)
        elif kind == "command":
            await self.agent.run(lambda: self.write(name))
        elif kind == "read by a subagent":
            await self.agent.read(name, agent="explorer-1")
        else:
            self._place.write(name, self.changed(name))
            await self._place.ask(lambda number: JournalBusy(number, (), wait=False))
        await self._place.until_done()
        if kind in ("read", "edit", "command"):
            self.seen[name] = self.there(name)


async def test_it_holds_exactly_what_the_model_has_not_seen(project: Project, tmp_path: Path) -> None:
    told = 0
    async with site(project, TELLS) as place:
        hands = TwoHands(project, place)
        project.commit()
        for _ in range(400 if FUZZES else 20):
            for name in hands.chance.sample(hands.names, hands.chance.randint(0, 3)):
                hands.write(name)
            changed = {name: hands.there(name) for name, data in hands.seen.items() if data != hands.there(name)}
            expected = {name: diff(hands.seen[name], data, tmp_path) for name, data in changed.items()}
            assert hunks_of(text_of(await hands.agent.prompt("Go on"))) == expected
            told += len(changed)
            hands.seen.update(changed)
            for _ in range(hands.chance.randint(0, 6)):
                await hands.act(hands.chance.choice(hands.names))
            await hands.agent.stop()
    assert told > 20


async def test_what_was_undone_is_told_once_and_what_was_brought_back_is_not(project: Project) -> None:
    project.commit(a=LONG, b=b"b\n")
    async with reader_of(project, stops=False) as (place, agent):
        await agent.edit("a", LATER)
        await agent.stop()
        (turn,) = await place.until({"a": "modified"})
        place.write("a", LONG, turn.id, "Undo 1 hunk of a", "undo")
        _, undo = await place.until({"a": "modified"}, {"a": "modified"})
        assert (undo.undone, undo.source, undo.prompt) == (turn.id, "undo", "Undo 1 hunk of a")
        text = await agent.asked()
        assert "undone them on purpose" in text
        assert "-fifteen\n+line 15\n" in text
        assert await agent.asked() == ""
        project.write("a", LATER)
        await agent.asked()
        project.write("a", LONG)
        project.write("a", LATER)
        assert await agent.asked() == ""


async def test_only_what_this_conversation_has_seen_is_told(project: Project) -> None:
    project.commit(a=LONG, b=LONG, c=LONG, d=LONG)
    async with site(project, TELLS) as place:
        agent, other = Reader(place), Reader(place, "other")
        # The prompt brings the text of b.
        attached = (
            "Look at @b\n--- Content from referenced files ---\nContent from b:\nline 0\n\n--- End of content ---"
        )
        assert await agent.asked(attached) == ""
        await agent.read("a")
        await agent.read("c", agent="explorer-1")
        await other.prompt("Another")
        await other.read("d")
        await agent.stop()
        await other.stop()
        for name in "abcd":
            project.write(name, LATER)
        assert set(hunks_of(await agent.asked())) == {"a", "b"}
        # `/clear` begins another conversation in the same process.
        agent.session = "after clear"
        assert await agent.asked() == ""
        # The text that comes with a prompt is not told of once more.
        project.write("b", LONG)
        agent.session = "s"
        assert await agent.asked(attached) == ""


async def test_the_text_that_comes_with_a_prompt_is_not_told_of_where_the_record_is_slow(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit(a=LONG)
    saw, may_go_on = Unseen.saw, threading.Event()

    def wait_and_see(unseen: Unseen, session: str, path: bytes, loaded: Loaded | None, now: int) -> None:
        may_go_on.wait()
        saw(unseen, session, path, loaded, now)

    async with reader_of(project, "a") as (_, agent):
        project.write("a", LATER)
        monkeypatch.setattr(Unseen, "saw", wait_and_see)
        monkeypatch.setattr(model_news, "RECORD_S", 0)
        words = await agent.prompt("Look at @a\n--- Content from referenced files ---\nContent from a:\nline 0\n")
        may_go_on.set()
        assert text_of(words) == ""


async def test_what_another_program_writes_in_the_middle_of_a_turn_is_told(project: Project) -> None:
    """The record may take it for the agent's, as nobody tells whose it is."""
    project.commit(a=LONG)
    async with reader_of(project, "a", stops=False) as (_, agent):
        project.write("a", LATER)
        project.write("b", b"new\n")
        await agent.stop()
        assert set(hunks_of(await agent.asked())) == {"a"}


async def test_a_conversation_that_is_resumed_later_is_told(project: Project) -> None:
    project.commit(a=LONG)
    async with reader_of(project, "a"):
        pass
    project.write("a", LATER)
    async with site(project, TELLS) as place:
        assert set(hunks_of(await Reader(place).asked())) == {"a"}


async def test_with_the_option_off_nothing_is_kept_and_nothing_told(project: Project) -> None:
    project.commit(a=LONG)
    async with site(project) as place:
        agent = Reader(place)
        await agent.prompt("Fix it")
        await agent.read("a")
        await agent.edit("b", b"agent\n")
        await agent.stop()
        project.write("a", LATER)
        project.write("b", b"user\n")
        assert await agent.prompt("Go on") is None
        place.front.set_settings(TELLS)
        assert set(hunks_of(await agent.asked())) == {"b"}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (b"one\r\ntwo\r\n", b"one\r\nzwei\r\n", "-two\n+zwei"),
        (b"one\r\ntwo\r\n", b"one\ntwo\n", "- f: only its encoding or the ends of its lines have changed"),
        (b"\xef\xbb\xbfone\n", b"\xef\xbb\xbfuno\n", "-one\n+uno"),
        ("caf\xe9\n".encode("latin-1"), "caf\xe9 noir\n".encode("latin-1"), "-caf\xe9\n+caf\xe9 noir"),
        ("eins\n".encode("utf-16"), "zwei \U0001f600\n".encode("utf-16"), "-eins\n+zwei \U0001f600"),
        (b"\0\1\2", b"\0\1\3", "- f: changed"),
        (b"text\n", b"\0\1\3", "- f: changed"),
        (b"text\n", None, "- f: deleted"),
        (b"x" * 2_000_000, b"y" * 2_000_000, "- f: changed"),
        (b"", b"no end", "@@ -0,0 +1 @@\n+no end\n\\ No newline at end of file"),
    ],
)
async def test_each_kind_of_file(project: Project, before: bytes, after: bytes | None, expected: str) -> None:
    project.commit(a=b"a\n")
    path = project.write("f", before)
    async with reader_of(project, "f") as (_, agent):
        if after is None:
            path.unlink()
        else:
            path.write_bytes(after)
        text = await agent.asked()
        assert text.endswith(expected)
        assert await agent.asked() == ""


async def test_a_renamed_file_is_named_with_its_new_name(project: Project) -> None:
    project.commit(a=LONG, b=LATER)
    async with reader_of(project, "a") as (_, agent):
        os.renames(project.root / "a", project.root / "sub/new name")
        assert (await agent.asked()).endswith(f"- a: deleted; {project.root}/sub/new name has the same text")


async def test_the_largest_are_only_named_and_told_again_when_they_change_again(project: Project) -> None:
    names = [f"f{number}" for number in range(8)]
    large = b"".join(b"%d %d\n" % (number, number) for number in range(800))
    project.commit(large=large, **dict.fromkeys(names, LONG))
    async with reader_of(project, *names, "large") as (_, agent):
        for name in names:
            project.write(name, LATER)
        project.write("large", large.replace(b" ", b"-"))
        text = await agent.asked()
        assert len(text) <= ROOM
        assert (set(hunks_of(text)), text.splitlines()[-1]) == (set(names), "- large: changed")
        assert await agent.asked() == ""
        # Of what it has not seen it is never told a part.
        project.write("large", large.replace(b" ", b"-").replace(b"7-7\n", b"seven\n"))
        assert "- large: changed" in await agent.asked()
        # Read, it is known.
        await agent.read("large")
        await agent.stop()
        project.write("large", large.replace(b" ", b"-"))
        assert list(hunks_of(await agent.asked())) == ["large"]
        # What does not fit at all is told the next time.
        for name in names:
            project.write(name, LONG)
        text = await agent.asked(room=360)
        assert len(text) <= 360
        assert re.search(r"and \d more files$", text)
        named = set(re.findall(r"^- (f\d): changed$", text, re.MULTILINE))
        assert named | set(hunks_of(await agent.asked())) == set(names)


async def test_no_excluded_file_is_told_of_or_kept(project: Project) -> None:
    project.commit(a=LONG, b=LONG, _env=LONG, **{".gitignore": b"ignored\n", ".qwenignore": b"hidden\n"})
    asked: list[tuple[Peer | None, Sequence[str]]] = []

    def excluded(peer: Peer | None, paths: Sequence[str]) -> Collection[str]:
        asked.append((peer, paths))
        return [path for path in paths if path.endswith("/b")]

    async with site(project, TELLS) as place:
        place.excluded = excluded
        agent = Reader(place)
        await agent.prompt("Fix it")
        for name in ("a", "b", ".env", "ignored", "hidden"):
            await agent.read(name)
        await agent.stop()
        for name in ("a", "b", ".env", "ignored", "hidden"):
            project.write(name, LATER)
        text = await agent.asked()
        assert set(hunks_of(text)) == {"a"}
        assert "b: " not in text
        assert asked == [(agent.peer, [f"{project.root}/a", f"{project.root}/b"])]


async def test_a_prompt_that_is_answered_too_late_is_told_again(project: Project) -> None:
    project.commit(a=LONG)
    async with reader_of(project, "a") as (_, agent):
        project.write("a", LATER)
        # The hook has been answered without it.
        assert callable(await agent.prompt("Go on"))
        assert set(hunks_of(await agent.asked())) == {"a"}


async def test_what_is_kept_for_views_is_bounded(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MAX_BYTES", 20_000)
    project.commit(**{f"f{number}": os.urandom(500).hex().encode() for number in range(60)})
    async with reader_of(project, *(f"f{number}" for number in range(60))) as (_, agent):
        for number in range(60):
            project.write(f"f{number}", b"changed\n")
        text = await agent.asked()
        assert 0 < text.count("changed") < 60
        assert "f59" in text


async def test_files_in_a_worktree_are_told_of(project: Project) -> None:
    project.commit(a=LONG)
    tree = project.root / ".qwen/worktrees/feat"
    project.git("worktree", "add", "--quiet", "-b", "worktree-feat", str(tree))
    project.write(".qwen/.gitignore", b"worktrees/\n")
    async with reader_of(project, "a", cwd=tree) as (_, agent):
        (tree / "a").write_bytes(LATER)
        project.write("a", LATER)
        assert set(hunks_of(await agent.asked())) == {"a"}


async def test_the_model_of_a_chat_is_told(project: Project) -> None:
    project.commit(a=LONG, b=LONG)
    async with site(project, TELLS) as place:
        root = str(project.root)
        work = ChatWork("chat", root, "Qwen Code", "turn-1", "Look")
        place.front.take_chat(work)
        place.front.take_chat(replace(work, reads=("a", f"{root}/b")))
        place.front.take_chat(replace(work, turn=None))
        await place.ask(lambda number: JournalBusy(number, (), wait=False))
        await place.until_done()
        project.write("a", LATER)
        project.write("b", LATER)
        # A link to a file brings its text along.
        text = text_of(await place.front.journal.news_for_chat("chat", root, [f"{root}/b"]))
        assert set(hunks_of(text)) == {"a"}
        assert await place.front.journal.news_for_chat("chat", root, []) is None


async def test_a_file_that_changes_before_a_read_of_it_is_noted_counts_as_changed(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit(a=LONG, b=LONG, c=LONG, d=LONG)
    read, late = Root.read, list[str]()

    async def write_and_read(root: Root, path: bytes) -> object:
        told = time.time()
        if (name := os.fsdecode(os.path.basename(path))) in late:
            late.remove(name)
            await until(lambda: clock_ns() / 1e9 > told + 0.002)
            project.write(name, LATER)
        return await read(root, path)

    monkeypatch.setattr(Root, "read", write_and_read)
    async with reader_of(project, "a", stops=False) as (place, agent):
        late += ["a", "b", "c"]
        await agent.read("a")
        await agent.read("b")
        # What it writes itself then, it knows.
        await agent.read("c")
        await agent.edit("c", LONG)
        await agent.stop()
        text = await agent.asked()
        assert (set(hunks_of(text)), "\n- b: changed\n" in f"{text}\n", "- c:" in text) == ({"a"}, True, False)
        assert await agent.asked() == ""
        late += ["d"]
        work = ChatWork("chat", str(project.root), "Qwen Code", None, "", reads=("d",))
        place.front.take_chat(work)
        await place.until_done()
        assert "- d: changed" in text_of(await place.front.journal.news_for_chat("chat", str(project.root), []))


async def test_a_file_of_a_disk_whose_clock_is_ahead_has_not_changed_since_it_was_read(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit(a=LONG)
    monkeypatch.setattr(ThisMachine, "changed_at", an_hour_ahead)
    async with reader_of(project, "a") as (_, agent):
        assert await agent.asked() == ""


@pytest.mark.parametrize("path", ["", "\0", "/", "..", "a\nb", "x" * 5000, "/dev/zero", "fifo"])
async def test_names_that_lead_to_no_file_do_no_harm(project: Project, path: str) -> None:
    project.commit(a=LONG)
    os.mkfifo(project.root / "fifo")
    async with reader_of(project, stops=False) as (_, agent):
        await agent.report("PostToolUse", tool_name="read_file", tool_input={"file_path": path})
        await agent.report("PostToolUse", tool_name="read_file", tool_input={"file_path": json.loads("[1]")})
        await agent.prompt(f"x\n--- Content from referenced files ---\nContent from {path}:\nx")
        await agent.read("a")
        await agent.stop()
        project.write("a", LATER)
        assert set(hunks_of(await agent.asked())) == {"a"}
