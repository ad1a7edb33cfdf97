"""The loop over sources, and what it does when some of them leave."""

from __future__ import annotations

import warnings
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privcal
from privcal.calibration.loop import Progress, SourceDropped, Stopped
from privcal.calibration.methods.base import plan
from privcal.data.datasets import cifar10c
from privcal.trusted.noise import add_noise
from privcal.trusted.queries import GRID
from privcal.trusted.source import Answer
from tests.support.builders import a_source, python, random_scores, some_sources


class Scripted:
    """A source that says what it is told, and fails when it is told."""

    def __init__(self, name: str, values: list[float], fails_at: int | None = None) -> None:
        self.name = name
        self.values = values
        self.fails_at = fails_at
        self.asked = 0

    def answer(self, question: privcal.Question, asker: str) -> Answer:
        self.asked += 1
        if self.asked - 1 == self.fails_at:
            raise privcal.Refused("over_budget")
        return Answer((round(self.values[self.asked - 1] * GRID),), question)


def test_with_much_budget_acc_t_comes_near_the_exact_fit() -> None:
    scores = cifar10c("motion_blur")
    rows = np.random.default_rng(0).permutation(len(scores))[:2000]
    sources = [a_source(scores.take(part), epsilon=1000) for part in np.split(rows, 10)]
    result = privcal.calibrate(sources, "acc-t", 1000, iterations=15)
    exact = privcal.fit_temperature(scores.take(rows), "accuracy").temperature
    assert result.map.temperature == pytest.approx(exact, abs=0.02)


def test_noise_is_not_seeded() -> None:
    first, second = (
        privcal.calibrate(some_sources(2), "acc-t", 1.0, seed=0).rounds[0].answers for _ in range(2)
    )
    assert first != second


def test_the_result_tells_what_was_asked_and_what_came_back() -> None:
    result = privcal.calibrate(some_sources(3), "acc-t", 0.6)
    assert [asked.round for asked in result.rounds] == [0, 0, 1, 2, 3]
    assert all(set(asked.answers) == {"s0", "s1", "s2"} for asked in result.rounds)
    assert sum(asked.epsilon for asked in result.rounds) == pytest.approx(0.6, abs=1e-12)
    facts = result.map.provenance
    assert facts["method"] == "acc-t"
    assert facts["epsilon_per_source"] == 0.6
    assert facts["sources"] == 3
    assert result.map.private


def test_a_named_campaign_asked_again_replays_its_answers_for_free() -> None:
    sources = some_sources(3)
    first = privcal.calibrate(sources, "acc-t", 1.0, campaign="spring")
    again = privcal.calibrate(sources, "acc-t", 1.0, campaign="spring")
    assert again.map.temperature == first.map.temperature
    assert [s.spent for s in sources] == [1.0] * 3


def test_a_source_that_leaves_leaves_the_earlier_averages_too() -> None:
    # Alone, `stays` says |v| falls to the left: 1 then 5. `leaves` pulls the first average up to
    # 10 before it goes; had it stayed in that one average, the search would have gone right.
    stays = Scripted("stays", [1.0, 5.0, 0.0, 0.0, 0.0])
    leaves = Scripted("leaves", [19.0], fails_at=1)
    with pytest.warns(SourceDropped, match="leaves left in round 1: over_budget"):
        result = privcal.calibrate([stays, leaves], "acc-t", 1.0)
    alone = privcal.calibrate([Scripted("stays", stays.values)], "acc-t", 1.0)
    assert result.map.temperature == alone.map.temperature
    assert result.dropped == {"leaves": "over_budget"}
    assert leaves.asked == 2
    assert result.spent == pytest.approx((1.0, 1 / 5))


