"""The claims of claims.toml, each checked with the statistic that its sentence means."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from privcal.lab.study.factors import at_noise, by_method
from privcal.lab.study.paper import (
    ACC_T,
    ECE_T,
    METHODS,
    NLL_T,
    NOTHING,
    ONE,
    OUR_ONE,
    PRIVATE,
    reported,
)
from privcal.lab.study.results import Results, point, shown
from privcal.lab.study.verdict import (
    CHECKS,
    DRAWS,
    FAILS,
    HOLDS,
    ON_A_PAR,
    SURE_ERRORS,
    UNKNOWN,
    ClaimVerdict,
    Finding,
    MeanEce,
    OverCells,
    Untold,
    _compared,
    best_of,
    check,
    drawn_cells,
    figure_at,
    need,
    over_cells,
    ran,
    sign,
    span,
    verdict_of,
    verdict_on_a_par,
    verdict_on_share,
)
from privcal.planning.simulate.splits import stream
from privcal.planning.simulate.variants import EACH, Variant
from privcal.trusted.scores import FloatArray, IntArray


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and what was found."""

    name: str
    statement: str
    """What the paper says."""
    verdict: ClaimVerdict
    reading: str
    details: tuple[str, ...] = ()


CLAIMS: dict[str, list[dict[str, Any]]] = tomllib.loads(
    (files("privcal.lab.study") / "claims.toml").read_text("utf-8")
)
THEORY: Sequence[Any] = CLAIMS.pop("theory")
"""What the paper proves, or says in passing, that no study is needed to check."""
_FACTORS = "What helps and what hurts"
"""The topic that is about a study of factors alone."""


def claims_of(main: Results | None, factors: Results | None = None) -> dict[str, list[Claim]]:
    """The claims by topic; without a main study, those that a study of factors can tell."""
    return {
        topic: [evaluate(entry, main, factors) for entry in entries]
        for topic, entries in CLAIMS.items()
        if main is not None or topic == _FACTORS
    }


def evaluate(entry: dict[str, Any], main: Results | None, factors: Results | None = None) -> Claim:
    """Give a claim's check what it asks for; where that is not there, the claim cannot be told."""
    try:
        found = CHECKS[entry["check"]](main, factors, **entry.get("options", {}))
    except Untold as why:
        found = Finding(UNKNOWN, str(why))
    return Claim(entry["name"], entry["says"], found.verdict, found.reading, tuple(found.details))


# --- Acc-T against the other methods: the paper's Table 1 and its figures -------------------------

WIDE = 0.25
"""A wide margin: the paper's own, in the median, are 52 %, 28 % and 26 %."""
ALMOST_FIVE = 4.5
MOSTLY = 0.9
"""Best "in these settings": in at least this share of them."""


def in_short(results: Results | None) -> str:
    """Where median and mean, or a fit of ours, tell another story than Acc-T's first place."""
    if results is None:
        return ""
    try:
        found = {average: _averages(results, average)[0] for average in ("median", "mean")}
    except Untold:
        return ""
    first = [f"by {average} {best_of(v)} ({v[best_of(v)]})" for average, v in found.items()]
    text = f" Of the paper's methods the best is {', '.join(first)}."
    if OUR_ONE in results.variants:
        ours = {average: over_cells(results, OUR_ONE, average) for average in found}
        acc_t = {average: values[ACC_T] for average, values in found.items()}
        beaten = [a for a in found if ours[a].value < acc_t[a].value]
        text += (
            f" One source fitted by accuracy, without any privacy ({OUR_ONE}, not the paper's), beats "
            f"Acc-T {'by ' + ' and '.join(beaten) if beaten else 'in neither'}: "
            f"{', '.join(f'{a} {ours[a]} against {acc_t[a]}' for a in found)}."
        )
    return text


