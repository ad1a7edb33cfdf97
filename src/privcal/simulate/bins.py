"""Many maps of bins at once: all rows of a bin get one value, so counts by bin are all it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from privcal.maps import BinsMap
from privcal.metrics import bin_index
from privcal.scores import FloatArray, IntArray
from privcal.simulate.measure import BINS, HeldOut, Measured, Trials, measures, row_by_row
from privcal.simulate.ranks import tied_aurc

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
        _aurc(values, count - correct, count, rows),
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


def _aurc(values: FloatArray, wrong: FloatArray, count: FloatArray, rows: HeldOut) -> FloatArray:
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
