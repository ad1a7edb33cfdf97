"""Fits without the sources' answers, to compare with: exact ones, and the paper's "one source"."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from privcal.calibration.fit import Objective, fit_temperature
from privcal.calibration.kernel import FAST
from privcal.calibration.maps import Map
from privcal.calibration.methods.base import Ask
from privcal.calibration.methods.ece_t import EceT
from privcal.calibration.methods.search import PAPERS_SEARCH
from privcal.calibration.metrics import aurc, brier, ece
from privcal.data.scores import Scores
from privcal.planning.simulate import answers
from privcal.planning.simulate.measure import BINS, Measured
from privcal.planning.simulate.splits import Splits
from privcal.trusted.queries import Query
from privcal.trusted.scores import BoolArray, FloatArray

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
    largest = float(FAST.nll(scores, 1.0).max())
    for _ in range(HALVES):
        order = rng.permutation(len(scores))
        fitted, test = (scores.take(np.sort(half)) for half in np.array_split(order, 2))
        for name, objective in EXACT.items():
            temperature = 1.0
            if objective is not None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    temperature = fit_temperature(fitted, objective).temperature
            c, y = FAST.confidence(test.outputs, temperature), test.correct
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


# --- The paper's "one source": ECE-T itself, asked of every trial's first source alone, without noise ---
# The paper says only that this baseline uses one source's rows and needs no noise. Of the ways to fit
# one source, ECE-T's own search comes nearest to its figures; an exact fit by accuracy
# (`Splits.fit_first_source`) does better.

ECE_T = EceT(**PAPERS_SEARCH, bins=15)
"""With the paper's options, whatever those of a calibration are."""


def search_first_source(splits: Splits, samples: int) -> Sequence[Map]:
    """The map of each trial's first source, of `samples` rows or as many as it has."""
    rows = FirstSource(splits, samples)
    return answers.run(ECE_T, rows, 1, math.inf, np.random.default_rng(0))


class FirstSource:
    """The rows of every trial's first source, to be asked as all sources are."""

    def __init__(self, splits: Splits, samples: int) -> None:
        self.splits, self.trials = splits, splits.trials
        sizes = np.full(self.trials, samples) if splits.first is None else splits.first
        self.rows = splits.order[:, : sizes.max()]
        self.mine = np.arange(self.rows.shape[1]) < sizes[:, None]

    def sums(self, ask: Ask) -> FloatArray:
        """The sums without noise, (trials, length), in grid points."""
        return answers.by_temperature(ask, self.trials, self._sums)

    def _sums(self, query: Query, some: BoolArray) -> FloatArray:
        each = self.splits.keep(query, lambda: query.contributions(self.splits.scores, FAST))
        mine = self.mine[some]
        chosen = each.take(self.rows[some][mine])
        trial = np.nonzero(mine)[0][:, None]
        cells = trial * query.length + chosen.cells
        # Whole numbers below 2⁵³ add up exactly in float64, as these do.
        sums = np.bincount(cells.ravel(), chosen.values.ravel(), len(mine) * query.length)
        return sums.reshape(len(mine), query.length).astype(np.float64, copy=False)
