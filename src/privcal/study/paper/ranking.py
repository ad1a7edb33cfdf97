"""The order of the methods: here, in the paper, by ECE, by Brier and by AURC."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np

from privcal.simulate.variants import Variant
from privcal.study.paper.claim import SURE_ERRORS, over_cells
from privcal.study.paper.reported import NOTHING, ONE, OUR_ONE
from privcal.study.results import Results
from privcal.study.table import Cell, Table, shown

HISTOGRAM, ONE_HOT, ONE_BY_NLL = map(
    Variant, ("histogram-binning", "one-hot-binning", "one-source-nll")
)


def medians(results: Results, column: str) -> dict[Variant, float]:
    """Over all (perturbation, setting) cells, the best method first."""
    values = {v: float(np.median(results.cells(v, column))) for v in results.variants}
    return dict(sorted(values.items(), key=lambda item: item[1]))


def beside_the_paper(results: Results) -> tuple[Table, list[str]] | None:
    """The paper's methods by median and by mean ECE, and what can be said where the order differs."""
    reported = results.reported
    if reported is None or not results.perturbations:
        return None
    mine = [m for m in medians(results, "ece_mean") if m in reported.under_privacy]
    if len(mine) < 2:
        return None
    columns: list[Mapping[Variant, Cell]] = []
    notes, moved = [], {}
    for average, statistic in (("median", np.median), ("mean", np.mean)):
        ours = {m: over_cells(results, m, statistic) for m in mine}
        theirs = {m: reported.under_privacy[m][average] for m in mine}
        here = _places({m: value.value for m, value in ours.items()})
        there = _places(theirs)
        columns += [{m: str(here[m]) for m in mine}, {m: str(there[m]) for m in mine}]
        columns += [{m: value.value for m, value in ours.items()}, theirs]
        pairs = list(combinations(sorted(mine, key=here.__getitem__), 2))
        turned = [(a, b) for a, b in pairs if theirs[a] > theirs[b]]
        sure = sum(ours[a].below(ours[b]) > 0 for a, b in pairs)
        surely = [pair for pair in turned if ours[pair[0]].below(ours[pair[1]]) > 0]
        moved[average] = [(m, here[m], there[m]) for m in _moved(turned)]
        notes.append(_in_order(average, len(pairs), turned, sure, len(surely)))
    if NOTHING in mine:
        mean = float(np.mean(results.cells(NOTHING, "ece_mean")))
        before = reported.under_privacy[NOTHING]["mean"]
        notes.append(
            "The networks differ: before any recalibration the mean ECE is "
            f"{shown(mean)} here and {shown(before)} in the paper, so figures should be compared by "
            "order and size, not digit by digit."
        )
    everyone = medians(results, "ece_mean")
    for average, those in moved.items():
        notes += [
            f"By {average}, {method} has place {place} here and {place_there} there"
            f"{_why(method, everyone) if average == 'median' else ''}."
            for method, place, place_there in those
        ]
    if ONE in mine:
        notes.append(_one_source(results))
    table = Table(
        "ranking",
        f"{results.title}: the order of the paper's methods",
        "Our figures and places, and the paper's, among the methods that both have.",
        (
            "method",
            *(
                heading
                for average in ("median", "mean")
                for heading in (
                    f"place by {average}",
                    f"place by {average} (paper)",
                    f"{average} ECE",
                    f"{average} ECE (paper)",
                )
            ),
        ),
        tuple((str(m), *(column[m] for column in columns)) for m in mine),
    )
    return table, notes


def _places(values: Mapping[Variant, float]) -> dict[Variant, int]:
    return {m: i + 1 for i, m in enumerate(sorted(values, key=values.__getitem__))}


def _in_order(
    average: str, pairs: int, turned: list[tuple[Variant, Variant]], sure: int, surely: int
) -> str:
    """How many pairs of methods are in the paper's order."""
    if not turned:
        text = f"By {average} the order is the paper's, in all {pairs} pairs of methods"
    else:
        listed = ", ".join(f"{a} before {b}" for a, b in turned)
        text = (
            f"By {average} {pairs - len(turned)} of {pairs} pairs of methods are in the paper's order; "
            f"turned: {listed} ({surely} of them surely)"
        )
    return f"{text}. {sure} of the {pairs} differ here by more than {SURE_ERRORS} standard errors."


def _moved(turned: list[tuple[Variant, Variant]]) -> list[Variant]:
    """The fewest methods, taken greedily, without which the order would be the same."""
    moved: list[Variant] = []
    while turned:
        names = [name for pair in turned for name in pair]
        moved.append(max(names, key=names.count))
        turned = [pair for pair in turned if moved[-1] not in pair]
    return moved


def _why(method: Variant, everyone: dict[Variant, float]) -> str:
    """What the paper leaves open about a method, and what our figures say to it."""
    if method == HISTOGRAM:
        half = everyone.get(ONE_HOT)
        also = (
            f"; with half the noise (one-hot-binning) the median is {shown(half)}, so it is the "
            "noise in the bins that decides its place"
            if half is not None
            else ""
        )
        return (
            ": the paper does not say what it does with a bin whose noisy count is zero or less; "
            f"here such a bin is left as it was{also}"
        )
    return "" if method == ONE else "; the data do not show why"


def _one_source(results: Results) -> str:
    """How the paper's baseline is fitted here, and what other fits of the same rows give."""
    others = [m for m in (OUR_ONE, ONE_BY_NLL) if m in results.variants]
    words = {OUR_ONE: "by accuracy", ONE_BY_NLL: "by NLL"}
    better = ", ".join(
        f"{words[m]} ({m}) {shown(float(np.median(cells)))} and {shown(float(np.mean(cells)))}"
        for m in others
        for cells in [results.cells(m, "ece_mean")]
    )
    text = (
        "The paper does not say how it fits one source. Here: by ECE-T's own search on that source's "
        f"rows, without noise ({ONE}), the fit that comes nearest to its figures"
    )
    return (
        f"{text}; exact fits of the same rows have, median and mean, {better}."
        if better
        else f"{text}."
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
