"""A campaign that begins can finish, and whatever is reserved, no more is spent than the cap."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import privcal
from privcal.calibration.loop import SourceDropped
from privcal.data.ledger import Ledger
from privcal.trusted.book import Book
from privcal.trusted.epsilon import NANO
from privcal.trusted.queries import Gap, Nll
from privcal.trusted.question import Question
from privcal.trusted.reservations import LONGEST, RESERVATIONS_OF_ONE, RESERVED_FOR
from tests.support.builders import (
    a_ledger,
    a_source,
    edit,
    editing,
    forged,
    named,
    outcome,
    random_scores,
)


class Clock:
    """The wall clock, as the ledger sees it."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time

    def later(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("privcal.trusted.chain.now", clock)
    return clock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return a_ledger(tmp_path)


def source(path: Path) -> privcal.Source:
    return privcal.Source(random_scores(9), ledger=path)


def questions(campaign: str, epsilon: float, count: int = 1) -> list[Question]:
    return [Question.of(Gap(1 + i / 10), epsilon, campaign, index=i) for i in range(count)]


def offer(
    path: Path, campaign: str, epsilon: float, count: int = 1, asker: str = "local"
) -> str | None:
    return source(path).offer(questions(campaign, epsilon, count), asker)


def ask(path: Path, request: str, epsilon: float, asker: str = "local") -> str:
    question = named(request, Gap(), epsilon)
    question = replace(question, query=Gap(1 + question.index / 10))
    return outcome(lambda: source(path).answer(question, asker))


def rules(path: Path, **more: object) -> None:
    ledger = privcal.Ledger(path)
    ledger.set_policy(privcal.Policy.of(more, "here", ledger.policy))


def test_what_is_reserved_is_kept_for_its_campaign(path: Path) -> None:
    assert offer(path, "first", 0.3, 2) is None
    assert ask(path, "second", 0.5) == "reserved"
    assert ask(path, "second", 0.4) == "answered"  # what is left over may be asked
    assert ask(path, "third", 0.001) == "reserved"
    assert [ask(path, f"first/0/{i}", 0.3) for i in range(2)] == ["answered"] * 2
    assert ask(path, "third", 0.001) == "over_budget"
    assert source(path).ledger.nano_spent == NANO


def test_an_offer_costs_nothing_and_a_second_that_does_not_fit_beside_it_is_told(
    path: Path,
) -> None:
    assert offer(path, "first", 0.3, 2) is None
    assert offer(path, "second", 0.25, 2) == "reserved"
    assert offer(path, "second", 0.2, 2) is None
    assert offer(path, "third", 0.6, 2) == "over_budget"  # without the others too
    assert source(path).ledger.nano_spent == 0
    assert len(privcal.Ledger(path).entries()) == 1  # the policy: no reservation is an entry


def test_what_was_charged_is_no_longer_reserved(path: Path) -> None:
    assert offer(path, "first", 0.3, 2) is None
    ask(path, "first/0/0", 0.3)
    assert ask(path, "second/0/0", 0.5) == "reserved"  # .3 spent and .3 reserved
    assert ask(path, "second/0/0", 0.4) == "answered"
    assert ask(path, "first/0/1", 0.3) == "answered"
    assert privcal.Ledger(path).reserved() == []


def test_a_released_reservation_is_free_for_others(path: Path) -> None:
    assert offer(path, "first", 0.8) is None
    source(path).release("first")
    assert offer(path, "second", 1.0) is None
    source(path).release("never reserved")
    assert ask(path, "third", 0.1) == "reserved"


def test_the_same_campaign_may_offer_again_and_needs_no_second_budget(path: Path) -> None:
    for _ in range(3):
        assert offer(path, "first", 0.25, 4) is None
    ask(path, "first/0/0", 0.25)
    assert offer(path, "first", 0.25, 4) is None  # the first of them is paid for
    assert [one.nano for one in privcal.Ledger(path).reserved()] == [3 * NANO // 4]
    assert offer(path, "first", 0.1, 4) == "id_conflict"


def test_a_campaign_that_is_all_answered_reserves_nothing(path: Path) -> None:
    assert ask(path, "first", 1.0) == "answered"
    assert offer(path, "first", 1.0) is None
    assert privcal.Ledger(path).reserved() == []


def test_whoever_is_refused_by_the_policy_reserves_nothing(path: Path) -> None:
    rules(path, askers=["acme"], queries=["nll"], model="v1", epsilon_per_request=0.5)
    nll = Question.of(Nll(), 0.25, "c", model="v1")
    for question, asker, code in (
        (Question.of(Gap(), 0.25, "c"), "local", "asker"),
        (Question.of(Gap(), 0.25, "c"), "acme", "query"),
        (replace(nll, model="v2"), "acme", "model"),
        (replace(nll, nano_epsilon=NANO), "acme", "over_request_limit"),
        (replace(nll, nano_epsilon=1), "acme", "under_minimum"),
        (nll, "eve", "asker"),
    ):
        assert source(path).offer([question], asker) == code
        assert privcal.Ledger(path).reserved() == []
    assert source(path).offer([nll], "acme") is None


def test_an_offer_is_of_one_campaign_about_one_model_and_no_question_comes_twice(
    path: Path,
) -> None:
    [first, second] = questions("c", 0.1, 2)
    for asked in (
        [first, replace(second, campaign="other")],
        [first, replace(second, model="v2")],
        [first, first],
        [first, forged(second, model="a\x1b[2Jb")],
        ["not a question"],
        [],
    ):
        assert source(path).offer(asked) == "bad_request"  # type: ignore[arg-type]
    assert privcal.Ledger(path).reserved() == []


def test_what_is_refused_takes_no_reservation_from_its_asker(path: Path) -> None:
    for n in range(RESERVATIONS_OF_ONE):
        assert offer(path, f"c{n}", 0.01) is None
    assert offer(path, "too much", 0.6, count=2) == "over_budget"
    assert {one.campaign for one in privcal.Ledger(path).reserved()} == {
        f"c{n}" for n in range(RESERVATIONS_OF_ONE)
    }


def test_one_asker_has_few_reservations_and_is_not_locked_out_by_runs_that_died(path: Path) -> None:
    for n in range(RESERVATIONS_OF_ONE):
        assert offer(path, f"c{n}", 0.01) is None
    assert offer(path, "c", 0.01, asker="acme") is None
    assert offer(path, "one more", 0.01) is None
    held = [(one.asker, one.campaign) for one in privcal.Ledger(path).reserved()]
    assert ("local", "c0") not in held, "the one idle for longest made way"
    assert len(held) == RESERVATIONS_OF_ONE + 1
    assert ("acme", "c") in held, "nobody else's did"
    assert ask(path, "c0", 0.01) == "answered"  # there is budget, and it may be asked


# --- time ---------------------------------------------------------------------------------


def test_a_reservation_ends_a_while_after_the_last_sign_of_life(path: Path, clock: Clock) -> None:
    assert offer(path, "first", 0.3, 3) is None
    clock.later(RESERVED_FOR - 1)
    assert offer(path, "second", 0.2) == "reserved"
    assert ask(path, "first/0/0", 0.3) == "answered"
    clock.later(RESERVED_FOR - 1)
    assert offer(path, "second", 0.2) == "reserved"  # the charge was a sign of life
    clock.later(1)
    assert offer(path, "second", 0.2) is None
    assert [one.campaign for one in privcal.Ledger(path).reserved()] == ["second"]
    assert edit(path, "SELECT COUNT(*) FROM held") == [(1,)]  # what had ended is removed
    assert ask(path, "first/0/1", 0.3) == "answered"  # there is still enough for it
    assert ask(path, "first/0/2", 0.3) == "reserved"


def test_a_reservation_by_letter_lasts_as_long_as_the_letter_and_a_week_at_most(
    path: Path, clock: Clock
) -> None:
    def offered(campaign: str, lasts: float) -> str | None:
        try:
            source(path).reserve(questions(campaign, 0.6), lasts=lasts)
        except privcal.Refused as refused:
            return refused.code
        return None

    assert offered("first", 3600.0) is None
    clock.later(3599)
    assert offered("second", 0.0) == "reserved"
    assert offered("first", 1e9) is None  # to offer again makes it no longer
    clock.later(1)
    assert offered("second", 1e9) is None
    clock.later(LONGEST - 1)
    assert offered("third", 0.0) == "reserved"
    clock.later(1)
    assert offered("third", 0.0) is None


def test_whoever_offers_again_and_again_and_asks_nothing_holds_a_source_no_longer(
    path: Path, clock: Clock
) -> None:
    for _ in range(3):
        assert offer(path, "first", 0.8) is None
        clock.later(RESERVED_FOR / 3)
    assert offer(path, "second", 0.8) is None
    assert offer(path, "first", 0.8) == "reserved"


@pytest.mark.parametrize(
    ("back", "after", "holds"),
    [(100, 0, True), (100, 240, True), (100, 250, False), (160, 0, False), (10**8, 0, False)],
)
def test_a_clock_set_back_changes_how_long_a_reservation_holds_and_nothing_else(
    path: Path, clock: Clock, back: float, after: float, holds: bool
) -> None:
    """By a little, it lasts so much longer; by more than its life, it is over."""
    assert offer(path, "first", 0.8) is None
    clock.later(-back)
    clock.later(after)
    assert ask(path, "second", 0.3) == ("reserved" if holds else "answered")
    assert ask(path, "first", 0.8) == ("answered" if holds else "over_budget")
    assert source(path).ledger.nano_spent <= NANO


def test_the_hours_limit_counts_charges_over_all_askers_and_no_replays(
    path: Path, clock: Clock
) -> None:
    rules(path, requests_per_hour=3)
    for asker in ("a", "b", "c"):
        clock.later(60)
        assert ask(path, "r", 0.01, asker) == "answered"
    assert ask(path, "s", 0.01) == "too_often"
    assert offer(path, "s", 0.01) == "too_often"
    assert [ask(path, "r", 0.01, "a") for _ in range(5)] == ["answered"] * 5
    clock.later(3600 - 2 * 60)
    assert [ask(path, f"s/0/{i}", 0.01) for i in range(2)] == ["answered", "too_often"]


def test_a_campaign_of_more_questions_than_an_hour_allows_is_refused_before_it_pays(
    path: Path, clock: Clock
) -> None:
    rules(path, requests_per_hour=5)
    assert offer(path, "six", 0.01, 6) == "too_often"
    assert offer(path, "three", 0.01, 3) is None
    assert offer(path, "as many", 0.01, 3) == "too_often"  # beside those that are reserved
    assert offer(path, "two", 0.01, 2) is None
    assert ask(path, "stranger", 0.01) == "too_often"
    asked = [("three", 3), ("two", 2)]
    assert {ask(path, f"{c}/0/{i}", 0.01) for c, n in asked for i in range(n)} == {"answered"}


def test_a_clock_set_back_never_lets_more_be_asked_in_an_hour(path: Path, clock: Clock) -> None:
    rules(path, requests_per_hour=2)
    assert [ask(path, f"r/0/{i}", 0.01) for i in range(2)] == ["answered"] * 2
    clock.later(-7200)
    assert ask(path, "s", 0.01) == "too_often"
    clock.later(3500)
    assert ask(path, "s", 0.01) == "too_often"
    clock.later(101)
    assert [ask(path, f"s/0/{i}", 0.01) for i in range(3)] == ["answered", "answered", "too_often"]


def test_a_clock_that_was_ahead_holds_nothing_up_for_more_than_an_hour(
    path: Path, clock: Clock
) -> None:
    rules(path, requests_per_hour=2)
    clock.later(86400)
    assert [ask(path, f"r/0/{i}", 0.01) for i in range(2)] == ["answered"] * 2
    clock.later(-86400)
    assert offer(path, "s", 0.01) == "too_often"
    clock.later(3590)
    assert ask(path, "s", 0.01) == "too_often"
    clock.later(20)
    assert ask(path, "s", 0.01) == "answered"
    kinds = [entry.kind for entry in Ledger.of(source(path).ledger).entries()]
    assert kinds.count("clock") == 1  # however often somebody asked
    clock.later(86400)  # the date that was wrong is now, and tells nothing
    assert [ask(path, f"t/0/{i}", 0.01) for i in range(3)] == ["answered", "answered", "too_often"]


def test_a_clock_that_differs_by_seconds_leaves_no_entry(path: Path, clock: Clock) -> None:
    rules(path, requests_per_hour=9)
    assert ask(path, "a", 0.01) == "answered"
    clock.later(-50)
    assert ask(path, "b", 0.01) == "answered"
    assert "clock" not in [entry.kind for entry in Ledger.of(source(path).ledger).entries()]


# --- who asks -----------------------------------------------------------------------------


def test_an_asker_has_a_limit_over_all_campaigns_and_whoever_is_not_named_has_none(
    path: Path,
) -> None:
    rules(path, epsilon_by_asker={"acme": 0.3})
    assert ask(path, "spring", 0.2, "acme") == "answered"
    assert ask(path, "autumn", 0.2, "acme") == "over_budget"
    assert offer(path, "autumn", 0.2, asker="acme") == "over_budget"
    assert ask(path, "autumn", 0.1, "acme") == "answered"
    assert ask(path, "c", 0.7, "eve") == "answered"


def test_a_reservation_counts_against_its_askers_own_limit(path: Path) -> None:
    rules(path, epsilon_by_asker={"acme": 0.3})
    assert offer(path, "spring", 0.2, asker="acme") is None
    assert offer(path, "autumn", 0.2, asker="acme") == "reserved"
    assert ask(path, "autumn", 0.2, "acme") == "reserved"
    assert ask(path, "spring", 0.2, "acme") == "answered"
    # So whoever holds what they can leaves the rest to the others.
    assert offer(path, "c", 0.7, asker="eve") is None


# --- whatever the table says --------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE held SET nano = -5000000000",
        "UPDATE held SET nano = 'many'",
        "UPDATE held SET seen = 'yesterday'",
        "UPDATE held SET requests = -9, since = -1",
        "UPDATE held SET nano = 1.5",
        "DELETE FROM held",
        "DROP TABLE held",
    ],
)
def test_a_damaged_reservation_frees_no_budget(path: Path, damage: str) -> None:
    ask(path, "before", 0.5)
    assert offer(path, "first", 0.4) is None
    edit(path, damage)
    assert ask(path, "second", 0.6) == "over_budget"
    assert ask(path, "second", 0.5) == "answered"  # the reservation is lost, and that is all
    assert ask(path, "first", 0.4) == "over_budget"
    assert source(path).ledger.nano_spent == NANO


