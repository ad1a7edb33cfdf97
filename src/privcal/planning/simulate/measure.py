"""ECE, Brier score and AURC of every trial's map on its test rows.

A study tests each trial on the rows that it left over, a planner on all rows of a population. Both
measure the same thing on other rows, and what is measured needs to know of them only how many rows
of each code are held out in each trial, or the sums of a number over them (`HeldOut`). A kind of map
registers a fast way with `measures`; maps of any other kind are measured row by row.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from privcal.calibration.fit import LOCAL_BOUNDS
from privcal.calibration.kernel import FAST
from privcal.calibration.maps import (
    MOST_ODDS,
    BinsMap,
    CurveMap,
    Map,
    TemperatureMap,
    compress_tail,
    log_odds,
)
from privcal.calibration.metrics import AllRows
from privcal.data.scores import Scores
from privcal.trusted.kernel import bin_index
from privcal.trusted.scores import BoolArray, FloatArray, IntArray

BINS = 15
"""The number of bins of the ECE."""


class Measured(NamedTuple):
    """ECE, Brier score and AURC on the test rows, one value for each trial."""

    ece: FloatArray
    brier: FloatArray
    aurc: FloatArray

    def summary(self) -> dict[str, float]:
        """Each measure's mean and its standard error; that of a single trial is not a number."""
        summary = {}
        for name, values in self._asdict().items():
            n = len(values)
            summary[f"{name}_mean"] = float(values.mean())
            summary[f"{name}_se"] = float(values.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
        return summary


_Kept = TypeVar("_Kept")


class Trials(ABC):
    """The rows of one shift under many trials, and what is remembered of them.

    There may be several columns: numbers of private rows that share their trials. What the
    methods here return has one entry for each trial, or a single one where all trials have the
    same test rows.
    """

    shared = False
    """Whether all trials have the same test rows."""

    def __init__(self, scores: Scores) -> None:
        self.scores = scores
        self.target = scores.correct
        """What each row's confidence is measured against: whether its predicted class is the true one."""
        self._kept: dict[Any, Any] = {}

    @abstractmethod
    def own(self) -> FloatArray:
        """Each row's confidence at T = 1, in the precision in which bins are counted."""

    @abstractmethod
    def held_out(self, code: IntArray, codes: int) -> Iterator[IntArray]:
        """For each column: how many test rows of each code every trial has, (codes, trials)."""

    @abstractmethod
    def held_out_sums(self, code: IntArray, values: npt.NDArray[Any], codes: int) -> FloatArray:
        """Sums of a number over the test rows of each code: (trials, columns, codes)."""

    def keep(self, key: Any, make: Callable[[], _Kept]) -> _Kept:
        """What `make` gives, made once."""
        if key not in self._kept:
            self._kept[key] = make()
        made: _Kept = self._kept[key]
        return made

    def confidence(self, temperature: float) -> FloatArray:
        """Each row's confidence in double precision, as maps have it: in single, many are tied at 1."""
        sums = FAST.exp_sums(self.scores.outputs, temperature, dtype=np.float64)
        return np.asarray(1 / sums)


class HeldOut(ABC):
    """The test rows of every trial, at one column of `Trials`."""

    column: int
    size: int
    """Test rows of a trial."""

    @property
    @abstractmethod
    def of(self) -> Trials:
        """The trials."""

    @abstractmethod
    def rows(self, trial: int) -> Any:
        """The test rows of one trial: an index of all rows."""

    @abstractmethod
    def gaps(self, temperatures: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """For a temperature of each trial: Σ (target − confidence) over the test rows of each bin
        of the ECE, (trials, BINS), and Σ (target − confidence)². None where it takes all rows."""


Way = Callable[[Sequence[Any], HeldOut], Measured]
_WAYS: dict[type[Map], Way] = {}


def measures(kind: type[Map]) -> Callable[[Way], Way]:
    """Register a fast way to measure many maps of one kind at once."""

    def add(way: Way) -> Way:
        _WAYS[kind] = way
        return way

    return add


def measure(maps: Sequence[Map], rows: HeldOut) -> Measured:
    """The measures of every trial's map on its test rows."""
    kinds = {type(map) for map in maps}
    way = _WAYS.get(kinds.pop(), row_by_row) if len(kinds) == 1 else row_by_row
    return way(maps, rows)


def row_by_row(maps: Sequence[Map], rows: HeldOut) -> Measured:
    """Any map, one trial at a time: slow, and needs nothing to be known of it."""
    measured = Measured(*(np.empty(len(maps)) for _ in Measured._fields))
    for trial, map in enumerate(maps):
        test = rows.rows(trial)
        scores = rows.of.scores
        c = map.confidence(logits=scores)[test]
        target = (map.predict(logits=scores) == scores.labels)[test]
        gaps, squares = binned_gaps(c, target)
        measured.ece[trial] = np.abs(gaps).sum() / len(c)
        measured.brier[trial] = squares / len(c)
        measured.aurc[trial] = AllRows(c, target).aurc
    return measured


def binned_gaps(confidence: FloatArray, target: BoolArray) -> tuple[FloatArray, float]:
    """Σ (target − confidence) over the rows of each bin of the ECE, and Σ (target − confidence)²."""
    gap = target - confidence
    gaps = np.bincount(bin_index(confidence, BINS), gap, BINS).astype(np.float64, copy=False)
    return gaps, float(gap @ gap)


# --- Histograms of every trial's test rows over cells of a score, and the AURC they give ----------
# A map that rises with a score keeps its order, so the area under the risk–coverage curve depends
# on the score, the trial and the number of private rows, and on nothing else: not on the method
# that found the map, nor on ε. It is computed once for all of them.

POWER = 1.5
"""Cells grow with this power of their number less one: a rank near the top weighs most."""


class RankCells:
    """Rows by falling score in about `cells` cells; every trial's test rows counted in each.

    Within a cell a trial's wrong rows count as spread evenly. How far that is from the truth is
    known exactly for all rows together, and nearly the same for each trial, so it is taken off
    (shown by test: a trial's AURC is within 1e-4).
    """

    def __init__(self, score: FloatArray, trials: Trials, cells: int, keep: bool = False) -> None:
        n = len(score)
        falling = np.argsort(-score, kind="stable")
        self.score, self.correct = score[falling], trials.target[falling]
        cut = self.score[(n * (np.arange(cells) / cells) ** POWER).astype(np.int64)]
        # A tie at a cut is a cell of its own: rows spread evenly are what a tie asks for.
        start, stop = self.rows_above(cut), self.rows_from(cut)
        stop = stop[(stop - start > 1) & (stop < n)]
        self.starts = np.unique(np.concatenate([start, stop]))
        """The index of each cell's first row."""
        count = len(self.starts)
        cell = np.repeat(np.arange(count), np.diff([*self.starts, n]))
        code = np.empty(n, np.int64)
        code[falling] = cell + count * self.correct
        self.totals = np.bincount(code, minlength=2 * count).reshape(2, count)
        """Wrong and right rows of each cell, over all rows."""
        harmonic = _harmonic(n)
        everyone = _aurc(self.totals[..., None], *harmonic)
        off = AllRows(self.score, self.correct).aurc - everyone
        narrow = np.min_scalar_type(int(self.totals.max()))
        aurc, tests = [], []
        for held in trials.held_out(code, 2 * count):
            counts = held.reshape(2, count, -1)
            aurc.append(_aurc(counts, *harmonic) + off)
            if keep:
                tests.append(counts.astype(narrow))
        self.aurc = np.stack(aurc, axis=1)
        """The AURC of every trial's test rows: (trials, columns)."""
        self._tests = tests

    @cached_property
    def mean_score(self) -> FloatArray:
        """The mean score of each cell."""
        return np.asarray(np.add.reduceat(self.score, self.starts) / self.totals.sum(axis=0))

    def rows_above(self, score: FloatArray) -> IntArray:
        """How many rows have a greater score."""
        return np.asarray(len(self.score) - np.searchsorted(self.score[::-1], score, "right"))

    def rows_from(self, score: FloatArray) -> IntArray:
        """How many rows have at least this score."""
        return np.asarray(len(self.score) - np.searchsorted(self.score[::-1], score))

    def shares(self, cell: IntArray, row: IntArray) -> tuple[FloatArray, FloatArray]:
        """The shares of a cell's rows, and of its right rows, that come before one of its rows."""
        right = np.concatenate([[0], np.cumsum(self.correct)])
        rows_of, right_of = self.totals.sum(axis=0)[cell], self.totals[1][cell]
        before = right[row] - right[self.starts[cell]]
        return (row - self.starts[cell]) / rows_of, before / np.maximum(right_of, 1)

    def test(self, column: int, trials: IntArray) -> FloatArray:
        """Wrong and right test rows: (2, cells, trials)."""
        counts = self._tests[column]
        if len(trials) < counts.shape[-1]:
            counts = counts[..., trials]
        return counts.astype(np.float64)


def _harmonic(rows: int) -> tuple[FloatArray, FloatArray]:
    """The harmonic numbers H₀, H₁, … H_rows, and the sums of the first 0, 1, … of them."""
    numbers = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, rows + 1))])
    return numbers, np.concatenate([[0.0], numbers.cumsum()])


