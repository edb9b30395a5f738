# SPDX-License-Identifier: GPL-3.0-or-later
"""Pending requests of a session's tools: permissions, and the questions of a form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from qwen_companion.base.local_ids import local_id
from qwen_companion.daemon import models
from qwen_companion.daemon.messages import OfferedPlan, Option, Permission, ToolChange
from qwen_companion.daemon.sanitize import clean, exact, line, reveal
from qwen_companion.domain import AskedQuestion, QuestionChoice

ME, OTHER, NOBODY = "me", "other", "nobody"
"""The author of an answer: this client, another one, or nobody if the turn ended first."""

OPEN, HELD, CLOSED = "open", "held", "closed"

OPTION_WRITES: Mapping[str, str | None] = {
    "proceed_always": None,
    "proceed_always_project": "project",
    "proceed_always_user": "user",
    "restore_previous": None,
}
"""Settings that an answer writes on the daemon's machine, by the option's id, as seen on 0.24.4.

Only for lookup: the daemon decides which options there are.
"""

_MODES_AFTER_PLAN: Mapping[str, str] = {
    "restore_previous": "before",
    "proceed_always": "auto-edit",
    "proceed_once": "default",
}
"""Approval modes after a plan, by the id of the option that approves it (0.23.4 and 0.24.4)."""

_REJECTS = ("reject_once", "reject_always")
_ONCE = ("allow_once", "reject_once")

_TEXT_CHARACTERS = 2000


@dataclass(frozen=True)
class Vote:
    """An answer in the daemon's words; `option_id` None dismisses the question.

    `answers` has the answer to each question of a form, by key; several to one question are joined by commas.
    `allowed` is Emacs's id of the tool that may then run.
    """

    request_id: str
    option_id: str | None
    answers: Mapping[str, str] | None
    allowed: str | None = None


@dataclass
class _Pending:
    """A pending permission.  `told` is its newest report, sent to Emacs once it is `shown`."""

    told: Permission
    option_ids: Mapping[str, str]
    answer_keys: tuple[str, ...]
    shown: bool = False


class Permissions:
    """One session's permissions."""

    def __init__(self, session: str) -> None:
        """`session` is Emacs's id."""
        self._session = session
        self._pending: dict[str, _Pending] = {}
        self._closed: set[str] = set()

    @property
    def unanswered(self) -> frozenset[str]:
        """The daemon's ids of the pending permissions."""
        return frozenset(self._pending)

    @property
    def shown(self) -> bool:
        """Whether Emacs was sent any of them."""
        return any(item.shown for item in self._pending.values())

    def knows(self, request_id: str) -> bool:
        """Return whether it is pending or closed."""
        return request_id in self._pending or request_id in self._closed

    def ask(
        self,
        request_id: str,
        options: Iterable[models.PermissionOption],
        questions: tuple[models.Question, ...],
        tool: ToolChange,
        message: str = "",
        plan: str | None = None,
    ) -> None:
        """Add a permission that the daemon needs for `tool`, with its `message`; `show` sends it to Emacs.

        With a `plan`, it is the approval of that plan.
        """
        offered = {local_id("option", request_id, option.option_id): option for option in options}
        self._pending[request_id] = _Pending(
            Permission(
                session=self._session,
                permission=local_id("permission", request_id),
                state=OPEN,
                turn=tool.turn,
                tool=tool.id,
                title=tool.title,
                message=_short(reveal(message)) or None,
                options=tuple(_option(identifier, option, plan) for identifier, option in offered.items()),
                questions=tuple(map(_question, questions)),
                # `Plans` adds the file, which depends on the project's directory.
                plan=None if plan is None else OfferedPlan("", exact(plan)),
            ),
            {identifier: option.option_id for identifier, option in offered.items()},
            tuple(question.answer_key or str(index) for index, question in enumerate(questions)),
        )

    def show(self) -> Iterator[Permission]:
        """Yield the open permissions that Emacs was not sent."""
        for pending in self._pending.values():
            if not pending.shown or pending.told.state != OPEN:
                pending.shown = True
                pending.told = replace(pending.told, state=OPEN)
                yield pending.told

    def hold(self) -> Iterator[Permission]:
        """Handle a lost connection: open requests may be answered elsewhere."""
        for pending in self._pending.values():
            if pending.shown and pending.told.state == OPEN:
                pending.told = replace(pending.told, state=HELD)
                yield pending.told

    def close(self, request_id: str, by: str | None = None, option_id: str | None = None) -> Iterator[Permission]:
        """Close a permission that was answered `by` somebody with `option_id`, or is void.

        If it was sent to Emacs, yield it, with its plan if that was approved.
        """
        self._closed.add(request_id)
        pending = self._pending.pop(request_id, None)
        if pending is None or not pending.shown:
            return
        options = (option for option in pending.told.options if pending.option_ids[option.id] == option_id)
        chosen = next(options, None)
        label, plan = (None, None) if chosen is None else (chosen.label, pending.told.plan if chosen.allows else None)
        yield replace(pending.told, state=CLOSED, by=by, label=label, options=(), questions=(), plan=plan)

    def allowed(self, request_id: str, option_id: str | None) -> str | None:
        """Return Emacs's id of the tool that may run once `request_id` is answered with `option_id`, or None."""
        pending = self._pending.get(request_id)
        if pending is None:
            return None
        allows = any(option.allows and pending.option_ids[option.id] == option_id for option in pending.told.options)
        return pending.told.tool if allows else None

    def vote(self, permission: str, option: str | None, answers: tuple[tuple[str, ...], ...]) -> Vote | None:
        """Return the answer `option` to `permission`, by Emacs's ids; None when either is gone."""
        for request_id, pending in self._pending.items():
            if pending.told.permission != permission:
                continue
            if option is None:
                return Vote(request_id, None, None)
            if option not in pending.option_ids:
                return None
            words = {key: ", ".join(chosen) for key, chosen in zip(pending.answer_keys, answers, strict=False)}
            option_id = pending.option_ids[option]
            return Vote(request_id, option_id, words or None, self.allowed(request_id, option_id))
        return None


def _option(identifier: str, option: models.PermissionOption, plan: str | None) -> Option:
    kind = option.kind or ""
    lasting = kind.endswith("_always")
    return Option(
        id=identifier,
        label=line(reveal(option.name or option.label or option.option_id)),
        # An unknown sort of option may do anything.
        allows=kind not in _REJECTS,
        lasting=lasting,
        writes=None if kind in _ONCE else OPTION_WRITES.get(option.option_id, "unknown"),
        mode=None if plan is None else _MODES_AFTER_PLAN.get(option.option_id),
    )


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_CHARACTERS else text[:_TEXT_CHARACTERS] + "…"


def _question(question: models.Question) -> AskedQuestion:
    return AskedQuestion(
        text=_short(clean(question.question)),
        header=None if question.header is None else line(question.header),
        multiple=question.multi_select,
        choices=tuple(
            QuestionChoice(clean(item.label), None if item.description is None else clean(item.description))
            for item in question.options
        ),
    )
