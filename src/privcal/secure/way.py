"""How the messages of a secure sum get to the sites, and what is kept of them on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from privcal.privacy.policy import SecureRules
from privcal.question import Question
from privcal.secure.members import Members
from privcal.secure.terms import Terms
from privcal.totals import Total

if TYPE_CHECKING:  # they need cryptography, which the base install does not bring
    from privcal.secure.boxes import Box
    from privcal.secure.participant import Dealt


class Way(Protocol):
    """How the messages of a secure sum get to the sites: in this process, or over a network.

    `names` are those of the sites that can be asked, `members` everybody on the roster; `rules` are
    what the owners want of secure sums, all of them together, where that is known, and `max_rows`
    is the most rows that a site may claim to have.

    Each of the three messages goes to all that are named, at once, and comes back from each of them
    once, in whatever order, as what was asked for or as the exception that says why not. It is only
    sent to sites that can be asked; terms may have others, when a campaign goes on.
    """

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def asker(self) -> str: ...

    @property
    def members(self) -> Members: ...

    @property
    def rows_per_person(self) -> int: ...

    @property
    def rows_per_source(self) -> float | None: ...

    @property
    def rules(self) -> SecureRules | None: ...

    @property
    def max_rows(self) -> int: ...

    def offer(self, terms: Terms, questions: Sequence[Question]) -> dict[str, str]:
        """The sites of the terms that would refuse, and why; the others reserve what it all costs."""
        ...

    def release(self, campaign: str) -> None:
        """Give back what is still reserved: the run is over."""
        ...

    def share(self, terms: Terms, names: Sequence[str]) -> Iterator[tuple[str, Dealt | Exception]]:
        """SHARE: what each of these sites dealt. It is charged for, once."""
        ...

    def check(
        self, terms: Terms, boxes: Mapping[str, Mapping[str, Box]]
    ) -> Iterator[tuple[str, Sequence[str] | Exception]]:
        """CHECK: of the boxes for each site, by who dealt them, whose it cannot open."""
        ...

    def open(
        self, terms: Terms, boxes: Mapping[str, Mapping[str, Box]]
    ) -> Iterator[tuple[str, Sequence[int] | Exception]]:
        """OPEN: the sum of what is in the boxes for each site."""
        ...


@dataclass(frozen=True)
class Decided:
    """What the questions of a campaign and their terms go by, as it was when it began.

    `names` are those of the sites that could be asked; `colluding`, `alone` and `groups` are as in the
    terms, `needed` is what the asker said of it, and `min_honest` what the owners want.
    """

    names: tuple[str, ...]
    rows_per_source: float | None
    rows_per_person: int
    colluding: int
    needed: int | None
    alone: int
    groups: int
    min_honest: int


@dataclass(frozen=True)
class Chosen:
    """The set whose answers are summed, and why the others are not in it."""

    names: tuple[str, ...]
    left: Mapping[str, str]


class Record(Protocol):
    """What a calibrator keeps of its secure sums, so that a run that was killed goes on with them.

    Whatever is written here is durable before the next message leaves.
    """

    def begun(self, now: Callable[[], Decided]) -> Decided:
        """What the questions and terms go by, as when the campaign began; `now` says it otherwise."""
        ...

    def terms(self, question: Question) -> Sequence[Terms]:
        """On which terms a question was asked; none where it was not."""
        ...

    def asks(self, terms: Sequence[Terms]) -> None:
        """These are going to be asked: from then on sites may be charged."""
        ...

    def chosen(self, terms: Terms) -> Chosen | None:
        """The set that is opened."""
        ...

    def chooses(self, terms: Terms, chosen: Chosen) -> None:
        """This set is going to be opened: from then on no other can be."""
        ...

    def total(self, question: Question) -> tuple[Total, Mapping[str, str]] | None:
        """What was opened, and why others are not in it."""
        ...

    def keeps(self, total: Total, left: Mapping[str, str]) -> None:
        """This was opened."""
        ...


class Memory:
    """A record that ends with the process: for sources in it, which give all of it again."""

    def __init__(self) -> None:
        self._terms: dict[str, Sequence[Terms]] = {}
        self._chosen: dict[str, Chosen] = {}
        self._totals: dict[str, tuple[Total, Mapping[str, str]]] = {}

    def begun(self, now: Callable[[], Decided]) -> Decided:
        return now()

    def terms(self, question: Question) -> Sequence[Terms]:
        return self._terms.get(question.text(), ())

    def asks(self, terms: Sequence[Terms]) -> None:
        self._terms[terms[0].question.text()] = terms

    def chosen(self, terms: Terms) -> Chosen | None:
        return self._chosen.get(terms.digest)

    def chooses(self, terms: Terms, chosen: Chosen) -> None:
        self._chosen[terms.digest] = chosen

    def total(self, question: Question) -> tuple[Total, Mapping[str, str]] | None:
        return self._totals.get(question.text())

    def keeps(self, total: Total, left: Mapping[str, str]) -> None:
        self._totals[total.question.text()] = total, left
