"""Tables of a study, or of several together, beside the paper's where they are like them; as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from privcal.lab.study.exact import EXACT, HALVES
from privcal.lab.study.paper import METHODS
from privcal.lab.study.results import MEASURES, Results, defaults, paper_first, point, shown
from privcal.planning.simulate.archive import CLEAN
from privcal.planning.simulate.variants import Variant
from privcal.trusted.checks import one_of
from privcal.trusted.errors import InputError

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
        return cell_text(self.rows[row][column]) + DAGGER * ((row, column) in self.marked)

    def is_text(self, column: int) -> bool:
        return any(isinstance(row[column], str) for row in self.rows)


def cell_text(cell: Cell) -> str:
    if cell is None:
        return ""
    return cell if isinstance(cell, str) else shown(cell)


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


BESIDE = (
    "Brier: mean squared error of the confidence; read it beside the ECE, which a constant "
    "confidence would make almost zero. AURC: mean error rate of the k most confident rows, over "
    "all k; it knows nothing but their order."
)
BEST = "Bold: the best method here"
MARKS = f"{BEST}; {DAGGER}: the best of the paper's six that are here."
OPTION_WORDS = {
    "iterations": "more iterations (K)",
    "bins": "more bins",
    "clip": "higher sensitivity (clip of the NLL)",
    "search": "golden section or grid search, with as many questions",
    "bounds": "a wider range of temperatures",
}
"""The paper's words for the options it discusses; any other option goes by its own name."""


def all_tables(results: Results) -> list[Table]:
    """Every table the results allow."""
    if results.is_factors:
        return factor_tables(results) if results.perturbations else []
    tables = [overall(results)] if results.perturbations else []
    tables += [by_shift(results, f"{measure}_mean", name) for measure, name in MEASURES.items()]
    if results.exact is not None:
        tables += [without_privacy(results), accuracies(results)]
    return tables


def overall(results: Results) -> Table:
    """The paper's Table 1."""
    reported = results.reported
    columns = [f"{average} {name}" for name in MEASURES.values() for average in ("median", "mean")]
    header = ["method", *columns]
    if reported:
        header[3:3] = ["median ECE (paper)", "mean ECE (paper)"]
    rows: list[tuple[Cell, ...]] = []
    for variant in results.variants:
        cells = [results.cells(variant, f"{measure}_mean") for measure in MEASURES]
        row: list[Cell] = [
            str(variant),
            *(float(of(c)) for c in cells for of in (np.median, np.mean)),
        ]
        if reported:
            theirs = reported.under_privacy.get(variant, {})
            row[3:3] = [theirs.get("median"), theirs.get("mean")]
        rows.append(tuple(row))
    best, marked = _best_of_methods(rows)
    papers = f"Paper: its Table 1, {reported.name}, with a network of its own." if reported else ""
    beside = MARKS if results.paper else f"{BEST}."
    return Table(
        "overall",
        f"{results.title}: calibration under differential privacy",
        f"Over {_cells(results)}; the unperturbed scores do not count. Lower is better. "
        + " ".join(filter(None, [beside, BESIDE, papers, results.secure, _remark(results)])),
        tuple(header),
        tuple(rows),
        best,
        marked if results.paper else frozenset(),
        groups=(("ECE", len(header) - 5), ("Brier", 2), ("AURC", 2)),
    )


def together(studies: Sequence[Results]) -> list[Table]:
    """The paper's Table 1 and its table of accuracies, over the data sets of several studies."""
    names = _names(studies)
    alone = {name: overall(study) for name, study in names.items()}
    what = "; ".join(f"{name}: {_cells(s)}" for name, s in names.items())
    each = f"Medians and means: {what}; the unperturbed scores do not count. Lower is better."
    remarks = [f"{name}: {study.remark}" for name, study in names.items() if study.remark]
    beside = [*remarks, *sorted({study.secure for study in studies} - {""})]
    if any(study.reported for study in studies):
        beside.insert(0, "Paper: its Table 1, with networks of its own.")
    ece, others = slice(1, -4), slice(-4, None)
    title = "Calibration under differential privacy:"
    tables = [
        _joined("together", f"{title} ECE", " ".join([each, MARKS, *beside]), alone, ece),
        _joined(
            "together-brier", f"{title} Brier and AURC", f"{each} {MARKS} {BESIDE}", alone, others
        ),
    ]
    if all(study.exact is not None for study in studies):
        of_each = {name: accuracies(study) for name, study in names.items()}
        about = (
            "Of the networks that are recalibrated; no method here changes it. The paper's are "
            "other networks of the same kind."
        )
        caption = " ".join([about, *remarks])
        found = _joined("together-accuracy", "Accuracy", caption, of_each, slice(1, None))
        tables.append(replace(found, best=frozenset(), marked=frozenset()))
    return tables


