"""What a study measures of a run: calibration, sharpness with it, and order alone."""

from __future__ import annotations

import math
from typing import NamedTuple

from privcal.scores import FloatArray


class Measured(NamedTuple):
    """ECE, Brier score and AURC on the test rows, one value for each trial."""

    ece: FloatArray
    brier: FloatArray
    aurc: FloatArray

    def summary(self) -> dict[str, float]:
        """Each measure's mean and its standard error; that of a single trial is not a number."""
        found = {}
        for name, values in self._asdict().items():
            n = len(values)
            found[f"{name}_mean"] = float(values.mean())
            found[f"{name}_se"] = float(values.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
        return found
