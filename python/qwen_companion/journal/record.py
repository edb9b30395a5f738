# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of one root: its baseline and its turns, and the reports of them to Emacs."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from qwen_companion.domain import ChangedFile, Turn
from qwen_companion.errors import CompanionError
from qwen_companion.file_names import FileNameError, file_name
from qwen_companion.frozen import frozen
from qwen_companion.journal.baselines import Baseline
from qwen_companion.journal.changes import MissingTextError, Net, Owned, net_of, owners, renamed, sizes, with_renames
from qwen_companion.journal.database import DamagedStoreError, StoreError
from qwen_companion.journal.first_look import LimitError
from qwen_companion.journal.git import GitError
from qwen_companion.journal.looks import Change
from qwen_companion.journal.places import key_of, state_directory
from qwen_companion.journal.rules import RecordRules
from qwen_companion.journal.store import SeenRow, Store, TurnRow, Write
from qwen_companion.journal.subscriptions import SHELL_TOOL
from qwen_companion.journal.versions import Loaded, TooLargeError, git_mode
from qwen_companion.processes import has_ended

UNDO = "undo"
"""The source of a turn of the user's."""

MERGE = "merge"
"""The source of a turn by which the user took over changes of an agent in a worktree."""

HOOKS, CHAT = "hooks", "chat"
"""The source of a turn that a CLI or a daemon has told of."""

DISK = "disk"
"""The tool of a write, and the source of a turn, that only the disk tells of."""

ONE_GO_MS = 5 * 60 * 1000
"""How long after the last one a further hunk that the user undoes belongs to the same turn."""

_SLOTS = 8
"""As many Emacsen can record the same root at once, each for itself."""

_FOUND = (DISK, SHELL_TOOL)
"""Tools whose writes only a scan can find."""

_MAX_STAMPS = 10_000
"""Only those of the last seconds matter."""

_AT_ONCE = 50
"""Files whose texts are asked of git at once: to start it takes 3 ms, and all of them are in memory."""

_GONE = "its text is not kept any more"


class RecordError(CompanionError):
    """A request about the record cannot be answered; the text says why."""


class NoRecordError(CompanionError):
    """Nothing can be recorded below a root; the text says why."""


FAILURES = (GitError, LimitError, StoreError, OSError)
"""Errors that keep changes from being recorded."""


@frozen
class Cause:
    """The author of a write: an agent in `turn` by `tool`, or with None somebody else."""

    turn: int | None = None
    tool: str = ""
    agent: str = ""


NOBODY = Cause()

Chooser = Callable[[Sequence[bytes]], Sequence[Cause]]
"""Returns the causes of changes in files, asked once the files have been read."""


def _always(cause: Cause) -> Chooser:
    return lambda paths: [cause] * len(paths)


@frozen
class Scope:
    """See `ChangeScope` of the messages; `turn` is a number of this record."""

    kind: str
    turn: int | None = None
    session: str | None = None


@frozen
class Summary:
    """A turn as Emacs is told of it, with all its `files`."""

    turn: Turn
    files: dict[str, ChangedFile]


