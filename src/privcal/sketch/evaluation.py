"""How good the confidence is on the hidden rows, estimated from a sketch, with its uncertainty.

Everything here is computed from an answer already given, so it costs no further privacy; and
everything is an estimate. The error *after* recalibration is the expectation over what the
hidden rows may be like: reading it off the curve fitted to the same sketch would give nearly
zero by construction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from privcal.errors import InputError
from privcal.maps import LEFT_ALONE, CurveMap, check_may_leave
from privcal.metrics import bin_index, check_bins
from privcal.scores import FloatArray
from privcal.sketch.model import Posterior, sigmoid
from privcal.sketch.reader import SketchReader

_DRAWS = 2000
_FINER = 4
"""Steps from one point of the model's grid to the next, so that bins are cut finely."""


@dataclass(frozen=True)
class Estimate:
    """A posterior mean and a 95 % credible interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, draws: FloatArray) -> Estimate:
        """Mean and interval of draws from the posterior.

        A few draws far out, as of a ratio of two small numbers, may pull the mean out of the
        interval; it is then the end of it.
        """
        low, high = np.quantile(draws, [0.025, 0.975])
        return cls(float(np.clip(draws.mean(), low, high)), float(low), float(high))

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, eq=False)
class Band:
    """The estimated accuracy of rows by their score, with 95 % credible limits."""

    score: FloatArray
    """The scores, rising; everything else is given at each of them."""
    confidence: FloatArray
    """The model's own confidence, before the map."""
    after: FloatArray
    """The confidence after the map."""
    accuracy: FloatArray
    """The posterior mean of the accuracy."""
    low: FloatArray
    """The lower limit of the accuracy."""
    high: FloatArray
    """The upper limit of the accuracy."""
    share: FloatArray
    """The share of all rows around the score."""


def in_html(title: str, estimates: Mapping[str, Estimate], informative: bool) -> str:
    """Estimates as a notebook shows them."""
    from privcal.notebook import grid

    note = "Estimated under differential privacy; nothing here was measured."
    if not informative:
        note = f"The noise drowned the data: this is only what was believed beforehand. {note}"
    rows = [
        (name.replace("_", " "), f"{e.value:.3f}", f"{e.low:.3f} to {e.high:.3f}")
        for name, e in estimates.items()
    ]
    return grid(title, ("measure", "estimate", "95 % credible interval"), rows, note)


@dataclass(frozen=True, eq=False, repr=False)
class PrivateEvaluation:
    """Estimates under differential privacy: nothing here was measured on rows."""

    informative: bool
    """False where the noise drowned the data: these are only what was believed beforehand."""
    unchanged: float | None
    """The probability that nothing changed; None where that was not thought of."""
    unchanged_before: float | None
    """The same before anybody was asked."""
    left_alone: bool
    """Whether the map leaves the model as it is, because it may well be that nothing changed."""
    accuracy: Estimate
    confidence_before: Estimate
    confidence_after: Estimate
    ece_before: Estimate
    ece_after: Estimate
    brier_before: Estimate
    brier_after: Estimate
    band: Band

    def estimates(self) -> dict[str, Estimate]:
        """The estimates by name."""
        return {k: v for k, v in vars(self).items() if isinstance(v, Estimate)}

    def __repr__(self) -> str:
        return f"PrivateEvaluation(ECE {self.ece_before} before, {self.ece_after} after; estimated)"

    def _repr_html_(self) -> str:
        return in_html("Confidence on the hidden rows", self.estimates(), self.informative)

    def to_dict(self) -> dict[str, Any]:
        return {
            "clear": self.informative,
            "unchanged": self.unchanged,
            "unchanged_before": self.unchanged_before,
            "left_alone": self.left_alone,
            **{name: asdict(value) for name, value in self.estimates().items()},
            "reliability": {k: v.tolist() for k, v in vars(self.band).items()},
        }


