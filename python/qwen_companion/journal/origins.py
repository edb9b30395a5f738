# SPDX-License-Identifier: GPL-3.0-or-later
"""The author of each line of a file: an agent in a turn, the user, or somebody before the journal.

The origin of a line belongs to its text.  Each recorded write is compared with the text before it, and lines that stay
keep their origins.  So do lines that a write only restores: a whole earlier text (a stash, another branch, an undo), or
lines that were cut, here or in an earlier write.  If an agent has written one of two equal lines and it is unknown
which, neither is attributed to the agent.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby, islice, pairwise
from types import MappingProxyType

from qwen_companion.files.versions import LINK, TooLargeError, Version
from qwen_companion.journal.baselines import Baseline
from qwen_companion.journal.changes import ALIKE, MAX_COMPARED, STEPS, is_binary, lines_of
from qwen_companion.journal.contents import read_version
from qwen_companion.journal.store import SELECT_WRITE, Store, Write, write_of
from qwen_companion.journal.undos import Undos
from qwen_companion.texts.hunks import Budget, Hunk, compare

BEFORE, USER = 0, -1
"""Origins that are no turn of an agent.  A line that the user wrote over one of turn T has the origin `USER - T`."""

_MOVED = 20
"""Letters and digits by which a block is recognized, as for `git blame -M`.  At its old position, half suffice."""

_MOST_RECALLED = 5000
"""Most lines of one write that are searched among deleted lines: more are no block that was put aside."""

_NEAR = 3
"""Lines around a change within which equal lines are not distinguished."""

_MOST_GONE = 20
"""Most missing files that are searched for the text of a new one."""

_MOST_LOOKED_AT = 200
"""Most files, the last written ones, that are checked for being missing."""

_AT_ONCE = 50
"""Writes whose texts are in memory at once."""

LONG = 8
"""Writes of a file from which they are followed in advance: so many take 0.1 s in a file of 20,000 lines."""

_Gone = Sequence[tuple[bytes, int]]
"""Deleted lines with one text: the key of the line before each, and its origin."""


def turn_behind(origin: int) -> int:
    """Return the turn in `origin`, including that of a line that the user wrote over; 0 for none."""
    return origin if origin >= BEFORE else USER - origin


@dataclass
class Text:
    """A text at some time: its `lines`, the origin of each, and the turns that deleted lines, by the next line."""

    lines: Sequence[str]
    origins: list[int]
    gaps: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Yield the runs of lines with one origin: the first line, from 1, their number, and the origin."""
        line = 1
        for origin, group in groupby(self.origins):
            count = sum(1 for _ in group)
            yield line, count, origin
            line += count


@dataclass(frozen=True)
class _Known:
    """The state of a file: its `text` after the write with the number `last`, None if it cannot be compared."""

    last: int
    version: Version | None
    text: Text | None


