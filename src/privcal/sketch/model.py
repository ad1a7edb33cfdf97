"""What a sketch says about the hidden rows: a Bayesian model of score and correctness.

A sketch is the average over sources of a `Hats` answer: noisy sums of wrong and of correct rows
around a few knots of the score s. The model behind it:

    rows with score s:       n · ρ(s), a smooth density;   log ρ ~ Gaussian process
    share of them correct:   sigmoid(e^α · s + b + f(s));  f ~ a small Gaussian process
    what is seen:            hat sums of these, plus sampling and Laplace noise

α, b, f, log ρ and log n are unknown together. With Gaussian priors and (nearly) Gaussian noise
the most probable values are found by Gauss–Newton steps, all runs of a batch at once, and the
curvature there gives their covariance. In the form used here (prior in unit variance, one solve
of the size of the sketch for each step) that is the iterated Kalman update:

    z ← Jᵀ (J Jᵀ + C)⁻¹ (v − m(z) + J z),   covariance I − Jᵀ (J Jᵀ + C)⁻¹ J

with v the sketch, m(z) its expectation, J = ∂m/∂z, and C the covariance of what is random in v:
of rows (drawn independently, so that sums of hats φ_b and φ_c have covariance n E[φ_b φ_c]) and
of the noise, both divided by the number of answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from privcal.maps import CurveMap
from privcal.scores import BoolArray, FloatArray

INFORMATIVE = 2.0
"""The noisy total must lie this many standard deviations of the noise above zero."""

_STEPS, _CLOSE = 1000, 1e-3
"""The most steps, and the step in prior standard deviations that ends them. A few hundred rows need
about ten; a million rows that the prior did not expect, hundreds."""

_LONGEST = 1.0
"""The longest step in any direction, in prior standard deviations: keeps far starts stable."""

_LOG_ROWS = 10.0
"""Prior standard deviation of log n: as good as nothing known."""

_TINY = 1e-9
"""Variance added so that a noiseless sketch of no rows can still be solved for."""

_PROPOSED, _WIDER = 4, 1.15
"""Proposals for each draw of the posterior, and how much wider they are."""

_FEW = 0.2
"""Effective proposals for each draw, below which they are too few."""

_SHARP = 2.0
"""Sharpness with which drift begins where the mean score falls below the clean one."""

_LEAST_SLOPE = 1e-3
"""Slope that the resulting curve has at least, so that a map always rises."""

_ALONE = 1 << 18
"""Multiplications in a matrix product that a linear algebra library does on one thread."""


@dataclass(frozen=True)
class Prior:
    """What is believed before any answer. See docs/sketch.md for where the numbers are from.

    Where the mean score of clean rows is known, the drift δ is how far the hidden rows' mean lies
    below it, and what is believed of α and b moves with it.
    """

    knots: tuple[float, ...]
    """The scores around which rows are counted."""
    low: float
    """The lowest score of the model's grid."""
    high: float
    """The highest score of the model's grid."""
    bulk: float
    """The score far above which scores differ less and less, to the Gaussian processes."""
    slope: tuple[float, float]
    """Mean and standard deviation of α."""
    level: tuple[float, float]
    """Mean and standard deviation of b."""
    correlation: float
    """Correlation of α and b: where confidence means less, it is usually too high as well."""
    clean: float | None = None
    """The mean score of clean rows, where known."""
    slope_drift: float = 0.0
    """Factor of tanh δ in the mean of α."""
    level_drift: tuple[float, float] = (0.0, 0.0)
    """Factors of δ in the mean and in the standard deviation of b."""
    bend: tuple[float, float] = (0.3, 1.5)
    """Standard deviation and length scale of f."""
    density: tuple[float, float] = (1.5, 3.0)
    """Centre and width of the density that ρ varies around."""
    roughness: tuple[float, float] = (1.5, 1.5)
    """Standard deviation and length scale of log ρ around it."""


def prior_with_public(clean: float, classes: int = 1000) -> Prior:
    """The prior where scores are taken at the temperature that calibrates clean rows.

    Their mean score is `clean`; no score is below that of equal probabilities, −log(classes − 1).
    """
    return Prior(
        knots=(-2.0, 4.0),
        low=max(-6.0, -math.log(max(classes - 1, 1))),
        high=12.0,
        bulk=20.0,
        slope=(-0.1, 0.15),
        level=(-0.15, 0.3),
        correlation=0.4,
        clean=clean,
        slope_drift=-0.3,
        level_drift=(-0.25, 0.3),
        density=(clean - 0.5, 2.5),
    )


WITHOUT_PUBLIC = Prior(
    knots=(-4.0, -2.2, -0.7, 0.8, 2.5, 5.0, 12.0),
    low=-8.0,
    high=40.0,
    bulk=3.0,
    slope=(-0.75, 0.5),
    level=(-0.6, 1.4),
    correlation=0.0,
)
"""The prior where scores are taken at T = 1, of logits whose scale nobody knows: wide, as are
its knots."""


