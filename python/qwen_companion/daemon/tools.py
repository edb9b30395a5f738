# SPDX-License-Identifier: GPL-3.0-or-later
"""A session's tool calls, assembled from partial updates; long texts stay here until requested."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from qwen_companion.base.local_ids import local_id
from qwen_companion.daemon.messages import DIFF, INPUT, NEW, OLD, OUTPUT, DiffInfo, FilePosition, ToolChange
from qwen_companion.daemon.models import Location, ToolContent, ToolFields
from qwen_companion.daemon.sanitize import cap, clean, exact, line, reveal
from qwen_companion.texts.unified import unified

SHOWN_CHARACTERS = 16 * 1024
"""Longest part of a tool's text sent without request, in characters."""

HELD_CHARACTERS = 64 * 1024 * 1024
"""Most characters of a session's tools to hold; above that the oldest tools lose their texts."""

SHOWN_ITEMS = 100
"""Most diffs and most places of one tool to send; the rest are only counted."""

_STATUS = {"pending": "pending", "in_progress": "running", "completed": "done", "failed": "failed"}
_FINAL = ("done", "failed")
_PREPARING = "preparing"


@dataclass(frozen=True)
class _Diff:
    """A change of the file `path`; `old` is None when the file is known to be new."""

    path: str
    old: str | None
    new: str


