"""The order of the methods: here, in the paper, by ECE, by Brier and by AURC."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from privcal.simulate.variants import Variant
from privcal.study.paper.reported import NOTHING, ONE
from privcal.study.results import Results
from privcal.study.table import Table, shown

HISTOGRAM, ONE_HOT, ONE_BY_NLL = map(
    Variant, ("histogram-binning", "one-hot-binning", "one-source-nll")
)


def medians(results: Results, column: str) -> dict[Variant, float]:
    """Over all (perturbation, setting) cells, the best method first."""
    values = {v: float(np.median(results.cells(v, column))) for v in results.variants}
    return dict(sorted(values.items(), key=lambda item: item[1]))


def beside_the_paper(results: Results) -> tuple[Table, list[str]] | None:
    """The paper's methods by median ECE, and what can be said where the order differs."""
    reported = results.reported
    if reported is None or not results.perturbations:
        return None
    ours = {m: v for m, v in medians(results, "ece_mean").items() if m in reported.under_privacy}
    theirs = {m: f["median"] for m, f in reported.under_privacy.items() if m in ours}
    if len(ours) < 2:
        return None
    place = {m: i + 1 for i, m in enumerate(ours)}
    place_there = {m: i + 1 for i, m in enumerate(sorted(theirs, key=theirs.__getitem__))}
    table = Table(
        "ranking",
        f"{results.title}: the order of the paper's methods by median ECE",
        "Our figures and places, and the paper's, among the methods that both have.",
        ("method", "place", "place (paper)", "median ECE", "median ECE (paper)"),
        tuple((str(m), str(place[m]), str(place_there[m]), ours[m], theirs[m]) for m in ours),
    )
    pairs = list(combinations(ours, 2))
    turned = [(a, b) for a, b in pairs if theirs[a] > theirs[b]]
    if not turned:
        return table, [f"The order is the paper's, in all {len(pairs)} pairs of methods."]
    moved = _moved(turned)
    notes = [
        f"{len(pairs) - len(turned)} of {len(pairs)} pairs of methods are in the paper's order; "
        f"all the others involve {' or '.join(map(str, moved))}."
    ]
    if NOTHING in ours:
        mean = float(np.mean(results.cells(NOTHING, "ece_mean")))
        there = reported.under_privacy[NOTHING]["mean"]
        notes.append(
            "The networks differ: before any recalibration the mean ECE is "
            f"{shown(mean)} here and {shown(there)} in the paper, so figures should be compared by "
            "order and size, not digit by digit."
        )
    everyone = medians(results, "ece_mean")
    notes += [
        f"{method} has place {place[method]} here and {place_there[method]} there"
        f"{_why(method, everyone)}."
        for method in moved
    ]
    return table, notes


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
    if method == ONE:
        nll = everyone.get(ONE_BY_NLL)
        also = f" (by NLL instead: {shown(nll)})" if nll is not None else ""
        return (
            ": ours is the exact fit, by accuracy, to the first source's own rows on T in "
            f"[0.5, 3]{also}; the paper does not say how it fits this baseline"
        )
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
    return "; the data do not show why"


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
