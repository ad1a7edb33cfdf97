"""The paper's claims about its Table 1 and its figures: Acc-T against the other methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from privcal.scores import FloatArray, IntArray
from privcal.simulate.aggregation import EACH
from privcal.simulate.variants import Variant
from privcal.study.paper.claim import (
    FAILS,
    HOLDS,
    SURE_ERRORS,
    UNKNOWN,
    Claim,
    ClaimVerdict,
    OverCells,
    by_how_much,
    drawn_cells,
    over_cells,
    ran,
    verdict_of,
    verdict_on_share,
)
from privcal.study.paper.reported import (
    ACC_T,
    ECE_T,
    METHODS,
    NLL_T,
    NOTHING,
    OUR_ONE,
    Reported,
    reported,
)
from privcal.study.results import Results
from privcal.study.table import shown

WIDE = 0.25
"""A wide margin: the paper's own, in the median, are 52 %, 28 % and 26 %."""
TIMES = 2.0
ALMOST_FIVE = 4.5
MOSTLY = 0.9
"""Best "in these settings": in at least this share of them."""
FIGURES = {
    "ImageNet": ("1", "fog"),
    "CIFAR-100": ("2", "jpeg_compression"),
    "CIFAR-10": ("3", "motion_blur"),
}
"""The paper's figures by their data sets: number and perturbation."""
NOT_RUN = "Acc-T, or anything to compare it with, was not run."


def overall_claims(results: Results) -> list[Claim]:
    """What the paper says of Acc-T in general."""
    return [
        best(results, "median"),
        best(results, "mean"),
        wide_margin(results),
        twice_as_good(results),
        better_than_nothing(results),
        almost_five_times(results),
        generally_best(results),
        ece_t_against_nll_t(results),
        *(best_in_the_figure(results, dataset) for dataset in FIGURES),
    ]


def in_short(results: Results | None) -> str:
    """Where median and mean, or a fit of ours, tell another story than Acc-T's first place."""
    found = {} if results is None else {a: _averages(results, a) for a in ("median", "mean")}
    if results is None or None in found.values():
        return ""
    words = []
    for average, averages in found.items():
        assert averages is not None
        values, _ = averages
        first = min(values, key=lambda m: values[m].value)
        words.append(f"by {average} {first} ({values[first]})")
    text = f" Of the paper's methods the best is {', '.join(words)}."
    if OUR_ONE in results.variants:
        ours = {a: _value(results, OUR_ONE, a) for a in found}
        acc_t = {a: _value(results, ACC_T, a) for a in found}
        beaten = [a for a in found if ours[a] < acc_t[a]]
        figures = ", ".join(f"{a} {shown(ours[a])} against {shown(acc_t[a])}" for a in found)
        by = f"by {' and '.join(beaten)}" if beaten else "in neither"
        text += (
            f" One source fitted by accuracy, without any privacy ({OUR_ONE}, not the paper's), beats "
            f"Acc-T {by}: {figures}."
        )
    return text


def best(results: Results, average: str) -> Claim:
    name = f"Acc-T is best in the {average}" if average == "median" else "Acc-T is best by mean"
    statement = (
        "Acc-T outperforms the other methods, over all perturbations and settings (Abstract; "
        "Section 5, Table 1: in the median on all three data sets, by mean on all but CIFAR-10)."
    )
    found = _averages(results, average)
    if found is None:
        return Claim(name, statement, UNKNOWN, NOT_RUN)
    values, second = found
    reading = (
        f"{average.capitalize()} ECE of Acc-T {values[ACC_T]}, {_margin(values, second)}, the best of "
        f"the paper's other methods. {_brier(results, second, average)}{_there(results, average)}"
    )
    everyone = {v: _value(results, v, average) for v in results.variants if v.aggregation == EACH}
    better = [v for v in everyone if v not in METHODS and everyone[v] < everyone[ACC_T]]
    if better:
        listed = ", ".join(f"{v} ({shown(everyone[v])})" for v in better)
        reading += f" Not among the paper's methods, and better here than Acc-T: {listed}."
    return Claim(name, statement, verdict_of([values[ACC_T].below(values[second])]), reading)


