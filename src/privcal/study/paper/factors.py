"""The paper's table of what helps and what hurts, checked against a study of factors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from privcal.methods.search import PAPERS_SEARCH
from privcal.simulate.variants import Variant
from privcal.study.paper.claim import (
    FAILS,
    HOLDS,
    ON_A_PAR,
    UNKNOWN,
    Claim,
    ClaimVerdict,
    MeanEce,
    figure_at,
    verdict_of,
    verdict_on_a_par,
)
from privcal.study.paper.reported import ACC_T, METHODS, PRIVATE, directions
from privcal.study.results import Curve, Results, defaults, paper_first, point
from privcal.study.table import shown

STATEMENTS = {
    "data": "More data are good for calibration and for privacy.",
    "iterations": "More iterations help calibration without noise, and harm it once each answer "
    "must be made noisier.",
    "bins": "More bins help without privacy where rows are plenty, and harm with it.",
    "sensitivity": "A higher sensitivity costs privacy: more noise for the same ε.",
    "epsilon": "A higher ε is less privacy, and so less noise.",
    "search": "Golden section does better than a grid search.",
    "balance": "K is chosen so that granularity and noise are balanced; K = 5 throughout.",
}
ARROWS = {"up": "↗", "down": "↘", None: "–"}
K: int = PAPERS_SEARCH["iterations"]
"""The paper's number of iterations."""
VERY_MANY = 10_000
"""Private rows from which on a study can say no to a claim about very many of them."""
MISSING = "Needs a study of factors: `privcal study run --grid factors`."


def factor_claims(factors: Results | None) -> list[Claim]:
    """All of them; without a study of factors, none can be told."""
    return [
        _option_claim(factors, "More iterations help without noise", "iterations", +1, free=True),
        _option_claim(factors, "More iterations hurt with noise", "iterations", -1),
        _option_claim(factors, "More bins help without noise", "bins", +1, free=True),
        _option_claim(factors, "More bins hurt with noise", "bins", -1),
        _option_claim(factors, "Higher sensitivity hurts with noise", "clip", -1),
        _sweep_claim(factors, "More data help", "data", "sources"),
        _sweep_claim(factors, "A higher ε buys calibration with privacy", "epsilon", "epsilon"),
        _search_claim(factors),
        _balance_claim(factors),
        price_of_privacy(factors),
        least_price(factors),
        many_bins(factors),
    ]


def _statement(factor: str) -> str:
    arrows = directions().get(factor)
    if arrows is None:
        return f"{STATEMENTS[factor]} (Appendix, factors.)"
    calibration, privacy = ARROWS[arrows["calibration"]], ARROWS[arrows["privacy"]]
    return f"{STATEMENTS[factor]} (Table of factors: calibration {calibration}, privacy {privacy}.)"


def _option_claim(
    factors: Results | None, name: str, option: str, sign: int, free: bool = False
) -> Claim:
    """From the least to the greatest value of an option, ECE falls (+1) or rises (-1)."""
    factor = "sensitivity" if option == "clip" else option
    variants = _of_option(factors, option)
    if factors is None or not variants or not factors.perturbations:
        return Claim(name, _statement(factor), UNKNOWN, MISSING)
    parts, signs, where = [], [], ""
    for method in paper_first([v.method for v in variants]):
        mine = [v for v in variants if v.method == method]
        curves = [factors.curve(v, "epsilon") for v in mine]
        index = _index(curves[0], free)
        if index is None:
            return Claim(name, _statement(factor), UNKNOWN, "The study has no such ε.")
        where = point("epsilon", curves[0].x[index])
        figures = [figure_at(curve, index) for curve in curves]
        values = [v.text(option) for v in mine]
        best = min(range(len(figures)), key=lambda i: figures[i].ece)
        if Variant(method) in METHODS:  # the paper speaks for its own methods
            signs.append(sign * figures[-1].below(figures[0]))
        parts.append(
            f"{method}: {figures[0]} → {figures[-1]} (best {figures[best]} at {values[best]}; Brier "
            f"{shown(figures[0].brier)} → {shown(figures[-1].brier)})"
        )
    ends = f"{variants[0].text(option)} → {variants[-1].text(option)}"
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
    return Claim(name, _statement(factor), verdict, reading, tuple(parts))


