"""How good a risk is on the hidden rows, estimated from a sketch of an event, with its uncertainty.

As in `privcal.sketch.evaluation`, everything comes from an answer already given and costs no further
privacy, and everything is an estimate: of each draw from the posterior, a density of scores and
the share of rows at each score for which the event was so, the measure is computed as if it were
the truth.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from privcal.maps import CurveMap
from privcal.scores import FloatArray
from privcal.sketch.evaluation import Estimate, brier, drawn, in_html
from privcal.sketch.model import Posterior, sigmoid
from privcal.sketch.reader import SketchReader

WIDEST = 0.2
"""The widest 95 % interval of an AUROC that is shown. It rests on how scores lie between the knots, where
the model knows only that they lie smoothly: a wider one would be mostly what was believed beforehand."""

_MOST = 30.0
"""The largest log-odds in a ratio or a regression: a risk of 1 − 10⁻¹³, never of 0 or 1."""

_STEPS = 50


@dataclass(frozen=True, eq=False)
class RiskBand:
    """The estimated share of rows for which the event was so, by their score, with 95 % limits."""

    score: FloatArray
    """The scores, rising; everything else is given at each of them."""
    risk: FloatArray
    """The model's own risk, before the map."""
    after: FloatArray
    """The risk after the map."""
    outcome: FloatArray
    """The posterior mean of the share."""
    low: FloatArray
    """The lower limit of the share."""
    high: FloatArray
    """The upper limit of the share."""
    share: FloatArray
    """The share of all rows around the score."""


@dataclass(frozen=True, eq=False, repr=False)
class RiskEvaluation:
    """Estimates under differential privacy: nothing here was measured on rows."""

    event: int
    """The class whose risk it is."""
    informative: bool
    """False where the noise drowned the data: these are only what was believed beforehand."""
    unchanged: float | None
    """The probability that nothing changed; None where that was not thought of."""
    unchanged_before: float | None
    """The same before anybody was asked."""
    left_alone: bool
    """Whether the map leaves the model as it is, because it may well be that nothing changed."""
    prevalence: Estimate
    """The share of rows for which the event was so."""
    risk_before: Estimate
    """The mean risk, which should be the prevalence."""
    risk_after: Estimate
    observed_expected_before: Estimate
    """Prevalence over mean risk: 1 is right, above 1 the risk is too low."""
    observed_expected_after: Estimate
    intercept_before: Estimate
    """What the log-odds of every risk lack, on the whole (calibration in the large): 0 is right."""
    intercept_after: Estimate
    slope_before: Estimate
    """By what the log-odds are to be multiplied (logistic recalibration): 1 is right, and below 1 high
    risks are too high and low ones too low."""
    slope_after: Estimate
    brier_before: Estimate
    brier_after: Estimate
    auroc: Estimate | None
    """How well the risk puts rows with the event above those without; the map does not change it. None
    where its interval would be wider than `WIDEST`."""
    band: RiskBand

    def estimates(self) -> dict[str, Estimate]:
        """The estimates by name."""
        return {k: v for k, v in vars(self).items() if isinstance(v, Estimate)}

    def __repr__(self) -> str:
        return (
            f"RiskEvaluation(class {self.event}: observed / expected {self.observed_expected_before} "
            f"before, {self.observed_expected_after} after; estimated)"
        )

    def _repr_html_(self) -> str:
        title = f"The risk of class {self.event} on the hidden rows"
        return in_html(title, self.estimates(), self.informative)

    def to_dict(self) -> dict[str, Any]:
        return {
            "event": self.event,
            "clear": self.informative,
            "unchanged": self.unchanged,
            "unchanged_before": self.unchanged_before,
            "left_alone": self.left_alone,
            "auroc": None,
            **{name: asdict(value) for name, value in self.estimates().items()},
            "calibration": {k: v.tolist() for k, v in vars(self.band).items()},
        }


