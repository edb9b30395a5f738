# SPDX-License-Identifier: GPL-3.0-or-later
"""Random work of an agent and of the user, undone and brought back.

Of texts it is compared with a model that attributes each line; of trees, with copies of them.
"""

from __future__ import annotations

import os
import random
import shutil
from contextlib import suppress
from pathlib import Path

import hypothesis

from journal_project import Project
from qwen_companion.journal.answers import Scope
from qwen_companion.journal.baselines import Baseline
from qwen_companion.journal.changes import Net
from qwen_companion.texts.hunks import Budget
from qwen_companion.texts.merge import Labels, merge

BLOCKS = 12
FILES = ("a.txt", "sub/b.txt", "c.txt")

Values = dict[str, list[str]]


def as_bytes(values: list[str]) -> bytes:
    """Return a text in which changes of different `values` are far enough from each other to be merged."""
    return "".join(f"--\n{number}\n==\n{value}\r\n" for number, value in enumerate(values)).encode("latin-1")


def merged(net: Net, path: Path, back: bool = False) -> bytes | None:
    """Return the file `path` without the change `net`, or with it again if it is taken `back`; None for a conflict."""
    base, theirs = ("" if side is None else side.data.decode("latin-1") for side in (net.after, net.before))
    if back:
        base, theirs = theirs, base
    mine = path.read_bytes().decode("latin-1")
    result = merge(base, mine, theirs, Labels("", "", ""), Budget())
    return None if result.conflicts else result.text.encode("latin-1")