class Record:
    """The record of one root.  Its methods wait for the disk, and may be called in any thread."""

    def __init__(self, root: str, environ: Mapping[str, str]) -> None:
        """`root` is a name of the directory as Emacs has it.

        :raises NoRecordError: when that fails
        """
        self.root = root
        self._true = os.path.realpath(root)
        self._environ = environ
        home = os.path.realpath(environ.get("HOME") or os.path.expanduser("~"))
        if f"{home}/".startswith(self._true.rstrip("/") + "/"):
            raise NoRecordError("it is your home directory, or contains it")
        self._lock = threading.RLock()
        self._descriptor = -1
        self.news: str | None = None
        """A message for the user about what was recorded before and is lost; None for none."""
        try:
            self._directory, self.key = self._lock_directory()
            self._store = self._open_store()
        except (OSError, StoreError) as error:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            raise NoRecordError(_reason(error)) from None
        self.rules = RecordRules(self._true, environ)
        self._baseline = self._make_baseline()
        self._known: dict[tuple[int, bytes], tuple[int, ChangedFile]] = {}
        self._stamps: dict[bytes, tuple[int, int] | None] = {}
        """The stamp of each file at the last scan that found it changed by an agent."""

    def _open_store(self) -> Store:
        """Open the store; put one that is damaged aside and begin anew.

        :raises OSError, StoreError: when that fails
        """
        path = os.path.join(self._directory, "journal.sqlite")
        trees = os.path.join(self._directory, "trees")
        if os.path.isdir(trees) and os.path.exists(path) and os.path.getsize(path) == 0:
            self.news = f"What was recorded of changes in {self.root} is lost: its file was empty; it begins anew"
            shutil.rmtree(trees, ignore_errors=True)
        try:
            return Store(path)
        except DamagedStoreError as error:
            return self._replace_store(str(error))

    def _replace_store(self, damage: str) -> Store:
        """Put the store's file aside for its `damage`, and return a new one.

        :raises OSError, StoreError: when that fails
        """
        path = os.path.join(self._directory, "journal.sqlite")
        aside = _put_aside(path)
        with suppress(FileNotFoundError):
            # It belongs to that file, and would be applied to the new one.
            os.rename(f"{path}-journal", f"{aside}-journal")
        # So do these.
        shutil.rmtree(os.path.join(self._directory, "trees"), ignore_errors=True)
        self.news = (
            f"What was recorded of changes in {self.root} is damaged ({damage}): it was put aside as {aside}, and "
            "the record begins anew"
        )
        return Store(path)

    def _make_baseline(self) -> Baseline:
        trees = os.path.join(self._directory, "trees")
        return Baseline(trees, self._true, self._environ, self._store, self.rules)

    def _lock_directory(self) -> tuple[str, str]:
        name = key_of(self._true)
        above = os.path.join(state_directory(self._environ), name)
        state = state_directory(self._environ)
        os.makedirs(os.path.dirname(state), exist_ok=True)
        _make_private(state)
        if os.path.lexists(above) and not os.path.isdir(above):
            self.news = f"A file was in the place of the record of {self.root}: it was put aside as {_put_aside(above)}"
        _make_private(above)
        for slot in range(_SLOTS):
            directory = os.path.join(above, str(slot))
            try:
                _make_private(directory)
                descriptor = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except NotADirectoryError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            self._descriptor = descriptor
            return directory, f"{name}-{slot}"
        raise NoRecordError("too many Emacsen record it")

    def close(self) -> None:
        """Let another Emacs use the record."""
        with self._lock:
            self._store.database.close()
            os.close(self._descriptor)

    def forget(self) -> None:
        """Remove all that is recorded, and begin anew with the next turn."""
        with self._lock:
            self._store.database.close()
            for name in os.listdir(self._directory):
                path = os.path.join(self._directory, name)
                if name != "lock":
                    with suppress(OSError):
                        os.unlink(path)
                    shutil.rmtree(path, ignore_errors=True)
            self._store = Store(os.path.join(self._directory, "journal.sqlite"))
            self._baseline = self._make_baseline()
            self._known.clear()

    def replace_damaged(self, damage: str) -> None:
        """Begin anew, with the store's file put aside for its `damage`; `news` says so.

        :raises OSError, StoreError: when that fails
        """
        with self._lock:
            store, self._store = self._store, self._replace_store(damage)
            store.database.close()
            self._baseline = self._make_baseline()
            self._known.clear()

    def restore(self) -> bool:
        """Begin anew if the record has been removed; return whether it was.

        :raises DamagedStoreError: when its file has been emptied
        :raises OSError, StoreError, NoRecordError: when that fails
        """
        with self._lock:
            with suppress(FileNotFoundError):
                if os.path.getsize(os.path.join(self._directory, "journal.sqlite")) == 0:
                    raise DamagedStoreError("its file was emptied")
                return False
            store, descriptor = self._store, self._descriptor
            self._directory, self.key = self._lock_directory()
            file = os.path.join(self._directory, "journal.sqlite")
            try:
                self._store = Store(file)
            except (OSError, StoreError):
                os.close(self._descriptor)
                self._descriptor = descriptor
                with suppress(OSError):
                    os.unlink(file)
                raise
            store.database.close()
            os.close(descriptor)
            self._baseline = self._make_baseline()
            self._known.clear()
            return True

    # --- Names ---

    def name_in(self, path: str) -> bytes | None:
        """Return the true name of `path`, as Emacs or a CLI has it; None where it is not below the root."""
        try:
            directory, name = os.path.split(os.path.normpath(file_name(path)))
        except FileNameError:
            return None
        true = os.path.join(os.path.realpath(directory), name)
        return os.fsencode(true) if true.startswith(self._true.rstrip("/") + "/") else None

    def _told_name(self, path: str) -> bytes | None:
        """Return the name of `path` in the record, also where a directory above it has become a link since."""
        try:
            name = os.fsencode(os.path.join(self._true, os.path.relpath(file_name(path), self.root)))
        except FileNameError:
            return None
        return name if self._store.is_known(name) else self.name_in(path)

    def name_out(self, path: bytes) -> str | None:
        """Return `path` as Emacs has it; None for a name that is no text."""
        try:
            return os.path.join(self.root, os.path.relpath(path, os.fsencode(self._true)).decode("utf-8"))
        except UnicodeDecodeError:
            return None

    # --- Recording ---

    def begin(self, turn: TurnRow) -> TurnRow:
        """Record that `turn` begins; return it with its number."""
        return self._store.begin(turn)

    def resume(self) -> list[TurnRow]:
        """Return the turns that went on when another process recorded them, and still may; end the others."""
        going: list[TurnRow] = []
        for turn in self._store.turns():
            if turn.end is None:
                if turn.pid is not None and not has_ended(turn.pid, turn.started or ""):
                    going.append(turn)
                else:
                    self.end(turn.id, turn.start)
        return going

    def scan(self, cause: Cause | Chooser, skip: Callable[[bytes], bool] = lambda _path: False) -> bool:
        """Look at all files but those to `skip`; record the changes as `cause`'s.  Return whether there are any."""
        choose: Chooser = _always(cause) if isinstance(cause, Cause) else cause
        with self._lock:
            if len(self._stamps) > _MAX_STAMPS:
                self._stamps.clear()
            found = self._baseline.take(lambda changes: self._keep(changes, choose), skip)
            if found.left_out:
                (of,) = choose([os.fsencode(self._true)])
                if of.turn is not None:
                    for text in found.left_out:
                        self._store.add_note(of.turn, f"not recorded: {text}")
            return bool(found.changes)

    def records(self, paths: Collection[str]) -> bool:
        """Return whether each of the files `paths` is recorded, by now or by the next scan.

        :raises GitError, OSError: when that fails
        """
        names = [self.name_in(path) for path in paths]
        with self._lock:
            return None not in names and self._baseline.records([name for name in names if name is not None])

    @property
    def has_baseline(self) -> bool:
        """Whether all files have been looked at once."""
        return self._baseline.is_complete

    def directories(self) -> set[bytes]:
        """Return the absolute names of the directories in which files are recorded.

        :raises GitError, OSError: when that fails
        """
        with self._lock:
            return self._baseline.indexes.directories()

    def observe(self, path: bytes, loaded: Loaded | None, cause: Cause) -> bool:
        """Record that `cause` wrote `loaded` to `path`.  Return whether that was a change."""
        with self._lock:
            change = self._baseline.observe(path, loaded)
            if change is not None:
                self._keep([change], _always(cause))
            return change is not None and change.known

    def claim(self, path: bytes, loaded: Loaded | None, turn: int | None = None) -> bool:
        """Record that Emacs has written `loaded` to `path`, in the `turn` of an undo or in none.

        Correct a scan that gave the same write to an agent a moment ago, before the report of Emacs had arrived.  A
        file written again since with the same contents was an agent's before.
        """
        with self._lock:
            if self.observe(path, loaded, Cause(turn, "" if turn is None else UNDO)):
                return True
            if path in self._stamps and self._stamps[path] != _stamp(path):
                return False
            version = None if loaded is None else loaded.version
            return self._store.reassign(path, version, turn, _FOUND)

    def _keep(self, changes: Sequence[Change], choose: Chooser) -> None:
        by_cause: dict[Cause, list[Change]] = {}
        for change, cause in zip(changes, choose([change.path for change in changes]), strict=True):
            by_cause.setdefault(cause if change.known else NOBODY, []).append(change)
            if cause.tool in _FOUND:
                self._stamps[change.path] = _stamp(change.path)
        for cause, its in by_cause.items():
            rows = [(change.path, change.before, change.after) for change in its]
            self._store.record(rows, cause.turn, cause.tool, cause.agent)

    def look(self, path: bytes) -> Loaded | None:
        """Return the file at `path`, in the form to record.

        :raises TooLargeError, OSError: when that fails
        """
        return self._baseline.load(path)

    def end(self, turn: int, time: int) -> bool:
        """Record that `turn` ended at `time`, or forget it if it changed nothing; return whether it is kept."""
        if self._store.paths([turn]):
            self._store.end(turn, time)
            return True
        self._store.discard(turn)
        return False

    def go_on(self, turn: int) -> None:
        """Record that `turn` has not ended."""
        self._store.end(turn, None)

    def note(self, turn: int, text: str) -> None:
        """Tell the user `text` with `turn`."""
        self._store.add_note(turn, text)

    def undo(
        self, undone: int, label: str, paths: Sequence[bytes], time: int, bring_back: bool = False
    ) -> TurnRow | None:
        """Record that the user wrote `paths` to undo a part of the turn `undone`; return None if nothing changed.

        With `bring_back` the user undid the newest undoing of that turn.  Hunks that are undone one after the other are
        one turn.

        :raises RecordError: when that fails
        """
        with self._lock:
            if bring_back:
                undone = self._undoing(undone, paths) or undone
            of = self._store.turn(undone)
            if of is None:
                raise RecordError("the turn is not recorded any more")
            last = self._store.last_turn()
            if last is None or last.undone != undone or time > (last.end or 0) + ONE_GO_MS:
                row = TurnRow(0, of.session, of.client, UNDO, label, time, time, undone, (), None, None)
                turn = self._store.begin(row)
            else:
                turn = last
            changed = False
            for path in paths:
                with suppress(TooLargeError, OSError):
                    changed = self.claim(path, self.look(path), turn.id) or changed
            if not self.end(turn.id, time) or not changed:
                return None
            if turn is last:
                self._store.rename(turn.id, self._go_label(turn))
            self._note_undone(undone, of.session, paths)
            return turn

    def merge(self, of: TurnRow, label: str, paths: Sequence[bytes], time: int) -> TurnRow | None:
        """Record that the user merged parts of `of`, a turn in a worktree, into `paths`; None if nothing changed.

        Parts that are merged one after the other are one turn.
        """
        with self._lock:
            turn = self._store.last_turn()
            is_last = turn is not None and (turn.source, turn.session, turn.prompt) == (MERGE, of.session, label)
            if turn is None or not is_last or time > (turn.end or 0) + ONE_GO_MS:
                turn = self._store.begin(
                    TurnRow(0, of.session, of.client, MERGE, label, time, time, None, (), None, None)
                )
            for path in paths:
                with suppress(TooLargeError, OSError):
                    self.claim(path, self.look(path), turn.id)
            return turn if self.end(turn.id, time) else None

    def turn(self, number: int) -> TurnRow | None:
        """Return the turn of that number, None where it is not recorded any more."""
        return self._store.turn(number)

    def _undoing(self, undone: int, paths: Sequence[bytes]) -> int | None:
        """Return the newest turn that undid the turn `undone` in one of `paths` and is not brought back there."""
        by = self._undone()
        for turn in sorted((turn for turn, of in by.items() if of == undone), reverse=True):
            if any(self._changes(path, _chain(turn, by)) for path in paths):
                return turn
        return None

    def _note_undone(self, turn: int, session: str, paths: Sequence[bytes]) -> None:
        """Note which of `paths` to tell the agent of `session`: those where something of its turn is undone now.

        `turn` is that turn of the agent, or one by which it was undone or brought back.
        """
        by = self._undone()
        first = _first(turn, by)
        undos = _chain(first, by) - {first}
        undone = [path for path in paths if self._changes(path, undos)]
        self._store.note_undone(session, first, undone)
        self._store.forget_undone(first, set(paths).difference(undone))

    def _changes(self, path: bytes, turns: Collection[int]) -> bool:
        """Return whether `turns` together changed `path`, or may have."""
        net = self._net(path, turns, to_now=False)
        return net is None or net.kind is not None

    def _go_label(self, turn: TurnRow) -> str:
        """Return a label for the steps undone in `turn`."""
        paths = self._store.paths([turn.id])
        undone = self._undone()
        what = f"{len(paths)} files" if len(paths) > 1 else os.path.basename(os.fsdecode(paths[0]))
        verb = "Undo" if _depth(turn.id, undone) % 2 == 1 else "Bring back"
        return f"{verb} changes of {what}".encode("utf-8", "replace").decode()

    def take_undone(self, session: str) -> list[str]:
        """Return the files in which the user has undone something of `session` since this was asked last."""
        return [name for _, path in self._store.take_undone(session) if (name := self.name_out(path)) is not None]

    def forget_old(self, now: int) -> list[int]:
        """Forget turns that are too old; return their numbers."""
        return self._store.forget_old(now)

    def shrink(self) -> list[int]:
        """Forget the oldest turns while all of them need more than `MAX_BYTES`; return their numbers."""
        return self._store.shrink()

    # --- Answering ---

    def identifier(self, turn: int) -> str:
        """Return the id in Emacs of the turn of that number."""
        return f"{self.key}-{turn}"

    def number(self, identifier: str) -> int | None:
        """Return the number of the turn that Emacs calls `identifier`; None for one of another record."""
        head, _, number = identifier.rpartition("-")
        return int(number) if head == self.key and number.isdigit() else None

    def turns(self) -> list[int]:
        """Return the numbers of all turns in which something was changed."""
        return [turn.id for turn in self._store.turns() if self._store.paths([turn.id])]

    def summary(self, number: int) -> Summary | None:
        """Return the turn of that number with its files; None where it is not recorded or has changed nothing."""
        row = self._store.turn(number)
        if row is None or not self._store.paths([number]):
            return None
        files = self._files_of(number)
        undone_by = [self.identifier(turn.id) for turn in self._store.turns() if turn.undone == number]
        turn = Turn(
            id=self.identifier(number),
            root=self.root,
            session=row.session,
            client=row.client,
            source=row.source,
            prompt=row.prompt,
            start=row.start,
            end=row.end,
            undone=None if row.undone is None else self.identifier(row.undone),
            undone_by=tuple(undone_by),
            notes=row.notes,
        )
        return Summary(turn, {file.path: file for file in files if file.kind})

    def _files_of(self, number: int) -> list[ChangedFile]:
        """Return the files of a turn; those unchanged since the last call are not read again."""
        files: list[ChangedFile] = []
        moved: list[bytes] = []
        writes = self._store.last_writes(number)
        changed = [path for path, last in writes.items() if self._known.get((number, path), (None,))[0] != last]
        for path, net in self._nets(changed, [number], to_now=False):
            self._known[number, path] = (writes[path], self._file(net, path, [number]))
        for path in writes:
            file = self._known[number, path][1]
            if file.kind in ("added", "deleted"):
                moved.append(path)
            files.append(file)
        if {"added", "deleted"} <= {file.kind for file in files}:
            nets = [net for _, net in self._nets(moved, [number], to_now=False) if net is not None]
            files = [file for file in files if file.kind not in ("added", "deleted")]
            files += [self._file(net, net.path, [number]) for net in with_renames(nets)]
        return files

    def files(self, scope: Scope) -> list[ChangedFile]:
        """Return the files changed in `scope`.

        :raises RecordError: when that fails
        """
        if scope.kind == "commit":
            return [self._file(net, net.path, []) for net in with_renames(self._since_commit()) if net.kind]
        turns = self._turns_in(scope)
        chosen = self._with_undos(turns, scope)
        nets: list[Net] = []
        lost: list[ChangedFile] = []
        paths = [path for path in self._store.paths(turns) if scope.kind != "look" or self._unseen(turns, path)]
        for path, net in self._nets(paths, chosen, to_now=scope.kind != "turn"):
            if net is not None:
                nets.append(net)
            else:
                lost.append(self._file(net, path, turns))
        return [*(self._file(net, net.path, turns) for net in with_renames(nets)), *(f for f in lost if f.kind)]

    def texts(self, files: Sequence[tuple[str, str | None]], scope: Scope) -> Iterator[Net | RecordError]:
        """Yield the change in `scope` of each of `files`: its path, and the one that `files` has told it was before.

        Yield an error where there is none.

        :raises RecordError: when the scope is not recorded
        """
        if scope.kind == "commit":
            changed = {net.path: net for net in with_renames(self._since_commit())}
            for path, _ in files:
                yield changed.get(self._told_name(path) or b"") or RecordError("the file is not changed there")
            return
        turns = self._with_undos(self._turns_in(scope), scope)
        names = [None if path is None else self._told_name(path) for pair in files for path in pair]
        nets = iter(self._nets(names, turns, scope.kind != "turn"))
        for (_, net), (_, old) in zip(nets, nets, strict=True):
            if net is None:
                yield RecordError(_GONE)
            else:
                is_moved = old is not None and (old.kind, net.kind) == ("deleted", "added")
                yield renamed(old, net) if old is not None and is_moved else net

    def spans(self, path: str) -> tuple[list[tuple[Owned, str, bool]], tuple[str, ...]]:
        """Return which lines of `path` are an agent's, with the turn and whether it was seen; and all marked hunks."""
        name = self.name_in(path)
        writes = [] if name is None else self._store.writes(name)
        if name is None or not writes:
            return [], ()
        origins = self._origins()
        agents = {turn for turn, origin in origins.items() if origin is not None}
        with suppress(OSError, TooLargeError):
            now = self.look(name)
            last = writes[-1].after
            if now is not None and now.version != last:
                # Somebody has written it since.
                self._store.contents.put([(now.version.digest, now.data)])
                writes = [*writes, Write(None, name, last, now.version)]
        try:
            found = owners(writes, agents, self._baseline.indexes.text)
        except MissingTextError:
            return [], ()
        seen = {turn: self._seen(turn, name) for turn in {write.turn for write in writes} if turn is not None}
        keys = tuple(dict.fromkeys(key for row in seen.values() for key in row.hunks))
        return [(span, self.identifier(origins[span.turn] or span.turn), seen[span.turn].whole) for span in found], keys

    def mark(self, number: int, path: str | None, hunks: Sequence[str], seen: bool) -> None:
        """Note that the user has `seen` of a turn: `hunks` of the file `path`, or all of it, or of all its files."""
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
        undone = self._undone()
        return [turn for turn in undone if _first(turn, undone) in turns]

    def _undone(self) -> dict[int, int | None]:
        """Return for each turn the one that it undid, None for an agent's."""
        return {turn.id: turn.undone for turn in self._store.turns()}

    def _origins(self) -> dict[int, int | None]:
        """Return for each turn the agent's turn whose text it wrote: itself, the one it brought back, or None."""
        undone = self._undone()
        return {turn: _first(turn, undone) if _depth(turn, undone) % 2 == 0 else None for turn in undone}

    def _net(
        self, path: bytes, turns: Collection[int], to_now: bool, fetched: Mapping[str, bytes] | None = None
    ) -> Net | None:
        """Return the net change of `turns` in `path`; None where a text is not there any more.

        `fetched` are the bytes of some digests.
        """
        writes = self._store.writes(path)
        if to_now and writes:
            with suppress(OSError, TooLargeError):
                now = self.look(path)
                version = None if now is None else now.version
                if version != writes[-1].after:
                    self._store.contents.put([] if now is None else [(now.version.digest, now.data)])
                    writes.append(Write(None, path, writes[-1].after, version))
        try:
            return net_of(writes, turns, to_now, partial(self._text, fetched or {}))
        except MissingTextError:
            return None

    def _nets(
        self, paths: Sequence[bytes | None], turns: Collection[int], to_now: bool
    ) -> Iterator[tuple[bytes, Net | None]]:
        """Yield each of `paths`, b"" for None, with what `_net` returns; git is asked for the bytes of many at once."""
        for start in range(0, len(paths), _AT_ONCE):
            names = [path or b"" for path in paths[start : start + _AT_ONCE]]
            writes = [write for path in names for write in self._store.writes(path)]
            fetched = self._baseline.indexes.fetch(
                side.digest for write in writes for side in (write.before, write.after) if side is not None
            )
            for path in names:
                yield path, self._net(path, turns, to_now, fetched)

    def _text(self, fetched: Mapping[str, bytes], digest: str) -> bytes | None:
        return fetched[digest] if digest in fetched else self._baseline.indexes.text(digest)

    def _unseen(self, turns: Sequence[int], path: bytes) -> bool:
        there = {write.turn for write in self._store.writes(path)}
        return any(not self._seen(turn, path).whole for turn in turns if turn in there)

    def _file(self, net: Net | None, path: bytes, turns: Sequence[int]) -> ChangedFile:
        """Return `net` of `path` as Emacs is told of it; its kind is "" where there is nothing to tell."""
        name = self.name_out(path)
        if net is None:
            return ChangedFile(name or "", "modified" if name else "", binary=True)
        kind = net.kind if name is not None else None
        added, deleted, binary = sizes(net) if kind not in (None, "mode") else (0, 0, False)
        rows = [self._seen(turn, path) for turn in turns if len(turns) == 1]
        return ChangedFile(
            path=name or "",
            kind=kind or "",
            previous=None if net.previous is None else self.name_out(net.previous),
            binary=binary,
            added=added,
            deleted=deleted,
            seen=bool(rows) and all(row.whole for row in rows),
            seen_hunks=tuple(key for row in rows for key in row.hunks),
            mixed=net.mixed,
            writers=net.writers,
        )

    def _seen(self, turn: int, path: bytes) -> SeenRow:
        """Return the marks; a mark of a whole file ends when the file changes."""
        row = self._store.seen(turn, path)
        last = self._last(turn, path)
        return SeenRow(last, row.whole and row.digest == last, row.hunks)

    def _last(self, turn: int, path: bytes) -> str:
        afters = [write.after for write in self._store.writes(path) if write.turn == turn]
        return "" if not afters or afters[-1] is None else afters[-1].digest

    def _since_commit(self) -> Iterable[Net]:
        try:
            self.scan(NOBODY)
            found = self._baseline.indexes.committed()
        except FAILURES as error:
            raise RecordError(_reason(error)) from None
        for path, version in found.items():
            before = None if version is None else self._baseline.indexes.text(version.digest)
            with suppress(OSError, TooLargeError):
                now = self.look(path)
                if before is not None and now is not None and b"\r\n" in now.data and b"\r" not in before:
                    # A commit may have other line ends than the disk.
                    before = before.replace(b"\n", b"\r\n")
                loaded = None if version is None or before is None else Loaded(version, before)
                if (
                    loaded is None
                    or now is None
                    or loaded.data != now.data
                    or loaded.version.mode != git_mode(now.version.mode)
                ):
                    yield Net(path, loaded, now)