def evaluate_risk(
    posterior: Posterior,
    reader: SketchReader,
    map: CurveMap | None = None,
    run: int = 0,
) -> RiskEvaluation:
    """What a sketch of an event says of the hidden rows before and after `map` (its own, by default)."""
    assert reader.event is not None
    draws = drawn(posterior, reader, map, run)
    p, density, own, after = draws.p, draws.density, draws.own, draws.after
    prevalence = (density * p).sum(axis=1)
    before_odds, after_odds = log_odds(own), np.clip(draws.map.at(draws.grid), -_MOST, _MOST)
    area = Estimate.of(auroc(p, density))
    return RiskEvaluation(
        event=reader.event,
        informative=draws.informative,
        unchanged=draws.unchanged,
        unchanged_before=draws.unchanged_before,
        left_alone=draws.left_alone,
        prevalence=Estimate.of(prevalence),
        risk_before=Estimate.of(density @ own),
        risk_after=Estimate.of(density @ after),
        observed_expected_before=Estimate.of(prevalence / (density @ sigmoid(before_odds))),
        observed_expected_after=Estimate.of(prevalence / (density @ sigmoid(after_odds))),
        intercept_before=Estimate.of(intercept(p, density, before_odds)),
        intercept_after=Estimate.of(intercept(p, density, after_odds)),
        slope_before=Estimate.of(slope(p, density, before_odds)),
        slope_after=Estimate.of(slope(p, density, after_odds)),
        brier_before=Estimate.of(brier(density, p, own)),
        brier_after=Estimate.of(brier(density, p, after)),
        auroc=area if draws.informative and area.high - area.low <= WIDEST else None,
        band=RiskBand(*draws.band()),
    )


def log_odds(p: FloatArray) -> FloatArray:
    """Those of probabilities, within what a regression on them can bear."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.clip(np.log(p) - np.log1p(-p), -_MOST, _MOST))


def intercept(p: FloatArray, density: FloatArray, odds: FloatArray) -> FloatArray:
    """For each draw the a with which the mean of sigmoid(a + odds) is that of p."""
    return _regression(p, density, odds, free_slope=False)[:, 0]


def slope(p: FloatArray, density: FloatArray, odds: FloatArray) -> FloatArray:
    """For each draw the slope of a logistic regression of p on the log-odds."""
    return _regression(p, density, odds, free_slope=True)[:, 1]


def _regression(
    p: FloatArray, density: FloatArray, odds: FloatArray, free_slope: bool
) -> FloatArray:
    """Intercept and slope of each draw, by Newton's steps; the slope is 1 unless it is free.

    The log-likelihood is concave, and no outcome is certain, so there is one most probable value.
    """
    found = np.tile([0.0, 1.0], (len(p), 1))
    powers = np.stack([np.ones_like(odds), odds, odds**2], axis=1)
    for _ in range(_STEPS):
        fitted = sigmoid(found[:, :1] + found[:, 1:] * odds)
        gradient = (density * (p - fitted)) @ powers[:, :2]
        s0, s1, s2 = ((density * fitted * (1 - fitted)) @ powers).T
        if free_slope:
            determinant = np.maximum(s0 * s2 - s1**2, 1e-12)
            step = np.stack(
                [
                    s2 * gradient[:, 0] - s1 * gradient[:, 1],
                    s0 * gradient[:, 1] - s1 * gradient[:, 0],
                ],
                axis=1,
            )
            step /= determinant[:, None]
        else:
            step = gradient * [1.0, 0.0] / np.maximum(s0, 1e-12)[:, None]
        longest = np.abs(step).max(axis=1, keepdims=True)
        found += step / np.maximum(longest, 1.0)
        if longest.max() < 1e-9:
            break
    return found


def auroc(p: FloatArray, density: FloatArray) -> FloatArray:
    """For each draw: how probable it is that a row with the event has a higher score than one without.

    Equal scores count half.
    """
    yes, no = density * p, density * (1 - p)
    below = np.cumsum(no, axis=1) - no / 2
    return np.asarray((yes * below).sum(axis=1) / (yes.sum(axis=1) * no.sum(axis=1)))