@check
def best(results: Results, _: object, average: str) -> Finding:
    values, second = _averages(results, average)
    beside = ", ".join(
        f"{average} {name} "
        + " against ".join(
            shown(getattr(np, average)(results.cells(m, column))) for m in (ACC_T, second)
        )
        for name, column in (("Brier", "brier_mean"), ("AURC", "aurc_mean"))
    )
    reading = (
        f"{average.capitalize()} ECE of Acc-T {values[ACC_T]}, {_margin(values, second)}, the best of "
        f"the paper's other methods. {average.capitalize()}{beside.removeprefix(average)}."
        f"{_there(results, average)}"
    )
    others = [v for v in results.variants if v.aggregation == EACH and v not in METHODS]
    figures = {v: over_cells(results, v, average) for v in others}
    better = [f"{v} ({f})" for v, f in figures.items() if f.value < values[ACC_T].value]
    if better:
        reading += (
            f" Not among the paper's methods, and better here than Acc-T: {', '.join(better)}."
        )
    return Finding(verdict_of([values[ACC_T].below(values[second])]), reading)


@check
def wide_margin(results: Results, _: object) -> Finding:
    values, second = _averages(results, "median")
    ratio = values[ACC_T].times(values[second])
    reading = (
        f"Median ECE {_margin(values, second)}, with a standard error of {ratio.se:.1%} (wide: at "
        f"least {WIDE:.0%} below, which the paper's own medians are on all three data sets)."
        f"{_there(results, 'median')}"
    )
    return Finding(verdict_of([-ratio.above(1 - WIDE)]), reading)


@check
def times_better(results: Results, _: object, times: float) -> Finding:
    values, second = _averages(results, "median")
    ratio = values[second].times(values[ACC_T])
    reading = (
        f"The median ECE of {second}, the second best, is {ratio.value:.2f} × that of Acc-T (standard "
        f"error {ratio.se:.2f}). In the paper's Table 1: {_times_there(None)}."
    )
    return Finding(verdict_of([ratio.above(times)]), reading)


@check
def better_than_nothing(results: Results, _: object) -> Finding:
    _beside(results, ACC_T, NOTHING)
    ours, nothing = (over_cells(results, m, "mean") for m in (ACC_T, NOTHING))
    signs = _signs(results, ACC_T, NOTHING)
    reading = (
        f"Mean ECE {ours} against {nothing} without recalibration. Of {len(signs)} cells (perturbations × "
        f"settings) Acc-T is surely better in {np.sum(signs > 0)} and surely worse in "
        f"{np.sum(signs < 0)}."
    )
    return Finding(verdict_of([ours.below(nothing)]), reading)


@check
def almost_five_times(results: Results, _: object) -> Finding:
    _beside(results, ACC_T, NOTHING)
    ours, nothing = (over_cells(results, m, "median") for m in (ACC_T, NOTHING))
    ratio = nothing.times(ours)
    here = (
        f"{ratio.value:.1f} × in the median, standard error {ratio.se:.2f} (almost 5: at least "
        f"{ALMOST_FIVE:g}; in the paper's Table 1: {_times_there(NOTHING)})."
    )
    why = f"It is said of ImageNet-C; this is {results.dataset}, with {here}"
    need(_dataset(results) == "ImageNet", why)
    return Finding(verdict_of([ratio.above(ALMOST_FIVE)]), f"Here {here}")


@check
def generally_best(results: Results, _: object) -> Finding:
    _averages(results, "median")
    mine = ran(results)
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
    return Finding(verdict_on_share(margins, draws), reading)


@check
def ece_t_against_nll_t(results: Results, _: object) -> Finding:
    _beside(results, ECE_T, NLL_T)
    signs = _signs(results, ECE_T, NLL_T)
    (ece, draws), (nll, others) = (drawn_cells(results, m) for m in (ECE_T, NLL_T))
    reading = (
        f"Of {len(signs)} cells ECE-T is better in {np.sum(ece < nll)}, surely in {np.sum(signs > 0)}, and "
        f"surely worse in {np.sum(signs < 0)} (often: in more than half). Mean ECE {shown(ece.mean())} "
        f"against {shown(nll.mean())}."
    )
    if known := results.reported:
        theirs = [shown(known.under_privacy[m]["mean"]) for m in (ECE_T, NLL_T)]
        reading += f" In the paper's Table 1 ({known.name}) it is worse: mean {theirs[0]} against {theirs[1]}."
    return Finding(verdict_on_share(nll - ece, others - draws), reading)


