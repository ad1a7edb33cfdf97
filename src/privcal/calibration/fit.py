"""Exact, non-private temperature fits: the no-privacy columns of the paper.

nll        maximum likelihood (NLL-T)
accuracy   mean confidence equal to accuracy (Acc-T)
ece        least expected calibration error (ECE-T)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from privcal.calibration.kernel import FAST
from privcal.calibration.metrics import ece
from privcal.data.scores import Scores
from privcal.trusted.checks import one_of
from privcal.trusted.errors import InputError
from privcal.trusted.kernel import check_temperature
from privcal.trusted.scores import FloatArray

Objective = Literal["nll", "accuracy", "ece"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)

SHIFT = "add 1 to all of them, which changes no result"
"""What to do with logits that look like probabilities and are none."""

TOLERANCE = 1e-6
"""The largest distance of a fitted temperature from the optimum."""

_WARM_ROWS = 2048
_WARM_UP = ((_WARM_ROWS // 8, 0.1), (_WARM_ROWS, 1e-3))
"""Rows of a sample, and how near to its best temperature one has to come."""

_COARSE_SIZE = 1 << 22
_ECE_SAMPLE = 1 << 18
_MAX_STEPS = 100


class OutsideBounds(UserWarning):
    """The best temperature lies outside the bounds; the nearest bound was returned."""


@dataclass(frozen=True)
class Fit:
    """The result of `fit_temperature`.

    Attributes
    ----------
    temperature
        The fitted temperature, within the bounds.
    objective
        "nll", "accuracy" or "ece".
    value
        The objective at that temperature: mean NLL, |accuracy − mean confidence|, or ECE.
    outside
        None; or the side of the bounds on which the optimum lies ("below", "above"); or "flat"
        where every temperature is as good.

    Examples
    --------
    >>> fit = privcal.Fit(temperature=1.5, objective="nll", value=0.4)
    >>> fit.message
    'temperature 1.500000 by nll'
    """

    temperature: float
    objective: str
    value: float
    outside: Literal["below", "above", "flat"] | None = None

    @property
    def message(self) -> str:
        """The fit in one sentence, for people."""
        if self.outside is None:
            return f"temperature {self.temperature:.6f} by {self.objective}"
        if self.outside == "flat":
            return f"every temperature is equally good by {self.objective}; nothing to fit"
        return (
            f"the best temperature by {self.objective} lies {self.outside} the bound "
            f"{self.temperature:g}, which was returned"
        )


LOCAL_BOUNDS = (0.5, 3.0)
"""The paper's range of temperatures, for an owner's own fit: on a handful of rows a wider one is no
better."""


def fit_local(scores: Scores, objective: Objective = "accuracy") -> Fit:
    """An owner's exact fit to its own rows, for its own use, within `LOCAL_BOUNDS`.

    Not private: the temperature depends on every row. Nothing is charged because nothing may leave.
    `outside` of the fit tells where the optimum lies beyond the bounds.
    """
    with warnings.catch_warnings():  # a bound is an ordinary result on a handful of rows
        warnings.simplefilter("ignore")
        return fit_anyhow(scores, objective, LOCAL_BOUNDS)


def fit_temperature(
    scores: Scores,
    objective: Objective = "nll",
    bounds: tuple[float, float] = (0.05, 20.0),
    bins: int = 15,
) -> Fit:
    """The exact temperature for some scores, to 1e-6, without any privacy.

    Mean NLL is convex in 1/T and |accuracy − mean confidence| unimodal, so those two are
    solved as roots of a monotone function by safeguarded Newton steps. ECE is neither: it
    jumps wherever a row changes bin. There a grid over log T is refined around its best
    points, which finds the least value on a grid of step 1e-6 around them, not a proof of
    global optimality.

    Parameters
    ----------
    scores
        n labelled rows that one may look at. One row is enough; no rows are an `InputError`, and so
        are logits that look like probabilities (from 0 to 1, with a sum of 1 in every row).
    objective
        What is best: "nll" (least mean negative log-likelihood), "accuracy" (mean confidence
        equal to accuracy) or "ece" (least ECE).
    bounds
        The least and the largest temperature, from 0.01 to 100.
    bins
        The number of equal-width bins of the ECE, from 1 to 1,000; the others have none.

    Returns
    -------
    Fit
        Where the optimum lies outside `bounds` (an accuracy of 1 would need T → 0), the nearest
        bound, with a `privcal.calibration.fit.OutsideBounds` warning. Where every temperature is as good,
        T = 1 or the bound nearest to it.

    Examples
    --------
    >>> scores = privcal.Scores(logits=[[2.0, 0.0]] * 4, labels=[0, 0, 0, 1])
    >>> fit = privcal.fit_temperature(scores, "accuracy")
    >>> round(fit.temperature, 4)  # the softmax of 2/T and 0 is the accuracy, 0.75
    1.8205
    """
    scores.outputs.need_logits(SHIFT)
    return fit_anyhow(scores, objective, bounds, bins)


def fit_anyhow(
    scores: Scores,
    objective: Objective = "nll",
    bounds: tuple[float, float] = (0.05, 20.0),
    bins: int = 15,
) -> Fit:
    """As `fit_temperature`, whatever the logits look like: a source does nothing else for that."""
    one_of("objective", objective, OBJECTIVES)
    lo, hi = (check_temperature(t) for t in bounds)
    if lo >= hi:
        raise InputError(f"bounds must be two temperatures, the lower first, not {bounds}")
    scores.outputs.need_all_classes("a temperature")
    if len(scores) == 0:
        raise InputError("there are no rows to fit")
    fit = (
        _fit_ece(scores, lo, hi, bins)
        if objective == "ece"
        else _fit_root(scores, objective, lo, hi)
    )
    if fit.outside:
        warnings.warn(fit.message, OutsideBounds, stacklevel=3)
    return fit


Outside = Literal["below", "above", "flat"] | None
Slope = Callable[[float, bool], tuple[float, float, float]]


def _fit_root(scores: Scores, objective: Objective, lo: float, hi: float) -> Fit:
    slope = _slope(scores, objective)
    outside: Outside
    if objective == "accuracy" and scores.correct.all():
        # Only T → 0 is confident enough, however soon a confidence rounds to 1.
        beta, value, outside = 1 / lo, slope(1 / lo, False)[0], "below"
    else:
        start = 1.0 / min(max(1.0, lo), hi)
        # Large data: solve for a few rows first, then for more, so that all are read only twice.
        for rows, tolerance in _WARM_UP:
            if len(scores) > 4 * rows:
                sample = _slope(scores.take(slice(None, None, len(scores) // rows)), objective)
                found, _, beyond = _solve(sample, 1 / hi, 1 / lo, start, tolerance)
                start = start if beyond else found
        coarse = len(scores) * scores.classes > _COARSE_SIZE
        beta, value, outside = _solve(slope, 1 / hi, 1 / lo, start, TOLERANCE, coarse)
    if objective == "accuracy" and outside is None:
        value = 0.0  # a root, not a minimum: met, to the tolerance
    if objective == "accuracy" and outside and slope(1 / hi, False)[2] == 0:
        outside = "flat"  # the confidence is the same at every temperature
    if outside == "flat":
        return Fit(min(max(1.0, lo), hi), objective, value, outside)
    # 1/(1/hi) need not be hi again.
    temperature = {"above": hi, "below": lo}.get(outside or "", min(max(1 / beta, lo), hi))
    return Fit(temperature, objective, value, outside)


def _slope(scores: Scores, objective: Objective) -> Slope:
    """The objective at β, a function that increases through 0 at its optimum, and the
    derivative of that function.

    nll: d(mean NLL)/dβ = mean(E[z] − z_label), whose derivative mean(Var[z]) is never negative.
    accuracy: mean confidence − accuracy; d(1/S0)/dβ = −E[z]/S0 is never negative as z ≤ 0.
    """
    accuracy = float(scores.correct.mean())
    label = float(scores.label_margin.mean())

    def slope(beta: float, coarse: bool) -> tuple[float, float, float]:
        sums: dict[int, tuple[float, float, float]] = {}  # by block, so that no order matters

        def collect(rows: slice, s0: FloatArray, mean: FloatArray, variance: FloatArray) -> None:
            if objective == "nll":
                terms = np.log(s0), mean, variance
            else:
                terms = np.zeros(1), 1 / s0, -mean / s0
            # A block has few rows; the sum over all blocks is taken in double precision.
            sums[rows.start] = (float(terms[0].sum()), float(terms[1].sum()), float(terms[2].sum()))

        FAST.for_moments(
            scores.outputs, beta, collect, scores.outputs.dtype if coarse else np.float64
        )
        log, first, second = np.sum([sums[k] for k in sorted(sums)], axis=0) / len(scores)
        if objective == "nll":
            return float(log - beta * label), float(first - label), float(second)
        return abs(float(first - accuracy)), float(first - accuracy), float(second)

    return slope


def _solve(
    slope: Slope, lo: float, hi: float, start: float, tolerance: float, coarse: bool = False
) -> tuple[float, float, Outside]:
    """The optimum in [lo, hi] to `tolerance` in T = 1/β, and the objective there.

    Newton steps on the increasing function, kept inside the bracket known so far; a bound is
    evaluated only when a step wants to cross it. Where Newton's steps are slow (the slope of
    separable rows falls off exponentially) every other step halves the bracket instead. With
    `coarse` the first looks are in single precision and only propose where to look next.

    Stops where a Newton step is below the tolerance and a tenth of the step before, or the next one
    would be far below it; or where the bracket is narrower than the tolerance.
    """
    below, above = lo, hi  # the root lies between these two, unless it is outside [lo, hi]
    seen_lo = seen_hi = False
    beta = start
    last = 0.0  # the size of Newton's last step; 0 after any other move
    for _ in range(3 if coarse else 0):
        _, g, dg = slope(beta, True)
        if not (dg > 0 and math.isfinite(g / dg)):
            break
        target = min(max(beta - g / dg, lo), hi)
        last, beta = abs(target - beta), target
        if last < 5e-3 * beta:
            break
    for count in range(_MAX_STEPS):
        value, g, dg = slope(beta, False)
        if not (math.isfinite(g) and math.isfinite(dg)):
            break
        if g == 0 and dg == 0 and beta > lo:
            # Nothing changes here, but it may where shares do not underflow.
            flat = slope(lo, False)[1:] == (0, 0)
            return (beta, value, "flat") if flat else (hi, value, "below")
        if g == 0:
            return beta, value, "flat" if dg == 0 else None
        if g < 0:
            if beta == hi:  # still increasing at the largest β: the optimal T is below
                return hi, value, "below"
            below, seen_lo = beta, True
        else:
            if beta == lo:
                return lo, value, "above"
            above, seen_hi = beta, True
        scale = tolerance * beta * beta / 4  # tolerance in T, as one in β
        if above - below <= scale:
            return beta, value, None
        step = -g / dg if dg > 0 else math.copysign(math.inf, -g)
        target = beta + step
        # Newton's steps shrink quadratically: after this one the next will be about step³ / last².
        ahead = abs(step) ** 3 / last**2 if 100 * abs(step) <= last else math.inf
        near = (abs(step) <= scale and 10 * abs(step) <= last) or ahead <= scale / 100
        if near and below < target < above:
            # The objective at the target, to third order in the step.
            return target, value + g * step + dg * step * step / 2, None
        if abs(step) < scale:  # near enough, if the sign changes within the tolerance
            target = beta + math.copysign(scale, step)
        last = abs(step)
        slow = count >= 8 and count % 2 == 0
        if target >= above or (slow and g < 0):
            last, target = 0.0, math.sqrt(below * above) if seen_hi else hi
        elif target <= below or slow:
            last, target = 0.0, math.sqrt(below * above) if seen_lo else lo
        beta = target
    raise RuntimeError(
        f"the temperature fit did not converge: after {_MAX_STEPS} steps T is between "
        f"{1 / above:g} and {1 / below:g}"
    )


def _fit_ece(scores: Scores, lo: float, hi: float, bins: int) -> Fit:
    # Large data: a sample of rows tells where to look, and all rows are measured only there.
    rows = max(_WARM_ROWS, _ECE_SAMPLE // scores.classes)
    sampled = len(scores) > 2 * rows
    first = scores.take(slice(None, None, len(scores) // rows)) if sampled else scores
    # Few rows make many narrow dips, and each look is cheap.
    points = int(np.clip(2**21 // (len(first) * scores.classes), 97, 2000))
    grid = np.geomspace(lo, hi, points)
    grid[0], grid[-1] = lo, hi
    coarse = {float(t): _ece_at(first, float(t), bins) for t in grid}
    seen = {} if sampled else dict(coarse)

    def value(temperature: float) -> float:
        if temperature not in seen:
            seen[temperature] = _ece_at(scores, temperature, bins)
        return seen[temperature]

    if np.ptp(list(coarse.values())) == 0 and value(lo) == value(hi):
        return Fit(min(max(1.0, lo), hi), "ece", value(hi), "flat")
    best = sorted(coarse, key=coarse.__getitem__)[: 3 + points // 100]
    if sampled:
        best = [min(best, key=value)]
    for centre in best:
        least, width = centre, math.log(grid[1] / grid[0])
        while least * width > TOLERANCE:
            near = least * np.exp(np.linspace(-width, width, 11))
            candidates = [float(t) for t in near if lo <= t <= hi]
            least = min([least, *candidates], key=value)
            width /= 5
    least = min(seen, key=seen.__getitem__)
    # A minimum at the very bound may have its optimum beyond it.
    outside: Outside = "below" if least == lo else "above" if least == hi else None
    return Fit(least, "ece", seen[least], outside)


def _ece_at(scores: Scores, temperature: float, bins: int) -> float:
    return ece(FAST.confidence(scores.outputs, temperature), scores.correct, bins)
