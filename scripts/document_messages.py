# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the lists of EPC messages in docs/protocol.org anew from the docstrings of their classes."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from qwen_companion import domain
from qwen_companion.daemon import messages as daemon_messages
from qwen_companion.emacs import messages as emacs_messages
from qwen_companion.emacs.messages import Outgoing

DOCUMENT = Path(__file__).parents[1] / "docs/protocol.org"


def described(docstring: str) -> tuple[str, str] | None:
    """Return the method and the first paragraph of a message's `docstring`, or None if it describes no message."""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    match = re.fullmatch(r"`([a-z-]+)`: (.+)", paragraph)
    return (match[1], match[2]) if match else None


def as_org(text: str) -> str:
    """Return `text` with its code in Org's markup instead of Markdown's."""
    return re.sub(r"`([^`]+)`", r"=\1=", text)


def messages_of(module: ModuleType, outgoing: bool) -> list[str]:
    """Return one Org list item for each message class of `module` with this direction, by method."""
    items: list[str] = []
    owners = (module.__name__, domain.__name__)
    classes: list[type[Any]] = [cls for _, cls in inspect.getmembers(module, inspect.isclass)]
    for cls in classes:
        found = described(inspect.getdoc(cls) or "")
        if cls.__module__ not in owners or found is None or issubclass(cls, Outgoing) != outgoing:
            continue
        method, summary = found
        text = summary[0].upper() + summary[1:]
        if (
            outgoing
            and (payload := inspect.getdoc(inspect.getattr_static(cls, "payload")))
            and payload.startswith("`(")
        ):
            text += " " + payload.splitlines()[0]
        items.append(f"- ={method}= :: {as_org(text)}")
    return sorted(items)


def updated(document: str) -> str:
    """Return `document` with each generated list replaced by the current one."""
    for name, module in (("Emacs", emacs_messages), ("daemon", daemon_messages)):
        for direction, outgoing in (("to Python", False), ("to Emacs", True)):
            begin = f"# Generated: {name} messages {direction}\n"
            head, found, rest = document.partition(begin)
            if not found:
                raise SystemExit(f"{DOCUMENT} lacks the line: {begin}")
            tail = rest[rest.index("# End\n") :]
            document = head + begin + "\n".join(messages_of(module, outgoing)) + "\n" + tail
    return document


def main() -> None:
    """Write the document, or with --check exit with 1 and a hint if it is not current."""
    text = DOCUMENT.read_text(encoding="utf-8")
    new = updated(text)
    if sys.argv[1:] != ["--check"]:
        DOCUMENT.write_text(new, encoding="utf-8")
    elif new != text:
        raise SystemExit("docs/protocol.org is not current: make docs")


if __name__ == "__main__":
    main()