@check
def best_in_the_figure(results: Results, _: object, dataset: str, shift: str) -> Finding:
    words = shift.replace("_", " ")
    why = f"The study has no {words}, or nothing to compare Acc-T with."
    need(shift in results.perturbations and len(ran(results)) > 1, why)
    need(ACC_T in results.variants, why)
    signs = _best_signs(results, shift)
    lowest = np.array([_eces(results, m, shift)[0] for m in ran(results)]).argmin(axis=0)
    count = int((lowest == ran(results).index(ACC_T)).sum())
    here = (
        f"Of {len(signs)} settings under {words} Acc-T is best of the paper's methods in {count}, surely "
        f"in {np.sum(signs > 0)}, and surely not in {np.sum(signs < 0)} (does best: in at least "
        f"{MOSTLY:.0%}, and surely in more than half)."
    )
    why = f"The figure is of {dataset}; this is {results.dataset}. {here}"
    need(_dataset(results) == dataset, why)
    if np.mean(signs < 0) > 1 - MOSTLY:
        return Finding(FAILS, here)
    holds = count >= MOSTLY * len(signs) and np.mean(signs > 0) > 0.5
    return Finding(HOLDS if holds else UNKNOWN, here)


def _dataset(results: Results) -> str | None:
    """The paper's name for the data set, whatever the settings of the study."""
    known = reported(results.dataset)
    return known.name if known else None


def _beside(results: Results, method: Variant, other: Variant) -> None:
    names = {ACC_T: "Acc-T", ECE_T: "ECE-T", NLL_T: "NLL-T", NOTHING: "no recalibration"}
    both = {method, other} <= set(results.variants) and results.perturbations
    need(both, f"{names[method]} was not run beside {names[other]}.")


def _averages(results: Results, average: str) -> tuple[dict[Variant, OverCells], Variant]:
    """Each of the paper's methods over all cells, and the best but for Acc-T."""
    mine = ran(results)
    there = ACC_T in mine and len(mine) > 1 and results.perturbations
    need(there, "Acc-T, or anything to compare it with, was not run.")
    values = {m: over_cells(results, m, average) for m in mine}
    return values, best_of(values, but=ACC_T)


def _margin(values: dict[Variant, OverCells], second: Variant) -> str:
    return f"{_compared(values[ACC_T].value, values[second].value)} {second} ({values[second]})"


def _second(figures: Mapping[Variant, float]) -> Variant:
    return min((m for m in figures if m != ACC_T), key=figures.__getitem__)


def _times_there(other: Variant | None) -> str:
    """How many times Acc-T's median another's, or the second best, is in the paper's Table 1."""
    parts = []
    for dataset in ("ImageNet", "CIFAR-100", "CIFAR-10"):
        known = reported(dataset)
        assert known is not None
        medians = {m: f["median"] for m, f in known.under_privacy.items()}
        times = medians[other or _second(medians)] / medians[ACC_T]
        parts.append(f"{times:.2f} × on {dataset}")
    return ", ".join(parts)


def _there(results: Results, average: str) -> str:
    known = results.reported
    if known is None:
        return ""
    theirs = {m: f[average] for m, f in known.under_privacy.items()}
    second = _second(theirs)
    return (
        f" In the paper ({known.name}): {shown(theirs[ACC_T])}, "
        f"{_compared(theirs[ACC_T], theirs[second])} {second} ({shown(theirs[second])})."
    )


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
    others = [m for m in ran(results) if m != ACC_T]
    return np.asarray(np.min([_signs(results, ACC_T, o, shift) for o in others], axis=0))


# --- Along the three sweeps -----------------------------------------------------------------------

DRASTIC = 1.5
"""Drastically worse: at least so many times the ECE."""


