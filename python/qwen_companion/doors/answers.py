# SPDX-License-Identifier: GPL-3.0-or-later
"""The answers to hooks, for the user to see.  Nothing of a prompt or a file is among it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from qwen_companion.domain import HookAnswer
from qwen_companion.doors.events import Answer, Event, ToolEvent, describe
from qwen_companion.doors.states import first_words

_MAX_KINDS = 30
"""How many different answers are kept for a process; the one that was given longest ago goes first."""


class Answers:
    """The answers to all CLIs, by the number of their process."""

    def __init__(self) -> None:
        self._given: defaultdict[int, dict[tuple[str, str, str], HookAnswer]] = defaultdict(dict)

    def note(self, pid: int, event: Event, answer: Answer, now: int) -> None:
        """Take that `event` of process `pid` was answered `answer` at `now`, in ms since the epoch."""
        given = self._given[pid]
        key = (event.name, first_words(event.tool_name) if isinstance(event, ToolEvent) else "", describe(answer))
        before = given.pop(key, HookAnswer(*key, count=0, time=now))
        given[key] = replace(before, count=before.count + 1, time=now)
        if len(given) > _MAX_KINDS:
            del given[next(iter(given))]

    def get(self, pid: int) -> tuple[HookAnswer, ...]:
        """Return the answers to process `pid`, the newest first."""
        return tuple(reversed(self._given[pid].values())) if pid in self._given else ()

    def forget(self, pid: int) -> None:
        """Forget the process `pid`, which has ended."""
        self._given.pop(pid, None)
