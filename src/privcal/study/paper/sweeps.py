"""The paper's claims about more or fewer sources, samples and ε."""

from __future__ import annotations

import numpy as np

from privcal.simulate.variants import Variant
from privcal.study.paper.claim import (
    FAILS,
    ON_A_PAR,
    SURE_ERRORS,
    UNKNOWN,
    Claim,
    MeanEce,
    along,
    best_of,
    figure_at,
    ran,
    sign,
    verdict_of,
    verdict_on_a_par,
)
from privcal.study.paper.reported import ACC_T, ECE_T, METHODS, ONE, OUR_ONE, PRIVATE
from privcal.study.paper.without_privacy import exact_means, fitted_rows
from privcal.study.results import Results, defaults, point
from privcal.study.table import Table, shown

DRASTIC = 1.5
"""Drastically worse: at least so many times the ECE."""


def sweep_claims(results: Results, factors: Results | None = None) -> list[Claim]:
    """What the paper says along its three sweeps."""
    return [
        *(more_helps(results, sweep) for sweep in ("sources", "samples", "epsilon")),
        does_well_at(results, "sources", -1),
        does_well_at(results, "samples", -1),
        does_well_at(results, "epsilon", None),
        pooling_a_handful(results),
        one_source_with_many_samples(results),
        one_source_at_small_epsilon(results),
        small_epsilon_ruins(results),
        ece_t_at_large_epsilon(results, factors),
    ]


def does_well_at(results: Results, sweep: str, index: int | None) -> Claim:
    """Acc-T is on a par with the best of the paper's methods at the end, or the middle, of a sweep."""
    name, statement = {
        "sources": (
            "Acc-T does well with many sources",
            "As sources grow in number Acc-T does well, even with few samples at each (Section 5).",
        ),
        "samples": (
            "Acc-T does well with many samples",
            "As samples grow in number Acc-T does well, given enough sources (Section 5).",
        ),
        "epsilon": (
            "Acc-T does well at mid-range ε",
            "At mid-range ε Acc-T works well (Section 5).",
        ),
    }[sweep]
    ends = along(results, sweep, -1)
    if ACC_T not in ends or len(ends) < 2:
        why = f"The study does not vary {sweep} for Acc-T beside another method."
        return Claim(name, statement, UNKNOWN, why)
    curve = results.curve(ACC_T, sweep)
    where = curve.middle if index is None else index
    if where is None:
        return Claim(name, statement, UNKNOWN, "The study has no finite ε.")
    means = along(results, sweep, where)
    second = best_of(means, but=ACC_T)
    best = sum(
        min(means, key=lambda m: results.curve(m, sweep, shift).ece[where]) == ACC_T
        for shift in results.perturbations
    )
    reading = (
        f"At {point(sweep, curve.x[where])} ({results.constants(sweep)}) its mean ECE is {means[ACC_T]}, "
        f"that of {second}, the best of the paper's others, {means[second]}; Acc-T is the best of them "
        f"at {best} of {len(results.perturbations)} perturbations (well: at most {ON_A_PAR:.0%} above the "
        f"best).{_our_one(results, sweep, where)}"
    )
    verdict = verdict_on_a_par(means[ACC_T], means[best_of(means)])
    return Claim(name, statement, verdict, reading)


def pooling_a_handful(results: Results) -> Claim:
    name = "Pooling beats one source that has a handful of rows"
    statement = (
        "Sending private answers to a calibrator is preferable if each source has only a handful "
        "of rows (Section 3)."
    )
    means = along(results, "samples", 0)
    if not {ACC_T, ONE} <= set(means):
        why = "Acc-T and one source were not both run along the number of samples."
        return Claim(name, statement, UNKNOWN, why)
    x = results.curve(ONE, "samples").x[0]
    reading = (
        f"At {point('samples', x)} ({results.constants('samples')}) Acc-T has a mean ECE of "
        f"{means[ACC_T]}, {ONE} {means[ONE]}.{_our_one(results, 'samples', 0)}"
    )
    return Claim(name, statement, verdict_of([means[ACC_T].below(means[ONE])]), reading)


