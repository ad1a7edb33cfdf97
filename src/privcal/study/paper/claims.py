"""The paper's claims about its methods, checked one by one against a study.

A difference counts where it is larger than 1.96 of its standard errors over trials. The splits
are common to all methods and settings, which makes the true error of a difference smaller than
what is taken here. The verdict is about these perturbations, not about perturbations at large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from privcal.simulate.variants import Variant
from privcal.study.paper.reported import ACC_T, ECE_T, METHODS, ONE, PRIVATE
from privcal.study.results import Curve, Results, point
from privcal.study.table import Table, shown

ClaimVerdict = Literal["holds", "does not hold", "cannot be told here"]
HOLDS: ClaimVerdict = "holds"
FAILS: ClaimVerdict = "does not hold"
UNKNOWN: ClaimVerdict = "cannot be told here"

ON_A_PAR = 0.10
"""On a par, or as good: at most this share above the best."""
SURE_ERRORS = 1.96
"""Standard errors from which on a difference counts."""


@dataclass(frozen=True)
class Claim:
    name: str
    statement: str
    """What the paper says."""
    verdict: ClaimVerdict
    reading: str
    """What the data say, in figures."""
    details: tuple[str, ...] = ()
    """The same for each method, where it is about several."""


@dataclass(frozen=True)
class MeanEce:
    """A mean over perturbations, its standard error, and the Brier score beside it."""

    ece: float
    se: float
    brier: float

    def below(self, other: MeanEce) -> int:
        """1 where this one is surely lower, -1 where surely higher, 0 where it cannot be told."""
        error = float(np.hypot(self.se, other.se))
        gap = other.ece - self.ece
        if not abs(gap) > SURE_ERRORS * error:  # so written, a NaN tells nothing
            return 0
        return 1 if gap > 0 else -1

    def __str__(self) -> str:
        return shown(self.ece)


def claims_of(results: Results) -> list[Claim]:
    """What the paper says about its methods."""
    return [
        best_in_the_median(results),
        one_source_at_small_epsilon(results),
        ece_t_at_large_epsilon(results),
        on_a_par_without_privacy(results),
        *(more_helps(results, sweep) for sweep in ("sources", "samples", "epsilon")),
    ]


# --- the comparison of methods -----------------------------------------------------------


def best_in_the_median(results: Results) -> Claim:
    name = "Acc-T is best in the median"
    statement = "Acc-T beats every other method by a wide margin (Section 5, Table 1)."
    ran = _ran(results, METHODS)
    if ACC_T not in ran or len(ran) < 2 or not results.perturbations:
        return Claim(
            name, statement, UNKNOWN, "Acc-T, or anything to compare it with, was not run."
        )
    median = {m: float(np.median(results.cells(m, "ece_mean"))) for m in results.variants}
    brier, aurc = (
        {m: float(np.median(results.cells(m, column))) for m in ran}
        for column in ("brier_mean", "aurc_mean")
    )
    others = sorted((m for m in ran if m != ACC_T), key=median.__getitem__)
    second = others[0]
    cells = np.array([results.cells(m, "ece_mean") for m in ran])
    wins = int((cells.argmin(axis=0) == ran.index(ACC_T)).sum())
    differ = shown(median[ACC_T]) != shown(median[second])
    verdict = (HOLDS if median[ACC_T] < median[second] else FAILS) if differ else UNKNOWN
    reading = (
        f"Median ECE of Acc-T {shown(median[ACC_T])}, "
        f"{_by_how_much(median[ACC_T], median[second])} {second} ({shown(median[second])}), the "
        f"best of the paper's other methods; it is the best of them in {wins} of {cells.shape[1]} "
        f"cells. Median Brier {shown(brier[ACC_T])} against {shown(brier[second])}, median AURC "
        f"{shown(aurc[ACC_T])} against {shown(aurc[second])}."
    )
    reported = results.reported
    if reported:
        theirs = {m: f["median"] for m, f in reported.under_privacy.items()}
        next_best = min((m for m in theirs if m != ACC_T), key=theirs.__getitem__)
        reading += (
            f" In the paper ({reported.name}): {shown(theirs[ACC_T])}, "
            f"{_by_how_much(theirs[ACC_T], theirs[next_best])} {next_best} "
            f"({shown(theirs[next_best])})."
        )
    winner = min(median, key=median.__getitem__)
    if winner not in ran:
        reading += f" Of all methods here {winner} is best ({shown(median[winner])})."
    return Claim(name, statement, verdict, reading)


def one_source_at_small_epsilon(results: Results) -> Claim:
    name = "One source is best at the smallest ε"
    statement = (
        "At very low ε a single source, which needs no noise, does well, while noise ruins all "
        "other methods (Section 5)."
    )
    means = _at_epsilon(results, 0)
    if means is None or ONE not in means or len(means) < 2:
        return Claim(
            name, statement, UNKNOWN, "One source was not run along ε beside another method."
        )
    ours = means[ONE]
    second = min((m for m in means if m != ONE), key=lambda m: means[m].ece)
    first_x = results.curve(ONE, "epsilon").x[0]
    best = sum(
        min(means, key=lambda m: results.curve(m, "epsilon", shift).ece[0]) == ONE
        for shift in results.perturbations
    )
    reading = (
        f"At ε = {first_x:g} ({results.constants('epsilon')}) the mean ECE is {ours} for one-source "
        f"and {means[second]} for {second}, the best of the paper's others (Brier {shown(ours.brier)} "
        f"and {shown(means[second].brier)}); one-source is the best of the paper's methods at {best} of "
        f"{len(results.perturbations)} perturbations."
    )
    return Claim(name, statement, verdict_of([ours.below(means[second])]), reading)


def ece_t_at_large_epsilon(results: Results) -> Claim:
    name = "ECE-T is good at large ε"
    statement = (
        "At very high ε, where privacy asks for little noise, ECE-T may do well (Section 5)."
    )
    means = _at_epsilon(results, -1)
    if means is None or ECE_T not in means or len(means) < 2:
        return Claim(name, statement, UNKNOWN, "ECE-T was not run along ε beside another method.")
    ours = means[ECE_T]
    rank = sorted(means, key=lambda m: means[m].ece)
    best = rank[0]
    x = results.curve(ECE_T, "epsilon").x
    x = x[np.isfinite(x)]
    reading = (
        f"At ε = {x.max():g}, the largest here, its mean ECE is {ours}, place "
        f"{rank.index(ECE_T) + 1} of the paper's {len(rank)}; the best is {best} with {means[best]} "
        f"(good: at most {ON_A_PAR:.0%} above the best)."
    )
    exact = _exact_means(results)
    if exact is not None:
        reading += (
            f" Fitted exactly it has {exact['ece-t']} against {exact['acc-t']} for Acc-T: what "
            "keeps it back is the price of privacy, not its aim."
            if ours.ece > 1.5 * exact["ece-t"].ece
            else f" Fitted exactly it has {exact['ece-t']}."
        )
    good = ours.ece <= (1 + ON_A_PAR) * means[best].ece
    return Claim(name, statement, HOLDS if good else FAILS, reading)


def on_a_par_without_privacy(results: Results) -> Claim:
    name = "Acc-T is on a par without privacy"
    statement = (
        "Without privacy and with plenty of data, matching accuracy does about as well as "
        "minimising the ECE itself (Section 4)."
    )
    exact = _exact_means(results)
    if exact is None:
        return Claim(name, statement, UNKNOWN, "This study has no exact fits.")
    ours = exact["acc-t"]
    best = min((exact[m] for m in ("nll-t", "ece-t")), key=lambda f: f.ece)
    reading = (
        f"Exact fits, mean ECE: Acc-T {ours}, ECE-T {exact['ece-t']}, NLL-T {exact['nll-t']} (Brier "
        f"{shown(ours.brier)}, {shown(exact['ece-t'].brier)}, {shown(exact['nll-t'].brier)}; on a "
        f"par: at most {ON_A_PAR:.0%} above the better of the two)."
    )
    reported = results.reported
    if reported:
        theirs = {
            m: float(np.mean([reported.without_privacy[s][m] for s in common]))
            for m in ("acc-t", "ece-t", "nll-t")
            if (common := [s for s in results.perturbations if s in reported.without_privacy])
        }
        if theirs:
            reading += " In the paper: " + ", ".join(shown(v) for v in theirs.values()) + "."
    return Claim(
        name, statement, HOLDS if ours.ece <= (1 + ON_A_PAR) * best.ece else FAILS, reading
    )


# --- more helps --------------------------------------------------------------------------


def more_helps(results: Results, sweep: str) -> Claim:
    noun = "A higher ε helps" if sweep == "epsilon" else f"More {sweep} help"
    statement = {
        "sources": "More sources make Acc-T do well (Section 5), and more data improve calibration "
        "(table of factors).",
        "samples": "More samples at each source make Acc-T do well, given enough sources "
        "(Section 5).",
        "epsilon": "Low ε, through its noise, harms every method that asks sources (Section 5).",
    }[sweep]
    ran = _ran(results, PRIVATE)
    name = f"{noun} every private method"
    if sweep not in results.sweeps or not ran or not results.perturbations:
        return Claim(
            name, statement, UNKNOWN, f"The study does not vary {sweep} for these methods."
        )
    parts, signs = [], []
    for method in ran:
        first, last = (figure_at(results.curve(method, sweep), i) for i in (0, -1))
        better, _ = _counts(results, method, sweep)
        signs.append(last.below(first))
        parts.append(
            f"{method}: {first} → {last}, better at {better} of {len(results.perturbations)} "
            "perturbations"
        )
    x = results.curve(ran[0], sweep).x
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


def verdict_of(signs: Sequence[int]) -> ClaimVerdict:
    """All as claimed: it holds; one surely against it: it does not."""
    if not signs:
        return UNKNOWN
    if min(signs) < 0:
        return FAILS
    return HOLDS if min(signs) > 0 else UNKNOWN


def figure_at(curve: Curve, index: int) -> MeanEce:
    return MeanEce(float(curve.ece[index]), float(curve.ece_se[index]), float(curve.brier[index]))


def _ran(results: Results, methods: Sequence[Variant]) -> list[Variant]:
    return [method for method in methods if method in results.variants]


def _at_epsilon(results: Results, end: int) -> dict[Variant, MeanEce] | None:
    """The paper's methods at an end of the sweep of ε."""
    if "epsilon" not in results.sweeps or not results.perturbations:
        return None
    return {m: figure_at(results.curve(m, "epsilon"), end) for m in _ran(results, METHODS)}


def _exact_means(results: Results) -> dict[str, MeanEce] | None:
    """The means of the exact fits, by their names."""
    if results.exact is None or not results.perturbations:
        return None
    rows = [r for r in results.exact.iter_rows(named=True) if r["shift"] in results.perturbations]
    means = {}
    for method in dict.fromkeys(r["method"] for r in rows):
        mine = [r for r in rows if r["method"] == method]
        error = float(np.sqrt(np.sum([r["ece_se"] ** 2 for r in mine]))) / len(mine)
        means[method] = MeanEce(
            float(np.mean([r["ece_mean"] for r in mine])),
            error,
            float(np.mean([r["brier_mean"] for r in mine])),
        )
    return means


def _by_how_much(ours: float, other: float) -> str:
    share = ours / other - 1
    return f"{abs(share):.0%} {'below' if share < 0 else 'above'}"