def _joined(name: str, title: str, caption: str, tables: dict[str, Table], columns: slice) -> Table:
    """Some columns of several tables side by side: the paper's methods first, clean scores last."""
    papers = [str(v) for v in METHODS]
    firsts = dict.fromkeys(str(row[0]) for table in tables.values() for row in table.rows)
    order = {first: papers.index(first) if first in papers else len(papers) for first in firsts}
    rows: list[tuple[Cell, ...]] = []
    for first in sorted(firsts, key=lambda first: (order[first], first == CLEAN)):
        cells: list[Cell] = [first]
        for table in tables.values():
            missing: tuple[Cell, ...] = (None,) * len(table.header)
            cells += next((row for row in table.rows if row[0] == first), missing)[columns]
        rows.append(tuple(cells))
    headings = {n: [h.replace(" ECE", "") for h in t.header[columns]] for n, t in tables.items()}
    return Table(
        name,
        title,
        caption,
        (
            next(iter(tables.values())).header[0],
            *(f"{n} {h}" for n, mine in headings.items() for h in mine),
        ),
        tuple(rows),
        *_best_of_methods(rows),
        groups=tuple((n, len(mine)) for n, mine in headings.items()),
    )


def _names(studies: Sequence[Results]) -> dict[str, Results]:
    """Short names for the data sets: without the severity, if that leaves them apart."""
    names: dict[str, Results] = {}
    short = len({study.dataset for study in studies}) == len(studies)
    for study in studies:
        if study.is_factors or not study.perturbations:
            why = "varies factors" if study.is_factors else "has no perturbation"
            raise InputError(
                f"a study of {study.title} {why}, so it has no column in a table of several; "
                "give it alone"
            )
        name = study.dataset if short else study.title
        if name in names:
            raise InputError(
                f"two studies are of {study.title}; a table of several has each data set once"
            )
        names[name] = study
    return names


def by_shift(results: Results, column: str, name: str) -> Table:
    """The median over settings at each shift."""
    import polars as pl

    found = results.results.group_by("shift", "method").agg(pl.col(column).median())
    medians = {(shift, method): float(value) for shift, method, value in found.rows()}
    names = [str(variant) for variant in results.variants]
    rows: list[tuple[Cell, ...]] = [(s, *(medians[s, m] for m in names)) for s in results.shifts]
    return Table(
        f"{name.lower()}-by-shift",
        f"{results.title}: median {name} at each shift",
        f"Over all {len(results.config['settings'])} settings. Lower is better.",
        ("shift", *names),
        tuple(rows),
        _best(rows, ([(r, c + 1) for c in range(len(names))] for r in range(len(rows)))),
    )


def without_privacy(results: Results) -> Table:
    """Exact fits without noise, beside the paper's."""
    assert results.exact is not None
    reported = results.reported
    ours = {(r["shift"], r["method"]): r for r in results.exact.iter_rows(named=True)}
    step = 2 if reported else 1
    fits = [name for m in EXACT for name in (m, f"{m} (paper)")[:step]]
    header = ["shift", *fits, *(f"{m} {name}" for name in ("Brier", "AURC") for m in EXACT)]

    def row(shift: str) -> tuple[Cell, ...]:
        cells: list[Cell] = [shift]
        for method in EXACT:
            cells.append(float(ours[shift, method]["ece_mean"]))
            if reported:
                cells.append(reported.without_privacy.get(shift, {}).get(method))
        for column in ("brier_mean", "aurc_mean"):
            cells += [float(ours[shift, method][column]) for method in EXACT]
        return tuple(cells)

    rows = [row(s) for s in results.perturbations]
    if rows:
        rows.append((f"mean of these {len(rows)}", *_means(rows)))
    rows += [row(s) for s in results.shifts if s not in results.perturbations]
    each, first = len(EXACT), 1 + len(fits)
    groups = [range(1, first)[k::step] for k in range(step)]
    groups += [range(k, k + each) for k in (first, first + each)]
    theirs = "; the paper does not say how it split" if reported else ""
    caption = (
        f"ECE of exact fits, without privacy: fitted to one random half, measured on the other, "
        f"mean of {HALVES} halvings{theirs}. {BESIDE} {_remark(results)}"
    ).rstrip()
    return Table(
        "without-privacy",
        f"{results.title}: without privacy",
        caption,
        tuple(header),
        tuple(rows),
        _best(rows, ([(r, c) for c in group] for r in range(len(rows)) for group in groups)),
        groups=(("ECE", len(fits)), ("Brier", each), ("AURC", each)),
    )


