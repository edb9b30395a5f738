# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of one root: the writes of agents and the user, turn by turn."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from qwen_companion.base.processes import has_ended
from qwen_companion.files.table import Change, Look
from qwen_companion.files.versions import Loaded, TooLargeError
from qwen_companion.journal.answers import Answers, RecordError
from qwen_companion.journal.baselines import reason_of
from qwen_companion.journal.database import StoreError
from qwen_companion.journal.histories import Histories
from qwen_companion.journal.names import Names
from qwen_companion.journal.nets import Nets
from qwen_companion.journal.record_directory import NoRecordError, RecordDirectory
from qwen_companion.journal.sites import Site, ThisMachine
from qwen_companion.journal.store import DISK, MERGE, UNDO, UNREVIEWED, Store, TurnRow
from qwen_companion.journal.subscriptions import SHELL_TOOL
from qwen_companion.journal.undos import Undos
from qwen_companion.journal.unseen import Unseen
from qwen_companion.privacy.rules import edited_file

ONE_GO_MS = 5 * 60 * 1000
"""Milliseconds within which a further hunk that the user undoes belongs to the same turn."""

_FOUND = (DISK, UNREVIEWED, SHELL_TOOL)
"""Tools whose writes only a scan can find."""

_TEMPORARY = b".qwen-companion-"
"""Prefix of temporary files, which are renamed once they are complete."""
_WRITTEN_S = 600.0
"""Seconds after which a temporary file is no longer being written."""

_MAX_STAMPS = 10_000
"""Only those of the last seconds matter."""


@dataclass(frozen=True)
class Cause:
    """The author of a write: an agent in `turn` by `tool`; with None somebody else, and without a tool the user."""

    turn: int | None = None
    tool: str = ""
    agent: str = ""


NOBODY = Cause(tool=DISK)
"""An unknown author."""

Chooser = Callable[[Sequence[bytes]], Sequence[Cause]]
"""Returns the causes of changes in files; called after the files have been read."""


def _always(cause: Cause) -> Chooser:
    return lambda paths: [cause] * len(paths)


