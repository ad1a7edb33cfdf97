"""Questions by their short names, as the tests of a ledger write them."""

from __future__ import annotations

from privcal.queries import Query
from privcal.question import Question


def named(name: str, query: Query, epsilon: float, model: str | None = None) -> Question:
    """The question "campaign/round/index"; "campaign" is the first of all."""
    campaign, *place = name.split("/")
    round, index = map(int, place or (0, 0))
    return Question.of(query, epsilon, campaign, round, index, model)


def forged(question: Question, **wrong: object) -> Question:
    """The same question with parts that no check has seen, as only code of somebody else makes it."""
    copy = object.__new__(Question)
    vars(copy).update({**vars(question), **wrong})
    return copy
