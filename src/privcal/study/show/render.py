"""Tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence

from privcal.checks import one_of
from privcal.study.table import DAGGER, Table, shown


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
    writer.writerows([shown(cell) for cell in row] for row in table.rows)
    return out.getvalue()


def to_latex(table: Table) -> str:
    r"""For `\usepackage{booktabs}`. What is wider than a page is broken into parts, one below the
    other; what is then higher than a page, into several tables."""
    pages: list[list[list[str]]] = []
    for columns in _parts(table):
        part = _tabular(table, columns)
        if pages and _height(table, [*pages[-1], part]) <= _HEIGHT:
            pages[-1].append(part)
        else:
            pages.append([part])
    return "\n".join(_float(table, parts, i, len(pages)) for i, parts in enumerate(pages, start=1))


def _height(table: Table, parts: Sequence[Sequence[str]]) -> float:
    """About the height of these parts with the caption, in points."""
    caption = 12 * (2 + len(table.title + table.caption) / 75)
    return caption + sum(24 + 9.5 * sum(line.endswith(r"\\") for line in part) for part in parts)


def _float(table: Table, parts: Sequence[Sequence[str]], number: int, count: int) -> str:
    which = f" ({number} of {count})" if count > 1 else ""
    caption = f"{table.title}{which}." + (f" {table.caption}" if number == 1 else "")
    label = table.name + (f"-{number}" if number > 1 else "")
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            r"\footnotesize",
            rf"\setlength{{\tabcolsep}}{{{_SEPARATION}pt}}",
            rf"\caption{{{_latex(caption)}}}",
            rf"\label{{tab:{label}}}",
            "",
            r"\medskip",
            "\n\n\\medskip\n".join("\n".join(part) for part in parts),
            r"\end{table}",
            "",
        ]
    )


def _tabular(table: Table, columns: Sequence[int]) -> list[str]:
    aligned = "".join("l" if table.is_text(c) else "r" for c in columns)
    body = _cells(table, _latex, r"\textbf{{{}}}", r"\rlap{$^\dagger$}")
    return [
        rf"\begin{{tabular}}{{{aligned}}}",
        r"\toprule",
        *_latex_head(table, columns),
        r"\midrule",
        *(" & ".join(cells[c] for c in columns) + r" \\" for cells in body),
        r"\bottomrule",
        r"\end{tabular}",
    ]


def _latex_head(table: Table, columns: Sequence[int]) -> list[str]:
    """The names of the groups, if they have any; below them the headings, broken into lines."""
    lines = []
    spans = [(name, [c for c in mine if c in columns]) for name, mine in _groups(table)]
    spans = [(name, mine) for name, mine in spans if name and mine]
    if spans:
        lead = len(columns) - sum(len(mine) for _, mine in spans)
        names = [rf"\multicolumn{{{len(mine)}}}{{c}}{{{_latex(name)}}}" for name, mine in spans]
        lines.append(" & ".join([""] * lead + names) + r" \\")
        places = [[columns.index(c) + 1 for c in mine] for _, mine in spans]
        lines.append("".join(rf"\cmidrule(lr){{{p[0]}-{p[-1]}}}" for p in places))
    broken = [_heading(table, c) for c in columns]
    for i in reversed(range(max(map(len, broken)))):  # the last lines of all stand side by side
        line = (heading[-1 - i] if i < len(heading) else "" for heading in broken)
        lines.append(" & ".join(map(_latex, line)) + r" \\")
    return lines


_WIDTH, _HEIGHT, _SEPARATION = 345, 550, 3
"""In points: an article's text, and the space on each side of a column."""


def _parts(table: Table) -> list[list[int]]:
    """The columns in as few parts as fit a page's width, each with the leading column again."""
    whole = [mine for _, mine in _groups(table)]
    lead = list(range(len(table.header) - sum(map(len, whole))))
    groups: list[list[int]] = []
    for group in whole:  # one that is too wide by itself is broken up
        groups += [group] if _width(table, lead + group) <= _WIDTH else [[c] for c in group]

    def packed(limit: float) -> list[list[int]]:
        parts: list[list[int]] = []
        for group in groups:
            if parts and _width(table, parts[-1] + group) <= limit:
                parts[-1] += group
            else:
                parts.append([*lead, *group])
        return parts

    fewest = len(packed(_WIDTH))
    narrow = range(0, _WIDTH, 5)  # as many parts, but of like width
    return next((p for limit in narrow if len(p := packed(limit)) == fewest), packed(_WIDTH))


def _groups(table: Table) -> list[tuple[str, list[int]]]:
    """The groups of columns, with names; without groups every column but the first is one."""
    sizes = table.groups or [("", 1)] * (len(table.header) - 1)
    start = len(table.header) - sum(size for _, size in sizes)
    groups = []
    for name, size in sizes:
        groups.append((name, list(range(start, start + size))))
        start += size
    return groups


def _width(table: Table, columns: Sequence[int]) -> float:
    """About the width of these columns in points."""
    widest = (
        max(map(_points, [*_heading(table, c), *(shown(row[c]) for row in table.rows)]))
        for c in columns
    )
    return sum(width + 2 * _SEPARATION for width in widest)


def _points(text: str) -> float:
    r"""About the width of a text in `\footnotesize`; digits as if they were bold."""
    return sum(
        2.8 if c in "fijlt.,:;()[]|-' " else 4.9 if c.isdigit() else 7.1 if c in "mw=" else 4.3
        for c in text.lower()
    )


def _heading(table: Table, column: int) -> list[str]:
    """A heading in short lines, without the name that stands above its group."""
    heading = table.header[column]
    for name, mine in _groups(table):
        if name and column in mine:
            heading = " ".join(heading.replace(name, "", 1).strip(" ,").split())
    lines: list[str] = []
    for word in re.split(r"(?<!=) (?!=)|(?<=-)(?=\w{3})", heading):
        joint = "" if lines and lines[-1].endswith("-") else " "
        if lines and len(lines[-1] + joint + word) <= _SHORT:
            lines[-1] += joint + word
        else:
            lines.append(word)
    return lines


_SHORT = 8
"""Characters of a line of a heading, unless one word is longer."""


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
        about = [f"# {t.name}: {t.title}. {t.caption}\n" for t in tables]
        texts = [line + text for line, text in zip(about, texts, strict=True)]
    return "\n".join(texts)


def _cells(
    table: Table, escape: Callable[[str], str], bold: str, dagger: str = DAGGER
) -> list[list[str]]:
    def text(r: int, c: int) -> str:
        plain = escape(shown(table.rows[r][c]))
        mark = dagger if (r, c) in table.marked else ""
        return (bold.format(plain) if (r, c) in table.best else plain) + mark

    return [[text(r, c) for c in range(len(row))] for r, row in enumerate(table.rows)]


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
    DAGGER: r"$^\dagger$",
    **{c: rf"\{c}" for c in "&%$#_{}"},
}


def _latex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in text)