def one_source_with_many_samples(results: Results) -> Claim:
    name = "One source is very good with many samples"
    statement = (
        "As the samples of a source grow towards infinity, one source alone works very well, since it "
        "needs no noise (Section 5)."
    )
    last = along(results, "samples", -1)
    exact = exact_means(results)
    if ONE not in last or not set(PRIVATE) & set(last):
        why = "One source was not run along the number of samples beside a private method."
        return Claim(name, statement, UNKNOWN, why)
    first = along(results, "samples", 0)[ONE]
    x = results.curve(ONE, "samples").x
    private = {m: mean for m, mean in last.items() if m in PRIVATE}
    best = best_of(private)
    reading = (
        f"{point('samples', x[0])} → {point('samples', x[-1])} ({results.constants('samples')}): {ONE} "
        f"{first} → {last[ONE]}; the best private method there is {best} with {private[best]}."
    )
    if not last[ONE].below(first) > 0:
        verdict = verdict_of([last[ONE].below(first)])
        return Claim(name, statement, verdict, f"{reading} More samples do not surely help it.")
    if exact is None:
        return Claim(name, statement, UNKNOWN, f"{reading} These are not many samples.")
    many = exact["ece-t"]
    rows = fitted_rows(results)
    reading += (
        f" With half of all rows{'' if rows is None else f', {rows:,},'} (the exact fit by ECE) one "
        f"source has {many}."
    )
    return Claim(name, statement, verdict_of([many.below(private[best])]), reading)


def one_source_at_small_epsilon(results: Results) -> Claim:
    name = "One source is best at the smallest ε"
    statement = "At very low ε a single source, which needs no noise, works well (Section 5)."
    means = along(results, "epsilon", 0)
    if ONE not in means or len(means) < 2:
        return Claim(
            name, statement, UNKNOWN, "One source was not run along ε beside another method."
        )
    ours, second = means[ONE], best_of(means, but=ONE)
    best = sum(
        min(means, key=lambda m: results.curve(m, "epsilon", shift).ece[0]) == ONE
        for shift in results.perturbations
    )
    reading = (
        f"At {point('epsilon', results.curve(ONE, 'epsilon').x[0])} ({results.constants('epsilon')}) the "
        f"mean ECE is {ours} for {ONE} and {means[second]} for {second}, the best of the paper's others "
        f"(Brier {shown(ours.brier)} and {shown(means[second].brier)}); it is the best of the paper's "
        f"methods at {best} of {len(results.perturbations)} perturbations."
        f"{_our_one(results, 'epsilon', 0)}"
    )
    return Claim(name, statement, verdict_of([ours.below(means[second])]), reading)


def small_epsilon_ruins(results: Results) -> Claim:
    name = "The smallest ε harms every private method drastically"
    statement = "At very low ε all methods but one source worsen drastically (Section 5)."
    mine = ran(results, PRIVATE)
    middle = results.curve(mine[0], "epsilon").middle if mine and _has_epsilon(results) else None
    if not middle:
        why = "The study does not vary ε for the paper's private methods."
        return Claim(name, statement, UNKNOWN, why)
    x = results.curve(mine[0], "epsilon").x
    parts, signs = [], []
    for method in mine:
        low, mid = (figure_at(results.curve(method, "epsilon"), i) for i in (0, middle))
        signs.append(sign(low.ece - DRASTIC * mid.ece, float(np.hypot(low.se, DRASTIC * mid.se))))
        parts.append(f"{method}: {mid} → {low}, {low.ece / mid.ece:.2f} ×")
    reading = (
        f"Mean ECE, {point('epsilon', x[middle])} → {point('epsilon', x[0])} "
        f"({results.constants('epsilon')}; drastic: at least {DRASTIC:g} ×):"
    )
    return Claim(name, statement, verdict_of(signs), reading, tuple(parts))


