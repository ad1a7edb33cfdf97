"""What a sketch says about the hidden rows: a Bayesian model of score and correctness.

A sketch is the average over sources of a `Hats` answer: noisy sums of wrong and of correct rows
around a few knots of the score s. (Where it asks about an event, "correct" reads "the event was
so".) The model behind it:

    rows with score s:       n · ρ(s), a smooth density;   log ρ ~ Gaussian process
    share of them correct:   sigmoid(e^α · s + b + f(s));  f ~ a small Gaussian process
    what is seen:            hat sums of these, plus sampling and Laplace noise

Rows beyond the ends of the grid count as if they lay on its last point, where ρ and f are free to
be anything: a classifier that is certain of everything has most of its rows there.

α, b, f, log ρ and log n are unknown together. With Gaussian priors and (nearly) Gaussian noise
the most probable values are found by Gauss–Newton steps, all runs of a batch at once, and the
curvature there gives their covariance. In the form used here (prior in unit variance, one solve
of the size of the sketch for each step) that is the iterated Kalman update:

    z ← Jᵀ (J Jᵀ + C)⁻¹ (v − m(z) + J z),   covariance I − Jᵀ (J Jᵀ + C)⁻¹ J

with v the sketch, m(z) its expectation, J = ∂m/∂z, and C the covariance of what is random in v:
of rows (drawn independently, so that sums of hats φ_b and φ_c have covariance n E[φ_b φ_c]) and
of the noise, both divided by the number of answers; and of the model, which is never right to the
last per cent.

There are several such models, one for each case that was believed possible (`Mixture`). How well a
case explains the sketch is its evidence, the integral of likelihood times prior. In the same
approximation v is normal around m − J z with covariance J Jᵀ + C, so

    log Z = −½ (v − m + J z)ᵀ (J Jᵀ + C)⁻¹ (v − m + J z) − ½ log |J Jᵀ + C|,

and the cases are averaged with weights in proportion to their prior probabilities times Z.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from privcal.calibration.maps import MOST_ODDS, CurveMap, sigmoid
from privcal.calibration.sketch.prior import Case, Frame, Prior, Scale
from privcal.trusted.scores import BoolArray, FloatArray, IntArray

INFORMATIVE = 2.0
"""The noisy total must lie this many standard deviations of the noise above zero."""

_STEPS, _CLOSE = 200, 1e-2
"""The most steps, and the step in prior standard deviations that ends them. Most sketches need about
five."""

_LONGEST = 0.3
"""The longest step in any direction to begin with, in prior standard deviations of a level b that is
as wide: keeps far starts stable. Where little is thought possible, everything is nearly linear."""

_SHORTER, _LONGER, _AGREE = 0.5, 1.5, 0.7
"""Steps get shorter after one that turned back, and longer again after one in the same direction
(the cosine between the two)."""

_PATIENCE, _DOUBT = 30, 10.0
"""No curve explains an answer whose steps have not ended after so many: its variance is taken to be so
many times larger, and after as many again by the square of that, then its cube, until they do."""

_HOPELESS, _HOPELESS_STEP = 30.0, 12
"""A case whose log-evidence is so far below another's in that step is not followed any further."""

_LOG_ROWS = 10.0
"""Prior standard deviation of log n: as good as nothing known."""

_TINY = 1e-9
"""Variance added so that a noiseless sketch of no rows can still be solved for."""

_INEXACT, _INEXACT_OF_ALL = 0.01, 0.001
"""How far the model may be from the truth, as a share of every number and of all rows: as good as
nothing up to ten thousand rows, and with any number of them the steps come to an end."""

_PROPOSED, _WIDER = 4, 1.15
"""Proposals for each draw of the posterior, and how much wider they are."""

_FEW = 0.2
"""Effective proposals for each draw, below which they are too few."""

_SHARP = 2.0
"""Sharpness with which drift begins where the mean score falls below the clean one."""

