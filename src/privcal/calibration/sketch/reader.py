"""How a sketch is asked for and read: with clean labelled scores of the calibrator, or without."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from privcal.calibration.fit import fit_temperature
from privcal.calibration.kernel import FAST
from privcal.calibration.maps import LEFT_ALONE, ONE_KNOT, PRIOR_ONLY, CurveMap, RiskMap, sigmoid
from privcal.calibration.sketch import prior
from privcal.calibration.sketch.model import Mixture, Posterior
from privcal.calibration.sketch.prior import Frame
from privcal.calibration.target import Target
from privcal.data.scores import Scores
from privcal.trusted.errors import InputError
from privcal.trusted.kernel import MAX_TEMPERATURE, MIN_TEMPERATURE
from privcal.trusted.queries import EventHats, Hats
from privcal.trusted.scores import LEAST, BoolArray, FloatArray

MIN_PUBLIC = 50
"""Fewer clean rows say too little about a temperature."""

_BOUNDS = (MIN_TEMPERATURE, MAX_TEMPERATURE)
_KNOTS = 16
_OWN_SPREAD = 0.5
"""How far a shift moves the model's own log-odds of rows with equal scores, as a share of their
scatter among public rows: away from what the reference temperature made of them, because fewer
classes compete."""

_ELSEWHERE = 0.2
"""If fewer of the rows than this share are elsewhere, nearly all are around one knot."""

_KERNEL = 0.5
"""The width of the kernel with which the density of public scores is smoothed."""


@dataclass(frozen=True, eq=False)
class SketchReader:
    """What a sketch asks, and what its answer means: a model of the hidden rows.

    With public rows the temperature is the one that calibrates them, so nothing here changes
    when all logits are scaled. Without, it is 1 and the prior is wide.
    """

    mixture: Mixture
    temperature: float
    """The temperature at which the scores of rows are taken."""
    own_confidence: FloatArray
    """The confidence at T = 1 of rows with the scores of the model's grid."""
    event: int | None = None
    """The class whose risk it is about; None where it is about being correct."""
    fitted: Public | None = None
    """The public rows it was made with."""
    own_spread: float = 0.0
    """How far off `own_confidence` may be for rows unlike the public ones: a standard deviation in
    log-odds, and where something changed the mean as well."""

    @property
    def public(self) -> Scores | None:
        """The public rows' scores."""
        return None if self.fitted is None else self.fitted.scores

    @classmethod
    def of(
        cls,
        public: Scores | None = None,
        *,
        event: int | None = None,
        knots: tuple[float, ...] | None = None,
        unchanged: float | None = None,
        leave_alone: bool = False,
    ) -> SketchReader:
        """The reader for these public rows, which are fitted here, or for none.

        `knots` are those of the question, by default the finest. `unchanged` is the probability,
        before anybody is asked, that nothing changed.
        """
        if unchanged is None:
            if leave_alone:
                unchanged = prior.UNCHANGED_IN_USE
            elif public is not None:
                unchanged = prior.UNCHANGED_WITH_PUBLIC
            else:
                unchanged = 0.0 if event is None else prior.UNCHANGED_EVENT
        if leave_alone and unchanged == 0:
            raise InputError("leave_alone needs unchanged above 0: how probable it is beforehand")
        if knots is None:
            knots = prior.knots(public is not None, event is not None)
        if public is None:
            return _without_public(event, knots, unchanged, leave_alone)
        return Public.of(public, event).reader(knots, unchanged, leave_alone)

    def reads(
        self,
        query: Hats,
        public: Scores | None,
        unchanged: float | None,
        leave_alone: bool | None,
    ) -> bool:
        """Whether this is the reader for such a sketch, with these public rows and beliefs."""
        mixture = self.mixture
        believed = unchanged in (None, mixture.unchanged)
        believed = believed and leave_alone in (None, mixture.leave_alone)
        return query == self.query and self.public is public and believed

    def at(self, knots: tuple[float, ...]) -> SketchReader:
        """The same with other knots."""
        believed = self.mixture.unchanged, self.mixture.leave_alone
        if self.fitted is None:
            return _without_public(self.event, knots, *believed)
        return self.fitted.reader(knots, *believed)

    @property
    def about(self) -> Target:
        """What its curve gives the probability of."""
        return Target.of(self.event)

    @property
    def query(self) -> Hats:
        """The question that sources are asked."""
        knots = self.mixture.frame.knots
        if self.event is None:
            return Hats(self.temperature, knots)
        return EventHats(self.temperature, knots, self.event)

    def read(self, averages: FloatArray, answers: int, noise_variance: float) -> Posterior:
        """What averages (B, length) over `answers` answers each say of the hidden rows."""
        return self.mixture.fit(averages, answers, noise_variance)

    def reread(self, averages: FloatArray, answers: int, noise_variance: float) -> Posterior:
        """The same as `read`; the one run that was read last is not fitted again."""
        asked = averages.tobytes(), answers, noise_variance
        if len(averages) > 1:  # a study's, which nobody reads twice
            return self.read(averages, answers, noise_variance)
        if asked not in self._last:
            found = self.read(averages, answers, noise_variance)
            self._last.clear()
            self._last[asked] = found
        return self._last[asked]

    @cached_property
    def _last(self) -> dict[tuple[bytes, int, float], Posterior]:
        return {}

    def maps(self, posterior: Posterior, directions: bool = False) -> list[CurveMap]:
        """The map of each run, with a note where there is something to be minded about it."""
        maps = posterior.maps(self.temperature, directions)
        if self.event is not None:
            maps = [
                RiskMap(m.temperature, m.scores, m.log_odds, m.directions, event=self.event)
                for m in maps
            ]
        alone, drowned, crowded = (
            posterior.left_alone,
            ~posterior.informative,
            self._crowded(posterior),
        )
        for run in (alone | drowned | crowded).nonzero()[0]:
            said = (
                (drowned[run], PRIOR_ONLY),
                (alone[run], LEFT_ALONE),
                (crowded[run], ONE_KNOT),
            )
            maps[run] = maps[run].with_provenance(note="; ".join(text for so, text in said if so))
        if posterior.unchanged is not None:
            before = posterior.mixture.unchanged
            for map, after in zip(maps, posterior.unchanged.tolist(), strict=True):
                # In place: these are new, and a study has too many to make each of them twice.
                map.provenance.update(unchanged=after, unchanged_before=before)
        return maps

    def _crowded(self, posterior: Posterior) -> BoolArray:
        """Where nearly all rows were seen around one knot, and the noise does not leave that open.

        Two hats tell a level and a slope; there it is nothing to be minded. Of an event most rows
        are far from it, as they should be.
        """
        seen, hats = posterior.seen, len(self.mixture.frame.knots)
        rows = seen.values[:, :hats] + seen.values[:, hats:]
        if hats == 2 or self.event is not None:
            return np.zeros(len(rows), bool)
        total = rows.sum(axis=1)
        noise = math.sqrt(2 * (hats - 1) * seen.noise_variance)
        few = total - rows.max(axis=1) + noise < _ELSEWHERE * total
        return np.asarray(few & posterior.informative)


