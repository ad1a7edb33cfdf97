"""Exact limits of a probability, of which some successes were seen."""

from __future__ import annotations

import math

import numpy as np


def interval(n: int, successes: int, level: float) -> tuple[float, float]:
    """Clopper and Pearson's interval: it covers the probability in at least `level` of all cases.

    Where rows have probabilities of their own, it covers their mean at least as often in all but
    extreme cases: the number of successes then varies less, not more (Hoeffding 1956).

    >>> [round(limit, 3) for limit in interval(10, 8, 0.95)]
    [0.444, 0.975]
    """
    alpha = (1 - level) / 2
    return lower_limit(n, successes, alpha), 1 - lower_limit(n, n - successes, alpha)


def lower_limit(n: int, successes: int, alpha: float) -> float:
    """Clopper and Pearson's lower limit: the p at which P[Binomial(n, p) ≥ successes] is alpha."""
    low, high = 0.0, successes / n if n else 0.0
    while low < (middle := (low + high) / 2) < high:
        if upper_tail(n, successes, middle) <= alpha:
            low = middle
        else:
            high = middle
    return low  # the tail there is at most alpha: the limit errs to the safe side


def upper_tail(n: int, least: int, p: float) -> float:
    """P[Binomial(n, p) ≥ least], as a sum of probabilities, the largest first."""
    if least <= 0 or p >= 1:
        return 1.0
    if least > n or p <= 0:
        return 0.0
    if least <= n * p:  # the lesser tail, so that no digits are lost
        return 1.0 - upper_tail(n, n - least + 1, 1 - p)
    first = (
        math.lgamma(n + 1)
        - math.lgamma(least + 1)
        - math.lgamma(n - least + 1)
        + least * math.log(p)
        + (n - least) * math.log1p(-p)
    )
    # Each is the one before times a factor below 1; 40 deviations on, nothing is left.
    last = min(n, least + 100 + math.ceil(40 * math.sqrt(n * p * (1 - p))))
    i = np.arange(least, last)
    steps = np.log((n - i) / (i + 1)) + (math.log(p) - math.log1p(-p))
    return min(1.0, math.exp(first) * (1.0 + float(np.exp(np.cumsum(steps)).sum())))
