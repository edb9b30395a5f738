# SPDX-License-Identifier: GPL-3.0-or-later
"""The answer of a tool as text for a model.

Text of others is marked: each of its lines begins with a number or a bar, so that none of it can look like a statement
of Emacs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qwen_companion.domain import ToolItem

MAX_BYTES = 24_000
"""Longest answer.  Each request of the rest of the conversation contains it again."""

_MAX_LINE = 500


def render(
    items: Sequence[ToolItem],
    more: int,
    left_out: int,
    hidden: Mapping[str, str],
    shown_as: Mapping[str, str],
    offset: int | None,
    limit: int,
) -> str:
    """Return `items` as text; `more` of them were not sent by Emacs, and `left_out` others are hidden.

    `hidden` are the paths that are not shown, each with the rule; `shown_as` the shown names of other paths.  `offset`
    is the number of items to skip, None if the answer is no list; then up to `limit` are shown.
    """
    allowed = [item for item in items if item.path not in hidden]
    left_out += len(items) - len(allowed)
    start = offset or 0
    page = allowed[start:] if offset is None else allowed[start : start + limit]
    lines: list[str] = []
    size = shown = 0
    for item in page:
        text = _item(item, shown_as)
        size += len(text.encode("utf-8")) + 1
        if size > MAX_BYTES and lines:
            break
        lines.append(text if size <= MAX_BYTES else _cut(text))
        shown += 1
    after = len(allowed) - start - shown
    if after > 0 and offset is not None:
        lines.append(f"({after + more} more: call again with offset {start + shown}.)")
    elif after > 0:
        lines.append("(The rest is left out, since it is long.)")
    elif more:
        lines.append(f"({more} more, which cannot be listed: ask for something narrower.)")
    if left_out:
        files = "files" if left_out > 1 else "a file"
        lines.append(f"({left_out} in {files} that Emacs does not show, not listed.)")
    if not lines:
        lines.append("Nothing found." if start == 0 else f"There are {len(allowed)} results only.")
    return "\n".join(lines)


def _item(item: ToolItem, shown_as: Mapping[str, str]) -> str:
    if item.block:
        heading = f"{shown_as.get(item.path, item.path)}:\n" if item.path is not None else ""
        return heading + _block(item.text, item.line)
    if item.path is None:
        return item.text
    place = shown_as.get(item.path, item.path)
    if item.line is not None:
        place += f":{item.line}"
        if item.column is not None:
            place += f":{item.column}"
    text = " ".join(item.text.split())
    return f"{place}: {_short(text)}" if text else place


def _block(text: str, first: int | None) -> str:
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    marks = ("|" for _ in lines) if first is None else (f"{number}|" for number in range(first, first + len(lines)))
    return "\n".join(f"{mark} {_short(line)}".rstrip() for mark, line in zip(marks, lines, strict=True))


def _short(line: str) -> str:
    line = line.replace("\r", "")
    return line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}... ({len(line)} characters)"


def _cut(text: str) -> str:
    cut = text.encode("utf-8")[:MAX_BYTES].decode("utf-8", "ignore")
    return cut.rpartition("\n")[0] + "\n(Cut here, since it is long.)"
