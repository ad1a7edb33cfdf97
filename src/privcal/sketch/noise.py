"""How much noise is in a sketch."""

from __future__ import annotations

import math
from collections.abc import Iterable

from privcal.privacy.epsilon import NANO


def noise_variance(answers: Iterable[tuple[int, int]]) -> float:
    """The variance of the noise in one number of the average of some answers.

    Each is given as (nano-ε, rows per person): its noise is Laplace with scale rows/ε, hence
    variance 2·(rows/ε)². The variance of a mean of n is their sum over n². The sum is rounded
    once, so that the order of the answers does not matter.
    """
    each = [2.0 * (rows * NANO / nano) ** 2 for nano, rows in answers]
    return math.fsum(each) / len(each) ** 2
