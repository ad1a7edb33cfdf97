"""The ledger's part in secure sums: shares, openings, and two totals."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privcal import InputError, Ledger, Policy, Refused
from privcal.trusted import chain
from privcal.trusted.approvals import Proposal
from privcal.trusted.epsilon import NANO, Cost
from privcal.trusted.marks import Head, reading
from privcal.trusted.policy import SecureRules
from privcal.trusted.queries import Gap
from privcal.trusted.question import Question
from tests.support.builders import a_ledger, edit, editing, outcome

POLICY = Policy(epsilon=1.0, secure=SecureRules(colluding=2, alone=10))
TERMS, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return a_ledger(tmp_path, epsilon=1.0, secure=POLICY.secure)


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
    assert outcome(lambda: share(ledger, asked)) == "lost"
    assert ledger.nano_alone == NANO


def test_ordinary_questions_and_shares_have_one_key_space(path: Path) -> None:
    ledger = Ledger(path)
    share(ledger, question("spring"))
    ledger.charge(question("summer"), "ann", POLICY)
    assert outcome(lambda: ledger.charge(question("spring"), "ann", POLICY)) == "id_conflict"
    assert outcome(lambda: share(ledger, question("summer"))) == "id_conflict"
    assert outcome(lambda: share(ledger, question("spring"), OTHER)) == "id_conflict"
    assert share(ledger, question("spring"), asker="bob") is None  # another asker, another key


def test_an_answer_is_not_stored_as_one_of_the_other_kind(path: Path) -> None:
    ledger = Ledger(path)
    ledger.charge_share(question("spring"), "ann", POLICY, TERMS, NANO)
    ledger.charge(question("summer"), "ann", POLICY)
    assert outcome(lambda: ledger.store(question("spring"), "ann", [1])) == "id_conflict"
    assert outcome(lambda: ledger.store_share(question("summer"), "ann", "x")) == "id_conflict"


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
    assert outcome(ask) == "bad_request"
    assert ledger.spent == Cost()


def test_both_caps_are_exact_to_the_last_nano(tmp_path: Path) -> None:
    rules = SecureRules(colluding=2, alone=10, epsilon_alone=3.0)
    policy = Policy(epsilon=1.0, secure=rules)
    ledger = Ledger.create(tmp_path / "l.db", policy, unit="row")
    share(ledger, question("one", 0.2))  # alone: 2.0 of 3.0
    over = Question("two", 0, 0, NANO // 10 + 1, Gap())
    assert outcome(lambda: share(ledger, over)) == "over_budget"
    assert share(ledger, replace(over, nano_epsilon=NANO // 10)) is None
    assert ledger.spent == Cost(3 * NANO // 10, 3 * NANO)
    # Nothing is left alone, so nothing more leaves, secure or not, though ε is left.
    least = Question("three", 0, 0, 1, Gap())
    assert outcome(lambda: share(ledger, least, alone=1)) == "over_budget"
    assert outcome(lambda: ledger.charge(least, "ann", policy)) == "over_budget"


def test_the_first_total_is_capped_where_the_second_has_room(path: Path) -> None:
    ledger = Ledger(path)
    assert share(ledger, question("one", 1.0), alone=2) is None
    assert ledger.spent == Cost(NANO, 2 * NANO)
    assert outcome(lambda: share(ledger, question("two", 0.01), alone=1)) == "over_budget"


def test_an_opening_is_for_one_set_for_ever(path: Path) -> None:
    ledger = Ledger(path)
    share(ledger, question())
    assert ledger.open_once(question(), "ann", TERMS, lambda: [1, 2**126]) == [1, 2**126]
    assert Ledger(path).open_once(question(), "ann", TERMS, no_numbers) == [1, 2**126]
    assert outcome(lambda: ledger.open_once(question(), "ann", OTHER, no_numbers)) == "opened"
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

    assert outcome(lambda: ledger.open_once(question(), "ann", TERMS, bad_box)) == "bad_request"
    assert ledger.open_once(question(), "ann", OTHER, lambda: [7]) == [7]


def test_whoever_opens_second_at_the_same_moment_is_refused(path: Path) -> None:
    """The other set is opened while the first one's boxes are being unsealed."""
    ledger = Ledger(path)

    def late() -> list[int]:
        assert Ledger(path).open_once(question(), "ann", OTHER, lambda: [2]) == [2]
        return [1]

    assert outcome(lambda: ledger.open_once(question(), "ann", TERMS, late)) == "opened"
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
    assert outcome(again) == "ledger_rolled_back"
    assert outcome(lambda: share(ledger, question("summer"))) == "ledger_rolled_back"