@cache
def _without_public(
    event: int | None, knots: tuple[float, ...], unchanged: float, leave_alone: bool
) -> SketchReader:
    frame = _frame(knots, None, event)
    cases = prior.cases(frame, unchanged, event=event is not None)
    return SketchReader(Mixture(frame, cases, leave_alone), 1.0, sigmoid(frame.grid), event)


def _frame(
    knots: tuple[float, ...], classes: int | None, event: int | None, certain: float = math.inf
) -> Frame:
    """`classes`: of the public rows, where there are some.

    No score is below that of equal probabilities, −log(classes − 1), and none above that of a row
    of which the model is certain. Beyond the last knot nothing tells scores apart, so the grid ends
    there.
    """
    if event is not None:
        return Frame(knots, max(knots[0], -certain), min(knots[-1], certain), bulk=4.0)
    if classes is None:
        return Frame(knots, low=-8.0, high=knots[-1], bulk=3.0)
    low = max(-6.0, -math.log(max(classes - 1, 1)))
    high = max(min(prior.FINE_KNOTS[-1], certain), low + 5.0)
    return Frame(knots, low, high, bulk=20.0)


@dataclass(frozen=True, eq=False)
class Public:
    """Public rows, fitted."""

    scores: Scores
    temperature: float
    s: FloatArray
    event: int | None

    @classmethod
    def of(cls, public: Scores, event: int | None) -> Public:
        if not isinstance(public, Scores):
            raise InputError(f"public must be Scores, not {type(public).__name__}")
        if len(public) < MIN_PUBLIC:
            raise InputError(
                f"public scores must be at least {MIN_PUBLIC} rows, not {len(public)}; "
                "leave them out instead"
            )
        if event is not None and event >= public.classes:
            raise InputError(
                f"there is no class {event} in the public rows: they have {public.classes} classes"
            )
        if event is not None and len(np.unique(public.labels == event)) < 2:
            share = "all" if public.labels[0] == event else "none"
            raise InputError(
                f"{share} of the public rows are of class {event}, which says nothing about its risk; "
                "give more of them, or leave them out"
            )
        if event is None and (public.correct.all() or not public.correct.any()):
            raise InputError(
                "the public rows are all predicted "
                f"{'rightly' if public.correct.all() else 'wrongly'}, which says nothing about "
                "confidence; give more of them, or leave them out"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a bound is said below
            temperature = fit_temperature(public, "nll", _BOUNDS).temperature
        if not 1.01 * _BOUNDS[0] < temperature < 0.99 * _BOUNDS[1]:
            raise InputError(
                f"the public rows are calibrated by no temperature between {_BOUNDS[0]:g} and "
                f"{_BOUNDS[1]:g}; check that they are logits of this model with the right labels"
            )
        return cls(public, temperature, FAST.log_odds(public.outputs, temperature, of=event), event)

    def reader(self, knots: tuple[float, ...], unchanged: float, leave_alone: bool) -> SketchReader:
        public = self.scores
        frame = _frame(knots, public.classes, self.event, self._certain)
        grid = frame.grid
        s = np.clip(self.s, frame.low, frame.high)
        outcome = Target.of(self.event).outcome(public).astype(np.float64)
        cases = prior.cases_with_public(
            frame,
            unchanged,
            clean=float(s.mean()),
            curve=_smooth(s, outcome, grid),
            density=_density(s, frame),
            event=self.event is not None,
        )
        own = self._own(grid)
        return SketchReader(
            Mixture(frame, cases, leave_alone),
            self.temperature,
            sigmoid(own),
            self.event,
            self,
            own_spread=_OWN_SPREAD
            * self._scatter(np.interp(self.s, grid, own))
            * (1 if self.temperature > 1 else -1),
        )

    def _own(self, grid: FloatArray) -> FloatArray:
        """The log-odds at T = 1 of rows with the scores of the grid."""
        outputs, classes = self.scores.outputs, self.scores.classes
        if self.event is None:
            equal = -math.log(max(classes - 1, 1))
            return _smooth(self.s, FAST.confidence(outputs, 1.0), grid, equal)
        if classes == 2:
            return self.temperature * grid
        return _smooth(self.s, sigmoid(FAST.log_odds(outputs, 1.0, of=self.event)), grid)

    def _scatter(self, own: FloatArray) -> float:
        """How far public rows' log-odds at T = 1 typically are from `own`, where that matters."""
        away = FAST.log_odds(self.scores.outputs, 1.0, of=self.event) - own
        weight = sigmoid(own) * sigmoid(-own)
        return float(np.sqrt(weight @ away**2 / weight.sum()))

    @property
    def _certain(self) -> float:
        """The score of a row that is given a probability of 1; of logits there is no such."""
        if self.scores.outputs.kind == "logits":
            return math.inf
        rivals = max(self.scores.classes - 1, 1)
        return -math.log(LEAST) / self.temperature - math.log(rivals)


def _density(s: FloatArray, frame: Frame) -> FloatArray:
    """The share of scores around each point of the grid, smoothed; the ends are kept apart."""
    x = frame.x
    step = x[1] - x[0]
    inside = (s > frame.low) & (s < frame.high)
    cells = np.rint((frame.compressed(s[inside]) - x[0]) / step).astype(int)
    counts = np.bincount(np.clip(cells, 1, len(x) - 2), minlength=len(x)).astype(np.float64)
    kernel = np.exp(-0.5 * ((x[:, None] - x[None, :]) / _KERNEL) ** 2)
    found = (kernel / kernel.sum(axis=0)) @ counts
    found[0] += (s <= frame.low).sum()
    found[-1] += (s >= frame.high).sum()
    return np.asarray(found / len(s))


def _smooth(
    s: FloatArray, y: FloatArray, grid: FloatArray, equal: float | None = None
) -> FloatArray:
    """The log-odds, on the grid, of the mean of y in [0, 1] at score s, smooth and rising.

    A penalised logistic regression on a line with bends. Where there is a score at which the
    log-odds are known to be the score itself, it is `equal`, below all others.
    """
    low = float(s.min()) if equal is None else equal
    s = np.clip(s, low, max(float(grid[-1]), low + 5.0))
    knots = np.linspace(low, max(float(s.max()), low + 5.0), _KNOTS)
    basis = np.stack([np.interp(s, knots, unit) for unit in np.eye(_KNOTS)], axis=1)
    bends = np.diff(np.eye(_KNOTS), 2, axis=0)
    fixed = 0.1 * bends.T @ bends
    if equal is None:
        fixed *= 100.0  # outcomes say less than confidence
    value = knots.copy()
    for _ in range(50):
        p = sigmoid(basis @ value)
        weight = np.maximum(p * (1 - p), 1e-6)
        system = (basis * weight[:, None]).T @ basis + fixed + 1e-6 * np.eye(_KNOTS)
        slope = basis.T @ (y - p) - fixed @ value
        if equal is not None:
            system[0, 0] += 1e3
            slope[0] += 1e3 * (equal - value[0])
        step = np.linalg.solve(system, slope)
        value = value + np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-6:
            break
    value = np.maximum.accumulate(value)
    width = knots[1] - knots[0]
    above = np.maximum(grid - knots[-1], 0) * (value[-1] - value[-2]) / width
    below = np.minimum(grid - knots[0], 0) * (value[1] - value[0]) / width
    return np.asarray(np.interp(grid, knots, value) + above + below)
