"""The paper's claims about fits without privacy, and about the temperatures they find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from privcal.methods.search import PAPERS_SEARCH
from privcal.simulate.streams import stream
from privcal.simulate.variants import Variant
from privcal.study.paper.claim import (
    DRAWS,
    FAILS,
    HOLDS,
    ON_A_PAR,
    UNKNOWN,
    Claim,
    MeanEce,
    figure_at,
    sign,
    verdict_of,
    verdict_on_a_par,
    verdict_on_share,
)
from privcal.study.paper.reported import ONE, OUR_ONE
from privcal.study.results import Results, point
from privcal.study.table import shown

RANGE: tuple[float, float] = PAPERS_SEARCH["bounds"]
"""The paper's range of temperatures."""
LARGEST_NLL = 10.0
"""The paper's sensitivity of the NLL."""
NO_FITS = "This study has no exact fits."


def without_privacy_claims(results: Results, factors: Results | None = None) -> list[Claim]:
    """What the paper says of fits without privacy."""
    return [
        acc_t_on_a_par(results),
        often_better(results, "acc-t", "Acc-T", "generally"),
        often_better(results, "ece-t", "ECE-T", "often"),
        ece_t_very_good(results),
        least_harmed_by_few_rows(results),
        range_holds_the_optimum(results, factors),
        largest_nll(results),
    ]


def acc_t_on_a_par(results: Results) -> Claim:
    name = "Acc-T is on a par without privacy"
    statement = (
        "Without privacy and with plenty of data, matching accuracy does about as well as minimising "
        "the ECE itself (Sections 1 and 4; Appendix, experiments without privacy)."
    )
    exact = exact_means(results)
    if exact is None:
        return Claim(name, statement, UNKNOWN, NO_FITS)
    ours = exact["acc-t"]
    best = min((exact[m] for m in ("nll-t", "ece-t")), key=lambda f: f.ece)
    reading = (
        f"Exact fits, mean ECE: Acc-T {ours}, ECE-T {exact['ece-t']}, NLL-T {exact['nll-t']} (Brier "
        f"{shown(ours.brier)}, {shown(exact['ece-t'].brier)}, {shown(exact['nll-t'].brier)}; on a "
        f"par: at most {ON_A_PAR:.0%} above the better of the two).{_there(results)}"
    )
    return Claim(name, statement, verdict_on_a_par(ours, best), reading)


def often_better(results: Results, method: str, label: str, word: str) -> Claim:
    """An exact fit against that of the NLL, shift by shift."""
    name = f"{label} is {word} better than NLL-T without privacy"
    statement = {
        "acc-t": "Acc-T generally improves calibration compared to NLL-T (Appendix, experiments "
        "without privacy).",
        "ece-t": "It is often better to minimise the ECE itself than the NLL (Section 3).",
    }[method]
    if results.exact is None or not results.perturbations:
        return Claim(name, statement, UNKNOWN, NO_FITS)
    ours, nll = ({r["shift"]: _mean_ece([r]) for r in _fits(results, m)} for m in (method, "nll-t"))
    signs = [ours[s].below(nll[s]) for s in results.perturbations]
    gaps = np.array([nll[s].ece - ours[s].ece for s in results.perturbations])
    errors = np.array([np.hypot(nll[s].se, ours[s].se) for s in results.perturbations])
    draws = gaps + errors * stream(0, method).standard_normal((DRAWS, len(gaps)))
    lower = int((gaps > 0).sum())
    reading = (
        f"Of {len(signs)} perturbations {label}'s ECE is lower at {lower}, surely at {signs.count(1)}, and "
        f"surely higher at {signs.count(-1)} ({word}: at more than half)."
    )
    known = results.reported
    if known:
        each = [known.without_privacy.get(s) for s in results.perturbations]
        there = [fits[method] < fits["nll-t"] for fits in each if fits]
        reading += f" In the paper's table ({known.name}): lower at {sum(there)} of {len(there)}."
    return Claim(name, statement, verdict_on_share(gaps, draws), reading)


def ece_t_very_good(results: Results) -> Claim:
    name = "ECE-T is very good without privacy"
    statement = "ECE-T performs very well without privacy (Appendix, ECE-T)."
    exact = exact_means(results)
    if exact is None:
        return Claim(name, statement, UNKNOWN, NO_FITS)
    ours, best = exact["ece-t"], min(exact.values(), key=lambda f: f.ece)
    reading = (
        f"Exact fits, mean ECE: {ours}, against {exact['acc-t']} for Acc-T, {exact['nll-t']} for NLL-T "
        f"and {exact['base']} without (very good: at most {ON_A_PAR:.0%} above the best of them)."
    )
    return Claim(name, statement, verdict_on_a_par(ours, best), reading)


