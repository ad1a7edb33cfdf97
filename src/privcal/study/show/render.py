"""Tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence

from privcal.checks import one_of
from privcal.study.table import Table, shown


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


TABLE_FORMATS: dict[str, Callable[[Table], str]] = {
    "markdown": to_markdown,
    "csv": to_csv,
    "latex": to_latex,
}


def render(tables: Sequence[Table], form: str) -> str:
    """Tables one after the other; several in CSV are told apart by a comment line above each."""
    one_of("format", form, TABLE_FORMATS)
    texts = [TABLE_FORMATS[form](t) for t in tables]
    if form == "csv" and len(tables) > 1:
        texts = [f"# {t.name}: {t.title}\n{text}" for t, text in zip(tables, texts, strict=True)]
    return "\n".join(texts)


def _cells(table: Table, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    lines = []
    for r, row in enumerate(table.rows):
        texts = [escape(shown(cell)) for cell in row]
        lines.append([bold.format(t) if (r, c) in table.best else t for c, t in enumerate(texts)])
    return lines


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
