"""The paper's "one source": ECE-T itself, asked of every trial's first source alone, without noise.

The paper says only that this baseline uses one source's rows and needs no noise. Of the ways to fit
one source, ECE-T's own search comes nearest to its figures; an exact fit by accuracy
(`Splits.fit_first_source`) does better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from privcal.maps import Map
from privcal.methods.base import Ask
from privcal.methods.ece_t import EceT
from privcal.methods.search import PAPERS_SEARCH
from privcal.queries import Query
from privcal.scores import BoolArray, FloatArray
from privcal.simulate import answers
from privcal.simulate.splits import Splits

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
        each = self.splits.keep(query, lambda: query.contributions(self.splits.scores))
        mine = self.mine[some]
        chosen = each.take(self.rows[some][mine])
        trial = np.nonzero(mine)[0][:, None]
        cells = trial * query.length + chosen.cells
        # Whole numbers below 2⁵³ add up exactly in float64, as these do.
        sums = np.bincount(cells.ravel(), chosen.values.ravel(), len(mine) * query.length)
        return sums.reshape(len(mine), query.length).astype(np.float64, copy=False)