@check
def more_helps(results: Results, _: object, sweep: str) -> Finding:
    mine = ran(results, PRIVATE)
    there = sweep in results.sweeps and mine and results.perturbations
    need(there, f"The study does not vary {sweep} for these methods.")
    parts, signs = [], []
    for method in mine:
        first, last = (figure_at(results.curve(method, sweep), i) for i in (0, -1))
        better, _worse = more_counts(results, method, sweep)
        signs.append(last.below(first))
        parts.append(
            f"{method}: {first} → {last}, better at {better} of {len(results.perturbations)} "
            "perturbations"
        )
    x = results.curve(mine[0], sweep).x
    reading = f"Mean ECE, {span(sweep, x[0], x[-1])} ({results.constants(sweep)}):"
    return Finding(verdict_of(signs), reading, parts)


def more_counts(results: Results, method: Variant, sweep: str) -> tuple[int, int]:
    """At how many perturbations the last point of a sweep is surely better, and worse, than the first."""
    curves = [results.curve(method, sweep, shift) for shift in results.perturbations]
    signs = [figure_at(curve, -1).below(figure_at(curve, 0)) for curve in curves]
    return signs.count(1), signs.count(-1)


@check
def does_well(results: Results, _: object, sweep: str, middle: bool = False) -> Finding:
    """Acc-T is on a par with the best of the paper's methods at the end, or the middle, of a sweep."""
    why = f"The study does not vary {sweep} for Acc-T beside another method."
    _along(results, sweep, -1, {ACC_T}, why)
    curve = results.curve(ACC_T, sweep)
    where = curve.middle if middle else -1
    if where is None:
        raise Untold("The study has no finite ε.")
    means = _along(results, sweep, where, {ACC_T}, why)
    second = best_of(means, but=ACC_T)
    reading = (
        f"At {point(sweep, curve.x[where])} ({results.constants(sweep)}) its mean ECE is {means[ACC_T]}, "
        f"that of {second}, the best of the paper's others, {means[second]}; Acc-T is the best of them "
        f"at {_wins(results, means, ACC_T, sweep, where)} of {len(results.perturbations)} perturbations "
        f"(well: at most {ON_A_PAR:.0%} above the best).{_our_one(results, sweep, where)}"
    )
    return Finding(verdict_on_a_par(means[ACC_T], means[best_of(means)]), reading)


@check
def pooling_a_handful(results: Results, _: object) -> Finding:
    why = "Acc-T and one source were not both run along the number of samples."
    means = _along(results, "samples", 0, {ACC_T, ONE}, why)
    x = results.curve(ONE, "samples").x[0]
    reading = (
        f"At {point('samples', x)} ({results.constants('samples')}) Acc-T has a mean ECE of "
        f"{means[ACC_T]}, {ONE} {means[ONE]}.{_our_one(results, 'samples', 0)}"
    )
    return Finding(verdict_of([means[ACC_T].below(means[ONE])]), reading)


@check
def one_source_with_many_samples(results: Results, _: object) -> Finding:
    why = "One source was not run along the number of samples beside a private method."
    last = _along(results, "samples", -1, {ONE}, why)
    private = {m: mean for m, mean in last.items() if m in PRIVATE}
    need(private, why)
    first, best = _along(results, "samples", 0, {ONE}, why)[ONE], best_of(private)
    x = results.curve(ONE, "samples").x
    reading = (
        f"{span('samples', x[0], x[-1])} ({results.constants('samples')}): {ONE} "
        f"{first} → {last[ONE]}; the best private method there is {best} with {private[best]}."
    )
    if not last[ONE].below(first) > 0:
        verdict = verdict_of([last[ONE].below(first)])
        return Finding(verdict, f"{reading} More samples do not surely help it.")
    exact = _exact_means(results, f"{reading} These are not many samples.")
    rows = {r["rows"] for r in _fits(results, "ece-t") if "rows" in r}
    reading += (
        f" With half of all rows{f', {min(rows):,},' if rows else ''} (the exact fit by ECE) one "
        f"source has {exact['ece-t']}."
    )
    return Finding(verdict_of([exact["ece-t"].below(private[best])]), reading)


