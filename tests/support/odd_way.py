"""A way to sources in this process on which whatever a test wants goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import privcal
from privcal import Question, Source
from privcal.secure.boxes import Box, deal_box
from privcal.secure.keys import local_keys
from privcal.secure.local import LocalWay
from privcal.secure.panel import Secure, SecurePanel
from privcal.secure.round import Total
from privcal.secure.summing import Record, Tell
from privcal.secure.terms import Terms
from privcal.trusted.queries import CellHistogram
from tests.support.builders import some_sources

Change = Callable[[Terms, str, Any], Any]
"""From the terms, a site's name and its reply to what comes instead of it; or it raises."""

GONE = object()
"""In place of a reply: none comes."""


class OddWay(LocalWay):
    """Sources in this process, with changes to their replies by stage."""

    def __init__(self, sources: Sequence[Source], **changes: Change) -> None:
        super().__init__(sources)
        self.changes = changes
        self.sent: list[tuple[str, tuple[str, ...]]] = []

    def keys(self, name: str) -> Any:
        return local_keys(self.panel.own[name].ledger)

    def _changed(
        self, stage: str, terms: Terms, names: Sequence[str], replies: Iterator[Any]
    ) -> Iterator[Any]:
        self.sent.append((stage, tuple(names)))
        for name, reply in replies:
            changed = self.changes.get(stage, lambda terms, name, reply: reply)(terms, name, reply)
            if changed is not GONE:
                yield name, changed

    def share(self, terms: Terms, names: Any) -> Any:
        return self._changed("share", terms, names, super().share(terms, names))

    def check(self, terms: Terms, boxes: Any) -> Any:
        return self._changed("check", terms, boxes, super().check(terms, boxes))

    def open(self, terms: Terms, boxes: Any) -> Any:
        return self._changed("open", terms, boxes, super().open(terms, boxes))

    def box(self, terms: Terms, dealer: str, receiver: str, numbers: Sequence[int]) -> Box:
        """A box with such numbers, as this dealer can make it."""
        return deal_box(terms, dealer, receiver, numbers, self.members, self.keys(dealer))


def only(*names: str, then: Change) -> Change:
    """A change for these sites alone."""
    return lambda terms, name, reply: then(terms, name, reply) if name in names else reply


def gone(terms: Terms, name: str, reply: Any) -> Any:
    return GONE


def fails(code: str) -> Change:
    return lambda terms, name, reply: privcal.Refused(code)


def make_sources(count: int, epsilon: float = 2.0, **policy: Any) -> list[Source]:
    return some_sources(count, name="s{:02d}", epsilon=epsilon, **policy)


QUESTION = Question.of(CellHistogram(bins=3), 0.5, "spring")


def panel(way: LocalWay, record: Record | None = None, **options: Any) -> SecurePanel:
    made = SecurePanel(way, Secure(**options), record)
    assert made.refusals([QUESTION]) == {}
    return made


def total_of(
    asked: SecurePanel,
    question: Question = QUESTION,
    names: Sequence[str] | None = None,
    tell: Tell = lambda step: None,
) -> Total:
    """What these sites answer together."""
    answered = asked.ask(asked.names if names is None else names, question, tell)
    assert answered.total is not None
    assert not answered.answers
    return answered.total
