"""The no-privacy table: exact fits to random halves of a shift's rows."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from privcal.fit import Objective, fit_temperature
from privcal.kernel import confidence
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
    return [
        {
            "method": name,
            "halves": HALVES,
            "accuracy": float(scores.correct.mean()),
            **Measured(*np.array(each).T).summary(),
        }
        for name, each in values.items()
    ]
