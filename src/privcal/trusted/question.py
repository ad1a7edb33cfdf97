"""The question: what a calibrator asks every source, in one value from the loop to the ledger.

One word for each stage of it:

- `Query`: the bounded sum that is wanted. It is about rows, and knows nothing of budgets.
- `Ask`: what a method yields, a query and its share of ε for a whole batch of runs.
- `Question`: one query of one run, with its ε, its place in a campaign and the model it is about.
- `Answer`: what a source gives back. `Round` is a question with what all sources gave back.
- `Key`: the name of a charged question in a ledger: who asked, and its place in the campaign.

Who asks is no part of a question: a calibrator is known by its signature or by the process it runs
in, so every step takes `question` and `asker` side by side.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any

from privcal.trusted import records
from privcal.trusted.checks import short
from privcal.trusted.epsilon import MAX_EPSILON, NANO, from_nano, to_nano
from privcal.trusted.errors import InputError
from privcal.trusted.queries import Query, parse
from privcal.trusted.records import Between, By

MAX_NAME = 200
MAX_INDEX = 2**31 - 1
"""The largest number of a round, and of a question in it."""

UNSIGNED = " (unsigned)"
"""Follows an asker's name in a ledger where nobody can know whether it is theirs. So rules for an
asker hold for what that asker signed, and nobody gets another's answers by using their name."""


def check_name(what: str, name: Any) -> str:
    """`name` if it is one that can be shown to people: 1 to 200 printable characters.

    >>> check_name("model", "resnet50 v3")
    'resnet50 v3'
    >>> check_name("model", "")
    Traceback (most recent call last):
    ...
    privcal.trusted.errors.InputError: model must be 1 to 200 printable characters, not ''
    """
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise InputError(f"{what} must be 1 to {MAX_NAME} printable characters, not {short(name)}")
    return name


def _no_slash(what: str, name: str) -> str:
    if "/" in name:
        raise InputError(f"{what} cannot contain a slash: {short(name)}")
    return name


def _query(_: str, value: Any) -> Query:
    return value if isinstance(value, Query) else parse(value)


Name = Annotated[str, By(check_name)]


def check_campaign(name: Any) -> str:
    """`name` if a campaign may have it: a slash separates it from round and index in reports."""
    return _no_slash("campaign", check_name("campaign", name))


def check_asker(name: Any) -> str:
    """`name` if an asker may have it."""
    return check_name("asker", name)


@dataclass(frozen=True)
class Question:
    """One question of a campaign, as every source gets it.

    Whatever is wrong with its parts is an `InputError` when it is made, before anybody is asked.

    Parameters
    ----------
    campaign
        The name of the run it belongs to: 1 to 200 printable characters, no slash.
    round, index
        Its place in the campaign, from 0: the same asker asking the same under the same place gets
        the same answer again, free of charge, and another question under it is refused.
    nano_epsilon
        Its cost, in whole nano-ε: 1 to 10¹⁵.
    query
        One of the family in `privcal.queries`.
    model
        The model it is about, or None for whichever the source has.

    Examples
    --------
    >>> from privcal.queries import Gap
    >>> question = Question.of(Gap(1.5), 0.25, "spring")
    >>> question.nano_epsilon, question.epsilon
    (250000000, 0.25)
    >>> Question.of(Gap(1.5), 0.25, "2024/spring")
    Traceback (most recent call last):
    ...
    privcal.trusted.errors.InputError: campaign cannot contain a slash: '2024/spring'
    """

    campaign: Annotated[str, By(check_name), _no_slash]
    round: Annotated[int, Between(0, MAX_INDEX)]
    index: Annotated[int, Between(0, MAX_INDEX)]
    nano_epsilon: Annotated[int, Between(1, MAX_EPSILON * NANO)]
    query: Annotated[Query, By(_query)]
    model: Name | None = None

    def __post_init__(self) -> None:
        records.check(self)

    @classmethod
    def of(
        cls,
        query: Query,
        epsilon: float | int | str | Decimal | Fraction,
        campaign: str,
        round: int = 0,
        index: int = 0,
        model: str | None = None,
    ) -> Question:
        """A question for so much ε, as a person writes it.

        >>> from privcal.queries import Histogram
        >>> Question.of(Histogram(), 0.1, "spring", index=2).nano_epsilon
        100000000
        """
        return cls(campaign, round, index, to_nano(epsilon), query, model)

    @property
    def epsilon(self) -> float:
        """Its cost."""
        return from_nano(self.nano_epsilon)

    def digest(self) -> str:
        """Identifies the query together with the ε it is asked with, and the model it is about."""
        about = "" if self.model is None else f"|{self.model}"
        text = f"{self.query.canonical()}|{self.nano_epsilon}{about}"
        return hashlib.sha256(text.encode()).hexdigest()

    def facts(self) -> dict[str, Any]:
        """Its parts as JSON has them; `read_question` reads them."""
        return records.facts(self)

    def text(self) -> str:
        """The one spelling of a question: what is recorded, and what is signed."""
        return records.text(self.facts())


def read_question(facts: Any) -> Question:
    """A question from its parts, every one checked."""
    return records.read(Question, facts, "a question", complete=True)


def own_copy(question: Question) -> Question:
    """The same question, made of our own classes: whoever asks cannot bring code of theirs along.

    Every part is checked again, so a forged one is an InputError (or an AttributeError, where it
    is no question at all). A text that was read before is the same value again.
    """
    query = question.query.to_dict()
    place = question.campaign, question.round, question.index, question.nano_epsilon
    try:
        text = records.text([*place, query, question.model])
    except (TypeError, ValueError, RecursionError):
        raise InputError("a question holds text and numbers alone") from None
    return _of_text(text)


@lru_cache(maxsize=64)
def _of_text(text: str) -> Question:
    campaign, round, index, nano, query, model = json.loads(text)
    return Question(campaign, round, index, nano, parse(query), model)
