"""The paper's table of what helps and what hurts, checked against a study of factors."""

from __future__ import annotations

import numpy as np

from privcal.simulate.variants import Variant
from privcal.study.paper.claims import UNKNOWN, Claim, figure_at, verdict_of
from privcal.study.paper.reported import METHODS, PRIVATE, directions
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
}
ARROWS = {"up": "↗", "down": "↘", None: "–"}
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
    if option == "bins" and free:
        fixed = factors.fixed("epsilon")
        rows = int(fixed["sources"] * fixed["samples"])
        reading = f"The paper speaks of a lot of data; here are {rows:,} private rows. {reading}"
    return Claim(name, _statement(factor), verdict_of(signs), reading, tuple(parts))


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


def _of_option(factors: Results | None, option: str) -> list[Variant]:
    return [] if factors is None else [v for v in factors.variants if option in v.names]


def _index(curve: Curve, free: bool) -> int | None:
    """Where along ε to look: without noise, or the middle of the ε there are."""
    if not free:
        return curve.middle
    infinite = np.flatnonzero(np.isinf(curve.x))
    return int(infinite[0]) if len(infinite) else None
