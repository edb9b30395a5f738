# SPDX-License-Identifier: GPL-3.0-or-later
"""Random sessions of an agent, another agent and a user, rewound to random prompts, and compared with a model of truth.

All is real but the models and the conversation: see `random_turns`, of which the tools are used here.  A file has
places: those with an even number are the agent's, the last one is the other agent's, and the rest are the user's.  The
truth after a rewind: the agent's places, and the files that it has made or deleted, are as they were at the prompt; the
places of the others are as they are now, saved or unsaved.  A file that the agent made and somebody else changed since
is left alone.

With its own rewind the CLI puts files back itself, those that it has written by a tool, whole, and records that; then
`qwen-companion-recover` brings back what that took.
"""

from __future__ import annotations

import base64
import json
import os
import random
import shlex
import sqlite3
import time
import uuid
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import cast

from limit import limit_s
from random_turns import PLACES, Action, Agent, Emacs, EmacsError, Text, text

NAMES = tuple(f"{directory}{name}" for directory in ("", "sub/") for name in ("a.txt", "b c.txt", "d.txt"))
OTHERS_PLACE = 2 * PLACES - 1


@dataclass
class Point:
    """The truth at a prompt: the `files` on the disk, by name."""

    prompt: str
    files: dict[str, Text]
    kept: str | None
    """The record of the conversation before it."""
    backups: dict[str, bytes | None]
    """What the CLI has kept of the files that it has written by then, None where there was none."""