def wide_margin(results: Results) -> Claim:
    name = "Acc-T is best by a wide margin"
    statement = "Acc-T far outperforms the other methods (Section 5, on Table 1)."
    found = _averages(results, "median")
    if found is None:
        return Claim(name, statement, UNKNOWN, NOT_RUN)
    values, second = found
    ratio = values[ACC_T].times(values[second])
    reading = (
        f"Median ECE {_margin(values, second)}, with a standard error of {ratio.se:.1%} (wide: at "
        f"least {WIDE:.0%} below, which the paper's own medians are on all three data sets)."
        f"{_there(results, 'median')}"
    )
    return Claim(name, statement, verdict_of([-ratio.above(1 - WIDE)]), reading)


def twice_as_good(results: Results) -> Claim:
    name = "Acc-T is 2× better than the second best"
    statement = (
        "With privacy Acc-T does 2× better than the second best (Section 1; in the Abstract of "
        "ImageNet-C: over 2×, in the median)."
    )
    found = _averages(results, "median")
    if found is None:
        return Claim(name, statement, UNKNOWN, NOT_RUN)
    values, second = found
    ratio = values[second].times(values[ACC_T])
    reading = (
        f"The median ECE of {second}, the second best, is {ratio.value:.2f} × that of Acc-T (standard "
        f"error {ratio.se:.2f}). In the paper's Table 1: {_times_there(second_best)}."
    )
    return Claim(name, statement, verdict_of([ratio.above(TIMES)]), reading)


def better_than_nothing(results: Results) -> Claim:
    name = "Acc-T is better than no recalibration"
    statement = "Acc-T improves calibration under domain shift and privacy (Abstract)."
    if not {ACC_T, NOTHING} <= set(results.variants) or not results.perturbations:
        return Claim(name, statement, UNKNOWN, "Acc-T was not run beside no recalibration.")
    ours, nothing = (over_cells(results, m, np.mean) for m in (ACC_T, NOTHING))
    signs = _signs(results, ACC_T, NOTHING)
    reading = (
        f"Mean ECE {ours} against {nothing} without recalibration. Of {len(signs)} cells (perturbations × "
        f"settings) Acc-T is surely better in {np.sum(signs > 0)} and surely worse in "
        f"{np.sum(signs < 0)}."
    )
    return Claim(name, statement, verdict_of([ours.below(nothing)]), reading)


def almost_five_times(results: Results) -> Claim:
    name = "Acc-T is almost 5× better than no recalibration on ImageNet"
    statement = "Almost 5× better than without recalibration, median, on ImageNet-C (Abstract)."
    if not {ACC_T, NOTHING} <= set(results.variants) or not results.perturbations:
        return Claim(name, statement, UNKNOWN, "Acc-T was not run beside no recalibration.")
    ours, nothing = (over_cells(results, m, np.median) for m in (ACC_T, NOTHING))
    ratio = nothing.times(ours)
    here = (
        f"{ratio.value:.1f} × in the median, standard error {ratio.se:.2f} (almost 5: at least "
        f"{ALMOST_FIVE:g}; in the paper's Table 1: {_times_there(lambda _: NOTHING)})."
    )
    if _dataset(results) != "ImageNet":
        why = f"It is said of ImageNet-C; this is {results.dataset}, with {here}"
        return Claim(name, statement, UNKNOWN, why)
    return Claim(name, statement, verdict_of([ratio.above(ALMOST_FIVE)]), f"Here {here}")


