"""Acc-T, the paper's own method: the temperature at which mean confidence equals accuracy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privcal.calibration.methods.base import register
from privcal.calibration.methods.search import TemperatureSearch
from privcal.trusted.queries import Gap
from privcal.trusted.scores import FloatArray


@register("acc-t", order=6)
@dataclass(frozen=True)
class AccT(TemperatureSearch):
    """Asks for the gap between accuracy and mean confidence, and makes it small."""

    iterations: int = 4
    bounds: tuple[float, float] = (0.5, 6.0)
    spacing: str = "log"

    @property
    def query(self) -> Gap:
        return Gap()

    def value(self, average: FloatArray) -> FloatArray:
        return np.abs(average[:, 0])
