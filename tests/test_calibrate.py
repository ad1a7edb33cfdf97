"""The loop over sources, and what it does when some of them leave."""

from __future__ import annotations

import warnings
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import privcal
from privcal.calibrate import Progress, SourceDropped
from privcal.datasets import cifar10c
from privcal.queries import Query
from privcal.source import Answer
from tests.conftest import random_scores


def make_sources(count: int, rows: int = 20, epsilon: float = 1.0) -> list[privcal.Source]:
    return [
        privcal.Source(random_scores(rows, seed=i), privcal.Policy(epsilon=epsilon), name=f"s{i}")
        for i in range(count)
    ]


class Scripted:
    """A source that says what it is told, and fails when it is told."""

    def __init__(self, name: str, values: list[float], fails_at: int | None = None) -> None:
        self.name = name
        self.values = values
        self.fails_at = fails_at
        self.asked = 0

    def answer(
        self, query: Query, epsilon: object, request_id: str, asker: str, model: object
    ) -> Answer:
        self.asked += 1
        if self.asked - 1 == self.fails_at:
            raise privcal.Refused("over_budget")
        key = privcal.privacy.ledger.Key.parse(asker, request_id)
        return Answer(np.array([self.values[self.asked - 1]]), 1000, key)


def test_with_much_budget_acc_t_comes_near_the_exact_fit() -> None:
    scores = cifar10c("motion_blur")
    rows = np.random.default_rng(0).permutation(len(scores))[:2000]
    sources = [
        privcal.Source(scores.take(part), privcal.Policy(epsilon=1000))
        for part in np.split(rows, 10)
    ]
    result = privcal.calibrate(sources, "acc-t", 1000, iterations=15)
    exact = privcal.fit_temperature(scores.take(rows), "accuracy").temperature
    assert result.map.temperature == pytest.approx(exact, abs=0.02)


def test_noise_is_not_seeded() -> None:
    first, second = (
        privcal.calibrate(make_sources(2), "acc-t", 1.0, seed=0).rounds[0].answers for _ in range(2)
    )
    assert first != second


def test_the_result_tells_what_was_asked_and_what_came_back() -> None:
    result = privcal.calibrate(make_sources(3), "acc-t", 0.6)
    assert len(result.rounds) == 6
    assert [asked.round for asked in result.rounds] == [0, 0, 1, 2, 3, 4]
    assert all(set(asked.answers) == {"s0", "s1", "s2"} for asked in result.rounds)
    assert sum(asked.epsilon for asked in result.rounds) == pytest.approx(0.6, abs=1e-12)
    facts = result.map.provenance
    assert facts["method"] == "acc-t"
    assert facts["epsilon_per_source"] == 0.6
    assert facts["sources"] == 3
    assert result.map.private


def test_a_named_campaign_asked_again_replays_its_answers_for_free() -> None:
    sources = make_sources(3)
    first = privcal.calibrate(sources, "acc-t", 1.0, campaign="spring")
    again = privcal.calibrate(sources, "acc-t", 1.0, campaign="spring")
    assert again.map.temperature == first.map.temperature
    assert [s.spent for s in sources] == [1.0] * 3


def test_a_source_that_leaves_leaves_the_earlier_averages_too() -> None:
    # Alone, `stays` says |v| falls to the left: 1 then 5. `leaves` pulls the first average up to
    # 10 before it goes; had it stayed in that one average, the search would have gone right.
    stays = Scripted("stays", [1.0, 5.0, 0.0, 0.0, 0.0, 0.0])
    leaves = Scripted("leaves", [19.0], fails_at=1)
    with pytest.warns(SourceDropped, match="leaves left in round 1: over_budget"):
        result = privcal.calibrate([stays, leaves], "acc-t", 1.0)
    alone = privcal.calibrate([Scripted("stays", stays.values)], "acc-t", 1.0)
    assert result.map.temperature == alone.map.temperature
    assert result.dropped == {"leaves": "over_budget"}
    assert leaves.asked == 2
    assert result.spent == (6e-6, 1e-6)


def test_earlier_rounds_are_averaged_again_without_whoever_left() -> None:
    # Round 1 has T = 1.45 (v0) and 2.05 (v1). With both sources v0 < v1, so the upper end moves
    # to 2.05 and a new point is asked on the left. `leaves` goes there; from then on v0 must be
    # compared as `stays` alone saw it.
    both = {"stays": [1.0, 9.0, 2.0, 0.0, 0.0, 0.0], "leaves": [5.0, 9.0]}
    stays = Scripted("stays", both["stays"])
    leaves = Scripted("leaves", both["leaves"], fails_at=2)
    with pytest.warns(SourceDropped):
        result = privcal.calibrate([stays, leaves], "acc-t", 1.0)
    # v(new left) = 2 against v0: 1 alone (so the lower end moves up), 3 with both (it would not).
    lo, hi = 0.5, 0.5 + 2.5 * (np.sqrt(5) - 1) / 2
    new_left = hi - (hi - lo) * (np.sqrt(5) - 1) / 2
    assert result.rounds[3].query.temperature > result.rounds[0].query.temperature > new_left