class Origins:
    """The origins of lines below one root.  Its methods block on disk I/O, are thread-safe, and raise StoreError.

    The results for writes are stored, so that a file with thousands of them needs no longer than any other.
    """

    def __init__(self, store: Store, files: Baseline) -> None:
        """Read writes from `store`, which also stores the results, and texts from `files`."""
        self._store = store
        self._files = files
        self._tracing: set[bytes] = set()

    def of(self, path: bytes, data: bytes | None = None) -> Text | None:
        """Return the text of `path` with the origins of its lines.

        `data` are its bytes, by default those on the disk.  Lines that are not recorded yet are the user's.  None for a
        text that is binary, too long or missing.
        """
        fetched: dict[str, bytes] = {}
        if data is None:
            with suppress(OSError, TooLargeError):
                loaded = self._files.load(path)
                if loaded is not None and loaded.version.mode != LINK:
                    data = fetched[loaded.version.digest] = loaded.data
        lines = None if data is None else _comparable(data)
        if lines is None:
            return None
        text = self.trace(path, fetched)
        if text is None:
            text = self._inherited(path, lines, USER, looks=not self._store.is_known(path))
        if text is None or text.lines == lines:
            return text or Text(lines, [BEFORE] * len(lines))
        result = self._advance(path, text, lines, USER)
        for digest in fetched:
            self._bring_back(path, digest, result, USER)
        return result

    def trace(self, path: bytes, fetched: Mapping[str, bytes] = MappingProxyType({})) -> Text | None:
        """Return the text after the last recorded write of `path`, None if it has no text that can be compared.

        `fetched` are the bytes of some digests.
        """
        known = self._known(path, fetched)
        writes = self._writes(path, -1 if known is None else known.last)
        agents = Undos(self._store.turns()).origins() if writes else {}
        for index, (number, write) in enumerate(writes):
            if index % _AT_ONCE == 0:
                sides = (side for _, each in writes[index : index + _AT_ONCE] for side in (each.before, each.after))
                fetched = self._files.fetch(side.digest for side in sides if side is not None)
            author = USER if write.turn is None else agents.get(write.turn) or USER
            start = self._before(path, known, write, fetched)
            text = self._after(path, start, write, author, fetched, is_first=known is None)
            known = _Known(number, write.after, text)
            # For a deleted file, its last text: another file may be made from it.
            kept = start if write.after is None else text
            if kept is not None:
                self._store.database.execute("insert or replace into origins values(?, ?)", number, _packed(kept))
        return known and known.text

    def trace_long(self, turn: int) -> None:
        """Follow the files of `turn` with many writes that were not followed yet."""
        for path in self._store.paths([turn]):
            known = self._known(path, {})
            if len(self._writes(path, -1 if known is None else known.last)) >= LONG:
                self.trace(path)

    def _writes(self, path: bytes, last: int) -> list[tuple[int, Write]]:
        query = f"{SELECT_WRITE.replace('select', 'select id,')} where path = ? and id > ? order by id"
        return [(int(number), write_of(row)) for number, *row in self._store.database.rows(query, path, last)]

    def _before(self, path: bytes, known: _Known | None, write: Write, fetched: Mapping[str, bytes]) -> Text | None:
        """Return the text before `write`, the successor of the state `known`."""
        if known is not None and known.text is not None and known.version == write.before:
            return known.text
        lines = self._lines(write.before, fetched)
        if not lines:
            return None if lines is None else Text([], [])
        if known is None or known.text is None:
            return self._inherited(path, lines, USER) or Text(lines, [BEFORE] * len(lines))
        # A turn between was pruned.
        return self._advance(path, known.text, lines, BEFORE, is_kept=True)

    def _after(
        self, path: bytes, start: Text | None, write: Write, author: int, fetched: Mapping[str, bytes], is_first: bool
    ) -> Text | None:
        """Return the text after `write` by `author`, which was `start` before; `is_first`: no state was known."""
        lines = self._lines(write.after, fetched)
        if lines is None or start is None:
            return None if lines is None else Text(lines, [BEFORE] * len(lines))
        if is_first and write.before is None:
            return self._inherited(path, lines, author) or self._advance(path, start, lines, author)
        result = self._advance(path, start, lines, author, is_kept=True)
        if write.after is not None:
            self._bring_back(path, write.after.digest, result, author)
        return result

    def _advance(self, path: bytes, text: Text, lines: Sequence[str], author: int, is_kept: bool = False) -> Text:
        """Return `lines`, made by `author` from `text` of `path`, with their origins.

        If `is_kept`, store the origins of the deleted lines too.
        """
        hunks = compare(text.lines, lines, Budget(STEPS))
        known = list(text.origins)
        _doubt(text.lines, known, [range(hunk.old_start, hunk.old_end) for hunk in hunks], author)
        text = Text(text.lines, known, text.gaps)
        end = Hunk(len(text.lines), len(text.lines), len(lines), len(lines))
        origins: list[int] = []
        old = 0
        for hunk in [*hunks, end]:
            origins += text.origins[old : hunk.old_start]
            origins += _written(text.origins[hunk.old_start : hunk.old_end], hunk.new_end - hunk.new_start, author)
            old = hunk.old_end
        result = Text(lines, origins, _gaps(text, hunks, end, author))
        new = {lines[index] for hunk in hunks for index in range(hunk.new_start, hunk.new_end)}
        _take_back(text, result, hunks, author, self._recall(path, new))
        _doubt(lines, result.origins, [range(hunk.new_start, hunk.new_end) for hunk in hunks], author)
        if author == USER:
            _doubt_islands(result, hunks)
        if is_kept:
            gone = [
                (path, _key(text.lines[index]), _key_before(text.lines, index), text.origins[index])
                for hunk in hunks
                for index in range(hunk.old_start, hunk.old_end)
            ]
            with self._store.database.transaction() as db:
                db.executemany(
                    "insert into removed values(?, ?, ?, ?) on conflict do update set origin = excluded.origin"
                    # Of equal lines after equal ones, no line is attributed to an agent that may not have written it.
                    " where excluded.origin <= 0 or origin > 0",
                    gone,
                )
        return result

    def _recall(self, path: bytes, lines: Collection[str]) -> Mapping[str, _Gone]:
        """Return which of `lines` were once in the file `path`; none if they are too many."""
        found: dict[str, _Gone] = {}
        if len(lines) > _MOST_RECALLED:
            return found
        query = "select previous, origin from removed where path = ? and line = ? order by origin"
        with self._store.database.transaction():
            for line in lines:
                if rows := self._store.database.rows(query, path, _key(line)):
                    found[line] = [(bytes(previous), int(origin)) for previous, origin in rows]
        return found

    # --- Stored results ---

    def _stored(self, path: bytes, after: str | None = None) -> tuple[int, Version | None, Version | None, bytes]:
        """Return the last write of `path` with a stored result: its number, both its versions, and the result.

        With `after`, it is one that left that digest.

        :raises LookupError: if there is none
        """
        query = (
            "select w.id, w.before, w.before_mode, w.after, w.after_mode, o.state from writes w"
            " join origins o on o.write = w.id where w.path = ? and w.after is coalesce(?, w.after)"
            " order by w.id desc limit 1"
        )
        row = self._store.database.row(query, path, after)
        if row is None:
            raise LookupError
        return int(row[0]), read_version(row[1], row[2]), read_version(row[3], row[4]), row[5]

    def _known(self, path: bytes, fetched: Mapping[str, bytes]) -> _Known | None:
        with suppress(LookupError):
            number, _, version, state = self._stored(path)
            lines = self._lines(version, fetched)
            if lines is not None:
                return _Known(number, version, Text([], []) if version is None else _unpacked(state, lines))
        return None

    def _bring_back(self, path: bytes, digest: str, result: Text, author: int) -> None:
        """Give the lines of `result`, with that `digest`, their origins from when `path` had the same text before.

        A line that an agent has rewritten since then keeps its origin, as do lines that the agent `author` writes now.
        """
        with suppress(LookupError):
            text = _unpacked(self._stored(path, digest)[3], result.lines)
            if text is not None:
                pairs = zip(text.origins, result.origins, strict=True)
                result.origins = [
                    new if old > BEFORE and (new > BEFORE or author != USER) else old for old, new in pairs
                ]

    def _lines(self, version: Version | None, fetched: Mapping[str, bytes]) -> Sequence[str] | None:
        """Return the lines of `version`, none for no file; None if they cannot be compared."""
        if version is None:
            return []
        data = fetched.get(version.digest) or self._files.text(version.digest)
        return None if data is None or version.mode == LINK else _comparable(data)

    def _inherited(self, path: bytes, lines: Sequence[str], author: int, looks: bool = False) -> Text | None:
        """Return `lines`, the first known ones of `path`, with the origins in the file that `author` made them from.

        That is the most similar one of the deleted files, and with `looks`, of those missing on the disk; None without
        one.
        """
        there = set(lines)
        best: tuple[float, bytes, Text] | None = None
        for name in islice(self._gone(looks), _MOST_GONE):
            text = None if name == path or name in self._tracing else self._last_text(name)
            if text is not None and text.lines:
                score = len(there & set(text.lines)) / max(len(there), len(set(text.lines)))
                if score >= ALIKE and (best is None or score > best[0]):
                    best = score, name, text
        if best is None:
            return None
        _, old, text = best
        return self._advance(old, text, lines, author)

    def _gone(self, looks: bool) -> Iterator[bytes]:
        """Yield the deleted files, the last one first, and with `looks`, those that are missing now."""
        query = (
            "select path, after is null from writes where id in (select max(id) from writes group by path)"
            " order by id desc limit ?"
        )
        rows = self._store.database.rows(query, _MOST_LOOKED_AT)
        for path, is_deleted in rows:
            with suppress(OSError, TooLargeError):
                if is_deleted or (looks and self._files.load(bytes(path)) is None):
                    yield bytes(path)

    def _last_text(self, path: bytes) -> Text | None:
        """Return the last text of `path`, which is missing."""
        # Two of them may look as if one had been made from the other.
        self._tracing.add(path)
        try:
            text = self.trace(path)
        finally:
            self._tracing.discard(path)
        if text is not None and text.lines:
            return text
        with suppress(LookupError):
            _, version, _, state = self._stored(path)
            lines = self._lines(version, {})
            return None if lines is None else _unpacked(state, lines)
        return None