_LEAST_SLOPE = 1e-3
"""Slope that the resulting curve has at least, so that a map always rises."""

_UNSEEN = 2e-3
"""The share of rows beyond which nobody looked: there the curve stays as it is."""

MAY_BE_UNCHANGED = 0.4
"""The probability that nothing changed, above which a model in use is left alone."""

_DIRECTIONS = 6
"""How many functions tell the uncertainty of a curve."""

MAPPED = slice(None, None, 2)
"""The points of the grid that are a map's scores."""

_ALONE = 1 << 18
"""Multiplications in a matrix product that a linear algebra library does on one thread."""


def _modes(x: FloatArray, count: int, *scales: Scale) -> tuple[FloatArray, FloatArray]:
    """A sum of Gaussian processes, each of some standard deviation and length scale, as `count`
    functions with independent unit weights, and the rest."""
    distance = x[:, None] - x[None, :]
    covariance = sum(sd**2 * np.exp(-0.5 * (distance / length) ** 2) for sd, length in scales)
    values, vectors = np.linalg.eigh(np.asarray(covariance))
    modes = (vectors * np.sqrt(np.maximum(values, 0.0)))[:, ::-1]
    return modes[:, :count], modes[:, count:]


class Model:
    """The model for one prior, tabulated on a grid of scores."""

    def __init__(self, prior: Prior, frame: Frame, bends: int = 10, shapes: int = 8) -> None:
        """`bends` and `shapes`: how many functions make up f and log ρ, beside those of the ends."""
        self.prior, self.frame = prior, frame
        x = frame.x
        self.grid, self.points = frame.grid, frame.points
        self.base = self.grid if prior.base is None else prior.base
        if isinstance(prior.density, tuple):
            centre, width = prior.density
            self.log_density = -0.5 * ((x - frame.compressed(centre)) / width) ** 2
        else:
            self.log_density = np.log(prior.density)
        bend, self.unfitted_bend = _modes(x, bends, prior.bend)
        self.bend = np.concatenate([bend, self._at_ends(prior.end_bends)], axis=1)
        shape, _ = _modes(x, shapes, prior.roughness, prior.trend)
        self.shape = np.concatenate([shape, self._at_ends(prior.ends)], axis=1)
        self.bends: int = self.bend.shape[1]
        self.shapes: int = self.shape.shape[1]
        self.fitted_bends = bends
        self._longest = max(1.0, _LONGEST / prior.level[1])
        knots = frame.knots
        self.hats = np.stack(
            [np.interp(self.grid, knots, unit) for unit in np.eye(len(knots))], axis=1
        )
        if frame.whole:
            whole = np.full((self.points, 1), frame.whole)
            self.hats = np.concatenate([self.hats, whole], axis=1)
        # Everything a step needs is a sum over the grid of a density times one of these.
        h = self.hats
        pairs = (h[:, :, None] * h[:, None, :]).reshape(self.points, -1)
        by_shape = (h[:, :, None] * self.shape[:, None, :]).reshape(self.points, -1)
        self._sums = np.concatenate([h, by_shape, pairs], axis=1)
        curve = np.concatenate([self.base[:, None], np.ones((self.points, 1)), self.bend], axis=1)
        self._of_curve = (h[:, :, None] * curve[:, None, :]).reshape(self.points, -1)

    def _at_ends(self, deviations: tuple[float, float]) -> FloatArray:
        """Functions that are zero but at one end of the grid, with these standard deviations."""
        both = np.zeros((self.points, 2))
        both[0, 0], both[-1, 1] = deviations
        return both[:, np.array(deviations) > 0]

    @property
    def size(self) -> int:
        return 2 + self.bends + self.shapes + 1

    def fit(
        self, seen: Averages, start: FloatArray | None = None, best: FloatArray | None = None
    ) -> Fit:
        """The most probable values for each run, by steps from `start`.

        Runs whose log-evidence stays hopelessly below `best` are not followed to the end.
        """
        runs, some = len(seen.values), seen.informative
        # Where noise drowned the data, the prior stays.
        z, spread = np.zeros((runs, self.size)), np.tile(np.eye(self.size), (runs, 1, 1))
        evidence = np.zeros(runs)
        begin = z if start is None else start
        z[some], spread[some], evidence[some] = self._solve(
            seen.take(some),
            begin[some],
            np.zeros_like(z[some]),
            None if best is None else best[some],
        )
        return Fit(self, z, spread, evidence, seen)

    def start_near(self, other: Fit) -> FloatArray | None:
        """Where to start, if the other model believes otherwise only of slope, level and bend."""
        ours, theirs = self.prior, other.model.prior
        free = {"slope", "level", "bend"}
        names = {f.name for f in fields(Prior)} - free
        if any(getattr(ours, name) is not getattr(theirs, name) for name in names):
            return None
        z = other.mean.copy()
        if ours.correlation == 0 and ours.clean is None:
            for k, (mean, sd), (before, wide) in (
                (0, ours.slope, theirs.slope),
                (1, ours.level, theirs.level),
            ):
                z[:, k] = (before + wide * z[:, k] - mean) / sd
        elif (ours.slope, ours.level) != (theirs.slope, theirs.level):
            return None
        z[:, 2 : 2 + self.fitted_bends] *= theirs.bend[0] / ours.bend[0]
        return z

    def _solve(
        self,
        seen: Averages,
        start: FloatArray,
        believed: FloatArray,
        best: FloatArray | None = None,
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The most probable z of each run, its covariance and log-evidence, by steps from `start`.

        `believed` are the prior's means: zero, but for draws.
        """
        runs = len(start)
        z, spread, evidence = start.copy(), np.empty((runs, self.size, self.size)), np.empty(runs)
        relax, reach, last = np.ones(runs), np.full(runs, self._longest), np.zeros_like(z)
        doubt, moving = np.ones(runs), np.arange(runs)
        for step in range(_STEPS):
            if len(moving) == 0:
                break
            if step and step % _PATIENCE == 0:
                doubt[moving] *= _DOUBT ** (step // _PATIENCE)
                relax[moving], last[moving] = 1.0, 0.0
            current = z[moving]
            expected, jacobian, sampling = self._expect(current, seen.log_rows[moving])
            covariance = seen.covariance(expected, sampling)
            transposed = jacobian.transpose(0, 2, 1)
            signal = jacobian @ transposed
            system = signal + covariance * doubt[moving, None, None]
            away = (current - believed[moving])[:, :, None]
            miss = (seen.values[moving] - expected)[:, :, None]
            linear = (
                miss + jacobian @ away
            )  # what is seen less what it would be at the prior's means
            move = (transposed @ np.linalg.solve(system, linear) - away)[:, :, 0]
            longest = np.abs(move).max(axis=1)
            before = last[moving]
            along = (move * before).sum(axis=1)
            size = np.sqrt((move**2).sum(axis=1) * (before**2).sum(axis=1))
            longer = (along > 0) & (along > _AGREE * size)
            factor = np.where(along < 0, _SHORTER, np.where(longer, _LONGER, 1.0))
            relax[moving] = np.minimum(relax[moving] * factor, 1.0)
            reach[moving] = np.maximum(reach[moving] * factor, self._longest)
            length = np.minimum(relax[moving], reach[moving] / longest)
            z[moving] = current + move * length[:, None]
            last[moving] = move
            done = longest < _CLOSE if step < _STEPS - 1 else np.ones(len(moving), bool)
            look = np.ones_like(done) if best is not None and step == _HOPELESS_STEP else done
            if look.any():
                evidence[moving[look]] = _log_normal(linear[look], (signal + covariance)[look])
                if best is not None:
                    done |= look & (evidence[moving] < best[moving] - _HOPELESS)
                gain = np.linalg.solve(system[done], jacobian[done])
                spread[moving[done]] = np.eye(self.size) - transposed[done] @ gain
                moving = moving[~done]
        return z, spread, evidence

    def _log_likelihood(self, z: FloatArray, seen: Averages, run: int) -> FloatArray:
        """The log-likelihood of one run's average answer, at several values z of the unknowns."""
        expected, _, sampling = self._expect(z, np.full(len(z), seen.log_rows[run]))
        covariance = seen.covariance(expected, sampling)
        return _log_normal((seen.values[run] - expected)[:, :, None], covariance)

    def _expect(
        self, z: FloatArray, log_rows: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The expected sketch, its derivative in z, and n E[φφ'] of wrong and correct rows."""
        runs, knots, curve = len(z), self.hats.shape[1], 2 + self.bends
        state = self.state(z, log_rows)
        density_rows = state.density * state.rows[:, None]
        correct = density_rows * state.p
        expected = np.empty((runs, 2 * knots))
        jacobian = np.empty((runs, 2 * knots, self.size))
        sampling = np.zeros((runs, 2 * knots, 2 * knots))
        for half, part in (
            (slice(0, knots), density_rows - correct),
            (slice(knots, None), correct),
        ):
            sums = _product(part, self._sums)
            hats, by_shape, pairs = np.split(sums, [knots, knots * (1 + self.shapes)], axis=1)
            expected[:, half] = hats
            jacobian[:, half, curve:-1] = by_shape.reshape(runs, knots, self.shapes)
            jacobian[:, half, curve:-1] -= hats[:, :, None] * state.mean_shape[:, None, :]
            sampling[:, half, half] = pairs.reshape(runs, knots, knots)
        jacobian[:, :, -1] = _LOG_ROWS * expected
        # What a change of the curve moves from wrong to correct.
        moved = _product(correct * (1 - state.p), self._of_curve).reshape(runs, knots, curve)
        by_ab = np.stack([state.slope[:, None] * moved[:, :, 0], moved[:, :, 1]], axis=2)
        moved[:, :, :2] = by_ab @ state.mix
        jacobian[:, knots:, :curve] = moved
        jacobian[:, :knots, :curve] = -moved
        if self.prior.clean is not None:
            # The density moves the drift, and the drift moves α and b.
            drifted = (by_ab @ state.by_drift[:, :, None]) * state.drift_by_shape[:, None, :]
            jacobian[:, knots:, curve:-1] += drifted
            jacobian[:, :knots, curve:-1] -= drifted
        return expected, jacobian, sampling

    def state(self, z: FloatArray, log_rows: FloatArray) -> State:
        """What the unit coordinates z (B, size) stand for."""
        prior, curve = self.prior, 2 + self.bends
        log_density = self.log_density + _product(z[:, curve:-1], self.shape.T)
        density = np.exp(log_density - log_density.max(axis=1, keepdims=True))
        density /= density.sum(axis=1, keepdims=True)
        mean_shape = _product(density, self.shape)
        drift = np.zeros(len(z))
        drift_by_shape = np.zeros_like(mean_shape)
        if prior.clean is not None:
            mean_score = density @ self.grid
            below = prior.clean - mean_score
            drift = np.logaddexp(0, _SHARP * below) / _SHARP  # max(0, below), smoothly
            by_shape = mean_score[:, None] * mean_shape - _product(
                density, self.grid[:, None] * self.shape
            )
            drift_by_shape = sigmoid(_SHARP * below)[:, None] * by_shape
        (mean_a, sd_a), (mean_b, sd_b) = prior.slope, prior.level
        fall, spread = prior.level_drift
        sd = sd_b + spread * drift
        share, rest = prior.correlation, np.sqrt(1 - prior.correlation**2)
        unit_b = share * z[:, 0] + rest * z[:, 1]
        alpha = mean_a + prior.slope_drift * np.tanh(drift) + sd_a * z[:, 0]
        level = mean_b + fall * drift + sd * unit_b
        mix = np.zeros((len(z), 2, 2))
        mix[:, 0, 0], mix[:, 1, 0], mix[:, 1, 1] = sd_a, share * sd, rest * sd
        by_drift = np.stack(
            [prior.slope_drift / np.cosh(drift) ** 2, fall + spread * unit_b], axis=1
        )
        slope = np.exp(alpha)
        eta = slope[:, None] * self.base + level[:, None] + _product(z[:, 2:curve], self.bend.T)
        rows = np.exp(np.clip(log_rows + _LOG_ROWS * z[:, -1], -50, 50))
        return State(
            eta, sigmoid(eta), density, rows, slope, mix, by_drift, mean_shape, drift_by_shape
        )


class State(NamedTuple):
    """The model at some values of its unknowns, one for each run."""

    eta: FloatArray
    """Log-odds of being correct, on the grid."""
    p: FloatArray
    """Probability of being correct, on the grid."""
    density: FloatArray
    """Share of the rows at each point of the grid."""
    rows: FloatArray
    """Number of rows of one answer, n."""
    slope: FloatArray
    """The slope e^α."""
    mix: FloatArray
    """Derivative of (α, b) in the first two coordinates."""
    by_drift: FloatArray
    """Derivative of (α, b) in the drift."""
    mean_shape: FloatArray
    """Mean of each function of log ρ under the density."""
    drift_by_shape: FloatArray
    """Derivative of the drift in the weights of log ρ."""


@dataclass(frozen=True, eq=False)
class Averages:
    """What B runs have seen: the average answers, and what is random in them."""

    values: FloatArray
    """The averages, (B, 2 · knots)."""
    answers: int
    """Over how many answers each is."""
    noise_variance: float
    """Of the noise in one number of an average."""
    log_rows: FloatArray
    """Around what log n is believed to be, (B,)."""
    informative: BoolArray
    """False where the noise drowned the data, the total not being clearly positive."""

    @classmethod
    def of(cls, values: FloatArray, answers: int, noise_variance: float) -> Averages:
        total = values.sum(axis=1)
        deviation = float(np.sqrt(values.shape[1] * noise_variance))
        log_rows = np.log(np.maximum(total, max(deviation, 1e-6)))
        return cls(values, answers, noise_variance, log_rows, total > INFORMATIVE * deviation)

    def covariance(self, expected: FloatArray, sampling: FloatArray) -> FloatArray:
        """Of what is random, (B, length, length), where `expected` is to be seen."""
        covariance = sampling / self.answers
        diagonal = np.arange(self.values.shape[1])
        inexact = _INEXACT * expected + _INEXACT_OF_ALL * expected.sum(axis=1, keepdims=True)
        covariance[:, diagonal, diagonal] += inexact**2 + self.noise_variance + _TINY
        return covariance

    def take(self, runs: IntArray | BoolArray) -> Averages:
        """Some of the runs."""
        return replace(
            self,
            values=self.values[runs],
            log_rows=self.log_rows[runs],
            informative=self.informative[runs],
        )


@dataclass(frozen=True, eq=False)
class Fit:
    """What one model says of each of B runs: Gaussian in its unit coordinates."""

    model: Model
    mean: FloatArray
    covariance: FloatArray
    log_evidence: FloatArray
    seen: Averages

    def draws(self, run: int, count: int, rng: np.random.Generator) -> FloatArray:
        """Draws of one run's unknowns, (count, size), from the posterior itself.

        The Gaussian approximation proposes, a little wide; exact weights correct it
        (importance resampling, with weights truncated as Ionides 2008 has it). Where few
        proposals have weight, the posterior is a thin bent ridge: then draws that follow it.
        """
        model, mean = self.model, self.mean[run]
        unit = rng.standard_normal((_PROPOSED * count, model.size))
        if not self.seen.informative[run]:
            return np.asarray(mean + unit[:count])
        # A square root even where rounding made the covariance slightly indefinite.
        values, vectors = np.linalg.eigh(self.covariance[run])
        z = mean + _WIDER * unit * np.sqrt(np.maximum(values, 1e-9)) @ vectors.T
        log_weight = (
            model._log_likelihood(z, self.seen, run)
            - 0.5 * (z**2).sum(axis=1)
            + 0.5 * (unit**2).sum(axis=1)
        )
        weight = np.exp(log_weight - log_weight.max())
        if weight.sum() ** 2 < _FEW * count * (weight**2).sum():
            return self._draws_along(run, count, rng)
        weight = np.minimum(weight, weight.mean() * np.sqrt(len(weight)))
        return np.asarray(z[rng.choice(len(z), count, p=weight / weight.sum())])

    def _draws_along(self, run: int, count: int, rng: np.random.Generator) -> FloatArray:
        """Fits to the sketch with fresh noise, under a prior moved at random, one for each draw.

        Exact where the model is linear; it bends with the model where it is not (randomised
        maximum likelihood, Oliver 1996).
        """
        model, mean, seen = self.model, self.mean[[run]], self.seen.take(np.array([run]))
        expected, _, sampling = model._expect(mean, seen.log_rows)
        [covariance] = seen.covariance(expected, sampling)
        noise = rng.standard_normal((count, len(covariance))) @ np.linalg.cholesky(covariance).T
        again = seen.take(np.zeros(count, np.int64))
        again = replace(again, values=again.values + noise)
        begin = mean.repeat(count, axis=0)
        return model._solve(again, begin, rng.standard_normal((count, model.size)))[0]

    def curves(self, run: int, count: int, rng: np.random.Generator) -> tuple[FloatArray, ...]:
        """Draws of one run's log-odds and density on the grid, each (count, points)."""
        model = self.model
        z = self.draws(run, count, rng)
        state = model.state(z, np.full(count, self.seen.log_rows[run]))
        rest = rng.standard_normal((count, model.unfitted_bend.shape[1])) @ model.unfitted_bend.T
        return state.eta + rest, state.density

    @cached_property
    def _state(self) -> State:
        return self.model.state(self.mean, self.seen.log_rows)

    @property
    def density(self) -> FloatArray:
        """The most probable density, on the grid."""
        return self._state.density

    @cached_property
    def _direction(self) -> FloatArray:
        """Derivative of the log-odds, at the scores of a map, in all unknowns but the number of rows."""
        model, state = self.model, self._state
        base, bend = model.base[MAPPED], model.bend[MAPPED]
        curve = 2 + model.bends
        by_ab = np.ones((len(state.slope), len(base), 2))
        by_ab[:, :, 0] = state.slope[:, None] * base
        direction = np.empty((*by_ab.shape[:2], model.size - 1))
        direction[:, :, :2] = by_ab @ state.mix
        direction[:, :, 2:curve] = bend
        drift = by_ab @ state.by_drift[:, :, None]
        direction[:, :, curve:] = drift * state.drift_by_shape[:, None, :]
        return direction

    @cached_property
    def log_odds(self) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the log-odds of being correct, at the scores of a map."""
        direction = self._direction
        variance = np.einsum("bgi,bgi->bg", direction @ self.covariance[:, :-1, :-1], direction)
        rest = (self.model.unfitted_bend[MAPPED] ** 2).sum(axis=1)
        return self._state.eta[:, MAPPED], variance + rest

    def spread(self, run: int) -> FloatArray:
        """Covariance of one run's log-odds at the scores of a map."""
        direction, rest = self._direction[run], self.model.unfitted_bend[MAPPED]
        return np.asarray(direction @ self.covariance[run, :-1, :-1] @ direction.T + rest @ rest.T)


class Mixture:
    """The models of all cases that were believed possible."""

    def __init__(self, frame: Frame, cases: Sequence[Case], leave_alone: bool = False) -> None:
        """`leave_alone`: keep the curve of the case that nothing changed, where that may well be."""
        self.frame, self.cases, self.leave_alone = frame, tuple(cases), leave_alone
        self.models = [Model(case.prior, frame) for case in cases]

    @property
    def unchanged(self) -> float:
        """The probability, beforehand, that nothing changed."""
        return sum(case.weight for case in self.cases if case.unchanged)

    def fit(self, averages: FloatArray, answers: int, noise_variance: float) -> Posterior:
        """From average answers (B, 2 · knots), each over `answers` of them.

        `noise_variance` is that of the noise in one number of the average.
        """
        seen = Averages.of(averages, answers, noise_variance)
        fits: list[Fit] = []
        for model in self.models:
            start = model.start_near(fits[-1]) if fits else None
            best = np.max([fit.log_evidence for fit in fits], axis=0) if fits else None
            fits.append(model.fit(seen, start, best))
        log_weight = np.log([case.weight for case in self.cases]) + np.stack(
            [fit.log_evidence for fit in fits], axis=1
        )
        weights = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
        return Posterior(self, fits, weights / weights.sum(axis=1, keepdims=True), seen)


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is known of each of B runs: of every case, and how probable it is."""

    mixture: Mixture
    fits: list[Fit]
    weights: FloatArray
    """The probability of each case, (B, cases)."""
    seen: Averages

    @property
    def informative(self) -> BoolArray:
        """False where the noise drowned the data, the total not being clearly positive: the prior."""
        return self.seen.informative

    @property
    def unchanged(self) -> FloatArray | None:
        """The probability (B,) that nothing changed; None where that was not thought of."""
        said = np.array([case.unchanged for case in self.mixture.cases])
        return np.asarray(self.weights @ said) if said.any() else None

    @property
    def left_alone(self) -> BoolArray:
        """Where the curve is that of nothing changed: what was probable, or nothing was seen."""
        unchanged = self.unchanged
        if unchanged is None or not self.mixture.leave_alone:
            return np.zeros(len(self.weights), bool)
        return np.asarray((unchanged > MAY_BE_UNCHANGED) | ~self.informative)

    @cached_property
    def density(self) -> FloatArray:
        """The share of rows expected at each point of the grid, (B, points)."""
        return np.asarray(sum(w[:, None] * fit.density for w, fit in self._weighted()))

    def _weighted(self) -> list[tuple[FloatArray, Fit]]:
        return list(zip(self.weights.T, self.fits, strict=True))

    def curves(self, run: int, count: int, rng: np.random.Generator) -> tuple[FloatArray, ...]:
        """Draws of one run's log-odds and density on the grid, each (count, points)."""
        shares = rng.multinomial(count, self.weights[run])
        parts = [
            fit.curves(run, share, rng)
            for share, fit in zip(shares.tolist(), self.fits, strict=True)
            if share
        ]
        eta, density = (np.concatenate(part) for part in zip(*parts, strict=True))
        return eta, density

    @cached_property
    def curve(self) -> FloatArray:
        """Log-odds, at the scores of a map, of the posterior mean probability, rising strictly.

        The mean of a probability whose log-odds are normal, by the usual probit approximation.
        It is the confidence with the least expected Brier score. Where hardly any row is
        expected, the curve stays where it was.
        """
        density = self.density[:, MAPPED]
        right = wrong = np.zeros_like(density)
        for weight, fit in self._weighted():
            mean, variance = fit.log_odds
            value = mean / np.sqrt(1 + np.pi * variance / 8)
            right = right + weight[:, None] * sigmoid(value)
            wrong = wrong + weight[:, None] * sigmoid(-value)
        least = _LEAST_SLOPE * self.mixture.frame.grid[MAPPED]
        value = np.log(right) - np.log(wrong) - least
        value = _flat_beyond(value, density / density.sum(axis=1, keepdims=True))
        value = rising(value, density * right * wrong)
        alone = np.flatnonzero(self.left_alone)
        for case, model in zip(self.mixture.cases, self.mixture.models, strict=True):
            if case.unchanged and len(alone):
                value[alone] = np.maximum.accumulate(model.base[MAPPED] - least)
        return np.asarray(value + least)

    def maps(self, temperature: float, directions: bool = False) -> list[CurveMap]:
        """The map of each run, for scores taken at `temperature`."""
        # One more point beyond each end: a map goes on as its last lines do. These are flat, but
        # where a model is left alone the score itself.
        grid: list[float] = self.mixture.frame.grid[MAPPED].tolist()
        low, high = grid[0], grid[-1]
        flat = (low - 1, *grid, high + 1)
        own = (-MOST_ODDS, *grid, MOST_ODDS)
        maps = []
        for run, (c, alone) in enumerate(zip(self.curve.tolist(), self.left_alone, strict=True)):
            below, above = (
                (low + MOST_ODDS, MOST_ODDS - high) if alone else (_LEAST_SLOPE, _LEAST_SLOPE)
            )
            maps.append(
                CurveMap(
                    temperature,
                    own if alone else flat,
                    (c[0] - below, *c, c[-1] + above),
                    self._directions(run) if directions else (),
                )
            )
        return maps

    def _directions(self, run: int) -> tuple[tuple[float, ...], ...]:
        """The uncertainty of one run's curve, at the scores of its map."""
        etas = np.stack([fit.log_odds[0][run] for fit in self.fits])
        mean = self.weights[run] @ etas
        covariance = sum(
            weight * (fit.spread(run) + np.outer(eta - mean, eta - mean))
            for weight, fit, eta in zip(self.weights[run], self.fits, etas, strict=True)
        )
        values, vectors = np.linalg.eigh(np.asarray(covariance))
        largest = np.argsort(values)[::-1][:_DIRECTIONS]
        found = vectors[:, largest] * np.sqrt(np.maximum(values[largest], 0.0))
        return tuple((column[0], *column, column[-1]) for column in found.T.tolist())


def rising(values: FloatArray, weights: FloatArray) -> FloatArray:
    """The rising curves (B, points) nearest to `values` in weighted squares: falls are pooled."""
    values = values.copy()
    for run in np.flatnonzero((np.diff(values, axis=1) < 0).any(axis=1)).tolist():
        pools: list[list[float]] = []  # value, weight, how many
        for value, weight in zip(values[run].tolist(), weights[run].tolist(), strict=True):
            pools.append([value, weight + 1e-12, 1])
            while len(pools) > 1 and pools[-1][0] < pools[-2][0]:
                late, early = pools.pop(), pools.pop()
                total = early[1] + late[1]
                mean = (early[0] * early[1] + late[0] * late[1]) / total
                pools.append([mean, total, early[2] + late[2]])
        values[run] = [value for value, _, many in pools for _ in range(int(many))]
    return values


def _flat_beyond(values: FloatArray, density: FloatArray) -> FloatArray:
    """The curves, held where they enter the outermost `_UNSEEN` of the rows."""
    below = density.cumsum(axis=1)
    first = (below > _UNSEEN).argmax(axis=1)[:, None]
    last = (below >= 1 - _UNSEEN).argmax(axis=1)[:, None]
    held = np.clip(np.arange(values.shape[1]), first, last)
    return np.take_along_axis(values, held, axis=1)


def _log_normal(away: FloatArray, covariance: FloatArray) -> FloatArray:
    """Logarithms of normal densities, up to a constant, so far (B, length, 1) from their means."""
    distance = (away * np.linalg.solve(covariance, away)).sum(axis=(1, 2))
    return np.asarray(-0.5 * (distance + np.linalg.slogdet(covariance)[1]))


def _product(a: FloatArray, b: FloatArray) -> FloatArray:
    """a @ b, a few rows at a time: threads for products this small wait for each other longer than
    they work."""
    rows = max(1, _ALONE // b.size)
    product = np.empty((len(a), b.shape[1]))
    for start in range(0, len(a), rows):
        np.matmul(a[start : start + rows], b, out=product[start : start + rows])
    return product