class Session:
    """A project, in which two agents and the user work.  `script` is what was done so far, for the report."""

    def __init__(self, home: Path, source: random.Random, emacs: Emacs, number: int, own: bool) -> None:
        self.random = source
        self.own = own
        self.emacs = emacs
        self.root = home / f"session-{number}"
        self.script: list[str] = []
        self.points: list[tuple[str, Point]] = []
        """The turns that are part of the conversation, each with the truth at its prompt."""
        self.deleted: dict[str, Text] = {}
        """The files that the agent has deleted, as they were."""
        self._numbers = 0
        self._transcript = home / f"session-{number}.jsonl"
        self._last_record: str | None = None
        self._tracked: set[str] = set()
        for name in NAMES:
            self._put(name, Text(tuple((self._line("old"),) for _ in range(2 * PLACES))))
        arguments = emacs.call("turns-open", f"{self.root}/")
        self.agent = Agent(self.root, emacs.environ, *arguments)
        self.other = Agent(self.root, emacs.environ, *arguments)

    def close(self) -> None:
        """End the agents, and forget what is open in Emacs."""
        self.agent.close()
        self.other.close()
        self.emacs.call("turns-close")

    def _line(self, who: str) -> bytes:
        self._numbers += 1
        return f"{who} {self._numbers}".encode()

    def _path(self, name: str) -> str:
        return str(self.root / name)

    def _put(self, name: str, content: Text) -> None:
        path = Path(self._path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(content))

    def files(self) -> dict[str, Text]:
        """Return the texts of all files, those of buffers where these are not saved."""
        found = {str(path.relative_to(self.root)): path.read_bytes() for path in self.root.rglob("*.txt")}
        for name, (data, conflict) in self._unsaved().items():
            assert not conflict, name
            found[name] = data
        texts = {name: text(data) for name, data in found.items()}
        assert None not in texts.values(), found
        return {name: content for name, content in texts.items() if content is not None}

    def _unsaved(self) -> dict[str, tuple[bytes, bool]]:
        """Return the unsaved texts of buffers by name, and whether each has conflicts."""
        found = cast("list[tuple[str, str, object]]", self.emacs.call("turns-unsaved") or [])
        return {
            os.path.relpath(path, self.root): (base64.b64decode(data), bool(conflict)) for path, data, conflict in found
        }

    # --- What they do

    def agent_turn(self) -> None:
        """Let the agent take a turn, in which it edits, makes and deletes files."""
        prompt = f"prompt {self._line('number').decode()}"
        self.emacs.call("turns-follow")
        backups = {name: self._bytes(name) for name in sorted(self._tracked)}
        point = Point(prompt, self.files(), self._last_record, backups)
        self.points.append(("", point))
        self._prompt(self.agent, prompt, transcript_path=str(self._transcript))
        self._write_record("user")
        self.script.append(prompt)
        # With both in one turn the journal would tell of a file that was renamed: all have lines in common.
        kinds = ("edit", "edit", self.random.choice(("make", "delete")))
        for _ in range(self.random.randint(1, 4)):
            self._act(self.random.choice(kinds))
        # So that each turn changes something.
        self._edit(self.agent, self._some_file(), 0)
        self._write_record("assistant")
        self.agent.hook("Stop", transcript_path=str(self._transcript))
        self.points[-1] = self._next_turn(prompt), point

    def _prompt(self, agent: Agent, prompt: str, **fields: str) -> None:
        """Let a turn of `agent` begin, and wait until it is in the record.

        On a busy machine its first tool may wait no longer for that, and the turn has a note.
        """
        agent.hook("UserPromptSubmit", prompt=prompt, **fields)
        deadline = time.monotonic() + limit_s()
        while not self._runs():
            assert time.monotonic() < deadline, f"no turn runs after {prompt!r}"
            self.emacs.call("turns-settle")

    def _runs(self) -> bool:
        for path in Path(self.emacs.environ["XDG_STATE_HOME"]).glob("qwen-companion/journal/*/*/journal.sqlite"):
            with closing(sqlite3.Connection(f"{path.as_uri()}?mode=ro", uri=True)) as record:
                if record.execute("select 1 from turns where end is null").fetchone() is not None:
                    return True
        return False

    def _bytes(self, name: str) -> bytes | None:
        path = Path(self._path(name))
        return path.read_bytes() if path.exists() else None

    def _write_record(self, kind: str, **fields: object) -> None:
        """Record something of the conversation, as the CLI does."""
        stamp = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        entry = {"uuid": str(uuid.uuid4()), "parentUuid": self._last_record, "timestamp": stamp, "type": kind, **fields}
        with self._transcript.open("a") as file:
            file.write(json.dumps(entry, separators=(",", ":")) + "\n")
        self._last_record = str(entry["uuid"])

    def _write(self, name: str, data: bytes) -> None:
        """Let the agent write a file by its tool, of which it keeps what was there before."""
        if name not in self._tracked:
            self._tracked.add(name)
            before = self._bytes(name)
            for _, point in self.points:
                point.backups.setdefault(name, before)
        self.agent.act(Action(path=self._path(name), data=data))

    def _saved(self) -> dict[str, Text]:
        """Return the texts on the disk of the files without unsaved text: agents leave the others alone."""
        unsaved = self._unsaved()
        found = {str(path.relative_to(self.root)): text(path.read_bytes()) for path in self.root.rglob("*.txt")}
        return {name: content for name, content in found.items() if content is not None and name not in unsaved}

    def _some_file(self) -> str:
        """Return a file without unsaved text; save all where there is none."""
        if not self._saved():
            self.emacs.call("turns-save")
        return self.random.choice(sorted(self._saved()))

    def _act(self, what: str) -> None:
        names = sorted(self._saved())
        if what == "make":
            name = self.random.choice(("", "new/")) + f"{self._line('made').decode().replace(' ', '')}.txt"
            made = Text(tuple((self._line("agent"),) if place % 2 == 0 else () for place in range(2 * PLACES)))
            self.script.append(f"  makes {name}")
            self._write(name, bytes(made))
        elif what == "delete" and len(names) > 2:
            name = self.random.choice(names)
            self.script.append(f"  deletes {name}")
            self.deleted[name] = self._saved()[name]
            self.agent.act(Action(f"rm {shlex.quote(name)}"))
        else:
            self._edit(self.agent, self._some_file(), 2 * self.random.randrange(PLACES), least=0)

    def _edit(self, agent: Agent, name: str, place: int, least: int = 1) -> None:
        lines = [self._line("agent") for _ in range(self.random.randint(least, 2))]
        data = bytes(self._saved()[name].put(place, lines))
        self.script.append(f"  edits {name} at {place}")
        if self.random.random() < 0.5 and agent is self.agent:
            self._write(name, data)
        elif self.random.random() < 0.5 and agent is self.other:
            agent.act(Action(path=self._path(name), data=data))
        else:
            agent.act(Action(f"printf %s {shlex.quote(data.decode())} > {shlex.quote(name)}"))

    def other_turn(self) -> None:
        """Let the other agent take a turn at its own place of a file."""
        self.emacs.call("turns-follow")
        self._prompt(self.other, "of another")
        self.script.append("another agent's turn")
        self._edit(self.other, self._some_file(), OTHERS_PLACE)
        self.other.hook("Stop")
        self._next_turn("of another")

    def _next_turn(self, prompt: str) -> str:
        identifier, notes, _ = self.emacs.call("turns-next", str(self.root))
        assert not notes, (prompt, notes)
        return identifier

    def user_edit(self) -> None:
        """Let the user write a line, in Emacs, saved or not, or outside of it."""
        self.emacs.call("turns-follow")
        name = self._some_file()
        place = self.random.randrange(PLACES - 1)
        # Nobody knows what was written outside of Emacs once a rewind has taken it.
        way = self.random.choice(("saved", "unsaved") if self.own else ("saved", "unsaved", "outside"))
        line = self._line("user")
        self.script.append(f"user, {way}: {line!r} in {name} at {2 * place + 1}")
        if way == "outside":
            found = self._saved()[name]
            self._put(name, found.put(2 * place + 1, [line, *found.places[2 * place + 1]]))
            self.emacs.call("turns-follow")
        else:
            self.emacs.call("turns-insert", self._path(name), f"-- {place}", f"{line.decode()}\n", way == "saved")

    # --- Rewinding

    def rewind(self) -> str | None:
        """Rewind to a prompt of the agent's; return how the files differ from the truth, None where they do not."""
        index = self.random.randrange(len(self.points))
        turn, point = self.points[index]
        self.emacs.call("turns-follow")
        now = self.files()
        self.script.append(f"rewind to before {point.prompt}")
        said = self.emacs.call("turns-press", "R", turn)
        self.script.append(f"  said: {said}")
        self.points = self.points[:index]
        found = self.files()
        wanted = self._truth(point.files, now, found)
        return _problem(wanted, found)

    def own_rewind(self) -> str | None:
        """Let the CLI rewind itself, and recover what that took; return how the files differ from the truth."""
        index = self.random.randrange(len(self.points))
        _, point = self.points[index]
        # What is not saved is merged with what is put back, as after each write of an agent.
        self.emacs.call("turns-save")
        now = self.files()
        self.script.append(f"own rewind to before {point.prompt}")
        count = self.emacs.call("turns-restored", "0")
        changed = False
        wanted = dict(now)
        for name, backup in point.backups.items():
            if self._bytes(name) == backup:
                continue
            changed = True
            theirs = now.get(name) or self.deleted.get(name)
            if backup is None:
                Path(self._path(name)).unlink()
                # With lines of somebody else in it, these come back, and what the agent wrote there may.
                if not any(now[name].places[1::2]):
                    del wanted[name]
            else:
                Path(self._path(name)).write_bytes(backup)
                # Its commands may have changed the file before it was kept: these are undone, too.
                restored = point.files.get(name) or text(backup)
                assert restored is not None
                wanted[name] = restored if theirs is None else _mixed(restored, theirs)
        self._last_record = point.kept
        self._write_record("system", subtype="rewind", systemPayload={"truncatedCount": 1})
        self.points = self.points[:index]
        if changed:
            self.emacs.call("turns-restored", str(count + 1))
            self.script.append(f"  said: {self.emacs.call('turns-recover', f'{self.root}/')}")
        self.emacs.call("turns-save")
        found = self.files()
        for name, backup in point.backups.items():
            if backup is None and name in wanted and name in found:
                wanted[name] = _mixed(found[name], wanted[name])
        return _problem(wanted, found)

    def _truth(self, before: dict[str, Text], now: dict[str, Text], found: dict[str, Text]) -> dict[str, Text]:
        """Return the files as they have to be after a rewind to where they were as `before`; they are as `found`."""
        wanted = {name: _mixed(content, self.deleted[name]) for name, content in before.items() if name not in now}
        # The agent has made and deleted these; what somebody else had written into one is back.
        gone = {
            name: content for name, content in self.deleted.items() if name in found and name not in {**before, **now}
        }
        for name, content in {**gone, **now}.items():
            if name in before:
                wanted[name] = _mixed(before[name], content)
            elif any(content.places[1::2]):
                # It was made since, and somebody else has written into it: only what the agent wrote there may go.
                wanted[name] = _mixed(found.get(name, content), content)
        return wanted


