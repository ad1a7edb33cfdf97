"""The no-privacy table: exact fits to random halves of a shift's rows."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from privcal.fit import Objective, fit_temperature
from privcal.kernel import confidence, nll
from privcal.metrics import aurc, brier, ece
from privcal.scores import Scores
from privcal.simulate.measure import BINS, Measured

EXACT: dict[str, Objective | None] = {
    "base": None,
    "nll-t": "nll",
    "acc-t": "accuracy",
    "ece-t": "ece",
}
HALVES = 3


def exact_fits(scores: Scores, rng: np.random.Generator) -> list[dict[str, Any]]:
    """A row for each fit: fitted to one half, measured on the other, over random halves.

    The paper does not say how it split; halves are our choice.
    """
    values: dict[str, list[tuple[float, float, float]]] = {name: [] for name in EXACT}
    temperatures: dict[str, list[float]] = {name: [] for name in EXACT}
    largest = float(nll(scores, 1.0).max())
    for _ in range(HALVES):
        order = rng.permutation(len(scores))
        fitted, test = (scores.take(np.sort(half)) for half in np.array_split(order, 2))
        for name, objective in EXACT.items():
            temperature = 1.0
            if objective is not None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    temperature = fit_temperature(fitted, objective).temperature
            c, y = confidence(test.outputs, temperature), test.correct
            values[name].append((ece(c, y, BINS), brier(c, y), aurc(c, y)))
            temperatures[name].append(temperature)
    return [
        {
            "method": name,
            "halves": HALVES,
            "accuracy": float(scores.correct.mean()),
            "rows": len(fitted),
            "largest_nll": largest,
            "temperature_mean": float(np.mean(temperatures[name])),
            "temperature_se": float(np.std(temperatures[name], ddof=1) / np.sqrt(HALVES)),
            **Measured(*np.array(each).T).summary(),
        }
        for name, each in values.items()
    ]
