"""The way to sources in this process: the real protocol, with keys derived from their ledgers.

Whoever runs this process has all the rows, so nothing is hidden from them. What it is for: owners
who work on one machine get a total with little noise, and can give away what comes of it; and a run
over a federation can be tried beforehand, as it will be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from privcal.data.panels import Answerer, LocalPanel, in_turn
from privcal.secure.boxes import Box
from privcal.secure.keys import Keys, local_keys, member
from privcal.secure.participant import Dealt, Participant
from privcal.secure.terms import Members, Terms
from privcal.trusted.epsilon import MAX_ALONE
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.policy import MAX_ROWS, SecureRules, strictest
from privcal.trusted.question import Question
from privcal.trusted.source import Source

ANY = SecureRules(colluding=0, min_honest=1, alone=MAX_ALONE)
"""What is wanted of secure sums where an owner's policy says nothing: whoever asks decides."""


class LocalWay:
    """Sources in this process, asked one after the other."""

    def __init__(self, sources: Sequence[Answerer] | LocalPanel, asker: str = "local") -> None:
        self.panel = sources if isinstance(sources, LocalPanel) else LocalPanel(sources, asker)
        self.names, self.asker = self.panel.names, self.panel.asker
        self.rows_per_person = self.panel.rows_per_person
        self.rows_per_source = self.panel.rows_per_source
        self.max_rows = MAX_ROWS  # whoever asks could count them
        own = self.panel.own
        if strange := [name for name in self.names if name not in own]:
            raise InputError(f"{strange[0]} cannot take part in secure sums: it is no Source")
        keys: dict[str, Keys] = {}
        self._absent: dict[str, str] = {}
        for name, source in own.items():
            try:
                keys[name] = local_keys(source.ledger)
            except Refused as refused:  # its ledger is missing
                self._absent[name] = refused.code
        self.members = Members({name: member(key) for name, key in keys.items()})
        self._sites = {
            name: Participant(name, own[name], key, self.members, ANY) for name, key in keys.items()
        }

    @property
    def model(self) -> str | None:
        return self.panel.model

    @property
    def schema(self) -> dict[str, Any]:
        return self.panel.schema

    @property
    def rules(self) -> SecureRules | None:
        """What the owners want of secure sums, all of them together; None where nobody says."""
        return strictest(site.source.policy.secure for site in self._sites.values())

    def offer(self, terms: Terms, questions: Sequence[Question]) -> dict[str, str]:
        def code(name: str, _: Source) -> str | None:
            if name not in terms.sites:
                return self._absent.get(name)
            return self._sites[name].offer(terms, questions, self.asker)

        return self.panel.offered(questions, code)

    def release(self, campaign: str) -> None:
        self.panel.release()

    def share(self, terms: Terms, names: Sequence[str]) -> Iterator[tuple[str, Dealt | Exception]]:
        return in_turn(names, lambda name: self._sites[name].share(terms, self.asker))

    def check(
        self, terms: Terms, boxes: Mapping[str, Mapping[str, Box]]
    ) -> Iterator[tuple[str, Sequence[str] | Exception]]:
        return in_turn(boxes, lambda name: self._sites[name].check(terms, self.asker, boxes[name]))

    def open(
        self, terms: Terms, boxes: Mapping[str, Mapping[str, Box]]
    ) -> Iterator[tuple[str, Sequence[int] | Exception]]:
        return in_turn(boxes, lambda name: self._sites[name].open(terms, self.asker, boxes[name]))
