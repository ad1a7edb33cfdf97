"""Hospitals that take part in secure sums: in this process, with the real protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privcal import Policy, Question, Scores, Source
from privcal.data.ledger import Ledger
from privcal.secure.boxes import Box
from privcal.secure.keys import Keys, local_keys, member
from privcal.secure.participant import Dealt, Participant
from privcal.secure.terms import Members, Terms, threshold
from privcal.trusted.policy import SecureRules
from privcal.trusted.queries import CellHistogram, Query
from tests.support.builders import random_scores

RULES = SecureRules(colluding=1, min_honest=2, alone=10)


@dataclass
class Hospitals:
    """Hospitals on one roster, by name, with what they opened themselves with."""

    sites: dict[str, Participant]
    keys: dict[str, Keys]
    members: Members

    def terms(self, question: Question | None = None, asker: str = "acme", **other: Any) -> Terms:
        """Terms that all of them agree to, unless said otherwise."""
        sites = tuple(sorted(other.pop("sites", self.sites)))
        colluding = other.pop("colluding", 1)
        return Terms(
            question or about(),
            asker,
            sites,
            colluding,
            other.pop("needed", threshold(len(sites), colluding)),
            other.pop("alone", 10),
            other.pop("rows_per_person", 1),
            other.pop("roster", self.members.digest),
            **other,
        )

    def share(self, terms: Terms) -> dict[str, Dealt]:
        return {name: self.sites[name].share(terms, terms.asker) for name in terms.sites}

    def open(
        self, terms: Terms, dealt: Mapping[str, Dealt], by: Iterable[str] | None = None
    ) -> dict[int, list[int]]:
        """The sums that these hospitals show, by their points, of all that was dealt."""
        return {
            terms.point(name): self.sites[name].open(terms, terms.asker, boxes_for(name, dealt))
            for name in (terms.sites if by is None else by)
        }

    @property
    def spent(self) -> int:
        """Nano-ε over all of them."""
        return sum(site.source.ledger.nano_spent for site in self.sites.values())


def about(query: Query | None = None, epsilon: float = 0.5, campaign: str = "spring") -> Question:
    return Question.of(query or CellHistogram(bins=3), epsilon, campaign)


def boxes_for(receiver: str, dealt: Mapping[str, Dealt]) -> dict[str, Box]:
    return {dealer: each.boxes[receiver] for dealer, each in dealt.items()}


def hospitals(
    count: int = 5,
    scores: Sequence[Scores] | None = None,
    policy: Policy | None = None,
    members: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> Hospitals:
    """So many hospitals; `members` replaces what the roster says of some.

    The ledger of the first, h00, is a file in `folder`, where there is one.
    """
    names = [f"h{number:02d}" for number in range(count)]
    rows = scores or [random_scores(20 + 3 * k, seed=k) for k in range(count)]
    policy = policy or Policy(epsilon=2.0, secure=RULES)
    unit = "row" if rows[0].person is None else "person"
    ledgers = {name: Ledger.in_memory(policy, unit=unit, name=name) for name in names}
    if folder is not None:
        marks = folder / "marks.db"
        ledgers["h00"] = Ledger.create(folder / "h00.db", policy, unit=unit, marks=marks)
    keys: dict[str, Keys] = {name: local_keys(ledgers[name]) for name in names}
    roster = Members({name: member(keys[name]) for name in names} | dict(members or {}))
    sites = {
        name: Participant(name, Source(rows[k], ledger=ledgers[name]), keys[name], roster, None)
        for k, name in enumerate(names)
    }
    return Hospitals(sites, keys, roster)
