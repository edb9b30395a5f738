# SPDX-License-Identifier: GPL-3.0-or-later
"""Send changed turns to Emacs while the user views them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import anyio

from qwen_companion.base.tasks import contained
from qwen_companion.base.threads import in_thread
from qwen_companion.domain import TurnChange
from qwen_companion.journal.agents import Agents
from qwen_companion.journal.answers import Summary
from qwen_companion.journal.roots import Roots


class Telling:
    """The reports to Emacs.  Call its methods on the event loop."""

    def __init__(
        self, roots: Roots, agents: Agents, tell: Callable[[Sequence[TurnChange], Sequence[str], bool], None]
    ) -> None:
        """`tell` gets turns that have changed, the ids of forgotten ones, and whether the list is complete."""
        self._roots = roots
        self._agents = agents
        self._tell = tell
        self._telling_now = anyio.Lock()
        self._watching = False
        self._telling_all = False
        """Send every turn next time, not only changed ones."""

    def watch(self, on: bool) -> None:
        """Start or stop reporting: the user views the turns, or no longer does."""
        self._watching = self._telling_all = on
        self._roots.dirty.set()

    async def tell_news(self) -> None:
        """If the user views turns, report the changes since the last time, or all turns; return when that is done."""
        async with self._telling_now:
            if self._watching:
                await contained(self._tell_all if self._telling_all else self._tell_changes)

    async def _tell_all(self) -> None:
        self._telling_all = False
        updates: list[TurnChange] = []
        for root in list(self._roots.by_name.values()):
            # Later changes are reported next.
            root.changed = set()
            root.told = await in_thread(root.summaries, None)
            updates += [self._update(summary, None) for summary in root.told.values()]
        self._tell(sorted(updates, key=lambda update: update.turn.start), (), True)

    async def _tell_changes(self) -> None:
        for root in list(self._roots.by_name.values()):
            numbers, root.changed = root.changed, set()
            if not numbers:
                continue
            now = await in_thread(root.summaries, numbers)
            updates = [self._update(summary, root.told.get(number)) for number, summary in now.items()]
            gone = [number for number in numbers if number not in now and root.told.pop(number, None) is not None]
            root.told.update(now)
            if updates or gone:
                self._tell(updates, [root.record.names.identifier(number) for number in gone], False)

    def _update(self, summary: Summary, before: Summary | None) -> TurnChange:
        known = {} if before is None else before.files
        files = tuple(file for path, file in summary.files.items() if known.get(path) != file)
        turn = replace(summary.turn, cli=self._agents.connected.get(summary.turn.session))
        return TurnChange(turn, files, tuple(path for path in known if path not in summary.files))
