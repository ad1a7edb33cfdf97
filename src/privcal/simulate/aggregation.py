"""How the answers of simulated sources are put together, and the noise that is in their average.

With "each" every source adds noise enough for itself. With "secure" only the sum is opened
(`privcal.secure`), under the terms that are usual: a fifth of the sources may work with whoever
asks, a tenth may fail, and a floor keeps each source's own noise at ten times the ε.
"""

from __future__ import annotations

import math

from privcal.calibrate import AGGREGATIONS
from privcal.checks import known
from privcal.errors import InputError
from privcal.privacy.laws import NoiseLaw
from privcal.secure.panel import USUAL_ALONE, Secure, expected
from privcal.secure.terms import FEWEST

EACH, SECURE = AGGREGATIONS
BOTH = "both"
"""Each source by itself, and secure sums beside it."""

ASSUMED = (
    "a secure sum under the usual terms: a fifth of the sources may work with whoever asks, a tenth "
    f"may fail, and each source's own noise is that of {USUAL_ALONE} times the ε"
)


def aggregations(text: str) -> tuple[str, ...]:
    """What is simulated where `each`, `secure` or `both` is asked for.

    >>> aggregations("both")
    ('each', 'secure')
    """
    return AGGREGATIONS if known("aggregation", text, (*AGGREGATIONS, BOTH)) == BOTH else (text,)


def noise_law(aggregation: str, sources: int) -> NoiseLaw:
    """The law of the noise in the average of so many sources that all answer.

    >>> noise_law("secure", 50)
    NoiseLaw(rows_per_person=1, honest=35, alone=10, groups=1)
    """
    if known("aggregation", aggregation, AGGREGATIONS) == EACH:
        return NoiseLaw()
    if sources < FEWEST:
        raise InputError(
            f"a secure sum is of at least {FEWEST} sources, not of {sources}: ask each by itself"
        )
    return expected(Secure(), sources, rows_per_person=1)[1]


def epsilon_share(sources: int) -> float:
    """The ε of a secure sum, for noise as large as that of ε = 1 at each of so many sources.

    >>> [round(epsilon_share(n), 2) for n in (3, 8, 20, 50, 300)]
    [0.71, 0.46, 0.29, 0.2, 0.12]
    """
    return math.sqrt(noise_law(SECURE, sources).laplaces)


PAYS = 0.5
"""Secure sums pay where they take less than this share of the ε."""


def pays_from() -> int:
    """The number of sources from which on secure sums pay.

    >>> pays_from()
    8
    """
    counts = range(FEWEST, 100)  # beyond, the share only falls
    return 1 + max(n for n in counts if epsilon_share(n) >= PAYS)