def ece_t_at_large_epsilon(results: Results, factors: Results | None = None) -> Claim:
    name = "ECE-T is good at large ε"
    statement = (
        "At very high ε, where privacy asks for little noise, ECE-T can work well (Section 5; "
        "Appendix, ECE-T)."
    )
    means = along(results, "epsilon", -1)
    if ECE_T not in means or len(means) < 2:
        return Claim(name, statement, UNKNOWN, "ECE-T was not run along ε beside another method.")
    x = results.curve(ECE_T, "epsilon").x
    reading = f"At {point('epsilon', x[-1])}, the largest here, {_place(means)}."
    verdict = verdict_on_a_par(means[ECE_T], means[best_of(means)])
    free = _without_noise(factors)
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
    exact = exact_means(results)
    if exact is not None:
        reading += f" Fitted exactly, on a range without such ends, it has {exact['ece-t']}."
    reading += f" (Good: at most {ON_A_PAR:.0%} above the best.)"
    return Claim(name, statement, verdict, reading)


# --- more helps --------------------------------------------------------------------------


def more_helps(results: Results, sweep: str) -> Claim:
    noun = "A higher ε helps" if sweep == "epsilon" else f"More {sweep} help"
    statement = {
        "sources": "More sources make Acc-T do well (Section 5), and more data improve calibration "
        "(table of factors).",
        "samples": "More samples at each source make Acc-T do well, given enough sources "
        "(Section 5).",
        "epsilon": "Calibration degrades as ε decreases (Section 3; Section 5; Appendix, factors).",
    }[sweep]
    mine = ran(results, PRIVATE)
    name = f"{noun} every private method"
    if sweep not in results.sweeps or not mine or not results.perturbations:
        return Claim(
            name, statement, UNKNOWN, f"The study does not vary {sweep} for these methods."
        )
    parts, signs = [], []
    for method in mine:
        first, last = (figure_at(results.curve(method, sweep), i) for i in (0, -1))
        better, _ = _counts(results, method, sweep)
        signs.append(last.below(first))
        parts.append(
            f"{method}: {first} → {last}, better at {better} of {len(results.perturbations)} "
            "perturbations"
        )
    x = results.curve(mine[0], sweep).x
    ends = f"{point(sweep, x[0])} → {point(sweep, x[-1])}"
    reading = f"Mean ECE, {ends} ({results.constants(sweep)}):"
    return Claim(name, statement, verdict_of(signs), reading, tuple(parts))


def more_helps_table(results: Results) -> Table:
    """At how many perturbations the last point of a sweep is better than the first."""
    rows = []
    for method in results.variants:
        counts = [_counts(results, method, sweep) for sweep in results.sweeps]
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


def _counts(results: Results, method: Variant, sweep: str) -> tuple[int, int]:
    signs = []
    for shift in results.perturbations:
        curve = results.curve(method, sweep, shift)
        signs.append(figure_at(curve, -1).below(figure_at(curve, 0)))
    return signs.count(1), signs.count(-1)


# --- small things ------------------------------------------------------------------------


def _has_epsilon(results: Results) -> bool:
    return "epsilon" in results.sweeps and bool(results.perturbations)


def _place(means: dict[Variant, MeanEce]) -> str:
    order = sorted(means, key=lambda m: means[m].ece)
    best = order[0]
    return (
        f"its mean ECE is {means[ECE_T]}, place {order.index(ECE_T) + 1} of the paper's {len(order)}; "
        f"the best is {best} with {means[best]}"
    )


def _without_noise(factors: Results | None) -> dict[Variant, MeanEce]:
    """The paper's methods with their usual options, at ε = ∞ in a study of factors."""
    if factors is None or not _has_epsilon(factors):
        return {}
    means = {}
    names = [m.method for m in METHODS]
    for variant in defaults(factors.variants):
        curve = factors.curve(variant, "epsilon")
        if variant.method in names and np.isinf(curve.x[-1]):
            means[Variant(variant.method)] = figure_at(curve, -1)
    return means


def _our_one(results: Results, sweep: str, index: int) -> str:
    if OUR_ONE not in results.variants:
        return ""
    ours = figure_at(results.curve(OUR_ONE, sweep), index)
    return f" One source by accuracy, which the paper does not have: {ours}."
