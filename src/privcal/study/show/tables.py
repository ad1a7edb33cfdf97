"""Tables of a study, or of several together, beside the paper's where they are like them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from privcal.errors import InputError
from privcal.scores import FloatArray
from privcal.simulate.archive import CLEAN
from privcal.simulate.variants import Variant
from privcal.study.exact import EXACT, HALVES
from privcal.study.paper.reported import METHODS
from privcal.study.results import MEASURES, Curve, Results, defaults, paper_first, point
from privcal.study.table import DAGGER, Cell, Table, lowest

BESIDE = (
    "Brier: mean squared error of the confidence; read it beside the ECE, which a constant "
    "confidence would make almost zero. AURC: mean error rate of the k most confident rows, over "
    "all k; it knows nothing but their order."
)
BEST = "Bold: the best method here"
MARKS = f"{BEST}; {DAGGER}: the best of the paper's six that are here."
OTHER_HEADINGS = ("median Brier", "mean Brier", "median AURC", "mean AURC")
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
    papers = f"Paper: its Table 1, {reported.name}, with a network of its own." if reported else ""
    header = ["method", *_ece_headings(results), *OTHER_HEADINGS]
    rows: list[tuple[Cell, ...]] = [
        (str(v), *_ece(results, v), *_others(results, v)) for v in results.variants
    ]
    best, marked = _best_of_columns(rows)
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
    variants = list(dict.fromkeys(v for study in studies for v in study.variants))
    variants.sort(key=lambda v: METHODS.index(v) if v in METHODS else len(METHODS))
    what = "; ".join(f"{name}: {_cells(s)}" for name, s in names.items())
    each = f"Medians and means: {what}; the unperturbed scores do not count. Lower is better."

    def table(
        name: str,
        title: str,
        caption: str,
        headings: Callable[[Results], Sequence[str]],
        cells: Callable[[Results, Variant], Sequence[Cell]],
    ) -> Table:
        columns = {n: list(headings(study)) for n, study in names.items()}
        rows: list[tuple[Cell, ...]] = []
        for variant in variants:
            row: list[Cell] = [str(variant)]
            for n, study in names.items():
                row += (
                    cells(study, variant) if variant in study.variants else [None] * len(columns[n])
                )
            rows.append(tuple(row))
        return Table(
            name,
            title,
            caption,
            ("method", *(f"{n} {heading}" for n, mine in columns.items() for heading in mine)),
            tuple(rows),
            *_best_of_columns(rows),
            groups=tuple((n, len(mine)) for n, mine in columns.items()),
        )

    beside = [f"{name}: {study.remark}" for name, study in names.items() if study.remark]
    if any(study.reported for study in studies):
        beside.insert(0, "Paper: its Table 1, with networks of its own.")
    beside += sorted({study.secure for study in studies} - {""})
    tables = [
        table(
            "together",
            "Calibration under differential privacy: ECE",
            " ".join([each, MARKS, *beside]),
            lambda study: [heading.replace(" ECE", "") for heading in _ece_headings(study)],
            _ece,
        ),
        table(
            "together-brier",
            "Calibration under differential privacy: Brier and AURC",
            f"{each} {MARKS} {BESIDE}",
            lambda study: OTHER_HEADINGS,
            _others,
        ),
    ]
    if all(study.exact is not None for study in studies):
        tables.append(_accuracies_together(names))
    return tables


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


def _accuracies_together(names: dict[str, Results]) -> Table:
    each = {name: accuracies(study) for name, study in names.items()}
    shifts = dict.fromkeys(str(row[0]) for table in each.values() for row in table.rows)
    rows: list[tuple[Cell, ...]] = []
    for shift in sorted(shifts, key=lambda shift: shift == CLEAN):
        row: list[Cell] = [shift]
        for table in each.values():
            found = [r for r in table.rows if r[0] == shift]
            row += found[0][1:] if found else [None] * (len(table.header) - 1)
        rows.append(tuple(row))
    return Table(
        "together-accuracy",
        "Accuracy",
        " ".join(
            [
                "Of the networks that are recalibrated; no method here changes it. The paper's are "
                "other networks of the same kind.",
                *(f"{name}: {study.remark}" for name, study in names.items() if study.remark),
            ]
        ),
        ("shift", *(f"{name} {heading}" for name, t in each.items() for heading in t.header[1:])),
        tuple(rows),
        groups=tuple((name, len(table.header) - 1) for name, table in each.items()),
    )


def by_shift(results: Results, column: str, name: str) -> Table:
    """The median over settings at each shift."""
    import polars as pl

    medians = {
        (shift, method): value
        for shift, method, value in results.results.group_by("shift", "method")
        .agg(pl.col(column).median())
        .rows()
    }
    names = [str(variant) for variant in results.variants]
    rows: list[tuple[Cell, ...]] = [
        (s, *(float(medians[s, m]) for m in names)) for s in results.shifts
    ]
    return Table(
        f"{name.lower()}-by-shift",
        f"{results.title}: median {name} at each shift",
        f"Over all {len(results.config['settings'])} settings. Lower is better.",
        ("shift", *names),
        tuple(rows),
        _best_of_rows(rows, range(1, len(names) + 1)),
    )


def without_privacy(results: Results) -> Table:
    """Exact fits without noise, beside the paper's."""
    assert results.exact is not None
    reported = results.reported
    ours = {(r["shift"], r["method"]): r for r in results.exact.iter_rows(named=True)}
    header = ["shift"]
    for method in EXACT:
        header += [method, f"{method} (paper)"] if reported else [method]
    header += [f"{method} {name}" for name in ("Brier", "AURC") for method in EXACT]

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
    step = 2 if reported else 1
    fits = range(1, 1 + step * len(EXACT))
    groups = [list(fits)[k::step] for k in range(step)]
    groups += [list(range(k, k + len(EXACT))) for k in range(fits.stop, len(header), len(EXACT))]
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
        frozenset().union(*(_best_of_rows(rows, group) for group in groups)),
        groups=(("ECE", len(fits)), ("Brier", len(EXACT)), ("AURC", len(EXACT))),
    )


