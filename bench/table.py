# SPDX-License-Identifier: GPL-3.0-or-later
"""The rows that the measurements print, medians, and the growth of a time with a size."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

ROUNDS = 5
"""How often each thing is measured; all things of a row in turns, so that a change of the load meets all of them."""

HEAD = "| kind | what | measured | goal |\n|---+---+---+---|"


def row(kind: str, what: str, measured: str, goal: str) -> None:
    """Print a row of a table below `HEAD`: `what` was `measured`, and the `goal`."""
    print(f"| {kind} | {what} | {measured} | {goal} |", flush=True)


def compare(what: str, pairs: Sequence[tuple[float, float]], goal: str) -> None:
    """Print a row of the medians of `pairs`, ours and the other's of each round in ms, and of their ratios."""
    ours, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(mine / theirs for mine, theirs in pairs)
    row("speed", what, f"{ours:.1f} ms beside {other:.1f} ms, {ratio:.2f} times", goal)


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Return the exponent of the growth in `points`, (size, time): 1 where the time grows as the size does."""
    sizes, times = ([math.log(value) for value in column] for column in zip(*points, strict=True))
    return statistics.linear_regression(sizes, times).slope


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value of `values` below which that `share` of them is, 0.5 for the half."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]