def evaluate_privately(
    posterior: Posterior,
    reader: SketchReader,
    map: CurveMap | None = None,
    bins: int = 15,
    run: int = 0,
) -> PrivateEvaluation:
    """What a sketch says of the hidden rows before and after `map` (its own, by default)."""
    check_bins(bins)
    draws = drawn(posterior, reader, map, run)
    p, density, own, after = draws.p, draws.density, draws.own_drawn, draws.after
    return PrivateEvaluation(
        informative=draws.informative,
        unchanged=draws.unchanged,
        unchanged_before=draws.unchanged_before,
        left_alone=draws.left_alone,
        accuracy=Estimate.of((density * p).sum(axis=1)),
        confidence_before=Estimate.of((density * own).sum(axis=1)),
        confidence_after=Estimate.of(density @ after),
        ece_before=Estimate.of(_ece(density, p, own, bins)),
        ece_after=Estimate.of(_ece(density, p, after, bins)),
        brier_before=Estimate.of(brier(density, p, own)),
        brier_after=Estimate.of(brier(density, p, after)),
        band=Band(*draws.band()),
    )


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws from what is known of one run's hidden rows, on a fine grid of scores."""

    map: CurveMap
    grid: FloatArray
    own: FloatArray
    """What the model itself says at each score, before the map."""
    after: FloatArray
    """The same after the map."""
    p: FloatArray
    """In each draw: the share of the rows at a score for which it is so."""
    density: FloatArray
    """In each draw: the share of all rows at a score."""
    own_drawn: FloatArray
    """In each draw: what the model itself says, as far as that is known."""
    informative: bool
    unchanged: float | None
    unchanged_before: float | None

    @property
    def left_alone(self) -> bool:
        """Whether the map leaves the model as it is."""
        return str(self.map.provenance.get("note")).endswith(LEFT_ALONE)

    def band(self) -> tuple[FloatArray, ...]:
        """Score, before, after, mean of p, its 95 % limits and the share of rows, where there are any."""
        expected = self.density.mean(axis=0)
        limits = np.quantile(self.p, [0.025, 0.975], axis=0)
        mean = np.clip(self.p.mean(axis=0), *limits)  # as in `Estimate.of`
        shown = expected > 1e-3 * expected.max()
        everything = (self.grid, self.own, self.after, mean, *limits, expected)
        return tuple(values[shown] for values in everything)


def drawn(posterior: Posterior, reader: SketchReader, map: CurveMap | None, run: int = 0) -> Draws:
    """The draws by which `map` (the run's own, by default) is judged."""
    if map is None:
        map = reader.maps(posterior)[run]
    elif not isinstance(map, CurveMap) or map.temperature != reader.temperature:
        raise InputError(
            "only a curve over the same score can be judged by this sketch: one fitted with the "
            f"same public data, at temperature {reader.temperature:.6g}"
        )
    elif (event := getattr(map, "event", None)) != reader.event:
        ours, theirs = ("being right" if k is None else f"class {k}" for k in (reader.event, event))
        raise InputError(f"this sketch is about {ours} and the map about {theirs}")
    check_may_leave(map, "judged by a sketch, as if that were private; measure it on your own rows")
    frame = posterior.mixture.frame
    rng = np.random.default_rng(0)  # the same sketch gives the same estimates twice
    eta, density = posterior.curves(run, _DRAWS, rng)
    points = np.linspace(0, frame.points - 1, (frame.points - 1) * _FINER + 1)
    grid, own = _finer(points, frame.grid), _finer(points, reader.own_confidence)
    p = sigmoid(_finer(points, eta))
    density = density @ _shares(points, frame.points)
    after = sigmoid(map.at(grid))
    unchanged = before = None
    if posterior.unchanged is not None:
        unchanged, before = float(posterior.unchanged[run]), posterior.mixture.unchanged
    off = reader.own_spread * (1 - (unchanged or 0.0) + rng.standard_normal((_DRAWS, 1)))
    own_drawn = own * np.exp(off) / (own * np.exp(off) + 1 - own)
    informative = bool(posterior.informative[run])
    return Draws(map, grid, own, after, p, density, own_drawn, informative, unchanged, before)


def _finer(points: FloatArray, values: FloatArray) -> FloatArray:
    """Values at fractional indices of their last axis, by interpolation."""
    left = np.minimum(points.astype(int), values.shape[-1] - 2)
    share = points - left
    return np.asarray(values[..., left] * (1 - share) + values[..., left + 1] * share)


def _shares(points: FloatArray, count: int) -> FloatArray:
    """How the rows at each of `count` points spread over the finer ones: around it, but all rows
    beyond an end of the grid are counted at that end and stay there."""
    shares = np.maximum(0, 1 - np.abs(points - np.arange(count)[:, None])) / _FINER
    shares[[0, -1]] = 0.0
    shares[0, 0] = shares[-1, -1] = 1.0
    return np.asarray(shares)


def _ece(density: FloatArray, p: FloatArray, confidence: FloatArray, bins: int) -> FloatArray:
    """The ECE of each draw; `confidence` is one for all of them or one for each."""
    gap = density * (p - confidence)
    cells = bin_index(np.broadcast_to(confidence, gap.shape).ravel(), bins).reshape(gap.shape)
    cells = cells + bins * np.arange(len(gap))[:, None]
    sums = np.bincount(cells.ravel(), gap.ravel(), bins * len(gap))
    return np.asarray(np.abs(sums.reshape(-1, bins)).sum(axis=1))


def brier(density: FloatArray, p: FloatArray, confidence: FloatArray) -> FloatArray:
    """The Brier score of each draw."""
    return np.asarray((density * (p * (1 - confidence) ** 2 + (1 - p) * confidence**2)).sum(axis=1))
