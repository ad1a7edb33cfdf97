"""The predicted class: a network that is shifted says a few classes too often, and is wrong there.

Two rounds, with 2/5 and 3/5 of ε. The first asks for hats of the score and, beside them, for wrong and
correct rows of each predicted class (`ClassHats`). From the hats comes a curve η(s) as of any
sketch; from the classes an offset u_k for each, how much more or less than the curve says a
prediction of class k can be trusted. The second asks for an ordinary sketch of the corrected score
η′(s) + u_k, and sets right what the first got wrong.

Offsets. Of class k's n_k rows the share a(u_k) = ∫ ρ(s) sigmoid(η(s) + u_k) ds is correct, n_k and u_k
unknown. Beforehand r_k = log(n_k / (n q_k)) is normal around −½ with deviation 1 (so that n q_k rows
are expected), where q_k is how often the public rows were predicted to be of the class, and

    u_k | n_k ~ N(−κ r_k, τ²):

a class that is predicted more often than it used to be is trusted less. Nobody knows κ and τ: a few
pairs, the same for all classes, are weighed by how well they foretell all answers. What is seen of a
class are two numbers, so the two unknowns are integrated over a grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from privcal.calibration.maps import OFFSETS, PRIOR_ONLY, OffsetsMap, sigmoid
from privcal.calibration.sketch import prior
from privcal.calibration.sketch.model import MAPPED, Mixture
from privcal.calibration.sketch.prior import Case, Frame, Prior
from privcal.calibration.sketch.reader import SketchReader
from privcal.data.scores import Scores
from privcal.trusted.errors import InputError
from privcal.trusted.queries import (
    HATS_SHARE,
    MAX_CLASSES,
    MAX_KNOTS,
    MAX_OFFSET,
    ClassHats,
    OffsetHats,
)
from privcal.trusted.scores import FloatArray

LEAST_RESOLUTION = 100.0
"""The resolution below which the noise on each class says more than its rows."""

FIRST = 0.4
"""The share of ε that the first round has: the second sets right what the first got wrong."""

TRUSTS = ((0.0, 0.08), (0.4, 0.35), (0.8, 0.9))
"""Pairs of κ and τ, equally probable beforehand."""

STEPS = np.linspace(-5.0, 5.0, 81)
"""The grid of u_k."""

LEAST_RATIO, MOST_RATIO, RATIOS = -5.0, 5.5, 33
"""The range of r_k, and the size of its grid, which lies where the class's own rows put it."""

_CLASSES_AT_ONCE = 32
_SETTLED = 1e-10
_LEAST = 1e-300
"""The least evidence, of a pair that cannot explain what was seen."""
_FAR = 6.0
"""Standard deviations of a class's rows that its grid reaches to both sides."""
_TINY = 1e-9
"""Variance added so that no rows without noise can still be read."""


def costs(nano_epsilon: int) -> tuple[int, int]:
    """The nano-ε of each round, all of it together."""
    second = nano_epsilon * 3 // 5
    return nano_epsilon - second, second