# --- both totals, against a slow and obvious reference ------------------------------------------


class Reference:
    """Both totals by a list of everything that was ever charged, in exact fractions."""

    def __init__(self) -> None:
        self.paid: dict[str, tuple[Fraction, int | None]] = {}

    def totals(self) -> tuple[Fraction, Fraction]:
        first = sum((epsilon for epsilon, _ in self.paid.values()), Fraction())
        second = sum((epsilon * (alone or 1) for epsilon, alone in self.paid.values()), Fraction())
        return first, second

    def ask(
        self, campaign: str, epsilon: Fraction, alone: int | None, caps: tuple[Fraction, Fraction]
    ) -> str:
        if campaign in self.paid:
            return "again" if self.paid[campaign] == (epsilon, alone) else "id_conflict"
        first, second = self.totals()
        if first + epsilon > caps[0] or second + epsilon * (alone or 1) > caps[1]:
            return "over_budget"
        self.paid[campaign] = (epsilon, alone)
        return "paid"


ASKED = st.tuples(
    st.sampled_from("abcdefgh"), st.integers(1, 40), st.one_of(st.none(), st.integers(1, 12))
)
RULES = st.one_of(
    st.none(),
    st.tuples(st.integers(1, 12), st.one_of(st.none(), st.integers(1, 900))),
)
STEPS = st.lists(
    st.one_of(ASKED, st.tuples(st.just("policy"), st.integers(1, 100), RULES)), max_size=25
)


