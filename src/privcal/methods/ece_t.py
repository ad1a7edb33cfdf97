"""ECE-T: the temperature of least binned calibration error.

Averaged over sources, then the absolute value, then the sum over bins: without noise this is
the calibration error of all rows together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privcal.methods.base import Batch, Rounds, register
from privcal.methods.search import TemperatureSearch
from privcal.queries import BinnedGap


@register("ece-t", order=4)
@dataclass(frozen=True)
class EceT(TemperatureSearch):
    """Asks for the gaps within `bins` equal-width bins, and makes their sum small."""

    bins: int = 15

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "bins", BinnedGap(bins=self.bins).bins)

    def run(self, batch: Batch) -> Rounds:
        query = BinnedGap(bins=self.bins)
        return (yield from self.least(batch, query, lambda gaps: np.abs(gaps).sum(axis=1)))
