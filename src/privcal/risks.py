"""How good the risk of one class is, measured on rows.

The measures are those by which clinicians judge a risk (Van Calster et al. 2019), and those that
`privcal.sketch.risk` estimates where nobody may look at the rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from privcal.metrics import AllRows
from privcal.scores import BoolArray, FloatArray
from privcal.sketch.risk import auroc, intercept, log_odds, slope


@dataclass(frozen=True, eq=False)
class RiskMeasures:
    """Exact measures of the risk of one class, for data one may look at.

    What rows cannot tell is NaN: an O/E where no risk is above 0, a slope where all rows with the
    event have a higher risk than all without (it would be infinite), an AUROC of one outcome alone.
    """

    event: int
    """The class whose risk it is."""
    prevalence: float
    """The share of rows for which the event was so."""
    risk: float
    """The mean risk, which should be the prevalence."""
    observed_expected: float
    """Prevalence over mean risk: 1 is right, above 1 the risk is too low."""
    intercept: float
    """What the log-odds of every risk lack, on the whole (calibration in the large): 0 is right."""
    slope: float
    """By what the log-odds are to be multiplied (logistic recalibration): 1 is right, and below 1 high
    risks are too high and low ones too low."""
    brier_risk: float
    """The mean of (risk − outcome)²."""
    auroc: float
    """How well the risk puts rows with the event above those without; equal risks count half."""
    rows: AllRows
    """The risk of every row, and whether it was so."""

    def to_dict(self) -> dict[str, float | int]:
        """The values by name, without the rows."""
        return {k: v for k, v in vars(self).items() if k != "rows"}


def measure_risk(risk: ArrayLike, outcome: ArrayLike, event: int) -> RiskMeasures:
    """All measures of a `risk` (n,) in [0, 1] of an `outcome` (n,) that is true or false.

    >>> found = measure_risk([0.1, 0.2, 0.4, 0.7], [False, True, False, True], event=1)
    >>> round(found.observed_expected, 3), found.auroc
    (1.429, 0.75)
    """
    rows = AllRows.of(risk, outcome)
    r, y = rows.confidence, rows.correct
    values, group = np.unique(r, return_inverse=True)
    count = np.bincount(group)
    share: FloatArray = (count / len(r))[None]
    yes: FloatArray = (np.bincount(group, y) / count)[None]
    odds, mixed = log_odds(values), bool(y.any() and not y.all())
    return RiskMeasures(
        event=event,
        prevalence=float(y.mean()),
        risk=float(r.mean()),
        observed_expected=float(y.mean() / r.mean()) if r.any() else math.nan,
        intercept=float(intercept(yes, share, odds)[0]) if mixed else math.nan,
        slope=float(slope(yes, share, odds)[0]) if _overlap(log_odds(r), y) else math.nan,
        brier_risk=float(np.mean((r - y) ** 2)),
        auroc=float(auroc(yes, share)[0]) if mixed else math.nan,
        rows=rows,
    )


def _overlap(risk: FloatArray, outcome: BoolArray) -> bool:
    """Whether a finite slope is the most probable: no limit parts the outcomes, in either direction."""
    yes, no = risk[outcome], risk[~outcome]
    if not len(yes) or not len(no):
        return False
    return bool(yes.min() < no.max() and no.min() < yes.max())