@settings(max_examples=80, deadline=None)
@given(STEPS)
def test_both_totals_are_those_of_a_slow_reference(steps: list[tuple[Any, Any, Any]]) -> None:
    """Whatever is asked in whatever order, and whatever the owner allows meanwhile."""
    ledger, reference = Ledger.in_memory(POLICY), Reference()
    caps = (Fraction(1), Fraction(10))
    for name, hundredths, more in steps:
        amount = Fraction(hundredths, 100)
        if name == "policy":
            rules = None
            caps = (amount, amount)
            if more is not None:
                limit = None if more[1] is None else more[1] / 100
                rules = SecureRules(colluding=1, alone=more[0], epsilon_alone=limit)
                told = amount * more[0] if more[1] is None else Fraction(more[1], 100)
                caps = (amount, told)
            ledger.set_policy(Policy(epsilon=hundredths / 100, secure=rules))
            continue
        asked = Question(name, 0, 0, hundredths * NANO // 100, Gap())
        expected = reference.ask(name, amount, more, caps)
        try:
            if more is None:
                stored: object = ledger.charge(asked, "ann", ledger.policy)
                if stored is None:
                    ledger.store(asked, "ann", [1])
            else:
                digest = f"{hundredths} {more}"
                cost = more * asked.nano_epsilon
                stored = ledger.charge_share(asked, "ann", ledger.policy, digest, cost)
                if stored is None:
                    ledger.store_share(asked, "ann", "sealed")
            outcome = "paid" if stored is None else "again"
        except Refused as refusal:
            outcome = refusal.code
        assert outcome == expected
        totals = (Fraction(ledger.nano_spent, NANO), Fraction(ledger.nano_alone, NANO))
        assert totals == reference.totals()


def test_without_rules_for_secure_sums_the_second_total_is_held_to_the_first_cap(
    path: Path,
) -> None:
    """An owner who takes the rules away allows no more by it: everything stops where it is over."""
    ledger = Ledger(path)
    share(ledger, question("one", 0.2))  # 2 alone
    ledger.set_policy(replace(POLICY, secure=None))
    plain = ledger.policy
    assert outcome(lambda: ledger.charge(question("two", 0.01), "ann", plain)) == "over_budget"
    assert outcome(lambda: share(ledger, question("two", 0.01), alone=1)) == "over_budget"
    ledger.set_policy(replace(plain, epsilon=2.01))
    assert ledger.charge(question("two", 0.01), "ann", ledger.policy) is None


def test_shares_count_towards_what_is_asked_within_an_hour(path: Path) -> None:
    ledger = Ledger(path)
    ledger.set_policy(replace(POLICY, requests_per_hour=2))
    share(ledger, question("one", 0.01))
    ledger.open_once(question("one", 0.01), "ann", TERMS, lambda: [1])  # openings do not
    share(ledger, question("two", 0.01))
    assert outcome(lambda: share(ledger, question("three", 0.01))) == "too_often"
    assert share(ledger, question("two", 0.01)) == "sealed"


def test_shares_count_towards_what_one_asker_may_spend(path: Path) -> None:
    ledger = Ledger(path)
    ledger.set_policy(replace(POLICY, epsilon_by_asker={"ann": 0.15}))
    share(ledger, question("one", 0.1))
    assert outcome(lambda: share(ledger, question("two", 0.1))) == "over_budget"
    assert share(ledger, question("two", 0.05)) is None


# --- reservations --------------------------------------------------------------------------------


def test_a_reservation_holds_both_totals(tmp_path: Path) -> None:
    policy = Policy(epsilon=1.0, secure=SecureRules(colluding=2, alone=10, epsilon_alone=3.0))
    ledger = Ledger.create(tmp_path / "l.db", policy, unit="row")
    assert ledger.reserve([question("mine", 0.2)], "ann", policy, alone=10) is None
    assert [held.cost for held in ledger.reserved()] == [Cost(NANO // 5, 2 * NANO)]
    # ε is left for it, but not alone: 2 of 3 are kept for the other campaign.
    assert ledger.reserve([question("other", 0.2)], "bob", policy, alone=10) == "reserved"
    assert outcome(lambda: share(ledger, question("other", 0.2), asker="bob")) == "reserved"
    assert ledger.reserve([question("other", 0.1)], "bob", policy, alone=10) is None
    assert share(ledger, question("mine", 0.2)) is None
    assert [held.campaign for held in ledger.reserved()] == ["other"]
    assert outcome(lambda: share(ledger, question("third", 0.001), asker="cid")) == "reserved"
    ledger.release("other", "bob")
    assert share(ledger, question("third", 0.001), asker="cid") is None


def test_a_charge_lowers_what_is_reserved_in_both_totals(path: Path) -> None:
    ledger = Ledger(path)
    ledger.reserve([question(), question(round=1, epsilon=0.2)], "ann", POLICY, alone=10)
    share(ledger, question())
    assert [held.cost for held in ledger.reserved()] == [Cost(2 * NANO // 10, 2 * NANO)]


def test_what_was_reserved_for_ordinary_questions_is_not_asked_in_secure_sums(
    tmp_path: Path,
) -> None:
    policy = Policy(epsilon=1.0, secure=SecureRules(colluding=2, alone=10, epsilon_alone=2.0))
    ledger = Ledger.create(tmp_path / "l.db", policy, unit="row")
    assert ledger.reserve([question("mine", 0.2)], "ann", policy) is None
    assert ledger.reserve([question("other", 0.1)], "bob", policy, alone=10) is None
    assert outcome(lambda: share(ledger, question("mine", 0.15))) == "reserved"


def test_a_campaign_that_offers_again_keeps_to_what_it_was_charged_for(path: Path) -> None:
    ledger, asked = Ledger(path), [question(), question(round=1)]
    assert ledger.reserve(asked, "ann", POLICY, alone=10) is None
    share(ledger, asked[0])
    assert ledger.reserve(asked, "ann", POLICY, alone=10) is None
    assert ledger.reserve(asked, "ann", POLICY, alone=9) == "id_conflict"
    assert ledger.reserve(asked, "ann", POLICY) == "id_conflict"
    other = [question(epsilon=0.2), asked[1]]
    assert ledger.reserve(other, "ann", POLICY, alone=10) == "id_conflict"
    assert [held.cost for held in ledger.reserved()] == [Cost(NANO // 10, NANO)]


# --- where each person has a budget of their own ---------------------------------------------------


def test_a_share_charges_each_person_and_neither_total_of_theirs_is_exceeded(
    tmp_path: Path,
) -> None:
    rules = SecureRules(colluding=2, alone=10, epsilon_alone=5.0)
    policy = Policy(epsilon=1.0, budget="person", secure=rules)
    ledger = Ledger.create(tmp_path / "l.db", policy, unit="person")
    ann, bob = b"a" * 16, b"b" * 16

    def counted(name: str, epsilon: float, persons: set[bytes]) -> set[bytes]:
        asked = question(name, epsilon)
        ledger.charge_share(asked, "ann", policy, TERMS, 10 * asked.nano_epsilon)
        return ledger.charge_persons(asked, "ann", persons, policy)

    assert counted("one", 0.25, {ann}) == {ann}
    assert counted("two", 0.25, {ann, bob}) == {ann, bob}
    assert counted("three", 0.25, {ann, bob}) == {bob}  # ann: 0.5, which is 5 alone
    assert counted("four", 0.001, {ann, bob}) == set()
    # A request that nobody could pay is refused before anybody is looked at.
    over = question("five", 0.501)
    assert outcome(lambda: share(ledger, over)) == "over_budget"
    assert outcome(lambda: ledger.charge(over, "ann", policy)) == "over_budget"


PERSONS = [bytes([i]) * 16 for i in range(3)]
ABOUT = st.tuples(
    st.integers(1, 60),
    st.one_of(st.none(), st.integers(1, 12)),
    st.sets(st.sampled_from(PERSONS), min_size=1),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ABOUT, max_size=12), st.one_of(st.none(), st.integers(50, 1200)))
def test_no_person_pays_more_than_either_total_whatever_is_asked(
    asked: list[tuple[int, int | None, set[bytes]]], limit: int | None
) -> None:
    """Accounts tell a person's ε alone, and yet the second total holds for each of them."""
    rules = SecureRules(1, alone=10, epsilon_alone=None if limit is None else limit / 100)
    policy = Policy(epsilon=1.0, budget="person", secure=rules)
    ledger = Ledger.in_memory(policy, unit="person")
    paid = dict.fromkeys(PERSONS, Cost())
    for number, (hundredths, alone, present) in enumerate(asked):
        one = Question("c", number, 0, hundredths * NANO // 100, Gap())
        try:
            if alone is None:
                ledger.charge(one, "ann", policy)
            else:
                ledger.charge_share(one, "ann", policy, TERMS, alone * one.nano_epsilon)
        except Refused as refusal:
            if refusal.code != "over_budget":
                raise
            continue
        for person in ledger.charge_persons(one, "ann", present, policy):
            paid[person] += Cost.of(one.nano_epsilon, alone)
    assert all(cost.within(policy.cap) for cost in paid.values())


@settings(max_examples=30, deadline=None)
@given(st.lists(ABOUT, max_size=12))
def test_within_the_usual_rules_secure_sums_cost_no_person_an_answer(
    asked: list[tuple[int, int | None, set[bytes]]],
) -> None:
    """With no limit but `alone` times the total, whoever counts is who would count outside of sums."""
    policy = Policy(epsilon=1.0, budget="person", secure=SecureRules(1, alone=12))
    secure, plain = (Ledger.in_memory(policy, unit="person") for _ in range(2))
    for number, (hundredths, alone, present) in enumerate(asked):
        one = Question("c", number, 0, hundredths * NANO // 100, Gap())
        plain.charge(one, "ann", policy)
        secure.charge_share(one, "ann", policy, TERMS, (alone or 1) * one.nano_epsilon)
        counted = [ledger.charge_persons(one, "ann", present, policy) for ledger in (plain, secure)]
        assert counted[0] == counted[1]


# --- copies, losses, and other software ------------------------------------------------------------


def test_any_copy_from_before_the_last_change_is_noticed(path: Path, tmp_path: Path) -> None:
    """Restored at every step of SHARE and OPEN: only the one without a stored reply is the newest."""
    ledger, asked, copies = Ledger(path), question(), []

    def keep() -> None:
        copies.append(tmp_path / f"copy{len(copies)}.db")
        shutil.copy(path, copies[-1])

    keep()
    ledger.charge_share(asked, "ann", POLICY, TERMS, NANO)
    keep()
    ledger.store_share(asked, "ann", "sealed")
    keep()
    ledger.open_once(asked, "ann", TERMS, lambda: [1])
    keep()
    for copy in copies[:3]:
        shutil.copy(copy, path)
        assert not ledger.in_step
        for work in (
            lambda: share(ledger, asked),
            lambda: ledger.open_once(asked, "ann", OTHER, no_numbers),
            lambda: ledger.charge(question("summer"), "bob", POLICY),
        ):
            assert outcome(work) == "ledger_rolled_back"
    shutil.copy(copies[3], path)
    assert ledger.open_once(asked, "ann", TERMS, no_numbers) == [1]


def test_a_copy_from_between_charge_and_reply_loses_the_reply(path: Path, tmp_path: Path) -> None:
    ledger, asked = Ledger(path), question()
    ledger.charge_share(asked, "ann", POLICY, TERMS, NANO)
    shutil.copy(path, tmp_path / "copy.db")
    ledger.store_share(asked, "ann", "sealed")
    shutil.copy(tmp_path / "copy.db", path)
    assert outcome(lambda: share(ledger, asked)) == "lost"


def test_what_is_reconciled_counts_in_both_totals(path: Path, tmp_path: Path) -> None:
    ledger = Ledger(path)
    share(ledger, question("one"))
    shutil.copy(path, tmp_path / "copy.db")
    share(ledger, question("two"), alone=7)
    ledger.charge(question("three"), "ann", POLICY)
    before = ledger.spent
    shutil.copy(tmp_path / "copy.db", path)
    assert ledger.reconcile() == 2 * NANO // 10
    assert ledger.spent == before == Cost(3 * NANO // 10, NANO + 7 * NANO // 10 + NANO // 10)
    assert ledger.in_step
    assert [(e.epsilon, e.alone) for e in ledger.entries()][-1] == (0.2, 0.8)


def test_a_copy_that_went_its_own_way_owes_what_both_spent_alone(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, copy = Ledger(path), Ledger(tmp_path / "copy.db")
    share(ledger, question("one"))
    shutil.copy(path, tmp_path / "copy.db")
    with monkeypatch.context() as elsewhere:  # asked where the marks are not
        elsewhere.setattr(Ledger, "_check_against", lambda *_: None)
        elsewhere.setattr("privcal.trusted.marks.Marks.raise_to", lambda *_: None)
        share(copy, question("there"), alone=3)
    share(ledger, question("here"), alone=5)
    assert copy.reconcile() == NANO // 10
    assert copy.spent == Cost(3 * NANO // 10, (10 + 3 + 5) * NANO // 10)


@pytest.mark.parametrize(
    ("policy", "told", "written_off"),
    [
        (POLICY, 0.05, Cost(NANO // 20, NANO // 2)),  # ten times: what the policy would have let be
        (Policy(), 0.05, Cost(NANO // 20, NANO // 20)),
        (POLICY, 0, Cost()),
    ],
)
def test_what_only_the_owner_knows_counts_as_if_all_of_it_was_in_secure_sums(
    policy: Policy,
    told: float,
    written_off: Cost,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = Ledger.create(tmp_path / "l.db", policy, unit="row")
    ledger.set_policy(replace(policy, secure=None))  # it was allowed once
    monkeypatch.setenv("PRIVCAL_MARKS", str(tmp_path / "elsewhere.db"))
    Path(ledger.facts.marks or "").unlink()
    ledger.reconcile(write_off=told)
    assert ledger.spent == written_off


def test_a_ledger_in_the_place_of_a_lost_one_starts_with_both_totals(path: Path) -> None:
    lost = Ledger(path)
    share(lost, question())
    before = lost.spent
    path.unlink()
    ledger = Ledger.create(path, POLICY, unit="row")
    assert ledger.spent == before == Cost(NANO // 10, NANO)
    assert outcome(lambda: share(ledger, question("two", 0.9))) == "answered"  # 1 + 9 of 10 alone
    assert outcome(lambda: share(ledger, question("three", 0.001), alone=1)) == "over_budget"


def test_a_fresh_ledger_put_in_its_place_owes_what_was_spent_alone(
    path: Path, tmp_path: Path
) -> None:
    share(Ledger(path), question())
    fresh = Ledger.create(tmp_path / "fresh.db", POLICY, unit="row")
    path.unlink()
    shutil.copy(tmp_path / "fresh.db", path)
    ledger = Ledger(path)
    assert outcome(lambda: share(ledger, question())) == "ledger_rolled_back"
    # Even where somebody wrote the ε off, and not what it cost alone.
    write_off(ledger, Cost(NANO // 10, NANO // 10))
    assert outcome(lambda: share(ledger, question())) == "ledger_rolled_back"
    ledger.reconcile()
    assert ledger.spent.alone >= NANO
    assert fresh.exists


def test_nothing_is_written_off_that_costs_less_alone_than_its_epsilon(
    path: Path, tmp_path: Path
) -> None:
    Ledger(path).charge(question(), "ann", POLICY)
    Ledger.create(tmp_path / "fresh.db", POLICY, unit="row")
    shutil.copy(tmp_path / "fresh.db", path)
    ledger = Ledger(path)
    write_off(ledger, Cost(NANO // 20, NANO))
    assert ledger.reconcile() == NANO // 20
    last = ledger.entries()[-1]
    assert (last.epsilon, last.alone) == (0.05, 0.05)


def write_off(ledger: Ledger, amount: Cost) -> None:
    """As `reconcile` does, but of any amount."""
    with ledger._changing(check=False) as book:
        book.append_write_off("written off", amount)


def test_the_generation_is_another_after_every_loss_and_the_same_otherwise(
    path: Path, tmp_path: Path
) -> None:
    ledger = Ledger(path)
    seen = [ledger.generation]
    share(ledger, question())
    shutil.copy(path, tmp_path / "copy.db")
    ledger.open_once(question(), "ann", TERMS, lambda: [1])
    ledger.set_policy(replace(POLICY, epsilon=2.0))
    assert ledger.generation == seen[0]
    for _ in range(2):  # the same copy twice, within one second
        shutil.copy(tmp_path / "copy.db", path)
        assert outcome(lambda: ledger.generation) == "ledger_rolled_back"
        ledger.reconcile()
        seen.append(ledger.generation)
    path.unlink()
    seen.append(Ledger.create(path, POLICY, unit="row").generation)
    assert len(set(seen)) == 4


def test_a_lost_ledger_that_had_spent_nothing_has_another_generation_too(path: Path) -> None:
    before = Ledger(path).generation
    Ledger(path).open_once(question(), "ann", TERMS, lambda: [1])
    path.unlink()
    ledger = Ledger.create(path, POLICY, unit="row")
    assert ledger.generation != before
    assert ledger.generation == Ledger(path).generation


@pytest.mark.parametrize(
    "work",
    [
        lambda ledger: share(ledger, question()),
        lambda ledger: ledger.open_once(question(), "ann", TERMS, lambda: [1]),
    ],
)
def test_from_its_first_part_in_a_secure_sum_on_older_software_refuses_a_ledger(
    path: Path, work: Callable[[Ledger], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(path)
    ledger.charge(question("before"), "ann", POLICY)
    ledger.reserve([question("kept")], "ann", POLICY, alone=10)
    work(ledger)
    assert edit(path, "PRAGMA user_version") == [(4,)]
    monkeypatch.setattr(chain, "READABLE", (2,))  # software that knows only of version 2
    assert outcome(lambda: ledger.charge(question("after"), "ann", POLICY)) == "unavailable"


def test_marks_from_before_there_were_secure_sums_go_on(tmp_path: Path, path: Path) -> None:
    ledger = Ledger(path)
    ledger.charge(question("before"), "ann", POLICY)
    marks = Path(ledger.facts.marks or "")
    edit(marks, "DROP TABLE alone")
    assert ledger.in_step
    share(ledger, question())
    with editing(marks) as db:  # and older software with these: what it writes is all it knows
        db.execute("INSERT OR REPLACE INTO head VALUES ('other', 'row', 1, 'hash', 5)")
        db.execute("INSERT OR IGNORE INTO history VALUES ('other', 1, 'hash', 5)")
    with reading(marks) as marked:
        assert marked is not None
        assert marked.head("other") == Head(1, "hash", Cost(5, 5))
        assert marked.shared("other", {1: "hash"}.get) == Cost(5, 5)
        [head] = [marked.head(ledger.id)]
    assert head is not None
    assert head.spent == ledger.spent == Cost(2 * NANO // 10, 11 * NANO // 10)


# --- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE entry SET what = replace(what, '10', '1') WHERE kind = 'share'",
        "UPDATE entry SET what = 'x' WHERE kind = 'share'",
        "UPDATE entry SET epsilon = 1 WHERE kind = 'share'",
        "UPDATE entry SET digest = 'x' WHERE kind = 'share'",
        "UPDATE entry SET answer = 'other' WHERE kind = 'share'",
    ],
)
def test_a_share_that_was_changed_is_noticed(path: Path, damage: str) -> None:
    ledger = Ledger(path)
    share(ledger, question())
    ledger.charge(question("later"), "ann", POLICY)
    edit(path, damage)
    # A process that has read the ledger goes by what it read; whoever reads it now notices.
    assert ledger.spent == Cost(2 * NANO // 10, 11 * NANO // 10)
    ledger = Ledger(path)
    assert outcome(lambda: share(ledger, question())) == "unavailable"
    if "answer" not in damage:  # replies are not read again to add up what they cost
        assert outcome(lambda: ledger.charge(question("two"), "ann", POLICY)) == "unavailable"
    with pytest.raises(InputError, match="damaged at entry 2"):
        ledger.entries()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE entry SET digest = (SELECT digest FROM entry WHERE kind = 'share') WHERE seq = 3",
        "UPDATE entry SET answer = '[2]' WHERE kind = 'opening'",
        "UPDATE entry SET answer = NULL, sealed = NULL WHERE kind = 'opening'",
        "UPDATE entry SET what = 'x' WHERE kind = 'opening'",
        "DELETE FROM entry WHERE kind = 'opening'",
    ],
)
def test_an_opening_that_was_changed_opens_nothing(path: Path, damage: str) -> None:
    ledger = Ledger(path)
    share(ledger, question())
    ledger.open_once(question(), "ann", OTHER, lambda: [1])
    edit(path, damage)
    codes = {"unavailable", "lost", "opened", "ledger_rolled_back"}
    assert outcome(lambda: ledger.open_once(question(), "ann", TERMS, lambda: [9])) in codes


# --- approvals -------------------------------------------------------------------------------------


def test_what_was_approved_as_ordinary_is_not_asked_in_a_secure_sum(path: Path) -> None:
    ledger = Ledger(path)
    ledger.set_policy(replace(POLICY, approve=True))
    policy = ledger.policy
    assert outcome(lambda: ledger.charge(question(), "ann", policy)) == "awaiting_approval"
    [(proposal, _)] = ledger.waiting()
    ledger.approve(proposal)
    assert outcome(lambda: share(ledger, question())) == "awaiting_approval"
    assert ledger.reserve([question()], "ann", policy, alone=10) == "awaiting_approval"
    [(secure, _)] = ledger.waiting()
    assert (secure.alone, proposal.alone) == (10, None)
    assert secure.digest != proposal.digest
    ledger.approve(secure)
    assert outcome(lambda: share(ledger, question(), alone=11)) == "awaiting_approval"
    assert share(ledger, question()) is None


def test_an_approved_secure_campaign_is_not_asked_otherwise(path: Path) -> None:
    ledger = Ledger(path)
    ledger.set_policy(replace(POLICY, approve=True))
    assert ledger.reserve([question()], "ann", ledger.policy, alone=10) == "awaiting_approval"
    ledger.approve(ledger.waiting()[0][0])
    ask = lambda: ledger.charge(question(), "ann", ledger.policy)  # noqa: E731
    assert outcome(ask) == "awaiting_approval"
    assert share(ledger, question()) is None


def test_a_proposal_is_read_as_it_was_written_by_older_software_too() -> None:
    ordinary = Proposal("ann", "spring", None, ("gap",), 1, 5, "d")
    assert "alone" not in ordinary.text()  # so that older software reads it
    assert Proposal.of(ordinary.text()) == ordinary
    secure = replace(ordinary, alone=10)
    assert Proposal.of(secure.text()) == secure
    with pytest.raises(InputError):
        Proposal.of(secure.text().replace("10", '"10"'))