def generally_best(results: Results) -> Claim:
    name = "Acc-T is generally best"
    statement = (
        "Acc-T is the best method in general (Section 5), and generally best in the settings of all "
        "figures (Appendix, experiments with privacy)."
    )
    if _averages(results, "median") is None:
        return Claim(name, statement, UNKNOWN, NOT_RUN)
    mine = _ran(results)
    each = {m: drawn_cells(results, m) for m in mine}
    margins, draws = (
        np.min([each[m][i] for m in mine if m != ACC_T], axis=0) - each[ACC_T][i] for i in (0, 1)
    )
    lowest = np.array([cells for cells, _ in each.values()]).argmin(axis=0)
    counts = dict(zip(mine, np.bincount(lowest, minlength=len(mine)), strict=True))
    signs = _best_signs(results)
    reading = (
        f"Of {len(signs)} cells (perturbations × settings) Acc-T has the lowest ECE of the paper's "
        f"methods in {counts[ACC_T]}, surely in {np.sum(signs > 0)}, and surely not in "
        f"{np.sum(signs < 0)} (generally: in more than half). The others: "
        + ", ".join(f"{m} in {n}" for m, n in counts.items() if n and m != ACC_T)
        + "."
    )
    if OUR_ONE in results.variants:
        beats = int((results.cells(OUR_ONE, "ece_mean") < results.cells(ACC_T, "ece_mean")).sum())
        reading += f" Our {OUR_ONE}, the fit by accuracy, is lower than Acc-T in {beats}."
    return Claim(name, statement, verdict_on_share(margins, draws), reading)


def ece_t_against_nll_t(results: Results) -> Claim:
    name = "ECE-T is often better than NLL-T with privacy"
    statement = (
        "It is often better to minimise the ECE itself than the NLL (Section 3, said without "
        "reference to privacy)."
    )
    if not {ECE_T, NLL_T} <= set(results.variants) or not results.perturbations:
        return Claim(name, statement, UNKNOWN, "ECE-T was not run beside NLL-T.")
    signs = _signs(results, ECE_T, NLL_T)
    (ece, draws), (nll, others) = (drawn_cells(results, m) for m in (ECE_T, NLL_T))
    reading = (
        f"Of {len(signs)} cells ECE-T is better in {np.sum(ece < nll)}, surely in {np.sum(signs > 0)}, and "
        f"surely worse in {np.sum(signs < 0)} (often: in more than half). Mean ECE {shown(ece.mean())} "
        f"against {shown(nll.mean())}.{_pair_there(results)}"
    )
    return Claim(name, statement, verdict_on_share(nll - ece, others - draws), reading)


def best_in_the_figure(results: Results, dataset: str) -> Claim:
    number, shift = FIGURES[dataset]
    words = shift.replace("_", " ")
    name = f"Acc-T does best in Figure {number} ({dataset}, {words})"
    statement = (
        f"Acc-T does best in these settings and clearly outperforms the others (Section 5, Figure "
        f"{number}: {dataset} under {words})."
    )
    if shift not in results.perturbations or _averages(results, "median") is None:
        why = f"The study has no {words}, or nothing to compare Acc-T with."
        return Claim(name, statement, UNKNOWN, why)
    signs = _best_signs(results, shift)
    best = np.array([_eces(results, m, shift)[0] for m in _ran(results)]).argmin(axis=0)
    count = int((best == _ran(results).index(ACC_T)).sum())
    here = (
        f"Of {len(signs)} settings under {words} Acc-T is best of the paper's methods in {count}, surely "
        f"in {np.sum(signs > 0)}, and surely not in {np.sum(signs < 0)} (does best: in at least "
        f"{MOSTLY:.0%}, and surely in more than half)."
    )
    if _dataset(results) != dataset:
        why = f"The figure is of {dataset}; this is {results.dataset}. {here}"
        return Claim(name, statement, UNKNOWN, why)
    verdict: ClaimVerdict = UNKNOWN
    if np.mean(signs < 0) > 1 - MOSTLY:
        verdict = FAILS
    elif count >= MOSTLY * len(signs) and np.mean(signs > 0) > 0.5:
        verdict = HOLDS
    return Claim(name, statement, verdict, here)


# --- small things ------------------------------------------------------------------------


def _ran(results: Results) -> list[Variant]:
    return ran(results, METHODS)


