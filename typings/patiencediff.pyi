# SPDX-License-Identifier: GPL-3.0-or-later
# What we use of it; its own types leave open what is compared.
from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher
from typing import TypeVar

T = TypeVar("T", bound=Hashable)

class PatienceSequenceMatcher(SequenceMatcher[T]):
    def __init__(self, junk: None, a: Sequence[T], b: Sequence[T]) -> None: ...