def least_harmed_by_few_rows(results: Results) -> Claim:
    name = "Matching accuracy suffers least from few rows"
    statement = (
        "Acc-T has a lower worst-case variance, the degradation when less data are available, than "
        "methods that bin or use the NLL (Section 4)."
    )
    fits = {"accuracy": OUR_ONE, "NLL": Variant("one-source-nll"), "ECE": ONE}
    if (
        not set(fits.values()) <= set(results.variants)
        or "samples" not in results.sweeps
        or not results.perturbations
    ):
        why = "Needs one source fitted by accuracy, NLL and ECE, along the number of samples."
        return Claim(name, statement, UNKNOWN, why)
    rises, parts = {}, []
    for label, variant in fits.items():
        curve = results.curve(variant, "samples")
        few, many = figure_at(curve, 0), figure_at(curve, -1)
        rises[label] = MeanEce(few.ece - many.ece, float(np.hypot(few.se, many.se)))
        parts.append(f"by {label} ({variant}): {many} → {few}, a rise of {rises[label]}")
    x = curve.x
    reading = (
        f"One source without noise, mean ECE from {point('samples', x[-1])} to "
        f"{point('samples', x[0])}:"
    )
    signs = [rises["accuracy"].below(rises[other]) for other in ("NLL", "ECE")]
    return Claim(name, statement, verdict_of(signs), reading, tuple(parts))


def range_holds_the_optimum(results: Results, factors: Results | None = None) -> Claim:
    low, high = RANGE
    name = f"The optimal T always lies in [{low:g}, {high:g}]"
    statement = (
        f"T is searched for in [{low:g}, {high:g}], since the optimal temperature always seems to fall "
        "within this range (Appendix, temperature scaling)."
    )
    if results.exact is None or "temperature_mean" not in results.exact.columns:
        why = "This study has no exact fits with their temperatures."
        return Claim(name, statement, UNKNOWN, why)
    parts, signs = [], []
    for method, label in (("acc-t", "accuracy"), ("nll-t", "NLL")):
        rows = _fits(results, method, clean=True)
        outside, inside = [], []
        for r in rows:
            t, error = r["temperature_mean"], r["temperature_se"]
            # Within the range at both ends: surely, surely not, or it cannot be told.
            inside.append(min(sign(t - low, error), sign(high - t, error)))
            if not low <= t <= high:
                outside.append((t, f"{r['shift']} {t:.2f}"))
        listed = ", ".join(text for _, text in sorted(outside, reverse=True)) or "none"
        signs += inside
        parts.append(
            f"by {label}, outside at {len(outside)} of {len(rows)} shifts, surely at "
            f"{inside.count(-1)}: {listed}"
        )
    reading = "The optimal temperature (exact fits to halves of the rows, on T from 0.05 to 20):"
    parts += list(_wider_ranges(factors))
    return Claim(name, statement, verdict_of(signs), reading, tuple(parts))


def largest_nll(results: Results) -> Claim:
    name = f"The largest NLL is about {LARGEST_NLL:g}"
    statement = (
        f"The NLL's sensitivity is taken to be {LARGEST_NLL:g}, about the largest value seen (Appendix, "
        "temperature scaling)."
    )
    if results.exact is None or "largest_nll" not in results.exact.columns:
        return Claim(name, statement, UNKNOWN, "This study has no largest NLL.")
    largest = {r["shift"]: float(r["largest_nll"]) for r in _fits(results, "base", clean=True)}
    most = max(largest, key=largest.__getitem__)
    above = sum(value > LARGEST_NLL * (1 + ON_A_PAR) for value in largest.values())
    reading = (
        f"At T = 1 the largest NLL of any row is {largest[most]:.1f} ({most}), and it is above "
        f"{LARGEST_NLL * (1 + ON_A_PAR):g} at {above} of {len(largest)} shifts. At a lower T it is larger. "
        f"So each row is clipped to [0, {LARGEST_NLL:g}] here, which makes {LARGEST_NLL:g} a bound."
    )
    return Claim(name, statement, FAILS if above else HOLDS, reading)


# --- small things ------------------------------------------------------------------------


def exact_means(results: Results) -> dict[str, MeanEce] | None:
    """The means of the exact fits over perturbations, by their names."""
    if results.exact is None or not results.perturbations:
        return None
    methods = dict.fromkeys(results.exact["method"].to_list())
    return {method: _mean_ece(_fits(results, method)) for method in methods}


def fitted_rows(results: Results) -> int | None:
    """How many rows an exact fit had."""
    if results.exact is None or "rows" not in results.exact.columns:
        return None
    return int(results.exact["rows"].min())  # type: ignore[arg-type]


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


def _there(results: Results) -> str:
    known = results.reported
    if known is None:
        return ""
    common = [s for s in results.perturbations if s in known.without_privacy]
    means = [
        shown(float(np.mean([known.without_privacy[s][m] for s in common])))
        for m in ("acc-t", "ece-t", "nll-t")
        if common
    ]
    return f" In the paper: {', '.join(means)}." if means else ""


def _wider_ranges(factors: Results | None) -> Iterator[str]:
    """What other ranges do to the private methods, where a study of factors varies them."""
    if factors is None or "epsilon" not in factors.sweeps or not factors.perturbations:
        return
    varied = [v for v in factors.variants if "bounds" in v.names]
    for method in dict.fromkeys(v.method for v in varied):
        curves = {
            "[{:g}, {:g}]".format(*v.value("bounds")): factors.curve(v, "epsilon")
            for v in varied
            if v.method == method
        }
        middle = next(iter(curves.values())).middle
        if middle is None:
            return
        where = point("epsilon", next(iter(curves.values())).x[middle])
        figures = ", ".join(f"{b} {figure_at(c, middle)}" for b, c in curves.items())
        yield f"private {method} at {where}, {factors.constants('epsilon')}, by range: {figures}"
