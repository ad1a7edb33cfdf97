"""Trials without replacement: private rows of every trial, and all the others to test on.

For one shift, trial t is one random order of the rows. A setting's private rows are the first
`sources · samples` of that order and its test rows all the rest, so every setting is a prefix,
and one gather over the longest prefix serves them all; trials are common to all methods, which
makes differences sharp. Sources that are not alike have an order of their own for each setting,
in which they too are contiguous pieces (see `unlike`).

The search methods ask at a few dozen temperatures only, so the sums at each are computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from privcal import kernel
from privcal.errors import InputError
from privcal.methods.base import Ask
from privcal.metrics import bin_index
from privcal.queries import GRID, BinnedGap, Gap, Nll, Query
from privcal.scores import BoolArray, FloatArray, IntArray, Scores
from privcal.simulate.answers import by_temperature
from privcal.simulate.measure import BINS, HeldOut, Measured, Trials
from privcal.simulate.temperatures import TABULATED, Tables, interpolate, measure_gaps, table_index
from privcal.simulate.unlike import draw_sources

_FEW_TEMPERATURES = 64
"""Up to so many different temperatures at once, each is computed exactly."""


class Splits(Trials):
    """All trials of one shift, from the private rows of each."""

    def __init__(
        self,
        scores: Scores | Tables,
        prefixes: Sequence[int],
        order: npt.NDArray[np.int64],
        first: IntArray | None = None,
    ) -> None:
        """`order` holds the private rows of each trial in their order, (trials, most of them)."""
        self.tables = scores if isinstance(scores, Tables) else Tables(scores)
        super().__init__(self.tables.scores)
        self.prefixes = sorted(set(prefixes))
        self.order = order
        self.trials = len(order)
        self.first = first
        """The size of each trial's first source, where sources are not alike."""
        # Kept between gathers: fresh memory for each would cost more than the gather.
        self._numbers, self._cells = np.empty(order.shape), np.empty_like(order)
        self._starts = np.array([0, *self.prefixes[:-1]])
        self._begins: dict[int, IntArray] = {}
        self._sums: dict[Query, IntArray] = {}
        self._totals: dict[Query, IntArray] = {}
        self._squares: dict[float, tuple[FloatArray, float]] = {}

    @classmethod
    def alike(
        cls,
        scores: Scores | Tables,
        prefixes: Sequence[int],
        trials: int,
        seed: np.random.SeedSequence,
    ) -> Splits:
        """Sources that are alike: random rows, for each of these numbers of private rows."""
        rows, most = _room(scores, max(prefixes))
        rng = np.random.default_rng(seed)
        order = np.stack([rng.permutation(rows)[:most] for _ in range(trials)])
        return cls(scores, prefixes, order)

    @classmethod
    def unlike(
        cls,
        scores: Scores | Tables,
        groups: IntArray,
        sources: int,
        samples: int,
        skew: float,
        trials: int,
        seed: np.random.SeedSequence,
    ) -> Splits:
        """Sources that are not alike (see `unlike`), with `samples` rows on average."""
        _, private = _room(scores, sources * samples)
        rng = np.random.default_rng(seed)
        drawn = [draw_sources(rng, groups, sources, private, skew) for _ in range(trials)]
        order = np.stack([rows for rows, _ in drawn])
        return cls(scores, [private], order, np.array([sizes[0] for _, sizes in drawn]))

    def at(self, private_rows: int) -> Split:
        """The trials with so many private rows."""
        return Split(self, private_rows)

    def own(self) -> FloatArray:
        """In single precision, as the sums of queries have it."""
        return kernel.confidence(self.scores.outputs, 1.0)

    # --- sums over private rows ---------------------------------------------------------

    def sums(self, query: Query) -> IntArray:
        """Integer sums of a query over every trial's prefixes: (trials, prefixes, length)."""
        if query not in self._sums:
            rows = query.contributions(self.scores)
            self._totals[query] = rows.sum(query.length)
            if query.length == 1:
                parts = self.segment_sums(rows.values[:, 0])[..., None]
            else:
                parts = np.zeros((self.trials, len(self.prefixes), query.length), np.int64)
                for r in range(rows.values.shape[1]):
                    sums = self.cell_sums(rows.cells[:, r], rows.values[:, r], query.length)
                    parts += sums.astype(np.int64)
            self._sums[query] = parts.cumsum(axis=1)
        return self._sums[query]

    def cell_sums(
        self, cells: IntArray, values: npt.NDArray[np.generic], length: int
    ) -> FloatArray:
        """Sums of values by cell within each trial's segment between two prefixes.

        Whole numbers below 2⁵³ add up exactly in float64, as these do.
        """
        np.take(cells, self.order, out=self._cells, mode="clip")
        self._cells += self._segments(length)
        np.take(values.astype(np.float64), self.order, out=self._numbers, mode="clip")
        count = self.trials * len(self.prefixes) * length
        sums = np.bincount(self._cells.ravel(), self._numbers.ravel(), count)
        return sums.astype(np.float64, copy=False).reshape(self.trials, len(self.prefixes), length)

    def segment_sums(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sums of values within each trial's segment between two prefixes."""
        buffer = self._cells if values.dtype == self._cells.dtype else self._numbers
        np.take(values, self.order, out=buffer, mode="clip")
        return np.asarray(np.add.reduceat(buffer, self._starts, axis=1))

    def _segments(self, length: int) -> IntArray:
        """For each private row of each trial: where the cells of its trial and segment begin."""
        if length not in self._begins:
            segment = np.repeat(np.arange(len(self.prefixes)), np.diff([0, *self.prefixes]))
            trial = np.arange(self.trials)[:, None] * len(self.prefixes)
            self._begins = {length: (trial + segment) * length}
        return self._begins[length]

    # --- sums over test rows ------------------------------------------------------------

    def held_out(self, code: IntArray, codes: int) -> Iterator[IntArray]:
        trial = np.arange(self.trials)[:, None]
        begins = code * self.trials
        private = np.zeros((codes, self.trials), np.int64)
        total = np.bincount(code, minlength=codes)[:, None]
        for start, stop in zip([0, *self.prefixes], self.prefixes, strict=False):
            cells = begins[self.order[:, start:stop]]
            cells += trial
            private += np.bincount(cells.ravel(), minlength=private.size).reshape(private.shape)
            yield total - private

    def held_out_sums(self, code: IntArray, values: npt.NDArray[Any], codes: int) -> FloatArray:
        private = self.cell_sums(code, values, codes).cumsum(axis=1)
        return np.asarray(np.bincount(code, values, codes) - private)

    def gaps_at(
        self, temperature: float, column: int, trials: BoolArray
    ) -> tuple[FloatArray, FloatArray]:
        """What `HeldOut.gaps` gives, at one temperature and for some trials."""
        query = BinnedGap(temperature, BINS)
        private = self.sums(query)[trials, column]
        if temperature not in self._squares:
            c = kernel.confidence(self.scores.outputs, temperature)
            rows = (c - self.target) ** 2
            parts = self.segment_sums(rows).cumsum(axis=1)
            self._squares[temperature] = parts, float(rows.sum())
        squares, total = self._squares[temperature]
        return (self._totals[query] - private) / GRID, total - squares[trials, column]

    def tabulated_gaps(
        self, temperatures: FloatArray, prefixes: Sequence[int]
    ) -> dict[int, tuple[FloatArray, FloatArray]]:
        """What `HeldOut.gaps` gives, at several numbers of private rows, for many temperatures:
        each is moved to the nearest of a fine grid, and each row's confidence there is
        interpolated between `TABULATED`.

        Both errors together move a trial's ECE by less than 1e-4 on average (shown by test).
        """
        indices, totals = self.tables.fine_totals(temperatures)
        ends = sorted(set(prefixes))
        rows = self.order[:, : ends[-1]]
        c = interpolate(self.tables.confidence, rows, indices)
        gap = self.target[rows] - c
        segment = np.repeat(np.arange(len(ends)), np.diff([0, *ends]))
        begins = (np.arange(self.trials)[:, None] * len(ends) + segment) * BINS
        count = self.trials * len(ends) * BINS
        binned = np.bincount((begins + bin_index(c, BINS)).ravel(), gap.ravel(), count)
        private = binned.reshape(self.trials, len(ends), BINS).cumsum(axis=1)
        squares = np.add.reduceat(gap * gap, [0, *ends[:-1]], axis=1).cumsum(axis=1)
        return {
            end: (totals[:, :BINS] - private[:, column], totals[:, BINS] - squares[:, column])
            for column, end in enumerate(ends)
        }

    def tabulated_sums(
        self, query: Query, temperatures: FloatArray, private_rows: int
    ) -> FloatArray:
        """Sums of a query at many temperatures, by interpolating each private row's own table."""
        rows = self.order[:, :private_rows]
        if isinstance(query, Nll):
            nll = interpolate(self.tables.nll, rows, table_index(temperatures))
            values = np.clip(nll, 0.0, query.clip)
        elif isinstance(query, (Gap, BinnedGap)):
            c = interpolate(self.tables.confidence, rows, table_index(temperatures))
            values = self.target[rows] - c
            if isinstance(query, BinnedGap):
                cells = np.arange(self.trials)[:, None] * query.bins + bin_index(c, query.bins)
                sums = np.bincount(cells.ravel(), values.ravel(), self.trials * query.bins)
                return np.asarray(sums.reshape(-1, query.bins) * GRID)
        else:
            raise InputError(f"query {query.kind} cannot be tabulated over temperatures")
        return np.asarray(values.sum(axis=1)[:, None] * GRID)

    def fit_first_source(self, samples: int, objective: str) -> FloatArray:
        """The exact temperature of each trial's first source, to the error of the table.

        Both objectives are the root of a function that is monotone in T. The source has
        `samples` rows, or where sources are not alike as many as it has.
        """
        sizes = self.first
        rows = self.order[:, : samples if sizes is None else sizes.max()]

        def mean(values: npt.NDArray[Any]) -> FloatArray:
            if sizes is None:
                return np.asarray(values.mean(axis=1, dtype=np.float64))
            mine = np.arange(values.shape[1]) < sizes[:, None]
            return np.asarray(values.sum(axis=1, dtype=np.float64, where=mine) / sizes)

        if objective == "accuracy":
            table, target = self.tables.confidence, mean(self.target[rows])
        else:
            table, target = self.tables.slope, np.zeros(self.trials)
        flat, width = table.ravel(), table.shape[1]

        def excess(index: IntArray) -> FloatArray:
            return np.asarray(mean(flat[rows + (index * width)[:, None]]) - target)

        # Decreasing in T: halve until the root is between two neighbours, or beyond an end.
        left = np.zeros(self.trials, np.int64)
        right = np.full(self.trials, len(TABULATED) - 1)
        while (right - left > 1).any():
            middle = (left + right) // 2
            positive = excess(middle) > 0
            left, right = np.where(positive, middle, left), np.where(positive, right, middle)
        a, b = excess(left), excess(right)
        share = np.clip(a / np.where(a == b, 1.0, a - b), 0, 1)
        logs = np.log(TABULATED)
        temperatures = np.exp(logs[left] + share * (logs[right] - logs[left]))
        return np.asarray(np.clip(temperatures, TABULATED[0], TABULATED[-1]))


class Split(HeldOut):
    """All trials with one number of private rows."""

    def __init__(self, splits: Splits, private_rows: int) -> None:
        self._splits = splits
        self.private_rows = private_rows
        self.column = splits.prefixes.index(private_rows)
        self.trials = splits.trials
        self.size = len(splits.scores) - private_rows

    @property
    def of(self) -> Splits:
        return self._splits

    def sums(self, ask: Ask) -> FloatArray:
        """The sums over all private rows without noise, (trials, length), in grid points."""
        wanted = ask.temperatures
        if wanted is not None and len(np.unique(wanted)) > _FEW_TEMPERATURES and _in_tables(wanted):
            return self.of.tabulated_sums(ask.query, wanted, self.private_rows)
        return by_temperature(
            ask,
            self.trials,
            lambda query, some: self.of.sums(query)[some, self.column].astype(np.float64),
        )

    def rows(self, trial: int) -> BoolArray:
        test = np.ones(len(self.of.scores), bool)
        test[self.of.order[trial, : self.private_rows]] = False
        return test

    def gaps(self, temperatures: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        different = np.unique(temperatures)
        if len(different) > _FEW_TEMPERATURES:
            if not _in_tables(different):
                return None
            return self.of.tabulated_gaps(temperatures, [self.private_rows])[self.private_rows]
        gaps, squares = np.empty((self.trials, BINS)), np.empty(self.trials)
        for temperature in different:
            some = temperatures == temperature
            gaps[some], squares[some] = self.of.gaps_at(float(temperature), self.column, some)
        return gaps, squares


def _in_tables(temperatures: FloatArray) -> bool:
    """Whether all of these lie within `TABULATED`."""
    return bool(TABULATED[0] <= temperatures.min() and temperatures.max() <= TABULATED[-1])


def _room(scores: Scores | Tables, private_rows: int) -> tuple[int, int]:
    """The number of rows, and of private ones if there are fewer."""
    rows = len(scores.scores if isinstance(scores, Tables) else scores)
    if private_rows >= rows:
        raise InputError(
            f"the grid takes {private_rows:,} private rows of {rows:,}; "
            "none would be left to test on"
        )
    return rows, private_rows


def measure_tabulated(temperatures: FloatArray, splits: Sequence[Split]) -> list[Measured]:
    """What temperatures are worth, by tables, at several numbers of private rows of the same trials."""
    gaps = splits[0].of.tabulated_gaps(temperatures, [split.private_rows for split in splits])
    return [measure_gaps(temperatures, *gaps[split.private_rows], split) for split in splits]
