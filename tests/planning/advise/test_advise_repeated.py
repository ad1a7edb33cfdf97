"""Several campaigns: who counts, what each budget brings, and that both are plain plans."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privcal
from privcal import InputError
from privcal.planning.advise.plan import Course, Expectation, Point, Repeated, ShiftMean
from privcal.planning.advise.planner import MAX_CAMPAIGNS, Turnover
from privcal.planning.advise.sentences import repeated, rounded_down
from privcal.planning.simulate.variants import Variant
from privcal.trusted.epsilon import NANO, from_nano, to_nano
from tests.conftest import Run
from tests.support.builders import an_archive


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "tiny.npz"
    return an_archive(path, 400, about={"dataset": "tiny"}, clean=0.5, fog=1.5, snow=1)


def plan(archive: Path, **more: Any) -> privcal.Plan:
    given = {"sources": 20, "samples": 10, "epsilon": 1.0, "trials": 10, **more}
    return privcal.advise(archives=[archive], **given)


def bundled(**more: Any) -> privcal.Plan:
    given = {"sources": 40, "samples": 25, "trials": 20, **more}
    return privcal.advise(shifts=["fog", "gaussian_noise", "pixelate"], **given)


# --- who counts --------------------------------------------------------------------------


def with_accounts(turnover: Turnover, total: int, charge: int) -> list[int]:
    """Rows that count, person by person: each has an account of whole nano-ε.

    Whoever can still pay for the campaign counts and pays; nobody else does either.
    """
    spent: dict[int, int] = {}  # by person
    present: list[int] = []  # the longest present first
    counts = []
    for campaign in range(1, turnover.campaigns + 1):
        wanted = turnover.arrived(campaign)
        while len(spent) < wanted:
            present.append(len(spent))
            spent[len(spent)] = 0
        present = present[-turnover.samples :]
        paying = [person for person in present if spent[person] + charge <= total]
        for person in paying:
            spent[person] += charge
        counts.append(len(paying))
    assert max(spent.values()) <= total
    return counts


@settings(max_examples=150, deadline=None)
@given(
    samples=st.integers(1, 40),
    campaigns=st.integers(1, 30),
    share=st.floats(0, 1) | st.sampled_from([0, 1, 0.1, 0.25, 0.3, 1 / 3, 0.5]),
    epsilon=st.sampled_from([0.05, 0.3, 1.0, 7.0]),
    data=st.data(),
)
def test_as_many_rows_count_as_with_an_account_for_every_person(
    samples: int, campaigns: int, share: float, epsilon: float, data: st.DataObject
) -> None:
    turnover = Turnover.of(samples, campaigns, share)
    times = data.draw(st.integers(1, campaigns))
    total = to_nano(epsilon)
    assert list(turnover.counting(times)) == with_accounts(turnover, total, total // times)


@settings(max_examples=100, deadline=None)
@given(samples=st.integers(1, 40), campaigns=st.integers(2, 30), share=st.floats(0, 1))
def test_the_share_of_new_people_is_right_to_one_person(
    samples: int, campaigns: int, share: float
) -> None:
    turnover = Turnover.of(samples, campaigns, share)
    new = turnover.new()
    assert len(new) == campaigns - 1
    assert all(0 <= n <= samples and abs(n - share * samples) < 1 + 1e-9 for n in new)
    assert abs(sum(new) - share * samples * (campaigns - 1)) <= 0.5 + 1e-6


def test_who_counts_at_first_and_in_the_steady_state() -> None:
    turnover = Turnover.of(20, 8, 0.3)
    assert turnover.counting(1) == (20, 6, 6, 6, 6, 6, 6, 6)
    assert turnover.counting(2) == (20, 20, 12, 12, 12, 12, 12, 12)
    assert turnover.counting(4) == (20,) * 8  # 4 · 0.3 is above 1: everybody
    assert Turnover.of(25, 5, 0.3).new() == (8, 7, 8, 7)
    assert Turnover.of(3, 4, 1 / 3).new() == (1, 1, 1)  # a float's third is a third
    assert Turnover.of(20, 5, 0).counting(2) == (20, 20, 0, 0, 0)
    assert Turnover.of(20, 5, 1).counting(1) == (20,) * 5


@settings(max_examples=100, deadline=None)
@given(samples=st.integers(1, 40), campaigns=st.integers(1, 60), share=st.floats(0, 1))
def test_choices_leave_nobody_uncounted_and_stop_where_all_count(
    samples: int, campaigns: int, share: float
) -> None:
    turnover = Turnover.of(samples, campaigns, share)
    found = turnover.choices()
    assert found == sorted(set(found))
    assert found[-1] == campaigns
    least = {k: min(turnover.counting(k)) for k in range(1, campaigns + 1)}
    assert all(least[k] > 0 for k in found)
    every = min(k for k in least if least[k] == samples)
    assert every in found
    assert all(k <= every for k in found[:-1])
    # Geometric: no useful number is far from one that is tried.
    for k in least:
        if least[k] > 0 and k < every:
            assert any(k / 1.5 <= other <= 1.5 * k for other in found)


# --- campaigns are plans -----------------------------------------------------------------


def test_every_campaign_is_the_plan_of_its_rows_and_its_epsilon(archive: Path) -> None:
    found = plan(archive, campaigns=6, new_people=0.25, seed=4)
    several = found.repeated
    assert several is not None
    assert [course.times for course in several.tried] == [1, 2, 3, 4, 6]
    for course in several.tried:
        assert course.epsilon == from_nano(NANO // course.times)
        assert course.rows == Turnover.of(10, 6, 0.25).counting(course.times)
        for rows in set(course.rows):
            direct = plan(archive, samples=rows, epsilon=course.epsilon, seed=4).point
            for row, point in zip(course.rows, course.points, strict=True):
                if row == rows:
                    assert point.private() == direct.private()
                    for name in ("uncalibrated", "prior"):
                        assert point.of(name) == direct.of(name)
        # A source fits all of its own rows, whoever has been asked about.
        own = plan(archive, seed=4).point.of("one-source")
        assert {point.of("one-source") for point in course.points} == {own}


def test_the_mean_over_campaigns_is_that_of_each_campaign(archive: Path) -> None:
    several = plan(archive, campaigns=7, new_people=0.25).repeated
    assert several is not None
    for course in several.tried:
        for one in course.mean.expected:
            along = [point.of(one.method) for point in course.points]
            for measure in ("ece", "brier"):
                ours = getattr(one, measure)
                figures = [getattr(at, measure) for at in along]
                assert ours.mean == pytest.approx(np.mean([f.mean for f in figures]))
                assert ours.shifts == pytest.approx(np.mean([f.shifts for f in figures], axis=0))
                assert ours.low <= ours.mean <= ours.high
            if one.unclear is not None:
                assert one.unclear == pytest.approx(np.mean([at.unclear for at in along]))
            # Campaigns with as many rows are one simulation: their errors do not average out.
            if one.private:
                shares = [course.rows.count(rows) / 7 for rows in dict.fromkeys(course.rows)]
                errors = [along[course.rows.index(r)].ece.se for r in dict.fromkeys(course.rows)]
                assert one.ece.se == pytest.approx(math.hypot(*np.multiply(shares, errors)))


def test_without_new_people_a_budget_for_each_is_one_for_all(archive: Path) -> None:
    found = plan(archive, campaigns=5, new_people=0)
    assert found.repeated is not None
    population, person = found.repeated.population, found.repeated.person
    assert (population.budget, person.budget) == ("population", "person")
    assert person.times == population.times == 5
    assert person.points == population.points
    assert set(population.points) == {plan(archive, epsilon=0.2).point}
    assert found.repeated.recommended == "population"
    assert found.recommendation.startswith("Without new people a budget for each person is no")
    assert plan(archive, campaigns=5).to_dict() == found.to_dict()  # 0 unless said


def test_one_campaign_is_the_plan_of_one(archive: Path) -> None:
    one, several = plan(archive), plan(archive, campaigns=1, new_people=0.5)
    assert several.point == one.point
    assert several.method == one.method
    assert several.enough == one.enough
    assert several.caveat == one.caveat


def test_with_all_people_new_every_campaign_has_the_whole_budget() -> None:
    found = bundled(campaigns=4, new_people=1)
    assert found.repeated is not None
    assert found.repeated.recommended == "person"
    assert set(found.repeated.person.points) == {bundled().point}
    assert "in every campaign; with one budget for all, ε = 0.25 in each" in found.recommendation


def test_with_a_third_of_new_people_a_budget_for_each_halves_the_error() -> None:
    found = bundled(campaigns=12, new_people=0.3)
    assert found.repeated is not None
    person, population = found.repeated.person, found.repeated.population
    assert person.times <= 4  # beyond that all rows count anyway
    assert found.repeated.recommended == "person"
    assert person.expected.ece.mean < 0.5 * population.expected.ece.mean
    assert person.last.ece.mean < 0.5 * population.last.ece.mean
    for other in found.repeated.tried:
        close = other.expected.brier.mean <= 1.02 * person.expected.brier.mean
        assert not close or person.expected.ece.mean <= other.expected.ece.mean
    # What the plan says is about the recommended course, its last campaign.
    assert found.point == found.chosen == person.points[-1]
    assert found.epsilon == person.epsilon
    assert found.expected == person.last
    ours = f"{found.method} (ECE {person.last.ece.mean:.3f}, Brier {person.last.brier.mean:.3f})"
    assert f"enough data in the last campaign: {ours}" in found.enough.sentence


def test_a_gain_within_the_monte_carlo_error_is_no_reason_for_a_budget_for_each(
    archive: Path,
) -> None:
    common: dict[str, Any] = {"sources": 60, "campaigns": 6, "new_people": 0.25}
    found = set()
    for epsilon, trials in ((0.3, 2), (0.6, 2), (1, 2), (2, 2), (3, 2), (3, 30)):
        several = plan(archive, epsilon=epsilon, trials=trials, **common).repeated
        assert several is not None
        ours, theirs = several.person.expected, several.population.expected
        sure = all(
            b.mean - a.mean > 2 * math.hypot(a.se, b.se)
            for a, b in ((ours.ece, theirs.ece), (ours.brier, theirs.brier))
        )
        assert several.recommended == ("person" if sure else "population")
        found.add(sure)
    assert found == {True, False}


# --- words -------------------------------------------------------------------------------


def test_the_plan_says_its_unit_and_who_is_assumed_to_come_and_go(archive: Path) -> None:
    found = plan(archive, campaigns=6, new_people=0.25)
    assert found.repeated is not None
    who = found.repeated.who
    assert who.startswith("A row is a person here, and ε is a person's at each source, over all")
    assert "who were not there at the campaign before" in who
    assert "have 2 or 3 of the 10 rows of a source" in who
    assert "the longest present leave first" in who
    assert "at the first campaign everybody is new" in who
    times = {1: "once", 2: "twice"}.get(
        found.repeated.person.times, f"{found.repeated.person.times} times"
    )
    assert f"a person counts {times} and then no more" in who
    same = plan(archive, campaigns=3, trials=2).repeated
    assert same is not None
    assert "are of the same people in every campaign" in same.who


def expected(name: str, *means: float) -> Expectation:
    values = (ShiftMean(mean, 0.001, mean, mean, (mean,) * 4) for mean in (*means, 0.3, 0.02))
    return Expectation(Variant(name), name == "sketch", *values)


def course(budget: Any, times: int, *along: tuple[float, float]) -> Course:
    """Of so many campaigns, each with this ECE and Brier score."""

    def at(ece: float, brier: float) -> Point:
        levels = [("uncalibrated", 0.2, 0.25), ("prior", 0.1, 0.18)]
        free = [expected(name, e, b) for name, e, b in levels]
        return Point(40, 1 / times, (*free, expected("sketch", ece, brier)))

    rows = tuple(range(len(along), 0, -1)) if len(set(along)) > 1 else (9,) * len(along)
    mean = at(*(float(np.mean(values)) for values in zip(*along, strict=True)))
    return Course(budget, times, rows, tuple(at(*one) for one in along), mean, Variant("sketch"))


@pytest.mark.parametrize(
    ("person", "recommended", "new_people", "says"),
    [
        (
            course("person", 1, (0.04, 0.16), (0.06, 0.17)),
            "person",
            0.5,
            'Use sketch with budget = "person" and ε = 1 in each of 2 campaigns, at each of 40 '
            "sources of 25 rows: expected ECE 0.200 → 0.050, Brier 0.250 → 0.165 in the mean of "
            "the campaigns (ECE 0.060, Brier 0.170 in the last); with one budget for all, "
            "ε = 0.5 in each, ECE 0.080, Brier 0.175.",
        ),
        (
            course("person", 1, (0.04, 0.16), (0.12, 0.19)),
            "person",
            0.5,
            "Spend no ε on this: sketch with budget",
        ),
        (
            course("person", 2, (0.08, 0.175), (0.08, 0.175)),
            "population",
            0.1,
            "New people do not help: no larger ε in each campaign is better in the mean and as "
            'good in the last. Use sketch with budget = "population" and ε = 0.5 in each of 2 ',
        ),
        (
            course("person", 1, (0.079, 0.175), (0.079, 0.175)),
            "population",
            0.1,
            'New people hardly help: budget = "person" with ε = 1 has ECE 0.079, Brier 0.175, '
            "which is not clearly better than one budget for all. Use",
        ),
    ],
)
def test_the_advice_names_the_budget_and_what_the_other_one_brings(
    person: Course, recommended: Any, new_people: float, says: str
) -> None:
    population = course("population", 2, (0.08, 0.175), (0.08, 0.175))
    several = Repeated(2, new_people, 1.0, population, person, (person,), recommended, "")
    said = repeated(several, 25)
    assert said.startswith(says)
    assert said.count("Brier") >= said.count("ECE") / 2
    assert said.endswith(".")


def test_a_course_that_is_worse_in_the_end_is_not_chosen() -> None:
    found = bundled(campaigns=12, new_people=0.05).repeated
    assert found is not None
    early = min(found.tried, key=lambda course: course.expected.ece.mean)
    assert early.expected.ece.mean < found.population.expected.ece.mean
    assert early.last.ece.mean > found.population.last.ece.mean  # it lives on the first people
    assert found.person.last.ece.mean <= found.population.last.ece.mean


@settings(max_examples=200, deadline=None)
@given(nano=st.integers(1, 20 * NANO), times=st.integers(1, MAX_CAMPAIGNS))
def test_who_asks_with_the_epsilon_that_is_said_may_ask_as_often_as_planned(
    nano: int, times: int
) -> None:
    share = nano // times
    if share:
        typed = to_nano(float(rounded_down(from_nano(share))))
        assert typed * times <= nano
        assert Fraction(typed, share) > Fraction(99, 100)


# --- errors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"campaigns": 0}, "campaigns must be a whole number from 1 to 1,000, not 0"),
        ({"campaigns": 2.0}, "campaigns must be a whole number"),
        ({"campaigns": True}, "campaigns must be a whole number"),
        ({"campaigns": 1001}, "campaigns must be a whole number from 1 to 1,000"),
        ({"campaigns": 3, "new_people": -0.1}, "new_people, a share, must be a number from 0 to 1"),
        ({"campaigns": 3, "new_people": 30}, "must be a number from 0 to 1, not 30"),
        ({"campaigns": 3, "new_people": math.nan}, "must be a number from 0 to 1, not nan"),
        ({"campaigns": 3, "new_people": "0.3"}, "must be a number from 0 to 1, not '0.3'"),
        ({"campaigns": 3, "new_people": True}, "must be a number from 0 to 1, not True"),
        ({"new_people": 0.3}, "say how many campaigns there are"),
        ({"campaigns": 3, "target_ece": 0.04}, "planned for one campaign; leave them out"),
        ({"campaigns": 3, "sweep": True}, "planned for one campaign; leave them out"),
        ({"campaigns": 3, "sources": None}, "say how many sources there are"),
        ({"campaigns": 30, "epsilon": 2e-8}, "too small for 30 campaigns"),
        ({"campaigns": 30, "epsilon": 1e-7}, "too small to be split"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    archive: Path, more: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        plan(archive, **more)


# --- the command -------------------------------------------------------------------------


@pytest.fixture
def run(run: Run) -> Run:
    """`privcal advise`, as a person uses it."""
    return replace(run, before=("privcal", "advise"))


def test_the_command_prints_both_budgets_and_the_functions_plan(
    run: Any, archive: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "plan.png"
    options = ["--sources", 60, "--samples", 10, "--epsilon", 3, "--trials", 10]
    options += ["--campaigns", 6, "--new-people", 0.25, "--archive", archive]
    stdout, _ = run.ok(*options, "--plot", picture, "--json")
    expected = plan(archive, sources=60, epsilon=3, campaigns=6, new_people=0.25)
    said = json.loads(stdout)
    assert (said.pop("plot"), said.pop("html")) == (str(picture), None)
    assert said == json.loads(json.dumps(expected.to_dict()))
    several, course = said["repeated"], said["repeated"]["person"]
    assert (several["epsilon"], several["campaigns"], several["new_people"]) == (3, 6, 0.25)
    assert [one["times"] for one in several["tried"]] == [1, 2, 3, 4, 6]
    for name in ("rows", "ece", "brier"):
        assert len(course[name]) == 6
    assert course["rows"] == list(Turnover.of(10, 6, 0.25).counting(course["times"]))
    assert picture.read_bytes().startswith(b"\x89PNG")
    stdout, _ = run.ok(*options)
    flat = " ".join(stdout.split())
    assert "60 sources of 10 rows, ε = 3 for 6 campaigns, 25% new people at each" in flat
    assert "population: one for all, ε = 0.5 in each" in flat
    assert expected.recommendation in flat
    assert expected.repeated is not None
    assert expected.repeated.who in flat
    # One row of the table: both budgets, the one for each person in the mean and in the last.
    person, population = expected.repeated.person, expected.repeated.population
    assert person.times < population.times
    ours, last, other = (
        point.of("acc-t") for point in (person.mean, person.points[-1], population.mean)
    )
    values = [ours.ece, last.ece, ours.brier, last.brier, ours.aurc, other.ece, other.brier]
    assert f"acc-t {' '.join(f'{value.mean:.3f}' for value in values)}" in flat


def test_the_table_of_campaigns_fits_in_80_columns(
    run: Any, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, stdout, _ = run(
        "--sources", 5, "--samples", 5, "--trials", 2, "--campaigns", 3, "--archive", archive
    )
    assert max(map(len, stdout.splitlines())) <= 80
    assert "…" not in stdout


def test_the_picture_draws_both_budgets_along_the_campaigns(archive: Path, tmp_path: Path) -> None:
    for campaigns in (1, 3, 70):
        found = plan(archive, trials=2, campaigns=campaigns, new_people=0.5)
        privcal.PlanDisplay.from_plan(found).save(tmp_path / "plan.svg")
        text = (tmp_path / "plan.svg").read_text("utf-8")
        assert "<svg" in text
    assert found.repeated is not None
    assert len(set(found.repeated.person.points)) <= 3  # of 70 campaigns


def test_bad_usage_ends_with_2_and_a_sentence(run: Any) -> None:
    options = ("--sources", 4, "--samples", 5)
    for more, says in (
        (("--campaigns", 0), "campaigns must be a whole number"),
        (("--new-people", 0.3), "say how many campaigns"),
        (("--campaigns", 3, "--new-people", 1.5), "must be a number from 0 to 1"),
        (("--campaigns", 3, "--target-ece", 0.04), "planned for one campaign"),
    ):
        stderr = run.fails(*options, *more)
        assert says in " ".join(stderr.split())