def _packed(text: Text) -> bytes:
    runs = [number for _, count, origin in text.runs for number in (count, origin)]
    return zlib.compress(json.dumps([runs, sorted(text.gaps.items())]).encode(), 1)


def _unpacked(state: bytes, lines: Sequence[str]) -> Text | None:
    """Return `lines` with their stored origins; None if these are damaged or belong to another text."""
    with suppress(zlib.error, ValueError, TypeError):
        runs, gaps = json.loads(zlib.decompressobj().decompress(state, MAX_COMPARED))
        if sum(runs[::2]) == len(lines):
            origins = [origin for count, origin in zip(runs[::2], runs[1::2], strict=True) for _ in range(count)]
            return Text(lines, origins, dict(gaps))
    return None


def _comparable(data: bytes) -> list[str] | None:
    return None if is_binary(data) or len(data) > MAX_COMPARED else lines_of(data)


def _key(line: str) -> bytes:
    return blake2b(line.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _key_before(lines: Sequence[str], index: int) -> bytes:
    return _key(lines[index - 1]) if index > 0 else b""


def _weight(line: str) -> int:
    return sum(map(str.isalnum, line))


# --- One write ---


def _written(gone: Sequence[int], count: int, author: int) -> list[int]:
    """Return the origins of `count` lines by `author` that replace lines with the origins `gone`."""
    if author != USER or not any(map(turn_behind, gone)):
        return [author] * count
    last = len(gone) - 1
    return [USER - turn_behind(gone[min(index, last)]) for index in range(count)]


def _gaps(text: Text, hunks: Sequence[Hunk], end: Hunk, author: int) -> dict[int, int]:
    """Return the positions at which agents have deleted lines, after `hunks` by `author`."""
    # Lines added or deleted at a gap fill it, or are the user's reaction to it.
    kept = [gap for gap in text.gaps if not any(hunk.old_start <= gap <= hunk.old_end for hunk in hunks)]
    moved: dict[int, int] = {}
    old = 0
    for hunk in [*hunks, end]:
        shift = hunk.new_start - hunk.old_start
        moved.update((gap + shift, text.gaps[gap]) for gap in kept if old <= gap < hunk.old_start + (hunk is end))
        if hunk.new_start == hunk.new_end and hunk.old_end > hunk.old_start and author > BEFORE:
            moved[hunk.new_start] = author
        old = hunk.old_end
    return moved


def _take_back(text: Text, result: Text, hunks: Sequence[Hunk], author: int, recalled: Mapping[str, _Gone]) -> None:
    """Give lines that `author` has only moved, or restored from those `recalled`, their previous origins."""
    moved: dict[str, list[tuple[bytes, int]]] = defaultdict(list)
    for hunk in hunks:
        for index in range(hunk.old_start, hunk.old_end):
            moved[text.lines[index]].append((_key_before(text.lines, index), text.origins[index]))
    for hunk in hunks:
        index = hunk.new_start
        while index < hunk.new_end:
            run = _run_from(index, hunk.new_end, result.lines, moved)
            # Text that an agent writes and that existed before may have been moved, even if it is only a brace.
            least = 0 if author > BEFORE else _MOVED
            if not _is_enough(run, index, result.lines, least):
                run, least = _run_from(index, hunk.new_end, result.lines, recalled), _MOVED
            if _is_enough(run, index, result.lines, least):
                for line, (_, origin) in enumerate(run, index):
                    if author <= BEFORE or origin <= BEFORE or least == 0:
                        result.origins[line] = origin
            index += max(1, len(run))


def _run_from(start: int, end: int, lines: Sequence[str], known: Mapping[str, _Gone]) -> list[tuple[bytes, int]]:
    """Return the `known` origins of the lines from `start` to `end`, while they followed each other before."""
    run: list[tuple[bytes, int]] = []
    for index in range(start, end):
        options = known.get(lines[index], ())
        before = _key_before(lines, index) if options else b""
        option = next((option for option in options if option[0] == before), None)
        if option is None and not run:
            option = min(options, key=lambda option: option[1], default=None)
        if option is None:
            break
        run.append(option)
    return run


def _is_enough(run: Sequence[tuple[bytes, int]], start: int, lines: Sequence[str], least: int) -> bool:
    """Return whether the lines of `run` are recognized by `least` letters and digits.

    Half of it is enough if they follow the same line as before, and that has the other half.
    """
    weight = sum(_weight(lines[index]) for index in range(start, start + len(run)))
    if not run or weight >= least:
        return bool(run)
    before = _weight(lines[start - 1]) if start and run[0][0] == _key_before(lines, start) else 0
    return weight + min(weight, before) >= least


def _doubt(lines: Sequence[str], origins: list[int], spans: Sequence[range], author: int) -> None:
    """Drop the agent from a line if an identical line near `spans`, added or deleted lines, may be the one it wrote."""
    changed = {index for span in spans for index in span}
    for span in spans:
        for one, other in _twins(lines, span, changed):
            # One existed and one is new, or one was deleted; it is unknown which.
            _name_less(origins, one, origins[other], author)
            _name_less(origins, other, origins[one], author)


def _doubt_islands(result: Text, hunks: Sequence[Hunk]) -> None:
    """Drop the agent from a brace or the like between two changes of the user's, which may have a new one."""
    for one, other in pairwise(hunks):
        island = range(one.new_end, other.new_start)
        if len(island) <= _SLIDE and sum(_weight(result.lines[index]) for index in island) < _MOVED:
            for index in island:
                _name_less(result.origins, index, USER, USER)


def _name_less(origins: list[int], index: int, other: int, author: int) -> None:
    if origins[index] > BEFORE >= other:
        origins[index] = other if other == BEFORE or author != USER else USER - origins[index]


_SLIDE = 40
"""Most lines of a change that is tried at other positions with the same result."""


def _twins(lines: Sequence[str], span: range, changed: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield pairs of equal lines that are interchangeable, as the lines of `span` were added or deleted.

    `changed` are all added or deleted lines.
    """
    start, end, size = span.start, span.stop, len(span)

    def stays(index: int) -> bool:
        return 0 <= index < len(lines) and index not in changed

    for others, back in ((range(start - 1, start - 1 - _SLIDE, -1), size), (range(end, end + _SLIDE), -size)):
        for other in others if size else ():
            if not stays(other) or lines[other] != lines[other + back]:
                break
            yield other, other + back
    for inner, outer in (
        (span[:_NEAR], range(start - _NEAR, start)),
        (span[-_NEAR:], range(end, end + _NEAR)),
    ):
        yield from ((one, other) for one in inner for other in outer if stays(other) and lines[one] == lines[other])