@dataclass(frozen=True, eq=False)
class OffsetsReader:
    """What the two rounds ask, and what their answers mean."""

    reader: SketchReader
    """That of the first round's hats."""
    frequency: FloatArray
    """How often each class is predicted where nothing is shifted, q_k."""
    second: Mixture
    """What is believed of the corrected score."""

    @classmethod
    def of(cls, reader: SketchReader, resolution: float) -> OffsetsReader:
        """The reader of offsets beside this one of the score, at a resolution that allows them."""
        public = cls.check(reader)
        if resolution < LEAST_RESOLUTION:
            raise InputError(
                f"class_offsets needs a resolution of {LEAST_RESOLUTION:g}, and this run has "
                f"{resolution:.0f} (rows of a source, times ε, times the root of half the sources): "
                "below that the noise on each class says more than its rows; ask more sources, "
                "with a larger ε, or without class_offsets; if sources have more rows than was "
                "guessed, say so (rows_per_source)"
            )
        count = np.bincount(public.outputs.predicted, minlength=public.classes) + 0.5
        knots = prior.knots(True, False, FIRST * HATS_SHARE * resolution)
        whole = (1 - HATS_SHARE) / HATS_SHARE / math.sqrt(public.classes)
        return cls(_with_whole(reader.at(knots), whole), count / count.sum(), _near_identity())

    @staticmethod
    def check(reader: SketchReader) -> Scores:
        """The reader's public rows; an InputError where they cannot serve."""
        public = reader.public
        if public is None:
            raise InputError(
                "class_offsets needs public rows: without them nobody knows how often each class "
                "is predicted where nothing is shifted, and a class that is said too often cannot "
                "be told from a common one"
            )
        if not 2 < public.classes <= MAX_CLASSES:
            raise InputError(
                f"class_offsets is for 3 to {MAX_CLASSES:,} classes, not {public.classes}"
            )
        return public

    @property
    def query(self) -> ClassHats:
        """The question of the first round."""
        hats = self.reader.query
        return ClassHats(hats.temperature, hats.knots, len(self.frequency))

    @property
    def unchanged(self) -> OffsetHats:
        """A second question of which the first changed nothing."""
        grid = self.reader.mixture.frame.grid
        return self._question(grid, np.zeros(len(self.frequency)))

    @property
    def _whole(self) -> float:
        return self.reader.mixture.frame.whole

    def corrected(
        self, averages: FloatArray, answers: int, noise_variance: float
    ) -> list[OffsetHats]:
        """The second question of each run, from the averages (B, length) of the first."""
        runs, knots, classes = len(averages), len(self.reader.query.knots), len(self.frequency)
        hats = averages[:, : 2 * knots].reshape(runs, 2, knots) / HATS_SHARE
        counts = averages[:, 2 * knots :].reshape(runs, 2, classes) / (1 - HATS_SHARE)
        # All classes together are a number of all rows; here with the noise of a hat's.
        whole = counts.sum(axis=2, keepdims=True) * self._whole
        posterior = self.reader.read(
            np.concatenate([hats, whole], axis=2).reshape(runs, -1),
            answers,
            noise_variance / HATS_SHARE**2,
        )
        rows = sum(
            weight * fit.model.state(fit.mean, posterior.seen.log_rows).rows
            for weight, fit in zip(posterior.weights.T, posterior.fits, strict=True)
        )
        queries = []
        grid = self.reader.mixture.frame.grid
        for run, mapped in enumerate(posterior.curve):
            curve = np.interp(grid, grid[MAPPED], mapped)
            offsets, shares = np.zeros(len(self.frequency)), self.frequency
            if posterior.informative[run]:
                found = class_offsets(
                    counts[run],
                    answers,
                    noise_variance / (1 - HATS_SHARE) ** 2,
                    self.frequency * rows[run],
                    CurveAtOffset(curve, posterior.density[run]),
                )
                offsets, shares = found.offset, found.rows / found.rows.sum()
            shifted = np.clip(shifted_curve(curve, offsets, shares), -MAX_OFFSET, MAX_OFFSET)
            queries.append(self._question(shifted, offsets))
        return queries

    def _question(self, curve: FloatArray, offsets: FloatArray) -> OffsetHats:
        grid = self.reader.mixture.frame.grid
        some = np.linspace(0, len(grid) - 1, min(len(grid), MAX_KNOTS)).astype(int)
        return OffsetHats(
            self.reader.temperature,
            tuple(grid[some].tolist()),
            tuple(curve[some].tolist()),
            tuple(offsets.tolist()),
            self.second.frame.knots,
        )

    def maps(
        self,
        queries: Sequence[OffsetHats],
        averages: FloatArray,
        answers: int,
        noise_variance: float,
    ) -> list[OffsetsMap]:
        """The map of each run, from the averages of its second question."""
        posterior = self.second.fit(averages, answers, noise_variance)
        notes = [OFFSETS if clear else PRIOR_ONLY for clear in posterior.informative]
        return [
            OffsetsMap(
                *(asked.temperature, asked.scores, asked.log_odds, asked.offsets),
                *(curve.scores, curve.log_odds),
                provenance={"note": note},
            )
            for asked, curve, note in zip(queries, posterior.maps(1.0), notes, strict=True)
        ]


def _with_whole(reader: SketchReader, whole: float) -> SketchReader:
    """The same, where beside the hats a number of all rows is seen."""
    frame = replace(reader.mixture.frame, whole=whole)
    return replace(reader, mixture=Mixture(frame, reader.mixture.cases))


def _near_identity() -> Mixture:
    """What is believed of a score that was corrected already: that it is nearly right."""
    frame = Frame(prior.FINE_KNOTS, low=-8.0, high=12.0, bulk=20.0)
    far = Prior((0.0, 0.2), (0.0, 0.4), density=(0.5, 3.0))
    near = replace(far, slope=(0.0, 0.07), level=(0.0, 0.15), bend=(0.15, 1.5))
    return Mixture(frame, [Case(far, 0.5), Case(near, 0.5)])


