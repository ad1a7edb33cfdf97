"""Trials with replacement: a shift as a population that sources draw from, and maps are measured on.

Splits take private rows out of an archive and test on those that are left, so they can only
simulate as many as there are. A planner must answer for any number. So the rows of a shift *are*
the population here: every row of every source is an independent draw from it, and the error of a
map is its error on the whole population. That is exact and not optimistic, because a method sees
nothing but its draws, and the population is what they were drawn from. No row is lost to a
split, and no sampling error of a test set is added to what a plan says.

What differs from splits, which draw n of N rows without putting them back: there private and
test rows part ways with variance 1/n + 1/(N − n) instead of 1/n, so an ECE that comes from
sampling is up to √(N/(N − n)) times as large.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from privcal import kernel
from privcal.methods.base import Ask
from privcal.queries import Query
from privcal.scores import BoolArray, FloatArray, IntArray, Scores
from privcal.simulate.answers import by_run, by_temperature
from privcal.simulate.measure import HeldOut, Trials, binned_gaps
from privcal.source import LOCAL_BOUNDS

_TEMPERATURES = np.geomspace(*LOCAL_BOUNDS, 49)
"""Where mean confidences are known exactly; the root lies on a straight line between two."""

_MANY_DRAWS = 20_000
"""From so many on, counting how often each row is drawn is faster than drawing rows."""


class Resampled(Trials, HeldOut):
    """The rows of one shift: each may be drawn any number of times, and every row is tested on."""

    column = 0
    shared = True

    def __init__(self, scores: Scores) -> None:
        super().__init__(scores.remembering())
        self.size = len(scores)
        self._contributions: dict[Query, list[tuple[IntArray, FloatArray]]] = {}

    @property
    def of(self) -> Resampled:
        return self

    def contributions(self, query: Query) -> list[tuple[IntArray, FloatArray]]:
        """What each row adds: the integers a Source would sum, as pairs of cells and values."""
        if query not in self._contributions:
            rows = query.contributions(self.scores)
            values = rows.values.astype(np.float64)
            self._contributions[query] = [
                (np.ascontiguousarray(rows.cells[:, r]), np.ascontiguousarray(values[:, r]))
                for r in range(values.shape[1])
            ]
        return self._contributions[query]

    def draw(self, rng: np.random.Generator, trials: int, rows: int) -> Resample:
        """So many rows of all sources together, in every trial."""
        if rows >= _MANY_DRAWS:
            counts = rng.multinomial(rows, np.full(self.size, 1 / self.size), trials)
        else:
            begins = np.arange(trials)[:, None] * self.size
            drawn = rng.integers(self.size, size=(trials, rows)) + begins
            counts = np.bincount(drawn.ravel(), minlength=trials * self.size)
        return Resample(self, counts.reshape(trials, self.size).astype(np.float64))

    # --- the rows to test on ------------------------------------------------------------

    def own(self) -> FloatArray:
        """In double precision, as maps have it."""
        return self.confidence(1.0)

    def held_out(self, code: IntArray, codes: int) -> Iterator[IntArray]:
        yield np.bincount(code, minlength=codes)[:, None]

    def held_out_sums(self, code: IntArray, values: npt.NDArray[Any], codes: int) -> FloatArray:
        return np.bincount(code, values, codes).astype(np.float64, copy=False)[None, None]

    def rows(self, trial: int) -> slice:
        return slice(None)

    def gaps(self, temperatures: FloatArray) -> tuple[FloatArray, FloatArray]:
        gaps, squares = zip(*(self._gaps(float(t)) for t in temperatures), strict=True)
        return np.stack(gaps), np.array(squares)

    def _gaps(self, temperature: float) -> tuple[FloatArray, float]:
        return self.keep(  # a search ends at a few temperatures
            ("gaps", temperature),
            lambda: binned_gaps(kernel.confidence(self.scores.outputs, temperature), self.target),
        )


class Resample:
    """The rows of all sources in every trial: how often each row of the population was drawn."""

    def __init__(self, population: Resampled, counts: FloatArray) -> None:
        self.population = population
        self.counts = counts
        """(trials, rows of the population)."""
        self.trials = len(counts)
        self._sums: dict[Query, FloatArray] = {}

    def sums(self, ask: Ask) -> FloatArray:
        """The sums over all draws without noise, (trials, length), in grid points."""
        if ask.queries is not None:
            return by_run(ask, self.trials, self._sum_of_one)
        return by_temperature(ask, self.trials, self._sum)

    def _sum_of_one(self, query: Query, trial: int) -> FloatArray:
        """The sums of a query that only one trial asks, over the rows it drew."""
        [drawn] = np.nonzero(self.counts[trial])
        rows = query.contributions(self.population.scores.take(drawn))
        values = rows.values * self.counts[trial, drawn][:, None]
        return np.bincount(rows.cells.ravel(), values.ravel(), query.length).astype(np.float64)

    def _sum(self, query: Query, wanted: BoolArray) -> FloatArray:
        """Sums of a query for the wanted trials; whole numbers below 2⁵³ add up exactly."""
        if query not in self._sums:
            self._sums[query] = np.full((self.trials, query.length), np.nan)
        sums = self._sums[query]
        missing = wanted & np.isnan(sums[:, 0])
        if missing.any():
            counts, total = self.counts[missing], np.zeros((missing.sum(), query.length))
            for cells, values in self.population.contributions(query):
                if query.length == 1:
                    total[:, 0] += counts @ values
                else:
                    total += [np.bincount(cells, row * values, query.length) for row in counts]
            sums[missing] = total
        return np.asarray(sums[wanted])

    def own_fit(self) -> FloatArray:
        """The temperature at which each trial's rows have mean confidence equal to accuracy.

        The mean confidence falls with T; outside the bounds, the nearest of them.
        """
        rows, outputs = self.counts.sum(axis=1), self.population.scores.outputs
        accuracy = self.counts @ self.population.target.astype(np.float64) / rows
        means = np.stack(
            [self.counts @ kernel.confidence(outputs, t) / rows for t in _TEMPERATURES]
        )
        logs = np.log(_TEMPERATURES)
        fitted = [
            np.interp(-target, -column, logs)
            for target, column in zip(accuracy, means.T, strict=True)
        ]
        return np.asarray(np.clip(np.exp(fitted), *LOCAL_BOUNDS))