class HeldTool:
    """One call of a tool."""

    def __init__(self, identifier: str, turn: str | None, time: int | None) -> None:
        self.id = identifier
        self._turn = turn
        self._status = "pending"
        self._name: str | None = None
        self._title: str | None = None
        self._type: str | None = None
        self._parent: str | None = None
        self._command: str | None = None
        self._input = ""
        self._output = ""
        self._creates = False
        self._diffs: tuple[_Diff, ...] = ()
        self._unreadable_diffs = 0
        self._places: tuple[FilePosition, ...] = ()
        self._revision = 0
        self._told = False
        self._started = time
        self._ended: int | None = None

    @property
    def ended(self) -> bool:
        """Whether its final status is known."""
        return self._status in _FINAL

    @property
    def revision(self) -> int:
        """The number of changes so far to its input or to its effects on files."""
        return self._revision

    @property
    def first_path(self) -> str | None:
        """The file of its first change."""
        return self._diffs[0].path if self._diffs else None

    @property
    def size(self) -> int:
        """The number of characters held."""
        return len(self._input) + len(self._output) + sum(len(diff.old or "") + len(diff.new) for diff in self._diffs)

    def merge(self, fields: ToolFields, time: int | None, parent: str | None) -> None:
        """Merge `fields` into this tool.  A missing or empty field leaves the old value."""
        self.describe(fields)
        meta = fields.meta
        if not self.ended and fields.status is not None:
            self._status = _STATUS.get(fields.status, self._status)
            # The duration of a call first reported at its end is unknown.
            if self.ended and self._told:
                self._ended = time
        self._told = True
        if meta is not None:
            self._name = meta.tool_name or self._name
            if meta.phase == _PREPARING and self._status == "pending":
                self._status = _PREPARING
        self._parent = parent or self._parent

    def allowed(self, time: int | None) -> bool:
        """Mark the tool as running since `time`, when it was allowed: the daemon reports only its end (0.24.4).

        Return False when it already runs, or has run.
        """
        if self._status not in (_PREPARING, "pending"):
            return False
        self._status = "running"
        self._started = time
        return True

    def give_up(self, turn: str) -> bool:
        """Mark it as failed if it was running in the failed `turn`; the daemon does not report this (0.24.4)."""
        if self._turn != turn or self.ended:
            return False
        self._status = "failed"
        return True

    def describe(self, fields: ToolFields) -> None:
        """Merge the description of the tool in `fields`, without its progress."""
        before = self._command, self._input, self._diffs, self._unreadable_diffs
        self._title = fields.title or self._title
        self._type = fields.kind or self._type
        if fields.locations:
            self._places = tuple(map(_place, fields.locations))
        if fields.raw_input:
            self._input = _as_text(fields.raw_input)
            self._command = _argument(fields.raw_input, "command")
            if self._status == _PREPARING:
                self._status = "pending"
        self._set_content(fields)
        if before != (self._command, self._input, self._diffs, self._unreadable_diffs):
            self._revision += 1

    def _set_content(self, fields: ToolFields) -> None:
        content = fields.content or ()
        self._creates = self._creates or _creates(fields)
        diffs = [item for item in content if item.type == "diff"]
        if diffs:
            readable = [_diff(item, self._creates) for item in diffs if item.path and item.new_text is not None]
            self._diffs, self._unreadable_diffs = tuple(readable), len(diffs) - len(readable)
        texts = [text for text in map(_text, content) if text is not None]
        if texts:
            self._output = "\n".join(texts)
        elif isinstance(fields.raw_output, str) and not self._output:
            self._output = fields.raw_output

    def change(self) -> ToolChange:
        """Return the report of its whole state."""
        return ToolChange(
            turn=self._turn,
            id=self.id,
            status=self._status,
            name=None if self._name is None else line(self._name),
            title=None if self._title is None else line(reveal(self._title)),
            type=None if self._type is None else line(self._type),
            parent=self._parent,
            command=None if self._command is None else cap(self._command, SHOWN_CHARACTERS, reveal),
            input=cap(self._input, SHOWN_CHARACTERS, reveal) if self._input else None,
            output=cap(self._output, SHOWN_CHARACTERS, clean) if self._output else None,
            revision=self._revision,
            diffs=tuple(
                DiffInfo(index, reveal(diff.path), None if diff.old is None else len(diff.old), len(diff.new))
                for index, diff in enumerate(self._diffs[:SHOWN_ITEMS])
            ),
            diffs_more=max(0, len(self._diffs) - SHOWN_ITEMS) + self._unreadable_diffs or None,
            places=self._places[:SHOWN_ITEMS],
            places_more=max(0, len(self._places) - SHOWN_ITEMS) or None,
            started=self._started,
            ended=self._ended,
        )

    def text(self, part: str, index: int) -> str | None:
        """Return the whole text `part`, of the tool or of its diff `index`; None when there is none."""
        if part == INPUT:
            return reveal(self._input) if self._input else None
        if part == OUTPUT:
            return clean(self._output) if self._output else None
        if part not in (OLD, NEW, DIFF) or not 0 <= index < len(self._diffs):
            return None
        diff = self._diffs[index]
        if part == DIFF:
            return unified(exact(diff.old or ""), exact(diff.new))
        return exact(diff.new if part == NEW else diff.old or "")

    def news(self, texts: Iterable[str]) -> str:
        """Join the `texts` about the tool that are not in its input."""
        given = reveal(self._input)
        return "\n".join(text.strip() for text in texts if reveal(text).strip() not in given)

    def drop_texts(self) -> None:
        """Drop its long texts."""
        self._input = self._output = ""
        self._diffs = ()


