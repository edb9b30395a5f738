# SPDX-License-Identifier: GPL-3.0-or-later
"""Draw the tables of docs/figures.org as SVG, a bar for each row with a number and a goal or something beside it.

    .build/venv/bin/python bench/charts.py

A bar is as long as what was measured is to its goal, on a scale of powers of ten; the line is the goal.  Where the row
has something beside it, that is the second bar; without a goal, the line is what is beside.  For "so many of so many"
all is the goal.  Colours follow the reader's light or dark theme.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

FIGURES = Path(__file__).resolve().parents[1] / "docs/figures.org"
DIRECTORY = FIGURES.with_name("figures")

WIDTH = 960
ROW = 30
LEFT, RIGHT = 560, 940
"""Where the scale begins and ends."""

LEAST, MOST = 0.01, 100.0
"""The ends of the scale, as shares of the goal; what lies beyond ends there."""

STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.back { fill: #ffffff; } .ours { fill: #0969da; } .beside { fill: #8c959f; } .grid { stroke: #d1d9e0; }
.goal { stroke: #cf222e; stroke-width: 2; } .small { font-size: 11px; fill: #59636e; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; } .back { fill: #0d1117; } .ours { fill: #4493f8; } .beside { fill: #6e7681; }
  .grid { stroke: #3d444d; } .goal { stroke: #f85149; } .small { fill: #9198a1; }
}
"""

# Not that of "p50".
_NUMBER = r"(?<![\w.])(-?\d+(?:\.\d+)?)"


@dataclass(frozen=True)
class Bar:
    """A row: `ours` and what is `beside` it, None without, as shares of the line, and the words and the figures."""

    what: str
    figures: str
    ours: float
    beside: float | None


def bar(row: str) -> Bar | None:
    """Return the bar for `row`, a line of a table; None when there is nothing to compare in it."""
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    if len(cells) != 4 or cells[0] == "kind":
        return None
    _, what, measured, goal = cells
    figures = f"{measured} (goal {goal})" if goal != "-" else measured
    if counted := re.match(r"(\d+) of (\d+)", measured):
        good, of = int(counted[1]), int(counted[2])
        return Bar(what, figures, good / of, None) if of else None
    numbers = [float(found) for found in re.findall(_NUMBER, measured)]
    wanted = re.search(_NUMBER, goal)
    if " beside " in measured and len(numbers) > 1 and numbers[1] > 0:
        # Then the goal is a ratio.
        line = numbers[1] * (float(wanted[1]) if wanted else 1.0)
        return Bar(what, figures, numbers[0] / line, numbers[1] / line) if line else None
    if wanted is None or not numbers or float(wanted[1]) <= 0:
        return None
    return Bar(what, figures, numbers[0] / float(wanted[1]), None)


def chart(title: str, bars: Sequence[Bar]) -> str:
    """Return the SVG of `bars` under `title`."""
    height = 70 + ROW * len(bars)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{height}"/>',
        f'<text x="10" y="20" font-weight="bold">{escape(title)}</text>',
        '<rect class="ours" x="10" y="29" width="10" height="10"/><text class="small" x="25" y="38">measured</text>',
        '<rect class="beside" x="95" y="29" width="10" height="10"/>'
        '<text class="small" x="110" y="38">beside it</text>',
        '<line class="goal" x1="175" x2="175" y1="28" y2="40"/>'
        '<text class="small" x="182" y="38">goal, or what is beside it where there is no goal</text>',
    ]
    for power in range(round(math.log10(LEAST)), round(math.log10(MOST)) + 1):
        x = _x(10.0**power)
        parts.append(f'<line class="{"grid" if power else "goal"}" x1="{x}" x2="{x}" y1="50" y2="{height - 6}"/>')
        parts.append(f'<text class="small" text-anchor="middle" x="{x}" y="46">{10.0**power:g}</text>')
    for number, row in enumerate(bars):
        y = 58 + ROW * number
        parts.append(f'<text x="10" y="{y + 9}">{escape(_short(row.what, 84))}</text>')
        parts.append(f'<text class="small" x="10" y="{y + 22}">{escape(_short(row.figures, 90))}</text>')
        tall = 9 if row.beside is not None else 18
        parts.append(_rectangle("ours", row.ours, y, tall))
        if row.beside is not None:
            parts.append(_rectangle("beside", row.beside, y + 10, 8))
    return "\n".join([*parts, "</svg>", ""])


def _x(share: float) -> float:
    """Return where `share` of the goal lies."""
    part = (math.log10(min(MOST, max(LEAST, share))) - math.log10(LEAST)) / (math.log10(MOST) - math.log10(LEAST))
    return round(LEFT + (RIGHT - LEFT) * part, 1)


def _rectangle(kind: str, share: float, y: int, tall: int) -> str:
    return f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{max(1.0, _x(share) - LEFT):.1f}" height="{tall}"/>'


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def charts(figures: str) -> dict[str, str]:
    """Return the SVGs for the tables of docs/figures.org, `figures`, by the names of their files."""
    found: dict[str, tuple[str, list[Bar]]] = {}
    for line in figures.splitlines():
        if line.startswith("|") and (made := bar(line)) is not None:
            kind = line.strip("|").split("|")[0].strip()
            found.setdefault(kind, (kind.capitalize(), []))[1].append(made)
    return {f"{kind.replace(' ', '-')}.svg": chart(title, bars) for kind, (title, bars) in found.items()}


def links(figures: str) -> list[str]:
    """Return the links of docs/figures.org to the pictures of the tables in `figures`."""
    return [f"[[file:figures/{name}]]" for name in charts(figures)]


def write(figures: str) -> None:
    """Write the pictures of the tables in `figures`, and remove others."""
    DIRECTORY.mkdir(exist_ok=True)
    made = charts(figures)
    for old in DIRECTORY.glob("*.svg"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(FIGURES.read_text(encoding="utf-8"))