def test_a_table_that_is_something_else_is_unavailable(path: Path) -> None:
    with editing(path) as db:
        db.execute("DROP TABLE held")
        db.execute("CREATE TABLE held (x)")
        db.execute("INSERT INTO held VALUES (1)")
    assert ask(path, "first", 0.4) == "unavailable"


def test_a_ledger_from_before_there_were_reservations_goes_on(path: Path) -> None:
    with editing(path) as db:
        db.execute("DROP TABLE held")
        db.execute("DROP TABLE waiting")
    assert privcal.Ledger(path).reserved() == []
    assert privcal.Ledger(path).waiting() == []
    source(path).release("none")
    assert ask(path, "a", 0.1) == "answered"
    assert offer(path, "b", 0.9) is None
    assert ask(path, "c", 0.1) == "reserved"


def test_an_owner_who_lowers_the_total_is_obeyed_whatever_is_reserved(path: Path) -> None:
    assert offer(path, "first", 0.25, 4) is None
    rules(path, epsilon=0.5)
    codes = [ask(path, f"first/0/{i}", 0.25) for i in range(4)]
    assert codes == ["answered", "answered", "over_budget", "over_budget"]


class Campaigns(RuleBasedStateMachine):
    """Several campaigns reserve, ask, release and vanish, in any order.

    Beside the ledger runs a plain account of what was promised, written another way: by summing
    lists.
    """

    budget = "population"
    names = st.sampled_from([("a", "x"), ("a", "y"), ("b", "x"), ("c", "z")])
    amounts = st.integers(1, 12).map(lambda n: n * NANO // 20)

    @initialize(limit=st.sampled_from([None, 0.4]))
    def make(self, limit: float | None) -> None:
        table = None if limit is None else {"a": limit}
        self.policy = privcal.Policy(epsilon=1.0, epsilon_by_asker=table, budget=self.budget)
        self.ledger = privcal.Ledger.in_memory(self.policy, unit="person")
        self.clock = Clock()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("privcal.trusted.chain.now", self.clock)
        self.promised: dict[tuple[str, str], tuple[int, datetime]] = {}
        self.since: dict[tuple[str, str], int] = {}
        self.charged: list[tuple[str, int]] = []

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()

    def live(self) -> dict[tuple[str, str], int]:
        return {
            who: left
            for who, (left, seen) in self.promised.items()
            if left and abs(self.clock.time - seen) < timedelta(seconds=RESERVED_FOR)
        }

    def question(self, campaign: str, nano: int) -> Question:
        return Question(campaign, len(self.charged), 0, nano, Gap())

    @rule(who=names, nano=amounts)
    def reserve(self, who: tuple[str, str], nano: int) -> None:
        still = who in self.live()
        asker, campaign = who
        if self.ledger.reserve([self.question(campaign, nano)], asker, self.policy) is None:
            if still:  # to offer again makes it no longer
                self.promised[who] = (nano, self.promised[who][1])
            else:
                self.promised[who] = (nano, self.clock.time)
                self.since[who] = len(self.charged)

    @rule(who=names, nano=amounts)
    def charge(self, who: tuple[str, str], nano: int) -> None:
        left = self.live().get(who, 0)
        try:
            self.ledger.charge(self.question(who[1], nano), who[0], self.policy)
        except privcal.Refused as refused:
            if nano <= left or refused.code not in ("over_budget", "reserved"):
                raise  # a campaign is never refused what it has reserved
            return
        self.charged.append((who[0], nano))
        if left:
            self.promised[who] = (max(0, left - nano), self.clock.time)

    @rule(who=names)
    def release(self, who: tuple[str, str]) -> None:
        self.ledger.release(who[1], who[0])
        self.promised.pop(who, None)

    @rule(seconds=st.sampled_from([1, 50, 149, 150, 5000]))
    def time_passes(self, seconds: int) -> None:
        self.clock.later(seconds)

    @invariant()
    def what_was_promised_is_kept(self) -> None:
        if not hasattr(self, "ledger"):
            return
        live = self.live()
        reserved = {(r.asker, r.campaign): r.nano for r in Ledger.of(self.ledger).reserved()}
        assert reserved == live
        for one in (None, "a"):
            cap = NANO if one is None else self.policy.nano_of("a")
            spent = sum(n for asker, n in self.charged if one in (None, asker))
            held = sum(n for (asker, _), n in live.items() if one in (None, asker))
            assert cap is None or self.payable(spent, held, cap, one)

    def payable(self, spent: int, held: int, cap: int, asker: str | None) -> bool:
        return spent + held <= cap


class CampaignsOfPersons(Campaigns):
    """The same where each person has a budget of their own."""

    budget = "person"

    def payable(self, spent: int, held: int, cap: int, asker: str | None) -> bool:
        if asker is not None:  # an asker's own limit is over all requests
            return spent + held <= cap
        # Whoever was new when a running campaign reserved can pay for all that is running.
        starts = [self.since[who] for who in self.live()]
        return all(sum(n for _, n in self.charged[start:]) + held <= cap for start in starts)


Campaigns.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
CampaignsOfPersons.TestCase.settings = Campaigns.TestCase.settings
TestCampaigns = pytest.mark.slow(Campaigns.TestCase)
TestCampaignsOfPersons = pytest.mark.slow(CampaignsOfPersons.TestCase)


# --- each person's own budget ----------------------------------------------------------------


def test_whoever_was_new_when_a_campaign_reserved_counts_in_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a reservation the second campaign would push everybody out of the first."""
    policy = privcal.Policy(epsilon=1.0, budget="person")
    path = tmp_path / "persons.db"
    privcal.Ledger.create(path, policy, unit="person")
    ward = privcal.Source(random_scores(3, person=["ann", "bob", "cid"]), ledger=path)
    counted = []
    real = Book.charge_persons
    monkeypatch.setattr(
        Book,
        "charge_persons",
        lambda *args: counted.append(len(may := real(*args))) or may,
    )
    first = questions("first", 0.3, 2)
    assert ward.offer(first) is None
    ward.answer(first[0])
    assert ward.offer(questions("second", 0.5)) == "reserved"
    assert outcome(ward.answer, Question.of(Gap(), 0.5, "second")) == "reserved"
    assert ward.offer(questions("second", 0.4)) is None
    ward.answer(Question.of(Gap(), 0.4, "second"))
    ward.answer(first[1])
    assert counted == [3, 3, 3]
    # All of the old ones have paid 1; newcomers are who a third campaign is for.
    assert ward.offer(questions("third", 1.0)) is None


def test_a_small_old_reservation_does_not_use_up_the_budget_of_newcomers(clock: Clock) -> None:
    """Each person's own budget is 1; everything charged since the oldest reservation counts."""
    policy = privcal.Policy(epsilon=1.0, budget="person")
    ledger = privcal.Ledger.in_memory(policy, unit="person")

    def offer(campaign: str, epsilon: float) -> str | None:
        return ledger.reserve(questions(campaign, epsilon), "a", policy)

    for month in range(4):
        assert offer("holds on", 0.01) is None
        clock.later(RESERVED_FOR - 1)
        assert offer(f"month {month}", 1.0) == "reserved"
        assert offer("holds on", 0.01) is None  # again
        clock.later(1)
        assert offer(f"month {month}", 1.0) is None
        [question] = questions(f"month {month}", 1.0)
        assert ledger.charge(question, "a", policy) is None


# --- runs -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::privcal.calibration.loop.SourceDropped")
@pytest.mark.parametrize("where", ["in a file", "in memory"])
def test_four_threads_with_budget_for_two_get_two_maps_and_spend_nothing_else(
    tmp_path: Path, where: str
) -> None:
    from threading import Barrier

    ledger = privcal.Ledger.in_memory()
    if where == "in a file":
        ledger = privcal.Ledger.create(tmp_path / "source.db", unit="row")
    all_have_offered = Barrier(4)

    class Slow(privcal.Source):
        def offer(self, *args: object, **more: object) -> str | None:
            code = super().offer(*args, **more)  # type: ignore[arg-type]
            all_have_offered.wait(30)
            return code

    def run(number: int) -> str:
        rows = Slow(random_scores(9), ledger=ledger)
        try:
            privcal.calibrate([rows], "acc-t", 0.4, campaign=f"c{number}")
        except privcal.CalibrationError as stopped:
            return "reserved" if "reserved" in str(stopped) else str(stopped)
        return "map"

    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(run, range(4)))
    assert sorted(said) == ["map", "map", "reserved", "reserved"]
    assert ledger.nano_spent == 8 * NANO // 10
    assert ledger.reserved() == []


