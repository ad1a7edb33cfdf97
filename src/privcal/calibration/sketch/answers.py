"""What left the sources: one's own answer, or a total of which nobody saw a part.

A sketch is made of both. Each knows whose answers are in it, what they add up to, how much noise
that has, and what it cost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any

from privcal.data.wording import plural
from privcal.secure.round import NoiseLaw, Part, Total, average
from privcal.secure.sharing import PRIME
from privcal.trusted import records
from privcal.trusted.checks import short, whole
from privcal.trusted.epsilon import MAX_EPSILON, NANO
from privcal.trusted.errors import InputError
from privcal.trusted.policy import MAX_ROWS_PER_PERSON
from privcal.trusted.queries import GRID
from privcal.trusted.question import Name, check_campaign
from privcal.trusted.records import Between, By
from privcal.trusted.scores import FloatArray

LARGEST = 2.0**63 / GRID
"""What a source can answer: its sums are 64-bit whole numbers on the grid."""


def _named(what: str, name: str) -> str:
    if not name:
        raise InputError(f"{what} must be a name")
    return name


def _law(what: str, value: Any) -> NoiseLaw:
    law = (
        value if isinstance(value, NoiseLaw) else records.read(NoiseLaw, value, what, complete=True)
    )
    if not law.secure:
        raise InputError(f"{what} must be that of a secure sum")
    whole(f"{what}: rows_per_person", law.rows_per_person, 1, MAX_ROWS_PER_PERSON)
    return law


def _part(what: str, part: Part) -> Part:
    if not part.sources or not all(part.sources):
        raise InputError(f"{what}: the sources of a part must be names")
    # Whatever can be opened: a liar's group may have any sum, and the median does not mind.
    if any(abs(value) > PRIME / 2 / GRID for value in part.values):
        raise InputError(f"{what}: values of a part must be sums that can be opened")
    return Part(tuple(sorted(part.sources)), part.values)


Campaign = Annotated[str, By(lambda _, name: check_campaign(name))]
Cost = Annotated[int, Between(1, MAX_EPSILON * NANO)]


@dataclass(frozen=True)
class SketchAnswer:
    """One source's noisy answer, and what it was asked under."""

    source: Annotated[str, _named]
    """The source's name."""
    asker: Name
    """The name of whoever asked."""
    campaign: Campaign
    """The name of the run in which it was asked."""
    nano_epsilon: Cost
    """The nano-ε that the source was charged."""
    values: tuple[Annotated[float, Between(-LARGEST, LARGEST)], ...]
    """The noisy numbers, as they left the source."""
    rows_per_person: Annotated[int, Between(1, MAX_ROWS_PER_PERSON)] = 1
    """The most rows of one person that count at the source; the noise grows with it."""
    ledger: str = ""
    """The random id of the ledger that was charged: whose answer this is, whatever the name."""

    def __post_init__(self) -> None:
        records.check(self)

    @property
    def who(self) -> str:
        """The people behind it: one ledger is one population. Without one, the name must do."""
        return self.ledger or self.source

    @property
    def sources(self) -> dict[str, str]:
        """The name of its source, by whose answer it is."""
        return {self.who: self.source}

    @property
    def numbers(self) -> list[tuple[float, ...]]:
        """What left its source: noise never comes out the same twice."""
        return [self.values]

    @property
    def noise(self) -> NoiseLaw:
        """The law of its noise."""
        return NoiseLaw(self.rows_per_person)

    @property
    def nano_alone(self) -> int:
        """The nano-ε that its source lost if everybody else worked together."""
        return self.nano_epsilon

    def answer_of(self, source: str) -> str:
        """It in words."""
        return _answer(source, self)

    def __str__(self) -> str:
        return _answer(self.source, self)


@dataclass(frozen=True)
class SketchTotal:
    """A total of many sources' answers, of which nobody saw a part, and what it was asked under."""

    asker: Name
    """The name of whoever asked."""
    campaign: Campaign
    """The name of the run in which it was asked."""
    nano_epsilon: Cost
    """The nano-ε that each source was charged, against the asker and those who may work with it."""
    parts: tuple[Annotated[Part, _part], ...]
    """The sums as they were opened: one, or one of each group."""
    noise: Annotated[NoiseLaw, By(_law)]
    """The law of the noise in the average."""
    ledgers: dict[str, Annotated[str, _named]] = field(default_factory=dict)
    """The random id of the ledger that was charged at each source, by its name."""

    def __post_init__(self) -> None:
        records.check(self)
        groups = self.noise.groups
        if len(self.parts) != groups:
            raise InputError(f"it has {plural(groups, 'group')}, but {len(self.parts)} parts")
        if len({len(part.values) for part in self.parts}) > 1:
            raise InputError("its parts are of different lengths")
        names = Counter(name for part in self.parts for name in part.sources)
        for name, often in names.items():
            if often > 1:
                raise InputError(f"{short(name)} is in it twice")
        fewest = min(len(part.sources) for part in self.parts)
        whole("the honest in its noise", self.noise.honest, 1, fewest)
        for name in self.ledgers:
            if name not in names:
                raise InputError(f"it has a ledger of {short(name)}, who is not in it")
        if len(self.sources) < len(names):
            raise InputError("two of its sources have one ledger")

    @classmethod
    def of(cls, total: Total, asker: str) -> SketchTotal:
        """What was opened for an asker, as a sketch keeps it."""
        asked = total.question
        ledgers = {name: total.ledgers[name] for name in total.sources if name in total.ledgers}
        return cls(asker, asked.campaign, asked.nano_epsilon, total.parts, total.noise, ledgers)

    @property
    def sources(self) -> dict[str, str]:
        """The names of its sources, by whose answers they are."""
        names = sorted(name for part in self.parts for name in part.sources)
        return {self.ledgers.get(name) or name: name for name in names}

    @property
    def numbers(self) -> list[tuple[float, ...]]:
        """What was opened: noise never comes out the same twice."""
        return [part.values for part in self.parts]

    @property
    def average(self) -> FloatArray:
        """The average over its sources; of several groups the median of theirs, number by number."""
        return average(self.parts)

    @property
    def variance(self) -> float:
        """The variance of the noise in one number of the average."""
        return self.noise.variance(self.nano_epsilon, len(self.sources))

    @property
    def nano_alone(self) -> int:
        """The nano-ε that each source lost if everybody else worked together."""
        return self.nano_epsilon * (self.noise.alone or 1)

    def answer_of(self, source: str) -> str:
        """One of its answers in words."""
        return f"{_answer(source, self)}, which is in a total of {len(self.sources):,},"

    def describe(self) -> str:
        """How many sources are in it, and whose noise, in words."""
        groups = self.noise.groups
        middle = "" if groups == 1 else f" (the median of {groups} groups)"
        return f"{plural(len(self.sources), 'source')}{middle}"

    def __str__(self) -> str:
        size = plural(len(self.sources), "source")
        return f"the total of {size} for {self.asker!r} in campaign {self.campaign!r}"


def _answer(source: str, release: SketchAnswer | SketchTotal) -> str:
    return f"the answer of {source!r} to {release.asker!r} in campaign {release.campaign!r}"