def test_earlier_rounds_are_averaged_again_without_whoever_left() -> None:
    # Round 1 has T = 1.45 (v0) and 2.05 (v1). With both sources v0 < v1, so the upper end moves
    # to 2.05 and a new point is asked on the left. `leaves` goes there; from then on v0 must be
    # compared as `stays` alone saw it.
    both = {"stays": [1.0, 9.0, 2.0, 0.0, 0.0, 0.0], "leaves": [5.0, 9.0]}
    stays = Scripted("stays", both["stays"])
    leaves = Scripted("leaves", both["leaves"], fails_at=2)
    search = {"iterations": 5, "bounds": (0.5, 3.0), "spacing": "linear"}
    with pytest.warns(SourceDropped):
        result = privcal.calibrate([stays, leaves], "acc-t", 1.0, **search)
    # v(new left) = 2 against v0: 1 alone (so the lower end moves up), 3 with both (it would not).
    lo, hi = 0.5, 0.5 + 2.5 * (np.sqrt(5) - 1) / 2
    new_left = hi - (hi - lo) * (np.sqrt(5) - 1) / 2
    assert result.rounds[3].query.temperature > result.rounds[0].query.temperature > new_left


def test_below_min_sources_the_run_stops_and_says_what_was_spent() -> None:
    *good, failing = some_sources(3)
    exact = failing._exact
    answers = iter((exact, exact))
    failing._exact = lambda *asked: next(answers)(*asked)  # type: ignore[method-assign]
    with (
        pytest.warns(SourceDropped, match="s2 left in round 2"),
        pytest.raises(privcal.CalibrationError, match="only 2 of 3 sources are left") as stopped,
    ):
        privcal.calibrate([*good, failing], "acc-t", 1.0, min_sources=3)
    assert stopped.value.spent == pytest.approx((3 / 5, 3 / 5, 3 / 5), abs=1e-8)
    assert [s.spent for s in (*good, failing)] == list(stopped.value.spent)


def test_a_source_that_fails_after_the_charge_is_counted_as_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good, broken = some_sources(2)
    monkeypatch.setattr(broken, "_exact", lambda *asked: 1 / 0)
    with pytest.warns(SourceDropped, match="unavailable"):
        result = privcal.calibrate([good, broken], "acc-t", 0.6)
    assert result.spent == (good.spent, broken.spent) == (0.6, 0.12)


@pytest.mark.parametrize("epsilon", [Fraction(1, 2), Decimal("0.5"), np.float32(0.5), "0.5"])
def test_a_map_can_be_saved_however_epsilon_and_options_were_given(
    epsilon: object, tmp_path: Path
) -> None:
    result = privcal.calibrate(
        some_sources(1), "ece-t", epsilon, bins=np.int64(10), bounds=(0.5, np.float64(3))
    )
    result.map.save(tmp_path / "m.json")
    assert privcal.load_map(tmp_path / "m.json").provenance["epsilon_per_source"] == 0.5
    assert result.map.provenance["options"] == {"bins": 10, "bounds": [0.5, 3.0]}


@pytest.mark.parametrize("campaign", ["2024/spring", "a\nb", "x" * 300])
def test_a_campaign_must_have_a_plain_name(campaign: str) -> None:
    for method in ("acc-t", "uncalibrated"):  # which asks nothing
        with pytest.raises(privcal.InputError, match="campaign"):
            privcal.calibrate(some_sources(1), method, campaign=campaign)