def test_a_run_that_stops_gives_back_what_it_reserved() -> None:
    rich = a_source(name="rich")
    poor = a_source(name="poor", epsilon=0.5)
    with (
        pytest.warns(SourceDropped, match="over_budget"),
        pytest.raises(privcal.CalibrationError, match="nothing charged"),
    ):
        privcal.calibrate([rich, poor], "acc-t", 0.6, min_sources=2)
    assert Ledger.of(rich.ledger).reserved() == []
    other = a_source(random_scores(9, classes=3), name="other")
    with pytest.raises(privcal.InputError, match="not of one model"):
        privcal.calibrate([rich, other], "acc-t", 0.5)
    assert Ledger.of(rich.ledger).reserved() == Ledger.of(other.ledger).reserved() == []


def test_a_run_that_is_interrupted_gives_back_what_it_reserved() -> None:
    one = a_source()

    def interrupt(*_: object) -> None:
        assert len(Ledger.of(one.ledger).reserved()) == 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        privcal.calibrate([one], "acc-t", 0.6, campaign="c", progress=interrupt)
    assert Ledger.of(one.ledger).reserved() == []
    privcal.calibrate([one], "acc-t", 0.6, campaign="c")
    assert one.spent == 0.6


def test_a_run_that_was_killed_goes_on_and_another_is_told_why_and_for_how_long(
    path: Path,
) -> None:
    assert offer(path, "killed", 0.8) is None  # and no release
    with (
        pytest.warns(SourceDropped),
        pytest.raises(privcal.CalibrationError, match=r"reserved, .*half minutes"),
    ):
        privcal.calibrate([source(path)], "one-hot-binning", 0.3)
    assert source(path).ledger.nano_spent == 0
    source(path).release("killed")
    assert offer(path, "again", 1.0) is None
    privcal.calibrate([source(path)], "one-hot-binning", 1.0, campaign="again")


def test_reservations_are_removed_by_nothing_but_time_and_their_own_campaign(path: Path) -> None:
    assert offer(path, "first", 0.4) is None
    privcal.Ledger(path).release("first", "eve")  # of the same name, somebody else's
    assert ask(path, "second", 0.7) == "reserved"
    assert RESERVED_FOR == 150
