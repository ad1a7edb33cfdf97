"""Acc-T, the paper's own method: the temperature at which mean confidence equals accuracy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privcal.methods.base import Batch, Rounds, register
from privcal.methods.search import TemperatureSearch
from privcal.queries import Gap


@register("acc-t", order=6)
@dataclass(frozen=True)
class AccT(TemperatureSearch):
    """Asks for the gap between accuracy and mean confidence, and makes it small."""

    iterations: int = 4
    bounds: tuple[float, float] = (0.5, 6.0)
    spacing: str = "log"

    def run(self, batch: Batch) -> Rounds:
        return (yield from self.least(batch, Gap(), lambda gap: np.abs(gap[:, 0])))