def accuracies(results: Results) -> Table:
    assert results.exact is not None
    reported = results.reported
    rows: list[tuple[Cell, ...]] = []
    ours = dict(results.exact.select("shift", "accuracy").rows())
    for shift in results.shifts:
        accuracy = float(ours[shift])
        theirs = reported.accuracy.get(shift) if reported else None
        rows.append((shift, accuracy, theirs, None if theirs is None else accuracy - theirs))
    papers = "The paper's is another network of the same kind. " if reported else ""
    about = f"Of the network that is recalibrated; no method here changes it. {papers}"
    header = ("shift", "accuracy", "accuracy (paper)", "difference")
    shown = 4 if reported else 2
    return Table(
        "accuracy",
        f"{results.title}: accuracy",
        f"{about}{_remark(results)}".rstrip(),
        header[:shown],
        tuple(row[:shown] for row in rows),
    )


# --- factors -----------------------------------------------------------------------------


def factor_tables(results: Results) -> list[Table]:
    """One table for each option that the study varies, and one for each sweep."""
    variants, tables = results.variants, []
    sweep = "epsilon" if "epsilon" in results.sweeps else results.sweeps[0]
    for option in dict.fromkeys(name for v in variants for name in v.names):
        varied = [v for v in variants if option in v.names]
        order = paper_first([v.method for v in varied])
        varied.sort(key=lambda v: order.index(v.method))
        name = OPTION_WORDS.get(option, option)
        tables.append(_factor(results, option, name, sweep, varied, option))
    for sweep, factor, name in (
        ("sources", "data", "more data"),
        ("epsilon", "epsilon", "higher ε"),
    ):
        if sweep in results.sweeps:
            tables.append(_factor(results, factor, name, sweep, defaults(variants), None))
    return tables


def _factor(
    results: Results,
    factor: str,
    name: str,
    sweep: str,
    variants: Sequence[Variant],
    option: str | None,
) -> Table:
    """Along a sweep, with the values of an option, the best of each method told apart; or all methods."""
    curves = [results.curve(v, sweep) for v in variants]
    lead = ("method",) if option is None else ("method", option)
    rows: list[tuple[Cell, ...]] = []
    for v, curve in zip(variants, curves, strict=True):
        first = (v.method,) if option is None else (v.method, v.text(option))
        rows.append((*first, *(float(x) for measure in MEASURES for x in curve.of(measure))))
    of = [v.method if option else "" for v in variants]
    blocks = [[r for r, each in enumerate(of) if each == one] for one in dict.fromkeys(of)]
    columns = range(len(lead), len(rows[0]))
    points = [point(sweep, x) for x in curves[0].x]
    names = ", ".join(results.perturbations)
    also = "best of each method in bold" if option else "every method with its usual options"
    return Table(
        f"factor-{factor}",
        f"{results.title}: {name}",
        f"Mean over {len(results.perturbations)} perturbations ({names}), {results.trials} trials "
        f"each, {results.constants(sweep)}; {also}. Lower is better.",
        (*lead, *(f"{measure}, {at}" for measure in MEASURES.values() for at in points)),
        tuple(rows),
        _best(rows, ([(r, c) for r in block] for block in blocks for c in columns)),
        groups=tuple((measure, len(points)) for measure in MEASURES.values()),
    )


# --- small things ------------------------------------------------------------------------

Places = frozenset[tuple[int, int]]
"""(row, column) of some cells."""


def _remark(results: Results) -> str:
    """What to know beside the paper's figures: nothing, of data that are none of the paper's."""
    return results.remark if results.paper else ""


def _cells(results: Results) -> str:
    """What a median or mean is over."""
    return (
        f"{len(results.perturbations)} perturbations × {len(results.config['settings'])} settings, "
        f"each the mean of {results.trials} trials"
    )


def _best(rows: Sequence[Sequence[Cell]], groups: Iterable[Iterable[tuple[int, int]]]) -> Places:
    """The least figure of each group of cells."""
    return frozenset().union(*(lowest(rows, group) for group in groups))


