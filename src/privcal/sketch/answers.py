"""What left the sources: one's own answer, or a total of which nobody saw a part.

A sketch is made of both. Each knows whose answers are in it, what they add up to, how much noise
that has, and what it cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from privcal.checks import whole
from privcal.errors import InputError
from privcal.privacy.epsilon import MAX_EPSILON, NANO
from privcal.privacy.laws import NoiseLaw
from privcal.privacy.policy import MAX_ROWS_PER_PERSON
from privcal.privacy.sharing import PRIME
from privcal.queries import GRID
from privcal.question import check_asker, check_campaign
from privcal.scores import FloatArray
from privcal.totals import Part, Total, average
from privcal.wording import plural


@dataclass(frozen=True)
class SketchAnswer:
    """One source's noisy answer, and what it was asked under."""

    source: str
    """The source's name."""
    asker: str
    """The name of whoever asked."""
    campaign: str
    """The name of the run in which it was asked."""
    nano_epsilon: int
    """The nano-ε that the source was charged."""
    values: tuple[float, ...]
    """The noisy numbers, as they left the source."""
    rows_per_person: int = 1
    """The most rows of one person that count at the source; the noise grows with it."""
    ledger: str = ""
    """The random id of the ledger that was charged: whose answer this is, whatever the name."""

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or not self.source:
            raise InputError(f"an answer's source must be a name, not {self.source!r}")
        what = f"the answer of {self.source!r}"
        if not isinstance(self.ledger, str):
            raise InputError(f"{what}: its ledger must be an id, not {self.ledger!r}")
        _check_asked(what, self)
        rows = whole(f"{what}: rows_per_person", self.rows_per_person, 1, MAX_ROWS_PER_PERSON)
        object.__setattr__(self, "rows_per_person", rows)
        object.__setattr__(self, "values", _values(what, self.values))

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

    asker: str
    """The name of whoever asked."""
    campaign: str
    """The name of the run in which it was asked."""
    nano_epsilon: int
    """The nano-ε that each source was charged, against the asker and those who may work with it."""
    parts: tuple[Part, ...]
    """The sums as they were opened: one, or one of each group."""
    noise: NoiseLaw
    """The law of the noise in the average."""
    ledgers: Mapping[str, str] = field(default_factory=dict)
    """The random id of the ledger that was charged at each source, by its name."""

    def __post_init__(self) -> None:
        _check_asked("a total", self)
        what = f"the total for {self.asker!r} in campaign {self.campaign!r}"
        self._check_noise(what)
        names = self._check_parts(what)
        if not isinstance(self.ledgers, Mapping):
            raise InputError(f"{what}: its ledgers must be ids by the names of sources")
        for name, ledger in self.ledgers.items():
            if name not in names:
                raise InputError(f"{what}: it has a ledger of {name!r}, who is not in it")
            if not isinstance(ledger, str) or not ledger:
                raise InputError(f"{what}: the ledger of {name!r} must be an id, not {ledger!r}")
        if len(self.sources) < len(names):
            raise InputError(f"{what}: two of its sources have one ledger")

    def _check_noise(self, what: str) -> None:
        if not isinstance(self.noise, NoiseLaw) or not self.noise.secure:
            raise InputError(f"{what}: its noise must be that of a secure sum")
        whole(f"{what}: rows_per_person", self.noise.rows_per_person, 1, MAX_ROWS_PER_PERSON)

    def _check_parts(self, what: str) -> list[str]:
        """The names of all sources, each once."""
        if not isinstance(self.parts, (list, tuple)):
            raise InputError(f"{what}: its parts must be a list")
        parts = tuple(_part(what, part) for part in self.parts)
        object.__setattr__(self, "parts", parts)
        groups = self.noise.groups
        if len(parts) != groups:
            raise InputError(f"{what}: it has {plural(groups, 'group')}, but {len(parts)} parts")
        if len({len(part.values) for part in parts}) > 1:
            raise InputError(f"{what}: its parts are of different lengths")
        names = [name for part in parts for name in part.sources]
        for name, often in Counter(names).items():
            if often > 1:
                raise InputError(f"{what}: {name!r} is in it twice")
        fewest = min(len(part.sources) for part in parts)
        whole(f"{what}: the honest in its noise", self.noise.honest, 1, fewest)
        return names

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

    def to_dict(self) -> dict[str, Any]:
        """As the file of a sketch has it."""
        return {**asdict(self), "ledgers": dict(self.ledgers)}


def read_answer(number: int, document: dict[str, Any]) -> SketchAnswer:
    """An answer as the file of a sketch has it, the so-manieth there."""
    _check_names(f"answer {number}", document, SketchAnswer)
    return SketchAnswer(**document)


def read_total(number: int, document: dict[str, Any]) -> SketchTotal:
    """A total as the file of a sketch has it, the so-manieth there."""
    what = f"total {number}"
    _check_names(what, document, SketchTotal)
    parts, noise = document["parts"], document["noise"]
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise InputError(f"the parts of {what} must be a list of objects")
    if not isinstance(noise, dict):
        raise InputError(f"the noise of {what} must be an object")
    for place, part in enumerate(parts, 1):
        _check_names(f"part {place} of {what}", part, Part)
    _check_names(f"the noise of {what}", noise, NoiseLaw)
    try:
        law = NoiseLaw(**noise)
    except InputError as error:
        raise InputError(f"the noise of {what}: {error}") from None
    made = tuple(Part(**part) for part in parts)
    return SketchTotal(**{**document, "parts": made, "noise": law})


def _check_names(what: str, document: dict[str, Any], of: type[Any]) -> None:
    names = {f.name for f in fields(of)}
    if wrong := sorted(names ^ set(document)):
        raise InputError(f"{what} {'lacks' if wrong[0] in names else 'has an unknown'} {wrong[0]}")


def _check_asked(what: str, release: SketchAnswer | SketchTotal) -> None:
    try:
        check_asker(release.asker)
        check_campaign(release.campaign)
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    most = MAX_EPSILON * NANO
    nano = whole(f"{what}: nano_epsilon", release.nano_epsilon, 1, most)
    object.__setattr__(release, "nano_epsilon", nano)


def _answer(source: str, release: SketchAnswer | SketchTotal) -> str:
    return f"the answer of {source!r} to {release.asker!r} in campaign {release.campaign!r}"


def _part(what: str, part: Part) -> Part:
    sources = part.sources
    if not isinstance(sources, (list, tuple)) or not sources:
        raise InputError(f"{what}: the sources of a part must be a list of names")
    if not all(isinstance(name, str) and name for name in sources):
        raise InputError(f"{what}: the sources of a part must be names")
    # Whatever can be opened: a liar's group may have any sum, and the median does not mind.
    return Part(tuple(sorted(sources)), _values(what, part.values, PRIME / 2 / GRID))


def _values(what: str, values: Any, most: float = 2**63 / GRID) -> tuple[float, ...]:
    """Numbers up to what a source can answer: its sums are 64-bit whole numbers on the grid."""
    if not isinstance(values, (list, tuple)):
        raise InputError(f"{what}: values must be a list of numbers")
    return tuple(_value(what, value, most) for value in values)


def _value(what: str, value: Any, most: float) -> float:
    fits = isinstance(value, (int, float)) and abs(value) <= most  # NaN does not
    if isinstance(value, bool) or not fits:
        raise InputError(f"{what}: {value!r} is no number that can be in it")
    return float(value)
