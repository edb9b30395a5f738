# SPDX-License-Identifier: GPL-3.0-or-later
"""Random edits of an agent and a user in one file, between commits, amends, rebases, stashes and renames.

All is real but the hands: a repository, git, and the record.  Each line's author is known here, from the edits and not
from the journal.  Most lines are like no other; some are braces, blanks and the like, which both hands write.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from journal_project import Project
from qwen_companion.journal.origins import BEFORE, USER

COMMON = ("}", "", "    return None", "    else:", "        pass", "#", "{", "    try:")
SOMEBODY, HAND = 0, -1
"""Authors of lines: somebody before the journal, and the user; others are the numbers of turns."""


@dataclass(frozen=True)
class Line:
    text: str
    author: int


@dataclass
class Tally:
    """How many lines were looked at, which had another author, and which an agent was named for wrongly."""

    lines: int = 0
    wrong: int = 0
    slander: int = 0
    first: str = ""


class TwoHands:
    """The file `name` in a project, with a model of it."""

    def __init__(self, home: Path, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - not for secrets
        self.project = Project(home)
        self.name = "a.py"
        self.count = 0
        self.ends = self.random.choice(("\n", "\n", "\r\n"))
        self.lines = self.new_lines(120, SOMEBODY)
        self.tally = Tally()
        self.write(self.lines)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=x")
        self.committed = self.lines
        # What was written before the first agent came is of somebody.
        self.turn()
        self.steps = {
            self.agent: 30,
            self.agents_move: 3,
            self.user: 30,
            self.unsaved: 12,
            self.move: 6,
            self.cut_then_paste: 3,
            self.commit: 5,
            self.amend: 3,
            self.rebase: 3,
            self.stash: 5,
            self.undo: 3,
            self.rename: 1,
        }

    # --- The model ---

    def new_lines(self, count: int, author: int) -> list[Line]:
        lines: list[Line] = []
        for _ in range(count):
            self.count += 1
            text = f"{'    ' * self.random.randrange(3)}value_{self.count} = compute({self.count * 7919 % 10007})"
            lines.append(Line(self.random.choice(COMMON) if self.random.random() < 0.12 else text, author))
        return lines

    def data(self, lines: Sequence[Line]) -> bytes:
        return "".join(line.text + self.ends for line in lines).encode()

    def edited(self, lines: Sequence[Line], author: int) -> list[Line]:
        """Return `lines` with one to three edits by `author`."""
        result = list(lines)
        for _ in range(self.random.randrange(1, 4)):
            start = self.random.randrange(len(result) + 1)
            size = self.random.choice((0, 0, 0, 1, 1, 2, 6))
            added = self.new_lines(self.random.choice((0, 1, 1, 2, 3, 12)), author)
            gone = result[start : start + size]
            # What is written as it was is not an edit.
            while added and gone and added[0].text == gone[0].text:
                added, gone, start = added[1:], gone[1:], start + 1
            while added and gone and added[-1].text == gone[-1].text:
                added, gone = added[:-1], gone[:-1]
            result[start : start + len(gone)] = added
        return result

    def write(self, lines: Sequence[Line]) -> None:
        self.project.write(self.name, self.data(lines))

    def git(self, *command: str) -> None:
        self.project.git(*command)

    # --- Steps ---

    def step(self) -> None:
        (step,) = self.random.choices(list(self.steps), list(self.steps.values()))
        step()
        self.check(self.lines, None, step.__name__)

    def check(self, lines: Sequence[Line], data: bytes | None, step: str) -> None:
        path = os.fsencode(self.project.root / self.name)
        text = self.project.record.answers.origins.of(path, data)
        assert text is not None
        assert [line.removesuffix("\n").removesuffix("\r") for line in text.lines] == [line.text for line in lines]
        for line, origin in zip(lines, text.origins, strict=True):
            self.tally.lines += 1
            named = USER if origin < BEFORE else origin
            if named != line.author:
                self.tally.wrong += 1
                if named > BEFORE >= line.author:
                    self.tally.slander += 1
                    self.tally.first = self.tally.first or f"{step}: {line} is said to be of {origin}"

    def turn(self, lines: Sequence[Line] | None = None) -> int:
        """Have an agent write `lines`, by default edit the file, by its tool or by a command."""
        turn = self.project.begin()
        for _ in range(self.random.randrange(1, 3) if lines is None else 1):
            self.lines = self.edited(self.lines, turn) if lines is None else list(lines)
            if self.random.random() < 0.5:
                self.project.edit(turn, self.name, self.data(self.lines))
            else:
                self.write(self.lines)
                self.project.scan(turn)
        self.project.end(turn)
        return turn

    def agent(self) -> None:
        self.turn()

    def agents_move(self) -> None:
        self.turn(self.moved())

    def save(self, lines: Sequence[Line]) -> None:
        """Have the user write `lines`: in Emacs, or where nobody hears of it."""
        self.lines = list(lines)
        if self.random.random() < 0.7:
            self.project.edit(None, self.name, self.data(lines))
        else:
            self.write(lines)

    def user(self) -> None:
        self.save(self.edited(self.lines, HAND))

    def unsaved(self) -> None:
        lines = self.edited(self.lines, HAND)
        self.check(lines, self.data(lines), "unsaved")

    def moved(self) -> list[Line]:
        start = self.random.randrange(len(self.lines))
        block = self.lines[start : start + 5]
        rest = self.lines[:start] + self.lines[start + 5 :]
        place = self.random.randrange(len(rest) + 1)
        return rest[:place] + block + rest[place:]

    def move(self) -> None:
        self.save(self.moved())

    def cut_then_paste(self) -> None:
        start = self.random.randrange(len(self.lines))
        block = self.lines[start : start + 5]
        self.save(self.lines[:start] + self.lines[start + 5 :])
        self.check(self.lines, None, "cut")
        place = self.random.randrange(len(self.lines) + 1)
        self.save(self.lines[:place] + block + self.lines[place:])

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message=x")
        self.committed = self.lines

    def amend(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--amend", "--allow-empty", "--message=y")
        self.committed = self.lines

    def rebase(self) -> None:
        """Have somebody else's commit come before ours: a block of lines, where ours have changed nothing."""
        before = self.committed
        self.commit()
        ours = self.lines
        theirs = [replace(line, text=line.text or "#") for line in self.new_lines(4, HAND)]
        theirs = [
            line if line.text not in COMMON else Line(f"theirs_{self.count}_{line.text.strip()}", HAND)
            for line in theirs
        ]
        place = self.random.randrange(len(before) + 1)
        self.git("checkout", "--quiet", "-b", "upstream", "HEAD~1")
        if not (self.project.root / self.name).exists():
            self.git("checkout", "--quiet", "main")
            self.git("branch", "-D", "upstream")
            return
        self.write([*before[:place], *theirs, *before[place:]])
        self.git("commit", "--quiet", "--all", "--message=theirs")
        self.git("checkout", "--quiet", "main")
        try:
            self.git("rebase", "--quiet", "upstream")
        except subprocess.CalledProcessError:
            self.git("rebase", "--abort")
        else:
            self.lines = self.committed = self.merged(ours, theirs)
        self.git("branch", "-D", "upstream")

    def merged(self, ours: Sequence[Line], theirs: Sequence[Line]) -> list[Line]:
        """Return the lines on the disk: `ours` in order, and `theirs`, which are like no others."""
        known = {line.text: line for line in theirs}
        rest = iter(ours)
        texts = (self.project.root / self.name).read_bytes().decode().split(self.ends)[:-1]
        found = [known.get(text) or next(rest) for text in texts]
        assert [line.text for line in found] == texts
        return found

    def stash(self) -> None:
        """Put the edits aside, at times while an agent adds lines, and take them out again."""
        mine = self.lines
        self.git("add", "--all")
        self.git("stash", "--quiet")
        if mine == self.committed:
            return
        self.lines = self.committed
        if not (self.project.root / self.name).exists():
            self.git("stash", "pop", "--quiet")
            self.lines = mine
            return
        self.check(self.lines, None, "stashed")
        added: list[Line] = []
        if self.random.random() < 0.5:
            turn = self.project.begin()
            added = [line for line in self.new_lines(3, turn) if line.text not in COMMON]
            self.lines = [*self.lines, *added]
            self.project.edit(turn, self.name, self.data(self.lines))
            self.project.end(turn)
            self.check(self.lines, None, "stashed, and an agent's turn")
            self.commit()
        try:
            self.git("stash", "pop", "--quiet")
        except subprocess.CalledProcessError:
            self.git("reset", "--hard", "--quiet")
            self.git("stash", "drop", "--quiet")
        else:
            self.lines = self.merged(mine, added)

    def undo(self) -> None:
        before = self.lines
        turn = self.turn()
        if self.lines == before:
            return
        self.lines = before
        self.write(before)
        self.project.record.undo(turn, "Undo", [os.fsencode(self.project.root / self.name)], 3000)

    def rename(self) -> None:
        name = f"{self.random.randrange(10**6)}.py"
        os.rename(self.project.root / self.name, self.project.root / name)
        self.name = name
        if self.random.random() < 0.5:
            self.save(self.edited(self.lines, HAND))


def run(home: Path, seed: int, steps: int) -> Tally:
    """Take random `steps`, and look after each at who is said to have written each line."""
    hands = TwoHands(home, seed)
    try:
        for _ in range(steps):
            hands.step()
    finally:
        hands.project.record.close()
    return hands.tally
