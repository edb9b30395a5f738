# SPDX-License-Identifier: GPL-3.0-or-later
"""The lines of commits that agents have written, as git notes: these are valid in other clones, which have no journal.

A note is one JSON object.  `version` is 1.  `turns` are objects with `session`, `client`, `models`, `start` in ms since
the epoch, and `prompt`, its first line.  `files` has, by name, runs of lines of the file in that commit: each a list of
the first line, from 1, the number of lines, the index of the turn, and true if the user has changed the lines since.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from qwen_companion.base.errors import CompanionError
from qwen_companion.base.git import Git, items, place
from qwen_companion.base.json_objects import as_object, read_object
from qwen_companion.domain import AGENT, LineOrigin, TurnOrigin
from qwen_companion.files.repository import find_repository
from qwen_companion.journal.origins import BEFORE, turn_behind
from qwen_companion.journal.store import MAX_AGE_MS
from qwen_companion.privacy.verdicts import printable

if TYPE_CHECKING:
    from qwen_companion.journal.record import Record

REF = "refs/notes/qwen-companion"

_VERSION = 1

_MOST_COMMITS = 20
"""Most commits that get notes, the newest: more are not the work of one turn."""

_MOST_BYTES = 8 << 20
"""Largest note of ours."""

_MOST_WORDS = 200
"""Most characters of a name or a first line in a note."""

_BLAMED = re.compile(rb"([0-9a-f]{40,64}) (\d+) (\d+) (\d+)")
_TURN = re.compile(r"note-([0-9a-f]{40,64})-(\d{1,6})")

_log = logging.getLogger(__name__)


class CommitNotes:
    """The notes of one repository.  Its methods block on git and are thread-safe."""

    def __init__(self, directory: str, environ: Mapping[str, str]) -> None:
        """`directory` is the true name of a directory, in a repository or not; git is that of `environ`."""
        repository = self._repository = find_repository(directory)
        self._top = directory if repository is None else repository.top
        self._git = Git(environ)

    def _run(self, *command: str | bytes, data: bytes = b"", good: tuple[int, ...] = (0,)) -> bytes:
        own = "" if self._repository is None else self._repository.directory
        options = ("-c", "core.quotePath=false", *place(own, self._top))
        return self._git.run(command, self._top, data, good, options, variables={})

    # --- Writing ---

    def write(self, record: Record) -> None:
        """Add a note to each new commit of the user's with lines of agents in `record`; log failures.

        A commit that has a note, by anybody, keeps it.
        """
        turns = record.store.turns()
        if self._repository is None or not turns:
            return
        try:
            email = (
                self._run("var", "GIT_COMMITTER_IDENT").decode("utf-8", "replace").rpartition("<")[2].partition(">")[0]
            )
            chosen = (f"--since={turns[0].start // 1000}", "--fixed-strings", f"--committer=<{email}>")
            commits = self._run("rev-list", f"--max-count={_MOST_COMMITS}", *chosen, "HEAD", good=(0, 128)).split()
            noted = {line.split()[1] for line in self._run("notes", f"--ref={REF}", "list").splitlines()}
            for commit in commits:
                if commit not in noted and (note := self._note(record, commit.decode())) is not None:
                    text = json.dumps(note, separators=(",", ":")).encode()
                    self._run("notes", f"--ref={REF}", "add", "--file=-", commit, data=text)
        except (CompanionError, OSError) as error:
            _log.warning("no note on the last commits: %s", error)

    def _note(self, record: Record, commit: str) -> dict[str, Any] | None:
        """Return the note for `commit`, None if no agent has written in its files."""
        command = ("diff-tree", "--root", "--no-commit-id", "--name-only", "--diff-filter=d", "-r", "-z", commit)
        known = {turn.id: turn for turn in record.store.turns()}
        turns: dict[int, int] = {}
        files: dict[str, list[list[int | bool]]] = {}
        for name in items(self._run(*command)):
            path = os.path.join(os.fsencode(self._top), name)
            if not record.store.is_known(path):
                continue
            data = self._run("cat-file", "blob", commit.encode() + b":" + name)
            text = record.answers.origins.of(path, _as_on_disk(path, data))
            runs: list[list[int | bool]] = []
            for line, count, origin in () if text is None else text.runs:
                turn = turn_behind(origin)
                if turn in known:
                    runs.append([line, count, turns.setdefault(turn, len(turns)), *([True] if origin < BEFORE else [])])
            with suppress(UnicodeDecodeError):
                if runs:
                    files[name.decode()] = runs
        if not files:
            return None
        described: list[dict[str, Any]] = []
        for turn in turns:
            origin, prompt = record.answers.turn_origin(known[turn])
            words = {"session": origin.session, "client": origin.client, "models": origin.models, "start": origin.start}
            described.append({**words, "prompt": next(iter(prompt.splitlines()), "")[:_MOST_WORDS]})
        return {"version": _VERSION, "turns": described, "files": files}

    # --- Reading ---

    def origins(self, path: str, data: bytes | None) -> Iterator[tuple[int, int, LineOrigin]]:
        """Yield the runs of lines of `path` that agents wrote by the notes, in the form of `Answers.line_origins`.

        `data` are its bytes, by default those on the disk.

        :raises GitError: if that fails
        """
        if self._repository is None:
            return
        begun = self._run("rev-list", "--max-parents=0", "--timestamp", REF, "--", good=(0, 128)).split()[::2]
        if not begun:
            return
        # No older commit has a note; following lines through a long history would take seconds.
        since = f"--since={min(map(int, begun)) - MAX_AGE_MS // 1000}"
        contents = () if data is None else ("--contents", "-")
        name = os.path.relpath(path, self._top)
        output = self._run("blame", "--incremental", since, *contents, "--", name, data=data or b"", good=(0, 128))
        notes: dict[str, dict[str, Any]] = {}
        group: list[bytes] = []
        for row in output.splitlines():
            if match := _BLAMED.fullmatch(row):
                group = list(match.groups())
            elif row.startswith(b"filename ") and group:
                commit, (old, new, count) = group[0].decode(), map(int, group[1:])
                if commit not in notes:
                    notes[commit] = self._read(commit)
                for first, size, turn in _runs(notes[commit], row[9:].decode("utf-8", "replace")):
                    start, end = max(first, old), min(first + size, old + count)
                    if start < end:
                        yield new + start - old, end - start, LineOrigin(AGENT, f"note-{commit}-{turn}")

    def prompt(self, identifier: str) -> tuple[TurnOrigin, str] | None:
        """Return the origin of the turn with the `identifier` of `origins`, and the first line of its prompt."""
        match = _TURN.fullmatch(identifier)
        turns = _list(self._read(match[1]).get("turns")) if match and self._repository is not None else []
        if match is None or int(match[2]) >= len(turns):
            return None
        turn = as_object(turns[int(match[2])])
        start = turn.get("start")
        models = tuple(_words(model) for model in _list(turn.get("models"))[:9])
        when = start if type(start) is int and 0 <= start < 1 << 50 else 0
        origin = TurnOrigin(identifier, _words(turn.get("session")), _words(turn.get("client")), when, models)
        return origin, _words(turn.get("prompt"))

    def _read(self, commit: str) -> dict[str, Any]:
        """Return the note on `commit`, {} if there is none, or one by another program."""
        data = self._run("notes", f"--ref={REF}", "show", commit, good=(0, 1, 128))
        note = (read_object(data) if len(data) <= _MOST_BYTES else None) or {}
        return note if note.get("version") == _VERSION else {}


def _as_on_disk(path: bytes, data: bytes) -> bytes:
    """Return `data`, from a commit, with CR LF if the file has that in the work tree."""
    with suppress(OSError):
        with open(path, "rb") as file:
            disk = file.read(_MOST_BYTES)
        if b"\r\n" not in data and disk.count(b"\r\n") == disk.count(b"\n"):
            return data.replace(b"\n", b"\r\n")
    return data


def _runs(note: Mapping[str, Any], name: str) -> Iterator[tuple[int, int, int]]:
    """Yield the runs of lines of the file `name` by agents, according to the untrusted `note`."""
    for run_ in _list(as_object(note.get("files")).get(name)):
        match run_:
            case [int(first), int(count), int(turn)] if 0 < first < 1 << 31 and 0 < count < 1 << 31 and turn >= 0:
                yield first, count, turn
            case _:
                pass


def _list(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _words(value: object) -> str:
    return printable(value[:_MOST_WORDS]) if isinstance(value, str) else ""