def _first(turn: int, undone: Mapping[int, int | None]) -> int:
    """Return the turn that `turn` and those that it undid began with."""
    return turn if (of := undone.get(turn)) is None else _first(of, undone)


def _chain(turn: int, undone: Mapping[int, int | None]) -> set[int]:
    """Return `turn` and all that undid it, undid that, and so on."""
    found = {turn}
    for later in sorted(undone):
        if undone[later] in found:
            found.add(later)
    return found


def _depth(turn: int, undone: Mapping[int, int | None]) -> int:
    """Return how many undos `turn` is away from a turn of an agent."""
    return 0 if (of := undone.get(turn)) is None else 1 + _depth(of, undone)


def _stamp(path: bytes) -> tuple[int, int] | None:
    """Return the inode and the time of the last write of `path`, in ns; None without a file."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _put_aside(path: str) -> str:
    """Rename the file `path`; return its new name, with the date.

    :raises OSError: when that fails
    """
    aside = f"{path}.damaged-{time.strftime('%Y-%m-%d-%H%M%S')}"
    os.rename(path, aside)
    return aside


def _make_private(directory: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    if not os.path.isdir(directory):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
    os.chmod(directory, 0o700)


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def forget_unused(environ: Mapping[str, str]) -> None:
    """Remove what is recorded of roots that no Emacs has open."""
    above = state_directory(environ)
    with suppress(FileNotFoundError):
        for name in os.listdir(above):
            # A file that is none of ours may lie in any of these.
            with suppress(NotADirectoryError):
                for slot in os.listdir(os.path.join(above, name)):
                    with suppress(NotADirectoryError):
                        _forget_slot(os.path.join(above, name, slot))
            with suppress(OSError):
                os.rmdir(os.path.join(above, name))


def _forget_slot(directory: str) -> None:
    """Remove the record in `directory`, unless an Emacs has it open.

    :raises NotADirectoryError: when that fails
    """
    with open(os.path.join(directory, "lock"), "ab") as lock, suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)
