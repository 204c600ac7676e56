"""From samples to figures, tables, a plot and a verdict; nothing here measures or writes files."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log10
from typing import Any

Samples = Mapping[str, Sequence[float]]
"""Per ``measure.hop.quantity``, one value a round."""


@dataclass(frozen=True)
class Figure:
    """One number that is judged: a quantity, or how many times another one it is."""

    title: str
    unit: str
    """``x`` for a ratio, else the unit of the quantity."""
    of: str
    against: str | None = None
    goal: float | None = None
    at_least: bool = False
    """Whether more is better."""
    floor: float | None = None
    """The bound that ``make bench-check`` keeps: far from what is measured, as machines are shared."""

    def values(self, samples: Samples) -> list[float]:
        """Return the figure of each round; empty if it was not measured."""
        values = list(samples.get(self.of, ()))
        if self.against is None:
            return values
        others = samples.get(self.against, ())
        return [value / other for value, other in zip(values, others, strict=False) if other > 0]

    def keeps(self, bound: float, value: float) -> bool:
        """Return whether a value is on the right side of a bound."""
        return value >= bound if self.at_least else value <= bound


def spread(values: Sequence[float]) -> str:
    """Return the median, and the range if there is one."""
    if not values:
        return "-"
    middle, least, most = number(statistics.median(values)), number(min(values)), number(max(values))
    return middle if least == most else f"{middle} ({least} to {most})"


def number(value: float) -> str:
    """Return a number with three digits that count."""
    if value and abs(value) < 100:
        return f"{value:.3g}"
    return f"{value:,.0f}".replace(",", " ")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; columns but the first are numbers."""
    lines = [head, ["---", *(["---:"] * (len(head) - 1))], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def goals_table(figures: Sequence[Figure], runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the figures that have a goal: a column for each run, and whether the last reached it."""
    rows = []
    for figure in figures:
        if figure.goal is None:
            continue
        per_run = [figure.values(run["samples"]) for run in runs]
        last = per_run[-1]
        reached = "-" if not last else "yes" if figure.keeps(figure.goal, statistics.median(last)) else "**no**"
        goal = f"{'≥' if figure.at_least else '≤'} {number(figure.goal)} {figure.unit}"
        rows.append([figure.title, goal, *map(spread, per_run), reached])
    return table(["measure", "goal", *(run["name"] for run in runs), "reached"], rows)


def hops_table(measure: str, samples: Samples) -> str:
    """Return the table of one measure: a row for each hop, a column for each quantity."""
    keys = [key.split(".") for key in samples if key.startswith(f"{measure}.")]
    hops, quantities = (list(dict.fromkeys(key[place] for key in keys)) for place in (1, 2))
    rows = [[hop, *(spread(samples.get(f"{measure}.{hop}.{name}", ())) for name in quantities)] for hop in hops]
    return table(["", *quantities], rows) if rows else ""


def broken_floors(figures: Sequence[Figure], samples: Samples) -> list[str]:
    """Return a line for each figure whose median breaks its floor, and for each that has a floor and no value."""
    broken = []
    for figure in figures:
        if figure.floor is None:
            continue
        values = figure.values(samples)
        if not values:
            broken.append(f"{figure.title}: not measured")
        elif not figure.keeps(figure.floor, statistics.median(values)):
            side = "at least" if figure.at_least else "at most"
            broken.append(
                f"{figure.title}: {spread(values)} {figure.unit}; {side} {number(figure.floor)} is required"
            )
    return broken


_WIDTH, _TEXT_WIDTH, _LINE = 900, 470, 22
_DECADES = (-1, 2)
"""The plot shows a tenth of the goal to a hundred times it."""


def plot(figures: Sequence[Figure], samples: Samples) -> str:
    """Return an SVG picture: how many times its goal each figure is, on a logarithmic scale."""
    bars = []
    for figure in figures:
        values = figure.values(samples)
        if figure.goal and values and (middle := statistics.median(values)) > 0:
            bars.append((figure.title, figure.goal / middle if figure.at_least else middle / figure.goal))
    height = _LINE * (len(bars) + 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for decade in range(_DECADES[0], _DECADES[1] + 1):
        x = _x(10.0**decade)
        parts.append(
            f'<line x1="{x}" x2="{x}" y1="{_LINE}" y2="{height - 4}" stroke="{"#000" if not decade else "#ccc"}"/>'
        )
        parts.append(
            f'<text x="{x}" y="14" text-anchor="middle">{"goal" if not decade else f"{10.0**decade:g} x"}</text>'
        )
    for place, (title, ratio) in enumerate(bars):
        y = _LINE * (place + 1) + 4
        left, right = sorted((_x(1.0), _x(ratio)))
        color = "#2e7d32" if ratio <= 1 else "#c62828"
        parts.append(f'<text x="{_TEXT_WIDTH - 8}" y="{y + 12}" text-anchor="end">{escape(title)}</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="{max(2.0, right - left):.1f}" height="14" fill="{color}"/>')
        parts.append(f'<text x="{right + 4:.1f}" y="{y + 12}">{number(ratio)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _x(ratio: float) -> float:
    least, most = _DECADES
    place = (min(max(log10(ratio), least), most) - least) / (most - least)
    return round(_TEXT_WIDTH + place * (_WIDTH - _TEXT_WIDTH - 40), 1)


def replaced(page: str, name: str, content: str) -> str:
    """Return the page with what stands between two marks replaced.

    Raises:
        ValueError: the page has no such marks.
    """
    begin, end = f"<!-- bench: {name} -->", "<!-- end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no marks {begin} … {end}")
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"
