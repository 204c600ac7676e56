"""Tables for people: a head, columns as wide as they must be, and a last one that fits the terminal."""

import shutil
import sys
from collections.abc import Sequence

from dragoman.cli._style import Segment, Style
from dragoman.cli._text import columns, fit

_NARROWEST = 8
"""What the last column is still worth; where there is less room it is left out."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[Segment]]:
    """Return rows in columns, the first cell of each strong.

    At a terminal there is a head, and the last column is cut where the terminal ends, or left out if nothing is in
    it. What goes into a file or a pipe has all of the cells and no head.

    Args:
        head: what the columns are called.
        rows: cells, each neutral and on one line; as many in each row as there are in the head.
    """
    if not sys.stdout.isatty():
        return [_line(row, _widths(rows)) for row in rows]
    told = [head, *rows]
    widths = _widths(told)
    room = shutil.get_terminal_size().columns - sum(widths) - 2 * len(widths)
    if room < _NARROWEST or not any(row[-1] for row in rows):
        told, widths = [row[:-1] for row in told], widths[:-1]
    else:
        told = [(*row[:-1], fit(row[-1], room)) for row in told]
    return [_line(row, widths, is_head=number == 0) for number, row in enumerate(told)]


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
