"""A shift as a population: sources draw from its rows, and maps are measured on all of them.

The study takes private rows out of an archive and tests on those that are left, so it can only
simulate as many as there are. A planner must answer for any number. So the rows of a shift *are*
the population here: every row of every source is an independent draw from it, and the error of a
map is its error on the whole population. That is exact and not optimistic, because a method sees
nothing but its draws, and the population is what they were drawn from. No row is lost to a
split, and no sampling error of a test set is added to what a plan says.

What differs from the study, which draws n of N rows without putting them back: there private and
test rows part ways with variance 1/n + 1/(N − n) instead of 1/n, so an ECE that comes from
sampling is up to √(N/(N − n)) times as large.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from privcal import kernel
from privcal.maps import BinsMap, CurveMap, Map, TemperatureMap
from privcal.methods.base import Ask, Batch, History, Method, drive
from privcal.metrics import bin_index
from privcal.privacy.epsilon import to_nano
from privcal.queries import GRID, Query
from privcal.scores import BoolArray, FloatArray, IntArray, Scores
from privcal.study.simulator import average_noise
from privcal.study.tabulated import BINS

ONE_SOURCE_BOUNDS = (0.5, 3.0)
_TEMPERATURES = np.geomspace(*ONE_SOURCE_BOUNDS, 49)
"""Where mean confidences are known exactly; the root lies on a straight line between two."""

_MANY_ROWS = 20_000
"""From so many on, counting how often each row is drawn is faster than drawing rows."""

_CELLS = 1000
"""Of rows with almost the same score, on which curves are measured."""


def stream(seed: int, *names: object) -> np.random.Generator:
    """Randomness of its own for each name, whatever else runs and in whatever order."""
    key = tuple(zlib.crc32(str(name).encode()) for name in names)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


class Measured(NamedTuple):
    """ECE and Brier score, one value for each trial."""

    ece: FloatArray
    brier: FloatArray


class Population:
    """The rows of one shift, and what is known about them without any draw."""

    def __init__(self, scores: Scores) -> None:
        self.scores = scores
        scores.outputs.remembered = {}  # several queries ask at the same temperatures
        self.correct = scores.correct.astype(np.float64)
        self._contributions: dict[Query, list[tuple[IntArray, FloatArray]]] = {}
        self._by_temperature: dict[float, tuple[float, float]] = {}
        self._cells: dict[float, tuple[FloatArray, ...]] = {}
        self._bins: dict[int, tuple[FloatArray, ...]] = {}

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

    def draw(self, rng: np.random.Generator, trials: int, rows: int) -> FloatArray:
        """How often each row of the population is among `rows` draws: (trials, rows of it)."""
        size = len(self.scores)
        if rows >= _MANY_ROWS:
            return rng.multinomial(rows, np.full(size, 1 / size), trials).astype(np.float64)
        drawn = rng.integers(size, size=(trials, rows)) + np.arange(trials)[:, None] * size
        counts = np.bincount(drawn.ravel(), minlength=trials * size)
        return counts.reshape(trials, size).astype(np.float64)

    def own_fit(self, counts: FloatArray) -> FloatArray:
        """The temperature at which each trial's rows have mean confidence equal to accuracy.

        The mean confidence falls with T; outside the bounds, the nearest of them.
        """
        rows = counts.sum(axis=1)
        accuracy = counts @ self.correct / rows
        means = np.stack(
            [counts @ kernel.confidence(self.scores.outputs, t) / rows for t in _TEMPERATURES]
        )
        logs = np.log(_TEMPERATURES)
        found = [
            np.interp(-target, -column, logs)
            for target, column in zip(accuracy, means.T, strict=True)
        ]
        return np.asarray(np.clip(np.exp(found), *ONE_SOURCE_BOUNDS))

    # --- measuring ----------------------------------------------------------------------

    def measure(self, maps: Sequence[Map]) -> Measured:
        """ECE and Brier score of each map on the whole population."""
        found = np.array([self._measure(one) for one in maps])
        return Measured(found[:, 0], found[:, 1])

    def _measure(self, map: Map) -> tuple[float, float]:
        if isinstance(map, TemperatureMap):
            t = map.temperature
            if t not in self._by_temperature:  # a search ends at a few of them
                self._by_temperature[t] = self._of(kernel.confidence(self.scores.outputs, t))
            return self._by_temperature[t]
        if isinstance(map, BinsMap):
            return self._of_bins(map)
        if isinstance(map, CurveMap):
            return self._of_curve(map)
        return self._of(map.confidence(self.scores))

    def _of(self, confidence: FloatArray) -> tuple[float, float]:
        gap = self.correct - confidence
        binned = np.bincount(bin_index(confidence, BINS), gap, BINS)
        return float(np.abs(binned).sum() / len(gap)), float(gap @ gap / len(gap))

    def _of_curve(self, map: CurveMap) -> tuple[float, float]:
        """On cells of rows with almost the same score, each at its mean score.

        Moves the ECE by less than 1e-4 on average (shown by test).
        """
        s, count, correct = self._by_score(map.temperature)
        with np.errstate(over="ignore"):
            c = 1 / (1 + np.exp(-map.at(s)))
        gaps = np.bincount(bin_index(c, BINS), correct - count * c, BINS)
        squares = (count * c**2 - 2 * c * correct + correct).sum()
        rows = len(self.correct)
        return float(np.abs(gaps).sum() / rows), float(squares / rows)

    def _by_score(self, temperature: float) -> tuple[FloatArray, ...]:
        """Mean score, rows and correct rows of each cell, in the order of scores."""
        if temperature not in self._cells:
            s = kernel.log_odds(self.scores.outputs, temperature)
            order = np.argsort(s)
            starts = np.unique(np.linspace(0, len(s), _CELLS + 1).astype(np.int64)[:-1])
            count = np.diff([*starts, len(s)]).astype(np.float64)
            score = np.add.reduceat(s[order], starts) / count
            self._cells[temperature] = score, count, np.add.reduceat(self.correct[order], starts)
        return self._cells[temperature]

    def _of_bins(self, map: BinsMap) -> tuple[float, float]:
        """All rows of a bin get one value, so counts by bin are all that is needed."""
        values = np.array(map.values, np.float64)  # None becomes NaN
        count, correct, squares, stayed = self._by_bin(len(values))
        known = ~np.isnan(values)
        value = np.where(known, values, 0.0)
        moved = np.where(known, correct - count * value, 0.0)
        gaps = np.bincount(bin_index(value, BINS), moved, BINS) + stayed[~known].sum(axis=0)
        replaced = count * value**2 - 2 * value * correct + correct
        brier = np.where(known, replaced, squares).sum()
        rows = len(self.correct)
        return float(np.abs(gaps).sum() / rows), float(brier / rows)

    def _by_bin(self, bins: int) -> tuple[FloatArray, ...]:
        """By bin at T = 1: rows, correct rows, squares, and the gap in each bin of the ECE."""
        if bins not in self._bins:
            c = TemperatureMap(1.0).confidence(self.scores)
            where, gap = bin_index(c, bins), self.correct - c
            cells = where * BINS + bin_index(c, BINS)
            self._bins[bins] = (
                np.bincount(where, minlength=bins).astype(np.float64),
                _sums(where, self.correct, bins),
                _sums(where, gap**2, bins),
                _sums(cells, gap, bins * BINS).reshape(bins, BINS),
            )
        return self._bins[bins]


def _sums(where: IntArray, values: FloatArray, cells: int) -> FloatArray:
    return np.bincount(where, values, cells).astype(np.float64, copy=False)


class Draws:
    """The rows of all sources, in every trial, and what they answer."""

    def __init__(
        self, population: Population, rng: np.random.Generator, trials: int, sources: int, rows: int
    ) -> None:
        self.population, self.trials, self.sources = population, trials, sources
        self.counts = population.draw(rng, trials, sources * rows)
        self._sums: dict[Query, FloatArray] = {}

    def run(self, method: Method, epsilon: float, rng: np.random.Generator) -> Sequence[Map]:
        """The map of every trial: the method that ships, answered by arithmetic."""
        history = History(sources=self.sources)

        def answer(asks: Sequence[Ask]) -> History:
            for ask in asks:
                sums = self._exact(ask) / (GRID * self.sources)
                history.append(sums + average_noise(rng, self.sources, ask, sums.shape))
            return history

        return drive(method.run(Batch(self.trials, to_nano(epsilon), rng)), answer)

    def _exact(self, ask: Ask) -> FloatArray:
        """The noise-free sums over all sources, (trials, length), in grid points."""
        if ask.temperatures is None:
            return self._sum(ask.query, np.ones(self.trials, bool))
        found = np.empty((self.trials, ask.query.length))
        for temperature in np.unique(ask.temperatures):
            here = ask.temperatures == temperature
            found[here] = self._sum(ask.query.at(temperature), here)[here]
        return found

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
        return sums
