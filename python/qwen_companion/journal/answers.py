# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers to Emacs about one root's record: its turns, the changed files, texts, and the author of each line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from qwen_companion.base.errors import CompanionError
from qwen_companion.base.local_ids import local_id
from qwen_companion.base.plan_files import kept_plans
from qwen_companion.domain import AGENT, USER, ChangedFile, LineOrigin, Turn, TurnOrigin
from qwen_companion.files.versions import inode_at
from qwen_companion.journal.baselines import FAILURES, Baseline, reason_of
from qwen_companion.journal.changes import Net, renamed, sizes, with_renames
from qwen_companion.journal.names import Names
from qwen_companion.journal.nets import Nets
from qwen_companion.journal.origins import BEFORE, Origins, turn_behind
from qwen_companion.journal.store import UNDO, SeenRow, Store, TurnRow
from qwen_companion.journal.undos import Undos

_GONE = "its text is not kept any more"


class RecordError(CompanionError):
    """A request about the record cannot be answered; the message has the reason."""


@dataclass(frozen=True)
class Scope:
    """See `ChangeScope` of the messages; `turn` is a number of this record."""

    kind: str
    turn: int | None = None
    session: str | None = None


@dataclass(frozen=True)
class Summary:
    """A turn as it is sent to Emacs, with all its `files`."""

    turn: Turn
    files: dict[str, ChangedFile]


