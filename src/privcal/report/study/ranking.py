"""The order of the methods: here, in the paper, by ECE, by Brier and by AURC; and whether more helps."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np

from privcal.lab.study.claims import more_counts
from privcal.lab.study.paper import NOTHING, ONE, OUR_ONE
from privcal.lab.study.results import Results, point, shown
from privcal.lab.study.verdict import SURE_ERRORS, OverCells, over_cells
from privcal.planning.simulate.variants import Variant
from privcal.report.study.tables import Cell, Table


def medians(results: Results, column: str) -> dict[Variant, float]:
    """Over all (perturbation, setting) cells, the best method first."""
    values = {v: float(np.median(results.cells(v, column))) for v in results.variants}
    return dict(sorted(values.items(), key=lambda item: item[1]))


def beside_the_paper(results: Results) -> tuple[Table, list[str]] | None:
    """The paper's methods by median and by mean ECE, and how many pairs are in the paper's order."""
    reported = results.reported
    if reported is None or not results.perturbations:
        return None
    mine = [m for m in medians(results, "ece_mean") if m in reported.under_privacy]
    if len(mine) < 2:
        return None
    header, notes = ["method"], []
    columns: list[list[Cell]] = [[str(m) for m in mine]]
    for average in ("median", "mean"):
        ours = {m: over_cells(results, m, average) for m in mine}
        theirs = {m: reported.under_privacy[m][average] for m in mine}
        here, there = (
            sorted(mine, key=values.__getitem__)
            for values in ({m: value.value for m, value in ours.items()}, theirs)
        )
        place, ece = f"place by {average}", f"{average} ECE"
        header += [place, f"{place} (paper)", ece, f"{ece} (paper)"]
        columns += [[str(order.index(m) + 1) for m in mine] for order in (here, there)]
        columns += [[ours[m].value for m in mine], [theirs[m] for m in mine]]
        notes.append(_in_order(average, list(combinations(here, 2)), ours, theirs))
    if NOTHING in mine:
        mean = float(np.mean(results.cells(NOTHING, "ece_mean")))
        before = reported.under_privacy[NOTHING]["mean"]
        notes.append(
            "The networks differ: before any recalibration the mean ECE is "
            f"{shown(mean)} here and {shown(before)} in the paper, so figures should be compared by "
            "order and size, not digit by digit."
        )
    if Variant("histogram-binning") in mine:
        notes.append(
            "The paper does not say what histogram binning does with a bin whose noisy count is zero or "
            "less; here such a bin is left as it was."
        )
    if ONE in mine:
        notes.append(_one_source(results))
    table = Table(
        "ranking",
        f"{results.title}: the order of the paper's methods",
        "Our figures and places, and the paper's, among the methods that both have.",
        tuple(header),
        tuple(zip(*columns, strict=True)),
    )
    return table, notes


def _in_order(
    average: str,
    pairs: list[tuple[Variant, Variant]],
    ours: Mapping[Variant, OverCells],
    theirs: Mapping[Variant, float],
) -> str:
    """How many pairs of methods are in the paper's order."""
    turned = [(a, b) for a, b in pairs if theirs[a] > theirs[b]]
    sure = [(a, b) for a, b in pairs if ours[a].below(ours[b]) > 0]
    text = f"By {average} the order is the paper's, in all {len(pairs)} pairs of methods"
    if turned:
        text = (
            f"By {average} {len(pairs) - len(turned)} of {len(pairs)} pairs of methods are in the paper's "
            f"order; turned: {', '.join(f'{a} before {b}' for a, b in turned)} "
            f"({len(set(turned) & set(sure))} of them surely)"
        )
    return f"{text}. {len(sure)} of the {len(pairs)} differ here by more than {SURE_ERRORS} standard errors."


def _one_source(results: Results) -> str:
    """How the paper's baseline is fitted here, and what other fits of the same rows give."""
    fits = {OUR_ONE: "by accuracy", Variant("one-source-nll"): "by NLL"}
    better = [
        f"{words} ({fit}) {shown(float(np.median(cells)))} and {shown(float(np.mean(cells)))}"
        for fit, words in fits.items()
        if fit in results.variants
        for cells in [results.cells(fit, "ece_mean")]
    ]
    others = f"; exact fits of the same rows have, median and mean, {', '.join(better)}"
    return (
        "The paper does not say how it fits one source. Here: by ECE-T's own search on that source's "
        f"rows, without noise ({ONE}), the fit that comes nearest to its figures"
        f"{others if better else ''}."
    )


def ece_against_others(results: Results) -> list[str]:
    """Where the Brier score and the AURC tell another story than the ECE."""
    if not results.perturbations or len(results.variants) < 2:
        return []
    by_ece, by_brier = (list(medians(results, c)) for c in ("ece_mean", "brier_mean"))
    notes = []
    if by_ece[0] == by_brier[0]:
        notes.append(f"Both put {by_ece[0]} first in the median.")
    else:
        notes.append(
            f"In the median the ECE puts {by_ece[0]} first, the Brier score {by_brier[0]}."
        )
    for method in by_ece:
        ece_place, brier_place = by_ece.index(method) + 1, by_brier.index(method) + 1
        if brier_place - ece_place >= 2:
            notes.append(
                f"{method} looks better by ECE (place {ece_place} of {len(by_ece)}) than by Brier "
                f"(place {brier_place}): its confidences are right on average, but tell right from wrong "
                "answers less well."
            )
    order = medians(results, "aurc_mean")
    best, worst = next(iter(order)), next(reversed(order))
    notes.append(
        f"The AURC, which is about order alone, is least for {best} (median {shown(order[best])}) "
        f"and greatest for {worst} ({shown(order[worst])}). A temperature hardly changes the order "
        "of rows and a rising curve of a score not at all, so their AURC is that of the network; "
        "bins tie rows, and noise can put the bins in a wrong order."
    )
    return notes


def more_helps_table(results: Results) -> Table:
    """At how many perturbations the last point of a sweep is better than the first."""
    rows = []
    for method in results.variants:
        counts = [more_counts(results, method, sweep) for sweep in results.sweeps]
        rows.append((str(method), *(f"{better} / {worse}" for better, worse in counts)))
    spans = [(s, results.curve(results.variants[0], s).x) for s in results.sweeps]
    return Table(
        "more-helps",
        "Does more help?",
        f"Number of perturbations, of {len(results.perturbations)}, where the ECE at the last "
        f"point of a sweep is better / worse than at the first by more than {SURE_ERRORS} standard "
        "errors of the difference; at the others it cannot be told. Methods that ask nothing, or "
        "one source only, have no use for more sources or ε.",
        ("method", *(f"{point(s, x[0])} → {point(s, x[-1])}" for s, x in spans)),
        tuple(rows),
    )
