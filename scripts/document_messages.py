# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the lists of EPC messages in docs/protocol.org anew from the docstrings and fields of their classes."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin

from qwen_companion import domain
from qwen_companion.daemon import messages as daemon_messages
from qwen_companion.emacs import messages as emacs_messages
from qwen_companion.emacs.messages import Outgoing
from qwen_companion.emacs.plists import INLINE, NESTED, FieldType, field_types, key_of

READ_BY_HAND = (
    domain.Settings,
    emacs_messages.Compare,
    emacs_messages.Merge,
    emacs_messages.ReviewOutcome,
)
"""Messages whose keys are not their fields."""

DOCUMENT = Path(__file__).parents[1] / "docs/protocol.org"


def described(docstring: str) -> tuple[str, str] | None:
    """Return the method and the first paragraph of a message's `docstring`, or None if it describes no message."""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    match = re.fullmatch(r"`([a-z-]+)`: (.+)", paragraph)
    return (match[1], match[2]) if match else None


def plist_of(cls: type[Any]) -> str:
    """Return the shape of the property list that `cls` is."""
    kind = [f":kind {cls.kind}"] if hasattr(cls, "kind") else []
    return f"({' '.join([*kind, *(keys_of(name, type_) for name, type_ in field_types(cls).items())])})"


def keys_of(name: str, type_: FieldType) -> str:
    """Describe the field `name` of a property list: its keys and their values."""
    if domain.LONG in type_.marks:
        return ":text S"
    if INLINE in type_.marks:
        return " ".join(keys_of(*field) for cls in type_.classes for field in field_types(cls).items())
    if type_.parts:
        return " ".join([f"{key_of(name)} S", *(f"{key_of(f'{name}_{part}')} N" for part in type_.parts[1:])])
    return f"{key_of(name)} {value_of(type_)}"


def value_of(type_: FieldType) -> str:
    """Describe a value of `type_`."""
    if NESTED in type_.marks:
        value = "(:text S)"
    elif type_.words is not None:
        value = "|".join(type_.words.allowed) or "SYMBOL"
    elif type_.classes:
        # A field of a class without a kind of its own holds one of its subclasses.
        value = "|".join(plist_of(cls) for base in type_.classes for cls in base.__subclasses__() or [base])
    elif (element := type_.element) is not None:
        value = f"({value_of(element)}...)"
    elif get_origin(type_.type) is not None:
        value = "((NAME VALUE)...)"
    else:
        value = {bool: "B", int: "N", str: "S"}[type_.type]
    return f"{value}|nil" if type_.optional else value


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
        written_by_hand = outgoing and "payload" in vars(cls)
        if written_by_hand:
            text += " " + (inspect.getdoc(cls.payload) or "").splitlines()[0]
        elif cls not in READ_BY_HAND and field_types(cls):
            text += f" `{plist_of(cls)}`."
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