def _sweep_claim(factors: Results | None, name: str, factor: str, sweep: str) -> Claim:
    if factors is None or sweep not in factors.sweeps or not factors.perturbations:
        return Claim(name, _statement(factor), UNKNOWN, MISSING)
    private = [v.method for v in PRIVATE]
    mine = [v for v in defaults(factors.variants) if v.method in private]
    if not mine:
        return Claim(
            name, _statement(factor), UNKNOWN, "None of the paper's private methods was run."
        )
    parts, signs = [], []
    for variant in mine:
        curve = factors.curve(variant, sweep)
        first, last = figure_at(curve, 0), figure_at(curve, int(np.isfinite(curve.x).sum()) - 1)
        signs.append(last.below(first))
        parts.append(f"{variant.method}: {first} → {last}")
    x = curve.x[np.isfinite(curve.x)]
    ends = f"{point(sweep, x[0])} → {point(sweep, x[-1])}"
    reading = f"Mean ECE, {ends} ({factors.constants(sweep)}):"
    return Claim(name, _statement(factor), verdict_of(signs), reading, tuple(parts))


def _search_claim(factors: Results | None) -> Claim:
    name = "Golden section beats grid search for ECE-T"
    both = {v.value("search"): v for v in _of_option(factors, "search")}
    if factors is None or not {"golden", "grid"} <= set(both) or not factors.perturbations:
        return Claim(name, _statement("search"), UNKNOWN, MISSING)
    golden, grid = (factors.curve(both[kind], "epsilon") for kind in ("golden", "grid"))
    signs = [figure_at(golden, i).below(figure_at(grid, i)) for i in range(len(golden.x))]
    parts = [
        f"{point('epsilon', x)}: {figure_at(golden, i)} against {figure_at(grid, i)}"
        for i, x in enumerate(golden.x)
    ]
    reading = (
        f"Golden section is surely better at {signs.count(1)} of {len(signs)} points and surely "
        f"worse at {signs.count(-1)}. Its mean ECE against grid search, {factors.constants('epsilon')}:"
    )
    return Claim(name, _statement("search"), verdict_of(signs), reading, tuple(parts))


def _balance_claim(factors: Results | None) -> Claim:
    name = f"K = {K} balances granularity and noise"
    variants = _of_option(factors, "iterations")
    if factors is None or not variants or not factors.perturbations:
        return Claim(name, _statement("balance"), UNKNOWN, MISSING)
    parts, verdicts = [], []
    for method in paper_first([v.method for v in variants]):
        mine = {v.value("iterations"): v for v in variants if v.method == method}
        curves = {k: factors.curve(v, "epsilon") for k, v in mine.items()}
        index = next(iter(curves.values())).middle
        if K not in mine or index is None:
            return Claim(
                name, _statement("balance"), UNKNOWN, f"The study has no K = {K} at some ε."
            )
        figures = {k: figure_at(curve, index) for k, curve in curves.items()}
        where = point("epsilon", curves[K].x[index])
        best = min(figures, key=lambda k: figures[k].ece)
        verdicts.append(verdict_on_a_par(figures[K], figures[best]))
        parts.append(f"{method}: {figures[K]} at K = {K}, best {figures[best]} at K = {best}")
    reading = (
        f"Mean ECE, {where}, {factors.constants('epsilon')} (balanced: at most {ON_A_PAR:.0%} above the "
        "best K):"
    )
    return Claim(name, _statement("balance"), _worst(verdicts), reading, tuple(parts))


def price_of_privacy(factors: Results | None) -> Claim:
    name = "Privacy harms every method"
    statement = "All recalibration algorithms degrade under differential privacy (Section 5)."
    prices = _prices(factors)
    if factors is None or not prices:
        return Claim(name, statement, UNKNOWN, MISSING)
    parts = [f"{v.method}: {free} → {noisy}" for v, (free, noisy) in prices.items()]
    reading = f"Mean ECE, {_noise_ends(factors)}:"
    signs = [free.below(noisy) for free, noisy in prices.values()]
    return Claim(name, statement, verdict_of(signs), reading, tuple(parts))