class Answers:
    """The answers about one root.  Its methods block on disk I/O and are thread-safe."""

    def __init__(self, root: str, names: Names, store: Store, files: Baseline) -> None:
        """`root` is Emacs's name of the directory."""
        self._root = root
        self._names = names
        self._store = store
        self._files = files
        self._nets = Nets(store, files)
        self.origins = Origins(store, files)
        self._known: dict[tuple[int, bytes], tuple[int, ChangedFile]] = {}
        """By turn, its files, each with the number of its last write."""

    def turns(self) -> list[int]:
        """Return the numbers of all turns that have changes or notes."""
        return [turn.id for turn in self._store.turns() if turn.notes or self._store.paths([turn.id])]

    def summary(self, number: int) -> Summary | None:
        """Return the turn of that number with its files; None if it is not recorded, or has no changes and no notes."""
        row = self._store.turn(number)
        if row is None or not (row.notes or self._store.paths([number])):
            return None
        files = self._files_of(number)
        rewound, copy = self._store.rewound(number)
        undone_by = [self._names.identifier(turn.id) for turn in self._store.turns() if turn.undone == number]
        turn = Turn(
            id=self._names.identifier(number),
            root=self._root,
            session=row.session,
            conversation=local_id("session", row.session),
            client=row.client,
            who=AGENT if row.undone is None else USER,
            source=row.source,
            prompt=row.prompt,
            start=row.start,
            end=row.end,
            undone=None if row.undone is None else self._names.identifier(row.undone),
            undone_by=tuple(undone_by),
            notes=row.notes,
            usage=self._store.usage(number),
            rewound=rewound,
            copy=copy,
        )
        return Summary(turn, {file.path: file for file in files if file.kind})

    def _files_of(self, number: int) -> list[ChangedFile]:
        """Return the files of a turn; those unchanged since the last call are not read again."""
        files: list[ChangedFile] = []
        moved: list[bytes] = []
        writes = self._store.last_writes(number)
        changed = [path for path, last in writes.items() if self._known.get((number, path), (None,))[0] != last]
        for path, net in self._nets.several(changed, [number], to_now=False):
            self._known[number, path] = (writes[path], self._file(net, path, [number]))
        for path in writes:
            file = self._known[number, path][1]
            if file.kind in ("added", "deleted"):
                moved.append(path)
            files.append(file)
        if {"added", "deleted"} <= {file.kind for file in files}:
            nets = [net for _, net in self._nets.several(moved, [number], to_now=False) if net is not None]
            files = [file for file in files if file.kind not in ("added", "deleted")]
            files += [self._file(net, net.path, [number]) for net in with_renames(nets)]
        return files

    def files(self, scope: Scope) -> list[ChangedFile]:
        """Return the files changed in `scope`.

        :raises RecordError: if that fails
        """
        if scope.kind == "commit":
            return [self._file(net, net.path, []) for net in with_renames(self._since_commit()) if net.kind]
        turns = self._turns_in(scope)
        chosen = self._with_undos(turns, scope)
        nets: list[Net] = []
        lost: list[ChangedFile] = []
        paths = [path for path in self._store.paths(turns) if scope.kind != "look" or self._unseen(turns, path)]
        for path, net in self._nets.several(paths, chosen, to_now=scope.kind != "turn"):
            if net is not None:
                nets.append(net)
            else:
                lost.append(self._file(net, path, turns))
        return [*(self._file(net, net.path, turns) for net in with_renames(nets)), *(f for f in lost if f.kind)]

    def texts(self, files: Sequence[tuple[str, str | None]], scope: Scope) -> Iterator[Net | RecordError]:
        """Yield the change in `scope` of each of `files`, given by its path and its name before a rename.

        If it has no change, yield an error.

        :raises RecordError: if the scope is not recorded
        """
        if scope.kind == "commit":
            changed = {net.path: net for net in with_renames(self._since_commit())}
            for path, _ in files:
                yield changed.get(self._told_name(path) or b"") or RecordError("the file is not changed there")
            return
        turns = self._with_undos(self._turns_in(scope), scope)
        names = [None if path is None else self._told_name(path) for pair in files for path in pair]
        nets = iter(self._nets.several(names, turns, scope.kind != "turn"))
        for (_, net), (_, old) in zip(nets, nets, strict=True):
            if net is None:
                yield RecordError(_GONE)
            else:
                is_moved = old is not None and (old.kind, net.kind) == ("deleted", "added")
                yield renamed(old, net) if old is not None and is_moved else net

    def linked(self, scope: Scope) -> set[int | None]:
        """Return the inodes of the files that were given names of other files in `scope` or since."""
        turns = self._turns_in(scope)
        return {inode_at(path) for path in self._store.linked(min(turns))} if turns else set()

    def spans(self, path: str) -> list[tuple[int, int, str, bool]]:
        """Return the lines of `path` by agents: the first line, their number, the turn, and whether the user saw them.

        A number of 0 means lines that were deleted before that line.
        """
        name = self._names.name_in(path)
        text = None if name is None or not self._store.is_known(name) else self.origins.of(name)
        if name is None or text is None:
            return []
        found = [(line, count, turn) for line, count, turn in text.runs if turn > BEFORE]
        found += [(gap + 1, 0, turn) for gap, turn in text.gaps.items()]
        # Reading them one by one would take a transaction each.
        with self._store.database.transaction():
            turns = {write.turn for write in self._store.writes(name) if write.turn is not None}
            seen = {turn: self._seen(turn, name).whole for turn in turns}
        known = [(line, count, turn) for line, count, turn in sorted(found) if turn in seen]
        return [(line, count, self._names.identifier(turn), seen[turn]) for line, count, turn in known]

    def line_origins(self, path: str, data: bytes | None) -> tuple[list[tuple[int, int, int]], list[LineOrigin]]:
        """Return the runs of lines of `path` with one origin, and these origins.

        A run is its first line, the number of lines, and the index of its origin.  Lines from before the journal are in
        no run.  `data` are the bytes of the file, by default those on the disk.

        :raises RecordError: if the file is not below the root, or has no lines to compare
        """
        name = self._names.name_in(path)
        text = None if name is None else self.origins.of(name, data)
        if text is None:
            raise RecordError("the file is not there, not a text, or larger than 8 MiB")
        known = {turn.id for turn in self._store.turns()}
        found: dict[int, LineOrigin] = {}
        for origin in dict.fromkeys(origin for _, _, origin in text.runs if origin != BEFORE):
            turn = turn_behind(origin)
            identifier = self._names.identifier(turn) if turn in known else None
            # An agent's lines from a turn that was pruned have no author.
            if origin < BEFORE or identifier is not None:
                found[origin] = LineOrigin(AGENT if origin > BEFORE else USER, identifier)
        indices = {origin: index for index, origin in enumerate(found)}
        runs = [(line, count, indices[origin]) for line, count, origin in text.runs if origin in indices]
        return runs, list(found.values())

    def prompt(self, identifier: str, environ: Mapping[str, str]) -> tuple[TurnOrigin, str] | None:
        """Return the origin of the turn with the `identifier`, and its whole prompt; None for a turn of another record.

        Plans are kept in the directories of `environ`.
        """
        number = self._names.number(identifier)
        turn = None if number is None else self._store.turn(number)
        if turn is None:
            return None
        origin, prompt = self.turn_origin(turn)
        plans = kept_plans(environ, self._root, turn.session)
        plan = next((plan.path for plan in plans if turn.start <= plan.time <= (turn.end or plan.time)), None)
        return replace(origin, plan=plan), prompt

    def turn_origin(self, turn: TurnRow) -> tuple[TurnOrigin, str]:
        """Return the origin of `turn`, and its whole prompt."""
        models = tuple(usage.model for usage in self._store.usage(turn.id) if usage.model)
        origin = TurnOrigin(self._names.identifier(turn.id), turn.session, turn.client, turn.start, models)
        return origin, self._store.prompt(turn.id).replace("\0", " ")

    def mark(self, number: int, path: str | None, hunks: Sequence[str], seen: bool) -> None:
        """Record what the user has `seen` of a turn: `hunks` of the file `path`, the whole file, or all files."""
        name = None if path is None else self._told_name(path)
        for each in self._store.paths([number]) if name is None else [name]:
            row = self._seen(number, each)
            if hunks:
                kept = [key for key in row.hunks if key not in hunks]
                row = SeenRow(row.digest, row.whole and seen, (*kept, *hunks) if seen else tuple(kept))
            else:
                row = SeenRow(self._last(number, each), seen, row.hunks if seen else ())
            self._store.mark(number, each, row)
            self._known.pop((number, each), None)

    # --- Inside ---

    def _told_name(self, path: str) -> bytes | None:
        """Return the name in the record of `path`, a name that was sent to Emacs."""
        told = self._names.told(path)
        return told if told is None or self._store.is_known(told) else self._names.name_in(path)

    def _turns_in(self, scope: Scope) -> list[int]:
        rows = [turn for turn in self._store.turns() if turn.source != UNDO or turn.id == scope.turn]
        if scope.kind == "turn":
            return [turn.id for turn in rows if turn.id == scope.turn]
        if scope.kind == "since":
            return [turn.id for turn in rows if turn.id >= (scope.turn or 0)]
        if scope.kind == "session":
            return [turn.id for turn in rows if turn.session == scope.session]
        return [turn.id for turn in rows]

    def _with_undos(self, turns: Sequence[int], scope: Scope) -> list[int]:
        """Return `turns`; in a wider `scope`, add their undos and redos, whose text is not the user's own."""
        if scope.kind == "turn":
            return list(turns)
        return Undos(self._store.turns()).within(turns)

    def _unseen(self, turns: Sequence[int], path: bytes) -> bool:
        there = {write.turn for write in self._store.writes(path)}
        return any(not self._seen(turn, path).whole for turn in turns if turn in there)

    def _file(self, net: Net | None, path: bytes, turns: Sequence[int]) -> ChangedFile:
        """Return `net` of `path` as it is sent to Emacs; its kind is "" if nothing has changed."""
        if net is None:
            return ChangedFile(self._names.name_out(path), "modified", binary=True)
        rows = [self._seen(turn, path) for turn in turns if len(turns) == 1]
        return replace(
            changed_file(net, self._names),
            seen=bool(rows) and all(row.whole for row in rows),
            seen_hunks=tuple(key for row in rows for key in row.hunks),
        )

    def _seen(self, turn: int, path: bytes) -> SeenRow:
        """Return the mark on `path` in `turn`; the mark of a whole file expires when the file changes."""
        row = self._store.seen(turn, path)
        last = self._last(turn, path)
        return SeenRow(last, row.whole and row.digest == last, row.hunks)

    def _last(self, turn: int, path: bytes) -> str:
        version = self._store.last_version(turn, path)
        return "" if version is None else version.digest

    def _since_commit(self) -> list[Net]:
        try:
            return list(self._nets.since_commit())
        except FAILURES as error:
            raise RecordError(reason_of(error)) from None


def changed_file(net: Net, names: Names) -> ChangedFile:
    """Return `net` as it is sent to Emacs; its kind is "" if nothing has changed."""
    kind = net.kind
    added, deleted, binary = sizes(net) if kind not in (None, "mode") else (0, 0, False)
    return ChangedFile(
        path=names.name_out(net.path),
        kind=kind or "",
        previous=None if net.previous is None else names.name_out(net.previous),
        binary=binary,
        added=added,
        deleted=deleted,
        mixed=net.mixed,
        writers=tuple((tool, agent or None) for tool, agent in net.writers),
        mode=net.has_other_mode,
        link=net.has_link,
    )
