# SPDX-License-Identifier: GPL-3.0-or-later
"""Interrupted turns, stored as Emacs was shown them.

The daemon saves an answer once it is complete (0.24.4): when the agent or daemon dies in a turn, the streamed part is
stored nowhere else, and a load would delete it from the conversation.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from qwen_companion.daemon.messages import (
    Change,
    EndChange,
    NoteChange,
    Permission,
    SlashCommands,
    TextChange,
    ToolChange,
)

Output = Change | Permission | SlashCommands

DONE = "done"

_UNKNOWN = ""
"""Stands for the id of an unknown turn."""


@dataclass(frozen=True)
class _Interrupted:
    """The reports of an interrupted turn, and the turn `after` which it came, None if it was the first."""

    changes: list[Change]
    after: str | None


class InterruptedTurns:
    """The interrupted turns of one session, across all its loads and all connections to its daemon."""

    def __init__(self, shown: Iterable[Change] = ()) -> None:
        """`shown` are unfinished and failed turns that an earlier process reported to Emacs."""
        self._turn: str | None = None
        """The running turn, whose reports are in `_told`."""
        self._told: dict[object, Change] = {}
        self._newest: str | None = None
        """The newest turn; `_after` is the one before it."""
        self._after: str | None = None
        self._interrupted: dict[str, _Interrupted] = {}
        self.record(shown)
        # The turns between them are unknown, so a turn that a load lacks goes to the end.
        self._newest = self._after = _UNKNOWN
        self._interrupted = {turn: replace(item, after=_UNKNOWN) for turn, item in self._interrupted.items()}

    @property
    def running(self) -> str | None:
        """The turn that has begun and not ended, according to the reports."""
        return self._turn

    def record(self, outputs: Iterable[Output]) -> None:
        """Record `outputs`, reports to Emacs."""
        for change in outputs:
            if isinstance(change, NoteChange) and change.note == "rewound":
                self._interrupted.clear()
            if not isinstance(change, Change) or change.turn is None:
                continue
            if _begins(change) and change.turn != self._turn:
                self._begin(change.turn)
            if change.turn == self._turn:
                # Keep the last state of a tool, at its first position.
                self._told[change.id if isinstance(change, ToolChange) else len(self._told), type(change)] = change
                if isinstance(change, EndChange):
                    if change.outcome != DONE:
                        self._interrupted[change.turn] = _Interrupted(list(self._told.values()), self._after)
                    self._turn = None

    def _begin(self, turn: str) -> None:
        self._turn, self._told = turn, {}
        if turn != self._newest:
            self._newest, self._after = turn, self._newest

    def completed(
        self, loaded: Sequence[Output], outcomes: Mapping[str, str], *, running: str | None, why: str
    ) -> list[Output]:
        """Return the outputs `loaded`, with missing turns and ends added; they replace all recorded reports.

        `outcomes` has the outcomes of turns that the daemon knows, see `EndChange`.  A recorded turn that has no end
        and is not `running` is ended as failed because of `why`.
        """
        if self._turn not in (None, running):
            self.record([EndChange(self._turn, outcome="failed", text=why)])
        result = list(loaded)
        ends = {turn: EndChange(turn, outcome=outcome) for turn, outcome in outcomes.items() if outcome != DONE}
        for turn, interrupted in self._interrupted.items():
            told = interrupted.changes
            outcome = outcomes.get(turn)
            if outcome == DONE:
                continue
            if _length(told, turn) > _length(loaded, turn):
                result = _with(result, turn, interrupted, self._interrupted)
            elif (outcome or not _length(loaded, turn, "answer")) and isinstance(told[-1], EndChange):
                ends[turn] = told[-1]
        for turn, end in ends.items():
            places = _places(result, turn)
            if places and not any(isinstance(result[place], EndChange) for place in places):
                result.insert(places[-1] + 1, end)
        self._rebuild(result, running)
        return result

    def _rebuild(self, outputs: Sequence[Output], running: str | None) -> None:
        """Replace all recorded reports by `outputs`, in which only the turn `running` is unfinished."""
        self._turn = self._newest = self._after = None
        for item in outputs:
            if isinstance(item, Change) and item.turn is not None and _begins(item):
                self._begin(item.turn)
        self._turn = None
        if running is not None:
            self.record(item for item in outputs if isinstance(item, Change) and item.turn == running)


def _begins(change: Change) -> bool:
    return isinstance(change, TextChange) and change.voice == "user" and change.parent is None


def _length(outputs: Iterable[Output], turn: str, *voices: str) -> int:
    """Return the length in characters of the `voices`, default all but thoughts, in `turn`."""
    wanted = voices or ("user", "answer")
    texts = (item for item in outputs if isinstance(item, TextChange) and item.turn == turn)
    return sum(len(item.text) for item in texts if item.voice in wanted)


def _places(outputs: Sequence[Output], turn: str | None) -> list[int]:
    """Return the indices of the changes of `turn`."""
    return [number for number, item in enumerate(outputs) if isinstance(item, Change) and item.turn == turn]


def _with(outputs: Sequence[Output], turn: str, interrupted: _Interrupted, known: Container[str]) -> list[Output]:
    """Insert `interrupted` into `outputs`: in place of its `turn` if it is there, else after the preceding one."""
    name = turn if _places(outputs, turn) else _other_name(outputs, interrupted, known)
    if places := _places(outputs, name):
        rest = [item for item in outputs if not (isinstance(item, Change) and item.turn == name)]
        return [*rest[: places[0]], *interrupted.changes, *rest[places[0] :]]
    before = _places(outputs, interrupted.after) if interrupted.after is not None else [-1]
    place = before[-1] + 1 if before else len(outputs)
    return [*outputs[:place], *interrupted.changes, *outputs[place:]]


def _other_name(outputs: Sequence[Output], interrupted: _Interrupted, known: Container[str]) -> str | None:
    """Return the id that `outputs` has for an `interrupted` turn, other than the `known` ones, or None.

    The disk of an older daemon (0.21.2) has no ids of prompts: recognise the turn by its texts.
    """
    asked, said = _text(interrupted.changes, "user"), _text(interrupted.changes, "answer")
    for change in reversed(outputs):
        if isinstance(change, Change) and change.turn is not None and _begins(change) and change.turn not in known:
            of_turn = [item for item in outputs if isinstance(item, Change) and item.turn == change.turn]
            if _text(of_turn, "user") == asked and said.startswith(_text(of_turn, "answer")):
                return change.turn
    return None


def _text(changes: Iterable[Change], voice: str) -> str:
    """Return the text of `voice` in `changes`."""
    return "".join(item.text for item in changes if isinstance(item, TextChange) and item.voice == voice)
