"""Many curve maps of one score at once: measured on cells of rows instead of rows.

A curve rises with the score, so its AURC is that of the score, and the bins of the ECE are ranges of
rows in its order. Where such a range ends is found by inverting the curve at the bins' edges, to
the very row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from privcal.maps import MOST_ODDS, CurveMap, compress_tail, log_odds
from privcal.metrics import bin_index
from privcal.scores import FloatArray, IntArray
from privcal.simulate.measure import BINS, HeldOut, Measured, Trials, measures, row_by_row
from privcal.simulate.ranks import RankCells

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
