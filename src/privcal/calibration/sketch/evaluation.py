"""How good a confidence or a risk is on the hidden rows, estimated from a sketch, with its uncertainty.

Everything here is computed from an answer already given, so it costs no further privacy; and
everything is an estimate: of each draw from the posterior, a density of scores and the share of
rows at each score for which the target came true, a measure is computed as if that were the truth.
The error *after* recalibration is the expectation over what the hidden rows may be like: reading
it off the curve fitted to the same sketch would give nearly zero by construction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from privcal.calibration.evaluation import MOST, auroc, intercept, log_odds, slope
from privcal.calibration.maps import LEFT_ALONE, CurveMap, check_may_leave, sigmoid
from privcal.calibration.sketch.model import Posterior
from privcal.calibration.sketch.reader import SketchReader
from privcal.calibration.target import Target
from privcal.trusted.errors import InputError
from privcal.trusted.kernel import bin_index, check_bins
from privcal.trusted.scores import FloatArray

WIDEST = 0.2
"""The widest 95 % interval of an AUROC that is shown. It rests on how scores lie between the knots, where
the model knows only that they lie smoothly: a wider one would be mostly what was believed beforehand."""

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
    """The estimated share of rows for which the target came true, by their score, with 95 % credible limits."""

    score: FloatArray
    """The scores, rising; everything else is given at each of them."""
    own: FloatArray
    """The model's own confidence or risk, before the map."""
    after: FloatArray
    """The same after the map."""
    observed: FloatArray
    """The posterior mean of the share: the accuracy, or how often the event was so."""
    low: FloatArray
    """The lower limit of the share."""
    high: FloatArray
    """The upper limit of the share."""
    share: FloatArray
    """The share of all rows around the score."""


@dataclass(frozen=True, eq=False, repr=False)
class Estimates:
    """Estimates under differential privacy: nothing here was measured on rows."""

    informative: bool
    """False where the noise drowned the data: these are only what was believed beforehand."""
    unchanged: float | None
    """The probability that nothing changed; None where that was not thought of."""
    unchanged_before: float | None
    """The same before anybody was asked."""
    left_alone: bool
    """Whether the map leaves the model as it is, because it may well be that nothing changed."""
    band: Band

    _words: ClassVar[dict[str, str]]
    """What each measure is called, by its name."""
    _first: ClassVar[tuple[str, str]]
    """The measure that says most, and what a line calls it."""
    _in_json: ClassVar[tuple[str, str]]
    """What the band is called there, and the share in it."""

    @property
    def about(self) -> Target:
        """What the confidence or the risk is the probability of."""
        return Target()

    def estimates(self) -> dict[str, Estimate]:
        """The estimates by name."""
        return {k: v for k, v in vars(self).items() if isinstance(v, Estimate)}

    def measures(self) -> list[tuple[str, Estimate, Estimate | None]]:
        """(measure in words, before, after); one value where the map changes nothing."""
        found = self.estimates()
        both = [
            (words.format(self.about.event_name), found.get(f"{name}_before", found.get(name)), found.get(f"{name}_after"))
            for name, words in self._words.items()
        ]  # fmt: skip
        return [(words, before, after) for words, before, after in both if before is not None]

    def __repr__(self) -> str:
        before, after = (getattr(self, f"{self._first[0]}_{when}") for when in ("before", "after"))
        of = "" if self.about.event is None else f"class {self.about.event_name}: "
        return (
            f"{type(self).__name__}({of}{self._first[1]} {before} before, {after} after; estimated)"
        )

    def _repr_html_(self) -> str:
        from privcal.data.html import grid

        note = "Estimated under differential privacy; nothing here was measured."
        if not self.informative:
            note = f"The noise drowned the data: this is only what was believed beforehand. {note}"
        rows = [
            (name.replace("_", " "), f"{e.value:.3f}", f"{e.low:.3f} to {e.high:.3f}")
            for name, e in self.estimates().items()
        ]
        header = ("measure", "estimate", "95 % credible interval")
        about = f"The risk{of}" if (of := self.about.of_class) else "Confidence"
        return grid(f"{about} on the hidden rows", header, rows, note)

    def to_dict(self) -> dict[str, Any]:
        """The values by name, as `--json` prints them."""
        facts: dict[str, Any] = {
            name: asdict(value) if isinstance(value, Estimate) else value
            for name, value in vars(self).items()
        }
        band = vars(facts.pop("band"))
        called, observed = self._in_json
        names = {"own": self.about.claim, "observed": observed}
        return {
            "clear": facts.pop("informative"),
            **facts,
            called: {names.get(name, name): values.tolist() for name, values in band.items()},
        }


@dataclass(frozen=True, eq=False, repr=False)
class PrivateEvaluation(Estimates):
    """Estimates under differential privacy: nothing here was measured on rows."""

    accuracy: Estimate
    confidence_before: Estimate
    confidence_after: Estimate
    ece_before: Estimate
    ece_after: Estimate
    brier_before: Estimate
    brier_after: Estimate

    # No prediction changes, so accuracy has one value.
    _words: ClassVar = {
        "accuracy": "accuracy",
        "confidence": "mean confidence",
        "ece": "ECE",
        "brier": "Brier",
    }
    _first = "ece", "ECE"
    _in_json = "reliability", "accuracy"


