"""How much noise is in an average of sources: of each one's own, or of one for all of them.

Everything is for a query of sensitivity 1, as the sketch's are. A source that adds its own noise
adds a Laplace variable of scale s = rows of a person / ε, of variance 2s². In a secure sum each adds
one of `honest` shares of such a variable (its variance is the h-th part of it) and, as a floor, its
own at `alone` times the ε: 2s²·(1/h + 1/alone²).
"""

from __future__ import annotations

from dataclasses import dataclass

from privcal.checks import whole
from privcal.errors import InputError
from privcal.privacy.epsilon import NANO

MAX_ALONE = 1000
"""The most that `alone` may be."""

_OF_A_MEDIAN = {
    1: (1.0, 0.0, 0.0),
    3: (1.3460, 0.137, -0.001),
    5: (1.4342, 0.180, 0.010),
    7: (1.4727, 0.199, 0.021),
    9: (1.4943, 0.208, 0.030),
}
"""The variance of the median of so many variables, as a multiple c of that of their mean, if they are
normal; with tails heavier than those, by their excess kurtosis κ, it is c / (1 + bκ + aκ²).

The middle one of variables with a peak and heavy tails varies less. Of very many it has the variance
1/(4 f(0)²), and a law of kurtosis κ has the peak f(0) = φ(0)(1 + κ/8 + …): that makes 1 + κ/4 + ….
For few there are these numbers, fitted to the exact law of the noise; a test computes it.
"""
GROUPS = tuple(_OF_A_MEDIAN)
"""The numbers of groups that a secure sum may have: of an even number there is no middle one."""


@dataclass(frozen=True)
class NoiseLaw:
    """The law of the noise in an average over sources.

    rows_per_person
        The most rows of one person that count at any source.
    honest
        For a secure sum, h: how many sources' shares make the noise of one. None where each
        source adds the whole noise.
    alone
        For a secure sum: each source's own noise is that of `alone` times the ε.
    groups
        The sources are summed in so many groups, and the average is the median of the groups'.

    >>> NoiseLaw().variance(10**9, sources=50)
    0.04
    >>> NoiseLaw(honest=27, alone=10).variance(10**9, sources=50) < 0.002
    True
    """

    rows_per_person: int = 1
    honest: int | None = None
    alone: int | None = None
    groups: int = 1

    def __post_init__(self) -> None:
        whole("rows_per_person", self.rows_per_person, 1)
        whole("groups", self.groups, 1)
        if (self.honest is None) != (self.alone is None):
            raise InputError("honest and alone are both of a secure sum")
        if self.honest is not None:
            whole("honest", self.honest, 1)
            whole("alone", self.alone, 1, MAX_ALONE)
        if self.groups not in GROUPS or (self.groups > 1 and self.honest is None):
            raise InputError(
                f"groups must be one of {', '.join(map(str, GROUPS))}, of a secure sum"
            )

    @property
    def secure(self) -> bool:
        """Whether it is that of a secure sum."""
        return self.honest is not None

    def describe(self) -> str:
        """Whose noise it is, in words.

        >>> NoiseLaw(honest=27, alone=10).describe()
        'shares, of which 27 make the noise of one source, and a little of each one (that of ε times 10)'
        """
        if not self.secure:
            return "all of its own, at each source"
        return (
            f"shares, of which {self.honest} make the noise of one source, and a little of each one "
            f"(that of ε times {self.alone})"
        )

    @property
    def laplaces(self) -> float:
        """How much noise one source adds, where a Laplace variable of its own is 1."""
        if self.honest is None or self.alone is None:
            return 1.0
        return 1 / self.honest + 1 / self.alone**2

    def excess_kurtosis(self, sources: float) -> float:
        """How heavy the tails of the noise in a sum of so many sources are: 0 for a normal law.

        A Laplace variable of scale s has the cumulants 2s² and 12s⁴, its h-th share the h-th part
        of both; those of independent variables add up.
        """
        if self.honest is None or self.alone is None:
            return 3 / sources
        fourth = 1 / self.honest + 1 / self.alone**4
        return 3 * fourth / (sources * self.laplaces**2)

    def variance(self, nano_epsilon: int, sources: float) -> float:
        """The variance of the noise in one number of the average over so many sources."""
        scale = self.rows_per_person * NANO / nano_epsilon
        normal, b, a = _OF_A_MEDIAN[self.groups]
        kurtosis = self.excess_kurtosis(sources / self.groups)
        median = normal / (1 + b * kurtosis + a * kurtosis**2)
        return 2.0 * scale**2 * self.laplaces * median / sources

    def independent(self, sources: int) -> float:
        """Of how many sources the average varies as much with the rows that they happen to have.

        All of them, unless it is a median of groups.
        """
        return sources / _OF_A_MEDIAN[self.groups][0]
