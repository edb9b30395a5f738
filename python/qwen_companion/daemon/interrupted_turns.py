# SPDX-License-Identifier: GPL-3.0-or-later
"""Turns that did not come to their end, kept as they were told.

The daemon writes an answer down when it is whole (0.24.4): of a turn that broke off with its agent or with the daemon,
what had streamed in is nowhere else, and a load would take it out of the conversation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from qwen_companion.daemon.messages import Change, EndChange, Permission, SlashCommands, TextChange, ToolChange

Output = Change | Permission | SlashCommands

DONE = "done"


class InterruptedTurns:
    """Those of one session, over all its loads and all connections to its daemon."""

    def __init__(self) -> None:
        self._turn: str | None = None
        """The turn that runs; what was told of it is in `_told`."""
        self._told: dict[object, Change] = {}
        self._interrupted: dict[str, list[Change]] = {}

    def told(self, outputs: Iterable[Output]) -> None:
        """`outputs` are told."""
        for change in outputs:
            if not isinstance(change, Change) or change.turn is None:
                continue
            if _begins(change) and change.turn != self._turn:
                self._turn, self._told = change.turn, {}
            if change.turn == self._turn:
                # Of a tool only how it is at last, where it was first.
                self._told[change.id if isinstance(change, ToolChange) else len(self._told), type(change)] = change
                if isinstance(change, EndChange):
                    if change.outcome != DONE:
                        self._interrupted[change.turn] = list(self._told.values())
                    self._turn = None

    def completed(self, loaded: Sequence[Output], outcomes: Mapping[str, str], *, runs: bool, why: str) -> list[Output]:
        """`loaded`, which takes the place of all that was told, with what is missing in it, and with the missing ends.

        `outcomes` says of turns how they ended as far as the daemon knows, see `EndChange`.  Unless one `runs`, one
        whose end was not told has broken off, because of `why`.
        """
        if self._turn is not None and not runs:
            self.told([EndChange(self._turn, None, outcome="failed", text=why)])
        result = list(loaded)
        newest = next(reversed(self._interrupted), None)
        ends = {turn: EndChange(turn, None, outcome=outcome) for turn, outcome in outcomes.items() if outcome != DONE}
        for turn, told in self._interrupted.items():
            outcome = outcomes.get(turn)
            if outcome == DONE:
                continue
            if _length(told, turn) > _length(loaded, turn):
                result = _with(result, turn, told, last=turn == newest)
            elif (outcome or not _length(loaded, turn, "answer")) and isinstance(told[-1], EndChange):
                ends[turn] = told[-1]
        for turn, end in ends.items():
            places = [number for number, item in enumerate(result) if isinstance(item, Change) and item.turn == turn]
            if places and not any(isinstance(result[place], EndChange) for place in places):
                result.insert(places[-1] + 1, end)
        self._turn = None
        if runs:
            self.told(result)
        return result


def _begins(change: Change) -> bool:
    return isinstance(change, TextChange) and change.voice == "user" and change.parent is None


def _length(outputs: Iterable[Output], turn: str, *voices: str) -> int:
    """Return how many characters the `voices`, else all but thoughts, have in `turn`."""
    wanted = voices or ("user", "answer")
    texts = (item for item in outputs if isinstance(item, TextChange) and item.turn == turn)
    return sum(len(item.text) for item in texts if item.voice in wanted)


def _with(outputs: Sequence[Output], turn: str, told: Sequence[Change], *, last: bool) -> list[Output]:
    """Return `outputs` with `told` in place of all of `turn`; a missing turn is added only if it is the `last`."""
    rest = [item for item in outputs if not (isinstance(item, Change) and item.turn == turn)]
    place = next(
        (number for number, item in enumerate(outputs) if isinstance(item, Change) and item.turn == turn),
        len(rest) if last else None,
    )
    return [*outputs] if place is None else [*rest[:place], *told, *rest[place:]]
