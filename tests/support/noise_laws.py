"""The laws of the noise in secure sums, by their formulas: P[z] for −n < z < n, in double precision."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import stats

Law = npt.NDArray[np.float64]


def share_law(gamma: float, honest: int, n: int | None = None) -> Law:
    """Of one of `honest` shares: the difference of two negative binomials, summed out."""
    n = n or int(45 / gamma) + 10
    one = stats.nbinom.pmf(np.arange(n), 1 / honest, -math.expm1(-gamma))
    return np.convolve(one, one[::-1])


def discrete_laplace(gamma: float, n: int) -> Law:
    """Of the noise of one source: P[z] ∝ e^(−γ|z|)."""
    z = np.abs(np.arange(1 - n, n))
    return np.exp(-gamma * z) * math.tanh(gamma / 2)


def law_of_sum(*laws: Law) -> Law:
    """Of the sum of independent ones, all on the same range; what falls outside it is dropped."""
    total = laws[0]
    for law in laws[1:]:
        middle = len(law) // 2
        total = np.convolve(total, law)[middle:-middle]
    return total