class Record:
    """The record of one root.  Its methods block on disk I/O and are thread-safe."""

    def __init__(self, root: str, environ: Mapping[str, str], site: Site | None = None) -> None:
        """`root` is Emacs's name of the directory, at `site`, by default on this machine.

        :raises NoRecordError: if it cannot be recorded
        """
        self.root = root
        self.site = site or ThisMachine(root, environ)
        if f"{self.site.home}/".startswith(self.site.true.rstrip("/") + "/"):
            raise NoRecordError("it is your home directory, or contains it")
        self._lock = threading.RLock()
        self._environ = environ
        try:
            self._directory = RecordDirectory(root, environ)
        except OSError as error:
            raise NoRecordError(reason_of(error)) from None
        try:
            store = self._directory.open_store()
        except (OSError, StoreError) as error:
            self._directory.close()
            raise NoRecordError(reason_of(error)) from None
        self.rules = self.site.rules
        self.visited: Collection[str] = ()
        """The files that are open in Emacs, by their names there."""
        self._stamps: dict[bytes, tuple[int, int] | None] = {}
        """Stamp of each file at the last agent change that a scan (not a tool) found."""
        self._begin_with(store)

    def _begin_with(self, store: Store) -> None:
        """Use `store` from now on, and set up the parts that depend on it."""
        self.store = store
        self._times: dict[int, tuple[bytes, float]] = {}
        """The files of scanned changes of agents, and the times of these, by number."""
        self._files = self.site.files(self._directory.trees, store)
        self.names = Names(self.root, self._directory.key, self.site.true, self.site.true_directory)
        self.answers = Answers(self.root, self.names, store, self._files)
        self.nets = Nets(store, self._files)
        self.unseen = Unseen(store, self._files, self.names, self.site)
        self._histories = Histories(self.site.true, self._environ)
        self._forget_repositories()

    def _forget_repositories(self) -> None:
        """Forget what was recorded of the private directories of repositories: no undo may write there."""
        by_directory: dict[str, list[bytes]] = {}
        for path in self.store.written():
            if (directory := self.rules.own_directory(os.fsdecode(path))) is not None:
                by_directory.setdefault(directory, []).append(path)
        for directory, paths in by_directory.items():
            self.store.forget_files(paths, self._histories.left_alone(directory))

    @property
    def news(self) -> str | None:
        """A message for the user about a previous record that is lost; None for none."""
        return self._directory.news

    def close(self) -> None:
        """Let another Emacs use the record."""
        with self._lock:
            self.store.database.close()
            self._directory.close()

    def replace_damaged(self, damage: str) -> None:
        """Begin anew, with the store's file put aside for its `damage`; `news` reports that.

        :raises OSError, StoreError: if that fails
        """
        with self._lock:
            before = self.store
            self._begin_with(self._directory.replace_store(damage))
            before.database.close()

    def restore(self) -> bool:
        """Begin anew if the record has been removed; return whether it was.

        :raises DamagedStoreError: if its file has been emptied
        :raises OSError, StoreError, NoRecordError: if that fails
        """
        with self._lock:
            store = self._directory.restore()
            if store is not None:
                self.store.database.close()
                self._begin_with(store)
            return store is not None

    # --- Recording ---

    def resume(self) -> list[TurnRow]:
        """Return the turns that were running when another process recorded them, and still may be; end the others."""
        going: list[TurnRow] = []
        for turn in self.store.turns():
            if turn.end is None:
                if turn.pid is not None and not has_ended(turn.pid, turn.started or ""):
                    going.append(turn)
                else:
                    self.end(turn.id, turn.start)
        return going

    def scan(self, cause: Cause | Chooser, skip: Callable[[bytes], bool] = lambda _path: False) -> bool:
        """Scan all files except those to `skip`; record the changes as `cause`'s.  Return whether there are any."""
        choose: Chooser = _always(cause) if isinstance(cause, Cause) else cause
        with self._lock:
            for known in (self._stamps, self._times):
                if len(known) > _MAX_STAMPS:
                    known.clear()

            def keep(changes: Sequence[Change]) -> None:
                known = (replace(each, known=each.known and not self._is_an_editors(each)) for each in changes)
                self._keep(list(known), choose)

            spare: set[bytes] = set()

            def is_left_out(path: bytes) -> bool:
                if os.path.basename(path).startswith(_TEMPORARY):
                    spare.add(path)
                    return True
                return skip(path)

            found = self._files.take(keep, is_left_out)
            for path in spare if isinstance(self.site, ThisMachine) else ():
                self._drop_if_spare(path)
            self._note(found, choose)
            return bool(found.changes)

    def _note(self, found: Look, choose: Chooser) -> None:
        """Add notes to a turn about the files and repositories in `found` that are not recorded."""
        notes = [f"not recorded: {text}" for text in found.left_out]
        changed, is_any_new = self._histories.look(found.repositories)
        if is_any_new:
            # Some of their files may have been found before they were recognized as repositories.
            self._forget_repositories()
        if notes:
            (of,) = choose([os.fsencode(self.site.true)])
            if of.turn is not None:
                for text in notes:
                    self.store.add_note(of.turn, text)
        # The time of a commit is that of the file that it has written.
        causes = choose(list(changed.values())) if changed else ()
        for own, of in zip(changed, causes, strict=True):
            if of.turn is not None:
                self.store.add_note(of.turn, *self._histories.note(of.turn, own))

    def _drop_if_spare(self, path: bytes) -> None:
        """Delete the temporary file `path` of a killed process if its bytes are stored elsewhere.

        They are if a recorded file beside it, or a stored version of one, begins with them.
        """
        with suppress(OSError, TooLargeError):
            left = self.look(path)
            if left is None or time.time() - self.site.changed_at(path) < _WRITTEN_S:
                return
            beside = [each for each in self.store.written() if os.path.dirname(each) == os.path.dirname(path)]
            writes = [write for each in beside for write in self.store.writes(each)]
            digests = {each.digest for write in writes for each in (write.before, write.after) if each is not None}
            texts = (*map(self.store.contents.get, digests), *(each.data for each in map(self.look, beside) if each))
            if any(text is not None and text.startswith(left.data) for text in texts):
                os.unlink(path)

    @property
    def has_baseline(self) -> bool:
        """Whether the first scan is complete."""
        return self._files.is_complete

    def directories(self) -> set[bytes]:
        """Return the absolute names of the directories in which files are recorded.

        :raises GitError, OSError: if that fails
        """
        with self._lock:
            return self._files.directories()

    def observe(self, path: bytes, loaded: Loaded | None, cause: Cause | Chooser) -> bool:
        """Record that `cause` wrote `loaded` to `path`.  Return whether that was a change."""
        with self._lock:
            change = self._files.observe(path, loaded)
            if change is not None:
                self._keep([change], _always(cause) if isinstance(cause, Cause) else cause)
            return change is not None and change.known

    def claim(self, path: bytes, loaded: Loaded | None, turn: int | None = None) -> bool:
        """Record that Emacs has written `loaded` to `path`, in the `turn` of an undo or in none.

        Correct a scan that attributed the same write to an agent a moment ago, before the report of Emacs had arrived.
        If the file was rewritten since with equal contents, the first write was the agent's.
        """
        with self._lock:
            if self.observe(path, loaded, Cause(turn, "" if turn is None else UNDO)):
                return True
            if path in self._stamps and self._stamps[path] != self.site.stamp(path):
                return False
            version = None if loaded is None else loaded.version
            return self.store.reassign(path, version, turn, _FOUND)

    def written_since(self, turn: int, since: float) -> list[int]:
        """Return the numbers of the scanned writes of `turn` made after `since`, in s since the epoch."""
        with self._lock:
            return [write for write in self.store.numbers(turn) if self._times.get(write, (b"", -math.inf))[1] >= since]

    def found(self, since: float) -> list[tuple[int, int, bytes, float]]:
        """Return the scanned changes by agents since `since`: number, turn, file and time of each."""
        with self._lock:
            times = {write: its for write, its in self._times.items() if since <= its[1] < math.inf}
            turns = dict(self.store.turns_of(times))
            return [(write, turns[write], *its) for write, its in times.items() if write in turns]

    def _keep(self, changes: Sequence[Change], choose: Chooser) -> None:
        by_cause: dict[Cause, list[Change]] = {}
        causes = iter(choose([change.path for change in changes if change.known]))
        for change in changes:
            cause = next(causes) if change.known else NOBODY
            by_cause.setdefault(cause, []).append(change)
            if cause.turn is None:
                self._stamps.pop(change.path, None)
            elif cause.tool in _FOUND:
                self._stamps[change.path] = self.site.stamp(change.path)
        for cause, its in by_cause.items():
            rows = [(change.path, change.before, change.after) for change in its]
            linked = {change.path for change in its if change.linked}
            writes = self.store.record(rows, cause.turn, cause.tool, cause.agent, linked)
            if cause.turn is not None and cause.tool in _FOUND:
                times = ((change.path, self.site.changed_at(change.path)) for change in its)
                self._times.update(zip(writes, times, strict=True))

    def _is_an_editors(self, change: Change) -> bool:
        """Return whether `change` is an editor's: of an auto-save, lock, backup or swap file beside its original."""
        edited = edited_file(os.fsdecode(change.path))
        if edited is None:
            return False
        directory, name = os.path.split(edited)
        there = (os.fsencode(each) for each in (edited, os.path.join(directory, f".#{name}")))
        return (
            any(os.path.lexists(each) or self.store.contents.current(each, None) is not None for each in there)
            or self.names.name_out(os.fsencode(edited)) in self.visited
            # An editor also removes a file other than a backup if its original was never saved; a backup may be the
            # only copy.
            or (change.after is None and not change.path.endswith(b"~") and not self.store.is_known(change.path))
        )

    def look(self, path: bytes) -> Loaded | None:
        """Return the file at `path`, in the form to record.

        :raises TooLargeError, OSError: if that fails
        """
        return self._files.load(path)

    def end(self, turn: int, time: int) -> bool:
        """Record that `turn` ended at `time`, or forget it without changes and notes; return whether it is kept."""
        row = self.store.turn(turn)
        if self.store.paths([turn]) or (row is not None and row.notes):
            self.store.end(turn, time)
            return True
        self.store.discard(turn)
        return False

    # --- Undoing ---

    def undo(
        self, undone: int, label: str, paths: Sequence[bytes], time: int, bring_back: bool = False
    ) -> TurnRow | None:
        """Record that the user wrote `paths` to undo a part of the turn `undone`; return None if nothing changed.

        With `bring_back`, the user undid the newest undo of that turn.  Hunks that are undone one after the other are
        one turn.

        :raises RecordError: if that fails
        """
        with self._lock:
            if bring_back:
                undone = self._undoing(undone, paths) or undone
            of = self.store.turn(undone)
            if of is None:
                raise RecordError("the turn is not recorded any more")
            last = self.store.last_turn()
            if last is None or last.undone != undone or time > (last.end or 0) + ONE_GO_MS:
                row = TurnRow(0, of.session, of.client, UNDO, label, time, time, undone, (), None, None)
                turn = self.store.begin(row)
            else:
                turn = last
            changed = False
            for path in paths:
                with suppress(TooLargeError, OSError):
                    changed = self.claim(path, self.look(path), turn.id) or changed
            if not self.end(turn.id, time) or not changed:
                return None
            if turn is last:
                self.store.rename(turn.id, self._go_label(turn))
            return turn

    def _undoing(self, undone: int, paths: Sequence[bytes]) -> int | None:
        """Return the newest turn that undid the turn `undone` in one of `paths` and is not itself undone there."""
        undos = Undos(self.store.turns())
        for turn in undos.of(undone):
            if any(self._changes(path, undos.chain(turn)) for path in paths):
                return turn
        return None

    def _changes(self, path: bytes, turns: Collection[int]) -> bool:
        """Return whether `turns` together changed `path`, or may have."""
        net = self.nets.net(path, turns, to_now=False)
        return net is None or net.kind is not None

    def _go_label(self, turn: TurnRow) -> str:
        """Return a label for the steps undone in `turn`."""
        paths = self.store.paths([turn.id])
        what = f"{len(paths)} files" if len(paths) > 1 else os.path.basename(os.fsdecode(paths[0]))
        verb = "Bring back" if Undos(self.store.turns()).brings_back(turn.id) else "Undo"
        return f"{verb} changes of {what}".encode("utf-8", "replace").decode()

    def merge(self, of: TurnRow | None, label: str, paths: Sequence[bytes], time: int) -> TurnRow | None:
        """Record that the user merged parts of `of`, a turn in a worktree, or of no turn, into `paths`.

        Parts that are merged one after the other are one turn.  Return it, or None if nothing changed.
        """
        session, client = ("", "") if of is None else (of.session, of.client)
        with self._lock:
            turn = self.store.last_turn()
            is_last = turn is not None and (turn.source, turn.session, turn.prompt) == (MERGE, session, label)
            if turn is None or not is_last or time > (turn.end or 0) + ONE_GO_MS:
                turn = self.store.begin(TurnRow(0, session, client, MERGE, label, time, time, None, (), None, None))
            for path in paths:
                with suppress(TooLargeError, OSError):
                    self.claim(path, self.look(path), turn.id)
            return turn if self.end(turn.id, time) else None