class CurveAtOffset(NamedTuple):
    """A curve on a grid of scores, and the share of rows at each."""

    curve: FloatArray
    density: FloatArray

    def accuracy(self, offsets: FloatArray) -> FloatArray:
        """The share of correct rows, a(u), where all log-odds are higher by each offset."""
        return np.asarray(sigmoid(self.curve + offsets[:, None]) @ self.density)


class Classes(NamedTuple):
    """What is known of each class: the posterior means of its rows and of its offset."""

    rows: FloatArray
    offset: FloatArray


def class_offsets(
    counts: FloatArray,
    answers: int,
    noise_variance: float,
    expected: FloatArray,
    curve: CurveAtOffset,
) -> Classes:
    """Rows and offset of each class, from its noisy average counts (2, K) of wrong and correct rows.

    `expected` are the rows of each class if it were predicted as often as before, n q_k.
    """
    accuracy = curve.accuracy(STEPS)
    evidence, offset, rows = np.empty((3, len(expected), len(TRUSTS)))
    for start in range(0, len(expected), _CLASSES_AT_ONCE):
        some = slice(start, start + _CLASSES_AT_ONCE)
        seen, before = counts[:, some], expected[some]
        ratio = _ratios(seen, answers, noise_variance, before)
        number = before[:, None] * np.exp(ratio)
        log_density = np.repeat(-0.5 * (ratio + 0.5)[:, :, None] ** 2, len(STEPS), axis=2)
        for count, share in zip(seen, (1 - accuracy, accuracy), strict=True):
            mean = number[:, :, None] * share
            variance = mean / answers + noise_variance + _TINY
            miss = count[:, None, None] - mean
            log_density -= 0.5 * (miss**2 / variance + np.log(variance))
        # What is taken away is common to all pairs of κ and τ.
        density = np.exp(log_density - log_density.max(axis=(1, 2), keepdims=True))
        for pair, (kappa, tau) in enumerate(TRUSTS):
            prior_u = np.exp(-0.5 * ((STEPS + kappa * ratio[:, :, None]) / tau) ** 2)
            weight = density * prior_u / prior_u.sum(axis=2, keepdims=True)
            by_ratio = weight.sum(axis=2)
            evidence[some, pair] = np.maximum(by_ratio.sum(axis=1), _LEAST)
            offset[some, pair] = weight.sum(axis=1) @ STEPS
            rows[some, pair] = (by_ratio * number).sum(axis=1)
    weight = np.log(evidence).sum(axis=0)
    weight = np.exp(weight - weight.max())
    weight /= weight.sum()
    return Classes(rows / evidence @ weight, offset / evidence @ weight)


def _ratios(
    counts: FloatArray, answers: int, noise_variance: float, expected: FloatArray
) -> FloatArray:
    """A grid of r_k for each class, (K, ratios), over all that its counts leave possible."""
    total = counts.sum(axis=0)
    far = _FAR * np.sqrt(2 * noise_variance + np.maximum(total, 0.0) / answers)
    least, most = expected * math.exp(LEAST_RATIO), expected * math.exp(MOST_RATIO)
    low = np.log(np.clip(total - far, least, most) / expected)
    high = np.log(np.clip(total + far, least, most) / expected)
    low = np.minimum(low, high - 0.1)
    return np.asarray(low[:, None] + (high - low)[:, None] * np.linspace(0, 1, RATIOS))


def shifted_curve(curve: FloatArray, offsets: FloatArray, shares: FloatArray) -> FloatArray:
    """η′ on the grid of η: Σ shares · sigmoid(η′ + offsets) = sigmoid(η), so that with offsets the
    curve says the same of all rows together as it did without.

    The sum rises with η′ from below sigmoid(η) at η − max u to above at η − min u.
    """
    wanted = sigmoid(curve)
    low, high = curve - offsets.max(), curve - offsets.min()
    value = curve - shares @ offsets
    for _ in range(100):
        p = sigmoid(value[:, None] + offsets)
        miss = p @ shares - wanted
        if np.abs(high - low).max() < _SETTLED or not miss.any():
            break
        low, high = np.where(miss < 0, value, low), np.where(miss > 0, value, high)
        with np.errstate(divide="ignore", invalid="ignore"):
            step = value - miss / ((p * (1 - p)) @ shares)
        inside = (step > low) & (step < high)
        step = np.where(inside, step, (low + high) / 2)
        if np.abs(step - value).max() < _SETTLED:
            break
        value = step
    return np.asarray(value)
