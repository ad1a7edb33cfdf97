"""The ledger's part in secure sums: shares, openings, and two totals."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from privcal import Ledger, Policy, Refused
from privcal.privacy.epsilon import NANO, Cost
from privcal.privacy.policy import SecureRules
from privcal.queries import Gap
from privcal.question import Question

POLICY = Policy(epsilon=1.0, secure=SecureRules(colluding=2, alone=10))
TERMS, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "source.db"
    Ledger.create(path, POLICY, unit="row")
    return path


def question(campaign: str = "spring", epsilon: float = 0.1, round: int = 0) -> Question:
    return Question.of(Gap(), epsilon, campaign, round)


def share(
    ledger: Ledger, asked: Question, digest: str = TERMS, alone: int = 10, asker: str = "ann"
) -> str | None:
    """A whole SHARE: charged, and a reply stored."""
    policy = ledger.policy
    reply = ledger.charge_share(asked, asker, policy, digest, alone * asked.nano_epsilon)
    if reply is None:
        ledger.store_share(asked, asker, "sealed")
    return reply


def refused(work: Callable[[], object]) -> str | None:
    """The code with which something is refused, or None."""
    try:
        work()
    except Refused as refused:
        return refused.code
    return None


def no_numbers() -> list[int]:
    raise AssertionError("nothing is computed again")


def test_a_share_is_charged_once_and_its_reply_comes_back(path: Path) -> None:
    ledger = Ledger(path)
    assert share(ledger, question()) is None
    assert share(ledger, question()) == "sealed"
    assert (ledger.nano_spent, ledger.nano_alone) == (NANO // 10, NANO)


def test_a_share_whose_reply_was_not_stored_is_lost(path: Path) -> None:
    ledger, asked = Ledger(path), question()
    ledger.charge_share(asked, "ann", POLICY, TERMS, NANO)
    assert refused(lambda: share(ledger, asked)) == "lost"
    assert ledger.nano_alone == NANO


def test_ordinary_questions_and_shares_have_one_key_space(path: Path) -> None:
    ledger = Ledger(path)
    share(ledger, question("spring"))
    ledger.charge(question("summer"), "ann", POLICY)
    assert refused(lambda: ledger.charge(question("spring"), "ann", POLICY)) == "id_conflict"
    assert refused(lambda: share(ledger, question("summer"))) == "id_conflict"
    assert refused(lambda: share(ledger, question("spring"), OTHER)) == "id_conflict"
    assert share(ledger, question("spring"), asker="bob") is None  # another asker, another key


def test_an_answer_is_not_stored_as_one_of_the_other_kind(path: Path) -> None:
    ledger = Ledger(path)
    ledger.charge_share(question("spring"), "ann", POLICY, TERMS, NANO)
    ledger.charge(question("summer"), "ann", POLICY)
    assert refused(lambda: ledger.store(question("spring"), "ann", [1])) == "id_conflict"
    assert refused(lambda: ledger.store_share(question("summer"), "ann", "x")) == "id_conflict"


def test_an_ordinary_question_costs_the_same_in_both_totals(path: Path) -> None:
    ledger = Ledger(path)
    ledger.charge(question(epsilon=0.25), "ann", POLICY)
    assert ledger.spent == Cost(NANO // 4, NANO // 4)


@pytest.mark.parametrize("nano_alone", [0, -NANO // 10, NANO // 10 - 1, NANO + 1])
def test_what_a_share_costs_alone_is_a_whole_number_of_times_its_epsilon(
    path: Path, nano_alone: int
) -> None:
    ledger = Ledger(path)
    ask = lambda: ledger.charge_share(question(), "ann", POLICY, TERMS, nano_alone)  # noqa: E731
    assert refused(ask) == "bad_request"
    assert ledger.spent == Cost()


def test_both_caps_are_exact_to_the_last_nano(tmp_path: Path) -> None:
    rules = SecureRules(colluding=2, alone=10, epsilon_alone=3.0)
    policy = Policy(epsilon=1.0, secure=rules)
    ledger = Ledger.create(tmp_path / "l.db", policy, unit="row")
    share(ledger, question("one", 0.2))  # alone: 2.0 of 3.0
    over = Question("two", 0, 0, NANO // 10 + 1, Gap())
    assert refused(lambda: share(ledger, over)) == "over_budget"
    assert share(ledger, replace(over, nano_epsilon=NANO // 10)) is None
    assert ledger.spent == Cost(3 * NANO // 10, 3 * NANO)
    # Nothing is left alone, so nothing more leaves, secure or not, though ε is left.
    least = Question("three", 0, 0, 1, Gap())
    assert refused(lambda: share(ledger, least, alone=1)) == "over_budget"
    assert refused(lambda: ledger.charge(least, "ann", policy)) == "over_budget"


def test_the_first_total_is_capped_where_the_second_has_room(path: Path) -> None:
    ledger = Ledger(path)
    assert share(ledger, question("one", 1.0), alone=2) is None
    assert ledger.spent == Cost(NANO, 2 * NANO)
    assert refused(lambda: share(ledger, question("two", 0.01), alone=1)) == "over_budget"


def test_an_opening_is_for_one_set_for_ever(path: Path) -> None:
    ledger = Ledger(path)
    share(ledger, question())
    assert ledger.open_once(question(), "ann", TERMS, lambda: [1, 2**126]) == [1, 2**126]
    assert Ledger(path).open_once(question(), "ann", TERMS, no_numbers) == [1, 2**126]
    assert refused(lambda: ledger.open_once(question(), "ann", OTHER, no_numbers)) == "opened"
    assert ledger.open_once(question(), "bob", OTHER, lambda: [3]) == [3]
    assert ledger.open_once(question(round=1), "ann", OTHER, lambda: [4]) == [4]
    assert ledger.spent == Cost(NANO // 10, NANO)  # openings are free


def test_who_did_not_share_may_open(path: Path) -> None:
    ledger = Ledger(path)
    assert ledger.open_once(question(), "ann", TERMS, lambda: [7]) == [7]
    assert ledger.spent == Cost()


def test_an_opening_that_fails_leaves_nothing(path: Path) -> None:
    ledger = Ledger(path)

    def bad_box() -> list[int]:
        raise Refused("bad_request")

    assert refused(lambda: ledger.open_once(question(), "ann", TERMS, bad_box)) == "bad_request"
    assert ledger.open_once(question(), "ann", OTHER, lambda: [7]) == [7]


def test_whoever_opens_second_at_the_same_moment_is_refused(path: Path) -> None:
    """The other set is opened while the first one's boxes are being unsealed."""
    ledger = Ledger(path)

    def late() -> list[int]:
        assert Ledger(path).open_once(question(), "ann", OTHER, lambda: [2]) == [2]
        return [1]

    assert refused(lambda: ledger.open_once(question(), "ann", TERMS, late)) == "opened"
    assert ledger.open_once(question(), "ann", OTHER, no_numbers) == [2]


def test_the_file_itself_holds_no_second_opening(path: Path) -> None:
    Ledger(path).open_once(question(), "ann", TERMS, lambda: [1])
    with sqlite3.connect(path) as db, pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        db.execute(
            "UPDATE entry SET kind = 'opening', what = (SELECT what FROM entry WHERE seq = 2)"
        )


def test_a_copy_from_between_share_and_open_is_noticed(path: Path, tmp_path: Path) -> None:
    ledger, copy = Ledger(path), tmp_path / "copy.db"
    share(ledger, question())
    shutil.copy(path, copy)
    ledger.open_once(question(), "ann", TERMS, lambda: [1])
    shutil.copy(copy, path)
    again = lambda: ledger.open_once(question(), "ann", OTHER, no_numbers)  # noqa: E731
    assert refused(again) == "ledger_rolled_back"
    assert refused(lambda: share(ledger, question("summer"))) == "ledger_rolled_back"
