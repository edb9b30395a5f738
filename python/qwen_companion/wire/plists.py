# SPDX-License-Identifier: GPL-3.0-or-later
"""Property lists, the payloads of EPC: reading, writing, and both for dataclasses by the types of their fields.

The field `ends_lines` is the key `:ends-lines`.  Its type says what is written and read:

- `str`, `int` and `bool` are themselves, and None is nil.
- `Word` is a symbol.
- `Text` takes the keys of a text, `:text` or `:text-file` and perhaps `:crlf`, whatever its field is called.
- `Nested` and `Numbers` are property lists with these keys.
- A field with the mark `Key` has that key.
- A tuple or another sequence is a list, and a mapping of strings a list of `(NAME VALUE)`.
- A dataclass is a property list, or with the mark `INLINE` some keys in that of its owner.  One with a class variable
  `kind` writes it as `:kind` first, and a union of such classes is read by it.
- A named tuple is not nested: its first field has the key of the field that holds it, and each other field that key and
  its own name, a number; nil stands for 0, and None writes no key at all.

nil and a missing key read as false, the empty sequence or None, or else as the default of the field.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from sexpdata import (
    ExpectClosingBracket,
    ExpectNothing,
    ExpectSExp,
    Symbol,
    loads,
)

from qwen_companion.base.errors import MessageError, SpoolError
from qwen_companion.domain import INLINE, LONG, Key, Words
from qwen_companion.wire.spool import Spool

INLINE_TEXT_BYTES = 8 * 1024
"""Largest text, in UTF-8 bytes, that is sent inside a frame: parsing it takes Python 0.7 ms; a file takes 0.05."""

UNSPOOLED_TEXT_BYTES = 1024 * 1024
"""Largest text, in UTF-8 bytes, inside a frame if it cannot be sent by file: Emacs pauses 0.1 to 0.3 s."""

Sexp = object
"""A parsed or to-be-printed expression: str, int, float, bool, None, `Symbol` or a sequence of these."""

NESTED = "nested"

Nested = Annotated[str, NESTED]
"""A text that may be long, in a property list of its own."""

Numbers = Annotated[Sequence[int], NESTED]
"""Many whole numbers, sent as such a text: in decimal, separated by blanks."""

T = TypeVar("T")

_NO_BYTES = re.compile("[\ud800-\udc7f\udd00-\udfff]")

# sexpdata has no error of its own for most bad input; its parser raises these.
_UNREADABLE = (
    AssertionError,
    AttributeError,
    IndexError,
    RecursionError,
    TypeError,
    ValueError,
    ExpectClosingBracket,
    ExpectNothing,
    ExpectSExp,
)


def read_sexp(data: bytes) -> Sexp:
    """Return the one expression in `data`, UTF-8; bytes in names of files have the form of `os.fsdecode`.

    :raises MessageError: if there is none; its text never quotes `data`
    """
    try:
        text = data.decode("utf-8", "surrogatepass")
        if _NO_BYTES.search(text):
            raise ValueError("half a surrogate pair that is no byte")
        return loads(text)
    except _UNREADABLE:
        raise MessageError("not one Lisp expression in UTF-8") from None


class Plist:
    """Typed reading of one property list.  Every accessor raises MessageError naming the key, never the value."""

    def __init__(self, sexp: Sexp) -> None:
        items = _sequence(sexp, "the payload")
        if len(items) % 2:
            raise MessageError("a property list has an odd number of elements")
        self._values: dict[str, Sexp] = {}
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, Symbol):
                raise MessageError("a property list has a key that is no symbol")
            self._values.setdefault(str(key), value)

    def get(self, key: str) -> Sexp:
        """Return the value at `key`, None for nil or a missing key."""
        value = self._values.get(key)
        return None if is_nil(value) else value

    def string(self, key: str) -> str:
        """Return the string at `key`."""
        return _string(self._values.get(key), key)

    def optional_string(self, key: str) -> str | None:
        """Return the string at `key`; None for nil or a missing key."""
        return None if is_nil(self._values.get(key)) else self.string(key)

    def symbol(self, key: str) -> str:
        """Return the name of the symbol at `key`."""
        return _symbol(self._values.get(key), key)

    def boolean(self, key: str) -> bool:
        """Return whether the value at `key` is not nil."""
        return not is_nil(self._values.get(key))

    def optional_symbol(self, key: str) -> str | None:
        """Return the name of the symbol at `key`; None for nil or a missing key."""
        return None if is_nil(self._values.get(key)) else self.symbol(key)

    def integer(self, key: str) -> int:
        """Return the number at `key`, cut to an integer: Emacs may compute a time as a float."""
        return _integer(self._values.get(key), key)

    def optional_integer(self, key: str) -> int | None:
        """Return the number at `key`; None for nil or a missing key."""
        return None if is_nil(self._values.get(key)) else self.integer(key)

    def strings(self, key: str) -> tuple[str, ...]:
        """Return the list of strings at `key`."""
        return tuple(_string(item, key) for item in _sequence(self._values.get(key), key))

    def integers(self, key: str) -> tuple[int, ...]:
        """Return the list of numbers at `key`."""
        return tuple(_integer(item, key) for item in _sequence(self._values.get(key), key))

    def plist(self, key: str) -> Plist:
        """Return the property list at `key`."""
        return Plist(self._values.get(key))

    def plists(self, key: str) -> list[Plist]:
        """Return the list of property lists at `key`."""
        return [Plist(item) for item in _sequence(self._values.get(key), key)]

    def text(self, spool: Spool) -> str | None:
        """Return the text of this message, from the frame or from the spool; None if it has none.

        :raises SpoolError: if the text is lost
        """
        parts = self.optional_integer(":text-parts")
        path = self.optional_string(":text-file")
        if parts is not None:
            text = spool.pop_parts(parts)
        else:
            text = self.optional_string(":text") if path is None else spool.read(path)
        # Emacs would need ten times as long for that.
        return text.replace("\n", "\r\n") if text and self.boolean(":crlf") else text


def plist(**values: Sexp) -> list[Sexp]:
    """Return a property list for printing; `text_file=...` becomes `:text-file ...`."""
    result: list[Sexp] = []
    for name, value in values.items():
        result += [Symbol(key_of(name)), value]
    return result


def key_of(name: str) -> str:
    """Return the key of the field `name`."""
    return ":" + name.replace("_", "-")


def text_plist(text: str, spool: Spool) -> list[Sexp]:
    """Return the keys and values that represent `text`.

    :raises SpoolError: if it must be sent by file and cannot
    """
    if _fits(text, INLINE_TEXT_BYTES):
        return plist(text=text)
    try:
        return plist(text_file=spool.write(text))
    except SpoolError:
        if not _fits(text, UNSPOOLED_TEXT_BYTES):
            raise
        return plist(text=text)


def _fits(text: str, size: int) -> bool:
    """Return whether `text` has at most `size` bytes in UTF-8."""
    # A code point has one to four bytes, so most texts need no encoding.
    return len(text) * 4 <= size or (len(text) <= size and len(text.encode("utf-8")) <= size)


def is_nil(value: Sexp) -> bool:
    """Return whether `value` is one of the forms in which nil is read."""
    return value is None or value is False or (isinstance(value, Sequence) and not isinstance(value, str) and not value)


def _sequence(value: Sexp, what: str) -> Sequence[Sexp]:
    if is_nil(value):
        return ()
    if not isinstance(value, list | tuple):
        raise MessageError(f"{what} is not a list")
    return cast("Sequence[Sexp]", value)


def _string(value: Sexp, key: str) -> str:
    if not isinstance(value, str) or isinstance(value, Symbol):
        raise MessageError(f"{key} is not a string")
    return value


def _symbol(value: Sexp, key: str) -> str:
    if not isinstance(value, Symbol):
        raise MessageError(f"{key} is not a symbol")
    return str(value)


def _integer(value: Sexp, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise MessageError(f"{key} is not a number")
    return int(value)


# --- Dataclasses ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FieldType:
    """The parsed annotation of a field: its type, whether it may be None, and the marks of `Annotated`."""

    type: Any
    optional: bool
    marks: tuple[object, ...]

    @classmethod
    def of(cls, hint: Any) -> FieldType:
        """Parse the annotation `hint`."""
        if get_origin(hint) is Annotated:
            inner, *marks = get_args(hint)
            found = cls.of(inner)
            return cls(found.type, found.optional, (*marks, *found.marks))
        members = [item for item in get_args(hint) if item is not type(None)] if _is_union(hint) else []
        if len(members) == 1:
            found = cls.of(members[0])
            return cls(found.type, True, found.marks)
        if members and len(members) < len(get_args(hint)):
            return cls(Union[tuple(members)], True, ())  # noqa: UP007 - made at run time
        return cls(hint, False, ())

    def key(self, name: str) -> str:
        """Return the key of the field `name`."""
        return key_of(next((mark.name for mark in self.marks if isinstance(mark, Key)), name))

    @property
    def element(self) -> FieldType | None:
        """The type of the elements of a sequence; None for any other type."""
        origin = get_origin(self.type)
        if isinstance(origin, type) and issubclass(origin, Sequence):
            return FieldType.of(get_args(self.type)[0])
        return None

    @property
    def words(self) -> Words | None:
        """The mark of a `Word`."""
        return next((mark for mark in self.marks if isinstance(mark, Words)), None)

    @property
    def classes(self) -> tuple[type[Any], ...]:
        """The dataclass, or those of a union."""
        members = get_args(self.type) if _is_union(self.type) else (self.type,)
        return tuple(member for member in members if isinstance(member, type) and dataclasses.is_dataclass(member))

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the fields of a named tuple."""
        return getattr(self.type, "_fields", ())


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


