# SPDX-License-Identifier: GPL-3.0-or-later
# What we use of it; its own types leave open what is compared.
from collections.abc import Hashable, Sequence

def unique_lcs(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]: ...
