"""Whether a total can be one of honest sources: all that can be checked where no part is seen.

A site that answers in a secure sum can claim what it likes, and nobody sees its answer. What the
sites' rows and the noise can give together bounds the total, and so what one of them can claim: the
bound is that of everybody's rows, looser than what is known of an answer that comes by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from privcal.plausible import BEYOND
from privcal.privacy.epsilon import NANO
from privcal.secure.terms import Terms

_STEPS = 200


def noise_limit(terms: Terms, sources: int, chance: float) -> float:
    """What the noise in one number of the total exceeds with probability below `chance`, either way.

    In points of the grid, for a total of so many sources. Proof. The noise is the sum of |U| Pólya
    shares and |U| discrete Laplace variables (the floors), all independent. Let γ = ε/Δ. A discrete
    Laplace variable with P[k] ∝ e^(−γ|k|) has E e^(sX) = (cosh γ − 1)/(cosh γ − cosh s) for |s| < γ.
    As (cosh x − 1)/x² grows with x > 0, (cosh s − 1)/(cosh γ − 1) ≤ (s/γ)², and so

        E e^(sX) = 1 / (1 − (cosh s − 1)/(cosh γ − 1)) ≤ 1 / (1 − (s/γ)²).

    A share is the h-th part of such a variable: E e^(sX) is the h-th root of the same; a floor has
    alone·γ in place of γ. By Chernoff's bound, with s = uγ and 0 < u < 1, the total's noise N has

        P[N ≥ x/γ] ≤ exp(−ux) · (1 − u²)^(−|U|/h) · (1 − (u/alone)²)^(−|U|),

    which is chance/2 for x = (log(2/chance) − |U|/h · log(1 − u²) − |U| · log(1 − (u/alone)²)) / u.
    Any u will do, so the least of these over a number of them does; N is symmetric. ∎
    """

    def limit(u: float) -> float:
        shares = sources / terms.honest * math.log1p(-u * u)
        floors = sources * math.log1p(-((u / terms.alone) ** 2))
        return (math.log(2 / chance) - shares - floors) / u

    least = min(limit(step / _STEPS) for step in range(1, _STEPS))
    return least * terms.sensitivity * NANO / terms.question.nano_epsilon


def beyond(values: Sequence[int], terms: Terms, rows: Sequence[int]) -> bool:
    """Whether honest sources with at most so many rows each have such a total (on the grid) almost
    never: with probability below `privcal.plausible.BEYOND`.

    Their exact sums are at most the bound of the query for each row, in L1, and none of k numbers
    has noise beyond `noise_limit` for a k-th of the probability, but with that probability.
    """
    noise = noise_limit(terms, len(rows), BEYOND / len(values))
    bound = sum(rows) * terms.question.query.bound
    return sum(max(0.0, abs(value) - noise) for value in values) > bound
