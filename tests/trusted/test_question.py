"""One value for a question: what is wrong with it is told when it is made, and costs nobody anything."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import privcal
from privcal.data.ledger import Ledger
from privcal.trusted import approvals
from privcal.trusted.queries import BinnedGap, Gap, Hats, Nll
from privcal.trusted.question import Question, check_asker, check_campaign, own_copy
from tests.support.builders import a_source, forged, outcome

GOOD = Question.of(Gap(1.5), 0.25, "spring", model="v1")
WRONG = [
    {"campaign": ""},
    {"campaign": "2024/spring"},
    {"campaign": "a\nb"},
    {"campaign": "x" * 201},
    {"campaign": 5},
    {"campaign": None},
    {"round": -1},
    {"round": 2**31},
    {"round": 1.0},
    {"round": True},
    {"round": "0"},
    {"index": -1},
    {"index": 2**31},
    {"index": None},
    {"nano_epsilon": 0},
    {"nano_epsilon": -1},
    {"nano_epsilon": 10**15 + 1},
    {"nano_epsilon": 0.25},
    {"nano_epsilon": Fraction(1, 4)},
    {"nano_epsilon": float("nan")},
    {"query": "gap"},
    {"query": None},
    {"query": {"kind": "sum"}},
    {"model": ""},
    {"model": "a\x1b[2Jb"},
    {"model": "x" * 201},
    {"model": 3},
]
NAMES = [json.dumps({k: str(v)[:12] for k, v in wrong.items()}) for wrong in WRONG]


@pytest.mark.parametrize("wrong", WRONG, ids=NAMES)
def test_what_is_wrong_with_a_question_is_told_when_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(privcal.InputError, match=next(iter(wrong))) as error:
        replace(GOOD, **wrong)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("wrong", [*WRONG, {"query": {"kind": "gap"}}])
def test_a_forged_question_is_refused_before_anything_is_charged(wrong: dict[str, Any]) -> None:
    source = a_source(epsilon=10**6)
    question = forged(GOOD, **wrong)
    assert outcome(source.answer, question) == "bad_request"
    assert source.offer([question]) == "bad_request"
    assert (
        source.spent,
        Ledger.of(source.ledger).reserved(),
        len(Ledger.of(source.ledger).entries()),
    ) == (0, [], 1)


@pytest.mark.parametrize("other", ["spring/0/0", None, Gap(), {"campaign": "spring"}])
def test_what_is_no_question_is_a_bad_request(other: Any) -> None:
    source = a_source()
    assert outcome(source.answer, other) == "bad_request"
    assert source.spent == 0


@pytest.mark.parametrize("asker", ["", "a\nb", "x" * 201, 5, None])
def test_an_asker_needs_a_plain_name(asker: Any) -> None:
    source = a_source()
    assert outcome(source.answer, GOOD, asker) == "bad_request"
    assert source.offer([GOOD], asker) == "bad_request"
    with pytest.raises(privcal.InputError, match="asker must be 1 to 200 printable characters"):
        privcal.calibrate([source], asker=asker)
    assert source.spent == 0


@pytest.mark.parametrize(
    "wrong", [{"campaign": "2024/spring"}, {"model": "a\nb"}, {"epsilon": -1}, {"epsilon": "x"}]
)
def test_a_run_with_a_wrong_name_or_epsilon_asks_nobody(wrong: dict[str, Any]) -> None:
    source = a_source()
    with pytest.raises(privcal.InputError, match=next(iter(wrong))):
        privcal.calibrate([source], **wrong)
    assert (source.spent, Ledger.of(source.ledger).reserved()) == (0, [])


def test_a_question_brings_no_code_along() -> None:
    class Cheap(Question):
        def digest(self) -> str:
            return "another"

        def text(self) -> str:
            return "another"

    cheap = Cheap(*vars(GOOD).values())
    assert type(own_copy(cheap)) is Question
    assert own_copy(cheap) == GOOD
    source = a_source(epsilon=1.0)
    source.answer(replace(GOOD, query=Gap(2.0)))
    assert outcome(source.answer, cheap) == "id_conflict"


@pytest.mark.parametrize(
    "epsilon", [0.25, "0.25", Decimal("0.25"), Fraction(1, 4), np.float32(0.25)]
)
def test_epsilon_is_the_number_that_a_person_writes(epsilon: Any) -> None:
    question = Question.of(Gap(1.5), epsilon, "spring", model="v1")
    assert question == GOOD
    assert question.epsilon == 0.25
    assert type(replace(GOOD, round=np.int64(3)).round) is int


def test_a_question_has_one_spelling_and_it_never_changes() -> None:
    """Sites compare it, signatures are over it, and records of campaigns are searched for it."""
    assert GOOD.text() == (
        '{"campaign":"spring","index":0,"model":"v1","nano_epsilon":250000000,'
        '"query":{"kind":"gap","temperature":1.5},"round":0}'
    )
    other = Question("été", 3, 7, 333_333_333, Hats(2.0, (-2.0, 0.5, 4.0)))
    assert other.text() == (
        '{"campaign":"\\u00e9t\\u00e9","index":7,"model":null,"nano_epsilon":333333333,'
        '"query":{"kind":"hats","knots":[-2.0,0.5,4.0],"temperature":2.0},"round":3}'
    )


def test_a_ledger_and_an_owner_know_a_question_by_digests_that_never_change() -> None:
    digests = {
        Question("x", 5, 5, 10**15, BinnedGap(0.7, 9)): (
            "06e5fc0f27b141de4de11b0a015c44a256cd504c4362cf8c3bc9fa79b17577cc"
        ),
        Question("x", 1, 1, 333_333_333, Nll(), "m \u00e9"): (
            "5ec93939de505369d1c5808bd65504064dd32f955269680d6764b582f071e0b5"
        ),
    }
    assert {question: question.digest() for question in digests} == digests
    asked = [
        Question("spring", 0, 0, 250_000_000, Gap(1.5), "v1"),
        Question("spring", 0, 1, 1, Hats(2.0, (-2.0, 0.5, 4.0)), "v1"),
    ]
    campaign = "e5dd ee88 23a2 737c 9095 994b 2eaa 4678 c72a f152 a478 50c7 bbc2 de4d 9af1 cbeb"
    assert approvals.digest("acme", asked) == approvals.digest("acme", asked[::-1]) == campaign


def test_a_digest_tells_query_epsilon_and_model_apart_and_nothing_else() -> None:
    changes: list[dict[str, Any]] = [
        {"query": Gap(1.6)}, {"query": Nll(1.5)}, {"nano_epsilon": 1}, {"model": None}, {"model": "v2"},
    ]  # fmt: skip
    assert len({GOOD.digest(), *(replace(GOOD, **c).digest() for c in changes)}) == 6
    assert replace(GOOD, campaign="autumn", round=3, index=1).digest() == GOOD.digest()


def test_names_are_checked_in_one_place() -> None:
    assert check_campaign("spring 24, ward [b]") == "spring 24, ward [b]"
    assert check_asker("ann@lab.org/2") == "ann@lab.org/2"
    with pytest.raises(privcal.InputError, match="campaign cannot contain a slash: 'a/b'"):
        check_campaign("a/b")
