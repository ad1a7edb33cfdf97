"""A round: what asking gives back, of each source by itself or in a secure sum, and how much noise is in it.

Noise is counted for a query of sensitivity 1, as the sketch's are. A source that adds its own noise
adds a Laplace variable of scale s = rows of a person / ε, of variance 2s². In a secure sum each adds
one of `honest` shares of such a variable (its variance is the h-th part of it) and, as a floor, its
own at `alone` times the ε: 2s²·(1/h + 1/alone²).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from privcal.data.panels import own_ledgers
from privcal.secure.terms import Alone, Groups
from privcal.trusted import records
from privcal.trusted.epsilon import NANO
from privcal.trusted.errors import InputError
from privcal.trusted.queries import Query
from privcal.trusted.question import Question
from privcal.trusted.records import Between
from privcal.trusted.scores import FloatArray

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

    rows_per_person: Annotated[int, Between(1)] = 1
    honest: Annotated[int, Between(1)] | None = None
    alone: Alone | None = None
    groups: Groups = 1

    def __post_init__(self) -> None:
        records.check(self)
        if (self.honest is None) != (self.alone is None):
            raise InputError("honest and alone are both of a secure sum")
        if self.groups > 1 and self.honest is None:
            raise InputError("several groups are of a secure sum")

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


@dataclass(frozen=True)
class Part:
    """One sum that was opened: of whose answers, and what they add up to, noise included."""

    sources: tuple[str, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Total:
    """The answer of many sources together to one question.

    Attributes
    ----------
    question
        The question as it was asked.
    parts
        The sums that were opened: one, or one of each group. No source is in two.
    noise
        The law of the noise in the average.
    ledgers
        The random id of the ledger that was charged at each source, by its name.
    left_out
        The sites whose part in opening the sum did not fit and was not used. It need not be their
        doing: whoever dealt them a false share brings that about as well.

    Examples
    --------
    >>> from privcal.queries import Gap
    >>> parts = (Part(("north", "south", "west"), (6.0,)),)
    >>> total = Total(Question.of(Gap(), 0.5, "spring"), parts, NoiseLaw(honest=2, alone=10))
    >>> total.sources, total.average
    (('north', 'south', 'west'), array([2.]))
    """

    question: Question
    parts: tuple[Part, ...]
    noise: NoiseLaw
    ledgers: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """Whose answers are in it, by name."""
        return tuple(sorted(name for part in self.parts for name in part.sources))

    @property
    def average(self) -> FloatArray:
        """The average over sources; of several groups the median of theirs, number by number."""
        return average(self.parts)

    @property
    def variance(self) -> float:
        """The variance of the noise in one number of the average, for a query of sensitivity 1."""
        return self.noise.variance(self.question.nano_epsilon, len(self.sources))


def average(parts: Sequence[Part]) -> FloatArray:
    """The average over the sources of one part; of several the median of theirs, number by number."""
    averages = [np.array(part.values) / len(part.sources) for part in parts]
    return np.asarray(np.median(averages, axis=0))


@dataclass(frozen=True)
class Round:
    """One question of a run, and what came back: the answers of sources, or their total.

    Attributes
    ----------
    question
        The question as it was asked.
    answers
        The noisy values of each source that answered by itself. In a secure sum nobody sees these.
    noise
        The law of the noise in the average.
    ledgers
        The random id of the ledger that was charged at each source, by its name.
    total
        For a secure sum, what all of them answered together.
    """

    question: Question
    answers: dict[str, tuple[float, ...]]
    noise: NoiseLaw = NoiseLaw()
    ledgers: dict[str, str] = field(default_factory=dict)
    total: Total | None = None

    @classmethod
    def of(cls, total: Total) -> Round:
        """What a secure sum gave back."""
        return cls(total.question, {}, total.noise, total.ledgers, total)

    @property
    def round(self) -> int:
        """The round of the method it was asked in, from 0."""
        return self.question.round

    @property
    def query(self) -> Query:
        """The query that was asked."""
        return self.question.query

    @property
    def epsilon(self) -> float:
        """The ε that each source was charged for it."""
        return self.question.epsilon

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources whose answers are in it, by name."""
        return tuple(self.answers) if self.total is None else self.total.sources

    @property
    def average(self) -> FloatArray:
        """The average over sources; of a secure sum in several groups the median of theirs."""
        if self.total is not None:
            return self.total.average
        return np.asarray(np.mean(list(self.answers.values()), axis=0))

    def among(self, names: Sequence[str]) -> Round:
        """The same of these sources alone, with the ledgers that are nobody else's; a total is one whole."""
        if self.total is not None:
            return self
        answers = {name: self.answers[name] for name in names}
        told = {name: self.ledgers[name] for name in names if name in self.ledgers}
        return replace(self, answers=answers, ledgers=own_ledgers(told, answers))