def _dataset(results: Results) -> str | None:
    """The paper's name for the data set, whatever the settings of the study."""
    known = reported(results.dataset)
    return known.name if known else None


def _value(results: Results, method: Variant, average: str) -> float:
    statistic = np.median if average == "median" else np.mean
    return float(statistic(results.cells(method, "ece_mean")))


def _averages(results: Results, average: str) -> tuple[dict[Variant, OverCells], Variant] | None:
    """Each of the paper's methods over all cells, and the best but for Acc-T."""
    mine = _ran(results)
    if ACC_T not in mine or len(mine) < 2 or not results.perturbations:
        return None
    statistic = np.median if average == "median" else np.mean
    values = {m: over_cells(results, m, statistic) for m in mine}
    return values, second_best({m: values[m].value for m in mine})


def _margin(values: dict[Variant, OverCells], second: Variant) -> str:
    share = by_how_much(values[ACC_T].value, values[second].value)
    return f"{share} {second} ({values[second]})"


def _brier(results: Results, second: Variant, average: str) -> str:
    statistic = np.median if average == "median" else np.mean
    words = [
        f"{average} {name} "
        + " against ".join(
            shown(float(statistic(results.cells(m, column)))) for m in (ACC_T, second)
        )
        for name, column in (("Brier", "brier_mean"), ("AURC", "aurc_mean"))
    ]
    text = ", ".join(words)
    return f"{text[0].upper()}{text[1:]}."


def second_best(medians: Mapping[Variant, float]) -> Variant:
    """The best method but for Acc-T."""
    return min((m for m in medians if m != ACC_T), key=medians.__getitem__)


def _times_there(other: Callable[[Mapping[Variant, float]], Variant]) -> str:
    """How many times Acc-T's median another method's is, in all of the paper's Table 1."""
    parts = []
    for dataset in FIGURES:
        known = reported(dataset)
        assert known is not None
        medians = {m: f["median"] for m, f in known.under_privacy.items()}
        parts.append(f"{medians[other(medians)] / medians[ACC_T]:.2f} × on {dataset}")
    return ", ".join(parts)


def _there(results: Results, average: str) -> str:
    known: Reported | None = results.reported
    if known is None:
        return ""
    theirs = {m: f[average] for m, f in known.under_privacy.items()}
    second = second_best(theirs)
    return (
        f" In the paper ({known.name}): {shown(theirs[ACC_T])}, "
        f"{by_how_much(theirs[ACC_T], theirs[second])} {second} ({shown(theirs[second])})."
    )


def _pair_there(results: Results) -> str:
    known = results.reported
    if known is None:
        return ""
    ece, nll = (shown(known.under_privacy[m]["mean"]) for m in (ECE_T, NLL_T))
    return f" In the paper's Table 1 ({known.name}) it is worse: mean {ece} against {nll}."


def _eces(results: Results, method: Variant, shift: str | None) -> tuple[FloatArray, FloatArray]:
    """A method's ECE in all cells, or in those of one shift, and the standard errors."""
    if shift is None:
        return results.cells(method, "ece_mean"), results.cells(method, "ece_se")
    curves = [results.curve(method, sweep, shift) for sweep in results.sweeps]
    return np.concatenate([c.ece for c in curves]), np.concatenate([c.ece_se for c in curves])


def _signs(results: Results, method: Variant, other: Variant, shift: str | None = None) -> IntArray:
    """Cell by cell: 1 where the method is surely better than the other, -1 where surely worse."""
    (a, error), (b, others) = (_eces(results, m, shift) for m in (method, other))
    sure = np.abs(b - a) > SURE_ERRORS * np.hypot(error, others)
    return np.asarray(np.sign(b - a) * sure, np.int64)


def _best_signs(results: Results, shift: str | None = None) -> IntArray:
    """1 where Acc-T is surely better than every other method, -1 where one is surely better."""
    others = [m for m in _ran(results) if m != ACC_T]
    return np.asarray(np.min([_signs(results, ACC_T, o, shift) for o in others], axis=0))