@dataclass(frozen=True, eq=False, repr=False)
class RiskEvaluation(Estimates):
    """Estimates under differential privacy: nothing here was measured on rows."""

    event: int
    """The class whose risk it is, counted from 0."""
    event_name: str
    """What it is called: its number, where classes have no names."""
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

    _words: ClassVar = {
        "prevalence": "how often it was class {}",
        "risk": "mean risk",
        "observed_expected": "observed / expected (1 is right)",
        "intercept": "calibration intercept (0 is right)",
        "slope": "calibration slope (1 is right)",
        "brier": "Brier",
        "auroc": "AUROC",
    }
    _first = "observed_expected", "observed / expected"
    _in_json = "calibration", "outcome"

    @property
    def about(self) -> Target:
        return Target(self.event, self.event_name)


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
    p, density, both = draws.p, draws.density, (draws.own_drawn, draws.after)
    return PrivateEvaluation(
        **draws.facts(),
        accuracy=Estimate.of((density * p).sum(axis=1)),
        **_twice("confidence", lambda c: _mean(density, c), both),
        **_twice("ece", lambda c: _ece(density, p, c, bins), both),
        **_twice("brier", lambda c: _brier(density, p, c), both),
    )


def evaluate_risk(
    posterior: Posterior,
    reader: SketchReader,
    map: CurveMap | None = None,
    run: int = 0,
) -> RiskEvaluation:
    """What a sketch of an event says of the hidden rows before and after `map` (its own, by default)."""
    draws = drawn(posterior, reader, map, run)
    p, density, risks = draws.p, draws.density, (draws.own, draws.after)
    odds = log_odds(draws.own), np.clip(draws.map.at(draws.grid), -MOST, MOST)
    prevalence = (density * p).sum(axis=1)
    area = Estimate.of(auroc(p, density))
    return RiskEvaluation(
        **draws.facts(),
        **vars(draws.map.about),
        prevalence=Estimate.of(prevalence),
        **_twice("risk", lambda c: density @ c, risks),
        **_twice("observed_expected", lambda s: prevalence / (density @ sigmoid(s)), odds),
        **_twice("intercept", lambda s: intercept(p, density, s), odds),
        **_twice("slope", lambda s: slope(p, density, s), odds),
        **_twice("brier", lambda c: _brier(density, p, c), risks),
        auroc=area if draws.informative and area.high - area.low <= WIDEST else None,
    )


def _twice(
    name: str, measure: Callable[[FloatArray], FloatArray], both: tuple[FloatArray, FloatArray]
) -> dict[str, Any]:
    """A measure of what is claimed before and after the map."""
    return {
        f"{name}_{when}": Estimate.of(measure(claimed))
        for when, claimed in zip(("before", "after"), both, strict=True)
    }


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

    def facts(self) -> dict[str, Any]:
        """What is known of the run whatever is measured."""
        return {
            "informative": self.informative,
            "unchanged": self.unchanged,
            "unchanged_before": self.unchanged_before,
            "left_alone": self.left_alone,
            "band": self.band(),
        }

    def band(self) -> Band:
        """The share of rows for which it is so, at the scores where there are any rows."""
        expected = self.density.mean(axis=0)
        limits = np.quantile(self.p, [0.025, 0.975], axis=0)
        mean = np.clip(self.p.mean(axis=0), *limits)  # as in `Estimate.of`
        shown = expected > 1e-3 * expected.max()
        everything = (self.grid, self.own, self.after, mean, *limits, expected)
        return Band(*(values[shown] for values in everything))


def drawn(posterior: Posterior, reader: SketchReader, map: CurveMap | None, run: int = 0) -> Draws:
    """The draws by which `map` (the run's own, by default) is judged."""
    if map is None:
        map = reader.maps(posterior)[run]
    elif not isinstance(map, CurveMap) or map.temperature != reader.temperature:
        raise InputError(
            "only a curve over the same score can be judged by this sketch: one fitted with the "
            f"same public data, at temperature {reader.temperature:.6g}"
        )
    elif map.about != reader.about:
        ours, theirs = (
            str(about).removeprefix("the risk of ") for about in (reader.about, map.about)
        )
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


def _mean(density: FloatArray, confidence: FloatArray) -> FloatArray:
    """The mean confidence of each draw; it is one for all of them or one for each."""
    return density @ confidence if confidence.ndim == 1 else (density * confidence).sum(axis=1)


def _brier(density: FloatArray, p: FloatArray, confidence: FloatArray) -> FloatArray:
    """The Brier score of each draw."""
    return np.asarray((density * (p * (1 - confidence) ** 2 + (1 - p) * confidence**2)).sum(axis=1))
