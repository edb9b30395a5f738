# SPDX-License-Identifier: GPL-3.0-or-later
"""New repositories and new commits whose insides are not recorded: undo leaves them alone, and the turn has a note."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress

from qwen_companion.base.git import Git, GitError, place
from qwen_companion.privacy.disk import read_start
from qwen_companion.privacy.verdicts import printable

_HISTORY = {
    ".hg": "store/00changelog.i",
    ".sl": "store/00changelog.i",
    ".svn": "wc.db",
    ".bzr": "branch/last-revision",
    ".jj": "repo/op_heads/heads",
    "_darcs": "hashed_inventory",
    ".pijul": "pristine/db",
    "CVS": "Entries",
    ".fslckout": "",
    "_FOSSIL_": "",
}
"""A file or directory of the repository that each commit writes."""

_COMMIT = re.compile(rb"[0-9a-f]{40,64}")

_MOST_PACKED, _MOST_HEAD = 64 * 1024 * 1024, 4096
"""Bytes of a file of branches, and of one branch, that are read."""

_MOST = 100
"""Most notes of turns that are kept for counting."""

History = Mapping[bytes, bytes]
"""The commits of branches by name, or for other systems than git, a state that a commit changes."""

_THERE: History = {b".git": b""}
"""The history of a git repository with a work tree, whose files are recorded: its commits are not reported."""


class Histories:
    """The histories of the repositories below a root.  Its methods block on the disk and git."""

    def __init__(self, root: str, environ: Mapping[str, str]) -> None:
        """`root` is a true name."""
        self._root = root
        self._git = Git(environ)
        self._before: Mapping[str, History] | None = None
        self._now: Mapping[str, History] | None = None
        self._noted: dict[tuple[int, str], tuple[History | None, str]] = {}
        """The notes of turns about repositories, each with the history before the turn, None of a new one."""

    def look(self, owns: Collection[str]) -> tuple[dict[str, bytes], bool]:
        """Return the repositories that were made, changed or deleted since the last call, and whether any is new.

        The value of each is a file that was written then, or its directory.  `owns` are directories of
        repositories; those of earlier calls that still exist are examined too.
        """
        before, self._before = self._now, self._now
        # A repository that was made around recorded files is found once.
        present = {*owns, *filter(os.path.lexists, before or ())}
        now = self._now = {own: _history_of(own) for own in present}
        if before is None:
            return {}, False
        changed = {own: _written(own, before.get(own, its), its) for own, its in now.items() if before.get(own) != its}
        known = (own for own, its in before.items() if its and own not in now)
        changed |= {own: os.fsencode(own) for own in known if not os.path.lexists(own)}
        return changed, not now.keys() <= before.keys()

    def note(self, turn: int, own: str) -> tuple[str, str | None]:
        """Return the note for `turn`, in which the history of `own` has changed, and any note that it replaces."""
        since, replaced = self._noted.get((turn, own), ((self._before or {}).get(own), None))
        name = printable(os.path.relpath(own, self._root))
        if not os.path.lexists(own):
            text = f"the repository {name} is gone; undo does not bring it back"
        elif since is None:
            text = f"the repository {name} is new; undo leaves it alone"
        else:
            text = self.left_alone(own, self._count(own, since, (self._now or {}).get(own, {})))
        if len(self._noted) > _MOST:
            self._noted.clear()
        self._noted[turn, own] = since, text
        return text, replaced

    def left_alone(self, own: str, commits: int = 0) -> str:
        """Return a sentence that undo leaves the directory `own` alone, with its number of new `commits` if known."""
        name = printable(os.path.relpath(own, self._root))
        if commits:
            return f"{commits} commit{'s' if commits > 1 else ''} in the repository {name}; undo leaves it alone"
        return f"the repository {name} has changed too; undo leaves it alone"

    def _count(self, own: str, before: History, after: History) -> int:
        """Return how many commits of `after` are not in `before`; 0 if git cannot tell."""
        new = list(_lines(b"", (commit for name, commit in after.items() if before.get(name) != commit)))
        # A program other than git would run what the repository names.
        if not new or not before or os.path.basename(own) in _HISTORY:
            return 0
        data = b"".join((*new, *_lines(b"^", before.values())))
        with suppress(GitError, ValueError):
            return int(self._git.run(["rev-list", "--count", "--stdin"], own, data, options=place(own, own)))
        return 0


def _lines(sign: bytes, commits: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a line with `sign` for git to read for each of `commits` that is not a branch name."""
    return (b"%b%b\n" % (sign, commit) for commit in commits if _COMMIT.fullmatch(commit))


def _history_of(own: str) -> History:
    """Return the history of the repository with the directory `own`."""
    if os.path.basename(own) == ".git":
        return _THERE
    kept = _HISTORY.get(os.path.basename(own))
    return dict(_stamp(os.path.join(own, kept))) if kept is not None else dict(_branches(own))


def _written(own: str, before: History, now: History) -> bytes:
    """Return the file in which the history of the repository `own` has changed, or its directory."""
    names = (os.path.join(os.fsencode(own), name) for name, its in now.items() if before.get(name) != its)
    return next(filter(os.path.lexists, names), os.fsencode(own))


def _branches(own: str) -> Iterator[tuple[bytes, bytes]]:
    # Git packs them without changing them.
    with suppress(OSError):
        for line in read_start(os.path.join(own, "packed-refs"), _MOST_PACKED).splitlines():
            commit, _, name = line.partition(b" ")
            if name and not line.startswith((b"#", b"^")):
                yield name, commit
    found = (os.path.join(above, name) for above, _, files in os.walk(os.path.join(own, "refs")) for name in files)
    for path in (*found, os.path.join(own, "HEAD")):
        with suppress(OSError):
            yield os.fsencode(os.path.relpath(path, own)), read_start(path, _MOST_HEAD).strip()
    yield from _stamp(os.path.join(own, "reftable", "tables.list"))


def _stamp(path: str) -> Iterator[tuple[bytes, bytes]]:
    with suppress(OSError):
        status = os.lstat(path.rstrip("/"))
        yield os.fsencode(path), b"%d %d" % (status.st_mtime_ns, status.st_size)
