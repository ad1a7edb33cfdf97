"""Histograms of every trial's test rows over cells of a score, and the AURC they give.

A map that rises with a score keeps its order, so the area under the risk–coverage curve depends
on the score, the trial and the number of private rows, and on nothing else: not on the method
that found the map, nor on ε. It is computed once for all of them.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from privcal.metrics import AllRows
from privcal.scores import FloatArray, IntArray
from privcal.simulate.measure import Trials

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
