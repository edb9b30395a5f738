# SPDX-License-Identifier: GPL-3.0-or-later
"""The changes in files since the model of a conversation last saw them, as a text for it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from qwen_companion.files.versions import LINK, Loaded, TooLargeError
from qwen_companion.journal.baselines import Baseline
from qwen_companion.journal.changes import is_binary
from qwen_companion.journal.names import Names
from qwen_companion.journal.sites import Site
from qwen_companion.journal.store import Store
from qwen_companion.journal.views import MAX_TEXT_BYTES, NO_FILE, UNKNOWN, View, Views, digest_in
from qwen_companion.privacy.verdicts import printable
from qwen_companion.texts.unified import unified

_HEADING = (
    "Since you last read or wrote the following files, the user or another program has changed them. Where that "
    "takes back changes of yours, the user has undone them on purpose. Read a file again before you edit it. "
    "(< and > may be written as &lt; and &gt; here.)"
)
"""Qwen Code escapes them in the text that a hook adds to a prompt."""

_MARKS = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"), (codecs.BOM_UTF8, "utf-8"))


@dataclass(frozen=True)
class UnseenChange:
    """The change of a file from `view` to `now`; `name` is its name where the CLI runs.

    `what` describes the change if `hunks`, of a unified diff, are None.
    """

    view: View
    now: Loaded | None
    name: str
    hunks: str | None
    what: str = "changed"


class Unseen:
    """The files of one root that differ from what models have seen.

    Its methods block on disk I/O, are thread-safe, and raise StoreError.
    """

    def __init__(self, store: Store, files: Baseline, names: Names, site: Site) -> None:
        """Record in `store` what models have seen of `files`."""
        self._views = Views(store.database, store.contents)
        self._files = files
        self._names = names
        self._site = site

    def saw(self, session: str, path: bytes, loaded: Loaded | None, now: int) -> None:
        """Note that the model of `session` has read `loaded` in `path` at `now`, in ms, if that file is recorded.

        :raises GitError, OSError: if that fails
        """
        if self._is_followed(session, path):
            self._views.note(session, path, loaded, now)

    def saw_unknown(self, session: str, path: bytes, now: int) -> None:
        """Note that the model of `session` has read an unknown text in `path` by `now`, in ms.

        :raises GitError, OSError: if that fails
        """
        if self._is_followed(session, path):
            self._views.note_unknown(session, path, now)

    def _is_followed(self, session: str, path: bytes) -> bool:
        # Asking git costs 3 ms or more, and a model reads the same file many times.
        return not self._site.rules.excluded([path]) and (self._views.has(session, path) or self._files.records([path]))

    def changes(self, session: str) -> list[UnseenChange]:
        """Return the changes that the model of `session` has neither seen nor been told of."""
        found: list[UnseenChange] = []
        for view in self._views.known(session):
            with suppress(OSError, TooLargeError):
                now = self._files.load(view.path)
                name = self._names.name_out(view.path)
                if digest_in(now) not in (view.digest, view.named):
                    found.append(self._change(view, now, self._site.there(name)))
        return found

    def told(self, session: str, change: UnseenChange, now: int, with_text: bool) -> None:
        """Note that `session` was told of `change` at `now`, in ms: of all its hunks, or only that there is one."""
        if with_text or change.now is None:
            self._views.note(session, change.view.path, change.now, now)
        else:
            self._views.name(session, change.view, digest_in(change.now), now)

    def forget(self, session: str, since: int) -> None:
        """Forget what the model of `session` has seen from `since` on, in ms: its conversation was rewound to there."""
        self._views.forget(session, since)

    def _change(self, view: View, now: Loaded | None, name: str) -> UnseenChange:
        if now is None:
            same = [path for path in self._views.paths_with(view.digest) if path != view.path]
            moved = self._names.name_out(same[0]) if len(same) == 1 and self._files.records(same) else None
            what = "deleted" if moved is None else f"deleted; {printable(self._site.there(moved))} has the same text"
            return UnseenChange(view, now, name, None, what)
        before = b"" if view.digest == NO_FILE else None if view.digest == UNKNOWN else self._files.text(view.digest)
        old, new = (None if data is None else _text(data) for data in (before, now.data))
        if old is None or new is None or now.version.mode == LINK:
            return UnseenChange(view, now, name, None)
        if old == new:
            return UnseenChange(view, now, name, None, "only its encoding or the ends of its lines have changed")
        return UnseenChange(view, now, name, unified(old, new))


def news(changes: Sequence[UnseenChange], directory: str, room: int) -> tuple[str | None, list[UnseenChange], int]:
    """Return a text about `changes` of at most `room` UTF-16 units, for a model that works in `directory`.

    If they do not fit, the largest are only named.  Return also the changes in the text, and the number of those, at
    its beginning, that are shown with their hunks.
    """
    shown = sorted((each for each in changes if each.hunks is not None), key=lambda each: each.name)
    named = [each for each in changes if each.hunks is None]
    texts = {each.view.path: _shown(each, directory) for each in shown}
    lines = {each.view.path: _line(each, directory) for each in changes}
    left = room - _units(_HEADING) - 2
    sizes = {path: _units(text) for path, text in texts.items()}
    while shown and sum(sizes[each.view.path] for each in shown) + _size(named, lines) > left:
        largest = max(shown, key=lambda each: sizes[each.view.path])
        shown.remove(largest)
        named.append(largest)
    left -= sum(sizes[each.view.path] for each in shown)
    fitting = list(named)
    while fitting and _size(fitting, lines) + (_MORE if len(fitting) < len(named) else 0) > left:
        fitting.pop()
    if not shown and not fitting:
        return None, [], 0
    more = [f"- and {len(named) - len(fitting)} more files\n"] if len(fitting) < len(named) else []
    parts = [*(texts[each.view.path] for each in shown), *(lines[each.view.path] for each in fitting), *more]
    return f"{_HEADING}\n\n{''.join(parts)}".rstrip("\n"), [*shown, *fitting], len(shown)


_MORE = 40
"""UTF-16 units for the line with the number of further files."""


def _size(changes: Sequence[UnseenChange], lines: dict[bytes, str]) -> int:
    return sum(_units(lines[each.view.path]) for each in changes)


def _shown(change: UnseenChange, directory: str) -> str:
    name = _short(change.name, directory)
    return f"--- {name}\n+++ {name}\n{change.hunks}"


def _line(change: UnseenChange, directory: str) -> str:
    return f"- {_short(change.name, directory)}: {change.what}\n"


def _short(name: str, directory: str) -> str:
    """Return `name`, relative to `directory` if it is below, on one line."""
    start = directory.rstrip("/") + "/"
    return printable(name.removeprefix(start))


def _units(text: str) -> int:
    """Return the length of `text` as a CLI counts it."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _text(data: bytes) -> str | None:
    """Return `data` as a CLI reads it, without the marks of its encoding and CRs; None if it is binary or too long."""
    if len(data) > MAX_TEXT_BYTES or is_binary(data):
        return None
    mark, name = next((each for each in _MARKS if data.startswith(each[0])), (b"", "utf-8"))
    try:
        text = data[len(mark) :].decode(name)
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return text.replace("\r\n", "\n")
