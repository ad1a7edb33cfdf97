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
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from privcal import kernel
from privcal.maps import Map
from privcal.metrics import AllRows, bin_index
from privcal.scores import BoolArray, FloatArray, IntArray, Scores

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


def target(scores: Scores) -> BoolArray:
    """What each row's confidence is measured against: whether its predicted class is the true one."""
    return scores.correct


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
        self.target = target(scores)
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
        sums = kernel.exp_sums(self.scores.outputs, temperature, dtype=np.float64)
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
        c = map.confidence(scores)[test]
        target = (map.predict(scores) == scores.labels)[test]
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
