# SPDX-License-Identifier: GPL-3.0-or-later
"""Call Emacs's tools: arguments in, text out, within a limit, and without files hidden from the CLI."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import anyio

from qwen_companion.base.errors import EmacsUnavailableError
from qwen_companion.base.file_names import FileNameError, file_name
from qwen_companion.base.threads import in_thread
from qwen_companion.domain import Peer, ToolDefinition, ToolItem
from qwen_companion.ide.access import Access
from qwen_companion.ide.peers import Caller
from qwen_companion.privacy.verdicts import printable
from qwen_companion.tools.answers import render
from qwen_companion.tools.arguments import (
    DEFAULT_LIMIT,
    LIMIT,
    MAX_LIMIT,
    OFFSET,
    PATH,
    ToolError,
    Value,
    arguments_of,
    check_arguments,
)
from qwen_companion.wire.messages import ToolAnswer, ToolCall, ToolCalled

ANSWER_S = 5.0
"""Seconds that Emacs may take for an answer."""

OFFER_S = 3.0
"""Seconds that a CLI's only request for the tool list waits for Emacs to send it."""

MAX_KEPT = 30
"""Number of finished calls that the user can inspect."""

_BUSY = (
    "Emacs is busy and has not answered within {seconds:g} seconds: the user or a language server keeps it. "
    "Go on without this, or try again later."
)
_GONE = "Emacs cannot be asked at the moment. Go on without this."
_NOT_KNOWN = "Emacs has not said yet which files it shows. Try again in a moment."
_UNTRUSTED = "The user does not trust this folder in Emacs, so Emacs tells nothing about it."


@dataclass(frozen=True)
class ToolText:
    """The answer to a model."""

    text: str
    failed: bool = False


@dataclass(eq=False)
class _Question:
    """A call that Emacs has not answered yet."""

    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: ToolAnswer | None = None


class Emacs(Protocol):
    """Emacs as the tools need it."""

    async def call(self, message: ToolCall, timeout: float | None) -> None:
        """Send a call, whose answer comes separately; wait for its receipt up to `timeout` seconds, None for ever.

        :raises EmacsUnavailableError: when Emacs does not answer
        """
        ...

    def notify(self, message: ToolCalled) -> None:
        """Report a call that is over."""
        ...


class Tools:
    """The tools of one Emacs, for all CLIs.  Call its methods on the event loop."""

    def __init__(
        self,
        emacs: Emacs,
        access: Callable[[Peer | None], Access | None],
        answer_s: float = ANSWER_S,
    ) -> None:
        """`access`, called in a thread, returns the access rules of a CLI."""
        self.definitions: tuple[ToolDefinition, ...] = ()
        self._offered = anyio.Event()
        self._emacs = emacs
        self._access = access
        self._answer_s = answer_s
        self._ids = itertools.count(1)
        self._questions: dict[int, _Question] = {}
        self._kept: deque[ToolCalled] = deque(maxlen=MAX_KEPT)
        self._watched = False

    def offer(self, definitions: tuple[ToolDefinition, ...]) -> None:
        """Offer the tools of `definitions` from now on."""
        self.definitions = definitions
        self._offered.set()

    async def offered(self) -> tuple[ToolDefinition, ...]:
        """Wait for Emacs's tool list, then return it.  A restarted backend may be asked first."""
        with anyio.move_on_after(OFFER_S):
            await self._offered.wait()
        return self.definitions

    def watch(self, on: bool) -> None:
        """Begin or stop reporting calls; report the last ones first."""
        self._watched = on
        if on:
            for call in self._kept:
                self._emacs.notify(call)

    def handle(self, answer: ToolAnswer) -> None:
        """Handle the answer of Emacs; drop it if the call has ended."""
        question = self._questions.pop(answer.id, None)
        if question is not None:
            question.answer = answer
            question.answered.set()

    async def call(self, name: str, arguments: Mapping[str, object], caller: Caller | None) -> ToolText:
        """Call the tool `name` for the CLI `caller`, None for an unknown one."""
        called, start = int(time.time() * 1000), time.monotonic()
        try:
            result = ToolText(await self._call(name, arguments, caller))
        except ToolError as error:
            result = ToolText(str(error), failed=True)
        took = int((time.monotonic() - start) * 1000)
        client = caller.label if caller else ""
        size = len(result.text.encode("utf-8"))
        done = ToolCalled(client, _request(name, arguments), size, took, called, result.failed, result.text)
        self._kept.append(done)
        if self._watched:
            self._emacs.notify(done)
        return result

    async def _call(self, name: str, arguments: Mapping[str, object], caller: Caller | None) -> str:
        tool = next((tool for tool in self.definitions if tool.name == name), None)
        if tool is None:
            known = ", ".join(tool.name for tool in self.definitions) or "none"
            raise ToolError(f"Emacs has no tool {name}. It has: {known}.")
        values = check_arguments(tool, arguments)
        access = await in_thread(self._access, caller.peer if caller else None)
        if access is None:
            raise ToolError(_NOT_KNOWN)
        if access.trusted is False:
            raise ToolError(_UNTRUSTED)
        for argument in arguments_of(tool):
            if argument.kind == PATH and argument.name in values:
                path = str(values[argument.name])
                values[argument.name] = access.place.file(await in_thread(_resolve, path, access)).name
        limit, offset = int(values.pop(LIMIT, DEFAULT_LIMIT)), int(values.pop(OFFSET, 0))
        answer = await self._ask(name, values, access, self._answer_s)
        if answer.error is not None:
            raise ToolError(access.place.there(answer.error))
        hidden, shown_as = await in_thread(_judge, answer.items, access)
        return render(
            answer.items,
            answer.more,
            answer.hidden,
            hidden,
            shown_as,
            offset if tool.paged else None,
            max(1, min(limit, MAX_LIMIT)),
        )

    async def ask_unasked(self, name: str, values: Mapping[str, Value], peer: Peer | None, wait_s: float) -> str | None:
        """Return the report that Emacs adds for the CLI in the process `peer`, within `wait_s` seconds; None for none.

        A `path` in `values` is the file of the report.
        """
        access = await in_thread(self._access, peer)
        if access is None or access.trusted is False:
            return None
        path = values.get(PATH)
        if isinstance(path, str):
            if (await in_thread(access.rules, [path]))[path] is not None:
                return None
            values = {**values, PATH: access.place.file(path).name}
        try:
            answer = await self._ask(name, values, access, wait_s)
        except ToolError:
            return None
        hidden, shown_as = await in_thread(_judge, answer.items, access)
        # Unasked reports do not mention hidden items.
        items = [item for item in answer.items if item.path not in hidden]
        return render(items, 0, 0, {}, shown_as, None, len(items)) if items else None

    async def _ask(self, name: str, values: Mapping[str, Value], access: Access, wait_s: float) -> ToolAnswer:
        identifier = next(self._ids)
        question = self._questions[identifier] = _Question()
        deadline = int((time.time() + wait_s) * 1000)
        try:
            with anyio.move_on_after(wait_s):
                roots = access.names
                call = ToolCall(identifier, name, values, roots is None, roots or (), deadline)
                await self._emacs.call(call, timeout=None)
                await question.answered.wait()
        except EmacsUnavailableError:
            if question.answer is None:
                raise ToolError(_GONE) from None
        finally:
            self._questions.pop(identifier, None)
        if question.answer is None:
            raise ToolError(_BUSY.format(seconds=wait_s))
        return _where_it_runs(question.answer, access)


