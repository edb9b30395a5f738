# SPDX-License-Identifier: GPL-3.0-or-later
"""Combine writes: the agent's net change of a file, its size, its lines, and renames."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from qwen_companion.files.versions import LINK, Loaded, Version, digest_of, git_mode
from qwen_companion.journal.store import Write
from qwen_companion.texts.hunks import Budget, compare, split_lines
from qwen_companion.texts.merge import Labels, merge

ReadText = Callable[[str], "bytes | None"]
"""Returns the bytes of a digest, or None."""

STEPS = 300_000
"""Budget for comparing two texts, in steps of a microsecond."""

MAX_COMPARED = 8 * 1024 * 1024
"""Largest text that is compared; lines of larger ones are not counted."""

ALIKE = 0.5
"""Least part of common lines for a rename."""

_MAX_PAIRS = 400
"""Most pairs of files that are compared to find renames."""

_SNIFFED = 8000
"""Bytes in which git searches for a zero to detect a binary file."""


@dataclass(frozen=True)
class Net:
    """A file `before` and `after` the writes of agents.  Edits of others are in both, unless it is `mixed`."""

    path: bytes
    before: Loaded | None
    after: Loaded | None
    mixed: bool = False
    writers: tuple[tuple[str, str], ...] = ()
    previous: bytes | None = None

    @property
    def kind(self) -> str | None:
        """Return the kind of change of the file, None for none."""
        if self.previous is not None:
            return "renamed"
        if self.before is None or self.after is None:
            return None if self.before is self.after else "deleted" if self.after is None else "added"
        if self.before.version.digest != self.after.version.digest:
            return "modified"
        return "mode" if self.before.version.mode != self.after.version.mode else None

    @property
    def has_link(self) -> bool:
        """Return whether it was or is a symbolic link."""
        return any(side is not None and side.version.mode == LINK for side in (self.before, self.after))

    @property
    def has_other_mode(self) -> bool:
        """Return whether the permission bits of a file have changed."""
        if self.before is None or self.after is None or self.has_link:
            return False
        return self.before.version.mode != self.after.version.mode


class MissingTextError(Exception):
    """The bytes of a version are no longer available."""


def net_of(writes: Sequence[Write], chosen: Collection[int], to_now: bool, read: ReadText) -> Net | None:
    """Return the net change of the turns `chosen` among `writes`, which are all writes of one path in order.

    It ends with the last write of these turns, or with `to_now`, with the last of all.  None without such writes.

    :raises MissingTextError: if the record no longer has a text
    """
    places = [index for index, write in enumerate(writes) if write.turn in chosen]
    if not places:
        return None
    span = writes[places[0] : len(writes) if to_now else places[-1] + 1]
    before = span[0].before
    data: bytes | None = None
    mixed = False
    writers: dict[tuple[str, str], None] = {}
    for write in span:
        if write.turn in chosen:
            writers[write.tool, write.agent] = None
        elif before == write.before:
            before, data = write.after, None
        elif before != write.after:
            # The same edit, in the file without the agent's changes.
            found = moved(write, before, data, read)
            if found is None:
                mixed = True
            else:
                before, data = found.version, found.data
    loaded = None if before is None else Loaded(before, data) if data is not None else _load(before, read)
    after = None if span[-1].after is None else _load(span[-1].after, read)
    return Net(span[0].path, loaded, after, mixed, tuple(writers))


def moved(write: Write, before: Version | None, data: bytes | None, read: ReadText) -> Loaded | None:
    """Return `before`, whose bytes may be `data`, with the change of `write` applied; None if it does not apply."""
    if write.before is None or write.after is None or before is None:
        return None
    mine = _load(before, read) if data is None else Loaded(before, data)
    return merged(_load(write.before, read), mine, _load(write.after, read))


def merged(base: Loaded, mine: Loaded, theirs: Loaded) -> Loaded | None:
    """Return `mine` with the changes from `base` to `theirs`; None if they conflict."""
    if LINK in (base.version.mode, mine.version.mode, theirs.version.mode):
        return None
    data = merged_bytes(base.data, mine.data, theirs.data)
    if data is None:
        return None
    changed = git_mode(base.version.mode) != git_mode(theirs.version.mode)
    return Loaded(Version(digest_of(data), (theirs if changed else mine).version.mode), data)


def merged_bytes(base: bytes, mine: bytes, theirs: bytes) -> bytes | None:
    """Return `mine` with the changes from `base` to `theirs`; None if they conflict."""
    # As characters: no byte is lost in any encoding.
    before, ours, new = (side.decode("latin-1") for side in (base, mine, theirs))
    result = merge(before, ours, new, Labels("", "", ""), Budget(STEPS))
    return None if result.conflicts else result.text.encode("latin-1")


def _load(version: Version, read: ReadText) -> Loaded:
    data = read(version.digest)
    if data is None:
        raise MissingTextError
    return Loaded(version, data)


# --- Sizes ---


def is_binary(data: bytes) -> bool:
    """Return whether `data` is binary, as git decides it, except that UTF-16 with its mark is text."""
    return b"\0" in data[:_SNIFFED] and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


def sizes(net: Net) -> tuple[int, int, bool]:
    """Return the numbers of added and deleted lines, and whether the file is binary and has none."""
    sides = [b"" if side is None else side.data for side in (net.before, net.after)]
    if any(is_binary(side) or len(side) > MAX_COMPARED for side in sides):
        return 0, 0, True
    old, new = map(lines_of, sides)
    hunks = compare(old, new, Budget(STEPS))
    return sum(h.new_end - h.new_start for h in hunks), sum(h.old_end - h.old_start for h in hunks), False


def lines_of(data: bytes) -> list[str]:
    """Return the lines of `data`, each with its end, independent of its encoding."""
    for mark, name in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if data.startswith(mark):
            return split_lines(data.decode(name, "replace"))
    return split_lines(data.decode("latin-1"))


# --- Renames ---


def with_renames(nets: Iterable[Net]) -> list[Net]:
    """Turn each similar pair of a deleted and an added file of `nets` into one rename."""
    found = {net.path: net for net in nets if net.kind is not None}
    deleted = [net for net in found.values() if net.kind == "deleted"]
    added = [net for net in found.values() if net.kind == "added"]
    for old, new in _alike(deleted, added):
        del found[old.path]
        found[new.path] = renamed(old, new)
    return list(found.values())


def renamed(old: Net, new: Net) -> Net:
    """Return one rename for a file that was deleted as `old` and added as `new`."""
    writers = tuple(dict.fromkeys((*old.writers, *new.writers)))
    return replace(new, before=old.before, previous=old.path, writers=writers, mixed=old.mixed or new.mixed)


def _alike(deleted: Sequence[Net], added: Sequence[Net]) -> Iterable[tuple[Net, Net]]:
    left = list(deleted)
    rest: list[Net] = []
    for new in added:
        same = next((old for old in left if _digest(old.before) == _digest(new.after) and _has_text(new)), None)
        if same is None:
            rest.append(new)
        else:
            left.remove(same)
            yield same, new
    if len(left) * len(rest) > _MAX_PAIRS:
        return
    lines = {id(net): _line_set(net.before if net.kind == "deleted" else net.after) for net in (*left, *rest)}
    for new in rest:
        ours = lines[id(new)]
        scores = [(len(ours & lines[id(old)]) / max(len(ours), len(lines[id(old)]), 1), old) for old in left]
        score, best = max(scores, key=lambda pair: pair[0], default=(0.0, None))
        if best is not None and score >= ALIKE:
            left.remove(best)
            yield best, new


def _digest(side: Loaded | None) -> Version | None:
    return None if side is None else replace(side.version, mode=0)


def _has_text(net: Net) -> bool:
    return net.after is not None and bool(net.after.data)


def _line_set(side: Loaded | None) -> set[str]:
    if side is None or len(side.data) > MAX_COMPARED or side.version.mode == LINK:
        return set()
    return set(lines_of(side.data))
