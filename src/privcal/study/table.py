"""A table of names and figures; `show.render` writes it down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

DAGGER = "†"
Cell = str | float | None
"""A name, a figure, or nothing to say."""


@dataclass(frozen=True)
class Table:
    name: str
    """Short and without spaces: for a file name or a label."""
    title: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()
    """(row, column) of the figures to print in bold."""
    marked: frozenset[tuple[int, int]] = frozenset()
    """(row, column) of the figures to print with a dagger, which the caption explains."""
    groups: tuple[tuple[str, int], ...] = ()
    """The last columns in groups to be kept together: what each is about, and how many it has."""

    def text(self, row: int, column: int) -> str:
        return shown(self.rows[row][column]) + DAGGER * ((row, column) in self.marked)

    def is_text(self, column: int) -> bool:
        return any(isinstance(row[column], str) for row in self.rows)


def shown(cell: Cell) -> str:
    """Four digits, as in the paper."""
    if cell is None:
        return ""
    return cell if isinstance(cell, str) else f"{cell:.4f}"


def lowest(
    rows: Sequence[Sequence[Cell]], cells: Iterable[tuple[int, int]]
) -> set[tuple[int, int]]:
    """Where the least of these figures stands, as printed; several, if they print alike."""
    figures = {
        (r, c): round(v, 4)
        for r, c in cells
        if isinstance(v := rows[r][c], float) and v == v  # a NaN is not the least of anything
    }
    return {cell for cell, v in figures.items() if v == min(figures.values())}