def _where_it_runs(answer: ToolAnswer, access: Access) -> ToolAnswer:
    """Return `answer` with names as the CLI knows them, without items about files on other machines."""
    items = tuple(
        replace(
            item,
            path=None if item.path is None else access.place.path(item.path),
            text=item.text if item.block else access.place.there(item.text),
        )
        for item in answer.items
        if item.path is None or access.place.path(item.path) is not None
    )
    return replace(answer, items=items, hidden=answer.hidden + len(answer.items) - len(items))


def _request(name: str, arguments: Mapping[str, object]) -> str:
    """Return the call in one line."""
    values = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)[:200]}" for key, value in arguments.items())
    return printable(f"{name}({values})")


def _resolve(path: str, access: Access) -> str:
    """Return the absolute name of the file that a model calls `path`.  Blocks on disk I/O.

    :raises ToolError: if the file is hidden from it
    """
    try:
        file_name(path, "/")
    except FileNameError as error:
        raise ToolError(f"`path` is no name of a file: {error}.") from None
    directories = list(dict.fromkeys(filter(None, (access.directory, *(access.directories or access.roots)))))
    if path.startswith("~"):
        raise ToolError(f"{path}: give an absolute path, or one relative to {_first(directories)}.")
    if os.path.isabs(path):
        candidates = [os.path.normpath(path)]
    else:
        candidates = [os.path.normpath(os.path.join(directory, path)) for directory in directories]
    found = next((name for name in candidates if access.kind(name)), candidates[0] if candidates else None)
    if found is None:
        raise ToolError(f"{path}: give an absolute path; Emacs does not know where this CLI works.")
    rule = access.rules([found])[found]
    if rule is not None:
        raise ToolError(f"Emacs does not show {path}: {rule}.")
    kind = access.kind(found)
    if kind == "directory":
        raise ToolError(f"{path} is a directory. Name a file.")
    if kind is None:
        raise ToolError(f"There is no file {found}.{_suggestion(path, access, directories)}")
    return found


def _first(directories: list[str]) -> str:
    return directories[0] if directories else "the project"


def _suggestion(path: str, access: Access, directories: list[str]) -> str:
    """Return better names for the error: the open files of the same name, or the directories for relative names."""
    base = os.path.basename(path)
    open_files = [name for name in access.exposures if os.path.basename(name) == base]
    allowed = [name for name, rule in access.rules(open_files).items() if rule is None]
    if allowed:
        return f" Open in Emacs with that name: {', '.join(map(printable, allowed[:3]))}."
    return f" Paths are absolute, or relative to {_first(directories)}."


def _judge(items: Iterable[ToolItem], access: Access) -> tuple[dict[str, str], dict[str, str]]:
    """Return the paths in `items` that are not shown, each with its rule, and the shown names of the others."""
    rules = access.rules(item.path for item in items if item.path is not None)
    hidden = {path: rule for path, rule in rules.items() if rule is not None}
    return hidden, {path: _short(path, access) for path in rules if path not in hidden}


def _short(path: str, access: Access) -> str:
    """Return `path`, relative to the directory of the CLI if possible, sanitised for one line."""
    start = (access.directory or "").rstrip("/") + "/"
    return printable(path[len(start) :] if len(start) > 1 and path.startswith(start) else path)
