"""The Laplace mechanism, exactly: integers in, integers out, OpenDP's discrete Laplace noise.

Proof. Let Δ bound ‖f(D) − f(D′)‖₁ over neighbours, f in ℤᵏ. Each cell gets independent noise Z
with P[Z = z] ∝ exp(−|z|/s). For any output x,

    P[f(D) + Z = x] / P[f(D′) + Z = x] = exp(Σ (|x − f(D′)| − |x − f(D)|)/s) ≤ exp(Δ/s),

so s ≥ Δ/ε gives ε-differential privacy. OpenDP samples Z exactly (no floating point meets the
data) from the operating system's randomness, and its privacy map bounds Δ/s from above with
outward rounding. We ask that map, and nudge s up until it certifies at most the ε charged. ∎
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from privcal.trusted.epsilon import NANO
from privcal.trusted.scores import IntArray


def add_noise(total: IntArray, sensitivity: int, nano_epsilon: int) -> list[int]:
    """`total` plus discrete Laplace noise, ε-differentially private for ε = nano_epsilon/10⁹.

    `sensitivity` is in the same unit as `total`: the most one person can change it, in L1.

    >>> len(add_noise(np.array([3, 5]), sensitivity=1, nano_epsilon=10**9))
    2
    """
    laplace, certified = _laplace(sensitivity, nano_epsilon)
    if certified > Fraction(nano_epsilon, NANO):
        raise AssertionError("the mechanism does not certify the epsilon that was charged")
    noisy: list[int] = laplace([int(v) for v in np.asarray(total, np.int64)])
    return noisy


def noise_scale(sensitivity: int, nano_epsilon: int) -> float:
    """The scale s of the noise, in the unit of the sensitivity: its standard deviation is √2·s."""
    return _certified_scale(sensitivity, nano_epsilon)


def _measurement(scale: float) -> Any:
    # Here, because these take longer to import than most; opendp.prelude takes ten times as long.
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_laplace
    from opendp.metrics import l1_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    # i64, not int: OpenDP's int is 32 bits wide.
    domain = vector_domain(atom_domain(T="i64"))
    return make_laplace(domain, l1_distance(T="i64"), scale=scale)


@lru_cache(maxsize=256)
def _certified_scale(sensitivity: int, nano_epsilon: int) -> float:
    if sensitivity < 1 or nano_epsilon < 1:
        raise ValueError("sensitivity and epsilon must be positive")
    epsilon = Fraction(nano_epsilon, NANO)
    scale = float(sensitivity / epsilon)
    while Fraction(_measurement(scale).map(sensitivity)) > epsilon:
        scale = math.nextafter(scale, math.inf)
    return scale


@lru_cache(maxsize=256)
def _laplace(sensitivity: int, nano_epsilon: int) -> tuple[Any, Fraction]:
    """The mechanism, and the ε that its own privacy map certifies."""
    laplace = _measurement(_certified_scale(sensitivity, nano_epsilon))
    return laplace, Fraction(laplace.map(sensitivity))