def _modes(x: FloatArray, scale: tuple[float, float], count: int) -> tuple[FloatArray, FloatArray]:
    """A Gaussian process as `count` functions with independent unit weights, and the rest."""
    deviation, length = scale
    covariance = np.exp(-0.5 * ((x[:, None] - x[None, :]) / length) ** 2)
    values, vectors = np.linalg.eigh(covariance)
    modes = (deviation * vectors * np.sqrt(np.maximum(values, 0.0)))[:, ::-1]
    return modes[:, :count], modes[:, count:]


class Model:
    """The model for one prior, tabulated on a grid of scores."""

    bends, shapes, points = 10, 8, 65
    """How many functions make up f and log ρ, and the size of the grid."""

    def __init__(self, prior: Prior) -> None:
        self.prior = prior
        bulk, (centre, width) = prior.bulk, prior.density
        low, high, centre = bulk * np.arcsinh(np.array([prior.low, prior.high, centre]) / bulk)
        x = np.linspace(low, high, self.points)
        self.grid: FloatArray = bulk * np.sinh(x / bulk)
        self.log_density: FloatArray = -0.5 * ((x - centre) / width) ** 2
        self.bend, self.unfitted_bend = _modes(x, prior.bend, self.bends)
        self.shape, _ = _modes(x, prior.roughness, self.shapes)
        self.hats = np.stack(
            [np.interp(self.grid, prior.knots, unit) for unit in np.eye(len(prior.knots))], axis=1
        )
        # Everything a step needs is a sum over the grid of a density times one of these.
        h = self.hats
        pairs = (h[:, :, None] * h[:, None, :]).reshape(self.points, -1)
        by_shape = (h[:, :, None] * self.shape[:, None, :]).reshape(self.points, -1)
        self._sums = np.concatenate([h, by_shape, pairs], axis=1)
        curve = np.concatenate([self.grid[:, None], np.ones((self.points, 1)), self.bend], axis=1)
        self._of_curve = (h[:, :, None] * curve[:, None, :]).reshape(self.points, -1)

    @property
    def size(self) -> int:
        return 2 + self.bends + self.shapes + 1

    def fit(self, averages: FloatArray, answers: int, noise_variance: float) -> Posterior:
        """From average answers (B, 2 · knots), each over `answers` of them.

        `noise_variance` is that of the noise in one number of the average.
        """
        runs, length = averages.shape
        total = averages.sum(axis=1)
        deviation = np.sqrt(length * noise_variance)
        informative = total > INFORMATIVE * deviation
        log_rows = np.log(np.maximum(total, max(deviation, 1e-6)))
        # Where noise drowned the data, the prior stays.
        z, spread = np.zeros((runs, self.size)), np.tile(np.eye(self.size), (runs, 1, 1))
        z[informative], spread[informative] = self._solve(
            averages[informative],
            log_rows[informative],
            answers,
            noise_variance,
            z[informative],
            z[informative],
        )
        return Posterior(self, z, spread, log_rows, informative, averages, answers, noise_variance)

    def _solve(
        self,
        averages: FloatArray,
        log_rows: FloatArray,
        answers: int,
        noise_variance: float,
        start: FloatArray,
        believed: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """The most probable z of each run, and its covariance, by steps from `start`.

        `believed` are the prior's means: zero, but for draws.
        """
        length = averages.shape[1]
        z, spread = start.copy(), np.empty((len(start), self.size, self.size))
        relax, last = np.ones(len(start)), np.zeros_like(z)
        moving = np.arange(len(start))
        for step in range(_STEPS):
            current = z[moving]
            expected, jacobian, sampling = self._expect(current, log_rows[moving])
            covariance = sampling / answers + (noise_variance + _TINY) * np.eye(length)
            transposed = jacobian.transpose(0, 2, 1)
            system = jacobian @ transposed + covariance
            away = (current - believed[moving])[:, :, None]
            seen = (averages[moving] - expected)[:, :, None] + jacobian @ away
            move = (transposed @ np.linalg.solve(system, seen) - away)[:, :, 0]
            longest = np.abs(move).max(axis=1)
            # A step that turns back went too far: shorter ones from there on.
            relax[moving] *= np.where((move * last[moving]).sum(axis=1) < 0, 0.6, 1.0)
            length_of_step = np.minimum(relax[moving], _LONGEST / np.maximum(longest, _LONGEST))
            z[moving] = current + move * length_of_step[:, None]
            last[moving] = move
            done = longest < _CLOSE if step < _STEPS - 1 else np.ones(len(moving), bool)
            gain = np.linalg.solve(system[done], jacobian[done])
            spread[moving[done]] = np.eye(self.size) - transposed[done] @ gain
            moving = moving[~done]
            if len(moving) == 0:
                break
        return z, spread

    def _log_likelihood(
        self, z: FloatArray, log_rows: FloatArray, seen: FloatArray, answers: int, noise: float
    ) -> FloatArray:
        """The log-likelihood of one average answer `seen`, at several values z of the unknowns."""
        expected, _, sampling = self._expect(z, log_rows)
        covariance = sampling / answers + (noise + _TINY) * np.eye(len(seen))
        miss = (seen - expected)[:, :, None]
        distance = (miss * np.linalg.solve(covariance, miss)).sum(axis=(1, 2))
        return np.asarray(-0.5 * (distance + np.linalg.slogdet(covariance)[1]))

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
        eta = slope[:, None] * self.grid + level[:, None] + _product(z[:, 2:curve], self.bend.T)
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
class Posterior:
    """What is known of each of B runs: Gaussian in the model's unit coordinates."""

    model: Model
    mean: FloatArray
    covariance: FloatArray
    log_rows: FloatArray
    informative: BoolArray
    """False where the noise drowned the data, the total not being clearly positive: the prior."""
    averages: FloatArray
    answers: int
    noise_variance: float

    def draws(self, run: int, count: int, rng: np.random.Generator) -> FloatArray:
        """Draws of one run's unknowns, (count, size), from the posterior itself.

        The Gaussian approximation proposes, a little wide; exact weights correct it
        (importance resampling, with weights truncated as Ionides 2008 has it). Where few
        proposals have weight, the posterior is a thin bent ridge: then draws that follow it.
        """
        model, mean = self.model, self.mean[run]
        unit = rng.standard_normal((_PROPOSED * count, model.size))
        if not self.informative[run]:
            return np.asarray(mean + unit[:count])
        # A square root even where rounding made the covariance slightly indefinite.
        values, vectors = np.linalg.eigh(self.covariance[run])
        z = mean + _WIDER * unit * np.sqrt(np.maximum(values, 1e-9)) @ vectors.T
        rows = np.full(len(z), self.log_rows[run])
        log_weight = (
            model._log_likelihood(z, rows, self.averages[run], self.answers, self.noise_variance)
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
        model, mean = self.model, self.mean[[run]]
        _, _, sampling = model._expect(mean, self.log_rows[[run]])
        length = self.averages.shape[1]
        covariance = sampling[0] / self.answers + (self.noise_variance + _TINY) * np.eye(length)
        noise = rng.standard_normal((count, length)) @ np.linalg.cholesky(covariance).T
        z, _ = model._solve(
            self.averages[run] + noise,
            np.full(count, self.log_rows[run]),
            self.answers,
            self.noise_variance,
            mean.repeat(count, axis=0),
            rng.standard_normal((count, model.size)),
        )
        return z

    @cached_property
    def log_odds(self) -> tuple[FloatArray, FloatArray]:
        """Mean and variance, on the grid, of the log-odds of being correct: each (B, points)."""
        model = self.model
        state = model.state(self.mean, self.log_rows)
        curve = 2 + model.bends
        by_ab = np.ones((*state.eta.shape, 2))
        by_ab[:, :, 0] = state.slope[:, None] * model.grid
        direction = np.empty((*state.eta.shape, model.size - 1))
        direction[:, :, :2] = by_ab @ state.mix
        direction[:, :, 2:curve] = model.bend
        drift = by_ab @ state.by_drift[:, :, None]
        direction[:, :, curve:] = drift * state.drift_by_shape[:, None, :]
        variance = np.einsum("bgi,bgi->bg", direction @ self.covariance[:, :-1, :-1], direction)
        return state.eta, variance + (model.unfitted_bend**2).sum(axis=1)

    @cached_property
    def curve(self) -> FloatArray:
        """Log-odds, on the grid, of the posterior mean probability, made to rise strictly.

        The mean of a probability whose log-odds are normal, by the usual probit approximation.
        It is the confidence with the least expected Brier score.
        """
        mean, variance = self.log_odds
        least = _LEAST_SLOPE * self.model.grid
        value = mean / np.sqrt(1 + np.pi * variance / 8) - least
        return np.asarray(np.maximum.accumulate(value, axis=1) + least)

    def maps(self, temperature: float) -> list[CurveMap]:
        """The map of each run, for scores taken at `temperature`."""
        scores = tuple(self.model.grid[::2].tolist())
        return [CurveMap(temperature, scores, tuple(run)) for run in self.curve[:, ::2].tolist()]


def _product(a: FloatArray, b: FloatArray) -> FloatArray:
    """a @ b, a few rows at a time: threads for products this small wait for each other longer than
    they work."""
    rows = max(1, _ALONE // b.size)
    product = np.empty((len(a), b.shape[1]))
    for start in range(0, len(a), rows):
        np.matmul(a[start : start + rows], b, out=product[start : start + rows])
    return product


def sigmoid(x: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))
