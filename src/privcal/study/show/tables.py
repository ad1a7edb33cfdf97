"""A study's tables, beside the paper's where the paper has them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from privcal.scores import FloatArray
from privcal.simulate.variants import Variant
from privcal.study.exact import EXACT, HALVES
from privcal.study.results import MEASURES, Curve, Results, defaults, paper_first, point
from privcal.study.table import Cell, Table, lowest

BESIDE = (
    "Brier: mean squared error of the confidence; read it beside the ECE, which a constant "
    "confidence would make almost zero. AURC: mean error rate of the k most confident rows, over "
    "all k; it knows nothing but their order."
)
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
    header = ["method", "median ECE", "mean ECE"]
    if reported:
        header += ["median ECE (paper)", "mean ECE (paper)"]
    header += ["median Brier", "mean Brier", "median AURC", "mean AURC"]
    rows: list[tuple[Cell, ...]] = []
    for variant in results.variants:
        row: list[Cell] = [str(variant), *_middle(results.cells(variant, "ece_mean"))]
        if reported:
            theirs = reported.under_privacy.get(variant, {})
            row += [theirs.get("median"), theirs.get("mean")]
        for column in ("brier_mean", "aurc_mean"):
            row += _middle(results.cells(variant, column))
        rows.append(tuple(row))
    settings, perturbations = len(results.config["settings"]), len(results.perturbations)
    caption = (
        f"Over {perturbations} perturbations × {settings} settings, each the mean of "
        f"{results.trials} trials; the unperturbed scores do not count. Lower is better. {BESIDE}"
    )
    if reported:
        caption += f" Paper: its Table 1, {reported.name}, with a network of its own."
    best = set().union(
        *(lowest(rows, [(r, c) for r in range(len(rows))]) for c in range(1, len(header)))
    )
    return Table(
        "overall",
        f"{results.title}: calibration under differential privacy",
        caption,
        tuple(header),
        tuple(rows),
        frozenset(best),
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
    caption = (
        "ECE of exact fits, without privacy. Ours: fitted to one random half, measured on the "
        f"other, mean of {HALVES} halvings; the paper does not say how it split. {BESIDE}"
    )
    return Table(
        "without-privacy",
        f"{results.title}: without privacy",
        caption,
        tuple(header),
        tuple(rows),
        frozenset().union(*(_best_of_rows(rows, group) for group in groups)),
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
        "Of the network that is recalibrated; no method here changes it."
        + (" The paper's is another network of the same kind." if reported else ""),
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