def _problem(wanted: dict[str, Text], found: dict[str, Text]) -> str | None:
    problems = [
        f"{name}: wanted {wanted.get(name)}, got {found.get(name)}"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    ]
    return "\n".join(problems) or None


def _mixed(agents: Text, others: Text) -> Text:
    """Return the text with the agent's places of one text and the places of the others of another."""
    places = zip(agents.places, others.places, strict=True)
    return others._replace(places=tuple(one if place % 2 == 0 else two for place, (one, two) in enumerate(places)))


def run(home: Path, seed: int, sessions: int, rewinds: int, own: bool = False) -> list[str]:
    """Take some `rewinds`, with `own` those of the CLI, in each of some `sessions`; return the differences."""
    emacs = Emacs(home)
    problems: list[str] = []
    try:
        for number in range(sessions):
            source = random.Random(f"{seed} {number}")  # noqa: S311 - not for secrets
            session = Session(home, source, emacs, number, own)
            try:
                problem = _run_session(session, rewinds)
            except (AssertionError, EmacsError) as error:
                problem = str(error)
            finally:
                session.close()
            if problem is not None:
                problems.append("\n".join((f"FUZZ_SEED={seed}, session {number}", *session.script, problem, "")))
    finally:
        emacs.close()
    return problems


def _run_session(session: Session, rewinds: int) -> str | None:
    for _ in range(rewinds):
        for _ in range(session.random.randint(1, 4)):
            session.agent_turn()
            for _ in range(session.random.randint(0, 2)):
                session.user_edit()
            if session.random.random() < 0.3:
                session.other_turn()
        if session.random.random() < 0.5:
            session.emacs.call("turns-save")
        problem = session.own_rewind() if session.own else session.rewind()
        if problem is not None:
            return problem
        session.emacs.call("turns-save")
    return None