@check
def one_source_at_small_epsilon(results: Results, _: object) -> Finding:
    why = "One source was not run along ε beside another method."
    means = _along(results, "epsilon", 0, {ONE}, why)
    ours, second = means[ONE], best_of(means, but=ONE)
    reading = (
        f"At {point('epsilon', results.curve(ONE, 'epsilon').x[0])} ({results.constants('epsilon')}) the "
        f"mean ECE is {ours} for {ONE} and {means[second]} for {second}, the best of the paper's others "
        f"(Brier {shown(ours.brier)} and {shown(means[second].brier)}); it is the best of the paper's "
        f"methods at {_wins(results, means, ONE, 'epsilon', 0)} of {len(results.perturbations)} "
        f"perturbations.{_our_one(results, 'epsilon', 0)}"
    )
    return Finding(verdict_of([ours.below(means[second])]), reading)


@check
def small_epsilon_ruins(results: Results, _: object) -> Finding:
    mine = ran(results, PRIVATE) if "epsilon" in results.sweeps and results.perturbations else []
    middle = results.curve(mine[0], "epsilon").middle if mine else None
    if not middle:
        raise Untold("The study does not vary ε for the paper's private methods.")
    x = results.curve(mine[0], "epsilon").x
    parts, signs = [], []
    for method in mine:
        low, mid = (figure_at(results.curve(method, "epsilon"), i) for i in (0, middle))
        error = float(np.hypot(low.se, DRASTIC * mid.se))
        signs.append(sign(low.value - DRASTIC * mid.value, error))
        parts.append(f"{method}: {mid} → {low}, {low.value / mid.value:.2f} ×")
    reading = (
        f"Mean ECE, {span('epsilon', x[middle], x[0])} "
        f"({results.constants('epsilon')}; drastic: at least {DRASTIC:g} ×):"
    )
    return Finding(verdict_of(signs), reading, parts)


@check
def ece_t_at_large_epsilon(results: Results, factors: Results | None) -> Finding:
    why = "ECE-T was not run along ε beside another method."
    means = _along(results, "epsilon", -1, {ECE_T}, why)
    x = results.curve(ECE_T, "epsilon").x
    reading = f"At {point('epsilon', x[-1])}, the largest here, {_place(means)}."
    verdict = verdict_on_a_par(means[ECE_T], means[best_of(means)])
    free = at_noise(factors, free=True)
    if ECE_T in free and len(free) > 1:
        reading += (
            f" Without any noise (the study of factors), {_place(free)}; Acc-T has "
            f"{free.get(ACC_T, '–')}."
        )
        verdict = verdict_on_a_par(free[ECE_T], free[best_of(free)])
    elif np.isfinite(x[-1]) and verdict == FAILS:
        reading += (
            " Whether it is good at a larger ε than these, a study of factors can tell, which has runs "
            "without noise."
        )
    if results.exact is not None:
        exact = _exact_means(results)["ece-t"]
        reading += f" Fitted exactly, on a range without such ends, it has {exact}."
    return Finding(verdict, f"{reading} (Good: at most {ON_A_PAR:.0%} above the best.)")


def _along(
    results: Results, sweep: str, index: int, wanted: Collection[Variant], why: str
) -> dict[Variant, MeanEce]:
    """The paper's methods at one point of a sweep: those wanted, and at least two."""
    mine = ran(results) if sweep in results.sweeps and results.perturbations else []
    need(set(wanted) <= set(mine) and len(mine) > 1, why)
    return {m: figure_at(results.curve(m, sweep), index) for m in mine}


def _wins(
    results: Results, among: Collection[Variant], method: Variant, sweep: str, index: int
) -> int:
    """At how many perturbations a method is the best of these."""
    return sum(
        min(among, key=lambda m: results.curve(m, sweep, shift).ece[index]) == method
        for shift in results.perturbations
    )


