"""What a study found of a claim: its figures with their errors, and the rules for a verdict.

A difference counts where it is larger than 1.96 of its standard errors over trials. The splits
are common to all methods and settings, which makes the true error of a difference smaller than
what is taken here. A verdict is about these perturbations, not about perturbations at large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from privcal.lab.study.grids import OWN_FITS
from privcal.lab.study.paper import METHODS
from privcal.lab.study.results import Curve, Results, point, shown
from privcal.planning.simulate.splits import stream
from privcal.planning.simulate.variants import UNCALIBRATED, Variant
from privcal.trusted.scores import FloatArray

ClaimVerdict = Literal["holds", "does not hold", "cannot be told here"]
HOLDS: ClaimVerdict = "holds"
FAILS: ClaimVerdict = "does not hold"
UNKNOWN: ClaimVerdict = "cannot be told here"


class Finding(NamedTuple):
    """What a check found."""

    verdict: ClaimVerdict
    reading: str
    """What the data say, in figures."""
    details: Sequence[str] = ()
    """The same for each method, where it is about several."""


class Untold(Exception):
    """Why a study cannot tell."""


Check = Callable[..., Finding]
CHECKS: dict[str, Check] = {}
"""Functions of the study, of a study of factors (either may be None) and of a claim's options."""


def check(function: Check) -> Check:
    """Register a check under its name, which claims.toml uses."""
    CHECKS[function.__name__] = function
    return function


def need(there: object, why: str) -> None:
    if not there:
        raise Untold(why)


# --- Figures and their errors ---------------------------------------------------------------------

ON_A_PAR = 0.10
"""On a par, or as good: at most this share above the best."""
SURE_ERRORS = 1.96
"""Standard errors from which on a difference counts."""
DRAWS = 200
"""Draws from which the standard error of a median, or of a count, is taken."""


@dataclass(frozen=True)
class MeanEce:
    """A mean over perturbations, its standard error, and the Brier score beside it."""

    value: float
    se: float
    brier: float = float("nan")

    def below(self, other: MeanEce) -> int:
        """1 where this one is surely lower, -1 where surely higher, 0 where it cannot be told."""
        return sign(other.value - self.value, float(np.hypot(self.se, other.se)))

    def rise(self, base: MeanEce) -> MeanEce:
        """How much this one is above another."""
        return MeanEce(self.value - base.value, float(np.hypot(self.se, base.se)))

    def __str__(self) -> str:
        return shown(self.value)


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


def over_cells(results: Results, method: Variant, average: str) -> OverCells:
    """The median or mean of a method's cells."""
    cells, draws = drawn_cells(results, method)
    statistic = getattr(np, average)
    return OverCells(float(statistic(cells)), statistic(draws, axis=1))


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
    room = (1 + ON_A_PAR) * best.value - ours.value
    return verdict_of([sign(room, float(np.hypot(ours.se, (1 + ON_A_PAR) * best.se)))])


def _worst(verdicts: Sequence[ClaimVerdict]) -> ClaimVerdict:
    return next((v for v in (FAILS, UNKNOWN) if v in verdicts), HOLDS)


def figure_at(curve: Curve, index: int) -> MeanEce:
    return MeanEce(float(curve.ece[index]), float(curve.ece_se[index]), float(curve.brier[index]))


def best_of(figures: Mapping[Variant, MeanEce | OverCells], but: Variant | None = None) -> Variant:
    """The method of the lowest figure, but for one."""
    return min((m for m in figures if m != but), key=lambda m: figures[m].value)


def ran(results: Results, methods: Sequence[Variant] = METHODS) -> list[Variant]:
    return [method for method in methods if method in results.variants]


def _compared(ours: float, other: float) -> str:
    share = ours / other - 1
    return f"{abs(share):.0%} {'below' if share < 0 else 'above'}"


def span(sweep: str, first: float, last: float) -> str:
    return f"{point(sweep, first)} → {point(sweep, last)}"
