"""The paper's table of what helps and what hurts: its claims, checked against a study of factors."""

from __future__ import annotations

import numpy as np

from privcal.lab.study.paper import ACC_T, METHODS, PRIVATE
from privcal.lab.study.results import Curve, Results, defaults, paper_first, point, shown
from privcal.lab.study.verdict import (
    FAILS,
    ON_A_PAR,
    UNKNOWN,
    Finding,
    MeanEce,
    Untold,
    _worst,
    check,
    figure_at,
    need,
    span,
    verdict_of,
    verdict_on_a_par,
)
from privcal.planning.simulate.variants import Variant

VERY_MANY = 10_000
"""Private rows from which on a study can say no to a claim about very many of them."""
MISSING = "Needs a study of factors: `privcal study run --grid factors`."


@check
def option(_: object, factors: Results | None, option: str, free: bool) -> Finding:
    """From the least to the greatest value of an option, ECE falls without noise, and rises with it."""
    factors = _given(factors)
    varied = _of_option(factors, option)
    need(varied, MISSING)
    parts, signs, where = [], [], ""
    for method, mine in by_method(factors, option):
        curves, values = [c for _, c in mine], [v.text(option) for v, _ in mine]
        index = _index(curves[0], free)
        if index is None:
            raise Untold("The study has no such ε.")
        where = point("epsilon", curves[0].x[index])
        figures = [figure_at(curve, index) for curve in curves]
        best = min(range(len(figures)), key=lambda i: figures[i].value)
        if Variant(method) in METHODS:  # the paper speaks for its own methods
            signs.append((1 if free else -1) * figures[-1].below(figures[0]))
        parts.append(
            f"{method}: {figures[0]} → {figures[-1]} (best {figures[best]} at {values[best]}; Brier "
            f"{shown(figures[0].brier)} → {shown(figures[-1].brier)})"
        )
    ends = f"{varied[0].text(option)} → {varied[-1].text(option)}"
    reading = f"Mean ECE, {option} {ends}, {where}, {factors.constants('epsilon')}:"
    verdict = verdict_of(signs)
    if option == "bins" and free:
        reading = f"With {_rows(factors):,} private rows. {reading}"
        if verdict == FAILS and _rows(factors) < VERY_MANY:
            verdict = UNKNOWN
            reading = (
                "The paper says so of a lot of data, and the opposite below some threshold, which may "
                f"lie above this study. {reading}"
            )
    return Finding(verdict, reading, parts)


@check
def factor_helps(_: object, factors: Results | None, sweep: str) -> Finding:
    factors = _given(factors)
    need(sweep in factors.sweeps, MISSING)
    mine = [v for v in defaults(factors.variants) if v.method in [p.method for p in PRIVATE]]
    need(mine, "None of the paper's private methods was run.")
    parts, signs = [], []
    for variant in mine:
        curve = factors.curve(variant, sweep)
        x = curve.x[np.isfinite(curve.x)]
        first, last = figure_at(curve, 0), figure_at(curve, len(x) - 1)
        signs.append(last.below(first))
        parts.append(f"{variant.method}: {first} → {last}")
    reading = f"Mean ECE, {span(sweep, x[0], x[-1])} ({factors.constants(sweep)}):"
    return Finding(verdict_of(signs), reading, parts)


@check
def golden_section(_: object, factors: Results | None) -> Finding:
    factors = _given(factors)
    both = {v.value("search"): v for v in _of_option(factors, "search")}
    need({"golden", "grid"} <= set(both), MISSING)
    golden, grid = (factors.curve(both[kind], "epsilon") for kind in ("golden", "grid"))
    pairs = [(figure_at(golden, i), figure_at(grid, i)) for i in range(len(golden.x))]
    signs = [ours.below(other) for ours, other in pairs]
    parts = [
        f"{point('epsilon', x)}: {ours} against {other}"
        for x, (ours, other) in zip(golden.x, pairs, strict=True)
    ]
    reading = (
        f"Golden section is surely better at {signs.count(1)} of {len(signs)} points and surely "
        f"worse at {signs.count(-1)}. Its mean ECE against grid search, {factors.constants('epsilon')}:"
    )
    return Finding(verdict_of(signs), reading, parts)


@check
def balanced(_: object, factors: Results | None, k: int) -> Finding:
    factors = _given(factors)
    parts, verdicts, where = [], [], ""
    for method, mine in by_method(factors, "iterations"):
        curves = {v.value("iterations"): c for v, c in mine}
        index = next(iter(curves.values())).middle
        if k not in curves or index is None:
            raise Untold(f"The study has no K = {k} at some ε.")
        figures = {n: figure_at(curve, index) for n, curve in curves.items()}
        where = point("epsilon", curves[k].x[index])
        best = min(figures, key=lambda n: figures[n].value)
        verdicts.append(verdict_on_a_par(figures[k], figures[best]))
        parts.append(f"{method}: {figures[k]} at K = {k}, best {figures[best]} at K = {best}")
    need(parts, MISSING)
    reading = (
        f"Mean ECE, {where}, {factors.constants('epsilon')} (balanced: at most {ON_A_PAR:.0%} above the "
        "best K):"
    )
    return Finding(_worst(verdicts), reading, parts)