class Model:
    """The expected contents of the files: the agent writes values of even numbers, the user those of odd ones."""

    def __init__(self, project: Project, source: random.Random) -> None:
        self.project = project
        self.random = source
        self.values: Values = {name: [f"{name} {number}" for number in range(BLOCKS)] for name in FILES}
        self.original = {name: list(values) for name, values in self.values.items()}
        for name in FILES:
            project.write(name, as_bytes(self.values[name]))
        project.git("add", "a.txt")
        project.git("commit", "--quiet", "--message=x")
        self.turn = project.begin()
        # Of each turn, what each value was before it and became, by file and number.
        self.changes: dict[int, dict[tuple[str, int], tuple[str, str]]] = {self.turn: {}}
        self.undone: dict[tuple[int, str], int | None] = {}
        self.steps = 0

    def step(self) -> None:
        """Do something, and compare."""
        self.steps += 1
        kinds = [
            self.edit,
            self.edit,
            self.command,
            self.user,
            self.user,
            self.next_turn,
            self.undo,
            self.undo,
            self.die,
        ]
        self.random.choice(kinds)()
        for name, values in self.values.items():
            assert (self.project.root / name).read_bytes() == as_bytes(values), name

    def _change(self, parity: int) -> tuple[str, list[str]]:
        name = self.random.choice(FILES)
        values = list(self.values[name])
        number = self.random.randrange(parity, BLOCKS, 2)
        # Also what was there once.
        values[number] = self.random.choice([f"caf\xe9 {self.steps}", self.original[name][number], "same"])
        if parity == 0 and values[number] != self.values[name][number]:
            changes = self.changes[self.turn]
            changes[name, number] = (changes.get((name, number), (self.values[name][number], ""))[0], values[number])
        self.values[name] = values
        return name, values

    def edit(self) -> None:
        name, values = self._change(0)
        self.project.edit(self.turn, name, as_bytes(values))

    def command(self) -> None:
        for _ in range(3):
            name, values = self._change(0)
            self.project.write(name, as_bytes(values))
        self.project.scan(self.turn)

    def user(self) -> None:
        name, values = self._change(1)
        self.project.edit(None, name, as_bytes(values))

    def next_turn(self) -> None:
        self.project.end(self.turn)
        self.check(self.turn)
        self.turn = self.project.begin(start=1000 + self.steps)
        self.changes[self.turn] = {}

    def die(self) -> None:
        """Kill the process; another one goes on with the turn, if anything was changed in it."""
        going = self.project.reopen().resume()
        assert [row.id for row in going] == [self.turn]

    def check(self, turn: int) -> None:
        """Compare the recorded changes of `turn` with the expected ones."""
        for name in FILES:
            mine = {key[1]: pair for key, pair in self.changes[turn].items() if key[0] == name and pair[0] != pair[1]}
            told = self.project.files(turn).get(name)
            assert (told is not None) == bool(mine), (turn, name)
            if told is not None:
                assert not told.mixed
                net = self.project.net(name, turn)
                assert net.before is not None
                assert net.after is not None
                values = [
                    [line.rstrip("\r") for line in side.data.decode("latin-1").split("\n")[3::4]]
                    for side in (net.before, net.after)
                ]
                found = {n: (a, b) for n, (a, b) in enumerate(zip(*values, strict=True)) if a != b}
                assert found == mine, (turn, name)

    def undo(self) -> None:
        """Undo a turn in one file, or bring it back."""
        self.next_turn()
        turn = self.random.choice([turn for turn in self.changes if turn != self.turn])
        self._undo(turn, self.random.choice(FILES))

    def _undo(self, turn: int, name: str) -> None:
        undo = self.undone.get((turn, name))
        back = undo is not None
        if name not in self.project.files(turn):
            return
        path = self.project.root / name
        text = merged(self.project.net(name, turn), path, back)
        mine = {key[1]: pair for key, pair in self.changes[turn].items() if key[0] == name and pair[0] != pair[1]}
        pairs = {number: (pair[::-1] if back else pair) for number, pair in mine.items()}
        values = self.values[name]
        fits = all(values[number] in pair for number, pair in pairs.items())
        assert (text is not None) == fits
        if text is not None:
            self.values[name] = [pairs[n][0] if n in pairs else value for n, value in enumerate(values)]
            path.write_bytes(text)
            row = self.project.record.undo(turn, "Undo", [os.fsencode(path)], 1000 + self.steps, back)
            assert row is None or row.undone == (undo or turn)
            # What is undone is brought back the next time.
            self.undone[turn, name] = None if row is None or back else row.id

    def check_all(self) -> None:
        """Compare the net changes of all turns with the first files, where both have the user's text."""
        self.next_turn()
        told = {file.path for file in self.project.record.answers.files(Scope("all"))}
        for name, values in self.values.items():
            user = [self.original[name][n] if n % 2 == 0 else value for n, value in enumerate(values)]
            assert (str(self.project.root / name) in told) == (user != values), name
            if user != values:
                net = self.project.net(name, 0, "all")
                assert net.before is not None
                assert net.before.data == as_bytes(user)
                assert not net.mixed


def test_all_that_an_agent_did_can_be_undone_and_all_that_the_user_did_stays(tmp_path: Path) -> None:
    # A hundred steps, and a thousand with the profile of `make fuzz`.
    steps = hypothesis.settings().max_examples
    model = Model(Project(tmp_path), random.Random(os.environ.get("FUZZ_SEED", "1")))  # noqa: S311 - not for secrets
    for _ in range(steps):
        model.step()
    model.check_all()


PLACES = ("", "src", "data", "data/in", "nest", "nest/deep", "other")
NAMES = ("a", "b", "run.log", "big.csv")
RULES = (b"\n", b"data/\n", b"*.log\n", b"/data/*\n!/data/a\n", b"*.csv\nnest/\n", b"b\n")


