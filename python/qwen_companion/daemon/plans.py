# SPDX-License-Identifier: GPL-3.0-or-later
"""One session's plans: the text that the model reads with an approved plan, and the file that it is saved in."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from qwen_companion.base.plan_files import now, save_plan, words_for_model
from qwen_companion.base.tasks import Tasks
from qwen_companion.base.threads import in_thread
from qwen_companion.daemon.errors import SettingsError
from qwen_companion.daemon.messages import Answer, OfferedPlan, Permission
from qwen_companion.daemon.models import MID_TURN_CHARACTERS
from qwen_companion.daemon.permissions import CLOSED, ME

Output = TypeVar("Output")

_log = logging.getLogger(__name__)


@dataclass
class _Plan:
    """A plan that needs approval; `edited` is the user's version."""

    path: str
    text: str
    edited: str | None = None


class Plans:
    """Plans that need approval, and saving the approved ones."""

    def __init__(self, path_at: Callable[[int], str], tasks: Tasks) -> None:
        """`path_at` returns the file for a plan from a time in ms since the epoch; `tasks` write it."""
        self._path_at = path_at
        self._tasks = tasks
        self._plans: dict[str, _Plan] = {}

    def located(self, report: Output) -> Output | Permission:
        """Return `report` with the file of an open plan added; save an approved plan."""
        if not isinstance(report, Permission):
            return report
        if report.state == CLOSED:
            plan = self._plans.pop(report.permission, None)
            if plan is not None and report.plan is not None:
                # Another client approved it unchanged.
                text = plan.edited if plan.edited is not None and report.by == ME else plan.text
                self._tasks.start(self._save, plan.path, text)
            return replace(report, plan=None)
        if report.plan is None:
            return report
        plan = self._plans.setdefault(report.permission, _Plan(self._path_at(now()), report.plan.text))
        return replace(report, plan=OfferedPlan(plan.path, plan.text))

    async def _save(self, path: str, text: str) -> None:
        try:
            await in_thread(save_plan, path, text)
        except OSError as error:
            _log.warning("the approved plan cannot be kept: %s", error.strerror)

    def note(self, call: Answer) -> str | None:
        """Return the text that the model reads with the plan approved by the answer `call`, or None.

        Writes the plan's file, which that text refers to.  Blocks on disk I/O; never call it on the event loop.

        :raises SettingsError: when the file cannot be written
        """
        plan = self._plans.get(call.permission)
        if plan is None:
            return None
        plan.edited = call.text
        comments = None if call.comments is None else call.comments.text
        words = words_for_model(plan.text, plan.edited, comments, plan.path, MID_TURN_CHARACTERS)
        if words is not None and plan.path in words:
            try:
                save_plan(plan.path, plan.edited or plan.text)
            except OSError as error:
                raise SettingsError(f"The edited plan cannot be written: {error.strerror}.") from None
        return words

    def discard(self, permission: str) -> None:
        """Undo `note`, as the plan was not approved.  Blocks on disk I/O; never call it on the event loop."""
        plan = self._plans.get(permission)
        if plan is not None:
            plan.edited = None
            with suppress(OSError):
                os.unlink(plan.path)