def _place(means: Mapping[Variant, MeanEce]) -> str:
    order = sorted(means, key=lambda m: means[m].value)
    return (
        f"its mean ECE is {means[ECE_T]}, place {order.index(ECE_T) + 1} of the paper's {len(order)}; "
        f"the best is {order[0]} with {means[order[0]]}"
    )


def _our_one(results: Results, sweep: str, index: int) -> str:
    if OUR_ONE not in results.variants:
        return ""
    ours = figure_at(results.curve(OUR_ONE, sweep), index)
    return f" One source by accuracy, which the paper does not have: {ours}."


# --- Fits without privacy, and the temperatures they find -----------------------------------------


@check
def on_a_par(results: Results, _: object) -> Finding:
    exact = _exact_means(results)
    ours, ece, nll = (exact[m] for m in ("acc-t", "ece-t", "nll-t"))
    reading = (
        f"Exact fits, mean ECE: Acc-T {ours}, ECE-T {ece}, NLL-T {nll} (Brier "
        f"{shown(ours.brier)}, {shown(ece.brier)}, {shown(nll.brier)}; on a "
        f"par: at most {ON_A_PAR:.0%} above the better of the two)."
    )
    known = results.reported.without_privacy if results.reported else {}
    if common := [known[shift] for shift in results.perturbations if shift in known]:
        means = [np.mean([fits[m] for fits in common]) for m in ("acc-t", "ece-t", "nll-t")]
        reading += f" In the paper: {', '.join(shown(float(mean)) for mean in means)}."
    return Finding(verdict_on_a_par(ours, min(nll, ece, key=lambda f: f.value)), reading)


@check
def often_better(results: Results, _: object, method: str, label: str, word: str) -> Finding:
    """An exact fit against that of the NLL, shift by shift."""
    _exact_means(results)
    ours, nll = ({r["shift"]: _mean_ece([r]) for r in _fits(results, m)} for m in (method, "nll-t"))
    signs = [ours[s].below(nll[s]) for s in results.perturbations]
    gaps = np.array([nll[s].value - ours[s].value for s in results.perturbations])
    errors = np.array([np.hypot(nll[s].se, ours[s].se) for s in results.perturbations])
    draws = gaps + errors * stream(0, method).standard_normal((DRAWS, len(gaps)))
    reading = (
        f"Of {len(signs)} perturbations {label}'s ECE is lower at {np.sum(gaps > 0)}, surely at "
        f"{signs.count(1)}, and surely higher at {signs.count(-1)} ({word}: at more than half)."
    )
    if known := results.reported:
        each = [known.without_privacy.get(s) for s in results.perturbations]
        there = [fits[method] < fits["nll-t"] for fits in each if fits]
        reading += f" In the paper's table ({known.name}): lower at {sum(there)} of {len(there)}."
    return Finding(verdict_on_share(gaps, draws), reading)


@check
def very_good(results: Results, _: object) -> Finding:
    exact = _exact_means(results)
    ours, best = exact["ece-t"], min(exact.values(), key=lambda f: f.value)
    reading = (
        f"Exact fits, mean ECE: {ours}, against {exact['acc-t']} for Acc-T, {exact['nll-t']} for NLL-T "
        f"and {exact['base']} without (very good: at most {ON_A_PAR:.0%} above the best of them)."
    )
    return Finding(verdict_on_a_par(ours, best), reading)


@check
def least_harmed_by_few_rows(results: Results, _: object) -> Finding:
    fits = {"accuracy": OUR_ONE, "NLL": Variant("one-source-nll"), "ECE": ONE}
    need(
        set(fits.values()) <= set(results.variants)
        and "samples" in results.sweeps
        and results.perturbations,
        "Needs one source fitted by accuracy, NLL and ECE, along the number of samples.",
    )
    rises, parts = {}, []
    for label, variant in fits.items():
        curve = results.curve(variant, "samples")
        few, many = figure_at(curve, 0), figure_at(curve, -1)
        rises[label] = few.rise(many)
        parts.append(f"by {label} ({variant}): {many} → {few}, a rise of {rises[label]}")
    reading = (
        f"One source without noise, mean ECE from {point('samples', curve.x[-1])} to "
        f"{point('samples', curve.x[0])}:"
    )
    signs = [rises["accuracy"].below(rises[other]) for other in ("NLL", "ECE")]
    return Finding(verdict_of(signs), reading, parts)


