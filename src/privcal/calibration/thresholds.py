"""When to answer at all: what share of rows a map is confident enough of, and how wrong it expects to be.

The map's own confidence says it, on rows without labels; nothing is asked of anybody.

Assumed: the map is calibrated on rows like these, that is, P(correct | confidence = c) = c. Then of the
rows answered, those with a confidence of at least t, the expected share of errors is

    E[1 − correct | confidence ≥ t] = E[1 − confidence | confidence ≥ t],

by averaging the assumption over all c ≥ t. Over n given rows that is the mean of 1 − confidence, and the
share of errors that comes true differs from it by a deviation of √(Σ c(1 − c)) / n if the rows are right
or wrong independently of each other. A map that is wrong on such rows says nothing here: a share of
errors, counted later on some labelled rows, that is several deviations off tells that it no longer fits. ∎
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from privcal.calibration.maps import Map
from privcal.trusted.checks import number

USUAL = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)


@dataclass(frozen=True)
class Threshold:
    """What answering only where the confidence is at least `confidence` would mean.

    Attributes
    ----------
    confidence
        The threshold.
    rows
        How many rows would be answered.
    answered
        Their share of all rows; None of no rows.
    expected_error
        The share of errors to expect among them; None if there are none.
    deviation
        How far the share that comes true may well be from it, by chance: one standard deviation.

    Examples
    --------
    >>> [row] = privcal.abstention(privcal.TemperatureMap(1.0), [[2.0, 0.0]], thresholds=[0.5])
    >>> row.answered
    1.0
    """

    confidence: float
    rows: int
    answered: float | None
    expected_error: float | None
    deviation: float | None


def abstention(
    map: Map,
    scores: Any = None,
    *,
    logits: Any = None,
    probabilities: Any = None,
    thresholds: Iterable[float] = USUAL,
) -> list[Threshold]:
    """Answer only where the confidence is high: what share of rows, and how many errors to expect.

    Rests on the map being calibrated on rows like these (see `privcal.calibration.thresholds` for the argument);
    labels are not needed.

    Parameters
    ----------
    map
        The map that gives the confidence.
    scores, logits, probabilities
        Outputs of the model for rows as they come, as `Map.confidence` takes them.
    thresholds
        Confidences from 0 to 1, in any order.

    Returns
    -------
    list of Threshold
        One for each threshold, in the order given.

    Examples
    --------
    >>> map = privcal.TemperatureMap(2.0)
    >>> logits = [[8.0, 0.0], [4.0, 0.0], [0.0, 1.0]]  # confidence .982, .881, .622
    >>> for row in privcal.abstention(map, logits, thresholds=[0.5, 0.9]):
    ...     print(f"{row.confidence}: {row.answered:.0%} answered, {row.expected_error:.1%} wrong")
    0.5: 100% answered, 17.2% wrong
    0.9: 33% answered, 1.8% wrong
    """
    c = map.confidence(scores, logits=logits, probabilities=probabilities)
    return [_at(c, number("threshold", t, 0, 1)) for t in thresholds]


def _at(c: Any, threshold: float) -> Threshold:
    kept = c[c >= threshold]
    n = len(kept)
    return Threshold(
        threshold,
        n,
        n / len(c) if len(c) else None,
        float(np.mean(1 - kept)) if n else None,
        float(np.sqrt((kept * (1 - kept)).sum()) / n) if n else None,
    )
