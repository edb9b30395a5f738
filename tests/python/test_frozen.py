# SPDX-License-Identifier: GPL-3.0-or-later
"""Objects that never change are compared, hashed and printed by their fields."""

from __future__ import annotations

from dataclasses import field, replace
from typing import ClassVar

import pytest

from qwen_companion.frozen import frozen
from support import PYTHON_DIRECTORY


@frozen
class Place:
    path: str
    line: int = 1
    secret: str = field(default="", repr=False)
    kind: ClassVar[str] = "place"


@frozen
class Other:
    path: str
    line: int = 1
    secret: str = ""


@frozen
class Nothing:
    pass


def test_compared_by_type_and_fields() -> None:
    assert Place("a", 2) == Place("a", line=2) != Place("a", 3)
    assert Place("a") != Other("a") != ("a", 1, "")
    assert Nothing() == Nothing()
    assert replace(Place("a", 2), path="b") == Place("b", 2)


def test_hashed_by_fields() -> None:
    assert len({Place("a"), Place("a"), Place("b"), Nothing(), Nothing()}) == 3
    with pytest.raises(TypeError):
        hash(Place(["a"]))  # pyright: ignore[reportArgumentType] - a list has no hash


def test_printed_without_what_is_hidden() -> None:
    assert repr(Place("a", 2, secret="token")) == "Place(path='a', line=2)"
    assert repr(Nothing()) == "Nothing()"


def test_no_class_compiles_what_it_can_share() -> None:
    # One that is compared by identity, or ordered, is made as usual.
    files = [file for file in PYTHON_DIRECTORY.rglob("*.py") if file.name != "frozen.py"]
    assert files
    assert [file for file in files if "dataclass(frozen=True)" in file.read_text()] == []