class Trees:
    """A project whose agent does to files, rules and repositories whatever it likes."""

    def __init__(self, project: Project, source: random.Random) -> None:
        self.project = project
        self.random = source
        self.count = 0
        for _ in range(30):
            self.write()
        project.git("add", "--all")
        project.git("commit", "--quiet", "--allow-empty", "--message=x")
        for place in ("nest", "nest/deep"):
            self.begin_repository(place)
        # The user's work that is not committed.
        for _ in range(5):
            with suppress(OSError):
                self.random.choice([self.write, self.delete, self.rules])()

    def path(self) -> Path:
        """Return the place of a file, there or not."""
        return self.project.root / self.random.choice(PLACES) / self.random.choice(NAMES)

    def directory(self) -> Path:
        """Return a directory below the root, there or not."""
        return self.project.root / self.random.choice(PLACES[1:])

    def begin_repository(self, place: str) -> None:
        """Make the directory `place` a repository in which some files are committed."""
        directory = self.project.root / place
        directory.mkdir(parents=True, exist_ok=True)
        self.project.git("init", "--quiet", cwd=directory)
        for name in ("a", "run.log"):
            if (directory / name).is_file():
                self.project.git("add", "--force", name, cwd=directory)
        self.project.git("commit", "--quiet", "--allow-empty", "--message=x", cwd=directory)

    def work(self) -> None:
        """Do something to the tree; what is not possible is not done."""
        kinds = [self.write, self.write, self.delete, self.rename, self.rename_directory, self.remove_directory]
        kinds += [self.link, self.rules, self.rules, self.damage, self.become_repository]
        with suppress(OSError, shutil.Error):
            self.random.choice(kinds)()

    def write(self) -> None:
        self.count += 1
        path = self.path()
        path.parent.mkdir(parents=True, exist_ok=True)
        # In place, or as another file with its name.
        if self.random.random() < 0.5:
            path.unlink(missing_ok=True)
        path.write_bytes(b"%d\n" % self.count * self.random.randrange(4))

    def delete(self) -> None:
        self.path().unlink()

    def rename(self) -> None:
        self.path().rename(self.path())

    def rename_directory(self) -> None:
        self.directory().rename(self.directory())

    def remove_directory(self) -> None:
        shutil.rmtree(self.directory())

    def link(self) -> None:
        path = self.random.choice([self.path, self.directory])()
        path.symlink_to(self.random.choice(["a", "nowhere", "../other"]))

    def rules(self) -> None:
        place = self.random.choice(["", "nest/", ".git/info/"])
        name = "exclude" if place.startswith(".git") else ".gitignore"
        (self.project.root / place / name).write_bytes(self.random.choice(RULES))

    def damage(self) -> None:
        (self.directory() / ".git/HEAD").unlink()

    def become_repository(self) -> None:
        directory = self.directory()
        if directory.is_dir() and not (directory / ".git").exists():
            self.project.git("init", "--quiet", cwd=directory)

    def turn(self) -> None:
        """Do a turn, undo it, and compare."""
        turn = self.project.begin()
        before, recorded = self.project.tree(), self.recorded()
        for _ in range(self.random.randrange(1, 8)):
            self.work()
            if self.random.random() < 0.3:
                self.project.scan(turn)
        if self.random.random() < 0.2:
            self.project.reopen()
        self.project.end(turn)
        after = self.project.tree()
        self.project.undo(turn)
        self.project.scan(None)
        now = self.project.tree()
        for name in before.keys() | after.keys() | now.keys():
            assert now.get(name) in (before.get(name), after.get(name)), name
            in_the_way = name not in now and (self.project.root / name).is_dir()
            assert name not in recorded or now.get(name) == before[name] or in_the_way, name

    def recorded(self) -> set[str]:
        """Return the files that the record has."""
        files = self.project.record._files  # pyright: ignore[reportPrivateUsage]
        assert isinstance(files, Baseline)
        return {os.path.relpath(os.fsdecode(name), self.project.root) for name in files.recorded()}


def test_a_turn_that_is_undone_leaves_each_file_as_it_was_or_untouched(tmp_path: Path) -> None:
    # Ten turns, and a hundred with the profile of `make fuzz`.
    turns = hypothesis.settings().max_examples // 10
    trees = Trees(Project(tmp_path), random.Random(os.environ.get("FUZZ_SEED", "1")))  # noqa: S311 - not for secrets
    for _ in range(turns):
        trees.turn()
