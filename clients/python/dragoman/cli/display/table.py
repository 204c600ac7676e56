"""Tables for people: a head, columns as wide as their cells, and a last column that fits the terminal."""

import shutil
import sys
from collections.abc import Sequence

from dragoman.cli.display.style import Segment, Style
from dragoman.cli.display.text import columns, fit

_NARROWEST = 8
"""The least width of the last column; it is omitted if there is less room."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> list[list[Segment]]:
    """Return rows in columns, the first cell of each strong.

    At a terminal there is a head, and the last column is cut at the terminal's width, or omitted if it is empty. In a
    file or a pipe there is no head, and all cells are complete.

    Args:
        head: the names of the columns.
        rows: cells without control characters or newlines; as many in each row as in the head.
        empty: what a terminal shows if there are none.
    """
    if not sys.stdout.isatty():
        return [_line(row, _widths(rows)) for row in rows]
    if not rows:
        return [[Segment(empty)]]
    lines = [head, *rows]
    widths = _widths(lines)
    room = shutil.get_terminal_size().columns - sum(widths) - 2 * len(widths)
    if room < _NARROWEST or not any(row[-1] for row in rows):
        lines, widths = [row[:-1] for row in lines], widths[:-1]
    else:
        lines = [(*row[:-1], fit(row[-1], room)) for row in lines]
    return [_line(row, widths, is_head=number == 0) for number, row in enumerate(lines)]


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the widths of all columns but the last."""
    return [max(map(columns, column)) for column in list(zip(*rows, strict=True))[:-1]]


def _line(row: Sequence[str], widths: Sequence[int], *, is_head: bool = False) -> list[Segment]:
    padded = [cell + " " * (width - columns(cell)) for cell, width in zip(row, widths, strict=False)]
    cells = [*padded, *row[len(widths) :]]
    first, rest = cells[0], "  ".join(cells[1:]).rstrip()
    return [
        Segment(first, Style.FAINT if is_head else Style.STRONG),
        Segment(f"  {rest}", Style.FAINT if is_head else Style.PLAIN),
    ]