@cache
def field_types(cls: type[Any]) -> Mapping[str, FieldType]:
    """Return the types of the fields of the dataclass `cls` by their names."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: FieldType.of(hints[field.name]) for field in dataclasses.fields(cls)}


Writer = Callable[[Any, Spool], list[Sexp]]


def to_plist(item: Any, spool: Spool) -> list[Sexp]:
    """Return the dataclass `item` as a property list.

    :raises SpoolError: if a text must be sent by file and cannot
    """
    kind = getattr(item, "kind", None)
    result = [] if kind is None else plist(kind=Symbol(kind))
    for name, write in _writers(cast("type[Any]", type(item))):
        result += write(getattr(item, name), spool)
    return result


@cache
def _writers(cls: type[Any]) -> tuple[tuple[str, Writer], ...]:
    return tuple((name, _writer(name, type_)) for name, type_ in field_types(cls).items())


def _writer(name: str, type_: FieldType) -> Writer:
    """Return a function from the value of the field `name` to its keys and their values."""
    if LONG in type_.marks:
        return lambda value, spool: [] if value is None else text_plist(value, spool)
    if INLINE in type_.marks:
        return to_plist
    if type_.parts:
        others = [Symbol(key_of(f"{name}_{part}")) for part in type_.parts[1:]]
        return lambda value, _spool: [] if value is None else _unnested(Symbol(key_of(name)), others, value)
    key, write = Symbol(type_.key(name)), _value_writer(type_)
    return lambda value, spool: [key, write(value, spool)]


def _unnested(key: Symbol, others: Sequence[Symbol], value: Sequence[Any]) -> list[Sexp]:
    result: list[Sexp] = [key, value[0]]
    for other, part in zip(others, value[1:], strict=True):
        result += [other, part or None]
    return result


def _value_writer(type_: FieldType) -> Callable[[Any, Spool], Sexp]:
    if NESTED in type_.marks:
        return _write_nested
    if type_.words is not None:
        return lambda value, _spool: None if value is None else Symbol(value)
    if type_.classes:
        return lambda value, spool: None if value is None else to_plist(value, spool)
    if (element := type_.element) is not None:
        write = _value_writer(element)
        return lambda value, spool: None if value is None else [write(item, spool) for item in value]
    if get_origin(type_.type) in (Mapping, dict):
        return lambda value, _spool: [[name, item] for name, item in value.items()]
    return lambda value, _spool: value


def _write_nested(value: str | Sequence[int] | None, spool: Spool) -> Sexp:
    if value is None:
        return None
    return text_plist(value if isinstance(value, str) else " ".join(map(str, value)), spool)


Reader = Callable[[Plist, "Spool | None"], object]


def from_plist(cls: type[T], values: Plist, spool: Spool | None = None) -> T:
    """Return the dataclass `cls` with the fields in `values`; `spool` is needed if one is a `Text`.

    :raises MessageError: if they have another shape
    :raises SpoolError: if a text is lost
    """
    return cls(**{name: read(values, spool) for name, read in _readers(cls)})


@cache
def _readers(cls: type[Any]) -> tuple[tuple[str, Reader], ...]:
    hints = field_types(cls)
    return tuple((field.name, _reader(field, hints[field.name])) for field in dataclasses.fields(cls))


def _reader(field: dataclasses.Field[Any], type_: FieldType) -> Reader:
    if LONG in type_.marks:
        return lambda values, spool: _read_text(values, spool, type_.optional)
    if INLINE in type_.marks:
        (cls,) = type_.classes
        return lambda values, spool: from_plist(cls, values, spool)
    if type_.parts:
        return lambda values, spool: _read_unnested(type_.type, field.name, values, spool)
    key, read = type_.key(field.name), _value_reader(type_)
    default: object = None if field.default is MISSING else field.default
    has_default = type_.type is not bool and (type_.optional or field.default is not MISSING)

    def read_field(values: Plist, spool: Spool | None) -> object:
        value = values.get(key)
        return default if value is None and has_default else read(value, key, spool)

    return read_field


def _read_unnested(cls: type[Any], name: str, values: Plist, spool: Spool | None) -> object:
    """Return the named tuple `cls` in the field `name`, None if its first key is missing."""
    (_, hint), *others = get_type_hints(cls).items()
    value = values.get(key_of(name))
    if value is None:
        return None
    numbers = (values.optional_integer(key_of(f"{name}_{other}")) or 0 for other, _ in others)
    return cls(_value_reader(FieldType.of(hint))(value, key_of(name), spool), *numbers)


def _read_text(values: Plist, spool: Spool | None, optional: bool) -> str | None:
    if spool is None:
        raise TypeError("no spool for a text")
    text = values.text(spool)
    if text is None and not optional:
        raise MessageError("a text is missing")
    return text


def _value_reader(type_: FieldType) -> Callable[[Sexp, str, Spool | None], object]:
    """Return a function that reads one value; it is called with the value, the key for an error, and the spool."""
    if (words := type_.words) is not None:
        return lambda value, key, _spool: _word(_symbol(value, key), words, key)
    if (element := type_.element) is not None:
        read = _value_reader(element)
        return lambda value, key, spool: tuple(read(item, key, spool) for item in _sequence(value, key))
    if classes := type_.classes:
        return lambda value, _key, spool: _read_class(classes, Plist(value), spool)
    if type_.type is bool:
        return lambda value, _key, _spool: value is not None
    if type_.type is int:
        return lambda value, key, _spool: _integer(value, key)
    if type_.type is not str:
        raise TypeError(f"{type_.type} cannot be read from a property list")
    return lambda value, key, _spool: _string(value, key)


def _word(word: str, words: Words, key: str) -> str:
    if words.allowed and word not in words.allowed:
        raise MessageError(f"{key} is none of {', '.join(words.allowed)}")
    return word


def _read_class(classes: Sequence[type[Any]], values: Plist, spool: Spool | None) -> object:
    if len(classes) == 1:
        return from_plist(classes[0], values, spool)
    kind = values.symbol(":kind")
    for cls in classes:
        if cls.kind == kind:
            return from_plist(cls, values, spool)
    raise MessageError(f":kind is none of {', '.join(cls.kind for cls in classes)}")
