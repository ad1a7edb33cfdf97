"""Every row at many temperatures, for methods whose runs end at many different ones."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from privcal import kernel
from privcal.metrics import bin_index
from privcal.scores import FloatArray, Scores

TABULATED = np.geomspace(0.5, 3.0, 129)
"""Temperatures at which every row is tabulated."""


FINE = 32
"""Points of the fine grid between two of them."""

BINS = 15
"""Of the ECE that a study measures."""


class Tables:
    """What depends on the scores alone; simulators of the same scores share it."""

    def __init__(self, scores: Scores) -> None:
        self.scores = scores
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

    def fine_total(self, place: int) -> FloatArray:
        """Binned gaps of all rows, and the sum of their squares, at a point of the fine grid."""
        if place not in self._fine:
            low = min(place // FINE, len(TABULATED) - 2)
            share = np.float32(place / FINE - low)
            table = self.confidence
            c = (table[low] * (1 - share) + table[low + 1] * share).astype(np.float64)
            gap = self.scores.correct - c
            found = np.bincount(bin_index(c, BINS), gap, BINS)
            self._fine[place] = np.array([*found, gap @ gap])
        return self._fine[place]


def place(temperatures: FloatArray) -> FloatArray:
    """Where temperatures lie among `TABULATED`, as a fractional index: linear in log T."""
    return np.interp(np.log(temperatures), np.log(TABULATED), np.arange(len(TABULATED)))


def interpolate(
    table: npt.NDArray[np.float32], rows: npt.NDArray[np.integer[Any]], places: FloatArray
) -> FloatArray:
    """What a table says of each trial's rows (trials, r) at the trial's place."""
    low = np.minimum(places.astype(np.int64), len(table) - 2)
    share = (places - low)[:, None]
    # One trial reads two lines of the table only, which stay in cache.
    at = rows + (low * table.shape[1])[:, None]
    flat = table.ravel()
    return np.asarray(flat[at] * (1 - share) + flat[at + table.shape[1]] * share)