@pytest.mark.parametrize("points", [(1.5,), (float("nan"),), (True,), ("1",), (1, 2), ()])
def test_a_malformed_answer_drops_its_source(points: tuple[Any, ...]) -> None:
    class Bad:
        name = "bad"

        def answer(self, question: privcal.Question, asker: str) -> Answer:
            return Answer(points, question)

    good = Scripted("good", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    with pytest.warns(SourceDropped, match="malformed"):
        result = privcal.calibrate([Bad(), good], "acc-t", 1.0)
    assert list(result.dropped) == ["bad"]


def test_an_empty_source_answers_like_any_other() -> None:
    empty = a_source(0, epsilon=1)
    result = privcal.calibrate([empty, *some_sources(1)], "ece-t", 1.0)
    assert result.dropped == {}
    assert result.spent == (1.0, 1.0)


def test_progress_is_told_after_every_answer() -> None:
    steps: list[Progress] = []
    privcal.calibrate(some_sources(4), "histogram-binning", 1.0, progress=steps.append)
    assert [(s.asked, s.answered, s.sources) for s in steps] == [(0, i, 4) for i in range(1, 5)]


def test_a_source_of_another_model_refuses() -> None:
    ours = a_source(random_scores(5, model="a"), name="ours")
    theirs = a_source(random_scores(5, model="b"), name="theirs")
    with pytest.warns(SourceDropped, match="theirs is not asked: model"):
        result = privcal.calibrate([ours, theirs], "acc-t", 1.0, model="a")
    assert theirs.spent == 0
    assert result.map.provenance["model"] == "a"


@pytest.mark.parametrize("epsilon", [0, -1, float("nan"), 1e-9])
def test_an_epsilon_that_cannot_be_spent_is_an_input_error(epsilon: float) -> None:
    sources = some_sources(1)
    with pytest.raises(privcal.InputError, match="epsilon"):
        privcal.calibrate(sources, "acc-t", epsilon)
    assert sources[0].spent == 0


def test_sources_must_be_some_and_distinct() -> None:
    one = some_sources(1)[0]
    with pytest.raises(privcal.InputError, match="no sources"):
        privcal.calibrate([])
    with pytest.raises(privcal.InputError, match="given twice"):
        privcal.calibrate([one, one])
    other = some_sources(1)[0]  # of the same name: their ledgers' ids tell them apart
    names = list(privcal.calibrate([one, other], "one-hot-binning", 0.1).rounds[0].answers)
    assert names == [f"s0 ({s.ledger.id[:8]})" for s in (one, other)]
    with pytest.raises(privcal.InputError, match="min_sources"):
        privcal.calibrate([one], min_sources=0)


def test_two_sources_may_not_share_a_ledger(tmp_path: object) -> None:
    path = f"{tmp_path}/shared.db"
    privcal.Ledger.create(path, unit="row")
    fleeting = privcal.Ledger.in_memory()
    for ledger in (path, fleeting):
        sources = [privcal.Source(random_scores(5, seed=i), None, ledger=ledger) for i in range(2)]
        with pytest.raises(privcal.InputError, match="share one ledger"):
            privcal.calibrate(sources)


def test_a_quiet_run_gives_no_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        privcal.calibrate(some_sources(3), "nll-t", 1.0)


def test_a_sketch_learns_from_the_sources_how_many_rows_of_a_person_count() -> None:
    scores = random_scores(60, 3, seed=1)
    persons = [str(i // 3) for i in range(60)]
    owned = privcal.Scores(logits=scores.outputs.array, labels=scores.labels, person=persons)
    policy = privcal.Policy(epsilon=1.0, rows_per_person=3)
    result = privcal.calibrate([privcal.Source(owned, policy, ledger=None)], "sketch")
    assert result.sketch is not None
    assert [entry.rows_per_person for entry in result.sketch.answers] == [3]
    assert result.map.provenance["rows_per_person"] == 3


# --- nothing is paid for a run that cannot succeed --------------------------------------------


def spent(sources: list[privcal.Source]) -> set[float]:
    return {source.spent for source in sources}


def test_too_few_sources_are_told_before_anybody_pays() -> None:
    sources = some_sources(3)
    with pytest.raises(privcal.CalibrationError, match="nothing charged") as stopped:
        privcal.calibrate(sources, "sketch", 1.0, min_sources=5)
    assert "only 3 of 3 sources can answer, fewer than the 5 required" in str(stopped.value)
    assert "()" not in str(stopped.value)
    assert spent(sources) == {0.0}


@pytest.mark.filterwarnings("ignore::privcal.calibration.loop.SourceDropped")
@pytest.mark.parametrize(
    "method", [m for m in privcal.methods.names() if m not in ("uncalibrated", "one-source")]
)
def test_a_budget_that_does_not_cover_all_questions_pays_for_none(method: str) -> None:
    sources = some_sources(2, epsilon=0.9)
    with pytest.raises(privcal.CalibrationError, match="over_") as stopped:
        privcal.calibrate(sources, method, 1.0)
    assert spent(sources) == {0.0}
    assert set(stopped.value.spent) == {0.0}


@pytest.mark.filterwarnings("ignore::privcal.calibration.loop.SourceDropped")
def test_a_run_beyond_every_persons_budget_pays_for_nothing() -> None:
    scores = random_scores(9, person=list("aabbccdde"))
    policy = privcal.Policy(epsilon=0.9, budget="person")
    source = privcal.Source(scores, policy, ledger=None)
    for _ in range(2):  # new people could be asked about it every time: so it goes on for them
        with pytest.raises(privcal.CalibrationError, match="over_budget"):
            privcal.calibrate([source], "acc-t", 1.0)
    assert source.spent == 0
    for _ in range(2):
        privcal.calibrate([source], "acc-t", 0.9)


@pytest.mark.filterwarnings("ignore::privcal.calibration.loop.SourceDropped")
def test_a_campaigns_name_used_before_for_something_else_costs_nobody_anything() -> None:
    sources = some_sources(3, epsilon=3)
    privcal.calibrate(sources[2:], "sketch", 0.5, campaign="jan")
    with pytest.raises(privcal.CalibrationError, match="id_conflict"):
        privcal.calibrate(sources, "acc-t", 1.0, campaign="jan", min_sources=3)
    assert [s.spent for s in sources] == [0.0, 0.0, 0.5]


def test_a_source_that_could_not_pay_all_is_left_out_and_the_others_go_on() -> None:
    rich, poor = some_sources(2), some_sources(1, epsilon=0.9)[0]
    with pytest.warns(SourceDropped, match="is not asked: over_budget"):
        result = privcal.calibrate([*rich, poor], "acc-t", 1.0)
    assert list(result.dropped.values()) == ["over_budget"]
    assert poor.spent == 0
    assert spent(rich) == {1.0}


@pytest.mark.filterwarnings("ignore::privcal.calibration.loop.SourceDropped")
@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ({"queries": ("nll",)}, "query"),
        ({"askers": ("acme",)}, "asker"),
        ({"epsilon_per_request": 0.1}, "over_request_limit"),
        ({"model": "another"}, "model"),
    ],
)
def test_what_a_policy_refuses_later_is_told_at_once(policy: dict[str, object], code: str) -> None:
    sources = [a_source(**{"epsilon": 2.0, **policy})]
    with pytest.raises(privcal.CalibrationError, match=f"{code}, "):
        privcal.calibrate(sources, "acc-t", 1.0, model="m")
    assert spent(sources) == {0.0}


def test_every_run_warns_of_the_sources_it_leaves_out() -> None:
    """In a process of its own: pytest has filters of its own."""
    code = """if True:
        import numpy as np, privcal
        scores = privcal.Scores(logits=np.eye(3), labels=[0, 1, 2])
        poor = privcal.Source(scores, privcal.Policy(0.5), name="poor", ledger=None)
        rich = privcal.Source(scores, privcal.Policy(9.0), name="rich", ledger=None)
        for _ in range(3):
            privcal.calibrate([rich, poor], "one-hot-binning", 1.0)
    """
    assert python(code).stderr.count("SourceDropped: poor is not asked") == 3


def test_a_source_without_its_ledger_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    for name in "ab":
        privcal.Ledger.create(tmp_path / f"{name}.db", unit="row")
    sources = [privcal.Source(random_scores(9), ledger=tmp_path / f"{name}.db") for name in "abc"]
    with pytest.warns(SourceDropped, match="ledger_missing"):
        result = privcal.calibrate(sources, "one-hot-binning", 1.0)
    assert list(result.dropped.values()) == ["ledger_missing"]
    assert result.spent == (1.0, 1.0, 0.0)


@pytest.mark.filterwarnings("ignore::privcal.calibration.loop.SourceDropped")
def test_a_lost_answer_does_not_strand_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the same name the questions are the same, though one of those who led to them leaves."""
    sources = [
        *some_sources(2, rows=20),
        a_source(400, 9, name="c", epsilon=1),
    ]
    for call in (2, 5, 8):
        with monkeypatch.context() as crash:
            draws = iter(range(100))
            crash.setattr(
                "privcal.trusted.source.add_noise",
                lambda *a, draws=draws, call=call: _die() if next(draws) == call else add_noise(*a),
            )
            with pytest.raises(KeyboardInterrupt):
                privcal.calibrate(sources, "acc-t", 0.3, campaign=f"c{call}")
        result = privcal.calibrate(sources, "acc-t", 0.3, campaign=f"c{call}")
        assert list(result.dropped.values()) == ["lost"]


def _die() -> list[int]:
    raise KeyboardInterrupt


def test_sources_that_do_not_belong_together_are_not_asked() -> None:
    ten = a_source(random_scores(9, classes=10), name="ten")
    two = a_source(random_scores(9, classes=2), name="two")
    with pytest.raises(privcal.InputError, match="ten has scores of 10 classes, two"):
        privcal.calibrate([ten, two], "acc-t")
    other = a_source(random_scores(9, classes=10, model="b"), name="other")
    first = a_source(random_scores(9, classes=10, model="a"), name="first")
    with pytest.raises(privcal.InputError, match="scores of model"):
        privcal.calibrate([other, first], "acc-t")
    people = random_scores(9, classes=10, person=list("aabbccdde"))
    persons = a_source(people, name="persons")
    with pytest.raises(privcal.InputError, match="unit of protection"):
        privcal.calibrate([ten, persons], "acc-t")
    assert spent([ten, two, other, first, persons]) == {0.0}


def test_answers_that_are_stored_already_need_no_budget() -> None:
    sources = some_sources(2)
    first = privcal.calibrate(sources, "acc-t", 1.0, campaign="c")
    again = privcal.calibrate(sources, "acc-t", 1.0, campaign="c")  # all is spent, and stored
    assert again.rounds == first.rounds
    assert spent(sources) == {1.0}


@pytest.mark.parametrize("method", [m for m in privcal.methods.names() if m != "one-source"])
def test_a_plan_is_what_the_method_then_asks(method: str) -> None:
    made = privcal.methods.make(method)
    planned = plan(made, 10**9)
    result = privcal.calibrate(some_sources(3), method, 1.0)
    assert [(turn, ask.query.kind, ask.nano_epsilon) for turn, _, ask in planned] == [
        (asked.round, asked.query.kind, round(asked.epsilon * 1e9)) for asked in result.rounds
    ]


@pytest.mark.filterwarnings("ignore::privcal.calibration.loop.SourceDropped")
def test_a_run_that_stops_says_by_codes_why_sources_left_it_however_they_are_called() -> None:
    """Whoever wants to know reads no sentence: a name may say anything, and only three are told."""
    small = privcal.Policy(epsilon=1.0, epsilon_per_request=0.1)
    named = privcal.Source(random_scores(5), small, name="over_budget", ledger=None)
    with pytest.raises(Stopped, match="over_budget: over_request_limit") as e:
        privcal.calibrate([named], "sketch", 0.5)
    assert (e.value.codes, e.value.final) == (frozenset({"over_request_limit"}), False)
    limited = [
        privcal.Source(random_scores(5), small, name=f"s{number}", ledger=None)
        for number in range(3)
    ]
    spent = privcal.Policy(epsilon=0.1, epsilon_per_request=1.0)
    poor = privcal.Source(random_scores(5), spent, name="poor", ledger=None)
    with pytest.raises(Stopped) as e:
        privcal.calibrate([*limited, poor], "sketch", 0.5)
    assert e.value.codes == {"over_request_limit", "over_budget"}
    assert "over_budget" not in str(e.value)
