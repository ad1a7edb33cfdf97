"""How a sketch is asked for and read: with clean labelled scores of the calibrator, or without."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cache

import numpy as np

from privcal.errors import InputError
from privcal.fit import fit_temperature
from privcal.kernel import confidence, log_odds
from privcal.queries import Hats
from privcal.scores import FloatArray, Scores
from privcal.sketch.model import WITHOUT_PUBLIC, Model, Posterior, prior_with_public, sigmoid

MIN_PUBLIC = 50
"""Fewer clean rows say too little about a temperature."""

_BOUNDS = (0.05, 20.0)
_KNOTS = 16


@dataclass(frozen=True, eq=False)
class SketchReader:
    """What a sketch asks, and what its answer means: a model of the hidden rows.

    With public rows the temperature is the one that calibrates them, so nothing here changes
    when all logits are scaled. Without, it is 1 and the prior is wide.
    """

    model: Model
    temperature: float
    """The temperature at which the scores of rows are taken."""
    own_confidence: FloatArray
    """The confidence at T = 1 of rows with the scores of the model's grid."""
    public: Scores | None = None
    """The public rows it was fitted to."""

    @classmethod
    def of(cls, public: Scores | None = None) -> SketchReader:
        """The reader for these public rows, which are fitted here, or for none."""
        return _without_public() if public is None else cls._fitted(public)

    @classmethod
    def _fitted(cls, public: Scores) -> SketchReader:
        if not isinstance(public, Scores):
            raise InputError(f"public must be Scores, not {type(public).__name__}")
        if len(public) < MIN_PUBLIC:
            raise InputError(
                f"public scores must be at least {MIN_PUBLIC} rows, not {len(public)}; "
                "leave them out instead"
            )
        if public.correct.all() or not public.correct.any():
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
        s = log_odds(public.outputs, temperature)
        model = Model(prior_with_public(float(np.clip(s, -6.0, 12.0).mean()), public.classes))
        own = _own_confidence(s, confidence(public.outputs, 1.0), public.classes, model.grid)
        return cls(model, temperature, own, public)

    @property
    def query(self) -> Hats:
        """The question that sources are asked."""
        return Hats(self.temperature, self.model.prior.knots)

    def read(self, averages: FloatArray, answers: int, noise_variance: float) -> Posterior:
        """What averages (B, length) over `answers` answers each say of the hidden rows."""
        return self.model.fit(averages, answers, noise_variance)


@cache
def _without_public() -> SketchReader:
    model = Model(WITHOUT_PUBLIC)
    return SketchReader(model, 1.0, sigmoid(model.grid))


def _own_confidence(s: FloatArray, own: FloatArray, classes: int, grid: FloatArray) -> FloatArray:
    """The mean confidence at T = 1 of rows with score s at another T, smoothly.

    A penalised logistic regression on a line with bends. Clean rows seldom have low scores, but
    there is a point both temperatures share: all classes equal, s = −log(classes − 1).
    """
    equal = -math.log(max(classes - 1, 1))
    s = np.clip(s, equal, max(float(grid[-1]), equal + 5.0))
    knots = np.linspace(equal, max(float(s.max()), equal + 5.0), _KNOTS)
    basis = np.stack([np.interp(s, knots, unit) for unit in np.eye(_KNOTS)], axis=1)
    bends = np.diff(np.eye(_KNOTS), 2, axis=0)
    fixed = 0.1 * bends.T @ bends
    value = knots.copy()
    for _ in range(50):
        p = sigmoid(basis @ value)
        weight = np.maximum(p * (1 - p), 1e-6)
        system = (basis * weight[:, None]).T @ basis + fixed
        slope = basis.T @ (own - p) - fixed @ value
        system[0, 0] += 1e3
        slope[0] += 1e3 * (equal - value[0])
        step = np.linalg.solve(system, slope)
        value = value + np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-6:
            break
    end = (value[-1] - value[-2]) / (knots[1] - knots[0])
    beyond = np.maximum(grid - knots[-1], 0) * end  # no score is below the first knot
    return sigmoid(np.interp(grid, knots, np.maximum.accumulate(value)) + beyond)