def test_below_min_sources_the_run_stops_and_says_what_was_spent() -> None:
    rich, poor = make_sources(2), make_sources(1, epsilon=0.3)[0]
    poor.name = "poor"
    with (
        pytest.warns(SourceDropped, match="poor left"),
        pytest.raises(privcal.CalibrationError, match="only 2 of 3 sources are left") as stopped,
    ):
        privcal.calibrate([*rich, poor], "acc-t", 1.0, min_sources=3)
    # 1/6 was granted, the second 1/6 was too much for `poor`.
    assert stopped.value.spent == pytest.approx((2 / 6, 2 / 6, 1 / 6), abs=1e-8)
    assert [s.spent for s in (*rich, poor)] == list(stopped.value.spent)


def test_a_source_that_fails_after_the_charge_is_counted_as_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good, broken = make_sources(2)
    monkeypatch.setattr(broken, "_exact", lambda query: 1 / 0)
    with pytest.warns(SourceDropped, match="unavailable"):
        result = privcal.calibrate([good, broken], "acc-t", 0.6)
    assert result.spent == (good.spent, broken.spent) == (0.6, 0.1)


@pytest.mark.parametrize("epsilon", [Fraction(1, 2), Decimal("0.5"), np.float32(0.5), "0.5"])
def test_a_map_can_be_saved_however_epsilon_and_options_were_given(
    epsilon: object, tmp_path: Path
) -> None:
    result = privcal.calibrate(
        make_sources(1), "ece-t", epsilon, bins=np.int64(10), bounds=(0.5, np.float64(3))
    )
    result.map.save(tmp_path / "m.json")
    assert privcal.load_map(tmp_path / "m.json").provenance["epsilon_per_source"] == 0.5
    assert result.map.provenance["options"] == {"bins": 10, "bounds": [0.5, 3.0]}


@pytest.mark.parametrize("campaign", ["2024/spring", "a\nb", "x" * 300])
def test_a_campaign_must_have_a_plain_name(campaign: str) -> None:
    sources = make_sources(1)
    with pytest.raises(privcal.InputError):
        privcal.calibrate(sources, campaign=campaign)


def test_a_malformed_answer_drops_its_source() -> None:
    bad = Scripted("bad", [float("nan")] * 6)
    good = Scripted("good", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    with pytest.warns(SourceDropped, match="malformed"):
        result = privcal.calibrate([bad, good], "acc-t", 1.0)
    assert list(result.dropped) == ["bad"]


def test_an_empty_source_answers_like_any_other() -> None:
    empty = privcal.Source(random_scores(0), privcal.Policy(epsilon=1))
    result = privcal.calibrate([empty, *make_sources(1)], "ece-t", 1.0)
    assert result.dropped == {}
    assert result.spent == (1.0, 1.0)


def test_progress_is_told_after_every_answer() -> None:
    steps: list[Progress] = []
    privcal.calibrate(make_sources(4), "histogram-binning", 1.0, progress=steps.append)
    assert [(s.asked, s.answered, s.sources) for s in steps] == [(0, i, 4) for i in range(1, 5)]


def test_a_source_of_another_model_refuses() -> None:
    ours = privcal.Source(random_scores(5, model="a"), name="ours")
    theirs = privcal.Source(random_scores(5, model="b"), name="theirs")
    with pytest.warns(SourceDropped, match="theirs left in round 1: model"):
        result = privcal.calibrate([ours, theirs], "acc-t", 1.0, model="a")
    assert theirs.spent == 0
    assert result.map.provenance["model"] == "a"


@pytest.mark.parametrize("epsilon", [0, -1, float("nan"), 1e-9])
def test_an_epsilon_that_cannot_be_spent_is_an_input_error(epsilon: float) -> None:
    sources = make_sources(1)
    with pytest.raises(privcal.InputError, match="epsilon"):
        privcal.calibrate(sources, "acc-t", epsilon)
    assert sources[0].spent == 0


def test_sources_must_be_some_and_distinct(tmp_path: object) -> None:
    one = make_sources(1)[0]
    with pytest.raises(privcal.InputError, match="no sources"):
        privcal.calibrate([])
    with pytest.raises(privcal.InputError, match="given twice"):
        privcal.calibrate([one, one])
    with pytest.raises(privcal.InputError, match="called 's0'"):
        privcal.calibrate([one, make_sources(1)[0]])
    with pytest.raises(privcal.InputError, match="min_sources"):
        privcal.calibrate([one], min_sources=0)


def test_two_sources_may_not_share_a_ledger(tmp_path: object) -> None:
    path = f"{tmp_path}/shared.db"
    privcal.Ledger.create(path)
    fleeting = privcal.Ledger.in_memory()
    for ledger in (path, fleeting):
        sources = [privcal.Source(random_scores(5, seed=i), None, ledger) for i in range(2)]
        with pytest.raises(privcal.InputError, match="share one ledger"):
            privcal.calibrate(sources)


def test_a_quiet_run_gives_no_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        privcal.calibrate(make_sources(3), "nll-t", 1.0)


def test_a_sketch_learns_from_the_sources_how_many_rows_of_a_person_count() -> None:
    scores = random_scores(60, 3, seed=1)
    persons = [str(i // 3) for i in range(60)]
    owned = privcal.Scores(logits=scores.outputs.array, labels=scores.labels, person=persons)
    policy = privcal.Policy(epsilon=1.0, rows_per_person=3)
    result = privcal.calibrate([privcal.Source(owned, policy)], "sketch")
    assert result.sketch is not None
    assert [entry.rows_per_person for entry in result.sketch.entries] == [3]
    assert result.map.provenance["options"] == {"rows_per_person": 3}
