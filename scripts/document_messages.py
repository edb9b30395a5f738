# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the lists of EPC messages in docs/protocol.org, and their accessors in Emacs Lisp, from their classes."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, cast, get_origin

from qwen_companion import domain
from qwen_companion.daemon import messages as daemon_messages
from qwen_companion.wire import messages as emacs_messages
from qwen_companion.wire.messages import Outgoing
from qwen_companion.wire.plists import NESTED, FieldType, field_types, key_of
from qwen_companion.wire.spool import Spool

READ_BY_HAND = (
    emacs_messages.Compare,
    emacs_messages.Merge,
    emacs_messages.ReviewOutcome,
)
"""Messages whose keys are not their fields."""

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs/protocol.org"
ACCESSORS = {
    ROOT / "lisp/backend/qwen-companion-messages.el": emacs_messages,
    ROOT / "lisp/chat/qwen-companion-daemon-messages.el": daemon_messages,
}


def described(docstring: str) -> tuple[str, str] | None:
    """Return the method and the first paragraph of a message's `docstring`, or None if it describes no message."""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    match = re.fullmatch(r"`([a-z-]+)`: (.+)", paragraph)
    return (match[1], match[2]) if match else None


def plist_of(cls: type[Any]) -> str:
    """Return the shape of the property list that `cls` is."""
    fields = field_types(cls)
    kind = [f":kind {cls.kind}"] if hasattr(cls, "kind") and "kind" not in fields else []
    return f"({' '.join([*kind, *(keys_of(name, type_) for name, type_ in fields.items())])})"


def keys_of(name: str, type_: FieldType) -> str:
    """Describe the field `name` of a property list: its keys and their values."""
    if domain.LONG in type_.marks:
        return ":text S"
    if domain.INLINE in type_.marks:
        return " ".join(keys_of(*field) for cls in type_.classes for field in field_types(cls).items())
    if type_.parts:
        return " ".join([f"{key_of(name)} S", *(f"{key_of(f'{name}_{part}')} N" for part in type_.parts[1:])])
    return f"{type_.key(name)} {value_of(type_)}"


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
    # Some messages of Emacs are types of the domain as well.
    owners = (emacs_messages, domain) if module is emacs_messages else (module,)
    classes: list[type[Any]] = [cls for owner in owners for _, cls in inspect.getmembers(owner, inspect.isclass)]
    for cls in dict.fromkeys(classes):
        found = described(inspect.getdoc(cls) or "")
        if (
            cls.__module__ not in [owner.__name__ for owner in owners]
            or found is None
            or issubclass(cls, Outgoing) != outgoing
        ):
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


def written_by_hand(spool: Spool) -> dict[str, list[str]]:
    """Return the keys of the property lists that are not written by the fields of their class, by its name."""
    peer = domain.Peer(pid=1, started="", directory="", family="", ancestors=())
    known = domain.KnownSession("", "", "", "", peer)
    state = domain.SessionState(known, streaming=True, state=domain.CliState(), no_hooks="", usage=(domain.Usage(""),))
    sessions = emacs_messages.SessionChanges((state,)).payload(spool)
    texts = emacs_messages.JournalReply(1, texts=[emacs_messages.Texts("")]).payload(spool)
    return {
        "SessionChanges": keys(sessions),
        "SessionState": keys(inner(sessions, ":sessions")),
        "JournalReply": [*written_by_fields(emacs_messages.JournalReply), "texts-file"],
        "Texts": keys(inner(texts, ":texts")),
    }


def keys(plist: object) -> list[str]:
    """Return the keys of a property list, without their colons."""
    return [str(key)[1:] for key in cast("list[object]", plist)[::2]]


def inner(plist: object, key: str) -> object:
    """Return the first element of the list that `key` has in a property list."""
    items = cast("list[Any]", plist)
    return items[[str(item) for item in items].index(key) + 1][0]


def written_by_fields(cls: type[Any]) -> Iterator[str]:
    """Yield the keys of the fields of `cls` that its base does not have."""
    if any("kind" in vars(sub) for sub in cls.__subclasses__()):
        yield "kind"
    inherited: Any = field_types(cls.__base__) if hasattr(cls.__base__, "__dataclass_fields__") else {}
    for name, type_ in field_types(cls).items():
        if name in inherited:
            continue
        if domain.LONG in type_.marks:
            yield "text"
        elif domain.INLINE in type_.marks:
            yield from (key for inline in type_.classes for key in written_by_fields(inline))
        else:
            yield type_.key(name)[1:]
            yield from (key_of(f"{name}_{part}")[1:] for part in type_.parts[1:])


def accessors(text: str, module: ModuleType, by_hand: dict[str, list[str]]) -> str:
    """Return the Emacs Lisp `text` with the keys of each class of `module` that it names."""

    def filled(match: re.Match[str]) -> str:
        cls = getattr(module, match[2], None) or getattr(domain, match[2])
        names = by_hand.get(match[2]) or list(written_by_fields(cls))
        lines = textwrap.fill(" ".join(names), 79, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
        return f"{match[1]}\n{lines})"

    return re.sub(r"^(\(qwen-companion-[a-z-]+define \S+ (\w+))[^()]*\)", filled, text, flags=re.MULTILINE)


def main() -> None:
    """Write the files, or with --check exit with 1 and a hint if one is not current."""
    with TemporaryDirectory() as directory:
        by_hand = written_by_hand(Spool(directory))
    files = {DOCUMENT: updated(DOCUMENT.read_text(encoding="utf-8"))}
    for path, module in ACCESSORS.items():
        files[path] = accessors(path.read_text(encoding="utf-8"), module, by_hand)
    for path, text in files.items():
        if sys.argv[1:] != ["--check"]:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            raise SystemExit(f"{path.relative_to(ROOT)} is not current: make docs")


if __name__ == "__main__":
    main()
