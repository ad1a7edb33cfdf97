"""Tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from privcal.errors import InputError

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

    def text(self, row: int, column: int) -> str:
        return shown(self.rows[row][column])

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
    return {at for at, v in figures.items() if v == min(figures.values())}


def to_markdown(table: Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    rules = ["---" if table.is_text(c) else "---:" for c in range(len(table.header))]
    lines = [f"### {_markdown(table.title)}", "", line(map(_markdown, table.header)), line(rules)]
    lines += [line(cells) for cells in _cells(table, _markdown, "**{}**")]
    return "\n".join([*lines, "", _markdown(table.caption)]) + "\n"


def to_csv(table: Table) -> str:
    """Header and rows alone, so that any reader of CSV takes it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.header)
    writer.writerows(_cells(table, str, "{}"))
    return out.getvalue()


def to_latex(table: Table) -> str:
    r"""For `\usepackage{booktabs}`, and for wide tables `\usepackage{graphicx}`."""
    columns = "".join("l" if table.is_text(c) else "r" for c in range(len(table.header)))
    head = " & ".join(map(_latex, table.header))
    body = [" & ".join(cells) + r" \\" for cells in _cells(table, _latex, r"\textbf{{{}}}")]
    wide = len(table.header) > 7
    lines = [
        r"\begin{table}",
        r"\centering",
        r"\small",
        rf"\caption{{{_latex(table.title)}. {_latex(table.caption)}}}",
        rf"\label{{tab:{table.name}}}",
        *([r"\resizebox{\linewidth}{!}{%"] if wide else []),
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        rf"{head} \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}" + ("}" if wide else ""),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


FORMATS: dict[str, Callable[[Table], str]] = {
    "markdown": to_markdown,
    "csv": to_csv,
    "latex": to_latex,
}


def render(tables: Sequence[Table], form: str) -> str:
    """Tables one after the other; several in CSV are told apart by a comment line above each."""
    if form not in FORMATS:
        raise InputError(f"there is no format {form!r}; there are {', '.join(FORMATS)}")
    texts = [FORMATS[form](t) for t in tables]
    if form == "csv" and len(tables) > 1:
        texts = [f"# {t.name}: {t.title}\n{text}" for t, text in zip(tables, texts, strict=True)]
    return "\n".join(texts)


def _cells(table: Table, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    found = []
    for r, row in enumerate(table.rows):
        texts = [escape(shown(cell)) for cell in row]
        found.append([bold.format(t) if (r, c) in table.best else t for c, t in enumerate(texts)])
    return found


def _markdown(text: str) -> str:
    return re.sub(r"([\\|*_<`\[\]])", r"\\\1", text)


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "ε": r"$\varepsilon$",
    "×": r"$\times$",
    "∞": r"$\infty$",
    "−": "$-$",
    "±": r"$\pm$",
    "…": r"\ldots{}",
    **{c: rf"\{c}" for c in "&%$#_{}"},
}


def _latex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in text)