def accuracies(results: Results) -> Table:
    assert results.exact is not None
    reported = results.reported
    ours = dict(results.exact.select("shift", "accuracy").rows())
    rows: list[tuple[Cell, ...]] = []
    for shift in results.shifts:
        row: list[Cell] = [shift, float(ours[shift])]
        if reported:
            theirs = reported.accuracy.get(shift)
            row += [theirs, None if theirs is None else float(ours[shift]) - theirs]
        rows.append(tuple(row))
    return Table(
        "accuracy",
        f"{results.title}: accuracy",
        (
            "Of the network that is recalibrated; no method here changes it. "
            + ("The paper's is another network of the same kind. " if reported else "")
            + _remark(results)
        ).rstrip(),
        ("shift", "accuracy", "accuracy (paper)", "difference")
        if reported
        else ("shift", "accuracy"),
        tuple(rows),
    )


# --- factors -----------------------------------------------------------------------------


def factor_tables(results: Results) -> list[Table]:
    """One table for each option that the study varies, and one for each sweep."""
    variants = results.variants
    tables = []
    for option in dict.fromkeys(name for v in variants for name in v.names):
        varied = [v for v in variants if option in v.names]
        order = paper_first([v.method for v in varied])
        tables.append(_option(results, option, sorted(varied, key=lambda v: order.index(v.method))))
    for sweep, name in (("sources", "more data"), ("epsilon", "higher ε")):
        if sweep in results.sweeps:
            tables.append(_sweep(results, sweep, name, defaults(variants)))
    return tables


def _option(results: Results, option: str, variants: Sequence[Variant]) -> Table:
    sweep = "epsilon" if "epsilon" in results.sweeps else results.sweeps[0]
    curves = [results.curve(v, sweep) for v in variants]
    rows: list[tuple[Cell, ...]] = [
        (v.method, v.text(option), *_figures(curve))
        for v, curve in zip(variants, curves, strict=True)
    ]
    best: set[tuple[int, int]] = set()
    for method in dict.fromkeys(v.method for v in variants):
        mine = [r for r, v in enumerate(variants) if v.method == method]
        for c in range(2, len(rows[0])):
            best |= lowest(rows, [(r, c) for r in mine])
    return Table(
        f"factor-{option}",
        f"{results.title}: {OPTION_WORDS.get(option, option)}",
        _factor_caption(results, sweep, "best of each method in bold"),
        ("method", option, *_headings(sweep, curves[0])),
        tuple(rows),
        frozenset(best),
        groups=tuple((name, len(curves[0].x)) for name in MEASURES.values()),
    )


