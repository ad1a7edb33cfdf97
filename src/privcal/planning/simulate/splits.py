"""Trials without replacement (private rows, and all the others to test on), and with replacement.

For one shift, trial t is one random order of the rows. A setting's private rows are the first
`sources · samples` of that order and its test rows all the rest, so every setting is a prefix,
and one gather over the longest prefix serves them all; trials are common to all methods, which
makes differences sharp. Sources that are not alike have an order of their own for each setting,
in which they too are contiguous pieces.

The search methods ask at a few dozen temperatures only, so the sums at each are computed once.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from privcal.calibration.fit import LOCAL_BOUNDS
from privcal.calibration.kernel import FAST
from privcal.calibration.methods.base import Ask
from privcal.data.scores import Scores
from privcal.planning.simulate.answers import by_run, by_temperature
from privcal.planning.simulate.archive import Archive
from privcal.planning.simulate.measure import (
    BINS,
    TABULATED,
    HeldOut,
    Measured,
    Tables,
    Trials,
    binned_gaps,
    interpolate,
    measure_gaps,
    table_index,
)
from privcal.trusted.errors import InputError
from privcal.trusted.kernel import bin_index
from privcal.trusted.queries import GRID, BinnedGap, Gap, Nll, Query
from privcal.trusted.scores import BoolArray, FloatArray, IntArray

# --- A random stream of its own for each name, whatever else runs and in whatever order -----------


def sequence(seed: int, *names: object) -> np.random.SeedSequence:
    """The seed of one stream; names are told apart by their text."""
    key = tuple(zlib.crc32(str(name).encode()) for name in names)
    return np.random.SeedSequence(seed, spawn_key=key)


def stream(seed: int, *names: object) -> np.random.Generator:
    """The stream itself."""
    return np.random.default_rng(sequence(seed, *names))


# --- Sources that are not alike: unequal sizes, and each with rows of some groups more than others ---
# Every row has a group: its label, or in the pseudo-shift `mixed` the shift that its logits come
# from, so that a source can live under a shift of its own. A source draws its proportions of groups
# from a Dirichlet law around the overall ones; `skew` is its concentration: infinite, all sources
# are alike; near 0, each has a single group. Its size is log-normal.
#
# Methods that ask for sums barely notice, and that is not a fault of the simulation: the average of
# sums over the same rows is the same whoever holds them. What remains is that the private rows
# together differ in make-up from the test rows, by more the more unequal sources are. A single
# source's own fit, in contrast, is of its own rows alone.

MIXED = "mixed"
SPREAD = 1.0
"""The standard deviation of the logarithm of a source's size."""


def mixed(archive: Archive, rng: np.random.Generator) -> tuple[Scores, IntArray]:
    """Every row under a shift of the archive drawn at random, and the number of that shift."""
    first = archive.scores(archive.shifts[0])
    shift_of = rng.integers(0, len(archive.shifts), len(first))
    logits = first.outputs.array.copy()
    for number, shift in enumerate(archive.shifts[1:], 1):
        rows = shift_of == number
        other = archive.scores(shift).outputs.array
        if other.shape != logits.shape:
            raise InputError(
                f"{shift} has shape {other.shape} and {archive.shifts[0]} {logits.shape}; "
                "shifts of different shapes cannot be mixed"
            )
        logits[rows] = other[rows]
    return Scores(logits=logits, labels=first.labels), shift_of


def draw_sizes(rng: np.random.Generator, sources: int, total: int) -> IntArray:
    """Log-normal sizes of at least 1 that add up to `total`."""
    weights = np.exp(SPREAD * rng.standard_normal(sources))
    ends = np.cumsum(weights / weights.sum()) * (total - sources)
    ends[-1] = total - sources  # whatever rounding did
    return np.asarray(np.diff(np.rint(ends).astype(np.int64), prepend=0) + 1)


