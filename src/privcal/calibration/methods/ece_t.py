"""ECE-T: the temperature of least binned calibration error.

Averaged over sources, then the absolute value, then the sum over bins: without noise this is
the calibration error of all rows together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privcal.calibration.methods.base import register
from privcal.calibration.methods.search import TemperatureSearch
from privcal.trusted.queries import BinnedGap
from privcal.trusted.scores import FloatArray


@register("ece-t", order=4)
@dataclass(frozen=True)
class EceT(TemperatureSearch):
    """Asks for the gaps within `bins` equal-width bins, and makes their sum small."""

    bins: int = 15

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "bins", BinnedGap(bins=self.bins).bins)

    @property
    def query(self) -> BinnedGap:
        return BinnedGap(bins=self.bins)

    def value(self, average: FloatArray) -> FloatArray:
        return np.asarray(np.abs(average).sum(axis=1))