def least_price(factors: Results | None) -> Claim:
    name = "Privacy harms Acc-T least"
    statement = (
        "Acc-T has the highest adaptability to differential privacy, by the noise that must be added "
        "(Section 4)."
    )
    prices = _prices(factors)
    if factors is None or ACC_T not in prices or len(prices) < 2:
        return Claim(name, statement, UNKNOWN, MISSING)
    rises = {
        v: MeanEce(noisy.ece - free.ece, float(np.hypot(noisy.se, free.se)))
        for v, (free, noisy) in prices.items()
    }
    signs = [rises[ACC_T].below(rise) for v, rise in rises.items() if v != ACC_T]
    parts = [f"{v.method}: {rise}" for v, rise in rises.items()]
    reading = f"The mean ECE rises, {_noise_ends(factors)}, by:"
    return Claim(name, statement, verdict_of(signs), reading, tuple(parts))


def many_bins(factors: Results | None) -> Claim:
    name = "Many bins are good with very many samples"
    statement = (
        "Histogram binning and ECE-T may perform quite well with many bins when there are very many "
        "samples (Section 5)."
    )
    prices = _prices(factors)
    variants = [v for v in _of_option(factors, "bins") if Variant(v.method) in METHODS]
    if factors is None or not variants or ACC_T not in prices:
        return Claim(name, statement, UNKNOWN, MISSING)
    parts, verdicts = [], []
    for method in paper_first([v.method for v in variants]):
        most = max((v for v in variants if v.method == method), key=lambda v: v.value("bins"))
        figure = figure_at(factors.curve(most, "epsilon"), -1)
        verdicts.append(verdict_on_a_par(figure, prices[ACC_T][0]))
        parts.append(f"{method} with {most.text('bins')} bins: {figure}")
    rows = _rows(factors)
    reading = (
        f"With very many samples the noise no longer counts, so this is without noise: mean ECE of "
        f"Acc-T {prices[ACC_T][0]} (quite well: at most {ON_A_PAR:.0%} above it), "
    )
    verdict = _worst(verdicts)
    if verdict == FAILS and rows < VERY_MANY:
        verdict = UNKNOWN
        reading += f"though {rows:,} rows are not very many:"
    else:
        reading += f"{rows:,} private rows:"
    return Claim(name, statement, verdict, reading, tuple(parts))


def _prices(factors: Results | None) -> dict[Variant, tuple[MeanEce, MeanEce]]:
    """The paper's private methods with their usual options: without noise, and at the middle ε."""
    if factors is None or "epsilon" not in factors.sweeps or not factors.perturbations:
        return {}
    prices = {}
    for variant in defaults(factors.variants):
        curve = factors.curve(variant, "epsilon")
        free, middle = _index(curve, True), _index(curve, False)
        if Variant(variant.method) in PRIVATE and free is not None and middle is not None:
            figures = figure_at(curve, free), figure_at(curve, middle)
            prices[Variant(variant.method)] = figures
    return prices


def _noise_ends(factors: Results) -> str:
    curve = factors.curve(factors.variants[0], "epsilon")
    middle = _index(curve, False)
    assert middle is not None
    return f"no noise → {point('epsilon', curve.x[middle])} ({factors.constants('epsilon')})"


def _worst(verdicts: Sequence[ClaimVerdict]) -> ClaimVerdict:
    return next((v for v in (FAILS, UNKNOWN) if v in verdicts), HOLDS)


def _rows(factors: Results) -> int:
    fixed = factors.fixed("epsilon")
    return int(fixed["sources"] * fixed["samples"])


def _of_option(factors: Results | None, option: str) -> list[Variant]:
    return [] if factors is None else [v for v in factors.variants if option in v.names]


def _index(curve: Curve, free: bool) -> int | None:
    """Where along ε to look: without noise, or the middle of the ε there are."""
    if not free:
        return curve.middle
    infinite = np.flatnonzero(np.isinf(curve.x))
    return int(infinite[0]) if len(infinite) else None