def _best_of_methods(rows: Sequence[Sequence[Cell]]) -> tuple[Places, Places]:
    """Of each column of figures the least of all methods, and the least of the paper's."""
    papers = [r for r, row in enumerate(rows) if row[0] in [str(v) for v in METHODS]]
    columns = range(1, len(rows[0]))
    every, theirs = (
        _best(rows, ([(r, c) for r in some] for c in columns))
        for some in (range(len(rows)), papers)
    )
    return every, theirs


def _means(rows: Sequence[Sequence[Cell]]) -> list[Cell]:
    """Column means; nothing where a figure is missing, since it would be of other shifts."""
    columns = ([v for v in c if isinstance(v, float)] for c in list(zip(*rows, strict=True))[1:])
    return [float(np.mean(column)) if len(column) == len(rows) else None for column in columns]


def to_markdown(table: Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    rules = ["---" if table.is_text(c) else "---:" for c in range(len(table.header))]
    lines = [f"### {_markdown(table.title)}", "", line(map(_markdown, table.header)), line(rules)]
    lines += [line(cells) for cells in _rendered(table, _markdown, "**{}**")]
    return "\n".join([*lines, "", _markdown(table.caption)]) + "\n"


def to_csv(table: Table) -> str:
    """Header and rows alone, so that any reader of CSV takes it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.header)
    writer.writerows([cell_text(cell) for cell in row] for row in table.rows)
    return out.getvalue()


def to_latex(table: Table) -> str:
    r"""For `\usepackage{booktabs}`. What is wider than a page is broken into several tables."""
    parts = _parts(table)
    return "\n".join(_float(table, part, i, len(parts)) for i, part in enumerate(parts, start=1))


def _float(table: Table, columns: Sequence[int], number: int, count: int) -> str:
    which = f" ({number} of {count})" if count > 1 else ""
    caption = f"{table.title}{which}." + (f" {table.caption}" if number == 1 else "")
    label = table.name + (f"-{number}" if number > 1 else "")
    aligned = "".join("l" if table.is_text(c) else "r" for c in columns)
    body = _rendered(table, _latex, r"\textbf{{{}}}", r"\rlap{$^\dagger$}")
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            r"\footnotesize",
            r"\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{_latex(caption)}}}",
            rf"\label{{tab:{label}}}",
            rf"\begin{{tabular}}{{{aligned}}}",
            r"\toprule",
            *_latex_head(table, columns),
            r"\midrule",
            *(" & ".join(cells[c] for c in columns) + r" \\" for cells in body),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _latex_head(table: Table, columns: Sequence[int]) -> list[str]:
    """The names of the groups, if they have any; below them the headings, a word on each line."""
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


_WIDTH = 86
"""Characters of small print in a line of an article's text; the space beside a column is 1.5."""


def _parts(table: Table) -> list[list[int]]:
    """The columns in parts that fit a page's width, each with the leading columns again."""
    groups = [mine for _, mine in _groups(table)]
    lead = list(range(len(table.header) - sum(map(len, groups))))
    parts: list[list[int]] = []
    for group in groups:
        whole = _width(table, lead + group) <= _WIDTH  # if not, it is broken up
        for some in [group] if whole else [[c] for c in group]:
            if parts and _width(table, parts[-1] + some) <= _WIDTH:
                parts[-1] += some
            else:
                parts.append([*lead, *some])
    return parts


def _groups(table: Table) -> list[tuple[str, list[int]]]:
    """The groups of columns, with names; without groups every column but the first is one."""
    sizes = table.groups or [("", 1)] * (len(table.header) - 1)
    start = len(table.header) - sum(size for _, size in sizes)
    ends = accumulate((size for _, size in sizes), initial=start)
    return [
        (name, list(range(end, end + size))) for (name, size), end in zip(sizes, ends, strict=False)
    ]


def _width(table: Table, columns: Sequence[int]) -> float:
    cells = ([*_heading(table, c), *(cell_text(row[c]) for row in table.rows)] for c in columns)
    return sum(max(map(len, column)) + 1.5 for column in cells)


def _heading(table: Table, column: int) -> list[str]:
    """A heading's words, without the name that stands above its group."""
    heading = table.header[column]
    for name, mine in _groups(table):
        if name and column in mine:
            heading = " ".join(heading.replace(name, "", 1).strip(" ,").split())
    return re.split(r"(?<!=) (?!=)|(?<=-)(?=\w{3})", heading)


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


def _rendered(
    table: Table, escape: Callable[[str], str], bold: str, dagger: str = DAGGER
) -> list[list[str]]:
    def text(r: int, c: int) -> str:
        plain = escape(cell_text(table.rows[r][c]))
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
