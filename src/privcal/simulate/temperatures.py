"""Many temperatures at once: exactly where they are few, from tables of every row otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from privcal import kernel
from privcal.maps import TemperatureMap
from privcal.scores import FloatArray, Scores
from privcal.simulate.measure import (
    HeldOut,
    Measured,
    Trials,
    binned_gaps,
    measures,
    row_by_row,
    target,
)
from privcal.simulate.ranks import RankCells
from privcal.source import LOCAL_BOUNDS

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
            table[g] = kernel.confidence(self.scores.outputs, temperature)
        return table

    @cached_property
    def slope(self) -> npt.NDArray[np.float32]:
        """The slope of every row's NLL in 1/T at each of `TABULATED`."""
        table = np.empty((len(TABULATED), len(self.scores)), np.float32)
        for g, temperature in enumerate(TABULATED):
            outputs = self.scores.outputs
            _, mean, _ = kernel.moments(outputs, 1 / temperature, outputs.dtype)
            table[g] = mean - self.scores.label_margin
        return table

    @cached_property
    def nll(self) -> npt.NDArray[np.float32]:
        return np.stack([kernel.nll(self.scores, t) for t in TABULATED]).astype(np.float32)

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
            gaps, squares = binned_gaps(c, target(self.scores))
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