@check
def price_of_privacy(_: object, factors: Results | None) -> Finding:
    prices = _prices(factors)
    parts = [f"{v.method}: {free} → {noisy}" for v, (free, noisy) in prices.items()]
    signs = [free.below(noisy) for free, noisy in prices.values()]
    return Finding(verdict_of(signs), f"Mean ECE, {_noise_ends(factors)}:", parts)


@check
def least_price(_: object, factors: Results | None) -> Finding:
    prices = _prices(factors)
    need(ACC_T in prices and len(prices) > 1, MISSING)
    rises = {v: noisy.rise(free) for v, (free, noisy) in prices.items()}
    signs = [rises[ACC_T].below(rise) for v, rise in rises.items() if v != ACC_T]
    parts = [f"{v.method}: {rise}" for v, rise in rises.items()]
    return Finding(verdict_of(signs), f"The mean ECE rises, {_noise_ends(factors)}, by:", parts)


@check
def many_bins(_: object, factors: Results | None) -> Finding:
    prices, factors = _prices(factors), _given(factors)
    mine = [(m, v) for m, v in by_method(factors, "bins") if Variant(m) in METHODS]
    need(mine and ACC_T in prices, MISSING)
    parts, verdicts, acc_t = [], [], prices[ACC_T][0]
    for method, varied in mine:
        most, curve = max(varied, key=lambda pair: pair[0].value("bins"))
        figure = figure_at(curve, -1)
        verdicts.append(verdict_on_a_par(figure, acc_t))
        parts.append(f"{method} with {most.text('bins')} bins: {figure}")
    rows, verdict = f"{_rows(factors):,}", _worst(verdicts)
    said = f"{rows} private rows:"
    if verdict == FAILS and _rows(factors) < VERY_MANY:
        verdict, said = UNKNOWN, f"though {rows} rows are not very many:"
    reading = (
        f"With very many samples the noise no longer counts, so this is without noise: mean ECE of "
        f"Acc-T {acc_t} (quite well: at most {ON_A_PAR:.0%} above it), {said}"
    )
    return Finding(verdict, reading, parts)


def _given(factors: Results | None) -> Results:
    if factors is None or not factors.perturbations:
        raise Untold(MISSING)
    return factors


def _of_option(factors: Results, option: str) -> list[Variant]:
    return [v for v in factors.variants if option in v.names]


def by_method(factors: Results, option: str) -> list[tuple[str, list[tuple[Variant, Curve]]]]:
    """The variants of an option along ε, by their methods."""
    varied = [(v, factors.curve(v, "epsilon")) for v in _of_option(factors, option)]
    names = paper_first([v.method for v, _ in varied])
    return [(name, [pair for pair in varied if pair[0].method == name]) for name in names]


def at_noise(factors: Results | None, free: bool) -> dict[Variant, MeanEce]:
    """The paper's methods with their usual options: without noise, or at the middle ε."""
    if factors is None or "epsilon" not in factors.sweeps or not factors.perturbations:
        return {}
    found = {}
    for variant in defaults(factors.variants):
        curve = factors.curve(variant, "epsilon")
        index = _index(curve, free)
        if Variant(variant.method) in METHODS and index is not None:
            found[Variant(variant.method)] = figure_at(curve, index)
    return found


def _prices(factors: Results | None) -> dict[Variant, tuple[MeanEce, MeanEce]]:
    """The paper's private methods without noise, and at the middle ε."""
    free, noisy = (at_noise(factors, which) for which in (True, False))
    prices = {m: (free[m], noisy[m]) for m in free if m in PRIVATE and m in noisy}
    need(prices, MISSING)
    return prices


def _noise_ends(factors: Results | None) -> str:
    factors = _given(factors)
    curve = factors.curve(factors.variants[0], "epsilon")
    assert curve.middle is not None
    middle = point("epsilon", curve.x[curve.middle])
    return f"no noise → {middle} ({factors.constants('epsilon')})"


def _rows(factors: Results) -> int:
    fixed = factors.fixed("epsilon")
    return int(fixed["sources"] * fixed["samples"])


def _index(curve: Curve, free: bool) -> int | None:
    """Where along ε to look: without noise, or the middle of the ε there are."""
    if not free:
        return curve.middle
    infinite = np.flatnonzero(np.isinf(curve.x))
    return int(infinite[0]) if len(infinite) else None
