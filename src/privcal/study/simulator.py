"""Many runs at once: the same methods as a real calibration, answered by arithmetic.

For one shift, trial t is one random order of the rows. A setting's private rows are the first
`sources · samples` of that order and its test rows all the rest, so every setting is a prefix,
and one gather over the longest prefix serves them all; trials are common to all methods, which
makes differences sharp. Sources that are not alike have an order of their own for each setting,
in which they too are contiguous pieces (see `skew`).

A query's exact sums come from `Query.contributions`, the very integers a Source would sum; the
search methods ask at a few dozen temperatures only, so each is computed once. The noise of the
average of d sources is drawn at once: a sum of d Laplace variables is a difference of two
Gamma(d) variables. This is ordinary seeded noise: the simulator is not a Source, protects
nobody, and cannot be mistaken for one. Its sources do not lie, and nothing is left out of its
averages as implausible (see `privcal.plausible`): a real calibration leaves out honest sources so
seldom that it makes no difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from privcal import kernel
from privcal.errors import InputError
from privcal.maps import BinsMap, CurveMap, Map, TemperatureMap
from privcal.methods.base import Ask, Batch, History, Method, drive
from privcal.metrics import AllRows, bin_index
from privcal.privacy.epsilon import MAX_EPSILON, NANO, to_nano
from privcal.queries import GRID, BinnedGap, Gap, Nll, Query
from privcal.scores import FloatArray, IntArray, Scores
from privcal.study.cells import RankCells, private_counts, tied_aurc
from privcal.study.curves import measure_curves
from privcal.study.grids import Setting
from privcal.study.measured import Measured
from privcal.study.skew import draw_sources
from privcal.study.tabulated import BINS, FINE, TABULATED, Tables, interpolate, place

_FEW = 64
"""Up to so many different temperatures at once, each is computed exactly."""

KNOTS = np.concatenate([np.geomspace(0.5, 1, 4), np.geomspace(1, 3, 6)[1:]])
"""Temperatures at which rows are ranked: their order changes slowly in between."""

_COARSE = 96
"""Cells of a ranking that is only for the AURC."""

_CELLS = 1024
"""Cells of a ranking on which curves are measured."""

_FEW_SCORES = 4
"""Up to so many scores (temperatures) of curves, they are measured on cells."""

_PARTS = 24
"""Parts of a bin, for the order of its rows where a map leaves them as they were."""


class Simulator:
    """All trials of one shift."""

    def __init__(
        self,
        scores: Scores,
        settings: Sequence[Setting],
        trials: int,
        seed: np.random.SeedSequence,
        groups: IntArray | None = None,
        tables: Tables | None = None,
    ) -> None:
        """`groups` of rows are by default their labels; they matter to a skewed setting only,
        which must be alone."""
        self.scores = scores
        self.trials = trials
        self.tables = tables or Tables(scores)
        self.prefixes = sorted({s.private_rows for s in settings})
        if self.prefixes[-1] >= len(scores):
            raise InputError(
                f"the grid takes {self.prefixes[-1]:,} private rows of {len(scores):,}; "
                "none would be left to test on"
            )
        scores.outputs.remembered = {}  # several queries ask at the same temperatures
        rng = np.random.default_rng(seed)
        self.first: IntArray | None = None
        """The size of each trial's first source, where sources are not alike."""
        if all(math.isinf(s.skew) for s in settings):
            self.order = np.stack(
                [rng.permutation(len(scores))[: self.prefixes[-1]] for _ in range(trials)]
            )
        else:
            [setting] = settings
            group = scores.labels if groups is None else groups
            drawn = [draw_sources(rng, group, setting) for _ in range(trials)]
            self.order = np.stack([rows for rows, _ in drawn])
            self.first = np.array([sizes[0] for _, sizes in drawn])
        # Kept between gathers: fresh memory for each would cost more than the gather.
        self._numbers, self._cells = np.empty(self.order.shape), np.empty_like(self.order)
        self._starts = np.array([0, *self.prefixes[:-1]])
        self._begins: dict[int, IntArray] = {}
        self._sums: dict[Query, IntArray] = {}
        self._totals: dict[Query, IntArray] = {}
        self._brier: dict[float, tuple[FloatArray, float]] = {}
        self._by_bin: dict[int, list[tuple[FloatArray, FloatArray]]] = {}
        self._in_bins: dict[int, _Parts] = {}
        self._aurc: dict[float, FloatArray] = {}
        self._ranked: dict[float, RankCells] = {}

    def column(self, setting: Setting) -> int:
        return self.prefixes.index(setting.private_rows)

    def run(self, method: Method, setting: Setting, seed: np.random.SeedSequence) -> Measured:
        """The measures on the test rows of every trial, after `method` at `setting`."""
        rng = np.random.default_rng(seed)
        noisy = math.isfinite(setting.epsilon)
        # A method that reckons with noise is told that there is next to none.
        nano = to_nano(setting.epsilon if noisy else MAX_EPSILON)
        history = History(sources=setting.sources)

        def answer(asks: Sequence[Ask]) -> History:
            for ask in asks:
                sums = self.exact_sums(ask, setting) / (GRID * setting.sources)
                if noisy:
                    sums += average_noise(rng, setting.sources, ask, sums.shape)
                history.append(sums)
            return history

        maps = drive(method.run(Batch(self.trials, nano, rng)), answer)
        return self.measure(maps, setting)

    def exact_sums(self, ask: Ask, setting: Setting) -> FloatArray:
        """The noise-free sums over all sources, (trials, length), in grid points."""
        column = self.column(setting)
        if ask.temperatures is None:
            return self.sums(ask.query)[:, column].astype(np.float64)
        different = np.unique(ask.temperatures)
        if len(different) > _FEW:
            return self._tabulated_sums(ask.query, ask.temperatures, setting)
        result = np.empty((self.trials, ask.query.length))
        for temperature in different:
            here = ask.temperatures == temperature
            result[here] = self.sums(ask.query.at(temperature))[here, column]
        return result

    def _tabulated_sums(
        self, query: Query, temperatures: FloatArray, setting: Setting
    ) -> FloatArray:
        """The same for many temperatures, by interpolating each private row's own table."""
        rows = self.order[:, : setting.private_rows]
        if isinstance(query, Nll):
            nll = interpolate(self.tables.nll, rows, place(temperatures))
            values = np.clip(nll, 0.0, query.clip)
        elif isinstance(query, (Gap, BinnedGap)):
            c = interpolate(self.tables.confidence, rows, place(temperatures))
            values = self.scores.correct[rows] - c
            if isinstance(query, BinnedGap):
                cells = np.arange(self.trials)[:, None] * query.bins + bin_index(c, query.bins)
                found = np.bincount(cells.ravel(), values.ravel(), self.trials * query.bins)
                return np.asarray(found.reshape(-1, query.bins) * GRID)
        else:
            raise InputError(f"query {query.kind} cannot be tabulated over temperatures")
        return np.asarray(values.sum(axis=1)[:, None] * GRID)

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
                    found = self.cell_sums(rows.cells[:, r], rows.values[:, r], query.length)
                    parts += found.astype(np.int64)
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
        found = np.bincount(self._cells.ravel(), self._numbers.ravel(), count)
        return found.astype(np.float64, copy=False).reshape(self.trials, len(self.prefixes), length)

    def segment_sums(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sums of values within each trial's segment between two prefixes."""
        buffer = self._cells if values.dtype == self._cells.dtype else self._numbers
        np.take(values, self.order, out=buffer, mode="clip")
        found: npt.NDArray[Any] = np.add.reduceat(buffer, self._starts, axis=1)
        return found

    def _segments(self, length: int) -> IntArray:
        """For each private row of each trial: where the cells of its trial and segment begin."""
        if length not in self._begins:
            segment = np.repeat(np.arange(len(self.prefixes)), np.diff([0, *self.prefixes]))
            trial = np.arange(self.trials)[:, None] * len(self.prefixes)
            self._begins = {length: (trial + segment) * length}
        return self._begins[length]

    # --- measuring ----------------------------------------------------------------------

    def measure(self, maps: Sequence[Map], setting: Setting) -> Measured:
        """ECE, Brier score and AURC on the test rows of every trial after its map."""
        kinds = {type(m) for m in maps}
        if kinds == {TemperatureMap}:
            return self._measure_temperatures(
                np.array([m.temperature for m in maps]),  # type: ignore[attr-defined]
                setting,
            )
        if kinds == {BinsMap}:
            return self._measure_bins(maps, setting)  # type: ignore[arg-type]
        if kinds == {CurveMap} and len({m.temperature for m in maps}) <= _FEW_SCORES:  # type: ignore[attr-defined]
            return self._measure_curves(maps, setting)  # type: ignore[arg-type]
        return self._measure_any(maps, setting)

    def _test_rows(self, setting: Setting) -> int:
        return len(self.scores) - setting.private_rows

    def _measure_temperatures(self, temperatures: FloatArray, setting: Setting) -> Measured:
        different = np.unique(temperatures)
        if len(different) > _FEW:
            return self.measure_tabulated(temperatures, [setting])[0]
        column, n = self.column(setting), self._test_rows(setting)
        ece, brier = np.empty(self.trials), np.empty(self.trials)
        for temperature in different:
            here = temperatures == temperature
            query = BinnedGap(temperature, BINS)
            gaps = self.sums(query)[here, column]
            ece[here] = np.abs(self._totals[query] - gaps).sum(axis=1) / (GRID * n)
            squares, total = self._squares(float(temperature))
            brier[here] = (total - squares[here, column]) / n
        return Measured(ece, brier, self._aurc_at(temperatures, setting))

    def _aurc_at(self, temperatures: FloatArray, setting: Setting) -> FloatArray:
        """Interpolated between `KNOTS`; beyond them, of each temperature itself."""
        column = self.column(setting)
        at = np.interp(np.log(temperatures), np.log(KNOTS), np.arange(len(KNOTS)))
        found = np.zeros(self.trials)
        for knot, temperature in enumerate(KNOTS):
            share = np.maximum(1 - np.abs(at - knot), 0)
            if share.any():
                found += share * self._ranked_aurc(temperature)[:, column]
        for temperature in {float(t) for t in temperatures if not KNOTS[0] <= t <= KNOTS[-1]}:
            here = temperatures == temperature
            found[here] = self._ranked_aurc(temperature)[here, column]
        return found

    def _ranked_aurc(self, temperature: float) -> FloatArray:
        """AURC (trials, prefixes) of the rows in their order at a temperature."""
        if temperature not in self._aurc:
            c = self._double_confidence(temperature)
            cells = RankCells(c, self.scores.correct, self.order, self.prefixes, _COARSE)
            self._aurc[temperature] = cells.aurc
        return self._aurc[temperature]

    def _squares(self, temperature: float) -> tuple[FloatArray, float]:
        """Σ (confidence − correct)²: over every trial's prefixes, and over all rows."""
        if temperature not in self._brier:
            c = kernel.confidence(self.scores.outputs, temperature)
            rows = (c - self.scores.correct) ** 2
            parts = self.segment_sums(rows).cumsum(axis=1)
            self._brier[temperature] = parts, float(rows.sum())
        return self._brier[temperature]

    def fit_first_source(self, samples: int, objective: str) -> FloatArray:
        """The exact temperature of each trial's first source, to the error of the table.

        Both objectives are the root of a function that is monotone in T. The source has
        `samples` rows, or where sources are not alike as many as it has.
        """
        sizes = self.first
        rows = self.order[:, : samples if sizes is None else sizes.max()]
        correct = self.scores.correct[rows]

        def mean(values: npt.NDArray[Any]) -> FloatArray:
            if sizes is None:
                return np.asarray(values.mean(axis=1, dtype=np.float64))
            mine = np.arange(values.shape[1]) < sizes[:, None]
            return np.asarray(values.sum(axis=1, dtype=np.float64, where=mine) / sizes)

        if objective == "accuracy":
            table, target = self.tables.confidence, mean(correct)
        else:
            table, target = self.tables.slope, np.zeros(self.trials)
        flat, width = table.ravel(), table.shape[1]

        def excess(place: IntArray) -> FloatArray:
            return np.asarray(mean(flat[rows + (place * width)[:, None]]) - target)

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
        found = np.exp(logs[left] + share * (logs[right] - logs[left]))
        return np.asarray(np.clip(found, TABULATED[0], TABULATED[-1]))

    def measure_tabulated(
        self, temperatures: FloatArray, settings: Sequence[Setting]
    ) -> list[Measured]:
        """The measures at several settings, for many temperatures: each is moved to the nearest
        of a fine grid, and each row's confidence there is interpolated between `TABULATED`.

        Both errors together move a trial's ECE by less than 1e-4 on average (shown by test).
        """
        if temperatures.min() < TABULATED[0] or temperatures.max() > TABULATED[-1]:
            maps = [TemperatureMap(t) for t in temperatures]
            return [self._measure_any(maps, setting) for setting in settings]
        places = np.rint(place(temperatures) * FINE).astype(np.int64)
        totals = np.stack([self.tables.fine_total(int(at)) for at in places])
        ends = sorted({setting.private_rows for setting in settings})
        rows = self.order[:, : ends[-1]]
        c = interpolate(self.tables.confidence, rows, places / FINE)
        gap = self.scores.correct[rows] - c
        segment = np.repeat(np.arange(len(ends)), np.diff([0, *ends]))
        begins = (np.arange(self.trials)[:, None] * len(ends) + segment) * BINS
        count = self.trials * len(ends) * BINS
        binned = np.bincount((begins + bin_index(c, BINS)).ravel(), gap.ravel(), count)
        private = binned.reshape(self.trials, len(ends), BINS).cumsum(axis=1)
        squares = np.add.reduceat(gap * gap, [0, *ends[:-1]], axis=1).cumsum(axis=1)
        found = []
        for setting in settings:
            column, n = ends.index(setting.private_rows), self._test_rows(setting)
            ece = np.abs(totals[:, :BINS] - private[:, column]).sum(axis=1) / n
            brier = (totals[:, BINS] - squares[:, column]) / n
            found.append(Measured(ece, brier, self._aurc_at(temperatures, setting)))
        return found

    def _measure_bins(self, maps: Sequence[BinsMap], setting: Setting) -> Measured:
        """All rows of a bin get one value, so counts by bin are all that is needed."""
        values = np.array([m.values for m in maps], np.float64)  # None becomes NaN
        bins = values.shape[1]
        count, correct, squares, moved = (
            total - parts[:, self.column(setting)] for parts, total in self._bins(bins)
        )
        moved = moved.reshape(self.trials, bins, BINS)
        known = ~np.isnan(values)
        value = np.where(known, values, 0.0)
        target = bin_index(value, BINS)
        gap = np.where(known, correct - count * value, 0.0)
        # A known bin's rows all move to the ECE bin of their value; others stay where they were.
        ece_bins = np.where(known[:, :, None], 0.0, moved).sum(axis=1)
        trial = np.repeat(np.arange(self.trials), bins)
        np.add.at(ece_bins, (trial, target.ravel()), gap.ravel())
        replaced = count * value**2 - 2 * value * correct + correct
        n = self._test_rows(setting)
        brier = np.where(known, replaced, squares).sum(axis=1) / n
        ece = np.abs(ece_bins).sum(axis=1) / n
        return Measured(ece, brier, self._aurc_of_bins(values, count - correct, count, setting))

    def _aurc_of_bins(
        self, values: FloatArray, wrong: FloatArray, rows: FloatArray, setting: Setting
    ) -> FloatArray:
        """A bin's rows are tied at its value; where it has none, its parts keep their order."""
        found = self._parts_of_bins(values.shape[1])
        known = np.nonzero(~np.isnan(values) & (rows > 0))
        trial, b = np.nonzero(np.isnan(values) & (rows > 0))
        part = (b[:, None] * _PARTS + np.arange(_PARTS)).ravel()
        trial = np.repeat(trial, _PARTS)
        some = found.total.sum(axis=0)[part] > 0  # a sparse bin has fewer parts
        part, trial = part[some], trial[some]
        here = found.total[:, part] - found.private[self.column(setting), :, part, trial].T
        bins = known[0], values[known], wrong[known], rows[known]
        kept = trial, found.confidence[part], here[0], here.sum(axis=0)
        return tied_aurc(*(np.concatenate(pair) for pair in zip(bins, kept, strict=True)))

    def _parts_of_bins(self, bins: int) -> _Parts:
        """Bins at T = 1 cut into parts of about equally many rows."""
        if bins not in self._in_bins:
            c = self._double_confidence(1.0)
            # In the very bins of `_bins`, which are those of single precision.
            where = bin_index(kernel.confidence(self.scores.outputs, 1.0), bins)
            size = np.bincount(where, minlength=bins)
            rank = np.empty(len(c), np.int64)
            rank[np.lexsort((c, where))] = np.arange(len(c))
            rank -= (size.cumsum() - size)[where]
            part = where * _PARTS + rank * _PARTS // size[where]
            length = bins * _PARTS
            code = part + length * self.scores.correct
            total = np.bincount(code, minlength=2 * length)
            counts = private_counts(code, self.order, self.prefixes, 2 * length)
            narrow = np.min_scalar_type(int(total.max()))
            private = np.stack([found.astype(narrow) for found in counts])
            total = total.reshape(2, length)
            self._in_bins[bins] = _Parts(
                np.bincount(part, c, length) / np.maximum(total.sum(axis=0), 1),
                total,
                private.reshape(len(self.prefixes), 2, length, self.trials),
            )
        return self._in_bins[bins]

    def _double_confidence(self, temperature: float) -> FloatArray:
        """As maps have it: in single precision, many confidences are tied at 1."""
        sums = kernel.exp_sums(self.scores.outputs, temperature, dtype=np.float64)
        return np.asarray(1 / sums)

    def _measure_curves(self, maps: Sequence[CurveMap], setting: Setting) -> Measured:
        column = self.column(setting)
        temperatures = np.array([m.temperature for m in maps])
        found = Measured(*(np.empty(self.trials) for _ in Measured._fields))
        for temperature in np.unique(temperatures):
            here = np.flatnonzero(temperatures == temperature)
            cells = self._score_cells(float(temperature))
            some = [maps[trial] for trial in here.tolist()]
            found.ece[here], found.brier[here] = measure_curves(some, cells, column, here, BINS)
            found.aurc[here] = cells.aurc[here, column]
        return found

    def _score_cells(self, temperature: float) -> RankCells:
        """Rows in the order of their log-odds at a temperature; a few such are kept."""
        if temperature not in self._ranked:
            while len(self._ranked) >= _FEW_SCORES:
                del self._ranked[next(iter(self._ranked))]
            s = kernel.log_odds(self.scores.outputs, temperature)
            self._ranked[temperature] = RankCells(
                s, self.scores.correct, self.order, self.prefixes, _CELLS, keep=True
            )
        return self._ranked[temperature]

    def _bins(self, bins: int) -> list[tuple[FloatArray, FloatArray]]:
        """By bin at T = 1, over prefixes and over all rows: rows, correct rows, squares, and the
        gap by bin and ECE bin."""
        if bins not in self._by_bin:
            c = kernel.confidence(self.scores.outputs, 1.0)
            correct = self.scores.correct
            where = bin_index(c, bins)
            found = []
            for cells, weights, length in (
                (where, np.ones(len(c)), bins),
                (where, correct, bins),
                (where, (c - correct) ** 2, bins),
                (where * BINS + bin_index(c, BINS), correct - c, bins * BINS),
            ):
                parts = self.cell_sums(cells, weights, length).cumsum(axis=1)
                total = np.bincount(cells, weights, length).astype(np.float64)
                found.append((parts, total))
            self._by_bin[bins] = found
        return self._by_bin[bins]

    def _measure_any(self, maps: Sequence[Map], setting: Setting) -> Measured:
        """Any map, one run at a time: slow, and needs nothing to be known of it."""
        measured = Measured(*(np.empty(self.trials) for _ in Measured._fields))
        for trial, found in enumerate(maps):
            test = np.ones(len(self.scores), bool)
            test[self.order[trial, : setting.private_rows]] = False
            c = found.confidence(self.scores)[test]
            correct = self.scores.correct[test]
            gap = correct - c
            gaps = np.bincount(bin_index(c, BINS), gap, BINS)
            measured.ece[trial] = np.abs(gaps).sum() / len(c)
            measured.brier[trial] = gap @ gap / len(c)
            measured.aurc[trial] = AllRows(c, correct).aurc
        return measured


class _Parts(NamedTuple):
    """`_PARTS` parts of each bin, in order of confidence."""

    confidence: FloatArray
    """The mean of each part."""
    total: IntArray
    """Wrong and right rows of each."""
    private: npt.NDArray[np.unsignedinteger[Any]]
    """The same of every trial's private rows: (prefixes, 2, parts, trials)."""


def average_noise(
    rng: np.random.Generator, sources: int, ask: Ask, shape: tuple[int, ...]
) -> FloatArray:
    """The average of `sources` independent Laplace variables of the ask's scale, in its units."""
    scale = ask.query.bound / GRID * NANO / ask.nano_epsilon
    gamma = rng.standard_gamma(sources, (2, *shape))
    return np.asarray((gamma[0] - gamma[1]) * (scale / sources))
