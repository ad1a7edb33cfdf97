"""Histogram binning: one question, all of ε; each bin's confidence becomes its accuracy.

Twice: with the paper's query (correct and total, sensitivity 2), and with one-hot cells (wrong
and correct, sensitivity 1), which says the same with half the noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privcal.calibration.maps import BinsMap
from privcal.calibration.methods.base import Ask, Batch, Method, Rounds, register
from privcal.trusted.queries import CellHistogram, Histogram
from privcal.trusted.scores import FloatArray


@dataclass(frozen=True)
class _Binning(Method):
    bins: int = 15

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", Histogram(self.bins).bins)


@register("histogram-binning", order=3)
@dataclass(frozen=True)
class HistogramBinning(_Binning):
    """Asks for the correct rows and all rows of each of `bins` equal-width bins."""

    def run(self, batch: Batch) -> Rounds:
        [answer] = yield [Ask(Histogram(self.bins), batch.nano_epsilon)]
        return _maps(answer[:, : self.bins], answer[:, self.bins :])


@register("one-hot-binning")
@dataclass(frozen=True)
class OneHotBinning(_Binning):
    """Asks for the wrong rows and the correct rows of each of `bins` equal-width bins."""

    def run(self, batch: Batch) -> Rounds:
        [answer] = yield [Ask(CellHistogram(self.bins), batch.nano_epsilon)]
        correct = answer[:, self.bins :]
        return _maps(correct, answer[:, : self.bins] + correct)


def _maps(correct: FloatArray, total: FloatArray) -> list[BinsMap]:
    """A bin whose noisy total is not positive keeps each row's own confidence."""
    known = total > 0
    accuracy = np.clip(correct / np.where(known, total, 1.0), 0.0, 1.0)
    values = accuracy.astype(object)
    values[~known] = None
    return [BinsMap(tuple(run)) for run in values.tolist()]
