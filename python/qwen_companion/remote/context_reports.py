# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports to Emacs, while the user watches, the context sent to CLIs at places and the files withheld."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from qwen_companion.domain import Exclusion
from qwen_companion.emacs.messages import ContextSent, ExclusionList, Notification
from qwen_companion.ide.access import HIDDEN
from qwen_companion.ide.models import told_context

if TYPE_CHECKING:
    from qwen_companion.remote.context import PlaceContext
    from qwen_companion.remote.place import Place


class ContextReports:
    """The contexts sent to the sessions of all places."""

    def __init__(
        self,
        tell: Callable[[Notification], None],
        place_of: Callable[[str], Place | None],
        contexts: Callable[[], Iterable[PlaceContext]],
    ) -> None:
        """Report to Emacs by `tell`; `place_of` returns a session's place, `contexts` those of all places."""
        self._tell = tell
        self._place_of = place_of
        self._contexts = contexts
        self._is_watched = False
        self._sent: dict[str, tuple[str, int]] = {}
        self._exclusions: tuple[Exclusion, ...] = ()
        self._exclusions_told: tuple[Exclusion, ...] = ()

    def watch(self, on: bool) -> None:
        """Start or stop reporting; start with the last context of each session."""
        self._is_watched = on
        if on:
            for session in self._sent:
                self._report_sent(session)

    def sent(self, session: str, text: str, time: int) -> None:
        """Record that the context `text` went to `session` at `time`, in ms since the epoch."""
        self._sent[session] = text, time
        if self._is_watched:
            self._report_sent(session)
            if self._excluded_everywhere() != self._exclusions_told:
                self.report_exclusions(self._exclusions)

    def drop_session(self, session: str) -> None:
        """Remove an ended session."""
        self._sent.pop(session, None)

    def report_exclusions(self, exclusions: tuple[Exclusion, ...]) -> None:
        """Report `exclusions` to Emacs, without the files that CLIs at their place get."""
        self._exclusions = exclusions
        self._exclusions_told = self._excluded_everywhere()
        self._tell(ExclusionList(self._exclusions_told))

    def _report_sent(self, session: str) -> None:
        place = self._place_of(session)
        if place is not None:
            text, time = self._sent[session]
            context = told_context(text, place.wanted.name)
            self._tell(ContextSent(session, False, place.context.root_of(session), time, text, context))

    def _excluded_everywhere(self) -> tuple[Exclusion, ...]:
        """Return the exclusions that hold at places too, with the rules there."""
        left: list[Exclusion] = []
        for each in self._exclusions:
            rule: str | None = each.rule
            for context in self._contexts() if each.session is None and each.rule != HIDDEN else ():
                rule = rule and context.rule(each.path, rule)
            if rule is not None:
                left.append(replace(each, rule=rule))
        return tuple(left)
