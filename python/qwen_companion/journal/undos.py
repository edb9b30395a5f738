# SPDX-License-Identifier: GPL-3.0-or-later
"""Which turns undid which others, and which changes of agents were restored."""

from __future__ import annotations

from collections.abc import Iterable

from qwen_companion.journal.store import TurnRow


class Undos:
    """For each turn the one that it undid, None for an agent's turn."""

    def __init__(self, turns: Iterable[TurnRow]) -> None:
        """Use all `turns` of a record."""
        self._of = {turn.id: turn.undone for turn in turns}

    def within(self, turns: Iterable[int]) -> list[int]:
        """Return the agents' `turns`, and all that undid them, undid that, and so on."""
        wanted = set(turns)
        return [turn for turn in self._of if self.first(turn) in wanted]

    def first(self, turn: int) -> int:
        """Return the turn at the beginning of the chain of undos that ends with `turn`."""
        return turn if (of := self._of.get(turn)) is None else self.first(of)

    def of(self, undone: int) -> list[int]:
        """Return the turns that undid the turn `undone`, the newest first."""
        return sorted((turn for turn, of in self._of.items() if of == undone), reverse=True)

    def chain(self, turn: int) -> set[int]:
        """Return `turn` and all that undid it, undid that, and so on."""
        found = {turn}
        for later in sorted(self._of):
            if self._of[later] in found:
                found.add(later)
        return found

    def brings_back(self, turn: int) -> bool:
        """Return whether `turn` wrote text of an agent: it is an agent's turn, or an undo of an undo."""
        return (of := self._of.get(turn)) is None or not self.brings_back(of)

    def origins(self) -> dict[int, int | None]:
        """Return for each turn the agent's turn whose text it wrote: itself, the one it restored, or None."""
        return {turn: self.first(turn) if self.brings_back(turn) else None for turn in self._of}