@check
def range_holds_the_optimum(
    results: Results, factors: Results | None, low: float, high: float
) -> Finding:
    why = "This study has no exact fits with their temperatures."
    need(results.exact is not None and "temperature_mean" in results.exact.columns, why)
    parts, signs = [], []
    for method, label in (("acc-t", "accuracy"), ("nll-t", "NLL")):
        rows = _fits(results, method, clean=True)
        found = [(r["temperature_mean"], r["temperature_se"], r["shift"]) for r in rows]
        # Within the range at both ends: surely, surely not, or it cannot be told.
        inside = [min(sign(t - low, error), sign(high - t, error)) for t, error, _ in found]
        outside = [(t, f"{shift} {t:.2f}") for t, _, shift in found if not low <= t <= high]
        listed = ", ".join(text for _, text in sorted(outside, reverse=True)) or "none"
        signs += inside
        parts.append(
            f"by {label}, outside at {len(outside)} of {len(rows)} shifts, surely at "
            f"{inside.count(-1)}: {listed}"
        )
    reading = "The optimal temperature (exact fits to halves of the rows, on T from 0.05 to 20):"
    return Finding(verdict_of(signs), reading, [*parts, *_wider_ranges(factors)])


@check
def largest_nll(results: Results, _: object, about: float) -> Finding:
    why = "This study has no largest NLL."
    need(results.exact is not None and "largest_nll" in results.exact.columns, why)
    largest = {r["shift"]: float(r["largest_nll"]) for r in _fits(results, "base", clean=True)}
    most = max(largest, key=largest.__getitem__)
    limit = about * (1 + ON_A_PAR)
    above = sum(value > limit for value in largest.values())
    reading = (
        f"At T = 1 the largest NLL of any row is {largest[most]:.1f} ({most}), and it is above "
        f"{limit:g} at {above} of {len(largest)} shifts. At a lower T it is larger. "
        f"So each row is clipped to [0, {about:g}] here, which makes {about:g} a bound."
    )
    return Finding(FAILS if above else HOLDS, reading)


def _exact_means(
    results: Results, why: str = "This study has no exact fits."
) -> dict[str, MeanEce]:
    """The means of the exact fits over perturbations, by their names."""
    if results.exact is None or not results.perturbations:
        raise Untold(why)
    methods = dict.fromkeys(results.exact["method"].to_list())
    return {method: _mean_ece(_fits(results, method)) for method in methods}


def _fits(results: Results, method: str, clean: bool = False) -> list[dict[str, Any]]:
    assert results.exact is not None
    shifts = results.shifts if clean else results.perturbations
    rows = results.exact.iter_rows(named=True)
    return [r for r in rows if r["method"] == method and r["shift"] in shifts]


def _mean_ece(rows: list[dict[str, Any]]) -> MeanEce:
    return MeanEce(
        float(np.mean([r["ece_mean"] for r in rows])),
        float(np.sqrt(np.sum([r["ece_se"] ** 2 for r in rows]))) / len(rows),
        float(np.mean([r["brier_mean"] for r in rows])),
    )


def _wider_ranges(factors: Results | None) -> Iterator[str]:
    """What other ranges do to the private methods, where a study of factors varies them."""
    if factors is None or "epsilon" not in factors.sweeps or not factors.perturbations:
        return
    for method, mine in by_method(factors, "bounds"):
        curves = {"[{:g}, {:g}]".format(*v.value("bounds")): c for v, c in mine}
        first = next(iter(curves.values()))
        if (middle := first.middle) is None:
            return
        where = point("epsilon", first.x[middle])
        figures = ", ".join(f"{b} {figure_at(c, middle)}" for b, c in curves.items())
        yield f"private {method} at {where}, {factors.constants('epsilon')}, by range: {figures}"