def draw_sources(
    rng: np.random.Generator, groups: IntArray, sources: int, total: int, skew: float
) -> tuple[IntArray, IntArray]:
    """The rows of all sources, `total` of them, one source after the other, and the sources' sizes.

    No row is drawn twice. Where a group has no rows left, what is missing is drawn from all that nobody has.
    """
    sizes = draw_sizes(rng, sources, total)
    _, groups = np.unique(groups, return_inverse=True)
    there = np.bincount(groups)
    proportions = rng.dirichlet(skew * there / there.sum(), sources)
    wanted = rng.multinomial(sizes, proportions)
    # Each group's rows in random order are a queue, from which one source after the other takes.
    shuffled = rng.permutation(len(groups))
    queue = shuffled[np.argsort(groups[shuffled], kind="stable")]
    stop = np.minimum(wanted.cumsum(axis=0), there)
    taken = np.diff(stop, axis=0, prepend=0)
    start = (there.cumsum() - there) + stop - taken
    missing = sizes - taken.sum(axis=1)
    from_groups = _ranges(start.ravel(), taken.ravel())
    free = np.ones(len(groups), bool)
    free[from_groups] = False
    rest = rng.permutation(np.flatnonzero(free))[: missing.sum()]
    # A stable sort by source puts what was missing behind its own.
    source = np.arange(sources)
    owner = np.concatenate([np.repeat(source, taken.sum(axis=1)), np.repeat(source, missing)])
    taken_rows = np.concatenate([from_groups, rest])[np.argsort(owner, kind="stable")]
    return queue[taken_rows], sizes


def _ranges(start: IntArray, count: IntArray) -> IntArray:
    """start, start + 1, … (count of them), one such range after the other."""
    skipped = np.repeat(start - (count.cumsum() - count), count)
    return np.asarray(np.arange(count.sum()) + skipped)


# --- Trials without replacement: private rows of every trial, and all the others to test on -------

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
        return FAST.confidence(self.scores.outputs, 1.0)

    # --- sums over private rows ---------------------------------------------------------

    def sums(self, query: Query) -> FloatArray:
        """Sums of a query over every trial's prefixes, (trials, prefixes, length): whole numbers."""
        if query not in self._sums:
            rows = query.contributions(self.scores, FAST)
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
            c = FAST.confidence(self.scores.outputs, temperature)
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
            ask, self.trials, lambda query, some: self.of.sums(query)[some, self.column]
        )

    def _sums_of_one(self, query: Query, trial: int) -> FloatArray:
        """The sums of a query that only one trial asks, over its own rows."""
        rows = self.of.scores.take(self.of.order[trial, : self.private_rows])
        return query.contributions(rows, FAST).sum(query.length).astype(np.float64)

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


# --- A population that every trial's rows are drawn from, with replacement ------------------------
# Splits take private rows out of an archive and test on those that are left, so they can only
# simulate as many as there are. A planner must answer for any number. So the rows of a shift *are*
# the population here: every row of every source is an independent draw from it, and the error of a
# map is its error on the whole population. That is exact and not optimistic, because a method sees
# nothing but its draws, and the population is what they were drawn from.
#
# Splits draw n of N rows without putting them back: there private and test rows part ways with
# variance 1/n + 1/(N − n) instead of 1/n, so an ECE that comes from sampling is up to √(N/(N − n))
# times as large.

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
            rows = query.contributions(self.scores, FAST)
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
            lambda: binned_gaps(FAST.confidence(self.scores.outputs, temperature), self.target),
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
        rows = query.contributions(self.population.scores.take(drawn), FAST)
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
        means = np.stack([self.counts @ FAST.confidence(outputs, t) / rows for t in _TEMPERATURES])
        logs = np.log(_TEMPERATURES)
        fitted = [
            np.interp(-target, -column, logs)
            for target, column in zip(accuracy, means.T, strict=True)
        ]
        return np.asarray(np.clip(np.exp(fitted), *LOCAL_BOUNDS))