def _sweep(results: Results, sweep: str, name: str, variants: Sequence[Variant]) -> Table:
    curves = [results.curve(v, sweep) for v in variants]
    rows: list[tuple[Cell, ...]] = [
        (v.method, *_figures(curve)) for v, curve in zip(variants, curves, strict=True)
    ]
    best = set().union(
        *(lowest(rows, [(r, c) for r in range(len(rows))]) for c in range(1, len(rows[0])))
    )
    return Table(
        f"factor-{'data' if sweep == 'sources' else sweep}",
        f"{results.title}: {name}",
        _factor_caption(results, sweep, "every method with its usual options"),
        ("method", *_headings(sweep, curves[0])),
        tuple(rows),
        frozenset(best),
        groups=tuple((name, len(curves[0].x)) for name in MEASURES.values()),
    )


def _headings(sweep: str, curve: Curve) -> list[str]:
    return [f"{name}, {point(sweep, x)}" for name in MEASURES.values() for x in curve.x]


def _figures(curve: Curve) -> list[float]:
    return [float(value) for measure in MEASURES for value in curve.of(measure)]


def _factor_caption(results: Results, sweep: str, also: str) -> str:
    names = ", ".join(results.perturbations)
    return (
        f"Mean over {len(results.perturbations)} perturbations ({names}), {results.trials} trials "
        f"each, {results.constants(sweep)}; {also}. Lower is better."
    )


# --- small things ------------------------------------------------------------------------


def _remark(results: Results) -> str:
    """What to know beside the paper's figures: nothing, of data that are none of the paper's."""
    return results.remark if results.paper else ""


def _cells(results: Results) -> str:
    """What a median or mean is over."""
    return (
        f"{len(results.perturbations)} perturbations × {len(results.config['settings'])} settings, "
        f"each the mean of {results.trials} trials"
    )


def _ece_headings(results: Results) -> list[str]:
    papers = ["median ECE (paper)", "mean ECE (paper)"] if results.reported else []
    return ["median ECE", "mean ECE", *papers]


def _ece(results: Results, variant: Variant) -> list[Cell]:
    cells: list[Cell] = [*_middle(results.cells(variant, "ece_mean"))]
    if results.reported:
        theirs = results.reported.under_privacy.get(variant, {})
        cells += [theirs.get("median"), theirs.get("mean")]
    return cells


def _others(results: Results, variant: Variant) -> list[Cell]:
    columns = ("brier_mean", "aurc_mean")
    return [x for column in columns for x in _middle(results.cells(variant, column))]


def _best_of_columns(
    rows: Sequence[Sequence[Cell]],
) -> tuple[frozenset[tuple[int, int]], frozenset[tuple[int, int]]]:
    """Of each column of figures the least of all methods, and the least of the paper's."""
    papers = [r for r, row in enumerate(rows) if row[0] in [str(v) for v in METHODS]]
    found = [
        frozenset().union(*(lowest(rows, [(r, c) for r in some]) for c in range(1, len(rows[0]))))
        for some in (range(len(rows)), papers)
    ]
    return found[0], found[1]


def _middle(values: FloatArray) -> tuple[float, float]:
    return float(np.median(values)), float(np.mean(values))


def _means(rows: Sequence[Sequence[Cell]]) -> list[Cell]:
    """Column means; nothing where a figure is missing, since it would be of other shifts."""
    columns = list(zip(*rows, strict=True))[1:]
    return [
        float(np.mean([v for v in column if isinstance(v, float)]))
        if all(isinstance(v, float) for v in column)
        else None
        for column in columns
    ]


def _best_of_rows(
    rows: Sequence[Sequence[Cell]], columns: Sequence[int] | range
) -> frozenset[tuple[int, int]]:
    return frozenset().union(*(lowest(rows, [(r, c) for c in columns]) for r in range(len(rows))))