def _aurc(counts: IntArray, harmonic: FloatArray, summed: FloatArray) -> FloatArray:
    """AURC of wrong and right rows by cell, (2, cells, trials).

    A wrong row of rank r weighs H_n − H_{r−1} (see `metrics.rank_weights`); those of a cell
    have the mean weight of its ranks.
    """
    wrong, rows = counts[0], counts[0] + counts[1]
    ends = rows.cumsum(axis=0)
    sums = np.diff(summed[ends], axis=0, prepend=0.0)
    before = np.einsum("ct,ct->t", wrong / np.maximum(rows, 1), sums)
    return np.asarray((wrong.sum(axis=0) * harmonic[ends[-1]] - before) / ends[-1])


def tied_aurc(
    trial: IntArray, value: FloatArray, wrong: FloatArray, rows: FloatArray
) -> FloatArray:
    """AURC of each trial from groups of rows, each with one confidence in [0, 1].

    Groups of a trial with the same confidence are one tie.
    """
    # One key for both, on purpose: beside the number of a trial, confidences that differ in their
    # last bits only (3/4 reckoned in two ways) are equal. Sorted by two keys they would not be.
    key, tie = np.unique(2.0 * trial + (1 - value), return_inverse=True)
    errors, size = np.bincount(tie, wrong), np.bincount(tie, rows).astype(np.int64)
    of = (key // 2).astype(np.int64)
    n = np.bincount(of, size).astype(np.int64)
    ends = size.cumsum() - (n.cumsum() - n)[of]
    harmonic, summed = _harmonic(int(n.max()))
    before = (summed[ends] - summed[ends - size]) / np.maximum(size, 1)
    return np.asarray(np.bincount(of, errors * (harmonic[n[of]] - before)) / n)


# --- Many temperatures at once: exactly where they are few, from tables of every row otherwise ----

TABULATED = np.geomspace(*LOCAL_BOUNDS, 129)
"""Temperatures at which every row is tabulated."""

FINE = 32
"""Points of the fine grid between two of them."""

KNOTS = np.concatenate([np.geomspace(0.5, 1, 4), np.geomspace(1, 3, 6)[1:]])
"""Temperatures at which rows are ranked: their order changes slowly in between."""

_RANK_CELLS = 96
"""Cells of a ranking that is only for the AURC."""


@measures(TemperatureMap)
def measure_temperatures(maps: Sequence[TemperatureMap], rows: HeldOut) -> Measured:
    temperatures = np.array([map.temperature for map in maps])
    gaps = rows.gaps(temperatures)
    return row_by_row(maps, rows) if gaps is None else measure_gaps(temperatures, *gaps, rows)


def measure_gaps(
    temperatures: FloatArray, gaps: FloatArray, squares: FloatArray, rows: HeldOut
) -> Measured:
    """From the binned gaps and the sums of squares of every trial."""
    ece = np.abs(gaps).sum(axis=1) / rows.size
    return Measured(ece, squares / rows.size, _aurc_at(temperatures, rows))


def _aurc_at(temperatures: FloatArray, rows: HeldOut) -> FloatArray:
    """Interpolated between `KNOTS`; beyond them, of each temperature itself."""
    between = np.interp(np.log(temperatures), np.log(KNOTS), np.arange(len(KNOTS)))
    aurc = np.zeros(len(temperatures))
    for knot, temperature in enumerate(KNOTS):
        share = np.maximum(1 - np.abs(between - knot), 0)
        if share.any():
            aurc += share * _ranked_aurc(rows.of, temperature)[:, rows.column]
    for temperature in {float(t) for t in temperatures if not KNOTS[0] <= t <= KNOTS[-1]}:
        ranked = _ranked_aurc(rows.of, temperature)[:, rows.column]
        aurc = np.where(temperatures == temperature, ranked, aurc)
    return aurc


def _ranked_aurc(trials: Trials, temperature: float) -> FloatArray:
    """AURC (trials, columns) of the rows in their order at a temperature."""
    return trials.keep(
        ("ranked AURC", temperature),
        lambda: RankCells(trials.confidence(temperature), trials, _RANK_CELLS).aurc,
    )


class Tables:
    """Tables of every row at `TABULATED`; trials of the same scores share them."""

    def __init__(self, scores: Scores) -> None:
        # Several tables and queries are at the same temperatures.
        self.scores = scores.remembering()
        self._fine: dict[int, FloatArray] = {}

    @cached_property
    def confidence(self) -> npt.NDArray[np.float32]:
        """Every row's confidence at each of `TABULATED`."""
        table = np.empty((len(TABULATED), len(self.scores)), np.float32)
        for g, temperature in enumerate(TABULATED):
            table[g] = FAST.confidence(self.scores.outputs, temperature)
        return table

    @cached_property
    def slope(self) -> npt.NDArray[np.float32]:
        """The slope of every row's NLL in 1/T at each of `TABULATED`."""
        table = np.empty((len(TABULATED), len(self.scores)), np.float32)
        for g, temperature in enumerate(TABULATED):
            outputs = self.scores.outputs
            _, mean, _ = FAST.moments(outputs, 1 / temperature, outputs.dtype)
            table[g] = mean - self.scores.label_margin
        return table

    @cached_property
    def nll(self) -> npt.NDArray[np.float32]:
        return np.stack([FAST.nll(self.scores, t) for t in TABULATED]).astype(np.float32)

    def fine_totals(self, temperatures: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The nearest points of the fine grid, as `table_index` counts, and for each point the binned
        gaps of all rows and the sum of their squares."""
        points = np.rint(table_index(temperatures) * FINE).astype(np.int64)
        return points / FINE, np.stack([self._fine_total(int(point)) for point in points])

    def _fine_total(self, point: int) -> FloatArray:
        if point not in self._fine:
            low = min(point // FINE, len(TABULATED) - 2)
            share = np.float32(point / FINE - low)
            table = self.confidence
            c = (table[low] * (1 - share) + table[low + 1] * share).astype(np.float64)
            gaps, squares = binned_gaps(c, self.scores.correct)
            self._fine[point] = np.array([*gaps, squares])
        return self._fine[point]


def table_index(temperatures: FloatArray) -> FloatArray:
    """Where temperatures lie among `TABULATED`, as a fractional index: linear in log T."""
    return np.interp(np.log(temperatures), np.log(TABULATED), np.arange(len(TABULATED)))


def interpolate(
    table: npt.NDArray[np.float32], rows: npt.NDArray[np.integer[Any]], indices: FloatArray
) -> FloatArray:
    """The values of each trial's rows (trials, r) at the trial's own fractional index of the table."""
    low = np.minimum(indices.astype(np.int64), len(table) - 2)
    share = (indices - low)[:, None]
    # One trial reads two lines of the table only, which stay in cache.
    cells = rows + (low * table.shape[1])[:, None]
    line, next_line = table.ravel(), table[1:].ravel()
    return np.asarray(line.take(cells) * (1 - share) + next_line.take(cells) * share)


# --- Many maps of bins at once: all rows of a bin get one value, so counts by bin are all it takes ---

_BIN_PARTS = 48
"""Parts of a bin, for the order of its rows where a map leaves them as they were."""


@measures(BinsMap)
def measure_bins(maps: Sequence[BinsMap], rows: HeldOut) -> Measured:
    if len({len(map.values) for map in maps}) > 1:
        return row_by_row(maps, rows)
    values = np.array([map.values for map in maps], np.float64)  # None becomes NaN
    runs, bins = values.shape
    pairs, sums = _binned(rows.of, bins)
    count, correct, squares, gaps_of_pairs = (each[:, rows.column] for each in sums)
    known = ~np.isnan(values)
    value = np.where(known, values, 0.0)
    target = bin_index(value, BINS)
    gap = np.where(known, correct - count * value, 0.0)
    # A known bin's rows all move to the ECE bin of their value; others stay where they were. (Which
    # of them come first decides the last bit, and has to stay as it is for the same numbers.)
    own, theirs = np.divmod(pairs, BINS)
    stayed = np.where(known[:, own], 0.0, gaps_of_pairs) @ np.eye(BINS)[theirs]
    gaps, last = (np.zeros_like(stayed), stayed) if rows.of.shared else (stayed, 0.0)
    np.add.at(gaps, (np.repeat(np.arange(runs), bins), target.ravel()), gap.ravel())
    gaps += last
    replaced = count * value**2 - 2 * value * correct + correct
    return Measured(
        np.abs(gaps).sum(axis=1) / rows.size,
        np.where(known, replaced, squares).sum(axis=1) / rows.size,
        _bins_aurc(values, count - correct, count, rows),
    )


def _binned(trials: Trials, bins: int) -> tuple[IntArray, list[FloatArray]]:
    """Pairs of a bin at T = 1 and an ECE bin (as bin · `BINS` + ECE bin) that have rows; and of the
    test rows in each bin: rows, correct rows, squares, and the gaps of each pair. The sums are
    (trials, columns, cells)."""

    def make() -> tuple[IntArray, list[FloatArray]]:
        c, correct = trials.own(), trials.target
        where = bin_index(c, bins)
        pairs, pair = np.unique(where * BINS + bin_index(c, BINS), return_inverse=True)
        return pairs, [
            trials.held_out_sums(where, np.ones(len(c)), bins),
            trials.held_out_sums(where, correct, bins),
            trials.held_out_sums(where, (c - correct) ** 2, bins),
            trials.held_out_sums(pair, correct - c, len(pairs)),
        ]

    return trials.keep(("bins", bins), make)


def _bins_aurc(
    values: FloatArray, wrong: FloatArray, count: FloatArray, rows: HeldOut
) -> FloatArray:
    """A bin's rows are tied at its value; where it has none, its parts keep their order."""
    parts = _parts(rows.of, values.shape[1])
    wrong, count = np.broadcast_to(wrong, values.shape), np.broadcast_to(count, values.shape)
    known = np.nonzero(~np.isnan(values) & (count > 0))
    trial, b = np.nonzero(np.isnan(values) & (count > 0))
    part = (b[:, None] * _BIN_PARTS + np.arange(_BIN_PARTS)).ravel()
    trial = np.repeat(trial, _BIN_PARTS)
    some = parts.total[part] > 0  # a sparse bin has fewer parts
    part, trial = part[some], trial[some]
    held = np.broadcast_to(parts.held[rows.column], (2, len(parts.total), len(values)))
    counts = held[:, part, trial].astype(np.int64)
    bins = known[0], values[known], wrong[known], count[known]
    others = trial, parts.confidence[part], counts[0], counts.sum(axis=0)
    return tied_aurc(*(np.concatenate(pair) for pair in zip(bins, others, strict=True)))


class _Parts(NamedTuple):
    """`_BIN_PARTS` parts of each bin, in order of confidence."""

    confidence: FloatArray
    """The mean of each part."""
    total: IntArray
    """The rows of each, of all there are."""
    held: list[npt.NDArray[np.integer]]
    """For each column the wrong and right test rows of each: (2, parts, trials)."""


def _parts(trials: Trials, bins: int) -> _Parts:
    """Bins at T = 1 cut into parts of about equally many rows."""

    def make() -> _Parts:
        c = trials.confidence(1.0)
        where = bin_index(trials.own(), bins)  # the very bins of `_binned`
        size = np.bincount(where, minlength=bins)
        rank = np.empty(len(c), np.int64)
        rank[np.lexsort((c, where))] = np.arange(len(c))
        rank -= (size.cumsum() - size)[where]
        part = where * _BIN_PARTS + rank * _BIN_PARTS // size[where]
        length = bins * _BIN_PARTS
        code = part + length * trials.target
        total = np.bincount(part, minlength=length)
        narrow = np.min_scalar_type(int(total.max()))
        return _Parts(
            np.bincount(part, c, length) / np.maximum(total, 1),
            total,
            [
                held.reshape(2, length, -1).astype(narrow)
                for held in trials.held_out(code, 2 * length)
            ],
        )

    return trials.keep(("parts of bins", bins), make)


# --- Many curve maps of one score at once: measured on cells of rows instead of rows --------------
# A curve rises with the score, so its AURC is that of the score, and the bins of the ECE are ranges of
# rows in its order. Where such a range ends is found by inverting the curve at the bins' edges, to
# the very row.

_CURVE_CELLS = 1024
"""Cells of a ranking on which curves are measured."""

_EQUAL_CELLS = 1000
"""Cells of equally many rows, where all trials have the same test rows."""

_FEW_SCORES = 4
"""Up to so many scores (temperatures) of curves, they are measured on cells."""


@measures(CurveMap)
def measure_curves(maps: Sequence[CurveMap], rows: HeldOut) -> Measured:
    temperatures = np.array([map.temperature for map in maps])
    different = np.unique(temperatures).tolist()
    if len(different) > _FEW_SCORES:
        return row_by_row(maps, rows)
    measured = Measured(*(np.empty(len(maps)) for _ in Measured._fields))
    for temperature in different:
        trials = np.flatnonzero(temperatures == temperature)
        some = [maps[trial] for trial in trials.tolist()]
        cells = _cells(rows.of, temperature)
        if rows.of.shared:
            ece, brier = _on_equal_cells(some, _equal_cells(rows.of, temperature))
            aurc = cells.aurc[:, rows.column]
        else:
            ece, brier = _on_cells(some, cells, rows.column, trials)
            aurc = cells.aurc[trials, rows.column]
        measured.ece[trials], measured.brier[trials], measured.aurc[trials] = ece, brier, aurc
    return measured


def _cells(trials: Trials, temperature: float) -> RankCells:
    """Rows in the order of their log-odds at a temperature; a few such are kept."""
    cells: dict[float, RankCells] = trials.keep("cells of curves", dict)
    if temperature not in cells:
        while len(cells) >= _FEW_SCORES:
            del cells[next(iter(cells))]
        score = log_odds(trials.scores.outputs, temperature)
        cells[temperature] = RankCells(score, trials, _CURVE_CELLS, keep=True)
    return cells[temperature]


def _on_cells(
    maps: Sequence[CurveMap], cells: RankCells, column: int, trials: IntArray
) -> tuple[FloatArray, FloatArray]:
    """ECE and Brier score of each trial's map on its test rows.

    All rows of a cell get the confidence of their mean score; a cell across a bin's edge is
    divided as all its rows are. Both errors together move a trial's measures by less than 1e-4
    on average (shown by test).
    """
    wrong, right = cells.test(column, trials)
    rows = wrong + right
    n = rows.sum(axis=0)
    with np.errstate(over="ignore"):
        c = 1 / (1 + np.exp(-_values(maps, cells.mean_score)))
    gap = right - rows * c
    brier = (right.sum(axis=0) - np.einsum("ct,ct->t", c, right + gap)) / n

    edges = np.arange(BINS - 1, 0, -1) / BINS
    end = cells.rows_from(_inverses(maps, np.log(edges / (1 - edges))))
    cut = np.searchsorted(cells.starts, end, side="right") - 1, np.arange(len(maps))
    share, share_right = cells.shares(cut[0], end)
    upto = np.zeros((BINS + 1, len(maps)))
    summed = np.concatenate([upto[:1], gap.cumsum(axis=0)])
    upto[1:-1] = summed[cut] + right[cut] * share_right - rows[cut] * c[cut] * share
    upto[-1] = summed[-1]
    return np.abs(np.diff(upto, axis=0)).sum(axis=0) / n, brier


def _on_equal_cells(
    maps: Sequence[CurveMap], cells: tuple[FloatArray, ...]
) -> tuple[FloatArray, FloatArray]:
    """ECE and Brier score of each map on all rows, each cell at its mean score.

    Moves the ECE by less than 1e-4 on average (shown by test).
    """
    score, count, right = cells
    ece, brier = [], []
    for map in maps:
        with np.errstate(over="ignore"):
            c = 1 / (1 + np.exp(-map.at(score)))
        gaps = np.bincount(bin_index(c, BINS), right - count * c, BINS)
        ece.append(np.abs(gaps).sum() / count.sum())
        brier.append((count * c**2 - 2 * c * right + right).sum() / count.sum())
    return np.array(ece), np.array(brier)


def _equal_cells(trials: Trials, temperature: float) -> tuple[FloatArray, ...]:
    """Mean score, rows and right rows of each cell, in the order of scores."""

    def make() -> tuple[FloatArray, ...]:
        score = log_odds(trials.scores.outputs, temperature)
        order = np.argsort(score)
        starts = np.unique(np.linspace(0, len(score), _EQUAL_CELLS + 1).astype(np.int64)[:-1])
        count = np.diff([*starts, len(score)]).astype(np.float64)
        right = trials.target[order].astype(np.float64)
        return (
            np.add.reduceat(score[order], starts) / count,
            count,
            np.add.reduceat(right, starts),
        )

    return trials.keep(("equal cells", temperature), make)


def _values(maps: Sequence[CurveMap], s: FloatArray) -> FloatArray:
    """Every map's log-odds (scores, maps) at the scores `s`."""
    if any(m.scores != maps[0].scores for m in maps):
        return np.stack([m.at(s) for m in maps], axis=1)
    # Points at the same scores: where `s` lies among them is the same for all.
    x, y = np.array(maps[0].scores), np.array([m.log_odds for m in maps]).T
    s = compress_tail(s, x[-1])
    left = np.clip(np.searchsorted(x, s, side="right") - 1, 0, len(x) - 2)
    slope = np.diff(y, axis=0) / np.diff(x)[:, None]
    return np.asarray(y[left] + slope[left] * (s - x[left])[:, None])


def _inverses(maps: Sequence[CurveMap], log_odds: FloatArray) -> FloatArray:
    """The scores (log-odds, maps) at which every map takes these values.

    NaN, which sorts above all scores, even infinite ones, where it stays below.
    """
    if any(len(m.scores) != len(maps[0].scores) for m in maps):
        return np.concatenate([_inverses([m], log_odds) for m in maps], axis=1)
    x, y = (np.array([getattr(m, name) for m in maps]) for name in ("scores", "log_odds"))
    left = (y[None] <= log_odds[:, None, None]).sum(axis=2) - 1
    left = np.clip(left, 0, x.shape[1] - 2)
    run = np.arange(len(maps))
    slope = np.diff(x, axis=1) / np.diff(y, axis=1)
    scores = x[run, left] + slope[run, left] * (log_odds[:, None] - y[run, left])
    beyond = scores - x[:, -1]
    slowed = x[:, -1] + np.expm1(np.clip(beyond, 0, np.log1p(MOST_ODDS)))
    slowed[beyond > np.log1p(MOST_ODDS)] = np.nan
    return np.asarray(np.where(beyond > 0, slowed, scores))
