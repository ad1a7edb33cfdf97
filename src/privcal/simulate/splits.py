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
from privcal.simulate.answers import by_run, by_temperature
from privcal.simulate.measure import BINS, HeldOut, Measured, Trials
from privcal.simulate.temperatures import TABULATED, Tables, interpolate, measure_gaps, table_index
from privcal.simulate.unlike import draw_sources

_FEW_TEMPERATURES = 64
"""Up to so many different temperatures at once, each is computed exactly."""

_IN_CACHE = 1 << 15
"""Private rows that are worked on at once, in as many trials as that makes: all that is computed of
them stays in cache."""


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
        self._sums: dict[Query, FloatArray] = {}
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

    def sums(self, query: Query) -> FloatArray:
        """Sums of a query over every trial's prefixes, (trials, prefixes, length): whole numbers."""
        if query not in self._sums:
            rows = query.contributions(self.scores)
            self._totals[query] = rows.sum(query.length)
            if query.length == 1:
                parts = self.segment_sums(rows.values[:, 0])[..., None]
            else:
                parts = np.zeros((self.trials, len(self.prefixes), query.length))
                for r in range(rows.values.shape[1]):
                    parts += self.cell_sums(rows.cells[:, r], rows.values[:, r], query.length)
            # In memory by prefix, so that a setting's are in one piece.
            by_prefix = np.ascontiguousarray(parts.swapaxes(0, 1))
            self._sums[query] = by_prefix.cumsum(axis=0, out=by_prefix).swapaxes(0, 1)
        return self._sums[query]

    def cell_sums(
        self, cells: IntArray, values: npt.NDArray[np.generic], length: int
    ) -> FloatArray:
        """Sums of values by cell within each trial's segment between two prefixes.

        Whole numbers below 2⁵³ add up exactly in float64, as these do.
        """
        sums = np.empty((self.trials, len(self.prefixes), length))
        values = values.astype(np.float64)
        for some, rows, begins in self._chunks(self.prefixes, length):
            where = cells.take(rows) + begins
            added = np.bincount(where.ravel(), values.take(rows).ravel(), sums[some].size)
            sums[some] = added.reshape(sums[some].shape)
        return sums

    def segment_sums(self, values: npt.NDArray[Any]) -> FloatArray:
        """Sums of values within each trial's segment between two prefixes."""
        sums = np.empty((self.trials, len(self.prefixes)))
        values = values.astype(np.float64)
        for some, rows, _ in self._chunks(self.prefixes):
            np.add.reduceat(values.take(rows), [0, *self.prefixes[:-1]], axis=1, out=sums[some])
        return sums

    def _chunks(
        self, prefixes: Sequence[int], length: int = 1
    ) -> Iterator[tuple[slice, IntArray, IntArray]]:
        """A few trials at a time, their private rows, and for each of these rows where the cells of
        its trial and its segment between two prefixes begin, if a segment has so many."""
        most = prefixes[-1]
        height = min(self.trials, max(1, _IN_CACHE // most))
        segment = np.repeat(np.arange(len(prefixes)), np.diff([0, *prefixes]))
        begins = (np.arange(height)[:, None] * len(prefixes) + segment) * length
        for start in range(0, self.trials, height):
            some = slice(start, min(start + height, self.trials))
            yield some, self.order[some, :most], begins[: some.stop - start]

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
        private = np.empty((self.trials, len(ends), BINS))
        squares = np.empty((self.trials, len(ends)))
        correct = self.target.astype(np.float64)
        for some, rows, begins in self._chunks(ends, BINS):
            c = interpolate(self.tables.confidence, rows, indices[some])
            gap = correct.take(rows) - c
            cells = bin_index(c, BINS) + begins
            binned = np.bincount(cells.ravel(), gap.ravel(), private[some].size)
            private[some] = binned.reshape(private[some].shape)
            np.add.reduceat(gap * gap, [0, *ends[:-1]], axis=1, out=squares[some])
        private, squares = private.cumsum(axis=1), squares.cumsum(axis=1)
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
        if ask.queries is not None:
            return by_run(ask, self.trials, self._sums_of_one)
        wanted = ask.temperatures
        if wanted is not None and len(np.unique(wanted)) > _FEW_TEMPERATURES and _in_tables(wanted):
            return self.of.tabulated_sums(ask.query, wanted, self.private_rows)
        return by_temperature(
            ask,
            self.trials,
            lambda query, some: self.of.sums(query)[some, self.column],
        )

    def _sums_of_one(self, query: Query, trial: int) -> FloatArray:
        """The sums of a query that only one trial asks, over its own rows."""
        rows = self.of.scores.take(self.of.order[trial, : self.private_rows])
        return query.contributions(rows).sum(query.length).astype(np.float64)

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