class Tools:
    """All tool calls of a session, by the daemon's id."""

    def __init__(self) -> None:
        self._tools: dict[str, HeldTool] = {}
        self._by_id: dict[str, HeldTool] = {}
        self._uses: dict[str, int] = {}

    def merge(self, fields: ToolFields, turn: str | None, time: int | None, *, begins: bool) -> HeldTool:
        """Merge `fields` into their tool, and return it."""
        tool = self.find(fields.tool_call_id)
        if tool is None or (begins and tool.ended):
            tool = self._begin(fields.tool_call_id, turn, time)
        parent = fields.meta.parent_tool_call_id if fields.meta is not None else None
        tool.merge(fields, time, None if parent is None else self.name_of(parent))
        self._forget_old()
        return tool

    def describe(self, fields: ToolFields, turn: str | None, time: int | None) -> HeldTool:
        """Merge `fields`, from a request for permission, into their tool, and return it."""
        tool = self.find(fields.tool_call_id)
        if tool is None:
            return self.merge(fields, turn, time, begins=False)
        tool.describe(fields)
        return tool

    def give_up(self, turn: str) -> list[HeldTool]:
        """Mark the unfinished tools of `turn` as failed, and return them."""
        return [tool for tool in self._by_id.values() if tool.give_up(turn)]

    def find(self, call: str) -> HeldTool | None:
        """Return the newest tool the daemon calls `call`."""
        return self._tools.get(call)

    def get(self, identifier: str) -> HeldTool | None:
        """Return the tool Emacs calls `identifier`."""
        return self._by_id.get(identifier)

    def name_of(self, call: str) -> str:
        """Return Emacs's id of the daemon's tool call `call`, even before Emacs was sent it."""
        return local_id("tool", call, self._uses.get(call, 1))

    def _begin(self, call: str, turn: str | None, time: int | None) -> HeldTool:
        self._uses[call] = self._uses.get(call, 0) + 1
        tool = HeldTool(self.name_of(call), turn, time)
        self._tools[call] = self._by_id[tool.id] = tool
        return tool

    def _forget_old(self) -> None:
        held = sum(tool.size for tool in self._by_id.values())
        for tool in self._by_id.values():
            if held <= HELD_CHARACTERS:
                return
            # A tool that may still need a permission has to stay.
            if not tool.ended:
                continue
            held -= tool.size
            tool.drop_texts()


def unknown_content(content: tuple[ToolContent, ...] | None) -> list[str]:
    """Return the sorts of `content` that cannot be shown; an unreadable change is reported with the tool."""
    return [
        item.content.type if item.content is not None else item.type
        for item in content or ()
        if item.type != "diff" and _text(item) is None
    ]


def plan_in(fields: ToolFields) -> str | None:
    """Return the plan that the tool of `fields` asks to approve; None for another tool or a blank plan."""
    plan = _argument(fields.raw_input, "plan") if fields.kind == "switch_mode" else None
    return plan if plan and plan.strip() else None


def without_texts(fields: ToolFields) -> tuple[ToolFields, list[str]]:
    """Split `fields`, from a request for permission, into the fields of the tool and the texts for the user."""
    content = fields.content or ()
    rest = tuple(item for item in content if _text(item) is None)
    return fields.model_copy(update={"content": rest}), [text for text in map(_text, content) if text]


def _text(item: ToolContent) -> str | None:
    content = item.content if item.type == "content" else None
    return content.text if content is not None and content.type == "text" else None


def _diff(item: ToolContent, creates: bool) -> _Diff:
    return _Diff(item.path or "", None if creates and not item.old_text else item.old_text, item.new_text or "")


def _creates(fields: ToolFields) -> bool:
    """Return whether `fields` says that the file is new.

    The old text does not: it is empty for a new file as for an empty one.  When 0.24.4 writes a whole file, nothing
    says whether it is new.
    """
    output = fields.raw_output
    if isinstance(output, Mapping):
        return cast("Mapping[str, object]", output).get("originalContent", "") is None
    # An edit that replaces nothing creates a file, and is refused if it exists.
    is_edit = fields.meta is not None and fields.meta.tool_name == "edit"
    return is_edit and _argument(fields.raw_input, "old_string") == ""


def _place(location: Location) -> FilePosition:
    return FilePosition(reveal(location.path), location.line)


def _argument(raw_input: object, name: str) -> str | None:
    """Return the string argument `name` in `raw_input`, or None."""
    value = cast("Mapping[str, object]", raw_input).get(name) if isinstance(raw_input, Mapping) else None
    return value if isinstance(value, str) else None


def _as_text(raw_input: object) -> str:
    """Return the input of a tool as readable text: `name: value` for each argument."""
    if isinstance(raw_input, str):
        return raw_input
    if not isinstance(raw_input, Mapping):
        return json.dumps(raw_input, ensure_ascii=False)
    lines: list[str] = []
    for name, value in cast("Mapping[str, object]", raw_input).items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(lines)
