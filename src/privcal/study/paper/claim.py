"""A claim of the paper, the verdict on it, and the rules by which verdicts are given.

A difference counts where it is larger than 1.96 of its standard errors over trials. The splits
are common to all methods and settings, which makes the true error of a difference smaller than
what is taken here. A verdict is about these perturbations, not about perturbations at large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from privcal.scores import FloatArray
from privcal.simulate.streams import stream
from privcal.simulate.variants import UNCALIBRATED, Variant
from privcal.study.grids import OWN_FITS
from privcal.study.paper.reported import METHODS
from privcal.study.results import Curve, Results
from privcal.study.table import shown

ClaimVerdict = Literal["holds", "does not hold", "cannot be told here"]
HOLDS: ClaimVerdict = "holds"
FAILS: ClaimVerdict = "does not hold"
UNKNOWN: ClaimVerdict = "cannot be told here"

ON_A_PAR = 0.10
"""On a par, or as good: at most this share above the best."""
SURE_ERRORS = 1.96
"""Standard errors from which on a difference counts."""
DRAWS = 200
"""Draws from which the standard error of a median, or of a count, is taken."""


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
    brier: float = float("nan")

    def below(self, other: MeanEce) -> int:
        """1 where this one is surely lower, -1 where surely higher, 0 where it cannot be told."""
        return sign(other.ece - self.ece, float(np.hypot(self.se, other.se)))

    def __str__(self) -> str:
        return shown(self.ece)


@dataclass(frozen=True)
class OverCells:
    """A median or mean over all (perturbation, setting) cells, with draws that tell its error."""

    value: float
    draws: FloatArray

    def __str__(self) -> str:
        return shown(self.value)

    def times(self, other: OverCells) -> OverCells:
        """How many times the other's value this one is."""
        return OverCells(self.value / other.value, self.draws / other.draws)

    @property
    def se(self) -> float:
        return float(self.draws.std(ddof=1))

    def above(self, level: float) -> int:
        return sign(self.value - level, self.se)

    def below(self, other: OverCells) -> int:
        return sign(other.value - self.value, float((other.draws - self.draws).std(ddof=1)))


def drawn_cells(results: Results, method: Variant) -> tuple[FloatArray, FloatArray]:
    """A method's ECE in all cells, and draws of it: (cells,) and (draws, cells).

    A draw moves each cell by its standard error over trials. All settings of a perturbation have
    their splits in common; what a method that asks sources errs by is mostly noise, drawn anew in
    each setting, so its cells move one by one. The cells of a method without noise move together.
    """
    cells, errors, shift = (results.cells(method, c) for c in ("ece_mean", "ece_se", "shift"))
    of_cell = np.arange(len(cells))
    if method.method in (UNCALIBRATED, *OWN_FITS):
        of_cell = np.unique(shift, return_inverse=True)[1]
    moves = stream(0, method).standard_normal((DRAWS, len(cells)))
    return cells, cells + moves[:, of_cell] * errors


def over_cells(
    results: Results, method: Variant, statistic: Callable[..., FloatArray]
) -> OverCells:
    """`np.median` or `np.mean` of a method's cells."""
    cells, draws = drawn_cells(results, method)
    return OverCells(float(statistic(cells)), statistic(draws, axis=1))


# --- verdicts ----------------------------------------------------------------------------


def sign(gap: float, error: float) -> int:
    """1 or -1 where the gap is surely above or below 0, 0 where it cannot be told."""
    if not abs(gap) > SURE_ERRORS * error:  # so written, a NaN tells nothing
        return 0
    return 1 if gap > 0 else -1


def verdict_of(signs: Sequence[int]) -> ClaimVerdict:
    """All as claimed: it holds; one surely against it: it does not."""
    if not signs:
        return UNKNOWN
    if min(signs) < 0:
        return FAILS
    return HOLDS if min(signs) > 0 else UNKNOWN


def verdict_on_share(margins: FloatArray, draws: FloatArray) -> ClaimVerdict:
    """In more than half of the cases: it holds; in no more: it does not; draws must agree.

    `margins` are above 0 in the cases that are as claimed, `draws` (draws, cases) what chance could
    have made of them.
    """
    if not margins.size or np.isnan(draws).any():
        return UNKNOWN
    shares = (draws > 0).mean(axis=1)
    if (margins > 0).mean() > 0.5:
        return HOLDS if np.quantile(shares, 0.025) > 0.5 else UNKNOWN
    return FAILS if np.quantile(shares, 0.975) <= 0.5 else UNKNOWN


def verdict_on_a_par(ours: MeanEce, best: MeanEce) -> ClaimVerdict:
    """Surely less than `ON_A_PAR` above the best: it holds; surely more: it does not."""
    room = (1 + ON_A_PAR) * best.ece - ours.ece
    return verdict_of([sign(room, float(np.hypot(ours.se, (1 + ON_A_PAR) * best.se)))])


# --- figures -----------------------------------------------------------------------------


def ran(results: Results, methods: Sequence[Variant]) -> list[Variant]:
    return [method for method in methods if method in results.variants]


def figure_at(curve: Curve, index: int) -> MeanEce:
    return MeanEce(float(curve.ece[index]), float(curve.ece_se[index]), float(curve.brier[index]))


def best_of(means: Mapping[Variant, MeanEce], but: Variant | None = None) -> Variant:
    """The method of the lowest mean, but for one."""
    return min((m for m in means if m != but), key=lambda m: means[m].ece)


def along(results: Results, sweep: str, index: int) -> dict[Variant, MeanEce]:
    """The paper's methods at one point of a sweep; none where the study has no such sweep."""
    if sweep not in results.sweeps or not results.perturbations:
        return {}
    return {m: figure_at(results.curve(m, sweep), index) for m in ran(results, METHODS)}


def by_how_much(ours: float, other: float) -> str:
    share = ours / other - 1
    return f"{abs(share):.0%} {'below' if share < 0 else 'above'}"
