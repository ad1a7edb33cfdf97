"""A total: the sum of many sources' answers, of which nobody saw a part (`privcal.secure`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from privcal.privacy.laws import NoiseLaw
from privcal.question import Question
from privcal.scores import FloatArray


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
    ledgers: Mapping[str, str] = field(default_factory=dict)
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
